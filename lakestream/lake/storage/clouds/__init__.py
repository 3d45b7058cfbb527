"""The clouds whose object stores can hold a lake, one description each.

Belongs here: what differs between them: the settings of obstore, Hadoop, deltalake and DuckDB, the variables of the
environment that these follow from, and the words of errors. object_storage.py has the operations, once for all.
"""
