"""`lakestream import` and `lakestream export`: tables into streams, streams into tables.

Belongs here: the two commands' options, output and exit codes (0 done, 1 failed, 130 after Ctrl-C). The run of an
import is importing.py's. Rows and messages are in mapping.py and unmapping.py, files in tabular.py and text.py, the
connection in lakestream/cli/link.py.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from lakestream.cli.link import ClientLink, TransferFailed, exits
from lakestream.cli.server_options import Server, with_server
from lakestream.cli.terminal import JsonOption, print_json
from lakestream.lake.progress import progress
from lakestream.protocol.instants import instant
from lakestream_transfer import csv_types, finding, mapping, tabular, text, text_mapping, unmapping
from lakestream_transfer.importing import SHOWN_BAD, BadImportOption, ImportRows, ImportRun, ImportTarget
from lakestream_transfer.mapping import OWN


class TimeUnit(StrEnum):
    """Unit of integers in a time column."""

    ns = "ns"
    us = "us"
    ms = "ms"
    s = "s"


class FileFormat(StrEnum):
    """Format of the source of an import, or of the target of an export."""

    delta = "delta"
    parquet = "parquet"
    csv = "csv"
    json = "json"


_TABS = {"tab": "\t", "\\t": "\t"}


class _Done(msgspec.Struct, frozen=True):
    """Result of a transfer: its target, the messages, and the rows or messages that were left out (the first ones)."""

    verb: str
    target: str
    messages: int
    seconds: float
    left_out: int
    bad: Sequence[Exception]

    def show(self, as_json: bool) -> None:
        """Print the result: on stdout, and what was left out on stderr."""
        if as_json:
            print_json(
                {
                    "target": self.target,
                    "messages": self.messages,
                    "seconds": round(self.seconds, 3),
                    "left_out": self.left_out,
                    "reasons": [str(each) for each in self.bad[:SHOWN_BAD]],
                }
            )
            return
        rate = self.messages / max(self.seconds, 1e-9)
        print(f"{self.target}: {self.messages:,} messages {self.verb} in {self.seconds:.1f} s ({rate:,.0f}/s)")
        if self.left_out:
            noun = "rows" if self.verb == "imported" else "messages"
            print(f"{self.left_out:,} {noun} left out", file=sys.stderr)
            for each in self.bad[:SHOWN_BAD]:
                print(f"  {each}", file=sys.stderr)


@with_server
def import_(
    source: Annotated[str, typer.Argument(help="A Delta table, Parquet, CSV or JSON lines: directory, file or glob.")],
    stream: Annotated[str, typer.Option("--stream", help="The stream to fill.")],
    server: Server,
    subject: Annotated[
        str,
        typer.Option(help="Message subjects: a template 'orders.{country}.{id}', a column, or '=' and one subject."),
    ] = "",
    data: Annotated[
        str,
        typer.Option(
            help="Payload: a column, or JSON of columns: json (all unused ones), json:*, json:a,b (default: json; of "
            "JSON lines the line)."
        ),
    ] = "",
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=COLUMN", help="Message header from a column.")
    ] = None,
    headers: Annotated[
        str, typer.Option(metavar="COLUMN", help="Column of maps, or of JSON objects, with all headers.")
    ] = "",
    time_column: Annotated[str, typer.Option("--time", metavar="COLUMN", help="Column with the message time.")] = "",
    time_unit: Annotated[
        TimeUnit | None, typer.Option(help="Unit of integers in the --time column (default: ns).")
    ] = None,
    order_by: Annotated[
        str, typer.Option(metavar="COLUMNS", help="Columns that order the messages (default: --time).")
    ] = "",
    replace: Annotated[
        str, typer.Option(metavar="TEXT", help="Replacement for characters that are invalid in subjects.")
    ] = "",
    skip_bad: Annotated[bool, typer.Option(help="Skip rows that cannot be messages, and count them.")] = False,
    separator: Annotated[
        str, typer.Option(metavar="CHARACTER", help="Separator of CSV fields, or `tab` (default: detected).")
    ] = "",
    types: Annotated[
        str,
        typer.Option(
            metavar="TYPES", help="Types of CSV columns: 'zip:string,price:double' (default: all are strings)."
        ),
    ] = "",
    infer: Annotated[bool, typer.Option("--infer", help="Detect the types of CSV columns, and report them.")] = False,
    format: Annotated[
        FileFormat | None, typer.Option("--format", "-f", help="Format of the source (default: by the file names).")
    ] = None,
    version: Annotated[int | None, typer.Option(help="Version of the Delta table.")] = None,
    at: Annotated[str, typer.Option(metavar="TIME", help="Version of the Delta table at this time (ISO 8601).")] = "",
    create: Annotated[bool, typer.Option("--create", help="Create the stream.")] = False,
    subjects: Annotated[
        list[str] | None, typer.Option(help="Subjects of the new stream (default: those of --subject).")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Configuration of the new stream: a JSON file as in the API.")
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="Append to a stream that already has messages.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Append messages again that an earlier import stored.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the first ten messages, and store nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Import a table or text file into a stream: each row becomes a message, exactly once."""

    with exits("lakestream: stopped; the same command goes on from here", BadImportOption):
        files = finding.find(source, format.value if format is not None else "")
        columns = None
        if subject:
            columns = mapping.MappingOptions(
                subject=subject,
                data=data,
                headers=tuple(_pair("--header", text) for text in header or ()),
                headers_column=headers,
                time=time_column,
                time_unit=time_unit.value if time_unit is not None else "",
                replacement=replace,
            )
        order = tuple(order_by.split(",")) if order_by else () if subject else ("seq",)
        if files.kind != finding.DELTA and (version is not None or at):
            raise BadImportOption(f"{source} is no Delta table: only those have versions")
        if files.kind != "csv" and (separator or types or infer):
            raise BadImportOption(f"--separator, --types and --infer are for CSV files, which {source} is not")
        if files.kind in finding.TEXTS:
            rows = _text_rows(files, columns, order, skip_bad, separator, types, infer)
        else:
            rows = _table_rows(files, columns, order, skip_bad, version, at)
        if dry_run:
            _show(rows, as_json)
            return
        target = ImportTarget.of(stream, create, append, again, subjects, config, subject)
        with ClientLink(server) as link:
            count, took = ImportRun(link, rows, target).run()
        _Done("imported", stream, count, took, rows.bad_count, rows.bad).show(as_json)


