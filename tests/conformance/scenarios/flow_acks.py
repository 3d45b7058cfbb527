"""Scenarios of ack policy flow_control: configuration, and replies to flow control requests as acks.

See docs/internals/consumers.md. Transcripts record the order of frames, not their times; the minimum heartbeat is one
second.
"""

from __future__ import annotations

from typing import Any

from tests.conformance.harness import Script, scenario, table
from tests.wire import Frame, Wire

SECOND = 1_000_000_000
FULL = 6


def _message(frame: Frame) -> bool:
    return frame.reply.startswith("$JS.ACK.")


def _request(frame: Frame) -> bool:
    return frame.status == 100 and frame.reply.startswith("$JS.FC.")


def _heartbeat(frame: Frame) -> bool:
    return frame.status == 100 and not frame.reply


class Subscriber:
    """Subscriber of a consumer `f`, which may have at most FULL unacked messages."""

    def __init__(self, t: Script, messages: int, **config: Any) -> None:
        self.t = t
        stream = {"retention": config.pop("retention", "limits")}
        t.stream("S", ["a.*"], **stream)
        fields = {"deliver_subject": "to.me", "ack_policy": "flow_control", "max_ack_pending": FULL}
        t.consumer("S", "f", **fields | config)
        t.fill_seen("S", "f", ["a.1"] * messages)
        self.wire, self.sid = _subscribed(t)

    def messages(self, label: str, count: int) -> None:
        """Record the next messages."""
        self.t.frames(label, [self.wire.next(_message) for _ in range(count)])

    def asked(self, label: str) -> Frame:
        """Record and return the next flow control request."""
        frame = self.wire.next(_request)
        self.t.frames(label, [frame])
        return frame

    def answer(self, request: Frame, consumer: object = None, stream: object = None) -> None:
        """Reply to a request, with the sequences received."""
        fields = {"Nats-Last-Consumer": consumer, "Nats-Last-Stream": stream}
        headers = {name: str(value) for name, value in fields.items() if value is not None}
        self.wire.publish(request.reply, b"", headers=headers or None)
        _fence(self.wire)

    def numbers(self, ready: Any = None) -> None:
        """Record CONSUMER.INFO once `ready` is true for it."""
        if ready is None:
            self.t.numbers("S", "f")
        else:
            self.t.numbers_when("S", "f", ready)


def _subscribed(t: Script) -> tuple[Wire, str]:
    wire = t.connect()
    sid = wire.subscribe("to.me")
    _fence(wire)
    return wire, sid


def _fence(wire: Wire) -> None:
    """Wait until the server has processed everything sent; frames received meanwhile stay unread."""
    wire.send(b"PING\r\n")
    wire.next(lambda frame: frame.verb == "PONG")


# Each row: configuration fields beside the deliver subject and the ack policy.
CONFIGS: list[tuple[str, dict[str, Any]]] = [
    ("plain", {}),
    ("durable", {"durable_name": "f"}),
    ("flow_control", {"flow_control": True}),
    ("heartbeat", {"idle_heartbeat": SECOND}),
    ("another_heartbeat", {"idle_heartbeat": 2 * SECOND}),
    ("both", {"flow_control": True, "idle_heartbeat": SECOND}),
    ("both_with_another_heartbeat", {"flow_control": True, "idle_heartbeat": 2 * SECOND}),
    ("unlimited", {"max_ack_pending": -1}),
    ("limited", {"max_ack_pending": 100}),
    ("all_of_it", {"flow_control": True, "idle_heartbeat": SECOND, "max_ack_pending": 10, "max_deliver": -1}),
    ("negative_ack_wait", {"ack_wait": -1}),
    ("ack_wait", {"ack_wait": SECOND}),
    ("backoff", {"backoff": [SECOND]}),
    ("backoff_of_nothing", {"backoff": [0]}),
    ("max_deliver", {"max_deliver": 5}),
    ("max_deliver_unlimited", {"max_deliver": -1}),
    ("max_deliver_once", {"max_deliver": 1}),
    ("pull", {"deliver_subject": ""}),
    ("pull_flow_control", {"deliver_subject": "", "flow_control": True}),
    ("group", {"deliver_group": "q"}),
    ("rate_limit", {"rate_limit_bps": 1000}),
    ("sourcing", {"sourcing": True}),
    ("direct", {"direct": True}),
    ("headers_only", {"headers_only": True}),
    ("sampled", {"sample_freq": "100"}),
    ("original", {"replay_policy": "original"}),
    ("max_waiting", {"max_waiting": 5}),
]


