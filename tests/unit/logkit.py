"""Minimal stream over the log, and a simple model of it.

Belongs here: helpers shared by tests of log/ and raft/: simulated threads, files that fail on demand, a stream that
logs messages and removals and can be reopened, and a model of it over a dict.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lakestream.log.format.files import Brief, Files, InlineIo, Io
from lakestream.log.format.frame import HEADER_SIZE as FRAME_HEADER
from lakestream.log.format.frame import Frame, Kind, decode_frame, encode_header
from lakestream.log.format.record import Record, encode_record, iter_records, record_length
from lakestream.log.format.segment import HEADER_SIZE, decode_segment_header
from lakestream.log.store.log import Appended
from lakestream.log.store.segment_log import LogOptions
from lakestream.log.store.segment_store import open_store
from lakestream.log.store.store import Store
from lakestream.raft.group.group import Callbacks, Committed, Proposal
from lakestream.raft.group.solo import SoloGroup

Message = tuple[bytes, bytes, bytes]  # subject, header, data
T0 = 1_700_000_000_000_000_000


class HeldIo(Io):
    """`Io` in which work waits until the test runs it, and its result until the test delivers it."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []

    def submit(
        self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None], brief: Brief = Brief.NO
    ) -> None:
        self.waiting.append((work, done))

    def run(self) -> Callable[[], None]:
        """Do the oldest work; return a function that delivers its result."""
        work, done = self.waiting.pop(0)
        try:
            result = work()
        except Exception as error:
            return lambda error=error: done(None, error)  # type: ignore[misc]
        return lambda: done(result, None)

    def run_all(self) -> None:
        while self.waiting:
            self.run()()


class QuickFiles(Files):
    """Files without fsync: a killed process loses nothing by that, and the tests are not about power losses."""

    def sync(self, fd: int) -> None:
        return

    def sync_directory(self, path: str) -> None:
        return


class Clock:
    """Wall clock that moves only in the test."""

    def __init__(self) -> None:
        self.time_ns = T0

    def __call__(self) -> int:
        return self.time_ns


def message(number: int, subject: bytes = b"") -> Message:
    header = b"NATS/1.0\r\nN: %d\r\n\r\n" % number if number % 3 == 0 else b""
    return (subject or b"S.%d" % (number % 5), header, b"data-%d-" % number + b"x" * (number * 7 % 40))


_opened: list[Store] = []


def close_all() -> None:
    """Close the descriptors of every MiniStream without a checkpoint, as if the process had been killed."""
    for store in _opened:
        store.log.close()
        rows: Any = store._rows
        rows.close()
        rows.cache.sweep()
    _opened.clear()


def forget_all() -> None:
    """Forget every MiniStream, for files that need no closing."""
    _opened.clear()


@pytest.fixture
def closing() -> Iterator[None]:
    """Call `close_all` after the test."""
    yield
    close_all()


class MiniStream:
    """Simplified use of a store as in JetStream: messages in batches, and removals as operations."""

    def __init__(
        self,
        directory: str,
        options: LogOptions | None = None,
        files: Files | None = None,
        io: Any = None,
        now: Callable[[], int] | None = None,
        alone: bool = False,
    ) -> None:
        self.io = io or InlineIo()
        self.options = options or LogOptions(seal_age_ns=1 << 60)
        files, now = files or QuickFiles(), now or Clock()
        self.store = open_store(
            directory, self.io, self.options, files=files, now=now, durable_through=None if alone else 0
        )
        _opened.append(self.store)
        self.failures: list[Exception] = []
        self.replayed = 0
        for frame, at in self.store.replay():
            self.apply(frame, at)
            self.replayed += 1
        self.store.describe("uid-1", "ORDERS", "$G", b'{"name":"ORDERS"}')
        self.group = SoloGroup(self.store.log, self.io, Callbacks(self._committed, self.failures.append))

    def publish(self, *messages: Message) -> None:
        """Propose one frame with these messages, numbered from the stream's end."""
        self.propose([self.messages(self.store.last_seq + 1, *messages)])

    @staticmethod
    def messages(first: int, *messages: Message) -> Proposal:
        records = [encode_record(seq, T0 + seq, *message) for seq, message in enumerate(messages, first)]
        return Proposal(Kind.MESSAGES, records, len(records), None)

    def operate(self, name: str, seq: int) -> None:
        self.propose([self.operation(name, seq)])

    @staticmethod
    def operation(name: str, seq: int) -> Proposal:
        return Proposal(Kind.OPERATION, msgspec.msgpack.encode((name, seq)), 0, None)

    def propose(self, proposals: list[Proposal]) -> None:
        self.group.propose(proposals)

    def _committed(self, entries: list[Committed]) -> None:
        for entry in entries:
            self.apply(entry.frame, entry.at)

    def apply(self, frame: Frame, at: Appended) -> None:
        if frame.kind == Kind.MESSAGES:
            self.store.apply_records(at, iter_records(frame.body))
        elif frame.kind == Kind.OPERATION:
            name, seq = msgspec.msgpack.decode(frame.body, type=tuple[str, int])
            getattr(self.store, name)(seq)
        self.store.applied = frame.index

    def all(self) -> list[Record]:
        return self.store.read_run(1, 1 << 30, 1 << 40)


