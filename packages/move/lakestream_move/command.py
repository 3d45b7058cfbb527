"""`lakestream move`: the command line.

Belongs here: options and exit codes (0 moved, or ready to move; 1 failed, or there are obstacles; 2 usage; 130
after Ctrl-C).
"""

from __future__ import annotations

import asyncio
import enum
from typing import Annotated, Any

import typer

from lakestream.cli.link import exits
from lakestream.cli.server_options import (
    DEFAULT_SERVER,
    CaOption,
    CertOption,
    CredsOption,
    KeyOption,
    NkeyOption,
    PasswordOption,
    Server,
    UserOption,
)
from lakestream.cli.terminal import JsonOption
from lakestream.lake.flush import ServerCredentials
from lakestream.protocol.durations import parse_duration
from lakestream_move.compare import Verify
from lakestream_move.output import MoveOutput
from lakestream_move.plan import Blocked
from lakestream_move.run import MoveOptions, Mover
from lakestream_move.sides import SideConnection

INTERRUPTED = "interrupted; both servers are whole: run it again to continue, or with --undo"

_FROM = "Login to the old server"


def _from(name: str, text: str, **more: Any) -> Any:
    return typer.Option(
        f"--from-{name}", envvar=f"LAKESTREAM_FROM_{name.upper()}", help=text, rich_help_panel=_FROM, **more
    )


app = typer.Typer(add_completion=False)


class CopyWay(enum.StrEnum):
    """Ways to copy streams."""

    MIRROR = "mirror"
    BACKUP = "backup"


class StopPublishers(enum.StrEnum):
    """Treatment of publishers that may still write to the old server."""

    WAIT = "wait"
    ASSUME = "assume"


@app.command()
def move(
    streams: Annotated[
        list[str], typer.Argument(metavar="STREAMS", help="The streams: names with `*`, separated by commas or blanks.")
    ],
    old: Annotated[str, typer.Option("--from", metavar="URL", help="The old server.")],
    new: Annotated[
        str, typer.Option("--to", "--server", "-s", envvar="NATS_URL", metavar="URL", help="The new server.")
    ] = DEFAULT_SERVER,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would move and what would prevent it; change nothing.")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Delete the copies on the new server that are not cut over.")
    ] = False,
    by: Annotated[
        CopyWay, typer.Option("--by", help="Copy by mirrors, or by restoring a snapshot (backup).")
    ] = CopyWay.MIRROR,
    stop_publishers: Annotated[
        StopPublishers,
        typer.Option(
            "--stop-publishers", help="Wait until the publishers of the old server stop, or fail if they have not."
        ),
    ] = StopPublishers.WAIT,
    quiet: Annotated[
        str, typer.Option(metavar="TIME", help="Consider publishers stopped after this time without a new message.")
    ] = "5s",
    verify: Annotated[
        Verify, typer.Option(help="Compare a sample of the messages, all of them, or only counts and sequences.")
    ] = Verify.SAMPLE,
    take_consumers: Annotated[
        bool,
        typer.Option(
            "--take-consumers", help="Delete the consumers of work queues and interest streams on the old server."
        ),
    ] = False,
    domain: Annotated[
        str, typer.Option(metavar="NAME", help="Domain under which the new server reaches the old one.")
    ] = "",
    link_url: Annotated[
        str, typer.Option(metavar="URL", help="Address at which the new server reaches the old one, if not --from.")
    ] = "",
    as_json: JsonOption = False,
    from_user: Annotated[str, _from("user", "User name.")] = "",
    from_password: Annotated[str, _from("password", "Password.", show_default=False)] = "",
    from_creds: Annotated[str, _from("creds", "Credentials file.", metavar="FILE")] = "",
    from_nkey: Annotated[str, _from("nkey", "File with the seed of a user key.", metavar="FILE")] = "",
    from_tls_cert: Annotated[str, _from("tlscert", "Client certificate (PEM).", metavar="FILE")] = "",
    from_tls_key: Annotated[str, _from("tlskey", "Private key of the certificate (PEM).", metavar="FILE")] = "",
    from_tls_ca: Annotated[
        str, _from("tlsca", "Authorities that sign the server's certificate (PEM).", metavar="FILE")
    ] = "",
    user: UserOption = "",
    password: PasswordOption = "",
    creds: CredsOption = "",
    nkey: NkeyOption = "",
    tls_cert: CertOption = "",
    tls_key: KeyOption = "",
    tls_ca: CaOption = "",
) -> None:
    """Move streams, buckets and consumers from one NATS server to another."""
    if dry_run and undo:
        raise typer.BadParameter("--dry-run and --undo cannot be used together")
    try:
        quiet_s = parse_duration(quiet) / 1e9
    except ValueError as error:
        raise typer.BadParameter(f"--quiet: {error}") from None
    options = MoveOptions(
        patterns=tuple(name for text in streams for name in text.split(",") if name),
        by_backup=by is CopyWay.BACKUP,
        domain=domain,
        link_urls=tuple(link_url.split(",")) if link_url else (),
        quiet_s=quiet_s,
        assume=stop_publishers is StopPublishers.ASSUME,
        verify=verify,
        take_consumers=take_consumers,
    )
    there = Server(
        old,
        ServerCredentials(
            from_user, from_password, "", from_creds, from_nkey, from_tls_cert, from_tls_key, from_tls_ca
        ),
    )
    here = Server(new, ServerCredentials(user, password, "", creds, nkey, tls_cert, tls_key, tls_ca))
    stopped = "interrupted; nothing was changed" if dry_run else INTERRUPTED
    with exits(stopped, Blocked):
        found = asyncio.run(_run(there, here, options, dry_run, undo, as_json))
    raise typer.Exit(found)


async def _run(there: Server, here: Server, options: MoveOptions, dry_run: bool, undo: bool, events: bool) -> int:
    """Run the command; return its exit code."""
    old, new = SideConnection(there, "old"), SideConnection(here, "new")
    done = False
    try:
        await old.open()
        await new.open()
        with MoveOutput(events) as output:
            mover = Mover(old, new, options, output)
            try:
                if dry_run:
                    return int(any(one.stops for one in await mover.rehearse()))
                await (mover.undo() if undo else mover.run())
                done = True
            except Exception as error:
                output.say("failed", "", reason=str(error))
                raise
            finally:
                await mover.close(done)
    finally:
        await old.close()
        await new.close()
    return 0
