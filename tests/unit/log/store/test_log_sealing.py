"""Tests of sealing: its conditions, the footer, and that a sealed segment never changes."""

from __future__ import annotations

import os
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.frame import Kind
from lakestream.log.format.record import decode_record, iter_records
from lakestream.log.format.segment import SealedSegment, decode_segment_header, iter_frames, read_footer
from lakestream.log.store.segment_log import LogOptions
from tests.unit.logkit import T0, Clock, HeldIo, MiniStream, message, segment_files

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("closing")]

SECOND = 1_000_000_000


def aged(directory: str) -> tuple[MiniStream, Clock]:
    clock = Clock()
    return MiniStream(directory, LogOptions(seal_age_ns=10 * SECOND), now=clock), clock


def seal(stream: MiniStream, clock: Clock) -> SealedSegment:
    clock.time_ns += 10 * SECOND
    before = len(stream.store.sealed())
    stream.store.seal_if_old()
    assert len(stream.store.sealed()) == before + 1
    return stream.store.sealed()[-1]


def test_the_footer_says_what_the_segment_holds_and_what_died(tmp_path: Path) -> None:
    stream, clock = aged(str(tmp_path))
    stream.publish(*[message(number) for number in range(1, 11)])
    stream.operate("remove", 1)  # the first one: the floor shows it
    stream.operate("remove", 4)
    stream.operate("remove", 10)
    first = seal(stream, clock)
    footer, tables, end = read_footer(first.path)
    assert (footer.uid, footer.stream, footer.account) == ("uid-1", "ORDERS", "$G")
    assert footer.config == b'{"name":"ORDERS"}'
    assert (footer.first_index, footer.last_index, footer.last_term) == (1, 4, 1)
    assert (footer.first_seq, footer.last_seq, footer.count) == (1, 10, 10)
    assert (footer.first_time, footer.last_time) == (T0 + 1, T0 + 10)
    assert (footer.floor, footer.removed, footer.subjects) == (2, [4, 10], 5)
    assert footer.bytes == sum(tables.lengths)
    assert footer.runs == [(1, 10)]
    assert footer.closed_ns == clock.time_ns
    assert end == stream.store.log.segments[0].end  # type: ignore[union-attr]

    # A removal of earlier rows is stored in the segment that was open then, even if that has no rows itself.
    stream.operate("remove", 7)
    second, none, _ = read_footer(seal(stream, clock).path)
    assert (second.floor, second.removed, second.count, len(none)) == (2, [7], 0, 0)
    assert (second.first_seq, second.last_seq, second.first_time, second.last_time) == (11, 10, 0, 0)

    stream.publish(message(11))
    stream.operate("remove", 6)
    stream.operate("remove_through", 8)
    third, _, _ = read_footer(seal(stream, clock).path)
    assert (third.first_seq, third.last_seq, third.floor, third.removed) == (11, 11, 9, [])

    stream.operate("set_first", 100)
    fourth, _, _ = read_footer(seal(stream, clock).path)
    assert (fourth.first_seq, fourth.last_seq, fourth.floor, fourth.removed) == (12, 99, 100, [])
    stream.publish(message(12))
    fifth, tables, _ = read_footer(seal(stream, clock).path)
    assert (fifth.first_seq, fifth.last_seq, fifth.count, fifth.runs) == (100, 100, 1, [(100, 1)])


