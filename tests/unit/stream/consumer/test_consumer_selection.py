"""Tests of finding and counting the messages that match a consumer's filters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.log.format.record import encode_record
from lakestream.log.index.histories import Ascending
from lakestream.log.store.log import Appended
from lakestream.log.store.memory import MemoryStore
from lakestream.log.store.store import Store
from lakestream.protocol.subjects import matches
from lakestream.stream.consumer import selection as module
from lakestream.stream.consumer.selection import ConsumerFilters, selection
from tests.unit.consumer_world import World

pytestmark = pytest.mark.unit

SUBJECTS = [b"a.x", b"a.y", b"b.x", b"b.y.z", b"c"]
FILTERS = [[], [b">"], [b"a.x"], [b"a.*"], [b"*.x", b"c"], [b"b.>"], [b"a.*", b"*.y"], [b"nobody"]]


def filled(subjects: list[bytes], gone: set[int]) -> Store:
    store = MemoryStore()
    records = [encode_record(seq, seq, subject, b"", b"x") for seq, subject in enumerate(subjects, 1)]
    place = Appended(b"".join(records), 0, 1)
    store.apply_messages(place, 1, subjects, [len(record) for record in records], len(subjects))
    for seq in gone:
        store.remove(seq)
    return store


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=60),
    st.sets(st.integers(1, 60), max_size=20),
    st.sampled_from(FILTERS),
    st.integers(1, 7),
    st.booleans(),
)
def test_finds_each_wanted_message_once_in_order(
    subjects: list[bytes], gone: set[int], filters: list[bytes], limit: int, sparse: bool
) -> None:
    store = filled(subjects, gone)
    chosen = selection(store, filters)
    wanted = [
        seq
        for seq, subject in enumerate(subjects, 1)
        if seq not in gone and (not filters or any(matches(one, subject) for one in filters))
    ]
    assert chosen.count(1, store.last_seq) == len(wanted)
    found: list[int] = []
    start = 1
    with patch.object(module, "SCAN_MSGS", 3 if sparse else 2048), patch.object(module, "SPARSE_RATIO", 0):
        while start <= store.last_seq:
            left = chosen.count(start, store.last_seq)
            assert left == sum(seq >= start for seq in wanted)
            block = chosen.find(start, limit, 1 << 20, left)
            assert not block.remote
            assert len(block.records) <= limit
            assert block.resume > start
            found += [record.seq for record in block.records]
            start = block.resume
    assert found == wanted


def test_a_candidate_in_the_lake_is_named() -> None:
    store = filled([b"a.x", b"b.x", b"a.x", b"b.x"], set())
    store._rows.local_floor = 4  # type: ignore[misc]
    assert selection(store, []).find(1, 10, 1 << 20, 4).remote == 1
    assert selection(store, [b"b.x"]).find(3, 10, 1 << 20, 1).remote == 3
    assert [record.seq for record in selection(store, [b"b.x"]).find(4, 10, 1 << 20, 1).records] == [4]


def test_few_literal_subjects_narrow_a_read_from_the_lake() -> None:
    store = filled([b"a.x", b"a.y", b"c"], set())
    assert sorted(selection(store, [b"a.*"]).narrowing() or ()) == [b"a.x", b"a.y"]
    assert selection(store, []).narrowing() is None


def test_a_read_from_the_lake_of_many_subjects_is_narrowed_to_their_pattern() -> None:
    store = filled([b"a.%d" % number for number in range(ConsumerFilters.NARROW + 1)] + [b"b"], set())
    assert selection(store, [b"a.*"]).narrowing() == (b"a.*",)
    assert selection(store, [b"a.*", b"b"]).narrowing() == (b"a.*", b"b")
    assert selection(store, [b"*.*"]).narrowing() is None, "no file can be left out"
    some = filled([b"a.%d.b" % number for number in range(ConsumerFilters.FEW + 1)], set())
    assert selection(some, [b"a.>"]).narrowing() == (b"a.>",), "found quicker than so many names"
    assert len(selection(some, [b"a.*.b"]).narrowing() or ()) == ConsumerFilters.FEW + 1, "names leave out more"
    assert list(selection(store, [b"a.7", b"b"]).narrowing() or ()) == [b"a.7", b"b"]


def test_a_consumer_of_very_many_wildcard_filters_is_exact() -> None:
    """Its speed is in the section `scale` of the benchmark."""
    world = World()
    world.stream(subjects=["s.>"])
    world.store(*[f"s.{i % 3}.{i}" for i in range(4000)])
    world.consumer(filter_subjects=[f"s.*.{i}" for i in range(1000, 2000)])
    assert world.info()["num_pending"] == 1000
    assert [message.seq for message in world.pull(3)] == [1001, 1002, 1003]


class Looked(Sequence[int]):
    """Every `step`-th sequence up to 100 million, without memory for them; counts those that are looked at."""

    def __init__(self, first: int, step: int) -> None:
        self._seqs = range(first, 100_000_001, step)
        self.looks = 0

    def __len__(self) -> int:
        return len(self._seqs)

    def __getitem__(self, at: Any) -> Any:
        self.looks += 1
        return self._seqs[at]


@pytest.mark.parametrize("filters", [[b"a.1"], [b"a.*"], [b"a.1", b"a.2"], [b"*.1", b"*.3"]])
def test_what_a_new_consumer_matches_of_100_million_messages_is_counted_in_few_steps(
    filters: list[bytes],
) -> None:
    store = filled([b"a.1", b"a.2", b"a.3", b"b"], set())
    histories = {subject: Looked(first, 4) for first, subject in enumerate((b"a.1", b"a.2", b"a.3", b"b"), 1)}
    for subject, seqs in histories.items():
        store.subjects._held[subject] = Ascending(seqs, 0)  # type: ignore[arg-type]
    with patch.object(type(store), "last_seq", 100_000_000):
        wanted = [subject for subject in histories if any(matches(one, subject) for one in filters)]
        assert selection(store, filters).count(1, 100_000_000) == 25_000_000 * len(wanted)
        assert selection(store, filters).count(50_000_001, 100_000_000) == 12_500_000 * len(wanted)
    # Two binary searches a subject and count.
    assert sum(each.looks for each in histories.values()) <= 4 * 30 * len(wanted)
