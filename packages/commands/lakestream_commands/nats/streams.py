"""`lakestream stream`.

Belongs here: the commands, the options of a stream's configuration, and how a stream is shown.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from lakestream.cli.server_options import Server, with_options, with_server
from lakestream.cli.terminal import JsonOption, print_json, size
from lakestream_commands.nats import shown
from lakestream_commands.nats.completion import names
from lakestream_commands.nats.session import ApiRefused, CommandFailed, NatsSession, confirm, over_nats

stream = typer.Typer(help="Create, show, edit, read and delete streams.", no_args_is_help=True)

StreamName = Annotated[
    str, typer.Argument(metavar="STREAM", help="Name of the stream.", autocompletion=names("stream"))
]
Force = Annotated[bool, typer.Option("--force", "-f", help="Do not ask.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="JSON file with the configuration; options precede it.")
]
Defaults = Annotated[bool, typer.Option("--defaults", help="Accepted for scripts written for the nats command.")]
Unasked = Annotated[bool, typer.Option("--force", "-f", help="Accepted for scripts written for the nats command.")]

NO_MESSAGE = 10037
"""Error code (`err_code`) of a message that is not there."""

_RETENTIONS = {"limits": "limits", "interest": "interest", "work": "workqueue", "workqueue": "workqueue"}


def _text(name: str, text: str, **more: Any) -> Any:
    return Annotated[str | None, typer.Option(name, help=text, **more)]


def _number(name: str, text: str) -> Any:
    return Annotated[int | None, typer.Option(name, help=text)]


def _flag(name: str, text: str) -> Any:
    return Annotated[bool | None, typer.Option(f"--{name}/--no-{name}", help=text)]


def _texts(name: str, text: str, metavar: str) -> Any:
    return Annotated[list[str] | None, typer.Option(name, help=text, metavar=metavar)]


_CONFIG: dict[str, tuple[Any, str, Any]] = {
    "subjects": (_texts("--subjects", "Subjects; repeatable, or with commas.", "SUBJECT"), "subjects", "list"),
    "description": (_text("--description", "Description."), "description", None),
    "storage": (_text("--storage", "file or memory."), "storage", None),
    "retention": (_text("--retention", "limits, interest or work."), "retention", _RETENTIONS),
    "discard": (_text("--discard", "At a limit: old (messages go) or new (are refused)."), "discard", None),
    "discard_per_subject": (
        _flag("discard-per-subject", "Refuse at the limit of a subject."),
        "discard_new_per_subject",
        None,
    ),
    "max_msgs": (_number("--max-msgs", "Most messages; -1: no limit."), "max_msgs", None),
    "max_msgs_per_subject": (
        _number("--max-msgs-per-subject", "Most messages of a subject."),
        "max_msgs_per_subject",
        None,
    ),
    "max_bytes": (_text("--max-bytes", "Most bytes: 10GB.", metavar="SIZE"), "max_bytes", shown.bytes_of),
    "max_age": (
        _text("--max-age", "Age at which messages are removed: 7d.", metavar="DURATION"),
        "max_age",
        shown.duration,
    ),
    "max_msg_size": (_text("--max-msg-size", "Largest message.", metavar="SIZE"), "max_msg_size", shown.bytes_of),
    "max_consumers": (_number("--max-consumers", "Most consumers."), "max_consumers", None),
    "dupe_window": (
        _text("--dupe-window", "Time for which message ids are known.", metavar="DURATION"),
        "duplicate_window",
        shown.duration,
    ),
    "replicas": (_number("--replicas", "Number of replicas, in a cluster."), "num_replicas", None),
    "compression": (_text("--compression", "none or s2."), "compression", None),
    "mirror": (_text("--mirror", "Copy this stream.", metavar="STREAM"), "mirror", lambda name: {"name": name}),
    "source": (_texts("--source", "Copy the messages of this stream, too; repeatable.", "STREAM"), "sources", "named"),
    "ack": (_flag("ack", "Confirm publishes."), "no_ack", lambda value: not value),
    "allow_direct": (_flag("allow-direct", "Direct gets."), "allow_direct", None),
    "allow_rollup": (_flag("allow-rollup", "Messages that replace earlier ones."), "allow_rollup_hdrs", None),
    "deny_delete": (_flag("deny-delete", "No deletion of messages."), "deny_delete", None),
    "deny_purge": (_flag("deny-purge", "No purge."), "deny_purge", None),
    "allow_msg_ttl": (_flag("allow-msg-ttl", "TTLs of messages."), "allow_msg_ttl", None),
    "allow_counter": (_flag("allow-counter", "Counters."), "allow_msg_counter", None),
    "allow_batch": (_flag("allow-batch", "Atomic batches."), "allow_atomic", None),
    "allow_schedules": (_flag("allow-schedules", "Schedules."), "allow_msg_schedules", None),
    "metadata": (_texts("--metadata", "Metadata; repeatable.", "KEY=VALUE"), "metadata", "map"),
    "tag": (_texts("--tag", "Place it on servers with this tag; repeatable.", "TAG"), "placement.tags", "list"),
    "cluster": (_text("--cluster", "Place it in this cluster."), "placement.cluster", None),
}
"""By parameter: the option, the field of the configuration, and how the value becomes the field's."""


