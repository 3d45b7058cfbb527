"""Tests of SubjectIndex compared with a dict of lists, also with most of it in files."""

from __future__ import annotations

import random
import struct
import tempfile
import threading
import zlib
from array import array
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import msgpack

from lakestream.log.format.errors import CorruptLog, FileNotReadable
from lakestream.log.format.files import Files
from lakestream.log.index import memory_limit as index_memory
from lakestream.log.index import subject_index, subject_leaves
from lakestream.log.index.histories import PACKED
from lakestream.log.index.memory_limit import IndexMemory
from lakestream.log.index.sequences import SequenceSet
from lakestream.log.index.subject_index import SubjectIndex
from lakestream.log.index.subject_leaves import COLD_HISTORY, IndexSnapshot
from lakestream.log.store import checkpoint
from lakestream.log.store.checkpoint import StoreState, read_checkpoint, write_checkpoint
from lakestream.protocol.subjects import matches

pytestmark = pytest.mark.unit

COLD = [b"cold.%02d" % number for number in range(12)]
NAMED = [b"a", b"a.b", b"a.c", b"b.b", b"KV.x.y", *COLD]
names = st.sampled_from(NAMED)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(names, min_size=1, max_size=30)),
        st.tuples(st.just("warm"), st.lists(names, min_size=1, max_size=30)),
        st.tuples(st.just("same"), st.tuples(names, st.integers(1, 90))),
        st.tuples(st.just("remove"), st.tuples(names, st.integers(0, 200))),
        st.tuples(st.just("first"), names),
        st.tuples(st.just("last"), names),
        st.tuples(st.just("many"), st.tuples(names, st.sets(st.integers(1, 200), max_size=30))),
        st.tuples(st.just("all"), names),
        st.tuples(st.just("cut"), st.tuples(st.sets(names), st.integers(1, 250))),
        st.tuples(st.just("purge"), st.tuples(st.sets(names), st.integers(1, 250))),
        st.tuples(st.just("trim"), st.tuples(st.sets(names), st.integers(1, 30))),
        st.tuples(st.just("below"), st.integers(1, 200)),
        st.tuples(st.just("cool"), st.integers(1, 20)),
        st.tuples(st.just("clean"), st.integers(1, 20)),
        st.tuples(st.just("ask"), st.sampled_from([b">", b"cold.*", b"a.>", b"*.b"])),
        st.tuples(st.just("copy"), st.none()),
        st.tuples(st.just("snapshot"), st.none()),
        st.tuples(st.just("renew"), st.tuples(st.sets(names), st.lists(names, min_size=1, max_size=12))),
    ),
    max_size=40,
)


