"""Scenarios of push and ordered consumers: delivery, heartbeats, flow control (docs/internals/consumers.md)."""

from __future__ import annotations

from typing import Any

from tests.conformance.harness import Script, scenario, table
from tests.wire import Frame, Wire

SECOND = 1_000_000_000
HEARTBEAT = SECOND // 5
SUBJECTS = ["a.1", "a.2", "a.1", "a.3", "a.2"]


def _push(t: Script, **config: Any) -> tuple[Wire, str]:
    """Create a stream of five messages and a push consumer; return its subscriber."""
    t.stream("S", ["a.*"])
    t.fill(SUBJECTS)
    wire = t.connect()
    sid = wire.subscribe("to.me")
    wire.ping()
    t.consumer("S", "c", deliver_subject="to.me", **config)
    return wire, sid


# Each row: the consumer's configuration, and the number of messages that it delivers at first.
@table(
    [
        ("all", {}, 5),
        ("ack_none", {"ack_policy": "none"}, 5),
        ("ack_all", {"ack_policy": "all"}, 5),
        ("last", {"deliver_policy": "last"}, 1),
        ("new", {"deliver_policy": "new"}, 0),
        ("by_sequence", {"deliver_policy": "by_start_sequence", "opt_start_seq": 4}, 2),
        ("last_per_subject", {"deliver_policy": "last_per_subject", "filter_subject": "a.*"}, 3),
        ("filter", {"filter_subject": "a.1"}, 2),
        ("filters", {"filter_subjects": ["a.2", "a.3"]}, 3),
        ("headers_only", {"headers_only": True}, 5),
        ("max_ack_pending", {"max_ack_pending": 2}, 2),
        ("max_ack_pending_ack_all", {"ack_policy": "all", "max_ack_pending": 3}, 3),
    ]
)
def delivers(t: Script, config: dict[str, Any], count: int) -> None:
    wire, sid = _push(t, **config)
    t.frames("at once", t.collect(wire, count, sid=sid))
    t.numbers("S", "c")
    t.fill_seen("S", "c", ["a.1"], b"new", matching=int("filter_subjects" not in config))
    t.numbers("S", "c")
    for frame in wire.ping():
        t.note("then", t.show(frame))


@scenario
def acks_open_the_window(t: Script) -> None:
    wire, sid = _push(t, max_ack_pending=1)
    for _ in range(5):
        frames = t.collect(wire, 1, sid=sid)
        t.frames("one", frames)
        t.ack(frames[0], wire=wire)
    t.numbers("S", "c")