def configuration(given: dict[str, Any], table: dict[str, tuple[Any, str, Any]]) -> dict[str, Any]:
    """Return the fields of a configuration that options give."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        if value is None or value == []:
            continue
        _, field, convert = table[name]
        if convert == "list":
            value = [part for each in value for part in each.split(",") if part]
        elif convert == "named":
            value = [{"name": each} for each in value]
        elif convert == "map":
            value = dict(_pair(each) for each in value)
        elif isinstance(convert, dict):
            if value not in convert:
                raise typer.BadParameter(f"{value!r} is not one of {', '.join(convert)}", param_hint=f"--{name}")
            value = convert[value]
        elif convert is not None:
            value = convert(value)
        outer, dot, inner = field.partition(".")
        if dot:
            found.setdefault(outer, {})[inner] = value
        else:
            found[field] = value
    return found


def _pair(text: str) -> tuple[str, str]:
    for separator in "=:":
        key, found, value = text.partition(separator)
        if found:
            return key.strip(), value.strip()
    raise typer.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--metadata")


def with_config(
    table: dict[str, tuple[Any, str, Any]],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the options of a configuration as its parameter `given`."""
    options = {name: (annotation, None) for name, (annotation, _, _) in table.items()}
    return with_options("given", options, lambda values: configuration(values, table))


def read_config(path: Path | None) -> dict[str, Any]:
    """Return the configuration of a file; {} without one.

    Raises:
        typer.BadParameter: it cannot be read.
    """
    if path is None:
        return {}
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{path}: {error}", param_hint="--config") from None
    config = found.get("config", found) if isinstance(found, dict) else None
    if not isinstance(config, dict):
        raise typer.BadParameter(f"{path} has no JSON object", param_hint="--config")
    return config


@stream.command("add")
@with_server
@with_config(_CONFIG)
def add(
    server: Server,
    name: StreamName,
    given: dict[str, Any],
    config: ConfigFile = None,
    defaults: Defaults = False,
    as_json: JsonOption = False,
) -> None:
    """Create a stream. Without --subjects its subject is its name."""
    wanted = {"allow_direct": "mirror" not in given, **read_config(config), **given, "name": name}

    async def work(session: NatsSession) -> None:
        made = await session.api(f"STREAM.CREATE.{name}", wanted)
        if not as_json:
            print(f"Stream {name} was created\n")
        _show(made, as_json)

    over_nats(server, work)


@stream.command("edit")
@with_server
@with_config(_CONFIG)
def edit(
    server: Server,
    name: StreamName,
    given: dict[str, Any],
    config: ConfigFile = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    force: Unasked = False,
    as_json: JsonOption = False,
) -> None:
    """Change a stream's configuration. What is not given stays."""

    async def work(session: NatsSession) -> None:
        before = (await session.api(f"STREAM.INFO.{name}"))["config"]
        after = {**before, **read_config(config), **given, "name": name}
        if "metadata" in given:
            after["metadata"] = {**(before.get("metadata") or {}), **given["metadata"]}
        changes = sorted(key for key in after if after[key] != before.get(key))
        for key in () if as_json else changes:
            print(f"{key}: {json.dumps(before.get(key))} -> {json.dumps(after[key])}")
        if not changes:
            raise CommandFailed(f"nothing to change in stream {name}")
        if dry_run:
            return
        changed = await session.api(f"STREAM.UPDATE.{name}", after)
        if not as_json:
            print(f"Stream {name} was updated\n")
        _show(changed, as_json)

    over_nats(server, work)


