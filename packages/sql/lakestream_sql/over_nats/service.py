"""SQL over NATS: `$LAKE.API.SQL` in each account.

Belongs here: taking requests, the limits that are checked before a query runs, and the end of the service. query.py
answers a request; micro.py lets clients find the service.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

import msgspec

from lakestream.config.options import Options
from lakestream.logging import Logger
from lakestream.ports import Bus, ClientInfo, Clock, Single, Subscribed, singly
from lakestream.protocol import sql
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.protocol.nuid import nuid
from lakestream.protocol.sql import SqlRequest, SqlUser
from lakestream_sql.over_nats.figures import SqlFigures
from lakestream_sql.over_nats.micro import ENDPOINTS, answer_discovery
from lakestream_sql.over_nats.query import QueryRefused, QueryRequest, RunningQuery, tell_outcome
from lakestream_sql.pool import Pool, TooManyQueries
from lakestream_sql.question import MAX_QUERY
from lakestream_sql.visible import Viewer

UNKNOWN = (
    "the server that this request came from does not tell who asks, so that nobody knows which rows it may see: "
    "connect to this server, upgrade that one, or set row_permissions: false in its block sql"
)


class SqlService:
    """SQL of one server.

    Args:
        lake: the lake's root.
        server: the server's name.

    Attributes:
        figures: by account and endpoint.
    """

    def __init__(self, lake: str, options: Callable[[], Options], server: str, clock: Clock, log: Logger) -> None:
        self._options, self._server, self._clock, self._log = options, server, clock, log
        self._pool = Pool(lake, options().sql, clock)
        self._id = nuid()
        self.figures: dict[tuple[str, str], SqlFigures] = defaultdict(SqlFigures)
        self._closing = False

    @property
    def running(self) -> int:
        """Return the number of queries that run."""
        return self._pool.busy

    def totals(self) -> Mapping[str, SqlFigures]:
        """Return the figures of each account that has asked."""
        found: dict[str, SqlFigures] = {}
        for (account, _), each in list(self.figures.items()):
            found[account] = each if account not in found else found[account] + each
        return found

    def serve(self, account: str, bus: Bus) -> Subscribed:
        """Serve the requests of an account until cancelled."""
        group = self._options().sql.queue_group

        def serve(endpoint: str, subject: str) -> Subscribed:
            def asked(subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
                if reply:
                    stream = subject[len(sql.QUERY_STREAM) :].decode("utf-8", "replace")
                    self.asked(endpoint, account, stream, bus, reply, body, sql.requester(header, client))

            return bus.subscribe(subject.encode(), singly(asked), group.encode())

        found = answer_discovery(
            bus, self._id, group, lambda endpoint: self.figures[account, endpoint], self._clock.now()
        )
        return _Serving([*found, *(serve(*each) for each in ENDPOINTS)])

    async def close(self) -> None:
        """End all queries and their processes."""
        self._closing = True
        await self._pool.close()

    # ------------------------------------------------------------------ requests
    def asked(
        self, endpoint: str, account: str, stream: str, bus: Bus, reply: bytes, body: bytes, who: SqlUser | None
    ) -> None:
        """Begin a query.

        Args:
            stream: the only one that it may read; "": any.
            bus: of the account.
            who: asks; None: the server that the request came from does not tell.
        """
        options, figures = self._options(), self.figures[account, endpoint]
        try:
            request = self._accepted(account, body, who)
        except QueryRefused as error:
            figures.refused += 1
            figures.last_error = f"{error.code}:{error}"
            values = {sql.PART: "end"} | sql.error_headers(error.code, str(error))
            bus.send(Single(reply, header=sql.encode_headers(values)))
            tell_outcome(bus, reply, error=error.code)
            return
        figures.queries += 1
        user = who or SqlUser()
        viewer = Viewer(user.sees if options.sql.row_permissions else None, user.roles, options.sql.mask_key)
        query = RunningQuery(
            QueryRequest(account, stream, reply, request, viewer),
            bus,
            self._pool,
            options.sql,
            figures,
            self._clock,
            self._server,
            options.max_payload,
        )
        self._clock.spawn(query.run())

    def _accepted(self, account: str, body: bytes, who: SqlUser | None) -> SqlRequest:
        """Return a request that may run, and count it. Raises QueryRefused."""
        try:
            request = sql.decode_request(body)
        except DECODE_ERRORS as error:
            raise QueryRefused(sql.WRONG, f"invalid request: {error}") from None
        if self._closing:
            raise QueryRefused(sql.UNAVAILABLE, "the server is stopping")
        if len(request.sql) > MAX_QUERY:
            raise QueryRefused(sql.TOO_LARGE, f"a query has at most {MAX_QUERY} characters")
        if request.max_rows < 0:
            raise QueryRefused(sql.WRONG, "max_rows is a number of rows, 0 for all")
        if who is None and self._options().sql.row_permissions:
            raise QueryRefused(sql.FORBIDDEN, UNKNOWN)
        try:
            self._pool.reserve(account)
        except TooManyQueries as error:
            raise QueryRefused(sql.TOO_MANY, str(error)) from None
        return request


class _Serving(msgspec.Struct, frozen=True):
    """The subscriptions of one account."""

    subscriptions: list[Subscribed]

    def cancel(self) -> None:
        """Serve no more requests of the account; queries that run go on."""
        for subscription in self.subscriptions:
            subscription.cancel()
