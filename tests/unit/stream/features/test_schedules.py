"""Tests of message schedules: crashes, restarts, messages in flight, and history."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakestream.log.format.record import Record
from lakestream.ports import Single
from lakestream.protocol import gotime, headers
from lakestream.stream.core import publish
from lakestream.stream.core.operations import DeleteMessage, Purge
from lakestream.stream.core.reader import HistoryUnavailableError
from lakestream.stream.features import schedules
from lakestream.stream.features.schedule_rules import Produced, meaning, produced
from tests.unit.api_world import ApiWorld, Lake
from tests.unit.consumer_world import CLIENT
from tests.unit.replica_world import World as Cluster
from tests.unit.replica_world import fill, let_go
from tests.unit.stream_world import World

pytestmark = pytest.mark.unit
SECOND = 1_000_000_000
MakeWorld = Callable[..., World]


@pytest.fixture
def make(tmp_path: Path) -> MakeWorld:
    def build(**options: Any) -> World:
        return World(str(tmp_path / "S"), **{"allow_msg_schedules": True, "allow_rollup_hdrs": True, **options})

    return build


def at(world: World, seconds: float) -> str:
    """Return an `@at` schedule this many seconds from now on the world's clock."""
    return f"@at {gotime.format_time(world.clock.now() + int(seconds * SECOND))}"


def plan(world: World, subject: str, pattern: str, target: str = "s.t", data: bytes = b"x", **more: str) -> int:
    """Store a schedule; return its sequence."""
    asked = {"Nats_Schedule": pattern, "Nats_Schedule_Target": target, **more}
    seq: int = world.acked(subject, data, **asked)["seq"]
    return seq


def passes(world: World, seconds: float) -> None:
    """Let time pass, and complete all writes."""
    world.clock.advance(int(seconds * SECOND))
    world.settle()


def record(header: bytes, data: bytes = b"x", subject: bytes = b"s.1") -> Record:
    return Record(7, 5 * SECOND, subject, header, data)


def test_publishes_do_not_put_off_a_schedule(make: MakeWorld) -> None:
    """The system clock is behind, so the interval counts, whose time moves with every correction of that clock."""
    world = make()
    plan(world, "s.1", "@every 1s")
    world.clock.stepped -= 3600 * SECOND
    for _ in range(300):  # 3 s
        world.acked("s.other")
        world.clock.stepped -= 1000
        passes(world, 0.01)
    assert [subject for _, subject, _ in world.content()].count(b"s.t")


# ------------------------------------------------------------------------------------------------ one stream
def test_a_message_is_published_once_when_it_is_due(make: MakeWorld) -> None:
    world = make()
    plan(world, "s.1", at(world, 5))
    passes(world, 4.9)
    assert world.content() == [(1, b"s.1", b"x")]
    passes(world, 0.2)
    assert world.content() == [(2, b"s.t", b"x")]
    passes(world, 3600)
    assert world.content() == [(2, b"s.t", b"x")]


def test_what_one_turn_does_not_hold_follows_in_the_next(make: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "MAX_FIRES", 3)
    world = make()
    when = at(world, 5)
    for number in range(10):
        plan(world, f"s.{number}", when, data=b"%d" % number)
    passes(world, 5.1)
    for _ in range(3):
        passes(world, 0.1)
    assert [data for _, _, data in world.content()] == [b"%d" % number for number in range(10)]


def test_times_that_passed_are_made_up_for_by_one_message(make: MakeWorld) -> None:
    world = make()
    plan(world, "s.1", "@every 1s")
    passes(world, 100)
    (_, first), *others = [(one.seq, one) for one in world.stream.store.read_run(1, 100, 1 << 20)][1:]
    assert not others
    next_time = headers.get(first.header, b"Nats-Schedule-Next") or b""
    assert gotime.time_ns(next_time.decode()) > world.clock.now()
    passes(world, 2)
    assert len(world.content()) == 3


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_restart_keeps_schedules(make: MakeWorld, checkpoint: bool) -> None:
    world = make()
    plan(world, "s.1", at(world, 5))
    plan(world, "s.2", "@every 3600s", target="s.u")
    plan(world, "s.gone", at(world, 5))
    world.stream.propose(DeleteMessage(3))
    passes(world, 0)
    if checkpoint:
        world.stream.checkpoint()
        world.settle()
    world.stream.store.abandon()
    again = make(clock=world.clock)
    passes(again, 5.1)
    assert again.content() == [(2, b"s.2", b"x"), (4, b"s.t", b"x")]
    passes(again, 3700)
    assert [subject for _, subject, _ in again.content()] == [b"s.2", b"s.t", b"s.u"]


