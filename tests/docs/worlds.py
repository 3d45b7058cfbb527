"""What the pages take for granted: a server, streams, files, names.

Belongs here: a `World` for each page whose blocks need more than a server with an empty store, and the places and
names that pages may use. A page starts with a server unless its own first command starts one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

PLACES = ("/srv", "/data", "/var/lib/lakestream", "/etc/lakestream", "/opt/lakestream")
"""Directories of the machine that the pages show; the test puts directories of its own there."""

HOSTS = ("nats.example", "old.example", "hub.example", "host1", "host2", "host3", "a", "b", "c")
"""Names of machines on the pages."""

SERVE = "lakestream serve -a 127.0.0.1 -js -sd data\n"
UP = "lakestream up -a 127.0.0.1 -sd data\n"
ORDERS = """\
nats stream add ORDERS --subjects 'orders.>' --defaults
nats pub orders.de '{"id": {{Count}}, "price": 9.5, "country": "de"}' --count 60
nats pub orders.fr '{"id": {{Count}}, "price": 7.5, "country": "fr"}' --count 40
"""
CONNECTED = """\
import asyncio, json, nats
nc = await nats.connect("nats://127.0.0.1:4222")
js = nc.jetstream()
"""
"""Names of nats-py, as the introduction of a page has them."""


class World(NamedTuple):
    """What a page takes for granted.

    Attributes:
        before: commands.
        python: a program whose names the page's Python uses; it runs after the commands.
        sql: flags of `lakestream sql` for the page's SQL.
        files: texts of files in the working directory.
    """

    before: str = SERVE
    python: str = ""
    sql: tuple[str, ...] = ()
    files: Mapping[str, str] = {}


def committed(stream: str, lake: str = "data/lake") -> str:
    """Return commands that wait until a stream's table has all messages of the stream."""
    return (
        f"for i in $(seq 100); do lakestream sql --lake {lake} --committed --format csv -q "
        f"'SELECT max(seq) FROM delta.`streams/{stream}`' 2>/dev/null | grep -q '[0-9]' && break; sleep 1; done\n"
    )


WORLDS: dict[str, World] = {
    "README.md": World(before=""),
    "docs/quickstart.md": World(before=""),
}


def world(page: str) -> World:
    """Return what a page, by its path in the repository, takes for granted."""
    return WORLDS.get(page, World())
