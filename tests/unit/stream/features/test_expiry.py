"""Tests of expiry: expired messages, the times of checks, and markers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lakestream.log.store.segment_log import LogOptions
from lakestream.stream.core import publish
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.operations import Purge, Remove, UpdateStream
from lakestream.stream.core.proposer import BufferLimits
from lakestream.stream.features import expiry, ttl
from tests.unit.api_world import Lake
from tests.unit.stream_world import ManualClock, World

pytestmark = pytest.mark.unit
MakeWorld = Callable[..., World]
SECOND = 1_000_000_000
MINUTE = 60 * SECOND
MARKED: dict[str, Any] = {
    "allow_msg_ttl": True,
    "allow_rollup_hdrs": True,
    "subject_delete_marker_ttl": 90 * SECOND + 500_000_000,
    "max_msgs_per_subject": 5,
}
SMALL = LogOptions(seal_bytes=4096, retain_bytes=0, retain_segments=0)
MARKER = b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: 1m30s\r\nNats-Rollup: sub\r\n\r\n"


class Waiting(ManualClock):
    """Clock under which coroutines run at once until they block, and then in steps of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Any] = []

    def spawn(self, awaitable: Any) -> None:
        self.waiting.append(awaitable)
        self._step(awaitable)

    def run(self) -> None:
        """Continue each coroutine until it blocks."""
        for coroutine in list(self.waiting):
            self._step(coroutine)

    def _step(self, coroutine: Any) -> None:
        try:
            coroutine.send(None)
        except StopIteration:
            self.waiting.remove(coroutine)
        except BaseException:
            self.waiting.remove(coroutine)
            raise


@pytest.fixture
def clock() -> Waiting:
    """Return the clock of all worlds of a test, and of the messages in them."""
    return Waiting()


@pytest.fixture
def make(tmp_path: Path, clock: Waiting) -> MakeWorld:
    def build(directory: str = "S", **options: Any) -> World:
        return World(str(tmp_path / directory), clock=clock, **options)

    return build


