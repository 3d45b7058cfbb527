"""A Delta table's transaction log, action by action.

Belongs here: the state of a table at a version, replayed from the newest checkpoint before it and the commits since,
and where the files are that a log names. Maintenance needs more of it than deltalake tells: tombstones, the files of
deletion vectors, change data, and paths as they are written. No data file is opened and nothing is judged here.

Source: Delta protocol, "Delta Log Entries", "Checkpoints", "Action Reconciliation", "Deletion Vectors".
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from lakestream.lake.errors import DamagedLog
from lakestream.lake.files.storage import Storage

_COMMIT = re.compile(r"^(\d{20})\.json$")
_CHECKPOINT = re.compile(r"^(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet$")
_UUID_LENGTH = 20
_Z85 = {
    char: value
    for value, char in enumerate(
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    )
}
_CHECKPOINT_COLUMNS = {
    "add": ("path", "partitionValues", "size", "modificationTime", "stats", "deletionVector"),
    "remove": ("path", "deletionTimestamp", "deletionVector"),
    "metaData": ("id", "partitionColumns", "configuration"),
    "txn": ("appId", "version"),
}


class Vector(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A deletion vector's descriptor."""

    storageType: str
    pathOrInlineDv: str
    sizeInBytes: int
    cardinality: int
    offset: int | None = None

    @property
    def key(self) -> str:
        """What tells it from others of the same file."""
        return f"{self.storageType}{self.pathOrInlineDv}@{self.offset}"


class Add(msgspec.Struct, frozen=True):
    """A data file, as it entered the table. `path` is spelled as in the log; see `locate`."""

    path: str
    partitionValues: dict[str, str | None]
    size: int
    modificationTime: int = 0
    stats: str | None = None
    deletionVector: Vector | None = None


class Remove(msgspec.Struct, frozen=True):
    """A data file that left the table; in a state, a tombstone."""

    path: str
    deletionTimestamp: int | None = None
    deletionVector: Vector | None = None


class ChangeData(msgspec.Struct, frozen=True):
    """A file of the change data feed."""

    path: str


class MetaData(msgspec.Struct, frozen=True):
    """The table's identity, partition columns and properties."""

    id: str
    partitionColumns: list[str] = []
    configuration: dict[str, str] = {}


class Transaction(msgspec.Struct, frozen=True):
    """How far an application has come, by its own count."""

    appId: str
    version: int


class Action(msgspec.Struct, frozen=True):
    """One line of a commit; kinds that maintenance has no use for decode to nothing."""

    add: Add | None = None
    remove: Remove | None = None
    cdc: ChangeData | None = None
    metaData: MetaData | None = None
    txn: Transaction | None = None


class _Smallest(msgspec.Struct):
    seq: int = 0


class _Stats(msgspec.Struct):
    numRecords: int = 0
    minValues: _Smallest = msgspec.field(default_factory=_Smallest)
    maxValues: _Smallest = msgspec.field(default_factory=_Smallest)


class Statistics(msgspec.Struct, frozen=True, gc=False):
    """What a file's statistics say: rows written, and the range of their sequences; 0 where they say nothing."""

    rows: int = 0
    min_seq: int = 0
    max_seq: int = 0


_ACTION = msgspec.json.Decoder(Action)
_STATS = msgspec.json.Decoder(_Stats)
Key = tuple[str, str]


class State:
    """A table at one version: the files that are in it, by path and deletion vector, its metadata, and how far each
    application has come."""

    def __init__(self) -> None:
        self.version = -1
        self.metadata = MetaData("")
        self.files: dict[Key, Add] = {}
        self.transactions: dict[str, int] = {}

    def apply(self, actions: Iterable[Action]) -> None:
        """Play one commit, or the actions of a checkpoint."""
        added: list[Add] = []
        for action in actions:
            if action.add is not None:
                added.append(action.add)
            elif action.remove is not None:
                self.files.pop(key_of(action.remove), None)
            elif action.metaData is not None:
                self.metadata = action.metaData
            elif action.txn is not None:
                self.transactions[action.txn.appId] = action.txn.version
        # Whatever the order of its lines, a file that a commit removes and adds is there.
        self.files.update((key_of(add), add) for add in added)