@scenario
def waits_for_a_subscriber(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.fill(SUBJECTS)
    t.consumer("S", "c", deliver_subject="to.me")
    t.numbers("S", "c")
    wire = t.connect()
    sid = wire.subscribe("to.me")
    t.frames("now", t.collect(wire, 5, sid=sid))
    t.numbers("S", "c")
    wire.unsubscribe(sid)
    wire.ping()
    t.numbers_when("S", "c", lambda info: not info.get("push_bound"))
    t.fill_seen("S", "c", ["a.9"])
    t.numbers("S", "c")
    sid = wire.subscribe("to.me")
    t.frames("the rest", t.collect(wire, 1, sid=sid))


@scenario
def queue_group_shares(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.consumer("S", "c", deliver_subject="to.all", deliver_group="g", ack_policy="none")
    wires = [t.connect(), t.connect()]
    for wire in wires:
        wire.subscribe("to.all", "g")
        wire.ping()
    t.fill([f"a.{n}" for n in range(40)])
    t.numbers_when("S", "c", lambda info: info["delivered"]["stream_seq"] == 40)
    got = [wire.ping() for wire in wires]
    t.note("together", sorted(int(frame.reply.split(".")[5]) for frames in got for frame in frames))
    t.note("both", all(got))


@scenario
def queue_group_needs_a_member(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.fill(SUBJECTS)
    t.consumer("S", "c", deliver_subject="to.all", deliver_group="g", ack_policy="none")
    plain = t.connect()
    plain.subscribe("to.all")
    plain.ping()
    t.numbers("S", "c")
    member = t.connect()
    sid = member.subscribe("to.all", "g")
    t.note("member", len(t.collect(member, 5, sid=sid)))


@scenario
def redelivery(t: Script) -> None:
    wire, sid = _push(t, ack_wait=SECOND // 4)
    first = t.collect(wire, 5, sid=sid)
    for frame in (first[0], first[2], first[4]):
        t.ack(frame, wire=wire)
    again = t.collect(wire, 2, sid=sid)
    t.frames("again", again)
    for frame in again:
        t.ack(frame, wire=wire)
    t.numbers("S", "c")


@scenario
def nak_and_term(t: Script) -> None:
    wire, sid = _push(t)
    first = t.collect(wire, 5, sid=sid)
    t.ack(first[1], b"-NAK", wire=wire)
    t.frames("again", t.collect(wire, 1, sid=sid))
    t.ack(first[2], b"+TERM", wire=wire)
    t.numbers("S", "c")


@scenario
def heartbeats_when_idle(t: Script) -> None:
    wire, sid = _push(t, ack_policy="none", idle_heartbeat=HEARTBEAT)
    t.note("messages", len(t.collect(wire, 5, sid=sid)))
    t.frames("heartbeats", t.collect(wire, 2, sid=sid))
    t.fill(["a.1"])
    frames = t.collect(wire, 2, sid=sid)
    while frames[0].status:
        frames = [*frames[1:], *t.collect(wire, 1, sid=sid)]
    t.frames("message, heartbeat", frames)


@scenario
def heartbeats_of_an_empty_stream(t: Script) -> None:
    t.stream("S", ["a.*"])
    wire = t.connect()
    sid = wire.subscribe("to.me")
    wire.ping()
    t.consumer("S", "c", deliver_subject="to.me", idle_heartbeat=HEARTBEAT)
    t.frames("heartbeats", t.collect(wire, 2, sid=sid))


@scenario
def second_consumer_on_a_bound_subject(t: Script) -> None:
    _push(t)
    body = {"stream_name": "S", "config": {"durable_name": "d", "deliver_subject": "to.me"}}
    t.api("CONSUMER.CREATE.S.d", body)
    body["config"] = {"durable_name": "c", "deliver_subject": "to.you", "ack_policy": "explicit"}
    t.api("CONSUMER.CREATE.S.c", body)


@scenario
def ordered_consumer_as_clients_make_it(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.fill(SUBJECTS)
    wire = t.connect()
    sid = wire.subscribe("to.me")
    wire.ping()
    config = {
        "name": "ordered",
        "deliver_subject": "to.me",
        "deliver_policy": "all",
        "ack_policy": "none",
        "max_deliver": 1,
        "ack_wait": 22 * 3600 * SECOND,
        "flow_control": True,
        "idle_heartbeat": 5 * SECOND,
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": 300 * SECOND,
    }
    t.api("CONSUMER.CREATE.S.ordered", {"stream_name": "S", "config": config, "action": "create"})
    t.frames("messages", t.collect(wire, 5, sid=sid))
    t.api("CONSUMER.DELETE.S.ordered")
    config |= {"name": "again", "deliver_policy": "by_start_sequence", "opt_start_seq": 4}
    t.api("CONSUMER.CREATE.S.again", {"stream_name": "S", "config": config, "action": "create"})
    t.frames("messages", t.collect(wire, 2, sid=sid))
    t.numbers("S", "again")


@scenario
def ephemeral_goes_with_its_subscriber(t: Script) -> None:
    t.stream("S", ["a.*"])
    wire = t.connect()
    wire.subscribe("to.me")
    wire.ping()
    config = {"name": "e", "deliver_subject": "to.me", "ack_policy": "none", "inactive_threshold": SECOND // 5}
    t.setup("CONSUMER.CREATE.S.e", {"stream_name": "S", "config": config})
    t.numbers("S", "e")
    wire.close()
    t.state_when("S", lambda state: state["consumer_count"] == 0)


def _drain(t: Script, wire: Wire, sid: str, count: int) -> tuple[list[int], int]:
    """Return the sequences of `count` messages, and the number of flow control requests, which are answered."""
    sequences: list[int] = []
    asked = 0
    while len(sequences) < count:
        frame: Frame = wire.delivered(sid)
        if frame.status == 100:
            target = frame.reply or frame.headers.get("Nats-Consumer-Stalled", "")
            if target:
                asked += 1
                wire.publish(target)
            continue
        sequences.append(int(frame.reply.split(".")[5]))
    return sequences, asked


@scenario
def flow_control(t: Script) -> None:
    t.stream("S", ["a.*"])
    for _ in range(8):
        t.fill(["a.1"] * 500, b"x" * 1024)
    wire = t.connect()
    sid = wire.subscribe("to.me")
    wire.ping()
    t.consumer("S", "c", deliver_subject="to.me", ack_policy="none", flow_control=True, idle_heartbeat=SECOND)
    sequences, asked = _drain(t, wire, sid, 4000)
    t.note("in order", sequences == list(range(1, 4001)))
    t.note("asked", asked > 0)
    t.numbers("S", "c")


@scenario
def flow_control_request_looks(t: Script) -> None:
    t.stream("S", ["a.*"])
    for _ in range(8):
        t.fill(["a.1"] * 500, b"x" * 1024)
    wire = t.connect()
    sid = wire.subscribe("to.me")
    wire.ping()
    t.consumer("S", "c", deliver_subject="to.me", ack_policy="none", flow_control=True, idle_heartbeat=HEARTBEAT)
    frame = wire.next(lambda frame: frame.sid == sid and frame.status == 100 and bool(frame.reply))
    t.frames("request", [frame])
    stalled = wire.next(lambda frame: frame.sid == sid and b"Nats-Consumer-Stalled" in frame.header)
    t.note("stalled points there", stalled.headers["Nats-Consumer-Stalled"] == frame.reply)
    t.note("its fields", sorted(stalled.headers))


@scenario
def headers_and_bodies_arrive_whole(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.fill(["a.1"], b"\x00\xff\r\nMSG x", b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n")
    t.fill(["a.1"], b"", b"NATS/1.0\r\n\r\n")
    wire = t.connect()
    sid = wire.subscribe("to.me")
    wire.ping()
    t.consumer("S", "c", deliver_subject="to.me", ack_policy="none")
    t.frames("delivered", t.collect(wire, 2, sid=sid))


@scenario
def subscriber_without_headers_support(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.fill(["a.1"], b"body", {"A": "b"})
    wire = t.connect(headers=False, no_responders=False)
    sid = wire.subscribe("to.me")
    wire.ping()
    t.consumer("S", "c", deliver_subject="to.me", ack_policy="none")
    t.frames("delivered", t.collect(wire, 1, sid=sid))


@scenario
def replay_at_original_speed(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.fill(["a.1", "a.2"])
    wire = t.connect()
    sid = wire.subscribe("to.me")
    wire.ping()
    t.consumer("S", "c", deliver_subject="to.me", ack_policy="none", replay_policy="original")
    t.frames("delivered", t.collect(wire, 2, sid=sid))


@scenario
def workqueue_pushed(t: Script) -> None:
    t.stream("S", ["a.*"], retention="workqueue")
    t.fill(["a.1", "a.2", "a.3"])
    wire = t.connect()
    sid = wire.subscribe("to.me")
    wire.ping()
    t.consumer("S", "c", deliver_subject="to.me")
    for frame in t.collect(wire, 3, sid=sid):
        t.ack(frame, wire=wire)
    t.state_when("S", lambda state: state["messages"] == 0)
