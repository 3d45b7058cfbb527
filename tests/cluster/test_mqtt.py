"""Tests of MQTT in a cluster of three: sessions move between nodes, and an ack counts for streams of other nodes."""

from __future__ import annotations

import pytest

from lakestream_mqtt.packets import PUBACK
from tests.cluster.conftest import StartCluster
from tests.cluster.nodes import Cluster, Node, until
from tests.mqtt import Device, answer, connect, publish

pytestmark = pytest.mark.cluster

CONFIG = 'mqtt { listen: "127.0.0.1:-1" }\n'


def _device(node: Node, name: str, *, clean: bool = True) -> Device:
    def connected() -> Device | None:
        device = Device((node.host, node.mqtt_port), connect(name, clean=clean))
        return device if device.connack.endswith("code=0") else None  # a leader may be elected meanwhile

    found: Device = until(connected, f"{name} on {node.name}")
    return found


def _streams_are_replicated(cluster: Cluster) -> None:
    for name in ("msgs", "sess", "rmsgs", "qos2in", "out"):
        cluster.wait_current(f"$MQTT_{name}")


def test_a_session_goes_from_node_to_node(start_cluster: StartCluster) -> None:
    cluster = start_cluster(config=CONFIG)
    one, two, three = cluster.nodes
    device = _device(one, "dev", clean=False)
    assert device.subscribe(("a/#", 1), ("q0", 0)) == "SUBACK 1 [1, 0]"
    _streams_are_replicated(cluster)
    config = cluster.api("STREAM.INFO.$MQTT_msgs")["config"]
    assert config["num_replicas"] in (2, 3)

    second = _device(two, "dev", clean=False)
    assert second.connack == "CONNACK present=1 code=0"
    assert device.rest() == []
    sender = _device(three, "sender")
    sender.send(publish("q0", b"x"))
    sender.send(publish("a/b", b"y", 1, 1))
    assert sender.next() == "PUBACK 1"
    assert sorted(second.many(2)) == ["PUBLISH a/b b'y' qos=1 id=1", "PUBLISH q0 b'x' qos=0"]
    second.send(answer(PUBACK, 1))
    second.leave()

    sender.send(publish("a/c", b"z", 1, 2), publish("r", b"kept", 1, 3, retain=True))
    assert sender.many(2) == ["PUBACK 2", "PUBACK 3"]
    third = _device(three, "dev", clean=False)
    assert (third.connack, third.next()) == ("CONNACK present=1 code=0", "PUBLISH a/c b'z' qos=1 id=1")
    other = _device(one, "other")
    assert (other.subscribe(("r", 0)), other.next()) == ("SUBACK 1 [0]", "PUBLISH r b'kept' qos=0 retain")


def test_acknowledged_messages_survive_the_loss_of_the_leader(start_cluster: StartCluster) -> None:
    cluster = start_cluster(config=CONFIG)
    cluster.stream("SENSORS", ["sensors.>"])
    leader = cluster.stream_leader("SENSORS")
    node = cluster.others(leader)[0]
    device = _device(node, "dev")
    _streams_are_replicated(cluster)
    for number in range(1, 101):
        device.send(publish("sensors/a", b"%d" % number, 1, number))
    device.until("PUBACK 100")
    leader.kill()
    until(lambda: cluster.api("STREAM.INFO.SENSORS", node=node)["state"]["messages"] == 100, "all messages")
