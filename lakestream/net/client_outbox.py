"""The output of a client connection.

Belongs here: messages as frames, written at the end of the turn of the event loop, or behind the client's own commands.
What a client asks for, and when its connection ends, is connection.py's.
"""

from __future__ import annotations

import os

from lakestream.net.accounts.guard import Guard
from lakestream.net.hub import Hub
from lakestream.net.interest.subscription import Subscription, SubscriptionGroup
from lakestream.net.outbox import HIGH_WATER, Accepted, Outbox
from lakestream.net.tracer import Tracer
from lakestream.net.unsent import Unsent
from lakestream.ports import ClientInfo
from lakestream.protocol.commands import Single
from lakestream.protocol.frames import HMSG, MSG, MSG_REPLY
from lakestream.protocol.messages import Messages, Several
from lakestream.protocol.publishes import Publishes

APART_BYTES = 64 << 10
"""Payloads above this size (64 KiB) are handed to the transport as they are: each copy of 64 MiB takes 10 to 40 ms."""

GROUP_BYTES = 256 << 10
"""Frames that are made at once for several subscriptions of one client (about 256 KiB)."""

_END = b"\r\n"


class ClientOutbox(Accepted, Outbox[bytes]):
    """The sink of a client connection: gathers frames and writes them once per turn.

    Args:
        unsent: counts the unsent bytes of all connections.

    Attributes:
        client: the client, as the sender of its messages.
        guard: the permissions of the user and the mappings of its account; None: neither.
        headers: the client understands HMSG.
        hub: of the client's account.
        subs: live subscriptions by sid.
    """

    columnar = True

    def __init__(self, hub: Hub, client: ClientInfo, unsent: Unsent) -> None:
        Accepted.__init__(self, unsent)
        Outbox.__init__(self, hub.dirty)
        self.hub = hub
        self.client = client
        self.out_msgs = self.out_bytes = 0
        self.guard: Guard | None = None
        self.headers = False
        self.tracer: Tracer | None = None
        self.subs: dict[bytes, Subscription] = {}
        self._apart = False  # `_out` has payloads that are not to be copied
        self._reading = False  # commands of this client are being handled: what they bring it is written after them
        self._descriptor = -1  # of a plain TCP socket

    # ------------------------------------------------------------------ messages
    def take(self, sub: Subscription, messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
        if type(messages) is not Single:
            return self._take_block(sub, messages, begin, end, client)
        if self.close_reason:
            return end
        subject = messages.subject  # one by one: that is quicker than as a tuple
        reply = messages.reply
        header = messages.header
        payload = messages.payload
        if self.guard is not None and not self.guard.admits(subject, reply):
            self.guard.pass_on(self.hub, sub, messages, client)
            return end
        size = len(payload)
        data = payload if size <= APART_BYTES or self.tracer is not None else b""
        if header and self.headers:
            n = len(header)
            frame = HMSG % (subject, sub.sid, reply + b" " if reply else b"", n, n + size, header, data)
            self.out_bytes += n
        elif reply:
            frame = MSG_REPLY % (subject, sub.sid, reply, size, data)
        else:
            frame = MSG % (subject, sub.sid, size, data)
        gathered = self._gathered + len(frame)
        if data is payload:
            self._out.append(frame)
        else:
            self._apart = True
            self._out += (frame[: -len(_END)], payload, _END)
            gathered += size
        self._gathered = gathered
        self.out_msgs += 1
        self.out_bytes += size
        if not self._dirty:
            self.await_flush()
        if gathered > HIGH_WATER:
            self.write_gathered()
        sub.delivered += 1
        if sub.maximum and sub.delivered >= sub.maximum:
            self.unsubscribe(sub)
        return end

    def _take_block(self, sub: Subscription, messages: Several, begin: int, end: int, client: ClientInfo) -> int:
        if self.close_reason:
            return messages.stop(begin, end)
        guard = self.guard
        if type(sub) is SubscriptionGroup and type(messages) is Publishes:
            some = GROUP_BYTES // (messages.bytes_of(begin, end) // (end - begin) + len(sub.sid) + 64)
            end = min(end, begin + max(1, some // len(sub.subs)))
        each = sub.maximum or self.tracer is not None or (guard is not None and guard.filtering)
        if each or (messages.heads and not self.headers):
            return self._take_each(sub, messages, begin, end, client)
        if guard is not None and guard.answering:
            guard.received(messages.replies(begin, end))
        frames, number, size, end = messages.frames(sub.sid, begin, end)
        self._out.append(frames)
        sub.took(number)
        self.out_msgs += number
        self.out_bytes += size
        self.count(len(frames))
        return end

    def _take_each(self, sub: Subscription, messages: Several, begin: int, end: int, client: ClientInfo) -> int:
        """Take messages one by one. Those of a batch that the user's permissions deny are dropped. A denied request may
        cause a 503, which must not overtake what others get before it: it is taken by itself."""
        end, drops = messages.stop(begin, end), type(messages) is not Publishes
        subs = sub.subs if type(sub) is SubscriptionGroup else [sub]
        for at, each in enumerate(messages.messages(begin, end), begin):
            if sub.maximum and sub.delivered >= sub.maximum:
                break
            denied = (drops or each.reply) and self.hides(each.subject)
            for one in subs if not denied or (at == begin and not drops) else ():
                self.take(one, each, 0, 1, client)
            if denied and not drops:
                return max(at, begin + 1)
        return end

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
            self.await_flush()

    def await_flush(self) -> None:
        """Have `flush` called: after the client's commands if they are being handled, else at the end of the turn."""
        self._dirty = True
        if not self._reading:
            self._ask(self)

    def write_gathered(self) -> None:
        """Write what is gathered now. `Unsent` closes a receiver beyond max_pending or max_pending_total."""
        out, self._out = self._out, []  # `taken`, without its call for each lone answer
        self._gathered = 0
        transport = self.transport
        if not out or transport is None or transport.is_closing():
            return
        if self.tracer is not None:
            self.tracer.outbound(out)
        if self._apart:
            self._apart = False
            transport.writelines(out)
            self._unsent.wrote(self, sum(map(len, out)), transport.get_write_buffer_size())
            return
        data = b"".join(out)
        size = len(data)
        unsent = transport.get_write_buffer_size()
        if self._descriptor >= 0 and not unsent:
            # At once: uvloop's transport would send it once the present callbacks of the event loop have returned.
            try:
                sent = os.write(self._descriptor, data)
            except OSError:  # full, or broken: the transport finds the same and deals with it
                sent = 0
            data = data[sent:]
        if data:
            transport.write(data)
            unsent = transport.get_write_buffer_size()
        self._unsent.wrote(self, size, unsent)
