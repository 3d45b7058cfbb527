"""Streams that move between two stores, whose journals know nothing of each other: nothing is lost, and what was erased
is nowhere any more."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.log.format.files import InlineIo, UnsyncedFiles
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.format.record import encode_record, iter_records
from lakestream.log.format.segment import segment_name
from lakestream.log.sealing.files import SealedFiles
from lakestream.log.sealing.keys import Keyring
from lakestream.log.store.journal import NAME
from lakestream.log.store.log import Appended
from lakestream.log.store.segment_log import LogOptions, SegmentLog
from lakestream.log.store.segment_store import SegmentStore
from lakestream.meta.stores import FileStores
from tests.unit.logkit import T0

pytestmark = pytest.mark.unit


class Stream:
    """A stream of messages that can be erased, in one of two stores.

    Attributes:
        holder: number of the store that has it.
        payloads: of its messages by sequence; `erased`: the sequences of those that are gone.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.holder = root, 0
        self.payloads, self.erased = dict[int, bytes](), set[int]()
        self.stores = [self.started(number) for number in range(2)]
        made = self.stores[0].create("A", "X", "u-X", b"creation", memory=False)
        assert isinstance(made, SegmentStore)
        self.store = made
        self.store.describe("u-X", "X", "A", b"{}")
        self.publish(together=False)
        self.rounds(0)  # it is not new any more, and the journal knows nothing of its creation

    def place(self, number: int) -> Path:
        return self.root / f"{number}"

    def started(self, number: int) -> FileStores:
        options = LogOptions(retain_bytes=0, retain_segments=0)
        return FileStores(str(self.place(number)), options, 1 << 20, InlineIo(), UnsyncedFiles())

    def open(self) -> None:
        """Open it as a start does."""
        opened = self.stores[self.holder].open("A", "X")
        assert isinstance(opened, SegmentStore)
        self.store = opened
        for frame, at in self.store.replay():
            self._apply(frame, at)
        self.store.describe("u-X", "X", "A", b"{}")

    @property
    def log(self) -> SegmentLog:
        assert isinstance(self.store.log, SegmentLog)
        return self.store.log

    def _apply(self, frame: Frame, at: Appended) -> None:
        if frame.kind is Kind.MESSAGES:
            self.store.apply_records(at, iter_records(frame.body))
        elif frame.body != b"creation":
            self.store.erasing = self.store.shredding = True
            self.store.remove(msgspec.msgpack.decode(frame.body, type=int))
            self.store.erasing = self.store.shredding = False
        self.store.applied = frame.index

    def _append(self, kind: Kind, body: bytes, together: bool) -> None:
        frame = Frame(kind, 1, self.log.last_index + 1, int(kind is Kind.MESSAGES), body)
        [placed] = SegmentLog.append_together([(self.log, [frame])]) if together else [self.log.append([frame])]
        assert not isinstance(placed, Exception)
        self._apply(frame, placed[0])

    def publish(self, together: bool = True) -> None:
        """Store a message, through the journal or not."""
        seq = self.store.last_seq + 1
        self.payloads[seq] = b"secret-%d." % seq
        self._append(Kind.MESSAGES, encode_record(seq, T0 + seq, b"x", b"", self.payloads[seq]), together)

    def erase(self, seq: int) -> None:
        """Delete a message, and destroy its bytes in the log."""
        self._append(Kind.OPERATION, msgspec.msgpack.encode(seq), together=True)
        self.erased.add(seq)
        while self.store.shred():
            pass

    def move(self) -> None:
        """Give it to the other store."""
        self.log.settle_new()
        self.store.close()
        self.stores[self.holder].give("A", "X", str(self.place(1 - self.holder) / "jetstream"))
        self.holder = 1 - self.holder
        self.open()

    def killed(self, number: int, opens: bool = True) -> None:
        """Kill the process of one store; its successor finds the files, and opens the stream if it is there."""
        if number == self.holder:
            self.store.abandon()
        left, place = self.stores[number], self.place(number)
        copy = place.with_name("copy")
        shutil.copytree(place, copy)
        left.close()
        shutil.rmtree(place)
        copy.rename(place)
        self.stores[number] = self.started(number)
        if number == self.holder and opens:
            self.open()

    def power_lost(self) -> None:
        """Kill both; what was not synced in the log is lost."""
        self.store.abandon()
        synced, segment = self.log.synced, self.log.open_segment.path
        assert synced[1] == self.log.open_segment.first_index
        os.truncate(segment, synced[2])
        for number in (1 - self.holder, self.holder):
            self.killed(number)

    def check(self) -> None:
        """Everything is there, and in the log nothing that was erased."""
        found = {record.seq: record.data for record in self.store.read_run(1, 1 << 30, 1 << 40)}
        assert found == {seq: data for seq, data in self.payloads.items() if seq not in self.erased}
        assert not self.on_disk("*.seg")

    def on_disk(self, names: str) -> list[tuple[int, Path]]:
        """Return the erased messages that files have, and the files."""
        files = [path for path in self.root.rglob(names) if path.is_file()]
        return [(seq, path) for path in files for seq in self.erased if self.payloads[seq] in path.read_bytes()]

    def rounds(self, number: int, count: int = 2) -> None:
        for _ in range(count):
            assert self.stores[number].mark() == []

    def end(self) -> None:
        self.store.close()
        for each in self.stores:
            each.close()


