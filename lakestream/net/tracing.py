"""Message tracing: where a message went, told to whoever its publisher named (Nats-Trace-Dest).

Belongs here: which messages are traced, the routing of one, and what its trace looks like. A trace leaves once the
message is routed and, where a stream took part, once that has settled (stream/features/traces.py). The hub routes
everything else without looking here.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from lakestream.net.accounts.guard import hides
from lakestream.net.interest.interest import Subscription
from lakestream.ports import ClientInfo, Clock
from lakestream.protocol import headers, s2
from lakestream.protocol.api.jsonio import dumps
from lakestream.protocol.gotime import format_time
from lakestream.protocol.route_wire import Routed
from lakestream.protocol.subjects import publishable
from lakestream.stream.features.traces import DESTINATION, DISABLED, traced

if TYPE_CHECKING:
    from lakestream.net.hub import Hub, Sink

CLIENT_KIND, NODE_KIND = 0, 1
"""How nats-server numbers clients, and other servers of the cluster."""

MAX_HEADER_BYTES = 128 << 10
"""A message with more bytes of headers (128 KiB) is not traced; it goes where it would go without."""

NOT_ECHOED = "Not delivered because of no echo"
NOT_ALLOWED = "Not delivered because subscription denies this subject"

_ACCOUNT = b"Nats-Trace-Origin-Account"
_API = b"$JS.API."
_DIRECT = (b"$JS.API.DIRECT.GET.", b"$JS.API.CONSUMER.MSG.NEXT.")
"""Requests that are not told as going to the system: nats-server has their listeners in the account itself."""
_USER_INFO = b"$SYS.REQ.USER.INFO"
_SERVICES = (b"$JS.", b"$SYS.")
_EVENTS = b"$JS.EVENT."
_MAPPED = (b"STREAM.", b"CONSUMER.", b"DIRECT.", b"META.", b"SERVER.", b"ACCOUNT.")
_STORES = (b"$KV.", b"$OBJ.")
_SNAPPY = b"\xff\x06\x00\x00sNaPpY"


@runtime_checkable
class Named(Protocol):
    """A receiver that a trace can name: a client, or another node. What belongs to this server is not named."""

    id: int
    name: str


@runtime_checkable
class Abroad(Protocol):
    """A receiver that takes messages to another account, and tells a trace how they go on there."""

    def traced(
        self,
        trace: MessageTrace,
        sub: Subscription,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
        client: ClientInfo,
    ) -> None:
        """`Sink.receive` of a message that is traced, or of one that is only traced."""


class Tracing:
    """Traces of the messages that this node routes.

    Args:
        hub: sends them.
        server: what a trace says of this server; asked for each.
        domain: of this server; "" for none.
    """

    def __init__(self, hub: Hub, clock: Clock, server: Callable[[], dict[str, Any]], domain: str = "") -> None:
        self._hub, self._clock, self._server = hub, clock, server
        self._prefix = f"$JS.{domain}.API.".encode() if domain else b""

    def route(
        self,
        origin: Sink,
        client: ClientInfo,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
        mapped: bytes | None = None,
    ) -> bool:
        """`Hub.route` of a client's message that may be traced. `mapped`: what its account makes of the subject."""
        trace = self._begin(client, subject, header, payload, (client.id, client.name, CLIENT_KIND), mapped)
        if trace is None:
            subject = subject if mapped is None else mapped
            if headers.get(header, _ACCOUNT) is not None:
                # Only servers may ask for traces in another account's name: nobody shall take it for such a request.
                header = headers.append(headers.remove(header, [DESTINATION]), [(DESTINATION, DISABLED)])
            return self._hub.route(origin, client, subject, reply, header, payload)
        subject = trace.subject
        found = False
        for sub in self._hub.chosen(subject, origin, hides):
            if sub.sink is origin and not sub.sink.echo:
                trace.went(sub, NOT_ECHOED)
            elif trace.takes(sub):
                self.hand(trace, sub, subject, reply, header, payload, client)
                found = True
        trace.routed()
        return found

    def refused(
        self,
        client: ClientInfo,
        subject: bytes,
        mapped: bytes | None,
        header: bytes,
        payload: bytes,
        error: str,
    ) -> None:
        """A client's message is not taken. `mapped`: what its account makes of the subject, if anything."""
        trace = self._begin(client, subject, header, payload, (client.id, client.name, CLIENT_KIND), mapped, error)
        if trace is not None:
            trace.routed()

    def arrived(self, node: Named, message: Routed, client: ClientInfo, subs: Sequence[Subscription]) -> None:
        """Hand a message that another node routed here to these subscribers of this node."""
        subject, reply, header, payload = message.subject, message.reply, message.header, message.payload
        trace = self._begin(client, subject, header, payload, (node.id, node.name, NODE_KIND))
        for sub in subs:
            if trace is None:
                sub.sink.receive(sub, subject, reply, header, payload, client)
            elif trace.takes(sub):
                self.hand(trace, sub, subject, reply, header, payload, client)
        if trace is not None:
            trace.routed()

    @staticmethod
    def hand(
        trace: MessageTrace,
        sub: Subscription,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
        client: ClientInfo,
    ) -> None:
        """Hand a traced message to one subscriber, or only tell the trace that it would get it."""
        if sub.remote is not None:
            sub.sink.receive(sub, subject, reply, trace.towards(sub, header), payload, client)
        elif isinstance(sub.sink, Abroad):
            sub.sink.traced(trace, sub, subject, reply, header, payload, client)
        elif isinstance(sub.sink, Named):
            # Who may not have it passes it on, or tells that it is denied to all.
            trace.went(sub, NOT_ALLOWED if hides(sub.sink, subject) else "")
            if not trace.only:
                sub.sink.receive(sub, subject, reply, header, payload, client)
        else:
            # What is asked of this server may travel on with its client; a stream tells the trace what becomes of it.
            plain = subject.startswith(_SERVICES) and not subject.startswith(_EVENTS)
            sub.sink.receive(sub, subject, reply, header, payload, client if plain else traced(client, trace))

    @staticmethod
    def destination(header: bytes) -> bytes:
        """Where the trace of a client's message with these headers would go; b"" when it asks for none."""
        if not header.startswith(headers.LINE) or len(header) > MAX_HEADER_BYTES:
            return b""  # with a status it is no message of a client's own
        fields = parsed(header)
        to = fields.get(DESTINATION.decode(), [""])[0].encode("utf-8", "surrogateescape")
        return to if publishable(to) and _ACCOUNT.decode() not in fields else b""

    def _begin(
        self,
        client: ClientInfo,
        subject: bytes,
        header: bytes,
        payload: bytes,
        source: tuple[int, str, int],
        mapped: bytes | None = None,
        error: str = "",
    ) -> MessageTrace | None:
        """The trace of a message from `source` (number, name, kind), None when it asks for none."""
        if not header.startswith(headers.LINE) or len(header) > MAX_HEADER_BYTES:
            return None  # with a status it is no message of a client's own
        cid, name, kind = source
        fields = parsed(header)
        to = fields.get(DESTINATION.decode(), [""])[0].encode("utf-8", "surrogateescape")
        if not publishable(to) or (kind == CLIENT_KIND and _ACCOUNT.decode() in fields):
            return None
        event: dict[str, Any] = {"type": "in", "ts": self.now(), "kind": kind, "cid": cid}
        if name:
            event["name"] = name
        event |= {"acc": client.account, "subj": subject.decode("utf-8", "replace")}
        if error:
            event["error"] = error
        trace = MessageTrace(self, to, fields, len(header) + len(payload), event)
        # What an account maps is mapped by that alone.
        if mapped is None:
            by_domain = self.of_domain(subject)
            mapped = by_domain if by_domain != subject else None
        trace.going(subject, mapped)
        return trace

    def of_domain(self, subject: bytes) -> bytes:
        """The subject without the prefix of this server's domain (docs/internals/api.md#requests)."""
        if not self._prefix or not subject.startswith(self._prefix):
            return subject
        rest = subject[len(self._prefix) :]
        if rest.startswith(_STORES):
            return rest
        return _API + rest if rest == b"INFO" or rest.startswith(_MAPPED) else subject

    def now(self) -> str:
        """The time as traces show it."""
        return format_time(self._clock.now())

    def send(self, to: bytes, request: dict[str, Any], events: list[dict[str, Any]], hops: int, coding: str) -> None:
        """Publish a trace in the next turn: what it causes must not meet the middle of what it tells of."""
        if not self._hub.interest(to):
            return
        shown: dict[str, Any] = {"server": self._server(), "request": request}
        if hops:
            shown["hops"] = hops
        shown["events"] = events
        header, body = encoded(dumps(shown), coding)

        def publish() -> None:
            self._hub.publish(to, b"", header, body)

        self._clock.call_soon(publish)


