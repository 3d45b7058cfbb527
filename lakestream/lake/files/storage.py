"""Where a lake's files are: a directory, or a prefix of a bucket.

Belongs here: the operations on files that the lake needs, as an interface, and the choice of who does them:
storage_local.py for a directory, storage_object.py for an object store. A path is always whole, as paths.py makes it,
and ends up at the right store by its beginning. Nothing here knows what the files mean.

Rules that both keep: a file with its final name is complete, `create` lets exactly one win, and what is reported as
done stays done. An object store has no directories: one is there while something lies below it.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TypeAlias

import msgspec


class Entry(msgspec.Struct, frozen=True, order=True):
    """A file: its path, its bytes, what identifies this content of it (`tag`), and when it was written."""

    path: str
    size: int
    tag: str
    modified_ns: int

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


Entries: TypeAlias = list[Entry]
Names: TypeAlias = list[str]


class Storage(ABC):
    """The files below one root. Safe for use by several threads at once.

    Errors: FileNotFoundError for a file that has to be there, OSError from a directory, `StorageFailed` from an object
    store. None of their texts carries credentials.
    """

    root: str
    """The lake's root: an absolute path, or a URL without a trailing slash."""
    local: bool
    """Whether the files are files of this machine, for whoever needs to open them by path."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """A file's content."""

    @abstractmethod
    def read_entry(self, path: str) -> tuple[bytes, Entry]:
        """A file's content and what is known of that very content."""

    @abstractmethod
    def read_end(self, path: str, size: int) -> tuple[bytes, int]:
        """The last `size` bytes of a file (all of a smaller one), and the file's whole size."""

    @abstractmethod
    def stat(self, path: str) -> Entry | None:
        """What is known of a file without reading it; None when there is none."""

    @abstractmethod
    def list(self, directory: str) -> Entries:
        """The files directly in a directory, in order of their names; none when there is no such directory."""

    @abstractmethod
    def directories(self, directory: str) -> Names:
        """Names of the directories directly in a directory, in order."""

    @abstractmethod
    def tree(self, directory: str) -> Entries:
        """All files below a directory, however deep, in order of their paths."""

    @abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """Make `path` have this content, whole and to stay; what was there is replaced."""

    @abstractmethod
    def create(self, path: str, data: bytes) -> bool:
        """Like `write`, but only if nothing is there. Of several callers at once exactly one gets True."""

    @abstractmethod
    def swap(self, path: str, data: bytes, tag: str | None) -> str | None:
        """Replace the content that `tag` identifies (None: there is no file); returns the new content's tag.

        None when there is another content by now, or no file where there was one.

        On a directory this is not safe against other processes: there, locks are the system's (locks.py).
        """

    @abstractmethod
    def put_file(self, path: str, local_file: str | os.PathLike[str]) -> bool:
        """Make `path` a copy of a complete local file that never changes; False when it is there already.

        Raises:
            FileExistsError: something else is there.
        """

    def make_directory(self, path: str) -> None:  # noqa: B027
        """Make a directory and all above it, up to the root's own name, exist and stay, whoever made them.

        Nothing to do in an object store, which has none.
        """

    def move(self, source: str, target: str) -> None:
        """Give a file or directory another name, below the root too, durably. Only directories can.

        Raises:
            NotImplementedError: this is an object store.
        """
        raise NotImplementedError(f"{self.root}: an object store cannot rename")

    def sync_files(self, files: Iterable[str]) -> None:  # noqa: B027
        """Bring files that another program has written, and their names, to disk.

        Nothing to do in an object store: what it has confirmed is durable.
        """

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
        """The path of a local file with the content of `path`, for as long as the context lasts."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete a file; nothing happens when there is none."""

    @abstractmethod
    def delete_all(self, files: Iterable[str]) -> None:
        """Delete files, in no particular order."""

    @abstractmethod
    def delete_tree(self, directory: str) -> None:
        """Delete a directory with everything in it, as far as that goes. What is left can be deleted later."""

    @abstractmethod
    def spark_path(self, path: str) -> str:
        """The path as Spark has to spell it."""

    @abstractmethod
    def delta_options(self) -> dict[str, str]:
        """`storage_options` for deltalake. Credentials are not among them: deltalake finds them where we do."""

    def names(self, directory: str) -> Names:
        """Names of the files directly in a directory, in no particular order; none when there is no such directory."""
        return [entry.name for entry in self.list(directory)]

    def exists(self, path: str) -> bool:
        """Whether there is a file."""
        return self.stat(path) is not None
