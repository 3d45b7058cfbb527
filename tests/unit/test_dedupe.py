"""The duplicate window."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.jetstream.dedupe import Dedupe

pytestmark = pytest.mark.unit


def test_an_id_is_known_within_the_window_and_forgotten_at_its_end() -> None:
    dedupe = Dedupe(window_ns=100)
    dedupe.add(b"a", 7, 1_000)
    assert dedupe.seen(b"a", 1_099) == 7
    assert dedupe.seen(b"a", 1_100) == 0
    assert len(dedupe) == 0


def test_a_window_of_zero_remembers_only_the_last_id() -> None:
    dedupe = Dedupe(window_ns=0)
    dedupe.add(b"a", 7, 1_000)
    assert dedupe.seen(b"a", 1_000) == 0
    assert dedupe.last_id == b"a"


@given(
    st.lists(st.tuples(st.integers(0, 50), st.sampled_from([b"a", b"b", b"c", b"d"])), max_size=60), st.integers(1, 80)
)
def test_agrees_with_a_naive_window_across_dump_and_load(steps: list[tuple[int, bytes]], window: int) -> None:
    dedupe, model, now = Dedupe(window), {}, 1_000
    for seq, (gap, msg_id) in enumerate(steps, 1):
        now += gap
        known = model.get(msg_id)
        expected = known[0] if known and now - known[1] < window else 0
        assert dedupe.seen(msg_id, now) == expected
        if not expected:
            dedupe.add(msg_id, seq, now)
            model[msg_id] = (seq, now)
        copy = Dedupe(window)
        copy.load(dedupe.dump(now, 1 << 60), dedupe.last_id, dedupe.last_seq)
        dedupe = copy


def test_an_id_that_was_stored_again_after_its_window_is_known_by_the_later_message() -> None:
    # A follower adds what the leader stored and asks for nothing, so it still has the first message's entry.
    dedupe = Dedupe(window_ns=100)
    dedupe.add(b"a", 1, 1_000)
    dedupe.add(b"b", 2, 1_150)
    dedupe.add(b"a", 3, 1_150)
    assert dedupe.dump(1_160, 3) == [(1_150, b"b", 2), (1_150, b"a", 3)]
    assert dedupe.seen(b"a", 1_160) == 3
    assert dedupe.seen(b"a", 1_250) == 0
    assert len(dedupe) == 0