class MessageTrace:
    """The trace of one message; see `traces.Trace`."""

    def __init__(
        self,
        tracing: Tracing,
        to: bytes,
        fields: dict[str, list[str]],
        size: int,
        ingress: dict[str, Any],
    ) -> None:
        self._tracing, self._to, self._fields, self._size = tracing, to, fields, size
        self.only = fields.get("Nats-Trace-Only", [""])[0].lower() in ("1", "true", "on")
        self._events = [ingress]
        self._stream: dict[str, Any] | None = None
        self._waiting = 1
        self._ways: dict[Sink, bytes] = {}
        self._before = fields.get("Nats-Trace-Hop", [""])[0] if ingress["kind"] == NODE_KIND else ""
        self._service = ""
        self._abroad = ""
        self.subject = b""
        """What the message is routed by."""

    def going(self, subject: bytes, mapped: bytes | None) -> None:
        """The message is routed by its subject, or by the one that it is mapped to."""
        subject = subject if mapped is None else mapped
        self.subject = subject
        text = subject.decode("utf-8", "replace")
        if mapped is not None:
            self._events.append({"type": "sm", "ts": self._tracing.now(), "to": text})
        ingress = self._events[0]
        self._service = service_of(subject, ingress["acc"]) if "error" not in ingress else ""
        if self._service:
            shown = {"type": "si", "ts": self._tracing.now(), "acc": "$SYS"}
            self._events.append(shown | {"from": text, "to": self._service})

    def crosses(self, account: str, subject: bytes, came: bytes = b"") -> None:
        """The message goes on in another account: to whoever hears it there, or as a request, which `came` so."""
        event: dict[str, Any] = {"type": "si" if came else "se", "ts": self._tracing.now(), "acc": account}
        if came:
            event["from"] = came.decode("utf-8", "replace")
        self._events.append(event | {"to": subject.decode("utf-8", "replace")})

    def route(self, hub: Hub, client: ClientInfo, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> bool:
        """`Hub.route` in another account, whose receivers the trace tells, too."""
        before = self._abroad, self._service
        self._abroad, self._service = hub.account, service_of(subject, hub.account)
        if self._service:
            self.crosses("$SYS", self._service.encode(), subject)
        found = False
        for sub in hub.chosen(subject, None, hides):
            if hides(sub.sink, subject):
                self.went(sub, NOT_ALLOWED)
            elif self.takes(sub):
                Tracing.hand(self, sub, subject, reply, header, payload, client)
                found = True
        self._abroad, self._service = before
        return found

    def shown(self, sub: Subscription, account: str, sink: Sink) -> None:
        """A client of another account has it, for a subscription that stands for its own."""
        before, self._abroad = self._abroad, account
        self.went(sub, sink=sink)
        self._abroad = before

    def takes(self, sub: Subscription) -> bool:
        """Whether this subscriber gets the message: services do not when it is only traced."""
        return not (self.only and self._service) or isinstance(sub.sink, Named)

    def towards(self, sub: Subscription, header: bytes) -> bytes:
        """The message's header block as it goes to another node, once for all of the node's subscribers."""
        ways, node = self._ways, sub.sink
        if node not in ways:
            hop = f"{self._before}.{len(ways) + 1}" if self._before else str(len(ways) + 1)
            ways[node] = with_hop(header, hop)
            self.went(sub, hop=hop)
        return ways[node]

    def went(self, sub: Subscription, error: str = "", hop: str = "", sink: Sink | None = None) -> None:
        """A client has it, or another node; or would have, if it were not only traced. `sink`: who stands behind."""
        who = sink or sub.sink
        if not isinstance(who, Named):
            return
        kind = CLIENT_KIND if sub.remote is None else NODE_KIND
        event: dict[str, Any] = {"type": "eg", "ts": self._tracing.now(), "kind": kind, "cid": who.id}
        if who.name:
            event["name"] = who.name
        if self._abroad:
            event["acc"] = self._abroad
        if hop:
            event["hop"] = hop
        if kind == CLIENT_KIND:
            event["sub"] = sub.subject.decode("utf-8", "replace")
            if sub.queue:
                event["queue"] = sub.queue.decode("utf-8", "replace")
        if error:
            event["error"] = error
        self._events.append(event)

    def reached(self, stream: str) -> None:
        """See `traces.Trace.reached`."""
        self._stream = {"type": "js", "ts": self._tracing.now(), "stream": stream}
        self._events.append(self._stream)
        self._waiting += 1

    def settled(self, subject: bytes = b"", *, unwanted: bool = False, error: str = "") -> None:
        """See `traces.Trace.settled`."""
        assert self._stream is not None, "a stream says first that it has the message"
        if subject:
            self._stream["subject"] = subject.decode("utf-8", "replace")
        if unwanted:
            self._stream["nointerest"] = True
        if error:
            self._stream["error"] = error
        self.routed()

    def routed(self) -> None:
        """One of those whom the trace waits for is done; after the last it is sent."""
        self._waiting -= 1
        if not self._waiting:
            request = {"header": dict(sorted(self._fields.items())), "msgsize": self._size}
            coding = self._fields.get("Accept-Encoding", [""])[0]
            self._tracing.send(self._to, request, self._events, len(self._ways), coding)


def service_of(subject: bytes, account: str) -> str:
    """Where a request to the system is told to go; "" for any other message."""
    if subject == _USER_INFO:
        return f"$SYS.REQ.USER.{account}.INFO"
    if subject.startswith(_API) and not subject.startswith(_DIRECT):
        return subject.decode("utf-8", "replace")
    return ""


def parsed(header: bytes) -> dict[str, list[str]]:
    """The header block as a trace shows it: values without the blanks around them, empty ones left out.

    A line without a colon is taken together with the next one, as nats-server does.
    """
    fields: dict[str, list[str]] = {}
    start = len(headers.LINE)
    while (colon := header.find(b":", start)) >= 0:
        end = header.find(b"\r\n", colon)
        end = end if end >= 0 else len(header)
        name, value = header[start:colon], header[colon + 1 : end].strip(b" \t")
        if name and value:
            fields.setdefault(_text(name), []).append(_text(value))
        start = end + 2
    return fields


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def with_hop(header: bytes, hop: str) -> bytes:
    """The header block as it goes to another node."""
    return headers.append(headers.remove(header, [b"Nats-Trace-Hop"]), [(b"Nats-Trace-Hop", hop.encode())])


def encoded(body: bytes, accepted: str) -> tuple[bytes, bytes]:
    """Header block and body of a trace for a publisher that accepts these encodings ("": it said nothing)."""
    accepted = accepted.lower()
    if not accepted:
        return b"", body
    if "snappy" in accepted or "s2" in accepted:
        coding, body = b"snappy", _SNAPPY + s2.encode(body)
    elif "gzip" in accepted:
        packer = zlib.compressobj(wbits=31)
        coding, body = b"gzip", packer.compress(body) + packer.flush()
    else:
        coding = b"identity"
    return headers.build([(b"Content-Encoding", coding)]), body
