"""Tests of a full disk: errors to publishers, and streams and reads that continue."""

from __future__ import annotations

import errno
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.remotes import config, create, messages, mirror, publish, state, upstream, wait, wait_last
from tests.conftest import StartServer
from tests.servers import Kind, Server
from tests.wire import Wire

pytestmark = [pytest.mark.chaos, pytest.mark.smoke]

LARGEST_FILE = 2 << 20
REASON = os.strerror(errno.EFBIG)


class Limited(Server):
    """Server whose files may not exceed `LARGEST_FILE`: a write beyond that fails as on a full disk."""

    def command(self) -> list[str]:
        return ["prlimit", f"--fsize={LARGEST_FILE}", *super().command()]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Limited]:
    server = Limited(Kind.OURS, tmp_path / "store", args=["-m", "-1"]).start()
    yield server
    server.kill()


def health(server: Server) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{server.host}:{server.http_port}/healthz", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_stream_without_room_says_why_to_everybody_and_where_only_in_the_log(server: Limited) -> None:
    with Wire(server.address) as client:
        for name in "AB":
            client.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [name]})
        answers = [client.request("A", bytes(500_000)).json() for _ in range(6)]
        acked = [answer["seq"] for answer in answers if "error" not in answer]
        assert acked == list(range(1, len(acked) + 1))
        refused = [answer["error"] for answer in answers if "error" in answer]
        assert refused
        for error in refused:
            assert REASON in error["description"]
        status, page = health(server)
        assert status == 503
        assert REASON in page
        deleted = client.api("STREAM.MSG.DELETE.A", {"seq": 1})
        assert REASON in deleted["error"]["description"]
        for text in (json.dumps(answers), page, json.dumps(deleted)):
            assert str(server.store) not in text
        # Stored messages stay readable, and other streams are not affected.
        assert client.api("STREAM.MSG.GET.A", {"seq": len(acked)})["message"]["seq"] == len(acked)
        assert client.request("B", b"x").json()["seq"] == 1
    server.kill()  # all of its output is read then
    logged = [line for line in server.log().splitlines() if "[ERR]" in line]
    assert len(logged) == 1, logged
    assert "stream A: takes no more messages: " in logged[0]
    assert str(server.store) in logged[0]
    assert "restart the server" in logged[0]


@pytest.mark.parametrize("kind", [Kind.REAL, Kind.OURS], ids=lambda kind: kind.value)
def test_a_mirror_without_room_confirms_nothing_that_it_did_not_store(
    start_server: StartServer, tmp_path: Path, kind: Kind
) -> None:
    """A work queue keeps what its mirror could not write, until the mirror has room again."""
    remote = start_server(of=kind, config="lake: false" if kind is Kind.OURS else None)
    server = Limited(Kind.OURS, tmp_path / "mirror", config=config(remote.address)).start()
    try:
        with Wire(remote.address) as there, Wire(server.address) as here:
            create(there, "W", subjects=["w"], retention="workqueue")
            mirror(here, "MW", "W")
            wait("a consumer", lambda: upstream(here, "MW")["active"] >= 0)
            sent = 0

            def settled() -> bool:
                return bool(state(here, "MW")["last_seq"] == sent or health(server)[0] != 200)

            while health(server)[0] == 200:
                sent += 1
                publish(there, "w", b"%0500000d" % sent)
                wait("a message, or no room", settled)
            assert REASON in upstream(here, "MW")["error"]["description"]
            (name,) = there.api("CONSUMER.NAMES.W")["consumers"]
            sid = there.subscribe(there.api(f"CONSUMER.INFO.W.{name}")["config"]["deliver_subject"])
            for _ in range(3):  # flow control, which asks for the confirmation, comes at the latest with a heartbeat
                while not there.delivered(sid).header.startswith(b"NATS/1.0 100 Idle Heartbeat"):
                    pass
    finally:
        server.kill()
    again = start_server(of=Kind.OURS, store=server.store, config=config(remote.address))
    with Wire(remote.address) as there, Wire(again.address) as here:
        wait_last(here, "MW", sent)
        wait("the work queue", lambda: state(there, "W")["messages"] == 0)
        stored = [(seq, int(data.lstrip(b"0"))) for seq, _, _, _, data in messages(here, "MW")]
        assert stored == [(number, number) for number in range(1, sent + 1)]
