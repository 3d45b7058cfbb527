"""SQL over NATS: `$LAKE.API.SQL` in each account.

Belongs here: taking requests, the limits that are checked before a query runs, and the end of the service. query.py
answers a request; micro.py lets clients find the service.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from lakestream.config.options import Options
from lakestream.logging import Logger
from lakestream.ops.sql.figures import SqlFigures
from lakestream.ops.sql.pool import Pool, TooManyQueries
from lakestream.ops.sql.question import MAX_QUERY
from lakestream.ports import Bus, ClientInfo, Clock, Single, Subscribed, singly
from lakestream.protocol import sql
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.protocol.nuid import nuid
from lakestream.protocol.sql import SqlRequest, SqlUser
from lakestream_sql.over_nats.micro import ENDPOINTS, Discovery
from lakestream_sql.over_nats.query import QueryRequest, RunningQuery, tell_outcome
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
        return _Serving(self, account, bus, self._id, self._options().sql.queue_group, self._clock.now())

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
        by_permission = self._options().sql.row_permissions
        known = who or SqlUser()
        figures = self.figures[account, endpoint]
        refused: tuple[int, str] | None = None
        try:
            request = sql.decode_request(body)
            refused = self._refusal(request)
            if refused is None and who is None and by_permission:
                refused = sql.FORBIDDEN, UNKNOWN
            if refused is None:
                self._pool.reserve(account)
        except DECODE_ERRORS as error:
            refused = sql.WRONG, f"invalid request: {error}"
        except TooManyQueries as error:
            refused = sql.TOO_MANY, str(error)
        if refused is not None:
            figures.refused += 1
            figures.last_error = f"{refused[0]}:{refused[1]}"
            values = {sql.PART: "end"} | sql.error_headers(*refused)
            bus.send(Single(reply, header=sql.encode_headers(values)))
            tell_outcome(bus, reply, error=refused[0])
            return
        figures.queries += 1
        options = self._options()
        viewer = Viewer(known.sees if by_permission else None, known.roles, options.sql.mask_key)
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

    def _refusal(self, request: SqlRequest) -> tuple[int, str] | None:
        if self._closing:
            return sql.UNAVAILABLE, "the server is stopping"
        if len(request.sql) > MAX_QUERY:
            return sql.TOO_LARGE, f"a query has at most {MAX_QUERY} characters"
        if request.max_rows < 0:
            return sql.WRONG, "max_rows is a number of rows, 0 for all"
        return None


class _Serving:
    """The subscriptions of one account."""

    def __init__(
        self, service: SqlService, account: str, bus: Bus, identifier: str, queue_group: str, started_ns: int
    ) -> None:
        def take(endpoint: str) -> Callable[[bytes, bytes, bytes, bytes, ClientInfo], None]:
            def asked(subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
                if reply:
                    stream = subject[len(sql.QUERY_STREAM) :].decode("utf-8", "replace")
                    service.asked(endpoint, account, stream, bus, reply, body, sql.requester(header, client))

            return asked

        self._discovery = Discovery(
            bus, identifier, queue_group, lambda endpoint: service.figures[account, endpoint], started_ns
        )
        self._subscriptions = [
            bus.subscribe(subject.encode(), singly(take(endpoint)), queue_group.encode())
            for endpoint, subject in ENDPOINTS
        ]

    def cancel(self) -> None:
        """Serve no more requests of the account; queries that run go on."""
        for subscription in self._subscriptions:
            subscription.cancel()
        self._discovery.close()
