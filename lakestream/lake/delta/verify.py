"""Verification that the files of a table match its Delta log and are on stable storage.

Belongs here: the check of a data file and its deletion vector against the action that names them, following a table's
commits so that each file is checked once, and the request for a repair. A commit does not prove that its files were
synced: after a power loss they may be empty, short or full of zeros. Checked are the size, the Parquet footer with its
checksum (ends.py) and number of rows; place, length and checksum of a deletion vector.

A VACUUM by another program deletes files that are in no version yet, and a commit may name them while it runs. Delta
logs its start and its end: all files are checked again after each, and what is checked in between proves nothing.

Whatever deletes files of a table, versions of its log, or segments that it holds first looks if every file that the
newest version names is there with its size (`lacking`, invariant 13). That opens no file.

In a directory every checked file is synced, with its directories and the commit that names it: size and footer may be
in the page cache alone. In an object store a successful PUT is durable (S3's promise), so size and footer are enough.

    damaged.json    in the stream's staging directory: the request. The server that found the damage writes it, once it
                    has staged all that its log has of the stream. While it is there, no staged segment is deleted. The
                    compactor deletes it after the repair (write/repair.py), or the server when a check finds no damage.

Source: Parquet format, "File format", "FileMetaData"; Delta protocol, "Deletion Vector Format".
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from lakestream.lake.delta import deletion_vectors, ends
from lakestream.lake.delta.actions import Add, Key, MetaData, TableProtocol, key_of, locate, statistics, vector_file
from lakestream.lake.delta.log import Commit, Log, State
from lakestream.lake.delta.position import PositionWatch, aside, own
from lakestream.lake.delta.strangers import ForeignCommit, foreign, obstacle, since_progress
from lakestream.lake.errors import BadDeletionVector, DamagedFile, LacksFiles
from lakestream.lake.files import paths, staging
from lakestream.lake.files.lake import open_storage
from lakestream.lake.files.local_storage import sync_path
from lakestream.lake.files.staging import StreamIdentity
from lakestream.lake.files.storage import Storage
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder

FILES_A_LOOK = 500
"""Maximum number of files, of all tables together, that are checked in one round (`lake.poll`), without those of new
commits: checking must not delay a start."""
NAMED_FILES = 3
"""Maximum number of damaged files that a text names; the others are counted."""
VACUUM = "VACUUM"
"""Beginning of the names of the operations."""
VACUUM_SECONDS = 3600.0
"""Time (1 h) after which a VACUUM by another program that states no end is taken to have ended."""
_STEP_FILES = 50
_END_BYTES = 64 * 1024  # of a Parquet file, read at once: enough for most footers
_MAGIC = b"PAR1"
_ROWS_FIELD = 3  # of FileMetaData
_NO_VALUES: dict[str, str | None] = {}


class Damage(msgspec.Struct, frozen=True):
    """A file of a table that differs from the log: path, reason, and the action that names it.

    `lasting`: the system could not write the file to the disk, so reading it again from memory proves nothing.
    """

    path: str
    reason: str
    add: Add
    lasting: bool = False


class Budget:
    """Number of files, of all tables together, that may be checked in one round. Thread-safe."""

    def __init__(self, files: int = FILES_A_LOOK) -> None:
        self._left = files
        self._lock = threading.Lock()

    def take(self, files: int) -> int:
        """Return how many of so many files may be checked now."""
        with self._lock:
            given = min(files, self._left)
            self._left -= given
            return given


class TableFiles:
    """Verification of one table's files: once as a whole, then commit by commit. Not for use by two threads at once.

    Args:
        storage: the lake.
        table: the table's path.
        application: `txnAppId` of the stream's commits; "": other programs' commits are not looked for.
    """

    def __init__(self, storage: Storage, table: str, application: str = "") -> None:
        self._storage = storage
        self._application = application
        self.table = table
        self.foreign: list[ForeignCommit] = []
        """Commits by other programs since the last one of the stream when the table was first read."""
        self.damaged: dict[Key, Damage] = {}
        """Damaged files of the newest known version, as far as it was checked."""
        self.obstacle = ""
        """Reason why old messages cannot be read from the newest version, though its files are undamaged; or ""."""
        self._metadata, self._protocol = MetaData(), TableProtocol()
        self._epoch = -1
        self.version = -1
        """The version that was checked last."""
        self._log: Log | None = None
        self._todo: dict[Key, Add] = {}
        self._fresh: dict[Key, Add] = {}
        self._named: dict[Key, Add] = {}
        """Files of the version that was checked last, without their statistics."""
        self._sizes: dict[str, int] | None = None
        self._again = False
        self._vacuum_began: float | None = None

    @property
    def is_vacuumed(self) -> bool:
        """Return True while a VACUUM by another program is under way, which may delete files that were checked."""
        return self._vacuum_began is not None

    def doubt(self) -> None:
        """Have all files checked again: one of them could not be read."""
        self._again = True

    def are_there(self) -> bool:
        """Return True if every file of the version that was checked last is there with its size; else all files are
        checked again by the next look, which names the damage. Opens no file.

        Invariant: no segment that the table holds is deleted before (13).
        """
        found = not lacking(self._storage, self.table, self._named.values())
        self._again = self._again or not found
        return found

    def look(self, epoch: int, budget: Budget) -> bool:
        """Continue checking; return True when all files of the newest version are checked, so that `damaged` is
        complete.

        Args:
            epoch: `PositionWatch.epoch`, read before.
            budget: limits the number of files of a new table that are checked now.

        Raises:
            FileNotFoundError: there is no table.
        """
        if self._vacuum_began is not None and time.monotonic() - self._vacuum_began >= VACUUM_SECONDS:
            self._vacuum_began, self._again = None, True
        if self._log is None or self._epoch != epoch or self._again:
            if not budget.take(1):
                return False
            self._begin(epoch)
        while self._todo and (count := budget.take(min(_STEP_FILES, len(self._todo)))):
            some = dict(islice(self._todo.items(), count))
            self.damaged.update(check(self._storage, self.table, list(some.values()), self._sizes))
            for key in some:
                del self._todo[key]
        if self._todo:
            return False
        self._follow()  # missing files may have been replaced meanwhile
        return not self._again

    def _begin(self, epoch: int) -> None:
        log = Log(self._storage, self.table)
        state = log.state()
        if not self._storage.local:  # one request for a thousand files
            self._sizes = {entry.path: entry.size for entry in self._storage.tree(self.table)}
        self._sync_commits(log, log.commits)
        known = self.foreign if epoch == self._epoch else []
        self.foreign = [*known, *since_progress(log, self._application)] if self._application else []
        self._metadata, self._protocol = state.metadata, state.protocol
        self.obstacle = obstacle(self.table, state.version, self._metadata, self._protocol)
        self.damaged = {key: each for key, each in self.damaged.items() if each.lasting and key in state.files}
        self._todo = {key: add for key, add in state.files.items() if key not in self.damaged}
        self._fresh = {}
        self._named = {key: _slim(add) for key, add in state.files.items()}
        self._log, self.version, self._epoch, self._again = log, state.version, epoch, False

    def _follow(self) -> None:
        """Check the files that commits have added since, and those that were damaged once more."""
        self._sizes = None
        again = [key for key, each in self.damaged.items() if not each.lasting]
        while True:
            self._take_commits()
            doubted = {key: self.damaged[key].add for key in again if key in self.damaged}
            if not self._fresh and not doubted:
                return
            found = check(self._storage, self.table, [*doubted.values(), *self._fresh.values()])
            for key in doubted:
                del self.damaged[key]
            self._fresh = {}
            self.damaged.update(found)
            assert self._log is not None
            if not self.damaged or not self._storage.exists(self._log.path(self.version + 1)):
                return
            again = []  # a commit may have replaced files that are missing now

    def _take_commits(self) -> None:
        """Apply new commits: the files that they add and remove."""
        seen = []
        assert self._log is not None
        for commit in self._log.commits_after(self.version):
            self.version = commit.version
            seen.append(self.version)
            if self._application and (other := foreign(commit)) is not None:
                self.foreign.append(other)
            self._take_metadata(commit)
            self._take_vacuum(commit)
            for action in commit.actions:
                if action.remove is not None:
                    for known in (self._fresh, self._named, self.damaged):
                        known.pop(key_of(action.remove), None)
            for action in commit.actions:
                if action.add is not None:
                    self._fresh[key_of(action.add)] = action.add
                    self._named[key_of(action.add)] = _slim(action.add)
        self._sync_commits(self._log, seen)

    def _take_metadata(self, commit: Commit) -> None:
        """Apply what a commit says of the table as a whole."""
        before = self._metadata, self._protocol
        for action in commit.actions:
            self._metadata = action.meta_data or self._metadata
            self._protocol = action.protocol or self._protocol
        if (self._metadata, self._protocol) != before:
            self.obstacle = obstacle(self.table, commit.version, self._metadata, self._protocol)

    def _take_vacuum(self, commit: Commit) -> None:
        """Note the start or the end of a VACUUM. Those of maintenance make no commits."""
        operation = commit.info.operation
        if operation.startswith(VACUUM):
            self._again = True
            self._vacuum_began = time.monotonic() if operation == f"{VACUUM} START" else None

    def _sync_commits(self, log: Log, versions: Sequence[int]) -> None:
        if not self._storage.local or not versions:
            return
        for version in versions:
            try:
                sync_path(log.path(version))
            except FileNotFoundError:  # log clean-up
                continue
        _sync_directories(self._storage.root, {log.directory})


def look_over(storage: Storage, table: str) -> list[Damage]:
    """Check all files of a table at once; return the damaged ones, none where there is no table."""
    files = TableFiles(storage, table)
    try:
        files.look(0, Budget(sys.maxsize))
    except FileNotFoundError:
        return []
    return list(files.damaged.values())


def check(storage: Storage, table: str, adds: Sequence[Add], sizes: dict[str, int] | None = None) -> dict[Key, Damage]:
    """Check some files of a table, syncing local ones; return the damaged ones.

    Args:
        storage: the lake.
        table: the table's path.
        adds: the actions that name the files.
        sizes: sizes by path from a listing; files in it are not opened one by one.
    """
    found: dict[Key, Damage] = {}
    directories: dict[str, list[Add]] = {}
    vectors: dict[str, bytes | str] = {}
    for add in adds:
        path = locate(table, add.path)
        known = sizes.get(path) if sizes is not None else None
        damage = _of_size(path, known, add) if known is not None else _data(storage, path, add)
        damage = damage or _vector(storage, table, add, vectors)
        if damage is not None:
            found[key_of(add)] = damage
        elif paths.is_local(path):
            directories.setdefault(os.path.dirname(path), []).append(add)
    try:
        _sync_directories(storage.root, directories)
    except OSError as error:
        for path, held in directories.items():
            found.update((key_of(add), Damage(path, _unsynced(error), add, lasting=True)) for add in held)
    return found


def lacking(storage: Storage, table: str, adds: Iterable[Add]) -> list[Damage]:
    """Return the damage of files that are missing, or of another size than the log says.

    Costs one look-up for each file in a directory; in an object store one listing, a request for a thousand files.

    Args:
        storage: the lake.
        table: the table's path.
        adds: the actions that name the files.
    """
    listed = None if storage.local else {entry.path: entry.size for entry in storage.tree(table)}
    vectors: dict[str, int | None] = {}

    def size(path: str) -> int | None:
        if listed is not None and path.startswith(f"{table}/"):
            return listed.get(path)
        entry = (storage if storage.local else open_storage(path.rpartition("/")[0])).stat(path)
        return None if entry is None else entry.size

    found = []
    for add in adds:
        path, vector = locate(table, add.path), add.deletion_vector
        if (damage := _of_size(path, size(path), add)) is not None:
            found.append(damage)
            continue
        try:
            file = None if vector is None else vector_file(table, vector)
        except BadDeletionVector as error:
            found.append(Damage(path, str(error), add))
            continue
        if vector is None or file is None:
            continue
        if file not in vectors:  # those of one commit share a file
            vectors[file] = size(file)
        end = deletion_vectors.end_of(vector)
        if (there := vectors[file]) is None or there < end:
            reason = "it is missing" if there is None else f"it has {there} bytes, and a deletion vector up to {end}"
            found.append(Damage(file, reason, add))
    return found


def require(storage: Storage, table: str, state: State) -> None:
    """Raise LacksFiles if a file is missing that a version of a table names."""
    if damaged := lacking(storage, table, state.files.values()):
        raise LacksFiles(table, describe(table, damaged))


def require_whole(storage: Storage, table: str) -> State:
    """Return the newest version of a table. To be called under its lock before anything is deleted from it.

    The name of the version is synced: its writer may have been killed before it did that, and what the version has
    replaced must not go while a power loss could bring it back.

    Raises:
        LacksFiles: a file that the version names is missing.
        FileNotFoundError: there is no table.
    """
    log = Log(storage, table)
    state = log.state()
    require(storage, table, state)
    if state.version in log.commits:
        storage.sync_files([log.path(state.version)])
    return state


def describe(table: str, damaged: Iterable[Damage]) -> str:
    """Describe damaged files of a table, with their sequences, in one line."""
    every = sorted(damaged, key=lambda each: (statistics(each.add).min_seq, each.path))
    some = [f"{each.path.removeprefix(table + '/')}: {each.reason}{_held(each.add)}" for each in every[:NAMED_FILES]]
    if len(every) > NAMED_FILES:
        some.append(f"and {len(every) - NAMED_FILES} more files")
    return f"{table} is damaged: {'; '.join(some)}"


def span(damaged: Iterable[Damage]) -> tuple[int, int]:
    """Return the lowest and the highest sequence that damaged files may hold by their statistics; zeros for none."""
    stats = [statistics(each.add) for each in damaged]
    return min((each.min_seq for each in stats), default=0), max((each.max_seq for each in stats), default=0)


def _held(add: Add) -> str:
    stats = statistics(add)
    rows = stats.rows - (add.deletion_vector.cardinality if add.deletion_vector is not None else 0)
    return f" ({rows} messages with sequences from {stats.min_seq} to {stats.max_seq})" if stats.max_seq else ""


def _data(storage: Storage, path: str, add: Add) -> Damage | None:
    """Check one data file; return its damage, or None."""
    try:
        end, size = storage.read_end(path, _END_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return Damage(path, "it is missing", add)
    except OSError as error:
        return Damage(path, f"it cannot be read: {error.strerror or error}", add)
    if size != add.size:
        return _of_size(path, size, add)
    try:
        if (known := ends.stated(add.tags)) is not None:
            known.check(path, end if known.size <= len(end) else storage.read_end(path, known.size)[0])
        rows = _rows(storage, path, end, size)
    except DamagedFile as error:
        return Damage(path, error.reason, add)
    except (IndexError, ValueError, RecursionError) as error:
        return Damage(path, f"its Parquet footer is damaged: {error}", add)
    said = statistics(add).rows
    if said and rows != said:
        return Damage(path, f"its Parquet footer tells of {rows} rows instead of {said}", add)
    return _synced(path, add)


def _of_size(path: str, size: int | None, add: Add) -> Damage | None:
    if size is None:
        return Damage(path, "it is missing", add)
    return Damage(path, f"it has {size} bytes instead of {add.size}", add) if size != add.size else None


def _slim(add: Add) -> Add:
    """Return what is needed to find a file again: a table may have thousands."""
    return Add(add.path, _NO_VALUES, add.size, deletion_vector=add.deletion_vector)


def _vector(storage: Storage, table: str, add: Add, read: dict[str, bytes | str]) -> Damage | None:
    """Check the deletion vector of a data file; return its damage, or None.

    `read` caches, by path, a file's content or the reason why it cannot be read: vectors of one commit share a file.
    """
    vector = add.deletion_vector
    try:
        path = None if vector is None else vector_file(table, vector)
    except BadDeletionVector as error:
        return Damage(locate(table, add.path), str(error), add)
    if vector is None or path is None:
        return None
    if path not in read:
        try:
            read[path] = storage.read(path)
        except (FileNotFoundError, NotADirectoryError):
            read[path] = "it is missing"
        except OSError as error:
            read[path] = f"it cannot be read: {error.strerror or error}"
    content = read[path]
    if isinstance(content, str):
        return Damage(path, content, add)
    try:
        deletion_vectors.stored(content, path, vector.offset or 0, vector.size_in_bytes)
    except BadDeletionVector as error:
        return Damage(path, str(error), add)
    return _synced(path, add)


def _synced(path: str, add: Add) -> Damage | None:
    if not paths.is_local(path):
        return None
    try:
        sync_path(path)
    except OSError as error:
        return Damage(path, _unsynced(error), add, lasting=True)
    return None


def _unsynced(error: OSError) -> str:
    return f"it could not be written to the disk: {error.strerror or error}"


def _sync_directories(root: str, directories: Iterable[str]) -> None:
    """Sync directories, and those above them up to the lake's root, which may be new as well."""
    every = set()
    for directory in directories:
        every.add(directory)
        while directory.startswith(f"{root}/"):
            directory = os.path.dirname(directory)
            every.add(directory)
    for directory in sorted(every, key=len, reverse=True):
        sync_path(directory)


