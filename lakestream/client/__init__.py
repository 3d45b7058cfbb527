"""The Python client, by the name that programs know: NATS with the past of streams, and streams as tables.

Belongs here: the names of the package lakestream-client, which is loaded when one is asked for. `__init__.pyi` declares
them for type checkers.

    from lakestream.client import connect

    async with await connect("nats://127.0.0.1:4222") as client:
        table = await client.to_arrow("ORDERS", ["seq", "data"], subject="orders.de")

`lakestream.client.sync` has the same for programs without an event loop.
"""

from __future__ import annotations

from lakestream import extras

ENTRY_POINTS = "lakestream.client"
"""Group of entry points: `client` and `sync`, the two modules that programs use."""

__getattr__ = extras.forwarding(__name__, ENTRY_POINTS, "client", "client")
