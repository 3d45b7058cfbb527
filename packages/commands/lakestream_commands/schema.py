"""`lakestream schema`: the schema registry of an account.

Belongs here: the commands and their output, and samples of messages from all parts of a stream. The requests are
those of protocol/schema_api.py; the server decides.
"""

from __future__ import annotations

import base64
import difflib
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from lakestream.cli.link import ClientLink, TransferFailed, exits
from lakestream.cli.optional import OptionalCommand
from lakestream.cli.results import visible
from lakestream.cli.server_options import Server, with_server
from lakestream.cli.terminal import JsonOption, complain, console, counted, print_json
from lakestream.log.format.record import Record
from lakestream.protocol.schema_api import DEFAULT_COMPATIBILITY, PREFIX
from lakestream.protocol.subjects import matches
from lakestream.schemas.schema import Schema
from lakestream_commands.restore import restore_schemas

MAX_SAMPLE = 100_000
"""Maximum number of messages of a sample."""
MAX_SAMPLE_BYTES = 256 << 20
"""Maximum size of their payloads, together."""
SAMPLE_PARTS = 10
"""Number of places of a stream, at equal distances, from which messages are taken."""
SHOWN_MISFITS = 10
"""Misfits of a sample that are printed without --json."""

schema = typer.Typer(help="Register, compare and infer schemas of payloads.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the schema.")]
FileArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="JSON Schema, Avro schema, .proto or descriptor set; - for stdin.")
]
FormatOption = Annotated[
    str, typer.Option("--format", help="json, avro or protobuf (default: by the file's name).", show_default=False)
]
MessageOption = Annotated[str, typer.Option("--message", help="Full name of the message (Protobuf).")]
CompatibilityOption = Annotated[
    str,
    typer.Option(
        "--compatibility",
        help="none, backward, forward, full, or one of the last three with _transitive (default: as before, "
        "at first backward).",
        show_default=False,
    ),
]
_FORMATS = {".avsc": "avro", ".proto": "protobuf", ".pb": "protobuf", ".desc": "protobuf", ".binpb": "protobuf"}


