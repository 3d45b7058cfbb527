"""Listeners of gateways: their addresses, and requests that are no HTTP, which are answered and not logged."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import h11
import pytest

from lakestream.http.connection import HttpLimits, HttpRoom
from lakestream.http.exchange import TEXT, HttpAnswer, HttpHandler, HttpOutput, HttpRequest
from lakestream_client.listening import MAX_HANDSHAKES, BadSettings, HttpListener, Listening, run_gateway
from tests import certificates

pytestmark = pytest.mark.unit

WRONG = {
    "an over-long request line": b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "an over-long header": b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 20_000 + b"\r\n\r\n",
    "no HTTP": b"CONNECT {}\r\n\r\n",
    "a TLS handshake": bytes.fromhex("16030100a5010000a10303") + bytes(150) + b"\r\n\r\n",
    "another version": b"GET / HTTP/9.9\r\n\r\n",
    "a wrong length": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    "a wrong chunk": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
    "a wrong port": b"GET http://[::1/ HTTP/1.1\r\nHost: [::1\r\n\r\n",
    "a header without a colon": b"GET / HTTP/1.1\r\nnone\r\n\r\n",
    "control characters": b"GET /\x00 HTTP/1.1\r\nA: \x00\r\n\r\n",
}


class Echo(HttpHandler):
    """Answers with the length of a body."""

    def answer(self, request: HttpRequest, output: HttpOutput) -> HttpAnswer:
        return HttpAnswer(200, TEXT, b"%d" % len(request.body))


@pytest.mark.parametrize("name", WRONG)
async def test_a_request_that_is_no_http_leaves_no_traceback(name: str, caplog: pytest.LogCaptureFixture) -> None:
    listener = HttpListener(Echo())
    with caplog.at_level(logging.WARNING):
        url = urlsplit(await listener.start("127.0.0.1", 0))
        try:
            reader, writer = await asyncio.open_connection(url.hostname, url.port)
            writer.write(WRONG[name])
            writer.write_eof()
            got = await reader.read()
            writer.close()
        finally:
            await listener.close()
    assert got.startswith(b"HTTP/1.") or not got
    assert b" 500 " not in got.partition(b"\r\n")[0]
    assert caplog.records == []


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "[::1]", "localhost"])
def test_loopback_needs_no_tls(host: str) -> None:
    found = Listening.of_options(f"{host}:8480", "", "", False)
    assert found.host == host.strip("[]")
    assert found.context() is None


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "[::]", "example.com"])
def test_elsewhere_logins_are_not_sent_in_plain_text_unless_told_so(host: str) -> None:
    with pytest.raises(BadSettings, match=r"plain text to .*--https-cert and --https-key, or --insecure"):
        Listening.of_options(f"{host}:1", "", "", False).context()
    assert Listening.of_options(f"{host}:1", "", "", True).context() is None


@pytest.mark.parametrize("listen", ["", "8480", ":8480", "x:", "x:y", "x:65536"])
def test_an_address_has_host_and_port(listen: str) -> None:
    with pytest.raises(BadSettings, match="an address such as"):
        Listening.of_options(listen, "", "", False)


def test_a_certificate_that_does_not_load_is_named() -> None:
    with pytest.raises(BadSettings, match="cannot use /none and"):
        Listening.of_options("10.0.0.1:1", "/none", "", False).context()


async def test_a_head_that_comes_byte_by_byte_is_parsed_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """h11 takes ten times as long as the event loop for a piece without an end of a line."""
    looks = list[int]()
    parse = h11.Connection.next_event
    monkeypatch.setattr(h11.Connection, "next_event", lambda wire: looks.append(1) or parse(wire))
    listener = HttpListener(Echo())
    address = urlsplit(await listener.start("127.0.0.1", 0))
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 200 + b"\r\n\r\n":
        writer.write(bytes([byte]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 200")
    assert len(looks) < 30
    writer.close()
    await listener.close()


class Half:
    """A connection that has sent half of a request. `looks`: how often somebody asked for that."""

    looks = 0

    def __init__(self, number: int) -> None:
        self.host, self.since, self.rests, self.gone = "x", number, False, False

    @property
    def waits(self) -> bool:
        Half.looks += 1
        return True

    def give_way(self) -> None:
        self.gone = True


def test_a_flood_of_half_requests_takes_places_without_a_look_at_all_of_them() -> None:
    limits = HttpLimits(most=1000, of_address=1000, head_s=1, idle_s=1, body_s=1, stalled_s=1)
    room, every = HttpRoom(limits), [Half(number) for number in range(3000)]
    for one in every:
        assert room.enter(cast(Any, one))
    assert [one.gone for one in every] == [True] * 2000 + [False] * 1000
    assert Half.looks < 3000 * 3


def test_gateways_run_on_uvloop_where_it_is_installed() -> None:
    async def loop() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert run_gateway(loop()) == "uvloop"


async def test_handshakes_that_do_not_end_keep_nobody_out_and_have_a_limit(tmp_path: Path) -> None:
    certificates.write(tmp_path / "tls")
    listener, settings = (
        HttpListener(Echo()),
        Listening(
            host="127.0.0.1",
            port=0,
            cert_file=str(tmp_path / "tls" / "server.pem"),
            key_file=str(tmp_path / "tls" / "server.key"),
        ),
    )
    address = urlsplit(await listener.start("127.0.0.1", 0, settings.context()))
    held = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]()
    for _ in range(MAX_HANDSHAKES // 16 + 2):  # several at a time
        held += await asyncio.gather(*(asyncio.open_connection("127.0.0.1", address.port) for _ in range(16)))
    authority = ssl.create_default_context(cafile=str(tmp_path / "tls" / "ca.pem"))
    authority.check_hostname = False
    reader, writer = await asyncio.open_connection("127.0.0.1", address.port, ssl=authority)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 200")
    gone = [one for one, _ in held if one.at_eof()]
    assert len(held) - MAX_HANDSHAKES <= len(gone) <= len(held) - MAX_HANDSHAKES + 1
    for _, one in [*held, (reader, writer)]:
        one.close()
    await listener.close()
