"""Entries of a lake's tables in Hive metastores, AWS Glue, Unity Catalog and Iceberg REST catalogs.

Belongs here: an implementation of `lakestream.lake.catalogs.catalog` for each kind of catalog, passes that bring a
catalog up to date, beside a compactor too, and the commands (`lakestream catalog`).

In reading order:

- `opening.py`: Connections to catalogs.
- `hive.py`: Hive metastores, over Thrift.
- `glue.py`: AWS Glue Data Catalogs, and services with the same API.
- `unity.py`: Unity Catalog, over its REST API 2.1.
- `types.py`: Types of Delta columns in the languages of catalogs.
- `sync.py`: Synchronisation of a catalog with a lake.
- `keeper.py`: Keeping the entries of catalogs beside a compactor.
- `command.py`: `lakestream catalog`: the entries of a lake's tables in catalogs.
- `catalog.py`: The interface of a catalog.
- `entries.py`: Tables of the lake, and their entries in a catalog.
- `metastore.py`: Catalog entries by a Spark session.
- `plan.py`: Differences between the tables of a lake and the entries of a catalog.
- `tables.py`: The tables of a lake that are registered in catalogs.
- `rest.py`: Iceberg REST catalogs of others: Polaris, Lakekeeper, Nessie and services with the same protocol.
- `tokens.py`: Tokens of catalogs over HTTP: in the environment, or in a file that is read for each connection.
"""
