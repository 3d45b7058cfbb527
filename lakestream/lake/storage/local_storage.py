"""A lake in a directory.

Belongs here: the operations of storage.py on the file system. Completed operations are synced, and files appear under
their names only when they are complete.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import os
import threading
import time
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from lakestream.lake.storage import paths
from lakestream.lake.storage.storage import Entries, FileEntry, Names, Storage
from lakestream.log.format.files import Files

COPY_BYTES = 1 << 20
"""Bytes that a copy of a file reads at a time (1 MiB)."""
FILE_MODE = 0o640
"""Mode of the files in a lake, the same as in the store."""
DIRECTORY_MODE = 0o750
"""Mode of the directories in a lake, the same as in the store."""

_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP)
_ABSENT = (FileNotFoundError, NotADirectoryError)


class LocalStorage(Storage):
    """Files of this machine, or of a mount that behaves like one."""

    local = True

    def __init__(self, root: str) -> None:
        self.root = root

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def read_entry(self, path: str) -> tuple[bytes, FileEntry]:
        with open(path, "rb") as file:
            return file.read(), _entry(path, os.fstat(file.fileno()))

    def read_end(self, path: str, size: int) -> tuple[bytes, int]:
        with open(path, "rb") as file:
            whole = file.seek(0, os.SEEK_END)
            file.seek(max(0, whole - size))
            return file.read(size), whole

    def read_range(self, path: str, start: int, size: int) -> bytes:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(size)

    def stat(self, path: str) -> FileEntry | None:
        try:
            return _entry(path, os.stat(path))
        except _ABSENT:
            return None

    def list(self, directory: str) -> Entries:
        found: Entries = []
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):  # deleted since the listing
                        if entry.is_file():
                            found.append(_entry(entry.path, entry.stat()))
        except _ABSENT:
            return []
        return sorted(found)

    def names(self, directory: str) -> Names:
        """Return the names of files and of directories: separating them would cost a `stat` of each."""
        try:
            return os.listdir(directory)
        except _ABSENT:
            return []

    def directories(self, directory: str) -> Names:
        try:
            with os.scandir(directory) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except _ABSENT:
            return []

    def tree(self, directory: str) -> Entries:
        found = []
        for parent, _, names in os.walk(directory):
            for name in names:
                entry = self.stat(os.path.join(parent, name))
                if entry is not None:
                    found.append(entry)
        return sorted(found)

    def write(self, path: str, data: bytes) -> None:
        partial = self._written(path, data)
        os.replace(partial, path)
        sync_path(os.path.dirname(path))

    def create(self, path: str, data: bytes) -> bool:
        partial = self._written(path, data)
        try:
            os.link(partial, path)
        except FileExistsError:
            return False
        finally:
            os.unlink(partial)
        sync_path(os.path.dirname(path))
        return True

    def swap(self, path: str, data: bytes, tag: str | None) -> str | None:
        if tag is None:
            if not self.create(path, data):
                return None
        else:
            entry = self.stat(path)
            if entry is None or entry.tag != tag:
                return None
            self.write(path, data)
        after = self.stat(path)
        return after.tag if after is not None else None

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[BinaryIO]:
        self._make_below(os.path.dirname(path))
        with open(path, "xb", opener=_private) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())

    def put_file(self, path: str, local_file: str | os.PathLike[str]) -> bool:
        """Hard-link a file where the file system allows it, so that no byte is copied."""
        directory = os.path.dirname(path)
        try:
            try:
                os.link(local_file, path)
            except FileNotFoundError:
                self.make_directory(directory)
                os.link(local_file, path)
        except FileExistsError:
            if not os.path.samefile(local_file, path) and not filecmp.cmp(local_file, path, shallow=False):
                raise
            sync_path(directory)  # the process that made it may have been killed before it synced it
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            _copy(local_file, path)
        sync_path(directory)
        return True

    def make_directory(self, path: str) -> None:
        if path.startswith(f"{self.root}/"):
            self._make_below(path)
        else:
            Files().make_directory(path)  # with the store's mode
        above = path
        while f"{above}/".startswith(self.root + "/") or not os.path.isdir(above):
            above = os.path.dirname(above)
        # Existing directories too: their creator may have been killed before it synced them.
        below = path
        while below != above:
            below = os.path.dirname(below)
            # A directory above the lake that cannot be created may not be readable either.
            with contextlib.suppress(PermissionError):
                sync_path(below)

    def _make_below(self, path: str) -> None:
        """Create a directory and those between it and the root, one by one.

        Not the root: where it is gone the lake is away, or the table was removed, and no other one must begin. Nor a
        lake's own directories in a root that is no lake, as where nothing is mounted: it may have become one since the
        caller looked, so it is checked here, before and after.

        Raises:
            FileNotFoundError: there is no root, or it is no lake.
        """
        if path == self.root or os.path.isdir(path):
            return
        parent, name = os.path.split(path)
        self._make_below(parent)
        of_lake = parent == self.root and name in paths.DIRECTORIES
        if of_lake:
            self._require_lake(name)
        with contextlib.suppress(FileExistsError):  # two threads may make the first two streams' parent at once
            os.mkdir(path, DIRECTORY_MODE)
        if of_lake:
            try:
                self._require_lake(name)
            except FileNotFoundError:
                with contextlib.suppress(OSError):
                    os.rmdir(path)
                raise

    def _require_lake(self, without: str) -> None:
        """Raise FileNotFoundError unless the root has something of a lake besides the directory of this name."""
        if not any(os.path.exists(f"{self.root}/{name}") for name in paths.MARKS if name != without):
            raise FileNotFoundError(errno.ENOENT, f"there is no {paths.LAKE_FILE}", self.root)

    def touch(self, directory: str) -> None:
        now = time.time_ns()
        with contextlib.suppress(OSError):  # another user's; who waits for it looks at intervals too
            os.utime(directory, ns=(now, now))

    def touched_ns(self, directory: str) -> int:
        try:
            return os.stat(directory).st_mtime_ns
        except _ABSENT:
            return 0

    def move(self, source: str, target: str) -> None:
        self.make_directory(os.path.dirname(target))
        os.rename(source, target)
        # Sync the new name first: after a power failure a file under both names can be handled, one under none is lost.
        sync_path(os.path.dirname(target))
        if os.path.dirname(source) != os.path.dirname(target):
            sync_path(os.path.dirname(source))

    def sync_files(self, files: Iterable[str]) -> None:
        directories = set()
        for path in files:
            sync_path(path)
            directories.add(os.path.dirname(path))
        for directory in directories:
            sync_path(directory)

    @contextlib.contextmanager
    def fetch(self, path: str) -> Iterator[str]:
        """Return the file itself."""
        yield path

    def delete(self, path: str) -> None:
        with contextlib.suppress(*_ABSENT):
            os.unlink(path)

    def delete_all(self, files: Iterable[str]) -> None:
        for path in files:
            self.delete(path)

    def delete_tree(self, directory: str) -> None:
        import shutil  # with every kind of compression, for what is seldom done

        shutil.rmtree(directory, ignore_errors=True)

    def spark_path(self, path: str) -> str:
        return path

    def delta_options(self) -> dict[str, str]:
        return {}

    def _written(self, path: str, data: bytes) -> str:
        """Write `data` to a synced temporary file beside `path`, creating a missing directory; return its path."""
        partial = _partial(path)
        try:
            file = open(partial, "wb", opener=_private)  # noqa: SIM115
        except FileNotFoundError:
            self.make_directory(os.path.dirname(path))
            file = open(partial, "wb", opener=_private)  # noqa: SIM115
        with file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return partial


def _private(path: str, flags: int) -> int:
    """Open a file (an `opener` for `open`); a new one is not readable by everybody."""
    return os.open(path, flags, FILE_MODE)


def sync_path(path: str) -> None:
    """Sync a file's content, or a directory's names (fsync)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _entry(path: str, status: os.stat_result) -> FileEntry:
    return FileEntry(path, status.st_size, f"{status.st_ino}-{status.st_mtime_ns}", status.st_mtime_ns)


def _partial(path: str) -> str:
    return f"{path}.{os.getpid()}-{threading.get_ident()}.tmp"


def _copy(source: str | os.PathLike[str], target: str) -> None:
    partial = _partial(target)
    with open(source, "rb") as reader, open(partial, "wb", opener=_private) as writer:
        while block := reader.read(COPY_BYTES):
            writer.write(block)
        writer.flush()
        os.fsync(writer.fileno())
    os.replace(partial, target)
