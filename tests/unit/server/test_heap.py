"""Tests of the C library's heap settings of servers."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from lakestream.server.heap import bound_arenas

pytestmark = pytest.mark.unit

_THREADS = """
import ctypes, sys, threading
from lakestream.server.heap import bound_arenas

if sys.argv[1] == "bound":
    assert bound_arenas()
together = threading.Barrier(8)

def work():
    together.wait()
    libc.free(libc.malloc(100_000))
    together.wait()

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.fdopen.restype = ctypes.c_void_p
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
"""


def arenas(how: str) -> int:
    """Return the number of arenas of a process after eight of its threads have allocated at the same time."""
    done = subprocess.run([sys.executable, "-c", _THREADS, how], capture_output=True, text=True, check=True)
    return done.stdout.count("<heap nr=")


def test_threads_share_two_arenas() -> None:
    if platform.libc_ver()[0] != "glibc":
        assert not bound_arenas(), "only glibc has arenas"
        return
    assert arenas("as it is") > 2, "else there is nothing to bound"
    assert arenas("bound") <= 2
