"""Tests of secure deletes in the log: the bytes are gone from the files, and nothing else has changed."""

from __future__ import annotations

import os
import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.log.format.frame import Frame, Kind
from lakestream.log.format.record import decode_record, encode_record
from lakestream.log.format.segment import read_footer
from lakestream.log.store.checkpoint import NAME as CHECKPOINT
from lakestream.log.store.log import Appended
from lakestream.log.store.repair import verify
from lakestream.log.store.segment_log import LogOptions
from lakestream.log.store.shred import blank_header, blank_record
from lakestream.protocol import headers
from tests.faults.files import FaultyFiles
from tests.unit.logkit import Clock, HeldIo, MiniStream, message, segment_files

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("closing")]

SECOND = 1_000_000_000


class Stream(MiniStream):
    """Stream that can delete securely."""

    def apply(self, frame: Frame, at: Appended) -> None:
        if frame.kind == Kind.OPERATION:
            name, seq = msgspec.msgpack.decode(frame.body, type=tuple[str, int])
            if name == "shred":
                store = self.store
                store.erasing = store.shredding = True
                store.remove(seq)
                store.erasing = store.shredding = False
                store.applied = frame.index
                return
        super().apply(frame, at)


def opened(tmp_path: Path, **options: object) -> Stream:
    return Stream(str(tmp_path / "s"), LogOptions(seal_age_ns=1 << 60, **options), now=Clock())  # type: ignore[arg-type]


def secret(number: int) -> tuple[bytes, bytes, bytes]:
    header = b"NATS/1.0\r\nNats-Msg-Id: id-%d\r\nPassword: hush-%d\r\n\r\n" % (number, number)
    return b"S.%d" % (number % 5), header, b"secret-%d." % number


def on_disk(tmp_path: Path, text: bytes) -> bool:
    return any(text in path.read_bytes() for path in (tmp_path / "s" / "log").iterdir())


def test_a_deleted_message_leaves_the_file_and_the_others_stay(tmp_path: Path) -> None:
    stream = opened(tmp_path)
    stream.publish(*[secret(number) for number in range(1, 6)])
    stream.publish(*[message(number) for number in range(6, 9)])
    stream.operate("shred", 3)
    before = stream.all()
    assert stream.store.shred(), "the segment has to be sealed first"
    (sealed,) = stream.store.sealed()
    size, untouched = os.path.getsize(sealed.path), read_footer(sealed.path)[0]
    assert untouched.shredded == untouched.erased == [(3, 3)]
    assert on_disk(tmp_path, b"secret-3.")
    assert stream.store.shred()
    assert not stream.store.shred(), "and that was all"
    for gone in (b"secret-3.", b"hush-3"):
        assert not on_disk(tmp_path, gone)
    for kept in (b"secret-2.", b"secret-4.", b"id-3", b"hush-4"):
        assert on_disk(tmp_path, kept)
    assert verify(stream.store.log.files, sealed.path)[1] == untouched  # type: ignore[union-attr]
    assert os.path.getsize(sealed.path) == size
    assert stream.all() == before
    stream.publish(message(9))
    again = opened(tmp_path)
    assert [record.seq for record in again.all()] == [1, 2, 4, 5, 6, 7, 8, 9]
    assert again.all()[:7] == before


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_restart_forgets_nothing(tmp_path: Path, checkpointed: bool) -> None:
    stream = opened(tmp_path)
    stream.publish(*[secret(number) for number in range(1, 6)])
    stream.store.ask_seal()
    stream.publish(secret(6), secret(7))
    stream.operate("shred", 2)
    stream.operate("shred", 6)
    if checkpointed:
        stream.store.checkpoint(b"")
    stream = opened(tmp_path)
    assert stream.store.doomed == [2, 6]
    while stream.store.shred():
        pass
    assert not on_disk(tmp_path, b"secret-2.")
    assert not on_disk(tmp_path, b"secret-6.")
    if checkpointed:
        os.unlink(tmp_path / "s" / CHECKPOINT)
    stream = opened(tmp_path)
    assert [record.seq for record in stream.all()] == [1, 3, 4, 5, 7]
    stream.store.checkpoint(b"")
    written = {path: os.stat(path).st_ino for path in segment_files(str(tmp_path / "s"))}
    stream = opened(tmp_path)
    while stream.store.shred():
        pass
    assert {path: os.stat(path).st_ino for path in written} == written, "nothing is written twice"


