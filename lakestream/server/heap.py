"""The heap of the C library.

Belongs here: settings of the allocator below Python's own, which takes every block above 512 bytes: payloads, batches,
file buffers. They apply to the whole process, so only commands make them.
"""

from __future__ import annotations

import ctypes
import sys

ARENAS = 2
"""One for the event loop, one for all I/O threads."""

_M_ARENA_MAX = -8  # malloc.h of glibc; see mallopt(3)


def bound_arenas() -> bool:
    """Let all threads share a few arenas; return True if the C library supports that.

    glibc gives each of the first 8 threads a core an arena, and freed memory stays with its arena. Batches of large
    messages pass through one I/O thread after the other, so each arena would keep as much as the largest batch took: an
    object of 1 GiB in chunks of 128 KiB was measured to cost 65 MiB, with two arenas 30 MiB. Other C libraries have no
    such setting and no need for it.
    """
    return _glibc("mallopt", _M_ARENA_MAX, ARENAS)


def trim() -> bool:
    """Return free memory of the heaps of pyarrow and the C library to the system; return True if the latter had any.

    glibc returns only the end of its heap by itself: after a gigabyte of unsent bytes has gone, one live block behind
    it keeps all of it. Other C libraries return memory themselves. It may take some ms: call it in a thread.
    """
    if (pyarrow := sys.modules.get("pyarrow")) is not None:  # a server without tables never loads it
        pyarrow.default_memory_pool().release_unused()
    return _glibc("malloc_trim", 0)


def _glibc(function: str, *args: int) -> bool:
    """Call a function that only glibc has; return False elsewhere."""
    try:
        return sys.platform.startswith("linux") and bool(ctypes.CDLL(None)[function](*args))
    except (AttributeError, OSError):
        return False
