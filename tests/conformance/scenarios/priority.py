"""Scenarios of priority groups of pull consumers: requests, order, pins, advisories (docs/internals/consumers.md)."""

from __future__ import annotations

import json
from typing import Any

from tests.conformance.harness import Script, scenario, table
from tests.wire import Frame, Wire, WireTimeout

MS = 1_000_000
SECOND = 1000 * MS
SHORT = SECOND // 5
POLICIES = ("none", "overflow", "pinned_client", "prioritized")
IN_GROUP = {"batch": 1, "no_wait": True, "group": "g"}


def _grouped(policy: str, **config: Any) -> dict[str, Any]:
    group = {} if policy == "none" else {"priority_groups": ["g"], "priority_policy": policy}
    return group | config


def _stage(t: Script, policy: str, messages: int = 0, **config: Any) -> None:
    t.stream("S", ["a.*"])
    t.consumer("S", "c", **_grouped(policy, **config))
    if messages:
        t.fill_seen("S", "c", ["a.1"] * messages)


def _shown(t: Script, frame: Frame) -> Any:
    """Return a frame without the random part of its pin id."""
    pin = frame.headers.get("Nats-Pin-Id") if frame.header else None
    if pin:
        t.hide(pin, "<pin>")
    return t.show(frame)


class Asker:
    """Named pull requests on one connection, with the answers to each."""

    def __init__(self, t: Script, consumer: str = "c") -> None:
        self.t, self.consumer = t, consumer
        self.wire = t.connect()
        self.names: dict[str, str] = {}

    def ask(self, name: str, body: Any = None, *, group: str = "g") -> None:
        """Send a pull request, for group `g` unless the body names a group."""
        self.names[self.wire.subscribe(f"r.{name}")] = name
        data = body if isinstance(body, bytes) else json.dumps({"group": group, **(body or {})}).encode()
        self.wire.publish(f"$JS.API.CONSUMER.MSG.NEXT.S.{self.consumer}", data, f"r.{name}")

    def waiting(self, count: int) -> None:
        """Wait until `count` requests are in the queue."""
        self.t.numbers_when("S", self.consumer, lambda info: info["num_waiting"] == count)

    def got(self, label: str, count: int) -> list[Frame]:
        """Record the next frames with the requests that they answer."""
        frames: list[Frame] = []
        shown = []
        for _ in range(count):
            try:
                frame = self.wire.next(lambda frame: frame.sid in self.names)
            except WireTimeout:
                shown.append("MISSING")
                break
            frames.append(frame)
            what = _shown(self.t, frame)
            if frame.reply:  # its rest depends on the requests that had arrived
                what["reply"] = what["reply"].rsplit(".", 1)[0]
            shown.append((self.names[frame.sid], what))
        self.t.note(label, shown)
        return frames

    def order(self, label: str, count: int) -> None:
        """Record the requests that the next frames answer, with the sequence or the status."""
        shown = []
        for _ in range(count):
            frame = self.wire.next(lambda frame: frame.sid in self.names)
            what = frame.reply.split(".")[5] if frame.reply else str(frame.status)
            shown.append(f"{self.names[frame.sid]}: {what}")
        self.t.note(label, shown)

    def nothing(self, label: str) -> None:
        """Record that there were no further frames."""
        self.t.note(label, [self.t.show(frame) for frame in self.wire.ping()])


def _pin_of(t: Script, consumer: str = "c") -> str:
    [group] = t.wire.api(f"CONSUMER.INFO.S.{consumer}")["priority_groups"]
    return str(group.get("pinned_client_id", ""))


def _pinned(t: Script, asker: Asker, name: str = "first") -> str:
    """Pin a client with a request for one message; return the pin id."""
    asker.ask(name, {"batch": 1})
    [frame] = asker.got(f"{name} is pinned", 1)
    return frame.headers.get("Nats-Pin-Id", "")


