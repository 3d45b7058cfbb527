"""Catalogs: entries of the lake's tables in catalogs that other engines read.

Belongs here: what is registered (`tables.py`), how it differs from what a catalog has (`plan.py`, without I/O), the
interface of a catalog (`catalog.py`) with an implementation for each kind, and keeping the entries (`sync.py`,
`keeper.py`). An entry has a name, a location, columns, comments and properties. Rows and versions stay in the table.
"""
