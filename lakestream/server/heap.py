"""The memory of the process.

Belongs here: settings of the allocator below Python's own, which takes every block above 512 bytes (payloads, batches,
file buffers), and when the interpreter looks for objects that only refer to each other; all others are freed at once,
by their reference counts. Both apply to the whole process, so only commands and a server's own process make them.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

from lakestream.ports import Clock, Io

ARENAS = 2
"""One for the event loop, one for all I/O threads."""

LOOK_NS = 2_000_000_000
"""Interval at which the resident memory is read (2 s)."""

GROWN_BYTES = 16 << 20
"""Memory is returned to the system once it has grown by this since the last time, and has ceased to grow (16 MiB)."""

CALM_BYTES = 1 << 20
"""Memory that grew by less between two looks has ceased to grow (1 MiB)."""

PAUSE = 1
"""Looks between two attempts."""

TRIES = 15
"""Attempts until memory that is not returned counts as in use (15, about a minute). What waits for a slow disk is free
only later, and an attempt costs little while nothing is free."""

RESTS = 30
"""Looks after which memory that counts as in use is tried again (30, a minute): message ids leave their window, and
caches are dropped, long after the memory has grown."""

YOUNG_OBJECTS = 2000
"""New containers (lists, dicts, instances …) after which those are looked at (2,000, 0.1 ms)."""

YOUNG_ROUNDS = 4
"""Such looks after which those that have outlived one are looked at as well (4, 1 ms)."""

OLD_ROUNDS = 1
"""Looks at the middle generation after which those that have outlived one are looked at for the last time (1, 3 ms)."""

_OLDEST = 2

ARROW_POOL = "ARROW_DEFAULT_MEMORY_POOL"
"""Variable of the environment that chooses pyarrow's allocator; pyarrow reads it when it is loaded."""

_PAGE = resource.getpagesize()
_M_ARENA_MAX = -8  # malloc.h of glibc; see mallopt(3)


def bound_arenas() -> bool:
    """Let all threads share a few arenas; return True if the C library supports that.

    glibc gives each of the first 8 threads a core an arena, and freed memory stays with its arena. Batches of large
    messages pass through one I/O thread after the other, so each arena would keep as much as the largest batch took: an
    object of 1 GiB in chunks of 128 KiB was measured to cost 65 MiB, with two arenas 30 MiB. Other C libraries have no
    such setting and no need for it.
    """
    return _glibc("mallopt", _M_ARENA_MAX, ARENAS)


def share_with_pyarrow() -> bool:
    """Have pyarrow allocate from the C library's heap, unless `ARROW_POOL` says otherwise; return True if it will.

    Call it before pyarrow is loaded. Its own allocator (mimalloc) keeps what each thread has freed, out of reach of
    `trim`: the four threads that read old messages were measured to hold 90 MiB when 12 MiB were in use, and still when
    nothing was. Other C libraries than glibc have no `trim`.
    """
    if not _has_glibc():
        return False
    return os.environ.setdefault(ARROW_POOL, "system") == "system"


def trim() -> bool:
    """Return free memory of the heaps of pyarrow and the C library to the system; return True if the latter had any.

    glibc returns only the end of its heap by itself: after a gigabyte of unsent bytes has gone, one live block behind
    it keeps all of it. Other C libraries return memory themselves. It may take some ms: call it in a thread.
    """
    if (pyarrow := sys.modules.get("pyarrow")) is not None:  # a server without tables never loads it
        pyarrow.default_memory_pool().release_unused()
    return _glibc("malloc_trim", 0)


def resident() -> int:
    """Return the resident memory of this process in bytes (Linux)."""
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE


class Trimmer:
    """Returns memory that a burst has left to the system: publishes that waited for a slow disk, subscriptions,
    handshakes. What is in use and stays is counted once, and tried again every minute: an idle server is not trimmed
    again and again.

    Args:
        measure: returns the resident memory in bytes.
        release: returns free memory to the system; called in a thread.
    """

    def __init__(self, clock: Clock, io: Io, measure: Callable[[], int], release: Callable[[], object] = trim) -> None:
        self._clock, self._io, self._measure, self._release = clock, io, measure, release
        self._first = self._trimmed = self._before = 0
        self._tries = self._skipped = self._rested = 0

    def start(self) -> None:
        """Look from now on. Without /proc there is nothing to do."""
        if sys.platform.startswith("linux"):
            self._first = self._trimmed = self._before = self._measure()
            self._clock.call_later(LOOK_NS, self._look)

    def _look(self) -> None:
        now = self._measure()
        calm = now - self._before < CALM_BYTES
        self._before = now
        if now - self._trimmed > GROWN_BYTES and calm and self._skipped <= 0:
            self._io.submit(self._release, lambda _, __: self._done())
            return
        self._rested += 1
        if self._rested >= RESTS and calm and now - self._first > GROWN_BYTES:
            self._io.submit(self._release, lambda _, __: self._later())
            return
        self._skipped = max(0, self._skipped - 1)
        self._trimmed = min(self._trimmed, now)
        self._clock.call_later(LOOK_NS, self._look)

    def _done(self) -> None:
        after, self._tries, self._skipped = self._measure(), self._tries + 1, PAUSE
        if self._before - after > CALM_BYTES:  # more may be free soon
            self._tries = 0
        elif self._tries == TRIES:
            self._trimmed, self._tries = after, 0
        self._later(after)

    def _later(self, after: int | None = None) -> None:
        self._before = self._measure() if after is None else after
        self._trimmed, self._rested = min(self._trimmed, self._before), 0
        self._clock.call_later(LOOK_NS, self._look)


def _has_glibc() -> bool:
    """Return True if the C library is glibc."""
    return sys.platform.startswith("linux") and hasattr(ctypes.CDLL(None), "malloc_trim")


def _glibc(function: str, *args: int) -> bool:
    """Call a function that only glibc has; return False elsewhere."""
    return _has_glibc() and bool(ctypes.CDLL(None)[function](*args))


class Collector:
    """Collections of objects that refer to each other, in pieces: a full one would stall all clients.

    The interpreter looks at all old objects whenever their number has grown by a quarter: 100 to 300 ms with 3,000
    streams. Here each object is looked at three times at most. What has outlived `OLD_ROUNDS` collections of the middle
    generation is looked at once more, some ten thousand objects together, and is then exempt (`gc.freeze`). What ends
    later is looked at again: `lakestream/ended.py`. Closed connections have no cycles.
    """

    def start(self) -> None:
        """Begin, and exempt the objects that exist: modules and the server's own parts, which live as long as it."""
        # Not looked at before: 0.2 ms for each stream, and the start leaves next to nothing (tests/unit/server).
        gc.freeze()
        gc.collect()  # of nothing: the interpreter waits for a quarter of what the last one has left
        gc.set_threshold(YOUNG_OBJECTS, YOUNG_ROUNDS, OLD_ROUNDS)
        gc.callbacks.append(self._exempt)
        gc.enable()  # the command disabled it for the start

    def _exempt(self, phase: str, info: dict[str, int]) -> None:
        """Exempt what has outlived a collection of the oldest generation."""
        if phase == "stop" and info["generation"] == _OLDEST:
            gc.freeze()