class Model:
    """Model of the same stream over a dict."""

    def __init__(self) -> None:
        self.live: dict[int, Record] = {}
        self.first_seq = 0
        self.last_seq = 0

    def publish(self, *messages: Message) -> None:
        for subject, header, data in messages:
            self.last_seq += 1
            self.live[self.last_seq] = Record(self.last_seq, T0 + self.last_seq, subject, header, data)
            if len(self.live) == 1:
                self.first_seq = self.last_seq

    def operate(self, name: str, seq: int) -> None:
        if name == "remove":
            if self.live.pop(seq, None) is not None:
                self._first()
        elif name == "remove_through":
            doomed = [number for number in self.live if number <= seq]
            for number in doomed:
                del self.live[number]
            if doomed:
                self._first()
        elif name == "set_first" and (seq > self.first_seq or seq > self.last_seq + 1):
            self.live = {number: record for number, record in self.live.items() if number >= seq}
            self.last_seq = max(self.last_seq, seq - 1)
            self._first()

    def _first(self) -> None:
        self.first_seq = min(self.live, default=self.last_seq + 1)

    @property
    def bytes(self) -> int:
        return sum(record_length(r.subject, r.header, r.data) for r in self.live.values())

    def check(self, store: Store, local: bool = True) -> None:
        """Assert that every query of the store returns the model's answer."""
        assert (store.msgs, store.bytes) == (len(self.live), self.bytes)
        assert (store.first_seq, store.last_seq) == (self.first_seq, self.last_seq)
        assert store.first_time == (self.live[self.first_seq].time_ns if self.live else 0)
        by_subject: dict[bytes, list[int]] = {}
        for record in self.live.values():
            by_subject.setdefault(record.subject, []).append(record.seq)
        assert {subject: store.subjects.seqs(subject) for subject, _ in store.subjects.items()} == by_subject
        for seq, record in self.live.items():
            assert store.subject_of(seq) == record.subject
            assert store.time_of(seq) == record.time_ns
            assert store.size_of(seq) == record_length(record.subject, record.header, record.data)
        if local:
            assert store.read_run(1, 1 << 30, 1 << 40) == list(self.live.values())
            assert [store.read(seq) for seq in self.live] == list(self.live.values())


def segment_files(directory: str) -> list[str]:
    """Return the paths of the segments of the stream in `directory`, ascending."""
    base = os.path.join(directory, "log")
    return [os.path.join(base, name) for name in sorted(os.listdir(base)) if name.endswith(".seg")]


def flip(path: str, offset: int, bit: int = 0) -> None:
    """Flip one bit of a file."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def alter(log: Path, seq: int, subject: bytes = b"", files: Files | None = None) -> None:
    """Change a message in the segments of a log directory so that every CRC is right and its length the same: its
    payload, or its subject to one of the same length. `files`: of an encrypted store."""
    files = files or Files()
    for path in sorted(log.glob("*.seg")):
        content = bytearray(files.read(str(path)))
        header = decode_segment_header(bytes(content[:HEADER_SIZE]))
        assert not isinstance(header, str), header
        offset = HEADER_SIZE
        while isinstance(frame := decode_frame(bytes(content), offset, len(content), header.salt), Frame):
            records = list(iter_records(frame.body)) if frame.kind == Kind.MESSAGES else []
            if any(each.seq == seq for each in records):
                body = b"".join(
                    encode_record(each.seq, each.time_ns, each.subject, each.header, each.data)
                    if each.seq != seq
                    else encode_record(seq, each.time_ns, subject or each.subject, each.header, each.data[::-1])
                    for each in records
                )
                assert len(body) == len(frame.body)
                assert body != frame.body
                changed = Frame(frame.kind, frame.term, frame.index, frame.count, body, frame.write)
                whole = encode_header(changed, frame.write, header.salt) + body
                content[offset : offset + len(whole)] = whole
                files.write_whole(str(path), [bytes(content)])
                return
            offset += FRAME_HEADER + len(frame.body)
    raise AssertionError(f"no segment of {log} has message {seq}")