class Log:
    """Which commits and checkpoints there are, by one listing."""

    def __init__(self, storage: Storage, table: str) -> None:
        self._storage = storage
        self.table = table
        self.directory = f"{table}/_delta_log"
        names = storage.names(self.directory)
        self.commits = sorted(int(match[1]) for name in names if (match := _COMMIT.match(name)))
        self._parts = _complete(names)
        self.checkpoints = sorted(self._parts)

    def state(self, version: int | None = None) -> State:
        """The table at a version, the newest by default.

        Raises:
            FileNotFoundError: the log does not reach back so far, or there is no table.
        """
        if version is None:
            version = max(self.commits[-1:] + self.checkpoints[-1:], default=-1)
        base = self._base(version)
        state = State()
        state.apply(self._checkpointed(base, "add"))
        state.apply(self._checkpointed(base, "metaData"))
        state.apply(self._checkpointed(base, "txn"))
        for number in range(base, version):
            state.apply(self.commit(number + 1))
        if not state.metadata.id:
            raise FileNotFoundError(f"{self.directory} has no version {version}")
        state.version = version
        return state

    def commit(self, version: int) -> list[Action]:
        """The actions of one commit.

        Raises:
            FileNotFoundError: it is not there (any more).
            DamagedLog: it is not what a commit looks like.
        """
        content = self._storage.read(self.path(version))
        try:
            return [_ACTION.decode(line) for line in content.splitlines() if line.strip()]
        except msgspec.DecodeError as error:
            raise DamagedLog(self.path(version), str(error)) from None

    def metadata_of(self, version: int) -> dict[str, Any]:
        """The metaData action that holds at a version, whole, as its JSON says it."""
        base = self._base(version)
        for number in range(version, base, -1):
            for line in self._storage.read(self.path(number)).splitlines():
                if b'"metaData"' in line and (found := msgspec.json.decode(line).get("metaData")) is not None:
                    return dict(found)
        return next(
            found
            for name in self._parts.get(base, [])
            for found in _whole_metadata(self._storage.read(f"{self.directory}/{name}"))
        )

    def path(self, version: int) -> str:
        """Path of a commit."""
        return f"{self.directory}/{version:020d}.json"

    def tombstones(self, version: int) -> Iterator[Remove]:
        """Files that have left the table by a version, as far back as its checkpoint remembers; not in order, and some
        may be back."""
        base = self._base(version)
        yield from (action.remove for action in self._checkpointed(base, "remove") if action.remove is not None)
        for number in range(base, version):
            yield from (action.remove for action in self.commit(number + 1) if action.remove is not None)

    def _base(self, version: int) -> int:
        """The newest checkpoint that `version` can be replayed from; -1 for none."""
        return max((each for each in self.checkpoints if each <= version), default=-1)

    def _checkpointed(self, version: int, kind: str) -> Iterator[Action]:
        for name in self._parts.get(version, []):
            yield from _of_checkpoint(self._storage.read(f"{self.directory}/{name}"), kind)

    def ever_added(self) -> Iterator[Add]:
        """Every file of any version that the log still has, some of them several times."""
        first = self.checkpoints[0] if self.checkpoints else self.commits[0] if self.commits else 0
        if first in self.checkpoints or first == 0:
            yield from self.state(first).files.values()
        for version in self.commits:
            if version > first:
                for action in self.commit(version):
                    if action.add is not None:
                        yield action.add


def statistics(add: Add) -> Statistics:
    """The part of a file's statistics that matters here."""
    try:
        stats = _STATS.decode(add.stats or "{}")
    except msgspec.DecodeError:
        return Statistics()
    return Statistics(stats.numRecords, stats.minValues.seq, stats.maxValues.seq)


