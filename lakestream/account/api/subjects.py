"""The JetStream API as subjects.

Belongs here: which subjects are served, under `$JS.API.` and under the domain's prefix, what happens to a request
before its handler sees it, what is answered by silence, the answers of an account without JetStream, and the audit of
all requests. The handlers are in streams.py, account.py and consumers.py.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lakestream.account.api.account import AccountApi
from lakestream.account.api.consumers import ConsumerApi
from lakestream.account.api.messages import MessageApi
from lakestream.account.api.operator_requests import ClusterRequests
from lakestream.account.api.peers import ClusterApi, NoPeersApi
from lakestream.account.api.streams import StreamApi
from lakestream.account.engine import Engine
from lakestream.meta.requests import Forwarded
from lakestream.ports import Bus, ClientInfo, Subscribed
from lakestream.ports import Handler as Listener
from lakestream.protocol.api.advisory import advise
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.api.request import PREFIX, ApiPart, Handler, Request, Where, level_refused, prefixes
from lakestream.protocol.client import client_shown
from lakestream.protocol.frames import no_responders

SILENT = (
    "STREAM.>",
    "CONSUMER.*",
    "CONSUMER.*.*",
    "CONSUMER.*.*.*",
    "CONSUMER.LEADER.>",
    "CONSUMER.DURABLE.>",
    *(f"CONSUMER.{kind}.*.*.>" for kind in ("INFO", "DELETE", "PAUSE", "RESET", "UNPIN")),
    "META.>",
    "ACCOUNT.>",
    "SERVER.>",
)
"""Subjects that have a listener whether or not something answers: a request there times out, as with nats-server,
instead of being told that nobody is there. DIRECT.GET and CONSUMER.MSG.NEXT are left out on purpose: without their
stream or consumer they have no responders."""

UNCOUNTED = "STREAM.MSG.GET.*"
"""A request whose success is neither counted nor audited, as with nats-server: it is reading."""

UNHEARD = frozenset({"CONSUMER.DURABLE.CREATE.*", "CONSUMER.RESET.*.*"})
"""Requests that get no answer in an account without JetStream."""

JUDGED = frozenset(
    {
        "CONSUMER.CREATE.*",
        "CONSUMER.CREATE.*.*",
        "CONSUMER.CREATE.*.*.>",
        "CONSUMER.DURABLE.CREATE.*.*",
        "CONSUMER.INFO.*.*",
        "CONSUMER.PAUSE.*.*",
        "CONSUMER.UNPIN.*.*",
    }
)
"""Requests whose body is looked at before an account without JetStream refuses them, as by nats-server."""

OF_BODIES = (10025, 10038)
"""Refusals of a body: no JSON, and that there should be none."""

AUDIT = b"$JS.EVENT.ADVISORY.API"

STORES = (b"$KV.>", b"$OBJ.>")
"""Subjects that are mapped to those of streams behind the domain's prefix (docs/internals/api.md#requests)."""


def _parts(engine: Engine, counts: Callable[[], tuple[int, int]]) -> list[ApiPart]:
    """Return every group of handlers that an account has."""
    parts: list[ApiPart] = [AccountApi(engine, counts), StreamApi(engine), MessageApi(engine), ConsumerApi(engine)]
    if not engine.node.answers.peers:
        return [*parts, NoPeersApi()]
    parts.append(ClusterApi(engine))
    # Where there is no system account to log in to, whoever may connect sees to the cluster.
    return [*parts, ClusterRequests(engine)] if engine.account == engine.shared.system else parts


class Route(NamedTuple):
    """A handler and what is known of its requests."""

    pattern: str
    kind: str
    handler: Handler
    empty: Mapping[str, Any]
    level: bool
    where: Where


