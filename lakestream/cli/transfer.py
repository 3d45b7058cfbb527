"""`lakestream import` and `lakestream export`: tables into streams, streams into tables.

Belongs here: the two commands' options, progress and exit codes (0 done, 1 failed, 130 after Ctrl-C), and finding where
an earlier import of the same source stopped. Rows and messages are in lake/transfer/mapping.py and
lake/transfer/unmapping.py, files in lake/transfer/tabular.py, the connection in link.py.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from lakestream.cli.link import Link, Sender, TransferFailed, exits, same
from lakestream.cli.server_options import Server, with_server
from lakestream.cli.terminal import JsonOption, print_json
from lakestream.lake.progress import progress
from lakestream.lake.transfer import JSON, OWN
from lakestream.log.format.record import Record
from lakestream.protocol.instants import instant

if TYPE_CHECKING:
    from lakestream.lake.transfer import mapping, tabular, unmapping

IMPORT_KEY = "lakestream-import"
"""Metadata key of a stream with the import that fills it, so that an interrupted one continues."""
SHOWN_BAD = 5
"""Bad rows that are shown; the rest is counted."""


class TimeUnit(StrEnum):
    """Unit of integers in a time column."""

    ns = "ns"
    us = "us"
    ms = "ms"
    s = "s"


class Format(StrEnum):
    """Output format of an export."""

    delta = "delta"
    parquet = "parquet"
    csv = "csv"
    json = "json"


class _BadOption(Exception):
    """Raised for an invalid option; the text says which."""


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


class _Origin(msgspec.Struct):
    """The metadata value under IMPORT_KEY: the import's source and columns as a digest, and its first sequence.

    `created`: the import has created the stream.
    """

    id: str
    first: int
    created: bool = False


_ORIGIN = msgspec.json.Decoder(_Origin)


class _Target(msgspec.Struct, frozen=True):
    """The stream of an import, as its options describe it.

    `subjects` and `config` are the user's and are compared with an existing stream; `config_file` is where `config`
    comes from. `template` gives the subjects of a new stream by default.
    """

    name: str
    create: bool
    append: bool
    subjects: list[str]
    config: dict[str, Any]
    config_file: str
    template: str

    @classmethod
    def of(
        cls, name: str, create: bool, append: bool, subjects: list[str] | None, config: Path | None, template: str
    ) -> _Target:
        """Read the configuration file, and check that a stream could be created where that is wanted."""
        given: Any = {}
        if config is not None:
            try:
                given = json.loads(config.read_bytes())
            except (OSError, ValueError) as error:
                raise _BadOption(f"--config {config}: {error}") from None
            if not isinstance(given, dict):
                raise _BadOption(f"--config {config}: it is not a JSON object")
        target = cls(name, create, append, subjects or [], given, str(config or ""), template)
        if create and not target.new()["subjects"]:
            raise _BadOption("--create needs --subjects: the column does not tell which there will be")
        return target

    def given(self) -> dict[str, Any]:
        """Return the configuration that the user gave."""
        return {**self.config, **({"subjects": self.subjects} if self.subjects else {}), "name": self.name}

    def new(self) -> dict[str, Any]:
        """Return the configuration of the stream to create."""
        from lakestream.lake.transfer import mapping

        given = self.given()
        return {"storage": "file", **given, "subjects": given.get("subjects") or mapping.subjects_of(self.template)}


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
        str, typer.Option(help="Payload: a column, or JSON of columns: json (all unused ones), json:*, json:a,b.")
    ] = JSON,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=COLUMN", help="Message header from a column.")
    ] = None,
    headers: Annotated[str, typer.Option(metavar="COLUMN", help="Column of maps with all headers.")] = "",
    time_column: Annotated[str, typer.Option("--time", metavar="COLUMN", help="Column with the message time.")] = "",
    time_unit: Annotated[TimeUnit, typer.Option(help="Unit of integers in the --time column.")] = TimeUnit.ns,
    order_by: Annotated[
        str, typer.Option(metavar="COLUMNS", help="Columns that order the messages (default: --time).")
    ] = "",
    replace: Annotated[
        str, typer.Option(metavar="TEXT", help="Replacement for characters that are invalid in subjects.")
    ] = "",
    skip_bad: Annotated[bool, typer.Option(help="Skip rows that cannot be messages, and count them.")] = False,
    version: Annotated[int | None, typer.Option(help="Version of the Delta table.")] = None,
    at: Annotated[str, typer.Option(metavar="TIME", help="Version of the Delta table at this time (ISO 8601).")] = "",
    create: Annotated[bool, typer.Option("--create", help="Create the stream.")] = False,
    subjects: Annotated[
        list[str] | None, typer.Option(help="Subjects of the new stream (default: those of --subject).")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Configuration of the new stream: a JSON file as in the API.")
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="Append to a stream that has messages.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the first ten messages without sending any.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Import a Delta or Parquet table into a stream: each row becomes a message, exactly once."""

    with exits("lakestream: stopped; the same command goes on from here", _BadOption):
        from lakestream.lake.transfer import mapping, tabular  # load pyarrow

        table = tabular.Source(source, version, at, tuple(order_by.split(",")) if order_by else ())
        if not subject and not mapping.is_own(table.schema.names):
            raise _BadOption("--subject is missing: a template as 'orders.{id}', or a column that holds subjects")
        columns = None
        if subject:
            columns = mapping.Columns(
                subject=subject,
                data=data,
                headers=tuple(_pair("--header", text) for text in header or ()),
                headers_column=headers,
                time=time_column,
                time_unit=time_unit.value,
                replacement=replace,
            )
        elif not order_by:
            table = tabular.Source(source, version, at, ("seq",))
        rows = _Rows(table, columns, skip_bad, bool(order_by) or columns is None)
        if dry_run:
            _show(rows, as_json)
            return
        with Link(server) as link:
            _Import(link, rows, _Target.of(stream, create, append, subjects, config, subject)).run(as_json)


