"""`lakestream registry`: Confluent's Schema Registry API in front of an account's schemas.

Belongs here: the commands, the listener and its end. lakestream finds the commands by the entry point in
pyproject.toml.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from lakestream.cli.link import connect_once, exits
from lakestream.cli.server_options import Server, with_server
from lakestream.cli.terminal import JsonOption, complain, counted, print_json

if TYPE_CHECKING:
    from lakestream_registry.registry import Registry

MAX_CONNECTIONS = 1_000
IDLE_S = 30.0
"""Time without a request after which a connection is closed, and time for a request."""
GRACE_S = 5.0
"""Time that requests under way get at the end."""
RECONNECT_S = 0.5
"""Pause between two attempts to reach the server."""
_log = logging.getLogger("lakestream.registry")

registry = typer.Typer()

SourceArgument = Annotated[
    str, typer.Argument(metavar="URL", help="A registry with Confluent's API: http://user:password@registry:8081.")
]


@registry.callback()
def group() -> None:
    """Serve Confluent's Schema Registry API, and bring schemas from other registries."""


@registry.command()
@with_server
def serve(
    server: Server,
    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Address of the listener.")] = (
        "127.0.0.1:8081"
    ),
    https_cert: Annotated[
        str, typer.Option("--https-cert", metavar="FILE", help="Certificate of the listener (PEM).")
    ] = "",
    https_key: Annotated[str, typer.Option("--https-key", metavar="FILE", help="Its private key (PEM).")] = "",
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen without TLS beyond loopback, behind a proxy that terminates it.")
    ] = False,
) -> None:
    """Serve the schemas of the login's account until Ctrl-C or SIGTERM. Clients log in as users of the server."""
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        complain(f"--listen {listen}: an address such as 0.0.0.0:8081")
        raise typer.Exit(1)
    if not (https_cert or insecure or _is_loopback(host)):
        complain(f"passwords would be sent in plain text to {host}: give --https-cert and --https-key, or --insecure")
        raise typer.Exit(1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    with exits("", OSError):
        context = None
        if https_cert:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.load_cert_chain(https_cert, https_key or None)
        asyncio.run(_serve(server, host, int(port), context))


@registry.command("import")
@with_server
def import_(source: SourceArgument, server: Server, as_json: JsonOption = False) -> None:
    """Bring all schemas of another registry, with their ids. Exit code 1: some were left out, or it failed."""
    from lakestream_registry.errors import RegistryError
    from lakestream_registry.mirror import SourceFailed, SourceRegistry, run_once

    async def run(found: Registry) -> Any:
        return await run_once(SourceRegistry(source), found)

    with exits("interrupted; run it again", SourceFailed, RegistryError):
        found = asyncio.run(_with_registry(server, run))
        if as_json:
            print_json(msgspec.to_builtins(found))
        else:
            for each in found.refused:
                complain(f"left out: {each}")
            print(f"{counted(found.versions, 'version')} imported, {len(found.refused)} left out")
        if found.refused:
            raise typer.Exit(1)


@registry.command()
@with_server
def follow(
    source: SourceArgument,
    server: Server,
    every: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between two looks at the source.")] = 10.0,
) -> None:
    """Bring the schemas of another registry as they are registered there, until Ctrl-C or SIGTERM.

    Meanwhile the registry's API here is read-only; register at the source.
    """
    from lakestream_registry.errors import RegistryError
    from lakestream_registry.mirror import SourceFailed, SourceRegistry
    from lakestream_registry.mirror import follow as follow_source

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)

    async def run(found: Registry) -> None:
        place = SourceRegistry(source)
        await found.refresh()
        await found.set_mode(None, "READONLY_OVERRIDE")
        task = asyncio.ensure_future(follow_source(place, found, every, lambda text: _log.info("%s", text)))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        print(f"following {source.rpartition('@')[2]}", flush=True)
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await found.set_mode(None, "")

    with exits("", SourceFailed, RegistryError):
        asyncio.run(_with_registry(server, run))


async def _with_registry(server: Server, act: Callable[[Registry], Awaitable[Any]]) -> Any:
    """Return what an action with the registry of the login's account returns."""
    from lakestream_registry.registry import Registry
    from lakestream_registry.store import RegistryStore

    connection = await connect_once(server, "lakestream registry")
    try:
        return await act(Registry(RegistryStore(connection), time.time_ns))
    finally:
        await connection.close()


async def _serve(server: Server, host: str, port: int, context: ssl.SSLContext | None) -> None:
    import nats

    from lakestream.http.connection import HttpConnection, HttpLimits, HttpRoom
    from lakestream_client.http_users import HttpUsers
    from lakestream_registry.app import RegistryApp
    from lakestream_registry.registry import Registry
    from lakestream_registry.store import RegistryStore, account_of

    await (await connect_once(server, "lakestream registry")).close()  # a wrong login is told at once

    async def failed(error: Exception) -> None:
        _log.warning("NATS: %s", str(error) or type(error).__name__)

    connection = await nats.connect(
        server.url,
        name="lakestream registry",
        error_cb=failed,
        max_reconnect_attempts=-1,
        reconnect_time_wait=RECONNECT_S,
        **server.login.arguments(),
    )
    try:
        account = await account_of(connection)
        users = HttpUsers(server.url, "lakestream registry")
        app = RegistryApp(Registry(RegistryStore(connection), time.time_ns), account, users)
        most = {"most": MAX_CONNECTIONS, "of_address": MAX_CONNECTIONS}  # a proxy may be the only address
        room = HttpRoom(HttpLimits(**most, head_s=IDLE_S, idle_s=IDLE_S, body_s=IDLE_S, stalled_s=IDLE_S))
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.set)
        listener = await loop.create_server(lambda: HttpConnection(app, room), host, port, ssl=context)
        bound = listener.sockets[0].getsockname()
        shown = f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"
        print(f"Schema registry of account {account} at {'https' if context else 'http'}://{shown}", flush=True)
        try:
            await ended.wait()
        finally:
            listener.close()
            await room.close(GRACE_S)
    finally:
        await connection.close()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
