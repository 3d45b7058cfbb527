"""Messages as the client returns them, and their form as Arrow data.

Belongs here: the record of a message, its translation from the answers of direct gets and from rows of the lake, and
the columns of Arrow data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.lake.table.schema import REMOVED_COLUMN, TABLE_COLUMNS, split_headers, subject_text, table_schema
from lakestream.protocol import gotime
from lakestream_client.errors import BadFilter

if TYPE_CHECKING:
    import pyarrow as pa
    from nats.aio.msg import Msg

    from lakestream.log.format.record import Record

COLUMNS = ("subject", "seq", "time", "time_ns", "headers", "data")
"""Columns that are read by default."""
ALL_COLUMNS = (*TABLE_COLUMNS, REMOVED_COLUMN)
"""Columns that can be read. Through NATS, those beyond COLUMNS are NULL."""

_OF_DIRECT_GET = frozenset(
    (
        "Nats-Stream",
        "Nats-Subject",
        "Nats-Sequence",
        "Nats-Time-Stamp",
        "Nats-Num-Pending",
        "Nats-Last-Sequence",
        "Nats-UpTo-Sequence",
    )
)


class Message(msgspec.Struct, frozen=True):
    """A stored message. `time_ns`: the time at which it was stored, ns since the epoch."""

    subject: str
    seq: int
    time_ns: int
    headers: dict[str, list[str]] | None
    data: bytes

    @property
    def time(self) -> datetime:
        """Return the time at which it was stored, in UTC, to the microsecond."""
        seconds, ns = divmod(self.time_ns, 1_000_000_000)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=ns // 1000)

    def header(self, name: str) -> str | None:
        """Return the first value of a header; None when there is none."""
        values = (self.headers or {}).get(name)
        return values[0] if values else None


def of_direct_get(message: Msg) -> Message:
    """Return the message in an answer of a direct get."""
    headers: Mapping[str, str] = message.headers or {}
    own = {name: [value] for name, value in headers.items() if name not in _OF_DIRECT_GET}
    return Message(
        headers["Nats-Subject"],
        int(headers["Nats-Sequence"]),
        gotime.time_ns(headers["Nats-Time-Stamp"]),
        own or None,
        message.data,
    )


def of_record(record: Record) -> Message:
    """Return a message that was read from the lake."""
    headers = dict(split_headers(record.header)[0]) if record.header else None
    return Message(subject_text(record.subject)[0], record.seq, record.time_ns, headers, record.data)


def checked_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the wanted columns. Raises BadFilter for an unknown one."""
    if columns is None:
        return COLUMNS
    if isinstance(columns, str) or not set(columns) <= set(ALL_COLUMNS) or len(set(columns)) < len(columns):
        raise BadFilter(f"columns={columns!r}: the columns are {', '.join(ALL_COLUMNS)}, each once, as a list")
    return tuple(columns)


def as_batch(messages: Sequence[Message], columns: Sequence[str]) -> pa.RecordBatch:
    """Return messages as Arrow data with exactly these columns."""
    import pyarrow as pa

    schema = table_schema(columns)
    return pa.RecordBatch.from_arrays([_array(messages, field) for field in schema], schema=schema)


def _array(messages: Sequence[Message], field: pa.Field) -> Any:
    import pyarrow as pa

    name = field.name
    if name == "time":
        return pa.array([each.time_ns // 1000 for each in messages], pa.int64()).cast(field.type)
    if name == "headers":
        values = [None if each.headers is None else list(each.headers.items()) for each in messages]
        return pa.array(values, field.type)
    if name in Message.__struct_fields__:
        return pa.array([getattr(each, name) for each in messages], field.type)
    return pa.nulls(len(messages), field.type)
