"""Tests of system account events of a server that reloads, enters lame duck mode or stops."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conformance.shapes import order, shape
from tests.servers import Kind, Server
from tests.wire import Frame, Wire

pytestmark = pytest.mark.conformance

ACCOUNTS = """\
server_name: told
host: 127.0.0.1
port: -1
system_account: SYS
accounts {
  SYS { users: [{user: sys, password: p}] }
  A { users: [{user: a, password: p}] }
}
"""


BOTH = [
    pytest.param(Kind.REAL, id="nats-server", marks=pytest.mark.live),
    pytest.param(Kind.OURS, id="lakestream"),
]


class Heard(NamedTuple):
    """One server, and a client in its system account that subscribes to all system subjects."""

    server: Server
    client: Wire

    @property
    def server_id(self) -> str:
        return str(self.client.info["server_id"])

    def ask(self, what: str, body: Any = None) -> Any:
        data = b"" if body is None else json.dumps(body).encode()
        return self.client.request(f"$SYS.REQ.SERVER.{self.server_id}.{what}", data).json()

    def signal(self, number: int) -> None:
        assert self.server.process is not None
        self.server.process.send_signal(number)


@pytest.fixture(params=BOTH)
def heard(request: pytest.FixtureRequest, kind: Kind, tmp_path: Path) -> Iterator[Heard]:
    server = Server(kind if request.param is Kind.OURS else Kind.REAL, tmp_path / "store", config=ACCOUNTS, name="told")
    server.start()
    client = Wire(server.address, {"user": "sys", "pass": "p"})
    client.subscribe("$SYS.SERVER.*.*")
    client.subscribe("$SYS.ACCOUNT.>")
    client.ping()
    yield Heard(server, client)
    client.close()
    server.kill()


def of_server(heard: Heard, what: str) -> Frame:
    return heard.client.message(f"$SYS.SERVER.{heard.server_id}.{what}")


def configure(heard: Heard, text: str) -> None:
    heard.server.write_config(text)


def test_a_reload_adds_an_account(heard: Heard) -> None:
    configure(heard, ACCOUNTS.replace("A {", "B { users: [{user: b, password: p}] }\n  A {"))
    answer = heard.ask("RELOAD")
    assert order(answer) == ["server"]
    with Wire(heard.server.address, {"user": "b", "pass": "p", "name": "new"}) as client:
        client.ping()
        assert client.request("$SYS.REQ.USER.INFO").json()["data"]["account"] == "B"
        event = heard.client.message("$SYS.ACCOUNT.B.CONNECT").json()
        assert event["client"]["name"] == "new"


def test_a_wrong_file_is_told(heard: Heard) -> None:
    configure(heard, ACCOUNTS + "foo_bar: 1\n")
    answer = heard.ask("RELOAD")
    assert answer["error"]["code"] == 500
    assert answer["error"]["description"].strip().endswith(':9:1: unknown field "foo_bar"')
    assert heard.client.request("$SYS.REQ.SERVER.PING.IDZ").json()["name"] == "told"


def test_that_it_stops(heard: Heard) -> None:
    other = Wire(heard.server.address, {"user": "a", "pass": "p"})
    other.ping()
    heard.signal(signal.SIGTERM)
    event = of_server(heard, "SHUTDOWN").json()
    assert shape(event) == {
        "name": "str",
        "host": "str",
        "id": "str",
        "ver": "str",
        "feature_flags": dict.fromkeys(
            ("js_ack_fc_v2", "js_api_reply_v2", "js_raft_delete_range", "js_snapshot_sources"), "bool"
        ),
        "jetstream": "bool",
        "flags": "number",
        "seq": "number",
        "time": "str",
    }
    left = [frame.subject for frame in heard.client.until_closed()]
    assert not [subject for subject in left if subject.endswith(".DISCONNECT")]
    other.close()


def test_that_it_takes_no_more_clients(heard: Heard) -> None:
    heard.signal(signal.SIGUSR2)
    event = of_server(heard, "LAMEDUCK").json()
    assert order(event) == [
        "name", "host", "id", "ver", "feature_flags", "jetstream", "flags", "seq", "time"
    ]  # fmt: skip
    assert event["id"] == heard.server_id
