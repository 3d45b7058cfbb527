"""Keeping the Iceberg tables of a lake beside a compactor.

Belongs here: the schedule: the tables of a batch right after its commits, all tables now and then, for commits of other
programs. A few tables at a time, each in one thread. The compactor never waits for it, and an error of one table stops
no other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from lakestream.lake.catalogs.keeper import Keeper
from lakestream.lake.errors import LakeError, first_line
from lakestream.lake.storage.lake import open_storage
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream_iceberg import metadata
from lakestream_iceberg.export import TableExport
from lakestream_iceberg.library import IcebergLibrary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_SECONDS = 30.0
"""Interval of looks at all tables, at which those with an error are tried again."""
PARALLEL = 4
"""Number of tables whose Iceberg commits are under way at the same time: they wait for disks and stores in turn."""
STOP_SECONDS = 10.0
"""Maximum time to wait for a commit that is under way."""


class IcebergKeeper(Keeper):
    """Keeps the Iceberg tables of a lake until it is stopped.

    Args:
        spark: returns the compactor's session.
        lake: the lake's root.
        default: format of streams that ask for none: `v2`, `v3` or `off`.
        complain: gets a line when an error begins, and when it has ended.
        active: false while another compactor works; then nothing happens here.
        moved: called with the paths of tables whose Iceberg table has changed, in several threads.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: str,
        default: str,
        complain: Callable[[str], None],
        *,
        active: Callable[[], bool] = lambda: True,
        moved: Callable[[Collection[str]], None] = lambda tables: None,
    ) -> None:
        super().__init__("iceberg", active, 0.0, STOP_SECONDS)
        self._default = default
        self._storage = open_storage(lake)
        self._library = IcebergLibrary(spark, self._storage.root)
        self._complain, self._moved = complain, moved
        self._tables: dict[str, TableExport] = {}
        self._troubles: dict[str, str] = {}
        self._full_at = 0.0
        self._pool = ThreadPoolExecutor(PARALLEL, "iceberg-table")

    @staticmethod
    def is_behind(lake: str, default: str) -> bool:
        """Return True if there is something to do in a lake, as far as that can be told without Spark."""
        return metadata.any_behind(lake, default)

    def stop(self) -> None:
        super().stop()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def once(self) -> list[str]:
        """Bring the Iceberg tables up to date; return the tables that have changed."""
        wanted = self.taken()
        if time.monotonic() >= self._full_at:
            self._full_at = time.monotonic() + LOOK_SECONDS
            try:
                wanted = set(metadata.tables(self._storage))
            except (OSError, LakeError) as error:
                self._tell("", str(error))
                return []
            self._tell("", "")
            self._tables = {path: each for path, each in self._tables.items() if path in wanted}
        ordered = sorted(wanted)
        # Not for one table: its thread would be another one each time, with a connection of its own.
        changed = map(self._export, ordered) if len(ordered) < 2 else self._pool.map(self._export, ordered)
        return [path for path, each in zip(ordered, changed, strict=True) if each]

    def _export(self, path: str) -> bool:
        from py4j.protocol import Py4JError

        if self.ending:
            return False
        export = self._tables.get(path)
        if export is None:
            export = self._tables[path] = TableExport(self._library, self._storage, path, self._default)
        try:
            changed = export.run()
        except (OSError, LakeError, Py4JError, *DECODE_ERRORS) as error:
            del self._tables[path]  # read everything anew
            self._library.forget(path)
            known = isinstance(error, LakeError)
            self._tell(path, str(error) if known else f"Iceberg table of {path}: {first_line(error)}")
            return False
        self._tell(path, "")
        if changed:
            self._moved((path,))
        return changed

    def pause(self) -> float:
        return max(self._full_at - time.monotonic(), 0.0)

    def failed(self, error: Exception) -> None:
        self._tell("", f"{type(error).__name__}: {first_line(error)}")

    def _tell(self, path: str, trouble: str) -> None:
        """Report an error of a table once, and its end."""
        before = self._troubles.get(path, "")
        if trouble and trouble != before:
            self._complain(f"{trouble}. Compaction goes on; the Iceberg table follows once it is mended")
        elif before and not trouble:
            self._complain(f"Iceberg table of {path or self._storage.root}: works again")
        self._troubles[path] = trouble
