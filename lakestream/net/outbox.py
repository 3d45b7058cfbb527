"""The output of a client connection.

Belongs here: messages as frames, gathered over one turn of the event loop and written at its end, and the high-water
mark above which deliveries wait. What a client asks for, and when its connection ends, is connection.py's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from lakestream.net.accounts.guard import Guard
from lakestream.net.hub import Hub
from lakestream.net.interest.subscription import Subscription
from lakestream.net.tracer import Tracer
from lakestream.net.unsent import Receiver, Unsent
from lakestream.ports import ClientInfo, Delivery
from lakestream.protocol.frames import HMSG, MSG, MSG_REPLY

HIGH_WATER = 1 << 20
"""Unsent bytes (default 1 MiB) above which a connection counts as congested and JetStream holds its deliveries.
A turn's output is written early at this size, so that this limit and max_pending also hold within a turn."""


class Outbox(Receiver):
    """The sink of a client connection: gathers frames and writes them once per turn.

    Args:
        unsent: counts the unsent bytes of all connections.

    Attributes:
        client: the client, as the sender of its messages.
        close_reason: why the connection ended; "" while it is open.
        guard: the permissions of the user and the mappings of its account; None: neither.
        headers: the client understands HMSG.
        hub: of the client's account.
        transport: None before the connection is made.
        subs: live subscriptions by sid.
    """

    def __init__(self, hub: Hub, client: ClientInfo, unsent: Unsent) -> None:
        self.hub = hub
        self.client = client
        self.out_msgs = self.out_bytes = 0
        self.close_reason = ""
        self.guard: Guard | None = None
        self.headers = False
        self.transport: asyncio.Transport | None = None
        self.tracer: Tracer | None = None
        self.subs: dict[bytes, Subscription] = {}
        self._unsent = unsent
        self._out: list[bytes] = []
        self._gathered = 0
        self._dirty = False
        self._paused = False
        self._waiting: list[Callable[[], None]] = []

    # ------------------------------------------------------------------ back-pressure
    @property
    def congested(self) -> bool:
        return self._paused and not self.close_reason

    @property
    def pending_bytes(self) -> int:
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    def on_drain(self, callback: Callable[[], None]) -> None:
        if self.congested:
            self._waiting.append(callback)
        else:
            callback()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.release()

    def release(self) -> None:
        """Call everything that waits for this connection to drain."""
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    # ------------------------------------------------------------------ messages
    def receive(
        self, sub: Subscription, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo
    ) -> None:
        if self.close_reason:
            return
        if self.guard is not None and not self.guard.admits(subject, reply):
            self.guard.pass_on(self.hub, sub, (subject, reply, header, payload), client)
            return
        if header and self.headers:
            n = len(header)
            frame = HMSG % (subject, sub.sid, reply + b" " if reply else b"", n, n + len(payload), header, payload)
            self.out_bytes += n
        elif reply:
            frame = MSG_REPLY % (subject, sub.sid, reply, len(payload), payload)
        else:
            frame = MSG % (subject, sub.sid, len(payload), payload)
        self._out.append(frame)
        self.out_msgs += 1
        self.out_bytes += len(payload)
        self._gathered += len(frame)
        if not self._dirty:
            self._dirty = True
            self.hub.dirty(self)
        if self._gathered > HIGH_WATER:
            self.write()
        sub.delivered += 1
        if sub.maximum and sub.delivered >= sub.maximum:
            self.unsubscribe(sub)

    def receive_many(self, sub: Subscription, messages: Sequence[Delivery]) -> None:
        if self.close_reason:
            return
        if sub.maximum or not self.headers:
            for subject, reply, header, payload in messages:
                if sub.maximum and sub.delivered >= sub.maximum:
                    return
                if self.guard is None or not self.guard.hides(subject):
                    self.receive(sub, subject, reply, header, payload, self.client)
            return
        if self.guard is not None:
            messages = self.guard.admitted(messages)
        append, sid, size, headers = self._out.append, sub.sid, 0, 0
        for subject, reply, header, payload in messages:
            length = len(payload)
            size += length
            if header:
                n = len(header)
                headers += n
                append(HMSG % (subject, sid, reply + b" " if reply else b"", n, n + length, header, payload))
            elif reply:
                append(MSG_REPLY % (subject, sid, reply, length, payload))
            else:
                append(MSG % (subject, sid, length, payload))
        sub.delivered += len(messages)
        self.out_msgs += len(messages)
        size += headers
        self.out_bytes += size
        self._gathered += size
        if not self._dirty:
            self._dirty = True
            self.hub.dirty(self)
        if self._gathered > HIGH_WATER:
            self.write()

    def hides(self, subject: bytes) -> bool:
        """Return True if the user's permissions deny messages with this subject."""
        return self.guard is not None and self.guard.hides(subject)

    def unsubscribe(self, sub: Subscription) -> None:
        """End a subscription."""
        if self.subs.pop(sub.sid, None) is not None:
            self.hub.leave(sub)

    # ------------------------------------------------------------------ writing
    def send(self, frame: bytes) -> None:
        """Write a frame at the end of the turn."""
        self._out.append(frame)
        if not self._dirty:
            self._dirty = True
            self.hub.dirty(self)

    def flush(self) -> None:
        """Write what this turn gathered."""
        self._dirty = False
        self.write()

    def write(self) -> None:
        """Write what is gathered now. `Unsent` closes a receiver beyond max_pending or max_pending_total."""
        out, self._out = self._out, []
        self._gathered = 0
        transport = self.transport
        if not out or transport is None or transport.is_closing():
            return
        if self.tracer is not None:
            self.tracer.outbound(out)
        data = b"".join(out)
        transport.write(data)
        self._unsent.wrote(self, len(data), transport.get_write_buffer_size())
