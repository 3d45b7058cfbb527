"""Message tracing: the path of a message, sent to the subject that its publisher or its account named.

Belongs here: which messages are traced, their routing, and the trace message. A trace is sent once the message is
routed and, where a stream took part, once that has settled (stream/features/traces.py).
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from lakestream.config.account_options import TraceOptions
from lakestream.net.hub import Hub
from lakestream.net.interest.subscription import NamedSink, Sink, Subscription, hides
from lakestream.ports import ClientInfo, Clock, Single
from lakestream.protocol import headers, s2
from lakestream.protocol.api.jsonio import dumps
from lakestream.protocol.client import TRACE_DESTINATION, TRACE_DISABLED, traced
from lakestream.protocol.gotime import format_time
from lakestream.protocol.subjects import publishable

CLIENT_KIND, NODE_KIND = 0, 1
"""Kinds of clients in nats-server's traces: clients, and other servers of the cluster."""

MAX_HEADER_BYTES = 128 << 10
"""Messages with more bytes of headers (128 KiB) are not traced."""

NOT_ECHOED = "Not delivered because of no echo"
NOT_ALLOWED = "Not delivered because subscription denies this subject"

_ACCOUNT, _HOP = b"Nats-Trace-Origin-Account", b"Nats-Trace-Hop"
_API = b"$JS.API."
_DIRECT = (b"$JS.API.DIRECT.GET.", b"$JS.API.CONSUMER.MSG.NEXT.")
"""API requests that are not traced as service imports: nats-server serves them in the account itself."""
_USER_INFO = b"$SYS.REQ.USER.INFO"
_SERVICES = (b"$JS.", b"$SYS.")
_EVENTS = b"$JS.EVENT."
_MAPPED = (b"STREAM.", b"CONSUMER.", b"DIRECT.", b"META.", b"SERVER.", b"ACCOUNT.")
_STORES = (b"$KV.", b"$OBJ.")
_PARENT = re.compile(rb"\r\ntraceparent[ \t]*:", re.IGNORECASE).search
_LEAF = "Leafnode"
_SNAPPY = b"\xff\x06\x00\x00sNaPpY"


@runtime_checkable
class CrossAccount(Protocol):
    """A sink that hands messages to another account and adds that to a trace."""

    def traced(self, trace: MessageTrace, sub: Subscription, message: Single, client: ClientInfo) -> None:
        """Receive a message that is traced, or only traced."""


