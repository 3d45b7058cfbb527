"""`lakestream mcp`: the command line, stdio and HTTP.

Belongs here: the options, and the two ways to serve. The SDK is loaded when it is needed, after the help.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import sys
from typing import Annotated

import typer

from lakestream.cli.link import TransferFailed, exits
from lakestream.cli.server_options import Server, with_server

PATH = "/mcp"
"""Path of the HTTP endpoint, the SDK's default."""


@with_server
def mcp(
    server: Server,
    listen: Annotated[
        str,
        typer.Option(
            "--listen", metavar="HOST:PORT", help="Serve streamable HTTP at this loopback address instead of stdio."
        ),
    ] = "",
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="Add the tools that publish messages and put values.")
    ] = False,
) -> None:
    """Serve streams, tables and buckets as tools to AI assistants (MCP), over stdio or HTTP.

    What the user of the connection may not do, the tools cannot do.
    """
    from lakestream_client import ClientError
    from lakestream_mcp.assembly import mcp_server
    from lakestream_mcp.link import Link

    where = _address(listen) if listen else None

    async def serve() -> None:
        listener = None if where is None else _listener(*where)
        link = await Link.opened(server.url, server.login)
        tools = mcp_server(link, allow_writes)
        try:
            if listener is None:
                await tools.run_stdio_async()
                return
            import uvicorn

            host, port = listener.getsockname()[:2]
            print(f"MCP on http://{f'[{host}]' if ':' in host else host}:{port}{PATH}", file=sys.stderr, flush=True)
            # The SDK checks Host and Origin for a loopback address, so that no web page gets at the tools.
            app = tools.streamable_http_app(streamable_http_path=PATH, host="127.0.0.1")
            await uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve(sockets=[listener])
        finally:
            await link.client.close()

    with exits("", ClientError):
        asyncio.run(serve())


def _address(text: str) -> tuple[str, int]:
    """Return host and port of a loopback address. Raises typer.BadParameter."""
    host, _, port = text.rpartition(":")
    host = {"localhost": "127.0.0.1"}.get(host, host.strip("[]"))
    try:
        loopback = ipaddress.ip_address(host).is_loopback and 0 <= int(port) < 65536
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not HOST:PORT, such as 127.0.0.1:8765", param_hint="--listen") from None
    if not loopback:
        raise typer.BadParameter(
            f"{host} is not a loopback address: anyone who reaches the port acts as the user of this command; for "
            "other machines put a proxy that asks for a login in front of 127.0.0.1",
            param_hint="--listen",
        )
    return host, int(port)


def _listener(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises TransferFailed."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise TransferFailed(f"cannot listen on {host}:{port}: {error.strerror}; choose another port") from None
