"""`lakestream move`: streams, buckets and consumers move from one server to another.

Belongs here: the command (`command.py`) and its run (`run.py`). What to do next is decided in `plan.py`, without I/O,
from what both servers show (`sides.py`), so a command that was interrupted goes on when it is run again. `backup.py`
and `old_api.py` are ways to copy, `compare.py` compares messages, `output.py` shows what happens.
"""
