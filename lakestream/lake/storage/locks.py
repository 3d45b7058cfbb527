"""Locks between the programs that commit to the tables of one lake.

Belongs here: the two kinds of locks, and their paths.

- In a directory a lock is a file lock of the system, held by the JVM and not by the interpreter that drives it: the JVM
  commits, and may outlive the interpreter for a moment. The system releases its locks when it dies.
- In an object store a lock is a *lease*: an object that names its holder and is replaced only by compare-and-swap. The
  holder renews it and stops committing when it could not renew it for some time; after more time another may take it.
  The store's own clock decides when a lease has expired, so clocks of machines need not agree.

Commits are safe without any lock: the second writer of version N of a table is refused (jvm/). Removing a table and
deleting files are not, so the compactor and the maintainer, which are two programs, lock each table in turn.

The request of a commit may outlive a lease. So a lease tells for some time that a holder had not released it, or had no
answer to a commit: until then no table is removed whose version could be taken once its log is gone (`late_until`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from lakestream.lake.errors import LeaseLost, StorageFailed, TableBusy, UnsupportedLake, first_line, leaves_doubt
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.local_storage import FILE_MODE
from lakestream.lake.storage.storage import Storage
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAINTAINER_LOCK = "_maintainer.lock"
"""Held by the lake's maintainer, in the lake's root."""
COMPACTOR_LOCK = "_compactor.lock"
"""Held by the lake's compactor, in the lake's root."""
CLOCK = "clock"
"""Object in `paths.LOCKS` that is written to learn the store's time, and whether its conditional writes work."""

LEASE_SECONDS = 30.0
"""Duration of a lease without renewal; LAKESTREAM_LEASE_SECONDS sets another one, at least 3."""
LEAST_LEASE_SECONDS = 3.0
LATE_SECONDS = 1200.0
"""Time after which a request of a program that was killed, or got no answer, does not arrive any more (20 min);
LAKESTREAM_LATE_SECONDS sets another one. S3 and Azure refuse requests that were signed more than 15 min ago, and TCP
gives up a connection without acknowledgements after about as long (tcp_retries2)."""
_FLOCK = "hhqqi4x"
"""C's struct flock on 64-bit Linux: type, whence, start, length, pid."""
_RENEWALS = 4  # times a lease is renewed within its length
_SURE = 2 / 3  # share of its length during which a holder that could not renew still commits
_TRY_SECONDS = 0.05  # pause between two attempts to take a table's lock
_LOOK_SECONDS = 0.5  # minimum interval between looks at another holder's lease


class Lock(Protocol):
    """An exclusive lock. Not for use by two threads at once."""

    def acquire(self) -> bool:
        """Take the lock; return False while it has another holder, be it in this process."""

    def release(self, doubt: bool = False) -> None:
        """Release the lock if it is held. `doubt`: a commit of its holder may still be on its way."""

    def late_until(self) -> int:
        """Return until when a commit of an earlier holder may still arrive, ns since the epoch; 0: no longer."""

    def check(self) -> None:
        """Raise LeaseLost if the lock may have another holder by now. Never raises for a lock that is not held."""


def open_lock(spark: SparkSession, path: str) -> Lock:
    """Return the lock at a path in a lake.

    Args:
        spark: a session of the JVM that commits while the lock is held.
        path: the lock's file or object; it is created when missing, and stays.
    """
    return JvmLock(spark, path) if paths.is_local(path) else Lease(path)


def acquired(
    spark: SparkSession, lake: str, table: str, seconds: float, stopping: Callable[[], bool] = lambda: False
) -> Lock:
    """Return the lock of a table of a lake, taken.

    Raises:
        TableBusy: it had another holder for so many seconds, or until `stopping()`.
    """
    lock = open_lock(spark, table_lock(lake, table))
    until = time.monotonic() + seconds
    while not lock.acquire():
        if stopping() or time.monotonic() >= until:
            raise TableBusy(table)
        time.sleep(_TRY_SECONDS)
    return lock


@contextlib.contextmanager
def held(
    spark: SparkSession, lake: str, table: str, seconds: float, stopping: Callable[[], bool] = lambda: False
) -> Iterator[Lock]:
    """Context that holds the lock of a table of a lake. Raises TableBusy, as `acquired` does."""
    lock = acquired(spark, lake, table, seconds, stopping)
    try:
        yield lock
    except BaseException as error:
        lock.release(leaves_doubt(error))
        raise
    lock.release()


_files: set[tuple[int, int]] = set()
"""Files (device, inode) that a lock of this process holds or is trying to take."""
_files_guard = threading.Lock()


