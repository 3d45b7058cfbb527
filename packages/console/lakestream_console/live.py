"""Messages of subjects as Server-Sent Events.

Belongs here: the subscriptions of one stream of events, what is sent of each message, and what is left out for a client
that is slower than its subjects. Nothing is queued: a message that cannot be sent at once is counted and dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from lakestream.http.exchange import Headers, HttpOutput
from lakestream.ports import Clock, Timer
from lakestream.protocol.commands import Single
from lakestream.protocol.gotime import format_time
from lakestream_console.client import ConsoleClient
from lakestream_console.shown import shown

MAX_RATE = 500
"""Messages that a stream of events sends in a second (500); the others are counted and dropped."""

MAX_PAYLOAD = 64 << 10
"""Bytes that are shown of a payload (64 KiB); `size` has those that it has."""

TICK_NS = 1_000_000_000
"""Interval (1 s) of the counts of dropped messages."""

QUIET_TICKS = 15
"""Ticks without an event after which a comment is sent (15), so that proxies keep the connection."""

STALLED_TICKS = 60
"""Ticks after which the connection of a client that does not read is closed (60)."""

CONTENT_TYPE = "text/event-stream"


class EventStream:
    """One stream of events.

    Args:
        client: of the session.
        headers: of the response.
        closed: called once at its end.
    """

    def __init__(self, client: ConsoleClient, clock: Clock, headers: Headers, closed: Callable[[], None]) -> None:
        self.headers = (("Content-Type", CONTENT_TYPE), *headers)
        self._client, self._clock, self._closed = client, clock, closed
        self._sids: list[bytes] = []
        self._output: HttpOutput | None = None
        self._timer: Timer | None = None
        self._early: list[Single] = []
        self._sent = self._dropped = self._quiet = self._stalled = 0
        self._over = False

    async def subscribe(self, subjects: Sequence[bytes]) -> None:
        """Subscribe to the subjects. Raises ConsoleError; then nothing is left of it."""
        try:
            for subject in subjects:
                self._sids.append(await self._client.subscribe(subject, self))
        except BaseException:
            self.end()
            raise

    # ------------------------------------------------------------------ Events
    def begin(self, output: HttpOutput) -> None:
        self._output = output
        if self._over:
            output.close()
            return
        output.send(b"retry: 2000\n\n")
        early, self._early = self._early, []
        for message in early:
            self._send(message)
        self._timer = self._clock.call_later(TICK_NS, self._tick)

    def end(self) -> None:
        if self._over:
            return
        self._over = True
        self._early.clear()
        if self._timer is not None:
            self._timer.cancel()
        for sid in self._sids:
            self._client.unsubscribe(sid)
        self._closed()

    # ------------------------------------------------------------------ Receiver
    def received(self, message: Single) -> None:
        if self._over:
            return
        if self._sent >= MAX_RATE or (self._output is not None and not self._output.writable):
            self._dropped += 1
            return
        self._sent += 1
        if self._output is None:
            self._early.append(message)
        else:
            self._send(message)

    def ended(self, reason: str) -> None:
        if self._output is not None and not self._over:
            self._event("end", {"error": reason})
            self._output.close()
        self.end()

    # ------------------------------------------------------------------ what is sent
    def _send(self, message: Single) -> None:
        page = shown(message, MAX_PAYLOAD)
        page |= {"time": format_time(self._clock.now())}
        self._event("message", page)

    def _event(self, name: str, page: object) -> None:
        if self._output is not None:
            self._quiet = 0
            self._output.send(b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(page)))

    def _tick(self) -> None:
        output = self._output
        if self._over or output is None:
            return
        self._timer = self._clock.call_later(TICK_NS, self._tick)
        self._sent = 0
        if not output.writable:
            self._stalled += 1
            if self._stalled >= STALLED_TICKS:
                output.close()
            return
        self._stalled = 0
        self._quiet += 1
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._event("dropped", {"count": dropped})
        elif self._quiet >= QUIET_TICKS:
            self._quiet = 0
            output.send(b":\n\n")
