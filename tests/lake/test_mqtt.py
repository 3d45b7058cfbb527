"""Tests of what devices with MQTT publish, as rows of tables."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from lakestream_sql.session import Session
from lakestream_sql.uncompacted import FlushServer as Asked
from tests.lake.test_as_it_was import Tables
from tests.mqtt import Device, connect, publish
from tests.servers import Kind, Server
from tests.wire import Wire

pytestmark = pytest.mark.lake

CONFIG = """lake { seal_bytes: 16384, seal_age: "100ms", retain_bytes: 0, poll: "100ms" }
mqtt { listen: "127.0.0.1:-1" }
"""


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(Kind.OURS, tmp_path_factory.mktemp("mqtt") / "store", config=CONFIG)
    server.start()
    yield server
    server.kill()


async def test_messages_of_devices_are_rows(spark: Any, server: Server) -> None:
    """Live and from the table: a user's stream, messages for a session that is away, and retained messages."""
    with Wire(server.address) as wire:
        wire.api("STREAM.CREATE.SENSORS", {"name": "SENSORS", "subjects": ["sensors.>"]})
    address = server.host, server.mqtt_port
    away = Device(address, connect("away", clean=False))
    away.subscribe(("sensors/#", 1))
    away.leave()
    with Device(address, connect("dev")) as device:
        for number in range(1, 4):
            device.send(publish(f"sensors/hall.{number}", b"%d" % number, 1, number, retain=number == 1))
        device.until("PUBACK 3")

    def compare() -> None:
        with Session(server.store / "lake", server=Asked(server.url)) as session:

            def rows(query: str) -> list[tuple[Any, ...]]:
                return [tuple(row) for row in session.query(query).fetchall()]

            found = rows("SELECT subject, CAST(data AS VARCHAR) FROM SENSORS ORDER BY seq")
            assert found == [(f"sensors.hall//{number}", str(number)) for number in (1, 2, 3)]
            found = rows('SELECT subject, CAST(data AS VARCHAR) FROM "$MQTT_msgs" ORDER BY seq')
            assert found == [(f"$MQTT.msgs.sensors.hall//{number}", str(number)) for number in (1, 2, 3)]
            found = rows('SELECT subject, CAST(data AS VARCHAR) FROM "$MQTT_rmsgs"')
            assert found == [("$MQTT.rmsgs.sensors.hall//1", "1")]

    await asyncio.to_thread(compare)
    tables = Tables(spark, server)
    for name in ("SENSORS", "$MQTT_msgs", "$MQTT_rmsgs"):
        await tables.until_in_table(name)
    await asyncio.to_thread(compare)
    with Device(address, connect("away", clean=False)) as device:
        assert device.connack == "CONNACK present=1 code=0"
        assert [line.split()[1] for line in device.many(3)] == [f"sensors/hall.{number}" for number in (1, 2, 3)]
