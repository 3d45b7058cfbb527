"""The listener: requests that are no HTTP are answered and not logged."""

from __future__ import annotations

import asyncio
import logging

import pytest

from lakestream.http.exchange import TEXT, HttpAnswer, HttpHandler, HttpOutput, HttpRequest
from lakestream_sharing.listener import Listener

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

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("name", WRONG)
async def test_a_request_that_is_no_http_leaves_no_traceback(name: str, caplog: pytest.LogCaptureFixture) -> None:
    listener = Listener(Echo())
    with caplog.at_level(logging.WARNING):
        host, port = await listener.start("127.0.0.1", 0)
        try:
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(WRONG[name])
            writer.write_eof()
            got = await reader.read()
            writer.close()
        finally:
            await listener.close()
    assert got.startswith(b"HTTP/1.") or not got
    assert b" 500 " not in got.partition(b"\r\n")[0]
    assert caplog.records == []
