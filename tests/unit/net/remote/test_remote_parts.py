"""Tests of parts of a remote without a server: local subjects, deliver subjects in bodies, pauses between attempts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.config.options import RemoteAddress, RemoteOptions
from lakestream.net.hub import Hub
from lakestream.net.remote import connection as remote_connection
from lakestream.net.remote import dial as remote_dial
from lakestream.net.remote import paths as remote_paths
from lakestream.net.remote.bodies import DeliverTarget, ResponseTranslator, translated_request
from lakestream.net.remote.connection import RemoteConnection
from lakestream.net.remote.dial import Redial
from lakestream.net.turn import Turn
from lakestream.ports import Single, singly
from lakestream.protocol.domain_subjects import LINK_QUEUE, ack_here, ack_there, sign
from lakestream.stream.core.config import ExternalStream, StreamSource
from lakestream.stream.mirroring import session as mirror_session
from lakestream.stream.mirroring.origin import Origin, OriginStart

pytestmark = pytest.mark.unit

PREFIX = b"_INBOX.lake-abcdefgh.d."
token = st.from_regex(rb"[A-Za-z0-9_@-]{1,8}", fullmatch=True)


@given(st.lists(token, min_size=7, max_size=7))
def test_ack_subjects_come_back_as_they_were(tokens: list[bytes]) -> None:
    theirs = b"$JS.ACK." + b".".join(tokens)
    here = ack_here(b"hub", theirs)
    assert here.startswith(b"$JS.ACK.hub.@")
    assert here.count(b".") == 10
    assert ack_there(here) == theirs


@given(st.lists(token, min_size=9, max_size=10), st.from_regex(rb"[A-Za-z0-9_]{1,8}", fullmatch=True))
def test_ack_subjects_with_a_domain_come_back_as_they_were(tokens: list[bytes], account: bytes) -> None:
    tokens[0], tokens[1] = tokens[0].replace(b"@", b"_"), account
    theirs = b"$JS.ACK." + b".".join(tokens)
    assert ack_there(ack_here(b"hub", theirs)) == theirs


@pytest.mark.parametrize(
    "theirs", [b"$JS.ACK.S.C.1.2.3.4.5", b"$JS.ACK.d.h.S.C.1.2.3.4.5.r", b"$JS.ACK._.h.@S.@.1.2.3.4.5"]
)
def test_ack_subjects_come_back_over_several_links(theirs: bytes) -> None:
    here = ack_here(b"a", ack_here(b"b", ack_here(b"c", theirs)))
    assert ack_there(ack_there(ack_there(here))) == theirs


def test_an_ack_of_a_stream_here_that_is_called_like_the_domain_is_none_of_it() -> None:
    assert ack_there(b"$JS.ACK.hub.@.1.2.3.4.5") == b""


def test_deliver_subjects_are_others_there_and_come_back() -> None:
    request = {"stream_name": "O", "config": {"deliver_subject": "d.1", "deliver_group": "g", "ack_policy": "explicit"}}
    found = translated_request(json.dumps(request).encode(), PREFIX)
    assert found is not None
    body, pushed = found
    assert json.loads(body) == {
        "stream_name": "O",
        "config": {**request["config"], "deliver_subject": "_INBOX.lake-abcdefgh.d.d.1"},
    }
    assert pushed == DeliverTarget(b"_INBOX.lake-abcdefgh.d.d.1", b"d.1", b"g", True)
    answer = b'{"type":"io.nats.jetstream.api.v1.consumer_create_response",' + body.removeprefix(b"{")
    answers = ResponseTranslator(PREFIX, b"hub")
    assert answers.consumer(b"", answer) == pushed
    assert json.loads(answers.shown(b"", answer))["config"] == request["config"]


@pytest.mark.parametrize(
    "body", [b"", b"deliver_subject", b"[]", b'{"config":1,"deliver_subject":"x"}', b'{"deliver_subject":"a..b"}']
)
def test_what_names_no_deliver_subject_stays(body: bytes) -> None:
    assert translated_request(body, PREFIX) is None


def test_a_stored_message_that_looks_like_an_answer_stays() -> None:
    config = b'{"deliver_subject":"_INBOX.lake-abcdefgh.d.a"}'
    body = b'{"type":"io.nats.jetstream.api.v1.consumer_info_response","config":%b}' % config
    header = b"NATS/1.0\r\nNats-Stream: O\r\nNats-Sequence: 1\r\n\r\n"
    answers = ResponseTranslator(PREFIX, b"hub")
    assert answers.shown(header, body) == body
    assert answers.consumer(header, body) is None


class Lines:
    """Logger that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def error(self, text: str) -> None:
        self.lines.append(text)


def redial(attempt: Callable[[RemoteAddress], Awaitable[str]], *hosts: str, **options: Any) -> tuple[Redial, Lines]:
    urls = tuple(RemoteAddress("nats", host, 4222, "u", "p") for host in hosts)
    lines = Lines()
    return Redial(RemoteOptions(urls=urls, domain="hub", **options), attempt, lines), lines  # type: ignore[arg-type]


async def test_places_are_tried_in_turn_and_discovered_ones_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_dial, "FIRST_DELAY_S", 0.001)
    monkeypatch.setattr(remote_dial, "MAX_DELAY_S", 0.001)
    tried: list[str] = []
    enough = asyncio.Event()

    async def attempt(address: RemoteAddress) -> str:
        tried.append(f"{address.user}@{address.host}:{address.port}")
        if len(tried) == 300:
            enough.set()
            await asyncio.Event().wait()
        return "timeout" if address.host != "b" else "refused"

    keeps, lines = redial(attempt, "a", "b")
    keeps.discovered(["a:4222", "[::1]:5", "c:6", "nonsense"])  # with the user of the first one
    keeps.start()
    await enough.wait()
    await keeps.stop()
    assert tried[:4] == ["u@a:4222", "u@b:4222", "u@::1:5", "u@c:6"]
    # Once for each address and reason, however often it occurs.
    assert len(lines.lines) == 4
    assert lines.lines[1] == "Error trying to connect to remote hub (nats://b:4222, attempt 2): refused"


