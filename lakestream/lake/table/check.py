"""Verification that the files of a table match its Delta log and are on stable storage.

Belongs here: the check of a data file and its deletion vector against the action that names them, of the files that
each state of a table brings (state.py), so that each is checked once, and the request for a repair. Checked are
the size, the Parquet footer with its checksum (ends.py) and number of rows; place, length and checksum of a deletion
vector. In an object store a successful PUT is durable (S3's promise), so nothing has to be synced there.

    damaged.json    in the stream's staging directory: the request. The server that found the damage writes it, once it
                    has staged all that its log has of the stream. While it is there, no staged segment is deleted. The
                    compactor deletes it after the repair (lakestream_spark/write/repair.py), or the server when a check
                    finds no damage.

Source: Parquet format, "File format", "FileMetaData"; Delta protocol, "Deletion Vector Format".
"""

# The problem. A segment leaves the log when its table has its messages, so this is the last moment at which a mistake
# can be undone. That a commit names files proves little. Another program may have written it without a sync; the
# machine may have lost power between a write and its sync; a VACUUM may have taken a file that a commit was about to
# name; a disk may return an error when it is too late. Deleting the only other copy on the word of a log is how data is
# lost.
#
# What is checked for each file: its size, the footer (with its own checksum, where the commit states one) and the
# number of rows in it, the bytes of its deletion vector. Not the pages: all data would be read twice. What power losses
# and cut uploads leave is a missing, short or zeroed end, which size and footer show. A read that fails has all files
# checked again (`recheck`).
#
# How often. A file is checked once for each state that brings it, and cheaply again before anything is deleted:
#
#     first look      `_begin`: all files of the table, in steps within a budget, so that a start with a thousand tables
#                     delays nothing; `look` returns False until it is through
#     later looks     `_check_new`: the files that came with new states, and the damaged ones once more
#     before deleting `are_there`, `require`: existence and size of every file, without opening one (invariant 13)
#
#     back to the first look: a new `epoch` (the table was made anew, or its log was cut), a file that was found missing
#     (`_again`), the begin and the end of another program's VACUUM
#
# While a VACUUM runs nothing is proved, since it may delete files that were found a moment ago (`is_vacuumed`). One
# that never states its end counts as ended after an hour, and everything is checked.
#
# Races with commits. A file may be missing because a newer version has replaced it. So damage counts only in the newest
# state: `_check_new` follows the table until the state in which it found damage is still the head.
#
# Syncing what others wrote. In a directory a check reads the page cache, which shows what a power loss would take. So
# each file is synced as well, with its directories, the commit that names it, and the log's directory: afterwards the
# answer holds for the disk. If that sync fails the damage is `lasting`: the kernel has dropped the dirty pages and
# marks them clean, so that a second sync would succeed, and a second read come from memory (invariant 4 is the same
# rule for the log).
#
# Who acts on damage. This module only finds it, and holds the request (`damaged.json`). The server stages what its log
# still has and writes the request; the compactor restores a version and compacts again
# (lakestream_spark/write/repair.py). Neither deletes a staged segment while the request is there.

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from lakestream.lake.errors import BadDeletionVector, DamagedFile, LacksFiles
from lakestream.lake.staging import staging
from lakestream.lake.staging.staging import StreamIdentity
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.local_storage import sync_path
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table import deletion_vectors
from lakestream.lake.table.actions import TableFile, locate, table_file, vector_file
from lakestream.lake.table.foreign_commits import obstacle
from lakestream.lake.table.log import TableLog, TableVersion
from lakestream.lake.table.schema import END
from lakestream.lake.table.state import Head, TableFollower, TableState, kept_table, position_of, table_of
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder

FILES_A_LOOK = 500
"""Maximum number of files, of all tables together, that are checked in one round (`lake.poll`), without those of new
commits: checking must not delay a start."""
NAMED_FILES = 3
"""Maximum number of damaged files that a text names; the others are counted."""
VACUUM_SECONDS = 3600.0
"""Time (1 h) after which a VACUUM by another program that states no end is taken to have ended."""
_STEP_FILES = 50
_END_BYTES = 64 * 1024  # of a Parquet file, read at once: enough for most footers
_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
_ROWS_FIELD = 3  # of FileMetaData


class Damage(msgspec.Struct, frozen=True):
    """A file of a table that differs from the log: path, reason, and the data file that it is of.

    `lasting`: the system could not write the file to the disk, so reading it again from memory proves nothing.
    """

    path: str
    reason: str
    file: TableFile
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


