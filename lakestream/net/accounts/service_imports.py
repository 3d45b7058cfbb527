"""Requests to services in other accounts.

Belongs here: the subscription of a service import, the request as the exporting account sees it, and no responders.
Replies are in responses.py.

Such a subscription is not announced to other nodes: each node has the same configuration and forwards the requests
of its own clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from lakestream.config.account_options import Latency
from lakestream.config.sharing import ImportSubjects
from lakestream.net.accounts.responses import Kind, Responses
from lakestream.net.accounts.service_latency import BAD_REQUEST, Measured, Sampler
from lakestream.net.interest.subscription import SingleSink, Subscription
from lakestream.net.tracing import MessageTrace
from lakestream.ports import ClientInfo, Single
from lakestream.protocol import headers
from lakestream.protocol.api.jsonio import dumps
from lakestream.protocol.client import TRACE_DESTINATION, TRACE_DISABLED, Sight, client_shown
from lakestream.protocol.subjects import intersection, is_reserved

_SERVERS = ("System", "Leafnode")
"""Kinds of clients whose messages without a reply subject of their own are deliveries: to a subject of the consumer, of
republishing or of a request."""

MAX_HOPS = 16
"""Accounts that a request may cross (default). A request beyond that is dropped: its imports form a ring."""


class ServerNames(msgspec.Struct, frozen=True):
    """Names of the requester's server in a shared request."""

    server: str
    cluster: str = ""


def _theirs(sight: Sight, subjects: ImportSubjects) -> Sight:
    """Return what a sight of an importing account has of an import, by the exporter's names."""

    def renamed(filters: Iterable[str]) -> tuple[str, ...]:
        found = (intersection(subjects.ours, each.encode()) for each in filters)
        return tuple(subjects.to_theirs(each).decode() for each in found if each is not None)

    return Sight(renamed((">",) if sight.allow is None else sight.allow), renamed(sight.deny))


class ServiceTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of a service import, of the export and the import together.

    Attributes:
        subjects: its subjects in both accounts.
        kind, threshold_ns: of the export; see `ReplyPath`.
        share: send the requester's identity with the request.
        allow_trace: a trace continues in the exporting account.
        latency: latency sampling; None: off.
    """

    subjects: ImportSubjects
    kind: Kind
    threshold_ns: int
    share: bool = False
    allow_trace: bool = False
    latency: Latency | None = None


class ServiceImportSink(SingleSink):
    """The sink of a service import in the importing account.

    Args:
        importer, exporter: the reply paths of the two accounts.
        where: returns the names of this server.
        streams: returns the subjects that the importing account imports from the exporting one.
    """

    def __init__(
        self,
        importer: Responses,
        exporter: Responses,
        service: ServiceTerms,
        where: Callable[[], ServerNames],
        streams: Callable[[], Iterable[ImportSubjects]] = tuple,
    ) -> None:
        self.importer, self.exporter, self.service = importer, exporter, service
        self._where, self._streams = where, streams
        self._hops = 0
        self._sampler = Sampler(service.latency) if service.latency is not None else None
        self._shown: dict[str, Any] = {}
        self._info = self._block = b""
        self._prepared_for: ClientInfo | None = None
        self._client: ClientInfo | None = None
        self._sub = Subscription(self, service.subjects.ours, b"", b"")
        self._sub.local = True

    def start(self) -> None:
        """Subscribe to requests."""
        self.importer.hub.interest_graph.insert(self._sub)

    def stop(self) -> None:
        """Unsubscribe."""
        self.importer.hub.interest_graph.remove(self._sub)

    # ------------------------------------------------------------------ sink
    def traced(self, trace: MessageTrace, sub: Subscription, message: Single, client: ClientInfo) -> None:
        subject, reply, header = message.subject, message.reply, message.header
        trace.crosses(self.exporter.hub.account, self._exported(subject), subject)
        if self.service.allow_trace:
            # Traces of other nodes come back like replies.
            to = headers.get(header, TRACE_DESTINATION) or b""
            path = self.exporter.open(self.importer, subject, to, "stream", self.service.threshold_ns)
            self.receive(sub, message, client, trace, path)
        elif not trace.only:
            self.receive(sub, message, client, None, TRACE_DISABLED)
        elif reply:
            self.unanswered(subject, reply)

    def _exported(self, subject: bytes) -> bytes:
        """Return the subject of a request in the exporting account."""
        there = self.service.subjects.to_theirs(subject)
        mappings = self.exporter.hub.mappings
        return there if mappings is None else mappings.apply(there)

    def receive(
        self,
        sub: Subscription,
        message: Single,
        client: ClientInfo,
        trace: MessageTrace | None = None,
        traced_to: bytes = b"",
    ) -> None:
        """Forward a request. `trace`: continues there; `traced_to`: the destination of traces there."""
        if self._hops >= MAX_HOPS or (client.service and self.importer is self.exporter):
            return  # an import from the account itself is followed once
        subject, reply, header = message.subject, message.reply, message.header
        there = self._exported(subject)
        answers = client.answers or (client.kind in _SERVERS and (not reply or reply.startswith(b"$JS.")))
        if answers and is_reserved(there) and not is_reserved(subject):
            return  # nobody asks JetStream in the name of others, by a name that hides it
        if client is not self._prepared_for:
            self._prepare(client)
        if headers.REQUEST_INFO in header:
            header = headers.remove(header, [headers.REQUEST_INFO])
        if traced_to:
            lines = [(headers.REQUEST_INFO, self._info), (TRACE_DESTINATION, traced_to)]
            header = headers.append(headers.remove(header, [TRACE_DESTINATION]), lines)
        else:
            header = headers.append(header, [(headers.REQUEST_INFO, self._info)]) if header else self._block
        exporter, service = self.exporter, self.service
        measured = None if self._sampler is None else self._measured(self._sampler, header)
        path = b""
        if reply:
            path = exporter.open(self.importer, subject, reply, service.kind, service.threshold_ns, self, measured)
        elif measured is not None:
            measured.failed(BAD_REQUEST)
        assert self._client is not None, "prepared together with the header"
        sender = replace(self._client, answers=True) if answers else self._client
        self._hops += 1
        try:
            request = Single(there, path, header, message.payload)
            if trace is None:
                found = exporter.hub.route(None, sender, request)
            else:
                found = trace.route(exporter.hub, sender, request)
        finally:
            self._hops -= 1
        if not found and reply:
            exporter.no_responders(self._sub, there, path)

    def _prepare(self, client: ClientInfo) -> None:
        """Prepare the header and the identity of a client for the exporting account."""
        share, where = self.service.share, self._where()
        if not share and not client.service:
            client_there = ClientInfo(id=0, host="", account=client.account, kind="", rtt_ns=client.rtt_ns)
        else:
            client_there = client
        # A shared identity is passed on through further accounts.
        known = share or client_there.id
        shown = client_shown(client_there, where.server if known else "", where.cluster if known else "", token=True)
        self._shown, self._info = shown, dumps(shown)
        self._block = headers.build([(headers.REQUEST_INFO, self._info)])
        self._prepared_for, self._client = (
            client,
            replace(client_there, service=self.exporter.hub.account, answers=False, sees=self._seen(client), roles=()),
        )

    def _seen(self, client: ClientInfo) -> tuple[Sight, ...] | None:
        """Return what a client may see of the exporting account; None: everything, as the account itself may.

        A user with restrictions sees the messages that its account imports, as far as they are allowed to it under the
        account's own names. Imported messages are not exported again: through two accounts nothing is seen.
        """
        if client.sees is None or client.service:
            return None if client.sees is None else ()
        return tuple(_theirs(sight, subjects) for subjects in self._streams() for sight in client.sees)

    def _measured(self, sampler: Sampler, header: bytes) -> Measured | None:
        traced = sampler.chosen(header)
        if traced is None:
            return None
        exporter = self.exporter
        return Measured(exporter.hub, exporter.clock, sampler.subject, self._where().server, self._shown, traced)

    # ------------------------------------------------------------------ no responders
    def unanswered(self, subject: bytes, reply: bytes) -> None:
        """Report no responders, unless the importing account has another subscriber for the request. Of several imports
        that match it the first one reports, and only when none of the others finds a responder."""
        match = self.importer.hub.interest_graph.match(subject)
        imports = [sub.sink for sub in match.plain if isinstance(sub.sink, ServiceImportSink)]
        if match.queues or len(imports) < len(match.plain) or imports[:1] != [self]:
            return
        seen = {id(self)}
        if not any(other.reaches(subject, seen) for other in imports[1:]):
            self.importer.hub.no_responders(subject, reply)

    def reaches(self, subject: bytes, seen: set[int]) -> bool:
        """Return True if a request has a responder in the exporting account, or beyond it. `seen`: imports that were
        asked already."""
        if id(self) in seen:
            return False
        seen.add(id(self))
        there = self._exported(subject)
        match = self.exporter.hub.interest_graph.match(there)
        if match.queues:
            return True
        sinks = [sub.sink for sub in match.plain]
        return any(not isinstance(sink, ServiceImportSink) or sink.reaches(there, seen) for sink in sinks)
