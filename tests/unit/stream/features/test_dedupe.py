"""Tests of the duplicate window."""

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.log.format.pieces import array_of
from lakestream.protocol.api.errors import ApiError
from lakestream.stream.core.state import encode_checkpoint
from lakestream.stream.features.dedupe import CHUNK_IDS, FORGOTTEN_AT_ONCE, Dedupe, MessageIds
from tests.unit.stream_world import World

pytestmark = pytest.mark.unit


def test_an_id_is_known_within_the_window_and_forgotten_at_its_end() -> None:
    dedupe = MessageIds(window_ns=100)
    dedupe.add(b"a", 7, 1_000)
    assert dedupe.seen(b"a", 1_099) == 7
    assert dedupe.seen(b"a", 1_100) == 0
    assert len(dedupe) == 0


def test_a_window_of_zero_remembers_only_the_last_id() -> None:
    dedupe = MessageIds(window_ns=0)
    dedupe.add(b"a", 7, 1_000)
    assert dedupe.seen(b"a", 1_000) == 0
    assert dedupe.last_id == b"a"


@given(
    st.lists(st.tuples(st.integers(0, 50), st.sampled_from([b"a", b"b", b"c", b"d"])), max_size=60), st.integers(1, 80)
)
def test_agrees_with_a_naive_window_across_dump_and_load(steps: list[tuple[int, bytes]], window: int) -> None:
    dedupe, model, now = MessageIds(window), {}, 1_000
    for seq, (gap, msg_id) in enumerate(steps, 1):
        now += gap
        known = model.get(msg_id)
        expected = known[0] if known and now - known[1] < window else 0
        assert dedupe.seen(msg_id, now) == expected
        if not expected:
            dedupe.add(msg_id, seq, now)
            model[msg_id] = (seq, now)
        copy = MessageIds(window)
        copy.load(dedupe.dump(now, 1 << 60), dedupe.last_id, dedupe.last_seq)
        dedupe = copy


def test_more_chunks_than_are_forgotten_at_once() -> None:
    dedupe = MessageIds(window_ns=1_000)
    count = 5 * CHUNK_IDS
    for seq in range(1, count + 1):
        dedupe.add(b"%d" % seq, seq, seq)
    assert dedupe.seen(b"1", 900) == 1
    assert dedupe.seen(b"%d" % (count - 1_000), count) == 0, "outside of the window, though not forgotten yet"
    assert dedupe.seen(b"%d" % (count - 999), count) == count - 999
    assert len(dedupe) == count - 2 * FORGOTTEN_AT_ONCE * CHUNK_IDS
    assert dedupe.seen(b"x", count) == 0
    assert len(dedupe) == 1_000


def test_a_checkpoint_packs_no_more_than_the_newest_chunk() -> None:
    dedupe = MessageIds(window_ns=100_000)
    for seq in range(1, 2 * CHUNK_IDS + 10):
        dedupe.add(b"%d" % seq, seq, 1_000)
    before = [chunk.packed for chunk in dedupe._chunks]
    assert all(before[:2])
    assert [a is b for a, b in zip(dedupe.dump(1_000, 1 << 60), before, strict=True)] == [True, True, False]


def test_a_checkpoint_copies_no_full_chunk() -> None:
    """Half a million ids were put together in the event loop: 15 ms, and 5 ms for a hash of all."""
    dedupe = MessageIds(window_ns=100_000)
    for seq in range(1, 3 * CHUNK_IDS):
        dedupe.add(b"%d" % seq, seq, 1_000)
    ids = dedupe.dump(1_000, 1 << 60)
    pieces = encode_checkpoint({"created": True, "ids": array_of(ids), "ttls": []})
    assert [sum(piece is each for piece in pieces) for each in ids] == [1, 1, 1]
    assert msgspec.msgpack.decode(b"".join(pieces)) == {"ttls": [], "created": True, "ids": ids}


