"""Index of the files of a stream's table, with which history reads are planned.

Belongs here: a compact snapshot of a table's files (from a checkpoint once, then from each new commit), and finding the
files that a range of sequences or a set of subjects may be in. The log is read by delta/log.py. No data file is opened,
except for the footer of one that was written without statistics.

A snapshot never changes, so that readers need no lock. A refresh reads only the commits that came since.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter
from typing import Any
from urllib.parse import unquote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakestream.lake.delta.actions import Action, Add, Bounds, DeletionVector, MetaData, locate, statistics
from lakestream.lake.delta.ends import End, stated
from lakestream.lake.delta.log import Log
from lakestream.lake.delta.schema import END, FORMAT_COLUMN, REMOVED_COLUMN, subject_text
from lakestream.lake.errors import HistoryUnavailable
from lakestream.lake.files.storage import Storage
from lakestream.protocol.subjects import Filters, is_literal

_DIRECT_FEATURES = frozenset(
    {
        "deletionVectors",
        "timestampNtz",
        "vacuumProtocolCheck",
        "inCommitTimestamp",
        "columnMapping",  # while its mode is none
        "typeWidening",  # the columns of messages have the widest types
        "typeWidening-preview",
        "variantType",  # no column of messages
        "variantType-preview",
    }
)
"""Reader features with which files are read directly; a table with others is left to deltalake, which may refuse it."""
_min_seq = attrgetter("min_seq")
_KINDS = ("add", "metaData", "protocol")
TEXTS_PER_FILE = 4
"""Once there are more than this many different bounds of subjects for each file, and `SPARE_TEXTS`, those of files that
have left the table are dropped. A file has two bounds."""
SPARE_TEXTS = 64
MAX_SUBJECTS = 512
"""Above this many subjects, all messages are read and filtered instead of naming the subjects in a query."""


class FileEntry(msgspec.Struct, frozen=True, gc=False):
    """One file of a snapshot.

    `path` is spelled as in the log; see `actions.locate`. `subject` is the value of a table's partition column of that
    name, which is then not in the file. The bounds of subjects are those of the statistics: at most 32 characters, yet
    true bounds.
    """

    path: str
    min_seq: int
    max_seq: int
    min_time: int
    max_time: int
    rows: int
    size: int
    min_subject: str
    max_subject: str
    subject: str | None
    deleted: DeletionVector | None
    end: End | None = None

    def may_hold(self, wanted: Wanted) -> bool:
        """Return True if a message of one of those subjects may be in the file."""
        return wanted.overlaps(self.min_subject, self.max_subject)


class Wanted:
    """Subjects to search: literal ones, and prefixes (of patterns with wildcards), as the `subject` column spells
    them."""

    def __init__(self, texts: Iterable[str], heads: Iterable[str] = ()) -> None:
        self.texts = sorted(set(texts))
        self.heads = sorted(set(heads))
        self.everything = "" in self.heads

    def __bool__(self) -> bool:
        return bool(self.texts or self.heads)

    def overlaps(self, low: str, high: str) -> bool:
        """Return True if one of them may lie in the range. `high` may have been cut, and stands for all texts that it
        begins."""
        if self.everything:
            return True
        at = bisect_left(self.texts, low)
        if at < len(self.texts) and self.texts[at][: len(high)] <= high:
            return True
        return any(head[: len(high)] <= high and head + "\U0010ffff" >= low for head in self.heads)


class _Field(msgspec.Struct, frozen=True):
    name: str


class _Schema(msgspec.Struct, frozen=True):
    fields: list[_Field] = []


_SCHEMA = msgspec.json.Decoder(_Schema)


class Shape(msgspec.Struct, frozen=True):
    """Properties of the table as a whole. `direct`: its files can be read directly; `archive`: it has an archive's
    column; `schema`: the JSON of its columns if rows may lack their payload, else ""."""

    direct: bool = True
    archive: bool = False
    schema: str = ""


class Snapshot(msgspec.Struct, frozen=True):
    """One version of a table. `files` are sorted by `min_seq`; `mins` and `maxs` are their ranges as arrays."""

    version: int
    files: list[FileEntry]
    mins: np.ndarray[Any, Any]
    maxs: np.ndarray[Any, Any]
    max_seq: int
    shape: Shape

    def overlapping(self, first: int, last: int, wanted: Wanted | None = None) -> list[FileEntry]:
        """Return the files that may hold a message with first ≤ seq ≤ last, sorted by their lowest sequence."""
        end = int(np.searchsorted(self.mins, last, side="right"))
        places = np.flatnonzero(self.maxs[:end] >= first).tolist()
        found = [self.files[place] for place in places]
        return found if wanted is None else [file for file in found if file.may_hold(wanted)]

    def holding(self, seqs: Sequence[int], wanted: Wanted | None = None) -> list[FileEntry]:
        """Return the files that may hold one of these sequences (ascending)."""
        asked = np.asarray(seqs, dtype=np.int64)
        within = np.searchsorted(asked, self.mins, side="left") < np.searchsorted(asked, self.maxs, side="right")
        found = [self.files[place] for place in np.flatnonzero(within).tolist()]
        return found if wanted is None else [file for file in found if file.may_hold(wanted)]


class TableIndex:
    """The newest known snapshot of one table. Safe for use by several threads.

    Args:
        table: path or URL of the table.
        storage: where it is.
    """

    def __init__(self, table: str, storage: Storage) -> None:
        self.table = table
        self._storage = storage
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._by_path: dict[str, FileEntry] = {}
        self._texts: dict[str, str] = {}  # one object for each subject that bounds several files

    def snapshot(self) -> Snapshot:
        """Return the known snapshot without refreshing it; the newest version when there is none."""
        return self._snapshot or self.refresh()

    def refresh(self, from_scratch: bool = False) -> Snapshot:
        """Return the newest version by reading the commits since; `from_scratch`: by reading the whole log.

        Raises:
            FileNotFoundError: there is no table.
            HistoryUnavailable: its log is of an unsupported kind.
        """
        with self._lock:
            snapshot = self._snapshot
            snapshot = self._load() if snapshot is None or from_scratch else self._advance(snapshot)
            self._snapshot = snapshot
            return snapshot

    def close(self) -> None:
        """Drop the snapshot."""
        with self._lock:
            self._snapshot = None
            self._by_path, self._texts = {}, {}

    # ------------------------------------------------------------------ the log
    def _advance(self, snapshot: Snapshot) -> Snapshot:
        """Apply the commits after the snapshot's version."""
        log = Log(self._storage, self.table)
        known = snapshot
        for commit in log.commits_after(snapshot.version):
            snapshot = self._apply(snapshot, commit.actions)
        # Log clean-up may have deleted this version's commit, and the next one's too.
        return self._load() if snapshot is known and not self._storage.exists(log.path(known.version)) else snapshot

    def _load(self) -> Snapshot:
        """Read the newest checkpoint and the commits after it."""
        self._by_path, self._texts = {}, {}
        nothing = np.empty(0, np.int64)
        snapshot = Snapshot(-1, [], nothing, nothing, 0, Shape())
        log = Log(self._storage, self.table)
        version, parts = log.newest_checkpoint()
        if version >= 0:
            snapshot = msgspec.structs.replace(self._apply(snapshot, log.read_parts(parts, _KINDS)), version=version)
        for commit in log.commits_after(version):
            snapshot = self._apply(snapshot, commit.actions)
        if snapshot.version < 0 and log.commits:
            raise HistoryUnavailable(
                f"{self.table} has no checkpoint of the classic kind; set its property delta.checkpointPolicy to "
                "classic and let `lakestream maintain` write one"
            )
        if snapshot.version < 0:
            raise FileNotFoundError(f"{self.table}: no Delta table is there")
        return snapshot

    # ------------------------------------------------------------------ snapshots
    def _apply(self, snapshot: Snapshot, actions: Iterable[Action]) -> Snapshot:
        """Return the snapshot after one commit. Removals come first: a file with a new deletion vector is in both."""
        gone: set[str] = set()
        fresh: dict[str, FileEntry] = {}
        shape = snapshot.shape
        for action in actions:
            if action.remove is not None:
                gone.add(unquote(action.remove.path))
            elif action.add is not None:
                # Writers differ in what they escape.
                path = unquote(action.add.path)
                fresh[path] = self._entry(action.add)
                gone.add(path)
            elif action.meta_data is not None:
                shape = _shape(action.meta_data, shape.direct)
            elif action.protocol is not None:
                features = action.protocol.reader_features or []
                direct = action.protocol.min_reader_version in (1, 3) and _DIRECT_FEATURES.issuperset(features)
                shape = msgspec.structs.replace(shape, direct=direct)
        files, mins, maxs = snapshot.files, snapshot.mins, snapshot.maxs
        dropped = {id(file) for path in gone if (file := self._by_path.pop(path, None)) is not None}
        if dropped:
            keep = np.fromiter((id(file) not in dropped for file in files), bool, len(files))
            files = [file for file in files if id(file) not in dropped]
            mins, maxs = mins[keep], maxs[keep]
        if fresh:
            self._by_path.update(fresh)
            added = sorted(fresh.values(), key=_min_seq)
            new_mins = np.fromiter((file.min_seq for file in added), np.int64, len(added))
            new_maxs = np.fromiter((file.max_seq for file in added), np.int64, len(added))
            places = np.searchsorted(mins, new_mins, side="right")
            mins, maxs = np.insert(mins, places, new_mins), np.insert(maxs, places, new_maxs)
            # Most commits only append; a sort of two runs that are in order costs one pass.
            files = [*files, *added] if len(places) and places[0] == len(files) else sorted(files + added, key=_min_seq)
        if len(self._texts) > TEXTS_PER_FILE * len(files) + SPARE_TEXTS:
            bounds = (text for file in files for text in (file.min_subject, file.max_subject))
            self._texts = {text: text for text in bounds}
        max_seq = int(maxs.max()) if len(maxs) else 0
        return Snapshot(snapshot.version + 1, files, mins, maxs, max_seq, shape)

    def _entry(self, add: Add) -> FileEntry:
        stats = statistics(add)
        low, high, rows = stats.min_values, stats.max_values, stats.rows
        subject = add.partition_values.get("subject")
        if low.seq is None or high.seq is None or low.time_ns is None or high.time_ns is None or not rows:
            low, high, rows = self._footer(add.path)
        low_subject = subject if subject is not None else low.subject or ""
        high_subject = subject if subject is not None else high.subject
        if high_subject is None:
            high_subject = "\U0010ffff"
        return FileEntry(
            add.path,
            low.seq or 0,
            END if high.seq is None else high.seq,
            low.time_ns or 0,
            END if high.time_ns is None else high.time_ns,
            rows,
            add.size,
            self._text(low_subject),
            self._text(high_subject),
            None if subject is None else self._text(subject),
            add.deletion_vector,
            stated(add.tags),
        )

    def _text(self, text: str) -> str:
        return self._texts.setdefault(text, text)

    def _footer(self, path: str) -> tuple[Bounds, Bounds, int]:
        """Return bounds and rows of a file without statistics in the log, from its Parquet footer."""
        whole = locate(self.table, path)
        data = pq.ParquetFile(whole if self._storage.local else pa.BufferReader(self._storage.read(whole))).metadata
        low: dict[str, int] = {}
        high: dict[str, int] = {}
        for group in range(data.num_row_groups):
            for at in range(data.num_columns):
                column = data.row_group(group).column(at)
                name, stats = column.path_in_schema, column.statistics
                if name in ("seq", "time_ns") and stats is not None and stats.has_min_max:
                    low[name] = min(low.get(name, stats.min), stats.min)
                    high[name] = max(high.get(name, stats.max), stats.max)
        bounds = Bounds(low.get("seq"), low.get("time_ns")), Bounds(high.get("seq"), high.get("time_ns"))
        return bounds[0], bounds[1], data.num_rows


