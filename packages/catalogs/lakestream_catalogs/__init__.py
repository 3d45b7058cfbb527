"""Entries of a lake's tables in Hive metastores, AWS Glue and Unity Catalog (`lakestream catalog`).

Belongs here: an implementation of `lakestream_catalogs.catalog` for each kind of catalog (`hive.py`, `glue.py`,
`unity.py`) with their spelling of types (`types.py`), the choice of one by an address (`opening.py`), a pass over a
catalog (`sync.py`), passes beside a compactor (`keeper.py`), and the commands (`command.py`).
"""