class Api:
    """Serves the API of one engine; implements `Routes` and `Answered`. Counts what account info shows."""

    def __init__(self, engine: Engine) -> None:
        self.total = 0
        """Requests answered."""
        self.errors = 0
        """Those answered with an error."""
        self.internal_errors = 0
        """Exceptions that escaped a handler; each is logged."""
        self.strict = engine.options.strict
        """See `Answered.strict`."""
        self.account = engine.account
        self._bus: Bus = engine.bus
        self._requests, self._keeping = engine.node.requests, engine.node.keeping
        self._prefixes = prefixes(engine.domain)
        self._engine = engine
        self._subscriptions: list[Subscribed] = []
        self._listeners: list[tuple[bytes, Listener]] = []
        self._listening = False
        self._routes: dict[str, Route] = {}
        self._register(engine)
        self.listen()

    def _register(self, engine: Engine) -> None:
        self._listen_to(PREFIX + b"*", _ignore)  # the domain's prefix has no listener of that kind
        for silent in SILENT:
            for prefix in self._prefixes:
                self._listen_to(prefix + silent.encode(), _ignore)
        for part in _parts(engine, lambda: (self.total, self.errors)):
            part.register(self)
        if engine.domain:
            self._map_stores(self._prefixes[1])

    def listen(self) -> None:
        """Take requests. Idempotent."""
        self._listening = True
        for subject, heard in self._listeners[len(self._subscriptions) :]:
            # Each node takes its own clients' requests, and knows where they belong.
            self._subscriptions.append(self._bus.subscribe(subject, heard, local=True))

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self._listening = False
        for subscription in self._subscriptions:
            subscription.cancel()
        self._subscriptions = []

    def route(
        self,
        pattern: str,
        kind: str,
        handler: Handler,
        *,
        empty: Mapping[str, Any] | None = None,
        level: bool = True,
        where: Where = Where.HERE,
    ) -> None:
        route = self._routes[pattern] = Route(pattern, kind, handler, empty or {}, level, where)
        self._requests.accept(self.account, pattern, self._forwarded)
        parts = pattern.split(".")
        wildcards = [at for at, part in enumerate(parts) if part == "*"]
        rest = len(parts) - 1 if parts[-1] == ">" else None

        for prefix in self._prefixes:
            start = len(prefix)

            def called(
                subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo, start: int = start
            ) -> None:
                found = subject[start:].decode("utf-8", "replace").split(".")
                tokens = [found[at] for at in wildcards]
                if rest is not None:
                    tokens.append(".".join(found[rest:]))
                self._serve(Request(self, kind, route.empty, tokens, reply, header, body, client, pattern), route)

            self._listen_to(prefix + pattern.encode(), called)

    def answered(self, request: Request, body: bytes, failed: bool) -> None:
        reply, header = request.reply, request.answer_header
        if reply and not self._requests.answer(request.origin, self.account, reply, body, header):
            self._bus.publish(reply, b"", header, body)
        if failed:
            self.errors += 1
        elif request.pattern == UNCOUNTED:
            return
        self.total += 1
        if self._bus.interest(AUDIT):
            self._audit(request, body)

    def _audit(self, request: Request, response: bytes) -> None:
        """Send the advisory about a request and its answer (docs/internals/api.md#advisories)."""
        engine, left = self._engine, iter(request.tokens)
        subject = ".".join(next(left, part) if part in ("*", ">") else part for part in request.pattern.split("."))
        client, fields = self._asker(request), dict[str, Any]()
        fields |= {"server": engine.server_name, "client": client, "subject": PREFIX.decode() + subject}
        if request.body:
            fields["request"] = request.body.decode("utf-8", "replace")
        fields["response"] = response.decode("utf-8", "replace")
        advise(self._bus, engine.clock, engine.domain, "API", "api_audit", fields)

    def crashed(self, request: Request, error: Exception) -> ApiError:
        """See `Answered.crashed`. The log names the request by a hash: its content is the client's."""
        self.internal_errors += 1
        digest = hashlib.sha256(b"\0".join([*(each.encode() for each in request.tokens), request.header, request.body]))
        name = digest.hexdigest()[:16]
        self._engine.log.error(
            f"API request {request.pattern} {name} of account {self.account}: internal error: "
            f"{type(error).__name__} at {_place(error)}; please report this line with the request"
        )
        return api_error(10051, err=f"internal error, see the server's log for request {name}")

    def _asker(self, request: Request) -> dict[str, Any] | None:
        """Return the requester as the advisory shows it."""
        node = self._engine.node
        return client_shown(request.client, request.origin or node.me, node.name)

    def _forwarded(self, came: Forwarded) -> None:
        """A request that came to another node, which handed it on."""
        route = self._routes[came.pattern]
        request = Request(
            self,
            route.kind,
            route.empty,
            came.tokens,
            came.reply,
            came.header,
            came.body,
            came.client,
            came.pattern,
            came.hops,
            came.stage,
            came.origin,
        )
        self._serve(request, route)

    def _serve(self, request: Request, route: Route) -> None:
        here = functools.partial(request.run, functools.partial(route.handler, request))
        if route.level and level_refused(request.header):
            request.fail(api_error(10185))
        elif self._keeping.settling(self.account):
            if not self._keeping.when_settled(self.account, lambda: self._serve(request, route)):
                request.fail(api_error(10008))
        elif not self._engine.serving:
            request.run(lambda: _refuse(request, route))
        elif route.where is Where.HERE or request.stage:
            here()
        else:
            self._requests.dispatch(request, route.where, here)

    def _listen_to(self, subject: bytes, heard: Listener) -> None:
        self._listeners.append((subject, heard))
        if self._listening:
            self.listen()

    def _map_stores(self, prefix: bytes) -> None:
        """Key-value and object store subjects behind the domain's prefix reach the streams."""
        start, bus = len(prefix), self._bus

        def mapped(subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
            if not bus.publish(subject[start:], reply, header, body) and reply:
                bus.publish(reply, b"", no_responders(subject[start:]), b"")

        for stores in STORES:
            self._listen_to(prefix + stores, mapped)


def _refuse(request: Request, route: Route) -> None:
    """Refuse a request in an account without JetStream (10039). The answer has the type that it would have otherwise.

    Requests for which no API level is checked ask for a cluster before all else.
    """
    if request.pattern in UNHEARD:
        return
    if route.level and request.pattern not in JUDGED:
        raise api_error(10039)
    try:
        route.handler(request)
    except ApiError as error:
        raise error if error.err_code in OF_BODIES or not route.level else api_error(10039) from None


def _place(error: Exception) -> str:
    """Return the file and line that raised an exception, and those of its callers in this program, innermost first."""
    frames = []
    at = error.__traceback__
    while at is not None:
        frames.append(f"{os.path.basename(at.tb_frame.f_code.co_filename)}:{at.tb_lineno}")
        at = at.tb_next
    return " < ".join(frames[:-4:-1])


def _ignore(subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
    return
