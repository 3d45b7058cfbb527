"""Tests of requests on the monitoring port that take time, have a body, or a response without an end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakestream.config.options import Options, TlsOptions
from lakestream.http.connection import MAX_AHEAD
from lakestream.http.exchange import MAX_BODY, TEXT, Headers, HttpAnswer, HttpOutput, HttpRequest, Outcome
from lakestream.logging import Logger
from lakestream.net.listener import Listener
from lakestream.ops.monitoring import port as monitoring
from lakestream.ops.monitoring.port import LIMITS
from lakestream.ports import Share
from lakestream.runtime import LoopClock
from tests.certificates import client_context, write

pytestmark = pytest.mark.unit

LIMIT = 3 * MAX_BODY
"""Bytes of a body that the site takes."""


class Ticks:
    """A response without an end."""

    headers: Headers = (("Content-Type", "text/event-stream"),)

    def __init__(self) -> None:
        self.output: HttpOutput | None = None
        self.over = asyncio.Event()

    def begin(self, output: HttpOutput) -> None:
        self.output = output
        output.send(b"first")

    def end(self) -> None:
        self.over.set()


class Site:
    """A site with a request of each kind."""

    path = "/site"

    def __init__(self) -> None:
        self.asked: list[HttpRequest] = []
        self.waiting = asyncio.Event()
        self.release = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.ticks = Ticks()
        self.page = b""

    def refuse(self, request: HttpRequest) -> HttpAnswer | int:
        return HttpAnswer(403, TEXT, b"refused") if request.path == "/site/refused" else LIMIT

    async def answer(self, request: HttpRequest) -> Outcome:
        self.asked.append(request)
        if request.path == "/site/page":
            return HttpAnswer(200, TEXT, self.page)
        if request.path == "/site/ticks":
            return self.ticks
        if request.path == "/site/fails":
            raise RuntimeError("broken")
        if request.path == "/site/slow":
            self.waiting.set()
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        return HttpAnswer(200, TEXT, b"%d" % len(request.body), (("X-Site", "yes"),))


class Pages:
    """Pages of which each is its path, and that of the metrics."""

    def is_metrics(self, path: str) -> bool:
        return path == "/metrics"

    def answer(self, path: str, query: str) -> HttpAnswer:
        return HttpAnswer(200, TEXT, path.encode())


class Scrapes:
    """Metrics of which there are none."""

    def scrape(self, accept: str, accept_encoding: str, done: Callable[[HttpAnswer], None]) -> None:
        done(HttpAnswer(200, TEXT, f"{accept} {accept_encoding}".encode()))


class Limited(Share):
    """Turns of the event loop that have time for so many requests; None: for any number."""

    def __init__(self) -> None:
        self.requests: int | None = None
        self.waiting: list[Callable[[], None]] = []

    def is_over(self) -> bool:
        if self.requests is None:
            return False
        self.requests -= 1
        return self.requests < 0

    def wait(self, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)

    def next(self, requests: int | None) -> None:
        """Begin a turn."""
        self.requests = requests
        while self.waiting and (self.requests is None or self.requests > 0):
            self.waiting.pop(0)()


class Client:
    """A client of the port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def ask(self, path: str, body: bytes | None = None, *more: bytes) -> None:
        """Send a request."""
        head = b"%b %b HTTP/1.1\r\nHost: x\r\n" % (b"GET" if body is None else b"POST", path.encode())
        lines = [] if body is None else [b"Content-Length: %d\r\n" % len(body)]
        self.writer.write(b"".join([head, *lines, *more, b"\r\n", body or b""]))

    async def answer(self) -> tuple[int, bytes, bytes]:
        """Return status, head and body of the next response."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)
        length = int(next(line[16:] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length: ")))
        return int(head[9:12]), head, await self.reader.readexactly(length)


async def serve(site: Site, share: Share, **options: Any) -> Listener:
    log = Logger(logtime=False)
    node: Any = SimpleNamespace(options=Options(host="127.0.0.1", **options), log=log)
    pages: Any = Pages()
    scrapes: Any = Scrapes()
    return await monitoring.serve(node, pages, scrapes, LoopClock(asyncio.get_running_loop(), log), share, site)


@pytest.fixture
async def served() -> AsyncIterator[Any]:
    site, share = Site(), Limited()
    http = await serve(site, share, http_port=-1)

    async def client(host: str = "127.0.0.1") -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", http.port, local_addr=(host, 0)))

    yield SimpleNamespace(site=site, client=client, share=share)
    http.close()


async def test_bodies_reach_the_site_and_no_page(served: Any) -> None:
    client = await served.client()
    client.ask("/site/a?x=1", b"x" * LIMIT, b"X-A: b\r\n")
    status, head, body = await client.answer()
    assert (status, body) == (200, b"%d" % LIMIT)
    assert b"X-Site: yes" in head
    assert b"Access-Control-Allow-Origin" not in head
    asked = served.site.asked[0]
    assert (asked.method, asked.path, asked.query, asked.headers["x-a"]) == ("POST", "/site/a", "x=1", "b")
    assert (asked.host, asked.secure) == ("127.0.0.1", False)
    client.ask("/siteless", b"x" * MAX_BODY)
    assert (await client.answer())[2] == b"/siteless"
    client.ask("/site/a", b"x" * (LIMIT + 1))
    assert (await client.answer())[0] == 413


async def test_a_refused_request_is_read_to_its_end(served: Any) -> None:
    client = await served.client()
    client.ask("/site/refused", b"x" * MAX_BODY)
    client.ask("/site/b")
    assert (await client.answer())[::2] == (403, b"refused")
    assert (await client.answer())[::2] == (200, b"0")
    assert [each.path for each in served.site.asked] == ["/site/b"]
    client.ask("/site/refused", b"x" * (MAX_BODY + 1))
    assert (await client.answer())[0] == 413


async def test_a_connection_has_one_request_after_the_other(served: Any) -> None:
    client = await served.client()
    for path in ("/varz", "/jsz", "/site/refused", "/metrics", "/site/b", "/varz"):
        client.ask(path, None, b"Accept: text/plain\r\nAccept-Encoding: gzip\r\n")
        expected = {"/site/refused": b"refused", "/metrics": b"text/plain gzip", "/site/b": b"0"}
        assert (await client.answer())[2] == expected.get(path, path.encode())


async def test_requests_are_answered_in_their_order(served: Any) -> None:
    client = await served.client()
    client.ask("/site/slow")
    client.ask("/page")
    client.ask("/site/c", b"123")
    await served.site.waiting.wait()
    other = await served.client()
    other.ask("/page")
    assert (await other.answer())[2] == b"/page"  # meanwhile others are served
    served.site.release.set()
    assert [(await client.answer())[2] for _ in range(3)] == [b"0", b"/page", b"3"]


async def test_many_requests_of_one_read_are_answered_in_slices_and_in_order(served: Any) -> None:
    share, paths = served.share, [f"/page/{number}" for number in range(1000)]
    share.requests = 3
    client, other = await served.client(), await served.client()
    for path in paths:
        client.ask(path)
    assert [(await client.answer())[2] for _ in range(3)] == [path.encode() for path in paths[:3]]
    other.ask("/other")
    async with asyncio.timeout(10):
        while len(share.waiting) < 2:
            await asyncio.sleep(0.01)
    share.next(1)
    share.next(1)
    assert [(await each.answer())[2] for each in (client, other)] == [b"/page/3", b"/other"]
    share.next(None)
    assert [(await client.answer())[2] for _ in paths[4:]] == [path.encode() for path in paths[4:]]


async def test_a_client_that_does_not_read_gets_no_further_answers(served: Any) -> None:
    client, large = await served.client(), b"x" * 65_536
    client.writer.transport.pause_reading()
    served.site.page = large
    for _ in range(1000):
        client.ask("/site/page")
    other = await served.client()
    for _ in range(1000):  # many turns of the event loop
        other.ask("/page")
        assert (await other.answer())[2] == b"/page"
    assert 0 < len(served.site.asked) < 200  # what the sockets hold
    client.writer.transport.resume_reading()
    assert [(await client.answer())[2] == large for _ in range(1000)] == [True] * 1000


async def test_what_comes_ahead_is_bounded(served: Any) -> None:
    client = await served.client()
    client.ask("/site/slow")
    await served.site.waiting.wait()
    count = 256 * MAX_AHEAD // MAX_BODY
    for _ in range(count):
        client.ask("/page", b"x" * MAX_BODY)
    with pytest.raises(TimeoutError):  # the server does not read on
        await asyncio.wait_for(client.writer.drain(), 0.5)
    served.site.release.set()
    assert (await client.answer())[2] == b"0"
    assert [(await client.answer())[2] for _ in range(count)] == [b"/page"] * count


async def test_a_client_that_goes_away_ends_its_request(served: Any) -> None:
    client = await served.client()
    client.ask("/site/slow")
    await served.site.waiting.wait()
    client.writer.close()
    await asyncio.wait_for(served.site.cancelled.wait(), 10)


async def test_a_request_that_fails_is_a_500(served: Any, capfd: Any) -> None:
    client = await served.client()
    client.ask("/site/fails")
    assert (await client.answer())[0] == 500
    assert "monitoring page /site/fails failed" in capfd.readouterr().err
    client.ask("/page")
    assert (await client.answer())[0] == 200


async def test_a_client_that_waits_for_leave_gets_it(served: Any) -> None:
    client = await served.client()
    client.writer.write(b"POST /site/a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
    assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 \r\n\r\n"
    client.writer.write(b"abc")
    assert (await client.answer())[2] == b"3"


async def test_a_response_without_an_end(served: Any) -> None:
    client, ticks = await served.client(), served.site.ticks
    client.ask("/site/ticks")
    head = await client.reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert await client.reader.readuntil(b"first\r\n") == b"5\r\nfirst\r\n"
    ticks.output.send(b"second")
    assert await client.reader.readuntil(b"second\r\n") == b"6\r\nsecond\r\n"
    ticks.output.close()
    assert await client.reader.read() == b"0\r\n\r\n"
    assert ticks.over.is_set()


@pytest.mark.parametrize("goes", [True, False])
async def test_its_end_by_the_client(served: Any, goes: bool) -> None:
    client, ticks = await served.client(), served.site.ticks
    client.ask("/site/ticks")
    await client.reader.readuntil(b"first\r\n")
    if goes:
        client.writer.close()
    else:
        client.ask("/page")  # nothing can be answered behind it
    await asyncio.wait_for(ticks.over.wait(), 10)
    ticks.output.send(b"late")
    ticks.output.close()


async def test_a_client_that_does_not_read_is_seen(served: Any) -> None:
    client, ticks = await served.client(), served.site.ticks
    client.ask("/site/ticks")
    await client.reader.readuntil(b"first\r\n")
    client.writer.transport.pause_reading()
    sent = 0
    while ticks.output.writable:
        ticks.output.send(b"x" * 65_536)
        sent += 65_536
        await asyncio.sleep(0)
        assert sent < 64 << 20
    client.writer.transport.resume_reading()
    await asyncio.wait_for(client.reader.readexactly(sent), 10)
    async with asyncio.timeout(10):
        while not ticks.output.writable:
            await asyncio.sleep(0.01)


# ---------------------------------------------------------------------- clients that hold connections
HALF = b"GET /page HTTP/1.1\r\nHost: x\r\nX-"


@pytest.mark.parametrize("sent", [b"", HALF, b"POST /page HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf"])
@pytest.mark.parametrize("hosts", [1, 3])
async def test_clients_without_a_complete_request_keep_nobody_out(served: Any, sent: bytes, hosts: int) -> None:
    held = []
    for number in range(LIMITS.most + 12):
        held.append(await served.client(f"127.0.0.{1 + number % hosts}"))
        held[-1].writer.write(sent)
    for host in ("127.0.0.1", "127.0.0.9"):
        other = await served.client(host)
        other.ask("/page")
        assert (await other.answer())[2] == b"/page"
    given_up = held[: len(held) + 2 - LIMITS.most] if hosts > 1 else held[: len(held) + 1 - LIMITS.of_address]
    for client in given_up:
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(client.reader.read(), 10) == b""
    for client in held[len(given_up) :]:
        assert not client.reader.at_eof()


async def test_a_client_between_two_requests_stays_where_others_send_half_of_one(served: Any) -> None:
    regular = await served.client()
    regular.ask("/page")
    await regular.answer()
    for _ in range(LIMITS.most):
        (await served.client()).writer.write(HALF)
    regular.ask("/page")
    assert (await regular.answer())[2] == b"/page"


async def test_one_address_has_a_part_of_the_connections_and_requests_being_answered_stay(served: Any) -> None:
    async def ask_all(host: str, count: int) -> list[Client]:
        clients = [await served.client(host) for _ in range(count)]
        for client in clients:
            client.ask("/site/slow")
        return clients

    busy = await ask_all("127.0.0.1", LIMITS.of_address)
    assert (await (await served.client("127.0.0.1")).answer())[0] == 503
    busy += await ask_all("127.0.0.2", LIMITS.most - LIMITS.of_address)
    assert (await (await served.client("127.0.0.3")).answer())[0] == 503
    served.site.release.set()
    assert {(await client.answer())[2] for client in busy} == {b"0"}
    later = await served.client("127.0.0.3")
    later.ask("/page")
    assert (await later.answer())[2] == b"/page"


async def test_the_head_of_a_request_has_a_deadline(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    second, body = await served.client(), await served.client()
    for client in (second, body):
        client.ask("/page")
        await client.answer()
    monkeypatch.setattr(monitoring.LIMITS, "head_s", 0.1)
    body.writer.write(b"POST /page HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nha")
    silent, half = await served.client(), await served.client()
    for client in (half, second):
        client.writer.write(HALF)
    for client in (silent, half, second):
        assert await asyncio.wait_for(client.reader.read(), 10) == b""
    body.writer.write(b"lf")
    assert (await body.answer())[0] == 200


async def test_clients_that_begin_no_handshake_keep_nobody_out_of_https(tmp_path: Path) -> None:
    write(certificates := tmp_path / "certificates")
    tls = TlsOptions(cert_file=f"{certificates}/server.pem", key_file=f"{certificates}/server.key")
    http = await serve(Site(), Limited(), https_port=-1, tls=tls)
    held = [await asyncio.open_connection("127.0.0.1", http.port) for _ in range(LIMITS.most)]
    other = Client(*await asyncio.open_connection("localhost", http.port, ssl=client_context(certificates)))
    other.ask("/page")
    assert (await other.answer())[2] == b"/page"
    for _, writer in held:
        writer.close()
    other.writer.close()
    http.close()
