"""`lakestream consumer`.

Belongs here: the commands, the options of a consumer's configuration, and how a consumer is shown.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakestream.cli.server_options import Server, with_server
from lakestream.cli.terminal import JsonOption, print_json
from lakestream.protocol import dead_letters
from lakestream.protocol.durations import format_duration
from lakestream_commands.nats import shown
from lakestream_commands.nats.completion import names
from lakestream_commands.nats.session import TIMEOUT_S, CommandFailed, NatsSession, confirm, over_nats
from lakestream_commands.nats.streams import ConfigFile, Defaults, Force, StreamName, Unasked, read_config, with_config

if TYPE_CHECKING:
    from nats.aio.msg import Msg

consumer = typer.Typer(help="Create, show, read, pause and delete consumers.", no_args_is_help=True)

ConsumerName = Annotated[
    str, typer.Argument(metavar="CONSUMER", help="Name of the consumer.", autocompletion=names("consumer"))
]


def _option(kind: Any, name: str, text: str, **more: Any) -> Any:
    return Annotated[kind, typer.Option(name, help=text, **more)]


_TEXT, _INT, _LIST = str | None, int | None, list[str] | None
_CONFIG: dict[str, tuple[Any, str, Any]] = {
    "filter": (
        _option(_LIST, "--filter", "Only these subjects; repeatable.", metavar="SUBJECT"),
        "filter_subjects",
        "list",
    ),
    "ack": (_option(_TEXT, "--ack", "none, all or explicit."), "ack_policy", None),
    "wait": (_option(_TEXT, "--wait", "Time for an ack.", metavar="DURATION"), "ack_wait", shown.duration),
    "max_deliver": (_option(_INT, "--max-deliver", "Most deliveries of a message."), "max_deliver", None),
    "max_pending": (_option(_INT, "--max-pending", "Maximum number of unacked messages."), "max_ack_pending", None),
    "target": (_option(_TEXT, "--target", "Push to this subject.", metavar="SUBJECT"), "deliver_subject", None),
    "queue": (_option(_TEXT, "--deliver-group", "Push to a member of this queue group."), "deliver_group", None),
    "heartbeat": (_option(_TEXT, "--heartbeat", "Of pushes.", metavar="DURATION"), "idle_heartbeat", shown.duration),
    "replay": (_option(_TEXT, "--replay", "instant or original."), "replay_policy", None),
    "description": (_option(_TEXT, "--description", "Description."), "description", None),
    "inactive": (
        _option(_TEXT, "--inactive-threshold", "Time without use after which it goes.", metavar="DURATION"),
        "inactive_threshold",
        shown.duration,
    ),
    "replicas": (_option(_INT, "--replicas", "Number of replicas, in a cluster."), "num_replicas", None),
    "metadata": (_option(_LIST, "--metadata", "Metadata; repeatable.", metavar="KEY=VALUE"), "metadata", "map"),
}
_DELIVER = {"all": "all", "new": "new", "last": "last", "subject": "last_per_subject", "1": "all"}


@consumer.command("add")
@with_server
@with_config(_CONFIG)
def add(
    server: Server,
    stream: StreamName,
    name: ConsumerName,
    given: dict[str, Any],
    deliver: Annotated[
        str,
        typer.Option(
            "--deliver",
            help="Start of delivery: all, new, last, subject (the last message of each), 1h, or a sequence.",
        ),
    ] = "all",
    pull: Annotated[
        bool, typer.Option("--pull", help="Let clients fetch messages (the default without --target).")
    ] = False,
    ephemeral: Annotated[bool, typer.Option("--ephemeral", help="Remove the consumer when nobody uses it.")] = False,
    config: ConfigFile = None,
    defaults: Defaults = False,
    as_json: JsonOption = False,
) -> None:
    """Create a consumer."""
    wanted = {"ack_policy": "explicit", **_start(deliver), **read_config(config), **given, "name": name}
    if len(wanted.get("filter_subjects", ())) == 1:
        wanted["filter_subject"] = wanted.pop("filter_subjects")[0]
    if not ephemeral:
        wanted["durable_name"] = name
    if pull:
        wanted.pop("deliver_subject", None)

    async def work(session: NatsSession) -> None:
        body = {"stream_name": stream, "config": wanted, "action": "create"}
        _show(await session.api(f"CONSUMER.CREATE.{stream}.{name}", body), as_json)

    over_nats(server, work)


def _start(text: str) -> dict[str, Any]:
    """Return the fields of the configuration for where a consumer begins."""
    if text in _DELIVER:
        return {"deliver_policy": _DELIVER[text]}
    if text.isdigit():
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": int(text)}
    return {"deliver_policy": "by_start_time", "opt_start_time": shown.moment(text)}


@consumer.command("ls")
@with_server
def ls(
    server: Server,
    stream: StreamName,
    names: Annotated[bool, typer.Option("--names", "-n", help="Print names only.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the consumers of a stream."""

    async def work(session: NatsSession) -> None:
        found = await session.pages(f"CONSUMER.LIST.{stream}", "consumers")
        if as_json:
            print_json([each["name"] for each in found] if names else found)
        elif names:
            for each in found:
                print(each["name"])
        elif not found:
            print(f"Stream {stream} has no consumers")
        else:
            rows = [
                (
                    each["name"],
                    each["config"].get("description", ""),
                    shown.at(each["created"]),
                    each["num_ack_pending"],
                    each["num_pending"],
                    shown.ago(each["delivered"].get("last_active", "")),
                )
                for each in found
            ]
            columns = ("Name", "Description", "Created", "Ack Pending", "Unprocessed", "Last Delivery")
            shown.table("Consumers", columns, rows)

    over_nats(server, work)


