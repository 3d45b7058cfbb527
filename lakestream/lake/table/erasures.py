"""Notes of erasures (secure delete): messages whose bytes must not stay in any file of a table.

Belongs here: the notes, and sequences as runs. A DELETE only marks rows in a deletion vector, and files that OPTIMIZE
replaces stay on disk for readers of older versions. So the compactor writes a note of the sequences in
`<table>/_erasures/`, after the DELETE and before the commit that moves the position, and the next maintenance run
(lakestream_spark/write/vacuum.py)

1. rewrites the files of the newest version that hold such a row, however few of their rows are deleted,
2. deletes every other file that holds one, whether an older version within the retention names it or not,
3. deletes the note.

Invariant: a note exists only when no row of the newest version has one of its sequences. Each step may be repeated.

Time travel loses the older versions that need such a file, as an erasure demands. Files that shallow clones need stay,
with the note, until the clone is gone or has files of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from lakestream.lake.errors import LakeError
from lakestream.lake.storage.storage import Storage
from lakestream.protocol.decoding import DECODE_ERRORS

DIRECTORY = "_erasures"
"""Directory beside the table's files. Delta and its readers ignore names that begin with `_`."""
Runs = Sequence[tuple[int, int]]

_RUNS = msgspec.json.Decoder(list[tuple[int, int]])


class BadNote(LakeError):
    """Raised when a note does not decode."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} is damaged: {reason}; bring it back from a copy of the lake")


class Note(msgspec.Struct, frozen=True):
    """A note: its path, and the sequences to erase, as runs (first, last)."""

    path: str
    runs: list[tuple[int, int]]


def leave_note(storage: Storage, table: str, uid: str, last_index: int, runs: Runs) -> None:
    """Write a note for rows with these sequences, which are deleted from the table already.

    Args:
        storage: the lake.
        table: the table's path.
        uid: the stream's uid, which tells the note from those of the next table at this path.
        last_index: the log index through which the commit under way will take the table.
        runs: the sequences.
    """
    storage.write(f"{table}/{DIRECTORY}/{uid}-{last_index:020d}.json", msgspec.json.encode(list(runs)))


def notes(storage: Storage, table: str) -> list[Note]:
    """Return the notes of a table. Read them before the table's state: see the invariant.

    Raise BadNote if one is damaged: what it erases must not be shown.
    """
    found = []
    for entry in storage.list(f"{table}/{DIRECTORY}"):
        if entry.name.endswith(".json"):
            try:
                found.append(Note(entry.path, _RUNS.decode(storage.read(entry.path))))
            except DECODE_ERRORS as error:
                raise BadNote(entry.path, str(error)) from error
    return found


def merged(found: Sequence[Note]) -> list[tuple[int, int]]:
    """Return the runs of all notes, ascending and disjoint."""
    return joined(run for note in found for run in note.runs)


def joined(some: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the same sequences as ascending, disjoint runs."""
    runs: list[tuple[int, int]] = []
    for first, last in sorted(some):
        if runs and first <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], max(last, runs[-1][1]))
        else:
            runs.append((first, last))
    return runs


def count(runs: Runs) -> int:
    """Return the number of sequences in disjoint runs."""
    return sum(last - first + 1 for first, last in runs)
