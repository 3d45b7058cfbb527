"""The JetStream API as subjects.

Belongs here: the subscriptions under `$JS.API.` and under the domain's prefix, the steps before a request's handler,
subjects without a response, the responses of an account without JetStream, and the audit advisories. The handlers are
in streams.py, messages.py and consumers.py, which first_use.py loads, and in account.py.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lakestream.account.api.account import AccountApi
from lakestream.account.api.first_use import FirstUse
from lakestream.account.api.operator_requests import ClusterRequests
from lakestream.account.api.peers import ClusterApi, NoPeersApi
from lakestream.account.engine import Engine
from lakestream.log.format.errors import LogError
from lakestream.meta.changes import RequestArrivals
from lakestream.meta.requests import Forwarded
from lakestream.ports import Bus, ClientInfo, ListedMessages, Messages, Single, Subscribed, Take, singly
from lakestream.protocol.api.advisory import advise
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.api.jsonio import dumps
from lakestream.protocol.api.request import (
    PREFIX,
    TYPE_PREFIX,
    ApiPart,
    Handler,
    Request,
    RunHandler,
    Where,
    level_refused,
    prefixes,
)
from lakestream.protocol.client import client_shown
from lakestream.protocol.frames import no_responders
from lakestream.protocol.publishes import Publishes

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
"""Subjects that always have a subscription: a request that nothing answers times out, as with nats-server, instead of
failing with no responders. DIRECT.GET and CONSUMER.MSG.NEXT are not among them: without their stream or consumer they
have no responders."""

UNCOUNTED = "STREAM.MSG.GET.*"
"""A read request whose success is neither counted nor audited, as with nats-server."""

INFO = "STREAM.INFO.*"
"""Without a body it is answered for a stream that is not open."""

UNANSWERED = frozenset({"CONSUMER.DURABLE.CREATE.*", "CONSUMER.RESET.*.*"})
"""Requests that get no answer in an account without JetStream."""

BODY_CHECKED = frozenset(
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
"""Requests whose body is checked before an account without JetStream rejects them, as in nats-server."""

INFOS = frozenset(
    {
        "INFO",
        "STREAM.NAMES",
        "STREAM.LIST",
        "STREAM.INFO.*",
        "CONSUMER.NAMES.*",
        "CONSUMER.LIST.*",
        "CONSUMER.INFO.*.*",
    }
)
"""Requests that count for `info_queue_limit`, the others for `request_queue_limit`."""

TOGETHER = 256
"""Requests that are served together: about 2 ms."""

BODY_ERRORS = (10025, 10038)
"""Errors about a body: invalid JSON, and a body where none is allowed."""

AUDIT = b"$JS.EVENT.ADVISORY.API"

STORES = (b"$KV.>", b"$OBJ.>")
"""Subjects that are mapped to those of streams behind the domain's prefix (docs/internals/api.md#requests)."""


def _parts(engine: Engine, counts: Callable[[], tuple[int, int]]) -> list[ApiPart]:
    """Return all groups of handlers of an account."""
    parts: list[ApiPart] = [AccountApi(engine, counts), FirstUse(engine)]
    if not engine.node.clustered:
        return [*parts, NoPeersApi()]
    parts.append(ClusterApi(engine))
    # Without a configured system account, `system` is the clients' account, which then operates the cluster.
    return [*parts, ClusterRequests(engine)] if engine.account == engine.shared.system else parts


Made = Callable[[bytes, bytes, bytes, bytes, ClientInfo], Request]
"""Makes a request from (subject behind the prefix, reply, header, body, client)."""


class Route(NamedTuple):
    """A handler, and the properties of its requests."""

    pattern: str
    kind: str
    handler: Handler
    empty: Mapping[str, Any]
    level: bool
    where: Where