def test_a_crash_before_the_write_publishes_it_later_and_one_after_the_write_not_again(make: MakeWorld) -> None:
    world = make()
    plan(world, "s.1", at(world, 5))
    world.clock.advance(6 * SECOND)
    assert world.io.waiting, "on its way, and not on disk"
    world.io.waiting.clear()
    world.stream.store.abandon()
    again = make(clock=world.clock)
    again.clock.advance(SECOND)
    while again.io.waiting:
        again.io.work()  # on disk, but the process ends before it is notified
        again.clock.soon.clear()
    again.stream.store.abandon()
    last = make(clock=again.clock)
    passes(last, 3600)
    assert last.content() == [(2, b"s.t", b"x")]


def test_it_waits_for_an_operation_that_may_end_it(make: MakeWorld) -> None:
    world = make()
    plan(world, "s.1", at(world, 5))
    world.stream.propose(DeleteMessage(1))
    world.clock.advance(6 * SECOND)
    world.settle()
    passes(world, 3600)
    assert world.content() == []


def test_what_ends_it_and_is_not_stored_yet_counts(make: MakeWorld) -> None:
    world = make()
    for subject in ("s.cancelled", "s.replaced", "s.covered"):
        plan(world, subject, at(world, 5))
    world.publish("s.x", b"end", Nats_Scheduler="s.cancelled", Nats_Schedule_Next="purge")
    world.publish("s.replaced", b"later", Nats_Schedule=at(world, 9000), Nats_Schedule_Target="s.t")
    world.publish("s.covered", b"plain")
    world.clock.advance(6 * SECOND)
    world.settle()
    passes(world, 3600)
    assert [data for _, subject, data in world.content() if subject == b"s.t"] == []


def test_it_does_not_come_back_when_what_covered_it_goes(make: MakeWorld) -> None:
    world = make()
    plan(world, "s.1", at(world, 5))
    top = world.acked("s.1", b"plain")["seq"]
    world.stream.propose(DeleteMessage(top))
    passes(world, 3600)
    assert world.content() == [(1, b"s.1", b"x")]
    world.stream.store.abandon()
    again = make(clock=world.clock)
    passes(again, 3600)
    assert again.content() == [(1, b"s.1", b"x")], "and a restart does not change that"


def test_messages_on_the_way_are_not_published_again(make: MakeWorld) -> None:
    world = make()
    plan(world, "s.1", "@every 1s")
    for _ in range(20):
        world.clock.advance(SECOND)  # while the disk does not answer
    world.settle()
    assert len(world.content()) == 2


def test_schedules_that_are_gone_are_forgotten(make: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "SLACK", 10)
    world = make(max_msgs=5)
    for number in range(200):
        plan(world, f"s.{number}", "@every 1h")
    assert len(world.stream.feature(schedules.Schedules)) < 30
    assert len(world.stream.feature(schedules.Schedules).dump()["schedules"]) == 5


def test_it_is_ended_in_a_batch_with_its_successor(make: MakeWorld) -> None:
    """A schedule's message and a new schedule on its subject may be in one entry: only the earlier schedule ends."""
    world = make()
    plan(world, "s.1", at(world, 5))
    world.clock.advance(int(5.1 * SECOND))
    reply = world.publish("s.1", b"new", Nats_Schedule=at(world, 10), Nats_Schedule_Target="s.t")
    world.settle()
    assert world.answer(reply) == {"stream": "S", "seq": 3}
    assert world.content() == [(2, b"s.t", b"x"), (3, b"s.1", b"new")]
    passes(world, 11)
    assert world.content() == [(2, b"s.t", b"x"), (4, b"s.t", b"new")]


def test_a_schedule_that_is_older_than_the_stream_counts_from_the_streams_beginning(make: MakeWorld) -> None:
    world = make()
    for subject, pattern in ((b"s.1", b"@every 1h"), (b"s.2", b"@at 2020-01-01T00:00:00Z")):
        header = headers.build([(b"Nats-Schedule", pattern), (b"Nats-Schedule-Target", b"s.t")])
        effect = world.stream.proposer.effect_of(header)
        then = gotime.time_ns("2021-01-01T00:00:00Z")
        message = publish.IncomingMessage(subject, b"", header, pattern, time_ns=then)
        world.stream.proposer.store([(message, effect)])
    world.settle()
    passes(world, 60)
    assert [data for _, subject, data in world.content() if subject == b"s.t"] == [b"@at 2020-01-01T00:00:00Z"]
    passes(world, 3600)
    assert len(world.content()) == 3