class TableCheck:
    """Check of one table's files: once as a whole, then of those that each new state brings. Not for use by two threads
    at once.

    Args:
        storage: the lake.
        follower: of the table.
    """

    def __init__(self, storage: Storage, follower: TableFollower) -> None:
        self._storage = storage
        self._follower = follower
        self._table = follower.table
        self.state: TableState | None = None
        """The state that was checked last."""
        self.damaged: dict[str, Damage] = {}
        """Damaged files of that state by path, as far as it was checked."""
        self.obstacle = ""
        """Reason why old messages cannot be read from that state, though its files are undamaged; or ""."""
        self._todo: list[TableFile] = []
        self._sizes: dict[str, int] | None = None
        self._again = False
        self._vacuum_began: float | None = None

    @property
    def version(self) -> int:
        """Return the version that was checked last; -1 before the first."""
        return -1 if self.state is None else self.state.version

    @property
    def is_vacuumed(self) -> bool:
        """Return True while a VACUUM by another program is under way, which may delete files that were checked."""
        return self._vacuum_began is not None

    def recheck(self) -> None:
        """Have all files checked again: one of them could not be read."""
        self._again = True

    def are_there(self) -> bool:
        """Return True if every file of the state that was checked last is there with its size; else all files are
        checked again by the next look, which names the damage. Opens no file.

        Invariant: no segment that the table holds is deleted before (13).
        """
        found = self.state is None or not lacking(self._storage, self._table, self.state.files)
        self._again = self._again or not found
        return found

    def look(self, head: Head, budget: Budget) -> bool:
        """Continue checking; return True when all files of the newest version are checked, so that `damaged` is
        complete.

        Args:
            head: the newest version, read just before.
            budget: limits the number of files of a new table that are checked now.

        Raises:
            FileNotFoundError: there is no table.
        """
        if self._vacuum_began is not None and time.monotonic() - self._vacuum_began >= VACUUM_SECONDS:
            self._vacuum_began, self._again = None, True
        state = self._follower.state
        if self.state is None or self._again or head.epoch != self.state.head.epoch:
            if not budget.take(1):
                return False
            self._begin()
        if self._todo or state is None or state.head is not head:
            state = None  # what is missing may have been replaced meanwhile
        while self._todo and (count := budget.take(min(_STEP_FILES, len(self._todo)))):
            self.damaged.update(check(self._storage, self._table, self._todo[:count], self._sizes))
            del self._todo[:count]
        if self._todo:
            return False
        self._sizes = None
        self._check_new(state or self._follower.advance())
        return not self._again

    def _begin(self) -> None:
        state = self._follower.advance()
        if not self._storage.local:  # one request for a thousand files
            self._sizes = {entry.path: entry.size for entry in self._storage.tree(self._table)}
        log = TableLog(self._storage, self._table)
        self._sync_commits(log, log.commits)
        lasting = {path: each for path, each in self.damaged.items() if each.lasting}
        self.damaged = {file.path: lasting[file.path] for file in state.files if file.path in lasting}
        self._todo = [file for file in state.files if file.path not in self.damaged]
        self._take(state)
        self._again = False

    def _check_new(self, state: TableState) -> None:
        """Check the files that came with a state and later ones, and those that were damaged once more."""
        again = [path for path, each in self.damaged.items() if not each.lasting]
        while True:
            before = self.state
            assert before is not None
            if state.head.epoch != before.head.epoch:
                self._again = True
                return
            log = TableLog(self._storage, self._table)
            self._sync_commits(log, range(before.version + 1, state.version + 1))
            files = state.added_after(before.version) if state is not before else []
            if self.damaged:
                fresh = {file.path for file in files}
                there = {file.path for file in state.files} - fresh
                self.damaged = {path: each for path, each in self.damaged.items() if path in there}
                files += [self.damaged[path].file for path in again if path in self.damaged]
            found = check(self._storage, self._table, files) if files else {}
            for path in again:
                self.damaged.pop(path, None)
            self.damaged.update(found)
            if state.vacuum > before.vacuum:
                self._again = True
                self._vacuum_began = time.monotonic() if state.is_vacuuming else None
            self._take(state)
            if not self.damaged or self._follower.newest() is state.head:
                return
            state, again = self._follower.advance(), []  # a commit may have replaced files that are missing now

    def _take(self, state: TableState) -> None:
        """Make a state the one that was checked last."""
        known, self.state = self.state, state
        if known is None or (known.metadata, known.protocol) != (state.metadata, state.protocol):
            self.obstacle = obstacle(self._table, state.version, state.metadata, state.protocol)

    def _sync_commits(self, log: TableLog, versions: Sequence[int]) -> None:
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
    follower = TableFollower(table, storage=storage)
    found = TableCheck(storage, follower)
    try:
        found.look(follower.newest(), Budget(sys.maxsize))
    except FileNotFoundError:
        return []
    return list(found.damaged.values())


