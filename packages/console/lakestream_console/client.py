"""The client of a console session.

Belongs here: the client's side of the NATS protocol over an in-memory pipe: login, subscriptions, and requests with one
or more replies. It makes no decision about access: the server's connection does.

Each command is followed by a PING. The server handles both in order, so an -ERR before the PONG is about that command.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, Protocol

import msgspec

from lakestream import __version__
from lakestream.net.connection import Connection
from lakestream.protocol import frames, headers
from lakestream.protocol.api.jsonio import dumps
from lakestream.protocol.commands import Ping, Pong, Single
from lakestream.protocol.delivered import DeliveredMessage, ErrorLine, Info, ServerParser, ServerProtocolError
from lakestream.protocol.goquote import quoted
from lakestream.protocol.nkeys import key_pair
from lakestream.protocol.nuid import nuid
from lakestream.protocol.subjects import valid_subject
from lakestream_console.pipe import Pipe

NAME = "lakestream console"
"""Name of a session's connection in /connz."""

LOGIN_WAIT_S = 10.0
"""Maximum time of a login (10 s)."""

MAX_WAIT_NS = 10_000_000_000
"""Default and maximum time to wait for the replies to a request (10 s)."""

MAX_PENDING = 16
"""Requests of one session that may wait for replies at the same time (16)."""

MAX_SUBSCRIPTIONS = 16
"""Subscriptions of one session (16), one of which receives the replies."""

MAX_ANSWER_BYTES = 8 << 20
"""Bytes of replies that one session holds (8 MiB), those of all its waiting requests together."""

MAX_REPLIES = 10_000
"""Replies to one request (10,000)."""

PULL = b"$JS.API.CONSUMER.MSG.NEXT."
"""Beginning of the subjects of requests whose replies are messages of a stream."""

_INBOX_SID = b"1"

_LINE_BYTES = 64
"""More than the words of a control line beside its subjects."""

Replies = int | Literal["eob"]


class ServerInfo(msgspec.Struct, frozen=True):
    """The INFO of the server, as far as a client in its process needs it."""

    nonce: str = ""
    headers: bool = False


_server_info = msgspec.json.Decoder(ServerInfo)


