"""`lakestream kv`.

Belongs here: the commands on key-value buckets.
"""

from __future__ import annotations

import base64
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakestream.cli.server_options import Server, with_server
from lakestream.cli.terminal import JsonOption, print_json, size
from lakestream_commands.nats import shown
from lakestream_commands.nats.completion import names
from lakestream_commands.nats.session import TIMEOUT_S, ApiRefused, CommandFailed, NatsSession, confirm, over_nats
from lakestream_commands.nats.streams import NO_MESSAGE, Force

if TYPE_CHECKING:
    from nats.js.kv import KeyValue

kv = typer.Typer(help="Create and show key-value buckets; put, get, watch and delete keys.", no_args_is_help=True)

PREFIX = "KV_"

_BUCKETS = names("stream", "KV_")
BucketName = Annotated[str, typer.Argument(metavar="BUCKET", help="Name of the bucket.", autocompletion=_BUCKETS)]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The key.")]
Value = Annotated[str | None, typer.Argument(metavar="[VALUE]", help="Value. Without it, read stdin.")]
Raw = Annotated[bool, typer.Option("--raw", "-r", help="Print the value only.")]

_OPERATIONS = {None: "PUT", "": "PUT", "DEL": "DEL", "PURGE": "PURGE"}


@kv.command("add")
@with_server
def add(
    server: Server,
    bucket: BucketName,
    history: Annotated[
        int, typer.Option("--history", min=1, max=64, help="Number of values to keep for each key.")
    ] = 1,
    ttl: Annotated[str, typer.Option("--ttl", metavar="DURATION", help="Delete values of this age.")] = "",
    max_value_size: Annotated[
        str, typer.Option("--max-value-size", metavar="SIZE", help="Maximum size of a value.")
    ] = "-1",
    max_bucket_size: Annotated[
        str, typer.Option("--max-bucket-size", metavar="SIZE", help="Maximum total size.")
    ] = "-1",
    description: Annotated[str, typer.Option("--description", help="Description.")] = "",
    storage: Annotated[str, typer.Option("--storage", help="file or memory.")] = "file",
    replicas: Annotated[int, typer.Option("--replicas", min=1, help="Number of replicas, in a cluster.")] = 1,
) -> None:
    """Create a bucket."""
    from nats.js.api import KeyValueConfig, StorageType

    try:
        kind = StorageType(storage)
    except ValueError:
        raise typer.BadParameter(f"{storage!r} is neither file nor memory", param_hint="--storage") from None
    config = KeyValueConfig(
        bucket=bucket,
        history=history,
        ttl=shown.duration(ttl) / 1e9 if ttl else None,
        max_value_size=shown.bytes_of(max_value_size),
        max_bytes=shown.bytes_of(max_bucket_size),
        description=description or None,
        storage=kind,
        replicas=replicas,
    )

    async def work(session: NatsSession) -> None:
        await session.client.jetstream(timeout=TIMEOUT_S).create_key_value(config)
        await _show(session, bucket)

    over_nats(server, work)


@kv.command("info")
@with_server
def info(server: Server, bucket: BucketName) -> None:
    """Show a bucket's configuration and state."""

    async def work(session: NatsSession) -> None:
        await _show(session, bucket)

    over_nats(server, work)


@kv.command("put")
@with_server
def put(server: Server, bucket: BucketName, key: Key, value: Value = None) -> None:
    """Put a value, and print its revision."""
    data = _value(value)

    async def work(session: NatsSession) -> None:
        print(await (await _bucket(session, bucket)).put(key, data))

    over_nats(server, work)


@kv.command("create")
@with_server
def create(server: Server, bucket: BucketName, key: Key, value: Value = None) -> None:
    """Put a value, unless the key has one; print its revision."""
    from nats.js.errors import KeyWrongLastSequenceError

    data = _value(value)

    async def work(session: NatsSession) -> None:
        try:
            print(await (await _bucket(session, bucket)).create(key, data))
        except KeyWrongLastSequenceError:
            raise CommandFailed(f"{bucket} > {key} has a value already") from None

    over_nats(server, work)


@kv.command("update")
@with_server
def update(
    server: Server,
    bucket: BucketName,
    key: Key,
    value: Value = None,
    revision: Annotated[int, typer.Option("--revision", min=0, help="Revision that the new value replaces.")] = 0,
) -> None:
    """Put a value, if the key still has this revision; print the new one."""
    from nats.js.errors import KeyWrongLastSequenceError

    data = _value(value)

    async def work(session: NatsSession) -> None:
        try:
            print(await (await _bucket(session, bucket)).update(key, data, revision))
        except KeyWrongLastSequenceError as error:
            raise CommandFailed(f"{bucket} > {key} has another revision: {error.description}") from None

    over_nats(server, work)