@consumer.command("info")
@with_server
def info(server: Server, stream: StreamName, name: ConsumerName, as_json: JsonOption = False) -> None:
    """Show a consumer's configuration and state."""

    async def work(session: NatsSession) -> None:
        _show(await session.api(f"CONSUMER.INFO.{stream}.{name}"), as_json)

    over_nats(server, work)


@consumer.command("rm")
@with_server
def rm(server: Server, stream: StreamName, name: ConsumerName, force: Force = False) -> None:
    """Delete a consumer."""
    confirm(f"Really delete consumer {stream} > {name}?", force)

    async def work(session: NatsSession) -> None:
        await session.api(f"CONSUMER.DELETE.{stream}.{name}")

    over_nats(server, work)


@consumer.command("pause")
@with_server
def pause(
    server: Server,
    stream: StreamName,
    name: ConsumerName,
    until: Annotated[str, typer.Argument(metavar="UNTIL", help="A duration such as 1h, or a time (RFC 3339).")],
    force: Unasked = False,
    as_json: JsonOption = False,
) -> None:
    """Deliver nothing until a time. `resume` ends it before."""
    _pause(server, stream, name, until if "T" in until else shown.moment(until, ahead=True), as_json)


@consumer.command("resume")
@with_server
def resume(server: Server, stream: StreamName, name: ConsumerName, as_json: JsonOption = False) -> None:
    """Go on with deliveries after a pause."""
    _pause(server, stream, name, "", as_json)


def _pause(server: Server, stream: str, name: str, deadline: str, as_json: bool) -> None:
    async def work(session: NatsSession) -> None:
        body = {"pause_until": deadline} if deadline else {}
        answer = await session.api(f"CONSUMER.PAUSE.{stream}.{name}", body)
        if as_json:
            print_json(answer)
        elif answer.get("paused"):
            left = format_duration(answer.get("pause_remaining", 0))
            print(f"Paused {stream} > {name} until {shown.at(answer['pause_until'])} ({left})")
        else:
            print(f"Consumer {stream} > {name} is not paused")

    over_nats(server, work)


@consumer.command("next")
@with_server
def next_(
    server: Server,
    stream: StreamName,
    name: ConsumerName,
    count: Annotated[int, typer.Option("--count", min=1, help="Number of messages to fetch.")] = 1,
    ack: Annotated[bool, typer.Option("--ack/--no-ack", help="Acknowledge the messages.")] = True,
    raw: Annotated[bool, typer.Option("--raw", "-r", help="Print payloads only.")] = False,
    wait: Annotated[str, typer.Option("--wait", metavar="DURATION", help="Time to wait for messages.")] = "5s",
) -> None:
    """Fetch the next messages of a pull consumer, and acknowledge them."""
    limit_ns = shown.duration(wait)

    async def work(session: NatsSession) -> None:
        client, inbox = session.client, session.client.new_inbox()
        arrived: asyncio.Queue[Msg] = asyncio.Queue()
        await client.subscribe(inbox, cb=arrived.put)
        request = json.dumps({"batch": count, "expires": limit_ns}).encode()
        await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}", request, reply=inbox)
        got = 0
        while got < count:
            try:
                message = await asyncio.wait_for(arrived.get(), limit_ns / 1e9 + TIMEOUT_S)
            except TimeoutError:
                raise CommandFailed(f"{stream} > {name}: no answer") from None
            status = (message.headers or {}).get("Status")
            if status == "503":
                raise CommandFailed(f"there is no pull consumer {name} of a stream {stream}")
            if status in ("404", "408", "409"):
                what = (message.headers or {}).get("Description", status)
                raise CommandFailed(f"{stream} > {name}: no message within {wait}" if status != "409" else what)
            if status is not None:
                continue
            got += 1
            _print(message, raw)
            if ack:
                await message.ack_sync(timeout=TIMEOUT_S)
                if not raw:
                    print("Acknowledged message\n", flush=True)

    over_nats(server, work)


