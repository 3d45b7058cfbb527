"""Tests of packets of restricted users and of accounts with mappings: the same effects as of single messages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.config.account_options import (
    AccountOptions,
    AllowResponses,
    Destination,
    Permissions,
    SubjectMapping,
    SubjectRule,
    User,
)
from lakestream.config.options import Options
from lakestream.logging import Logger
from lakestream.net.accounts.accounts import Accounts
from lakestream.net.accounts.auth import Authenticator, HashChecks
from lakestream.net.client_outbox import GROUP_BYTES
from lakestream.net.connection import APART, Connection
from lakestream.net.inbox import Gathering
from lakestream.net.incomplete import Incomplete
from lakestream.net.turn import Turn
from lakestream.net.unsent import Unsent
from tests.unit.stream_world import ManualClock
from tests.wire import pub

pytestmark = pytest.mark.unit


class Socket(asyncio.Transport):
    """Stand-in for a socket that takes everything at once."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: Any) -> None:
        self.written += data

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    abort = close


class Server:
    """One account, as its connections need it (`Owner` of connection.py)."""

    def __init__(self, users: list[User], mappings: list[SubjectMapping], **options: Any) -> None:
        self.clock = ManualClock()
        self.log = Logger()
        account = AccountOptions(name="A", users=tuple(users), mappings=tuple(mappings))
        self.options = Options(accounts=(account,), **options)
        self.accounts = Accounts(self.options, Turn(self.clock.call_soon, steady=self.clock.steady), self.log)
        self.accounts.of("A").map_subjects("")
        self.unsent = Unsent(lambda: self.options, self.clock, lambda: None)
        self.incomplete = Incomplete(lambda: self.options)
        self.gathering = Gathering(APART)
        self._authenticator = Authenticator(self.options, HashChecks())
        self.connections: list[Connection] = []

    def authenticator_for(self, kind: str) -> Authenticator:
        return self._authenticator

    def info(
        self, connection: Connection, second: bool = False, lame_duck: bool = False, *, hidden: bool = False
    ) -> bytes:
        return b"INFO {}\r\n"

    def opened(self, connection: Connection) -> bool:
        return True

    def joined(self, connection: Connection) -> None:
        pass

    def closed(self, connection: Connection) -> None:
        pass

    def settling(self, then: Any) -> bool:
        return False


class World:
    """A server with a client of each of these users; the first one publishes."""

    def __init__(
        self,
        users: list[User],
        filters: list[list[str]],
        mappings: list[SubjectMapping],
        headless: tuple[int, ...] = (),
        **options: Any,
    ) -> None:
        self.server = Server(users, mappings, **options)
        self.sockets = [Socket() for _ in users]
        self.clients = [Connection(self.server, number, None) for number in range(1, len(users) + 1)]
        for at, (client, socket, user) in enumerate(zip(self.clients, self.sockets, users, strict=True)):
            client.connection_made(socket)
            login = '{"user":"%s","pass":"p","verbose":false,"pedantic":false,"no_responders":%s,"headers":%s}'
            headers = "false" if at in headless else "true"
            subs = "".join(f"SUB {subject} {sid}\r\n" for sid, subject in enumerate(filters[at], 1))
            client.data_received(f"CONNECT {login % (user.user, headers, headers)}\r\n{subs}".encode())
        self.server.clock.turn()

    def send(self, data: bytes) -> None:
        self.clients[0].data_received(data)

    def effects(self) -> list[tuple[bytes, str, int, int, int, int]]:
        """Return what each client was sent, and its figures."""
        self.server.clock.turn()
        return [
            (socket.written, each.close_reason, each.in_msgs, each.in_bytes, each.out_msgs, each.out_bytes)
            for socket, each in zip(self.sockets, self.clients, strict=True)
        ]


SUBJECTS = ["a", "a.b", "a.c", "b.x", "b.y", "c", "r.1", "r.2", "$NRG.x", "a..b"]
PATTERNS = ["a", "a.*", "a.b", "b.>", "b.x", "c", "r.*", ">", "*", "$NRG.>"]
DESTINATIONS = ["a", "a.b", "b.x", "c", "$NRG.x", "r.2", "never"]
rules = st.builds(
    SubjectRule,
    st.none() | st.lists(st.sampled_from(PATTERNS), max_size=4).map(tuple),
    st.lists(st.sampled_from(PATTERNS[:-3]), max_size=2).map(tuple),
)
permissions = st.none() | st.builds(
    Permissions,
    publish=st.none() | rules,
    subscribe=st.none()
    | st.builds(SubjectRule, st.none(), st.lists(st.sampled_from(PATTERNS[:7]), max_size=2).map(tuple)),
    responses=st.none() | st.builds(AllowResponses, st.sampled_from([-1, 1, 2])),
)
mappings = st.dictionaries(
    st.sampled_from(["a", "a.b", "a.*", "b.>", "c", "r.1"]), st.sampled_from(DESTINATIONS), max_size=3
).map(
    lambda found: [SubjectMapping(subject, (Destination(to),)) for subject, to in found.items() if ">" not in subject]
)
messages = st.lists(
    st.tuples(
        st.sampled_from(SUBJECTS),
        st.sampled_from(["", "", "r.1", "r.2", "r.3", "$JS.ACK.x", "_R_.x"]),
        st.integers(1, 5),
        st.sampled_from([None, None, b"NATS/1.0\r\nNats-Trace-Dest: a\r\n\r\n", b"NATS/1.0\r\nx: y\r\n\r\n", b"odd"]),
    ),
    min_size=1,
    max_size=12,
)
listening = st.lists(st.sampled_from(PATTERNS), max_size=3)


