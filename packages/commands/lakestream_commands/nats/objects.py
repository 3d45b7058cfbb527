"""`lakestream object`.

Belongs here: the commands on object stores.
"""

from __future__ import annotations

import base64
import sys
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from lakestream.cli.server_options import Server, with_server
from lakestream.cli.terminal import JsonOption, print_json, size
from lakestream_commands.nats import shown
from lakestream_commands.nats.completion import names
from lakestream_commands.nats.session import TIMEOUT_S, CommandFailed, NatsSession, confirm, over_nats
from lakestream_commands.nats.streams import Force

if TYPE_CHECKING:
    from nats.js.api import ObjectInfo
    from nats.js.object_store import ObjectStore

objects = typer.Typer(help="Create and show object stores; put, get and delete objects.", no_args_is_help=True)

PREFIX = "OBJ_"

_STORES = names("stream", "OBJ_")
StoreName = Annotated[str, typer.Argument(metavar="BUCKET", help="Name of the object store.", autocompletion=_STORES)]
ObjectName = Annotated[str, typer.Argument(metavar="OBJECT", help="Name of the object.")]


@objects.command("add")
@with_server
def add(
    server: Server,
    bucket: StoreName,
    ttl: Annotated[str, typer.Option("--ttl", metavar="DURATION", help="Delete objects of this age.")] = "",
    max_bucket_size: Annotated[
        str, typer.Option("--max-bucket-size", metavar="SIZE", help="Maximum total size.")
    ] = "-1",
    description: Annotated[str, typer.Option("--description", help="Description.")] = "",
    replicas: Annotated[int, typer.Option("--replicas", min=1, help="Number of replicas, in a cluster.")] = 1,
) -> None:
    """Create an object store."""
    from nats.js.api import ObjectStoreConfig

    config = ObjectStoreConfig(
        bucket=bucket,
        ttl=shown.duration(ttl) / 1e9 if ttl else None,
        max_bytes=shown.bytes_of(max_bucket_size),
        description=description or None,
        replicas=replicas,
    )

    async def work(session: NatsSession) -> None:
        await session.client.jetstream(timeout=TIMEOUT_S).create_object_store(bucket, config=config)
        print(f"Object store {bucket} was created")

    over_nats(server, work)


@objects.command("put")
@with_server
def put(
    server: Server,
    bucket: StoreName,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="File to store. Without it, read stdin.")
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Name of the object (default: the file as given).")] = "",
    description: Annotated[str, typer.Option("--description", help="Description.")] = "",
    force: Force = False,
) -> None:
    """Put a file into an object store."""
    from nats.js.api import ObjectMeta
    from nats.js.errors import ObjectNotFoundError

    called = name or (str(file) if file is not None else "")
    if not called:
        raise typer.BadParameter("an object from stdin needs --name", param_hint="--name")

    async def work(session: NatsSession) -> None:
        store = await _store(session, bucket)
        try:
            await store.get_info(called)
            confirm(f"Replace {bucket} > {called}?", force)
        except ObjectNotFoundError:
            pass
        meta = ObjectMeta(name=called, description=description or None)
        try:
            with open(file, "rb") if file is not None else sys.stdin.buffer as source:
                stored = await store.put(called, cast(BufferedIOBase, source), meta=meta)
        except OSError as error:
            raise CommandFailed(f"{file}: {error.strerror or error}") from None
        _show(bucket, stored)

    over_nats(server, work)


@objects.command("get")
@with_server
def get(
    server: Server,
    bucket: StoreName,
    name: ObjectName,
    output: Annotated[
        str,
        typer.Option("--output", "-O", metavar="FILE", help="File to write (default: the object's name; -: stdout)."),
    ] = "",
    force: Force = False,
) -> None:
    """Write an object to a file."""
    from nats.js.errors import ObjectNotFoundError

    path = Path(output or Path(name).name)
    if output != "-" and path.exists():
        confirm(f"Replace the file {path}?", force)

    async def work(session: NatsSession) -> None:
        store = await _store(session, bucket)
        try:
            if output == "-":
                await store.get(name, writeinto=cast(BufferedIOBase, sys.stdout.buffer))
                sys.stdout.buffer.flush()
                return
            partial = path.with_name(f".{path.name}.part")
            try:
                with partial.open("wb") as target:
                    await store.get(name, writeinto=target)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
        except ObjectNotFoundError:
            raise CommandFailed(f"{bucket} > {name}: object not found") from None
        except OSError as error:
            raise CommandFailed(f"{path}: {error.strerror or error}") from None
        print(f"Wrote: {size(path.stat().st_size)} to {path}")

    over_nats(server, work)


