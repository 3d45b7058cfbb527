"""Tests of MQTT clients: paho-mqtt, the cases of Eclipse's interoperability tests, and what an answer promises.

The cases are those of `client_test.py` in eclipse/paho.mqtt.testing, each on its own session. nats-server fails one of
them: what a client has not acknowledged does not come again when it reconnects.
"""

from __future__ import annotations

import queue
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import nats
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from lakestream_mqtt.packets import PUBACK, PUBREC, PUBREL
from tests import mqtt
from tests.certificates import PLACE
from tests.conformance.remotes import wait
from tests.conftest import StartServer
from tests.mqtt import Device, answer, connect, publish
from tests.servers import Server
from tests.wire import Wire

pytestmark = pytest.mark.conformance

TOPICS = ("TopicA", "TopicA/B", "Topic/C", "TopicA/C", "/TopicA")
WAIT_S = 10.0
DENIED = """authorization { users: [
  {user: guest, password: p, permissions: {subscribe: {deny: "test.nosubscribe"}}}
] }
"""


def _config(inside: str = "", more: str = "") -> str:
    return f'http: "127.0.0.1:-1"\n{more}\nmqtt {{\n  listen: "127.0.0.1:-1"\n  {inside}\n}}\n'


class Client(paho.Client):
    """A client whose callbacks fill queues."""

    def __init__(self, server: Server, name: str, *, clean: bool = True, over: str = "tcp", port: int = 0) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, client_id=name, clean_session=clean, transport=over)
        self._where = server.host, port or server.mqtt_port
        self.acked: queue.Queue[Any] = queue.Queue()
        self.messages: queue.Queue[tuple[str, bytes, int, bool]] = queue.Queue()
        self.on_connect = lambda _, __, flags, code, ___: self.acked.put((code.value, flags.session_present))
        self.on_subscribe = lambda _, __, ___, codes, ____: self.acked.put([code.value for code in codes])
        self.on_unsubscribe = lambda _, __, ___, ____, _____: self.acked.put("unsubscribed")
        self.on_message = lambda _, __, got: self.messages.put((got.topic, got.payload, got.qos, bool(got.retain)))

    def join(self) -> tuple[int, bool]:
        """Connect; return code and `session present`."""
        self.connect(*self._where)
        self.loop_start()
        found: tuple[int, bool] = self.acked.get(timeout=WAIT_S)
        return found

    def follow(self, *filters: tuple[str, int]) -> list[int]:
        """Subscribe; return the codes."""
        self.subscribe(list(filters))
        found: list[int] = self.acked.get(timeout=WAIT_S)
        return found

    def send(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        """Publish, and wait for the end of the exchange."""
        self.publish(topic, payload, qos, retain).wait_for_publish(WAIT_S)

    def got(self, number: int) -> list[tuple[str, bytes, int, bool]]:
        """Return the next messages, sorted."""
        return sorted(self.messages.get(timeout=WAIT_S) for _ in range(number))

    def quit(self) -> None:
        """Disconnect."""
        self.disconnect()
        self.loop_stop()


Join = Callable[..., Client]


@pytest.fixture
def server(start_server: StartServer) -> Server:
    return start_server(config=_config(more=f"no_auth_user: guest\n{DENIED}"))


@pytest.fixture
def join(server: Server) -> Iterator[Join]:
    """Yield a function that returns a client that has connected."""
    made: list[Client] = []

    def joined(name: str, **options: Any) -> Client:
        client = Client(server, name, **options)
        made.append(client)
        assert client.join()[0] == 0
        return client

    yield joined
    for client in made:
        client.quit()


def _device(server: Server, name: str, **fields: Any) -> Device:
    return Device((server.host, server.mqtt_port), connect(name, **fields))


# ---------------------------------------------------------------------- Eclipse's cases
def test_basic(join: Join) -> None:
    client = join("a")
    assert client.follow((TOPICS[0], 2)) == [2]
    for qos in (0, 1, 2):
        client.send(TOPICS[0], b"qos %d" % qos, qos)
    assert client.got(3) == [(TOPICS[0], b"qos %d" % qos, qos, False) for qos in (0, 1, 2)]


def test_retained_messages(join: Join) -> None:
    client = join("a")
    for qos, topic in enumerate(TOPICS[1:4]):
        client.send(topic, b"qos %d" % qos, qos, retain=True)
    client.send("barrier", b"", 1)
    first = join("b")
    first.follow(("+/+", 2))
    assert first.got(3) == sorted((topic, b"qos %d" % qos, qos, True) for qos, topic in enumerate(TOPICS[1:4]))
    for qos, topic in enumerate(TOPICS[1:4]):
        client.send(topic, b"", qos, retain=True)
    client.send("barrier", b"", 1)
    second = join("c")
    second.follow(("+/+", 2))
    client.send(TOPICS[1], b"live", 1)
    assert second.got(1) == [(TOPICS[1], b"live", 1, False)]


def test_zero_length_client_id(server: Server) -> None:
    assert _device(server, "", clean=False).connack == "CONNACK present=0 code=2"
    assert _device(server, "").connack == "CONNACK present=0 code=0"


def test_offline_message_queueing(join: Join, server: Server) -> None:
    client = join("a", clean=False)
    client.follow(("+/+", 2))
    client.quit()
    other = join("b")
    for qos, topic in enumerate(TOPICS[1:4]):
        other.send(topic, b"qos %d" % qos, qos)
    again = Client(server, "a", clean=False)
    assert again.join() == (0, True)
    assert again.got(2) == sorted(
        (topic, b"qos %d" % qos, qos, False) for qos, topic in [(1, TOPICS[2]), (2, TOPICS[3])]
    )
    again.quit()


def test_overlapping_subscriptions(join: Join) -> None:
    client = join("a")
    client.follow(("TopicA/#", 2), ("TopicA/+", 1))
    client.send(TOPICS[3], b"overlapping", 2)
    assert client.got(2) == [(TOPICS[3], b"overlapping", qos, False) for qos in (1, 2)]


def test_keep_alive_ends_in_a_will(join: Join, server: Server) -> None:
    watch = join("watch")
    watch.follow((TOPICS[4], 2))
    device = _device(server, "a", keep_alive=1, will=(TOPICS[4], b"keepalive expiry", 0, False))
    assert device.rest() == []
    assert watch.got(1) == [(TOPICS[4], b"keepalive expiry", 0, False)]


@pytest.mark.parametrize("qos", [1, 2])
def test_unanswered_messages_come_again_on_reconnect(join: Join, server: Server, qos: int) -> None:
    device = _device(server, "a", clean=False)
    device.subscribe((TOPICS[0], qos))
    sender = join("b")
    sender.send(TOPICS[0], b"x", qos)
    first = device.next()
    device.leave()
    device = _device(server, "a", clean=False)
    assert device.connack == "CONNACK present=1 code=0"
    assert device.next() == f"{first} dup"
    if qos == 2:
        assert device.told(answer(PUBREC, 1), "PUBREL") == "PUBREL 1"
        device.leave()
        device = _device(server, "a", clean=False)
        assert device.next() == "PUBREL 1"


def test_subscribe_failure(join: Join) -> None:
    assert join("a").follow(("test/nosubscribe", 2)) == [0x80]


def test_dollar_topics(join: Join) -> None:
    client = join("a")
    client.follow(("+/#", 2))
    client.send(f"${TOPICS[1]}", b"hidden", 1)
    client.send(TOPICS[1], b"seen", 1)
    assert client.got(1) == [(TOPICS[1], b"seen", 1, False)]


def test_unsubscribe(join: Join) -> None:
    client = join("a")
    for topic in TOPICS[:3]:
        client.follow((topic, 2))
    client.unsubscribe(TOPICS[0])
    assert client.acked.get(timeout=WAIT_S) == "unsubscribed"
    other = join("b")
    for topic in TOPICS[:3]:
        other.send(topic, b"", 1)
    assert [topic for topic, *_ in client.got(2)] == sorted(TOPICS[1:3])


# ---------------------------------------------------------------------- NATS beside it, transports
async def test_messages_pass_in_both_directions(join: Join, server: Server) -> None:
    connection = await nats.connect(server.url)
    subscription = await connection.subscribe("plant.>")
    await connection.flush()
    client = join("a")
    client.follow(("hall/#", 1))
    client.send("plant/1/temperature", b"21.5", 1)
    message = await subscription.next_msg(timeout=WAIT_S)
    assert (message.subject, message.data, message.headers) == ("plant.1.temperature", b"21.5", {"Nmqtt-Pub": "1"})
    await connection.publish("hall.2.light", b"on")
    await connection.flush()
    assert client.got(1) == [("hall/2/light", b"on", 0, False)]
    await connection.close()


def test_many_messages_keep_their_order(join: Join) -> None:
    client, other = join("a"), join("b")
    client.follow(("a", 1))
    sent = [other.publish("a", b"%d" % number, 1) for number in range(2000)]
    sent[-1].wait_for_publish(30)
    found = [client.messages.get(timeout=WAIT_S)[1] for _ in range(2000)]
    assert found == [b"%d" % number for number in range(2000)]


def test_a_large_message(join: Join) -> None:
    client = join("a")
    client.follow(("a", 1))
    payload = bytes(range(256)) * 4000
    client.send("a", payload, 1)
    assert client.got(1) == [("a", payload, 1, False)]


def test_paho_over_websocket_and_tls(start_server: StartServer) -> None:
    files = f'cert_file: "{PLACE}/server.pem", key_file: "{PLACE}/server.key"'
    web = 'websocket { listen: "127.0.0.1:-1", no_tls: true }'
    server = start_server(config=_config(f"tls {{ {files} }}", web))
    over_web = Client(server, "web", over="websockets", port=server.websocket_port)
    over_web.ws_set_options("/mqtt")
    over_tls = Client(server, "tls")
    over_tls.tls_set(f"{server.certificates}/ca.pem", cert_reqs=ssl.CERT_REQUIRED)
    over_tls.tls_insecure_set(True)
    for client, other in ((over_web, over_tls), (over_tls, over_web)):
        if not client.is_connected():
            assert client.join() == (0, False)
        client.follow((f"to/{client._client_id.decode()}", 2))
        if other.is_connected():
            for one, two in ((client, "web"), (other, "tls")):
                one.send(f"to/{two}", bytes(50_000), 2)
    assert over_web.got(1) == [("to/web", bytes(50_000), 2, False)]
    assert over_tls.got(1) == [("to/tls", bytes(50_000), 2, False)]
    over_web.quit()
    over_tls.quit()


# ---------------------------------------------------------------------- what an acknowledgement means
def _stream(wire: Wire, **config: Any) -> None:
    made = wire.api("STREAM.CREATE.SENSORS", {"name": "SENSORS", "subjects": ["sensors.>"], **config})
    assert "error" not in made


@pytest.mark.parametrize("qos", [1, 2])
def test_an_acknowledged_message_is_in_the_stream_after_a_crash(server: Server, qos: int) -> None:
    with Wire(server.address) as wire:
        _stream(wire)
    device = _device(server, "a")
    for number in range(1, 51):
        device.send(publish("sensors/a", b"%d" % number, qos, number))
        if qos == 2:
            device.until(f"PUBREC {number}")
            device.send(answer(PUBREL, number))
            device.until(f"PUBCOMP {number}")
    if qos == 1:
        device.until("PUBACK 50")
    server.kill()
    server.start()
    with Wire(server.address) as wire:
        assert wire.api("STREAM.INFO.SENSORS")["state"]["messages"] == 50


def test_a_message_that_a_stream_refuses_is_acknowledged_and_logged(server: Server) -> None:
    with Wire(server.address) as wire:
        _stream(wire, max_msg_size=100)
    device = _device(server, "a")
    assert device.told(publish("sensors/a", bytes(200), 1, 1), "PUBACK") == "PUBACK 1"
    wait("its line", lambda: any("message size exceeds maximum" in line for line in server.logged("refused")))
    assert device.told(publish("sensors/a", b"x", 1, 2), "PUBACK") == "PUBACK 2"


def test_a_stream_without_acks_holds_nothing_up(server: Server) -> None:
    with Wire(server.address) as wire:
        _stream(wire, no_ack=True)
    device = _device(server, "a")
    assert device.told(publish("sensors/a", b"x", 1, 1), "PUBACK") == "PUBACK 1"


def test_a_device_that_floods_is_answered_in_full(server: Server) -> None:
    device = _device(server, "a")
    sent = range(1, 5001)
    device.send(b"".join(publish("a", b"x", 1, number) for number in sent))
    assert device.many(5000) == [f"PUBACK {number}" for number in sent]


def test_a_crash_leaves_no_clean_session_behind(server: Server) -> None:
    gone, kept = _device(server, "gone"), _device(server, "kept", clean=False)
    for device in (gone, kept):
        device.subscribe(("a/#", 1))
    server.kill()
    server.start()
    with _device(server, "sender"), Wire(server.address) as wire:

        def left() -> bool:
            consumers = wire.api("STREAM.INFO.$MQTT_msgs")["state"]["consumer_count"]
            return bool((consumers, wire.api("STREAM.INFO.$MQTT_sess")["state"]["messages"]) == (2, 2))

        wait("the end of the session", left)
    assert _device(server, "kept", clean=False).connack == "CONNACK present=1 code=0"


SYSTEM = """system_account: SYS
accounts {
  SYS { users: [{user: s, password: p}] }
  A { jetstream: enabled, users: [{user: a, password: p}] }
}
"""


def test_a_client_that_is_closed_while_it_subscribes_leaves_no_subscription(start_server: StartServer) -> None:
    server = start_server(config=_config(more=SYSTEM))
    kick = f"$SYS.REQ.SERVER.{server.page('/varz')['server_id']}.KICK"
    with Wire(server.address, {"user": "s", "pass": "p"}) as wire:
        for number in range(5):
            device = _device(server, f"dev{number}", clean=False, user="a", password="p")
            [shown] = server.page(f"/connz?mqtt_client=dev{number}")["connections"]
            device.send(mqtt.subscribe(1, *((f"a/{each}", 1) for each in range(40))))
            assert "error" not in wire.request(kick, b'{"cid": %d}' % shown["cid"]).json()
            assert device.rest() == []
        assert not server.logged("background work failed")
        with _device(server, "dev0", user="a", password="p"):  # waits for the end of what was begun
            pass

        def gone() -> bool:
            shown = server.page("/subsz?subs=1&acc=A")["subscriptions_list"]
            return not [each for each in shown if each["subject"].startswith(("a.", "$MQTT.sub."))]

        wait("the end of the subscriptions", gone)


@pytest.mark.parametrize("workers", [2])
def test_one_worker_serves_all_mqtt_clients(start_server: StartServer, workers: int) -> None:
    server = start_server(config=_config(more=f"workers: {workers}"))
    devices = [_device(server, f"dev{number}") for number in range(6)]
    for device in devices:
        device.subscribe(("a", 1))
    with Wire(server.address) as wire:
        wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["a"]})
        assert devices[0].told(publish("a", b"x", 1, 1), "PUBACK") == "PUBACK 1"
        wire.publish("a", b"nats")
        wire.ping()
        assert wire.api("STREAM.INFO.S")["state"]["messages"] == 2
    for device in devices[1:]:
        assert sorted(device.many(2)) == ["PUBLISH a b'nats' qos=0", "PUBLISH a b'x' qos=1 id=1"]


