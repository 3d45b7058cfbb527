"""The table of misfits of a stream, for readers.

Belongs here: its place beside the stream's table, and its rows. The compactor writes it
(lakestream_spark/write/misfits.py).
"""

from __future__ import annotations

from lakestream.lake.storage.storage import Storage
from lakestream.lake.table.log import log_directory
from lakestream.lake.table.masks import MISFITS
from lakestream.lake.table.scan import Scan
from lakestream.lake.table.schema import MISFITS_PROPERTY
from lakestream.lake.table.typed_columns import plain

Row = tuple[int, str | None, str | None, str, str]


def owner(storage: Storage, path: str) -> str | None:
    """Return the uid of the stream whose misfits a table has, "" for any other table, None if there is none."""
    if not storage.names(log_directory(path)):
        return None
    try:
        return str(Scan(path, storage=storage).metadata.configuration.get(MISFITS_PROPERTY, ""))
    except FileNotFoundError:
        return None


def place(storage: Storage, table: str, uid: str) -> str:
    """Return the path of the table of misfits, which need not exist: the first of `<STREAM>_misfits`,
    `<STREAM>_misfits_` … that no other table takes.

    Args:
        table: the stream's table.
        uid: of the stream.
    """
    path = f"{table}{MISFITS}"
    while owner(storage, path) not in (None, uid):
        path += "_"
    return path


def rows(storage: Storage, table: str, uid: str, after: int, most: int) -> list[Row]:
    """Return (seq, schema, field, rule, reason) of the first misfits after a sequence, at most so many.

    Raises:
        VersionGone: a file is missing.
    """
    path = place(storage, table, uid)
    if owner(storage, path) is None:
        return []
    sql = f"SELECT seq, schema, field, rule, reason FROM t WHERE seq > {after} ORDER BY seq LIMIT {most}"
    found = plain(Scan(path, storage=storage).query(sql))
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True))
