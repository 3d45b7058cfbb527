"""The JetStream API of the system account.

Belongs here: the requests that its users may make, and the rejection of all others: the system account has no JetStream
of its own. Requests about the nodes of a cluster are in operator_requests.py.
"""

from __future__ import annotations

import functools
from typing import Any

from lakestream.account.api.operator_requests import ClusterRequests
from lakestream.account.api.subjects import Api, Route
from lakestream.account.engine import Engine
from lakestream.account.engines import Engines
from lakestream.ports import ClientInfo, Take, singly
from lakestream.protocol.api.errors import api_error
from lakestream.protocol.api.request import Request, Where, level_refused
from lakestream.protocol.subjects import SubjectFilters

SILENT = (b"ACCOUNT.>", b"META.LEADER.STEPDOWN", b"META.RESCUE", b"SERVER.REMOVE", b"SERVER.EVACUATE")
"""Subjects that are served in a cluster; in another form, or without a cluster, a request there gets no response."""

INFO = "INFO"


class SystemApi(Api):
    """Serves the requests that only the system account may make."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._silent = SubjectFilters(SILENT)
        super().__init__(engines.of(engines.shared.system))

    def _register(self, engine: Engine) -> None:
        self.route("ACCOUNT.PURGE.*", "account_purge_response", self._purge, where=Where.META)
        if engine.node.clustered:
            ClusterRequests(engine).register(self)
        elif not engine.node.alone:
            ClusterRequests(engine).register_moves(self)
        self._served = SubjectFilters(pattern.encode() for pattern in self._routes)
        for prefix in self._prefixes:
            self._listen_to(prefix + b">", self._refuser(len(prefix)))

    def _purge(self, request: Request) -> None:
        """Respond at once, as in nats-server also for an unknown account: the removal has only begun."""
        request.respond({"initiated": True})
        self._engines.purge(request.tokens[0])

    def _serve(self, request: Request, route: Route) -> None:
        here = functools.partial(request.run, functools.partial(route.handler, request))
        if level_refused(request.header):
            return
        if request.stage:
            here()
        else:
            self._requests.dispatch(request, route.where, here)

    def _asker(self, request: Request) -> dict[str, Any] | None:
        """Return no client data for the system account, as in nats-server."""
        return {} if request.pattern in self._routes or request.pattern == INFO else None

    def _refuser(self, start: int) -> Take:
        """Return what rejects requests the system account may not make; `start`: length of the prefix."""

        def refuse(subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
            tail = subject[start:]
            if self._served.match(tail) or self._silent.match(tail):
                return
            kind = "account_info_response" if tail == INFO.encode() else "system_response"
            shown = tail.decode("utf-8", "replace")
            Request(self, kind, {}, [], reply, header, body, client, shown).fail(api_error(10039))

        return singly(refuse)