ACTS: list[tuple[str, Callable[[Stream], None]]] = [
    ("publish", Stream.publish),
    ("publish again", Stream.publish),
    ("publish alone", lambda stream: stream.publish(together=False)),
    ("erase", lambda stream: _erase_newest(stream)),
    ("move", Stream.move),
    ("move again", Stream.move),
    ("round of 0", lambda stream: stream.rounds(0, 1)),
    ("round of 1", lambda stream: stream.rounds(1, 1)),
    ("kill 0", lambda stream: stream.killed(0)),
    ("kill 1", lambda stream: stream.killed(1)),
    ("power", Stream.power_lost),
]


def _erase_newest(stream: Stream) -> None:
    if left := sorted(stream.payloads.keys() - stream.erased):
        stream.erase(left[-1])


@settings(max_examples=60)
@given(st.lists(st.sampled_from(ACTS), min_size=6, max_size=16))
def test_a_stream_that_moves_loses_nothing_and_gets_nothing_back(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, Callable[[Stream], None]]]
) -> None:
    stream = Stream(tmp_path_factory.mktemp("stores"))
    for _, act in acts:
        act(stream)
        stream.check()
    for number in range(2):
        stream.rounds(number)
    assert not stream.on_disk("*")
    stream.end()
    shutil.rmtree(stream.root)


def test_a_message_that_is_erased_elsewhere_leaves_the_journal_of_the_former_holder(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    stream.publish()
    stream.move()
    stream.erase(2)
    assert all(path.name.startswith(NAME) for _, path in stream.on_disk("*"))
    assert stream.on_disk("*")
    stream.rounds(0)
    assert not stream.on_disk("*")


def test_a_message_that_only_the_journal_has_any_more_is_erased_there(tmp_path: Path) -> None:
    """Its segment has left the log, and the file was emptied without overwriting what it had."""
    stream = Stream(tmp_path)
    stream.publish()
    assert stream.log.seal(stream.store.sealing_state()).last_seq == 2
    stream.rounds(0)
    stream.publish(together=False)
    stream.log.seal(stream.store.sealing_state())  # the newest sealed one stays
    stream.store.checkpoint(b"")
    stream.store.drop_through(stream.store.applied)
    assert not list(tmp_path.rglob(segment_name(1)))
    stream.erase(2)
    assert all(path.name.startswith(NAME) for _, path in stream.on_disk("*"))
    assert stream.on_disk("*")
    stream.rounds(0)
    assert not stream.on_disk("*")


def test_erased_bytes_do_not_come_back_into_a_sealed_segment_with_a_damaged_footer(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    stream.publish()
    stream.move()
    stream.erase(2)
    stream.move()
    [sealed] = [each.path for each in stream.log.sealed]
    os.truncate(sealed, os.path.getsize(sealed) - 1)
    before = Path(sealed).read_bytes()
    stream.killed(0, opens=False)
    assert Path(sealed).read_bytes() == before


@pytest.mark.parametrize("sealed", [False, True])
def test_a_stream_that_comes_back_while_it_is_given_stays(tmp_path: Path, sealed: bool) -> None:
    """Its next holder was restarted, has found it, and gives it back, while the last sync here takes long."""

    class Slow(UnsyncedFiles):
        def sync_directory(self, path: str) -> None:
            if path == str(here.parent) and there.exists():
                os.rename(there, here)

    here, there = (tmp_path / f"{number}" / "jetstream" / "A" / "streams" / "X" for number in range(2))
    files = SealedFiles(Slow(), str(tmp_path / "0" / "jetstream"), Keyring(["key"])) if sealed else Slow()
    stores = FileStores(str(tmp_path / "0"), LogOptions(), 1 << 20, InlineIo(), files)
    made = stores.create("A", "X", "u-X", b"creation", memory=False)
    assert isinstance(made.log, SegmentLog)
    made.log.settle_new()
    made.close()
    stores.give("A", "X", str(tmp_path / "1" / "jetstream"))
    assert stores.open("A", "X").log.last_index == 1
    stores.close()