@kv.command("get")
@with_server
def get(
    server: Server,
    bucket: BucketName,
    key: Key,
    revision: Annotated[int | None, typer.Option("--revision", min=1, help="Show the value of this revision.")] = None,
    raw: Raw = False,
) -> None:
    """Show the value of a key."""
    subject = f"$KV.{bucket}.{key}"  # the message itself: nats-py's entries of a get have no time

    async def work(session: NatsSession) -> None:
        await _bucket(session, bucket)
        body = {"last_by_subj": subject} if revision is None else {"seq": revision}
        message: dict[str, Any] = {}
        try:
            message = (await session.api(f"STREAM.MSG.GET.{PREFIX}{bucket}", body))["message"]
        except ApiRefused as refused:
            if refused.code != NO_MESSAGE:
                raise
        if message.get("subject") != subject or b"KV-Operation:" in base64.b64decode(message.get("hdrs", "")):
            raise CommandFailed(f"{bucket} > {key}: key not found")
        value = base64.b64decode(message.get("data", ""))
        if raw:
            sys.stdout.buffer.write(value)
            sys.stdout.buffer.flush()
            return
        print(f"{bucket} > {key} revision: {message['seq']} created @ {shown.at(message['time'])}\n")
        print(shown.payload(value) + "\n")

    over_nats(server, work)