# ---------------------------------------------------------------------------------------------------- requests
BODIES: list[tuple[str, Any]] = [
    ("empty", b""),
    ("number", b"1"),
    ("text", b"one"),
    ("no_group", {"batch": 1, "no_wait": True}),
    ("empty_group", IN_GROUP | {"group": ""}),
    ("other_group", IN_GROUP | {"group": "x"}),
    ("group", IN_GROUP),
    ("id", IN_GROUP | {"id": "x"}),
    ("id_without_group", {"batch": 1, "no_wait": True, "id": "x"}),
    ("min_pending", IN_GROUP | {"min_pending": 1}),
    ("min_pending_negative", IN_GROUP | {"min_pending": -1}),
    ("min_pending_too_many", IN_GROUP | {"min_pending": 6}),
    ("min_pending_without_group", {"batch": 1, "no_wait": True, "min_pending": 1}),
    ("min_ack_pending", IN_GROUP | {"min_ack_pending": 1}),
    ("min_ack_pending_negative", IN_GROUP | {"min_ack_pending": -1}),
    ("priority", IN_GROUP | {"priority": 9}),
    ("priority_too_large", IN_GROUP | {"priority": 10}),
    ("priority_negative", IN_GROUP | {"priority": -1}),
    ("priority_without_group", {"batch": 1, "no_wait": True, "priority": 3}),
    ("everything_wrong", {"batch": 1, "min_pending": 1, "id": "x", "priority": 10, "group": "zz"}),
    ("cap_before_range", {"batch": 9, "priority": 10}),
    ("range_before_group", {"batch": 1, "priority": 10, "group": "zz"}),
    ("heartbeat_before_group", {"batch": 1, "expires": SHORT, "idle_heartbeat": SHORT, "group": "zz"}),
    ("cap_before_group", {"batch": 9, "group": "zz"}),
    ("cap_before_pin", {"batch": 9, "group": "g", "id": "zz"}),
]


@table([(f"{policy}-{name}", policy, body) for policy in POLICIES for name, body in BODIES])
def request(t: Script, policy: str, body: Any) -> None:
    _stage(t, policy, 5, max_batch=5)
    [frame] = _quietly(t, body)
    t.note("answer", _shown(t, frame))
    t.note("then", _numbers(t))


def _quietly(t: Script, body: Any) -> list[Frame]:
    wire = t.wire
    reply = wire.new_reply()
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", data, reply)
    return t.collect(wire, 1)


def _numbers(t: Script) -> Any:
    info = t.wire.api("CONSUMER.INFO.S.c")
    kept = ("num_ack_pending", "num_waiting", "num_pending", "priority_groups", "delivered")
    return {key: value for key, value in info.items() if key in kept}


@table(
    [("next", b"+NXT"), ("next_number", b"+NXT 1"), ("next_group", b'+NXT {"group":"g"}'), ("next_json", b"+NXT {}")]
)
def ack_and_next(t: Script, body: bytes) -> None:
    _stage(t, "pinned_client", 3)
    asker = Asker(t)
    asker.ask("first")
    [frame] = asker.got("first", 1)
    t.setup("CONSUMER.UNPIN.S.c", {"group": "g"})
    asker.names[asker.wire.subscribe("next")] = "next"
    asker.wire.publish(frame.reply, body, "next")
    asker.got("next", 1)


# ---------------------------------------------------------------------------------------------------- INFO
@table([(policy, policy) for policy in POLICIES[1:]])
def groups_in_answers(t: Script, policy: str) -> None:
    t.stream("S", ["a.*"])
    config = {"durable_name": "c", "ack_policy": "explicit", **_grouped(policy)}
    t.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    t.api("CONSUMER.INFO.S.c")
    t.api("CONSUMER.LIST.S")
    t.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config | {"priority_groups": ["h", "g"]}})
    t.api("CONSUMER.RESET.S.c", {})
    t.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit"}})
    t.api("CONSUMER.INFO.S.c")


