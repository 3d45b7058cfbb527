"""Files that fail: one operation of a step, in one way.

Belongs here: the file layer that counts operations and lets one of them fail. It works on any other file layer: on
real files, or on those of a simulated disk (tests/sim/disk.py), which also knows what a power cut leaves.
"""

from __future__ import annotations

import enum
import errno
import os
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from lakestream.log.format.files import Files
from tests.sim.disk import PowerCut, SimFiles
from tests.unit.logkit import QuickFiles


class Fault(enum.Enum):
    """Ways in which an operation fails."""

    EIO = "EIO"
    FULL = "ENOSPC"
    TORN = "torn, then EIO"
    """A write is applied in part, and reports an error. A failed sync leaves the file's unsynced bytes clean in the
    page cache, and not on the disk."""
    TORN_CRASH = "torn, then power loss"
    CRASH = "power loss"
    """The power is cut before the operation."""
    LOST = "done, then power loss"
    """The operation is done, and lost unless it was durable."""
    FLIP = "bit flip"
    SHORT = "short read"
    VANISHED = "vanished file"


_READ = (Fault.EIO, Fault.FLIP, Fault.SHORT)
_NAME = (Fault.EIO, Fault.FULL, Fault.CRASH, Fault.LOST)
FAULTS: dict[str, tuple[Fault, ...]] = {
    "open": (Fault.EIO, Fault.VANISHED),
    "create": _NAME,
    "write": (Fault.EIO, Fault.FULL, Fault.TORN, Fault.TORN_CRASH, Fault.CRASH),
    "read_at": _READ,
    "read": (*_READ, Fault.VANISHED),
    "size": (Fault.EIO,),
    "sync": (Fault.TORN, Fault.CRASH),
    "sync_directory": (Fault.EIO, Fault.CRASH),
    "truncate": (Fault.EIO, Fault.CRASH, Fault.LOST),
    "replace": _NAME,
    "link": _NAME,
    "length": (Fault.EIO,),
    "remove": (Fault.EIO, Fault.CRASH, Fault.LOST),
    "remove_tree": (Fault.EIO, Fault.CRASH),
    "names": (Fault.EIO,),
    "make_directory": (Fault.EIO, Fault.FULL, Fault.CRASH),
}
"""The faults of each operation."""


class Operation(NamedTuple):
    """One operation of a step."""

    name: str
    path: str


