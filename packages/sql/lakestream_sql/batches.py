"""Results in batches of limited size.

Belongs here: cutting a result into lines of JSON, or into the parts of one Arrow stream, none of which is larger than a
message may be.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from lakestream.lake.values import as_json, distinct
from lakestream_sql.explained import SqlError

if TYPE_CHECKING:
    from lakestream_sql.messages import Form
    from lakestream_sql.session import Result

ARROW_ROWS = 4096
"""Rows of a batch of DuckDB, which is cut into smaller ones where they are large."""


NOT_IN_ARROW = ("BIT", "TIME WITH TIME ZONE", "UHUGEINT")
"""Types that DuckDB turns into others, without an error: their values lose the zone, or become negative."""


class RowTooLarge(SqlError):
    """Raised for a row that does not fit into a message."""

    code = 413

    def __init__(self, limit: int) -> None:
        super().__init__(f"a row has more than {limit:,} bytes: select fewer columns, or over NATS raise max_payload")


class CountedRows(msgspec.Struct):
    """The rows of a result that were sent. `most`: rows that are wanted, 0: all."""

    most: int
    rows: int = 0
    truncated: bool = False


def batches(result: Result, form: Form, counted: CountedRows, size: int, most: int) -> Iterator[bytes]:
    """Yield a result in parts.

    Args:
        form: `json`: lines, an object each; `rows`: an array each; `arrow`: together the parts are one Arrow stream.
        counted: is updated with each part.
        size: bytes of a part that holds more than one row.
        most: bytes of any part.

    Raises:
        RowTooLarge: there is a row that has more.
    """
    if form == "arrow":
        return _arrow(result, counted, size, most)
    return _json(result, distinct(result.columns) if form == "json" else (), counted, size, most)


def _json(result: Result, names: Sequence[str], counted: CountedRows, size: int, most: int) -> Iterator[bytes]:
    lines, length = list[bytes](), 0
    for row in result:
        if counted.most and counted.rows >= counted.most:
            counted.truncated = True
            break
        values = [*map(as_json, row)]
        line = msgspec.json.encode(dict(zip(names, values, strict=True)) if names else values) + b"\n"
        if len(line) > most:
            raise RowTooLarge(most)
        if lines and length + len(line) > size:
            yield b"".join(lines)
            lines, length = [], 0
        lines.append(line)
        length += len(line)
        counted.rows += 1
    if lines:
        yield b"".join(lines)


class _Parts(io.BytesIO):
    """The sink of an Arrow stream."""

    def take(self) -> bytes:
        """Return what was written since this was called last."""
        taken = self.getvalue()
        self.seek(0)
        self.truncate()
        return taken


def _arrow(result: Result, counted: CountedRows, size: int, most: int) -> Iterator[bytes]:
    for name, kind in zip(result.columns, result.types, strict=True):
        if kind.rstrip("[]0123456789") in NOT_IN_ARROW:
            raise SqlError(f"column {name} has the type {kind}, whose values change in Arrow: cast it to VARCHAR")
    reader = result.batches(ARROW_ROWS)
    parts = _Parts()
    with pa.ipc.new_stream(parts, reader.schema) as stream:
        for batch in reader:
            if counted.most and counted.rows + batch.num_rows > counted.most:
                counted.truncated = True
                batch = batch.slice(0, counted.most - counted.rows)
            for piece in _pieces(batch, size):
                stream.write_batch(piece)
                written = parts.take()
                if len(written) > most:
                    raise RowTooLarge(most)
                counted.rows += piece.num_rows
                yield written
            if counted.truncated:
                break
    if rest := parts.take():  # of an empty result the schema, and the end of the stream
        yield rest


def schema_of(result: Result) -> bytes:
    """Return the schema of the stream of a result, as a message of Arrow's."""
    return bytes(result.batches(1).schema.serialize())


def _pieces(batch: Any, size: int) -> Iterator[Any]:
    """Cut a batch of Arrow until its pieces have at most so many bytes, or one row."""
    waiting = [batch]
    while waiting:
        each = waiting.pop()
        if each.num_rows == 0:
            continue
        if each.num_rows == 1 or pa.ipc.get_record_batch_size(each) <= size:
            yield each
            continue
        half = each.num_rows // 2
        waiting += [each.slice(half), each.slice(0, half)]