class Tracing:
    """Traces the messages that this node routes.

    Args:
        hub: publishes the traces.
        server: returns the description of this server in a trace.
        domain: of this server; "" for none.
        external: returns where the account's messages with `traceparent` are traced; None: nowhere.
    """

    def __init__(
        self,
        hub: Hub,
        clock: Clock,
        server: Callable[[], dict[str, Any]],
        domain: str = "",
        external: Callable[[], TraceOptions | None] = lambda: None,
    ) -> None:
        self._hub, self._clock, self._server, self._external = hub, clock, server, external
        self._prefix = f"$JS.{domain}.API.".encode() if domain else b""

    def route(self, origin: Sink, client: ClientInfo, message: Single, mapped: bytes | None = None) -> bool:
        """Route a client's message like `Hub.route`, with its trace. `mapped`: the subject that it is mapped to."""
        trace = self._begin(client, message, (client.id, client.name, CLIENT_KIND), mapped)
        original, header = message.subject, message.header
        if trace is None:
            subject = original if mapped is None else mapped
            # Only servers may request traces for another account: no server must take it for such a request. And one
            # that was not chosen as a sample is not to be traced elsewhere.
            if headers.get(header, _ACCOUNT) is not None or self._requested(header)[2]:
                header = headers.append(
                    headers.remove(header, [TRACE_DESTINATION]), [(TRACE_DESTINATION, TRACE_DISABLED)]
                )
            return self._hub.route(origin, client, Single(subject, message.reply, header, message.payload))
        routed = message.under(trace.subject)
        found = False
        for sub in self._hub.chosen(trace.subject, origin, hides):
            if sub.sink is origin and not sub.sink.echo:
                trace.delivered(sub, NOT_ECHOED)
            elif trace.admits(sub):
                trace.hand(sub, routed, client)
                found = True
        trace.routed()
        return found

    def refused(self, client: ClientInfo, message: Single, mapped: bytes | None, error: str) -> None:
        """Trace a message that permissions reject. `mapped`: what its account maps the subject to."""
        trace = self._begin(client, message, (client.id, client.name, CLIENT_KIND), mapped, error)
        if trace is not None:
            trace.routed()

    def arrived(self, node: NamedSink, message: Single, client: ClientInfo, subs: Sequence[Subscription]) -> None:
        """Hand a message that another node routed here to these subscribers of this node."""
        trace = self._begin(client, message, (node.id, node.name, NODE_KIND))
        for sub in subs:
            if trace is None:
                sub.sink.take(sub, message, 0, 1, client)
            elif trace.admits(sub):
                trace.hand(sub, message, client)
        if trace is not None:
            trace.routed()

    def destination(self, header: bytes) -> bytes:
        """Return the destination of the trace of a client's message with these headers; b"": not traced."""
        to, fields, _ = self._requested(header)
        return b"" if _ACCOUNT.decode() in fields else to

    def follows(self, data: bytes) -> bool:
        """Return True if these bytes may have the header of an external trace that the account follows."""
        return self._external() is not None and _PARENT(data) is not None

    def _requested(self, header: bytes) -> tuple[bytes, dict[str, list[str]], bool]:
        """Return the destination of the trace of a message (b"": not traced), its headers, and True if the account
        names the destination."""
        if not header.startswith(headers.LINE) or len(header) > MAX_HEADER_BYTES:
            return b"", {}, False  # a block with a status is not a client's message
        fields = parsed(header)
        named, follows = fields.get(TRACE_DESTINATION.decode()), self._external()
        if named is None and follows is not None and any(map(_is_sampled, _parents(fields))):
            return follows.destination.encode(), fields, True
        to = (named or [""])[0].encode("utf-8", "surrogateescape")
        return to if publishable(to) else b"", fields, False

    def _begin(
        self,
        client: ClientInfo,
        message: Single,
        source: tuple[int, str, int],
        mapped: bytes | None = None,
        error: str = "",
    ) -> MessageTrace | None:
        """Return the trace of a message from `source` (number, name, kind); None: not traced."""
        cid, name, kind = source
        subject, header, payload = message.subject, message.header, message.payload
        to, fields, external = self._requested(header)
        if not to or (kind == CLIENT_KIND and _ACCOUNT.decode() in fields):
            return None
        follows = self._external() if external and kind == CLIENT_KIND and client.kind != _LEAF else None
        if follows is not None and random.randrange(100) >= follows.percent:
            return None
        event: dict[str, Any] = {"type": "in", "ts": self.now(), "kind": kind, "cid": cid}
        if name:
            event["name"] = name
        event |= {"acc": client.account, "subj": _text(subject)}
        if error:
            event["error"] = error
        trace = MessageTrace(self, to, fields, len(header) + len(payload), event, may_be_only=not external)
        # A mapping of the account precedes that of the domain.
        if mapped is None:
            by_domain = self.of_domain(subject)
            mapped = by_domain if by_domain != subject else None
        trace.routed_by(subject, mapped)
        return trace

    def of_domain(self, subject: bytes) -> bytes:
        """Return the subject without the prefix of this server's domain (docs/internals/api.md#requests)."""
        if not self._prefix or not subject.startswith(self._prefix):
            return subject
        rest = subject[len(self._prefix) :]
        if rest.startswith(_STORES):
            return rest
        return _API + rest if rest == b"INFO" or rest.startswith(_MAPPED) else subject

    def now(self) -> str:
        """Return the time as traces show it."""
        return format_time(self._clock.now())

    def send(self, to: bytes, request: dict[str, Any], events: list[dict[str, Any]], hops: int, coding: str) -> None:
        """Publish a trace in the next turn, so that its effects do not mix with the message's."""
        if not self._hub.interest(to):
            return
        shown: dict[str, Any] = {"server": self._server(), "request": request}
        if hops:
            shown["hops"] = hops
        shown["events"] = events
        header, body = encoded(dumps(shown), coding)

        def publish() -> None:
            self._hub.send(Single(to, header=header, payload=body))

        self._clock.call_soon(publish)


