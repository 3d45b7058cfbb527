"""The few file operations that the log needs, and the threads they run in, behind names that a test can replace.

Belongs here: system calls and their retry rules (short writes, short reads), nothing about what the bytes mean. Every
durable step of log/ goes through `Files`, so that a fault test can make any one of them fail.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")

IOV_MAX = 1024  # buffers to one pwritev: POSIX promises 16, Linux and macOS take 1024
PREAD_MAX = 1 << 30  # Linux moves at most 2 GiB - 4 KiB in one call

_fdatasync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Have an OSError say which file it is about: the system knows only a descriptor."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, path) from error
        raise


class Io(Protocol):
    """Threads for what would block the event loop."""

    def submit(
        self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None], brief: bool = False
    ) -> None:
        """Run `work` in a thread, then call `done(result, None)` or `done(None, error)` in the event loop.

        `brief`: a quick disk needs less for it than a thread's turn costs (a lone small append and its sync). Then the
        event loop may do it itself, in a later turn than this one.
        """


class Files:
    """The operating system's files. Descriptors are plain ints; every method raises OSError as the system does."""

    def open(self, path: str, write: bool = False) -> int:
        """Open an existing file for reading, or for reading and writing."""
        return os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC)

    def create(self, path: str) -> int:
        """Create a file, or empty the one that is there, for reading and writing."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> None:
        """Write all buffers one after the other from `offset` on; short writes go on where they stopped."""
        for start in range(0, len(buffers), IOV_MAX):
            group: list[bytes | memoryview] = list(buffers[start : start + IOV_MAX])
            while group:
                written = os.pwritev(fd, group, offset)
                if written == 0 and any(len(piece) for piece in group):
                    raise OSError(errno.ENOSPC, "the file system took no bytes")
                offset += written
                group = _rest(group, written)

    def read_at(self, fd: int, length: int, offset: int) -> bytes:
        """Read `length` bytes at `offset`; fewer only at the end of the file."""
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

    def read(self, path: str) -> bytes:
        """The whole content of a file."""
        with open(path, "rb") as file:
            return file.read()

    def salt(self) -> int:
        """A number of 32 bits that nobody can guess."""
        return int.from_bytes(os.urandom(4), "little")

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory of that name."""
        return os.path.exists(path)

    def size(self, fd: int) -> int:
        """The length in bytes of an open file."""
        return os.fstat(fd).st_size

    def sync(self, fd: int) -> None:
        """Make the content of a file durable (fdatasync: content and length)."""
        _fdatasync(fd)

    def sync_directory(self, path: str) -> None:
        """Make the names inside a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def truncate(self, fd: int, length: int) -> None:
        """Cut an open file to `length` bytes."""
        os.ftruncate(fd, length)

    def replace(self, source: str, target: str) -> None:
        """Rename `source` over `target`, atomically."""
        os.replace(source, target)

    def remove(self, path: str) -> None:
        """Remove a file; one that is not there is fine."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def remove_tree(self, path: str) -> None:
        """Remove a directory with all it holds; one that is not there is fine."""
        import shutil  # loads archive formats, which a start need not wait for

        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return

    def names(self, path: str) -> list[str]:
        """The names inside a directory, sorted; none when there is no such directory."""
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

    def write_whole(self, path: str, buffers: Sequence[bytes]) -> None:
        """Give a file new content in one durable step: a reader sees the old content or the new one, never a part."""
        temporary = path + ".tmp"
        fd = self.create(temporary)
        try:
            self.write(fd, buffers, 0)
            self.sync(fd)
        finally:
            self.close(fd)
        self.replace(temporary, path)
        self.sync_directory(os.path.dirname(path))


def _rest(group: list[bytes | memoryview], written: int) -> list[bytes | memoryview]:
    """What is left of `group` after its first `written` bytes."""
    for position, piece in enumerate(group):
        if written < len(piece):
            return [memoryview(piece)[written:], *group[position + 1 :]]
        written -= len(piece)
    return []
