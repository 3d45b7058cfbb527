"""File operations and the threads they run in, behind interfaces that a test can replace.

Belongs here: system calls and their retry rules (short writes, short reads). Every durable step of log/ goes through
`Files`, so that a fault test can make any one of them fail.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from typing import IO, Protocol, TypeVar

from lakestream import native

S = TypeVar("S")
T = TypeVar("T")

AT_ONCE = 8
"""Pieces of blocking work that `at_once` does at the same time."""

IOV_MAX = 1024  # buffers to one pwritev: POSIX promises 16, Linux and macOS take 1024
READ_MORE = 1 << 16  # of a file that has grown since its length was asked for
PREAD_MAX = 1 << 30  # Linux moves at most 2 GiB - 4 KiB in one call

_fdatasync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Add the path to an OSError that names no file."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, path) from error
        raise


def _named(error: OSError, fd: int) -> OSError:
    """Return an error of a call that took a descriptor, with the path of that file where the system tells it."""
    with contextlib.suppress(OSError, AttributeError):
        return OSError(error.errno, error.strerror, _path_of(fd))
    return error


def _path_of(fd: int) -> str:
    """Return the path of an open file. Raise OSError, AttributeError when the system does not tell it."""
    if os.path.isdir("/proc/self/fd"):
        return os.readlink(f"/proc/self/fd/{fd}")
    return os.fsdecode(fcntl.fcntl(fd, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))  # type: ignore[attr-defined] # macOS


def at_once(work: Callable[[S], T], items: Collection[S]) -> list[T]:
    """Return what `work` returns for each item. Block. Raise what it raises, once all work has ended.

    Many items are shared by threads: most of the time goes to the disk, which makes several files durable in the time
    of one.
    """
    if len(items) < AT_ONCE:
        return [work(item) for item in items]
    with ThreadPoolExecutor(AT_ONCE, "at-once") as threads:
        return list(threads.map(work, items))


class WriteRoom(bytes):
    """Zeros behind what is written, as room for the next writes. Readers may find them or not."""


class Brief(IntEnum):
    """Kind of work that on a quick disk takes less time than switching to a thread: a small append and its sync. The
    event loop may do it itself."""

    NO = 0
    NOW = 1
    """At once, within `submit`."""
    SOON = 2
    """Once everything that arrived in this turn is handled: threads then do other logs' writes at the same time. What
    was written to sockets in this turn leaves after it."""
    AFTER_SENDS = 3
    """After messages to other nodes that were gathered before are written: their disks then work at the same time."""


class Io(Protocol):
    """Threads for work that would block the event loop."""

    slow: bool = False
    """True while the user's work takes long."""

    def submit(
        self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None], brief: Brief = Brief.NO
    ) -> None:
        """Run `work` in a thread, then call `done(result, None)` or `done(None, error)` in the event loop."""

    def lane(self, background: bool = False) -> Io:
        """Return threads for the work of one user, for example the log of a stream: while that is slow, it does not
        keep others waiting. `background`: treat it as slow from the beginning."""
        return self

    def call_gathered(self, call: Callable[[], None]) -> bool:
        """Call, in the event loop, once all users have submitted their work of a turn that ends; False if none does."""
        return False

    def gathers(self) -> bool:
        """Return True if a turn ends, and other users may have work to submit for it: `call_gathered` takes calls."""
        return False


class InlineIo(Io):
    """`Io` without threads, where nothing else waits: work is done within `submit`."""

    def submit(
        self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None], brief: Brief = Brief.NO
    ) -> None:
        try:
            result = work()
        except Exception as error:
            done(None, error)
        else:
            done(result, None)