# ---------------------------------------------------------------------- the Parquet footer
def _rows(storage: Storage, path: str, end: bytes, size: int) -> int:
    """Return the number of rows in a Parquet file from its last bytes. Raises ValueError, IndexError."""
    if len(end) < 8 or end[-4:] != _MAGIC:
        raise ValueError("the file does not end in PAR1")
    length = int.from_bytes(end[-8:-4], "little")
    if length > size - 12:
        raise ValueError(f"{length} bytes do not fit into the file")
    if length + 8 > len(end):
        end, _ = storage.read_end(path, length + 8)
    return _Compact(end[len(end) - 8 - length : -8]).integer_field(_ROWS_FIELD)


class _Compact:
    """Reader of one struct in Thrift's compact protocol, which costs less than pyarrow: that takes 40 MiB and half a
    second in a server that never reads from its lake."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def integer_field(self, wanted: int) -> int:
        """Read the whole struct and return the value of an integer field. Raises ValueError, IndexError."""
        value = None
        for number, kind in self._fields():
            if number == wanted and kind in (4, 5, 6):
                value = self._zigzag()
            else:
                self._skip(kind)
        if value is None or self._at != len(self._data):
            raise ValueError("it is cut, or overwritten")
        return value

    def _fields(self) -> Iterator[tuple[int, int]]:
        """Yield field numbers and types; the caller reads or skips the value before the next one."""
        number = 0
        while (head := self._byte()) != 0:
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            yield number, head & 15

    def _skip(self, kind: int) -> None:
        if kind in (1, 2):
            return  # a boolean is in its type
        if kind == 3:
            self._at += 1
        elif kind in (4, 5, 6):
            self._varint()
        elif kind == 7:
            self._at += 8
        elif kind == 8:
            length = self._varint()
            self._at += length
        elif kind in (9, 10):
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._varint()
            if count > len(self._data):
                raise ValueError(f"it has a list of {count} elements")
            for _ in range(count):
                if head & 15 in (1, 2):
                    self._at += 1
                else:
                    self._skip(head & 15)
        elif kind == 12:
            for _, inner in self._fields():
                self._skip(inner)
        else:
            raise ValueError(f"it has a field of type {kind}")

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


def damaged(storage: Storage, stream: StreamIdentity) -> list[Damage]:
    """Check the files of the stream's table, at either of its paths; return the damaged ones."""
    for place in (own(storage, stream), aside(storage, stream)):
        if PositionWatch(place, stream.uid).read() is not None:
            return look_over(storage, place)
    return []


