"""`lakestream iceberg serve`: the Iceberg REST catalog of a lake.

Belongs here: the command, the listener and its end. lakestream finds the command by the entry point in pyproject.toml.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import ssl
import sys
from typing import Annotated

import typer

from lakestream.cli.lake_options import LakeOption, default_lake
from lakestream.cli.link import exits
from lakestream.cli.server_options import Server, with_server
from lakestream.cli.terminal import complain
from lakestream.lake.errors import LakeError
from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage.lake import open_storage

MAX_CONNECTIONS = 1_000
IDLE_S = 30.0
"""Time without a request after which a connection is closed, and time for a request."""
GRACE_S = 5.0
"""Time that requests under way get at the end."""

iceberg = typer.Typer()


@iceberg.callback()
def group() -> None:
    """Serve the Iceberg tables of a lake."""


@iceberg.command()
@with_server
def serve(
    server: Server,
    lake: LakeOption = None,
    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Address of the listener.")] = (
        "127.0.0.1:8481"
    ),
    https_cert: Annotated[
        str, typer.Option("--https-cert", metavar="FILE", help="Certificate of the listener (PEM).")
    ] = "",
    https_key: Annotated[str, typer.Option("--https-key", metavar="FILE", help="Its private key (PEM).")] = "",
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen without TLS beyond loopback, behind a proxy that terminates it.")
    ] = False,
) -> None:
    """Serve the Iceberg REST catalog, read-only, until Ctrl-C or SIGTERM. Clients log in as users of the server."""
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        complain(f"--listen {listen}: an address such as 0.0.0.0:8481")
        raise typer.Exit(1)
    if not (https_cert or insecure or _is_loopback(host)):
        complain(f"passwords would be sent in plain text to {host}: give --https-cert and --https-key, or --insecure")
        raise typer.Exit(1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    with exits("", LakeError, OSError):
        context = None
        if https_cert:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.load_cert_chain(https_cert, https_key or None)
        place = lake or str(default_lake())
        lakes.require(place)
        asyncio.run(_run(server.url, place, host, int(port), context))


async def _run(server: str, lake: str, host: str, port: int, context: ssl.SSLContext | None) -> None:
    from lakestream.http.connection import HttpConnection, HttpLimits, HttpRoom
    from lakestream_client.http_users import HttpUsers
    from lakestream_iceberg.catalog import RestCatalog

    catalog = RestCatalog(open_storage(lake), HttpUsers(server, "lakestream iceberg"))
    most = {"most": MAX_CONNECTIONS, "of_address": MAX_CONNECTIONS}  # a proxy may be the only address
    room = HttpRoom(HttpLimits(**most, head_s=IDLE_S, idle_s=IDLE_S, body_s=IDLE_S, stalled_s=IDLE_S))
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    listener = await loop.create_server(lambda: HttpConnection(catalog, room), host, port, ssl=context)
    bound = listener.sockets[0].getsockname()
    shown = f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"
    print(f"Iceberg REST catalog at {'https' if context else 'http'}://{shown}", flush=True)
    try:
        await ended.wait()
    finally:
        listener.close()
        await room.close(GRACE_S)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
