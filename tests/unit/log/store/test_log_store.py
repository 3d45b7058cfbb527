"""Tests of the store's bookkeeping compared with a dict, on disk and in memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.log.format.files import Files, InlineIo
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.format.record import Record, encode_record, record_length
from lakestream.log.format.runs import joined
from lakestream.log.store.cache import ReadCache
from lakestream.log.store.log import Appended
from lakestream.log.store.memory import MemoryStore
from lakestream.log.store.segment_log import LogOptions
from lakestream.log.store.segment_store import open_store
from lakestream.log.store.store import Store
from tests.unit.logkit import T0, MiniStream, Model, close_all, message

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("closing")]

SMALL = LogOptions(seal_bytes=700, seal_age_ns=1 << 60, retain_bytes=0)

steps = st.lists(
    st.one_of(
        st.lists(st.integers(0, 50).map(message), min_size=1, max_size=9),
        st.tuples(st.just("remove"), st.integers(1, 60)),
        st.tuples(st.just("remove"), st.integers(1, 60)),
        st.tuples(st.sampled_from(["remove_through", "set_first"]), st.integers(0, 60)),
        st.just("front"),
        st.just("drop"),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_every_question_has_the_models_answer(tmp_path_factory: pytest.TempPathFactory, made: list) -> None:  # type: ignore[type-arg]
    close_all()
    directory = str(tmp_path_factory.mktemp("stream"))
    stream, model = MiniStream(directory, SMALL), Model()
    store = stream.store
    for step in made:
        if isinstance(step, list):
            stream.publish(*step)
            model.publish(*step)
        elif step == "drop":
            store.checkpoint(b"")
            store.drop_through(1 << 60)
        else:
            step = ("remove", store.first_seq) if step == "front" else step
            stream.operate(*step)
            model.operate(*step)
        floor = store.local_floor
        model.check(store, local=all(seq >= floor for seq in model.live))
        here = [record for seq, record in model.live.items() if seq >= floor]
        assert store.read_run(1, 1000, 1 << 30) == here
        assert store.read_many(range(store.last_seq + 2)) == here
        assert [store.read(seq) for seq in range(store.last_seq + 2) if store.is_local(seq)] == here
        assert all(store.read(seq) is None for seq in range(store.last_seq + 2) if not store.is_local(seq))
        for seq in range(0, store.last_seq + 2, 5):
            expected = min((n for n in model.live if n >= seq), default=0)
            assert store.first_at(T0 + seq) == expected
    assert stream.failures == []


def test_removing_tells_subject_and_size(tmp_path: Path) -> None:
    stream = MiniStream(str(tmp_path))
    stream.publish(message(1), message(2), message(3))
    store = stream.store
    for seq in (2, 1, 3):
        subject, header, data = message(seq)
        assert store.remove(seq) == (subject, record_length(subject, header, data))
        assert store.remove(seq) is None
    assert (store.msgs, store.bytes, store.first_seq, store.last_seq) == (0, 0, 4, 3)


def test_subjects_of_long_messages_are_read_without_the_payloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to 256 MiB of payloads were read for the subjects of the messages that a limit removes next."""
    stream = MiniStream(str(tmp_path))
    subjects = [b"s.%d" % number if number % 3 else b"s.%b" % (b"x" * 600) for number in range(1, 13)]
    stream.publish(*[(subject, b"", bytes(100_000)) for subject in subjects])
    sizes: list[int] = []
    reader = ReadCache.reader

    def counted(cache: ReadCache, path: str) -> Callable[[int, int], bytes]:
        def read(length: int, offset: int) -> bytes:
            sizes.append(length)
            return reader(cache, path)(length, offset)

        return read

    monkeypatch.setattr(ReadCache, "reader", counted)
    removed = [stream.store.remove(seq) for seq in range(1, 13)]
    assert removed == [(subject, record_length(subject, b"", bytes(100_000))) for subject in subjects]
    assert sum(sizes) < 5 * 100_700, "only messages with long subjects are read"


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.sets(st.integers(1, 60)), st.sets(st.integers(1, 60)), st.booleans())
def test_many_removed_at_once_leave_what_each_by_itself_leaves(
    tmp_path_factory: pytest.TempPathFactory, count: int, before: set[int], gone: set[int], erasing: bool
) -> None:
    close_all()
    found = []
    for at_once in (False, True):
        stream = MiniStream(str(tmp_path_factory.mktemp("stream")), SMALL)
        for number in range(1, count + 1):
            stream.publish(message(number))
        store = stream.store
        for seq in before:
            store.remove(seq)
        store.keep_departures(True)
        store.erasing = store.shredding = erasing
        doomed = [(seq, store.subject_of(seq)) for seq in sorted(gone) if seq in store.live]
        if at_once:
            store.remove_all(doomed)
        else:
            for seq, subject in doomed:
                store.remove(seq, subject)
        store.erasing = store.shredding = False
        listed, departures = store.removals(), store.departures
        assert departures is not None
        found.append((
            store.msgs, store.bytes, store.first_seq, list(store.live.members(1, 100)), sorted(store.subjects.items()),
            [seq for seq in listed.removed if seq >= store.first_seq], joined(listed.erased), listed.any,
            listed.shredded, departures.to_bytes(),
        ))  # fmt: skip
    assert found[0] == found[1]