def check(
    storage: Storage, table: str, files: Iterable[TableFile], sizes: dict[str, int] | None = None
) -> dict[str, Damage]:
    """Check some files of a table, syncing local ones; return the damaged ones by path.

    Args:
        storage: the lake.
        table: the table's path.
        files: the files.
        sizes: sizes by path from a listing; files in it are not opened one by one.
    """
    found: dict[str, Damage] = {}
    directories: dict[str, list[TableFile]] = {}
    vectors: dict[str, bytes | str] = {}
    for file in files:
        path = locate(table, file.path)
        known = sizes.get(path) if sizes is not None else None
        damage = _of_size(path, known, file) if known is not None else _data(storage, path, file)
        damage = damage or _vector(storage, table, file, vectors)
        if damage is not None:
            found[file.path] = damage
        elif paths.is_local(path):
            directories.setdefault(os.path.dirname(path), []).append(file)
    try:
        _sync_directories(storage.root, directories)
    except OSError as error:
        for path, held in directories.items():
            found.update((each.path, Damage(path, _unsynced(error), each, lasting=True)) for each in held)
    return found


def lacking(storage: Storage, table: str, files: Iterable[TableFile]) -> list[Damage]:
    """Return the damage of files that are missing, or of another size than the log says.

    Costs one look-up for each file in a directory; in an object store one listing, a request for a thousand files.

    Args:
        storage: the lake.
        table: the table's path.
        files: the files.
    """
    listed = None if storage.local else {entry.path: entry.size for entry in storage.tree(table)}
    vectors: dict[str, int | None] = {}

    def size(path: str) -> int | None:
        if listed is not None and path.startswith(f"{table}/"):
            return listed.get(path)
        entry = (storage if storage.local else open_storage(path.rpartition("/")[0])).stat(path)
        return None if entry is None else entry.size

    found = []
    for file in files:
        path, vector = locate(table, file.path), file.deleted
        if (damage := _of_size(path, size(path), file)) is not None:
            found.append(damage)
            continue
        try:
            bitmap = None if vector is None else vector_file(table, vector)
        except BadDeletionVector as error:
            found.append(Damage(path, str(error), file))
            continue
        if vector is None or bitmap is None:
            continue
        if bitmap not in vectors:  # those of one commit share a file
            vectors[bitmap] = size(bitmap)
        end = deletion_vectors.end_of(vector)
        if (there := vectors[bitmap]) is None or there < end:
            reason = "it is missing" if there is None else f"it has {there} bytes, and a deletion vector up to {end}"
            found.append(Damage(bitmap, reason, file))
    return found


def require(storage: Storage, table: str, state: TableVersion) -> None:
    """Raise LacksFiles if a file is missing that a version of a table names."""
    if damaged := lacking(storage, table, map(table_file, state.files.values())):
        raise LacksFiles(table, describe(table, damaged))


def require_whole(storage: Storage, table: str) -> TableVersion:
    """Return the newest version of a table. To be called under its lock before anything is deleted from it.

    The name of the version is synced: its writer may have been killed before it did that, and what the version has
    replaced must not go while a power loss could bring it back.

    Raises:
        LacksFiles: a file that the version names is missing.
        FileNotFoundError: there is no table.
    """
    log = TableLog(storage, table)
    state = log.state()
    require(storage, table, state)
    if state.version in log.commits:
        storage.sync_files([log.path(state.version)])
    return state


def describe(table: str, damaged: Iterable[Damage]) -> str:
    """Describe damaged files of a table, with their sequences, in one line."""
    every = sorted(damaged, key=lambda each: (each.file.min_seq, each.path))
    some = [f"{each.path.removeprefix(table + '/')}: {each.reason}{_held(each.file)}" for each in every[:NAMED_FILES]]
    if len(every) > NAMED_FILES:
        some.append(f"and {len(every) - NAMED_FILES} more files")
    return f"{table} is damaged: {'; '.join(some)}"


def span(damaged: Iterable[Damage]) -> tuple[int, int]:
    """Return the lowest and the highest sequence that damaged files may hold by their statistics; zeros for none."""
    files = [each.file for each in damaged]
    return min((each.min_seq for each in files), default=0), max((_last(each) for each in files), default=0)


def _last(file: TableFile) -> int:
    """Return the highest sequence of a file; 0 where its statistics lack it."""
    return file.max_seq if file.max_seq < END else 0


def _held(file: TableFile) -> str:
    rows = file.rows - (file.deleted.cardinality if file.deleted is not None else 0)
    return f" ({rows} messages with sequences from {file.min_seq} to {_last(file)})" if _last(file) else ""


