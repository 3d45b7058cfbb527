"""Two servers, one of which is a remote of the other: helpers for tests of the link.

Belongs here: starting the servers with a link, reading a whole stream as bytes that can be compared, and waiting until
a copy has every message of its origin.
"""

from __future__ import annotations

import json
import time
import urllib.request
from base64 import b64decode
from collections.abc import Callable
from typing import Any

from tests.servers import Kind, Server
from tests.wire import Wire, pub

SOON_S = 60.0
"""Timeout: sessions start within 0.2 s and links are made again within 5 s on an idle machine."""

DOMAIN = "hub"
EXTERNAL = {"api": f"$JS.{DOMAIN}.API"}

Message = tuple[int, str, str, bytes, bytes]
"""Sequence, subject, time, header block, payload."""


def config(*addresses: tuple[str, int], more: str = "", top: str = "") -> str:
    """Return a configuration with one remote; `more` is added to its block."""
    urls = ", ".join(f'"nats://{host}:{port}"' for host, port in addresses)
    return f"lake: false\nhttp: 127.0.0.1:-1\n{top}\nremote {{ domain: {DOMAIN}, urls: [{urls}]\n{more} }}\n"


def wait(what: str, ready: Callable[[], Any], seconds: float = SOON_S) -> Any:
    """Poll `ready` until it is true; return its value."""
    deadline = time.monotonic() + seconds
    while not (value := ready()):
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.02)
    return value


STORE_NOT_CREATED = 10049


def create(wire: Wire, name: str, **fields: Any) -> dict[str, Any]:
    """Create a stream.

    nats-server removes the files of a deleted stream, and the directory of an account without streams, in the
    background. A create that runs into this fails with "error creating store for stream", or finds messages and
    consumers of the deleted stream: such a create is repeated.
    """

    def created() -> dict[str, Any] | None:
        answer: dict[str, Any] = wire.api(f"STREAM.CREATE.{name}", {"name": name, **fields})
        if wire.info["go"].startswith("go") and answer.get("did_create") and answer["state"]["last_seq"]:
            wire.api(f"STREAM.DELETE.{name}")
            return None
        return None if answer.get("error", {}).get("err_code") == STORE_NOT_CREATED else answer

    answer: dict[str, Any] = wait(f"stream {name}", created)
    assert "error" not in answer, answer
    return answer


def mirror(wire: Wire, name: str, origin: str, **fields: Any) -> None:
    """Create a mirror of a stream on the remote."""
    create(wire, name, mirror={"name": origin, "external": EXTERNAL, **fields})


def publish(wire: Wire, subject: str, *payloads: bytes, headers: dict[str, str] | None = None) -> None:
    """Publish messages one after the other and assert that each is acked."""
    for payload in payloads:
        answer = wire.request(subject, payload, headers).json()
        assert "error" not in answer, answer


def flood(wire: Wire, subject: str, count: int, size: int = 100) -> None:
    """Publish many messages."""
    wire.send(b"".join(pub(subject, b"%0*d" % (size, number)) for number in range(count)))
    wire.ping()


def messages(wire: Wire, stream: str) -> list[Message]:
    """Return all messages of a stream."""
    state = wire.api(f"STREAM.INFO.{stream}", {"deleted_details": True})["state"]
    gone = set(state.get("deleted") or ())
    found = []
    for seq in range(state["first_seq"], state["last_seq"] + 1) if state["messages"] else ():
        if seq in gone:
            continue
        told = wire.api(f"STREAM.MSG.GET.{stream}", {"seq": seq})["message"]
        header, data = b64decode(told.get("hdrs", "")), b64decode(told.get("data", ""))
        found.append((told["seq"], told["subject"], told["time"], header, data))
    return found


def state(wire: Wire, stream: str) -> dict[str, Any]:
    """Return the state in STREAM.INFO."""
    found: dict[str, Any] = wire.api(f"STREAM.INFO.{stream}").get("state", {})
    return found


def upstream(wire: Wire, stream: str) -> dict[str, Any]:
    """Return the first origin in STREAM.INFO."""
    info = wire.api(f"STREAM.INFO.{stream}")
    found: dict[str, Any] = info.get("mirror") or info["sources"][0]
    return found


def wait_last(wire: Wire, stream: str, seq: int) -> None:
    """Wait until the stream's last sequence is `seq`."""
    wait(f"message {seq} of {stream}", lambda: state(wire, stream).get("last_seq") == seq)


def links(server: Server) -> list[dict[str, Any]]:
    """Return the remotes in /varz."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/varz", timeout=10) as answer:
        found: list[dict[str, Any]] = json.load(answer).get("remote_servers", [])
        return found


def wait_link(server: Server, up: bool = True) -> dict[str, Any]:
    """Wait until the first link is up, or down; return its entry in /varz."""
    found: dict[str, Any] = wait(
        "a link" if up else "the end of a link",
        lambda: next((link for link in links(server)[:1] if link["connected"] is up), None),
    )
    return found


def fixed_port(server: Server) -> Server:
    """Keep the port of a running server for its later starts."""
    server.wanted_port = server.port
    return server


BOTH = [Kind.REAL, Kind.OURS]
