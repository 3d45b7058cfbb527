"""Catalogs: entries of the lake's tables in catalogs that other engines read.

Belongs here: the entries that a lake should have in a catalog, and the interfaces of a catalog and of the keeper of its
entries. Their implementations are in packages/catalogs. An entry has a name, a location, columns, comments and
properties. Rows and versions stay in the table.

In reading order:

- `address.py`: Addresses of catalogs.
- `entries.py`: Tables of the lake, and their entries in a catalog.
- `plan.py`: Differences between the tables of a lake and the entries of a catalog.
- `catalog.py`: The interfaces of a catalog and of the keeper of its entries.
- `tables.py`: The tables of a lake that are registered in catalogs.
"""
