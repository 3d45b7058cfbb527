"""Message tracing on the way into a stream.

Belongs here: what a stream tells the trace of a message (`Nats-Trace-Dest`) that is published to it. Where a message
went besides, and how a trace is sent, is the hub's part of it (net/tracing.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lakestream.ports import ClientInfo
from lakestream.protocol import headers
from lakestream.protocol.api.errors import ApiError
from lakestream.stream.core.batch import After

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream
    from lakestream.stream.core.publish import Publish

DESTINATION = b"Nats-Trace-Dest"
DISABLED = b"trace disabled"
"""What a stored message has as its destination: whoever gets it from the stream is not traced again."""

_BATCH, _COMMIT = b"Nats-Batch-Id", b"Nats-Batch-Commit"
_BARE = frozenset({10060, 10070, 10071, 10077, 10111})
"""Refusals that a trace tells by their text alone; the others have their code in parentheses."""
_OTHERWISE = {
    10054: "maximum payload exceeded",
    10097: "maximum payload exceeded",
    10166: "message TTL disabled",
    10201: "msgid is duplicate",
}
_WITH_SUBJECT = frozenset({10077, 10165})
"""Refusals that come when the message is stored: the trace has its subject by then."""
_MAX = (1 << 64) - 1


class Trace(Protocol):
    """The trace of one message."""

    @property
    def only(self) -> bool:
        """The message is traced and goes nowhere."""

    def reached(self, stream: str) -> None:
        """A stream has the message before it; the trace waits for `settled`."""

    def settled(self, subject: bytes = b"", *, unwanted: bool = False, error: str = "") -> None:
        """What became of it there. `unwanted`: nobody is interested, so that it is not kept."""


class TracedClient(ClientInfo, frozen=True, kw_only=True):
    """The sender of a message that is traced."""

    trace: Trace


def traced(client: ClientInfo, trace: Trace) -> TracedClient:
    """The client with the trace of one of its messages."""
    fields = {name: getattr(client, name) for name in ClientInfo.__struct_fields__}
    return TracedClient(**fields, trace=trace)


def begin(stream: Stream, message: Publish) -> None:
    """A publish has come to the stream."""
    trace = of(message)
    if trace is not None:
        trace.reached(stream.name)
        message.header = disabled(message.header)


def of(message: Publish) -> Trace | None:
    """The trace of a message, None when it has none."""
    client = message.client
    return client.trace if type(client) is TracedClient else None


def only(message: Publish) -> bool:
    """Whether the message passed every rule and shall still not be stored."""
    trace = of(message)
    return trace is not None and trace.only


def refused(stream: Stream, message: Publish, error: ApiError) -> bool:
    """A rule refused the message. False: its publisher is not told, since what it broke concerns storing alone."""
    trace = of(message)
    if trace is not None and trace.only and error.err_code in _WITH_SUBJECT:
        passed(stream, message)
        return False
    if trace is not None:
        text = error.inside or _OTHERWISE.get(error.err_code) or error.description
        if not (error.inside or error.err_code in _BARE or error.err_code in _OTHERWISE):
            text = f"{text} ({error.err_code})"
        trace.settled(message.subject if error.err_code in _WITH_SUBJECT else b"", error=text)
    return True


def duplicate(message: Publish) -> None:
    """The message was stored before."""
    trace = of(message)
    if trace is not None:
        trace.settled(error="msgid is duplicate")


def passed(stream: Stream, message: Publish) -> None:
    """The message passed every rule, and `only` says that it goes no further."""
    trace = of(message)
    if trace is not None:
        trace.settled(message.subject, unwanted=bool(stream.retention.unwanted(0, [message.subject])))


def storing(stream: Stream, message: Publish) -> After | None:
    """What to call once the message is stored; None when it has no trace. Of an atomic batch only the commit tells."""
    trace = of(message)
    if trace is None or (headers.get(message.header, _BATCH) and not headers.get(message.header, _COMMIT)):
        return None
    return lambda seq, time_ns: passed(stream, message)


def disabled(header: bytes) -> bytes:
    """The header block with its destination replaced, in place."""
    start = header.find(b"\r\n" + DESTINATION + b":")
    if start < 0:
        return header
    start += len(DESTINATION) + 3
    end = header.find(b"\r\n", start)
    return header[:start] + b" " + DISABLED + (header[end:] if end >= 0 else b"")


def expected(value: bytes, last: int, what: str) -> str:
    """How a trace tells that an expected sequence is another one; what is no number counts as the largest."""
    digits = value.lstrip(b"0")
    number = int(digits or b"0") if value.isdigit() and len(digits) <= len(str(_MAX)) else _MAX
    return f"last {what} mismatch: {min(number, _MAX)} vs {last}"
