"""A store of one server with two accounts, one of which copies from the other."""

from __future__ import annotations

from typing import Any

from tests.servers import Server
from tests.stored.facts import known
from tests.stored.standalone import Filler, wait_copied
from tests.wire import Wire

CONFIG = """
lake { seal_bytes: 16k, seal_age: "1h", poll: "100ms" }
accounts {
  ONE {
    users: [{user: one, password: p}], jetstream: enabled
    exports: [{service: "$JS.API.>", response_type: stream}, {service: "$JS.FC.>"}, {stream: "to.>"}]
  }
  TWO {
    users: [{user: two, password: p}], jetstream: { max_file: 1GB, max_streams: 5 }
    imports: [
      {service: {account: ONE, subject: "$JS.API.>"}, to: "$JS.one.API.>"}
      {service: {account: ONE, subject: "$JS.FC.>"}}, {stream: {account: ONE, subject: "to.>"}}
    ]
  }
}
"""
USERS = ("one", "two")
COPIES = ("COPY", "PART")


def user(server: Server, name: str) -> Wire:
    """Return a new connection of a user."""
    return Wire(server.address, {"user": name, "pass": "p"}, timeout=30)


def fill(server: Server) -> None:
    """Create the streams of both accounts."""
    with user(server, "one") as wire:
        filler = Filler(wire)
        filler.stream("ORDERS", subjects=["orders.*"], allow_direct=False)  # its mirror would answer direct gets
        for number in range(50):
            filler.put(f"orders.{number % 4}", b"%d" % number)
        filler.consumer("ORDERS", "worker", ack_policy="explicit")
        filler.tell(filler.pull("ORDERS", "worker", 5)[2])
    with user(server, "two") as wire:
        filler = Filler(wire)
        external = {"api": "$JS.one.API", "deliver": "to.two"}
        filler.stream("COPY", mirror={"name": "ORDERS", "external": external})
        filler.stream("PART", sources=[{"name": "ORDERS", "filter_subject": "orders.2", "external": external}])
        filler.stream("OWN", subjects=["orders.*"])
        filler.put("orders.own", b"own")
        wait_copied(wire, *COPIES)


def facts(server: Server) -> dict[str, Any]:
    """Return the recorded facts of both accounts."""
    found = {}
    for name in USERS:
        with user(server, name) as wire:
            found[name] = known(wire)
    return found
