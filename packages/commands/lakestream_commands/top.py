"""`lakestream top`: connections, streams and consumers of a running server, live.

Belongs here: the command, rates between two snapshots, the screen and its keys. The figures are in monitor.py.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from lakestream.cli.link import exits
from lakestream.cli.server_options import Server, with_server
from lakestream.cli.terminal import JsonOption, complain, console, print_json, short, size
from lakestream_commands.monitor import (
    Monitor,
    MonitoredServer,
    MonitorFailed,
    MonitorOption,
    NatsMonitor,
    monitored,
    snapshot,
    warnings,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

VIEWS = ("streams", "consumers", "connections")
HELP = "1 streams  2 consumers  3 connections  s sort  r reverse  q quit"
ESCAPE_S = 0.05
"""Time within which the rest of a key's escape sequence arrives."""


class TopColumn(msgspec.Struct, frozen=True):
    """A column: its title, the field of a row, and the text of a value. `is_text`: sorted ascending, shown left."""

    title: str
    field: str
    show: Callable[[Any], str] = str
    is_text: bool = False


def _optional(value: float | None) -> str:
    return "-" if value is None else short(value)


COLUMNS: dict[str, tuple[TopColumn, ...]] = {
    "streams": (
        TopColumn("in/s", "rate", short),
        TopColumn("bytes/s", "bytes_rate", size),
        TopColumn("messages", "messages", short),
        TopColumn("size", "bytes", size),
        TopColumn("pending", "pending", short),
        TopColumn("lag", "lag", _optional),
        TopColumn("stream", "title", is_text=True),
    ),
    "consumers": (
        TopColumn("pending", "pending", short),
        TopColumn("out/s", "rate", short),
        TopColumn("unacked", "ack_pending", short),
        TopColumn("redelivered", "redelivered", short),
        TopColumn("waiting", "waiting", short),
        TopColumn("consumer", "title", is_text=True),
    ),
    "connections": (
        TopColumn("in/s", "in_rate", short),
        TopColumn("out/s", "out_rate", short),
        TopColumn("in bytes/s", "in_bytes_rate", size),
        TopColumn("out bytes/s", "out_bytes_rate", size),
        TopColumn("unsent", "pending_bytes", size),
        TopColumn("subs", "subscriptions"),
        TopColumn("cid", "cid"),
        TopColumn("client", "title", is_text=True),
    ),
}
"""The columns of each view; the rows are sorted by the first one at the start."""

Row = dict[str, Any]