def test_a_sealed_segment_alone_gives_its_rows(tmp_path: Path) -> None:
    stream, clock = aged(str(tmp_path))
    for number in range(1, 8):
        stream.publish(message(number), message(number + 100))
        stream.operate("remove", 2)
    written = {record.seq: record for record in stream.all()}
    sealed = seal(stream, clock)
    content = Path(sealed.path).read_bytes()
    assert len(content) == sealed.bytes
    header = decode_segment_header(content)
    assert not isinstance(header, str)
    footer, tables, end = read_footer(sealed.path)
    rows = []
    for frame, at in iter_frames(content, sealed.path, header, end):
        if frame.kind == Kind.MESSAGES:
            assert content[at : at + len(frame.body)] == frame.body
            rows += list(iter_records(frame.body))
    assert [row.seq for row in rows] == list(range(1, 15))
    assert {row.seq: row for row in rows if row.seq not in footer.removed} == written
    for row in rows:
        at = tables.offsets[row.seq - footer.first_seq]
        assert decode_record(content, at) == row
        assert tables.lengths[row.seq - footer.first_seq] == len(content[at : at + tables.lengths[tables.row(row.seq)]])
    for cut in (content[:-1], content[:end]):
        Path(sealed.path).write_bytes(cut)
        with pytest.raises(CorruptLog, match="footer"):
            read_footer(sealed.path)


def test_a_segment_is_sealed_by_size_with_the_next_write(tmp_path: Path) -> None:
    stream = MiniStream(str(tmp_path), LogOptions(seal_bytes=1000, seal_age_ns=1 << 60))
    handed_on: list[SealedSegment] = []
    stream.store.log.on_sealed = handed_on.append
    for number in range(1, 60):
        stream.publish(message(number))
    assert len(handed_on) >= 4
    assert handed_on == stream.store.sealed()
    assert [s.path for s in handed_on] == segment_files(str(tmp_path))[:-1]
    for one, other in pairwise(handed_on):
        assert other.first_index == one.last_index + 1
        assert other.first_seq == one.last_seq + 1
    frames_end = read_footer(handed_on[0].path)[2]
    assert 1000 <= frames_end < 1000 + 250


def test_what_is_handed_on_already_has_a_successor_on_disk(tmp_path: Path) -> None:
    """A sealed segment is handed on only after its successor is on disk.

    So recovery, which may truncate the last segment, never changes a file to which the lake has a hard link.
    """
    stream, clock = aged(str(tmp_path))
    seen: list[list[str]] = []
    stream.store.log.on_sealed = lambda sealed: seen.append(segment_files(str(tmp_path)))
    stream.publish(message(1))
    seal(stream, clock)
    assert len(seen[0]) == 2


def test_a_failing_hand_over_does_not_stop_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stream, clock = aged(str(tmp_path))

    def broken(sealed: SealedSegment) -> None:
        raise OSError("the lake is gone")

    stream.store.log.on_sealed = broken
    stream.publish(message(1))
    seal(stream, clock)
    stream.publish(message(2))
    assert len(stream.all()) == 2
    assert stream.failures == []
    assert "the lake is gone" in caplog.text


def test_only_segments_with_messages_or_removals_are_sealed_by_age(tmp_path: Path) -> None:
    stream, clock = aged(str(tmp_path))
    stream.store.seal_if_old()
    stream.operate("skip", 0)  # an entry without effect
    clock.time_ns += 3600 * SECOND
    stream.store.seal_if_old()
    assert stream.store.sealed() == []
    stream.publish(message(1))
    stream.store.seal_if_old()
    assert len(stream.store.sealed()) == 1
    clock.time_ns += 3600 * SECOND
    stream.store.seal_if_old()
    assert len(stream.store.sealed()) == 1
    stream.operate("remove", 1)
    clock.time_ns += 9 * SECOND
    stream.store.seal_if_old()
    assert len(stream.store.sealed()) == 1
    clock.time_ns += SECOND
    stream.store.seal_if_old()
    assert len(stream.store.sealed()) == 2


def test_sealed_segments_never_change_again(tmp_path: Path) -> None:
    options = LogOptions(seal_bytes=800, seal_age_ns=1 << 60)
    stream = MiniStream(str(tmp_path), options)
    known: dict[str, bytes] = {}
    for number in range(1, 80):
        stream.publish(message(number))
        if number % 5 == 0:
            stream.operate("remove", number - 3)
        if number % 20 == 0:
            stream.store.close()
            stream = MiniStream(str(tmp_path), options)
        for sealed in stream.store.sealed():
            content = Path(sealed.path).read_bytes()
            assert known.setdefault(sealed.path, content) == content
    assert len(known) > 5