@given(
    st.lists(st.tuples(permissions, listening), min_size=1, max_size=3),
    mappings,
    messages,
    st.sampled_from([(), (), (1,), (1, 2), (0,)]),
)
@settings(max_examples=250, deadline=None)
def test_a_packet_has_the_effects_of_its_messages(
    clients: list[tuple[Permissions | None, list[str]]],
    mapped: list[SubjectMapping],
    said: list[tuple[str, str, int, bytes | None]],
    headless: tuple[int, ...],
) -> None:
    users = [User(f"u{number}", "p", each) for number, (each, _) in enumerate(clients)]
    commands = [
        pub(subject, b"%d.%d" % (number, again), reply, block)
        for number, (subject, reply, count, block) in enumerate(said)
        for again in range(count)
    ]
    at_once, singly = (World(users, [subjects for _, subjects in clients], mapped, headless) for _ in range(2))
    at_once.send(b"".join(commands))
    for command in commands:
        singly.send(command)
    assert at_once.effects() == singly.effects()


def test_a_503_of_a_denied_request_does_not_overtake_the_message_before_it() -> None:
    denied = Permissions(subscribe=SubjectRule(None, ("a",)))
    users = [User(f"u{number}", "p", denied) for number in range(2)]
    world = World(users, [[">"], ["r.*", ">"]], [])
    world.send(pub("a.b", b"x") + pub("a", b"y", "r.1"))
    written = world.effects()[1][0]
    assert written.index(b"MSG a.b 2 1\r\nx") < written.index(b"HMSG r.1 1 ")


def test_each_message_goes_to_all_subscriptions_of_a_client_before_the_next_one() -> None:
    size = GROUP_BYTES // 8  # so that the run is framed in parts
    at_once, singly = (World([User("u", "p", None)] * 2, [[], ["a", "a.>", "*"]], []) for _ in range(2))
    commands = [pub("a", b"%d" % number * size) for number in range(9)]
    at_once.send(b"".join(commands))
    for command in commands:
        singly.send(command)
    assert at_once.effects() == singly.effects()
    written = at_once.sockets[1].written
    assert [written.count(b"MSG a %d %d\r\n%d" % (sid, size, at)) for at in range(9) for sid in (1, 3)] == [1] * 18
    assert [sub.delivered for sub in at_once.clients[1].subs.values()] == [9, 0, 9]


def test_a_packet_to_a_weighted_mapping_is_divided() -> None:
    weighted = SubjectMapping("a", (Destination("b", 50), Destination("c", 50)))
    world = World([User("u", "p", None)], [["b", "c"]], [weighted])
    world.send(pub("a", b"x") * 300 + pub("b", b"y") * 2)
    ((written, *_),) = world.effects()
    to_b, to_c = written.count(b"MSG b 1 1\r\nx"), written.count(b"MSG c 2 1\r\nx")
    assert (to_b + to_c, written.count(b"MSG b 1 1\r\ny")) == (300, 2)
    assert min(to_b, to_c) > 0


def test_a_packet_to_a_random_partition_is_divided() -> None:
    world = World([User("u", "p", None)], [["b.*"]], [SubjectMapping("a", (Destination("b.{{random(2)}}"),))])
    world.send(pub("a", b"x") * 300)
    ((written, *_),) = world.effects()
    assert written.count(b"MSG b.0 1 1\r\n") + written.count(b"MSG b.1 1 1\r\n") == 300
    assert min(written.count(b"MSG b.0 "), written.count(b"MSG b.1 ")) > 0


def test_a_refused_message_does_not_reorder_its_packet() -> None:
    user = User("u", "p", Permissions(publish=SubjectRule(None, ("no",))))
    world = World([user], [["a"]], [])
    world.send(pub("a", b"1") + pub("no", b"2", "r") * 2 + pub("a", b"3") + pub("no", b"4"))
    refused = b"-ERR 'Permissions Violation for Publish to \"no\"'\r\n"
    ((written, _, in_msgs, *_),) = world.effects()
    assert written.endswith(b"MSG a 1 1\r\n1\r\n" + refused * 2 + b"MSG a 1 1\r\n3\r\n" + refused)
    assert in_msgs == 5