async def test_whatever_an_attempt_raises_the_next_one_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_dial, "FIRST_DELAY_S", 0.001)
    wrong = [ConnectionRefusedError(111, "x"), TimeoutError(), ValueError("odd")]
    enough = asyncio.Event()

    async def attempt(address: RemoteAddress) -> str:
        if not wrong:
            enough.set()
            return ""
        raise wrong.pop(0)

    keeps, lines = redial(attempt, "a")
    keeps.start()
    await enough.wait()
    await keeps.stop()
    assert [line.rpartition(": ")[2] for line in lines.lines] == ["Connection refused", "timeout", "odd"]


class Loop:
    """Time and timers of the running event loop."""

    def now(self) -> int:
        return time.time_ns()

    def steady(self) -> int:
        return self.now()

    def call_later(self, delay_ns: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_ns / 1e9, callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(callback)


class NoResponders:
    """User of a connection that publishes many requests without responders."""

    def came_up(self) -> list[bytes]:
        return [b"PUB x 1000000\r\n%b\r\n" % (b"x" * 1_000_000)] * 20


async def test_what_a_deaf_remote_did_not_take_is_not_kept_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_connection, "PING_NS", 50_000_000)
    deaf = asyncio.get_running_loop().create_future()

    async def remote(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"max_payload":1048576}\r\n')
        await reader.readuntil(b"PING\r\n")
        writer.write(b"PONG\r\n")
        writer.transport.pause_reading()
        deaf.set_result((reader, writer))

    server = await asyncio.start_server(remote, "127.0.0.1", 0)
    address = RemoteAddress("nats", "127.0.0.1", server.sockets[0].getsockname()[1])
    options = RemoteOptions(urls=(address,), domain="hub")
    connection = RemoteConnection(options, address, "here", NoResponders(), Loop(), Turn(lambda call: call()))  # type: ignore[arg-type]

    async def call(work: Callable[[], Any]) -> Any:
        return work()

    assert await connection.run(call) == ""
    assert connection.reason == "Stale Connection"
    reader, writer = await deaf
    writer.transport.resume_reading()
    came = 0
    while data := await reader.read(1 << 20):
        came += len(data)
    assert came < 20_000_000  # the bytes that the system had accepted by then
    server.close()


class Here:
    """Link without a remote, beside a hub; keeps the subscriptions at the remote."""

    def __init__(self) -> None:
        self.hub = Hub(Turn(lambda call: asyncio.get_running_loop().call_soon(call)), None)  # type: ignore[arg-type]
        self.there: dict[bytes, Any] = {}

    def subscribe(self, subject: bytes, take: Any, queue: bytes = b"") -> Any:
        self.there[subject] = take

        class Handle:
            def cancel(handle) -> None:
                del self.there[subject]

        return Handle()


async def test_paths_that_are_used_outlast_those_that_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_paths, "MAX_PATHS", 4)
    here = Here()
    paths = remote_paths.Paths(here, Loop(), lambda path, messages: True, drop_idle=False)  # type: ignore[arg-type]
    here.hub.subscribe(b"used", singly(lambda *message: None))
    paths.open(b"used", DeliverTarget(b"t.used", b"used", b"", False))
    for number in range(10):
        handle = here.hub.subscribe(b"d%d" % number, singly(lambda *message: None))
        paths.open(b"d%d" % number, DeliverTarget(b"t.%d" % number, b"d%d" % number, b"", False))
        handle.cancel()  # dormant now
    assert list(here.there) == [b"t.used"]
    assert len(paths) == 4
    for number in range(10):
        here.hub.subscribe(b"l%d" % number, singly(lambda *message: None))
        paths.open(b"l%d" % number, DeliverTarget(b"t.l%d" % number, b"l%d" % number, b"", False))
        here.there[b"t.used"]([])
    assert list(here.there) == [b"t.used", b"t.l7", b"t.l8", b"t.l9"]


class Nothing:
    """Session target that accepts everything, from the first message on."""

    def start(self) -> OriginStart:
        return OriginStart()


async def test_a_session_asks_at_once_when_there_is_a_link_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_session, "SHORTEST_PAUSE_NS", 3600_000_000_000)
    monkeypatch.setattr(mirror_session, "LONGEST_PAUSE_NS", 3600_000_000_000)
    hub, asked = Here().hub, asyncio.Event()
    source = StreamSource(name="O", external=ExternalStream(api="$JS.hub.API"))
    origin = Origin(source, "$G", "M", mirror=True)
    first = hub.subscribe(b"$JS.hub.API.>", singly(lambda subject, reply, *_: hub.send(Single(reply))))
    pipeline = SimpleNamespace(failed=None, when_safe=lambda then: then())  # of a stream that stores nothing
    session = mirror_session.OriginSession(origin, Nothing(), hub, Loop(), pipeline)  # type: ignore[arg-type]
    session.begin()
    while not session._fails:  # the answers said that there is no responder
        await asyncio.sleep(0.01)
    first.cancel()
    hub.subscribe(b"$JS.hub.API.>", singly(lambda *_: asked.set()), LINK_QUEUE)
    hub.subscribe(sign(b"$JS.hub.API."), singly(lambda *_: None), LINK_QUEUE)
    await asyncio.wait_for(asked.wait(), 30)
    session.end()
