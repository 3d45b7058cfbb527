"""Reading streams of a lake, without Spark except for its data source.

Belongs here: old messages for the server (history/), a stream as it is now (live view), and tables as Arrow data.

In reading order:

- `readers.py`: Tables as Arrow and pandas data, in this process, without Java.
- `history/`: Old messages for the server, read from a stream's Delta table. No JVM.
- `base_rows.py`: Base of a stream that begins as a clone, from its table's rows.
"""