class JvmLock:
    """An exclusive lock on a file, held by Spark's JVM.

    Invariant: the JVM never has a file open twice. Closing a file releases all locks of the process on it (POSIX,
    fcntl), so a mere attempt would release another holder's lock.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path
        self._channel: Any = None
        self._file: tuple[int, int] | None = None

    def acquire(self) -> bool:
        assert self._channel is None
        if not self._reserve():
            return False
        channel = None
        try:
            jvm = self._spark.sparkContext._jvm
            assert jvm is not None
            channel = jvm.java.io.RandomAccessFile(self._path, "rw").getChannel()
            if channel.tryLock() is not None:
                self._channel = channel
                return True
        except Exception as error:
            if "java.io." in str(error):
                raise StorageFailed("lock", self._path, first_line(error)) from error
            if "OverlappingFileLockException" not in str(error):
                raise
        finally:
            if self._channel is None:
                if channel is not None:
                    channel.close()
                self._give_back()
        return False

    def release(self, doubt: bool = False) -> None:
        if self._channel is not None:
            try:
                self._channel.close()
            finally:  # a JVM that has exited holds no locks
                self._channel = None
                self._give_back()

    def _reserve(self) -> bool:
        """Reserve the file within this process, creating it if missing; return False when it is reserved already.

        Raises:
            FileNotFoundError: the lake is away.
        """
        directory = os.path.dirname(self._path)
        if not os.path.isdir(directory) and os.path.basename(directory) == paths.LOCKS:
            open_storage(os.path.dirname(directory)).make_directory(directory)
        with _files_guard:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, FILE_MODE))
            status = os.stat(self._path)
            file = status.st_dev, status.st_ino
            if file in _files:
                return False
            _files.add(file)
            self._file = file
            mark(self._path)
            return True

    def _give_back(self) -> None:
        with _files_guard:
            _files.discard(self._file or (0, 0))
            self._file = None

    def late_until(self) -> int:
        """Return 0: the JVM that has the lock also does the commits."""
        return 0

    def check(self) -> None:
        """Do nothing: the system never takes a lock away."""


class _Terms(msgspec.Struct, frozen=True):
    """Content of a lease's object: holder ("" for none), duration from its writing, and a counter that makes each
    content unique. `doubt_ns`: when a holder ended that may have had a commit on its way, by the store's clock."""

    owner: str
    seconds: float
    number: int
    doubt_ns: int = 0


_TERMS = JsonDecoder(_Terms)


class Lease:
    """A lock in an object store.

    Args:
        path: the lease's object.
        seconds: duration without renewal; see LEASE_SECONDS.
    """

    def __init__(self, path: str, seconds: float | None = None) -> None:
        self._storage = open_storage(path)
        self._path = path
        self._seconds = lease_seconds() if seconds is None else seconds
        self._owner = uuid.uuid4().hex
        self._number = 0
        self._doubt_ns = 0
        self._tag: str | None = None
        self._sure_until = 0.0
        self._looked = -_LOOK_SECONDS
        self._lost = False
        self._stop = threading.Event()
        self._renewer: threading.Thread | None = None

    def acquire(self) -> bool:
        assert self._tag is None
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return False
        _require_conditional_writes(self._storage, self._path)
        tag: str | None = None
        with contextlib.suppress(FileNotFoundError):
            content, entry = self._storage.read_entry(self._path)
            terms = _TERMS.decode(content)
            self._doubt_ns = terms.doubt_ns
            if terms.owner:
                self._doubt_ns = _store_time(self._storage, self._path)
                # The store's times may be whole seconds.
                if self._doubt_ns - entry.modified_ns <= int((terms.seconds + 1) * 1e9):
                    self._looked = now
                    return False
            tag = entry.tag
        if not self._swap(tag):
            self._looked = time.monotonic()
            return False
        self._lost = False
        self._stop = threading.Event()
        self._renewer = threading.Thread(target=self._renew, args=(self._stop,), name="lease", daemon=True)
        self._renewer.start()
        return True

    def release(self, doubt: bool = False) -> None:
        """Release the lease. When the store does not answer, the lease expires by itself."""
        if self._renewer is None:
            return
        self._stop.set()
        self._renewer.join()
        self._renewer = None
        tag, self._tag = self._tag, None
        if tag is not None and not self._lost:
            with contextlib.suppress(StorageFailed):
                since = _store_time(self._storage, self._path) if doubt else self._doubt_ns
                free = msgspec.json.encode(_Terms("", 0.0, self._number + 1, since))
                self._storage.swap(self._path, free, tag)

    def late_until(self) -> int:
        until = self._doubt_ns + int(_seconds("LAKESTREAM_LATE_SECONDS", LATE_SECONDS) * 1e9)
        return until if self._doubt_ns and _store_time(self._storage, self._path) < until else 0

    def check(self) -> None:
        if self._renewer is not None and (self._lost or time.monotonic() >= self._sure_until):
            raise LeaseLost(self._path)

    def _renew(self, stop: threading.Event) -> None:
        while not stop.wait(self._seconds / _RENEWALS):
            try:
                if not self._swap(self._tag):
                    self._lost = True
                    return
            except StorageFailed:
                continue  # retried until `check` raises

    def _swap(self, tag: str | None) -> bool:
        """Write the lease in our name in place of the content that `tag` identifies (None: there is none)."""
        began = time.monotonic()
        self._number += 1
        mine = msgspec.json.encode(_Terms(self._owner, self._seconds, self._number, self._doubt_ns))
        new = self._storage.swap(self._path, mine, tag)
        if new is None:
            # After a broken connection the repeated request conflicts with its own first attempt.
            with contextlib.suppress(FileNotFoundError):
                content, entry = self._storage.read_entry(self._path)
                new = entry.tag if content == mine else None
        if new is None:
            return False
        self._tag = new
        self._sure_until = began + self._seconds * _SURE
        return True


