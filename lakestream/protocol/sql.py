"""Queries over NATS: subjects, requests and the headers of responses.

Belongs here: what the service (ops/sql) and its clients (packages/client) agree upon;
docs/sql-over-nats.md describes it.

The responses to one request are a description of the columns, batches, and an empty message with the outcome. A client
acknowledges a batch by an empty message to its reply subject, which also acknowledges those before it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal

import msgspec

from lakestream.protocol import headers
from lakestream.protocol.client import ClientInfo, Sight
from lakestream.protocol.decoding import DECODE_ERRORS

QUERY = "$LAKE.API.SQL"
"""Queries of all streams of the account."""
QUERY_STREAM = "$LAKE.API.SQL."
"""Followed by a stream's name: queries of this stream alone."""
FLOW, CANCEL = "$LAKE.API.SQL.FLOW.", "$LAKE.API.SQL.CANCEL."
"""Followed by the id of a query; FLOW also by the number of a batch."""
RESPONSE_TYPE = "io.lakestream.api.v1.sql_response"

PART, BATCH = "Lake-Sql-Part", "Lake-Sql-Batch"
"""Headers of a response: `columns`, `batch` or `end`; and the number of a batch, from 1."""
ROWS, BYTES, BATCHES, DURATION = "Lake-Sql-Rows", "Lake-Sql-Bytes", "Lake-Sql-Batches", "Lake-Sql-Duration"
"""Headers of the last response: sums of the batches, and the time since the request in ns."""
TRUNCATED = "Lake-Sql-Truncated"
"""Header of the last response: `true` when there are more rows than the request wanted."""
ERROR, ERROR_CODE = "Nats-Service-Error", "Nats-Service-Error-Code"
"""Headers of the last response to a query that failed, as ADR-32 has them."""
ERROR_TEXT = "Lake-Sql-Error"
"""The whole text of the error as a JSON string: it may have several lines."""

CANCELLED, TIMED_OUT, TOO_LARGE, TOO_MANY, UNAVAILABLE, FORBIDDEN, FAILED, WRONG = (
    499,
    408,
    413,
    429,
    503,
    403,
    500,
    400,
)
"""Codes of errors; packages/sql/lakestream_sql/child.py adds 404 for an unknown stream."""


Value = bool | int | float | str | None


REQUESTER = b"Lake-Sql-Requester"
"""Header by which a node of a cluster tells another one who asks."""


class SqlUser(msgspec.Struct, frozen=True):
    """A user that asks, as `ClientInfo` has it. `service`: its account is another one than that of the streams."""

    user: str = ""
    sees: tuple[Sight, ...] | None = None
    roles: tuple[str, ...] = ()
    service: str = ""


_REQUESTER = msgspec.json.Decoder(SqlUser)


def stamped(header: bytes, client: ClientInfo) -> bytes:
    """Return the headers of a request with its user, if there is one, for another node; what a client wrote goes."""
    who = requester(header, client)
    rest = headers.remove(header, [REQUESTER])
    return rest if who is None else headers.append(rest, [(REQUESTER, msgspec.json.encode(who))])


def requester(header: bytes, client: ClientInfo) -> SqlUser | None:
    """Return the user of a request; None if the server that it came from does not tell."""
    if client.kind == "Router":
        try:
            return _REQUESTER.decode(headers.get(header, REQUESTER) or b"")
        except DECODE_ERRORS:
            return None
    # A hub's users are its own. A consumer's delivery, or an answer, asks in the name of nobody.
    if (client.kind == "Leafnode" and not client.id) or client.kind == "System" or client.answers:
        return None
    return SqlUser(client.user, client.sees, client.roles, client.service)


class SqlRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request, as JSON; a body that is not a JSON object is the text of the query.

    `parameters`: values of `:name`, or a list of those of `?`. `max_rows`: rows that are wanted, 0: all. `as_of`: see
    `dialect.Bindings`. `stale`: answer even if the newest messages of a stream could not be staged. `describe`: answer
    with the columns alone; without values parameters are NULL then. `engine`: whose SQL it is.
    """

    sql: str
    format: Literal["json", "arrow"] = "json"
    parameters: dict[str, Value] | list[Value] = {}
    max_rows: int = 0
    as_of: int | str | None = None
    stale: bool = False
    describe: bool = False
    engine: Literal["duckdb", "spark"] = "duckdb"


class ResultColumn(msgspec.Struct, frozen=True):
    """A column: its name, and its type as DuckDB calls it."""

    name: str
    type: str


class ResultHead(msgspec.Struct, frozen=True):
    """The first response. `window`: batches that come without an acknowledgement. `cancel`: a message to this subject
    ends the query. `stale`: streams whose newest messages may be missing. For `describe`: `schema`: of Arrow;
    `parameters`: names of those in the query."""

    type: str
    account: str
    server: str
    id: str
    format: str
    columns: list[ResultColumn]
    window: int
    cancel: str
    stale: list[str] = []
    schema: bytes = b""
    parameters: list[str] = []


_REQUEST = msgspec.json.Decoder(SqlRequest)


def decode_request(body: bytes) -> SqlRequest:
    """Return the request of a body. Raises DECODE_ERRORS."""
    if body.lstrip()[:1] == b"{":
        return _REQUEST.decode(body)
    return SqlRequest(body.decode())


def by_name(parameters: dict[str, Value] | list[Value]) -> dict[str, Value]:
    """Return the values of parameters by name; the name of the first `?` is 1."""
    if isinstance(parameters, dict):
        return parameters
    return {str(number): value for number, value in enumerate(parameters, 1)}


def encode_headers(values: Mapping[str, str | int]) -> bytes:
    """Return a block of headers. Line ends of values become blanks, and letters beyond ASCII are escaped."""
    pairs = ((name, " ".join(str(value).split())) for name, value in values.items())
    return headers.build([(name.encode(), value.encode("ascii", "backslashreplace")) for name, value in pairs])


def error_headers(code: int, text: str) -> dict[str, str | int]:
    # A header keeps single blanks only, and a mark under a place needs all of them.
    return {ERROR_CODE: code, ERROR: text, ERROR_TEXT: json.dumps(text).replace("  ", " \\u0020")}