class Files:
    """Files of the operating system. Descriptors are plain ints. Every method raises OSError as the system does, with
    the path of the file."""

    durable = True
    """True if `sync` makes content durable."""
    sealed = False
    """True if new files are encrypted."""

    def open(self, path: str, write: bool = False) -> int:
        """Open an existing file for reading, or for reading and writing."""
        return os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC)

    def create(self, path: str) -> int:
        """Create a file, or empty the one that is there, for reading and writing."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    @contextlib.contextmanager
    def opened(self, path: str, write: bool = False) -> Iterator[int]:
        """Context with the descriptor that `open` returns; it closes it."""
        fd = self.open(path, write)
        try:
            yield fd
        finally:
            self.close(fd)

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> None:
        """Write all buffers one after the other from `offset` on; short writes go on where they stopped."""
        for start in range(0, len(buffers), IOV_MAX):
            group: list[bytes | memoryview] = list(buffers[start : start + IOV_MAX])
            left = sum(map(len, group))
            while left:
                try:
                    written = os.pwritev(fd, group, offset)
                except OSError as error:
                    raise _named(error, fd) from error
                if written == 0:
                    raise _named(OSError(errno.ENOSPC, "the file system took no bytes"), fd)
                offset += written
                left -= written
                if left:
                    group = _rest(group, written)

    def read_at(self, fd: int, length: int, offset: int) -> bytes:
        """Read `length` bytes at `offset`; fewer only at the end of the file."""
        try:
            data = os.pread(fd, length if length < PREAD_MAX else PREAD_MAX, offset)
            if len(data) == length or not data:
                return data
            pieces = [data]
            got = len(data)
            while got < length:
                data = os.pread(fd, min(length - got, PREAD_MAX), offset + got)
                if not data:
                    break
                pieces.append(data)
                got += len(data)
            return b"".join(pieces)
        except OSError as error:
            raise _named(error, fd) from error

    def read(self, path: str) -> bytes:
        """Return the whole content of a file."""
        fd = self.open(path)
        try:
            content = self.read_at(fd, self.size(fd) + 1, 0)  # one more, to see the end
            while piece := self.read_at(fd, READ_MORE, len(content)):  # it has grown meanwhile
                content += piece
            return content
        finally:
            self.close(fd)

    def salt(self) -> int:
        """Return an unpredictable number of 32 bits."""
        return int.from_bytes(os.urandom(4), "little")

    def exists(self, path: str) -> bool:
        """Return True if there is a file or directory of that name."""
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        """Return True if there is a directory of that name."""
        return os.path.isdir(path)

    def length(self, path: str) -> int:
        """Return the length in bytes of a file."""
        return os.path.getsize(path)

    def stamp(self, path: str) -> tuple[int, int]:
        """Return numbers that differ once a file was written: its length on disk, and when it was changed, in ns."""
        found = os.stat(path)
        return found.st_size, found.st_mtime_ns

    def size(self, fd: int) -> int:
        """Return the length in bytes of an open file."""
        try:
            return os.fstat(fd).st_size
        except OSError as error:
            raise _named(error, fd) from error

    def sync(self, fd: int) -> None:
        """Make the content of a file durable (fdatasync: content and length)."""
        try:
            _fdatasync(fd)
        except OSError as error:
            raise _named(error, fd) from error

    def sync_file(self, path: str) -> None:
        """Make the content of a file durable that another descriptor, or another process, has written."""
        with self.opened(path, write=True) as fd:
            self.sync(fd)

    def sync_directory(self, path: str) -> None:
        """Make the names inside a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with naming(path):
                os.fsync(fd)
        finally:
            os.close(fd)

    def sync_each(self, files: Sequence[str], directories: Sequence[str] = ()) -> dict[str, OSError]:
        """Make files, then the names inside directories, durable; return the errors by path."""
        if type(self) is Files:  # without the interpreter, which each call would take from the event loop for a moment
            return native.sync_paths(files, directories)
        found: dict[str, OSError] = {}
        for path in (*files, *directories):
            try:
                (self.sync_directory if path in directories else self.sync_file)(path)
            except OSError as error:
                found[path] = error
        return found

    def truncate(self, fd: int, length: int) -> None:
        """Cut an open file to `length` bytes."""
        try:
            os.ftruncate(fd, length)
        except OSError as error:
            raise _named(error, fd) from error

    def replace(self, source: str, target: str) -> None:
        """Rename `source` over `target`, atomically."""
        os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name; copy it where the file system has no hard links."""
        try:
            os.link(source, target)
        except PermissionError:
            import shutil  # with every kind of compression

            shutil.copyfile(source, target)

    def remove(self, path: str) -> None:
        """Remove a file if it exists."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def remove_tree(self, path: str) -> None:
        """Remove a directory and its content if it exists."""
        import shutil  # imported late: it loads archive formats, which the start does not need

        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return

    def names(self, path: str) -> list[str]:
        """Return the names inside a directory, sorted; none when there is no such directory."""
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def make_directory(self, path: str) -> None:
        """Create a directory and its missing parents, durably."""
        if os.path.isdir(path):
            return
        parent = os.path.dirname(os.path.abspath(path))
        self.make_directory(parent)
        with contextlib.suppress(FileExistsError):  # two threads may make the first two streams' parent at once
            os.mkdir(path, 0o750)
        self.sync_directory(parent)

    def lock(self, path: str, *, shared: bool = False, create: bool = True) -> int:
        """Open a file and lock it for this process, or for all that share it; closing it releases the lock.

        Raise BlockingIOError when another process has it, FileNotFoundError.
        """
        fd = os.open(path, (os.O_RDWR | os.O_CREAT if create else os.O_RDONLY) | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def unsynced(self) -> Files:
        """Return these files without syncs."""
        return UnsyncedFiles()

    def over(self, inner: Files) -> Files:
        """Return files of this kind whose operations on the disk are done by others."""
        return inner

    def scratch(self, directory: str) -> IO[bytes]:
        """Return a file without a name that ends with the process; `directory`: where it takes space, "": anywhere."""
        import tempfile  # several ms, which few servers need

        return tempfile.TemporaryFile(dir=directory or None)

    def gather(self, path: str) -> bool:
        """Write a complete file anew if it came in pieces that make it slow to read; return True if it was replaced."""
        return False

    def write_whole(self, path: str, buffers: Sequence[bytes]) -> None:
        """Replace the content of a file in one durable step: a reader sees the old content or the new one."""
        temporary = path + ".tmp"
        fd = self.create(temporary)
        try:
            self.write(fd, buffers, 0)
            self.sync(fd)
        finally:
            self.close(fd)
        self.replace(temporary, path)
        self.sync_directory(os.path.dirname(path))


class UnsyncedFiles(Files):
    """Files that outlive a killed process, but not a lost machine: streams in memory, and work in progress."""

    durable = False

    def sync(self, fd: int) -> None:
        """Do nothing."""

    def sync_directory(self, path: str) -> None:
        """Do nothing."""


def _rest(group: list[bytes | memoryview], written: int) -> list[bytes | memoryview]:
    """Return the rest of `group` after its first `written` bytes."""
    for position, piece in enumerate(group):
        if written < len(piece):
            return [memoryview(piece)[written:], *group[position + 1 :]]
        written -= len(piece)
    return []
