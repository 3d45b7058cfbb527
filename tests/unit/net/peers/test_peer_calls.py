"""Tests of requests between nodes: one answer each, whatever happens to the other node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lakestream.net.peers import calls as peer_calls
from lakestream.net.peers.calls import PeerCalls
from lakestream.raft.group.ports import Channel

pytestmark = pytest.mark.unit

SECOND = 1_000_000_000


class Timer:
    """A callback at a time."""

    def __init__(self, at: int, callback: Callable[[], None]) -> None:
        self.at, self.callback = at, callback

    def cancel(self) -> None:
        self.callback = lambda: None


class Clock:
    """Clock and turns that the test advances."""

    def __init__(self) -> None:
        self.time = 0
        self.soon: list[Callable[[], None]] = []
        self.timers: list[Timer] = []

    def now(self) -> int:
        return self.time

    def steady(self) -> int:
        return self.now()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def call_later(self, delay_ns: int, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.time + delay_ns, callback))
        return self.timers[-1]

    def run(self, until_ns: int = 0) -> None:
        while self.soon:
            self.soon.pop(0)()
        self.time = max(self.time, until_ns)
        due = [timer for timer in self.timers if timer.at <= self.time]
        self.timers = [timer for timer in self.timers if timer.at > self.time]
        for timer in due:
            timer.callback()


class Peers:
    """Connections of one node; buffers arrive in the next turn."""

    def __init__(self, me: str, clock: Clock) -> None:
        self.me = me
        self.clock = clock
        self.others: dict[str, Peers] = {}
        self.silent: set[str] = set()
        self.handler: Callable[[str, bytes], None] = lambda node, payload: None
        self.watchers: list[Callable[[str, bool], None]] = []

    def connected(self) -> list[str]:
        return sorted(self.others)

    def alive(self, node: str) -> bool:
        return node in self.others and node not in self.silent

    def send(self, node: str, channel: Channel, payload: bytes) -> bool:
        if node not in self.others:
            return False
        other = self.others[node]
        self.clock.call_soon(lambda: other.handler(self.me, payload))
        return True

    def receive(self, channel: Channel, handler: Callable[[str, bytes], None]) -> None:
        assert channel is Channel.CALL
        self.handler = handler

    def watch(self, callback: Callable[[str, bool], None]) -> None:
        self.watchers.append(callback)

    def lose(self, node: str) -> None:
        del self.others[node]
        for watcher in self.watchers:
            watcher(node, False)


class Log:
    """Reported failures."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def exception(self, text: str, error: BaseException) -> None:
        self.lines.append(f"{text}: {error}")


class World:
    """Two nodes."""

    def __init__(self) -> None:
        self.clock, self.log = Clock(), Log()
        self.peers = {name: Peers(name, self.clock) for name in "ab"}
        self.peers["a"].others["b"] = self.peers["b"]
        self.peers["b"].others["a"] = self.peers["a"]
        self.a, self.b = (PeerCalls(self.peers[name], self.clock, self.log) for name in "ab")
        self.answers: list[tuple[bytes | None, str]] = []

    def call(self, node: str = "b", method: str = "m", body: bytes = b"?") -> None:
        self.a.call(node, method, body, lambda body, why: self.answers.append((body, why)), SECOND)


@pytest.fixture
def world() -> World:
    return World()


