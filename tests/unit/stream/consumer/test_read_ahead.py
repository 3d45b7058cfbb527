"""Tests of reading ahead from the lake: complete, without duplicates, within the memory limit."""

from __future__ import annotations

import random

import pytest

from lakestream.log.format.record import Record
from lakestream.protocol.subjects import finished
from lakestream.stream.consumer import read_ahead
from lakestream.stream.consumer import start as consumer_start
from lakestream.stream.consumer.selection import ConsumerFilters
from lakestream.stream.consumer.start import ConsumerStart
from lakestream.stream.core import limits
from tests.unit.consumer_world import World
from tests.unit.stream.consumer.test_consumer_recovery import Lake

pytestmark = pytest.mark.unit

MESSAGES = 400
LEFT = 300
"""Number of messages that are not in the log any more."""


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "FIRST_MSGS", 8)
    monkeypatch.setattr(read_ahead, "MOST_MSGS", 32)


class Deep(World):
    """Stream whose first LEFT messages are only in the lake, on the subjects s.0 … s.9 in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.stream(max_msgs=-1)
        self.store(*[f"s.{number % 10}" for number in range(MESSAGES)])
        stream = self.engine.streams["S"]
        self.lake = Lake(stream.store.read_run(1, LEFT, 1 << 20))
        stream.reader.history = self.lake
        stream.store._rows.local_floor = LEFT + 1  # type: ignore[misc]
        self.room = stream.consumers.room

    def all_of(self, batch: int) -> list[int]:
        """Pull until no more messages come; return their sequences."""
        seqs: list[int] = []
        while got := [message.seq for message in self.pull(batch) if message.reply]:
            seqs += got
        return seqs


def test_runs_grow_and_the_next_is_read_while_one_is_delivered() -> None:
    world = Deep()
    world.consumer()
    assert [message.seq for message in world.pull(1)] == [1]
    assert [read[0] for read in world.lake.reads] == [1, 9], "one is delivered, one waits"
    assert world.all_of(7) == list(range(2, MESSAGES + 1))
    assert len(world.lake.reads) < LEFT // 32 + 5
    assert world.room.used == 0


def test_small_requests_cause_small_reads() -> None:
    world = Deep()
    world.consumer()
    world.pull(3)
    assert world.room.used <= 8 + 16


def test_what_was_read_ahead_goes_with_the_consumer() -> None:
    world = Deep()
    world.consumer()
    world.pull(3)
    assert world.room.used
    world.ask("CONSUMER.DELETE.S.c")
    assert world.room.used == 0


def test_when_room_is_scarce_one_small_run_is_read_at_a_time() -> None:
    world = Deep()
    world.consumer()
    world.room.used = read_ahead.READ_AHEAD_BYTES
    assert world.all_of(20) == list(range(1, MESSAGES + 1))
    assert {read[1] for read in world.lake.reads} == {LEFT}
    starts = [read[0] for read in world.lake.reads]
    assert starts == list(range(1, LEFT, 8)), "nothing was read ahead, and no run grew"
    assert world.room.used == read_ahead.READ_AHEAD_BYTES


def test_a_read_that_fails_while_one_run_is_delivered_is_made_again() -> None:
    world = Deep()
    world.consumer()
    assert len(world.pull(4)) == 4
    world.lake.broken = True
    first = world.all_of(5)
    assert first[0] == 5
    assert first[-1] < LEFT
    world.lake.broken = False
    world.clock.advance(2 * read_ahead.RETRY_NS)
    assert first + world.all_of(50) == list(range(5, MESSAGES + 1))


@pytest.mark.parametrize("narrow", [256, 2])
@pytest.mark.parametrize("filters", [[], ["s.3"], ["s.1", "s.4"], ["s.*"], ["no.*"]])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_goes_meanwhile_the_rest_comes_once_and_in_order(
    filters: list[str], seed: int, narrow: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is removed meanwhile, the rest is delivered once and in order, with each kind of query to the lake."""
    monkeypatch.setattr(ConsumerFilters, "NARROW", narrow)
    world, chance = Deep(), random.Random(seed)
    stream = world.engine.streams["S"]
    world.consumer(**({"filter_subjects": filters} if filters else {}))
    got: list[int] = []
    wanted = set(range(1, MESSAGES + 1)) if "no.*" not in filters else set()
    if filters and filters[0] != "s.*" and wanted:
        wanted = {seq for seq in wanted if f"s.{(seq - 1) % 10}" in filters}
    for _ in range(60):
        match chance.randrange(10):
            case 0:
                seq = chance.randrange(1, MESSAGES + 1)
                world.ask("STREAM.MSG.DELETE.S", {"seq": seq})
                wanted.discard(seq)
            case 1 if chance.random() < 0.3:
                through = chance.randrange(1, stream.store.last_seq)
                world.ask("STREAM.PURGE.S", {"seq": through})
                wanted = {seq for seq in wanted if seq >= through}
            case 2 if chance.random() < 0.3:
                world.ask("STREAM.PURGE.S", {"filter": "s.4"})
                wanted = {seq for seq in wanted if (seq - 1) % 10 != 4}
            case _:
                before = max(got, default=0)
                batch = [message.seq for message in world.pull(chance.randrange(1, 40)) if message.reply]
                assert batch == sorted(seq for seq in wanted if seq > before)[: len(batch)]
                got += batch
    before = max(got, default=0)
    assert world.all_of(100) == sorted(seq for seq in wanted if seq > before)
    assert world.info()["num_pending"] == 0
    assert world.room.used == 0