def _check_own(columns: mapping.MappingOptions | None, names: Sequence[str]) -> None:
    if columns is None and not mapping.is_own(names):
        raise BadImportOption("--subject is missing: a template as 'orders.{id}', or a column that holds subjects")


def _table_rows(
    files: finding.SourceFiles,
    columns: mapping.MappingOptions | None,
    order: tuple[str, ...],
    skip_bad: bool,
    version: int | None,
    at: str,
) -> ImportRows:
    """Return the rows of a Delta or Parquet table."""
    table = tabular.TableSource(files, version, at)
    _check_own(columns, table.names)
    if order:
        table = tabular.TableSource(files, version, at, order)
    return ImportRows(table, mapping.Mapper(columns, table.schema), skip_bad, bool(order))


def _text_rows(
    files: finding.SourceFiles,
    columns: mapping.MappingOptions | None,
    order: tuple[str, ...],
    skip_bad: bool,
    separator: str,
    types: str,
    infer: bool,
) -> ImportRows:
    """Return the rows of CSV or JSON lines, after a check of the types that their fields are to have."""
    separator = _TABS.get(separator, separator)
    if len(separator) > 1:
        raise BadImportOption(f"--separator {separator}: it must be one character, or tab")
    source = text.TextSource(files, separator)
    _check_own(columns, source.names)
    if source.separator not in ("", ",") and not separator:
        print(f"{source.path}: the fields are separated by {source.separator!r}", file=sys.stderr)
    asked = csv_types.parse(types)
    mapper = text_mapping.TextMapper(columns, source, asked, order)
    if found := csv_types.misfits(asked, source.names, source.numbered()) if asked else {}:
        if not skip_bad:
            raise csv_types.BadTypes(asked, found)
        print("\n".join(csv_types.told(asked, found)), file=sys.stderr)
    if infer:
        inferred = csv_types.infer(source.names, source.numbered())
        asked = {**inferred.types, **asked}
        types = csv_types.spelled(asked)
        told = f"inferred: --types '{types}'" if types else "inferred: no types, all columns stay text"
        print("\n".join([*inferred.notes, told]), file=sys.stderr)
        mapper = text_mapping.TextMapper(columns, source, asked, order)
    return ImportRows(source, mapper, skip_bad, bool(order), asked)