def test_a_schedule_that_is_replaced_again_and_again_takes_the_room_of_one(
    make: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "SLACK", 10)
    world = make()
    for number in range(100):
        plan(world, "s.1", at(world, 3600 - number), data=b"%d" % number)
    assert len(world.stream.feature(schedules.Schedules)) == 1
    assert len(world.stream.feature(schedules.Schedules)._due) <= 12
    passes(world, 3510)
    assert [data for _, _, data in world.content()] == [b"99"]


def test_a_leader_forgets_no_schedule_on_its_own(make: MakeWorld) -> None:
    """The leader's own actions are not in its checkpoint, which equals that of the others."""
    world = make()
    header = headers.build([(b"Nats-Schedule", b"@every 1s")])
    effect = world.stream.proposer.effect_of(header)
    world.stream.proposer.store([(publish.IncomingMessage(b"s.1", b"", header, b"no target"), effect)])
    world.settle()
    kept = world.stream.feature(schedules.Schedules).dump()
    passes(world, 100)
    assert world.stream.feature(schedules.Schedules).dump() == kept
    assert world.content() == [(1, b"s.1", b"no target")]


def test_the_end_of_a_schedule_makes_room_before_the_next_message_counts(make: MakeWorld) -> None:
    world = make(max_msgs=3)
    for subject in ("s.a", "s.b"):
        world.publish(subject, b"plain")
    plan(world, "s.1", at(world, 5))
    world.clock.advance(int(5.1 * SECOND))
    world.publish("s.c", b"later")
    world.settle()
    assert [subject for _, subject, _ in world.content()] == [b"s.b", b"s.t", b"s.c"]
    world.stream.store.abandon()
    again = make(clock=world.clock)
    assert [subject for _, subject, _ in again.content()] == [b"s.b", b"s.t", b"s.c"]


def test_it_waits_once_for_what_takes_long(make: MakeWorld) -> None:
    world = make()
    plan(world, "s.1", at(world, 5))
    world.stream.propose(DeleteMessage(7))
    for _ in range(100):
        world.clock.advance(SECOND)  # while the disk does not answer
    world.settle()
    passes(world, 1)
    assert world.content() == [(2, b"s.t", b"x")]


@pytest.mark.parametrize("seed", range(12))
def test_by_chance_every_schedule_publishes_once_unless_it_ends_before(make: MakeWorld, seed: int) -> None:
    chance = random.Random(seed)
    world = make()
    waiting: dict[str, bytes] = {}
    """Schedules by subject whose message is still to be published."""
    sure: set[bytes] = set()
    planned: set[bytes] = set()
    maybe: set[bytes] = set()
    """Messages met by a crash, of which it is only certain that they are not published twice."""
    for number in range(80):
        subject, data = f"s.{chance.randrange(5)}", b"%d" % number
        match chance.choice(
            ("plan", "plan", "plan", "end", "cover", "delete", "purge", "time", "time", "kept", "crash")
        ):
            case "plan":
                seconds = chance.choice((-3, 0.2, 1, 2, 5, 9))
                world.publish(subject, data, Nats_Schedule=at(world, seconds), Nats_Schedule_Target="s.t")
                waiting[subject] = data
                planned.add(data)
            case "end":
                world.publish("s.x", Nats_Scheduler=subject, Nats_Schedule_Next="purge")
                waiting.pop(subject, None)
            case "cover":
                world.publish(subject, b"plain")
                waiting.pop(subject, None)
            case "delete":
                world.settle()
                world.stream.propose(DeleteMessage(world.stream.store.subjects.last(subject.encode())))
                waiting.pop(subject, None)
            case "purge":
                world.settle()
                world.stream.propose(Purge(filter=subject.encode()))
                waiting.pop(subject, None)
            case "time":
                world.clock.advance(int(chance.choice((0.06, 1, 3)) * SECOND))
                world.settle()
                passes(world, 0.06)
                done = {data for _, on, data in world.content() if on == b"s.t"}
                sure |= done & set(waiting.values())
                waiting = {on: data for on, data in waiting.items() if data not in done}
            case "kept":
                world.stream.checkpoint()
            case "crash":
                if chance.random() < 0.5:
                    world.settle()
                elif world.stream.pipeline.uncommitted() or world.stream.proposer.waiting:
                    maybe |= planned  # the entries that end them may be lost, and the schedules too
                    waiting.clear()
                world.stream.store.abandon()
                world.io.waiting.clear()
                world.clock.soon.clear()
                world.clock.timers.clear()
                world = make(clock=world.clock)
    world.settle()
    passes(world, 30)
    passes(world, 2)
    published = [data for _, subject, data in world.content() if subject == b"s.t"]
    assert len(published) == len(set(published))
    expected = sure | set(waiting.values())
    assert expected <= set(published) <= expected | maybe


