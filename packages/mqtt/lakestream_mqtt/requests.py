"""Requests to JetStream of one account.

Belongs here: messages that are stored with an answer, and calls of the API, over the account's bus. Answers come to one
subscription (`$MQTT.JSA.<server>.>`), so that a request costs no change of interest.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from lakestream.ports import Bus, ClientInfo, Clock, Single, singly
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder

ANSWERS = b"$MQTT.JSA."
STORED, RECORDED, CALLED = b"MS", b"SP", b"API"
"""Kinds of requests, a token of their reply subjects: a message, a session record, a call of the API."""

NOT_FOUND = frozenset((10014, 10037, 10059))
"""Error codes of what does not exist, or not any more: consumer, message, stream."""

Done = Callable[[bytes | None], None]
"""Called with the answer's payload, once; None: there was none in time."""


class Failure(msgspec.Struct, frozen=True):
    """The `error` object of an answer."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class Stored(msgspec.Struct, frozen=True):
    """The answer of a stream to a message."""

    stream: str = ""
    seq: int = 0
    error: Failure | None = None


class RequestFailed(Exception):
    """Raised when JetStream does not answer, or with an error. `err_code`: of JetStream; 0: no answer."""

    def __init__(self, text: str, err_code: int = 0) -> None:
        super().__init__(text)
        self.err_code = err_code


_STORED = JsonDecoder(Stored)


def outcome(answer: bytes | None) -> Stored:
    """Return the answer of a stream; one with an error if there is none."""
    if answer is None:
        return Stored(error=Failure(503, 0, "no answer from JetStream"))
    try:
        return _STORED.decode(answer)
    except DECODE_ERRORS:
        return Stored(error=Failure(500, 0, "an answer that does not decode"))


class Requests:
    """The requests of one account.

    Args:
        bus: of the account.
        server: short hash of the server's name.
        timeout_ns: time to wait for an answer.
        domain: of the JetStream that is asked; "": this server's.
    """

    def __init__(self, bus: Bus, clock: Clock, server: str, timeout_ns: int, domain: str) -> None:
        self._bus, self._clock, self._timeout_ns = bus, clock, timeout_ns
        self._prefix = ANSWERS + server.encode() + b"."
        self._api = f"$JS.{domain}.API." if domain else "$JS.API."
        self._numbers = itertools.count(1)
        self._waiting: dict[bytes, tuple[int, Done]] = {}
        """Time at which each request is given up, and what is called, in order."""
        self._watched = False
        bus.subscribe(self._prefix + b">", singly(self._answered))

    def reply(self, done: Done, kind: bytes = STORED, tag: bytes = b"") -> bytes:
        """Return a reply subject whose first message is given to `done`. `tag`: tokens of the subject, with a dot."""
        found = b"%b%b.%b%d" % (self._prefix, kind, tag, next(self._numbers))
        self._waiting[found] = self._clock.steady() + self._timeout_ns, done
        if not self._watched:
            self._watched = True
            self._clock.call_later(self._timeout_ns, self._give_up)
        return found

    def store(
        self, subject: bytes, header: bytes, payload: bytes, done: Done, kind: bytes = STORED, tag: bytes = b""
    ) -> None:
        """Store a message."""
        reply = self.reply(done, kind, tag)
        if not self._bus.send(Single(subject, reply, header, payload)):
            self._clock.call_soon(lambda: self._finish(reply, None))

    async def stored(
        self, subject: bytes, header: bytes, payload: bytes, kind: bytes = STORED, tag: bytes = b""
    ) -> int:
        """Store a message and return its sequence. Raises RequestFailed."""
        found = outcome(await self._wait(lambda done: self.store(subject, header, payload, done, kind, tag)))
        if found.error is not None:
            raise RequestFailed(found.error.description, found.error.err_code)
        return found.seq

    async def call(self, name: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call the API and return its answer. Raises RequestFailed."""
        subject, payload = (self._api + name).encode(), _body(body)
        answer = await self._wait(lambda done: self.store(subject, b"", payload, done, CALLED))
        if answer is None:
            raise RequestFailed(f"no answer to {name}")
        found: dict[str, Any] = msgspec.json.decode(answer)
        if (error := found.get("error")) is not None:
            raise RequestFailed(error.get("description", ""), error.get("err_code", 0))
        return found

    def tell(self, name: str, body: Mapping[str, Any] | None = None) -> None:
        """Call the API without waiting for its answer."""
        self.store((self._api + name).encode(), b"", _body(body), lambda answer: None, CALLED)

    def acknowledge(self, ack: bytes, how: bytes = b"") -> None:
        """Acknowledge a delivery; with `-NAK` have it delivered again."""
        if ack:
            self._bus.send(Single(ack, b"", b"", how))

    async def _wait(self, send: Callable[[Done], None]) -> bytes | None:
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        send(lambda payload: None if answer.done() else answer.set_result(payload))
        return await answer

    # ------------------------------------------------------------------ answers
    def _answered(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        self._finish(subject, payload)

    def _finish(self, reply: bytes, payload: bytes | None) -> None:
        if (waiting := self._waiting.pop(reply, None)) is not None:
            waiting[1](payload)

    def _give_up(self) -> None:
        now = self._clock.steady()
        while self._waiting:
            reply, (until, _) = next(iter(self._waiting.items()))
            if until > now:
                self._clock.call_later(until - now, self._give_up)
                return
            self._finish(reply, None)
        self._watched = False


def _body(body: Mapping[str, Any] | None) -> bytes:
    return msgspec.json.encode(body) if body is not None else b""