def test_deleted_streams_are_made_again(server: Server) -> None:
    device = _device(server, "a", clean=False)
    with Wire(server.address) as wire:
        for name in ("msgs", "sess", "rmsgs", "qos2in", "out"):
            assert wire.api(f"STREAM.DELETE.$MQTT_{name}")["success"]
    device.leave()
    assert _device(server, "b").connack == "closed"
    with _device(server, "c") as again:
        assert again.subscribe(("a", 1)) == "SUBACK 1 [1]"
        again.send(publish("a", b"x", 1, 1))
        assert sorted(again.many(2)) == ["PUBACK 1", "PUBLISH a b'x' qos=1 id=1"]


def test_a_user_that_loses_a_right_gets_no_more(start_server: StartServer) -> None:
    users = "authorization {{ users: [{{user: a, password: p, permissions: {{subscribe: {{deny: [{}]}}}}}}] }}\n"
    server = start_server(config=_config(more=users.format('"other"')))
    device = _device(server, "a", user="a", password="p")
    device.subscribe(("x", 1), ("y", 1))
    server.reload(_config(more=users.format('"x"')))
    for number, topic in enumerate(("x", "y"), 1):
        device.send(publish(topic, topic.encode(), 1, number))
    got = [line for line in device.many(3) if line.startswith("PUBLISH")]
    assert got == ["PUBLISH y b'y' qos=1 id=1"]
    device.send(answer(PUBACK, 1))
    assert device.ping() == []


