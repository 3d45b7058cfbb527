"""Tests of a stream's past read from the log alone, while its segments are released."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakestream.log.format.departures import Point
from lakestream.log.format.errors import Compacted
from lakestream.log.store.past import LogPast
from lakestream.log.store.segment_log import LogOptions
from tests.unit.logkit import MiniStream, closing

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("closing")]

__all__ = ["closing"]

HELD = 200


def rolling(path: Path, monkeypatch: pytest.MonkeyPatch) -> MiniStream:
    """Return a stream with at most `HELD` messages that has removed as many, with outlines of 30 messages each."""
    monkeypatch.setattr("lakestream.log.format.outline.MERGE_ROWS", 30)
    stream = MiniStream(str(path), LogOptions(seal_bytes=1000, seal_age_ns=1 << 60, retain_bytes=8000))
    store = stream.store
    store.keep_departures(True)
    for number in range(1, 2 * HELD):
        stream.publish((b"KV.%d" % number, b"", b"x" * 40))
        while store.msgs > HELD:
            store.remove(store.first_seq)
        if number % 20 == 0:
            store.checkpoint(b"")
            store.drop_through(1 << 60)
    return stream


def test_what_the_logs_departures_name_keeps_its_outline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = rolling(tmp_path, monkeypatch).store
    log = LogPast(store)
    assert log.first_index > 1
    at = store.local_floor + 5
    assert log.holds(at)
    returned = {
        seq: subject
        for seqs in log.returning(Point(seq=at), at)()
        for seq, subject in zip(seqs, log.subjects(seqs), strict=True)
    }
    assert returned == {seq: b"KV.%d" % seq for seq in range(max(1, at - HELD + 1), store.first_seq)}


def test_outlines_go_once_no_departure_of_the_log_names_their_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = rolling(tmp_path, monkeypatch).store
    assert store._rows.outlines[0].info.first_seq > 1  # type: ignore[attr-defined]


def test_a_message_that_no_outline_has_is_not_taken_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rolling(tmp_path, monkeypatch).store._rows
    with pytest.raises(Compacted, match="sequence 1"):
        rows.subjects([1])
    with pytest.raises(Compacted, match="sequence 1"):
        rows.subject(1)


def test_a_point_that_has_yet_to_come_is_behind_all_that_happened(tmp_path: Path) -> None:
    stream = MiniStream(str(tmp_path), LogOptions(seal_bytes=65, seal_age_ns=1 << 60))
    store = stream.store
    store.keep_departures(True)
    stream.publish((b"a", b"", b""), (b"b", b"", b""))
    last_time = store.last_time
    store.operation_ns = last_time + 500
    stream.operate("remove", 1)  # a purge, long after the last message
    store.operation_ns = None
    for _ in range(2):
        stream.operate("remove", 99)  # entries that remove nothing, in segments of their own
    assert [len(each) for each in [store.departures] if each is not None] == [0]
    log = LogPast(store)
    assert log.by_now(Point(before_ns=last_time)) == Point(before_ns=last_time)
    assert log.by_now(Point(before_ns=last_time + 9999)) == Point(before_ns=last_time + 501)
    assert log.by_now(Point(before_ns=last_time + 100)) == Point(before_ns=last_time + 100)
    assert log.by_now(Point(seq=2)) == Point(seq=2)


def test_what_was_removed_is_found_once_right_after_a_seal(tmp_path: Path) -> None:
    stream = MiniStream(str(tmp_path), LogOptions(seal_bytes=1000, seal_age_ns=1 << 60))
    store = stream.store
    store.keep_departures(True)
    for number in range(1, 11):
        stream.publish((b"a.%d" % number, b"", b"x"))
    store.remove_all([(seq, b"a.%d" % seq) for seq in (3, 4, 7, 8)])
    stream.publish((b"b", b"", b"x" * 1000))
    stream.publish((b"c", b"", b"x"))  # in the next segment, without a removal since
    log = LogPast(store)
    assert [each.footer is None for each in log.segments] == [False, True]
    found = [seq for seqs in log.returning(Point(seq=9), 9)() for seq in seqs]
    assert found == [3, 4, 7, 8]
    assert log.subjects(found) == [b"a.3", b"a.4", b"a.7", b"a.8"]
    store.remove_all([(10, b"a.10")])
    assert [list(seqs) for seqs in LogPast(store).returning(Point(seq=9), 10)()] == [[3, 4, 7, 8, 10]]
