"""The only reader of Delta transaction logs.

Belongs here: the files of `_delta_log` (commits, classic checkpoints of one or several parts, the checkpoint hint), the
actions in them, the state of a table at a version, and progress and time of the commits. state.py follows a table: it
starts from `newest_checkpoint` and then takes one commit after the other; a `TableVersion` replays all of it for one
version. Checkpoints of the V2 kind are not read. No data file is opened, and nothing is judged.

Source: Delta protocol, "Delta Log Entries", "Checkpoints", "Action Reconciliation", "In-Commit Timestamps".
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from lakestream.lake.errors import DamagedLog
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table.actions import (
    Action,
    AddFile,
    CommitInfo,
    Key,
    MetaData,
    RemoveFile,
    TableProtocol,
    key_of,
    statistics,
)
from lakestream.lake.table.progress import TableProgress, progress_of
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder

LOG_DIRECTORY = "_delta_log"
_COMMIT = re.compile(r"^(\d{20})\.json$")
_CHECKPOINT = re.compile(r"^(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet$")
_VERSIONED = re.compile(r"^\.?(\d{20})\.")
_BATCH_ROWS = 4096
_ACTION = JsonDecoder(Action)


_COLUMNS = {
    "add": ("path", "partitionValues", "size", "modificationTime", "stats", "deletionVector", "tags"),
    "remove": ("path", "deletionTimestamp", "deletionVector"),
    "metaData": ("id", "schemaString", "partitionColumns", "configuration"),
    "protocol": ("minReaderVersion", "readerFeatures"),
    "txn": ("appId", "version"),
}
"""Columns that are read of each kind in a checkpoint. Every action of a kind has the first one."""


class _Hint(msgspec.Struct, frozen=True):
    """Content of `_last_checkpoint`."""

    version: int
    parts: int | None = None


_HINT = JsonDecoder(_Hint)


class CommitSummary(msgspec.Struct, frozen=True):
    """The part of a commit that times and versions follow from.

    `time_ms`: the commit time, ms since the epoch; `adds`: the number of data files that it added; `first_time_ns`: the
    smallest message time in them, None when a file's statistics lack it.
    """

    version: int
    time_ms: int
    operation: str
    progress: TableProgress | None
    adds: int
    first_time_ns: int | None


class LogCommit(msgspec.Struct, frozen=True):
    """One commit: its actions in the order of the file, and when the file was written (ns since the epoch)."""

    version: int
    actions: list[Action]
    modified_ns: int

    @property
    def info(self) -> CommitInfo:
        """Return the commit's provenance, empty when the commit has none."""
        return next((action.commit_info for action in self.actions if action.commit_info is not None), CommitInfo())

    @property
    def time_ms(self) -> int:
        """Return the commit time, ms since the epoch: the in-commit timestamp, else the file's modification time."""
        stamp = self.info.in_commit_timestamp
        return self.modified_ns // 1_000_000 if stamp is None else stamp

    @property
    def summary(self) -> CommitSummary:
        """Return the part that times and versions follow from."""
        oldest = [statistics(action.add).min_values.time_ns for action in self.actions if action.add is not None]
        known = [time for time in oldest if time is not None]
        first_time_ns = min(known) if known and len(known) == len(oldest) else None
        operation, progress = self.info.operation, progress_of(self.info)
        return CommitSummary(self.version, self.time_ms, operation, progress, len(oldest), first_time_ns)


class TableVersion:
    """A table at one version: its files by path and deletion vector, its metadata, and the applications' progress."""

    def __init__(self) -> None:
        self.version = -1
        self.metadata = MetaData()
        self.protocol = TableProtocol()
        self.files: dict[Key, AddFile] = {}
        self.transactions: dict[str, int] = {}

    def apply(self, actions: Iterable[Action]) -> None:
        """Replay one commit, or the actions of a checkpoint."""
        added: list[AddFile] = []
        for action in actions:
            if action.add is not None:
                added.append(action.add)
            elif action.remove is not None:
                self.files.pop(key_of(action.remove), None)
            elif action.meta_data is not None:
                self.metadata = action.meta_data
            elif action.protocol is not None:
                self.protocol = action.protocol
            elif action.txn is not None:
                self.transactions[action.txn.app_id] = action.txn.version
        # A file that a commit both removes and adds stays, whatever the order of its lines.
        self.files.update((key_of(add), add) for add in added)