def test_a_kill_in_the_middle_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    stream = opened(tmp_path)
    stream.publish(secret(1), secret(2))
    stream.operate("shred", 1)
    stream.store.checkpoint(b"")
    stream.store.ask_seal()
    for call in ("create", "write", "sync", "replace", "sync_directory"):
        files = FaultyFiles()
        stream = Stream(str(tmp_path / "s"), LogOptions(seal_age_ns=1 << 60), files=files, now=Clock())
        files.fail = call
        stream.store.shred()
        assert stream.store.doomed == [1], "it is asked again"
        assert [record.seq for record in opened(tmp_path).all()] == [2]
    stream = opened(tmp_path)
    stream.store.shred()
    assert stream.store.doomed == []
    assert not on_disk(tmp_path, b"secret-1.")
    assert not list((tmp_path / "s" / "log").glob("*.tmp"))


def test_with_other_members_the_segment_leaves_for_the_lake_instead(tmp_path: Path) -> None:
    stream = opened(tmp_path)
    for number in range(1, 5):
        stream.publish(secret(number))
        stream.store.ask_seal()
    stream.operate("shred", 2)
    stream.store.ask_seal()
    stream.store.checkpoint(b"")
    stream.store.log.propose_seal = lambda: None  # type: ignore[union-attr]
    assert not stream.store.shred()
    assert on_disk(tmp_path, b"secret-2.")
    stream.operate("shred", 4)
    assert [segment.first_seq for segment in stream.store.drop_through(1 << 60)] == [1, 2], "the newest one stays"
    assert not on_disk(tmp_path, b"secret-2.")
    assert stream.store.doomed == []
    assert stream.store.drop_through(1 << 60) == [], "the rest is the retained tail"


def test_it_waits_for_its_turn(tmp_path: Path) -> None:
    io = HeldIo()
    stream = Stream(str(tmp_path / "s"), LogOptions(seal_age_ns=1 << 60), io=io, now=Clock())
    for step in (lambda: stream.publish(secret(1)), lambda: stream.operate("shred", 1)):
        step()
        io.run_all()
    assert stream.store.shred()
    io.run_all()
    assert stream.store.shred()
    assert stream.store.shred(), "it is at work"
    assert len(io.waiting) == 1
    stream.store.abandon()
    io.run_all()
    assert on_disk(tmp_path, b"secret-1."), "a store that is closed is left alone"


LINES = st.lists(st.tuples(st.binary(max_size=12), st.booleans(), st.binary(max_size=12)), max_size=5)


@given(lines=LINES, data=st.binary(max_size=40), seed=st.integers(0, 99))
def test_a_blank_record_has_every_length_and_no_word_of_the_old(
    lines: list[tuple[bytes, bool, bytes]], data: bytes, seed: int
) -> None:
    mark = random.Random(seed).randbytes(16).hex().encode()
    header = b"NATS/1.0\r\n" + b"".join(name + b":" * colon + value + mark + b"\r\n" for name, colon, value in lines)
    ours = b"nats-msg-id: 7\r\nNats-Rollup:sub\r\nKV-Operation: DEL\r\n\r\n"
    old = encode_record(7, 9, b"a.b", header + ours, data + mark)
    new = blank_record(old)
    record = decode_record(new)
    named = [line for line in header.split(b"\r\n") if b":" in line]
    kept = [line for line in named if line.lower().startswith((b"nats-", b"kv-"))]
    assert new.count(mark) == sum(line.count(mark) for line in kept)
    assert (record.seq, record.time_ns, record.subject, record.data) == (7, 9, b"a.b", bytes(len(data) + 32))
    assert len(new) == len(old)
    assert record.header.endswith(ours)
    assert record.header == blank_header(header + ours)
    assert blank_record(new) == new
    for name in (b"Nats-Msg-Id", b"Nats-TTL", b"Nats-Rollup", b"KV-Operation"):  # an entry's effects stay the same
        assert headers.get(record.header, name) == headers.get(header + ours, name)
