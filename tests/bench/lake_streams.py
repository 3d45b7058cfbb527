"""Streams for the lake's benchmarks: realistic messages, and real staged segments of them, quickly made.

Belongs here: the messages that every benchmark of the lake publishes, so that a server and a table get the same ones,
and sealing them into segments as a server with default options would (16 MiB each), without one. Also measuring the
memory of a process tree.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import psutil

from lakestream.lake.staging import staging
from lakestream.lake.staging.staging import StagedStream, StreamIdentity
from lakestream.lake.storage import lake as lakes
from lakestream.log.format.files import Files
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.format.record import encode_record
from lakestream.log.store.log import SealState
from lakestream.log.store.segment_log import DEFAULT_SEAL_BYTES, LogOptions, SegmentLog, begin_segment

T0_NS = 1_700_000_000_000_000_000
STEP_NS = 1_000_000
"""Time between two messages."""
FRAME_ROWS = 1_000
MIB = 1 << 20
SIZE = 128

Payloads = Callable[[int, int], list[bytes]]
"""Function that returns the payloads of `count` messages from number `first` on."""


def random_payloads(first: int, count: int) -> list[bytes]:
    """Return payloads of 128 bytes that do not compress."""
    block = random.Random(first).randbytes(SIZE * count)
    return [block[at : at + SIZE] for at in range(0, len(block), SIZE)]


def json_payloads(first: int, count: int) -> list[bytes]:
    """Return JSON payloads of 300 bytes, with some fields that differ in every message and some that hardly do."""
    choose = random.Random(first)
    found = []
    for number in range(first, first + count):
        body = {
            "id": number,
            "sensor": f"sensor-{number % 977}",
            "site": choose.choice(("Augsburg", "Bilbao", "Cork", "Delft")),
            "temperature": round(choose.gauss(20, 6), 3),
            "humidity": round(choose.uniform(20, 90), 2),
            "pressure": round(choose.gauss(1013, 8), 2),
            "battery": choose.randint(0, 100),
            "status": "ok" if choose.random() < 0.98 else "degraded",
            "firmware": "4.12.1",
            "trace": f"{choose.getrandbits(128):032x}",
        }
        body["note"] = ""
        body["note"] = "." * (300 - len(json.dumps(body)))
        found.append(json.dumps(body).encode())
    return found


def subject(number: int, subjects: int) -> bytes:
    """Return the subject of message `number`; successive messages have different ones."""
    return b"sensor.%06d" % (number * 7919 % subjects)


class Staged:
    """Staged segments: the stream's directory in the lake, its number of messages and segments, and their bytes."""

    def __init__(self, identity: StreamIdentity, messages: int) -> None:
        self.identity = identity
        self.messages = messages
        self.segments = 0
        self.bytes = 0
        self.directory = ""

    @property
    def stream(self) -> StagedStream:
        """Return the stream as `staging.scan` finds it."""
        return StagedStream(self.directory, self.identity, False)


class Publisher:
    """Stream whose messages go straight into segments, and these into a lake's staging area.

    Args:
        work: directory of the log, on the lake's file system.
        lake: the lake's root.
        name: the stream's name.
        subjects: number of subjects.
    """

    def __init__(self, work: Path, lake: Path, name: str, subjects: int, payloads: Payloads = random_payloads) -> None:
        directory = work / name
        directory.mkdir(parents=True)
        files = Files()
        segment, descriptor = begin_segment(str(directory), files, 1, 1, T0_NS)
        files.close(descriptor)
        options = LogOptions(sync_always=False)
        self._log = SegmentLog(str(directory), files, options, time.time_ns, [segment], 1)
        self._lake = lake
        self._subjects, self._payloads = subjects, payloads
        identity = StreamIdentity(name=name, account="$G", uid=f"UID{name}", created_ns=T0_NS)
        self.staged = Staged(identity, 0)

    def publish(self, messages: int) -> Staged:
        """Publish `messages` more messages; the last segment may be smaller than the others."""
        first, end = self.staged.messages, self.staged.messages + messages
        for start in range(first, end, FRAME_ROWS):
            self._frame(start, min(FRAME_ROWS, end - start))
            if self._log.open_segment.end >= DEFAULT_SEAL_BYTES:
                self._seal()
        if self._log.open_segment.count:
            self._seal()
        return self.staged

    def _frame(self, start: int, count: int) -> None:
        numbers = range(start, start + count)
        payloads = self._payloads(start, count)
        records = [
            encode_record(number + 1, T0_NS + number * STEP_NS, subject(number, self._subjects), b"", payload)
            for number, payload in zip(numbers, payloads, strict=True)
        ]
        (placed,) = self._log.append([Frame(Kind.MESSAGES, 1, self._log.last_index + 1, count, b"".join(records))])
        lengths = list(map(len, records))
        offsets, at = [], placed.offset
        for length in lengths:
            offsets.append(at)
            at += length
        self._log.open_segment.place(start + 1, offsets, lengths, T0_NS + (start + count - 1) * STEP_NS)
        self.staged.messages += count

    def _seal(self) -> None:
        staged, identity = self.staged, self.staged.identity
        sealed = self._log.seal(
            SealState(
                uid=identity.uid,
                stream=identity.name,
                account=identity.account,
                config=bytes(identity.config),
                floor=1,
                next_seq=staged.messages + 1,
                removed=[],
                subjects=min(self._subjects, staged.messages),
                erased=array("Q"),
            )
        )
        lakes.require(str(self._lake), create=True)
        path = staging.stage(sealed.path, sealed.first_index, sealed.last_index, identity, str(self._lake))
        staged.directory = os.path.dirname(path)
        staged.segments += 1
        staged.bytes += os.path.getsize(path)
        os.unlink(sealed.path)


class Memory:
    """Measures the memory of this process and its descendants during the block.

    `peaks` has the maximum at one time, in MiB: of the JVM, of the Python driver (this process), of Spark's Python
    workers, and of all together. Pages that several processes share count once (PSS).
    """

    def __init__(self) -> None:
        self.peaks = {"java": 0.0, "driver": 0.0, "workers": 0.0, "all": 0.0}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        this = psutil.Process()
        while not self._end.wait(0.2):
            now = {"java": 0.0, "driver": _pss(this.pid), "workers": 0.0}
            for process in this.children(recursive=True):
                try:
                    name = process.name()
                except psutil.NoSuchProcess:
                    continue
                if name == "java":
                    now["java"] += _pss(process.pid)
                elif name.startswith("python"):  # before exec the JVM's child has another name and the JVM's pages
                    now["workers"] += _pss(process.pid)
            now["all"] = sum(now.values())
            self.peaks = {key: max(most, now[key]) for key, most in self.peaks.items()}


def _pss(pid: int) -> float:
    """Return a process's share of memory in MiB; 0 if it has just exited."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


def cpu_seconds() -> float:
    """Return the CPU time of this process and its descendants."""
    this = psutil.Process()
    spent = 0.0
    for process in (this, *this.children(recursive=True)):
        try:
            spent += sum(process.cpu_times()[:4])  # user and system, of itself and of children that have exited
        except psutil.NoSuchProcess:
            continue
    return spent


def table_files(table: str) -> tuple[int, int]:
    """Return the number of data files of a table's newest version, and their bytes."""
    from lakestream.lake.storage.lake import open_storage
    from lakestream.lake.table.log import TableLog
    from lakestream_spark.write.maintainer import data_files

    files = list(data_files(TableLog(open_storage(table), table).state()))
    return len(files), sum(each.size for each in files)


def chunks(total: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield (first, count) of parts of a whole."""
    for first in range(0, total, size):
        yield first, min(size, total - first)
