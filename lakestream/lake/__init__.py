"""The lake: streams as Delta tables.

Belongs here: the functions that programs outside of lakestream may rely on, each loaded when it is first asked for.

    from lakestream.lake import as_of, table_path, version_at

    table = table_path("data/lake", "ORDERS")
    found = as_of(table, "2026-05-01 12:00:00")   # by message time: the version, and whether it is complete
    version = version_at(table, "2026-05-01 12:00:00")  # by commit time: TIMESTAMP AS OF

`Session` answers SQL, `LakeError` is what all of them raise. docs/sql-duckdb.md has more.

In reading order:

- `errors.py`: Errors that the lake package raises for its callers.
- `table/`: A stream's Delta table: its format, its states and its rows.
- `read/`: Reading streams of a lake for the server.
- `catalogs/`: Catalogs: entries of the lake's tables in catalogs that other engines read.
- `progress.py`: Progress bars of long work.
- `flush.py`: The flush request, by which readers have a server stage what it has.
- `last_messages.py`: The last message of each subject, as the index of a stream's leader has it.
- `staging/`: The staging area: sealed segments that wait for compaction, and the notes of server and compactor beside
  them.
- `storage/`: Storages of a lake: directories and buckets, their paths, locks, and the identity of a lake.
- `values.py`: Values of queries as JSON.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lakestream import extras
from lakestream.protocol.accounts import GLOBAL_ACCOUNT

if TYPE_CHECKING:
    from lakestream.lake.errors import LakeError
    from lakestream.lake.table.at import TableAsOf as AsOf
    from lakestream.lake.table.at import TimeTravelError, as_of, instant, version_at
    from lakestream.lake.table.progress import TableProgress as Progress

__all__ = [
    "AsOf",
    "LakeError",
    "Progress",
    "Session",
    "SqlError",
    "TimeTravelError",
    "as_of",
    "instant",
    "table_path",
    "version_at",
]

_MODULES = {
    "LakeError": "lakestream.lake.errors",
    "Progress": "lakestream.lake.table.progress",
}
"""Modules of the names that the time travel module does not define."""
_SQL = ("Session", "SqlError")
"""Names that the package lakestream-sql has, as entry points of the group `lakestream.sql`."""
_CLASSES = {"AsOf": "TableAsOf", "Progress": "TableProgress"}
"""Names of classes that are other ones inside of lakestream."""


def table_path(lake: str | os.PathLike[str], stream: str, account: str = GLOBAL_ACCOUNT) -> str:
    """Return the path or URL of a stream's Delta table.

    Args:
        lake: the lake's root: a directory or a URL.
        stream: the stream's name as NATS has it.
        account: the account that it belongs to.

    Raises:
        UnsupportedLake: an address that cannot hold a lake.
    """
    from lakestream.lake.storage import paths

    return paths.table(paths.root(os.fspath(lake)), stream, account)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _SQL:
        return extras.load("lakestream.sql", name, "sql", f"lakestream.lake.{name}")
    return getattr(import_module(_MODULES.get(name, "lakestream.lake.table.at")), _CLASSES.get(name, name))
