"""Model of the disk behind a journal: its state after any operation, and what a power loss leaves of it.

Belongs here: directories and their names; the content of one file is tests/sim/disk.py's `Inode`. The model guarantees
only what POSIX does: content is durable once its file was synced after the write, a name once its directory was. A
file, or a directory with all that is synced in it, is lost with its name. A rename is atomic also between two
directories, and durable with the directory that it goes to: no file system in use loses both names.
"""

from __future__ import annotations

import enum
import operator
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.power.journal import Journal, Kind, Operation
from tests.sim.disk import Inode


class Loss(enum.Enum):
    """Kinds of images of a disk after a power loss."""

    SYNCED = "synced"
    """Synced content under synced names, nothing else."""
    NAMES = "names"
    """Synced content under all names: what delayed allocation leaves, files without their bytes."""
    ZEROS = "zeros"
    """All names and lengths; bytes that were not synced are zeros."""
    TORN = "torn"
    """Of a directory's unsynced names the first few; of a file's unsynced bytes some sectors, a part, all or none."""
    MIXED = "mixed"
    """Of each directory of the root, which is a disk of its own, one of the kinds above."""


ONE_DISK = tuple(loss for loss in Loss if loss is not Loss.MIXED)
"""Kinds of losses of a single disk."""


@dataclass(eq=False, slots=True)
class _Change:
    """Change of a directory: a name given to a node, or removed (None).

    `leaving`: the directory that a rename took it from.
    """

    order: int
    name: str
    node: Inode | Folder | None
    leaving: tuple[Folder, str] | None = None

    def apply(self, names: Callable[[Folder], dict[str, Inode | Folder]], folder: Folder) -> None:
        if self.node is None:
            names(folder).pop(self.name, None)
            return
        names(folder)[self.name] = self.node
        if self.leaving is not None:
            source, name = self.leaving
            if names(source).get(name) is self.node:
                del names(source)[name]


@dataclass(eq=False, slots=True)
class Folder:
    """Directory: the `names` that processes see, the `durable` ones, and the changes between them."""

    names: dict[str, Inode | Folder] = field(default_factory=dict)
    durable: dict[str, Inode | Folder] = field(default_factory=dict)
    pending: list[_Change] = field(default_factory=list)


_seen = operator.attrgetter("names")
_durable = operator.attrgetter("durable")


@dataclass(frozen=True, slots=True)
class Image:
    """State of a disk after a crash: directories and files by their path below the root."""

    folders: list[str]
    files: dict[str, bytes]

    @classmethod
    def read(cls, root: Path) -> Image:
        """Read a real directory."""
        paths = [(path.relative_to(root).as_posix(), path) for path in sorted(root.rglob("*"))]
        folders = [name for name, path in paths if path.is_dir()]
        return cls(folders, {name: path.read_bytes() for name, path in paths if path.is_file()})

    def differences(self, other: Image) -> list[str]:
        """Return the paths that the other image lacks or has with another content."""
        differ = set(self.folders) ^ set(other.folders)
        for path in set(self.files) | set(other.files):
            if self.files.get(path) != other.files.get(path):
                differ.add(path)
        return sorted(differ)

    def write(self, root: Path) -> None:
        """Write the image to a real directory."""
        root.mkdir(parents=True)
        for path in self.folders:
            (root / path).mkdir()
        for path, content in self.files.items():
            (root / path).write_bytes(content)