def checkpoints(names: Sequence[str]) -> list[int]:
    """Versions with a complete checkpoint among the names of a log's files, ascending."""
    return sorted(_complete(names))


def locate(table: str, path: str) -> str:
    """Where a file is that a log calls `path`: a relative path, an absolute one or a URI, percent-encoded."""
    scheme, colon, rest = path.partition(":")
    if colon and scheme == "file":
        return unquote(urlsplit(path).path)
    if colon and scheme in ("s3", "s3a", "s3n"):
        return "s3:" + unquote(rest)
    return unquote(path) if path.startswith("/") else f"{table}/{unquote(path)}"


def vector_file(table: str, vector: Vector) -> str | None:
    """Where a deletion vector's file is; None for one that is part of the log."""
    if vector.storageType == "p":
        return locate(table, vector.pathOrInlineDv)
    if vector.storageType != "u":
        return None
    prefix, encoded = vector.pathOrInlineDv[:-_UUID_LENGTH], vector.pathOrInlineDv[-_UUID_LENGTH:]
    raw = b"".join(_z85(encoded[at : at + 5]) for at in range(0, _UUID_LENGTH, 5)).hex()
    name = "-".join((raw[:8], raw[8:12], raw[12:16], raw[16:20], raw[20:]))
    return f"{table}/{prefix}/deletion_vector_{name}.bin" if prefix else f"{table}/deletion_vector_{name}.bin"


def located(table: str, action: Add | Remove) -> list[str]:
    """The files that an action stands for: the data file and its deletion vector's."""
    found = [locate(table, action.path)]
    if action.deletionVector is not None and (path := vector_file(table, action.deletionVector)) is not None:
        found.append(path)
    return found


def key_of(action: Add | Remove) -> Key:
    """Return the key of a file within a state: its path and its deletion vector."""
    vector = action.deletionVector
    return action.path, "" if vector is None else vector.key


def _z85(five: str) -> bytes:
    value = 0
    for char in five:
        value = value * 85 + _Z85[char]
    return value.to_bytes(4, "big")


def _complete(names: Sequence[str]) -> dict[int, list[str]]:
    """The files of each complete checkpoint, by version."""
    found: dict[tuple[int, int], list[str]] = {}
    for name in sorted(names):
        if match := _CHECKPOINT.match(name):
            found.setdefault((int(match[1]), int(match[3] or 1)), []).append(name)
    return {version: parts for (version, expected), parts in sorted(found.items()) if len(parts) == expected}


def _of_checkpoint(content: bytes, kind: str) -> Iterator[Action]:
    """The actions of one kind in a checkpoint's file."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    file = pq.ParquetFile(io.BytesIO(content))
    fields = {field.name: field.type for field in file.schema_arrow}
    there = {fields[kind].field(at).name for at in range(fields[kind].num_fields)} if kind in fields else set()
    names = [name for name in _CHECKPOINT_COLUMNS[kind] if name in there]
    if not names:
        return
    for batch in file.iter_batches(columns=[f"{kind}.{name}" for name in names]):
        # A reader that selects columns may give a struct of nulls for a null struct.
        present = batch.filter(pc.is_valid(pc.struct_field(batch.column(0), names[0])))
        for value in present.column(0).to_pylist(maps_as_pydicts="lossy"):
            known = {name: each for name, each in value.items() if each is not None}
            yield msgspec.convert({kind: known}, Action)


def _whole_metadata(content: bytes) -> Iterator[dict[str, Any]]:
    """The metaData action in a checkpoint's file, without what is not there."""
    import pyarrow.parquet as pq

    for value in pq.read_table(io.BytesIO(content), columns=["metaData"])["metaData"].to_pylist(
        maps_as_pydicts="lossy"
    ):
        if value is not None and value.get("id") is not None:
            yield {name: each for name, each in value.items() if each is not None}
