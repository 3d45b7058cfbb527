"""Finding the files of a stream's table that messages are in, with which history reads are planned.

Belongs here: snapshots of a table's states (table/state.py), and finding the files that a range of sequences or a set
of subjects may be in. No data file is opened, except for the footer of one that was written without statistics.

A snapshot never changes, so that readers need no lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from lakestream.lake.storage.storage import Storage
from lakestream.lake.table.actions import MetaData, TableFile, TableProtocol, locate
from lakestream.lake.table.conditions import SubjectRange
from lakestream.lake.table.encryption import open_file
from lakestream.lake.table.foreign_commits import MAPPING, MESSAGE_COLUMNS
from lakestream.lake.table.schema import END, FORMAT_COLUMN, REMOVED_COLUMN, fields_of, is_own, subject_text
from lakestream.lake.table.state import Head, TableFollower, TableState, state_at
from lakestream.protocol.subjects import SubjectFilters, is_literal

READ_FEATURES = frozenset(
    {
        "deletionVectors",
        "timestampNtz",
        "vacuumProtocolCheck",
        "inCommitTimestamp",
        "columnMapping",  # while the columns of messages have their own names in the files
        "typeWidening",  # the columns of messages have the widest types
        "typeWidening-preview",
        "v2Checkpoint",  # as far as the log has others
        "variantType",  # no column of messages
        "variantType-preview",
    }
)
"""Reader features of tables whose files are read; a table with others is refused."""
PHYSICAL_NAME = "delta.columnMapping.physicalName"
"""Metadata of a column: its name in the files of a table with column mapping."""
_min_seq = attrgetter("min_seq")
MAX_SUBJECTS = 512
"""Above this many subjects, all messages are read and filtered instead of naming the subjects in a query."""


class TableShape(msgspec.Struct, frozen=True):
    """Properties of the table as a whole. `refusal`: the reason why its files cannot be read, or ""; `archive`: it has
    an archive's column; `schema`: the JSON of its columns if rows may lack their payload, else ""."""

    refusal: str = ""
    archive: bool = False
    schema: str = ""


class TableSnapshot(msgspec.Struct, frozen=True):
    """One version of a table. `files` are sorted by `min_seq`; `mins` and `maxs` are their ranges as arrays."""

    version: int
    files: list[TableFile]
    mins: np.ndarray[Any, Any]
    maxs: np.ndarray[Any, Any]
    max_seq: int
    shape: TableShape

    def overlapping(self, first: int, last: int, wanted: SubjectRange | None = None) -> list[TableFile]:
        """Return the files that may hold a message with first ≤ seq ≤ last, sorted by their lowest sequence."""
        end = int(np.searchsorted(self.mins, last, side="right"))
        places = np.flatnonzero(self.maxs[:end] >= first).tolist()
        return _holding([self.files[place] for place in places], wanted)

    def holding(self, seqs: Sequence[int], wanted: SubjectRange | None = None) -> list[TableFile]:
        """Return the files that may hold one of these sequences (ascending)."""
        asked = np.asarray(seqs, dtype=np.int64)
        within = np.searchsorted(asked, self.mins, side="left") < np.searchsorted(asked, self.maxs, side="right")
        return _holding([self.files[place] for place in np.flatnonzero(within).tolist()], wanted)


def _holding(files: list[TableFile], wanted: SubjectRange | None) -> list[TableFile]:
    """Return the files that may hold a message of the wanted subjects."""
    return files if wanted is None else [each for each in files if wanted.overlaps(each.min_subject, each.max_subject)]


