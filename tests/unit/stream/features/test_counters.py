"""Tests of counters: values in flight, in the log, only in the lake, and invalid ones."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lakestream.log.format.record import Record
from lakestream.log.store.segment_log import LogOptions
from lakestream.protocol.api.errors import ApiError
from lakestream.stream.core import publish
from lakestream.stream.features import counters
from tests.unit.api_world import Lake
from tests.unit.stream.features.test_expiry import Waiting
from tests.unit.stream_world import World

pytestmark = pytest.mark.unit
MakeWorld = Callable[..., World]
SMALL = LogOptions(seal_bytes=4096, retain_bytes=0, retain_segments=0)


@pytest.fixture
def make(tmp_path: Path) -> MakeWorld:
    def build(directory: str = "S", **options: Any) -> World:
        return World(str(tmp_path / directory), allow_msg_counter=True, **options)

    return build


def test_values_in_flight_add_up(make: MakeWorld) -> None:
    world = make()
    world.acked("s.a", Nats_Incr="5")
    replies = [world.publish("s.a", Nats_Incr=value) for value in ("1", "+2", "-9", "0")]
    world.clock.turn()
    replies += [world.publish("s.a", Nats_Incr="1"), world.publish("s.b", Nats_Incr="7")]
    assert not any(map(world.answer, replies)), "nothing is on disk"
    world.settle()
    assert [answer["val"] for answer in map(world.answer, replies) if answer] == ["6", "8", "-1", "-1", "0", "7"]
    assert world.content()[-2:] == [(6, b"s.a", b'{"val":"0"}'), (7, b"s.b", b'{"val":"7"}')]


def test_a_restart_keeps_the_values(make: MakeWorld, tmp_path: Path) -> None:
    world = make()
    for _ in range(3):
        world.acked("s.a", Nats_Incr="3")
    shutil.copytree(tmp_path / "S", tmp_path / "killed")
    world.stream.checkpoint()
    world.settle()
    for directory in ("killed", "S"):
        assert make(directory).acked("s.a", Nats_Incr="1")["val"] == "10", directory


def test_a_duplicate_does_not_count(make: MakeWorld) -> None:
    world = make()
    first, again = (world.publish("s.a", Nats_Incr="3", Nats_Msg_Id="i") for _ in range(2))
    world.settle()
    assert world.answer(first) == {"stream": "S", "seq": 1, "val": "3"}
    assert world.answer(again) == {"stream": "S", "seq": 1, "duplicate": True}
    assert world.acked("s.a", Nats_Incr="1")["val"] == "4"


def test_a_value_that_only_the_lake_has_is_fetched(make: MakeWorld) -> None:
    clock, lake = Waiting(), Lake()
    world = make(clock=clock, options=SMALL)
    for subject, value in (("s.a", "5"), ("s.b", "70"), ("s.c", "1")):
        world.acked(subject, Nats_Incr=value)
    store = world.stream.store
    lake.records += store.read_run(1, 1 << 30, 1 << 40)
    world.stream.reader.history = lake
    store.ask_seal()
    world.settle()
    world.acked("s.here", Nats_Incr="1")
    world.stream.checkpoint()
    world.settle()
    store.drop_through(store.sealed_through[0])
    world.settle()
    assert not store.is_local(1)
    replies = [world.publish(subject, Nats_Incr="1") for subject in ("s.a", "s.a", "s.here", "s.b", "s.a")]
    while clock.waiting:
        clock.run()
        world.settle()
    answers = [world.answer(reply) for reply in replies]
    assert [(answer["seq"], answer["val"]) for answer in answers if answer] == [
        (5, "6"),
        (6, "7"),
        (7, "2"),
        (8, "71"),
        (9, "8"),
    ], "and nobody is overtaken"
    assert len(lake.reads) == 2
    lake.records = []
    reply = world.publish("s.c", Nats_Incr="1")
    while clock.waiting:
        clock.run()
        world.settle()
    answer = world.answer(reply)
    assert answer is not None
    assert answer["error"]["err_code"] == 10077, "it must not begin anew because the lake does not answer"


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"null", b"5", b'{"val":5}', b'{"val":"x"}', b'{"val":""}', b"{", b"\xff"]
)
def test_an_invalid_value_is_reported(data: bytes) -> None:
    with pytest.raises(ApiError) as told:
        counters.value_of(data)
    assert told.value.err_code == 10172


class OneRecord:
    """View with one message."""

    max_msg_size = -1

    def __init__(self, config: Any, data: bytes) -> None:
        self.config, self.data = config, data

    def last_of(self, subject: bytes) -> int:
        return 1

    def record(self, seq: int) -> Record:
        return Record(1, 1, b"s", b"", self.data)


def _counted(world: World, before: str, increment: str) -> str:
    view: Any = OneRecord(world.stream.config, b'{"val":"%b"}' % before.encode())
    message = publish.IncomingMessage(b"s", b"", b"NATS/1.0\r\nNats-Incr: %b\r\n\r\n" % increment.encode(), b"")
    counters.count(view, message)
    value: str = msgspec.json.decode(message.payload)["val"]
    assert message.tail == b',"val":"%b"' % value.encode()
    return value


def test_numbers_of_any_length(make: MakeWorld) -> None:
    world, choose = make(), random.Random(5)
    for digits in (1, 2, 17, 18, 19, 20, 300, 4000):
        for _ in range(20):
            one, other = (choose.choice((1, -1)) * choose.randrange(10**digits) for _ in range(2))
            assert _counted(world, str(one), f"{other:+d}") == str(one + other)
    assert _counted(world, "-5", "5") == "0"
    assert _counted(world, "0", "-0") == "0"
    assert _counted(world, "9" * 65_000, "1") == "1" + "0" * 65_000
    with pytest.raises(ApiError) as told:
        _counted(world, "9" * counters.MAX_VALUE_DIGITS, "1")
    assert told.value.err_code == 10171
