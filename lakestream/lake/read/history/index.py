"""Which files a stream's table has, and what is in them: the index that history reads are planned with.

Belongs here: reading a Delta table's transaction log (a checkpoint once, then each new commit) into a compact snapshot,
and finding the files that a range of sequences or a set of subjects may be in. Nothing here opens a data file, except
for the footer of one that was written without statistics.

A snapshot never changes, so that readers need no lock. A refresh reads only the commits that came since.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from lakestream.lake.delta.schema import REMOVED_COLUMN
from lakestream.lake.errors import HistoryUnavailable
from lakestream.lake.files.storage import Storage

if TYPE_CHECKING:
    import numpy as np

END = (1 << 63) - 1
"""Above every sequence."""

# What reading the files directly copes with; anything else is left to deltalake, which may refuse it.
_PLAIN = frozenset({"deletionVectors", "timestampNtz", "vacuumProtocolCheck", "inCommitTimestamp"})
_CHECKPOINT = re.compile(r"^(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet$")
_COMMIT = re.compile(r"^(\d{20})\.json$")


class DeletionVector(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Where the positions of a file's deleted rows are (Delta protocol, "Deletion Vector Descriptor Schema")."""

    storage_type: str
    path_or_inline_dv: str
    size_in_bytes: int
    cardinality: int
    offset: int | None = None