@with_server
def top(
    server: Server,
    monitor: MonitorOption = "",
    interval: Annotated[float, typer.Option("--interval", "-i", min=0.1, help="Seconds between two updates.")] = 1.0,
    view: Annotated[str, typer.Option("--view", help="First view: streams, consumers or connections.")] = "streams",
    once: Annotated[bool, typer.Option("--once", help="Measure one interval, print the result and exit.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Watch the rates of streams and connections and the lag of consumers, live."""
    if view not in VIEWS:
        complain(f"--view {view}: write {', '.join(VIEWS)}")
        raise typer.Exit(2)
    with exits("", MonitorFailed), monitored(monitor, server) as port:
        if as_json:
            before = snapshot(port)
            time.sleep(interval)
            print_json(figures(before, snapshot(port)))
        elif once or not (sys.stdin.isatty() and sys.stdout.isatty()):
            before = snapshot(port)
            time.sleep(interval)
            console().print(Screen(view).render(before, snapshot(port)))
        else:
            _live(port, Screen(view), interval)


def figures(before: MonitoredServer, now: MonitoredServer) -> dict[str, Any]:
    """Return what the views show, as plain values. Rates are per second."""
    seconds = max(now.at - before.at, 1e-6)
    names = ("server_name", "version", "lakestream", "uptime", "connections", "mem", "cpu", "slow_consumers")
    totals = ("in_msgs", "out_msgs", "in_bytes", "out_bytes")
    rates = {f"{name}_rate": _rate(before.varz.get(name, 0), now.varz.get(name, 0), seconds) for name in totals}
    return {
        "server": {name: now.varz[name] for name in names if name in now.varz} | rates,
        "streams": _streams(before, now, seconds),
        "consumers": _consumers(before, now, seconds),
        "connections": _connections(before, now, seconds),
        "warnings": warnings(now),
    }


def _rate(before: float, now: float, seconds: float) -> float:
    return round(max(now - before, 0) / seconds, 1)


def _streams(before: MonitoredServer, now: MonitoredServer, seconds: float) -> list[Row]:
    earlier = {stream.title: stream for stream in before.streams}
    rows = []
    for stream in now.streams:
        old = earlier.get(stream.title, stream)
        rows.append(
            {
                "title": stream.title,
                "messages": stream.messages,
                "bytes": stream.bytes,
                "rate": _rate(old.last_seq, stream.last_seq, seconds),
                "bytes_rate": _rate(old.bytes, stream.bytes, seconds),
                "pending": stream.pending,
                "lag": stream.lag,
                "lag_seconds": stream.lag_seconds,
            }
        )
    return rows


def _consumers(before: MonitoredServer, now: MonitoredServer, seconds: float) -> list[Row]:
    earlier = {(stream.title, each.name): each for stream in before.streams for each in stream.consumers}
    rows = []
    for stream in now.streams:
        for each in stream.consumers:
            old = earlier.get((stream.title, each.name), each)
            rows.append(
                {
                    "title": f"{stream.title} > {each.name}",
                    "stream": stream.title,
                    "consumer": each.name,
                    "pending": each.pending,
                    "rate": _rate(old.delivered, each.delivered, seconds),
                    "ack_pending": each.ack_pending,
                    "redelivered": each.redelivered,
                    "waiting": each.waiting,
                }
            )
    return rows


def _connections(before: MonitoredServer, now: MonitoredServer, seconds: float) -> list[Row]:
    earlier = {each.cid: each for each in before.connections}
    rows = []
    for each in now.connections:
        old = earlier.get(each.cid, each)
        names = ("in_msgs", "out_msgs", "in_bytes", "out_bytes")
        rates = {
            f"{name.removesuffix('_msgs')}_rate": _rate(getattr(old, name), getattr(each, name), seconds)
            for name in names
        }
        rows.append(
            {
                "title": " ".join(filter(None, (each.name, each.address, each.user))),
                "cid": each.cid,
                "account": each.account,
                "subscriptions": each.subscriptions,
                "pending_bytes": each.pending_bytes,
                "lang": each.lang,
                "rtt": each.rtt,
                **rates,
            }
        )
    return rows


class Screen:
    """The choice of view and order, and the layout of a screen."""

    def __init__(self, view: str) -> None:
        self.view = view
        self.sort = 0
        self.reverse = False

    def press(self, key: str) -> bool:
        """Take a key; return False when it ends the program."""
        if key in ("q", "\x1b", "\x03", "\x04"):
            return False
        if key in "123" and key:
            self.view, self.sort, self.reverse = VIEWS[int(key) - 1], 0, False
        elif key in ("\t", "right"):
            self.view, self.sort = VIEWS[(VIEWS.index(self.view) + 1) % len(VIEWS)], 0
        elif key == "s":
            self.sort = (self.sort + 1) % len(COLUMNS[self.view])
        elif key == "r":
            self.reverse = not self.reverse
        return True

    def rows(self, found: list[Row]) -> list[Row]:
        """Return the rows in the chosen order: numbers descending, texts ascending."""
        column = COLUMNS[self.view][self.sort]
        if column.is_text:
            return sorted(found, key=lambda row: str(row[column.field]), reverse=self.reverse)
        by_title = sorted(found, key=lambda row: str(row["title"]))
        return sorted(by_title, key=lambda row: row[column.field] or 0, reverse=not self.reverse)

    def render(self, before: MonitoredServer, now: MonitoredServer, height: int | None = None) -> RenderableType:
        """Return the screen, with no more rows than fit into `height` lines."""
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        found = figures(before, now)
        server = found["server"]
        kind = "lakestream" if now.is_lakestream else "nats-server"
        lines: list[RenderableType] = [
            Text(
                f"{server.get('server_name')}  {kind} {server.get('lakestream') or server.get('version')}  up "
                f"{server.get('uptime')}  {server.get('connections', 0)} connections  {size(server.get('mem', 0))}  "
                f"{server.get('cpu', 0):.0f} % CPU",
                overflow="ellipsis",
                no_wrap=True,
            ),
            Text(
                f"in {short(server['in_msgs_rate'])} msgs/s {size(server['in_bytes_rate'])}/s  "
                f"out {short(server['out_msgs_rate'])} msgs/s {size(server['out_bytes_rate'])}/s",
                overflow="ellipsis",
                no_wrap=True,
            ),
        ]
        for text in found["warnings"][:2]:
            lines.append(Text(f"! {text}", "yellow", overflow="ellipsis", no_wrap=True))
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
        for number, column in enumerate(COLUMNS[self.view]):
            mark = (" ^" if self.reverse != column.is_text else " v") if number == self.sort else ""
            table.add_column(column.title + mark, justify="left" if column.is_text else "right", no_wrap=True)
        rows = self.rows(found[self.view])
        room = len(rows) if height is None else max(height - len(lines) - 5, 1)
        for row in rows[:room]:
            table.add_row(*(column.show(row[column.field]) for column in COLUMNS[self.view]))
        left = len(rows) - room
        more = f", {left} more" if left > 0 else ""
        foot = Text(
            f"{len(rows)} {self.view}{more}" + (f"   {HELP}" if height is not None else ""), "dim", no_wrap=True
        )
        return Group(*lines, table, foot)


def _live(port: Monitor | NatsMonitor, screen: Screen, interval: float) -> None:
    """Show the screen until a key ends it. The terminal is as it was afterwards, whatever ends this."""
    from rich.live import Live
    from rich.text import Text

    out = console()
    before = now = snapshot(port)
    trouble = ""
    with _keys() as read, Live(console=out, screen=True, auto_refresh=False) as live:
        due = time.monotonic() + min(interval, 0.5)
        while True:
            shown: RenderableType = screen.render(before, now, out.height)
            live.update(Text(trouble, "red") if trouble else shown, refresh=True)
            key = read(max(due - time.monotonic(), 0))
            if key is not None:
                if not screen.press(key):
                    return
                continue
            due = time.monotonic() + interval
            try:
                before, now, trouble = now, snapshot(port), ""
            except MonitorFailed as error:  # a server that restarts is shown again
                trouble = str(error)


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str | None]]:
    """Read keys without Enter; yield a function that waits for one, up to some seconds.

    The function returns None when there was none. Arrow keys are named, Escape alone is `\\x1b`.
    """
    import termios
    import tty

    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)

    def read(seconds: float) -> str | None:
        if not select.select([stdin], [], [], seconds)[0]:
            return None
        key = os.read(stdin, 1).decode("latin-1")
        if key == "\x1b" and select.select([stdin], [], [], ESCAPE_S)[0]:
            return {"[C": "right"}.get(os.read(stdin, 8).decode("latin-1"), "")
        return key or "q"  # the terminal is gone

    try:
        tty.setcbreak(stdin)
        yield read
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