# ---------------------------------------------------------------------------------------------------- overflow
# Each row: the request, its number of answers (with five messages, two of them unacked), and of requests left.
@table(
    [
        ("min_pending_of_all", {"min_pending": 3}, 2),
        ("min_pending_of_more", {"min_pending": 4}, 1),
        ("min_pending_of_one", {"min_pending": 1}, 4),
        ("min_ack_pending_reached", {"min_ack_pending": 2}, 4),
        ("min_ack_pending_not_reached", {"min_ack_pending": 3}, 1),
        ("one_of_both", {"min_pending": 9, "min_ack_pending": 1}, 4),
        ("none_of_both", {"min_pending": 9, "min_ack_pending": 9}, 1),
        ("acks_come_with_deliveries", {"min_pending": 3, "min_ack_pending": 3}, 4),
        ("negative", {"min_pending": -5}, 4),
        ("neither", {}, 4),
    ]
)
def overflow(t: Script, body: dict[str, Any], answers: int) -> None:
    _stage(t, "overflow", 5)
    asker = Asker(t)
    asker.ask("before", {"batch": 2})
    asker.got("two are unacked", 2)
    asker.ask("it", {"batch": 10, "expires": SHORT, **body})
    asker.got("served", answers)
    t.note("then", _numbers(t))


@table(
    [
        ("nothing", 0, {"batch": 2, "no_wait": True}, 1),
        ("closed", 3, {"batch": 2, "no_wait": True, "min_pending": 9}, 1),
        ("partly", 3, {"batch": 5, "no_wait": True, "min_pending": 2}, 3),
        ("closed_with_expires", 3, {"batch": 2, "no_wait": True, "min_pending": 9, "expires": SHORT}, 1),
        ("partly_with_expires", 3, {"batch": 5, "no_wait": True, "min_pending": 2, "expires": SHORT}, 3),
        ("max_bytes", 3, {"batch": 3, "max_bytes": 60, "min_pending": 1, "expires": SHORT}, 2),
    ]
)
def overflow_no_wait(t: Script, messages: int, body: dict[str, Any], answers: int) -> None:
    _stage(t, "overflow", messages)
    asker = Asker(t)
    asker.ask("it", body)
    asker.got("answers", answers)
    t.note("then", _numbers(t))


@scenario
def overflow_steps_over(t: Script) -> None:
    _stage(t, "overflow")
    asker = Asker(t)
    for name, least in (("three", 3), ("any", 0), ("two", 2)):
        asker.ask(name, {"batch": 3, "min_pending": least})
    asker.waiting(3)
    t.fill_seen("S", "c", ["a.1"])
    asker.order("one", 1)
    t.fill(["a.1"])
    asker.order("another", 1)
    t.note("then", _numbers(t))


@scenario
def overflow_opens_when_enough_is_pending(t: Script) -> None:
    _stage(t, "overflow", 2)
    asker = Asker(t)
    asker.ask("three", {"batch": 3, "min_pending": 3})
    asker.waiting(1)
    asker.nothing("two are too few")
    t.fill(["a.1"])
    asker.got("the third opens it", 1)
    t.note("then", _numbers(t))


@scenario
def overflow_opens_when_enough_is_unacked(t: Script) -> None:
    _stage(t, "overflow", 4)
    asker = Asker(t)
    asker.ask("gated", {"batch": 2, "min_ack_pending": 2})
    asker.waiting(1)
    asker.ask("any", {"batch": 2})
    asker.order("all", 4)
    t.note("then", _numbers(t))