def _shape(data: MetaData, direct: bool) -> Shape:
    fields = _SCHEMA.decode(data.schema_string).fields
    mapped = data.configuration.get("delta.columnMapping.mode", "none") != "none"
    return Shape(
        direct and not mapped,
        any(field.name == REMOVED_COLUMN for field in fields),
        data.schema_string if any(field.name == FORMAT_COLUMN for field in fields) else "",
    )


class Choice:
    """Subjects of a read: literal ones, and patterns."""

    def __init__(self, subjects: Iterable[bytes]) -> None:
        self.subjects = frozenset(subjects)
        self.literal = frozenset(filter(is_literal, self.subjects))
        self.patterns = sorted(self.subjects - self.literal)
        self.wanted = wanted(self.literal, self.patterns)
        self._filters = Filters(self.patterns)

    @property
    def is_narrow(self) -> bool:
        """Return True if a query can name the subjects: they are few, and no pattern begins with a wildcard."""
        return len(self.subjects) <= MAX_SUBJECTS and not self.wanted.everything

    def has(self, subject: bytes) -> bool:
        """Return True if `subject` is one of them or matches."""
        return subject in self.literal or (bool(self.patterns) and self._filters.match(subject))

    def only(self, rows: Any) -> Any:
        """Return those rows of a pyarrow Table whose subject is one of them; a query may return others, though
        seldom."""
        if rows.num_rows == 0:
            return rows
        raw = rows.column("subject_bytes")
        if raw.null_count < rows.num_rows:  # two raw subjects may have one text
            pairs = zip(rows.column("subject").to_pylist(), raw.to_pylist(), strict=True)
            meant = pa.array([self.has(_bytes(text) if kept is None else kept) for text, kept in pairs])
        else:
            texts = rows.column("subject").combine_chunks().dictionary_encode()
            meant = pa.array([self.has(_bytes(text)) for text in texts.dictionary.to_pylist()]).take(texts.indices)
        return rows if meant.true_count == rows.num_rows else rows.filter(meant)


def wanted(literal: Collection[bytes], patterns: Sequence[bytes] = ()) -> Wanted:
    """Return subjects as the table's column spells them, and patterns as the text before their first wildcard."""
    heads = []
    for pattern in patterns:
        before = pattern.split(b".")
        at = next(place for place, token in enumerate(before) if token in (b"*", b">"))
        heads.append(subject_text(b".".join([*before[:at], b""]) if at else b"")[0])
    return Wanted((subject_text(subject)[0] for subject in literal), heads)


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()
