"""Journal of file operations that `recorder.c` writes: build the library, run programs under it, read the journal.

Belongs here: the record format and the environment of recorded processes. disk.py applies the operations to a disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import hashlib
import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("recorder.c")
HEADER = Path(__file__).with_name("paths.h")
CAPACITY = 4 << 30  # sparse: only written parts take space
HEADER_BYTES = 4096
MAGIC = 0x4C525750
_RECORD = struct.Struct("<IIQQQQIIIIQ")


class RecordingFailed(Exception):
    """Raised when the recorder cannot be built, or saw an operation that it cannot record."""


class Kind(enum.IntEnum):
    """Kinds of operations; the numbers are recorder.c's."""

    CREATE = 1
    MKDIR = 2
    WRITE = 3
    TRUNCATE = 4
    SYNC = 5
    SYNC_ALL = 6
    RENAME = 7
    LINK = 8
    UNLINK = 9
    RMDIR = 10
    TROUBLE = 11


@dataclass(frozen=True, slots=True)
class Operation:
    """One change of the recorded directory, or one sync.

    `number` is the offset of a WRITE, the length of a TRUNCATE, and for syncs the journal's offset when they began:
    records at `at` or beyond it may not be durable yet.
    """

    kind: Kind
    at: int
    time_ns: int
    pid: int
    inode: int
    number: int
    path: str
    target: str
    data: bytes

    def describe(self, root: str) -> str:
        """Return one line for a trace."""
        names = " → ".join(os.path.relpath(name, root) for name in (self.path, self.target) if name)
        size = f" {len(self.data)} bytes" if self.kind is Kind.WRITE else ""
        return (
            f"{self.time_ns / 1e9:.6f} [{self.pid}] {self.kind.name} #{self.inode} {self.number}{size} {names}".rstrip()
        )


def build(directory: Path, source: Path = SOURCE) -> Path:
    """Compile a library for LD_PRELOAD into `directory` unless it is there: the recorder, or another source.

    Raises:
        RecordingFailed: the compiler (PyPI package ziglang, extra 'dev') is missing or failed.
    """
    digest = hashlib.sha256(source.read_bytes() + HEADER.read_bytes()).hexdigest()
    library = directory / f"{source.stem}-{digest[:16]}.so"
    if not library.exists():
        directory.mkdir(parents=True, exist_ok=True)
        temporary = library.with_suffix(f".{os.getpid()}")
        flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{HEADER.parent}"]
        done = subprocess.run(
            [sys.executable, "-m", "ziglang", "cc", *flags, str(source), "-o", str(temporary)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RecordingFailed(f"{source.name} does not compile; is ziglang installed?\n{done.stderr}")
        temporary.replace(library)
    return library


class Journal:
    """Recording of all operations below `root`, a directory that was empty at first."""

    def __init__(self, path: Path, root: Path, root_inode: int) -> None:
        self.path = path
        self.root = root
        self.root_inode = root_inode

    @classmethod
    def begin(cls, library: Path, path: Path, root: Path) -> Journal:
        """Create the journal and the root."""
        root.mkdir(parents=True)
        journal = cls(path.resolve(), root.resolve(), root.stat().st_ino)
        if ctypes.CDLL(str(library)).power_prepare(os.fsencode(journal.path), ctypes.c_uint64(CAPACITY)):
            raise RecordingFailed(f"cannot create {path}")
        return journal

    def environment(self, library: Path) -> dict[str, str]:
        """Return the variables that make a process and its children write to this journal."""
        return {
            "LD_PRELOAD": str(library),
            "POWER_ROOT": str(self.root),
            "POWER_JOURNAL": str(self.path),
            "UV_USE_IO_URING": "0",  # operations that go to the kernel without a call of libc
        }

    @contextlib.contextmanager
    def held(self, library: Path) -> Iterator[None]:
        """Block file operations of recorded processes, so that a kill meanwhile leaves none unrecorded."""
        recorder = ctypes.CDLL(str(library))
        if recorder.power_hold(os.fsencode(self.path)):
            raise RecordingFailed(f"cannot hold {self.path}")
        try:
            yield
        finally:
            recorder.power_release()

    def operations(self) -> list[Operation]:
        """Return all operations in their order.

        Raises:
            RecordingFailed: the journal is full, or has operations that cannot be replayed.
        """
        found = list(self._records())
        troubles = [operation for operation in found if operation.kind is Kind.TROUBLE]
        if troubles:
            raise RecordingFailed("\n".join(f"[{each.pid}] {each.path}: {each.target}" for each in troubles))
        return found

    def _records(self) -> Iterator[Operation]:
        with open(self.path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as raw:
            end, overflow = struct.unpack_from("<QQ", raw)
            if overflow:
                raise RecordingFailed(f"the journal is full: {overflow} operations had no room")
            at = HEADER_BYTES
            while at < end:
                magic, kind, size, time_ns, inode, number, pid, first, second, _, length = _RECORD.unpack_from(raw, at)
                assert magic == MAGIC, f"no record at {at}"
                names = at + _RECORD.size
                content = names + first + second
                yield Operation(
                    Kind(kind),
                    at,
                    time_ns,
                    pid,
                    inode,
                    number,
                    os.fsdecode(raw[names : names + first]),
                    os.fsdecode(raw[names + first : content]),
                    raw[content : content + length],
                )
                at += size
