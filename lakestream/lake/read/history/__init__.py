"""Old messages for the server, read from a stream's Delta table. No JVM.

Belongs here: the index of a table's files, planning and executing reads, the cache, and a stream's past.

In reading order:

- `history.py`: Old messages of one stream, read from its Delta table.
- `index.py`: Finding the files of a stream's table that messages are in, with which history reads are planned.
- `scan.py`: Reads of a table's row groups.
- `rows.py`: Rows of a stream's table as messages.
- `cache.py`: Cache of messages read from tables, with a byte limit.
- `staged.py`: Old messages from staged segments, while the table is damaged.
- `past_table.py`: A stream's past in its table, for the server.
"""