def test_removals_before_a_restart_reach_the_footer(tmp_path: Path) -> None:
    for checkpointed in (False, True):
        directory = str(tmp_path / str(checkpointed))
        stream, _ = aged(directory)
        stream.publish(*[message(number) for number in range(1, 11)])
        stream.operate("remove", 5)
        if checkpointed:
            stream.store.checkpoint(b"")
        stream.operate("remove", 7)
        stream, clock = aged(directory)
        assert stream.replayed == (1 if checkpointed else 3)
        stream.operate("remove", 9)
        assert read_footer(seal(stream, clock).path)[0].removed == [5, 7, 9]


def test_a_checkpoint_taken_while_a_seal_is_under_way_keeps_the_removals(tmp_path: Path) -> None:
    io, clock = HeldIo(), Clock()
    stream = MiniStream(str(tmp_path / "s"), LogOptions(seal_age_ns=SECOND), io=io, now=clock)
    for step in (lambda: stream.publish(message(1), message(2), message(3)), lambda: stream.operate("remove", 2)):
        step()
        io.run_all()
    clock.time_ns += SECOND
    stream.store.seal_if_old()
    stream.store.checkpoint(b"")
    io.waiting.reverse()
    io.run()()  # the checkpoint is written first
    shutil.copytree(tmp_path / "s", tmp_path / "killed")
    io.run()()
    killed, again = MiniStream(str(tmp_path / "killed")), MiniStream(str(tmp_path / "s"))
    assert killed.replayed == again.replayed == 0
    before, after = killed.store.removals(), again.store.removals()
    assert (before.index, before.removed, list(before.erased), before.any) == (1, [2], [], True)
    assert (after.index, after.removed, list(after.erased), after.any) == (3, [], [], False)
    assert read_footer(again.store.sealed()[0].path)[0].removed == [2]


def test_a_crash_between_sealing_and_the_next_segment_goes_on(tmp_path: Path) -> None:
    stream, clock = aged(str(tmp_path))
    stream.publish(message(1), message(2))
    stream.operate("remove", 1)
    seal(stream, clock)
    os.unlink(segment_files(str(tmp_path))[-1])
    again, _ = aged(str(tmp_path))
    assert [record.seq for record in again.all()] == [2]
    assert len(again.store.sealed()) == 1
    assert again.store.removals().removed == []
    again.publish(message(3))
    assert [record.seq for record in MiniStream(str(tmp_path)).all()] == [2, 3]


def test_truncating_takes_back_what_was_never_committed(tmp_path: Path) -> None:
    from lakestream.log.format.frame import Frame

    stream = MiniStream(str(tmp_path))
    stream.publish(message(1))
    log = stream.store.log
    log.append([Frame(Kind.NOOP, 2, index, 0, b"x" * index) for index in (2, 3, 4)])
    log.truncate(2)  # type: ignore[union-attr]
    assert log.last_index == 2
    log.append([Frame(Kind.NOOP, 3, 3, 0, b"other")])
    found = [(frame.index, frame.term, frame.body) for frame, _ in log.frames(2)]
    assert found == [(2, 2, b"xx"), (3, 3, b"other")]
    log.close()
    again = MiniStream(str(tmp_path))
    assert (again.store.log.last_index, again.store.log.last_term) == (3, 3)
    assert again.group.term == 3


def test_truncating_never_reaches_into_a_sealed_segment(tmp_path: Path) -> None:
    stream, clock = aged(str(tmp_path))
    stream.publish(message(1))
    stream.publish(message(2))
    seal(stream, clock)
    with pytest.raises(ValueError, match="sealed"):
        stream.store.log.truncate(1)  # type: ignore[union-attr]