@with_server
def export(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    to: Annotated[str, typer.Option("--to", metavar="PATH", help="Output: a directory (Delta), or a file.")],
    server: Server,
    format: Annotated[
        Format | None, typer.Option("--format", "-f", help="Output format (default: by the file name).")
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

    with exits("lakestream: stopped; nothing was written", _BadOption):
        from lakestream.lake.transfer import tabular, unmapping  # load pyarrow

        tokens = tuple((name, _position(text)) for name, text in (_pair("--token", each) for each in token or ()))
        default = OWN[:3] if json_schema else ("subject", "seq", "time", "data") if tokens else unmapping.EXACT
        chosen = tuple(columns.split(",")) if columns else default
        named = tuple(_pair("--header", each) for each in header or ())
        fields = unmapping.Fields(own=chosen, tokens=tokens, headers=named, json_schema=json_schema)
        window = (_instant("--since", since), _instant("--until", until))
        kind = format.value if format is not None else tabular.format_of(to)
        with Link(server) as link:
            done = _export(
                link, stream, unmapping.Unmapper(fields), (from_seq, to_seq), window, skip_bad, to, kind, overwrite
            )
        done.show(as_json)


def _pair(option: str, text: str) -> tuple[str, str]:
    left, equals, right = text.partition("=")
    if not (left and equals and right):
        raise _BadOption(f"{option} {text}: write {option} name=value")
    return left, right


def _position(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise _BadOption(f"--token: {text} is no position of a token; the first is 1")
    return int(text)


def _instant(option: str, text: str) -> int:
    """Return ns since the epoch; 0 for none. Times without a zone are UTC."""
    if not text:
        return 0
    try:
        return instant(text) if text else 0
    except ValueError:
        raise _BadOption(f"{option} {text}: write 2026-05-01T12:30:00Z") from None


# ---------------------------------------------------------------------------- import


class _Rows:
    """The messages of a source in order, and its invalid rows.

    Args:
        ordered: the source is read in the order wanted; else it is sorted by time.
    """

    def __init__(self, source: tabular.Source, columns: mapping.Columns | None, skip_bad: bool, ordered: bool) -> None:
        from lakestream.lake.transfer import mapping

        self.source = source
        self.mapper = mapping.Mapper(columns, source.schema)
        self._skip_bad, self._ordered = skip_bad, ordered
        self.bad: list[mapping.BadRow] = []
        self.bad_count = 0
        spelled = repr((columns, skip_bad, ordered, source.identity))
        self.id = hashlib.sha256(spelled.encode()).hexdigest()[:16]
        """Equal for equal messages in the same order."""

    def messages(self) -> Iterator[list[Record]]:
        """Yield all messages; each one's `seq` is its row. Counts bad rows anew."""
        self.bad, self.bad_count = [], 0
        if self.mapper.columns.time and not self._ordered and not self._ascending():
            from lakestream.lake.transfer import tabular

            return tabular.sorted_by_time(self._mapped())
        return self._mapped()

    def _mapped(self) -> Iterator[list[Record]]:
        row = 1
        for batch in self.source.batches():
            mapped = self.mapper.map(batch, row)
            row += batch.num_rows
            if mapped.bad and not self._skip_bad:
                raise mapped.bad[0]
            self.bad_count += len(mapped.bad)
            self.bad += mapped.bad[: SHOWN_BAD - len(self.bad)]
            yield mapped.messages

    def _ascending(self) -> bool:
        """Return True if rows are in the order of their times already: reading one column saves the sort."""
        last = 0
        for batch in self.source.batches([self.mapper.columns.time]):
            times = self.mapper.times(batch).drop_null().to_numpy()
            if len(times) and (times[0] < last or (times[1:] < times[:-1]).any()):
                return False
            last = int(times[-1]) if len(times) else last
        return True


class _Import:
    """One run of an import: a new one, or the rest of an interrupted one."""

    def __init__(self, link: Link, rows: _Rows, target: _Target) -> None:
        self._link, self._rows = link, rows
        self._stream, self._target = target.name, target
        self._config: dict[str, Any] = {}
        """The stream's configuration as it was found."""

    def run(self, as_json: bool) -> None:
        """Send what is missing, and report."""
        first, last = self._begin()
        done = last - first + 1
        if done:
            print(f"{self._stream}: {done:,} messages are there already, going on behind them", file=sys.stderr)
        sender = Sender(self._link, self._stream, last)
        began = time.perf_counter()
        with progress("import", self._rows.source.rows, done) as advance:
            for messages in self._behind(done, last):
                sender.put(messages)
                advance(len(messages))
            sender.finish()
        count = sender.stored - last
        _Done("imported", self._stream, count, time.perf_counter() - began, self._rows.bad_count, self._rows.bad).show(
            as_json
        )

    def _begin(self) -> tuple[int, int]:
        """Create or check the stream. Returns the first sequence of this import, and the stream's last one."""
        info = self._link.stream(self._stream)
        target = self._target
        if info is None:
            if not target.create:
                raise TransferFailed(f"there is no stream {self._stream}; --create makes it")
            wanted = target.new()
            first = max(int(wanted.get("first_seq", 1)), 1)
            self._link.api(f"STREAM.CREATE.{self._stream}", _with_origin(wanted, _Origin(self._rows.id, first, True)))
            return first, first - 1
        config, last = info["config"], int(info["state"]["last_seq"])
        self._config = config
        before = _noted(config)
        if before is not None and not self._continues(before, last, int(info["state"]["messages"])):
            before = None
        if before is not None and before.created and target.create:
            # The stream was made for this import, so the current options apply.
            given = target.new() if last < before.first else target.given()
            wanted = {**config, **given, "metadata": {**_metadata(config), **_metadata(target.config)}}
            return self._note(wanted, _Origin(self._rows.id, before.first, True)), last
        self._compare(config)
        if before is not None:
            return self._note(config, _Origin(self._rows.id, before.first, before.created)), last
        if last and not target.append:
            raise TransferFailed(
                f"stream {self._stream} has messages (the last is {last}), and they are not of this source and these "
                "options; --append puts the import behind them"
            )
        return self._note(config, _Origin(self._rows.id, last + 1)), last

    def _continues(self, before: _Origin, last: int, count: int) -> bool:
        """Return True if this import goes on where an earlier one has stopped, in a stream of `count` messages."""
        if before.id == self._rows.id or last < before.first:
            return True
        return not self._target.append and self._made_alike(before.first, last, count)

    def _note(self, config: dict[str, Any], origin: _Origin) -> int:
        """Write this import into the stream's metadata; return the import's first sequence."""
        wanted = _with_origin(config, origin)
        if wanted != self._config:
            self._link.api(f"STREAM.UPDATE.{self._stream}", wanted)
        return origin.first

    def _compare(self, config: dict[str, Any]) -> None:
        """Raise TransferFailed when the stream differs from --subjects and --config."""
        target, has = self._target, config.get("subjects") or []
        if target.subjects and set(target.subjects) != set(has):
            raise TransferFailed(
                f"stream {self._stream} has the subjects {', '.join(has) or '(none)'}, and --subjects says "
                f"{', '.join(target.subjects)}; leave it out, or change the stream first"
            )
        if target.config:
            metadata = {**_metadata(config), **_metadata(target.config)}
            wanted = {"storage": "file", "subjects": has, **target.given(), "metadata": metadata}
            try:
                self._link.api(f"STREAM.CREATE.{self._stream}", wanted)  # the server compares
            except TransferFailed as error:
                raise TransferFailed(
                    f"stream {self._stream} is not as --config {target.config_file}: {error}"
                ) from None

    def _made_alike(self, first: int, last: int, count: int) -> bool:
        """Return True if all messages of an earlier import are what this one makes of its first rows."""
        if count < last - first + 1:
            return False
        rows = (each for some in self._rows.messages() for each in some)
        seq = first
        for block in self._link.messages(self._stream, first, last):
            for found in block:
                ours = next(rows, None)
                if ours is None or found.seq != seq or not same(ours, found):
                    return False
                seq += 1
        return seq == last + 1

    def _behind(self, done: int, last: int) -> Iterator[list[Record]]:
        """Yield the messages after the first `done`."""
        latest = None
        for messages in self._rows.messages():
            if done >= len(messages):
                done -= len(messages)
                latest = messages[-1] if messages else latest
                continue
            if done:
                latest = messages[done - 1]
            if latest is not None:
                self._check(latest, last)
                latest = None
            yield messages[done:] if done else messages
            done = 0
        if done:
            raise TransferFailed(f"stream {self._stream} has {done:,} messages more than {self._rows.source.path}")
        if latest is not None:
            self._check(latest, last)

    def _check(self, latest: Record, last: int) -> None:
        """Check that an import continues behind its own messages."""
        found = self._link.message(self._stream, last)
        if found is not None and not same(latest, found):
            raise TransferFailed(
                f"stream {self._stream}: its last message ({last}) is not what row {latest.seq} makes: somebody else "
                "published to it, so this import cannot go on"
            )


def _metadata(config: dict[str, Any]) -> dict[str, str]:
    return config.get("metadata") or {}


def _noted(config: dict[str, Any]) -> _Origin | None:
    """Return the last import into a stream; None without one."""
    noted = _metadata(config).get(IMPORT_KEY)
    return _ORIGIN.decode(noted) if noted else None


def _with_origin(config: dict[str, Any], origin: _Origin) -> dict[str, Any]:
    return {**config, "metadata": {**_metadata(config), IMPORT_KEY: msgspec.json.encode(origin).decode()}}


def _show(rows: _Rows, as_json: bool) -> None:
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


# ---------------------------------------------------------------------------- export


def _export(
    link: Link,
    stream: str,
    unmapper: unmapping.Unmapper,
    seqs: tuple[int, int],
    window: tuple[int, int],
    skip_bad: bool,
    to: str,
    kind: str,
    overwrite: bool,
) -> _Done:
    from lakestream.lake.transfer import tabular

    info = link.stream(stream)
    if info is None:
        raise TransferFailed(f"there is no stream {stream}")
    first, last = max(seqs[0], int(info["state"]["first_seq"])), int(info["state"]["last_seq"])
    last = min(seqs[1], last) if seqs[1] else last
    since, until = window
    bad: list[unmapping.BadMessage] = []
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
