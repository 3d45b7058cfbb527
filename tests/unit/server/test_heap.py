"""Tests of the C library's heap settings of servers."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from lakestream.server import heap
from lakestream.server.heap import bound_arenas
from tests.unit.stream_world import ManualClock, ManualIo

pytestmark = pytest.mark.unit

_THREADS = """
import ctypes, sys, threading
from lakestream.server import heap
from lakestream.server.heap import bound_arenas
from tests.unit.stream_world import ManualClock, ManualIo

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


_READERS = """
import pathlib, random, sys
from concurrent.futures import ThreadPoolExecutor
from lakestream.server import heap

heap.bound_arenas()
if sys.argv[1] == "shared":
    assert heap.share_with_pyarrow()

import pyarrow as pa
import pyarrow.parquet as pq

path = sys.argv[2]
data = [random.Random(seq).randbytes(300) for seq in range(5_000)]
pq.write_table(pa.table({"seq": range(5_000), "data": data}), path)
pool = ThreadPoolExecutor(4)

def read(number):
    return pq.ParquetFile(path).read(use_threads=False).slice(number, 100).take(pa.array(range(100)))

kept = list(pool.map(read, range(4)))
heap.trim()
before = heap.resident()
for _ in range(5):
    kept = list(pool.map(read, range(40)))
del kept
heap.trim()
print(heap.resident() - before)
"""


def left_by_readers(how: str, directory: Path) -> int:
    """Return the bytes by which a process has grown after four threads have read 200 small files and dropped them."""
    command = [sys.executable, "-c", _READERS, how, str(directory / "some.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_memory_of_reads_of_tables_is_returned(tmp_path: Path) -> None:
    if platform.libc_ver()[0] != "glibc":
        assert not heap.share_with_pyarrow()
        return
    assert left_by_readers("shared", tmp_path) < 16 << 20  # 32 MiB and more stay otherwise


def test_an_allocator_of_pyarrow_that_was_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(heap.ARROW_POOL, "mimalloc")
    assert not heap.share_with_pyarrow()
    assert os.environ[heap.ARROW_POOL] == "mimalloc"


def test_memory_that_a_burst_has_left_is_returned() -> None:
    sizes = iter([100, 150, 400, 400, 110, 110, 110])
    trims: list[int] = []
    clock, io = ManualClock(), ManualIo()
    heap.Trimmer(clock, io, lambda: next(sizes) << 20, lambda: trims.append(1)).start()
    for expected in (0, 0, 1, 1, 1):  # it grows twice, then it is calm; what has stayed is not trimmed again
        clock.advance(heap.LOOK_NS)
        while io.waiting:
            io.work()
        assert len(trims) == expected


def test_memory_that_was_in_use_at_first_is_returned_later() -> None:
    size, trims = 100, list[int]()
    clock, io = ManualClock(), ManualIo()
    heap.Trimmer(clock, io, lambda: size << 20, lambda: trims.append(1)).start()
    size = 400
    for _ in range(2 * heap.TRIES + 8):
        clock.advance(heap.LOOK_NS)
        while io.waiting:
            io.work()
    assert len(trims) == heap.TRIES
    size = 410
    for _ in range(10):
        clock.advance(heap.LOOK_NS)
        assert not io.waiting


def test_memory_that_was_in_use_for_long_is_tried_every_minute() -> None:
    """Ids of a duplicate window are free minutes after they came: nothing was returned then."""
    size, trims = 100, list[int]()
    clock, io = ManualClock(), ManualIo()
    heap.Trimmer(clock, io, lambda: size << 20, lambda: trims.append(1)).start()
    for size, expected in ((400, heap.TRIES), (400, 3), (400, 3), (110, 1), (110, 0)):
        trims.clear()
        for _ in range(3 * (heap.RESTS + 1)):
            clock.advance(heap.LOOK_NS)
            while io.waiting:
                io.work()
        assert expected - 1 <= len(trims) <= expected + 2, size


def test_memory_that_becomes_free_by_and_by_is_returned_as_it_does() -> None:
    """Memory of publishes that wait for a slow disk is free only once they are written: attempts must not get rare."""
    size, in_use = 400, 400
    clock, io = ManualClock(), ManualIo()

    def trim() -> None:
        nonlocal size
        size = in_use

    heap.Trimmer(clock, io, lambda: size << 20, trim).start()
    size = 700
    for look in range(40):
        in_use = max(400, 700 - 20 * look)
        clock.advance(heap.LOOK_NS)
        while io.waiting:
            io.work()
        assert size < in_use + 120
    assert size == 400