REQUEST_FILE = paths.DAMAGED_FILE


class Request(msgspec.Struct, frozen=True):
    """Damaged files by path with reasons, as found by a server. `lasting` are those that a check does not show: the
    disk refused to write them (`Damage.lasting`)."""

    files: dict[str, str] = {}
    lasting: list[str] = []


_REQUEST = JsonDecoder(Request)


# ---------------------------------------------------------------------- the server's side
def ask(lake: str, stream: StreamIdentity, damaged: Sequence[Damage]) -> None:
    """Ask the compactor to repair the table. Staged segments have to stay from before this call on."""
    storage = open_storage(lake)
    directory = staging.directory_of(lake, stream)
    files = {each.path: each.reason for each in damaged}
    request = Request(files, sorted({each.path for each in damaged if each.lasting}))
    if asked(storage, directory) != request:
        staging.introduce(storage, directory, stream)
        storage.write(f"{directory}/{REQUEST_FILE}", msgspec.json.encode(request))


def settle(storage: Storage, directory: str) -> None:
    """Delete the request: the table is not damaged."""
    storage.delete(f"{directory}/{REQUEST_FILE}")


def asked(storage: Storage, directory: str) -> Request | None:
    """Return the request in a staging directory; None when there is none."""
    try:
        content = storage.read(f"{directory}/{REQUEST_FILE}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return _REQUEST.decode(content)
    except DECODE_ERRORS:  # cut by a power loss; the server writes it again
        return Request()


def is_asked(storage: Storage, directory: str) -> bool:
    """Return True if there is a request."""
    return storage.exists(f"{directory}/{REQUEST_FILE}")
