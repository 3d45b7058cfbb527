"""`lakestream sharing`: Delta Sharing, its server and its tokens.

Belongs here: the commands, their options and output. The other modules do the work. lakestream finds the
commands by the entry point in pyproject.toml, and has the help of the group in its own list (lakestream/cli/app.py).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer

from lakestream import extras
from lakestream.cli.lake_options import LakeOption, default_lake
from lakestream.cli.link import connect_once, exits
from lakestream.cli.results import visible
from lakestream.cli.server_options import Server, with_server
from lakestream.cli.terminal import JsonOption, complain, console, counted, print_json
from lakestream_client.listening import (
    BadSettings,
    CertificateKeyOption,
    CertificateOption,
    InsecureOption,
    Listening,
    ListenOption,
    run_gateway,
)
from lakestream_sharing.grants import DEFAULT_LIFETIME_DAYS, EVERY, MAX_LIFETIME_DAYS

if TYPE_CHECKING:
    from lakestream_sharing.issuing import Issuer, Token

T = TypeVar("T")
DEFAULT_ENDPOINT = "http://127.0.0.1:8480/delta-sharing"
MAX_URL_LIFETIME_S = 604_800
"""Longest life of a URL that object stores sign (7 days)."""

sharing = typer.Typer()


@sharing.command()
@with_server
def create(
    recipient: Annotated[
        str, typer.Argument(metavar="RECIPIENT", help="Name of the recipient, for `ls` and `revoke`.")
    ],
    server: Server,
    stream: Annotated[
        list[str] | None,
        typer.Option("--stream", metavar="NAME", help="A stream to share; may be repeated.", show_default=False),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Share every stream of the account, including future ones.")
    ] = False,
    share: Annotated[str, typer.Option("--share", help="Name of the share, as the recipient sees it.")] = "lakestream",
    history: Annotated[
        bool, typer.Option("--history", help="Share earlier versions and the change feed as well.")
    ] = False,
    days: Annotated[
        float, typer.Option("--days", max=MAX_LIFETIME_DAYS, help="Days for which the token is valid.")
    ] = DEFAULT_LIFETIME_DAYS,
    endpoint: Annotated[
        str, typer.Option("--endpoint", metavar="URL", help="The URL of `sharing serve` for the recipient.")
    ] = DEFAULT_ENDPOINT,
    out: Annotated[
        str, typer.Option("--out", metavar="FILE", help="Write the profile to a new file, for this user alone.")
    ] = "",
) -> None:
    """Issue a token, and print the profile file for the recipient. It is shown only once."""
    streams = list(dict.fromkeys(stream or []))
    if every == bool(streams):
        complain("name the streams with --stream, or take all with --all")
        raise typer.Exit(1)

    async def issue(issuer: Issuer) -> bytes:
        named = [EVERY] if every else streams
        profile = await issuer.issue(recipient, share, named, days, history=history, endpoint=endpoint)
        return msgspec.json.format(msgspec.json.encode(profile), indent=2) + b"\n"

    try:
        file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600) if out else None
    except OSError as error:
        complain(f"{out}: {error.strerror}")
        raise typer.Exit(1) from None
    try:
        text = _with_issuer(server, issue)
    except typer.Exit:
        if file is not None:
            os.close(file)
            os.unlink(out)
        raise
    if file is None:
        sys.stdout.buffer.write(text)
        return
    with os.fdopen(file, "wb") as opened:
        opened.write(text)


@sharing.command("ls")
@with_server
def list_(server: Server, as_json: JsonOption = False) -> None:
    """List the tokens of the account: recipients, streams and ends, never the tokens themselves."""
    found = _with_issuer(server, lambda issuer: issuer.tokens())
    if as_json:
        print_json(_shown(found))
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for column in ("id", "recipient", "share", "streams", "history", "expires"):
        table.add_column(column)
    for each in found:
        names = "all" if each.streams == [EVERY] else ", ".join(each.streams)
        end = f"{each.expires} (expired)" if each.expired else each.expires
        table.add_row(
            each.id, visible(each.recipient), each.share, visible(names), "yes" if each.history else "no", end
        )
    console().print(table)


@sharing.command()
@with_server
def revoke(
    recipient: Annotated[str, typer.Argument(metavar="RECIPIENT|ID", help="A recipient, or the id of one token.")],
    server: Server,
    as_json: JsonOption = False,
) -> None:
    """Revoke the tokens of a recipient, or one by its id. They end within 5 seconds."""
    found = _with_issuer(server, lambda issuer: issuer.revoke(recipient))
    if as_json:
        print_json(_shown(found))
        return
    print(f"{counted(len(found), 'token')} of {visible(found[0].recipient)} revoked")


@sharing.command()
@with_server
def serve(
    server: Server,
    lake: LakeOption = None,
    listen: ListenOption = "127.0.0.1:8480",
    https_cert: CertificateOption = "",
    https_key: CertificateKeyOption = "",
    insecure: InsecureOption = False,
    public_url: Annotated[
        str, typer.Option("--public-url", metavar="URL", help="URL for recipients, where a proxy changes it.")
    ] = "",
    url_key: Annotated[
        str,
        typer.Option(
            "--url-key", metavar="FILE", help="Key of URLs, for several processes (default: a new one at each start)."
        ),
    ] = "",
    audit: Annotated[
        bool, typer.Option("--audit", help="Tell the server's audit trail which tables are opened.")
    ] = False,
    url_lifetime: Annotated[
        int, typer.Option("--url-lifetime", min=60, max=MAX_URL_LIFETIME_S, help="Seconds for which a URL is valid.")
    ] = 3600,
    max_requests: Annotated[
        int, typer.Option("--max-requests", min=1, help="Number of requests at the same time.")
    ] = 64,
    max_downloads: Annotated[
        int, typer.Option("--max-downloads", min=1, help="Number of files to send at the same time.")
    ] = 64,
    max_files: Annotated[int, typer.Option("--max-files", min=1, help="Maximum files in an answer.")] = 100_000,
    max_answer: Annotated[
        int, typer.Option("--max-answer", min=1 << 20, help="Maximum bytes of an answer.", show_default="256 MiB")
    ] = 256 << 20,
) -> None:
    """Serve the tables of the login's account to the holders of tokens, until Ctrl-C or SIGTERM."""
    extras.require("sharing", "lakestream sharing serve")
    from lakestream_sharing.app import Limits
    from lakestream_sharing.errors import SharingError
    from lakestream_sharing.program import Settings
    from lakestream_sharing.program import serve as run

    limits = Limits(max_requests, max_downloads, max_files, max_answer, url_lifetime)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)

    async def main() -> None:
        settings = Settings(
            lake=lake or str(default_lake()),
            listening=Listening.of_options(listen, https_cert, https_key, insecure),
            public_url=public_url,
            url_key_file=url_key,
            limits=limits,
            audit=audit,
        )
        await (await connect_once(server, "lakestream sharing")).close()
        await run(settings, server.url, server.login.arguments(), _listening)

    with exits("", BadSettings, SharingError):
        run_gateway(main())


def _shown(tokens: Sequence[Token]) -> list[dict[str, Any]]:
    """Return tokens for scripts, without their keys in the bucket."""
    return [{key: value for key, value in msgspec.to_builtins(each).items() if key != "keys"} for each in tokens]


def _listening(url: str) -> None:
    print(f"Listening for Delta Sharing on {url}", flush=True)


def _with_issuer(server: Server, act: Callable[[Issuer], Awaitable[T]]) -> T:
    """Return what an action with the account's tokens returns. Exits with 1 if it fails."""
    from lakestream_sharing.issuing import IssueFailed, Issuer

    async def run() -> T:
        connection = await connect_once(server, "lakestream sharing")
        try:
            return await act(Issuer(connection))
        finally:
            await connection.close()

    with exits("", IssueFailed):
        return asyncio.run(run())
    raise AssertionError("either a result or an exit")
