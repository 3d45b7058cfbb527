"""Tests of a mirror or source whose flow control replies do not reach the origin: it reports that and resumes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.conftest import StartServer
from tests.wire import Wire, pub

pytestmark = pytest.mark.conformance

SOON_S = 20.0
MESSAGES = 3000
EXTERNAL = {"api": "FROM.API", "deliver": "FROM.DELIVER"}
# The exports that a copy needs from the origin's account, without the subject of flow control.
CONFIG = """
accounts {
  ORIGIN { jetstream: enabled, users: [{ user: o, password: o }], exports: [
    { service: "$JS.API.CONSUMER.>", response_type: stream }, { stream: "FROM.DELIVER.>" } %s ] }
  COPY { jetstream: enabled, users: [{ user: c, password: c }], imports: [
    { service: { account: ORIGIN, subject: "$JS.API.CONSUMER.>" }, to: "FROM.API.CONSUMER.>" }
    { stream: { account: ORIGIN, subject: "FROM.DELIVER.>" } } %s ] }
}
"""
FLOW = (', { service: "$JS.FC.>" }', ', { service: { account: ORIGIN, subject: "$JS.FC.>" } }')


def create(wire: Wire, name: str, **config: Any) -> None:
    """Create a stream."""
    answer = wire.api(f"STREAM.CREATE.{name}", {"name": name, **config})
    assert "error" not in answer, answer


def eventually(wire: Wire, name: str, wanted: Any) -> Any:
    """Return the stream's origin in INFO once `wanted` is true for it."""
    deadline = time.monotonic() + SOON_S
    while True:
        info = wire.api(f"STREAM.INFO.{name}")
        origin = info.get("mirror") or info["sources"][0]
        if wanted(info["state"]["messages"], origin):
            return origin
        assert time.monotonic() < deadline, info
        time.sleep(0.05)


@pytest.mark.parametrize("kind_of_copy", ["mirror", "source"])
def test_a_copy_tells_that_it_is_stalled(start_server: StartServer, kind_of_copy: str) -> None:
    server = start_server(config=CONFIG % ("", ""))
    with (
        Wire(server.address, {"user": "o", "pass": "o"}) as origin,
        Wire(server.address, {"user": "c", "pass": "c"}) as copy,
    ):
        create(origin, "O", subjects=["o"])
        origin.send(pub("o", b"x" * 2000) * MESSAGES)
        origin.ping()
        upstream = {"name": "O", "external": EXTERNAL}
        create(copy, "C", **({"mirror": upstream} if kind_of_copy == "mirror" else {"sources": [upstream]}))
        told = eventually(copy, "C", lambda _, origin: "error" in origin)
        assert told["error"] == {
            "code": 500,
            "err_code": 10228,
            "description": "stream source consumer stalled on flow control",
        }
        assert told["lag"] > 0
    server.stop()
    server.config = CONFIG % FLOW
    server.start()
    with Wire(server.address, {"user": "c", "pass": "c"}) as copy:
        whole = eventually(copy, "C", lambda messages, _: messages == MESSAGES)
        assert "error" not in whole
        assert whole["lag"] == 0