class TableLog:
    """The transaction log of one table. Reads nothing before it is asked; lists the directory at most once, and
    reads a summary of a commit once (a commit never changes).

    Args:
        storage: where the table is.
        table: the table's path.
    """

    def __init__(self, storage: Storage, table: str) -> None:
        self._storage = storage
        self.table = table
        self.directory = log_directory(table)
        # Not cached_property, which on Python 3.11 has one lock for all tables and would hold it during the request.
        self._listed: list[str] | None = None
        self._commits: list[int] | None = None
        self._checkpoints: dict[int, list[str]] | None = None
        self._gapless: list[int] | None = None
        self._summaries: dict[int, CommitSummary] = {}

    # ------------------------------------------------------------------ files of the log

    @property
    def _names(self) -> list[str]:
        if self._listed is None:
            self._listed = sorted(self._storage.names(self.directory))
        return self._listed

    @property
    def commits(self) -> list[int]:
        """Return the versions of the commits that the listing shows, ascending."""
        if self._commits is None:
            self._commits = [int(match[1]) for name in self._names if (match := _COMMIT.match(name))]
        return self._commits

    @property
    def _parts(self) -> dict[int, list[str]]:
        """Return the paths of the parts of each complete checkpoint, by version, ascending."""
        if self._checkpoints is None:
            self._checkpoints = self._find_checkpoints()
        return self._checkpoints

    def _find_checkpoints(self) -> dict[int, list[str]]:
        found: dict[tuple[int, int], list[str]] = {}
        for name in self._names:
            if match := _CHECKPOINT.match(name):
                found.setdefault((int(match[1]), int(match[3] or 1)), []).append(f"{self.directory}/{name}")
        return {version: parts for (version, expected), parts in sorted(found.items()) if len(parts) == expected}

    @property
    def checkpoints(self) -> list[int]:
        """Return the versions of the complete checkpoints that the listing shows, ascending."""
        return list(self._parts)

    def parts(self, checkpoint: int) -> list[str]:
        """Return the paths of a checkpoint's files; none when there is no such checkpoint."""
        return self._parts.get(checkpoint, [])

    def files_before(self, version: int) -> list[str]:
        """Return the paths of commits, checkpoints and checksums of earlier versions, oldest first."""
        found = sorted((int(match[1]), name) for name in self._names if (match := _VERSIONED.match(name)))
        return [f"{self.directory}/{name}" for number, name in found if number < version]

    def path(self, version: int) -> str:
        """Return the path of a commit."""
        return f"{self.directory}/{version:020d}.json"

    def tag(self, version: int) -> str | None:
        """Return what identifies the content of a commit's file; None when there is no such commit.

        A table that was created again may have the same versions: the tag tells them apart.
        """
        entry = self._storage.stat(self.path(version))
        return None if entry is None else entry.tag

    # ------------------------------------------------------------------ commits

    def commit(self, version: int, lines: tuple[bytes, ...] = (b"",)) -> LogCommit:
        """Read one commit.

        Args:
            version: the commit's version.
            lines: decode only lines that begin with one of these, such as `{"txn"`; the others are not looked at.

        Raises:
            FileNotFoundError: there is no such commit, or no longer.
            DamagedLog: the file does not decode, or is empty, which no writer makes it.
        """
        content, entry = self._storage.read_entry(self.path(version))
        if not content:
            raise DamagedLog(self.path(version), "it is empty")
        try:
            actions = [_ACTION.decode(line) for line in content.splitlines() if line.startswith(lines) and line]
        except DECODE_ERRORS as error:
            raise DamagedLog(self.path(version), str(error)) from None
        return LogCommit(version, actions, entry.modified_ns)

    def commits_after(self, version: int) -> Iterator[LogCommit]:
        """Read the commits that follow a version, as far as they are there now. Does not list the directory."""
        while True:
            version += 1
            try:
                commit = self.commit(version)
            except FileNotFoundError:
                return
            yield commit

    # ------------------------------------------------------------------ versions by time and progress

    @property
    def versions(self) -> list[int]:
        """Return the versions of the commits after the last gap, ascending: log clean-up deletes a prefix."""
        if self._gapless is None:
            self._gapless = _gapless(self.commits)
        return self._gapless

    @property
    def latest(self) -> int:
        """Return the newest version."""
        return self.versions[-1]

    def summary(self, version: int) -> CommitSummary:
        """Read one commit, once. Raises FileNotFoundError when log clean-up has deleted it since the listing."""
        if (found := self._summaries.get(version)) is None:
            found = self._summaries[version] = self.commit(version).summary
        return found

    def progress(self, version: int) -> TableProgress | None:
        """Return the progress of the table at `version`; None before the first.

        Commits without data (OPTIMIZE, DELETE) may not state it; the nearest earlier commit that does counts for them.
        """
        for earlier in range(version, self.versions[0] - 1, -1):
            if (progress := self.summary(earlier).progress) is not None:
                return progress
        return None

    def count_until(self, time_ms: int) -> int:
        """Return the number of the log's versions committed at or before a time. In-commit timestamps ascend."""
        return bisect_right(self.versions, time_ms, key=lambda version: self.summary(version).time_ms)

    def renewed(self) -> TableLog:
        """Return a new listing of the log that shares the summaries. This object stays as it is for other threads."""
        found = TableLog(self._storage, self.table)
        oldest = found.versions[0] if found.versions else self.latest
        found._summaries = {version: each for version, each in dict(self._summaries).items() if version >= oldest}
        return found

    @property
    def stream_versions(self) -> list[int]:
        """Return the versions in the order of the stream, without those that a repair of the table undid."""
        newest = self.progress(self.latest)
        if newest is None or not newest.undone:
            return self.versions
        undone = newest.undone
        return [version for version in self.versions if not any(first <= version <= last for first, last in undone)]

    def pending_deletes(self, version: int) -> TableProgress | None:
        """Return the progress of the last data commit at `version` if rows of removed messages may still be there, else
        None."""
        progress, left = self._clearing(version)
        return progress if left > 0 else None

    def deletes_left(self, version: int) -> int:
        """Return the number of DELETE commits that were still to follow the last data commit at `version`."""
        return self._clearing(version)[1]

    def _clearing(self, version: int) -> tuple[TableProgress | None, int]:
        deletes = 0
        for earlier in range(version, self.versions[0] - 1, -1):
            commit = self.summary(earlier)
            if commit.progress is not None:
                return commit.progress, commit.progress.deletes - deletes if commit.progress.departed > 0 else 0
            deletes += commit.operation == "DELETE"
        return None, 0

    # ------------------------------------------------------------------ checkpoints

    @property
    def hint(self) -> str:
        """Return the path of the file that names the newest checkpoint."""
        return f"{self.directory}/_last_checkpoint"

    def hinted(self) -> int | None:
        """Return the version of the checkpoint that this file names; None if there is none, or it does not decode."""
        return None if (hint := self._hinted()) is None else hint.version

    def _hinted(self) -> _Hint | None:
        try:
            return _HINT.decode(self._storage.read(self.hint))
        except (FileNotFoundError, *DECODE_ERRORS):
            return None

    def is_readable(self, checkpoint: int) -> bool:
        """Return True if a checkpoint's files decode."""
        try:
            for _ in self.read_parts(self.parts(checkpoint), tuple(_COLUMNS)):
                pass
        except (DamagedLog, FileNotFoundError):
            return False
        return True

    def newest_checkpoint(self) -> tuple[int, list[str]]:
        """Return version and files of the newest checkpoint; (-1, []) when there is none.

        The hint file spares the listing where it is of use.
        """
        hint = self._hinted()
        # The hint is valid while its own commit exists: then later commits were not cleaned up either.
        if hint is not None and not hint.parts and self._storage.exists(self.path(hint.version)):
            name = f"{self.directory}/{hint.version:020d}.checkpoint.parquet"
            if self._storage.exists(name):
                return hint.version, [name]
        if hint is None and self._storage.exists(self.path(0)):
            return -1, []
        newest = max(self._parts, default=-1)
        return newest, self.parts(newest)

    def read_parts(self, parts: Sequence[str], kinds: Sequence[str]) -> Iterator[Action]:
        """Read the actions of a checkpoint.

        Args:
            parts: paths of the checkpoint's files.
            kinds: the protocol's names of the wanted kinds (`add`, `remove`, `metaData`, `protocol`, `txn`).

        Raises:
            FileNotFoundError: a file has gone.
            DamagedLog: a file does not decode.
        """
        if not parts:
            return  # pyarrow takes 40 MiB
        import pyarrow as pa

        for part in parts:
            source = part if self._storage.local else pa.BufferReader(self._storage.read(part))
            try:
                yield from _checkpointed(source, kinds)
            except FileNotFoundError:
                raise
            except (pa.ArrowException, OSError, KeyError, *DECODE_ERRORS) as error:
                raise DamagedLog(part, str(error)) from error

    # ------------------------------------------------------------------ states

    def state(self, version: int | None = None) -> TableVersion:
        """Return the table at a version, the newest by default.

        Raises:
            FileNotFoundError: the log does not reach back so far, or there is no table.
        """
        if version is None:
            version = max(self.commits[-1:] + self.checkpoints[-1:], default=-1)
        base = self._base(version)
        state = TableVersion()
        state.apply(self.read_parts(self.parts(base), ("add", "metaData", "protocol", "txn")))
        for number in range(base + 1, version + 1):
            state.apply(self.commit(number).actions)
        if not state.metadata.id:
            raise FileNotFoundError(f"{self.directory} has no version {version}")
        state.version = version
        return state

    def metadata_of(self, version: int) -> dict[str, Any]:
        """Return the metaData action that holds at a version, with every field that its JSON has."""
        base = self._base(version)
        if (found := self.metadata_between(base, version)) is not None:
            return found
        for part in self.parts(base):
            for value in _whole_metadata(self._storage.read(part)):
                return value
        raise DamagedLog(self.path(version), "there is no metaData action up to it")

    def metadata_between(self, version: int, through: int) -> dict[str, Any] | None:
        """Return the last metaData action of the commits after `version` up to `through`; None if none has one.

        Raises:
            FileNotFoundError: the log has lost one of these commits.
        """
        for number in range(through, version, -1):
            for line in self._storage.read(self.path(number)).splitlines():
                if b'"metaData"' in line and (found := msgspec.json.decode(line).get("metaData")) is not None:
                    return dict(found)
        return None

    def tombstones(self, version: int) -> Iterator[RemoveFile]:
        """Yield the files that have left the table by a version, as far back as its checkpoint remembers.

        They are in no order, and some may be back.
        """
        base = self._base(version)
        for action in self.read_parts(self.parts(base), ("remove",)):
            assert action.remove is not None
            yield action.remove
        for number in range(base + 1, version + 1):
            yield from (action.remove for action in self.commit(number).actions if action.remove is not None)

    def ever_added(self) -> Iterator[AddFile]:
        """Yield every file of any version that the log still has, some of them several times."""
        first = self.checkpoints[0] if self.checkpoints else self.commits[0] if self.commits else 0
        if first in self.checkpoints or first == 0:
            yield from self.state(first).files.values()
        for version in self.commits:
            if version > first:
                yield from (action.add for action in self.commit(version).actions if action.add is not None)

    def _base(self, version: int) -> int:
        """Return the newest checkpoint that `version` can be replayed from; -1 for none."""
        return max((each for each in self.checkpoints if each <= version), default=-1)