class Api:
    """Serves the API of one engine; implements `Routes` and `Answered`. Counts requests for account info."""

    def __init__(self, engine: Engine) -> None:
        self.total = 0
        """Number of requests answered."""
        self.errors = 0
        """Number of requests answered with an error."""
        self.internal_errors = 0
        """Exceptions that escaped a handler; each is logged."""
        self.strict = engine.options.strict
        """True if unknown fields of a request are rejected; see `Answered.strict`."""
        self.account = engine.account
        self._bus: Bus = engine.bus
        self._requests, self._keeping = engine.node.requests, engine.node.keeping
        self._prefixes = prefixes(engine.domain)
        self._engine = engine
        self._subscriptions: list[Subscribed] = []
        self._listeners: list[tuple[bytes, Take, bool]] = []
        self._listening = False
        self._routes: dict[str, Route] = {}
        self._register(engine)
        self.listen()

    def _register(self, engine: Engine) -> None:
        self._listen_to(PREFIX + b"*", _ignore)  # the domain's prefix has no such subscription
        for silent in SILENT:
            for prefix in self._prefixes:
                self._listen_to(prefix + silent.encode(), _ignore)
        for part in _parts(engine, lambda: (self.total, self.errors)):
            part.register(self)
        if engine.domain:
            self._map_stores(self._prefixes[1])

    def listen(self) -> None:
        """Subscribe to the requests' subjects. Idempotent."""
        self._listening = True
        for subject, take, runs in self._listeners[len(self._subscriptions) :]:
            # Each node receives the requests of its own clients, and forwards them.
            self._subscriptions.append(self._bus.subscribe(subject, take, local=True, runs=runs))

    def close(self) -> None:
        """Cancel the subscriptions. Idempotent."""
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
        together: RunHandler | None = None,
    ) -> None:
        route = self._routes[pattern] = Route(pattern, kind, handler, empty or {}, level, where)
        self._requests.accept(self.account, pattern, self._forwarded)
        parts = pattern.split(".")
        wildcards = [at for at, part in enumerate(parts) if part == "*"]
        rest = len(parts) - 1 if parts[-1] == ">" else None

        arrivals = self._arrivals(pattern)

        def made(subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> Request:
            found = subject.decode("utf-8", "replace").split(".")
            tokens = [found[at] for at in wildcards]
            if rest is not None:
                tokens.append(".".join(found[rest:]))
            return Request(self, kind, route.empty, tokens, reply, header, body, client, pattern)

        for prefix in self._prefixes:
            start = len(prefix)

            def called(
                subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo, start: int = start
            ) -> None:
                if arrivals.take():
                    self._serve(made(subject[start:], reply, header, body, client), route)

            if together is None:
                self._listen_to(prefix + pattern.encode(), singly(called))
            else:
                self._listen_to(
                    prefix + pattern.encode(), self._several(route, together, made, start, singly(called)), True
                )

    def _several(self, route: Route, serve: RunHandler, made: Made, start: int, one: Take) -> Take:
        """Return a `Take` that has requests of a client that came together served together, if they can be, else each
        by `one`. `start`: length of the prefix of their subjects."""
        arrivals, success = self._arrivals(route.pattern), dumps({"type": TYPE_PREFIX + route.kind, "success": True})

        def take(messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
            def take_run(run: Publishes, begin: int, end: int) -> bool:
                bodies, replies, subject = run.payloads(begin, end), run.replies(begin, end), run.subjects[begin]

                def request(at: int) -> Request:
                    return made(subject[start:], replies[at], b"", bodies[at], client)

                def succeed(places: Sequence[int]) -> None:
                    self.total += len(places)
                    answers = [Single(replies[at], payload=success) for at in places if replies[at]]
                    self._bus.send(ListedMessages(answers))

                served = self._gathers(run, request(0)) and arrivals.left >= end - begin
                served = served and serve(bodies, request, succeed)
                return served and arrivals.take(end - begin)

            end = min(end, begin + TOGETHER)
            if type(messages) is Publishes and not messages.one_by_one and messages.offer(take_run, begin, end):
                return end
            return one(messages, begin, end, client)

        return take

    def _gathers(self, run: Publishes, request: Request) -> bool:
        """Return True if requests that begin with this one can be served together: here, now, without advisories."""
        engine, alike = self._engine, not run.heads and len(set(run.subjects)) == 1
        ready = alike and engine.serving and engine.node.alone and not self._keeping.settling(self.account)
        return ready and not self._asks_dormant(request) and not self._bus.interest(AUDIT)

    def answered(self, request: Request, body: bytes, failed: bool) -> None:
        reply, header = request.reply, request.answer_header
        if reply and not self._requests.answer(request.origin, self.account, reply, body, header):
            self._bus.send(Single(reply, header=header, payload=body))
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
        """Log an exception; see `Answered.crashed`. The line has a hash of the request, whose content is private."""
        if isinstance(error, LogError):
            self._engine.log.error(f"API request {request.pattern} of account {self.account}: {error}")
            return api_error(10051, err=error.for_clients)
        self.internal_errors += 1
        digest = hashlib.sha256(b"\0".join([*(each.encode() for each in request.tokens), request.header, request.body]))
        name = digest.hexdigest()[:16]
        self._engine.log.error(
            f"API request {request.pattern} {name} of account {self.account}: internal error: "
            f"{type(error).__name__} at {_place(error)}; please report this line with the request"
        )
        return api_error(10051, err=f"internal error, see the server's log for request {name}")

    def _asker(self, request: Request) -> dict[str, Any] | None:
        """Return the requester for the advisory."""
        node = self._engine.node
        return client_shown(request.client, node.shown_server(request.origin), node.name)

    def _forwarded(self, came: Forwarded) -> None:
        """Serve a request that another node forwarded."""
        route = self._routes[came.pattern]
        if not came.stage and not self._arrivals(came.pattern).take():
            return
        asked = (came.tokens, came.reply, came.header, came.body, came.client, came.pattern)
        request = Request(self, route.kind, route.empty, *asked, came.hops, came.stage, came.origin)
        self._serve(request, route)

    def _arrivals(self, pattern: str) -> RequestArrivals:
        shared = self._engine.shared
        return shared.infos if pattern in INFOS else shared.requests

    def _serve(self, request: Request, route: Route) -> None:
        if route.level and level_refused(request.header):
            request.fail(api_error(10185))
        elif self._keeping.settling(self.account):
            if not self._keeping.when_settled(self.account, lambda: self._serve(request, route)):
                request.fail(api_error(10008))
        elif not self._engine.serving:
            request.run(lambda: _refuse(request, route))
        elif self._asks_dormant(request) and (request.body or route.pattern != INFO):
            if not self._engine.opening(request.tokens[0], lambda: self._serve(request, route), len(request.body)):
                request.fail(api_error(10008))
        elif route.where is Where.HERE or self._engine.node.alone or request.stage:
            request.run(functools.partial(route.handler, request))
        else:
            here = functools.partial(request.run, functools.partial(route.handler, request))
            self._requests.dispatch(request, route.where, here)

    def _asks_dormant(self, request: Request) -> bool:
        return bool(request.tokens) and request.tokens[0] in self._engine.dormant

    def _listen_to(self, subject: bytes, take: Take, runs: bool = False) -> None:
        self._listeners.append((subject, take, runs or take is _ignore))
        if self._listening:
            self.listen()

    def _map_stores(self, prefix: bytes) -> None:
        """Route key-value and object store subjects behind the domain's prefix to the streams."""
        start, bus = len(prefix), self._bus

        def mapped(subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
            if not bus.send(Single(subject[start:], reply, header, body)) and reply:
                bus.send(Single(reply, header=no_responders(subject[start:])))

        for stores in STORES:
            self._listen_to(prefix + stores, singly(mapped))


def _refuse(request: Request, route: Route) -> None:
    """Reject a request in an account without JetStream (10039), with the type of its usual response.

    Requests whose API level is not checked fail first for the lack of a cluster.
    """
    if request.pattern in UNANSWERED:
        return
    if route.level and request.pattern not in BODY_CHECKED:
        raise api_error(10039)
    try:
        route.handler(request)
    except ApiError as error:
        raise error if error.err_code in BODY_ERRORS or not route.level else api_error(10039) from None


def _place(error: Exception) -> str:
    """Return the file and line that raised an exception, and those of its callers, innermost first."""
    frames = []
    at = error.__traceback__
    while at is not None:
        frames.append(f"{os.path.basename(at.tb_frame.f_code.co_filename)}:{at.tb_lineno}")
        at = at.tb_next
    return " < ".join(frames[:-4:-1])


def _ignore(messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
    return end
