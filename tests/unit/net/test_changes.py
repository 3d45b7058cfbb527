"""Tests of the queue of concurrent changes of one stream, and of its limit."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from lakestream.meta.changes import ChangeQueues, Finished
from lakestream.net.interest.subscription import Subscription
from lakestream.ports import Share, Single
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.api.request import Request
from tests.unit.api_world import ApiWorld, Client

pytestmark = pytest.mark.unit


def _advised(world: ApiWorld) -> list[dict[str, Any]]:
    """Subscribe to the API limit advisory; return the list that gets its events."""
    told: list[dict[str, Any]] = []

    class Listener(Client):
        def receive(self, sub: Any, message: Single, client: Any) -> None:
            told.append(json.loads(message.payload) | {"subject": message.subject.decode()})

    world.hub.join(Subscription(Listener(), b"$JS.EVENT.ADVISORY.API.LIMIT_REACHED", b"", b"1"))
    return told


def _update(world: ApiWorld, n: int) -> bytes:
    return world.send("$JS.API.STREAM.UPDATE.A", {"name": "A", "description": f"d{n}"})


def test_changes_of_one_stream_are_made_in_order() -> None:
    world = ApiWorld()
    world.create("A")
    replies = [_update(world, n) for n in range(5)]
    assert world.engine.changes.waiting == 4
    world.settle()
    shown = [json.loads(world.answers(reply)[0][1])["config"]["description"] for reply in replies]
    assert shown == [f"d{n}" for n in range(5)]
    assert world.engine.changes.waiting == 0


def test_one_more_than_may_wait_and_all_that_wait_are_dropped() -> None:
    world = ApiWorld(request_queue_limit=3)
    world.create("A")
    told = _advised(world)
    under_way: list[Callable[[], None]] = []
    world.engine.changes.take("S $G A", cast(Request, None), under_way.append)
    replies = [_update(world, n) for n in range(3)]
    world.clock.turn()  # no more than three may come in one
    assert world.engine.changes.waiting == 3
    replies.append(_update(world, 4))
    assert world.engine.changes.waiting == 0
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
        world.engine.changes.take(name, cast(Request, None), under_way.append)
    world.settle()
    assert len(under_way) == 3
    assert [event["dropped"] for event in told] == [1]
    under_way[0]()
    world.engine.changes.take("E", cast(Request, None), under_way.append)
    assert len(under_way) == 4


def test_thousands_of_waiting_changes_that_are_refused_end_one_after_the_other() -> None:
    world = ApiWorld()
    world.create("A")
    under_way: list[Callable[[], None]] = []
    world.engine.changes.take("S $G A", cast(Request, None), under_way.append)
    body = {"name": "A", "storage": "memory"}
    replies = [world.send("$JS.API.STREAM.UPDATE.A", body) for _ in range(3000)]
    assert world.engine.changes.waiting == 3000
    under_way[0]()
    world.settle()
    assert world.engine.changes.waiting == 0
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


class Hurried(Share):
    """A `Share` whose turns have time for so many looks at it."""

    def __init__(self, looks: int) -> None:
        self.looks = self.left = looks
        self.waiting: list[Callable[[], None]] = []

    def is_over(self) -> bool:
        self.left -= 1
        return self.left < 0

    def wait(self, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)

    def turn(self) -> None:
        self.left = self.looks
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback()


class Asked:
    """A request that notes how it ends."""

    def __init__(self) -> None:
        self.ended: list[object] = []

    def fail(self, error: ApiError) -> None:
        self.ended.append(error.err_code)

    def crash(self, error: Exception) -> None:
        self.ended.append(error)


def _hurried(looks: int) -> tuple[Hurried, ChangeQueues]:
    share = Hurried(looks)
    return share, ChangeQueues(0, lambda dropped: None, share)


def test_a_long_change_is_made_in_steps_and_the_next_one_waits_for_it() -> None:
    share, queues = _hurried(looks=3)
    done: list[int] = []

    def long(finished: Finished) -> Iterator[None]:
        for step in range(10):
            done.append(step)
            yield
        finished()

    request = cast(Request, Asked())
    queues.take("A", request, long)
    queues.take("A", request, lambda finished: done.append(100))
    numbers = [len(done)]
    while share.waiting:
        share.turn()
        numbers.append(len(done))
    assert numbers == [4, 8, 11]
    assert done == [*range(10), 100]


@pytest.mark.parametrize("error", [api_error(10138), ValueError("a bug")])
def test_an_error_in_a_step_is_the_answer_and_ends_the_change(error: Exception) -> None:
    share, queues = _hurried(looks=0)
    asked, done = Asked(), list[int]()

    def long(finished: Finished) -> Iterator[None]:
        yield
        raise error

    queues.take("A", cast(Request, asked), long)
    queues.take("A", cast(Request, asked), lambda finished: done.append(1))
    assert not asked.ended
    share.turn()
    assert asked.ended == [error.err_code if isinstance(error, ApiError) else error]
    assert done == [1]


def test_waiting_changes_are_begun_while_the_turn_has_time() -> None:
    share, queues = _hurried(looks=2)
    asked, under_way = Asked(), list[Finished]()
    queues.take("A", cast(Request, asked), under_way.append)

    def refused(finished: Finished) -> None:
        raise api_error(10138)

    for _ in range(16):
        queues.take("A", cast(Request, asked), refused)
    under_way[0]()
    numbers = [len(asked.ended)]
    while share.waiting:
        share.turn()
        numbers.append(len(asked.ended))
    assert numbers[:3] == [3, 6, 9]
    assert numbers[-1] == 16
