"""The JetStream of a remote server as a domain here.

Belongs here: what crosses a link for clients and streams: requests under `$JS.<domain>.API.`, their responses,
deliveries of consumers there, acks and flow control. Subjects alone decide; no state is kept except interest.

| here | there |
|---|---|
| `$JS.<domain>.API.x` | `$JS.API.x`, or under the remote's own domain |
| a reply subject R | `<inbox>.r.R` |
| a reply subject to which a consumer delivers | `<inbox>….p.<number>`, with a subscription of its own |
| a deliver subject D | `<inbox>.d.D`, with a subscription of its own |
| `$JS.ACK.<domain>.@.x` | `$JS.ACK.x` |
| `$JS.<domain>.FC.x`, `$JS.<domain>.SNAPSHOT.x` | `$JS.FC.x`, `$JS.SNAPSHOT.x` |

Messages of a consumer are shown under the subject that they are stored with, so only the subscription tells which
consumer they belong to. The reply subject of messages that are not acked stays as it is: some clients read it and know
no other form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lakestream.net.remote import bodies as remote_bodies
from lakestream.net.remote.bodies import DeliverTarget
from lakestream.net.remote.link import RemoteAnswer, RemoteLink, fits_protocol_line
from lakestream.net.remote.paths import Path, Paths
from lakestream.ports import ClientInfo, Clock, Handler, ListedMessages, Single, Subscribed, singly
from lakestream.protocol import headers
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.api.jsonio import dumps
from lakestream.protocol.domain_subjects import (
    DELIVER_HEADER,
    LINK_QUEUE,
    MARK,
    SESSIONS,
    V1_DOTS,
    ack_here,
    ack_there,
    sign,
)
from lakestream.protocol.subjects import valid_literal

UNAVAILABLE = (503, 10008)
"""Code and error code of a request while its domain cannot be reached: JetStream is temporarily unavailable."""

MAX_REMOTES = 5
"""Links that a request may cross one after the other; with more, domains lead back to each other."""

NO_REPLY = b"_"
"""Reply subject of requests without one."""

_INBOX = b"_INBOX."
_NEXT, _DIRECT, _RESET = b"CONSUMER.MSG.NEXT.", b"DIRECT.GET.", b"CONSUMER.RESET."
_DELIVERING = (b"CONSUMER.CREATE.", b"CONSUMER.DURABLE.CREATE.", b"STREAM.SNAPSHOT.")
_STORES = (b"$KV.", b"$O.")
_ACK, _STATUS = b"$JS.ACK.", b"NATS/1.0 100"
_UNAVAILABLE_HEADER = b"NATS/1.0 503\r\n\r\n"


class RemoteDomain:
    """The domain behind one link.

    Args:
        link: to the remote.
        clock: time.
    """

    def __init__(self, link: RemoteLink, clock: Clock) -> None:
        self.link = link
        self._clock = clock
        domain = self._domain = link.options.domain.encode()
        self._api, self._own = b"$JS.%b.API." % domain, b"$JS.%b." % domain
        theirs = link.options.remote_domain.encode()
        self._remote_prefix = b"$JS.%b." % theirs if theirs else b""
        self._acks = b"%b%b." % (_ACK, domain)
        self._ack_v1 = ack_here(domain, b"$JS.ACK.s.c.1.1.1.1.0").removesuffix(b"s.c.1.1.1.1.0")
        inbox = link.inbox_prefix
        self._replies, self._pushes_there = inbox + b".r.", inbox + b".d."
        # Deliveries for a pull from before a restart must not reach the first pull after it.
        self._pulls_there = link.inbox() + b".p."
        self._translator = remote_bodies.ResponseTranslator(self._pushes_there, domain, theirs)
        self._pulls = Paths(link, clock, self.deliver, drop_idle=True)
        self._pushes = Paths(link, clock, self.deliver, drop_idle=False)
        self._number = 0
        self._subscribed: list[Subscribed] = []
        self._link_subscribed: list[Subscribed] = []

    # ------------------------------------------------------------------ life
    def start(self) -> None:
        """Serve the domain, and connect."""
        link = self.link
        self._link_subscribed = [
            link.subscribe(self._replies + b">", self._forward_responses),
            link.watch(self._changed),
        ]
        link.start()

    async def stop(self) -> None:
        """Serve it no more, and disconnect."""
        for subscription in (*self._subscribed, *self._link_subscribed):
            subscription.cancel()
        self._subscribed, self._link_subscribed = [], []
        self._pulls.close()
        self._pushes.close()
        await self.link.stop()

    def shown(self) -> dict[str, Any]:
        """Return the remote as /varz shows it."""
        return self.link.shown() | {"paths": len(self._pulls) + len(self._pushes)}

    def _changed(self, up: bool) -> None:
        """Note that the link came up or was lost: other nodes may have one, and requests fail only when none has."""
        hub = self.link.hub
        before, self._subscribed = self._subscribed, []
        if up:
            handlers: list[tuple[bytes, Handler]] = [
                (self._acks + b">", self._forward_ack),
                (self._own + b"FC.>", self._forward),
                (self._own + b"SNAPSHOT.>", self._forward),
                (self._api + b">", self._forward_request),
                (sign(self._api), self._forward_request),  # last: waiting sessions send requests at once
            ]
            for subject, handler in handlers:
                self._subscribed.append(hub.subscribe(subject, singly(handler), LINK_QUEUE))
        else:
            self._subscribed.append(hub.subscribe(self._api + b">", singly(self._respond_unavailable), local=True))
        for subscription in before:
            subscription.cancel()

    # ------------------------------------------------------------------ requests
    def _forward_request(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        rest = subject[len(self._api) :]
        if self._remote_prefix:
            # A request without a reply could circulate where domains lead back to each other.
            reply = reply or NO_REPLY
            if reply.count(_INBOX) > MAX_REMOTES:
                self._respond_error(
                    rest, reply, ApiError(*UNAVAILABLE, f"request crossed more than {MAX_REMOTES} remotes")
                )
                return
        if rest.startswith(_NEXT) and reply:
            back = self._open_pull(reply)
        else:
            back = self._replies + reply if reply else b""
            if rest.startswith(_DELIVERING):
                request = remote_bodies.translated_request(payload, self._pushes_there)
                if request is not None:
                    payload, pushed = request
                    if not fits_protocol_line(pushed.there, pushed.group):
                        self._respond_error(rest, reply, api_error(10003))
                        return
                    self._open_push(pushed)
            elif rest.startswith(_RESET):
                self._reset(rest, reply, header, payload)
                return
        self._send_request(rest, reply, back, header, payload)

    def _send_request(self, rest: bytes, reply: bytes, back: bytes, header: bytes, payload: bytes) -> None:
        if not self._publish(self._there(rest), back, header, payload) and reply:
            error = api_error(10054) if self.link.up else self._unavailable()
            self._respond_error(rest, reply, error)

    def _reset(self, rest: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Deliver the messages of a prepared consumer to a session. It delivers to a subject that only the remote
        knows, and other consumers of that subject may be in use there."""

        wanted = headers.get(header, DELIVER_HEADER) or b""
        header = headers.remove(header, [DELIVER_HEADER]) if wanted else header

        def on_info(answer: RemoteAnswer | None) -> None:
            pushed = remote_bodies.prepared_consumer(answer.payload) if answer is not None else None
            if pushed is not None and pushed.there.startswith(self._pushes_there):
                pushed = None  # made through this link
            own = wanted.startswith(SESSIONS) and valid_literal(wanted)
            if pushed is not None and own and fits_protocol_line(pushed.there, pushed.group):
                self._open_push(pushed._replace(here=wanted))
            self._send_request(rest, reply, self._replies + reply if reply else b"", header, payload)

        self.link.request(self._there(b"CONSUMER.INFO." + rest[len(_RESET) :]), b"", b"", on_info)

    def _there(self, rest: bytes) -> bytes:
        """Return the subject of a request on the remote."""
        if not self.link.options.remote_domain and rest.startswith(_STORES):
            return rest
        return self.link.api + rest

    def _respond_unavailable(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo
    ) -> None:
        if reply and self.link.hub.elsewhere(subject, LINK_QUEUE) is None:
            self._respond_error(subject[len(self._api) :], reply, self._unavailable())

    def _unavailable(self) -> ApiError:
        return ApiError(*UNAVAILABLE, f"remote {self.link.name} is not connected: {self.link.error}")

    def _respond_error(self, rest: bytes, reply: bytes, error: ApiError) -> None:
        """Answer a request that does not get there, as its like are answered."""
        if rest.startswith((_NEXT, _DIRECT)):
            self.link.hub.send(Single(reply, header=_UNAVAILABLE_HEADER))
        else:
            self.link.hub.send(Single(reply, payload=dumps({"error": error.as_dict()})))

    def _forward(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        """Forward a flow control response, or a chunk of a backup."""
        word, _, rest = subject[len(self._own) :].partition(b".")
        there = b"$JS."
        if self._remote_prefix and rest.startswith(MARK + b"."):
            there, rest = self._remote_prefix, rest[len(MARK) + 1 :]
        self._publish(b"%b%b.%b" % (there, word, rest), self._replies + reply if reply else b"", header, payload)

    def _forward_ack(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        there = ack_there(subject)
        if not there:
            return  # of a stream here with the domain's name
        back = b""
        if reply:
            back = self._open_pull(reply) if payload.startswith(b"+NXT") else self._replies + reply
        self._publish(there, back, header, payload)

    def _publish(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> bool:
        """Publish on the remote; a client that sends more than the link takes is not read until it drains."""
        link = self.link
        sent = link.publish(subject, reply, header, payload)
        if link.congested:
            link.hub.turn.overrun = link
        return sent

    # ------------------------------------------------------------------ answers
    def _forward_responses(self, messages: Sequence[Single]) -> None:
        send, at = self.link.hub.send, len(self._replies)
        for each in messages:
            reply, header, payload = each.reply, each.header, each.payload
            pushes = self._translator.consumer(header, payload)
            if pushes is not None:
                self._open_push(pushes)
                payload = self._translator.shown(header, payload)
            elif payload:
                payload = self._translator.shown(header, payload)
            send(Single(each.subject[at:], self._back(reply) if reply else b"", header, payload))

    def _back(self, reply: bytes) -> bytes:
        """Return a reply subject of the remote as it is called here; b"" for one that is not JetStream's."""
        if reply.startswith(_ACK):
            if reply.count(b".") == V1_DOTS:
                return self._ack_v1 + reply[len(_ACK) :]
            return ack_here(self._domain, reply)
        if reply.startswith((b"$JS.FC.", b"$JS.SNAPSHOT.")):
            return self._own + reply[4:]
        for word in (b"FC.", b"SNAPSHOT."):
            theirs = self._remote_prefix + word
            if self._remote_prefix and reply.startswith(theirs):  # of a domain behind the remote
                return b"%b%b%b.%b" % (self._own, word, MARK, reply[len(theirs) :])
        return b""

    def _stalled(self, header: bytes) -> bytes:
        """Return a heartbeat with its flow control subject as it is called here."""
        wanted = headers.get(header, b"Nats-Consumer-Stalled")
        return headers.replaced(header, b"Nats-Consumer-Stalled", self._back(wanted)) if wanted else header

    # ------------------------------------------------------------------ deliveries
    def _open_pull(self, reply: bytes) -> bytes:
        """Return the subject there for a reply subject to which a consumer delivers."""
        path = self._pulls.get(reply)
        if path is None:
            self._number += 1
            to = DeliverTarget(b"%b%d" % (self._pulls_there, self._number), reply, b"", True)
        else:
            to = path.to
        return self._pulls.open(reply, to).to.there

    def _open_push(self, pushed: DeliverTarget) -> None:
        """Deliver what a consumer there sends, whenever there is interest here."""
        self._pushes.open(pushed.there, pushed)

    def deliver(self, path: Path, messages: Sequence[Single]) -> bool:
        """Deliver the messages of a path; return False without interest here."""
        there, here, _, acked = path.to
        back, kept = self._back, b" " if acked else _ACK
        batch = []
        for each in messages:
            subject, reply, header, payload = each.subject, each.reply, each.header, each.payload
            if reply and not reply.startswith(kept):
                reply = back(reply)
            if header and not payload and header.startswith(_STATUS) and b".FC." in header:
                header = self._stalled(header)
            batch.append(Single(here if subject == there else subject, reply, header, payload))
        return self.link.hub.send(ListedMessages(batch, to=here))
