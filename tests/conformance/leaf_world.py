"""Servers with leaf node listeners, and servers that connect to them.

Belongs here: their configuration, and requests to both sides of a leaf connection.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.request
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.conftest import StartServer
from tests.servers import Kind, Server
from tests.wire import Wire, WireTimeout

SOON_S = 200.0
"""Timeout: a mirror in nats-server whose origin did not answer retries after up to two minutes."""


LINK_S = 20.0
"""Timeout for a link and what passes it."""


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


def hub_of(start_server: StartServer, listener: str = "", more: str = "", **options: Any) -> Server:
    """Start a server that accepts leaf nodes."""
    text = f"{more}\nhttp: '127.0.0.1:-1'\nleafnodes {{ listen: '127.0.0.1:-1'\n{listener} }}\n"
    hub = start_server(config=text, name="hub", **options)
    assert hub.leaf_port, "there is no listener for leaf nodes"
    return hub


def leaf_of(
    start_server: StartServer,
    hub: Server,
    remote: str = "",
    more: str = "",
    login: str = "",
    scheme: str = "nats-leaf",
    of: Kind = Kind.REAL,
    **options: Any,
) -> Server:
    """Start a server that joins a hub as a leaf node."""
    url = f"{scheme}://{login}127.0.0.1:{hub.leaf_port}"
    text = (
        f"{more}\nhttp: '127.0.0.1:-1'\nleafnodes {{ reconnect: '200ms', remotes: [{{ url: '{url}'\n{remote} }}] }}\n"
    )
    return start_server(of=of, config=text, name="leaf", **options)


def page(server: Server, path: str) -> Any:
    """Return a page of the monitoring port."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}{path}") as answer:
        return json.load(answer)


def linked(hub: Server, leaf: Server) -> Any:
    """Wait for the link; returns the hub's view of it."""
    until(lambda: page(leaf, "/leafz")["leafs"], "the leaf has a link", LINK_S)
    return until(lambda: page(hub, "/leafz")["leafs"], "the hub has a link", LINK_S)[0]


def reaches(sender: Wire, receiver: Wire, subject: str, timeout: float = LINK_S) -> None:
    """Publish until the message comes: interest travels in the background."""
    sid = receiver.subscribe(subject)
    receiver.ping()

    def come() -> Any:
        sender.publish(subject, b"m", "", {"A": "b"})
        sender.ping()
        return [frame for frame in receiver.ping() if frame.sid == sid]

    frame = until(come, f"{subject} comes", timeout)[0]
    assert (frame.data, frame.headers) == (b"m", {"A": "b"})


def wanted(wire: Wire, subject: str) -> None:
    """Wait until the server of this client knows of a subscription on the other side."""

    def known() -> bool:
        try:
            return wire.request(subject, timeout=0.2).status != 503
        except WireTimeout:
            return True

    until(known, f"{subject} is wanted", LINK_S)


def both_ways(here: Wire, there: Wire) -> None:
    """Send messages and requests in both directions."""
    reaches(here, there, "to.leaf")
    reaches(there, here, "to.hub")
    for asking, answering in ((here, there), (there, here)):
        sid = answering.subscribe("ask")
        answering.ping()
        wanted(asking, "ask")
        answering.ping()
        reply = asking.new_reply()
        asking.publish("ask", b"?", reply)
        answering.publish(answering.delivered(sid).reply, b"!")
        assert asking.message(reply).data == b"!"
        answering.unsubscribe(sid)
        answering.ping()
