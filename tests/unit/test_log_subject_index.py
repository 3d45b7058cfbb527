"""SubjectIndex against a dict of lists."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.log import subject_index
from lakestream.log.subject_index import Snapshot, SubjectIndex
from lakestream.protocol.subjects import matches

pytestmark = pytest.mark.unit

names = st.sampled_from([b"a", b"a.b", b"a.c", b"b.b", b"KV.x.y"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(names, min_size=1, max_size=12)),
        st.tuples(st.just("same"), st.tuples(names, st.integers(1, 90))),
        st.tuples(st.just("remove"), st.tuples(names, st.integers(0, 200))),
        st.tuples(st.just("first"), names),
        st.tuples(st.just("many"), st.tuples(names, st.sets(st.integers(1, 200), max_size=30))),
        st.tuples(st.just("below"), st.integers(1, 200)),
        st.tuples(st.just("copy"), st.none()),
        st.tuples(st.just("snapshot"), st.none()),
    ),
    max_size=40,
)


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


def play(made: list[tuple[str, object]]) -> tuple[SubjectIndex, Model]:
    index, model = SubjectIndex(), Model()
    taken: list[tuple[Snapshot, dict[bytes, list[int]]]] = []
    for step, what in made:
        if step in ("add", "same"):
            subjects = what if step == "add" else [what[0]] * what[1]  # type: ignore[index]
            index.add_run(subjects, model.next)  # type: ignore[arg-type]
            model.add(subjects)  # type: ignore[arg-type]
        elif step in ("remove", "first"):
            subject, seq = what if step == "remove" else (what, index.first(what))  # type: ignore[arg-type, misc]
            assert index.remove(subject, seq) == (seq in model.seqs.get(subject, []))
            model.keep(lambda name, n, subject=subject, seq=seq: (name, n) != (subject, seq))
        elif step == "many":
            subject, gone = what  # type: ignore[misc]
            index.remove_many(subject, gone)
            model.keep(lambda name, n, subject=subject, gone=gone: name != subject or n not in gone)
        elif step == "below":
            index.discard_below(what)  # type: ignore[arg-type]
            model.keep(lambda name, n, floor=what: n >= floor)
        elif step == "snapshot":
            taken.append((index.snapshot(), {name: list(seqs) for name, seqs in model.seqs.items()}))
        else:
            index = SubjectIndex.from_bytes(index.to_bytes())
    for snapshot, then in taken:  # written late: nothing that happened since is in them
        again = SubjectIndex.from_bytes(snapshot.to_bytes())
        assert {name: again.seqs(name) for name, _ in again.items()} == then
    return index, model


@settings(max_examples=150, deadline=None)
@given(steps, st.integers(0, 220), st.integers(0, 220))
def test_every_question_has_the_models_answer(made: list[tuple[str, object]], one: int, other: int) -> None:
    index, model = play(made)
    assert len(index) == len(model.seqs)
    assert dict(index.items()) == {name: seqs[-1] for name, seqs in model.seqs.items()}
    lo, hi = min(one, other), max(one, other)
    for name in (b"a", b"a.b", b"a.c", b"b.b", b"KV.x.y", b"unknown"):
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


@settings(max_examples=50, deadline=None)
@given(steps)
def test_filters_select_what_they_should(made: list[tuple[str, object]]) -> None:
    index, model = play(made)
    present = set(model.seqs)
    assert set(index.matching(b">")) == present
    assert set(index.matching(b"a.*")) == present & {b"a.b", b"a.c"}
    assert set(index.matching(b"*.b")) == present & {b"a.b", b"b.b"}
    assert set(index.matching(b"KV.>")) == present & {b"KV.x.y"}
    assert index.matching(b"a") == ([b"a"] if b"a" in present else [])


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


@given(st.lists(ACTIONS, max_size=80))
def test_a_wildcard_behind_literal_tokens_finds_what_a_scan_finds(actions: list[tuple[str, bytes]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subject_index, "SCANNED_SUBJECTS", 0)
        patch.setattr(subject_index, "FRESH_SUBJECTS", 2)
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
