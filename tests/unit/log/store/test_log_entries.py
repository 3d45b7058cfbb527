"""Tests of the log's functions for members of a group: entries by index, terms, seals through an entry."""

from __future__ import annotations

from array import array
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from lakestream.log.format.entries import MARK_BYTES, marks_of, read_entries
from lakestream.log.format.errors import Compacted, CorruptLog
from lakestream.log.format.files import InlineIo
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.format.segment import Footer, read_footer
from lakestream.log.store.log import SealState
from lakestream.log.store.recovery import open_log
from lakestream.log.store.repair import salvage
from lakestream.log.store.segment_log import LogOptions, SegmentLog
from lakestream.log.store.segment_store import open_store
from lakestream.log.store.store import Store
from tests.unit.logkit import Clock, MiniStream, QuickFiles, close_all, flip, message, segment_files

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("closing")]

NO_STATE = SealState("", "", "", b"", 0, 1, [], 0, array("Q"))


def log_in(directory: Path, **options: int) -> SegmentLog:
    return open_log(str(directory), QuickFiles(), LogOptions(**{"seal_age_ns": 1 << 60, **options}), Clock())


def frame(index: int, size: int = 10, term: int = 1, kind: Kind = Kind.NOOP) -> Frame:
    return Frame(kind, term, index, 0, b"%d" % index + b"." * size)


def indexes(log: SegmentLog, first: int, max_bytes: int) -> list[int]:
    found = log.entries(first, max_bytes)
    for each, at in found:
        assert each.body.startswith(b"%d." % each.index)
        assert at.index == each.index
    return [each.index for each, _ in found]


def filled(directory: Path, count: int, size: int, sealed: bool) -> SegmentLog:
    log = log_in(directory)
    for index in range(1, count + 1):
        log.append([frame(index, size)])
    if sealed:
        log.seal(NO_STATE)
    return log