@table([(f"{name}{'-pedantic' * strict}", config, strict) for name, config in CONFIGS for strict in (False, True)])
def config(t: Script, config: dict[str, Any], pedantic: bool) -> None:
    t.stream("S", ["a.*"])
    fields = {"deliver_subject": "to.me", "ack_policy": "flow_control", **config}
    if "durable_name" not in config:
        fields["name"] = "f"
    t.api("CONSUMER.CREATE.S.f", {"stream_name": "S", "config": fields, "pedantic": pedantic})


@table([(policy, policy) for policy in ("none", "all", "explicit")])
def ack_policy_stays(t: Script, policy: str) -> None:
    t.stream("S", ["a.*"])
    flow = {"durable_name": "f", "deliver_subject": "to.me", "ack_policy": "flow_control"}
    other = {**flow, "ack_policy": policy}
    for first, second in ((flow, other), (other, flow)):
        t.setup("CONSUMER.CREATE.S.f", {"stream_name": "S", "config": first})
        t.api("CONSUMER.CREATE.S.f", {"stream_name": "S", "config": second})
        t.setup("CONSUMER.DELETE.S.f")


@table([(retention, retention) for retention in ("limits", "interest", "workqueue")])
def on_streams_of(t: Script, retention: str) -> None:
    t.stream("S", ["a.*"], retention=retention)
    fields = {"durable_name": "f", "deliver_subject": "to.me", "ack_policy": "flow_control"}
    t.api("CONSUMER.CREATE.S.f", {"stream_name": "S", "config": fields})


@table([("none", -1), ("some", 50)])
def under_limits_of_the_stream(t: Script, most: int) -> None:
    t.stream("S", ["a.*"], consumer_limits={"max_ack_pending": most})
    fields = {"durable_name": "f", "deliver_subject": "to.me", "ack_policy": "flow_control"}
    t.api("CONSUMER.CREATE.S.f", {"stream_name": "S", "config": fields})


@scenario
def stops_when_full(t: Script) -> None:
    f = Subscriber(t, 10)
    f.messages("as many as may be unacked", FULL)
    f.asked("and a request")
    f.numbers()


# Each row: the headers of the reply, and the number of messages that follow it.
@table(
    [
        ("all", FULL, FULL, FULL),
        ("a_part", 3, 3, 3),
        ("other_numbers", 3, FULL, FULL),
        ("nothing", None, None, 0),
        ("no_consumer_sequence", None, FULL, 0),
        ("no_stream_sequence", FULL, None, 0),
        ("no_number", "x", FULL, 0),
        ("no_number_of_the_stream", FULL, "x", 0),
        ("beyond", 60, 60, FULL),
    ]
)
def answer(t: Script, consumer: Any, stream: Any, more: int) -> None:
    f = Subscriber(t, 20)
    f.messages("at first", FULL)
    f.answer(f.asked("full"), consumer, stream)
    f.messages("then", more)
    f.numbers(lambda info: info["delivered"]["stream_seq"] == FULL + more)


@scenario
def answers_go_on_to_the_end(t: Script) -> None:
    f = Subscriber(t, 14)
    for last in (6, 12):
        f.messages("some", 6)
        f.answer(f.asked("full"), last, last)
    f.messages("the rest", 2)
    f.numbers()
    heartbeat = f.wire.next(_heartbeat)
    t.frames("a heartbeat", [heartbeat])
    f.answer(f.asked("is followed by a request"), 14, 14)
    f.numbers(lambda info: info["num_ack_pending"] == 0)


