"""`lakestream registry`: Confluent's Schema Registry API in front of an account's schemas.

Belongs here: the commands, and the listener with its application. lakestream finds the commands by the entry point in
pyproject.toml.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from lakestream.cli.link import connect_once, exits
from lakestream.cli.server_options import Server, with_server
from lakestream.cli.terminal import JsonOption, complain, counted, print_json
from lakestream_client.listening import (
    BadSettings,
    CertificateKeyOption,
    CertificateOption,
    HttpListener,
    InsecureOption,
    Listening,
    ListenOption,
    run_gateway,
    until_signal,
)

if TYPE_CHECKING:
    from lakestream_registry.registry import Registry

FOLLOWING = "READONLY_OVERRIDE"
"""Mode of the registry while it follows another one."""
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
    listen: ListenOption = "127.0.0.1:8081",
    https_cert: CertificateOption = "",
    https_key: CertificateKeyOption = "",
    insecure: InsecureOption = False,
) -> None:
    """Serve the schemas of the login's account until Ctrl-C or SIGTERM. Clients log in as users of the server."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    with exits("", BadSettings, OSError):
        run_gateway(_serve(server, Listening.of_options(listen, https_cert, https_key, insecure)))


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
        before = found.own(None).mode
        before = "" if before == FOLLOWING else before  # a run was killed
        await found.set_mode(None, FOLLOWING)
        try:
            task = asyncio.ensure_future(follow_source(place, found, every, lambda text: _log.info("%s", text)))
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, task.cancel)
            print(f"following {source.rpartition('@')[2]}", flush=True)
            with contextlib.suppress(asyncio.CancelledError):
                await task
        finally:
            await found.set_mode(None, before, force=True)

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


async def _serve(server: Server, listening: Listening) -> None:
    import nats

    from lakestream_client.http_users import HttpUsers
    from lakestream_registry.app import RegistryApp
    from lakestream_registry.registry import Registry
    from lakestream_registry.store import RegistryStore, account_of

    context = listening.context()
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
        listener = HttpListener(RegistryApp(Registry(RegistryStore(connection), time.time_ns), account, users))
        origin = await listener.start(listening.host, listening.port, context)
        print(f"Schema registry of account {account} at {origin}", flush=True)
        try:
            await until_signal(context, listening)
        finally:
            await listener.close()
    finally:
        await connection.close()
