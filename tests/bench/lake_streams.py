"""Streams for the lake's benchmarks: messages that look like something, and real staged segments of them, quickly made.

Belongs here: what every benchmark of the lake publishes, so that a server and a table get the very same messages, and
sealing them into segments as a server with default options would (16 MiB each), without one. Also watching how much
memory a tree of processes takes.
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

from lakestream.lake.files import staging
from lakestream.lake.files.staging import StagedStream, StreamIdentity
from lakestream.log.format.files import Files
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.format.record import encode_record
from lakestream.log.store.segment_log import DEFAULT_SEAL_BYTES, LogOptions, SealState, SegmentLog, begin_segment

T0_NS = 1_700_000_000_000_000_000
STEP_NS = 1_000_000
"""Between two messages."""
FRAME_ROWS = 1_000
MIB = 1 << 20
SIZE = 128

Payloads = Callable[[int, int], list[bytes]]
"""The payloads of `count` messages from number `first` on."""


def random_payloads(first: int, count: int) -> list[bytes]:
    """128 bytes each, which nothing can make smaller."""
    block = random.Random(first).randbytes(SIZE * count)
    return [block[at : at + SIZE] for at in range(0, len(block), SIZE)]


def json_payloads(first: int, count: int) -> list[bytes]:
    """JSON of 300 bytes, with some fields that differ from message to message and some that hardly do."""
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
    """The subject of message `number`: neighbours have different ones."""
    return b"sensor.%06d" % (number * 7919 % subjects)


class Staged:
    """What was staged: the stream's directory in the lake, messages, segments and their bytes."""

    def __init__(self, identity: StreamIdentity, messages: int) -> None:
        self.identity = identity
        self.messages = messages
        self.segments = 0
        self.bytes = 0
        self.directory = ""

    @property
    def stream(self) -> StagedStream:
        """As `staging.scan` finds it."""
        return StagedStream(self.directory, self.identity, False)


class Publisher:
    """A stream whose messages go straight into segments, and these into a lake's staging area.

    Args:
        work: where the log is, on the lake's file system.
        lake: the lake's root.
        name: the stream's name.
        subjects: how many of them.
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
        """So many messages more; the last segment may be smaller than the others."""
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
        path = staging.stage(sealed.path, sealed.first_index, sealed.last_index, identity, str(self._lake))
        staged.directory = os.path.dirname(path)
        staged.segments += 1
        staged.bytes += os.path.getsize(path)
        os.unlink(sealed.path)


class Memory:
    """Watches what this process and all below it hold in memory, as long as it is entered.

    `peaks` has the most that there was at one time, in MiB: of the JVM, of the Python driver (this process), of Spark's
    Python workers, and of all together. Pages that several processes share count once (PSS).
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
                elif name.startswith("python"):  # the JVM's child before its exec has another name, and the JVM's pages
                    now["workers"] += _pss(process.pid)
            now["all"] = sum(now.values())
            self.peaks = {key: max(most, now[key]) for key, most in self.peaks.items()}


def _pss(pid: int) -> float:
    """A process's share of memory, in MiB; 0 when it has just ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


def cpu_seconds() -> float:
    """CPU time that this process and all below it have taken."""
    this = psutil.Process()
    spent = 0.0
    for process in (this, *this.children(recursive=True)):
        try:
            spent += sum(process.cpu_times()[:4])  # user and system, its own and of its children that have ended
        except psutil.NoSuchProcess:
            continue
    return spent


def table_files(table: str) -> tuple[int, int]:
    """Data files of a table's newest version, and their bytes."""
    from lakestream.lake.delta.log import Log
    from lakestream.lake.files.lake import open_storage
    from lakestream.lake.write.maintainer import data_files

    files = list(data_files(Log(open_storage(table), table).state()))
    return len(files), sum(each.size for each in files)


def chunks(total: int, size: int) -> Iterator[tuple[int, int]]:
    """(first, count) of pieces of a whole."""
    for first in range(0, total, size):
        yield first, min(size, total - first)
