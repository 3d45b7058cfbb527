"""Tests of the list of removal times: its encodings, and what lies after a point."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.log.format.departures import Departures, Point

pytestmark = pytest.mark.unit


def runs(departures: Departures, point: Point | None = None) -> list[tuple[int, int]]:
    return list(departures.runs(0 if point is None else departures.split(point)))


def test_what_a_message_made_room_for_left_with_it_and_what_was_purged_left_before_the_next_one() -> None:
    departures = Departures()
    departures.note((1,), 5, 100)  # removed by storing 5
    departures.note(range(2, 5), 6, 150)  # a purge after 5
    assert runs(departures, Point(seq=4)) == [(1, 1), (2, 4)]
    assert runs(departures, Point(seq=5)) == [(2, 4)], "right after 5 was stored the purge was yet to come"
    assert runs(departures, Point(seq=6)) == []
    assert runs(departures, Point(before_ns=100)) == [(1, 1), (2, 4)], "what happened at 100 did not happen before it"
    assert runs(departures, Point(before_ns=101)) == [(2, 4)]
    assert runs(departures, Point(before_ns=150)) == [(2, 4)]
    assert runs(departures, Point(before_ns=151)) == []


def test_neighbours_that_left_together_are_one_run_and_a_hole_makes_two() -> None:
    departures = Departures()
    for seq in (3, 4, 5):
        departures.note((seq,), 9, 7)
    departures.note([10, 11, 13], 14, 8)
    assert runs(departures) == [(3, 5), (10, 11), (13, 13)]


def test_times_do_not_go_backwards_with_the_clock() -> None:
    departures = Departures()
    departures.note((1,), 2, 100)
    departures.note((2,), 3, 90)
    assert list(departures.removed_ns) == [100, 100]
    assert departures.moment() == 100


def test_times_do_not_go_backwards_over_segments_either() -> None:
    departures, later = Departures(), Departures()
    departures.note((1,), 2, 100)  # a purge of a mirror; then messages with the times that they have in the origin
    later.note((2,), 3, 90)
    later.note((3,), 4, 95)
    later.note((4,), 5, 110)
    departures.extend(later)
    assert list(departures.removed_ns) == [100, 100, 100, 110]
    assert runs(departures, Point(before_ns=100)) == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert runs(departures, Point(before_ns=101)) == [(4, 4)]
    assert list(later.removed_ns) == [90, 95, 110]


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3), st.integers(0, 10**9), st.integers(1, 4)), max_size=40),
    st.integers(0, 2**62),
)
def test_both_encodings_give_the_list_back(steps: list[tuple[int, int, int, int]], base: int) -> None:
    departures, seq, removed_seq, at_ns = Departures(), 1, 100, base
    for gap, later, ns, count in steps:
        seq, removed_seq, at_ns = seq + gap, removed_seq + later, at_ns + ns
        departures.note(range(seq, seq + count), removed_seq, at_ns)
        seq += count
    for again in (Departures.unpack(departures.pack()), Departures.from_bytes(departures.to_bytes())):
        assert runs(again) == runs(departures)
        assert again.removed_seqs == departures.removed_seqs
        assert again.removed_ns == departures.removed_ns
        assert again.whole
    assert not Departures.from_bytes(Departures(whole=False).to_bytes()).whole
