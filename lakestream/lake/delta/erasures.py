"""Messages whose bytes shall be found nowhere any more (secure delete), in the files of a table.

Belongs here: what is still to be erased, and which files hold it. A DELETE only marks rows in a deletion vector, and
what OPTIMIZE replaces stays on disk for those who read older versions. So the compactor leaves a note of the sequences
in `<table>/_erasures/`, behind the DELETE and before the commit that moves the position, and the next maintenance run

1. rewrites the files of the newest version that hold such a row, however few of their rows are deleted,
2. deletes every other file that holds one, whether an older version within the retention names it or not,
3. takes the note away.

Invariant: a note is there only when no row of the newest version has one of its sequences. Each step may be repeated.

That takes older versions away from time travel where they need such a file: whoever asks for an erasure wants just
that. Files that shallow clones name stay, and the note with them, until the clone is gone or has files of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from lakestream.lake.files.storage import Storage

DIRECTORY = "_erasures"
"""Beside the table's files. Delta, and whoever reads the table, leaves names that begin with `_` alone."""
Runs = Sequence[tuple[int, int]]


class Note(msgspec.Struct, frozen=True):
    """Sequences to be erased, as runs (first, last), and the note's own path."""

    path: str
    runs: list[tuple[int, int]]


def leave_note(storage: Storage, table: str, uid: str, last_index: int, runs: Runs) -> None:
    """Note that rows with these sequences, deleted from the table by now, are to be erased.

    Args:
        storage: the lake.
        table: the table's path.
        uid: the stream's. With it a note cannot be taken for one of the next table at this place.
        last_index: the log index through which the commit under way will take the table.
        runs: the sequences.
    """
    storage.write(f"{table}/{DIRECTORY}/{uid}-{last_index:020d}.json", msgspec.json.encode(list(runs)))


def notes(storage: Storage, table: str) -> list[Note]:
    """What is still to be erased. Read it before the table's state: see the invariant."""
    found = []
    for entry in storage.list(f"{table}/{DIRECTORY}"):
        if entry.name.endswith(".json"):
            found.append(Note(entry.path, msgspec.json.decode(storage.read(entry.path), type=list[tuple[int, int]])))
    return found


def merged(found: Sequence[Note]) -> list[tuple[int, int]]:
    """The runs of all notes, ascending and apart."""
    return joined(run for note in found for run in note.runs)


def joined(some: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same sequences as runs that are ascending and apart."""
    runs: list[tuple[int, int]] = []
    for first, last in sorted(some):
        if runs and first <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], max(last, runs[-1][1]))
        else:
            runs.append((first, last))
    return runs


def missing(storage: Storage, table: str, runs: Runs) -> list[tuple[int, int]]:
    """Those of the sequences that the newest version of a table has no row of."""
    import numpy as np
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    delta = DeltaTable(table, storage_options=storage.delta_options() or None)
    found = QueryBuilder().register("t", delta)
    sql = f"SELECT seq FROM t WHERE seq BETWEEN {runs[0][0]} AND {runs[-1][1]} ORDER BY seq"
    there = pa.table(found.execute(sql).read_all()).column("seq").to_numpy()
    gone: list[tuple[int, int]] = []
    for first, last in runs:
        for seq in there[np.searchsorted(there, first) : np.searchsorted(there, last, "right")].tolist():
            gone += [(first, seq - 1)] if seq > first else []
            first = seq + 1
        gone += [(first, last)] if first <= last else []
    return gone


def count(runs: Runs) -> int:
    """How many sequences there are in runs that are apart."""
    return sum(last - first + 1 for first, last in runs)
