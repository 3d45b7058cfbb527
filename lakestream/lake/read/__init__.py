"""Reading streams of a lake, without Spark except for its data source.

Belongs here: old messages for the server (history/), a stream as it is now (live view), and tables as Arrow data.

In reading order:

- `readers.py`: Tables as Arrow and pandas data, in this process, without Java.
- `live.py`: The live view: a stream as it is now, from its table and its uncompacted segments.
- `live_rows.py`: Rows of a live view as Arrow data.
- `typed_tail.py`: Typed columns of a live view: those of the table, and those of messages that are not in it yet.
- `conditions.py`: Conditions on rows that are pushed down into tables and uncompacted segments.
- `flush.py`: Client of the flush request: have the server stage what it has.
- `history/`: Old messages for the server, read from a stream's Delta table. No JVM.
- `base_rows.py`: Base of a stream that begins as a clone, from its table's rows.
- `datasource.py`: The Spark data source `lakestream`: a live view of a stream, as a batch and as a stream.
- `metastore.py`: Catalog entries by a Spark session.
"""
