"""Disk of a simulated machine, and the file layer of a process on it.

Belongs here: the content of the disk, of the page cache, and what a power cut leaves of them. `Disk` survives crashes;
`SimFiles` has the interface of `lakestream.log.format.files.Files` and ends with its process.

The disk guarantees what POSIX does and no more. Written bytes are durable after `sync` of their file, names after
`sync_directory` of their directory. A killed process (`kill`) loses neither. A power cut (`cut_power`) loses unsynced
bytes: all of them, none, those after a point in the middle of a write, or single sectors anywhere among them; of the
unsynced names of a directory the last ones are lost, because file systems journal them in order.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from random import Random
from zlib import crc32

from lakestream.log.format.files import Files
from tests.sim.events import MS, US

SECTOR = 512


class PowerCut(BaseException):
    """Raised when the machine goes down, or the process is killed, in the middle of a file operation."""


class Inode:
    """File content: `data` is what processes see, `durable` what is on disk, `pending` the writes in between."""

    __slots__ = ("data", "durable", "pending")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        # (offset, written bytes) or (length, None) for truncate, and the number of the operation
        self.pending: list[tuple[int, bytes | None, int]] = []

    def write(self, offset: int, content: bytes, order: int = 0) -> None:
        _put(self.data, offset, content)
        self.pending.append((offset, content, order))

    def truncate(self, length: int, order: int = 0) -> None:
        _cut(self.data, length)
        self.pending.append((length, None, order))

    def sync(self, before: int | None = None) -> None:
        """Make all writes durable, or only those by operations `before` that one."""
        count = len(self.pending)
        if before is not None:
            count = sum(order < before for _, _, order in self.pending)
        for offset, content, _ in self.pending[:count]:
            _apply(self.durable, offset, content)
        del self.pending[:count]

    def remains(self, random: Random) -> bytearray:
        """Return what a power cut leaves: what was durable and some of what was not."""
        left = bytearray(self.durable)
        kept = [(offset, content) for offset, content, _ in self.pending]
        if kept:
            how = random.randrange(4)
            if how == 0:
                kept = []
            elif how == 2:
                kept = kept[: random.randrange(len(kept)) + 1]
                offset, content = kept[-1]
                if content is not None:
                    kept[-1] = (offset, content[: random.randrange(len(content) + 1)])
            elif how == 3:
                kept = [piece for offset, content in kept for piece in _some_sectors(random, offset, content)]
            for offset, content in kept:
                _apply(left, offset, content)
        return left

    def zeroed(self) -> bytearray:
        """Return the content with its full length, and zeros for what was written and not synced."""
        left = bytearray(self.durable)
        for offset, content, _ in self.pending:
            _apply(left, offset, None if content is None else bytes(len(content)))
        return left

    def lose(self, random: Random) -> None:
        """Apply a power cut: keep the durable content and a random part of the rest."""
        self.durable = self.remains(random)
        self.pending = []
        self.data = bytearray(self.durable)


def _parents(path: str) -> list[str]:
    found = []
    while path != "/":
        path = os.path.dirname(path)
        found.append(path)
    return found


def _some_sectors(random: Random, offset: int, content: bytes | None) -> list[tuple[int, bytes | None]]:
    if content is None:
        return [(offset, None)] if random.random() < 0.5 else []
    kept: list[tuple[int, bytes | None]] = []
    at = 0
    while at < len(content):
        end = min(len(content), (offset + at) // SECTOR * SECTOR + SECTOR - offset)
        if random.random() < 0.5:
            kept.append((offset + at, content[at:end]))
        at = end
    return kept


def _apply(data: bytearray, offset: int, content: bytes | None) -> None:
    if content is None:
        _cut(data, offset)
    else:
        _put(data, offset, content)


def _put(data: bytearray, offset: int, content: bytes) -> None:
    if offset > len(data):
        data.extend(bytes(offset - len(data)))  # a hole reads as zeros
    data[offset : offset + len(content)] = content


def _cut(data: bytearray, length: int) -> None:
    if length <= len(data):
        del data[length:]
    else:
        data.extend(bytes(length - len(data)))


class Disk:
    """Files of one machine. `random` decides what power cuts leave."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.files: dict[str, Inode] = {}
        self.directories: set[str] = {"/"}
        self._durable: dict[str, Inode] = {}
        self._pending: dict[str, list[list[tuple[str, Inode | None]]]] = {}  # directory → steps, each atomic

    def kill(self) -> None:
        """End the process; the page cache stays."""

    def cut_power(self) -> None:
        """Lose all or a part of what was not synced."""
        for steps in self._pending.values():
            self._settle(steps[: self.random.randrange(len(steps) + 1)])
        self._pending.clear()
        self.files = dict(self._durable)
        self.directories = {"/"}
        for path, inode in self.files.items():
            inode.lose(self.random)
            self.directories.update(_parents(path))

    def name(self, directory: str, step: list[tuple[str, Inode | None]]) -> None:
        """Give names to files, or remove them (None), in one atomic step that is not durable yet."""
        for path, inode in step:
            if inode is None:
                self.files.pop(path, None)
            else:
                self.files[path] = inode
        self._pending.setdefault(directory, []).append(step)

    def sync_directory(self, directory: str) -> None:
        """Make the names in a directory durable."""
        self._settle(self._pending.pop(directory, []))

    def _settle(self, steps: list[list[tuple[str, Inode | None]]]) -> None:
        for step in steps:
            for path, inode in step:
                if inode is None:
                    self._durable.pop(path, None)
                else:
                    self._durable[path] = inode

    def durable(self, path: str) -> bytes | None:
        """Return what a power cut now is sure to leave of a file; None if the file has no durable name."""
        inode = self._durable.get(path)
        return None if inode is None else bytes(inode.durable)

    def flip(self, path: str, offset: int, bit: int) -> None:
        """Flip a bit on disk and in the page cache."""
        inode = self.files[path]
        inode.sync()
        inode.data[offset] ^= 1 << bit
        inode.durable = bytearray(inode.data)


