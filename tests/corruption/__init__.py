"""Damage of single bytes in every kind of file that a server keeps, and its outcome.

`python -m tests.corruption` runs the whole campaign or parts of it. Each place (`places.py`) is a small directory of
one kind: the store of a server, a lake, a node of a cluster. `cases.py` damages one byte at a time, and the judge of
the place returns the outcome.
"""
