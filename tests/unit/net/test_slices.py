"""Tests of the time that clients' reads take of one turn of the event loop."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest

from lakestream.config.account_options import User
from lakestream.net.connection import Connection
from lakestream.net.hub import SINGLE, Hub
from lakestream.net.inbox import SMALL_READ_BYTES, Inbox
from lakestream.net.interest.subscription import Subscription
from lakestream.net.turn import LONE_AFTER_NS, LONE_SLICE_NS, PARTS_AT_ONCE, PARTS_NS, SLICE_NS, Turn
from lakestream.ports import ClientInfo, Messages, singly
from lakestream.protocol.parser import ONE_BY_ONE, Parser
from lakestream.protocol.publishes import Publishes
from tests.unit.net.test_guarded_runs import Socket, World
from tests.unit.stream_world import ManualClock
from tests.wire import pub

pytestmark = pytest.mark.unit

COST_NS = SLICE_NS // 2


class Slow:
    """A server with two clients, and a service whose handler takes half of a slice for each request."""

    def __init__(self) -> None:
        self.world = World([User("a", "p"), User("b", "p")], [[], ["b.>"]], [])
        self.flood, self.quiet = self.world.clients
        self.clock = self.world.server.clock
        self.served: list[bytes] = []
        self.flood.hub.subscribe(b"slow.*", singly(self._serve))

    def _serve(self, subject: bytes, *rest: object) -> None:
        self.served.append(subject)
        self.clock.time += COST_NS

    def turn(self) -> None:
        """Run one turn of the event loop."""
        soon, self.clock.soon = self.clock.soon, []
        for callback in soon:
            callback()

    def rounds(self) -> list[int]:
        """Run turns until nothing is left to do; return the number of requests that were served after each."""
        numbers = []
        while self.clock.soon:
            self.turn()
            numbers.append(len(self.served))
        return numbers


def requests(number: int) -> bytes:
    return b"".join(pub(f"slow.{at}", b"x" * 50) for at in range(number))


def test_a_flood_of_requests_is_served_in_slices_and_in_order() -> None:
    world = Slow()
    world.flood.data_received(requests(100))
    assert 0 < len(world.served) <= 2 * SINGLE
    numbers = world.rounds()
    assert all(after - before <= 2 * SINGLE for before, after in pairwise(numbers))
    assert world.served == [b"slow.%d" % at for at in range(100)]
    assert world.flood.in_msgs == 100


def test_a_small_read_does_not_wait_behind_a_flood() -> None:
    world = Slow()
    world.flood.data_received(requests(100))
    served = len(world.served)
    world.quiet.data_received(b"PING\r\n")
    assert b"PONG" in world.world.sockets[1].written
    assert len(world.served) == served


def test_large_reads_take_turns_when_a_turn_is_over() -> None:
    world = Slow()
    world.flood.data_received(requests(100))
    world.quiet.data_received(pub("b.1", bytes(SMALL_READ_BYTES)))
    assert b"b.1" not in world.world.sockets[1].written
    served = len(world.served)
    for _ in range(4):
        world.turn()
    assert b"b.1" in world.world.sockets[1].written
    assert served < len(world.served) < 100


def test_a_client_that_is_alone_gets_more_of_a_turn() -> None:
    """Cut into slices, thousands of direct gets in flight took 30 % longer although nobody waited for anything."""
    world = Slow()

    def served_at_once() -> int:
        before = len(world.served)
        world.flood.data_received(requests(100))
        number = len(world.served) - before
        world.rounds()
        return number

    together = served_at_once()
    world.clock.time += LONE_AFTER_NS + 1
    alone = served_at_once()
    assert alone * COST_NS > LONE_SLICE_NS > 2 * together * COST_NS
    world.quiet.data_received(b"PING\r\n")
    assert served_at_once() == together
    world.quiet.close("Client Closed")
    world.quiet.connection_lost(None)
    assert served_at_once() == alone, "the other one has left"


def test_a_run_that_a_subscriber_takes_one_by_one_is_served_in_slices_and_in_order() -> None:
    world = Slow()
    asked: list[int] = []

    serve = singly(world._serve)

    def refuse(run: Publishes, begin: int, end: int) -> bool:
        asked.append(end - begin)
        return False

    def take(messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
        if isinstance(messages, Publishes):
            assert not messages.offer(refuse, begin, end)
        return serve(messages, begin, end, client)

    world.flood.hub.subscribe(b"singly", take, runs=True)
    world.flood.data_received(b"".join(pub("singly", b"%d" % at) for at in range(100)))
    assert 0 < len(world.served) <= SINGLE
    numbers = world.rounds()
    assert all(after - before <= SINGLE for before, after in pairwise(numbers))
    assert len(world.served) == world.flood.in_msgs == 100
    assert asked == [100], "a run that was refused as a whole is not offered again"


def test_a_long_run_is_handed_over_in_parts_and_others_get_their_turn_in_between() -> None:
    """3,600 direct gets of one read were answered in one go, 20 ms."""
    world = Slow()
    taken: list[bytes] = []

    def take(messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
        end = min(end, begin + 30)
        taken.append(b",".join(messages.message(at).payload for at in range(begin, end)))
        world.clock.time += 2 * SLICE_NS
        return end

    world.flood.hub.subscribe(b"limited", take, runs=True)
    world.flood.data_received(b"".join(pub("limited", b"%d" % at) for at in range(100)))
    parts = [b",".join(b"%d" % at for at in range(*part)) for part in ((0, 30), (30, 60), (60, 90), (90, 100))]
    assert taken == parts[:1]
    world.quiet.data_received(b"PING\r\n")
    assert b"PONG" in world.world.sockets[1].written
    world.rounds()
    assert taken == parts
    assert not world.served
    assert world.flood.in_msgs == 100


def test_small_commands_of_a_large_read_are_parsed_in_parts() -> None:
    world = Slow()
    subs = 3 * ONE_BY_ONE
    world.flood.data_received(b"".join(b"SUB many.%d %d\r\n" % (at, at) for at in range(subs)) + pub("slow.last"))
    graph = world.flood.hub.interest_graph

    def begun() -> int:
        return sum(bool(graph.match(b"many.%d" % at).plain) for at in range(subs))

    assert begun() == ONE_BY_ONE
    world.quiet.data_received(b"PING\r\n")
    assert b"PONG" in world.world.sockets[1].written
    world.rounds()
    assert begun() == subs
    assert world.served == [b"slow.last"]


def test_what_is_read_behind_late_commands_stays_behind_them() -> None:
    world = Slow()
    world.flood.data_received(requests(20))
    world.flood.data_received(pub("slow.last"))
    world.rounds()
    assert world.served == [*(b"slow.%d" % at for at in range(20)), b"slow.last"]


def test_commands_of_a_connection_that_ends_are_dropped() -> None:
    world = Slow()
    world.flood.data_received(requests(20))
    served = len(world.served)
    world.flood.close("Client Closed")
    world.rounds()
    assert len(world.served) == served


def test_subscriptions_of_closed_connections_end_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand connections with 100 subscriptions each that closed together held the event loop for 450 ms."""
    world = Slow()
    clients, number = (world.flood, world.quiet), 600
    for at, client in enumerate(clients):
        client.data_received(b"".join(b"SUB many.%d.%d s%d\r\n" % (at, each, each) for each in range(number)))
    world.rounds()
    graph, clock, leave = world.flood.hub.interest_graph, world.clock, Hub.leave

    def left() -> int:
        return sum(bool(graph.match(b"many.%d.%d" % (at, each)).plain) for at in (0, 1) for each in range(number))

    def slow(hub: Hub, sub: Subscription) -> None:
        clock.time += SLICE_NS // 200
        leave(hub, sub)

    monkeypatch.setattr(Hub, "leave", slow)
    assert left() == 2 * number
    for _ in range(2):  # two that stay
        Inbox(Parser(), world.flood.hub.turn)
    for client in clients:
        client.close("Client Closed")
    lefts = [left()]
    while clock.soon:
        world.turn()
        lefts.append(left())
    assert 2 * number - 300 <= lefts[0] < 2 * number, "one slice for both"
    assert all(before - after <= 300 for before, after in pairwise(lefts))
    assert not lefts[-1]


