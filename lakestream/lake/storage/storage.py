"""Storage interface: the files of a lake, in a directory or under a prefix of a bucket.

Belongs here: the file operations that the lake needs. local_storage.py implements them for a directory,
object_storage.py for an object store. Paths are complete, as paths.py makes them. Nothing here interprets files.

Both implementations guarantee that a file with its final name is complete, that exactly one of several calls of
`create` succeeds, and that a completed operation is durable. An object store has no directories: a directory exists
while something lies below it.
"""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO, TypeAlias

import msgspec

SINGLE_PUT_BYTES = 64 * 1024 * 1024
"""Files up to this size are uploaded to an object store in one request, the only kind that can be conditional; a
segment is smaller."""


class FileEntry(msgspec.Struct, frozen=True, order=True):
    """A file: path, size in bytes, `tag` (identifies this content of the path), and modification time."""

    path: str
    size: int
    tag: str
    modified_ns: int

    @property
    def name(self) -> str:
        """Return the last part of the path."""
        return self.path.rpartition("/")[2]


Entries: TypeAlias = list[FileEntry]
Names: TypeAlias = list[str]


class Storage(ABC):
    """The files below one root. Safe for use by several threads at once.

    Raises FileNotFoundError for a missing file, OSError from a directory, `StorageFailed` from an object store. No text
    carries credentials.
    """

    root: str
    """The lake's root: an absolute path, or a URL without a trailing slash."""
    local: bool
    """True if the files are on this machine and can be opened by path."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Return a file's content."""

    @abstractmethod
    def read_entry(self, path: str) -> tuple[bytes, FileEntry]:
        """Return a file's content with the entry of that very content."""

    @abstractmethod
    def read_end(self, path: str, size: int) -> tuple[bytes, int]:
        """Return the last `size` bytes of a file (all of a smaller one), and the file's whole size."""

    @abstractmethod
    def read_range(self, path: str, start: int, size: int) -> bytes:
        """Return `size` bytes of a file from an offset on, fewer at its end."""

    @abstractmethod
    def stat(self, path: str) -> FileEntry | None:
        """Return a file's entry without reading it; None when there is no such file."""

    @abstractmethod
    def list(self, directory: str) -> Entries:
        """Return the files directly in a directory, sorted by name; an empty list when there is no such directory."""

    @abstractmethod
    def directories(self, directory: str) -> Names:
        """Return the names of the directories directly in a directory, sorted."""

    @abstractmethod
    def tree(self, directory: str) -> Entries:
        """Return all files below a directory at any depth, sorted by path."""

    @abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """Write a file atomically and durably, replacing any other content."""

    @abstractmethod
    def create(self, path: str, data: bytes) -> bool:
        """Write a file only if there is none. Exactly one of several callers at once gets True."""

    @abstractmethod
    def swap(self, path: str, data: bytes, tag: str | None) -> str | None:
        """Replace the content that `tag` identifies (None: there is no file); return the new content's tag.

        Return None when the content is another one by now, or the file is missing. In a directory this is not safe
        against other processes: locks there are the system's (locks.py).
        """

    @abstractmethod
    def writing(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Return a context with the content of a new file to write to; the file is durable once the context ends.

        In a directory the names above the file are not synced: who names the file does that (`sync_files`). An error in
        the context leaves no object; in a directory an incomplete file may stay.
        """

    @abstractmethod
    def put_file(self, path: str, local_file: str | os.PathLike[str]) -> bool:
        """Make `path` a copy of a complete local file that never changes; return False when it is there already.

        Raises:
            FileExistsError: something else is there.
        """

    def make_directory(self, path: str) -> None:  # noqa: B027
        """Create a directory and its parents up to the root's own name, durably. Does nothing in an object store."""

    def touch(self, directory: str) -> None:  # noqa: B027
        """Change the time of a directory, which `touched_ns` then returns. Does nothing in an object store."""

    def touched_ns(self, directory: str) -> int:
        """Return the time of a directory's last change; 0 if there is none, and in an object store."""
        return 0

    def move(self, source: str, target: str) -> None:
        """Rename a file or directory, also to a path outside of the root, durably.

        Raises:
            NotImplementedError: this is an object store.
        """
        raise NotImplementedError(f"{self.root}: an object store cannot rename")

    def sync_files(self, files: Iterable[str]) -> None:  # noqa: B027
        """Sync files that another program has written, and their names. Does nothing in an object store."""

    def copy_file(self, path: str, source: str, storage: Storage) -> None:
        """Make `path` a copy of a file of any storage that never changes; nothing happens when `path` exists.

        Args:
            path: the copy.
            source: the file to copy.
            storage: the storage of the source.
        """
        with storage.fetch(source) as local_file:
            self.put_file(path, local_file)

    @abstractmethod
    def fetch(self, path: str) -> AbstractContextManager[str]:
        """Return a context with the path of a local file that has the content of `path`."""

    def sign(self, files: Sequence[str], seconds: int) -> Names:
        """Return URLs with which anyone can read these files for a time, in the same order. No request is made.

        Raises:
            NotImplementedError: this is a directory, whose files have no URLs.
        """
        raise NotImplementedError(f"{self.root}: the files of a directory have no URLs")

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete a file if it exists."""

    @abstractmethod
    def delete_all(self, files: Iterable[str]) -> None:
        """Delete files, in no particular order."""

    @abstractmethod
    def delete_tree(self, directory: str) -> None:
        """Delete a directory with everything in it, as far as possible. The rest can be deleted later."""

    @abstractmethod
    def spark_path(self, path: str) -> str:
        """Return the path as Spark spells it."""

    @abstractmethod
    def delta_options(self) -> dict[str, str]:
        """Return `storage_options` for deltalake, without credentials: deltalake finds them in the environment."""

    def names(self, directory: str) -> Names:
        """Return the names of the files directly in a directory, in no particular order; none when there is no such
        directory."""
        return [entry.name for entry in self.list(directory)]

    def exists(self, path: str) -> bool:
        """Return True if there is a file at the path."""
        return self.stat(path) is not None


class RangedFile(io.RawIOBase):
    """A file that is read by ranges.

    Args:
        storage: where it is.
        size: in bytes.
    """

    def __init__(self, storage: Storage, path: str, size: int) -> None:
        super().__init__()
        self._storage, self._path, self._size, self._at = storage, path, size, 0

    def readable(self) -> bool:
        """Return True: the file is read."""
        return True

    def seekable(self) -> bool:
        """Return True: any place can be read."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place in the file and return it."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        """Return the place in the file."""
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Read from the place on."""
        rest = max(0, self._size - self._at)
        found = self.read_at(self._at, rest if size < 0 else min(size, rest))
        self._at += len(found)
        return found

    def read_at(self, offset: int, size: int) -> bytes:
        return self._storage.read_range(self._path, offset, size)