# ------------------------------------------------------------------------------------------------ history
def old_schedule(**more: str) -> tuple[ApiWorld, Lake]:
    """Return a world with a schedule that is due in 5 s and its source, both only in the lake."""
    world = ApiWorld()
    world.create("A", subjects=["a.>"], allow_msg_schedules=True)
    world.publish("a.src", b"content", K="v")
    when = gotime.format_time(world.clock.now() + 5 * SECOND)
    asked = {"Nats-Schedule": f"@at {when}", "Nats-Schedule-Target": "a.t", **more}
    world.publish("a.1", b"own", **asked)
    return world, world.to_lake("A", 2)


def last(world: ApiWorld) -> Record | None:
    """Return the last message in stream A."""
    stream = world.stream("A")
    return stream.store.read(stream.store.last_seq)


async def test_a_schedule_of_which_only_the_lake_knows() -> None:
    world, lake = old_schedule()
    world.clock.advance(6 * SECOND)
    await world.awaited()
    found = last(world)
    assert found is not None
    assert (found.seq, found.subject, found.data) == (3, b"a.t", b"own")
    assert world.state("A")["messages"] == 2, "and it is over"
    assert lake.reads


async def test_a_source_of_which_only_the_lake_knows() -> None:
    world, _ = old_schedule(**{"Nats-Schedule-Source": "a.src"})
    world.clock.advance(6 * SECOND)
    await world.awaited()
    found = last(world)
    assert found is not None
    assert (found.subject, found.data) == (b"a.t", b"content")
    assert headers.get(found.header, b"K") == b"v"


async def test_what_ends_it_while_the_lake_is_read_counts() -> None:
    world, lake = old_schedule()
    lake.before = lambda: world.stream("A").proposer.take(Single(b"a.1", payload=b"plain"), 0, 1, CLIENT)
    world.clock.advance(6 * SECOND)
    await world.awaited()
    world.clock.advance(6 * SECOND)
    await world.awaited()
    assert world.state("A", subjects_filter=">")["subjects"].keys() == {"a.src", "a.1"}


async def test_it_is_tried_again_when_the_lake_does_not_answer() -> None:
    world, lake = old_schedule()
    records, lake.records = lake.records, []
    world.clock.advance(6 * SECOND)
    with pytest.raises(HistoryUnavailableError):
        await world.awaited()
    lake.records = records
    world.clock.advance(2 * SECOND)
    await world.awaited()
    found = last(world)
    assert found is not None
    assert found.subject == b"a.t"


async def test_ending_a_schedule_of_which_only_the_lake_knows() -> None:
    world, _ = old_schedule()
    ended = b"NATS/1.0\r\nNats-Scheduler: a.1\r\nNats-Schedule-Next: purge\r\n\r\n"
    refused = b"NATS/1.0\r\nNats-Scheduler: a.src\r\nNats-Schedule-Next: purge\r\n\r\n"
    replies = [world.send("a.x", b"", block) for block in (refused, ended)]
    world.settle()
    assert not world.answers(replies[0])
    await world.awaited()
    answers = [json.loads(world.answers(reply)[0][1]) for reply in replies]
    assert answers[0]["error"]["err_code"] == 10212
    assert answers[1] == {"stream": "A", "seq": 3}
    assert world.state("A", subjects_filter=">")["subjects"].keys() == {"a.src", "a.x"}


# ------------------------------------------------------------------------------------------------ several nodes
def test_the_next_leader_publishes_what_the_last_one_did_not(tmp_path: Path) -> None:
    world = Cluster(tmp_path)
    world.stream(allow_msg_schedules=True, allow_rollup_hdrs=True)
    when = gotime.format_time(world.clock.now() + 30 * SECOND)
    world.acked("s.1", b"x", Nats_Schedule=f"@at {when}", Nats_Schedule_Target="s.t")
    world.run(1)
    world.leader().kill()
    world.leader()
    world.run(40)
    assert world.converged() == [(2, b"s.t", b"x")]


