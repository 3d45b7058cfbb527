"""Files whose changes go to another directory.

Belongs here: `Overlay`, through which a store is opened, recovered and sealed as a start would do it, while its own
files stay as they are. A file is copied when it is first changed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from lakestream.log.format.files import Files


class Overlay(Files):
    """Files of the system, of which only those in `upper` are ever written. For one thread.

    Args:
        upper: an empty directory for what is created or changed.
    """

    def __init__(self, upper: str) -> None:
        self._upper = upper
        self._content: dict[str, str] = {}  # path → place of its content in `upper`
        self._gone: set[str] = set()  # removed files and directories
        self._lent: dict[int, str] = {}  # descriptors for writing over a file that is not copied yet
        self._made = 0

    def _place(self, path: str) -> str:
        """Return the place of a file's content. Raise FileNotFoundError if it was removed."""
        path = os.path.abspath(path)
        if path in self._content:
            return self._content[path]
        parent = path
        while parent != os.path.dirname(parent):
            if parent in self._gone:
                raise FileNotFoundError(2, os.strerror(2), path)
            parent = os.path.dirname(parent)
        return path

    def _new_place(self, path: str) -> str:
        path = os.path.abspath(path)
        self._made += 1
        self._content[path] = os.path.join(self._upper, str(self._made))
        return self._content[path]

    def open(self, path: str, write: bool = False) -> int:
        place = self._place(path)
        if not write or place != os.path.abspath(path):
            return super().open(place, write)
        fd = super().open(place)
        self._lent[fd] = path
        return fd

    def create(self, path: str) -> int:
        return super().create(self._new_place(path))

    def close(self, fd: int) -> None:
        self._lent.pop(fd, None)
        super().close(fd)

    def _own(self, fd: int) -> None:
        """Copy the file of a descriptor before its first change; the descriptor then refers to the copy."""
        path = self._lent.pop(fd, None)
        if path is not None:
            place = self._place(path)
            if place == os.path.abspath(path):
                target = self._new_place(path)
                shutil.copyfile(place, target)
                place = target
            copy = os.open(place, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(copy, fd, inheritable=False)
            os.close(copy)

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> None:
        self._own(fd)
        super().write(fd, buffers, offset)

    def truncate(self, fd: int, length: int) -> None:
        self._own(fd)
        super().truncate(fd, length)

    def read(self, path: str) -> bytes:
        return super().read(self._place(path))

    def exists(self, path: str) -> bool:
        try:
            return super().exists(self._place(path))
        except FileNotFoundError:
            return False

    def sync(self, fd: int) -> None:
        """Do nothing."""

    def sync_file(self, path: str) -> None:
        """Do nothing."""

    def sync_directory(self, path: str) -> None:
        """Do nothing."""

    def replace(self, source: str, target: str) -> None:
        place = self._place(source)
        if place == os.path.abspath(source):
            shutil.copyfile(place, self._new_place(target))
        else:
            self._content[os.path.abspath(target)] = place
        self.remove(source)

    def remove(self, path: str) -> None:
        path = os.path.abspath(path)
        self._content.pop(path, None)
        self._gone.add(path)

    def remove_tree(self, path: str) -> None:
        path = os.path.abspath(path)
        self._content = {name: place for name, place in self._content.items() if not name.startswith(path + "/")}
        self._gone.add(path)

    def names(self, path: str) -> list[str]:
        path = os.path.abspath(path)
        try:
            below = super().names(self._place(path))
        except FileNotFoundError:
            below = []
        made = {os.path.basename(name) for name in self._content if os.path.dirname(name) == path}
        return sorted(made | {name for name in below if os.path.join(path, name) not in self._gone})

    def make_directory(self, path: str) -> None:
        """Do nothing: a file in a directory that is not there has its content in `upper`."""
