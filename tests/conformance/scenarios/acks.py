"""Scenarios of acks of every kind, redelivery, pending acks, work queues and interest.

See docs/internals/consumers.md#acks-and-redelivery and docs/internals/api.md#acks.
"""

from __future__ import annotations

from typing import Any

from tests.conformance.harness import Script, scenario, table

SECOND = 1_000_000_000
SHORT = SECOND // 5


def _stage(t: Script, count: int = 5, **config: Any) -> None:
    t.stream("S", ["a.*"])
    t.fill([f"a.{n}" for n in range(1, count + 1)])
    t.consumer("S", "c", **config)


# Each row: the payload of the ack of the second of three messages. Recorded: the confirmation and the counters.
@table(
    [
        ("empty", b""),
        ("ack", b"+ACK"),
        ("ok", b"+OK"),
        ("nak", b"-NAK"),
        ("term", b"+TERM"),
        ("term_with_reason", b"+TERM no good"),
        ("working", b"+WPI"),
        ("nak_delayed", b'-NAK {"delay": 60000000000}'),
        ("nak_delayed_duration", b"-NAK 1m"),
        ("unknown", b"what?"),
        ("lower_case", b"+ack"),
        ("with_more", b"+ACK and more"),
    ]
)
def payload(t: Script, body: bytes) -> None:
    _stage(t)
    frames = t.pull("S", "c", {"batch": 3}, 3)
    t.frames("confirmed", [t.wire.request(frames[1].reply, body)])
    t.numbers("S", "c")


@scenario
def nak_is_redelivered_first(t: Script) -> None:
    _stage(t)
    frames = t.pull("S", "c", {"batch": 2}, 2)
    t.ack(frames[0], b"-NAK")
    t.pull("S", "c", {"batch": 2}, 2)
    t.numbers("S", "c")


@scenario
def naks_are_redelivered_in_order(t: Script) -> None:
    _stage(t)
    frames = t.pull("S", "c", {"batch": 4}, 4)
    for frame in (frames[2], frames[0], frames[3]):
        t.ack(frame, b"-NAK")
    t.pull("S", "c", {"batch": 10, "no_wait": True}, 5)
    t.numbers("S", "c")


@table([("json", b'-NAK {"delay": 200000000}'), ("duration", b"-NAK 200ms"), ("zero", b'-NAK {"delay": 0}')])
def nak_with_delay(t: Script, body: bytes) -> None:
    _stage(t, 1)
    frames = t.pull("S", "c", {"batch": 1}, 1)
    t.ack(frames[0], body)
    t.numbers("S", "c")
    t.pull("S", "c", {"batch": 1, "expires": 3 * SECOND}, 1)


@scenario
def ack_wait_runs_out(t: Script) -> None:
    _stage(t, 2, ack_wait=SHORT)
    t.pull("S", "c", {"batch": 2}, 2)
    second = t.pull("S", "c", {"batch": 2, "expires": 3 * SECOND}, 2)
    for frame in second:
        t.ack(frame)
    t.numbers("S", "c")


