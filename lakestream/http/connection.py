"""One connection over HTTP, and the limits of a listener's connections.

Belongs here: an asyncio protocol around h11, with its deadlines. What is answered is the handler's (exchange.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, cast

import h11
import msgspec

from lakestream.http.exchange import MAX_BODY, Events, Headers, HttpAnswer, HttpHandler, HttpRequest, Outcome

MAX_AHEAD = 64 * 1024
"""Bytes that are read of further requests while one is being answered (64 KiB)."""
MAX_PIECE = 1024
"""Bytes of a head that are gathered before h11 sees them (1 KiB)."""

_FULL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class HttpLimits(msgspec.Struct, kw_only=True):
    """Limits of the connections of one listener.

    Attributes:
        most, of_address: open connections, and those of one client address: others find room.
        head_s: time that the head of a request may take, of the first one from the connection on.
        idle_s: time that a connection may take without a request.
        body_s: time that the body of a request may take.
        stalled_s: time for which a client may not read what it is sent.
    """

    most: int
    of_address: int
    head_s: float
    idle_s: float
    body_s: float
    stalled_s: float


class HttpRoom:
    """The open connections, within the limits of their number.

    Where there is no place for another one, a connection that waits for its client gives way: of the address with most
    connections, half a request before a pause between two, and the one that has waited longest. So a client that holds
    its connections open keeps nobody out, not even others behind its own address. Requests that are being answered
    are never given up.
    """

    def __init__(self, limits: HttpLimits) -> None:
        self.limits = limits
        self._open: dict[str, dict[HttpConnection, None]] = {}
        """By address, those first that have waited longest."""

    @property
    def connections(self) -> list[HttpConnection]:
        """Return the open connections."""
        return [one for crowd in self._open.values() for one in crowd]

    def enter(self, one: HttpConnection) -> bool:
        """Add a connection; return False if there is no place, and none that gives way."""
        there = self._open.get(one.host, {})
        crowded = len(there) >= self.limits.of_address
        if crowded or sum(map(len, self._open.values())) >= self.limits.most:
            found = self._waiting([there] if crowded else sorted(self._open.values(), key=len, reverse=True))
            if found is None:
                return False
            self.leave(found)
            found.give_way()
        self._open.setdefault(one.host, {})[one] = None
        return True

    def _waiting(self, crowds: Sequence[Mapping[HttpConnection, None]]) -> HttpConnection | None:
        """Return the connection that gives way. Of an address with half requests it is the first one that is looked at:
        a flood takes each place anew, and looking at all of its connections would cost more than they do."""
        found = list[HttpConnection]()
        for crowd in crowds:
            if found and len(crowd) < len(self._open[found[0].host]):
                break
            halves = (each for each in crowd if each.waits and not each.rests)
            if (one := next(halves, None) or next((each for each in crowd if each.waits), None)) is not None:
                found.append(one)
        return min(found, key=lambda each: (each.rests, each.since), default=None)

    def wait(self, one: HttpConnection) -> None:
        """Put a connection that begins to wait behind the others."""
        one.since, there = asyncio.get_running_loop().time(), self._open.get(one.host, {})
        if one in there:
            del there[one]
            there[one] = None

    def leave(self, one: HttpConnection) -> None:
        """Remove a connection. Idempotent."""
        there = self._open.get(one.host, {})
        there.pop(one, None)
        if not there:
            self._open.pop(one.host, None)

    async def close(self, grace_s: float = 0) -> None:
        """End all connections; those that are being answered get some time for it."""
        if tasks := [one.task for one in self.connections if one.task is not None]:
            await asyncio.wait(tasks, timeout=grace_s)
        await asyncio.sleep(0)  # the last answers are handed to their sockets
        for one in self.connections:
            one.end()
        await asyncio.sleep(0)


class HttpConnection(asyncio.Protocol):
    """One client: requests until either side closes.

    Attributes:
        peer: address and port of the client.
        since: time of the event loop since which it waits for a request.
        task: answers a request; None: there is none, or it has a response without an end.
    """

    def __init__(self, handler: HttpHandler, room: HttpRoom) -> None:
        self._handler, self._room, self._limits = handler, room, room.limits
        self._wire = h11.Connection(h11.SERVER)
        self._head: HttpRequest | None = None
        self._body: list[bytes] = []
        self._size, self._limit = 0, MAX_BODY
        self._rejection: HttpAnswer | None = None
        self.peer = ("", 0)
        self.task: asyncio.Task[Outcome] | None = None
        self._events: Events | None = None
        self._ahead = 0
        self._full = False
        self._later = False
        """Requests wait for a turn of the event loop with time for them."""
        self._drained: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._entered = False
        self._heading = True
        self._partial, self._piece = False, b""
        self.since = asyncio.get_running_loop().time()

    @property
    def host(self) -> str:
        """Return the client's address."""
        return self.peer[0]

    @property
    def waits(self) -> bool:
        """Return True while there is nothing to answer."""
        return self.task is None and self._events is None and not self._later

    @property
    def rests(self) -> bool:
        """Return True between two requests."""
        return not self._heading and self._wire.their_state is h11.IDLE

    @property
    def secure(self) -> bool:
        """Return True if the connection uses TLS."""
        return self._transport.get_extra_info("sslcontext") is not None

    def give_way(self) -> None:
        """Close, for another connection."""
        self._transport.abort()

    def end(self) -> None:
        """Close, for the end of the listener, once the last answer is sent; what is still being answered ends."""
        (self._transport.close if self.task is None else self._transport.abort)()

    def enter(self) -> bool:
        """Take a place of the listener's; return False if there is none."""
        self._entered = self._room.enter(self)
        return self._entered

    # ------------------------------------------------------------------ asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._entered:
            self.peer = self.address_of(transport.get_extra_info("peername"))
            if not self.enter():
                self._transport.write(_FULL)
                self._transport.close()
                return
        self._allow(self._limits.head_s)

    def address_of(self, name: Any) -> tuple[str, int]:
        """Return address and port of a client by its socket's name for them."""
        return str(name[0]), int(name[1])

    def _allow(self, seconds: float) -> None:
        """Give the client this time from now on; 0: no limit."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expired) if seconds else None

    def _expired(self) -> None:
        if self._later:
            self._allow(self._limits.head_s)  # not the client is late
        elif self._full or self._transport.is_closing():
            self._transport.abort()  # closing would wait for a client that does not read
        else:
            self._transport.close()
            self._allow(self._limits.stalled_s)

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        if self._events is not None:
            self._transport.abort()  # nothing more may be asked behind a response without an end
            return
        if self._partial and b"\n" not in data and len(self._piece) < MAX_PIECE:
            self._piece += data  # no head ends here, and h11 takes longer to see that
            return
        self._wire.receive_data(self._piece + data)
        self._piece, self._partial = b"", False
        if self.waits and not self._full:
            self._go_on()
            return
        self._ahead += len(data)
        if self._ahead > MAX_AHEAD:
            self._transport.pause_reading()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._allow(0)
        if self.task is not None:
            self.task.cancel()
        events, self._events = self._events, None
        if events is not None:
            events.end()
        self._room.leave(self)

    def pause_writing(self) -> None:
        # Responses wait in memory for a client that does not read: it gets no further ones meanwhile.
        self._full = True
        if self._events is None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._full = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self.waits:
            self._go_on()

    # ------------------------------------------------------------------ requests
    def _go_on(self) -> None:
        """Answer the complete requests that have come, while the client takes the answers and the turn has time: one
        read may have thousands."""
        self._later = False
        try:
            while not (self._full or self._transport.is_closing()):
                if self._handler.postpones(self._go_on):
                    self._later = True
                    return
                if not self._next():
                    break
            if self.waits and not (self._full or self._transport.is_closing()):
                self._ahead = 0
                self._transport.resume_reading()
        except h11.RemoteProtocolError as error:
            self._refuse(error)

    def _next(self) -> bool:
        """Read one request and answer it; False when there is no complete one, the answer takes time, or the connection
        ends."""
        while True:
            event = self._wire.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                self._partial = self._wire.their_state is h11.IDLE and bool(self._wire.trailing_data[0])
                if self.rests and self._partial:
                    self._heading = True
                    self._allow(self._limits.head_s)
                return False
            if isinstance(event, h11.Request):
                self._begin(event)
            elif isinstance(event, h11.Data):
                self._size += len(event.data)
                if self._size > self._limit:
                    raise h11.RemoteProtocolError("body too long", error_status_hint=413)
                if self._rejection is None:
                    self._body.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                self._transport.close()
                return False
        outcome = self._outcome()
        if isinstance(outcome, HttpAnswer):
            return self._finish(outcome)
        self._allow(0)
        self._ahead = 0
        self.task = asyncio.ensure_future(outcome)
        self.task.add_done_callback(self._answered)
        return False

    def _begin(self, event: Any) -> None:
        """Take the head of a request."""
        self._heading = False
        self._allow(self._limits.body_s)
        path, _, query = event.target.decode("latin-1").partition("?")
        host, port = self.peer
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
        self._head = HttpRequest(event.method.decode("latin-1"), path, query, headers, host, port, self.secure)
        self._body, self._size, self._limit, self._rejection = [], 0, MAX_BODY, None
        found = self._handler.refuse(self._head)
        if isinstance(found, HttpAnswer):
            self._rejection = found  # sent behind the body, which is read and ignored
        else:
            self._limit = found
        if self._wire.they_are_waiting_for_100_continue:
            self._transport.write(self._wire.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")

    def _outcome(self) -> HttpAnswer | Awaitable[Outcome]:
        head = self._head
        assert head is not None  # Invariant: a request is complete.
        if self._rejection is not None:
            return self._rejection
        body, self._body = b"".join(self._body), []
        try:
            return self._handler.answer(head._replace(body=body), self)
        except Exception as error:
            return self._handler.failed(head.path, error)  # a failing page must not stop the listener

    def _answered(self, task: asyncio.Task[Outcome]) -> None:
        """Send what a task has found, and go on with the next request."""
        self.task = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            outcome: Outcome = self._handler.failed(self._head.path if self._head is not None else "", error)
        else:
            outcome = task.result()
        if isinstance(outcome, HttpAnswer) and self._wire.our_state is not h11.SEND_RESPONSE:
            self._transport.abort()  # part of a response is sent: nothing else may follow it
        if self._transport.is_closing():
            if not isinstance(outcome, HttpAnswer) and outcome is not None:
                outcome.end()
            return
        if isinstance(outcome, HttpAnswer):
            goes_on = self._finish(outcome)
        elif outcome is None:
            self._transport.write(self._wire.send(h11.EndOfMessage()) or b"")
            goes_on = self._ended()
        else:
            self._stream(outcome)
            return
        if goes_on:
            self._go_on()

    def _finish(self, answer: HttpAnswer) -> bool:
        """Send an answer; return True if the connection goes on, with the next request."""
        assert self._head is not None  # Invariant: a request is complete.
        self._send(self._handler.completed(self._head, answer), head=self._head.method == "HEAD")
        return self._ended()

    def _ended(self) -> bool:
        """Return True if the connection goes on behind a response, with the next request."""
        if self._wire.our_state is not h11.DONE or self._wire.their_state is not h11.DONE:
            self._transport.close()
            self._allow(self._limits.stalled_s)
            return False
        self._wire.start_next_cycle()
        self._room.wait(self)
        self._allow(self._limits.idle_s)
        return True

    def _refuse(self, error: h11.RemoteProtocolError) -> None:
        """Reject a request that is not HTTP, and close."""
        answer = self._handler.invalid(error.error_status_hint, str(error))
        if self._wire.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._send(answer)
        self._transport.close()

    def _send(self, answer: HttpAnswer, *, head: bool = False) -> None:
        headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body))), *answer.headers]
        parts = [self._wire.send(_response(answer.status, tuple(headers)))]
        if not head:
            parts.append(self._wire.send(h11.Data(data=answer.body)))
        parts.append(self._wire.send(h11.EndOfMessage()))
        self._transport.write(b"".join(part for part in parts if part))

    # ------------------------------------------------------------------ responses in parts
    def begin(self, status: int, headers: Headers) -> None:
        """Send the head of a response, which has the length of its body."""
        self._transport.write(self._wire.send(_response(status, headers)) or b"")

    @property
    def writable(self) -> bool:
        return not self._full

    def send(self, data: bytes) -> None:
        """Send a part of a response."""
        if not self.waits and not self._transport.is_closing():
            self._transport.write(self._wire.send(h11.Data(data=data)) or b"")

    async def drained(self) -> None:
        """Wait until the client has taken most of what was sent. Raises ConnectionError when it is gone."""
        if self._full:
            self._drained = asyncio.get_running_loop().create_future()
            self._allow(self._limits.stalled_s)
            await self._drained
            self._allow(0)
        if self._transport.is_closing():
            raise ConnectionResetError("the client is gone")

    def _stream(self, events: Events) -> None:
        self.begin(200, events.headers)
        self._transport.resume_reading()  # so that the end of the client is noticed
        self._events = events
        events.begin(self)

    def close(self) -> None:
        """End a response without an end, and the connection."""
        events, self._events = self._events, None
        if events is not None:
            events.end()
            if not self._transport.is_closing():
                self._transport.write(self._wire.send(h11.EndOfMessage()) or b"")
                self._transport.close()


def _response(status: int, headers: Headers) -> h11.Response:
    return h11.Response(status_code=status, headers=list(headers), reason=HTTPStatus(status).phrase)