class MessageTrace:
    """The trace of one message; implements `protocol.client.Trace`."""

    def __init__(
        self,
        tracing: Tracing,
        to: bytes,
        fields: dict[str, list[str]],
        size: int,
        ingress: dict[str, Any],
        *,
        may_be_only: bool,
    ) -> None:
        self._tracing, self._to, self._fields, self._size = tracing, to, fields, size
        self.only = may_be_only and fields.get("Nats-Trace-Only", [""])[0].lower() in ("1", "true", "on")
        self._events = [ingress]
        self._stream: dict[str, Any] | None = None
        self._waiting = 1
        self._hops: dict[Sink, bytes] = {}
        self._parent_hop = fields.get("Nats-Trace-Hop", [""])[0] if ingress["kind"] == NODE_KIND else ""
        self._service = ""
        self._account = ""
        self.subject = b""
        """The subject that the message is routed by."""

    def routed_by(self, subject: bytes, mapped: bytes | None) -> None:
        """Note the subject that the message is routed by: its own or the mapped one."""
        subject = subject if mapped is None else mapped
        self.subject = subject
        text = _text(subject)
        if mapped is not None:
            self._events.append({"type": "sm", "ts": self._tracing.now(), "to": text})
        ingress = self._events[0]
        self._service = service_of(subject, ingress["acc"]) if "error" not in ingress else ""
        if self._service:
            shown = {"type": "si", "ts": self._tracing.now(), "acc": "$SYS"}
            self._events.append(shown | {"from": text, "to": self._service})

    def crosses(self, account: str, subject: bytes, requested: bytes = b"") -> None:
        """Note that the message crosses into another account, as a stream export or (`requested`) a service request."""
        event: dict[str, Any] = {"type": "si" if requested else "se", "ts": self._tracing.now(), "acc": account}
        if requested:
            event["from"] = _text(requested)
        self._events.append(event | {"to": _text(subject)})

    def route(self, hub: Hub, client: ClientInfo, message: Single) -> bool:
        """Route the message in another account like `Hub.route`, and trace its receivers there."""
        subject = message.subject
        before = self._account, self._service
        self._account, self._service = hub.account, service_of(subject, hub.account)
        if self._service:
            self.crosses("$SYS", self._service.encode(), subject)
        found = False
        for sub in hub.chosen(subject, None, hides):
            if hides(sub.sink, subject):
                self.delivered(sub, NOT_ALLOWED)
            elif self.admits(sub):
                self.hand(sub, message, client)
                found = True
        self._account, self._service = before
        return found

    def hand(self, sub: Subscription, message: Single, client: ClientInfo) -> None:
        """Hand the message to one subscriber, or only add it to the trace."""
        subject = message.subject
        if sub.remote is not None:
            marked = Single(subject, message.reply, self._header_for(sub, message.header), message.payload)
            sub.sink.take(sub, marked, 0, 1, client)
        elif isinstance(sub.sink, CrossAccount):
            sub.sink.traced(self, sub, message, client)
        elif isinstance(sub.sink, NamedSink):
            # A denied receiver passes it on, or reports that it is denied to all.
            self.delivered(sub, NOT_ALLOWED if hides(sub.sink, subject) else "")
            if not self.only:
                sub.sink.take(sub, message, 0, 1, client)
        else:
            # Requests to this server keep their plain client; a stream reports to the trace.
            plain = subject.startswith(_SERVICES) and not subject.startswith(_EVENTS)
            sub.sink.take(sub, message, 0, 1, client if plain else traced(client, self))

    def delivered_to(self, sub: Subscription, account: str, sink: Sink) -> None:
        """Note that a client of another account receives it, through a shadow subscription."""
        before, self._account = self._account, account
        self.delivered(sub, sink=sink)
        self._account = before

    def admits(self, sub: Subscription) -> bool:
        """Return False for services when the message is only traced."""
        return not (self.only and self._service) or isinstance(sub.sink, NamedSink)

    def _header_for(self, sub: Subscription, header: bytes) -> bytes:
        """Return the header block for another node, with the hop that all of its subscribers share."""
        hops, node = self._hops, sub.sink
        if node not in hops:
            hop = f"{self._parent_hop}.{len(hops) + 1}" if self._parent_hop else str(len(hops) + 1)
            hops[node] = headers.append(headers.remove(header, [_HOP]), [(_HOP, hop.encode())])
            self.delivered(sub, hop=hop)
        return hops[node]

    def delivered(self, sub: Subscription, error: str = "", hop: str = "", sink: Sink | None = None) -> None:
        """Note a client or node that receives the message, or would. `sink`: the receiver behind a shadow."""
        receiver = sink or sub.sink
        if not isinstance(receiver, NamedSink):
            return
        kind = CLIENT_KIND if sub.remote is None else NODE_KIND
        event: dict[str, Any] = {"type": "eg", "ts": self._tracing.now(), "kind": kind, "cid": receiver.id}
        if receiver.name:
            event["name"] = receiver.name
        if self._account:
            event["acc"] = self._account
        if hop:
            event["hop"] = hop
        if kind == CLIENT_KIND:
            event["sub"] = _text(sub.subject)
            if sub.queue:
                event["queue"] = _text(sub.queue)
        if error:
            event["error"] = error
        self._events.append(event)

    def reached(self, stream: str) -> None:
        self._stream = {"type": "js", "ts": self._tracing.now(), "stream": stream}
        self._events.append(self._stream)
        self._waiting += 1

    def settled(self, subject: bytes = b"", *, unwanted: bool = False, error: str = "") -> None:
        assert self._stream is not None, "a stream says first that it has the message"
        if subject:
            self._stream["subject"] = _text(subject)
        if unwanted:
            self._stream["nointerest"] = True
        if error:
            self._stream["error"] = error
        self.routed()

    def routed(self) -> None:
        """Note that one of the awaited steps is done; send the trace after the last."""
        self._waiting -= 1
        if not self._waiting:
            request = {"header": dict(sorted(self._fields.items())), "msgsize": self._size}
            coding = self._fields.get("Accept-Encoding", [""])[0]
            self._tracing.send(self._to, request, self._events, len(self._hops), coding)


def service_of(subject: bytes, account: str) -> str:
    """Return the service import of a request to the system; "" for other messages."""
    if subject == _USER_INFO:
        return f"$SYS.REQ.USER.{account}.INFO"
    if subject.startswith(_API) and not subject.startswith(_DIRECT):
        return _text(subject)
    return ""


def _parents(fields: dict[str, list[str]]) -> list[str]:
    return [value for name, values in fields.items() if name.lower() == "traceparent" for value in values]


def _is_sampled(parent: str) -> bool:
    """Return True if a `traceparent` asks for a trace. Only its flags are looked at, as by nats-server."""
    words = parent.split("-")
    return len(words) == 4 and re.fullmatch("[0-7][0-9a-fA-F]", words[3]) is not None and int(words[3], 16) % 2 == 1


def parsed(header: bytes) -> dict[str, list[str]]:
    """Return the header block as a trace shows it: values without surrounding blanks, empty ones left out.

    A line without a colon is joined with the next one, as in nats-server.
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


def encoded(body: bytes, accepted: str) -> tuple[bytes, bytes]:
    """Return header block and body of a trace in an encoding that the publisher accepts ("": none given)."""
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
