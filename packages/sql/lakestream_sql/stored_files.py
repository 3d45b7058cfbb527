"""Files of an object store for DuckDB, read by this process.

Belongs here: the file system that DuckDB gets instead of access to the network. It has exactly the files that were
added to it, and can only read them. DuckDB knows no address and no credentials, so no query can: the store is asked by
`Storage`, outside of DuckDB.
"""

from __future__ import annotations

import datetime
from typing import Any

from fsspec import AbstractFileSystem

from lakestream.lake.storage.storage import RangedFile, Storage

PROTOCOL = "lake"
_WRITTEN = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
"""Time of change of every file: a file of a table is never changed."""


class StoredFiles(AbstractFileSystem):  # type: ignore[misc]
    """The files of a lake that queries may read.

    Args:
        storage: the lake's.
    """

    protocol = PROTOCOL
    cachable = False

    def __init__(self, storage: Storage) -> None:
        super().__init__()
        self._storage = storage
        self._files: dict[str, tuple[str, int]] = {}

    def spelled(self, path: str) -> str:
        """Return the path for DuckDB of an object."""
        return f"{PROTOCOL}://{path.replace('://', '/', 1)}"

    def add(self, path: str, size: int) -> str:
        """Add a file by its path in the storage and its size in bytes; return its path for DuckDB."""
        name = self.spelled(path)
        self._files[self._strip_protocol(name)] = path, size
        return name

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return name, size and type of a file. Raises FileNotFoundError."""
        return {"name": path, "size": self._find(path)[1], "type": "file"}

    def glob(self, path: str, **_: Any) -> list[str]:
        """Return the path itself if there is such a file: DuckDB takes every path for a pattern."""
        return [path] if self.exists(path) else []

    def modified(self, path: str) -> datetime.datetime:
        """Return the time of a file's last change."""
        self._find(path)
        return _WRITTEN

    def _open(self, path: str, mode: str = "rb", **_: Any) -> RangedFile:
        if mode != "rb":
            raise PermissionError(path)
        return RangedFile(self._storage, *self._find(path))

    def _find(self, path: str) -> tuple[str, int]:
        found = self._files.get(self._strip_protocol(path))
        if found is None:
            raise FileNotFoundError(path)
        return found