class ConsoleError(Exception):
    """Raised when the console rejects or cannot do a request.

    Attributes:
        status: of the HTTP response.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class SessionEnded(ConsoleError):
    """Raised when the connection of a session has ended."""

    def __init__(self, reason: str) -> None:
        super().__init__(401, f"the session has ended: {reason}")


class LoginSecrets(msgspec.Struct, frozen=True, kw_only=True):
    """The credentials of a login; "" where it has none. `jwt` goes with `seed`."""

    user: str = ""
    password: str = ""
    token: str = ""
    jwt: str = ""
    seed: str = ""

    def fields(self, nonce: str) -> dict[str, str]:
        """Return the fields of CONNECT. Raises BadKeyError for an invalid seed."""
        if self.seed:
            pair = key_pair(self.seed)
            identity = {"jwt": self.jwt} if self.jwt else {"nkey": pair.public}
            signature = base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()
            return identity | ({"sig": signature} if nonce else {})
        if self.token:
            return {"auth_token": self.token}
        return {"user": self.user, "pass": self.password} if self.user else {}


class WaitingRequest:
    """A request that waits for its replies.

    Attributes:
        done: set once the replies are complete, or with the error.
        replies: those that have come.
        size: their bytes.
    """

    __slots__ = ("done", "replies", "size", "wanted")

    def __init__(self, wanted: Replies, done: asyncio.Future[None]) -> None:
        self.wanted, self.done = wanted, done
        self.replies: list[Single] = []
        self.size = 0

    def take(self, message: Single, size: int) -> None:
        """Add a reply."""
        self.replies.append(message)
        self.size += size
        if self.wanted == "eob":
            complete = bool(headers.status(message.header).code) or not (message.payload or message.header)
        else:
            complete = len(self.replies) >= self.wanted
        if complete or len(self.replies) >= MAX_REPLIES:
            self.end()

    def end(self, error: ConsoleError | None = None) -> None:
        """Wait no more."""
        if self.done.done():
            return
        if error is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(None)


class ConsoleReceiver(Protocol):
    """The user of a subscription."""

    def received(self, message: Single) -> None:
        """Take a message."""

    def ended(self, reason: str) -> None:
        """Note the end of the connection."""


class _Step:
    """A command that the server has not confirmed yet: the text of its -ERR, "" for none."""

    __slots__ = ("done", "error")

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.done = done
        self.error = ""


class ConsoleClient:
    """The client of one session.

    Args:
        connection: the server's side.
        peer: host and port of the browser.
        inbox: prefix of reply subjects.
        ended: called once when the connection has ended.

    Attributes:
        connection: as given.
        reason: why the connection ended; "" before.
    """

    def __init__(self, connection: Connection, peer: tuple[str, int], inbox: str, ended: Callable[[], None]) -> None:
        self.connection = connection
        self.reason = ""
        self._loop, self._ended = asyncio.get_running_loop(), ended
        self._parser = ServerParser()
        self._pipe = Pipe(connection, self, peer, self._loop.call_soon)
        self._info: ServerInfo | None = None
        self._steps: deque[_Step] = deque()
        self._last_error = ""
        self._inbox = f"{inbox}.{nuid()}.".encode()
        self._no_inbox = ""
        self._numbers = itertools.count(2)
        self._waiting: dict[bytes, WaitingRequest] = {}
        self._held = 0
        self._receivers: dict[bytes, ConsoleReceiver] = {}
        self._pulls: dict[bytes, WaitingRequest] = {}

    # ------------------------------------------------------------------ login and end
    async def log_in(self, secrets: LoginSecrets) -> None:
        """Connect and authenticate.

        Raises:
            ConsoleError: refused, with the server's text.
            BadKeyError: the seed is invalid.
        """
        try:
            async with asyncio.timeout(LOGIN_WAIT_S):
                greeted = self._expect()
                self.connection.connection_made(self._pipe)
                await greeted.done
                assert self._info is not None  # Invariant: INFO is the first frame.
                await self._do(frames.CONNECT % dumps(_connect(self._info, secrets)))
                try:
                    await self._do(frames.SUB % (self._inbox + b"*", b"", _INBOX_SID))
                except ConsoleError as error:
                    if self.reason:
                        raise
                    self._no_inbox = str(error)
        except TimeoutError:
            self.close()
            raise ConsoleError(503, "the login was not decided in time") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the connection. Idempotent."""
        self._pipe.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.reason = self._last_error or self.connection.close_reason or "Client Closed"
        error = self._end_error()
        steps, self._steps = self._steps, deque()
        for step in steps:
            if not step.done.done():
                step.done.set_exception(error)
        for waiting in list(self._waiting.values()):
            waiting.end(error)
        receivers, self._receivers = self._receivers, {}
        for receiver in receivers.values():
            receiver.ended(str(error))
        self._ended()

    def _end_error(self) -> ConsoleError:
        return SessionEnded(self.reason) if self.connection.ready else ConsoleError(401, self.reason)

    # ------------------------------------------------------------------ commands
    def _expect(self) -> _Step:
        if self.reason:
            raise self._end_error()
        step = _Step(self._loop.create_future())
        self._steps.append(step)
        return step

    async def _do(self, frame: bytes) -> None:
        """Send a command and wait until the server has handled it. Raises ConsoleError with the text of its -ERR."""
        step = self._expect()
        self._pipe.send(frame + frames.PING)
        try:
            async with asyncio.timeout(MAX_WAIT_NS / 1e9):
                await step.done
        except TimeoutError:
            raise ConsoleError(504, "the server has not taken the command in time") from None
        if step.error:
            raise ConsoleError(403, step.error)

    async def publish(self, subject: bytes, header: bytes, payload: bytes) -> None:
        """Publish without a reply subject.

        Raises:
            ConsoleError: the message is not acceptable, or the user's permissions deny it.
        """
        await self._do(self._frame(subject, b"", header, payload))

    async def request(
        self, subject: bytes, header: bytes, payload: bytes, wanted: Replies, wait_ns: int
    ) -> tuple[list[Single], bool]:
        """Publish with a reply subject; return the replies, and True if they are all that were wanted.

        Args:
            wanted: a number of replies, or "eob": until a reply with a status, or an empty one.

        Raises:
            ConsoleError: as `publish`; 503 without a responder, 413 for too many bytes, 429 for too many requests.
        """
        if self._no_inbox:
            raise ConsoleError(403, self._no_inbox)
        if len(self._waiting) >= MAX_PENDING:
            raise ConsoleError(429, f"{MAX_PENDING} requests of this session wait for replies already")
        number = b"%d" % next(self._numbers)
        pulls = subject.startswith(PULL)
        reply = self._inbox + (b"pull." if pulls else b"") + number
        frame = self._frame(subject, reply, header, payload)
        waiting = self._waiting[reply] = WaitingRequest(wanted, self._loop.create_future())
        if pulls:
            # Messages of a stream come under their own subjects: the subscription tells whose they are.
            self._pulls[number] = waiting
            frame = frames.SUB % (reply, b"", number) + frame
        try:
            await self._do(frame)
            try:
                async with asyncio.timeout(wait_ns / 1e9):
                    await waiting.done
            except TimeoutError:
                return waiting.replies, False
            return waiting.replies, True
        finally:
            del self._waiting[reply]
            if self._pulls.pop(number, None) is not None:
                self._pipe.send(frames.UNSUB % number)
            self._held -= waiting.size
            waiting.done.cancel()

    def _frame(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> bytes:
        """Return the frame of a message. Raises ConsoleError for one that would end the connection."""
        if not valid_subject(subject, wildcards=False):
            raise ConsoleError(400, f"{quoted(subject)} is not a subject to publish to")
        line = len(subject) + len(reply) + _LINE_BYTES
        if line > self.connection.owner.options.max_control_line:
            raise ConsoleError(400, "the subject is too long")
        if len(header) + len(payload) > self.connection.max_payload >= 0:
            raise ConsoleError(413, f"messages have at most {self.connection.max_payload} bytes here (max_payload)")
        to = reply + b" " if reply else b""
        if not header:
            return frames.PUB % (subject, to, len(payload), payload)
        if self._info is None or not self._info.headers:
            raise ConsoleError(400, "this server takes no headers (no_header_support)")
        return frames.HPUB % (subject, to, len(header), len(header) + len(payload), header, payload)

    async def subscribe(self, subject: bytes, receiver: ConsoleReceiver) -> bytes:
        """Subscribe; return the id of the subscription.

        Raises:
            ConsoleError: the subject is invalid, the user's permissions deny it, or there are too many subscriptions.
        """
        if not valid_subject(subject) or len(subject) + _LINE_BYTES > self.connection.owner.options.max_control_line:
            raise ConsoleError(400, f"{quoted(subject)} is not a subject to subscribe to")
        if len(self._receivers) >= MAX_SUBSCRIPTIONS - 1:
            raise ConsoleError(429, f"a session has at most {MAX_SUBSCRIPTIONS - 1} live subjects")
        sid = b"%d" % next(self._numbers)
        self._receivers[sid] = receiver
        try:
            await self._do(frames.SUB % (subject, b"", sid))
        except BaseException:
            self._receivers.pop(sid, None)
            raise
        return sid

    def unsubscribe(self, sid: bytes) -> None:
        """End a subscription. Idempotent."""
        if self._receivers.pop(sid, None) is not None:
            self._pipe.send(frames.UNSUB % sid)

    # ------------------------------------------------------------------ from the server
    def data_received(self, data: bytes) -> None:
        try:
            events = self._parser.feed(data)
        except ServerProtocolError as error:
            self._last_error = str(error)
            self.close()
            return
        for event in events:
            if type(event) is DeliveredMessage:
                self._receive(event.sid, event.message)
            elif type(event) is Ping:
                self._pipe.send(frames.PONG)
            elif type(event) is Pong:
                self._last_error = ""
                self._confirmed()
            elif type(event) is ErrorLine:
                self._last_error = event.text
                if self._steps:
                    self._steps[0].error = event.text
            elif type(event) is Info and self._info is None:
                self._info = _server_info.decode(event.document)
                self._confirmed()

    def _confirmed(self) -> None:
        if self._steps and not (step := self._steps.popleft()).done.done():
            step.done.set_result(None)

    def _receive(self, sid: bytes, message: Single) -> None:
        if (receiver := self._receivers.get(sid)) is not None:
            receiver.received(message)
            return
        waiting = self._pulls.get(sid) or self._waiting.get(message.subject)
        if waiting is None or waiting.done.done():
            return
        size = len(message.payload) + len(message.header)
        if self._held + size > MAX_ANSWER_BYTES:
            waiting.end(ConsoleError(413, f"the replies have more than {MAX_ANSWER_BYTES} bytes: ask for fewer"))
            return
        self._held += size
        waiting.take(message, size)


def _connect(info: ServerInfo, secrets: LoginSecrets) -> dict[str, Any]:
    return {
        "verbose": False,
        "pedantic": False,
        "name": NAME,
        "lang": "lakestream",
        "version": __version__,
        "protocol": 1,
        "headers": info.headers,
        "no_responders": info.headers,
    } | secrets.fields(info.nonce)
