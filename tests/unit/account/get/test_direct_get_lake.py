"""Tests of direct gets of messages that are only in the lake, and of past states."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.account.get import batch as direct_batch
from lakestream.account.get import query
from lakestream.log.format.errors import CorruptRecord
from lakestream.log.format.record import Record
from lakestream.ports import PastUnavailableError
from lakestream.protocol.subjects import finished
from lakestream.stream.features.time_travel import TimeTravel
from tests.unit.api_world import ApiWorld
from tests.unit.direct_world import (
    NO_RESULTS,
    NOT_FOUND,
    TOO_MANY,
    got,
    several,
    stream_a,
)

pytestmark = pytest.mark.unit


@pytest.fixture
def world() -> ApiWorld:
    return stream_a()


# ---------------------------------------------------------------------------------------------------- the lake
LAKE_REQUESTS: list[Any] = [
    {"seq": 3},
    {"seq": 7},
    {"next_by_subj": "a.1", "seq": 2},
    {"start_time": "2020-01-01T00:00:00Z"},
    {"seq": 3, "no_hdr": True},
    {"batch": 100, "seq": 1},
    {"batch": 3, "seq": 4},
    {"batch": 100, "next_by_subj": "a.1"},
    {"batch": 4, "next_by_subj": "a.*", "seq": 3},
    {"batch": 100, "seq": 1, "max_bytes": 24},
    {"multi_last": ["a.*"], "up_to_seq": 4},
    {"multi_last": ["a.*"], "up_to_seq": 8},
    {"multi_last": ["a.*"]},
    {"seq": 5},
]


@pytest.mark.parametrize("body", LAKE_REQUESTS, ids=str)
@pytest.mark.parametrize("piece", [2, 1024])
@pytest.mark.parametrize("dense", [0, 8])
async def test_the_lake_makes_no_difference(
    world: ApiWorld, body: Any, piece: int, dense: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = world.direct("A", body)
    monkeypatch.setattr(direct_batch, "PIECE", piece)
    monkeypatch.setattr(direct_batch, "DENSE", dense)
    world.to_lake("A", 7)
    reply = world.send("$JS.API.DIRECT.GET.A", body)
    await world.awaited()
    assert world.answers(reply) == expected


async def test_last_by_subject_from_the_lake(world: ApiWorld) -> None:
    expected = world.direct("A.a.2")
    lake = world.to_lake("A", 8)
    reply = world.send("$JS.API.DIRECT.GET.A.a.2")
    assert world.answers(reply) == []  # never in the event loop's own turn
    await world.awaited()
    assert world.answers(reply) == expected
    assert lake.reads == [(8, 8)]


async def test_a_message_deleted_while_the_lake_is_read_is_not_shown(world: ApiWorld) -> None:
    lake = world.to_lake("A", 7)

    def forget() -> None:
        world.stream("A").store.live.discard(3)

    lake.before = forget
    reply = world.send("$JS.API.DIRECT.GET.A", {"seq": 3})
    await world.awaited()
    assert world.answers(reply) == NOT_FOUND


async def test_scattered_messages_are_fetched_with_one_read(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_batch, "DENSE", 0)
    lake = world.to_lake("A", 10)
    reply = world.send("$JS.API.DIRECT.GET.A", {"multi_last": ["a.*"]})
    await world.awaited()
    assert [data for _, data in world.answers(reply)] == [b"m8", b"m9", b"m10", b""]
    assert (lake.reads, lake.asked) == ([], [[8, 9, 10]])


async def test_so_many_requests_wait_for_the_lake_and_no_more(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestream.account.get.direct.MAX_IN_LAKE", 2)
    world.to_lake("A", 7)
    waiting = [world.send("$JS.API.DIRECT.GET.A", {"seq": seq}) for seq in (3, 4)]
    refused = [(b"NATS/1.0 429 Too Many Requests\r\n\r\n", b"")]
    assert world.direct("A", {"seq": 6}) == refused
    assert world.direct("A", {"seq": 9})[0][1] == b"m9"  # still in the log
    await world.awaited()
    assert [world.answers(reply)[0][1] for reply in waiting] == [b"m3", b"m4"]
    again = world.send("$JS.API.DIRECT.GET.A", {"seq": 6})
    await world.awaited()
    assert world.answers(again)[0][1] == b"m6"


@pytest.mark.parametrize("body", [{"seq": 3}, {"batch": 3, "seq": 1}, {"multi_last": ["a.*"], "up_to_seq": 4}], ids=str)
async def test_what_the_lake_can_not_read_is_said(world: ApiWorld, body: Any) -> None:
    """A failed read of the lake is reported, never as a missing message."""
    world.to_lake("A", 7)
    world.stream("A").reader.history = None
    reply = world.send("$JS.API.DIRECT.GET.A", body)
    results = await asyncio.gather(*world.clock.spawned, return_exceptions=True)
    world.clock.spawned = []
    assert len(results) == 1
    (header, data), *more = world.answers(reply)
    assert header.startswith(b"NATS/1.0 500 A: sequence ")
    assert (data, more) == (b"", [])


def test_damage_is_said(world: ApiWorld) -> None:
    def damaged(seq: int) -> Any:
        raise CorruptRecord(64, "its crc\r\ndoes not match")

    rows: Any = world.stream("A").store._rows
    rows.read = damaged
    expected = [(b"NATS/1.0 500 record at offset 64: its crc  does not match\r\n\r\n", b"")]
    assert world.direct("A.a.1") == expected
    assert world.direct("A", {"seq": 1}) == expected


# ---------------------------------------------------------------------------------------------------- the past
class Past:
    """`Past` and `Found` over the former messages of a stream, which counts its reads."""

    def __init__(self, world: ApiWorld, *, wrong: str = "", piece: int = 100) -> None:
        store = world.stream("A").store
        self.records = [record for seq in range(1, 11) if (record := store.read(seq)) is not None]
        self.asked: list[tuple[list[bytes], int, int, int]] = []
        self.reads: list[list[int]] = []
        self.wrong, self.piece = wrong, piece
        self.through = 10
        self.seqs: list[int] = []
        self.too_many = False

    async def find(self, patterns: Sequence[bytes], up_to_seq: int, before_ns: int, limit: int) -> Past | None:
        self.asked.append((list(patterns), up_to_seq, before_ns, limit))
        if self.wrong:
            raise PastUnavailableError(self.wrong)
        return None if self.too_many else self

    async def read(self, seqs: Sequence[int], max_bytes: int) -> list[Record]:
        self.reads.append(list(seqs))
        return [record for record in self.records if record.seq in seqs][: self.piece]


@pytest.fixture
def past(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> Past:
    """Return the past of stream A, from which everything is removed now."""
    past = Past(world)
    world.ask("STREAM.PURGE.A")
    past.seqs, past.through = [2, 3, 4], 5
    monkeypatch.setattr(TimeTravel, "past", past)
    return past


async def asked_of_the_past(world: ApiWorld, body: Any) -> list[tuple[bytes, bytes]]:
    reply = world.send("$JS.API.DIRECT.GET.A", body)
    await world.awaited()
    return world.answers(reply)


@pytest.mark.parametrize("piece", [1, 2, 100])
async def test_a_stream_with_a_past_is_asked_how_it_was(world: ApiWorld, past: Past, piece: int) -> None:
    past.piece = piece
    answers = await asked_of_the_past(world, {"multi_last": ["a.*", "b"], "up_to_seq": 5})
    assert got(answers) == several((2, 2, 0), (3, 1, 2), (4, 0, 3), up_to=5)
    assert past.asked == [([b"a.*", b"b"], 5, 0, 1024)]


async def test_the_past_of_a_time(world: ApiWorld, past: Past) -> None:
    await asked_of_the_past(world, {"multi_last": ["a.*"], "up_to_time": "1970-01-01T00:00:01.000000002Z"})
    assert past.asked == [([b"a.*"], 0, 1_000_000_002, 1024)]


@pytest.mark.parametrize(
    ("body", "messages"),
    [
        ({"seq": 3}, [(3, 1, 0), (4, 0, 3)]),
        ({"batch": 2}, [(2, 2, 0), (3, 1, 2)]),
        ({"max_bytes": 1}, [(2, 2, 0)]),
        ({"batch": 2, "seq": 3}, [(3, 1, 0), (4, 0, 3)]),
    ],
)
async def test_the_past_is_paged_as_the_present_is(world: ApiWorld, past: Past, body: Any, messages: Any) -> None:
    answers = await asked_of_the_past(world, {"multi_last": ["a.*"], "up_to_seq": 5, **body})
    assert got(answers) == several(*messages, up_to=5)


async def test_the_past_without_results(world: ApiWorld, past: Past) -> None:
    body = {"multi_last": ["a.*"], "up_to_seq": 5}
    assert await asked_of_the_past(world, {**body, "up_to_seq": 11}) == NO_RESULTS
    assert past.asked == []
    past.seqs = []
    assert await asked_of_the_past(world, body) == NO_RESULTS
    past.too_many = True
    assert await asked_of_the_past(world, body) == TOO_MANY
    past.wrong = "of that time\r\nnothing is kept"
    assert await asked_of_the_past(world, body) == [(b"NATS/1.0 500 of that time  nothing is kept\r\n\r\n", b"")]


async def test_the_present_does_not_ask_the_past(world: ApiWorld, past: Past) -> None:
    world.publish("a.1", b"m11")
    assert len(await asked_of_the_past(world, {"multi_last": ["a.*"]})) == 2
    assert len(await asked_of_the_past(world, {"seq": 11, "batch": 5})) == 2
    assert past.asked == []


# ---------------------------------------------------------------------------------------------------- properties
_subject = st.sampled_from(["a.1", "a.2", "a.3", "a.*", "b.1", "b.2", "b.>"])
_pattern = st.sampled_from(["a.1", "a.*", "*.1", "b.>", ">", "c", "*.*"])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(_subject, min_size=1, max_size=24),
    st.sets(st.integers(1, 24), max_size=10),
    st.lists(_pattern, min_size=1, max_size=3),
    st.integers(1, 26),
    st.integers(1, 6),
)
def test_queries_agree_with_a_plain_list(
    subjects: list[str], deleted: set[int], patterns: list[str], at: int, limit: int
) -> None:
    """After any publishes and deletes the index returns the same sequences as a scan over the messages."""
    world = ApiWorld()
    world.create("P", subjects=["a.*", "b.*"], allow_direct=True)
    for subject in subjects:
        world.send(subject, b"x")
    world.settle()
    store = world.stream("P").store
    for seq in deleted:
        store.remove(seq)
    kept = [(seq, subject) for seq, subject in enumerate(subjects, 1) if seq not in deleted]

    def fits(pattern: str, subject: str) -> bool:
        want, have = pattern.split("."), subject.split(".")
        if want[-1] == ">":
            want, have = want[:-1], have[: len(want) - 1]
        return len(want) == len(have) and all(w in ("*", h) for w, h in zip(want, have, strict=True))

    def matching(seq_from: int, pattern: str) -> list[int]:
        return [seq for seq, subject in kept if seq >= seq_from and fits(pattern, subject)]

    for pattern in patterns:
        raw = pattern.encode()
        assert query.last_of(store, raw) == max(matching(0, pattern), default=0)
        assert list(query.from_on(store, raw, at)) == matching(at, pattern)
        assert query.next_of(store, raw, at) == min(matching(at, pattern), default=0)
        assert query.count_from(store, raw, at) == len(matching(at, pattern))

    lasts: dict[str, int] = {}
    for seq, subject in kept:
        if seq <= at and any(fits(pattern, subject) for pattern in patterns):
            lasts[subject] = seq
    expected = sorted(lasts.values())
    found = finished(query.multi_last(store, [pattern.encode() for pattern in patterns], at, limit))
    assert found == (expected if len(expected) <= limit else None)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(_subject, st.integers(0, 2)), min_size=1, max_size=16),
    st.sets(st.integers(1, 16), max_size=8),
    st.integers(0, 16),
    st.integers(-2, 34),
)
def test_no_message_stored_at_or_after_up_to_time_is_seen(
    stored: list[tuple[str, int]], deleted: set[int], in_the_lake: int, at: int
) -> None:
    """up_to_time excludes messages at or after it.

    With equal times, gaps, before the first and after the last message, on either side of the boundary of log and lake,
    and at it.
    """
    asyncio.run(_as_of_a_time(stored, deleted, in_the_lake, at))


async def _as_of_a_time(stored: list[tuple[str, int]], deleted: set[int], in_the_lake: int, at: int) -> None:
    world = ApiWorld()
    world.create("A", subjects=["a.*", "b.*"], allow_direct=True)
    begin = world.clock.time = 1_800_000_000 * 10**9
    for subject, later in stored:
        world.clock.time += later
        world.publish(subject, b"x")
    store = world.stream("A").store
    times = {seq: store.time_of(seq) or 0 for seq in range(1, len(stored) + 1)}
    world.to_lake("A", min(in_the_lake, len(stored)))
    for seq in deleted & times.keys():
        store.remove(seq)
    then = begin + at
    text = f"{datetime.fromtimestamp(then // 10**9, UTC):%Y-%m-%dT%H:%M:%S}.{then % 10**9:09d}Z"
    newest: dict[str, int] = {}
    for seq, (subject, _) in enumerate(stored, 1):
        if times[seq] < then and seq not in deleted:
            newest[subject] = seq
    seen = await _sequences(world, {"multi_last": [">"], "up_to_time": text})
    assert seen == sorted(newest.values())
    expected = [seq for seq in times if times[seq] >= then and seq not in deleted]
    assert await _sequences(world, {"start_time": text, "batch": 100}) == expected
    assert await _sequences(world, {"start_time": text}) == expected[:1]


async def _sequences(world: ApiWorld, body: Any) -> list[int]:
    reply = world.send("$JS.API.DIRECT.GET.A", body)
    await world.awaited()
    found = [re.search(rb"\r\nNats-Sequence: (\d+)\r\n", header) for header, _ in world.answers(reply)]
    return [int(each[1]) for each in found if each]
