"""nats-server with a leaf node listener, and servers under test that connect to it.

Belongs here: their configuration, and requests to both sides of a leaf connection.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.conftest import StartServer
from tests.servers import Kind, Server
from tests.wire import Wire

SOON_S = 200.0
"""Timeout: a mirror in nats-server whose origin did not answer retries after up to two minutes."""


def until(ready: Callable[[], Any], what: str, timeout: float = SOON_S) -> Any:
    """Poll until the answer is true; return it."""
    deadline = time.monotonic() + timeout
    while not (last := ready()):
        assert time.monotonic() < deadline, f"{what}: not within {timeout} s"
        time.sleep(0.05)
    return last


class Message(NamedTuple):
    """Message as a server returns it."""

    seq: int
    subject: str
    time: str
    header: bytes
    data: bytes


def messages(wire: Wire, stream: str) -> list[Message]:
    """Return all messages of a stream."""
    state = wire.api(f"STREAM.INFO.{stream}")["state"]
    found = []
    for seq in range(state["first_seq"], state["last_seq"] + 1):
        answer = wire.api(f"STREAM.MSG.GET.{stream}", {"seq": seq})
        if "error" not in answer:
            fields = answer["message"]
            header, data = (base64.b64decode(fields.get(key, "")) for key in ("hdrs", "data"))
            found.append(Message(seq, fields["subject"], fields["time"], header, data))
    return found


def create(wire: Wire, name: str, **config: Any) -> None:
    """Create a stream."""
    answer = wire.api(f"STREAM.CREATE.{name}", {"name": name, **config})
    assert "error" not in answer, answer


def copied(wire: Wire, name: str, last: int, timeout: float = SOON_S) -> Any:
    """Return INFO of a mirror once it has reached a sequence."""

    def come() -> Any:
        info = wire.api(f"STREAM.INFO.{name}")
        return info if info["state"]["last_seq"] >= last else None

    return until(come, f"{name} comes to {last}", timeout)


def hub_config(leaf_port: int, more: str = "", listener: str = "") -> str:
    """Return the configuration of a nats-server that accepts leaf nodes."""
    return f"jetstream {{ domain: hub }}\nleafnodes {{ listen: '127.0.0.1:{leaf_port}'\n{listener} }}\n{more}\n"


def lake_config(leaf_port: int, more: str = "", user: str = "", settings: str = "") -> str:
    """Return the configuration of a server that connects to it."""
    url = f"nats-leaf://{user + '@' if user else ''}127.0.0.1:{leaf_port}"
    return f"jetstream {{ domain: lake }}\nlake {{ enabled: false }}\nremote {{\nurl: '{url}'\n{settings}\n}}\n{more}\n"


def connected(server: Server, leaf_port: int, times: int = 1) -> None:
    """Wait until the link has been established `times` times."""
    line = f"at nats-leaf://127.0.0.1:{leaf_port}; streams of account"
    until(lambda: server.log(2000).count(line) >= times, "the link comes up")


def start_both(start_server: StartServer, leaf_port: int) -> tuple[Server, Server]:
    """Start a nats-server and the server under test, connected; return the server under test and nats-server."""
    there = start_server(of=Kind.REAL, config=hub_config(leaf_port), name="hub")
    here = start_server(of=Kind.OURS, config=lake_config(leaf_port), name="lake1", args=["-m", "-1"])
    connected(here, leaf_port)
    return here, there