def _data(storage: Storage, path: str, file: TableFile) -> Damage | None:
    """Check one data file; return its damage, or None."""
    try:
        end, size = storage.read_end(path, _END_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return Damage(path, "it is missing", file)
    except OSError as error:
        return Damage(path, f"it cannot be read: {error.strerror or error}", file)
    if size != file.size:
        return _of_size(path, size, file)
    try:
        if (known := file.end) is not None:
            known.check(path, end if known.size <= len(end) else storage.read_end(path, known.size)[0])
        rows = _rows(storage, path, end, size)
    except DamagedFile as error:
        return Damage(path, error.reason, file)
    except (IndexError, ValueError, RecursionError) as error:
        return Damage(path, f"its Parquet footer is damaged: {error}", file)
    said = file.rows
    if said and rows != said:
        return Damage(path, f"its Parquet footer tells of {rows} rows instead of {said}", file)
    return _synced(path, file)


def _of_size(path: str, size: int | None, file: TableFile) -> Damage | None:
    if size is None:
        return Damage(path, "it is missing", file)
    return Damage(path, f"it has {size} bytes instead of {file.size}", file) if size != file.size else None


def _vector(storage: Storage, table: str, file: TableFile, read: dict[str, bytes | str]) -> Damage | None:
    """Check the deletion vector of a data file; return its damage, or None.

    `read` caches, by path, a file's content or the reason why it cannot be read: vectors of one commit share a file.
    """
    vector = file.deleted
    try:
        path = None if vector is None else vector_file(table, vector)
    except BadDeletionVector as error:
        return Damage(locate(table, file.path), str(error), file)
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
        return Damage(path, content, file)
    try:
        deletion_vectors.stored(content, path, vector.offset or 0, vector.size_in_bytes)
    except BadDeletionVector as error:
        return Damage(path, str(error), file)
    return _synced(path, file)


def _synced(path: str, file: TableFile) -> Damage | None:
    if not paths.is_local(path):
        return None
    try:
        sync_path(path)
    except OSError as error:
        return Damage(path, _unsynced(error), file, lasting=True)
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
    if len(end) < 8 or end[-4:] not in (_MAGIC, _ENCRYPTED):
        raise ValueError("the file does not end in PAR1")
    length = int.from_bytes(end[-8:-4], "little")
    if length > size - 12:
        raise ValueError(f"{length} bytes do not fit into the file")
    if length + 8 > len(end):
        end, _ = storage.read_end(path, length + 8)
    if end.endswith(_ENCRYPTED):
        from lakestream.lake.table import encryption  # not at a server's start

        return encryption.metadata(path, end[-length - 8 :]).num_rows  # type: ignore[no-any-return]
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
    for place in (table_of(storage, stream), kept_table(storage, stream)):
        if position_of(place, stream.uid) is not None:
            return look_over(storage, place)
    return []


REQUEST_FILE = paths.DAMAGED_FILE


class RepairRequest(msgspec.Struct, frozen=True):
    """Damaged files by path with reasons, as found by a server. `lasting` are those that a check does not show: the
    disk refused to write them (`Damage.lasting`)."""

    files: dict[str, str] = {}
    lasting: list[str] = []


_REQUEST = JsonDecoder(RepairRequest)


# ---------------------------------------------------------------------- the server's side
def ask(lake: str, stream: StreamIdentity, damaged: Sequence[Damage]) -> None:
    """Ask the compactor to repair the table. Staged segments have to stay from before this call on."""
    storage = open_storage(lake)
    directory = staging.directory_of(lake, stream)
    files = {each.path: each.reason for each in damaged}
    request = RepairRequest(files, sorted({each.path for each in damaged if each.lasting}))
    if asked(storage, directory) != request:
        staging.introduce(storage, directory, stream)
        storage.write(f"{directory}/{REQUEST_FILE}", msgspec.json.encode(request))


def settle(storage: Storage, directory: str) -> None:
    """Delete the request: the table is not damaged."""
    storage.delete(f"{directory}/{REQUEST_FILE}")


def asked(storage: Storage, directory: str) -> RepairRequest | None:
    """Return the request in a staging directory; None when there is none."""
    try:
        content = storage.read(f"{directory}/{REQUEST_FILE}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return _REQUEST.decode(content)
    except DECODE_ERRORS:  # cut by a power loss; the server writes it again
        return RepairRequest()


def is_asked(storage: Storage, directory: str) -> bool:
    """Return True if there is a request."""
    return storage.exists(f"{directory}/{REQUEST_FILE}")