@pytest.mark.parametrize("milliseconds", range(0, 24, 2))
def test_a_leader_that_dies_at_any_moment_publishes_it_once(tmp_path: Path, milliseconds: int) -> None:
    world = Cluster(tmp_path, seed=milliseconds)
    world.stream(allow_msg_schedules=True, allow_rollup_hdrs=True)
    when = gotime.format_time(world.clock.now() + 30 * SECOND)
    world.acked("s.1", b"once", Nats_Schedule=f"@at {when}", Nats_Schedule_Target="s.t")
    world.acked("s.2", b"again", Nats_Schedule="@every 3600s", Nats_Schedule_Target="s.u")
    leader = world.leader()
    world.run((gotime.time_ns(when) - world.clock.now()) / SECOND + milliseconds / 1000)
    leader.kill()
    world.start(leader.name)
    world.run(30)
    assert [one[1:] for one in world.converged()] == [(b"s.2", b"again"), (b"s.t", b"once")]
    assert all(
        node.stream.feature(schedules.Schedules).dump() == world.leader().stream.feature(schedules.Schedules).dump()
        for node in world.nodes.values()
    )


def test_a_replica_that_fetches_its_state_has_the_schedules(tmp_path: Path) -> None:
    world = Cluster(tmp_path, seal_bytes=20_000, retain_bytes=1)
    world.stream(allow_msg_schedules=True, allow_rollup_hdrs=True)
    away = world.followers()[0].name
    world.nodes[away].kill()
    for _ in range(5):
        fill(world, 20)
        world.run(0.1)
    when = gotime.format_time(world.clock.now() + 60 * SECOND)
    world.acked("s.plan", b"once", Nats_Schedule=f"@at {when}", Nats_Schedule_Target="s.t")
    let_go(world)
    node = world.start(away)
    world.until(lambda: ("reopened", "S") in node.events)
    world.until(lambda: "S" in node.engine.streams and len(node.stream.feature(schedules.Schedules)))
    assert node.stream.feature(schedules.Schedules).dump() == world.leader().stream.feature(schedules.Schedules).dump()
    world.leader().kill()
    world.run(90)
    assert [one.data for one in world.leader().records() if one.subject == b"s.t"] == [b"once"]


def test_a_leader_that_is_cut_off_publishes_nothing(tmp_path: Path) -> None:
    world = Cluster(tmp_path)
    world.stream(allow_msg_schedules=True, allow_rollup_hdrs=True)
    when = gotime.format_time(world.clock.now() + 2 * SECOND)
    world.acked("s.1", b"once", Nats_Schedule=f"@at {when}", Nats_Schedule_Target="s.t")
    old = world.leader()
    world.net.split({old.name}, set("abc") - {old.name})
    world.run(30)
    world.net.split()
    world.run(10)
    assert world.converged() == [(2, b"s.t", b"once")]


# ------------------------------------------------------------------------------------------------ headers
def test_a_broken_schedule_produces_nothing() -> None:
    good = headers.build([(b"Nats-Schedule", b"@every 1s"), (b"Nats-Schedule-Target", b"s.t")])
    assert isinstance(produced(record(good), None, SECOND, SECOND), Produced)
    for pairs in (
        [(b"Nats-Schedule", b"@every 1s")],
        [(b"Nats-Schedule", b"bad"), (b"Nats-Schedule-Target", b"s.t")],
        [(b"Nats-Schedule-Target", b"s.t")],
        [(b"Nats-Schedule", b"@every 1s"), (b"Nats-Schedule-Target", b"s t")],
        [(b"Nats-Schedule", b"@every 1s"), (b"Nats-Schedule-Target", b"s.>")],
        [(b"Nats-Schedule", b"@every 1s"), (b"Nats-Schedule-Target", b"s" * 70_000)],
    ):
        assert produced(record(headers.build(pairs)), None, SECOND, SECOND) is None
    assert produced(record(b""), None, SECOND, SECOND) is None


@pytest.mark.parametrize("year", ["2300", "9999", "0000", "1500"])
def test_times_beyond_what_a_clock_can_say(year: str) -> None:
    header = headers.build([(b"Nats-Schedule", f"@at {year}-01-01T00:00:00Z".encode())])
    found = meaning(header, SECOND)
    assert found is not None
    assert found.first_ns == (2**63 - 1 if year > "2000" else 0)


def test_a_next_time_that_is_none_means_nothing() -> None:
    assert meaning(headers.build([(b"Nats-Scheduler", b"s.1"), (b"Nats-Schedule-Next", b"soon")]), SECOND) is None
    assert meaning(headers.build([(b"Nats-Scheduler", b"s.1"), (b"Nats-Schedule-Next", b"\xff")]), SECOND) is None