@scenario
def overflow_gates_redeliveries(t: Script) -> None:
    _stage(t, "overflow", 2, ack_wait=SECOND // 4)
    asker = Asker(t)
    asker.ask("first", {"batch": 2})
    asker.got("first", 2)
    asker.ask("closed", {"batch": 2, "min_pending": 100, "expires": SECOND // 2})
    asker.got("closed", 1)
    asker.ask("open", {"batch": 2, "min_ack_pending": 2})
    t.note("again", sorted(frame.reply.split(".")[5] for frame in (asker.wire.next(_delivery) for _ in range(2))))


def _delivery(frame: Frame) -> bool:
    return bool(frame.reply)


@scenario
def overflow_under_max_ack_pending(t: Script) -> None:
    _stage(t, "overflow", 4, max_ack_pending=2)
    asker = Asker(t)
    asker.ask("first", {"batch": 2})
    asker.got("first", 2)
    asker.ask("second", {"batch": 2, "min_ack_pending": 2, "expires": SHORT})
    asker.got("second", 1)


# ---------------------------------------------------------------------------------------------------- prioritized
# Each row: the priorities of requests for some messages each, the messages, and how many are delivered.
@table(
    [
        ("each_other", [5, 1], 1, 2),
        ("equals_take_turns", [1, 1], 2, 4),
        ("lowest_first", [9, 5, 0], 2, 6),
        ("groups_of_equals", [5, 1, 1, 0, 9, None], 3, 10),
        ("absent_is_zero", [1, None, 0], 2, 6),
        ("all_numbers", [9, 8, 7, 6, 5, 4, 3, 2, 1, 0], 1, 10),
        ("one_alone", [4], 5, 5),
    ]
)
def prioritized(t: Script, priorities: list[int | None], batch: int, messages: int) -> None:
    _stage(t, "prioritized")
    asker = Asker(t)
    for n, priority in enumerate(priorities):
        asker.ask(f"{n}p{priority}", {"batch": batch} | ({} if priority is None else {"priority": priority}))
    asker.waiting(len(priorities))
    t.fill(["a.1"] * messages)
    asker.order("dealt", messages)
    t.note("then", _numbers(t))


@scenario
def prioritized_without_a_group_is_last(t: Script) -> None:
    _stage(t, "prioritized")
    asker = Asker(t)
    for name, body in (("plain", b"2"), ("five", {"priority": 5}), ("empty", b""), ("nine", {"priority": 9})):
        asker.ask(name, body)
    asker.waiting(4)
    t.fill(["a.1"] * 5)
    asker.order("dealt", 5)


@scenario
def prioritized_a_better_one_comes_later(t: Script) -> None:
    _stage(t, "prioritized")
    asker = Asker(t)
    asker.ask("five", {"batch": 3, "priority": 5})
    asker.ask("two", {"batch": 3, "priority": 2})
    asker.waiting(2)
    t.fill(["a.1"])
    asker.order("the second", 1)
    asker.ask("zero", {"batch": 2})
    asker.waiting(3)
    t.fill(["a.1"] * 5)
    asker.order("the third, then the others", 5)


@scenario
def prioritized_ends_in_order(t: Script) -> None:
    _stage(t, "prioritized")
    asker = Asker(t)
    for name, priority in (("five", 5), ("one", 1), ("three", 3)):
        asker.ask(name, {"batch": 1, "priority": priority, "expires": 20 * SECOND})
    asker.waiting(3)
    t.setup("CONSUMER.DELETE.S.c")
    asker.order("told", 3)


@scenario
def prioritized_full_queue(t: Script) -> None:
    _stage(t, "prioritized", max_waiting=1)
    asker = Asker(t)
    asker.ask("nine", {"batch": 1, "priority": 9, "expires": 20 * SECOND})
    asker.waiting(1)
    asker.ask("zero", {"batch": 1, "expires": 20 * SECOND})
    asker.got("refused", 1)


@scenario
def priority_without_its_policy(t: Script) -> None:
    _stage(t, "none")
    asker = Asker(t)
    asker.ask("five", {"batch": 2, "priority": 5})
    asker.ask("zero", {"batch": 2, "priority": 0})
    asker.waiting(2)
    t.fill(["a.1"] * 4)
    asker.order("dealt", 4)


# ---------------------------------------------------------------------------------------------------- pinned client
@scenario
def pinned_client_gets_all(t: Script) -> None:
    _stage(t, "pinned_client", 6)
    asker = Asker(t)
    pin = _pinned(t, asker)
    t.note("then", _numbers(t))
    asker.ask("other", {"batch": 2})
    asker.waiting(1)
    asker.nothing("the other waits")
    asker.ask("wrong", {"batch": 1, "id": "wrong"})
    asker.got("another id", 1)
    asker.ask("again", {"batch": 1, "id": pin})
    asker.got("the pinned client", 1)
    asker.ask("no_wait", {"batch": 2, "no_wait": True, "id": pin})
    asker.got("the pinned client", 2)
    asker.ask("other_no_wait", {"batch": 1, "no_wait": True})
    asker.got("another does not wait", 1)
    asker.ask("other_expires", {"batch": 1, "expires": SHORT})
    asker.got("another waits in vain", 1)
    asker.ask("more", {"batch": 4, "no_wait": True, "id": pin})
    asker.got("to the end", 3)
    asker.ask("nothing", {"batch": 1, "no_wait": True, "id": pin})
    asker.got("nothing is left", 1)


@scenario
def pinned_clients_take_turns_with_one_pin(t: Script) -> None:
    _stage(t, "pinned_client", 1)
    asker = Asker(t)
    pin = _pinned(t, asker)
    asker.ask("other", {"batch": 1})
    asker.ask("one", {"batch": 2, "id": pin})
    asker.ask("two", {"batch": 2, "id": pin})
    asker.waiting(3)
    t.fill(["a.1"] * 4)
    asker.order("dealt", 4)
    t.note("then", _numbers(t))


@scenario
def no_pin_before_a_message(t: Script) -> None:
    _stage(t, "pinned_client")
    asker = Asker(t)
    asker.ask("first", {"batch": 1})
    asker.ask("second", {"batch": 1})
    asker.waiting(2)
    t.fill(["a.1"] * 2)
    asker.got("one of them", 1)
    t.note("then", _numbers(t))
    asker.nothing("the other waits")


@scenario
def an_id_that_nobody_gave(t: Script) -> None:
    _stage(t, "pinned_client")
    asker = Asker(t)
    asker.ask("unknown", {"batch": 2, "id": "abc"})
    asker.waiting(1)
    t.fill(["a.1"])
    asker.got("told when a message comes", 1)
    t.note("then", _numbers(t))
    asker.ask("first", {"batch": 1})
    asker.got("served", 1)


@table([("empty", b""), ("number", b"2"), ("text", b"two")])
def without_a_group(t: Script, body: bytes) -> None:
    _stage(t, "pinned_client", 2)
    asker = Asker(t)
    asker.ask("plain", body)
    asker.got("while nobody is pinned", 2 if body == b"2" else 1)
    t.note("then", _numbers(t))
    t.fill(["a.1"] * 2)
    _pinned(t, asker)
    asker.ask("later", body)
    asker.waiting(1)
    asker.nothing("while somebody is pinned")


@table([("plain", {}), ("headers_only", {"headers_only": True})])
def the_pins_header(t: Script, config: dict[str, Any]) -> None:
    _stage(t, "pinned_client", **config)
    asker = Asker(t)
    t.fill(["a.1"], b"abc", {"A": "1", "Bb": "xyz"})
    pin = _pinned(t, asker)
    t.fill(["a.1"], b"abc")
    asker.ask("next", {"batch": 1, "id": pin})
    asker.got("without headers of its own", 1)


@table([("too_small", 40), ("enough_without_the_pin", 80), ("with_the_pin", 200)])
def max_bytes_without_the_pin(t: Script, size: int) -> None:
    _stage(t, "pinned_client", 1)
    asker = Asker(t)
    asker.ask("it", {"batch": 1, "max_bytes": size})
    frames = asker.got("the message", 1)
    if frames[0].reply:
        asker.got("what is left", 1)


@scenario
def a_pin_ends_after_its_timeout(t: Script) -> None:
    _stage(t, "pinned_client", 4, priority_timeout=SECOND // 2)
    asker = Asker(t)
    pin = _pinned(t, asker)
    asker.ask("second", {"batch": 1, "expires": 4 * SECOND})
    asker.got("takes over", 1)
    asker.ask("old", {"batch": 1, "id": pin})
    asker.got("the old pin", 1)
    t.numbers_when("S", "c", lambda info: "pinned_client_id" not in info["priority_groups"][0])


@scenario
def a_pull_prolongs_a_pin(t: Script) -> None:
    _stage(t, "pinned_client", 1, priority_timeout=SECOND // 2)
    asker = Asker(t)
    pin = _pinned(t, asker)
    asker.ask("other", {"batch": 1})
    for n in range(4):
        asker.ask(f"again{n}", {"batch": 1, "id": pin, "expires": SECOND // 4})
        asker.got("still pinned", 1)
    t.fill(["a.1"])
    asker.got("another takes over", 1)


@scenario
def an_open_request_does_not_prolong_a_pin(t: Script) -> None:
    _stage(t, "pinned_client", 1, priority_timeout=SECOND // 2)
    asker = Asker(t)
    pin = _pinned(t, asker)
    asker.ask("open", {"batch": 5, "id": pin})
    t.numbers_when("S", "c", lambda info: "pinned_client_id" not in info["priority_groups"][0])
    t.fill(["a.1"])
    asker.got("told when a message comes", 1)
    t.note("then", _numbers(t))


@scenario
def unpin(t: Script) -> None:
    _stage(t, "pinned_client", 3)
    asker = Asker(t)
    pin = _pinned(t, asker)
    asker.ask("open", {"batch": 5, "id": pin})
    asker.got("the rest", 2)
    asker.ask("other", {"batch": 1})
    asker.waiting(2)
    t.api("CONSUMER.UNPIN.S.c", {"group": "g"})
    asker.nothing("nothing is told yet")
    t.note("then", _numbers(t))
    t.fill(["a.1"])
    frames = asker.got("one has lost its pin, the other has one", 2)
    t.note("statuses", sorted(frame.status if frame.header else 0 for frame in frames))


# Each row: the body of UNPIN, on a consumer with or without groups.
@table(
    [
        (f"{policy}-{name}", policy, body)
        for policy in POLICIES
        for name, body in (
            ("group", {"group": "g"}),
            ("other", {"group": "x"}),
            ("bad_name", {"group": "a b"}),
            ("too_long", {"group": "x" * 17}),
            ("empty_group", {"group": ""}),
            ("empty_object", {}),
            ("nothing", None),
            ("blank", b" "),
            ("text", b"x"),
            ("list", b"[]"),
            ("number", {"group": 5}),
            ("unknown_field", {"colour": 1}),
            ("unknown_field_too", {"group": "g", "colour": 1}),
        )
    ]
)
def unpin_request(t: Script, policy: str, body: Any) -> None:
    _stage(t, policy)
    t.api("CONSUMER.UNPIN.S.c", body)


@scenario
def unpin_what_is_absent(t: Script) -> None:
    t.stream("S", ["a.*"])
    for body in ({"group": "g"}, {"group": "a b"}, {}, None, b"x"):
        t.api("CONSUMER.UNPIN.S.none", body)
        t.api("CONSUMER.UNPIN.NONE.c", body)


@scenario
def groups_of_several_names(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.consumer("S", "c", priority_groups=["g", "h"], priority_policy="pinned_client")
    t.fill_seen("S", "c", ["a.1"] * 3)
    asker = Asker(t)
    asker.ask("h", {"batch": 1}, group="h")
    asker.got("the second name", 1)
    t.note("then", _numbers(t))
    asker.ask("g", {"batch": 1})
    asker.waiting(1)
    asker.nothing("the first name waits")
    t.api("CONSUMER.UNPIN.S.c", {"group": "h"})
    asker.got("it has the pin now", 1)


def _advised(t: Script) -> tuple[Wire, str]:
    wire = t.connect()
    sid = wire.subscribe("$JS.EVENT.ADVISORY.CONSUMER.*.S.c")
    wire.ping()
    return wire, sid


def _events(t: Script, wire: Wire, sid: str, count: int) -> None:
    shown = []
    for _ in range(count):
        frame = wire.delivered(sid)
        event = frame.json() | {"id": "<id>"}
        if event.get("pinned_id"):
            event["pinned_id"] = "<pin>"
        shown.append((frame.subject, event))
    t.note("advisories", shown)
    t.note("their fields", [list(event) for _, event in shown])


@scenario
def advisories(t: Script) -> None:
    _stage(t, "pinned_client", 2, priority_timeout=SECOND // 2)
    wire, sid = _advised(t)
    asker = Asker(t)
    _pinned(t, asker)
    asker.ask("second", {"batch": 1})
    asker.got("takes over", 1)
    _events(t, wire, sid, 3)
    t.api("CONSUMER.UNPIN.S.c", {"group": "g"})
    t.api("CONSUMER.UNPIN.S.c", {"group": "g"})
    _events(t, wire, sid, 2)


@table([(policy, policy) for policy in ("overflow", "prioritized")])
def advisories_without_pins(t: Script, policy: str) -> None:
    _stage(t, policy)
    wire, sid = _advised(t)
    t.api("CONSUMER.UNPIN.S.c", {"group": "g"})
    _events(t, wire, sid, 1)


@scenario
def redeliveries_go_to_the_pinned_client(t: Script) -> None:
    _stage(t, "pinned_client", 1, ack_wait=SECOND // 4)
    asker = Asker(t)
    pin = _pinned(t, asker)
    asker.ask("other", {"batch": 1, "expires": SECOND})
    asker.got("another waits in vain", 1)
    asker.ask("again", {"batch": 1, "id": pin})
    asker.got("again", 1)


@scenario
def reset_keeps_the_pin(t: Script) -> None:
    _stage(t, "pinned_client", 2)
    asker = Asker(t)
    pin = _pinned(t, asker)
    answer = t.wire.api("CONSUMER.RESET.S.c", {})
    t.note("still pinned", answer["priority_groups"][0]["pinned_client_id"] == pin)
    asker.ask("again", {"batch": 1, "id": pin})
    asker.got("from the beginning", 1)


@scenario
def a_renamed_group_keeps_the_pin(t: Script) -> None:
    _stage(t, "pinned_client", 2)
    asker = Asker(t)
    pin = _pinned(t, asker)
    config = {"durable_name": "c", "ack_policy": "explicit", **_grouped("pinned_client", priority_groups=["h"])}
    answer = t.wire.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    t.note("groups", answer["priority_groups"])
    asker.ask("old", {"batch": 1, "id": pin})
    asker.got("the old name", 1)
    asker.ask("new", {"batch": 1, "id": pin}, group="h")
    asker.got("the new name", 1)


@scenario
def policies_change(t: Script) -> None:
    """A policy may be changed to any other one; waiting requests keep waiting."""
    _stage(t, "none")
    asker = Asker(t)
    asker.ask("before", {"batch": 1})
    asker.waiting(1)
    for policy in ("overflow", "prioritized", "pinned_client"):
        config = {"durable_name": "c", "ack_policy": "explicit", **_grouped(policy)}
        t.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
        t.note("then", _numbers(t))


@scenario
def deleted_with_a_pin(t: Script) -> None:
    _stage(t, "pinned_client", 1)
    asker = Asker(t)
    pin = _pinned(t, asker)
    asker.ask("pinned", {"batch": 1, "id": pin, "expires": 9 * SECOND})
    asker.ask("other", {"batch": 1, "expires": 9 * SECOND})
    asker.waiting(2)
    t.setup("CONSUMER.DELETE.S.c")
    asker.got("told", 2)


@scenario
def heartbeats_go_on_without_the_pin(t: Script) -> None:
    _stage(t, "pinned_client", 1)
    asker = Asker(t)
    _pinned(t, asker)
    asker.ask("other", {"batch": 1, "expires": SECOND // 2, "idle_heartbeat": SECOND // 5})
    asker.got("heartbeats, then the end", 3)


@scenario
def a_pause_and_a_pin(t: Script) -> None:
    _stage(t, "pinned_client", 2)
    asker = Asker(t)
    pin = _pinned(t, asker)
    t.setup("CONSUMER.PAUSE.S.c", {"pause_until": "2090-01-01T00:00:00Z"})
    asker.ask("again", {"batch": 1, "id": pin})
    asker.waiting(1)
    t.note("still pinned", _pin_of(t) == pin)
    t.setup("CONSUMER.PAUSE.S.c", {})
    t.fill(["a.1"])  # nats-server checks again at the next message
    asker.order("goes on", 1)