class Schedule:
    """The operation that fails, and all operations that were done, of every process that shares it."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.at = -1
        self.fault: Fault | None = None
        self.crashed = False
        """A process has ended in an operation."""
        self.disks: list[Files] = []
        """The files of the processes."""

    def fail_at(self, at: int, fault: Fault | None) -> None:
        """Let operation number `at`, counted from now on, fail."""
        self.operations.clear()
        self.at, self.fault = at, fault

    def enter(self, name: str, path: str) -> Fault | None:
        """Count an operation; return its fault."""
        self.operations.append(Operation(name, path))
        return self.fault if len(self.operations) - 1 == self.at else None

    def crash(self) -> None:
        """End the processes."""
        self.crashed = True
        for each in self.disks:
            if isinstance(each, SimFiles):
                each.dead = True
        raise PowerCut


class FaultyFiles(Files):
    """Files that fail by number or by name of an operation.

    By number: the schedule lists what was done, and says which operation fails, and how (`fail_at`). By name: those
    named `fail` raise an OSError with `code`, `times` of them, once `after` more have succeeded. A failed write by name
    writes half. `calls` counts the operations by name.

    Args:
        inner: the files below; by default real ones without fsync.
        schedule: the schedule, which several processes may share.
    """

    def __init__(
        self,
        inner: Files | None = None,
        schedule: Schedule | None = None,
        *,
        fail: str = "",
        after: int = 0,
        code: int = errno.EIO,
        times: int = 1 << 30,
    ) -> None:
        inner = inner or QuickFiles()
        self.inner = inner
        self.fail, self.after, self.code, self.times = fail, after, code, times
        self.calls: Counter[str] = Counter()
        self.durable = inner.durable
        self.schedule = schedule or Schedule()
        self.schedule.disks.append(inner)
        self._paths: dict[int, str] = {}

    @property
    def operations(self) -> list[Operation]:
        """Return what was done."""
        return self.schedule.operations

    @property
    def crashed(self) -> bool:
        """Return True if the process has ended in an operation."""
        return self.schedule.crashed

    def fail_at(self, at: int, fault: Fault | None) -> None:
        """Let operation number `at`, counted from now on, fail."""
        self.schedule.fail_at(at, fault)

    def _enter(self, name: str, path: str) -> Fault | None:
        """Count an operation. Raise its error, or return its fault if that depends on the operation."""
        self.calls[name] += 1
        if name == self.fail:
            if self.after > 0:
                self.after -= 1
            elif self.times > 0:
                self.times -= 1
                raise OSError(self.code, os.strerror(self.code), path)
        fault = self.schedule.enter(name, path)
        match fault:
            case Fault.EIO | Fault.FULL:
                code = errno.EIO if fault is Fault.EIO else errno.ENOSPC
                raise OSError(code, os.strerror(code), path)
            case Fault.CRASH:
                self._crash()
            case Fault.VANISHED:
                self.inner.remove(path)
        return fault

    def _crash(self) -> None:
        self.schedule.crash()

    def _after(self, fault: Fault | None) -> None:
        if fault is Fault.LOST:
            self._crash()

    def open(self, path: str, write: bool = False) -> int:
        self._enter("open", path)
        fd = self.inner.open(path, write)
        self._paths[fd] = path
        return fd

    def stamp(self, path: str) -> tuple[int, int]:
        return self.inner.stamp(path)

    def create(self, path: str) -> int:
        fault = self._enter("create", path)
        fd = self.inner.create(path)
        self._paths[fd] = path
        self._after(fault)
        return fd

    def close(self, fd: int) -> None:
        self.inner.close(fd)

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> None:
        if self.fail == "write" and self.after == 0 and self.times > 0:
            half = b"".join(buffers)
            self.inner.write(fd, [half[: len(half) // 2]], offset)  # a failed write may have written a part
        fault = self._enter("write", self._paths[fd])
        if fault in (Fault.TORN, Fault.TORN_CRASH):
            content = b"".join(buffers)
            self.inner.write(fd, [content[: len(content) // 2]], offset)
            if fault is Fault.TORN_CRASH:
                self._crash()
            raise OSError(errno.EIO, os.strerror(errno.EIO), self._paths[fd])
        self.inner.write(fd, buffers, offset)

    def read_at(self, fd: int, length: int, offset: int) -> bytes:
        fault = self._enter("read_at", self._paths[fd])
        return _damaged(self.inner.read_at(fd, length, offset), fault)

    def read(self, path: str) -> bytes:
        fault = self._enter("read", path)
        return _damaged(self.inner.read(path), fault)

    def salt(self) -> int:
        return self.inner.salt()

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def is_directory(self, path: str) -> bool:
        return self.inner.is_directory(path)

    def length(self, path: str) -> int:
        self._enter("length", path)
        return self.inner.length(path)

    def lock(self, path: str, *, shared: bool = False, create: bool = True) -> int:
        return self.inner.lock(path, shared=shared, create=create)

    def unsynced(self) -> Files:
        return FaultyFiles(self.inner.unsynced(), self.schedule)

    def size(self, fd: int) -> int:
        self._enter("size", self._paths[fd])
        return self.inner.size(fd)

    def sync(self, fd: int) -> None:
        fault = self._enter("sync", self._paths[fd])
        if fault is Fault.TORN:
            if isinstance(self.inner, SimFiles):
                self.inner.forget_unsynced(fd)
            raise OSError(errno.EIO, os.strerror(errno.EIO), self._paths[fd])
        self.inner.sync(fd)

    def sync_directory(self, path: str) -> None:
        self._enter("sync_directory", path)
        self.inner.sync_directory(path)

    def truncate(self, fd: int, length: int) -> None:
        fault = self._enter("truncate", self._paths[fd])
        self.inner.truncate(fd, length)
        self._after(fault)

    def replace(self, source: str, target: str) -> None:
        fault = self._enter("replace", source)
        self.inner.replace(source, target)
        self._after(fault)

    def link(self, source: str, target: str) -> None:
        fault = self._enter("link", target)
        self.inner.link(source, target)
        self._after(fault)

    def remove(self, path: str) -> None:
        fault = self._enter("remove", path)
        self.inner.remove(path)
        self._after(fault)

    def remove_tree(self, path: str) -> None:
        self._enter("remove_tree", path)
        self.inner.remove_tree(path)

    def names(self, path: str) -> list[str]:
        self._enter("names", path)
        return self.inner.names(path)

    def make_directory(self, path: str) -> None:
        self._enter("make_directory", path)
        self.inner.make_directory(path)


def _damaged(content: bytes, fault: Fault | None) -> bytes:
    if fault is Fault.FLIP and content:
        at = len(content) // 2
        return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]
    return content[: len(content) // 2] if fault is Fault.SHORT else content