@pytest.fixture(autouse=True)
def _small_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make leaves small, so that a few subjects make many leaves, as a million would otherwise."""
    monkeypatch.setattr(subject_leaves, "LEAF_ROWS", 2)
    monkeypatch.setattr(subject_leaves, "SPLIT_ROWS", 4)
    monkeypatch.setattr(subject_leaves, "COLD_HISTORY", 20)
    monkeypatch.setattr(subject_leaves, "LONG_BLOCK", 200)
    monkeypatch.setattr(subject_index, "FRESH_SUBJECTS", 3)
    monkeypatch.setattr(subject_index, "WARMED_AT_ONCE", 2)
    monkeypatch.setattr(subject_index, "LOOK_MESSAGES", 5)
    monkeypatch.setattr(subject_index, "SCANNED_SUBJECTS", 0)
    monkeypatch.setattr(checkpoint, "LEFT_SUBJECTS", 4)


def state(last_seq: int) -> StoreState:
    return StoreState(
        index=1, uid="u", stream="S", account="$G", config=b"", size=0, first_seq=1, last_seq=last_seq, last_time=0,
        opened_index=1, removed=[], moved=False, live=SequenceSet().to_bytes(), extra=b"",
    )  # fmt: skip


def written(snapshot: IndexSnapshot, directory: Path, last_seq: int) -> SubjectIndex:
    """Return the index that is read from its checkpoint."""
    path = str(directory / "checkpoint")
    write_checkpoint(Files(), path, checkpoint.Snapshot(state(last_seq), snapshot))
    found = read_checkpoint(Files(), path)
    assert found is not None
    return found[1]


class Model:
    def __init__(self) -> None:
        self.seqs: dict[bytes, list[int]] = {}
        self.next = 1

    def add(self, subjects: list[bytes]) -> None:
        for subject in subjects:
            self.seqs.setdefault(subject, []).append(self.next)
            self.next += 1

    def keep(self, wanted: object) -> None:
        kept = {name: [seq for seq in seqs if wanted(name, seq)] for name, seqs in self.seqs.items()}  # type: ignore[operator]
        self.seqs = {name: seqs for name, seqs in kept.items() if seqs}


def play(made: list[tuple[str, object]], directory: Path) -> tuple[SubjectIndex, Model]:
    memory, model = IndexMemory(1 << 30), Model()
    index = SubjectIndex()
    index.keep_within(memory, Files(), str(directory))
    taken: list[tuple[IndexSnapshot, dict[bytes, list[int]]]] = []
    for step, what in made:
        if step in ("add", "same"):
            subjects = what if step == "add" else [what[0]] * what[1]  # type: ignore[index]
            index.add_run(subjects, model.next)  # type: ignore[arg-type]
            model.add(subjects)  # type: ignore[arg-type]
        elif step == "warm":
            for _ in index.warming(what) or ():  # type: ignore[arg-type]
                assert len(index) == len(model.seqs)
        elif step in ("remove", "first", "last"):
            subject, seq = what if step == "remove" else (what, getattr(index, step)(what))  # type: ignore[misc]
            assert index.remove(subject, seq) == (seq in model.seqs.get(subject, []))
            model.keep(lambda name, n, subject=subject, seq=seq: (name, n) != (subject, seq))
        elif step in ("many", "all"):
            subject, gone = what if step == "many" else (what, range(1, model.next))  # type: ignore[misc]
            index.remove_many(subject, gone)
            model.keep(lambda name, n, subject=subject, gone=gone: name != subject or n not in gone)
        elif step == "purge":
            some, below = what  # type: ignore[misc]
            gone = sorted((seq, name) for name in some for seq in model.seqs.get(name, []) if seq < below)
            index.remove_all(gone)
            model.keep(lambda name, n, some=some, below=below: name not in some or n >= below)
        elif step == "trim":
            some, most = what  # type: ignore[misc]
            over = {name: set(model.seqs.get(name, [])[:-most]) for name in some}
            assert index.trim(some, most) == sorted((seq, name) for name, seqs in over.items() for seq in seqs)
            model.keep(lambda name, n, over=over: n not in over.get(name, ()))
        elif step == "cut":
            some, below = what  # type: ignore[misc]
            expected = sorted(seq for name in set(some) for seq in model.seqs.get(name, []) if seq < below)
            together = sorted(seq for name in set(some) for seq in model.seqs.get(name, []))
            assert sorted(index.together(list(set(some)))) == together
            assert sorted(index.cut(list(set(some)), below)) == expected
            model.keep(lambda name, n, some=some, below=below: name not in some or n >= below)
        elif step == "below":
            index.discard_below(what)  # type: ignore[arg-type]
            model.keep(lambda name, n, floor=what: n >= floor)
        elif step == "cool":
            index.cool(what)  # type: ignore[arg-type]
        elif step == "clean":
            index._ordered().clean(what)  # type: ignore[arg-type]
        elif step == "ask":
            found = index.matching(what)  # type: ignore[arg-type]
            assert len(found) == len(set(found))
            assert set(found) == {name for name in model.seqs if matches(what, name)}  # type: ignore[arg-type]
        elif step == "renew":  # during a checkpoint subjects are removed, with their leaves, and some are added again
            some, again = what  # type: ignore[misc]
            taken.append((index.snapshot(), {name: list(seqs) for name, seqs in model.seqs.items()}))
            index.remove_all(sorted((seq, name) for name in some for seq in model.seqs.get(name, [])))
            model.keep(lambda name, n, some=some: name not in some)
            index._ordered().clean(1000)
            index.add_run(again, model.next)
            model.add(again)
            index.matching(b">")
        elif step == "snapshot":
            taken.append((index.snapshot(), {name: list(seqs) for name, seqs in model.seqs.items()}))
        else:
            index = written(index.snapshot(), directory, model.next - 1)
            index.keep_within(memory, Files(), str(directory))
        assert len(index) == len(model.seqs), step
    for snapshot, then in taken:  # written late: later changes must not be in them
        again = written(snapshot, directory, model.next - 1)
        assert {name: again.seqs(name) for name, _ in again.items()} == then
        assert list(chain.from_iterable(map(sorted, again.some_matching(b">")))) == sorted(then)
    return index, model


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps, st.integers(0, 220), st.integers(0, 220))
def test_every_question_has_the_models_answer(made: list[tuple[str, object]], one: int, other: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        index, model = play(made, Path(directory))
    assert len(index) == len(model.seqs)
    assert dict(index.items()) == {name: seqs[-1] for name, seqs in model.seqs.items()}
    for filter in (b">", b"a.*", b"a.>", b"*.b", b"cold.>", b"a", b"unknown"):
        newest = {seqs[-1] for name, seqs in model.seqs.items() if matches(filter, name)}
        assert {seq for part in index.newest([filter], model.next) for seq in part if seq} == newest
    for some in ((b"a.*", b"*.b", b"a"), (b"cold.>", b"cold.*", b"a.b"), (b"a", b"unknown", b"a"), (b"*.*", b">")):
        wanted = {name: seqs for name, seqs in model.seqs.items() if any(matches(each, name) for each in some)}
        assert sorted(chain.from_iterable(index.some_matching(*some))) == sorted(wanted), "each once"
        then = {max(seq for seq in seqs if seq <= one) for seqs in wanted.values() if seqs[0] <= one}
        assert {seq for part in index.newest(some, one) for seq in part if seq} == then
        for lo, hi in ((one, other), (1, model.next)):
            counted = sum(lo <= seq <= hi for seqs in wanted.values() for seq in seqs)
            assert sum(index.counts(some, lo, hi)) == counted
    lo, hi = min(one, other), max(one, other)
    assert index.count_each([*NAMED, b"unknown"]) == [len(model.seqs.get(name, [])) for name in (*NAMED, b"unknown")]
    for name in (*NAMED, b"unknown"):
        seqs = model.seqs.get(name, [])
        assert (name in index) == bool(seqs)
        assert index.count(name) == len(seqs)
        assert index.first(name) == (seqs[0] if seqs else 0)
        assert index.last(name) == (seqs[-1] if seqs else 0)
        assert index.seqs(name) == seqs
        inside = [seq for seq in seqs if lo <= seq <= hi]
        assert index.seqs(name, lo, hi) == inside
        assert index.count_range(name, lo, hi) == len(inside)
        assert index.last_at_or_before(name, one) == max((seq for seq in seqs if seq <= one), default=0)
        assert index.next_at_or_after(name, one) == min((seq for seq in seqs if seq >= one), default=0)


def test_a_subject_that_came_back_into_memory_is_counted_once_when_many_of_its_messages_go(tmp_path: Path) -> None:
    names = [b"a"] * 4 + [b"a.b", b"a.c", b"b.b", b"KV.x.y"]
    index, model = play([("add", names), ("copy", None), ("first", b"a"), ("all", b"a")], tmp_path)
    assert len(index) == len(model.seqs) == 4


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
def test_filters_select_what_they_should(made: list[tuple[str, object]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        index, model = play(made, Path(directory))
    present = set(model.seqs)
    assert set(index.matching(b">")) == present
    assert set(index.matching(b"a.*")) == present & {b"a.b", b"a.c"}
    assert set(index.matching(b"*.b")) == present & {b"a.b", b"b.b"}
    assert set(index.matching(b"KV.>")) == present & {b"KV.x.y"}
    assert index.matching(b"a") == ([b"a"] if b"a" in present else [])


def test_a_checkpoint_has_no_subjects_of_leaves_that_were_merged_while_it_was_written(tmp_path: Path) -> None:
    index, _ = filled(tmp_path, 1000)
    index._ordered().clean(1)  # upkeep is in progress: the first leaf has been cleaned, the second is next
    before = index.matching(b">")
    snapshot = index.snapshot()
    index.remove_all([(number + 1, b"k.%06d" % number) for number in range(2, 300)])
    index._ordered().clean(10_000)  # the first one covers what is below 300 now
    index.add_run([b"k.%06d" % number for number in range(200, 240)], 1001)
    index.matching(b">")
    again = written(snapshot, tmp_path, 1000)
    assert again._ordered().lows == sorted(again._ordered().lows)
    assert (len(again), sorted(again.matching(b">"))) == (1000, sorted(before))
    assert [again.last(b"k.%06d" % number) for number in range(1000)] == list(range(1, 1001))


def test_removing_from_the_front_of_many_stays_cheap() -> None:
    index = SubjectIndex()
    index.add_run([b"one"] * 100_000, 1)
    for seq in range(1, 99_000):
        index.remove(b"one", seq)
    assert index.seqs(b"one") == list(range(99_000, 100_001))
    assert index.count(b"one") == 1001


def test_clear_empties_it() -> None:
    index = SubjectIndex()
    index.add_run([b"a", b"a", b"b"], 1)
    index.clear()
    assert len(index) == 0
    assert index.count(b"a") == 0


NAMES = [b"a.%d.%d" % (first, second) for first in range(6) for second in range(6)] + [
    b"a",
    b"a.",
    b"a.1",
    b"b.1.1",
    b"a.1/x",
]
ACTIONS = st.one_of(
    st.tuples(st.just("add"), st.sampled_from(NAMES)),
    st.tuples(st.just("remove"), st.sampled_from(NAMES)),
    st.tuples(st.just("ask"), st.sampled_from([b"a.1.*", b"a.>", b"a.*.2", b"*.1.1", b"b.>", b"a.*"])),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ACTIONS, max_size=80))
def test_a_wildcard_behind_literal_tokens_finds_what_a_scan_finds(actions: list[tuple[str, bytes]]) -> None:
    index = SubjectIndex()
    held: dict[bytes, int] = {}
    for seq, (action, name) in enumerate(actions, 1):
        if action == "add":
            index.add(name, seq)
            held[name] = seq
        elif action == "remove":
            while seqs := index.seqs(name):
                index.remove(name, seqs[0])
            held.pop(name, None)
        else:
            found = index.matching(name)
            assert len(found) == len(set(found))
            assert set(found) == {subject for subject in held if matches(name, subject)}


def filled(directory: Path, count: int, limit: int = 1 << 30) -> tuple[SubjectIndex, IndexMemory]:
    """Return an index of `count` subjects with one message each, in the order of their names."""
    index, memory = SubjectIndex(), IndexMemory(limit)
    index.keep_within(memory, Files(), str(directory))
    index.share()
    for first in range(0, count, 100):
        index.add_run([b"k.%06d" % number for number in range(first, first + 100)], first + 1)
    return index, memory


def test_what_is_over_the_limit_of_memory_leaves_it_and_is_still_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject_index, "FRESH_SUBJECTS", 100)
    monkeypatch.setattr(index_memory, "STEP", 200)
    index, _ = filled(tmp_path, 20_000, 300_000)
    assert index.memory <= 310_000
    assert index.cold_subjects > 15_000
    assert len(index) == 20_000
    assert index.last(b"k.000007") == 8
    assert index.last(b"k.1") == 0
    assert sorted(index.matching(b"k.*"))[::10_000] == [b"k.000000", b"k.010000"]
    assert list(tmp_path.iterdir()) == []  # nothing that a crash could leave behind


def test_the_limit_of_memory_holds_also_where_many_subjects_come_at_once(tmp_path: Path) -> None:
    """As many subjects left as if 1,024 had come: with runs of 8,000 an index grew to five times the limit."""
    memory = IndexMemory(1_000_000)
    index = SubjectIndex()
    index.keep_within(memory, Files(), str(tmp_path))
    index.share()
    for first in range(1, 100_000, 8_000):
        index.add_run([b"k.%06d" % (number * 7_919 % 104_729) for number in range(first, first + 8_000)], first)
    assert memory.used <= 2_000_000, "the last run may exceed it"
    assert index.cool(1 << 20) > 0


def test_subjects_with_long_histories_are_not_all_looked_at_whenever_there_is_no_room(tmp_path: Path) -> None:
    """None of 20,000 can leave memory; all were looked at every 65,536 messages: 0.2 s with 100,000 of them."""
    names = [b"k.%05d" % number for number in range(20_000)]
    memory, index = IndexMemory(1 << 40), SubjectIndex()
    index.keep_within(memory, Files(), str(tmp_path))
    index.share()
    for turn in range(COLD_HISTORY + 1):
        index.add_run(names, 1 + turn * len(names))
    index.add_run([b"short.%05d" % number for number in range(2_000)], 2_000_000)
    looks = list[int]()
    while sum(looks) < 2_000 and len(looks) < len(names):
        looks.append(index.cool(100))
    assert looks.count(0) > len(names) // 600, "each look sees a few hundred"
    assert sum(looks) >= 2_000, "in the end those that can leave have left"


class Fixed:
    """An index that can or cannot move anything."""

    def __init__(self, memory: int, moves: int) -> None:
        self.memory, self.moves, self.asked = memory, moves, list[int]()

    def cool(self, subjects: int) -> int:
        self.asked.append(subjects)
        return self.moves


def test_an_index_that_can_move_nothing_keeps_no_other_from_it() -> None:
    memory = IndexMemory(100)
    tables, subjects = Fixed(500, 0), Fixed(50, 7)
    memory.add(tables)
    memory.add(subjects)
    memory.grown(subjects, 9_000)
    assert (tables.asked, subjects.asked) == ([9_000], [9_000])


def test_the_largest_of_all_indexes_makes_room(tmp_path: Path) -> None:
    memory = IndexMemory(1 << 30)
    large, small = SubjectIndex(), SubjectIndex()
    for index, count in ((large, 5000), (small, 1500)):
        index.keep_within(memory, Files(), str(tmp_path))
        index.add_run([b"k.%06d" % number for number in range(count)], 1)
        index._weigh()
        index.share()
    assert memory.used == large.memory + small.memory
    memory.limit = memory.used - 1
    memory.grown(small, 1)
    assert (large.cold_subjects > 0, small.cold_subjects) == (True, 0)


def test_an_index_that_a_thread_has_touches_no_other_and_is_touched_by_none(tmp_path: Path) -> None:
    memory = IndexMemory(1 << 30)
    served, replayed = SubjectIndex(), SubjectIndex()
    for index, count in ((served, 5000), (replayed, 1500)):
        index.keep_within(memory, Files(), str(tmp_path))
        index.add_run([b"k.%06d" % number for number in range(count)], 1)
        index._weigh()
    served.share()
    assert (memory.used, memory.used_with(replayed)) == (served.memory, served.memory + replayed.memory)
    memory.limit = memory.used - 1
    memory.grown(replayed, 1)  # in the thread: the other one is larger, but belongs to the event loop
    assert (served.cold_subjects, replayed.cold_subjects > 0) == (0, True)
    before = replayed.cold_subjects
    memory.grown(served, 1)
    assert (served.cold_subjects > 0, replayed.cold_subjects) == (True, before)
    replayed.share()
    served.unshare()
    assert memory.used == replayed.memory


def test_a_deleted_index_releases_its_memory(tmp_path: Path) -> None:
    index, memory = filled(tmp_path, 20_000)
    assert memory.used > 1_000_000
    del index
    assert memory.used == 0


class Full(Files):
    """Disk that refuses writes."""

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> None:
        raise OSError(28, "No space left on device")


def test_on_a_full_disk_everything_stays_in_memory(tmp_path: Path) -> None:
    index = SubjectIndex()
    index.keep_within(IndexMemory(1), Full(), str(tmp_path))
    index.add_run([b"k.%06d" % number for number in range(5000)], 1)
    assert index.cool(100) == 0
    assert (len(index), index.cold_subjects) == (5000, 0)
    assert index.last(b"k.000007") == 8


class Flickering(Files):
    """Disk that cannot be read for a while."""

    bad = False

    def read_at(self, fd: int, length: int, offset: int) -> bytes:
        if self.bad:
            raise OSError(5, "Input/output error")
        return super().read_at(fd, length, offset)


def test_new_subjects_are_listed_also_when_their_leaf_could_not_be_divided(tmp_path: Path) -> None:
    files, memory = Flickering(), IndexMemory(1 << 30)
    index, other = SubjectIndex(), SubjectIndex()
    for each in (index, other):
        each.keep_within(memory, files, str(tmp_path))
        each.share()
    index.add_run([b"k.%06d" % number for number in range(0, 2000, 2)], 1)
    index.cool(1000)
    names = [b"k.000002.%04d" % number for number in range(900)]  # one leaf gets more entries than it should have
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subject_index, "FRESH_SUBJECTS", 10_000)  # collect them
        index.add_run(names, 1001)
    files.bad = True
    with pytest.raises(FileNotReadable, match="Input/output error"):
        index.matching(b"k.*")
    memory.limit, index.memory = 1, 1 << 30
    other.add_run([b"o.%d" % number for number in range(100)], 1)  # asks the larger one to free memory, which it cannot
    files.bad = False
    assert (len(other), len(index)) == (100, 1900)
    assert set(names) <= set(index.matching(b">"))
    again = written(index.snapshot(), tmp_path, 1900)
    assert [again.last(name) for name in names] == list(range(1001, 1901))
    index.add_run([b"k.000002.%04d" % number for number in range(900, 920)], 1901)
    assert max(len(leaf.names) for leaf in index._ordered().leaves) < 900


def test_two_subjects_that_lie_side_by_side_are_not_one(tmp_path: Path) -> None:
    index, _ = filled(tmp_path, 1000)
    again = written(index.snapshot(), tmp_path, 1000)
    for name in (b"k.000010 k.000011", b"k.000010 ", b" k.000010", b" "):
        for _ in range(3):
            assert (again.last(name), again.matching(name), name in again) == (0, [], False)
    assert not again.remove(b"k.000010 k.000011", 11)
    assert len(again) == 1000
    assert [len(list(written(again.snapshot(), tmp_path, 1000).items()))] == [1000]


@pytest.mark.parametrize("how", ["remove", "remove_all", "remove_many", "discard_below"])
def test_memory_has_its_limit_also_while_messages_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(subject_index, "FRESH_SUBJECTS", 100)
    monkeypatch.setattr(index_memory, "STEP", 200)
    monkeypatch.setattr(subject_index, "STEP", 200)
    count, limit, most = 10_000, 300_000, 0
    index, _ = filled(tmp_path, count, limit)
    for first in range(0, count, 50):
        index.add_run([b"k.%06d" % number for number in range(first, first + 50)], count + first + 1)
    assert index.memory <= 310_000
    settle = index._settle

    def settled() -> None:
        nonlocal most
        most = max(most, len(index._held))
        settle()

    monkeypatch.setattr(SubjectIndex, "_settle", lambda self: settled())
    gone = [(number + 1, b"k.%06d" % number) for number in range(count)]
    if how == "remove":
        assert all(index.remove(name, seq) for seq, name in gone)
    elif how == "remove_all":
        index.remove_all([*gone, *((seq + count, name) for seq, name in gone[1:])])
    elif how == "remove_many":
        for seq, name in gone:
            index.remove_many(name, range(seq, seq + 10))
    else:
        index.discard_below(count + 1)
    assert index.last(b"k.000000") == count + 1
    assert len(index) == (1 if how == "remove_all" else count)
    assert index.count(b"k.000000") == 1
    assert most < 4000
    assert len(index._held) < 4000
    assert index.memory <= 310_000


def test_places_in_the_scratch_file_are_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject_leaves, "LEAF_ROWS", 256)
    monkeypatch.setattr(subject_leaves, "SPLIT_ROWS", 512)
    index, _ = filled(tmp_path, 5000)
    index.cool(5000)
    assert index._scratch is not None
    size = index._scratch.size
    seq = 5001
    for _ in range(10):
        for number in range(0, 5000, 7):
            before = index.last(b"k.%06d" % number)
            index.add(b"k.%06d" % number, seq)
            index.remove(b"k.%06d" % number, before)
            seq += 1
        assert index.cool(5000) == 715
    assert len(index) == 5000
    assert index._scratch.size < 2 * size


def test_a_place_is_not_used_again_while_a_snapshot_reads_it(tmp_path: Path) -> None:
    index, _ = filled(tmp_path, 1000)
    index.cool(1000)
    snapshot = index.snapshot()
    for seq in range(1001, 1011):
        index.add_run([b"k.%06d" % number for number in range(1000)], seq * 1000)
        index.cool(1000)
    rows = {name: packed for part in snapshot.rows() for name, packed in part.items()}
    assert rows == {b"k.%06d" % number: number + 1 for number in range(1000)}


def test_a_damaged_block_is_named(tmp_path: Path) -> None:
    index, _ = filled(tmp_path, 1000)
    again = written(index.snapshot(), tmp_path, 1000)
    path = tmp_path / "checkpoint"
    data = path.read_bytes()
    at = data.index(b"k.000500")
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(b"x")
    with pytest.raises(CorruptLog, match=r"checkpoint.*a block of an index is damaged"):
        again.last(b"k.000500")
    with pytest.raises(CorruptLog, match="the crc of the checkpoint does not match"):
        read_checkpoint(Files(), str(path))


def test_a_damaged_block_keeps_only_its_own_subjects_in_memory(tmp_path: Path) -> None:
    index, memory = filled(tmp_path, 1000)
    again = written(index.snapshot(), tmp_path, 1000)
    again.keep_within(memory, Files(), str(tmp_path))
    for number in range(0, 1000, 10):
        again.add(b"k.%06d" % number, 2000 + number)
    path = tmp_path / "checkpoint"
    at = path.read_bytes().index(b"k.000501")
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(b"x")
    moved = [again.cool(1000) for _ in range(3)]
    assert 0 in moved
    assert set(again._held) == {b"k.000500"}
    assert (again.last(b"k.000490"), again.last(b"k.000510"), again.last(b"k.000500")) == (2490, 2510, 2500)


def test_new_subjects_behind_the_last_one_of_a_file_divide_its_leaf(tmp_path: Path) -> None:
    index, memory = filled(tmp_path, 1000)
    again = written(index.snapshot(), tmp_path, 1000)
    again.keep_within(memory, Files(), str(tmp_path))
    for number in range(1000, 3000):
        again.add(b"k.%06d" % number, number + 1)
    assert max(len(leaf.names) for leaf in again._ordered().leaves) < 20
    assert len(again) == 3000
    for number in range(1000, 3000):
        again.remove(b"k.%06d" % number, number + 1)
    assert len(again) == 1000
    assert len(again.matching(b"k.>")) == 1000


def test_a_checkpoint_of_the_first_version_is_read(tmp_path: Path) -> None:
    last, earlier = {b"a": 7, b"b.c": 8}, {b"a": [1, 3]}
    parts = [b"".join(last), array("I", map(len, last)).tobytes(), array("Q", last.values()).tobytes()]
    parts.append(array("Q", [len(earlier.get(name, [])) for name in last]).tobytes())
    sizes = msgpack.encode([len(part) for part in parts])
    index = b"".join([len(sizes).to_bytes(4, "little"), sizes, *parts, array("Q", earlier[b"a"]).tobytes()])
    head = msgpack.encode(state(8))
    crc = zlib.crc32(index, zlib.crc32(head))
    path = tmp_path / "checkpoint"
    path.write_bytes(struct.pack("<4sIQQI", b"LKCP", 1, len(head), len(index), crc) + head + index)
    found = read_checkpoint(Files(), str(path))
    assert found is not None
    assert found[0] == state(8)
    assert (found[1].seqs(b"a"), found[1].seqs(b"b.c"), len(found[1])) == ([1, 3, 7], [8], 2)


@pytest.mark.parametrize("length", [1, 2, PACKED, PACKED + 1, 70])
def test_sequences_up_to_the_largest_there_is(length: int, tmp_path: Path) -> None:
    last = (1 << 64) - 1
    seqs = list(range(last - length + 1, last + 1))
    index = SubjectIndex()
    for seq in seqs:
        index.add(b"a", seq)
    again = written(index.snapshot(), tmp_path, last)
    for one in (index, again):
        assert one.seqs(b"a", 0, last) == seqs
        assert one.seqs(b"a") == seqs
        assert (one.first(b"a"), one.last(b"a"), one.count(b"a")) == (seqs[0], last, length)


def test_long_histories_are_in_memory_again_after_a_start_and_their_neighbours_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject_leaves, "LEAF_ROWS", 8)
    monkeypatch.setattr(subject_leaves, "LONG_BLOCK", 4096)
    index, memory = filled(tmp_path, 1000)
    index.add_run([b"k.000502"] * 3000, 1001)
    again = written(index.snapshot(), tmp_path, 4000)
    again.keep_within(memory, Files(), str(tmp_path))
    assert set(again._held) <= {b"k.%06d" % number for number in range(495, 503)}
    assert again.seqs(b"k.000502") == [503, *range(1001, 4001)]
    assert all(leaf.block.size < 200 for leaf in again._ordered().leaves if leaf.block is not None)
    assert len(again) == 1000
    assert sorted(again.matching(b">")) == [b"k.%06d" % number for number in range(1000)]
    again.add(b"k.000503", 4001)
    while again.cool(1000):
        assert again._scratch is not None
    assert set(again._held) == {b"k.000502"}
    assert again._scratch is not None
    assert again._scratch.size < 4096
    once_more = written(again.snapshot(), tmp_path, 4001)
    assert once_more.seqs(b"k.000502") == [503, *range(1001, 4001)]
    assert dict(once_more.items()) == dict(again.items())


CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.integers(0, 400)),
        st.tuples(st.just("go"), st.integers(0, 400)),
        st.tuples(st.just("write"), st.integers(0, 400)),
        st.tuples(st.just("cool"), st.integers(1, 60)),
        st.tuples(st.just("clean"), st.integers(1, 60)),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(CHANGES, CHANGES, st.sampled_from([b">", b"k.*", b"k.0001*.>", b"k.>", b"*.000100"]))
def test_an_index_that_changes_while_it_is_listed_shows_each_subject_that_stays_once(
    before: list[tuple[str, int]], meanwhile: list[tuple[str, int]], pattern: bytes
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        index, _ = filled(Path(directory), 200)
        held = set(index.matching(b">"))
        came: set[bytes] = set()
        went: set[bytes] = set()
        seq = 1000

        def change(step: str, number: int) -> None:
            nonlocal seq
            name, seq = b"k.%06d" % number, seq + 1
            if step == "cool":
                index.cool(number)
            elif step == "clean":
                index._ordered().clean(number)
            elif step == "go":
                index.remove_many(name, range(1, seq))
                went.add(name)
            elif step == "come" or name in index:
                came.add(name)
                index.add(name, seq)

        for each in before:
            change(*each)
        held = (held | came) - went | {name for name in came if name in index}
        came.clear()
        went.clear()
        waiting = iter(meanwhile)
        found: list[bytes] = []
        for part in index.some_matching(pattern):
            found += part
            for each in waiting:
                change(*each)
                if each[0] == "cool":
                    break
        wanted = {name for name in held if matches(pattern, name)}
        assert len(found) == len(set(found))
        assert wanted - went <= set(found) <= wanted | came


def test_what_is_asked_for_comes_into_memory_while_there_is_room(tmp_path: Path) -> None:
    index, memory = filled(tmp_path, 20_000)
    again = written(index.snapshot(), tmp_path, 20_000)
    again.keep_within(memory, Files(), str(tmp_path))
    assert again.cold_subjects == 20_000
    assert [again.last(b"k.%06d" % number) for number in range(0, 20_000, 4)] == list(range(1, 20_001, 4))
    assert again.cold_subjects == 15_000
    memory.limit = again.memory
    again.add(b"k.000000", 20_001)
    for number in range(10):
        again.add(b"new.%d" % number, 20_002 + number)
    before = again.cold_subjects
    assert again.last(b"k.000001") == 2
    assert again.cold_subjects == before
    assert len(again) == 20_010


def test_indexes_may_come_while_others_are_looked_at(tmp_path: Path) -> None:
    memory, made, over = IndexMemory(1 << 30), [], threading.Event()

    def open_many() -> None:
        for _ in range(3000):
            made.append(SubjectIndex())
            memory.add(made[-1])
        over.set()

    thread = threading.Thread(target=open_many)
    thread.start()
    while not over.is_set():
        assert memory.used == 0
    thread.join()


def test_weighing_an_index_asks_only_those_with_memory() -> None:
    """Thousands of streams have a handful of subjects each: a new one does not look at them."""
    memory, looked = IndexMemory(1 << 30), [0]

    class Small:
        @property
        def memory(self) -> int:
            looked[0] += 1
            return 0

        def cool(self, subjects: int) -> int:
            return 0

    smalls = [Small() for _ in range(100)]
    for small in smalls:
        memory.add(small)
    looked[0] = 0
    index = SubjectIndex()
    index.share()
    memory.add(index)
    assert memory.used_with(index) == memory.used == 0
    assert looked[0] == 0


@pytest.mark.parametrize("cooled", [0, 3000, 10_000])
def test_subjects_between_those_that_match_are_skipped(tmp_path: Path, cooled: int) -> None:
    index = SubjectIndex()
    index.keep_within(IndexMemory(1 << 60), Files(), str(tmp_path))
    dice, names = random.Random(3), [b"k.%d.%d" % divmod(number, 500) for number in range(10_000)]
    dice.shuffle(names)
    index.add_run(names[:8000], 1)
    index.matching(b"k.*.1")
    index.cool(cooled)
    index.add_run(names[8000:], 8001)
    gone = set(dice.sample(names, 4000))
    index.remove_all(sorted((seq, name) for seq, name in enumerate(names, 1) if name in gone))
    for pattern in (b"k.*.7", b"k.*.70", b"k.*.499", b"*.3.*.x", b"*.3.9", b"k.*.none"):
        found = index.matching(pattern)
        assert sorted(found) == sorted(name for name in names if name not in gone and matches(pattern, name))