@consumer.command("redrive")
@with_server
def redrive(
    server: Server,
    stream: StreamName,
    name: ConsumerName,
    count: Annotated[int | None, typer.Option("--count", min=1, help="Most messages to publish again.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Publish a consumer's dead letters again, to the subjects that they came from.

    A letter is deleted once the stream has stored its message. Deliveries are counted anew.
    """

    async def work(session: NatsSession) -> None:
        found = await session.api(f"CONSUMER.INFO.{stream}.{name}")
        from nats.js.errors import NotFoundError

        setting = dead_letters.setting_of(found["config"].get("metadata") or {})
        if setting is None:
            raise CommandFailed(f"{stream} > {name} has no {dead_letters.KEY} in its metadata")
        subject = setting.subject
        where = (await session.api("STREAM.NAMES", {"subject": subject})).get("streams") or []
        if not where:
            raise CommandFailed(f"no stream has the subject {subject}")
        jetstream, sent, seq = session.client.jetstream(timeout=TIMEOUT_S), 0, 0
        while count is None or sent < count:
            try:
                letter = await jetstream.get_msg(where[0], seq=seq + 1, subject=subject, next=True)
            except NotFoundError:
                break
            seq, about = letter.seq or 0, letter.headers or {}
            if (about.get(dead_letters.STREAM), about.get(dead_letters.CONSUMER)) != (stream, name):
                continue
            kept = {key: value for key, value in about.items() if not key.startswith((dead_letters.PREFIX, "Nats-"))}
            kept["Nats-Msg-Id"] = f"redrive.{where[0]}.{letter.seq}"
            await jetstream.publish(about[dead_letters.SUBJECT], letter.data or b"", headers=kept)
            await jetstream.delete_msg(where[0], seq)
            sent += 1
        if as_json:
            print_json({"stream": stream, "consumer": name, "published": sent})
        else:
            print(f"Published {sent} dead letters of {stream} > {name} again")

    over_nats(server, work)


def _print(message: Msg, raw: bool) -> None:
    if raw:
        shown.raw(message.data)
        return
    told = message.metadata
    print(
        f"[{shown.clock()}] subj: {message.subject} / tries: {told.num_delivered} / cons seq: "
        f"{told.sequence.consumer} / str seq: {told.sequence.stream} / pending: {told.num_pending}\n"
    )
    for name, value in shown.headers_of(message):
        print(f"{name}: {value}")
    if message.headers:
        print()
    print(shown.payload(message.data) + "\n", flush=True)


def _show(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    config, push = found["config"], "deliver_subject" in found["config"]
    filters = config.get("filter_subjects") or ([config["filter_subject"]] if config.get("filter_subject") else [])
    named: list[tuple[str, object]] = [
        ("Name", found["name"]),
        ("Description", config.get("description")),
        ("Pull Mode", not push),
        ("Delivery Subject", config.get("deliver_subject")),
        ("Filter Subjects", ", ".join(filters) or None),
        ("Deliver Policy", config["deliver_policy"].replace("_", " ").capitalize()),
        ("Ack Policy", config["ack_policy"].capitalize()),
        ("Ack Wait", shown.limit(config.get("ack_wait"), "s") if config["ack_policy"] != "none" else None),
        ("Replay Policy", config["replay_policy"].capitalize()),
        ("Maximum Deliveries", config["max_deliver"] if config.get("max_deliver", -1) > 0 else None),
        ("Max Ack Pending", config.get("max_ack_pending")),
        ("Max Waiting Pulls", config.get("max_waiting")),
        ("Paused Until", shown.at(config["pause_until"]) if config.get("pause_until") else None),
    ]
    delivered, floor = found["delivered"], found["ack_floor"]
    now: list[tuple[str, object]] = [
        ("Last Delivered Message", _sequences(delivered)),
        ("Acknowledgment Floor", _sequences(floor)),
        ("Outstanding Acks", found["num_ack_pending"]),
        ("Redelivered Messages", found["num_redelivered"]),
        ("Unprocessed Messages", found["num_pending"]),
        ("Waiting Pulls", None if push else found["num_waiting"]),
    ]
    title = f"Information for Consumer {found['stream_name']} > {found['name']} created {shown.at(found['created'])}"
    shown.record(title, [("Configuration", named), ("State", now)])


def _sequences(pair: dict[str, Any]) -> str:
    last = f" @ {shown.at(pair['last_active'])}" if pair.get("last_active") else ""
    return f"Consumer sequence: {pair['consumer_seq']:,} Stream sequence: {pair['stream_seq']:,}{last}"
