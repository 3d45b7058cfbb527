"""Rewriting chosen data files of a table in a better order: the maintainer's OPTIMIZE.

Belongs here: the Spark side of it. Delta's OPTIMIZE concatenates files in no particular order, so that sequences lie
scattered in a file and one message costs reading all of it. Here files become one sorted file:

- partitioned by subject: by sequence,
- otherwise: in runs of about `RUN_ROWS` rows with successive sequences, sorted by subject and sequence within a run.

In a table with Iceberg metadata the columns get the ids by which Iceberg's readers find them, at the cost of another
copy of each file.

With Parquet's statistics for each page, a reader by sequence (the server) finds its run, and a reader by subject (SQL)
finds the few pages of each run that have it.

The commit goes through Delta's own transaction, as an OPTIMIZE: nothing but removes and adds with dataChange=false. A
concurrent commit makes it fail only if it removed one of the same files (a DELETE); appends do not matter. Writing
takes no lock, the commit takes the table's for a moment. After an error the new files are deleted only if the log
proves that no version names them (invariant 13).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.lake.errors import LakeError
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table.actions import locate
from lakestream.lake.table.log import TableVersion
from lakestream_spark.write import iceberg_files
from lakestream_spark.write.commit import Commit
from lakestream_spark.write.file_ends import of_file
from lakestream_spark.write.layouts import GROUP_ROWS, PAGE_SETTING, RUN_ROWS
from lakestream_spark.write.maintenance_plan import Bin, layers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROW_GROUP_BYTES = 32 * 1024 * 1024
"""Maximum size that the writer holds in memory."""

SETTINGS = {
    PAGE_SETTING[0]: PAGE_SETTING[1],
    "parquet.block.row.count.limit": GROUP_ROWS,
    "parquet.block.size": ROW_GROUP_BYTES,
    # Exact bounds for long subjects too.
    "spark.databricks.io.skipping.stringPrefixLength": 256,
}


class RowsDiffer(LakeError):
    """Raised when a rewrite would have changed the number of rows; it was not committed."""


class Rewriter:
    """Rewrites files of tables of one lake.

    Args:
        spark: a session of its own; `SETTINGS` are set in it.
        storage: the lake.
        target_bytes: size of new files.
    """

    def __init__(self, spark: SparkSession, storage: Storage, target_bytes: int) -> None:
        self._spark = spark
        self._storage = storage
        self._target = target_bytes
        for name, value in SETTINGS.items():
            spark.conf.set(name, str(value))

    def begin(self, table: str) -> Commit:
        """Return a commit to a table."""
        return Commit(self._spark, self._storage, table)

    def rewrite(
        self,
        commit: Commit,
        state: TableVersion,
        bins: Sequence[Bin],
        alone: Callable[[], AbstractContextManager[bool]],
        now_ms: int | None = None,
    ) -> tuple[int, int] | None:
        """Rewrite each bin into one file, in one commit; return (files removed, files added), None if the table is
        another one.

        Args:
            commit: from `begin`.
            state: the version that it is based on.
            bins: files of it.
            alone: context of the lock to commit under; gives False if the table is another one by now.
            now_ms: time of the removal, now by default.

        Raises:
            RowsDiffer: the new files would not have the rows of the old ones.
        """
        written: list[dict[str, Any]] = []
        columns, begun = state.metadata.partition_columns, False
        ids = iceberg_files.is_wanted(self._storage, commit.table, state.metadata.configuration)
        try:
            for layer in layers(bins, self._target):
                adds = [state.files[file.key] for each in layer for file in each.files]
                rows = commit.rows(adds).coalesce(1).sortWithinPartitions(*_order(columns, layer))
                written += self._write(commit, rows, ids)
            files = [file for each in bins for file in each.files]
            _check_rows(commit.table, sum(file.rows - file.deleted for file in files), written)
            commit.add(written)
            commit.remove((state.files[file.key] for file in files), now_ms, data_change=False)
            with alone() as same:
                if not same:
                    return None
                begun = True
                commit.run("optimize")
        except Exception as error:
            with contextlib.suppress(Exception):  # what stays is deleted by VACUUM, if no version names it
                if not begun or commit.is_refused(error):
                    self._storage.delete_all(locate(commit.table, add["path"]) for add in written)
            raise
        return len(files), len(written)

    def _write(self, commit: Commit, rows: DataFrame, ids: bool) -> list[dict[str, Any]]:
        """Write rows into files, with the checksum of the end of each in its tags. `ids`: columns have theirs."""
        adds = commit.write(rows)
        if ids:
            adds = [commit.identify(add) for add in adds]
        return [{**add, "dataChange": False, "tags": self._tags(commit.table, add)} for add in adds]

    def _tags(self, table: str, add: Mapping[str, Any]) -> dict[str, str]:
        return {**(add.get("tags") or {}), **of_file(self._storage, locate(table, add["path"])).tags()}


def _order(columns: Sequence[str], layer: Sequence[Bin]) -> list[Any]:
    """Return the sort order of a layer's rows. The partition comes first, as Spark would sort by it again otherwise."""
    from pyspark.sql import functions as f

    partition = [f.col(f"`{column}`") for column in columns]
    if list(columns) == ["subject"]:
        return [*partition, f.col("seq")]
    rows = sum(file.rows - file.deleted for each in layer for file in each.files)
    width = sum(
        max(file.max_seq for file in each.files) - min(file.min_seq for file in each.files) + 1 for each in layer
    )
    span = max(1, RUN_ROWS * width // max(rows, 1))
    return [*partition, f.floor(f.col("seq") / f.lit(span)), f.col("subject"), f.col("seq")]


def _check_rows(table: str, expected: int, written: Sequence[Mapping[str, Any]]) -> None:
    found = [msgspec.json.decode(add.get("stats") or "{}").get("numRecords") for add in written]
    if None in found or sum(found) != expected:
        raise RowsDiffer(
            f"{table}: {expected} rows were to be rewritten, {sum(filter(None, found))} came out; not committed"
        )
