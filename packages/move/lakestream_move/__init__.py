"""`lakestream move`: streams, buckets and consumers move from one server to another.

Belongs here: the command and its run. What to do next is decided in plan.py, without I/O, from what both servers show,
so a command that was interrupted goes on when it is run again. Nothing about a run is kept but a mark in the metadata
of the new stream: the origin's time of creation, and the stage.

In reading order:

- `plan.py`: The plan of a move, without I/O.
- `run.py`: The run of a move.
- `sides.py`: The connection to one server of a move.
- `backup.py`: A stream moved as a backup: a snapshot of the old server becomes a restore of the new one.
- `compare.py`: The comparison of a stream with its copy before the cut-over.
- `old_api.py`: The API of the old server on the new one.
- `output.py`: The output of a move: lines, progress bars on a terminal, or events for scripts.
- `command.py`: `lakestream move`: the command line.
"""
