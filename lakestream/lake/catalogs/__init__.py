"""Catalogs: entries of the lake's tables in catalogs that other engines read.

Belongs here: the addresses of catalogs (`address.py`), and the interface of what keeps the entries (`keeper.py`).
Catalogs, their entries and the keeper are in packages/catalogs.

In reading order:

- `address.py`: Addresses of catalogs.
- `keeper.py`: Keepers beside a compactor, as it knows them: of entries in catalogs, and of Iceberg tables.
"""