def doubling(node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
    answer(node.encode() + body * 2)


@pytest.mark.parametrize(("node", "asked"), [("b", "b"), ("a", "a")])
def test_a_call_is_answered_by_another_node_and_by_this_one(world: World, node: str, asked: str) -> None:
    getattr(world, asked).serve("m", doubling)
    world.call(node)
    assert world.answers == []
    world.clock.run()
    assert world.answers == [(b"a??", "")]
    assert world.a.waiting == 0


def test_answers_find_their_calls_in_any_order(world: World) -> None:
    held: list[tuple[bytes, Callable[[bytes], None]]] = []
    world.b.serve("m", lambda node, body, answer: held.append((body, answer)))
    for number in range(5):
        world.call(body=b"%d" % number)
    world.clock.run()
    for body, answer in reversed(held):
        answer(body)
        answer(b"a second answer counts for nothing")
    world.clock.run()
    assert world.answers == [(b"%d" % number, "") for number in range(4, -1, -1)]


@pytest.mark.parametrize("node", ["a", "b"])
def test_an_error_of_a_method_is_returned_to_the_caller_and_logged(world: World, node: str) -> None:
    def failing(node: str, body: bytes, answer: Any) -> None:
        raise ValueError("no such stream")

    world.a.serve("m", failing)
    world.b.serve("m", failing)
    world.call(node)
    world.clock.run()
    assert world.answers == [(None, "ValueError: no such stream")]
    assert world.log.lines == ["call 'm' of a failed: no such stream"]


def test_an_unknown_method_is_refused(world: World) -> None:
    world.call(method="x")
    world.clock.run()
    assert world.answers == [(None, "b does not serve 'x'")]


def test_a_call_without_connection_fails_in_the_next_turn(world: World) -> None:
    world.call("c")
    assert world.answers == []
    world.clock.run()
    assert world.answers == [(None, "c is not connected, or silent")]


def test_a_call_to_a_silent_node_fails_in_the_next_turn(world: World) -> None:
    world.peers["a"].silent.add("b")
    world.call()
    world.clock.run()
    assert world.answers == [(None, "b is not connected, or silent")]


def test_a_call_that_takes_too_long_fails_and_a_late_answer_is_nothing(world: World) -> None:
    held: list[Callable[[bytes], None]] = []
    world.b.serve("m", lambda node, body, answer: held.append(answer))
    world.call()
    world.clock.run(SECOND - 1)
    assert world.answers == []
    world.clock.run(SECOND)
    assert world.answers == [(None, "b did not answer in time")]
    held[0](b"late")
    world.clock.run()
    assert len(world.answers) == 1


def test_calls_to_a_node_that_goes_fail_at_once(world: World) -> None:
    world.b.serve("m", lambda node, body, answer: None)
    world.a.serve("m", doubling)
    world.call()
    world.call("a")
    world.peers["a"].lose("b")
    assert world.answers == [(None, "b is gone")]
    world.clock.run()
    assert world.answers[1:] == [(b"a??", "")]


def test_an_answer_of_another_node_is_not_taken(world: World) -> None:
    world.b.serve("m", doubling)
    sent: list[bytes] = []
    world.peers["a"].others["b"].handler, real = lambda node, payload: sent.append(payload), world.peers["b"].handler
    world.call()
    world.clock.run()
    [ask] = sent
    world.peers["b"].send = lambda node, channel, payload: bool(sent.append(payload))  # type: ignore[method-assign]
    real("a", ask)
    world.peers["a"].handler("c", sent[1])
    assert world.answers == []
    world.peers["a"].handler("b", sent[1])
    assert world.answers == [(b"a??", "")]


def test_something_that_is_no_call_is_logged_and_ignored(world: World) -> None:
    world.peers["a"].handler("b", b"\xc1")
    assert world.log.lines[0].startswith("a call of b that cannot be read")


def test_telling_needs_no_answer(world: World) -> None:
    heard: list[tuple[str, bytes]] = []

    def listen(node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        heard.append((node, body))
        answer(b"nobody waits for this")

    world.a.serve("m", listen)
    world.b.serve("m", listen)
    assert [world.a.tell(node, "m", node.encode()) for node in "abc"] == [True, True, False]
    world.clock.run()
    assert heard == [("a", b"a"), ("a", b"b")]
    assert world.clock.soon == []


def test_more_calls_than_the_limit_fail(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_calls, "MAX_WAITING", 2)
    world.b.serve("m", lambda node, body, answer: None)
    for _ in range(3):
        world.call()
    world.clock.run()
    assert world.answers == [(None, "more than 2 calls wait for their answers")]


def test_numbers_of_a_restarted_node_do_not_begin_again() -> None:
    first, second = World(), World()
    first.call("c")
    second.call("c")
    assert set(first.a._waiting) != set(second.a._waiting)
