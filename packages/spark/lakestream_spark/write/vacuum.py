"""Files of a table's directory that have to be deleted: unneeded ones, and those with messages to be erased.

Belongs here: the reference sets and the listing; maintainer.py deletes. Delta's own VACUUM cannot exclude files, starts
Spark jobs of several seconds, and does not know clones. These files stay:

- files of the newest version, with their deletion vectors,
- files that left the table within the retention (tombstones), so that every version that was current within it can be
  read, and a running reader of one of them can continue for as long,
- files that clones of the table reference (write/clones.py), however old,
- files that a snapshot of the Iceberg table may name (iceberg_files.py), if they left the Delta table within its
  tombstones (a week): where snapshots are older than the retention, they have to expire first,
- files younger than the retention: they may belong to a running commit,
- hidden files (`_delta_log` and other names that begin with `_` or `.`), except change data, and `metadata`.

An erasure (lake/table/erasures.py) deletes files earlier than that.

Source: Delta protocol, "Action Reconciliation"; the rules of Delta's VACUUM.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Set
from typing import NamedTuple

from lakestream.lake.storage.storage import FileEntry, Storage
from lakestream.lake.table.actions import AddStatistics, Key, locate, located, statistics
from lakestream.lake.table.encryption import open_file
from lakestream.lake.table.erasures import Runs, joined
from lakestream.lake.table.log import TableLog, TableVersion
from lakestream.lake.table.policy import tombstones_ns
from lakestream_spark.write import iceberg_files
from lakestream_spark.write.maintenance_plan import MARGIN_NS

CHANGE_DATA = "_change_data"


def dead_files(
    storage: Storage, log: TableLog, state: TableVersion, retain_ns: int, now_ns: int, kept: Set[str]
) -> list[str]:
    """Return the paths that can be deleted, ascending.

    Args:
        storage: the lake.
        log: the table's log.
        state: the table's newest version, read from it.
        retain_ns: age up to which versions stay readable.
        now_ns: the present, ns since the epoch.
        kept: paths that clones reference.
    """
    cutoff_ns = now_ns - retain_ns - min(MARGIN_NS, retain_ns // 6)
    table = log.table
    old = [entry for entry in storage.tree(table) if entry.modified_ns < cutoff_ns and visible(table, entry)]
    current = {path for add in state.files.values() for path in located(table, add)}
    candidates = {entry.path for entry in old} - current - kept
    if not candidates:
        return []
    cutoff_ms = cutoff_ns // 1_000_000
    for tombstone in log.tombstones(state.version):
        if tombstone.deletion_timestamp is None or tombstone.deletion_timestamp >= cutoff_ms:
            candidates.difference_update(located(table, tombstone))
    if retain_ns > tombstones_ns(state.metadata.configuration):
        candidates -= _removed_since(log, cutoff_ms)
    return sorted(candidates)


def visible(table: str, entry: FileEntry) -> bool:
    """Return True if a file in a table's directory is data: not hidden from readers, nor Iceberg's metadata."""
    parts = entry.path[len(table) + 1 :].split("/")
    return parts[0] != iceberg_files.DIRECTORY and not any(
        part.startswith(("_", ".")) and part != CHANGE_DATA for part in parts
    )


def _removed_since(log: TableLog, cutoff_ms: int) -> set[str]:
    """Return the files removed by commits after a time: checkpoints no longer have all tombstones of so long ago."""
    found: set[str] = set()
    for version in log.versions[log.count_until(cutoff_ms) :]:
        for action in log.commit(version).actions:
            if action.remove is not None:
                found.update(located(log.table, action.remove))
    return found


def with_checksum(path: str) -> list[str]:
    """Return a file's path and that of the checksum beside it by Hadoop's local file system."""
    directory, _, name = path.rpartition("/")
    return [path, f"{directory}/.{name}.crc"]


def within(storage: Storage, files: Iterable[str], runs: Runs) -> list[tuple[int, int]]:
    """Return those of the sequences that data files have rows of, deleted or not."""
    import numpy as np

    firsts, lasts = np.asarray(runs, np.int64).T
    found: set[int] = set()
    for path in files:
        if path.endswith(".parquet"):
            with storage.fetch(path) as local, open_file(path, local) as file:
                seqs = file.read(columns=["seq"]).column(0).to_numpy()
            at = np.searchsorted(firsts, seqs, "right") - 1
            found.update(seqs[(at >= 0) & (seqs <= lasts[np.maximum(at, 0)])].tolist())
    return joined((seq, seq) for seq in found)


def to_rewrite(storage: Storage, table: str, state: TableVersion, runs: Runs) -> set[Key]:
    """Return the files of a version that hold rows to be erased. Only files with a deletion vector can."""
    found: set[Key] = set()
    for key, add in state.files.items():
        deleted_from = add.deletion_vector is not None and bool(runs)
        if deleted_from and _may_hold(statistics(add), runs) and _holds(storage, locate(table, add.path), runs):
            found.add(key)
    return found


class LeftBehind(NamedTuple):
    """Files with rows to be erased that do not belong to the newest version.

    Attributes:
        files: of older versions, of the change data feed, or of a failed commit.
        unknown: a commit that the log does not have may name one of them.
        unfinished: of a writer that was killed, or is at work: what there is of them may have such rows.
    """

    files: list[str]
    unknown: bool
    unfinished: list[str]


def left_behind(storage: Storage, log: TableLog, state: TableVersion, runs: Runs) -> LeftBehind:
    """Return the files of the table's directory that hold such rows and do not belong to the newest version."""
    table = log.table
    current = {path for add in state.files.values() for path in located(table, add)}
    known = {locate(table, add.path): statistics(add) for add in log.ever_added()}
    found = LeftBehind([], False, [])
    for entry in storage.tree(table):
        if entry.path in current or not visible(table, entry) or not entry.name.endswith(".parquet"):
            continue
        said = known.get(entry.path)
        if said is None and is_unfinished(storage, entry.path):
            found.unfinished.append(entry.path)
        elif (said is None or _may_hold(said, runs)) and _holds(storage, entry.path, runs):
            found.files.append(entry.path)
            found = found._replace(unknown=found.unknown or said is None)
    return found