@schema.command()
@with_server
def add(
    name: NameArgument,
    file: FileArgument,
    server: Server,
    format: FormatOption = "",
    message: MessageOption = "",
    compatibility: CompatibilityOption = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check the schema, as `schema check` does.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Register a version of a schema. An equal text is the same version. Exit code 1: it is refused."""
    definition = _definition(file, format, message, compatibility)
    if dry_run:
        _check(server, name, definition, as_json)
        return
    answer = _ask(server, f"ADD.{name}", definition)
    if as_json:
        print_json(answer)
    elif "error" not in answer:
        new = "registered" if answer["created_version"] else "is registered already"
        print(f"{answer['name']}@{answer['version']} {new}: id {answer['id']}, {answer['compatibility']}")
    _end(answer, as_json)


@schema.command()
@with_server
def check(
    name: NameArgument,
    file: FileArgument,
    server: Server,
    format: FormatOption = "",
    message: MessageOption = "",
    compatibility: CompatibilityOption = "",
    as_json: JsonOption = False,
) -> None:
    """Check that a schema can be the next version. Nothing is registered. Exit code 1: it cannot."""
    _check(server, name, _definition(file, format, message, compatibility), as_json)


def _check(server: Server, name: str, definition: dict[str, Any], as_json: bool) -> None:
    answer = _ask(server, f"CHECK.{name}", definition)
    if as_json:
        print_json(answer)
    elif answer.get("compatible"):
        what = "is registered already" if answer["exists"] else "can be registered"
        print(f"{answer['name']}@{answer['version']} {what}: {answer['compatibility']}")
    _end(answer, as_json)
    if not answer["compatible"]:
        raise typer.Exit(1)


@schema.command("ls")
@with_server
def list_(server: Server, as_json: JsonOption = False) -> None:
    """List the schemas of the account."""
    found: list[dict[str, Any]] = []
    with exits(""), ClientLink(server) as link:
        while True:
            answer = _answer(link, "LIST", {"offset": len(found)})
            _end(answer, False)
            found += answer["schemas"]
            if not answer["schemas"] or len(found) >= answer["total"]:
                break
    if as_json:
        print_json(found)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for column in ("name", "versions", "format", "compatibility", "id", "created"):
        table.add_column(column)
    for each in found:
        versions = each["versions"]
        shown = str(versions[0]) if len(versions) == 1 else f"{versions[0]}-{versions[-1]} ({len(versions)})"
        row = (each["name"], shown, each["format"], each["compatibility"], str(each["id"]), each["created"][:19] + "Z")
        table.add_row(*row)
    console().print(table)


@schema.command()
@with_server
def show(
    reference: Annotated[str, typer.Argument(metavar="NAME[@VERSION]", help="A schema: orders, orders@3.")],
    server: Server,
    as_json: JsonOption = False,
) -> None:
    """Print the text of a version, by default of the latest."""
    answer = _ask(server, f"GET.{reference}", None)
    if as_json:
        print_json(answer)
    _end(answer, as_json)
    if not as_json:
        print(_visible_text(answer["text"]))


@schema.command()
@with_server
def diff(
    name: NameArgument,
    server: Server,
    old: Annotated[
        int, typer.Argument(help="The older version (default: the one before NEW).", show_default=False)
    ] = 0,
    new: Annotated[int, typer.Argument(help="The newer version (default: the latest).", show_default=False)] = 0,
    as_json: JsonOption = False,
) -> None:
    """Compare two versions: their texts, and what readers of each can read."""
    with exits(""), ClientLink(server) as link:
        answer = _answer(link, f"DIFF.{name}", {"old": old, "new": new})
        if as_json:
            print_json(answer)
        _end(answer, as_json)
        if as_json:
            return
        names = [f"{name}@{answer[side]['version']}" for side in ("old", "new")]
        before, after = [_visible_text(_answer(link, f"GET.{each}", None)["text"]).splitlines() for each in names]
    for line in difflib.unified_diff(before, after, names[0], names[1], lineterm=""):
        print(line)
    for mode, reader, writer in (("backward", names[1], names[0]), ("forward", names[0], names[1])):
        broken = [each for each in answer[mode] if not each["compatible"]]
        print(f"{mode}: {reader} {'does not read all' if broken else 'reads'} payloads of {writer}")
        for each in broken:
            print(visible(f"  {each['field'] or 'schema'}: {each['text']} ({each['rule']})"))


@schema.command()
@with_server
def rm(
    name: NameArgument,
    server: Server,
    force: Annotated[bool, typer.Option("--force", help="Delete the schema even if streams use it.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete a schema with all its versions. A schema of that name that is registered later continues their numbers."""
    answer = _ask(server, f"DELETE.{name}", {"force": force})
    if as_json:
        print_json(answer)
    _end(answer, as_json)
    if not as_json:
        print(f"{name} deleted")


@schema.command()
@with_server
def infer(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="A stream with JSON payloads.")],
    server: Server,
    subject: Annotated[str, typer.Option("--subject", help="Only messages of these subjects.")] = ">",
    count: Annotated[
        int, typer.Option("--count", min=1, max=MAX_SAMPLE, help="Number of messages to sample from the whole stream.")
    ] = 2_000,
    explain: Annotated[bool, typer.Option("--explain", help="Say why, for each choice, on stderr.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Propose a JSON Schema for a stream, from a sample. stdout has the schema, stderr what would not fit."""
    from lakestream_commands.infer import infer as propose

    with exits(""), ClientLink(server) as link:
        records = sampled(link, stream, subject, count)
    if not records:
        complain(f"stream {stream} has no messages of {subject}")
        raise typer.Exit(1)
    proposal = propose(record.data for record in records)
    misfits = [(records[each.row], each.misfit) for each in proposal.misfits]
    if as_json:
        shown = [
            {"seq": record.seq, "subject": record.subject, "field": why.field, "rule": why.rule, "text": why.text}
            for record, why in misfits
        ]
        choices = [
            {"field": each.field, "choice": each.choice, "reason": each.reason}
            | ({} if each.row is None else {"seq": records[each.row].seq})
            for each in proposal.choices
        ]
        found = {"schema": json.loads(proposal.schema), "payloads": proposal.payloads, "misfits": shown}
        print_json(found | {"choices": choices})
        return
    print(proposal.schema)
    for each in proposal.choices if explain else ():
        at = "" if each.row is None else f" (at seq {records[each.row].seq:,})"
        print(visible(f"  {each.field or 'payload'}: {each.choice}: {each.reason}{at}"), file=sys.stderr)
    print(f"{counted(proposal.payloads, 'message')} looked at, {len(misfits)} would not fit", file=sys.stderr)
    for record, why in misfits[:SHOWN_MISFITS]:
        print(visible(f"  seq {record.seq} {record.subject.decode('utf-8', 'replace')}: {why}"), file=sys.stderr)


@schema.command("test")
def check_files(
    file: FileArgument,
    fits: Annotated[
        list[str] | None,
        typer.Option("--fits", metavar="FILE", help="Payloads that should fit; .jsonl: one in each line. Repeatable."),
    ] = None,
    misfits: Annotated[
        list[str] | None, typer.Option("--misfits", metavar="FILE", help="Payloads that should not fit. Repeatable.")
    ] = None,
    before: Annotated[
        list[str] | None,
        typer.Option("--before", metavar="FILE", help="An earlier version, the oldest first. Repeatable."),
    ] = None,
    format: FormatOption = "",
    message: MessageOption = "",
    compatibility: CompatibilityOption = "",
    as_json: JsonOption = False,
) -> None:
    """Check a schema, payloads and earlier versions from files, without a server. Exit code 1: a check failed."""
    from lakestream_commands.schema_file import check_file

    mode = compatibility or DEFAULT_COMPATIBILITY
    texts = [*(before or []), file]
    try:
        *earlier, schema = (
            msgspec.convert(
                {"name": "schema", "version": number, **_definition(text, format, message, mode)}, type=Schema
            )
            for number, text in enumerate(texts, 1)
        )
        found = check_file(file, schema, fits or [], misfits or [], earlier)
    except msgspec.ValidationError as error:
        complain(f"{error}")
        raise typer.Exit(1) from None
    except OSError as error:
        complain(f"{error.filename}: {error.strerror}")
        raise typer.Exit(1) from None
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        for each in found.checks:
            problem = f": {each.problem}" if each.problem else ""
            print(visible(f"{'fail' if each.problem else 'ok  '} {each.check}: {each.subject}{problem}"))
        for name, kind in found.columns.items():
            print(visible(f"     {name} {kind}"))
    if not found.is_good:
        raise typer.Exit(1)


def _definition(file: str, format: str, message: str, compatibility: str) -> dict[str, Any]:
    """Return the body of a registration. Exits with 1 if the file cannot be read."""
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        complain(f"{file}: {error.strerror}")
        raise typer.Exit(1) from None
    wanted = format or _FORMATS.get(Path(file).suffix.lower(), "json")
    try:
        text = raw.decode()
        is_text = wanted != "protobuf" or ("\x00" not in text and any(char in text for char in ";{"))
    except UnicodeDecodeError:
        is_text = False
    if not is_text:
        if wanted != "protobuf":
            complain(f"{file} is not UTF-8 text")
            raise typer.Exit(1)
        text = base64.b64encode(raw).decode()  # a descriptor set
    found = {"format": wanted, "text": text, "message": message, "compatibility": compatibility}
    return {key: value for key, value in found.items() if value}


def _ask(server: Server, subject: str, body: dict[str, Any] | None) -> dict[str, Any]:
    """Return the answer to a request. Exits with 1 if there is none."""
    with exits(""), ClientLink(server) as link:
        return _answer(link, subject, body)
    raise AssertionError("either an answer or an exit")


def _answer(link: ClientLink, subject: str, body: dict[str, Any] | None) -> dict[str, Any]:
    if " " in subject or subject.endswith("."):
        raise TransferFailed(f"{subject.partition('.')[2]!r} is not a valid schema name")
    answer: dict[str, Any] = json.loads(
        link.request(PREFIX + subject, b"" if body is None else json.dumps(body).encode())
    )
    return answer


def _end(answer: dict[str, Any], as_json: bool) -> None:
    """Print the error of an answer and its conflicts, unless it is on stdout already. Exits with 1 if there is one."""
    error = answer.get("error")
    if not as_json:
        if error is not None:
            complain(visible(error.get("description", str(error))))
        for each in answer.get("conflicts", ()):
            text = f"  {each['field'] or 'schema'}: {each['text']} ({each['rule']})"
            print(visible(f"{text}, not {each['mode']} compatible with version {each['version']}"), file=sys.stderr)
    if error is not None:
        raise typer.Exit(1)


def _visible_text(text: str) -> str:
    return "\n".join(visible(line.replace("\t", "    ")) for line in text.splitlines())


def sampled(link: ClientLink, stream: str, subject: str, count: int) -> list[Record]:
    """Return up to `count` messages, ascending: all if there are no more, else the first ones of `SAMPLE_PARTS` parts.

    Args:
        stream: its name.
        subject: pattern of the messages that count; others are read and left out.

    Raises:
        TransferFailed: there is no such stream, or the server does not answer.
    """
    info = link.stream(stream)
    if info is None:
        raise TransferFailed(f"there is no stream {stream}")
    first, last = info["state"]["first_seq"], info["state"]["last_seq"]
    parts = SAMPLE_PARTS if info["state"]["messages"] > count else 1
    found: list[Record] = []
    size = 0
    for part in range(parts):
        low = first + (last - first + 1) * part // parts
        high = first + (last - first + 1) * (part + 1) // parts - 1
        until = count * (part + 1) // parts
        for block in link.messages(stream, low, high):
            for record in block:
                if len(found) >= until:
                    break
                if matches(subject.encode(), record.subject):
                    size += len(record.data)
                    if size > MAX_SAMPLE_BYTES:
                        return found
                    found.append(record)
            if len(found) >= until:
                break
    return found


@schema.command("replay", cls=OptionalCommand)
def replay() -> None:
    """Decode the messages that did not fit their schema again, after it was mended, with Spark."""


schema.command("restore")(restore_schemas)
