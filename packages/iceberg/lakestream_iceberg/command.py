"""`lakestream iceberg serve`: the Iceberg REST catalog of a lake.

Belongs here: the command, and the order in which its parts begin and end. lakestream finds the command by the entry
point in pyproject.toml.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Annotated

import typer

from lakestream.cli.lake_options import LakeOption, default_lake
from lakestream.cli.link import exits
from lakestream.cli.server_options import Server, with_server
from lakestream.lake.errors import LakeError
from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage.lake import open_storage
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

iceberg = typer.Typer()


@iceberg.callback()
def group() -> None:
    """Serve the Iceberg tables of a lake."""


@iceberg.command()
@with_server
def serve(
    server: Server,
    lake: LakeOption = None,
    listen: ListenOption = "127.0.0.1:8481",
    https_cert: CertificateOption = "",
    https_key: CertificateKeyOption = "",
    insecure: InsecureOption = False,
    vend_role: Annotated[
        str,
        typer.Option(
            "--vend-role", metavar="ARN", help="Role of AWS STS whose credentials clients get, for one table each."
        ),
    ] = "",
) -> None:
    """Serve the Iceberg REST catalog, read-only, until Ctrl-C or SIGTERM. Clients log in as users of the server."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    with exits("", BadSettings, LakeError, OSError):
        listening = Listening.of_options(listen, https_cert, https_key, insecure)
        run_gateway(_run(server.url, lake or str(default_lake()), listening, vend_role))


async def _run(server: str, lake: str, listening: Listening, role: str) -> None:
    from lakestream_client.http_users import HttpUsers
    from lakestream_iceberg.catalog import RestCatalog
    from lakestream_iceberg.vending import Vending

    context = listening.context()
    await asyncio.to_thread(lakes.require, lake)
    storage = open_storage(lake)
    vending = Vending(storage.root, role) if role else None
    listener = HttpListener(RestCatalog(storage, HttpUsers(server, "lakestream iceberg"), vending))
    origin = await listener.start(listening.host, listening.port, context)
    print(f"Iceberg REST catalog at {origin}", flush=True)
    try:
        await until_signal(context, listening)
    finally:
        await listener.close()
