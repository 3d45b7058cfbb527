"""Reading streams of a lake for the server.

Belongs here: old messages (history/), and the base of a clone. packages/client has what other programs read with.

In reading order:

- `history/`: Old messages for the server, read from a stream's Delta table. No JVM.
- `base_rows.py`: Base of a stream that begins as a clone, from its table's rows.
"""