class TableIndex:
    """Snapshots of the states of one table. Safe for use by several threads.

    Args:
        follower: of the table.
        storage: where it is.
    """

    def __init__(self, follower: TableFollower, storage: Storage) -> None:
        self.follower = follower
        self._storage = storage
        self._known: tuple[TableState, TableSnapshot] | None = None
        self._footers: dict[str, TableFile] = {}

    def snapshot(self) -> TableSnapshot:
        """Return the known snapshot without refreshing it; the newest version when there is none."""
        return self.refresh() if self._known is None else self._known[1]

    def refresh(self, from_scratch: bool = False, seq: int = END) -> TableSnapshot:
        """Return the newest version; while another thread looks at the table, the last one if it reaches `seq`.

        Args:
            from_scratch: by reading the whole log.
            seq: a sequence; END for whatever there is, and END + 1 for the newest version in any case.

        Raises:
            FileNotFoundError: there is no table.
            HistoryUnavailable: its log is of an unsupported kind.
        """
        state, known = None if from_scratch else self.follower.glance(), self._known
        if state is None or (seq != END and seq > max(state.maxs, default=0)):
            state = self.follower.advance(bounds=True, anew=from_scratch)
        if known is not None and known[0] is state:
            return known[1]
        snapshot = self._snapshot_of(state, known)
        self._known = state, snapshot
        return snapshot

    def at(self, version: int) -> TableSnapshot:
        """Return a version of the past.

        Raises:
            VersionGone: the log does not reach back so far.
        """
        head = Head(version=version)
        return self._snapshot_of(state_at(self._storage, self.follower.table, head, bounds=True), None)

    def _snapshot_of(self, state: TableState, known: tuple[TableState, TableSnapshot] | None) -> TableSnapshot:
        """Return the snapshot of a state; `known` is that of an earlier one."""
        files, mins, maxs = state.files, np.frombuffer(state.mins, np.int64), np.frombuffer(state.maxs, np.int64)
        new = state.files if known is None else state.added_after(known[0].version)
        if self._footers or not all(file.is_known for file in new):
            files = sorted((file if file.is_known else self._by_footer(file) for file in files), key=_min_seq)
            mins = np.fromiter((file.min_seq for file in files), np.int64, len(files))
            maxs = np.fromiter((file.max_seq for file in files), np.int64, len(files))
        same = known is not None and (known[0].metadata, known[0].protocol) == (state.metadata, state.protocol)
        shape = known[1].shape if known is not None and same else _shape(state.metadata, state.protocol)
        return TableSnapshot(state.version, files, mins, maxs, int(maxs.max()) if len(maxs) else 0, shape)

    def close(self) -> None:
        """Drop the snapshot."""
        self._known, self._footers = None, {}

    def _by_footer(self, file: TableFile) -> TableFile:
        """Return a file without statistics in the log with bounds and rows from its Parquet footer."""
        if (known := self._footers.get(file.path)) is not None:
            return msgspec.structs.replace(known, deleted=file.deleted)
        path = locate(self.follower.table, file.path)
        with self._storage.fetch(path) as local, open_file(path, local) as opened:
            data = opened.metadata
        low: dict[str, int] = {}
        high: dict[str, int] = {}
        for group in range(data.num_row_groups):
            for at in range(data.num_columns):
                column = data.row_group(group).column(at)
                name, stats = column.path_in_schema, column.statistics
                if name in ("seq", "time_ns") and stats is not None and stats.has_min_max:
                    low[name] = min(low.get(name, stats.min), stats.min)
                    high[name] = max(high.get(name, stats.max), stats.max)
        self._footers[file.path] = found = msgspec.structs.replace(
            file,
            min_seq=low.get("seq", 0),
            max_seq=high.get("seq", END),
            min_time=low.get("time_ns", 0),
            max_time=high.get("time_ns", END),
            rows=data.num_rows,
        )
        return found


def _shape(data: MetaData, protocol: TableProtocol) -> TableShape:
    fields = fields_of(data.schema_string)
    names = [field.name for field in fields]
    is_typed = FORMAT_COLUMN in names
    refusal = ""
    unknown = sorted(set(protocol.reader_features or ()) - READ_FEATURES)
    mapped = [
        field.name
        for field in fields
        if (is_typed or is_own(field.name)) and field.metadata.get(PHYSICAL_NAME, field.name) != field.name
    ]
    if data.configuration.get(MAPPING, "none") != "none":  # a renamed column is another one
        mapped += [name for name in MESSAGE_COLUMNS if name not in names]
    if protocol.min_reader_version > 3:
        refusal = f"needs version {protocol.min_reader_version} of Delta's protocol for readers: upgrade lakestream"
    elif unknown:
        refusal = f"needs features that the server cannot read: {', '.join(unknown)}; drop them, or upgrade lakestream"
    elif mapped:
        refusal = f"has other names in its files for these columns: {', '.join(mapped)}; undo the column mapping"
    return TableShape(refusal, REMOVED_COLUMN in names, data.schema_string if is_typed else "")


class Choice:
    """Subjects of a read: literal ones, and patterns."""

    def __init__(self, subjects: Iterable[bytes]) -> None:
        self.subjects = frozenset(subjects)
        self.literal = frozenset(filter(is_literal, self.subjects))
        self.patterns = sorted(self.subjects - self.literal)
        self.wanted = wanted(self.literal, self.patterns)
        self._filters = SubjectFilters(self.patterns)

    @property
    def is_narrow(self) -> bool:
        """Return True if a query can name the subjects: they are few, and no pattern begins with a wildcard."""
        return len(self.subjects) <= MAX_SUBJECTS and not self.wanted.everything

    def has(self, subject: bytes) -> bool:
        """Return True if `subject` is one of them or matches."""
        return subject in self.literal or (bool(self.patterns) and self._filters.match(subject))


def wanted(literal: Collection[bytes], patterns: Sequence[bytes] = ()) -> SubjectRange:
    """Return subjects as the table's column spells them, and patterns as the text before their first wildcard."""
    heads = []
    for pattern in patterns:
        before = pattern.split(b".")
        at = next(place for place, token in enumerate(before) if token in (b"*", b">"))
        heads.append(subject_text(b".".join([*before[:at], b""]) if at else b"")[0])
    return SubjectRange((subject_text(subject)[0] for subject in literal), heads)
