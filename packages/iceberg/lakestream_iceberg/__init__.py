"""Iceberg beside Delta: an Iceberg table over the same Parquet files for each stream (`lakestream.iceberg`).

Belongs here: what an Iceberg table has to say, computed from the Delta log, and the keeper that has it written beside a
compactor. Iceberg's own library writes it (`IcebergTable` in jvm/): no file format is implemented here. The rules are
in docs/internals/iceberg.md.

In reading order:

- `errors.py`: Tables that Iceberg cannot have.
- `schema.py`: A Delta schema as Iceberg's.
- `changes.py`: Changes between two versions of a Delta table, by data file.
- `export.py`: The Iceberg table of one Delta table.
- `keeper.py`: Keeping the Iceberg tables of a lake beside a compactor.
- `metadata.py`: Iceberg tables of a lake, by their files alone.
- `vending.py`: Credentials with which a client reads the files of one table in an object store, and nothing else, for
  an hour.
- `catalog.py`: The Iceberg REST catalog of a lake, read-only.
- `command.py`: `lakestream iceberg serve`: the Iceberg REST catalog of a lake.
- `library.py`: Iceberg's library in the JVM of a session.
"""