@stream.command("ls")
@with_server
def ls(
    server: Server,
    names: Annotated[bool, typer.Option("--names", "-n", help="Print names only.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Include the streams of buckets and object stores.")
    ] = False,
    subject: Annotated[str, typer.Option("--subject", help="Only streams that capture this subject.")] = "",
    as_json: JsonOption = False,
) -> None:
    """List streams."""

    async def work(session: NatsSession) -> None:
        body = {"subject": subject} if subject else {}
        found = [
            each
            for each in await session.pages("STREAM.LIST", "streams", body)
            if everything or not each["config"]["name"].startswith(("KV_", "OBJ_"))
        ]
        if as_json:
            print_json([each["config"]["name"] for each in found] if names else found)
        elif names:
            for each in found:
                print(each["config"]["name"])
        elif not found:
            print("No streams" if everything else "No streams; --all also lists those of buckets and object stores")
        else:
            _list(found)

    over_nats(server, work)


def _list(found: list[dict[str, Any]]) -> None:
    rows = [
        (
            each["config"]["name"],
            each["config"].get("description", ""),
            shown.at(each["created"]),
            each["state"]["messages"],
            size(each["state"]["bytes"]),
            shown.ago(each["state"]["last_ts"]),
        )
        for each in found
    ]
    shown.table("Streams", ("Name", "Description", "Created", "Messages", "Size", "Last Message"), rows)


@stream.command("info")
@with_server
def info(server: Server, name: StreamName, as_json: JsonOption = False) -> None:
    """Show a stream's configuration and state."""

    async def work(session: NatsSession) -> None:
        _show(await session.api(f"STREAM.INFO.{name}"), as_json)

    over_nats(server, work)


@stream.command("rm")
@with_server
def rm(server: Server, name: StreamName, force: Force = False) -> None:
    """Delete a stream with all its messages."""
    confirm(f"Really delete stream {name}?", force)

    async def work(session: NatsSession) -> None:
        await session.api(f"STREAM.DELETE.{name}")

    over_nats(server, work)


@stream.command("purge")
@with_server
def purge(
    server: Server,
    name: StreamName,
    subject: Annotated[str, typer.Option("--subject", help="Only messages of this subject.")] = "",
    seq: Annotated[int, typer.Option("--seq", min=0, help="Only messages below this sequence.")] = 0,
    keep: Annotated[int, typer.Option("--keep", min=0, help="Number of newest messages to keep.")] = 0,
    force: Force = False,
    as_json: JsonOption = False,
) -> None:
    """Delete messages of a stream."""
    confirm(f"Really purge stream {name}?", force)
    body = {key: value for key, value in (("filter", subject), ("seq", seq), ("keep", keep)) if value}

    async def work(session: NatsSession) -> None:
        answer = await session.api(f"STREAM.PURGE.{name}", body)
        if as_json:
            print_json(answer)
        else:
            print(f"Purged {answer['purged']:,} messages from {name}")

    over_nats(server, work)