@pytest.mark.parametrize("sealed", [False, True])
def test_entries_are_read_from_any_index_within_a_limit(tmp_path: Path, sealed: bool) -> None:
    log = filled(tmp_path, 300, 5000, sealed)
    rng = Random(7)
    for _ in range(60):
        first, most = rng.randrange(1, 301), rng.choice([1, 4000, 6000, 60_000, 1 << 30])
        found = indexes(log, first, most)
        assert found == list(range(first, first + len(found)))
        assert len(found) == max(1, min(301 - first, most // (5000 + 48 + len(str(first)))))
    log.close()


def test_a_sealed_segment_is_not_read_as_a_whole_for_one_entry(tmp_path: Path) -> None:
    log = filled(tmp_path, 400, 5000, sealed=True)
    read: list[int] = []

    class Counting(QuickFiles):
        def read_at(self, fd: int, length: int, offset: int) -> bytes:
            read.append(length)
            return super().read_at(fd, length, offset)

    log.files = Counting()
    assert indexes(log, 390, 1) == [390]
    assert sum(read) <= MARK_BYTES + 6000
    log.close()


def test_a_footer_without_marks_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = filled(tmp_path, 20, 100, sealed=True)
    footer = log.segments[0].footer
    assert footer is not None
    fields = {name: getattr(footer, name) for name in Footer.__struct_fields__ if name not in ("marks", "terms")}
    log.segments[0].footer = Footer(**fields)
    assert indexes(log, 15, 1 << 20) == list(range(15, 21))
    log.close()


def test_marks_are_some_way_apart(tmp_path: Path) -> None:
    log = filled(tmp_path, 1000, 1000, sealed=False)
    marks = marks_of(1, log.open_segment.frame_offsets)
    assert marks[0][0] == 1
    gaps = [b[1] - a[1] for a, b in pairwise(marks)]
    assert all(MARK_BYTES <= gap < MARK_BYTES + 2000 for gap in gaps)
    assert marks_of(1, type(log.open_segment.frame_offsets)("I")) == []
    log.close()


def test_a_long_entry_is_given_alone_and_whole(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.append([frame(1), frame(2, 3_000_000), frame(3)])
    for _ in range(2):
        assert indexes(log, 2, 100) == [2]
        assert indexes(log, 1, 100) == [1]
        assert indexes(log, 1, 4_000_000) == [1, 2, 3]
        if log.segments[0].footer is None:
            log.seal(NO_STATE)
    log.close()


def test_what_is_not_in_the_log_is_said_to_be_so(tmp_path: Path) -> None:
    log = filled(tmp_path, 5, 10, sealed=True)
    log.append([frame(6)])
    with pytest.raises(ValueError, match="entry 7 is not in the log"):
        log.entries(7, 1)
    log.forget(log.segments[:1])
    with pytest.raises(Compacted, match="entry 3 has left"):
        log.entries(3, 1)
    log.close()


def test_damage_in_what_is_read_is_noticed(tmp_path: Path) -> None:
    log = filled(tmp_path, 5, 10, sealed=False)
    path = log.open_segment.path
    offset = log.open_segment.frame_offsets[2]
    log.close()
    flip(path, offset + 50)
    segment = log.open_segment
    assert len(read_entries(QuickFiles(), segment, 1, 120)) == 2
    with pytest.raises(CorruptLog, match="crc"):
        read_entries(QuickFiles(), segment, 3, 1)


def test_the_terms_of_a_log_are_known_after_a_restart(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    for index, term in enumerate([1, 1, 2, 2, 5, 5, 5, 7], 1):
        log.append([frame(index, term=term)])
        if index in (2, 5):
            log.seal(NO_STATE)
    assert log.terms == [(1, 1), (3, 2), (5, 5), (8, 7)]
    log.close()
    again = log_in(tmp_path)
    assert again.terms == log.terms
    assert again.last_term == 7
    again.close()


def test_a_truncated_log_has_the_term_of_its_last_entry(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    for index, term in enumerate([1, 2, 3, 3], 1):
        log.append([frame(index, term=term)])
    log.truncate(2)
    assert (log.last_index, log.last_term, log.terms) == (2, 2, [(1, 1), (2, 2)])
    log.append([frame(3, term=2)])
    log.seal(NO_STATE)
    log.append([frame(4, term=4)])
    log.truncate(3)
    assert (log.last_index, log.last_term) == (3, 2)
    log.close()


def test_entries_behind_the_end_of_a_segment_move_to_the_next(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.append([frame(1), frame(2, kind=Kind.SEAL)])
    log.append([frame(3, term=2), frame(4, term=2)])
    log.append([frame(5, term=3)])
    moved = log.seal_through(NO_STATE, 2)
    assert [at.index for at in moved] == [3, 4, 5]
    assert [(segment.first_index, segment.last_index) for segment in log.segments] == [(1, 2), (3, 5)]
    assert read_footer(log.segments[0].path)[0].terms == [(1, 1)]
    assert indexes(log, 3, 1 << 20) == [3, 4, 5]
    for at in moved:
        [(each, place)] = log.entries(at.index, 1)
        assert (place.segment, place.offset) == (at.segment, at.offset)
        assert each.index == at.index
    log.append([frame(6, term=3)])
    log.close()
    again = log_in(tmp_path)
    assert again.terms == [(1, 1), (3, 2), (5, 3)]
    assert again.last_index == 6
    again.close()


def test_a_replay_ends_where_entries_are_known_to_be_committed(tmp_path: Path) -> None:
    stream = MiniStream(str(tmp_path))
    for number in range(1, 6):
        stream.publish(message(number))
    close_all()
    store = open_store(str(tmp_path), InlineIo(), files=QuickFiles(), now=Clock())
    assert [each.index for each, _ in _applied(store, 3)] == [1, 2, 3]
    assert (store.log.last_index, store.last_seq) == (5, 3)
    store.log.truncate(3)  # type: ignore[union-attr]
    store.close()
    again = MiniStream(str(tmp_path))
    assert again.store.last_seq == 3
    again.publish(message(9))
    assert [record.seq for record in again.all()] == [1, 2, 3, 4]


def _applied(store: Store, through: int) -> list[tuple[Frame, object]]:
    from lakestream.log.format.record import iter_records

    found = []
    for each, at in store.replay(through=through):
        store.apply_records(at, iter_records(each.body))
        store.applied = each.index
        found.append((each, at))
    return found


def test_an_entry_that_was_durable_and_is_gone_is_damage(tmp_path: Path) -> None:
    log = filled(tmp_path, 3, 10, sealed=False)
    path = log.open_segment.path
    cut = log.open_segment.frame_offsets[2]
    log.close()
    with open(path, "r+b") as file:
        file.truncate(cut)
    with pytest.raises(CorruptLog, match="entry 3, which was durable"):
        open_log(str(tmp_path), QuickFiles(), LogOptions(), Clock(), durable_through=3)
    open_log(str(tmp_path), QuickFiles(), LogOptions(), Clock(), durable_through=2).close()


def test_whole_logs_are_not_cut_by_a_salvage(tmp_path: Path) -> None:
    stream = MiniStream(str(tmp_path), LogOptions(seal_bytes=500, seal_age_ns=1 << 60))
    for number in range(1, 20):
        stream.publish(message(number))
    expected = stream.all()
    stream.store.close()
    files = {path: Path(path).read_bytes() for path in segment_files(str(tmp_path))}
    found = salvage(str(tmp_path), QuickFiles())
    assert (found.intact_through, found.damage) == (19, "")
    assert {path: Path(path).read_bytes() for path in segment_files(str(tmp_path))} == files
    assert MiniStream(str(tmp_path)).all() == expected


@pytest.mark.parametrize("seed", range(25))
def test_what_is_salvaged_is_a_prefix_and_can_be_opened(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    stream = MiniStream(str(tmp_path), LogOptions(seal_bytes=500, seal_age_ns=1 << 60))
    for number in range(1, 25):
        stream.publish(message(number))
        if number == 10 and rng.random() < 0.5:
            stream.store.checkpoint(b"")
    expected = stream.all()
    close_all()
    targets = segment_files(str(tmp_path))
    path = rng.choice(targets)
    size = len(Path(path).read_bytes())
    if rng.random() < 0.2:
        Path(path).unlink()
    else:
        flip(path, rng.randrange(size), rng.randrange(8))
    found = salvage(str(tmp_path), QuickFiles())
    again = MiniStream(str(tmp_path))
    assert again.store.log.last_index == found.intact_through
    assert again.all() == expected[: found.intact_through]
