"""Plan of failing calls of real processes: rules in a file that `failing.c` maps.

Belongs here: the layout of the file, and the environment of processes that fail by it.
"""

from __future__ import annotations

import enum
import errno
import mmap
import struct
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("failing.c")
MOST = 64
_HEAD = 256
_RULE = struct.Struct("<IIiIQQQQ208s")


class Call(enum.IntFlag):
    """Kinds of calls; the numbers are those of failing.c. A rename counts by its new name."""

    OPEN = 1
    CREATE = 2
    READ = 4
    WRITE = 8
    SYNC = 16
    TRUNCATE = 32
    RENAME = 64
    LINK = 128
    UNLINK = 256
    MKDIR = 512
    LIST = 1024


class Action(enum.IntEnum):
    """Ways in which a call fails."""

    FAIL = 1
    """The call is not done, and returns the error."""
    PART = 2
    """Half of a write is done, then the error."""
    SHORT = 3
    """Half of a read or write is done, which is no error."""
    FLIP = 4
    """A read returns one bit flipped."""
    DELAY = 5
    """The call is done later."""
    KILL = 6
    """Half of a write is done, then the process is killed; other calls are not done."""


class Rule(NamedTuple):
    """Calls that fail: of the matching ones, `skip` pass, then `times` fail.

    pattern: of fnmatch, for the path relative to the root; `*` also matches `/`.
    """

    calls: Call
    pattern: str
    action: Action = Action.FAIL
    error: int = errno.EIO
    skip: int = 0
    times: int = 1 << 62
    delay_us: int = 0

    def __str__(self) -> str:
        names = "|".join(call.name or "" for call in self.calls)
        error = errno.errorcode[self.error] if self.action in (Action.FAIL, Action.PART) else ""
        often = f", after {self.skip}" * bool(self.skip) + f", {self.times} times" * (self.times < 1 << 62)
        return f"{names} of {self.pattern}: {self.action.name} {error}".rstrip() + often


class Plan:
    """Rules of the processes below one root."""

    def __init__(self, path: Path, root: Path) -> None:
        """Create an empty plan. `root` exists."""
        self.path, self.root = path, root.resolve()
        path.write_bytes(bytes(_HEAD + MOST * _RULE.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def environment(self, library: Path) -> dict[str, str]:
        """Return the variables that make a process and its children follow the plan."""
        return {"LD_PRELOAD": str(library), "FAULTS_ROOT": str(self.root), "FAULTS_PLAN": str(self.path)}

    def set(self, *rules: Rule) -> None:
        """Let calls fail by these rules, from now on. Without rules none fails."""
        self._map[:8] = bytes(8)
        for number, rule in enumerate(rules):
            pattern = rule.pattern.encode()
            assert len(pattern) < 208
            fields = (rule.calls, rule.action, rule.error, rule.delay_us, rule.skip, rule.times, 0, 0, pattern)
            _RULE.pack_into(self._map, _HEAD + number * _RULE.size, *fields)
        self._map[:8] = len(rules).to_bytes(8, "little")

    def hits(self, rule: int = 0) -> int:
        """Return how often a call has failed by a rule."""
        fields = _RULE.unpack_from(self._map, _HEAD + rule * _RULE.size)
        hits: int = fields[7]
        return hits