class SimFiles(Files):
    """File layer of one process. `spent` adds up the duration of its operations, in ns.

    Set `fail` to an operation's name to have its next call fail with `code`; set `cut_after` to a number of writes and
    syncs to have the power cut in the one after them.
    """

    def __init__(self, disk: Disk, random: Random) -> None:
        self.disk = disk
        self.random = random
        self.dead = False
        self.spent = 0
        self.slow = 1  # slowdown factor
        self.fail = ""
        self.code = errno.EIO
        self.cut_after = -1
        self.power = True  # True: the power is cut; False: the process is killed
        self.full = False  # files cannot grow
        self.unsure = False
        """A sync has failed: until the machine restarts, the page cache may differ from the disk."""
        self.on_sync: Callable[[str], None] = lambda path: None
        self.on_cut: Callable[[], None] = lambda: None
        self._open: dict[int, tuple[str, Inode]] = {}
        self._fd = 2

    def _enter(self, operation: str, cost_ns: int) -> None:
        if self.dead:
            raise PowerCut
        self.spent += cost_ns * self.slow
        if operation == self.fail:
            self.fail = ""
            raise OSError(self.code, os.strerror(self.code))

    def _maybe_cut(self) -> bool:
        if self.cut_after < 0:
            return False
        self.cut_after -= 1
        return self.cut_after < 0

    def _cut(self) -> None:
        self.dead = True
        self.on_cut()
        raise PowerCut

    def _new_fd(self, path: str, inode: Inode) -> int:
        self._fd += 1
        self._open[self._fd] = (path, inode)
        return self._fd

    def open(self, path: str, write: bool = False) -> int:
        self._enter("open", 0)
        return self._new_fd(path, self._inode(path))

    def create(self, path: str) -> int:
        self._enter("create", 20 * US)
        inode = self.disk.files.get(path)
        if inode is not None:
            inode.truncate(0)
        else:
            directory = os.path.dirname(path)
            if directory not in self.disk.directories:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            inode = Inode()
            self.disk.name(directory, [(path, inode)])
        return self._new_fd(path, inode)

    def close(self, fd: int) -> None:
        if self._open.pop(fd, None) is None and not self.dead:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> None:
        inode = self._open[fd][1]
        content = b"".join(buffers)
        if self.fail == "write":
            inode.write(offset, content[: self.random.randrange(len(content) + 1)])
        self._enter("write", 5 * US)
        if self.full and offset + len(content) > len(inode.data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._maybe_cut():
            inode.write(offset, content[: self.random.randrange(len(content) + 1)])
            self._cut()
        inode.write(offset, content)

    def read_at(self, fd: int, length: int, offset: int) -> bytes:
        self._enter("read", 1 * US)
        return bytes(self._open[fd][1].data[offset : offset + length])

    def read(self, path: str) -> bytes:
        self._enter("read", 5 * US)
        return bytes(self._inode(path).data)

    def salt(self) -> int:
        return self.random.getrandbits(32)

    def exists(self, path: str) -> bool:
        return path in self.disk.files or path in self.disk.directories

    def is_directory(self, path: str) -> bool:
        return path in self.disk.directories

    def length(self, path: str) -> int:
        return len(self._inode(path).data)

    def stamp(self, path: str) -> tuple[int, int]:
        data = self._inode(path).data
        return len(data), crc32(data)

    def lock(self, path: str, *, shared: bool = False, create: bool = True) -> int:
        """Open the file: a machine has one process, whose locks end with it."""
        return self.create(path) if create and path not in self.disk.files else self.open(path)

    def unsynced(self) -> Files:
        return UnsyncedSimFiles(self)

    def size(self, fd: int) -> int:
        return len(self._open[fd][1].data)

    def forget_unsynced(self, fd: int) -> None:
        """Take the unsynced bytes of a file for clean although they did not reach the disk, as Linux does when a sync
        fails."""
        self.unsure = True
        self._open[fd][1].pending.clear()

    def sync(self, fd: int) -> None:
        inode = self._open[fd][1]
        if self.fail == "sync":
            # The pages count as clean from now on, whether they reached the disk or not.
            if self.random.random() < 0.5:
                inode.sync()
            self.forget_unsynced(fd)
        self._enter("sync", self.random.randrange(100 * US, 3 * MS))
        if self._maybe_cut():
            self._cut()
        inode.sync()
        self.on_sync(self._open[fd][0])

    def sync_directory(self, path: str) -> None:
        self._enter("sync_directory", self.random.randrange(100 * US, 3 * MS))
        if self._maybe_cut():
            self._cut()
        self.disk.sync_directory(path)
        self.on_sync(path)

    def truncate(self, fd: int, length: int) -> None:
        self._enter("truncate", 5 * US)
        self._open[fd][1].truncate(length)

    def replace(self, source: str, target: str) -> None:
        self._enter("replace", 20 * US)
        disk = self.disk
        if source in disk.directories:
            self._replace_directory(source, target)
            return
        inode = self._inode(source)
        # A rename from one directory to another is one step of the journal, whichever of them is synced first.
        disk.name(os.path.dirname(target), [(source, None), (target, inode)])

    def _replace_directory(self, source: str, target: str) -> None:
        disk = self.disk
        inside = [path for path in disk.files if path.startswith(target + "/")]
        if inside:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
        moved = [(path, inode) for path, inode in disk.files.items() if path.startswith(source + "/")]
        for directory in [path for path in disk.directories if path == source or path.startswith(source + "/")]:
            disk.sync_directory(directory)
            disk.directories.discard(directory)
            disk.directories.add(target + directory[len(source) :])
        step: list[tuple[str, Inode | None]] = []
        for path, inode in moved:
            step += [(path, None), (target + path[len(source) :], inode)]
            for fd, (name, opened) in self._open.items():
                if name == path:
                    self._open[fd] = (target + path[len(source) :], opened)
        disk.name(os.path.dirname(target), step)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name."""
        self._enter("link", 20 * US)
        self.disk.name(os.path.dirname(target), [(target, self._inode(source))])

    def remove(self, path: str) -> None:
        self._enter("remove", 10 * US)
        if path in self.disk.files:
            self.disk.name(os.path.dirname(path), [(path, None)])

    def remove_tree(self, path: str) -> None:
        self._enter("remove", 50 * US)
        if not path:
            return  # no directory: as on a real disk, nothing is there
        disk = self.disk
        for name in [name for name in disk.files if name.startswith(path + "/")]:
            disk.name(os.path.dirname(name), [(name, None)])
        for directory in [name for name in disk.directories if name == path or name.startswith(path + "/")]:
            disk.sync_directory(directory)
            disk.directories.discard(directory)

    def names(self, path: str) -> list[str]:
        self._enter("names", 5 * US)
        inside = path.rstrip("/") + "/"
        found = {name[len(inside) :].split("/")[0] for name in self.disk.files if name.startswith(inside)}
        found |= {name[len(inside) :].split("/")[0] for name in self.disk.directories if name.startswith(inside)}
        return sorted(found)

    def make_directory(self, path: str) -> None:
        self._enter("make_directory", 20 * US)
        while path not in self.disk.directories:
            self.disk.directories.add(path)
            path = os.path.dirname(path)

    def _inode(self, path: str) -> Inode:
        inode = self.disk.files.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return inode


class UnsyncedSimFiles(SimFiles):
    """The same disk without syncs, as `UnsyncedFiles`."""

    durable = False

    def __init__(self, files: SimFiles) -> None:
        super().__init__(files.disk, files.random)

    def sync(self, fd: int) -> None:
        """Do nothing."""

    def sync_directory(self, path: str) -> None:
        """Do nothing."""