def pass_time(world: World, ns: int) -> None:
    """Let time pass in steps, as timers fire, and settle after each."""
    for _ in range(10):
        world.clock.advance(ns // 10)
        world.settle()


def records(world: World) -> list[tuple[int, bytes, bytes]]:
    """Return (seq, subject, header block) of every message in the stream."""
    return [(each.seq, each.subject, each.header) for each in world.stream.store.read_run(1, 1 << 30, 1 << 40)]


def timers(world: World) -> list[int]:
    """Return the times until timers fire, in ns."""
    return [timer.due - world.clock.time for timer in world.clock.timers if not timer.cancelled]


# ------------------------------------------------------------------ checks for expiry
def test_a_message_that_never_expires_is_not_looked_at_again_and_again(make: MakeWorld) -> None:
    world = make(allow_msg_ttl=True, max_age=SECOND)
    world.acked("s.a", Nats_TTL="never")
    pass_time(world, 10 * SECOND)
    assert timers(world) == [], "nothing can run out"
    world.acked("s.b")
    assert timers(world) == [pytest.approx(SECOND, abs=SECOND // 10)]
    pass_time(world, 3 * SECOND)
    assert [seq for seq, _, _ in records(world)] == [1]
    assert timers(world) == []


def test_never_holds_after_a_restart(make: MakeWorld, tmp_path: Path) -> None:
    world = make(allow_msg_ttl=True, max_age=SECOND)
    for subject, lifetime in (("s.a", "never"), ("s.b", ""), ("s.c", "never"), ("s.d", "1h")):
        world.acked(subject, **({"Nats_TTL": lifetime} if lifetime else {}))
    shutil.copytree(tmp_path / "S", tmp_path / "copy")
    world.stream.checkpoint()
    world.settle()
    for directory in ("copy", "S"):
        again = make(directory)
        pass_time(again, 3 * SECOND)
        assert [seq for seq, _, _ in records(again)] == [1, 3], directory


def test_a_short_life_is_not_held_up_by_a_long_one(make: MakeWorld) -> None:
    world = make(allow_msg_ttl=True, max_age=3600 * SECOND)
    world.acked("s.a", Nats_TTL="1h")
    world.acked("s.b", Nats_TTL="2s")
    world.acked("s.c", Nats_TTL="1s")
    assert [seq for seq, _, _ in records(world)] == [1, 2, 3]
    pass_time(world, SECOND + SECOND // 5)
    assert [seq for seq, _, _ in records(world)] == [1, 2]
    pass_time(world, SECOND)
    assert [seq for seq, _, _ in records(world)] == [1]


@pytest.mark.parametrize("other", [{}, {"Nats_TTL": "1h"}, {"Nats_TTL": "never"}])
def test_messages_run_out_while_the_stream_is_written_to(make: MakeWorld, other: dict[str, str]) -> None:
    """Each publish asks for the timer again; it does not put off a look that is due."""
    world = make(allow_msg_ttl=True, max_age=3600 * SECOND)
    kept = 0
    for number in range(500):  # 5 s
        short = number % 2 == 0
        kept += not short
        for step in range(7):  # more runs out while the disk works
            world.clock.advance(SECOND // 700)
            if step == 3:
                world.publish(f"s.{number}", **({"Nats_TTL": "1s"} if short else other))
        world.settle()
    assert kept + 45 <= len(records(world)) <= kept + 55, "those of the last second, and of one delay"


def test_a_new_age_is_looked_at_at_once(make: MakeWorld) -> None:
    world = make(max_age=3600 * SECOND)
    world.acked("s.a")
    pass_time(world, 2 * SECOND)
    shorter = msgspec.structs.replace(world.stream.config, max_age=SECOND)
    world.stream.propose(UpdateStream(msgspec.json.encode(shorter)))
    world.settle()
    pass_time(world, SECOND // 5)
    assert records(world) == []


def test_a_lifetime_counts_from_the_messages_own_time(make: MakeWorld) -> None:
    """A TTL counts from the message's own time: messages of an import may be days apart in one log entry."""
    world = make(allow_msg_ttl=True)
    now, block = world.clock.time, b"NATS/1.0\r\nNats-TTL: 3600\r\n\r\n"
    for hours, subject in ((30, b"s.a"), (2, b"s.b"), (0, b"s.c")):
        effect = world.stream.proposer.effect_of(block)
        message = publish.IncomingMessage(subject, b"", block, b"", time_ns=now - hours * 3600 * SECOND)
        world.stream.proposer.store([(message, effect)])
    world.settle()
    pass_time(world, SECOND)
    assert [subject for _, subject, _ in records(world)] == [b"s.c"]


def test_much_that_never_expires_does_not_hide_what_does(make: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "MAX_SINGLE", 10)
    world = make(allow_msg_ttl=True, max_age=SECOND)
    for n in range(100):
        world.publish(f"s.{n}", **({} if n % 7 == 0 else {"Nats_TTL": "never"}))
    world.settle()
    for _ in range(20):
        pass_time(world, SECOND)
    assert [seq for seq, _, _ in records(world)] == [n + 1 for n in range(100) if n % 7]


# ------------------------------------------------------------------ markers
def test_the_marker_is_what_removes_the_message(make: MakeWorld, tmp_path: Path) -> None:
    world = make(**MARKED)
    world.acked("s.a", b"x", Nats_TTL="2m")
    world.acked("s.b", b"x", Nats_TTL="2m")
    world.clock.advance(2 * MINUTE + SECOND)
    assert len(records(world)) == 2, "the markers are on their way"
    shutil.copytree(tmp_path / "S", tmp_path / "before")
    world.settle()
    assert records(world) == [(3, b"s.a", MARKER), (4, b"s.b", MARKER)]
    # A crash before the entry was written: nothing is lost, and the next start does it.
    before = make("before")
    assert [subject for _, subject, _ in records(before)] == [b"s.a", b"s.b"]
    pass_time(before, SECOND)
    assert records(before) == [(3, b"s.a", MARKER), (4, b"s.b", MARKER)]
    # A crash after it: the marker replaces the message, and expires itself.
    shutil.copytree(tmp_path / "S", tmp_path / "after")
    after = make("after")
    assert records(after) == [(3, b"s.a", MARKER), (4, b"s.b", MARKER)]
    pass_time(after, 2 * MINUTE)
    assert records(after) == []
    assert after.stream.store.last_seq == 4, "a marker leaves none"


def test_a_marker_is_stored_once_however_slow_the_disk_is(make: MakeWorld) -> None:
    world = make(**MARKED, max_age=3600 * SECOND)
    world.acked("s.a", Nats_TTL="2m")
    for _ in range(20):
        world.clock.advance(MINUTE)
    world.settle()
    assert [seq for seq, _, _ in records(world)] == [2]


def test_no_marker_where_a_new_message_is_on_its_way(make: MakeWorld) -> None:
    world = make(**MARKED)
    world.acked("s.a", b"old", Nats_TTL="2m")
    world.clock.time += 3 * MINUTE
    world.publish("s.a", b"new")
    world.clock.advance(0)
    world.settle()
    assert world.content() == [(2, b"s.a", b"new")]


def test_no_marker_for_what_a_purge_on_its_way_removes(make: MakeWorld) -> None:
    world = make(**MARKED)
    world.acked("s.a", Nats_TTL="2m")
    world.acked("s.b", Nats_TTL="2m")
    world.clock.time += 3 * MINUTE
    world.stream.propose(Purge(filter=b"s.a"))
    world.clock.advance(0)
    world.settle()
    pass_time(world, SECOND)
    assert records(world) == [(3, b"s.b", MARKER)]


def test_no_marker_for_what_retention_is_removing(make: MakeWorld) -> None:
    world = make(**MARKED)
    world.acked("s.a", Nats_TTL="2m")
    world.clock.time += 3 * MINUTE
    world.stream.propose(Remove([1]))
    world.clock.advance(0)
    world.settle()
    pass_time(world, SECOND)
    assert records(world) == []
    assert world.stream.store.last_seq == 1


def test_pending_expiry_is_continued_by_the_next_leader(make: MakeWorld) -> None:
    world = make(**MARKED)
    world.acked("s.a", Nats_TTL="2m")
    deadline = world.stream.feature(expiry.Expiry).dump()
    world.clock.advance(3 * MINUTE)
    assert [context for context in world.stream.pipeline.uncommitted() if context.context], "the marker is on its way"
    assert world.stream.feature(expiry.Expiry).dump() == deadline, "a checkpoint in between keeps the deadline"
    world.stream.lost([each.context for each in world.stream.pipeline.uncommitted()])
    assert world.stream.feature(expiry.Expiry).dump() == deadline
    assert timers(world) == []


@pytest.mark.parametrize(
    ("config", "left"),
    [
        ({"max_msgs": 1, "discard": "new"}, [MARKER]),
        ({"max_bytes": 70, "discard": "new"}, [MARKER]),
        ({"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True}, [MARKER]),
        ({"max_msg_size": 60}, []),
        ({"sealed": True}, []),
    ],
    ids=["full", "full of bytes", "full subject", "too long", "sealed"],
)
def test_a_full_stream_gets_rid_of_what_has_run_out(make: MakeWorld, config: dict[str, Any], left: list[bytes]) -> None:
    """A full stream removes expired messages even if its rules refuse the marker.

    nats-server keeps them as long as the rules refuse the marker, mostly for ever.
    """
    world = make(**MARKED)
    world.acked("s.a", Nats_TTL="2m")
    full = msgspec.structs.replace(world.stream.config, **config)
    world.stream.propose(UpdateStream(msgspec.json.encode(full)))
    world.settle()
    pass_time(world, 2 * MINUTE + SECOND)
    assert [header for _, _, header in records(world)] == left


def test_every_subject_of_many_gets_its_marker(make: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "MAX_MARKED", 50)
    monkeypatch.setattr(expiry, "MAX_MARKED_BYTES", 2000)
    world = make(**MARKED, max_age=MINUTE)
    for n in range(400):
        world.publish(f"s.{n % 300}", b"x" * (n % 90))
    world.settle()
    pass_time(world, MINUTE)
    for _ in range(30):
        world.clock.advance(expiry.MIN_DELAY_NS)
        world.settle()
    found = records(world)
    assert [header for _, _, header in found] == [MARKER] * 300
    assert {subject for _, subject, _ in found} == {b"s.%d" % n for n in range(300)}
    assert [seq for seq, _, _ in found] == list(range(401, 701)), "one for each subject"


def in_the_lake(world: World, lake: Lake) -> None:
    """Release all messages from the log but one more, which never expires."""
    store = world.stream.store
    lake.records += store.read_run(1, 1 << 30, 1 << 40)
    world.stream.reader.history = lake
    store.ask_seal()
    world.settle()
    world.acked("s.here", Nats_TTL="never")
    world.stream.checkpoint()
    world.settle()
    store.drop_through(store.sealed_through[0])
    world.settle()
    assert not store.is_local(1)


def test_what_only_the_lake_has_is_asked_about_its_marker(make: MakeWorld, clock: Waiting) -> None:
    lake = Lake()
    world = make(options=SMALL, **MARKED, max_age=MINUTE)
    world.acked("s.a", b"x")
    world.acked("s.b", b"", KV_Operation="PURGE")
    world.acked("s.c", b"x")
    in_the_lake(world, lake)
    clock.advance(2 * MINUTE)
    assert lake.asked == [[1, 2, 3]], "headers are read from the lake"
    world.publish("s.c", b"meanwhile")
    clock.run()
    world.settle()
    assert [(subject, header) for _, subject, header in records(world)][1:] == [(b"s.c", b""), (b"s.a", MARKER)]


def test_a_lake_that_does_not_answer_is_asked_again_later(make: MakeWorld, clock: Waiting) -> None:
    lake = Lake()
    world = make(options=SMALL, **MARKED)
    world.acked("s.a", b"x", Nats_TTL="2m")
    in_the_lake(world, lake)
    there, lake.records = lake.records, []
    clock.advance(3 * MINUTE)
    with pytest.raises(Exception, match="not readable"):
        clock.run()
    world.settle()
    assert timers(world) == [expiry.RETRY_NS]
    lake.records = there
    clock.advance(expiry.RETRY_NS)
    clock.run()
    world.settle()
    assert records(world)[1:] == [(3, b"s.a", MARKER)]


# ------------------------------------------------------------------ TTLs alone
@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"5", 5),
        (b"0000000000000000000000000000005", 5),
        (b"9223372036854775807", ttl.MAX_TTL_NS / SECOND),
        (b"9223372036854775808", 0),
        (b"9" * 5000, 0),
        (b"2562047h", ttl.MAX_TTL_NS / SECOND),
        (b"2562048h", 0),
        (b"1.999s", 1),
        (b"5 ", 0),
        (b"", 0),
        (b"\xff", 0),
    ],
)
def test_what_a_ttl_may_say(value: bytes, seconds: float) -> None:
    assert ttl.parse_ttl(value) == seconds * SECOND


def test_deadlines_stay_within_an_int64() -> None:
    assert 4_000_000_000 * SECOND + ttl.MAX_TTL_NS < 1 << 63, "until the year 2096"


def test_a_short_life_is_raised_to_that_of_the_marker() -> None:
    config = StreamConfig(subject_delete_marker_ttl=90 * SECOND, max_msgs_per_subject=-1)
    block = b"NATS/1.0\r\nNats-TTL: 1s\r\nFoo: bar\r\n\r\n"
    assert ttl.raised(block, config) == b"NATS/1.0\r\nFoo: bar\r\nNats-TTL: 90\r\n\r\n"
    again = ttl.raised(ttl.raised(block, config), config)
    assert again == ttl.raised(block, config), "judged twice, it is raised once"


def test_where_too_much_is_in_flight_a_marker_waits(make: MakeWorld) -> None:
    world = make(**MARKED, buffer=BufferLimits(max_msgs=0))
    world.acked("s.a", Nats_TTL="2m")
    world.publish("s.b")
    world.clock.turn()
    world.clock.advance(3 * MINUTE)
    assert timers(world) == [expiry.MIN_DELAY_NS], "not at once: it would not be stored then either"
    world.settle()
    pass_time(world, SECOND)
    assert [(subject, header) for _, subject, header in records(world)] == [(b"s.b", b""), (b"s.a", MARKER)]