def test_clients_that_send_byte_by_byte_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Slow()
    socket, calls = world.world.sockets[1], list[str]()
    monkeypatch.setattr(socket, "pause_reading", lambda: calls.append("pause"))
    monkeypatch.setattr(socket, "resume_reading", lambda: calls.append("resume"))
    world.flood.data_received(requests(100))
    world.quiet.data_received(b"PI")
    assert calls == ["pause"]
    world.rounds()
    assert calls == ["pause", "resume"]
    world.quiet.data_received(b"N")
    assert calls == ["pause", "resume"], "the turn has time"
    world.quiet.data_received(b"G\r\n")
    assert socket.written.endswith(b"PONG\r\n")


def test_clients_that_send_byte_by_byte_wait_although_the_turn_has_time() -> None:
    """Hundreds of them were ready in the same turn, each was read before it was paused: 10 to 19 ms."""
    world = Slow()
    sockets = [Socket() for _ in range(2 * PARTS_AT_ONCE + 1)]
    clients = [Connection(world.world.server, number, None) for number, _ in enumerate(sockets, 100)]
    paused: set[Socket] = set()
    for client, socket in zip(clients, sockets, strict=True):
        socket.pause_reading = partial(paused.add, socket)  # type: ignore[method-assign]
        socket.resume_reading = partial(paused.discard, socket)  # type: ignore[method-assign]
        client.connection_made(socket)
        client.data_received(b"CONN")
    assert paused == set(sockets[PARTS_AT_ONCE:])
    clients[0].close("Client Closed")
    clients[1].data_received(b"CT {}\r\n")
    numbers = [len(paused)]
    while world.clock.soon:
        world.turn()
        numbers.append(len(paused))
    assert numbers == [PARTS_AT_ONCE + 1, 1, 0]
    for client in clients[PARTS_AT_ONCE:]:
        client.data_received(b"E")
    assert paused == set(sockets[PARTS_AT_ONCE + 2 :]), "two had room again"


