"""Dead letters through the socket: a consumer's last word goes to a stream, and back by `consumer redrive`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakestream.cli.app import app
from tests.cluster.nodes import until
from tests.servers import Kind, Server
from tests.wire import Frame, Wire

pytestmark = pytest.mark.conformance


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(Kind.OURS, tmp_path / "store")
    server.start()
    yield server
    server.kill()


def pulled(wire: Wire, count: int) -> list[Frame]:
    """Return the next messages of the consumer."""
    sid = wire.subscribe("pulled")
    wire.publish("$JS.API.CONSUMER.MSG.NEXT.WORK.c", b'{"batch":%d}' % count, "pulled")
    return [wire.delivered(sid) for _ in range(count)]


def test_a_letter_is_published_once_over_a_kill_and_driven_back(server: Server) -> None:
    with Wire(server.address) as wire:
        wire.api("STREAM.CREATE.WORK", {"name": "WORK", "subjects": ["work.>"], "retention": "workqueue"})
        config = {"durable_name": "c", "ack_policy": "explicit", "max_deliver": 1, "ack_wait": 2_000_000_000}
        config["metadata"] = {"lakestream.dead_letter": json.dumps({"subject": "dead.work"})}
        wire.api("CONSUMER.DURABLE.CREATE.WORK.c", {"stream_name": "WORK", "config": config})
        for number in range(21):
            wire.request(f"work.{number}", b"%d" % number)
        first = pulled(wire, 21)[0]
        wire.request(first.reply, b"+ACK")  # logs the deliveries, too
        wire.api("CONSUMER.INFO.WORK.c")
    server.kill()  # the letters are due, and nothing stores them yet
    server.start()
    with Wire(server.address) as wire:
        wire.api("STREAM.CREATE.DEAD", {"name": "DEAD", "subjects": ["dead.>"]})
        until(lambda: wire.api("STREAM.INFO.WORK")["state"]["messages"] == 0, "all letters", 30)
        assert wire.api("STREAM.INFO.DEAD")["state"]["messages"] == 20
        url = f"nats://{server.address[0]}:{server.address[1]}"
        result = CliRunner().invoke(app, ["consumer", "redrive", "WORK", "c", "--count", "15", "--server", url])
        assert result.output == "Published 15 dead letters of WORK > c again\n"
        assert wire.api("STREAM.INFO.DEAD")["state"]["messages"] == 5
        assert wire.api("STREAM.INFO.WORK")["state"]["messages"] == 15
        assert sorted(int(frame.data) for frame in pulled(wire, 15)) == list(range(1, 16))
