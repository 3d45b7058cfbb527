"""Output of query results.

Belongs here: the three output formats and the text of values.

Binary values are shown as text where they are UTF-8, else as 0x and hex digits; for exact bytes use hex(data) or
base64(data) in the query. Times are UTC. In a table, control characters are shown as escapes, so that published data
cannot control the terminal.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from datetime import time as clock_time
from decimal import Decimal
from io import StringIO
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from lakestream.lake.values import distinct

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

TABLE_ROWS = 10_000
"""Rows of a table, which is laid out in memory; further ones are reported. csv and json have no limit."""

WIDE = 1_000_000
"""Columns of a table that does not go to a terminal."""


class ResultRows(Protocol):
    """The result of a query by any engine: names and types (as DuckDB calls them) of columns, and the rows, once."""

    @property
    def columns(self) -> tuple[str, ...]: ...

    @property
    def types(self) -> tuple[str, ...]: ...

    def __iter__(self) -> Iterator[tuple[Any, ...]]: ...


Writer = Callable[[ResultRows, TextIO], None]

_NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UINT", "UBIGINT", "FLOAT", "DOUBLE", "DECIMAL")


def text_of(value: bytes) -> str:
    """Return bytes as text where they are UTF-8, else 0x and hex digits."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return "0x" + value.hex()


def _instant(value: datetime) -> str:
    text = value.isoformat(sep="T", timespec="microseconds" if value.microsecond else "seconds")
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text


def plain(value: Any) -> Any:
    """Return a value for JSON: numbers, text, lists and objects; NaN and infinities become null."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes | bytearray | memoryview):
        return text_of(bytes(value))
    if isinstance(value, datetime):
        return _instant(value)
    if isinstance(value, dict):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, date | clock_time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)


def _cell(value: Any, missing: str) -> str:
    if value is None:
        return missing
    if isinstance(value, Decimal):
        return str(value)
    shown = plain(value)
    if isinstance(shown, str):
        return shown
    if isinstance(value, float):
        return repr(value)
    return json.dumps(shown, ensure_ascii=False)


def visible(text: str) -> str:
    """Return control characters as escapes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def write_csv(result: ResultRows, out: TextIO) -> None:
    """Write RFC 4180 with a header line; NULL is an empty field, maps and lists are JSON."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(result.columns)
    writer.writerows([_cell(value, "") for value in row] for row in result)


def write_json(result: ResultRows, out: TextIO) -> None:
    """Write one array of objects, one object a line. Columns with the same name are numbered."""
    names = distinct(result.columns)
    separator = "[\n"
    for row in result:
        values = {name: plain(value) for name, value in zip(names, row, strict=True)}
        out.write(separator + json.dumps(values, ensure_ascii=False))
        separator = ",\n"
    out.write("[]\n" if separator == "[\n" else "\n]\n")


def write_table(result: ResultRows, out: TextIO) -> None:
    """Write a table, or where the terminal is too narrow for it, each row as a list of names and values."""
    from rich.console import Console

    if result.columns == ("explain_key", "explain_value"):
        out.writelines(f"{row[1]}\n" for row in result)
        return
    rows = iter(result)
    cells = [[_text(value) for value in row] for row in islice(rows, TABLE_ROWS)]
    more = next(rows, None) is not None
    console = Console(file=out, highlight=False)
    if not console.is_terminal:
        # Without a terminal values are not cut to its width.
        console = Console(file=out, highlight=False, width=WIDE, height=1)
    table = _table(result, cells)
    if Console(file=StringIO(), width=WIDE, height=1).measure(table).maximum > console.width:
        for number, row in enumerate(cells, 1):
            console.print(_record(result, number, row))
    else:
        console.print(table)
    count = "1 row" if len(cells) == 1 else f"{len(cells)} rows"
    console.print(f"first {count}; use LIMIT, or --format csv for all" if more else count, style="dim", soft_wrap=True)


def _text(value: Any) -> Text:
    from rich.text import Text

    return Text("NULL", style="dim") if value is None else Text(visible(_cell(value, "")))


def _table(result: ResultRows, cells: list[list[Text]]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column, kind in zip(result.columns, result.types, strict=True):
        table.add_column(_text(column), justify="right" if kind.startswith(_NUMBERS) else "left")
    for row in cells:
        table.add_row(*row)
    return table


def _record(result: ResultRows, number: int, row: list[Text]) -> Table:
    from rich.table import Table

    record = Table(box=None, pad_edge=False, show_header=False, title=f"row {number}", title_justify="left")
    record.add_column(style="bold", no_wrap=True)
    record.add_column(overflow="fold")
    for column, value in zip(result.columns, row, strict=True):
        record.add_row(_text(column), value)
    return record


WRITERS: dict[str, Writer] = {"table": write_table, "csv": write_csv, "json": write_json}
