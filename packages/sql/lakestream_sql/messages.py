"""Messages between the server and a process that answers queries (child.py).

Belongs here: what each of them says to the other.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from lakestream.lake.last_messages import LastWanted
from lakestream.protocol.sql import ResultColumn
from lakestream_sql.visible import Viewer

Form = Literal["json", "arrow", "rows"]
"""Lines of JSON, an object each; parts of an Arrow stream; or lines of JSON, an array each."""


class Open(msgspec.Struct, frozen=True):
    """The first message: the lake's root, the account whose streams are served, and the memory (bytes) and threads that
    DuckDB may use."""

    lake: str
    account: str
    memory: int
    threads: int


class Ask(msgspec.Struct, frozen=True):
    """A query, with the limits of its result.

    `form`: of batches (batches.py). `max_rows` 0: no limit. `batch_bytes`: size of a batch; a row that needs more than
    `max_batch_bytes` is an error. `describe`: the columns are wanted, and no rows. `viewer`: the user.
    """

    query: str
    max_rows: int
    form: Form
    batch_bytes: int
    max_batch_bytes: int
    parameters: dict[str, bool | int | float | str | None] = {}
    as_of: int | str | None = None
    describe: bool = False
    engine: Literal["duckdb", "spark"] = "duckdb"
    viewer: Viewer = Viewer(roles=())


class ChildReady(msgspec.Struct, frozen=True):
    """The process takes queries."""


class MentionedStreams(msgspec.Struct, frozen=True):
    """The streams that a query reads; `lists`: it shows the names of all. `last`: what the server has to answer for
    from the streams' indexes (lakestream/lake/last_messages.py), page by page, before it decides."""

    streams: list[str]
    lists: bool = False
    last: list[LastWanted] = []


class Judgement(msgspec.Struct, frozen=True):
    """The server's decision after the streams of a query, and before each batch and the summary: to go on, or to end
    without an answer."""

    go: bool


class QueryColumns(msgspec.Struct, frozen=True):
    """The columns of a result that comes in batches. Only where no rows follow: `schema`: of Arrow, as a message;
    `parameters`: names of those in the query."""

    columns: list[ResultColumn]
    schema: bytes = b""
    parameters: list[str] = []


class Summary(msgspec.Struct, frozen=True):
    """The end of a result that came in batches. `truncated`: there are more rows than were asked for."""

    rows: int
    truncated: bool


class Failure(msgspec.Struct, frozen=True):
    """The error of a query. `code`: 400 for a query that cannot be answered, 403 for one that may not, 404 for an
    unknown stream, 413 for a result that does not fit, 500 and 503 if the process ends with it."""

    error: str
    code: int = 400