@scenario
def ack_wait_runs_out_three_times(t: Script) -> None:
    _stage(t, 1, ack_wait=SECOND // 10)
    for _ in range(3):
        frames = t.pull("S", "c", {"batch": 1, "expires": 3 * SECOND}, 1)
    t.ack(frames[0])
    t.numbers("S", "c")


@scenario
def working_holds_back_redelivery(t: Script) -> None:
    _stage(t, 1, ack_wait=SECOND // 2)
    frames = t.pull("S", "c", {"batch": 1}, 1)
    for _ in range(4):
        t.ack(frames[0], b"+WPI")
        t.pull("S", "c", {"batch": 1, "expires": SHORT}, 1)
    t.ack(frames[0])
    t.numbers("S", "c")


@scenario
def backoff_spaces_redeliveries(t: Script) -> None:
    _stage(t, 1, backoff=[SECOND // 10, SECOND // 5], max_deliver=4)
    for _ in range(4):
        frames = t.pull("S", "c", {"batch": 1, "expires": 3 * SECOND}, 1)
    t.ack(frames[0])
    t.numbers("S", "c")


@scenario
def max_deliver_gives_up(t: Script) -> None:
    _stage(t, 1, ack_wait=SECOND // 10, max_deliver=2)
    t.pull("S", "c", {"batch": 1}, 1)
    t.pull("S", "c", {"batch": 1, "expires": 3 * SECOND}, 1)
    t.pull("S", "c", {"batch": 1, "expires": SECOND // 2}, 1)
    t.numbers_when("S", "c", lambda info: info["num_ack_pending"] == 0)
    t.state("S")


@scenario
def max_deliver_one_with_nak(t: Script) -> None:
    _stage(t, 2, max_deliver=1)
    frames = t.pull("S", "c", {"batch": 1}, 1)
    t.ack(frames[0], b"-NAK")
    t.pull("S", "c", {"batch": 5, "no_wait": True}, 2)
    t.numbers("S", "c")


@scenario
def term_is_never_redelivered(t: Script) -> None:
    _stage(t, 2, ack_wait=SECOND // 10)
    frames = t.pull("S", "c", {"batch": 1}, 1)
    t.ack(frames[0], b"+TERM")
    t.pull("S", "c", {"batch": 1, "expires": SECOND}, 1)
    t.numbers_when("S", "c", lambda info: info["num_redelivered"] == 0)


@scenario
def ack_all_covers_the_earlier(t: Script) -> None:
    _stage(t, ack_policy="all")
    frames = t.pull("S", "c", {"batch": 4}, 4)
    t.ack(frames[2])
    t.numbers("S", "c")
    t.ack(frames[0])
    t.numbers("S", "c")
    t.ack(frames[3])
    t.numbers("S", "c")


@scenario
def ack_all_lifts_the_floor_to_the_delivery_that_was_acked(t: Script) -> None:
    _stage(t, ack_policy="all", ack_wait=SECOND // 2)
    first = t.pull("S", "c", {"batch": 5}, 5)
    again = t.pull("S", "c", {"batch": 5, "expires": 4 * SECOND}, 5)
    t.ack(first[1])
    t.numbers("S", "c")
    t.ack(again[2])
    t.numbers("S", "c")
    t.ack(again[4])
    t.numbers("S", "c")


@scenario
def ack_all_of_the_first_delivery(t: Script) -> None:
    _stage(t, ack_policy="all", ack_wait=SECOND // 2)
    first = t.pull("S", "c", {"batch": 5}, 5)
    t.pull("S", "c", {"batch": 5, "expires": 4 * SECOND}, 5)
    t.ack(first[4])
    t.numbers("S", "c")


@table([("workqueue", "workqueue"), ("interest", "interest")])
def a_late_ack_lets_an_exhausted_message_go(t: Script, retention: str) -> None:
    t.stream("S", ["a.*"], retention=retention)
    t.consumer("S", "c", ack_wait=SECOND // 5, max_deliver=1)
    t.fill_seen("S", "c", ["a.1"] * 3)
    frames = t.pull("S", "c", {"batch": 3}, 3)
    t.pull("S", "c", {"batch": 1, "expires": SECOND}, 1)
    t.state("S")
    for frame in (frames[1], frames[1], frames[0]):
        t.ack(frame)
    t.state_when("S", lambda state: state["messages"] == 1)


@table(
    [
        ("alone", 1, (0,)),
        ("twice", 1, (0, 0)),
        ("the_older_of_two", 2, (0, 1)),
        ("the_newer_of_two", 2, (1, 0)),
        ("all_of_three", 3, (1, 2, 0)),
    ]
)
def a_late_ack_of_an_exhausted_message_and_the_floor(t: Script, count: int, order: tuple[int, ...]) -> None:
    _stage(t, count, ack_wait=SECOND // 5, max_deliver=1)
    frames = t.pull("S", "c", {"batch": count}, count)
    t.pull("S", "c", {"batch": 1, "expires": SECOND}, 1)
    t.numbers_when("S", "c", lambda info: info["num_ack_pending"] == 0)
    for number in order:
        t.ack(frames[number])
        t.numbers("S", "c")
    t.fill_seen("S", "c", ["a.1"] * 2)
    more = t.pull("S", "c", {"batch": 2}, 2)
    t.ack(frames[0])
    t.numbers("S", "c")
    t.ack(more[0])
    t.numbers("S", "c")


@scenario
def ack_none_needs_none(t: Script) -> None:
    _stage(t, ack_policy="none")
    frames = t.pull("S", "c", {"batch": 3}, 3)
    t.numbers("S", "c")
    t.wire.publish(frames[0].reply, b"+ACK")
    t.pull("S", "c", {"batch": 3, "no_wait": True}, 3)
    t.numbers("S", "c")


@scenario
def acks_out_of_order(t: Script) -> None:
    _stage(t, 6)
    frames = t.pull("S", "c", {"batch": 6}, 6)
    for n in (4, 1, 3, 0, 5, 2):
        t.ack(frames[n])
        t.numbers("S", "c")


@scenario
def ack_twice(t: Script) -> None:
    _stage(t)
    frames = t.pull("S", "c", {"batch": 2}, 2)
    t.ack(frames[0])
    t.ack(frames[0])
    t.numbers("S", "c")


@scenario
def ack_after_redelivery_with_the_old_subject(t: Script) -> None:
    _stage(t, 1, ack_wait=SECOND // 10)
    first = t.pull("S", "c", {"batch": 1}, 1)
    t.pull("S", "c", {"batch": 1, "expires": 3 * SECOND}, 1)
    t.ack(first[0])
    t.numbers("S", "c")


@scenario
def ack_of_what_was_never_delivered(t: Script) -> None:
    _stage(t)
    frames = t.pull("S", "c", {"batch": 1}, 1)
    forged = frames[0].reply.replace(".1.1.1.", ".1.4.4.")
    t.wire.publish(forged, b"+ACK")
    t.wire.ping()
    t.numbers("S", "c")


# Each row: a subject below the consumer's ack prefix that is not an ack.
@table([("short", "1.2"), ("letters", "x.y.z.u.v"), ("long", "1.1.1.1.1.1.1.1"), ("negative", "-1.-1.-1.1.1")])
def malformed_ack_subjects(t: Script, tail: str) -> None:
    _stage(t)
    t.pull("S", "c", {"batch": 1}, 1)
    t.wire.publish(f"$JS.ACK.S.c.{tail}", b"+ACK")
    t.wire.ping()
    t.numbers("S", "c")


@scenario
def max_ack_pending_stops_delivery(t: Script) -> None:
    _stage(t, 5, max_ack_pending=2)
    frames = t.pull("S", "c", {"batch": 5, "expires": SHORT}, 3)
    t.numbers("S", "c")
    t.ack(frames[0])
    t.pull("S", "c", {"batch": 5, "expires": SHORT}, 2)
    t.ack(frames[1], b"-NAK")
    t.pull("S", "c", {"batch": 5, "expires": SHORT}, 2)
    t.numbers("S", "c")


@scenario
def ack_frees_a_waiting_request(t: Script) -> None:
    _stage(t, 3, max_ack_pending=1)
    wire = t.wire
    frames = t.pull("S", "c", {"batch": 1}, 1)
    wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":2,"expires":5000000000}', wire.new_reply())
    for _ in range(2):
        t.connect().publish(frames[-1].reply, b"+ACK")
        frames += t.collect(wire, 1)
    t.frames("one by one", frames)


@table([("bare", b"+NXT", 1), ("number", b"+NXT 2", 2), ("json", b'+NXT {"batch":3,"no_wait":true}', 3)])
def ack_and_next(t: Script, body: bytes, count: int) -> None:
    _stage(t)
    frames = t.pull("S", "c", {"batch": 1}, 1)
    wire = t.wire
    reply = wire.new_reply()
    wire.publish(frames[0].reply, body, reply)
    t.frames("next", t.collect(wire, count))
    t.numbers("S", "c")


@scenario
def workqueue_removes_what_was_acked(t: Script) -> None:
    t.stream("S", ["a.*"], retention="workqueue")
    t.fill(["a.1", "a.2", "a.3", "a.4"])
    t.consumer("S", "c")
    frames = t.pull("S", "c", {"batch": 3}, 3)
    t.ack(frames[1])
    t.state_when("S", lambda state: state["messages"] == 3)
    t.ack(frames[0], b"+TERM")
    t.state_when("S", lambda state: state["messages"] == 2)
    t.ack(frames[2], b"-NAK")
    t.state("S")
    t.numbers("S", "c")


@scenario
def workqueue_before_any_consumer(t: Script) -> None:
    t.stream("S", ["a.*"], retention="workqueue")
    t.fill(["a.1", "a.2"])
    t.state("S")
    t.consumer("S", "c", filter_subject="a.2")
    frames = t.pull("S", "c", {"batch": 5, "no_wait": True}, 2)
    t.ack(frames[0])
    t.state_when("S", lambda state: state["messages"] == 1)


@scenario
def interest_removes_when_all_acked(t: Script) -> None:
    t.stream("S", ["a.*"], retention="interest")
    t.consumer("S", "c")
    t.consumer("S", "d", filter_subject="a.1")
    t.fill(["a.1", "a.2", "a.1"])
    t.state("S")
    for frame in t.pull("S", "c", {"batch": 3}, 3):
        t.ack(frame)
    t.state_when("S", lambda state: state["messages"] == 2)
    for frame in t.pull("S", "d", {"batch": 2}, 2):
        t.ack(frame)
    t.state_when("S", lambda state: state["messages"] == 0)


@scenario
def interest_ends_with_the_consumer(t: Script) -> None:
    t.stream("S", ["a.*"], retention="interest")
    t.consumer("S", "c")
    t.consumer("S", "d", filter_subject="a.1")
    t.fill(["a.1", "a.2"])
    t.setup("CONSUMER.DELETE.S.c")
    t.state_when("S", lambda state: state["messages"] == 1)
    t.fill(["a.2"])
    t.state("S")


@scenario
def acks_without_confirmation(t: Script) -> None:
    _stage(t)
    frames = t.pull("S", "c", {"batch": 3}, 3)
    for frame in frames:
        t.wire.publish(frame.reply, b"")
    t.numbers_when("S", "c", lambda info: info["num_ack_pending"] == 0)


@scenario
def acks_from_another_connection(t: Script) -> None:
    _stage(t)
    frames = t.pull("S", "c", {"batch": 2}, 2)
    t.ack(frames[0], wire=t.connect())
    t.numbers("S", "c")
