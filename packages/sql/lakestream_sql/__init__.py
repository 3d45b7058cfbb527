"""SQL over the streams of a lake: DuckDB's, and the functions and views that Spark gets.

Belongs here: turning the names of a query into tables and versions, and running it in this process or a child. Each
engine gets queries in its own language: only references to tables and time travel are translated.

In reading order:

- `session.py`: SQL on the streams of a lake, by DuckDB, inside this process.
- `statements.py`: Statements in DuckDB's SQL, and the tables that they name.
- `mentions.py`: The tables that a query mentions, and what takes their places.
- `parser.py`: DuckDB's parser.
- `tokens.py`: Tokens of SQL, and texts with replacements.
- `explained.py`: Errors of queries, in the words that users get.
- `catalog.py`: Catalog of the tables that queries name.
- `connection.py`: DuckDB over the lake's Delta tables.
- `uncompacted.py`: Uncompacted segments in SQL: messages that are staged, and not in the table yet.
- `file_views.py`: Tables in SQL that DuckDB's Delta extension cannot read.
- `stored_files.py`: Files of an object store for DuckDB, read by this process.
- `buckets.py`: Key-value buckets and object stores as tables: kv.conf, kv_history.conf and obj.files.
- `typed.py`: Typed views of JSON payloads: `<STREAM>_json` and `<STREAM>_json_misfits`.
- `visible.py`: The rows that a user may see.
- `masking.py`: The columns that a user sees masked.
- `confined.py`: Confinement of queries to the tables of one account.
- `first_answer.py`: The first answer of a lake.
- `pool.py`: The processes that answer queries, of the service over NATS or of the console.
- `question.py`: A query that is put to its process.
- `child.py`: The program that answers queries for the server: `python -m lakestream_sql.child`.
- `messages.py`: Messages between the server and a process that answers queries (child.py).
- `batches.py`: Results in batches of limited size.
- `command.py`: `lakestream sql`: SQL on the lake from a terminal, a pipe or a script.
- `completion.py`: Completion of names at the prompt of `lakestream sql`.
- `nats_engine.py`: `lakestream sql --url`: SQL that a server answers over NATS.
- `last.py`: The last message of each subject: last(ORDERS), and the values of a bucket.
- `over_nats/`: SQL over NATS, in the server: the service `$LAKE.API.SQL`.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

TAIL_BYTES = 1 << 30
"""Default maximum size of one stream's uncompacted segments that are read into memory, in bytes. With a running
compactor they are seconds of messages; the limit is reached where none runs."""

Timestamps = Literal["commit", "message"]
"""Meaning of TIMESTAMP AS OF on a stream's table: time of commits, as in Delta, or of messages, as in as_of."""

Value = bool | int | float | str | None
"""A value of a parameter."""


class Bindings(msgspec.Struct, frozen=True):
    """Values that a query gets beside its text.

    `parameters`: of `:name` and `$name` by name; the first `?` of a text has the name 1. `unbound`: those without a
    value are NULL. `as_of`: a time, as the second argument of as_of; every stream without a time of its own is read as
    of it. None: as it is now.
    """

    parameters: Mapping[str, Value] = {}
    as_of: int | str | None = None
    unbound: bool = False


NO_BINDINGS = Bindings()