def test_a_stop_writes_no_checkpoint_again_that_has_the_same_ids(tmp_path: Path) -> None:
    world = World(str(tmp_path))
    world.acked("s.a", Nats_Msg_Id="a")
    written = set[int]()
    for turn in range(3):
        world.stream.store.close(world.stream.dump())
        [path] = tmp_path.rglob("checkpoint")
        written.add(os.stat(path).st_ino)
        if turn < 2:
            world = World(str(tmp_path), clock=world.clock)
            assert world.stream.feature(Dedupe).ids.seen(b"a", world.clock.steady()) == 1
    assert len(written) == 1


def test_what_a_dump_leaves_out_was_in_flight() -> None:
    dedupe = MessageIds(window_ns=100_000)
    for seq in range(1, 2 * CHUNK_IDS + 1):
        dedupe.add(b"%d" % seq, seq, 1_000)
    for through in (0, 1, CHUNK_IDS - 1, CHUNK_IDS, CHUNK_IDS + 1, 2 * CHUNK_IDS, 1 << 60):
        copy = MessageIds(window_ns=100_000)
        copy.load(dedupe.dump(1_000, through), b"", 0)
        known = min(through, 2 * CHUNK_IDS)
        assert len(copy) == known
        assert dedupe.last_through(through) == ((b"%d" % known, known) if known else (b"", 0))
    dedupe.forget_after(CHUNK_IDS + 1)
    assert (len(dedupe), dedupe.last_id) == (CHUNK_IDS + 1, b"%d" % (CHUNK_IDS + 1))
    dedupe.forget_after(0)
    assert (len(dedupe), dedupe.last_id, list(dedupe.entries())) == (0, b"", [])


def test_ids_forgotten_at_the_front_and_taken_back_at_the_end() -> None:
    dedupe = MessageIds(window_ns=100)
    for seq in range(1, 11):
        dedupe.add(b"%d" % seq, seq, 100 * seq)
    assert dedupe.seen(b"9", 999) == 9
    assert len(dedupe) == 2
    dedupe.forget_after(9)
    assert [seq for _, seq, _ in dedupe.entries()] == [9]
    dedupe.forget_after(8)
    assert len(dedupe) == 0
    dedupe.add(b"x", 9, 1_000)
    assert dedupe.seen(b"x", 1_000) == 9


def test_a_full_window_refuses_what_it_can_not_remember(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestream.stream.features.dedupe.MAX_IDS", 3)
    dedupe = MessageIds(window_ns=100)
    for seq in (1, 2, 3):
        dedupe.add(b"%d" % seq, seq, 1_000 + seq)
    assert dedupe.seen(b"2", 1_050) == 2
    with pytest.raises(ApiError) as refused:
        dedupe.seen(b"4", 1_050)
    assert refused.value.err_code == 10167
    assert dedupe.seen(b"4", 1_101) == 0, "the oldest has left the window"


def test_what_an_earlier_release_kept_is_taken_over() -> None:
    dedupe = MessageIds(window_ns=100)
    dedupe.load([], b"b", 2, [(1_000, b"a", 1), (1_001, b"b", 2)])
    assert [dedupe.seen(msg_id, 1_050) for msg_id in (b"a", b"b", b"c")] == [1, 2, 0]


def test_an_id_that_was_stored_again_after_its_window_is_known_by_the_later_message() -> None:
    # A follower adds the leader's messages and checks no duplicates, so it still has the first message's entry.
    dedupe = MessageIds(window_ns=100)
    dedupe.add(b"a", 1, 1_000)
    dedupe.add(b"b", 2, 1_150)
    dedupe.add(b"a", 3, 1_150)
    assert len(dedupe) == 2
    copy = MessageIds(window_ns=100)
    copy.load(dedupe.dump(1_160, 3), dedupe.last_id, dedupe.last_seq)
    assert list(copy.entries()) == [(b"b", 2, 1_150), (b"a", 3, 1_150)]
    assert dedupe.seen(b"a", 1_160) == 3
    assert dedupe.seen(b"a", 1_250) == 0
    assert len(dedupe) == 0
