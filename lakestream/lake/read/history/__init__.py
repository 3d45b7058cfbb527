"""Old messages, read back from a stream's Delta table.

Belongs here: the index of a table's files, planning and doing a read, the cache, and a stream's past. No JVM.
"""
