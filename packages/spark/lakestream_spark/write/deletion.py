"""Deletion of a table's rows by sequence, by deletion vectors that are written here.

Belongs here: the files that have such rows, the vectors without them, and the commit. Delta's own DELETE runs five
Spark jobs for each table, however few rows it deletes: with every compaction of a bucket, whose puts replace earlier
ones. Here one process reads the sequences of the few files that have such rows. Delta's DELETE is left what needs more
than vectors, or looks at many files: that belongs on the executors.

Source: Delta protocol, "Deletion Vectors", "Deletion Vector Format", "Deletion Vector File Storage Format".
"""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from lakestream.lake.errors import is_conflict
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table import deletion_vectors
from lakestream.lake.table.actions import AddFile, DeletionVector, TableFile, locate, table_file, to_z85
from lakestream.lake.table.encryption import open_file
from lakestream.lake.table.log import TableVersion
from lakestream_spark.write.commit import Commit, plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_FILES, MOST_BYTES = 256, 256 << 20
"""Files to be read, and their size, for which no Spark job is worth its start."""
TRIES = 5
"""Attempts while other programs commit to the table at the same moment."""
VECTORS = "delta.enableDeletionVectors"
CDF = "delta.enableChangeDataFeed"
ROW_TRACKING = "delta.enableRowTracking"

Runs = Sequence[tuple[int, int]]


def delete(spark: SparkSession, storage: Storage, table: str, runs: Runs) -> bool:
    """Delete the rows with these runs of sequences (first, last) in one commit, if there are any. May be repeated.

    Return False if that is left to Delta.

    Raises:
        BadDeletionVector: a vector of the table is damaged.
    """
    for left in reversed(range(TRIES)):
        commit = Commit(spark, storage, table)
        state = commit.state()
        touched = _touched(state, runs)
        if not _is_possible(state, touched, runs):
            return False
        if not (rows := _replace(commit, storage, table, touched, runs)):
            return True
        try:
            commit.delete(rows)
            return True
        except Exception as error:
            if not left or not is_conflict(error) or not commit.is_refused(error):
                raise
    raise AssertionError("the last attempt returns or raises")


def _touched(state: TableVersion, runs: Runs) -> list[tuple[AddFile, TableFile]]:
    """Return the files that may have rows of these runs, and what their statistics say."""
    found = ((add, table_file(add)) for add in state.files.values())
    return [pair for pair in found if any(first <= pair[1].max_seq and pair[1].min_seq <= last for first, last in runs)]


def _is_possible(state: TableVersion, touched: Sequence[tuple[AddFile, TableFile]], runs: Runs) -> bool:
    settings = state.metadata.configuration
    if settings.get(VECTORS) != "true" or "true" in (settings.get(CDF), settings.get(ROW_TRACKING)):
        return False
    read = [file for _, file in touched if not _is_whole(file, runs)]
    counted = all(file.rows for file in read)  # a file with a vector has to state its rows
    return counted and len(read) <= MOST_FILES and sum(file.size for file in read) <= MOST_BYTES


def _is_whole(file: TableFile, runs: Runs) -> bool:
    """Return True if a run has all rows of a file, by its statistics."""
    return bool(file.rows and file.min_seq) and any(
        first <= file.min_seq and file.max_seq <= last for first, last in runs
    )


def _replace(
    commit: Commit, storage: Storage, table: str, touched: Sequence[tuple[AddFile, TableFile]], runs: Runs
) -> int:
    """Put the files without these rows into a commit, and their vectors into a file; return the number of rows."""
    rows, removed = 0, list[AddFile]()
    kept: list[tuple[AddFile, bytes, int]] = []
    for add, file in touched:
        deleted = add.deletion_vector.cardinality if add.deletion_vector is not None else 0
        if _is_whole(file, runs):
            removed.append(add)
            rows += file.rows - deleted
            continue
        before = np.empty(0, np.int64)
        if add.deletion_vector is not None:
            before = deletion_vectors.load(add.deletion_vector, table, storage.read)
        seqs = _sequences(storage, locate(table, add.path))
        gone = np.union1d(before, np.flatnonzero(_inside(seqs, runs)))
        if len(gone) == len(before):
            continue
        removed.append(add)
        rows += len(gone) - len(before)
        if len(gone) < len(seqs):
            kept.append((add, deletion_vectors.encode(gone), len(gone)))
    commit.remove(removed, data_change=True)
    add_with_vectors(commit, storage, table, kept)
    return rows


def add_with_vectors(commit: Commit, storage: Storage, table: str, kept: Sequence[tuple[AddFile, bytes, int]]) -> None:
    """Add files again to a commit, with vectors that are written into one file.

    Args:
        kept: the files, each with its vector (`deletion_vectors.encode`) and the number of rows in it.
    """
    if not kept:
        return
    name, content = uuid.uuid4(), bytearray(b"\x01")
    for add, body, cardinality in kept:
        vector = DeletionVector("u", to_z85(name.bytes), len(body), cardinality, len(content))
        content += struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))
        commit.add([_without(add, vector)])
    storage.write(f"{table}/deletion_vector_{name}.bin", bytes(content))


def _sequences(storage: Storage, path: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the sequences of a data file's rows, in their order."""
    with storage.fetch(path) as local, open_file(path, local) as file:
        return np.asarray(file.read(columns=["seq"], use_threads=False).column(0).to_numpy(), np.int64)


def _inside(seqs: np.ndarray[Any, np.dtype[np.int64]], runs: Runs) -> Any:
    """Return which sequences are in one of the runs."""
    merged: list[list[int]] = []
    for first, last in sorted(runs):
        if merged and first <= merged[-1][1] + 1:
            merged[-1][1] = max(last, merged[-1][1])
        else:
            merged.append([first, last])
    firsts, lasts = np.array(merged, np.int64).T
    at = np.searchsorted(firsts, seqs, side="right") - 1
    return (at >= 0) & (seqs <= lasts[at])


def _without(add: AddFile, vector: DeletionVector) -> dict[str, Any]:
    """Return a file's action with a deletion vector; its statistics are bounds then."""
    found = {**plain(add, data_change=True), "deletionVector": msgspec.to_builtins(vector)}
    found["stats"] = msgspec.json.encode({**msgspec.json.decode(add.stats or "{}"), "tightBounds": False}).decode()
    return found
