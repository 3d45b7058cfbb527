"""Tests of the queue of concurrent changes of one stream, and of its limit."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from lakestream.net.interest.subscription import Subscription
from lakestream.protocol.api.request import Request
from tests.unit.api_world import ApiWorld, Client

pytestmark = pytest.mark.unit


def _advised(world: ApiWorld) -> list[dict[str, Any]]:
    """Subscribe to the API limit advisory; return the list that gets its events."""
    told: list[dict[str, Any]] = []

    class Listener(Client):
        def receive(self, sub: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: Any) -> None:
            told.append(json.loads(payload) | {"subject": subject.decode()})

    world.hub.join(Subscription(Listener(), b"$JS.EVENT.ADVISORY.API.LIMIT_REACHED", b"", b"1"))
    return told


def _update(world: ApiWorld, n: int) -> bytes:
    return world.send("$JS.API.STREAM.UPDATE.A", {"name": "A", "description": f"d{n}"})


def test_changes_of_one_stream_are_made_in_order() -> None:
    world = ApiWorld()
    world.create("A")
    replies = [_update(world, n) for n in range(5)]
    assert world.engine.turns.waiting == 4
    world.settle()
    shown = [json.loads(world.answers(reply)[0][1])["config"]["description"] for reply in replies]
    assert shown == [f"d{n}" for n in range(5)]
    assert world.engine.turns.waiting == 0


def test_one_more_than_may_wait_and_all_that_wait_are_dropped() -> None:
    world = ApiWorld(request_queue_limit=3)
    world.create("A")
    told = _advised(world)
    under_way: list[Callable[[], None]] = []
    world.engine.turns.take("S $G A", cast(Request, None), under_way.append)
    replies = [_update(world, n) for n in range(3)]
    world.clock.turn()  # no more than three may come in one
    assert world.engine.turns.waiting == 3
    replies.append(_update(world, 4))
    assert world.engine.turns.waiting == 0
    late = _update(world, 5)
    under_way[0]()
    world.settle()
    assert [len(world.answers(reply)) for reply in replies] == [0, 0, 0, 0]
    assert json.loads(world.answers(late)[0][1])["config"]["description"] == "d5"
    assert [(event["type"].rpartition(".")[2], event["server"], event["dropped"]) for event in told] == [
        ("api_limit_reached", "srv", 4)
    ]


@pytest.mark.parametrize(
    ("subject", "line"),
    [
        ("STREAM.NAMES", "JetStream API info queue limit reached, dropping 7 requests"),
        ("STREAM.MSG.GET.A", "JetStream API queue limit reached, dropping 6 requests"),
    ],
)
def test_more_requests_than_may_come_together_are_dropped(subject: str, line: str) -> None:
    world = ApiWorld(request_queue_limit=4, info_queue_limit=3)
    world.create("A")
    told = _advised(world)
    for _ in range(2):
        replies = [world.send(f"$JS.API.{subject}", b'{"seq":1}') for _ in range(10)]
        world.settle()
        assert [len(world.answers(reply)) for reply in replies] == [1] * (10 - told[-1]["dropped"]) + [0] * told[-1][
            "dropped"
        ]
    assert world.log.warnings == [line], "logged once a second"
    assert [event["dropped"] for event in told] == [int(line.split()[-2])] * 2


def test_what_waits_for_one_stream_does_not_hold_up_another() -> None:
    world = ApiWorld()
    world.create("A")
    world.create("B")
    _update(world, 1)
    _update(world, 2)
    assert world.ask("STREAM.INFO.B")["config"]["name"] == "B"


def test_a_refused_change_lets_the_next_one_go_on() -> None:
    world = ApiWorld()
    world.create("A")
    first, second = _update(world, 1), world.send("$JS.API.STREAM.UPDATE.A", {"name": "A", "storage": "memory"})
    third = _update(world, 3)
    world.settle()
    assert [b"error" in world.answers(reply)[0][1] for reply in (first, second, third)] == [False, True, False]


def test_requests_in_progress_are_bounded() -> None:
    world = ApiWorld(request_queue_limit=3)
    told = _advised(world)
    under_way: list[Callable[[], None]] = []
    for name in "ABCD":
        world.engine.turns.take(name, cast(Request, None), under_way.append)
    world.settle()
    assert len(under_way) == 3
    assert [event["dropped"] for event in told] == [1]
    under_way[0]()
    world.engine.turns.take("E", cast(Request, None), under_way.append)
    assert len(under_way) == 4


def test_thousands_of_waiting_changes_that_are_refused_end_one_after_the_other() -> None:
    world = ApiWorld()
    world.create("A")
    under_way: list[Callable[[], None]] = []
    world.engine.turns.take("S $G A", cast(Request, None), under_way.append)
    body = {"name": "A", "storage": "memory"}
    replies = [world.send("$JS.API.STREAM.UPDATE.A", body) for _ in range(3000)]
    assert world.engine.turns.waiting == 3000
    under_way[0]()
    world.settle()
    assert world.engine.turns.waiting == 0
    assert all(b"10052" in world.answers(reply)[0][1] for reply in replies[::100])
    assert world.ask("STREAM.INFO.A")["config"]["name"] == "A"


def test_refused_changes_that_waited_leave_no_reference_cycles() -> None:
    """Else those of a flood are old when they become garbage, and stay until the next full collection."""
    world = ApiWorld()
    world.create("A")
    body = {"name": "A", "storage": "memory"}
    world.send("$JS.API.STREAM.UPDATE.A", body)
    world.settle()
    gc.collect()
    gc.disable()
    try:
        for _ in range(100):
            world.send("$JS.API.STREAM.UPDATE.A", body)
        world.settle()
        assert gc.collect() < 100
    finally:
        gc.enable()