@stream.command("get")
@with_server
def get(
    server: Server,
    name: StreamName,
    seq: Annotated[int, typer.Argument(metavar="[SEQUENCE]", min=0, help="Sequence of the message.")] = 0,
    last_for: Annotated[
        str, typer.Option("--last-for", "-S", metavar="SUBJECT", help="Show the last message of this subject.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Show one message: by sequence, or the last one of a subject."""
    if not seq and not last_for:
        raise typer.BadParameter("name a sequence, or a subject with --last-for", param_hint="SEQUENCE")

    async def work(session: NatsSession) -> None:
        body = {"last_by_subj": last_for} if last_for else {"seq": seq}
        message = (await session.api(f"STREAM.MSG.GET.{name}", body))["message"]
        if as_json:
            print_json(message)
        else:
            _message(name, message)

    over_nats(server, work)


@stream.command("view")
@with_server
def view(
    server: Server,
    name: StreamName,
    count: Annotated[int, typer.Argument(metavar="[COUNT]", min=1, help="Number of messages to show.")] = 10,
    start: Annotated[int, typer.Option("--id", min=0, help="Begin at this sequence.")] = 0,
    since: Annotated[str, typer.Option("--since", metavar="DURATION", help="Begin with messages of this age.")] = "",
    subject: Annotated[str, typer.Option("--subject", help="Only messages with this subject.")] = "",
    raw: Annotated[bool, typer.Option("--raw", help="Print payloads only.")] = False,
) -> None:
    """Show messages, the first ones unless --id or --since says otherwise."""
    body: dict[str, Any] = {"next_by_subj": subject} if subject else {"next_by_subj": ">"}
    if since:
        body["start_time"] = shown.moment(since)

    async def work(session: NatsSession) -> None:
        at, left = max(start, 1), count
        while left:
            try:
                request = {**body, "seq": at} if "start_time" not in body else body
                message = (await session.api(f"STREAM.MSG.GET.{name}", request))["message"]
            except ApiRefused as refused:
                if refused.code == NO_MESSAGE:
                    return
                raise
            body.pop("start_time", None)
            at, left = message["seq"] + 1, left - 1
            if raw:
                shown.raw(base64.b64decode(message.get("data", "")))
            else:
                _message(name, message)

    over_nats(server, work)


def _message(stream_name: str, message: dict[str, Any]) -> None:
    print(f"Item: {stream_name}#{message['seq']} received {message['time']} on Subject {message['subject']}\n")
    headers = base64.b64decode(message.get("hdrs", "")).decode("utf-8", "replace").split("\r\n")[1:]
    for line in filter(None, headers):
        print(line)
    if any(headers):
        print()
    print(shown.payload(base64.b64decode(message.get("data", ""))) + "\n", flush=True)


def _show(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    config, state = found["config"], found["state"]
    mirror, sources = config.get("mirror"), config.get("sources") or []
    last = shown.at(state["last_ts"])
    named: list[tuple[str, object]] = [
        ("Description", config.get("description")),
        ("Subjects", ", ".join(config.get("subjects") or []) or None),
        ("Mirror", mirror["name"] if mirror else None),
        ("Sources", ", ".join(each["name"] for each in sources) or None),
        ("Replicas", config["num_replicas"]),
        ("Storage", config["storage"].capitalize()),
    ]
    options: list[tuple[str, object]] = [
        ("Retention", config["retention"].capitalize()),
        ("Acknowledgments", not config.get("no_ack")),
        ("Discard Policy", config["discard"].capitalize()),
        ("Duplicate Window", shown.limit(config.get("duplicate_window"), "s")),
        ("Compression", config.get("compression") if config.get("compression") != "none" else None),
        ("Direct Get", bool(config.get("allow_direct"))),
        ("Allows Msg Delete", not config.get("deny_delete")),
        ("Allows Purge", not config.get("deny_purge")),
        ("Allows Rollups", bool(config.get("allow_rollup_hdrs"))),
        ("Allows Per-Message TTL", bool(config.get("allow_msg_ttl"))),
    ]
    limits: list[tuple[str, object]] = [
        ("Maximum Messages", shown.limit(config.get("max_msgs"))),
        ("Maximum Per Subject", shown.limit(config.get("max_msgs_per_subject"))),
        ("Maximum Bytes", shown.limit(config.get("max_bytes"), "B")),
        ("Maximum Age", shown.limit(config.get("max_age"), "s")),
        ("Maximum Message Size", shown.limit(config.get("max_msg_size"), "B")),
        ("Maximum Consumers", shown.limit(config.get("max_consumers"))),
    ]
    metadata = [(key, value) for key, value in (config.get("metadata") or {}).items() if not key.startswith("_nats.")]
    now: list[tuple[str, object]] = [
        ("Messages", state["messages"]),
        ("Bytes", size(state["bytes"])),
        ("First Sequence", _sequence(state["first_seq"], shown.at(state["first_ts"]))),
        ("Last Sequence", _sequence(state["last_seq"], last)),
        ("Deleted Messages", state.get("num_deleted")),
        ("Subjects", state.get("num_subjects")),
        ("Active Consumers", state["consumer_count"]),
    ]
    title = f"Information for Stream {config['name']} created {shown.at(found['created'])}"
    sections = [("", named), ("Options", options), ("Limits", limits), ("Metadata", metadata), ("State", now)]
    shown.record(title, sections)


def _sequence(number: int, when: str) -> str:
    return f"{number:,}" if when == "never" else f"{number:,} @ {when}"
