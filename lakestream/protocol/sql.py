"""Queries over NATS: subjects, requests and the headers of responses.

Belongs here: what the service (ops/sql) and its clients (packages/client) agree upon. docs/sql.md describes it.

The responses to one request are a description of the columns, batches, and an empty message with the outcome. A client
acknowledges a batch by an empty message to its reply subject, which also acknowledges those before it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal

import msgspec

from lakestream.protocol import headers

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
    """Return the headers of an error."""
    # A header keeps single blanks only, and a mark under a place needs all of them.
    return {ERROR_CODE: code, ERROR: text, ERROR_TEXT: json.dumps(text).replace("  ", " \\u0020")}