@scenario
def an_old_request_is_not_answered_twice(t: Script) -> None:
    f = Subscriber(t, 20)
    f.messages("at first", FULL)
    old = f.asked("full")
    f.answer(old, 3, 3)
    f.messages("then", 3)
    f.asked("full again")
    f.answer(old, FULL, FULL)
    f.numbers()


@scenario
def a_floor_does_not_go_back(t: Script) -> None:
    f = Subscriber(t, 20)
    f.messages("at first", FULL)
    f.answer(f.asked("full"), 3, 3)
    f.messages("then", 3)
    f.answer(f.asked("full again"), 2, 2)
    f.numbers()
    t.frames("a heartbeat", [f.wire.next(_heartbeat)])
    f.asked("is followed by a request")


@scenario
def an_empty_answer(t: Script) -> None:
    f = Subscriber(t, 9)
    f.messages("at first", FULL)
    f.answer(f.asked("full"))
    t.frames("a heartbeat", [f.wire.next(_heartbeat)])
    request = f.asked("is followed by a request")
    t.hide(request.reply, "<asked>")
    t.frames("a heartbeat says so", [f.wire.next(_heartbeat)])
    f.answer(request, FULL, FULL)
    f.messages("then", 3)


@scenario
def a_request_before_it_is_full(t: Script) -> None:
    f = Subscriber(t, 3)
    f.messages("all", 3)
    t.frames("a heartbeat", [f.wire.next(_heartbeat)])
    f.answer(f.asked("is followed by a request"), 3, 3)
    f.numbers(lambda info: info["num_ack_pending"] == 0)
    t.frames("another heartbeat", [f.wire.next(_heartbeat)])


@scenario
def another_subscriber(t: Script) -> None:
    """A new subscriber gets only messages that the previous one has not; the flow control request stays open."""
    f = Subscriber(t, 9)
    f.messages("at first", FULL)
    request = f.asked("full")
    t.hide(request.reply, "<asked>")
    f.wire.close()
    t.numbers_when("S", "f", lambda info: not info.get("push_bound"))
    f.wire, f.sid = _subscribed(t)
    t.frames("only a heartbeat", [f.wire.next(lambda frame: frame.sid == f.sid)])
    f.answer(request, FULL, FULL)
    f.messages("then", 3)


@table([(body.decode() or "empty", body) for body in (b"+ACK", b"", b"-NAK", b"+TERM", b"+WPI", b"+NXT")])
def acks_are_not_taken(t: Script, body: bytes) -> None:
    f = Subscriber(t, 3)
    frames = [f.wire.next(_message) for _ in range(3)]
    t.frames("answer", [t.wire.request(frames[1].reply, body)])
    f.numbers()


@table([("interest", "interest"), ("workqueue", "workqueue")])
def retention(t: Script, policy: str) -> None:
    f = Subscriber(t, 8, retention=policy)
    f.messages("at first", FULL)
    f.answer(f.asked("full"), 4, 4)
    f.messages("then", 2)
    t.state_when("S", lambda state: state["messages"] == 4)
    f.numbers()


@scenario
def removed_messages(t: Script) -> None:
    f = Subscriber(t, FULL)
    f.messages("all", FULL)
    f.answer(f.asked("full"), 3, 3)
    f.numbers(lambda info: info["num_ack_pending"] == 3)
    t.setup("STREAM.MSG.DELETE.S", {"seq": 4})
    f.numbers()
    t.setup("STREAM.PURGE.S")
    f.numbers()


@scenario
def reset(t: Script) -> None:
    f = Subscriber(t, 4)
    f.messages("all", 4)
    t.api("CONSUMER.RESET.S.f", {"seq": 2})
    f.messages("again", 3)
    f.numbers()


@scenario
def an_update_of_the_limit(t: Script) -> None:
    f = Subscriber(t, 10)
    f.messages("at first", FULL)
    f.asked("full")
    fields = {"durable_name": "f", "deliver_subject": "to.me", "ack_policy": "flow_control", "max_ack_pending": 8}
    t.api("CONSUMER.CREATE.S.f", {"stream_name": "S", "config": fields})
    f.messages("two more", 2)
    f.numbers()