def test_a_command_that_is_completed_in_a_later_turn_is_complete() -> None:
    """A place of those that are read on was kept until the client's next command."""
    world = Slow()
    turn = world.flood.hub.turn
    world.quiet.data_received(b"PU")
    world.flood.data_received(requests(100))
    world.quiet.data_received(pub("b.1", bytes(SMALL_READ_BYTES))[2:])
    assert b"b.1" not in world.world.sockets[1].written, "the turn is over"
    world.rounds()
    assert b"b.1" in world.world.sockets[1].written
    assert [turn.begin() for _ in range(PARTS_AT_ONCE + 1)] == [True] * PARTS_AT_ONCE + [False]


def test_clients_in_the_middle_of_a_command_are_read_a_few_at_intervals() -> None:
    """Read in every turn, all of them were soon waiting for bytes, and 500 got some at once: 12 ms of one turn."""
    clock, resumed = ManualClock(), list[int]()
    turn = Turn(clock.call_soon, steady=clock.steady, call_later=clock.call_later)
    for number in range(3 * PARTS_AT_ONCE - 1):
        turn.wait_for_more(partial(resumed.append, number))
    clock.advance(PARTS_NS - 1)
    assert not resumed
    clock.advance(1)
    assert resumed == list(range(PARTS_AT_ONCE))
    clock.turn()
    assert len(resumed) == PARTS_AT_ONCE
    turn.wait_for_more(partial(resumed.append, 3 * PARTS_AT_ONCE - 1))
    clock.advance(PARTS_NS)
    clock.advance(PARTS_NS)
    assert resumed == list(range(3 * PARTS_AT_ONCE))
    assert not clock.timers, "nothing waits"


def test_sign_in_timeouts_that_come_together_take_turns() -> None:
    world = Slow()
    clock = world.clock

    class Costly(Socket):
        def close(self) -> None:
            super().close()
            clock.time += COST_NS

    sockets = [Costly() for _ in range(12)]
    for number, socket in enumerate(sockets, 100):
        Connection(world.world.server, number, None).connection_made(socket)
    world.rounds()
    clock.time += world.world.server.options.auth_timeout_ns
    due = [timer for timer in clock.timers if timer.due <= clock.time]
    for timer in due:
        timer.callback()
    assert 0 < sum(socket.closed for socket in sockets) < 6
    world.rounds()
    assert all(socket.closed and b"Authentication Timeout" in socket.written for socket in sockets)