@objects.command("info")
@with_server
def info(server: Server, bucket: StoreName, name: ObjectName) -> None:
    """Show an object's size, time and digest."""
    from nats.js.errors import ObjectNotFoundError

    async def work(session: NatsSession) -> None:
        try:
            _show(bucket, await (await _store(session, bucket)).get_info(name))
        except ObjectNotFoundError:
            raise CommandFailed(f"{bucket} > {name}: object not found") from None

    over_nats(server, work)


@objects.command("ls")
@with_server
def ls(
    server: Server,
    bucket: Annotated[
        str,
        typer.Argument(
            metavar="[BUCKET]",
            help="List the objects of this store. Without it, list the stores.",
            autocompletion=_STORES,
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """List the objects of an object store, or the object stores."""
    from nats.js.errors import NotFoundError

    async def work(session: NatsSession) -> None:
        if not bucket:
            listed = await session.pages("STREAM.LIST", "streams", {"subject": "$O.>"})
            found = [each for each in listed if each["config"]["name"].startswith(PREFIX)]
            rows = [
                (each["config"]["name"].removeprefix(PREFIX), shown.at(each["created"]), size(each["state"]["bytes"]))
                for each in found
            ]
            if as_json:
                print_json([row[0] for row in rows])
            elif rows:
                shown.table("Object Stores", ("Bucket", "Created", "Size"), rows)
            else:
                print("No object stores")
            return
        try:
            held = [each for each in await (await _store(session, bucket)).list() if not each.deleted]
        except NotFoundError:
            held = []
        if as_json:
            print_json([each.name for each in held])
        elif held:
            rows = [(each.name, size(each.size or 0), shown.at(each.mtime or "")) for each in held]
            shown.table("Bucket Contents", ("Name", "Size", "Time"), rows)
        else:
            print(f"Object store {bucket} is empty")

    over_nats(server, work)


@objects.command("rm")
@objects.command("del", hidden=True)
@with_server
def rm(
    server: Server,
    bucket: StoreName,
    name: Annotated[
        str, typer.Argument(metavar="[OBJECT]", help="Object to delete. Without it, delete the whole store.")
    ] = "",
    force: Force = False,
) -> None:
    """Delete an object, or an object store."""
    from nats.js.errors import ObjectNotFoundError

    confirm(f"Really delete {bucket} > {name}?" if name else f"Really delete object store {bucket}?", force)

    async def work(session: NatsSession) -> None:
        if not name:
            await session.api(f"STREAM.DELETE.{PREFIX}{bucket}")
            return
        try:
            await (await _store(session, bucket)).delete(name)
        except ObjectNotFoundError:
            raise CommandFailed(f"{bucket} > {name}: object not found") from None

    over_nats(server, work)


async def _store(session: NatsSession, name: str) -> ObjectStore:
    from nats.js.errors import BucketNotFoundError, NotFoundError

    try:
        return await session.client.jetstream(timeout=TIMEOUT_S).object_store(name)
    except (BucketNotFoundError, NotFoundError):
        raise CommandFailed(f"there is no object store {name}; `object ls` lists them") from None


def _show(bucket: str, found: ObjectInfo) -> None:
    digest = (found.digest or "").removeprefix("SHA-256=")
    rows: list[tuple[str, object]] = [
        ("Size", size(found.size or 0)),
        ("Description", found.description),
        ("Modification Time", shown.at(found.mtime or "")),
        ("Chunks", found.chunks),
        ("Digest", f"SHA-256 {base64.urlsafe_b64decode(digest + '==').hex()}" if digest else None),
    ]
    shown.record(f"Object information for {bucket} > {found.name}", [("", rows)])
