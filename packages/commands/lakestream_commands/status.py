"""`lakestream status`: a server on one screen.

Belongs here: the command, and its layout. The figures are in monitor.py.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from lakestream.cli.link import exits
from lakestream.cli.server_options import Server, with_server
from lakestream.cli.terminal import JsonOption, console, counted, print_json, short, size
from lakestream_commands.monitor import (
    MonitoredServer,
    MonitoredStream,
    MonitorFailed,
    MonitorOption,
    monitored,
    snapshot,
    warnings,
)

STREAMS = 20
"""Streams that are shown without --all, those with the largest lag first."""


@with_server
def status(
    server: Server,
    monitor: MonitorOption = "",
    everything: Annotated[bool, typer.Option("--all", help="Show every stream.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a server on one screen: load, streams, lag of the tables, the compactor, and warnings.

    It asks the monitoring port; with --server or a login the server itself, which tells users of the system account
    everything, and others what concerns their account.
    """
    with exits("stopped", MonitorFailed), monitored(monitor, server) as port:
        now = snapshot(port)
        if as_json:
            print_json(summary(now))
        else:
            _show(now, None if everything else STREAMS)


def summary(now: MonitoredServer) -> dict[str, Any]:
    """Return the status as plain values."""
    varz, lake = now.varz, now.lake
    stats = (varz.get("jetstream") or {}).get("stats") or {}
    names = (
        "server_id",
        "server_name",
        "version",
        "lakestream",
        "uptime",
        "connections",
        "subscriptions",
        "mem",
        "cpu",
    )
    return {
        "server": {name: varz[name] for name in names if name in varz},
        "healthy": now.healthy,
        "health": now.health,
        "jetstream": bool(varz.get("jetstream")),
        "storage_bytes": stats.get("storage", 0),
        "in_msgs": varz.get("in_msgs", 0),
        "out_msgs": varz.get("out_msgs", 0),
        "slow_consumers": varz.get("slow_consumers", 0),
        "routes": now.routes,
        "lake": {"url": lake["url"], "compactor": (lake.get("compactor") or {}).get("alive")} if lake else None,
        "streams": [msgspec.to_builtins(stream) for stream in now.streams],
        "warnings": warnings(now),
    }


def _show(now: MonitoredServer, limit: int | None) -> None:
    from rich.table import Table
    from rich.text import Text

    out = console()
    varz, lake = now.varz, now.lake
    other = "nats-server" if now.is_whole else "NATS"  # an account does not know which it is
    kind = f"lakestream {varz['lakestream']}" if now.is_lakestream else f"{other} {varz.get('version')}"
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    up = f"up {varz['uptime']}" if now.is_whole else ""
    healthy = Text("healthy", "green") if now.healthy else Text(now.health, "red")
    facts.add_row("server", Text.assemble(f"{varz.get('server_name')}  {kind}  {up}  ", healthy))
    if now.is_whole:
        facts.add_row(
            "clients",
            f"{varz.get('connections', 0)} connections, {varz.get('subscriptions', 0)} subscriptions, "
            f"{varz.get('slow_consumers', 0)} slow consumers",
        )
        facts.add_row(
            "messages", f"{short(varz.get('in_msgs', 0))} in, {short(varz.get('out_msgs', 0))} out since the start"
        )
        facts.add_row(
            "process", f"{size(varz.get('mem', 0))} memory, {varz.get('cpu', 0):.0f} % of a core, {now.routes} routes"
        )
    else:
        facts.add_row("clients", f"{counted(len(now.connections), 'connection')} of this account")
    jetstream = varz.get("jetstream") or {}
    if jetstream and not now.is_whole:
        facts.add_row("JetStream", f"{counted(len(now.streams), 'stream')} of this account")
    elif jetstream:
        used, most = (
            (jetstream.get("stats") or {}).get("storage", 0),
            (jetstream.get("config") or {}).get("max_storage", 0),
        )
        facts.add_row("JetStream", f"{len(now.streams)} streams, {size(used)} of {size(most)} on disk")
    else:
        facts.add_row("JetStream", "off")
    if lake:
        compactor = lake.get("compactor") or {}
        batch = compactor.get("batch")
        last = f", batch {batch['batch']}: {batch['segments']} segments in {batch['seconds']:.1f} s" if batch else ""
        if compactor.get("alive"):
            state = Text(f"compactor running{last}", "green")
        else:
            state = Text("compactor starting" if compactor.get("starting") else "no compactor", "yellow")
        facts.add_row("lake", Text.assemble(f"{lake['url']}  ", state))
    out.print(facts)
    if now.streams:
        _show_streams(out, now.streams, limit)
    found = warnings(now)
    out.print()
    for text in found:
        out.print(Text.assemble(("! ", "yellow"), text))
    if not found:
        out.print(Text("no warnings", "green"))


def _show_streams(out: Any, streams: tuple[MonitoredStream, ...], limit: int | None) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("stream", overflow="fold")
    for name in ("messages", "size", "last seq", "consumers", "pending", "lag", "lag s"):
        table.add_column(name, justify="right")
    urgent = sorted(streams, key=lambda each: (-(each.lag or 0), -each.messages, each.title))
    for each in urgent[:limit]:
        table.add_row(
            each.title,
            f"{each.messages:,}",
            size(each.bytes),
            f"{each.last_seq:,}",
            str(len(each.consumers)),
            f"{each.pending:,}",
            "-" if each.lag is None else f"{each.lag:,}",
            "-" if each.lag_seconds is None else f"{each.lag_seconds:.1f}",
        )
    out.print(table)
    if limit is not None and len(urgent) > limit:
        out.print(f"{len(urgent) - limit} more streams; --all shows them")
