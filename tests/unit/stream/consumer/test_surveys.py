"""Counting and finding what many filters match, in steps between which others are served."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from lakestream.protocol.subjects import matches
from lakestream.stream.consumer import feed, selection
from lakestream.stream.core.operations import DeleteMessage
from tests.unit.consumer_world import World

pytestmark = pytest.mark.unit

SUBJECTS = 200
FILTERS = [f"s.{number}.>" for number in range(0, 20, 2)]
MATCHING = SUBJECTS // 2
MS = 1_000_000


@pytest.fixture(autouse=True)
def _short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "SURVEY_MSGS", 10)
    monkeypatch.setattr(feed, "SLICE_NS", 0)
    monkeypatch.setattr(selection, "STEP_SUBJECTS", 8)


@pytest.fixture
def world() -> World:
    world = World()
    world.stream()
    world.store(*(f"s.{number % 20}.{number}" for number in range(SUBJECTS)))
    return world


def begin(world: World, **config: object) -> str:
    """Ask for a durable consumer; return the reply subject."""
    reply = world.inbox()
    fields = {"durable_name": "c", "ack_policy": "explicit", "filter_subjects": FILTERS, **config}
    body = json.dumps({"stream_name": "S", "config": fields}).encode()
    world.publish("$JS.API.CONSUMER.CREATE.S.c", body, reply)
    world.clock.turn()
    return reply


def pending_in(world: World, reply: str) -> int:
    [answer] = [message for message in world.client.taken() if message.subject == reply]
    return int(json.loads(answer.data)["num_pending"])


def test_a_consumer_is_answered_for_once_its_messages_are_counted(world: World) -> None:
    reply = begin(world)
    steps = 0
    while not world.client.got:
        world.clock.advance(MS)
        steps += 1
    assert pending_in(world, reply) == MATCHING
    assert steps >= len(FILTERS)
    assert len(world.pull(MATCHING)) == MATCHING


def test_a_pull_request_waits_for_the_count_of_a_consumer_that_was_purged(world: World) -> None:
    begin(world)
    world.clock.advance(100 * MS)
    world.client.taken()
    world.ask("STREAM.PURGE.S", {"filter": "s.0.>"})
    world.next({"batch": MATCHING, "no_wait": True})
    assert world.client.taken() == []
    world.clock.advance(100 * MS)
    got = world.client.taken()
    assert len([message for message in got if message.reply]) == MATCHING - SUBJECTS // 20


def test_messages_that_are_removed_during_a_count_are_not_counted(world: World) -> None:
    reply = begin(world)
    world.clock.advance(3 * MS)
    for seq in (1, 2, 3, 197, 199):
        world.engine.streams["S"].propose(DeleteMessage(seq))
    world.clock.advance(300 * MS)
    # Sequences 1, 3, 197 and 199 match.
    assert pending_in(world, reply) == MATCHING - 4


def test_messages_that_arrive_during_a_count_are_counted_once(world: World) -> None:
    reply = begin(world)
    world.clock.advance(3 * MS)
    world.store("s.2.new", "s.3.new", "s.4.new")
    world.clock.advance(300 * MS)
    assert pending_in(world, reply) in (MATCHING, MATCHING + 2)  # as of the answer, or of the request
    assert world.info()["num_pending"] == MATCHING + 2
    assert len(world.pull(SUBJECTS)) == MATCHING + 2


def test_a_count_that_never_comes_to_rest_ends(world: World) -> None:
    reply = begin(world)
    for seq in range(1, SUBJECTS):
        if world.client.got:
            break
        world.engine.streams["S"].propose(DeleteMessage(seq))
        world.clock.advance(MS)
    left = world.engine.streams["S"].store.live
    assert pending_in(world, reply) == sum(seq in left for seq in range(1, SUBJECTS + 1, 2))


@pytest.mark.parametrize(
    "filters",
    [
        ["s.*.7", "s.*.27", "s.*.47", "s.*.67"],  # heads are not apart: all subjects are compared
        ["s.7.>", "s.17.>"],
        ["s.7.*", "s.*.17"],
        ["s.7.7", "s.7.27", "s.8.*"],
    ],
)
def test_each_way_of_finding_subjects_finds_the_same(world: World, filters: list[str]) -> None:
    begin(world, filter_subjects=filters)
    world.clock.advance(300 * MS)
    matching = set()
    for number in range(SUBJECTS):
        subject = f"s.{number % 20}.{number}"
        if any(matches(one.encode(), subject.encode()) for one in filters):
            matching.add(subject)
    assert world.info()["num_pending"] == len(matching)
    got = [message for message in world.pull(SUBJECTS) if message.reply]
    assert {message.subject for message in got} == matching


def test_sparse_matches_are_planned_in_steps(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "SCAN_MSGS", 16)
    begin(world, filter_subjects=["s.3.>", "s.5.>"])
    world.clock.advance(300 * MS)
    world.client.taken()
    steps: list[int] = []
    real = selection.ConsumerFilters.planning

    def counted(self: selection.ConsumerFilters, start: int, left: int) -> Iterator[None]:
        for _ in real(self, start, left):
            steps.append(start)
            yield

    monkeypatch.setattr(selection.ConsumerFilters, "planning", counted)
    world.next({"batch": SUBJECTS, "expires": 10**9})
    world.clock.advance(300 * MS)
    assert len([message for message in world.client.taken() if message.reply]) == SUBJECTS // 10
    assert len(steps) > 2