def mark(path: str) -> None:
    """Let `lock_state` show that what a lock protects has changed, also once the lock is free again. A lease shows that
    without this."""
    if not paths.is_local(path):
        return
    with contextlib.suppress(OSError):  # it only tells servers earlier
        if not os.path.exists(path):  # opened only then: closing it releases locks of this process
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, FILE_MODE))
        os.utime(path, ns=(time.time_ns(), time.time_ns()))


class LockState(msgspec.Struct, frozen=True):
    """A lock as others see it.

    Attributes:
        held: it has a holder.
        changed_ns: time of the last change that its file or object shows: it was taken, marked, renewed or released; 0:
            none.
    """

    held: bool
    changed_ns: int = 0


def lock_state(path: str) -> LockState:
    """Return the state of a lock, without trying to take it.

    A lease's expiry is judged by this machine's clock, so the answer may be slightly wrong.

    Raises:
        StorageFailed: the object store does not answer.
    """
    if not paths.is_local(path):
        try:
            content, entry = open_storage(path).read_entry(path)
            terms = _TERMS.decode(content)
        except (FileNotFoundError, *DECODE_ERRORS):
            return LockState(False)
        held = bool(terms.owner) and time.time_ns() - entry.modified_ns <= int((terms.seconds + 1) * 1e9)
        return LockState(held, entry.modified_ns)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return LockState(False)
    try:
        wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind: int = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, wanted))[0]
        return LockState(kind != fcntl.F_UNLCK, os.fstat(fd).st_mtime_ns)
    finally:
        os.close(fd)


def is_held(path: str) -> bool:
    """Return True if a lock is held; see `lock_state`."""
    return lock_state(path).held


def lease_seconds() -> float:
    """Return the duration of this process's leases."""
    return max(LEAST_LEASE_SECONDS, _seconds("LAKESTREAM_LEASE_SECONDS", LEASE_SECONDS))


def _seconds(variable: str, default: float) -> float:
    """Return a variable of the environment. Raises UnsupportedLake."""
    text = os.environ.get(variable, "")
    try:
        return float(text) if text else default
    except ValueError:
        raise UnsupportedLake(variable, f"{text!r} is not a number of seconds") from None


def table_lock(lake: str, table: str) -> str:
    """Return the path of the lock that protects commits to `table` and its removal.

    The lock lies outside of the table, since it has to outlast it. Its file is named after a hash, because names may be
    too long for one more suffix.
    """
    name = os.path.relpath(table, lake)
    return os.path.join(lake, paths.LOCKS, hashlib.sha256(os.fsencode(name)).hexdigest()[:32] + ".lock")


def _clock_path(lease: str) -> str:
    directory = lease.rpartition("/")[0]
    return f"{directory}/{CLOCK}" if directory.endswith(f"/{paths.LOCKS}") else f"{directory}/{paths.LOCKS}/{CLOCK}"


def _store_time(storage: Storage, lease: str) -> int:
    """Return the store's own time, ns since the epoch, by writing an object."""
    path = _clock_path(lease)
    storage.write(path, b"")
    entry = storage.stat(path)
    return entry.modified_ns if entry is not None else 0


_proven: set[str] = set()


def _require_conditional_writes(storage: Storage, lease: str) -> None:
    """Check, once for each process and lake, that the store refuses to create an existing object.

    A store that ignores the condition would let two compactors, and two writers of one version, both succeed.

    Raises:
        UnsupportedLake: the store ignores the condition.
    """
    path = _clock_path(lease)
    if path in _proven:
        return
    storage.write(path, b"")
    if storage.create(path, b"") or storage.swap(path, b"", '"another"') is not None:
        raise UnsupportedLake(
            path.rpartition(f"/{paths.LOCKS}/")[0],
            "the object store ignores conditional writes (If-None-Match, If-Match), without which commits get lost",
        )
    _proven.add(path)