def test_removals_are_reported_for_what_was_read_before_many_were_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages read ahead are counted again after a sweep, when some were delivered already."""
    monkeypatch.setattr(limits, "MANY", 0)
    monkeypatch.setattr(limits, "ONE_BY_ONE", 0)
    world = Deep()
    world.consumer()
    for message in world.pull(4):
        world.ack(message)
    config = world.ask("STREAM.INFO.S")["config"]
    world.ask("STREAM.UPDATE.S", {**config, "max_msgs": MESSAGES - 2})
    world.ask("STREAM.MSG.DELETE.S", {"seq": MESSAGES})
    assert [message.seq for message in world.pull(2)] == [5, 6]
    world.ask("STREAM.MSG.DELETE.S", {"seq": 6})
    assert world.info()["num_ack_pending"] == 1


def test_a_few_of_many_chosen_at_creation_are_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Deep()
    asked: list[list[int]] = []
    read_many = world.lake.read_many

    async def noted(seqs: list[int], subjects: object = None) -> list[Record]:
        asked.append(list(seqs))
        return await read_many(seqs)

    monkeypatch.setattr(world.lake, "read_many", noted)
    store = world.engine.streams["S"].store
    for seq in range(1, MESSAGES + 1):
        if seq not in (5, 107, 256):
            store.remove(seq, store.subject_of(seq))
    world.consumer(deliver_policy="last_per_subject", filter_subject="s.>")
    assert world.all_of(9) == [5, 107, 256]
    assert asked == [[5, 107, 256]]


@pytest.mark.parametrize("filters", [["s.*"], [">"], ["s.1", "s.*.x", "s.7"]])
def test_the_last_of_each_subject_is_found_in_steps(monkeypatch: pytest.MonkeyPatch, filters: list[str]) -> None:
    """Messages that come between two steps are no reason to leave one out, and are not chosen."""
    monkeypatch.setattr(consumer_start, "STEP_SEQS", 3)
    monkeypatch.setattr(consumer_start, "PART_BITS", 1)
    world = Deep()
    steps = consumer_start.last_of_each([one.encode() for one in filters], world.engine.streams["S"].store)
    next(steps)
    world.publish("s.1")
    world.clock.turn()
    chosen = [seq for seq in range(MESSAGES - 9, MESSAGES + 1) if len(filters) == 1 or (seq - 1) % 10 in (1, 7)]
    assert finished(steps) == ConsumerStart(MESSAGES + 1, chosen)
    world.consumer(deliver_policy="last_per_subject", filter_subjects=filters)
    assert world.all_of(50) == [*(seq for seq in chosen if seq != MESSAGES - 8), MESSAGES + 1]