def _gapless(versions: list[int]) -> list[int]:
    """Return the versions after the last gap."""
    for position in range(len(versions) - 1, 0, -1):
        if versions[position - 1] != versions[position] - 1:
            return versions[position:]
    return versions


def log_directory(table: str) -> str:
    """Return the path of a table's log."""
    return f"{table}/{LOG_DIRECTORY}"


def has_log(storage: Storage, path: str) -> bool:
    """Return True if a directory is a Delta table: it has a log, if perhaps without a commit yet."""
    return LOG_DIRECTORY in storage.directories(path)


def _checkpointed(source: Any, kinds: Sequence[str]) -> Iterator[Action]:
    """Yield the actions in a checkpoint's file. Raise pyarrow.ArrowException, OSError or others if it is damaged."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    with pq.ParquetFile(source, page_checksum_verification=True) as file:
        there = {".".join(file.schema.column(at).path.split(".")[:2]) for at in range(len(file.schema))}
        wanted = [f"{kind}.{column}" for kind in kinds for column in _COLUMNS[kind]]
        for batch in file.iter_batches(_BATCH_ROWS, columns=[column for column in wanted if column in there]):
            for name in batch.schema.names:
                column = batch.column(name)
                # Selecting columns of a null struct may give a struct of nulls.
                present = column.filter(pc.is_valid(pc.struct_field(column, _COLUMNS[name][0])))
                for value in present.to_pylist(maps_as_pydicts="lossy"):
                    known = {key: each for key, each in value.items() if each is not None}
                    if name == "add" and "size" not in known:
                        raise msgspec.ValidationError("a file has no size")
                    yield msgspec.convert({name: known}, Action)


def _whole_metadata(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield the metaData action in a checkpoint's file, without the fields that are null."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(pa.BufferReader(content), columns=["metaData"], page_checksum_verification=True)
    column = table["metaData"]
    for value in column.to_pylist(maps_as_pydicts="lossy"):
        if value is not None and value.get("id") is not None:
            yield {name: each for name, each in value.items() if each is not None}