def test_streams_of_a_hub_serve_devices_of_a_leaf_node(start_server: StartServer) -> None:
    """The leaf node has no JetStream: sessions, retained messages and acks are in the hub's domain."""
    hub = start_server(
        config='jetstream { domain: hub }\nleafnodes { listen: "127.0.0.1:-1" }\n', store=None, name="hub"
    )
    leaf = start_server(
        config=_config(
            "js_domain: hub", f'leafnodes {{ remotes: [{{ url: "nats-leaf://127.0.0.1:{hub.leaf_port}" }}] }}'
        ),
        jetstream=False,
        name="leaf",
    )
    with Wire(hub.address) as wire, Wire(leaf.address) as near:
        sid = near.subscribe("ready")
        near.ping()

        def joined() -> bool:
            wire.publish("ready")
            wire.ping()
            near.ping()
            return any(frame.sid == sid for frame in near.waiting)

        wait("the leaf node", joined)
        device = _device(leaf, "dev", clean=False)
        assert device.connack == "CONNACK present=0 code=0"
        assert device.subscribe(("a", 1)) == "SUBACK 1 [1]"
        device.send(publish("a", b"x", 1, 1))
        assert sorted(device.many(2)) == ["PUBACK 1", "PUBLISH a b'x' qos=1 id=1"]
        assert wire.api("STREAM.INFO.$MQTT_sess")["state"]["messages"] == 1
        found = wire.api("STREAM.MSG.GET.$MQTT_sess", {"seq": 1})
        assert "error" in found or found["message"]["subject"].startswith("$MQTT.sess.hub.")


def test_a_reload_cannot_change_the_block(start_server: StartServer) -> None:
    server = start_server(config=_config())
    said = server.reload(_config("ack_wait: 5s"))
    assert [line for line in said if "a reload cannot change 'mqtt'" in line]
    assert _device(server, "dev").connack == "CONNACK present=0 code=0"


def test_many_retained_messages_come_while_others_are_served(server: Server) -> None:
    """More than the API takes at once, which used to end the subscriber's connection."""
    device, number = _device(server, "a"), 11_000
    for begin in range(0, number, 1000):
        device.send(*(publish(f"r/{at}", b"x", 1, at % 1000 + 1, retain=True) for at in range(begin, begin + 1000)))
        device.many(1000)
    with _device(server, "b") as other:
        other.send(mqtt.subscribe(1, ("r/#", 0)))
        assert device.ping() == []
        assert other.next() == "SUBACK 1 [0]"
        assert len(set(other.many(number))) == number