class PowerDisk:
    """Model of the recorded directory to which the operations are applied in order."""

    def __init__(self, journal: Journal) -> None:
        self._root_path = str(journal.root)
        self.root = Folder()
        self._nodes: dict[int, Inode | Folder] = {journal.root_inode: self.root}
        self._folders = [self.root]
        self._order = 0

    def apply(self, operation: Operation) -> None:
        """Apply an operation."""
        self._order = operation.at
        match operation.kind:
            case Kind.CREATE:
                node = self._nodes[operation.inode] = Inode()
                if operation.path:  # else it has no name (O_TMPFILE)
                    self._name(operation.path, node)
            case Kind.MKDIR:
                folder = self._nodes[operation.inode] = Folder()
                self._folders.append(folder)
                self._name(operation.path, folder)
            case Kind.WRITE:
                self._file(operation).write(operation.number, operation.data, operation.at)
            case Kind.TRUNCATE:
                self._file(operation).truncate(operation.number, operation.at)
            case Kind.SYNC:
                self._sync(self._nodes[operation.inode], operation.number)
            case Kind.SYNC_ALL:
                for node in list(self._nodes.values()):
                    self._sync(node, operation.number)
            case Kind.RENAME:
                self._rename(operation.path, operation.target)
            case Kind.LINK:
                self._name(operation.path, self._nodes[operation.inode])
            case Kind.UNLINK | Kind.RMDIR:
                self._name(operation.path, None)
            case Kind.TROUBLE:
                raise AssertionError(operation)

    def seen(self) -> Image:
        """Return the state that processes see, which is what a kill without a power loss leaves."""
        return self._image(_seen, lambda inode: bytes(inode.data))

    def lose(self, loss: Loss, random: Random) -> Image:
        """Return the state that a power loss at this moment leaves. The disk itself is unchanged."""
        if loss is not Loss.MIXED:
            return self._image(*self._view(loss, random))
        image = Image([], {})
        for name in self.root.durable:
            mine = self._image(*self._view(random.choice(ONE_DISK), random), below=name)
            image.folders.extend(mine.folders)
            image.files.update(mine.files)
        return image

    def _view(
        self, loss: Loss, random: Random
    ) -> tuple[Callable[[Folder], dict[str, Inode | Folder]], Callable[[Inode], bytes]]:
        """Return the names in a directory and the content of a file after a loss."""
        if loss is Loss.SYNCED:
            return _durable, lambda inode: bytes(inode.durable)
        if loss is Loss.NAMES:
            return _seen, lambda inode: bytes(inode.durable)
        if loss is Loss.ZEROS:
            return _seen, lambda inode: bytes(inode.zeroed())
        kept = {folder: dict(folder.durable) for folder in self._folders}
        changes = []
        for folder in self._folders:
            if folder.pending:
                changes += [(change, folder) for change in folder.pending[: random.randrange(len(folder.pending) + 1)]]
        for change, folder in sorted(changes, key=lambda each: each[0].order):
            change.apply(kept.__getitem__, folder)
        return kept.__getitem__, lambda inode: bytes(inode.remains(random))

    def _file(self, operation: Operation) -> Inode:
        node = self._nodes[operation.inode]
        assert isinstance(node, Inode), operation
        return node

    def _folder_of(self, path: str) -> tuple[Folder, str]:
        """Return the directory of `path` and the name in it, as processes see them."""
        *parents, name = os.path.relpath(path, self._root_path).split("/")
        folder = self.root
        for parent in parents:
            inside = folder.names[parent]
            assert isinstance(inside, Folder), path
            folder = inside
        return folder, name

    def _name(self, path: str, node: Inode | Folder | None) -> None:
        folder, name = self._folder_of(path)
        self._change(folder, _Change(self._order, name, node))

    def _rename(self, path: str, target: str) -> None:
        source, old = self._folder_of(path)
        folder, new = self._folder_of(target)
        node = source.names[old]
        if node is not folder.names.get(new):  # two names of one file: rename has no effect
            self._change(folder, _Change(self._order, new, node, (source, old)))

    def _change(self, folder: Folder, change: _Change) -> None:
        change.apply(_seen, folder)
        folder.pending.append(change)

    def _sync(self, node: Inode | Folder, before: int) -> None:
        if isinstance(node, Inode):
            node.sync(before)
            return
        while node.pending and node.pending[0].order < before:
            change = node.pending.pop(0)
            change.apply(_durable, node)
            if change.leaving is not None:  # the rename covers both directories, so the other one needs no change
                source, name = change.leaving
                source.pending = [
                    each
                    for each in source.pending
                    if not (each.name == name and each.node is change.node and each.order < change.order)
                ]

    def _image(
        self,
        names: Callable[[Folder], dict[str, Inode | Folder]],
        content: Callable[[Inode], bytes],
        below: str = "",
    ) -> Image:
        """Return the image of the root, or of only one of its directories."""
        image = Image([], {})
        contents: dict[Inode, bytes] = {}  # a file with several names has one content

        def walk(folder: Folder, prefix: str) -> None:
            for name, node in names(folder).items():
                if below and folder is self.root and name != below:
                    continue
                if isinstance(node, Folder):
                    image.folders.append(prefix + name)
                    walk(node, f"{prefix}{name}/")
                else:
                    if node not in contents:
                        contents[node] = content(node)
                    image.files[prefix + name] = contents[node]

        walk(self.root, "")
        return image