class FileEntry(msgspec.Struct, frozen=True, gc=False):
    """One file of a snapshot.

    `subject` is the value of a table's partition column of that name, which is then not in the file. The bounds of
    subjects are those of the statistics: at most 32 characters, yet true bounds.
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

    def may_hold(self, wanted: Wanted) -> bool:
        """Whether a message of one of those subjects may be in it."""
        return wanted.overlaps(self.min_subject, self.max_subject)


class Wanted:
    """Subjects to look for: literal ones, and beginnings (of patterns with wildcards), as the `subject` column spells
    them."""

    def __init__(self, texts: Iterable[str], heads: Iterable[str] = ()) -> None:
        self.texts = sorted(set(texts))
        self.heads = sorted(set(heads))
        self.everything = "" in self.heads

    def __bool__(self) -> bool:
        return bool(self.texts or self.heads)

    def overlaps(self, low: str, high: str) -> bool:
        """Whether one of them may lie in the range. `high` may have been cut, and counts with all that it begins."""
        if self.everything:
            return True
        at = bisect_left(self.texts, low)
        if at < len(self.texts) and self.texts[at][: len(high)] <= high:
            return True
        return any(head[: len(high)] <= high and head + "\U0010ffff" >= low for head in self.heads)


class _Bounds(msgspec.Struct, frozen=True):
    seq: int | None = None
    time_ns: int | None = None
    subject: str | None = None


class _Stats(msgspec.Struct, frozen=True, rename="camel"):
    num_records: int | None = None
    min_values: _Bounds = _Bounds()
    max_values: _Bounds = _Bounds()


class _Add(msgspec.Struct, frozen=True, rename="camel"):
    path: str
    partition_values: dict[str, str | None] = {}
    size: int = 0
    stats: str | None = None
    deletion_vector: DeletionVector | None = None


class _Remove(msgspec.Struct, frozen=True):
    path: str


class _MetaData(msgspec.Struct, frozen=True, rename="camel"):
    schema_string: str = "{}"
    configuration: dict[str, str] = {}


class _Protocol(msgspec.Struct, frozen=True, rename="camel"):
    min_reader_version: int = 1
    reader_features: list[str] | None = None


class _Action(msgspec.Struct, frozen=True, rename="camel"):
    """One line of a commit; the kinds of no use here decode to nothing."""

    add: _Add | None = None
    remove: _Remove | None = None
    meta_data: _MetaData | None = None
    protocol: _Protocol | None = None


class _Field(msgspec.Struct, frozen=True):
    name: str


class _Schema(msgspec.Struct, frozen=True):
    fields: list[_Field] = []


class _Hint(msgspec.Struct, frozen=True):
    version: int
    parts: int | None = None


_action = msgspec.json.Decoder(_Action)
_stats = msgspec.json.Decoder(_Stats)


class Shape(msgspec.Struct, frozen=True):
    """What holds for the table as a whole: whether its files can be read directly, whether it has an archive's
    column."""

    direct: bool = True
    archive: bool = False


class Snapshot(msgspec.Struct, frozen=True):
    """One version of a table. `files` ascend by `min_seq`; `mins` and `maxs` are their ranges as arrays."""

    version: int
    files: list[FileEntry]
    mins: np.ndarray[Any, Any]
    maxs: np.ndarray[Any, Any]
    max_seq: int
    shape: Shape

    def overlapping(self, first: int, last: int, wanted: Wanted | None = None) -> list[FileEntry]:
        """The files that may hold a message with first ≤ seq ≤ last, in order of their lowest sequence."""
        import numpy as np

        end = int(np.searchsorted(self.mins, last, side="right"))
        places = np.flatnonzero(self.maxs[:end] >= first).tolist()
        found = [self.files[place] for place in places]
        return found if wanted is None else [file for file in found if file.may_hold(wanted)]

    def holding(self, seqs: Sequence[int], wanted: Wanted | None = None) -> list[FileEntry]:
        """The files that may hold one of these sequences (ascending)."""
        import numpy as np

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
        self._log = f"{table}/_delta_log"
        self._storage = storage
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._by_path: dict[str, FileEntry] = {}
        self._texts: dict[str, str] = {}  # one copy of each subject that bounds many files

    def snapshot(self) -> Snapshot:
        """What is known, without looking for news; the newest version when nothing is known yet."""
        return self._snapshot or self.refresh()

    def refresh(self, anew: bool = False) -> Snapshot:
        """The newest version, by reading what came since; `anew`: by reading everything.

        Raises:
            FileNotFoundError: there is no table.
            HistoryUnavailable: its log is of a kind that cannot be read.
        """
        with self._lock:
            snapshot = self._snapshot
            snapshot = self._load() if snapshot is None or anew else self._advance(snapshot)
            self._snapshot = snapshot
            return snapshot

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            self._snapshot = None
            self._by_path, self._texts = {}, {}

    # ------------------------------------------------------------------ the log
    def _advance(self, snapshot: Snapshot) -> Snapshot:
        """Apply the commits after the snapshot's version."""
        while True:
            commit = self._commit(snapshot.version + 1)
            if commit is not None:
                snapshot = self._apply(snapshot, commit)
            elif self._storage.exists(self._commit_path(snapshot.version)):
                return snapshot
            else:  # log cleanup took this version's commit, and maybe the next one's too
                return self._load()

    def _load(self) -> Snapshot:
        """Read the newest checkpoint and the commits after it."""
        import numpy as np

        self._by_path, self._texts = {}, {}
        nothing = np.empty(0, np.int64)
        snapshot = Snapshot(-1, [], nothing, nothing, 0, Shape())
        version, parts = self._checkpoint()
        if version >= 0:
            actions: list[_Action] = []
            for part in parts:
                actions += self._read_checkpoint(part)
            snapshot = msgspec.structs.replace(self._apply(snapshot, actions), version=version)
        while (commit := self._commit(snapshot.version + 1)) is not None:
            snapshot = self._apply(snapshot, commit)
        if snapshot.version < 0:
            raise FileNotFoundError(f"{self.table}: no Delta table is there")
        return snapshot

    def _checkpoint(self) -> tuple[int, list[str]]:
        """Version and files of the newest checkpoint; (-1, []) where the log starts with its first commit."""
        try:
            hint = msgspec.json.decode(self._storage.read(f"{self._log}/_last_checkpoint"), type=_Hint)
        except (FileNotFoundError, msgspec.DecodeError):
            hint = None
        # The hint is of use while its own commit is there: then those after it cannot have been cleaned up either.
        if hint is not None and not hint.parts and self._storage.exists(self._commit_path(hint.version)):
            name = f"{self._log}/{hint.version:020d}.checkpoint.parquet"
            if self._storage.exists(name):
                return hint.version, [name]
        if hint is None and self._storage.exists(self._commit_path(0)):
            return -1, []
        return self._listed_checkpoint()

    def _listed_checkpoint(self) -> tuple[int, list[str]]:
        parts: dict[int, dict[int, list[str]]] = {}
        first_commit = -1
        for entry in self._storage.list(self._log):
            found = _CHECKPOINT.match(entry.name)
            if found:
                of = int(found[3] or 1)
                parts.setdefault(int(found[1]), {}).setdefault(of, []).append(entry.path)
            elif first_commit < 0 and (commit := _COMMIT.match(entry.name)):
                first_commit = int(commit[1])
        for version in sorted(parts, reverse=True):
            for of, paths in parts[version].items():
                if len(paths) == of:
                    return version, sorted(paths)
        if first_commit > 0:
            raise HistoryUnavailable(
                f"{self.table} has no checkpoint of the classic kind; set its property delta.checkpointPolicy to "
                "classic and let `lakestream maintain` write one"
            )
        return -1, []

    def _commit_path(self, version: int) -> str:
        return f"{self._log}/{version:020d}.json"

    def _commit(self, version: int) -> list[_Action] | None:
        try:
            content = self._storage.read(self._commit_path(version))
        except FileNotFoundError:
            return None
        return [_action.decode(line) for line in content.splitlines() if line.strip()]

    def _read_checkpoint(self, path: str) -> list[_Action]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        file = pq.ParquetFile(path if self._storage.local else pa.BufferReader(self._storage.read(path)))
        leaves = [file.schema.column(at).path for at in range(len(file.schema))]
        wanted = ("add.path", "add.partitionValues.", "add.size", "add.stats", "add.deletionVector.", "metaData.")
        columns = [leaf for leaf in leaves if leaf.startswith((*wanted, "protocol."))]
        columns = [leaf for leaf in columns if not leaf.startswith("add.stats_parsed")]
        actions: list[_Action] = []
        for batch in file.iter_batches(batch_size=4096, columns=columns):
            for row in batch.to_pylist(maps_as_pydicts="lossy"):
                if any(row.values()):
                    actions.append(msgspec.convert(row, _Action))
        return actions

    # ------------------------------------------------------------------ snapshots
    def _apply(self, snapshot: Snapshot, actions: Sequence[_Action]) -> Snapshot:
        """The snapshot after one commit. Removals come first: a file whose deletion vector changes is in both."""
        import numpy as np

        gone: set[str] = set()
        fresh: dict[str, FileEntry] = {}
        shape = snapshot.shape
        for action in actions:
            if action.remove is not None:
                gone.add(unquote(action.remove.path))
            elif action.add is not None:
                entry = self._entry(action.add)
                fresh[entry.path] = entry
                gone.add(entry.path)
            elif action.meta_data is not None:
                shape = _shape(action.meta_data, shape.direct)
            elif action.protocol is not None:
                features = action.protocol.reader_features or []
                plain = action.protocol.min_reader_version in (1, 3) and _PLAIN.issuperset(features)
                shape = msgspec.structs.replace(shape, direct=plain)
        files, mins, maxs = snapshot.files, snapshot.mins, snapshot.maxs
        dropped = {path for path in gone if self._by_path.pop(path, None) is not None}
        if dropped:
            keep = np.fromiter((file.path not in dropped for file in files), bool, len(files))
            files = [file for file in files if file.path not in dropped]
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
        max_seq = int(maxs.max()) if len(maxs) else 0
        return Snapshot(snapshot.version + 1, files, mins, maxs, max_seq, shape)

    def _entry(self, add: _Add) -> FileEntry:
        stats = _stats.decode(add.stats) if add.stats else _Stats()
        low, high = stats.min_values, stats.max_values
        path = unquote(add.path)
        subject = add.partition_values.get("subject")
        if low.seq is None or high.seq is None or low.time_ns is None or high.time_ns is None or not stats.num_records:
            low, high, rows = self._footer(path)
        else:
            rows = stats.num_records
        low_subject = subject if subject is not None else low.subject or ""
        high_subject = subject if subject is not None else high.subject
        if high_subject is None:
            high_subject = "\U0010ffff"
        return FileEntry(
            path,
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
        )

    def _text(self, text: str) -> str:
        return self._texts.setdefault(text, text)

    def _footer(self, path: str) -> tuple[_Bounds, _Bounds, int]:
        """Bounds of a file whose statistics some writer left out of the log, from its Parquet footer."""
        import pyarrow as pa
        import pyarrow.parquet as pq

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
        bounds = _Bounds(low.get("seq"), low.get("time_ns")), _Bounds(high.get("seq"), high.get("time_ns"))
        return bounds[0], bounds[1], data.num_rows


def locate(table: str, path: str) -> str:
    """Where a file of the log is: beside the table, unless a clone's log names it in full."""
    if path.startswith("file:"):
        return "/" + path[5:].lstrip("/")
    if path.startswith(("s3a:", "s3n:")):
        return "s3:" + path[4:]
    return path if path.startswith("/") or "://" in path else f"{table}/{path}"


def _shape(data: _MetaData, direct: bool) -> Shape:
    fields = msgspec.json.decode(data.schema_string, type=_Schema).fields
    mapped = data.configuration.get("delta.columnMapping.mode", "none") != "none"
    return Shape(
        direct and not mapped,
        any(field.name == REMOVED_COLUMN for field in fields),
    )


def _min_seq(file: FileEntry) -> int:
    return file.min_seq