@kv.command("ls")
@with_server
def ls(
    server: Server,
    bucket: Annotated[
        str,
        typer.Argument(
            metavar="[BUCKET]",
            help="List the keys of this bucket. Without it, list the buckets.",
            autocompletion=_BUCKETS,
        ),
    ] = "",
    filters: Annotated[list[str] | None, typer.Argument(metavar="[FILTER]...", help="Only these keys.")] = None,
    names: Annotated[bool, typer.Option("--names", "-n", help="Print names only.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show time and revision as well.")] = False,
    values: Annotated[bool, typer.Option("--display-value", help="Show the values as well.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the keys of a bucket, or the buckets."""

    async def work(session: NatsSession) -> None:
        if not bucket:
            await _list(session, names, as_json)
            return
        found = await _entries(await _bucket(session, bucket), filters or [">"])
        if as_json:
            print_json([entry["key"] for entry in found])
        elif verbose or values:
            columns = ("Key", "Created", "Revision", *(("Value",) if values else ()))
            rows = [
                (each["key"], each["created"], each["revision"], *((each["value"],) if values else ()))
                for each in found
            ]
            shown.table(f"Contents for bucket '{bucket}'", columns, rows)
        else:
            for entry in found:
                print(entry["key"])

    over_nats(server, work)


@kv.command("history")
@with_server
def history(server: Server, bucket: BucketName, key: Key, as_json: JsonOption = False) -> None:
    """Show all values of a key that the bucket keeps."""
    from nats.js.errors import NoKeysError

    async def work(session: NatsSession) -> None:
        try:
            found = await (await _bucket(session, bucket)).history(key)
        except NoKeysError:
            raise CommandFailed(f"{bucket} > {key}: key not found") from None
        rows = [
            (
                each.key,
                each.revision,
                _OPERATIONS.get(each.operation, str(each.operation)),
                _when(each),
                len(each.value or b""),
                shown.payload(each.value or b""),
            )
            for each in found
        ]
        columns = ("Key", "Revision", "Op", "Created", "Length", "Value")
        if as_json:
            print_json([dict(zip(map(str.lower, columns), row, strict=True)) for row in rows])
        else:
            shown.table(f"History for {bucket} > {key}", columns, rows)

    over_nats(server, work)


@kv.command("watch")
@with_server
def watch(
    server: Server,
    bucket: BucketName,
    key: Annotated[str, typer.Argument(metavar="[KEY]", help="Keys to watch; wildcards are allowed.")] = ">",
) -> None:
    """Print the values of keys, and what changes, until Ctrl-C."""

    async def work(session: NatsSession) -> None:
        watcher = await (await _bucket(session, bucket)).watch(key)
        async for entry in watcher:
            if entry is None:
                continue
            operation = _OPERATIONS.get(entry.operation, str(entry.operation))
            value = f": {shown.payload(entry.value or b'')}" if operation == "PUT" else ""
            print(f"[{_when(entry)}] {operation} {bucket} > {entry.key}{value}", flush=True)

    over_nats(server, work)


@kv.command("rm")
@kv.command("del", hidden=True)
@with_server
def rm(
    server: Server,
    bucket: BucketName,
    key: Annotated[
        str, typer.Argument(metavar="[KEY]", help="Key to delete. Without it, delete the whole bucket.")
    ] = "",
    force: Force = False,
) -> None:
    """Delete a key, or a bucket."""
    confirm(f"Really delete {bucket} > {key}?" if key else f"Really delete bucket {bucket} with all its keys?", force)

    async def work(session: NatsSession) -> None:
        if key:
            await (await _bucket(session, bucket)).delete(key)
        else:
            await session.api(f"STREAM.DELETE.{PREFIX}{bucket}")

    over_nats(server, work)


@kv.command("purge")
@with_server
def purge(server: Server, bucket: BucketName, key: Key, force: Force = False) -> None:
    """Delete a key with all its earlier values."""
    confirm(f"Really purge {bucket} > {key}?", force)

    async def work(session: NatsSession) -> None:
        await (await _bucket(session, bucket)).purge(key)

    over_nats(server, work)


def _when(entry: Any) -> str:
    """Return the time of an entry of a watch, which nats-py declares as a number, to the second."""
    return entry.created.strftime("%Y-%m-%d %H:%M:%S") if entry.created else ""


def _value(value: str | None) -> bytes:
    return sys.stdin.buffer.read() if value is None else value.encode()


async def _bucket(session: NatsSession, name: str) -> KeyValue:
    from nats.js.errors import BucketNotFoundError

    try:
        return await session.client.jetstream(timeout=TIMEOUT_S).key_value(name)
    except BucketNotFoundError:
        raise CommandFailed(f"there is no bucket {name}; `kv ls` lists them, `kv add {name}` creates it") from None


async def _entries(bucket: KeyValue, filters: list[str]) -> list[dict[str, Any]]:
    """Return the current values of keys."""
    found: dict[str, dict[str, Any]] = {}
    for each in filters:
        watcher = await bucket.watch(each, ignore_deletes=True)
        async for entry in watcher:
            if entry is None:
                break
            value = shown.payload(entry.value or b"")
            found[entry.key] = {"key": entry.key, "revision": entry.revision, "created": _when(entry), "value": value}
        await watcher.stop()  # type: ignore[no-untyped-call]
    return list(found.values())


async def _list(session: NatsSession, names: bool, as_json: bool) -> None:
    listed = await session.pages("STREAM.LIST", "streams", {"subject": "$KV.>"})
    found = [each for each in listed if each["config"]["name"].startswith(PREFIX)]
    known = [each["config"]["name"].removeprefix(PREFIX) for each in found]
    if as_json:
        print_json(known)
    elif names:
        print("\n".join(known))
    elif not found:
        print("No buckets")
    else:
        rows = [
            (
                name,
                each["config"].get("description", ""),
                shown.at(each["created"]),
                size(each["state"]["bytes"]),
                each["state"]["messages"],
                shown.ago(each["state"]["last_ts"]),
            )
            for name, each in zip(known, found, strict=True)
        ]
        columns = ("Bucket", "Description", "Created", "Size", "Values", "Last Update")
        shown.table("Key-Value Buckets", columns, rows)


async def _show(session: NatsSession, bucket: str) -> None:
    found = await session.api(f"STREAM.INFO.{PREFIX}{bucket}")
    config, state = found["config"], found["state"]
    rows: list[tuple[str, object]] = [
        ("Bucket Name", bucket),
        ("Description", config.get("description")),
        ("History Kept", config["max_msgs_per_subject"]),
        ("Values Stored", state["messages"]),
        ("Keys", state.get("num_subjects", 0)),
        ("Bucket Size", size(state["bytes"])),
        ("Maximum Bucket Size", shown.limit(config.get("max_bytes"), "B")),
        ("Maximum Value Size", shown.limit(config.get("max_msg_size"), "B")),
        ("Maximum Age", shown.limit(config.get("max_age"), "s")),
        ("JetStream Stream", config["name"]),
        ("Storage", config["storage"].capitalize()),
        ("Replicas", config["num_replicas"]),
    ]
    title = f"Information for Key-Value Store Bucket {bucket} created {shown.at(found['created'])}"
    shown.record(title, [("Configuration", rows)])
