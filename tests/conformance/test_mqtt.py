"""MQTT 3.1.1 as nats-server serves it: topics, QoS, sessions, retained messages, wills, logins, and wrong input.

Each test drives both servers with a client that answers nothing by itself (tests/mqtt.py), and compares the packets.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from lakestream_mqtt.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from tests import mqtt
from tests.certificates import PLACE, client_context
from tests.conformance.remotes import wait
from tests.conftest import Agree
from tests.keys import Operator
from tests.mqtt import Device, answer, connect, publish, subscribe, unsubscribe
from tests.servers import Server
from tests.websocket import WebSocket
from tests.wire import Secure, Wire, WireTimeout

pytestmark = pytest.mark.conformance

PAGES = 'http: "127.0.0.1:-1"\n'
USERS = """authorization { users: [
  {user: ann, password: p}
  {user: bob, password: p, permissions: {publish: {deny: "no.>"}, subscribe: {deny: ["no.>", "half.b"]}}}
  {user: tcp, password: p, allowed_connection_types: [STANDARD]}
  {user: dev, password: p, allowed_connection_types: [MQTT]}
  {user: web, password: p, allowed_connection_types: [MQTT_WS]}
] }
"""


def _config(inside: str = "", more: str = "") -> str:
    return f'{PAGES}{more}\nmqtt {{\n  listen: "127.0.0.1:-1"\n  {inside}\n}}\n'


def _address(server: Server) -> tuple[str, int]:
    return server.host, server.mqtt_port


def _device(server: Server, client: str = "dev", **fields: Any) -> Device:
    return Device(_address(server), connect(client, **fields))


def _sorted(device: Device, number: int) -> list[str]:
    return sorted(device.many(number))


def _without_ids(lines: Sequence[str]) -> list[str]:
    return [" ".join(word for word in line.split(" ") if not word.startswith("id=")) for line in lines]


def _through(device: Device, qos: int, identifier: int) -> None:
    """Finish the exchange of a message that the device has sent."""
    if qos == 1:
        device.until(f"PUBACK {identifier}")
    elif qos == 2:
        device.until(f"PUBREC {identifier}")
        device.send(answer(PUBREL, identifier))
        device.until(f"PUBCOMP {identifier}")
    else:
        device.ping()


def _sent(
    device: Device, topic: str, payload: bytes, qos: int = 1, identifier: int = 1, *, retain: bool = False
) -> None:
    """Publish a message and finish its exchange."""
    device.send(publish(topic, payload, qos, identifier, retain=retain))
    _through(device, qos, identifier)


# ---------------------------------------------------------------------- topics
TOPICS = [
    "a",
    "a/b",
    "/a",
    "a/",
    "/",
    "//",
    "a//b",
    "///",
    "a.b",
    ".a",
    "a.",
    "a/./b",
    "é/ü",
    "a\x0bb",
    "a*b",
    "a>b",
    "*",
    ">",
]


def test_topics_are_subjects(agree: Agree) -> None:
    def see(server: Server) -> Any:
        found: list[Any] = []
        with Wire(server.address) as wire, _device(server) as device:
            sid = wire.subscribe(">")
            wire.ping()
            for topic in TOPICS:
                device.send(publish(topic, b"x"))
                device.ping()
                wire.ping()
                mine = [frame for frame in wire.waiting if frame.sid == sid and not frame.subject.startswith("$")]
                found.append([topic, [frame.subject for frame in mine]])
                wire.waiting.clear()
        return found

    agree(see, config=_config())


@pytest.mark.parametrize("topic", ["a b", "a\tb", "a\x7f", "a/+", "#", "a/#/b"])
def test_topics_without_subject_end_the_connection(agree: Agree, topic: str) -> None:
    def see(server: Server) -> Any:
        with _device(server) as device:
            device.send(publish(topic, b"x"))
            return [device.connack, device.rest()]

    agree(see, config=_config())


SUBJECTS = ["a", "a.b", "/.a", "a./.b", "a//b", "/", "a/b", "a.b/", "x./y", "a.é"]


def test_subjects_are_topics(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with Wire(server.address) as wire, _device(server) as device:
            device.subscribe(("#", 0))
            for subject in SUBJECTS:
                wire.publish(subject, b"x")
            return device.many(len(SUBJECTS))

    agree(see, config=_config())


FILTERS = [
    "a",
    "a/b",
    "a/+",
    "+",
    "+/b",
    "#",
    "a/#",
    "a/b/#",
    "/#",
    "/+",
    "+/+",
    "a/+/c",
    "a//b",
    "+/#",
    "$S/#",
    "$S/x",
]
NAMES = ["a", "a/b", "a/b/c", "/a", "a//b", "b", "$S/x", "$S"]


@pytest.mark.parametrize("qos", [0, 1])
def test_filters_match(agree: Agree, qos: int) -> None:
    def see(server: Server) -> Any:
        found: list[Any] = []
        with _device(server, "sender") as sender:
            for number, name in enumerate(FILTERS):
                with _device(server, f"dev{number}") as device:
                    code = device.subscribe((name, qos))
                    for topic in NAMES:
                        _sent(sender, topic, b"x", qos)
                    _sent(sender, "end", b"x", qos)
                    device.send(subscribe(2, ("end", qos)))
                    device.until("SUBACK")
                    _sent(sender, "end", b"last", qos)
                    got = [line.split()[1] for line in _until_last(device)]
                    found.append([name, code, sorted(got)])
        return found

    agree(see, config=_config())


def _until_last(device: Device) -> list[str]:
    """Return messages to before the one with the payload `last`, each one acknowledged."""
    found: list[str] = []
    while "b'last'" not in (line := device.next()):
        found.append(line)
    if "qos=0" not in line:  # from a consumer of its own: those of others may come later
        found += [each for each in device.ping() if "b'last'" not in each]
    return found


# ---------------------------------------------------------------------- QoS
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_quality_of_service(agree: Agree, qos: int, granted: int) -> None:
    def see(server: Server) -> Any:
        with _device(server) as device, _device(server, "sender") as sender:
            found = [device.subscribe(("a", granted))]
            _sent(sender, "a", b"x", qos, 7)
            found.append(device.next())
            if min(qos, granted) == 1:
                device.send(answer(PUBACK, 1))
            elif min(qos, granted) == 2:
                found.append(device.told(answer(PUBREC, 1), "PUBREL"))
                device.send(answer(PUBCOMP, 1))
            _sent(sender, "a", b"y", qos, 8)
            return [*found, device.next(), device.ping()]

    agree(see, config=_config())


def test_a_message_with_qos_2_is_published_once(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with Wire(server.address) as wire, _device(server) as device:
            sid = wire.subscribe("a")
            wire.ping()
            found: list[Any] = []
            for payload, dup in ((b"x", False), (b"x", True)):
                found.append(device.told(publish("a", payload, 2, 5, dup=dup), "PUBREC"))
            found.append([frame for frame in wire.ping() if frame.sid == sid])
            found += [device.told(answer(PUBREL, 5), "PUBCOMP") for _ in range(2)]
            found.append(wire.delivered(sid).data.decode())
            found.append(device.told(publish("a", b"y", 2, 5), "PUBREC"))
            found.append(device.told(answer(PUBREL, 5), "PUBCOMP"))
            found.append(wire.delivered(sid).data.decode())
            found.append(len([frame for frame in wire.ping() if frame.sid == sid]))
            return found

    agree(see, config=_config())


def test_answers_keep_their_order(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with _device(server) as device:
            device.send(*(publish("a", b"x", 1 + number % 2, number) for number in range(1, 50)), mqtt.PING)
            found = device.many(50)
            found.remove("PINGRESP")
            return found

    agree(see, config=_config())


def test_packets_of_many_devices_come_byte_by_byte(agree: Agree) -> None:
    def see(server: Server) -> Any:
        said = publish("a", b"x" * 20, 1, 7) + mqtt.PING
        devices = {Device(_address(server)): connect(f"dev{number:02}") + said for number in range(30)}
        for each in range(max(map(len, devices.values()))):
            for device, packets in devices.items():
                device.send(packets[each : each + 1])
        found = [device.many(3) for device in devices]
        for device in devices:
            device.close()
        return found

    agree(see, config=_config())


def test_unacknowledged_messages_come_again(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with _device(server) as device, _device(server, "sender") as sender:
            device.subscribe(("a", 2))
            _sent(sender, "a", b"one", 1)
            _sent(sender, "a", b"two", 2)
            found = [_sorted(device, 2), _sorted(device, 2)]
            device.send(answer(PUBACK, 1))
            found.append([device.told(answer(PUBREC, 2), "PUBREL"), device.told(b"", "PUBREL")])
            device.send(answer(PUBCOMP, 2))
            return [*found, device.ping()]

    agree(see, config=_config("ack_wait: 1s"))


def test_a_client_gets_so_many_without_ack(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with _device(server) as device, _device(server, "sender") as sender:
            device.subscribe(("a", 1))
            for number in range(1, 6):
                _sent(sender, "a", b"%d" % number, 1, number)
            found = device.many(2)
            found += device.ping()
            device.send(answer(PUBACK, 1))
            found.append(device.next())
            device.send(answer(PUBACK, 2), answer(PUBACK, 3))
            return found + device.many(2)

    agree(see, config=_config("max_ack_pending: 2"))


def test_the_sum_of_limits_is_below_the_number_of_ids(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with _device(server) as device:
            return [device.subscribe((name, 1)) for name in ("a", "b", "c/#", "d")]

    agree(see, config=_config("max_ack_pending: 30000"))


@pytest.mark.parametrize("inside", ["reject_qos2_publish: true", "downgrade_qos2_subscribe: true"])
def test_without_qos_2(agree: Agree, inside: str) -> None:
    def see(server: Server) -> Any:
        with _device(server) as device, _device(server, "other") as other:
            found = [device.subscribe(("a", 2)), _device(server, "w", will=("a", b"", 2, False)).connack]
            other.send(publish("a", b"x", 2, 1))
            return [*found, other.next()]

    agree(see, config=_config(inside))


# ---------------------------------------------------------------------- subscriptions
def test_subscribing_again_changes_the_qos(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with _device(server) as device, _device(server, "sender") as sender:
            found: list[Any] = []
            for qos in (0, 2, 1, 0):
                found.append(device.subscribe(("a", qos)))
                _sent(sender, "a", b"x", 1)
                found += _without_ids([device.next()])
            return found

    agree(see, config=_config())


def test_unsubscribed_filters_bring_nothing(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with _device(server) as device, _device(server, "sender") as sender:
            found = [device.subscribe(("a/#", 1), ("b", 0), ("c", 1))]
            found.append(device.told(unsubscribe(9, "a/#", "b", "nothing"), "UNSUBACK"))
            for topic in ("a", "a/b", "b", "c"):
                _sent(sender, topic, b"x", 1)
            return [*found, device.next(), device.ping()]

    agree(see, config=_config())


def test_several_subscriptions_each_bring_the_message(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with _device(server) as device, _device(server, "sender") as sender:
            device.subscribe(("a/+", 0), ("a/b", 1), ("#", 2))
            _sent(sender, "a/b", b"x", 2)
            return sorted(_without_ids(device.many(3)))

    agree(see, config=_config())


@pytest.mark.parametrize("name", ["$MQTT/msgs/#", "$MQTT/x", "#/a", "a b", "a/#/b"])
def test_refused_filters(agree: Agree, name: str) -> None:
    agree(lambda server: _device(server).subscribe((name, 1), ("ok", 0)), config=_config())


# ---------------------------------------------------------------------- sessions
def test_a_session_outlives_its_connection(agree: Agree) -> None:
    def see(server: Server) -> Any:
        device = _device(server, clean=False)
        found: list[Any] = [device.connack, device.subscribe(("a/#", 1), ("b", 2), ("c", 0))]
        device.leave()
        with _device(server, "sender") as sender:
            for topic in ("a/x", "b", "c"):
                _sent(sender, topic, topic.encode(), 1)
        device = _device(server, clean=False)
        found += [device.connack, sorted(_without_ids(device.many(2)))]
        device.leave()
        device = _device(server, clean=True)
        found += [device.connack, device.ping()]
        device.leave()
        device = _device(server, clean=False)
        return [*found, device.connack, device.ping()]

    agree(see, config=_config())


def test_a_clean_session_ends_with_its_connection(agree: Agree) -> None:
    def see(server: Server) -> Any:
        device = _device(server)
        device.subscribe(("a", 1))
        device.leave()
        with Wire(server.address) as wire:

            def consumers() -> Any:
                total = wire.api("STREAM.INFO.$MQTT_msgs")["state"]["consumer_count"]
                left = wire.api("STREAM.INFO.$MQTT_sess")["state"]["messages"]
                return [total, left] == [0, 0]

            wait("the end of the session", consumers)
        return _device(server, clean=False).connack

    agree(see, config=_config())


def test_a_session_is_taken_over(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with _device(server, "watch") as watch:
            watch.subscribe(("will", 0))
            first = _device(server, clean=False, will=("will", b"x", 0, False))
            first.subscribe(("a", 1))
            with _device(server, clean=False) as second:
                found = [first.connack, first.rest(), second.connack]
                _sent(watch, "a", b"x", 1)
                return [*found, second.next(), watch.ping()]

    agree(see, config=_config())


def test_clients_that_take_over_in_turn_are_held_up(agree: Agree) -> None:
    def see(server: Server) -> Any:
        first, second = _device(server), _device(server)
        began = time.monotonic()
        third = _device(server)
        took = time.monotonic() - began
        return [first.rest(), second.connack, third.connack, took > 0.9, second.ping()]

    agree(see, config=_config())


def test_a_session_has_its_consumers_after_a_restart(agree: Agree) -> None:
    def see(server: Server) -> Any:
        device = _device(server, clean=False)
        device.subscribe(("a", 1))
        device.leave()
        server.stop()
        server.start()
        with _device(server, "sender") as sender:
            _sent(sender, "a", b"x", 1)
        device = _device(server, clean=False)
        return [device.connack, device.next()]

    agree(see, config=_config())


# ---------------------------------------------------------------------- retained messages
def test_retained_messages(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with _device(server, "sender") as sender, Wire(server.address) as wire:
            for qos in (0, 1, 2):
                _sent(sender, f"r/{qos}", b"%d" % qos, qos, qos + 1, retain=True)
            _sent(sender, "r", b"top", 1, retain=True)
            wait("the messages", lambda: wire.api("STREAM.INFO.$MQTT_rmsgs")["state"]["messages"] == 4)
            found: list[Any] = []
            for number, (name, qos) in enumerate([("r/+", 2), ("r/#", 1), ("r/1", 0), ("#", 0), ("x", 0)]):
                with _device(server, f"dev{number}") as device:
                    found.append([device.subscribe((name, qos)), sorted(_without_ids(device.ping()))])
            with _device(server, "live") as device:
                device.subscribe(("r/1", 1))
                device.next()
                _sent(sender, "r/1", b"", 1, retain=True)
                found += _without_ids([device.next()])
            _sent(sender, "r/2", b"new", 1, retain=True)
            wait("the removal", lambda: wire.api("STREAM.INFO.$MQTT_rmsgs")["state"]["messages"] == 3)
            with _device(server, "again") as device:
                found.append([device.subscribe(("r/+", 1)), sorted(_without_ids(device.ping()))])
                found.append([device.subscribe(("r/+", 1)), len(device.ping())])
            return found

    agree(see, config=_config())


# ---------------------------------------------------------------------- wills, keep-alive
@pytest.mark.parametrize("how", ["cut", "leave", "wrong", "silent"])
def test_wills(agree: Agree, how: str) -> None:
    def see(server: Server) -> Any:
        with _device(server, "watch") as watch:
            watch.subscribe(("will/#", 2))
            for qos in (0, 1, 2):
                keep_alive = 1 if how == "silent" else 0
                will = (f"will/{qos}", b"gone", qos, False)
                device = _device(server, f"dev{qos}", will=will, keep_alive=keep_alive)
                if how == "leave":
                    device.leave()
                elif how == "wrong":
                    device.send(b"\xf0\0")
                    device.rest()
                elif how == "silent":
                    device.rest()
                else:
                    device.close()
            if how == "leave":
                return watch.ping()
            return sorted(_without_ids(watch.many(3)))

    agree(see, config=_config())


def test_a_will_may_be_retained(agree: Agree) -> None:
    def see(server: Server) -> Any:
        _device(server, will=("w", b"gone", 1, True)).close()
        with Wire(server.address) as wire:
            wait("the will", lambda: wire.api("STREAM.INFO.$MQTT_rmsgs")["state"].get("messages") == 1)
        with _device(server, "watch") as watch:
            return [watch.subscribe(("w", 0)), watch.ping()]

    agree(see, config=_config())


def test_a_client_that_pings_stays(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with _device(server, keep_alive=1) as device:
            until = time.monotonic() + 2.5
            while time.monotonic() < until:
                device.ping()
            return device.ping()

    agree(see, config=_config())


# ---------------------------------------------------------------------- wrong input
FIRST_PACKETS = {
    "ping": mqtt.PING,
    "publish": publish("a", b"x"),
    "old": connect("c", name="MQIsdp", level=3),
    "version_5": mqtt.packet(1, mqtt.text("MQTT") + b"\5\2\0\0\0" + mqtt.text("c")),
    "level_3": connect("c", level=3),
    "name": connect("c", name="mqtt"),
    "reserved": connect("c", flags=1),
    "will_qos_without_will": connect("c", flags=8),
    "will_retain_without_will": connect("c", flags=32),
    "will_qos_3": connect("c", will=("a", b"", 3, False)),
    "will_wildcard": connect("c", will=("a/#", b"", 0, False)),
    "will_empty": connect("c", will=("", b"", 0, False)),
    "password_without_user": connect("c", password="p"),
    "empty_id": connect(""),
    "empty_id_not_clean": connect("", clean=False),
    "id_with_blank": connect("a b"),
    "id_with_dot": connect("a.b"),
    "id_with_slash": connect("a/b"),
    "id_not_utf8": connect(b"\xff"),
    "long_id": connect("x" * 300),
    "empty_user": connect("c", user=""),
    "user_not_utf8": connect("c", user=b"\xff"),
    "short": b"\x10\x02\0\4",
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "flags": b"\x11" + connect("c")[1:],
}


@pytest.mark.parametrize("name", FIRST_PACKETS)
def test_first_packets(agree: Agree, name: str) -> None:
    def see(server: Server) -> Any:
        with Device(_address(server)) as device:
            device.send(FIRST_PACKETS[name])
            if not (found := device.next()).startswith("CONNACK present=0 code=0"):
                return [found, *(device.rest() if found != "closed" else ())]
            return [found, device.ping()]

    agree(see, config=_config())


LATER_PACKETS = {
    "connect": connect("c"),
    "unknown": b"\xf0\0",
    "connack": b"\x20\2\0\0",
    "qos_3": mqtt.packet(3, mqtt.text("a") + b"\0\1x", 6),
    "empty_topic": publish("", b"x"),
    "topic_not_utf8": publish(b"\xff", b"x"),
    "topic_with_nul": publish("a\0", b"x"),
    "id_0": publish("a", b"x", 1, 0),
    "puback_0": answer(PUBACK, 0),
    "puback_unknown": answer(PUBACK, 99),
    "pubrec_unknown": answer(PUBREC, 99),
    "pubcomp_unknown": answer(PUBCOMP, 99),
    "pubrel_flags": mqtt.packet(PUBREL, b"\0\1"),
    "puback_long": mqtt.packet(PUBACK, b"\0\1\0"),
    "ping_long": mqtt.packet(12, b"\0"),
    "subscribe_flags": mqtt.packet(8, b"\0\1" + mqtt.text("a") + b"\0"),
    "subscribe_nothing": mqtt.packet(8, b"\0\1", 2),
    "subscribe_qos_3": subscribe(1, ("a", 3)),
    "subscribe_empty": subscribe(1, ("", 0)),
    "subscribe_id_0": subscribe(0, ("a", 0)),
    "unsubscribe_nothing": unsubscribe(1),
    "length": b"\x30\xff\xff\xff\xff\x7f",
    "too_large": publish("a", bytes(2000)),
    "almost_too_large": publish("a", bytes(900)),
}


@pytest.mark.parametrize("name", LATER_PACKETS)
def test_later_packets(agree: Agree, name: str) -> None:
    def see(server: Server) -> Any:
        with _device(server) as device:
            device.send(LATER_PACKETS[name], mqtt.PING)
            found: list[str] = []
            while (line := device.next()) not in ("closed", "PINGRESP"):
                found.append(line)
            return [found, line]

    agree(see, config=_config(more="max_payload: 1000"))


def test_a_client_without_connect_is_closed_in_time(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with Device(_address(server)) as device:
            return device.rest()

    agree(see, config=_config("authorization { user: u, password: p, timeout: 0.5 }"))


# ---------------------------------------------------------------------- logins
def _logins(server: Server, *logins: tuple[str | None, str | None]) -> list[Any]:
    return [
        _device(server, f"c{at}", user=user, password=password).connack for at, (user, password) in enumerate(logins)
    ]


@pytest.mark.parametrize(
    ("inside", "more"),
    [
        ("", ""),
        ("", "authorization { user: ann, password: p }"),
        ("", 'authorization { token: "p" }'),
        ("authorization { user: ann, password: p }", ""),
        ('authorization { token: "p" }', "authorization { user: bob, password: q }"),
        ("authorization { user: ann, password: p }", "authorization { user: bob, password: p }"),
        ("no_auth_user: ann", USERS),
        ("", USERS),
        ("", f"no_auth_user: ann\n{USERS}"),
        ("no_auth_user: bob", f"no_auth_user: ann\n{USERS}"),
    ],
    ids=["open", "user", "token", "own_user", "own_token", "other_user", "no_auth", "users", "no_auth_above", "both"],
)
def test_logins(agree: Agree, inside: str, more: str) -> None:
    names: list[tuple[str | None, str | None]] = [
        (None, None),
        ("ann", "p"),
        ("ann", "wrong"),
        ("bob", "p"),
        ("x", "p"),
    ]
    names += [("ann", None), ("tcp", "p"), ("dev", "p"), ("web", "p")]
    agree(lambda server: _logins(server, *names), config=_config(inside, more))


OPERATOR = Operator()


@pytest.mark.parametrize(
    "token",
    [
        OPERATOR.user_token(bearer_token=True),
        OPERATOR.token,
        OPERATOR.user_token(bearer_token=True, allowed_connection_types=["STANDARD"]),
        OPERATOR.user_token(bearer_token=True, allowed_connection_types=["MQTT"]),
        "garbage",
        None,
    ],
    ids=["bearer", "unsigned", "for_tcp", "for_mqtt", "garbage", "none"],
)
def test_tokens_in_the_password(agree: Agree, token: str | None) -> None:
    def see(server: Server) -> Any:
        return _device(server, user="any" if token is not None else None, password=token).connack

    agree(see, config=_config(more=OPERATOR.config))


def test_permissions(agree: Agree) -> None:
    def see(server: Server) -> Any:
        bob = {"user": "bob", "password": "p"}
        with _device(server, **bob) as device, _device(server, "ann", user="ann", password="p") as ann:
            ann.subscribe(("no/#", 1), ("yes", 1))
            found = [device.subscribe(("no/x", 1), ("no/#", 0), ("half/+", 1), ("half/#", 0), ("yes", 2))]
            for topic, qos in (("no/x", 0), ("no/x", 1), ("no/x", 2), ("yes", 1)):
                _sent(device, topic, b"x", qos, qos + 1)
            found.append(_without_ids([ann.next()])[0])
            for topic in ("half/a", "half/b"):
                _sent(ann, topic, b"x", 1)
            return [*found, sorted(set(_without_ids([line for line in device.ping() if "PUBLISH" in line])))]

    agree(see, config=_config(more=USERS))


ACCOUNTS = """accounts {
  A { jetstream: enabled, users: [{user: a, password: p}], exports: [{stream: "s.>"}] }
  B { jetstream: enabled, users: [{user: b, password: p}], imports: [{stream: {account: A, subject: "s.>"}}] }
  C { users: [{user: c, password: p}] }
}
"""


def test_accounts_are_apart(agree: Agree) -> None:
    def see(server: Server) -> Any:
        a = _device(server, user="a", password="p")
        b = _device(server, user="b", password="p")
        for device in (a, b):
            device.subscribe(("x", 0), ("s/#", 0))
        a.send(publish("x", b"of a"), publish("s/1", b"exported"))
        b.send(publish("x", b"of b"))
        found = [a.ping(), sorted([b.next(), b.next()]), b.ping()]
        c = Device(_address(server))
        c.send(connect("c", user="c", password="p"))
        return [*found, c.next()]

    agree(see, config=_config(more=ACCOUNTS))


# ---------------------------------------------------------------------- JetStream beneath
def test_streams_and_consumers(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with _device(server, clean=False, user="u") as device, Wire(server.address) as wire:
            device.subscribe(("a/#", 1), ("b", 2))
            found: dict[str, Any] = {}
            for name in ("msgs", "sess", "rmsgs", "qos2in", "out"):
                config = wire.api(f"STREAM.INFO.$MQTT_{name}")["config"]
                config["metadata"] = {}
                found[name] = config
            for name in ("msgs", "out"):
                consumers = wire.api(f"CONSUMER.LIST.$MQTT_{name}")["consumers"]
                found[f"consumers of {name}"] = sorted(_consumer(each["config"]) for each in consumers)
            record = wire.api("STREAM.MSG.GET.$MQTT_sess", {"last_by_subj": "$MQTT.sess.>"})["message"]
            found["subject"] = record["subject"]
            return found

    agree(see, config=_config())


def _consumer(config: dict[str, Any]) -> list[Any]:
    names = (
        "filter_subject",
        "deliver_policy",
        "ack_policy",
        "ack_wait",
        "max_ack_pending",
        "replay_policy",
        "max_deliver",
    )
    return [config.get(name) for name in names] + [config["durable_name"].rpartition("_")[0]]


def test_messages_of_both_protocols_in_a_stream(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with _device(server) as device, Wire(server.address) as wire:
            wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "retention": "limits", "storage": "file"})
            for qos in (0, 1, 2):
                _sent(device, f"s/{qos}", b"%d" % qos, qos, 1)
            wait("the messages", lambda: wire.api("STREAM.INFO.S")["state"]["messages"] == 3)
            found = [wire.api("STREAM.MSG.GET.S", {"seq": seq})["message"] for seq in (1, 2, 3)]
            return [[each["subject"], each["data"], each.get("hdrs")] for each in found]

    agree(see, config=_config())


# ---------------------------------------------------------------------- transports, monitoring
FILES = f'cert_file: "{PLACE}/server.pem", key_file: "{PLACE}/server.key"'


def test_clients_over_tls(agree: Agree) -> None:
    def see(server: Server) -> Any:
        secure = Secure(client_context(server.certificates, ""))
        with Device(_address(server), connect("c"), secure=secure) as device:
            found = [device.connack, device.subscribe(("a", 1))]
            device.send(publish("a", b"x", 1, 1))
            found.append(sorted(device.many(2)))
        plain = Device(_address(server))
        plain.send(connect("c"))
        try:
            return [*found, plain.next() == "closed"]
        except (WireTimeout, KeyError):  # bytes of TLS
            return [*found, True]

    agree(see, config=_config(f"tls {{ {FILES} }}"))


def test_users_of_certificates(agree: Agree) -> None:
    def see(server: Server) -> Any:
        secure = Secure(client_context(server.certificates, "ann"))
        return Device(_address(server), connect("c"), secure=secure).connack

    inside = f'tls {{ {FILES}, verify_and_map: true, ca_file: "{PLACE}/ca.pem" }}'
    agree(see, config=_config(inside, 'authorization { users: [{user: "ann@example.com"}] }'))


def test_clients_over_websocket(agree: Agree) -> None:
    def see(server: Server) -> Any:
        opened = WebSocket(
            (server.host, server.websocket_port), {"Sec-WebSocket-Protocol": "mqtt"}, line="GET /mqtt HTTP/1.1"
        )
        fields = {name.lower(): value for name, value in opened.response.fields}
        with Device(_address(server), connect("c"), opened=opened) as device:
            found: list[Any] = [fields.get("sec-websocket-protocol"), device.connack, device.subscribe(("a", 1))]
            device.send(publish("a", bytes(70_000), 1, 1))
            found.append(sorted(len(line) for line in device.many(2)))
            shown = server.page("/connz?mqtt_client=c&auth=1")["connections"]
            return [*found, [each["type"] for each in shown]]

    agree(see, config=_config(more='websocket { listen: "127.0.0.1:-1", no_tls: true }'))


@pytest.mark.parametrize(("user", "over"), [("dev", "tcp"), ("dev", "web"), ("web", "tcp"), ("web", "web")])
def test_connection_types(agree: Agree, user: str, over: str) -> None:
    def see(server: Server) -> Any:
        opened = None
        if over == "web":
            opened = WebSocket((server.host, server.websocket_port), line="GET /mqtt HTTP/1.1")
        return Device(_address(server), connect("c", user=user, password="p"), opened=opened).connack

    agree(see, config=_config(more=f'{USERS}\nwebsocket {{ listen: "127.0.0.1:-1", no_tls: true }}'))


def test_monitoring(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with _device(server, user="ann", password="p") as device, Wire(server.address, {"user": "ann", "pass": "p"}):
            device.subscribe(("a/#", 1))
            device.send(publish("x", b"four"))
            device.ping()
            found: list[Any] = [{**server.page("/varz")["mqtt"], "port": 0}]
            for query in ("mqtt_client=dev", "mqtt_client=none", "auth=1"):
                shown = server.page(f"/connz?{query}")["connections"]
                names = ("kind", "type", "mqtt_client", "in_msgs", "authorized_user")
                found.append([[each.get(name) for name in names] for each in shown])
            return found

    agree(see, config=_config("no_auth_user: ann, max_ack_pending: 5, ack_wait: 9s", USERS))
