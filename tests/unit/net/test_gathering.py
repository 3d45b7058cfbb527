"""Tests of small reads of many clients that are handled together: the same effects as one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.config.account_options import Permissions, SubjectRule, User
from lakestream.net.connection import APART
from lakestream.net.inbox import REST, SMALL_READ_BYTES, Gathering
from lakestream.ports import ClientInfo, Messages, Single
from tests.unit.net.test_guarded_runs import World
from tests.wire import pub

pytestmark = pytest.mark.unit

BLOCK = b"NATS/1.0\r\nx: y\r\n\r\n"
DENIED = Permissions(publish=SubjectRule(None, ("one.no",)))


class Stream:
    """Takes messages apart, in one of several ways, as streams do."""

    def __init__(self, name: str, world: World, way: str) -> None:
        self.name, self.world, self.way = name, world, way
        self.took: list[Single] = []
        self.senders: dict[int, int] = {}
        self.runs: list[int] = []

    def take(self, messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
        if type(messages) is Single or self.way == "singly":
            self.senders[len(self.took)] = client.id
            end = begin + 1
        elif self.way == "some":
            end = min(end, begin + 2)
        self.runs.append(end - begin)
        for each in messages.messages(begin, end):
            self.took.append(Single(each.subject, each.reply, each.header, each.payload))
        return end


class Clients(World):
    """Clients of three streams; the last one listens to messages that are for no stream, and two may not all."""

    def __init__(self, gathers: bool, way: str = "all", number: int = 5, **options: int) -> None:
        permissions = [DENIED if at == 1 else None for at in range(number)]
        filters: list[list[str]] = [[] for _ in range(number - 1)] + [["core.*"]]
        users = [User(f"u{at}", "p", each) for at, each in enumerate(permissions)]
        super().__init__(users, filters, [], **options)
        self.first: list[Callable[[], None]] = []
        if gathers:
            self.server.gathering = Gathering(APART, self.first.append)
        self.streams = [Stream(name, self, way) for name in ("one", "two", "three")]
        hub = self.clients[0].hub
        for stream in self.streams:
            hub.subscribe(b"%b.>" % stream.name.encode(), stream.take, runs=True, apart=True)

    def turn(self) -> None:
        """End a turn of the event loop."""
        first, self.first[:] = list(self.first), []
        for callback in first:
            callback()
        self.server.clock.turn()


SUBJECTS = ["one.a", "one.b", "one.no", "two.a", "three.x.y", "core.a", "nobody", "$NRG.x"]
REPLIES = ["", "_INBOX.a.1", "_INBOX.a.2", "_R_.x", "r.$FI.x"]
publishes = st.builds(
    lambda subject, reply, block, size: pub(subject, b"d" * size, reply, block),
    st.sampled_from(SUBJECTS),
    st.sampled_from(REPLIES),
    st.sampled_from([None, None, BLOCK, b"NATS/1.0\r\nNats-Trace-Dest: a\r\n\r\n", b"odd"]),
    st.sampled_from([0, 1, 10, 100, SMALL_READ_BYTES]),
)
OTHERS = [b"PING\r\n", b"PUB x\r\n", b"PUB one.a 2\r\nab", b"\r\n", b"SUB core.> 9\r\n", b"UNSUB 9\r\n"]
reads = st.one_of(
    publishes,
    publishes,
    publishes,
    st.sampled_from(OTHERS),
    st.lists(publishes, min_size=2, max_size=3).map(b"".join),
    st.builds(lambda whole, at: whole[: at % len(whole)] or b"P", publishes, st.integers(0, 200)),
    st.sampled_from([b'CONNECT {"verbose":true}\r\n', b'CONNECT {"headers":false,"no_responders":false}\r\n']),
)


@given(
    st.lists(st.none() | st.tuples(st.integers(0, 4), reads), min_size=1, max_size=30),
    st.sampled_from(["all", "some", "singly"]),
    st.sampled_from([{}, {}, {}, {"max_payload": 64}, {"max_control_line": 100}]),
)
@settings(max_examples=400, deadline=None)
def test_reads_of_several_clients_have_the_effects_that_they_have_one_by_one(
    said: list[tuple[int, bytes] | None], way: str, options: dict[str, int]
) -> None:
    together, singly = (Clients(gathers, way, **options) for gathers in (True, False))
    for each in said:
        if each is None:
            together.turn()
            singly.turn()
        else:
            for world in (together, singly):
                if not world.sockets[each[0]].closed:
                    world.clients[each[0]].data_received(each[1])
    together.turn()
    assert together.effects() == singly.effects()
    for one, other in zip(together.streams, singly.streams, strict=True):
        assert one.took == other.took
        assert one.senders.items() <= other.senders.items()


def test_a_publish_of_each_client_is_one_run() -> None:
    world = Clients(True)
    for client in world.clients[2:]:
        client.data_received(pub("one.a", b"x" * 10, "_INBOX.a.1"))
    assert not world.streams[0].took
    world.turn()
    assert world.streams[0].runs == [3]
    assert [client.in_msgs for client in world.clients[2:]] == [1, 1, 1]


def test_messages_to_two_streams_are_a_run_for_each() -> None:
    world = Clients(True, number=12)
    for at, client in enumerate(world.clients[2:]):
        client.data_received(pub(("one.a", "two.a")[at % 2], b"%d" % at, "_INBOX.a.1"))
    world.turn()
    assert [stream.runs for stream in world.streams] == [[5], [5], []]


def test_messages_that_are_for_no_stream_are_soon_handled_at_once() -> None:
    world = Clients(True)

    def publish(subject: str) -> list[int]:
        before = [client.in_msgs for client in world.clients]
        for client in world.clients[2:]:
            client.data_received(pub(subject, b"x"))
        return [client.in_msgs - count for client, count in zip(world.clients[2:], before[2:], strict=True)]

    assert publish("core.a") == [0, 0, 0]
    world.turn()
    for _ in range(REST // 3):
        assert publish("core.a") == [1, 1, 1]
    assert publish("one.a") == [1, 0, 0], "gathered again"
    world.turn()
    for _ in range(REST):
        assert publish("one.a") == [0, 0, 0]
        world.turn()


def test_a_stream_that_looks_at_one_message_knows_its_sender() -> None:
    world = Clients(True, "singly")
    for client in world.clients[2:]:
        client.data_received(pub("one.a", b"x", "_INBOX.a.1"))
    world.turn()
    assert list(world.streams[0].senders.values()) == [client.id for client in world.clients[2:]]


def test_messages_that_may_be_traced_are_handled_one_by_one() -> None:
    world = Clients(True)
    hub = world.clients[0].hub
    traced: list[bytes] = []

    class Traces:
        def follows(self, data: bytes) -> bool:
            return b"traceparent" in data

        def route(self, origin: object, client: ClientInfo, message: Single, mapped: bytes | None = None) -> bool:
            traced.append(message.payload)
            return True

    hub.tracing = Traces()  # type: ignore[assignment]
    for at, client in enumerate(world.clients[2:]):
        client.data_received(pub("one.a", b"%d" % at, "", {"traceparent": "x"} if at else {"other": "x"}))
    world.turn()
    assert traced == [b"1", b"2"]
    assert [each.payload for each in world.streams[0].took] == [b"0"]


def test_what_came_before_the_end_of_a_connection_is_handled() -> None:
    world = Clients(True)
    for client in world.clients[2:]:
        client.data_received(pub("one.a", b"x"))
    world.clients[2].connection_lost(None)
    world.turn()
    assert len(world.streams[0].took) == 3


def test_a_read_that_fails_ends_its_connection_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Clients(True)
    hub = world.clients[0].hub
    broken = world.clients[3]

    def fail(*args: object) -> None:
        raise RuntimeError("a defect")

    broken.publish = fail  # type: ignore[method-assign]
    for client in world.clients[2:]:
        client.data_received(pub("nobody", b"x"))
    hub.subscribe(b"nobody", world.streams[0].take, runs=True)
    world.turn()
    assert [bool(client.close_reason) for client in world.clients[2:]] == [False, True, False]
    assert len(world.streams[0].took) == 2