def test_removing_through_tells_what_went(tmp_path: Path) -> None:
    stream = MiniStream(str(tmp_path), SMALL)
    for number in range(1, 21):
        stream.publish(message(number))
    stream.store.remove(4)
    gone = stream.store.remove_through(12)
    assert gone == [(seq, message(seq)[0]) for seq in range(1, 13) if seq != 4]
    assert stream.store.remove_through(12) == []
    assert stream.store.first_seq == 13


def test_a_new_stream_has_zeros_everywhere(tmp_path: Path) -> None:
    for store in (MiniStream(str(tmp_path)).store, MemoryStore()):
        assert (store.first_seq, store.last_seq, store.msgs, store.bytes, store.first_time) == (0, 0, 0, 0, 0)
        assert store.first_at(0) == 0
        assert store.read_run(1, 10, 1000) == []
        assert store.read(1) is None
        assert store.remove(1) is None


def test_set_first_beyond_the_end_goes_on_from_there(tmp_path: Path) -> None:
    stream = MiniStream(str(tmp_path))
    stream.publish(message(1), message(2))
    stream.operate("set_first", 2**62)  # a client may request any sequence: tables must not grow with it
    store = stream.store
    assert (store.first_seq, store.last_seq, store.msgs, store.bytes) == (2**62, 2**62 - 1, 0, 0)
    stream.publish(message(3))
    assert [record.seq for record in stream.all()] == [2**62]
    assert len(store.log.open_segment.tables) == 3  # type: ignore[union-attr]
    again = MiniStream(str(tmp_path))
    assert again.all() == stream.all()
    assert store.first_at(T0) == 2**62


def test_skipped_sequences_are_given_once(tmp_path: Path) -> None:
    stream = MiniStream(str(tmp_path))
    stream.operate("skip", 5)
    assert (stream.store.first_seq, stream.store.last_seq) == (6, 5)
    stream.publish(message(1))
    stream.operate("skip", 9)
    assert (stream.store.first_seq, stream.store.last_seq, stream.store.msgs) == (6, 9, 1)
    stream.publish(message(2))
    again = MiniStream(str(tmp_path)).store
    assert [record.seq for record in again.read_run(1, 10, 10000)] == [6, 10]


def test_records_with_gaps_are_applied_where_they_lie(tmp_path: Path) -> None:
    """Records with gaps keep their sequences: a mirror's frame may jump, a little or far."""
    store = open_store(str(tmp_path), InlineIo())
    records = [Record(seq, T0 + n, b"s.%d" % seq, b"", b"d" * n) for n, seq in enumerate([3, 4, 9, 10, 5000, 10**15])]
    body = b"".join(encode_record(r.seq, r.time_ns, r.subject, r.header, r.data) for r in records)
    (at,) = store.log.append([Frame(Kind.MESSAGES, 1, 1, len(records), body)])
    store.apply_records(at, records)
    store.applied = 1
    assert store.read_run(1, 100, 10000) == records
    assert [store.read(record.seq) for record in records] == records
    assert (store.first_seq, store.last_seq, store.msgs) == (3, 10**15, 6)
    assert store.first_at(T0 + 3) == 10
    store.log.seal(store.seal_state(1 << 62))  # type: ignore[union-attr, arg-type]
    store.close()
    again = open_store(str(tmp_path), InlineIo())
    assert again.read_run(1, 100, 10000) == records


def test_a_run_ends_at_each_of_its_limits(tmp_path: Path) -> None:
    stream = MiniStream(str(tmp_path), SMALL)
    for number in range(1, 31):
        stream.publish(message(number, b"s"))
    sizes = [stream.store.size_of(seq) for seq in range(1, 31)]
    assert [record.seq for record in stream.store.read_run(5, 7, 1 << 20)] == list(range(5, 12))
    limit = sum(sizes[4:9])
    assert [record.seq for record in stream.store.read_run(5, 100, limit)] == [5, 6, 7, 8, 9]
    assert [record.seq for record in stream.store.read_run(5, 100, limit - 1)] == [5, 6, 7, 8]
    assert [record.seq for record in stream.store.read_run(5, 100, 1)] == [5]
    assert [record.seq for record in stream.store.read_run(29, 100, 1 << 20)] == [29, 30]
    assert stream.store.read_run(31, 100, 1 << 20) == []


