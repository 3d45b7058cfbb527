"""Campaign of faults of the lake: outages, and other programs that change its tables.

Belongs here: servers with a lake and a compactor, whose clients publish all the time, and the cases (cases.py has what
they share; each group of them is a module with `CASES`).
"""