@with_server
def export(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    to: Annotated[str, typer.Option("--to", metavar="PATH", help="Output: a directory (Delta), or a file.")],
    server: Server,
    format: Annotated[
        FileFormat | None, typer.Option("--format", "-f", help="Output format (default: by the file name).")
    ] = None,
    columns: Annotated[str, typer.Option(help=f"Columns to write, of {', '.join(OWN)}.")] = "",
    token: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN=N", help="Add a column with the Nth token of the subject.")
    ] = None,
    header: Annotated[list[str] | None, typer.Option(metavar="COLUMN=NAME", help="Add a column with a header.")] = None,
    json_schema: Annotated[
        str, typer.Option(metavar="DDL", help="Add columns from JSON payloads: 'price DOUBLE, qty INT'.")
    ] = "",
    from_seq: Annotated[int, typer.Option(help="First sequence to export.")] = 1,
    to_seq: Annotated[int, typer.Option(help="Last sequence to export (default: the current last one).")] = 0,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Export messages stored at or after this time (ISO 8601).")
    ] = "",
    until: Annotated[
        str, typer.Option(metavar="TIME", help="Export messages stored before this time (ISO 8601).")
    ] = "",
    skip_bad: Annotated[bool, typer.Option(help="Skip messages that do not fit the columns, and count them.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing output.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Export a stream to a plain table: Delta, Parquet, CSV or JSON lines."""

    with exits("lakestream: stopped; nothing was written", BadImportOption):
        kind = format.value if format is not None else tabular.format_of(to)
        tokens = tuple((name, _position(text)) for name, text in (_pair("--token", each) for each in token or ()))
        default = OWN[:3] if json_schema else ("subject", "seq", "time", "data") if tokens else unmapping.EXACT
        chosen = tuple(columns.split(",")) if columns else default
        named = tuple(_pair("--header", each) for each in header or ())
        fields = unmapping.Fields(own=chosen, tokens=tokens, headers=named, json_schema=json_schema)
        window = (_instant("--since", since), _instant("--until", until))
        with ClientLink(server) as link:
            done = _export(
                link, stream, unmapping.Unmapper(fields), (from_seq, to_seq), window, skip_bad, to, kind, overwrite
            )
        done.show(as_json)


def _pair(option: str, text: str) -> tuple[str, str]:
    left, equals, right = text.partition("=")
    if not (left and equals and right):
        raise BadImportOption(f"{option} {text}: write {option} name=value")
    return left, right


def _position(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise BadImportOption(f"--token: {text} is not a token position; the first is 1")
    return int(text)


def _instant(option: str, text: str) -> int:
    """Return ns since the epoch; 0 for none. Times without a zone are UTC."""
    if not text:
        return 0
    try:
        return instant(text) if text else 0
    except ValueError:
        raise BadImportOption(f"{option} {text}: write 2026-05-01T12:30:00Z") from None


# ---------------------------------------------------------------------------- import


def _show(rows: ImportRows, as_json: bool) -> None:
    """Print the first messages, one a line."""
    first = list(islice((each for some in rows.messages() for each in some), 10))
    if as_json:
        names = ("subject", "time_ns", "header", "data")
        print_json([{name: getattr(message, name) for name in names} for message in first])
        return
    for message in first:
        at = datetime.fromtimestamp(message.time_ns // 1_000_000_000, UTC).isoformat() if message.time_ns else "now"
        header = f" {message.header!r}" if message.header else ""
        print(f"{message.subject.decode('utf-8', 'backslashreplace')} {at}{header} {message.data[:200]!r}")
    for bad in rows.bad:
        print(f"left out: {bad}", file=sys.stderr)


# ---------------------------------------------------------------------------- export


def _export(
    link: ClientLink,
    stream: str,
    unmapper: unmapping.Unmapper,
    seqs: tuple[int, int],
    window: tuple[int, int],
    skip_bad: bool,
    to: str,
    kind: str,
    overwrite: bool,
) -> _Done:
    info = link.stream(stream)
    if info is None:
        raise TransferFailed(f"there is no stream {stream}")
    first, last = max(seqs[0], int(info["state"]["first_seq"])), int(info["state"]["last_seq"])
    last = min(seqs[1], last) if seqs[1] else last
    since, until = window
    bad: list[unmapping.UnmappableMessage] = []
    count = 0

    def batches() -> Iterator[Any]:
        nonlocal count
        for block in link.messages(stream, first, last, since):
            records = [record for record in block if not until or record.time_ns < until]
            batch = unmapper.batch(records, bad)
            if bad and not skip_bad:
                raise bad[0]
            count += batch.num_rows
            advance(batch.num_rows)
            if batch.num_rows:
                yield batch
            if len(records) < len(block):
                return  # times ascend: nothing behind it is earlier

    began = time.perf_counter()
    with progress("export", int(info["state"]["messages"]) if first <= 1 else None) as advance:
        tabular.write(to, kind, unmapper.schema, batches(), overwrite)
    return _Done("exported", to, count, time.perf_counter() - began, len(bad), bad)
