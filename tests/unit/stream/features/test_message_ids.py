"""Tests of the ids of a duplicate window, in memory and in files; the referee is a plain dict."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.files import Files
from lakestream.log.format.pieces import array_of
from lakestream.log.index.cold_rows import BlockFile, checked
from lakestream.log.index.memory_limit import IndexMemory
from lakestream.protocol.api.errors import ApiError
from lakestream.stream.core.state import encode_checkpoint
from lakestream.stream.features import message_ids
from lakestream.stream.features.message_ids import CHUNK_IDS, FORGOTTEN_AT_ONCE, NEWEST, IdsDump, MessageIds

pytestmark = pytest.mark.unit

ALL = 1 << 60


def filled(count: int, window_ns: int = 1 << 40) -> MessageIds:
    """Return ids `b"1"`, … of the messages 1 … count, each with its number as time."""
    ids = MessageIds(window_ns)
    some = range(1, count + 1)
    ids.add_all([b"%d" % seq for seq in some], some, some)
    return ids


def again(ids: MessageIds, dump: IdsDump, behind_ns: int = 0) -> MessageIds:
    copy = MessageIds(ids.window_ns)
    copy.load(dump, ids.last_id, ids.last_seq, (), behind_ns)
    return copy


def test_an_id_is_known_within_the_window_and_forgotten_at_its_end() -> None:
    ids = MessageIds(window_ns=100)
    ids.add(b"a", 7, 1_000)
    assert ids.seen(b"a", 1_099) == 7
    assert ids.seen(b"a", 1_100) == 0
    assert len(ids) == 0


def test_a_window_of_zero_remembers_only_the_last_id() -> None:
    ids = MessageIds(window_ns=0)
    ids.add(b"a", 7, 1_000)
    assert ids.seen(b"a", 1_000) == 0
    assert ids.last_id == b"a"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add"] * 6 + ["cool", "restart", "rewind", "ask", "ask"]),
        st.integers(0, 30),
        st.integers(1, 12),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(STEPS, st.integers(1, 200), st.integers(0, 1 << 32))
def test_agrees_with_a_dict_in_memory_in_files_and_over_restarts(
    steps: list[tuple[str, int, int]], window: int, seed: int
) -> None:
    chosen = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message_ids, "CHUNK_IDS", 4)
        patch.setattr(message_ids, "_CHUNK_SLOTS", 6)
        patch.setattr(message_ids, "NEWEST", 2)
        patch.setattr(message_ids, "_TABLE_CHUNKS", 8)
        ids, model, now, seq = MessageIds(window), dict[bytes, tuple[int, int]](), 1_000, 0
        shared, files = IndexMemory(1 << 30), Files()
        directory = tempfile.gettempdir()
        ids.keep_within(shared, files, directory)
        file = BlockFile.make_scratch(files, f"{directory}/lakestream-test-{seed}")
        for step, gap, number in steps:
            now += gap
            if step == "add":
                names = [b"%d" % chosen.randrange(60) for _ in range(number)]
                new = ids.unknown(names, now)
                for name in names[:new]:
                    assert now - model.get(name, (0, -window))[1] >= window, "only what is new passes"
                if new:
                    assert len(set(names[:new])) == new
                    run = range(seq + 1, seq + new + 1)
                    ids.add_all(names[:new], run, [now] * new)
                    model.update((name, (at, now)) for name, at in zip(names, run, strict=False))
                    seq += new
            elif step == "cool":
                ids.cool(4 * number)
            elif step == "rewind":
                seq = max(0, seq - number)
                ids.forget_after(seq)
                model = {name: found for name, found in model.items() if found[0] <= seq}
            elif step == "restart":
                dump = ids.dump(now, ALL)
                dump.blocks = [
                    file.write(checked(each if isinstance(each, bytes) else each.content()), 4) for each in dump.blocks
                ]
                ids = again(ids, dump)
                ids.keep_within(shared, files, directory)
            for name in {b"%d" % chosen.randrange(60) for _ in range(6)}:
                at, time_ns = model.get(name, (0, 0))
                assert ids.seen(name, now) == (at if at and now - time_ns < window else 0)
            assert len(ids) >= sum(now - time_ns < window for _, time_ns in model.values())
            assert sum(1 for _ in ids.entries()) == len(ids)


def test_more_chunks_than_are_forgotten_at_once() -> None:
    count = (FORGOTTEN_AT_ONCE + 5) * CHUNK_IDS
    ids = filled(count, window_ns=1_000)
    assert ids.seen(b"%d" % (count - 1_000), count) == 0, "outside of the window, though not forgotten yet"
    assert ids.seen(b"%d" % (count - 999), count) == count - 999
    assert len(ids) == CHUNK_IDS, "chunks go as a whole"
    ids = filled(count, window_ns=1_000)
    assert ids.seen(b"x", 2 * count) == 0
    assert len(ids) == 5 * CHUNK_IDS
    assert ids.seen(b"1", 2 * count) == 0
    assert (len(ids), ids.memory) == (0, 0)


def test_a_checkpoint_packs_no_more_than_the_newest_chunk() -> None:
    """Half a million ids were put together in the event loop: 15 ms, and 5 ms for a hash of all."""
    ids = filled(3 * CHUNK_IDS + 10)
    dump = ids.dump(1_000, ALL)
    assert (len(dump.ids), dump.columns, dump.blocks) == (4, [], [])
    assert [a is b for a, b in zip(dump.ids, ids._packed, strict=False)] == [True] * 3
    pieces = encode_checkpoint({"created": True, "ids": array_of(dump.ids), "ttls": []})
    assert [sum(piece is each for piece in pieces) for each in dump.ids] == [1, 1, 1, 1]
    assert msgspec.msgpack.decode(b"".join(pieces)) == {"ttls": [], "created": True, "ids": dump.ids}


def test_a_checkpoint_has_older_chunks_beside_the_state() -> None:
    ids = filled((NEWEST + 3) * CHUNK_IDS + 1)
    dump = ids.dump(1_000, ALL)
    assert (len(dump.ids), len(dump.blocks)) == (NEWEST + 1, 3)
    copy = again(ids, dump, behind_ns=500)
    assert list(copy.entries()) == [(msg_id, seq, time_ns - 500) for msg_id, seq, time_ns in ids.entries()]
    assert [copy.dump(1_000, ALL).columns[:3], copy.due_ns] == [
        [*dump.columns[:2], copy._ends[:3].tobytes()],
        ids.due_ns - 500,
    ]
    dump.blocks.pop()
    with pytest.raises(CorruptLog, match="other blocks of message ids"):
        again(ids, dump)


def test_what_a_dump_leaves_out_was_in_flight() -> None:
    ids = filled(2 * CHUNK_IDS)
    for through in (0, 1, CHUNK_IDS - 1, CHUNK_IDS, CHUNK_IDS + 1, 2 * CHUNK_IDS, ALL):
        copy = again(ids, ids.dump(1_000, through))
        known = min(through, 2 * CHUNK_IDS)
        assert len(copy) == known
        assert ids.last_through(through) == ((b"%d" % known, known) if known else (b"", 0))
    ids.forget_after(CHUNK_IDS + 1)
    assert (len(ids), ids.last_id) == (CHUNK_IDS + 1, b"%d" % (CHUNK_IDS + 1))
    assert ids.seen(b"%d" % (CHUNK_IDS + 2), 1_000) == 0
    assert ids.seen(b"%d" % (CHUNK_IDS + 1), 1_000) == CHUNK_IDS + 1
    ids.forget_after(0)
    assert (len(ids), ids.last_id, list(ids.entries()), ids._tables) == (0, b"", [], [])


def test_only_what_is_stored_moves_to_a_file(tmp_path: Path) -> None:
    stored = CHUNK_IDS + 1
    ids = MessageIds(1 << 40, lambda: stored)
    ids.keep_within(IndexMemory(), Files(), str(tmp_path))
    some = range(1, 3 * CHUNK_IDS + 1)
    ids.add_all([b"%d" % seq for seq in some], some, some)
    assert ids.cool(1 << 20) == CHUNK_IDS
    assert ids.cool(1 << 20) == 0
    ids.forget_after(stored)
    assert ids.seen(b"1", 1) == 1
    assert ids.seen(b"%d" % stored, 1) == stored
    assert list(tmp_path.iterdir()) == [], "the file has no name"


def test_a_file_ends_with_its_last_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_ids, "SCRATCH_BYTES", 1)
    ids = filled(4 * CHUNK_IDS, window_ns=5 * CHUNK_IDS)
    ids.keep_within(IndexMemory(), Files(), str(tmp_path))
    assert ids.cool(3 * CHUNK_IDS) == 3 * CHUNK_IDS
    fds = [block._file._fd for block in ids._packed[:3]]  # type: ignore[union-attr]
    assert len(set(fds)) == 3
    ids.forget(7 * CHUNK_IDS)
    assert (len(ids._packed), ids._cold) == (2, 1)
    for fd in fds[:2]:
        with pytest.raises(OSError, match="Bad file descriptor"):
            Files().size(fd)
    assert Files().size(fds[2]) > 0
    assert ids.seen(b"%d" % (2 * CHUNK_IDS + 5), 7 * CHUNK_IDS) == 2 * CHUNK_IDS + 5


def test_the_bytes_of_an_id(tmp_path: Path) -> None:
    """One dict of all ids took 200 bytes an id."""
    ids = MessageIds(1 << 60)
    ids.keep_within(IndexMemory(), Files(), str(tmp_path))
    count = 200 * CHUNK_IDS
    for first in range(1, count + 1, 512):
        some = range(first, first + 512)
        ids.add_all([b"%022x" % (seq * 2654435761) for seq in some], some, some)
    assert ids.memory < 55 * count
    ids.cool(count)
    assert ids.memory < 15 * count, "a table that was just begun has room for twice as many"


def test_ids_forgotten_at_the_front_and_taken_back_at_the_end() -> None:
    ids = MessageIds(window_ns=100)
    for seq in range(1, 11):
        ids.add(b"%d" % seq, seq, 100 * seq)
    assert ids.seen(b"9", 999) == 9
    assert ids.seen(b"8", 999) == 0
    ids.forget_after(9)
    assert ids.seen(b"10", 999) == 0
    ids.forget_after(8)
    assert ids.seen(b"9", 999) == 0
    ids.add(b"x", 9, 1_000)
    assert ids.seen(b"x", 1_000) == 9


@pytest.mark.parametrize("files", [True, False])
def test_a_full_window_refuses_what_it_can_not_remember(
    files: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_ids, "MAX_IDS" if files else "MAX_IDS_IN_MEMORY", 3)
    ids = MessageIds(window_ns=100)
    if files:
        ids.keep_within(IndexMemory(), Files(), str(tmp_path))
    for seq in (1, 2, 3):
        ids.add(b"%d" % seq, seq, 1_000 + seq)
    assert ids.seen(b"2", 1_050) == 2
    assert ids.unknown([b"4"], 1_050) == 0
    with pytest.raises(ApiError) as refused:
        ids.seen(b"4", 1_050)
    assert refused.value.err_code == 10167
    assert ids.seen(b"4", 1_103) == 0, "they have left the window"


def test_what_an_earlier_release_kept_is_taken_over() -> None:
    ids = MessageIds(window_ns=100)
    ids.load(IdsDump([], [], []), b"b", 2, [(1_000, b"a", 1), (1_001, b"b", 2)])
    assert [ids.seen(msg_id, 1_050) for msg_id in (b"a", b"b", b"c")] == [1, 2, 0]


def test_long_chunks_of_an_earlier_release_are_divided() -> None:
    ids = filled(5 * CHUNK_IDS)
    chunk = message_ids._Chunk()
    for each in (ids._unpacked(at) for at in range(5)):
        chunk.ids += each.ids
        chunk.times.extend(each.times)
        chunk.seqs.extend(each.seqs)
    copy = again(ids, IdsDump([chunk.pack()], [], []))
    assert list(copy.entries()) == list(ids.entries())
    assert list(copy._counts) == [CHUNK_IDS] * 5


def test_an_id_that_was_stored_again_after_its_window_is_known_by_the_later_message() -> None:
    # A follower adds the leader's messages and checks no duplicates, so it still has the first message's entry.
    ids = MessageIds(window_ns=100)
    ids.add(b"a", 1, 1_000)
    ids.add(b"b", 2, 1_150)
    ids.add(b"a", 3, 1_150)
    copy = again(ids, ids.dump(1_160, 3))
    for each in (ids, copy):
        assert each.seen(b"a", 1_160) == 3
        assert each.seen(b"a", 1_250) == 0
        assert len(each) == 0


def test_an_id_in_two_chunks_is_known_by_the_later_message() -> None:
    ids = MessageIds(window_ns=1 << 40)
    ids.add(b"a", 1, 1)
    some = range(2, CHUNK_IDS + 10)
    ids.add_all([b"%d" % seq for seq in some], some, some)
    ids.add(b"a", 3 * CHUNK_IDS, 2_000)
    more = range(3 * CHUNK_IDS + 1, 5 * CHUNK_IDS)
    ids.add_all([b"%d" % seq for seq in more], more, more)
    assert ids.seen(b"a", 2_000) == 3 * CHUNK_IDS
    assert ids.unknown([b"new", b"a"], 2_000) == 1
