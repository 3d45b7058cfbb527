"""`lakestream move`: streams, buckets and consumers move from one server to another.

Belongs here: the command. What to do next is decided in plan.py, without I/O, from what both servers show; so a command
that was interrupted goes on when it is run again.
"""
