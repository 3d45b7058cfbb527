"""Streams of a lake as they are and were, read from its files.

Belongs here: views of a table with the segments that are staged beyond it, their past, and tables as Arrow data. The
client, SQL and Spark's source read streams through them; a server does not need them.

In reading order:

- `view.py`: A stream as it is now: its table at one version, and the segments that are staged beyond it.
- `flusher.py`: Client of the flush request: have the server stage what it has.
- `partitions.py`: Partition columns of rows by time and by fields of the payload (layout `fields`), as Arrow and as
  Spark SQL.
- `past.py`: A stream's messages as of a time or sequence, for programs.
- `readers.py`: Tables as Arrow and pandas data, in this process, without Java.
"""
