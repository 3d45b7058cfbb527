"""Message tracing on the way into a stream.

Belongs here: reporting to the trace of a message (`Nats-Trace-Dest`) that is published to a stream. The other
destinations of the message, and sending the trace, are in net/tracing.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lakestream.protocol import headers
from lakestream.protocol.api.errors import ApiError
from lakestream.protocol.client import TRACE_DESTINATION, TRACE_DISABLED, Trace, TracedClient
from lakestream.stream.core.batch import After
from lakestream.stream.core.feature import Feature
from lakestream.stream.core.publish import IncomingMessage

_BATCH, _COMMIT = b"Nats-Batch-Id", b"Nats-Batch-Commit"
_BARE = frozenset({10060, 10070, 10071, 10077, 10111})
"""Refusals whose text alone is reported; the others have their code in parentheses."""
_OTHERWISE = {
    10054: "maximum payload exceeded",
    10097: "maximum payload exceeded",
    10166: "message TTL disabled",
    10201: "msgid is duplicate",
}
_WITH_SUBJECT = frozenset({10077, 10165})
"""Refusals at storing, when the trace has the subject already."""


def disabled(header: bytes) -> bytes:
    """Return the header block with its destination replaced, in place, or added: a trace that the account asked for."""
    start = header.find(b"\r\n" + TRACE_DESTINATION + b":")
    if start < 0:
        return headers.append(header, [(TRACE_DESTINATION, TRACE_DISABLED)])
    start += len(TRACE_DESTINATION) + 3
    end = header.find(b"\r\n", start)
    return header[:start] + b" " + TRACE_DISABLED + (header[end:] if end >= 0 else b"")


class Traces(Feature):
    """Reports of one stream to the traces of messages that are published to it.

    Args:
        name: of the stream.
        unwanted: returns which of some messages the stream does not keep.
    """

    def __init__(self, name: str, unwanted: Callable[[int, Sequence[bytes]], Sequence[tuple[int, bytes]]]) -> None:
        self._name, self._unwanted = name, unwanted

    def arrived(self, message: IncomingMessage) -> None:
        if type(message.client) is TracedClient:
            trace = message.client.trace
            trace.reached(self._name)
            message.header = disabled(message.header)
            message.observer = _Observer(trace, self._unwanted)


class _Observer:
    """The trace of one message as its stream sees it; see `publish.Observer`."""

    def __init__(self, trace: Trace, unwanted: Callable[[int, Sequence[bytes]], Sequence[tuple[int, bytes]]]) -> None:
        self._trace, self._unwanted = trace, unwanted

    @property
    def only(self) -> bool:
        return self._trace.only

    def refused(self, message: IncomingMessage, error: ApiError) -> bool:
        """Add a refusal to the trace. Return False if the publisher gets no answer: the rule concerns storing alone."""
        if self._trace.only and error.err_code in _WITH_SUBJECT:
            self.passed(message)
            return False
        text = error.inside or _OTHERWISE.get(error.err_code) or error.description
        if not (error.inside or error.err_code in _BARE or error.err_code in _OTHERWISE):
            text = f"{text} ({error.err_code})"
        self._trace.settled(message.subject if error.err_code in _WITH_SUBJECT else b"", error=text)
        return True

    def duplicate(self) -> None:
        self._trace.settled(error="msgid is duplicate")

    def passed(self, message: IncomingMessage) -> None:
        self._trace.settled(message.subject, unwanted=bool(self._unwanted(0, [message.subject])))

    def storing(self, message: IncomingMessage) -> After | None:
        """Return the callback that adds the stored message to the trace; of an atomic batch only the commit's."""
        if headers.get(message.header, _BATCH) and not headers.get(message.header, _COMMIT):
            return None
        return lambda seq, time_ns: self.passed(message)