def test_a_run_longer_than_one_read_and_with_large_holes(tmp_path: Path) -> None:
    stream, model = MiniStream(str(tmp_path)), Model()
    for number in range(1, 31):
        subject, header, _ = message(number)
        stream.publish((subject, header, b"%d" % number * 60_000))
        model.publish((subject, header, b"%d" % number * 60_000))
    model.check(stream.store)
    for seq in (3, 4, 5, 17):
        stream.operate("remove", seq)
        model.operate("remove", seq)
    model.check(stream.store)


def test_reading_is_safe_while_uncommitted_frames_lie_behind(tmp_path: Path) -> None:
    stream = MiniStream(str(tmp_path))
    stream.publish(message(1))
    proposal = stream.messages(2, message(2))
    body = b"".join(proposal.body)  # type: ignore[arg-type]
    stream.store.log.append([Frame(Kind.MESSAGES, 1, 2, 1, body)])
    assert [record.seq for record in stream.all()] == [1]
    assert stream.store.read(2) is None


def test_open_files_and_tables_stay_within_their_limits(tmp_path: Path) -> None:
    cache = ReadCache(Files(), max_files=3, max_table_bytes=3000)
    stream = MiniStream(str(tmp_path), SMALL)
    for number in range(1, 101):
        stream.publish(message(number))
    store = open_store(str(tmp_path), InlineIo(), SMALL, cache=cache)
    for frame, at in store.replay():
        MiniStream.apply(_Only(store), frame, at)  # type: ignore[arg-type]
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        for seq in range(1, 101):
            record = store.read(seq)
            assert record is not None
            assert record.data == message(seq)[2]
            assert cache.open_files <= 3
            assert cache._bytes <= 3000
    assert len(os.listdir("/proc/self/fd")) <= before + 3
    store.close()
    cache.sweep()
    assert cache.open_files == 0
    assert cache._bytes == 0


class _Only:
    def __init__(self, store: Store) -> None:
        self.store = store


def test_applying_a_sequence_twice_is_caught(tmp_path: Path) -> None:
    stream = MiniStream(str(tmp_path))
    stream.publish(message(1))
    at = Appended(stream.store.log.open_segment, 0, 2)  # type: ignore[union-attr]
    with pytest.raises(AssertionError, match="comes after"):
        stream.store.apply_messages(at, 1, [b"a"], [40], T0)


# ---------------------------------------------------------------- in memory
class MemoryStream(MiniStream):
    def __init__(self) -> None:
        from lakestream.raft.group.group import Callbacks
        from lakestream.raft.group.solo import SoloGroup

        self.store = MemoryStore("uid-1")
        self.failures: list[Exception] = []
        self.group = SoloGroup(self.store.log, InlineIo(), Callbacks(self._committed, self.failures.append))


def accounted(record: Record) -> int:
    return len(record.subject) + len(record.header) + len(record.data) + 16


@settings(max_examples=60, deadline=None)
@given(steps)
def test_a_stream_in_memory_answers_the_same(made: list) -> None:  # type: ignore[type-arg]
    stream, model = MemoryStream(), Model()
    store = stream.store
    for step in made:
        if isinstance(step, list):
            stream.publish(*step)
            model.publish(*step)
        elif step == "drop":
            assert store.drop_through(1 << 60) == []
            assert not store.checkpoint_due
        else:
            step = ("remove", store.first_seq) if step == "front" else step
            stream.operate(*step)
            model.operate(*step)
        assert stream.all() == list(model.live.values())
        assert store.bytes == sum(map(accounted, model.live.values()))
        assert (store.msgs, store.first_seq, store.last_seq) == (len(model.live), model.first_seq, model.last_seq)
        assert store.first_time == (model.live[model.first_seq].time_ns if model.live else 0)
        for seq in range(0, store.last_seq + 2, 5):
            assert store.first_at(T0 + seq) == min((n for n in model.live if n >= seq), default=0)
        for seq, record in model.live.items():
            assert store.read(seq) == record
            assert store.subject_of(seq) == record.subject
            assert store.size_of(seq) == accounted(record)
            assert store.is_local(seq)


def test_memory_is_given_back() -> None:
    stream = MemoryStream()
    for number in range(1, 3001):
        stream.publish((b"s", b"", b"x" * 1000))
        stream.operate("remove", number - 10)
    rows = stream.store._rows
    assert len(rows._records) == 10  # type: ignore[attr-defined]
    assert len(rows._order) < 2000  # type: ignore[attr-defined]
    stream.store.destroy()
    assert stream.store.read(3000) is None
    stream.store.close()
