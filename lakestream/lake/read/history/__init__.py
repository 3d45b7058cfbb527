"""Old messages for the server, read from a stream's Delta table. No JVM.

Belongs here: the index of a table's files, planning and executing reads, the cache, and a stream's past.
"""