def is_unfinished(storage: Storage, path: str) -> bool:
    """Return True if a file is there without the end that a Parquet file has."""
    import pyarrow as pa

    try:
        with storage.fetch(path) as local:
            open_file(path, local).close()
    except FileNotFoundError:
        return False
    except pa.ArrowInvalid:
        return True
    return False


def _may_hold(said: AddStatistics, runs: Runs) -> bool:
    """Return True if a file may have one of the sequences by its statistics, or has no statistics."""
    at = bisect_right(runs, (said.max_seq, 1 << 63)) - 1
    return not said.rows or (at >= 0 and runs[at][1] >= said.min_seq)


def _holds(storage: Storage, path: str, runs: Runs) -> bool:
    """Return True if a data file has a row with one of the sequences, deleted or not. Reads only that column."""
    import numpy as np

    firsts, lasts = np.asarray(runs, np.int64).T
    try:
        with storage.fetch(path) as local, open_file(path, local) as file:
            for group in range(file.metadata.num_row_groups):
                seqs = file.read_row_group(group, columns=["seq"]).column(0).to_numpy()
                at = np.searchsorted(firsts, seqs, "right") - 1
                if bool(((at >= 0) & (seqs <= lasts[np.maximum(at, 0)])).any()):
                    return True
    except FileNotFoundError:  # deleted by VACUUM
        pass
    return False


def missing(storage: Storage, table: str, runs: Runs) -> list[tuple[int, int]]:
    """Return those of the sequences that no row of the table's newest version has."""
    import numpy as np

    from lakestream.lake.table.scan import Scan  # loads pyarrow

    sql = f"SELECT seq FROM t WHERE seq BETWEEN {runs[0][0]} AND {runs[-1][1]} ORDER BY seq"
    there = Scan(table, storage=storage).query(sql).column("seq").to_numpy()
    gone: list[tuple[int, int]] = []
    for first, last in runs:
        for seq in there[np.searchsorted(there, first) : np.searchsorted(there, last, "right")].tolist():
            gone += [(first, seq - 1)] if seq > first else []
            first = seq + 1
        gone += [(first, last)] if first <= last else []
    return gone
