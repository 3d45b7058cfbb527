"""Catalogs: entries of the lake's tables in catalogs that other engines read.

Belongs here: what is registered (`tables.py`), how it differs from what a catalog has (`plan.py`, without I/O), the
interface of a catalog and of the keeper of its entries (`catalog.py`), and its address (`address.py`). The kinds of
catalogs and the keeper are in packages/catalogs. An entry has a name, a location, columns, comments and properties.
Rows and versions stay in the table.
"""
