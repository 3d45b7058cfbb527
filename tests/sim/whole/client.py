"""A NATS client in the simulation.

Belongs here: the protocol's text, requests with their answers, subscriptions, and connecting again elsewhere after the
end of a connection. It tells the caller what it does not know: a request whose connection ended has no answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from tests.sim.whole.loop import SimLoop
from tests.sim.whole.machine import CLIENTS

CONNECT = (
    b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"lang":"sim","protocol":1}\r\n'
)
PAUSE_S = 0.1
CONNECT_S = 2.0
PING_S = 1.0


class Message(msgspec.Struct):
    """A received message. `status`: of its header line; 0: none."""

    subject: bytes
    reply: bytes
    header: bytes
    payload: bytes

    @property
    def status(self) -> int:
        return int(self.header[9:12]) if self.header[8:9] == b" " else 0

    def field(self, name: bytes) -> bytes:
        """Return a field of the header, b"" without it."""
        at = self.header.find(b"\r\n" + name + b":")
        if at < 0:
            return b""
        begin = at + len(name) + 3
        return self.header[begin : self.header.index(b"\r\n", begin)].strip()


Receiver = Callable[[Message], None]


class NoAnswer(Exception):
    """Raised when a request has no answer: in time, or because its connection ended."""


class SimClient(asyncio.Protocol):
    """A client of one node at a time.

    Args:
        loop: of the client's process.
        addresses: of the nodes.
        name: distinguishes its inboxes.
    """

    def __init__(self, loop: SimLoop, addresses: list[str], random: Random, name: str) -> None:
        self.loop, self.random, self.name = loop, random, name
        self.addresses = addresses
        self.address = ""
        self.connected = asyncio.Event()
        self.closed = False
        self.generation = 0
        self._transport: Any = None
        self._buffer = b""
        self._out: list[bytes] = []
        self._sids = 1
        self._subs: dict[int, tuple[bytes, Receiver]] = {}
        self._inbox = f"_INBOX.{name}".encode()
        self._number = 0
        self._waiting: dict[bytes, asyncio.Future[Message]] = {}
        self._pongs = 0

    # ------------------------------------------------------------------ connection
    def start(self) -> None:
        """Connect, and connect again whenever the connection ends."""
        self._task = self.loop.create_task(self._keep())
        self._beats = self.loop.create_task(self._beat())

    async def _keep(self) -> None:
        while not self.closed:
            self.over = self.loop.create_future()
            self.address = self.random.choice(self.addresses)
            try:
                async with asyncio.timeout(CONNECT_S):
                    await self.loop.create_connection(lambda: self, self.address, CLIENTS)
            except (TimeoutError, OSError):
                await asyncio.sleep(PAUSE_S * self.random.uniform(0.5, 1.5))
                continue
            await self.over
            await asyncio.sleep(PAUSE_S * self.random.uniform(0.1, 1.5))

    async def _beat(self) -> None:
        """End a connection whose server does not answer."""
        while not self.closed:
            await asyncio.sleep(PING_S)
            if self.connected.is_set():
                if self._pongs > 3:
                    self._transport.abort()
                else:
                    self._pongs += 1
                    self._write(b"PING\r\n")

    def close(self) -> None:
        """Disconnect for good."""
        self.closed = True
        if self._transport is not None:
            self._transport.close()

    def leave(self) -> None:
        """Disconnect, and connect to another node."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: Any) -> None:
        self._transport, self._buffer, self._pongs = transport, b"", 0
        self.generation += 1
        transport.write(CONNECT + b"PING\r\nSUB %b.> 1\r\n" % self._inbox)
        for sid, (subject, _) in self._subs.items():
            transport.write(b"SUB %b %d\r\n" % (subject, sid))

    def connection_lost(self, exc: BaseException | None) -> None:
        self.connected.clear()
        self._transport = None
        self._out.clear()
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if not each.done():
                each.set_exception(NoAnswer("disconnected"))
                each.exception()  # not every caller asks
        if not self.over.done():
            self.over.set_result(None)

    def pause_writing(self) -> None:
        """Do nothing: requests wait for their answers."""

    def resume_writing(self) -> None:
        """Do nothing."""

    # ------------------------------------------------------------------ in
    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        at, size = 0, len(buffer)
        while True:
            end = buffer.find(b"\r\n", at)
            if end < 0:
                break
            line = buffer[at:end]
            if line.startswith(b"MSG "):
                parts = line.split(b" ")
                length = int(parts[-1])
                if size < end + 4 + length:
                    break
                reply = parts[3] if len(parts) == 5 else b""
                at = end + 4 + length
                self._received(int(parts[2]), Message(parts[1], reply, b"", buffer[end + 2 : at - 2]))
            elif line.startswith(b"HMSG "):
                parts = line.split(b" ")
                head, length = int(parts[-2]), int(parts[-1])
                if size < end + 4 + length:
                    break
                reply = parts[3] if len(parts) == 6 else b""
                begin, at = end + 2, end + 4 + length
                message = Message(parts[1], reply, buffer[begin : begin + head], buffer[begin + head : at - 2])
                self._received(int(parts[2]), message)
            else:
                at = end + 2
                self._line(line)
        self._buffer = buffer[at:]

    def _line(self, line: bytes) -> None:
        if line == b"PING":
            self._write(b"PONG\r\n")
        elif line == b"PONG":
            self._pongs = 0
            self.connected.set()

    def _received(self, sid: int, message: Message) -> None:
        if sid == 1:
            waiting = self._waiting.pop(message.subject, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
        elif sid in self._subs:
            self._subs[sid][1](message)

    # ------------------------------------------------------------------ out
    def _write(self, data: bytes) -> None:
        if not self._out:
            self.loop.call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if out and self._transport is not None:
            self._transport.write(b"".join(out))

    def publish(self, subject: bytes, payload: bytes, reply: bytes = b"", header: bytes = b"") -> None:
        """Publish, if there is a connection."""
        if self._transport is None:
            return
        to = b"%b %b" % (subject, reply) if reply else subject
        if header:
            n = len(header)
            self._write(b"HPUB %b %d %d\r\n%b%b\r\n" % (to, n, n + len(payload), header, payload))
        else:
            self._write(b"PUB %b %d\r\n%b\r\n" % (to, len(payload), payload))

    def ask(self, subject: bytes, payload: bytes = b"", header: bytes = b"") -> asyncio.Future[Message]:
        """Send a request; the future gets its answer, or NoAnswer at the end of the connection."""
        self._number += 1
        reply = b"%b.%d" % (self._inbox, self._number)
        waiting: asyncio.Future[Message] = self.loop.create_future()
        if self._transport is None:
            waiting.set_exception(NoAnswer("not connected"))
            waiting.exception()
            return waiting
        self._waiting[reply] = waiting
        self.publish(subject, payload, reply, header)
        return waiting

    async def request(self, subject: bytes, payload: bytes = b"", header: bytes = b"", timeout: float = 5.0) -> Message:
        """Return the answer. Raise NoAnswer."""
        await self.connected.wait()
        try:
            async with asyncio.timeout(timeout):
                return await self.ask(subject, payload, header)
        except TimeoutError:
            raise NoAnswer("timeout") from None

    async def api(self, subject: str, body: Any = None, timeout: float = 5.0) -> dict[str, Any]:
        """Return the answer of the JetStream API. Raise NoAnswer."""
        payload = msgspec.json.encode(body) if body is not None else b""
        answer = await self.request(f"$JS.API.{subject}".encode(), payload, timeout=timeout)
        if answer.status == 503:
            raise NoAnswer("no responders")
        found: dict[str, Any] = msgspec.json.decode(answer.payload)
        return found

    def subscribe(self, subject: bytes, receiver: Receiver) -> int:
        """Subscribe, on this connection and later ones; return the number for `unsubscribe`."""
        self._sids += 1
        self._subs[self._sids] = (subject, receiver)
        if self._transport is not None:
            self._write(b"SUB %b %d\r\n" % (subject, self._sids))
        return self._sids

    def unsubscribe(self, sid: int) -> None:
        """End a subscription."""
        del self._subs[sid]
        if self._transport is not None:
            self._write(b"UNSUB %d\r\n" % sid)
