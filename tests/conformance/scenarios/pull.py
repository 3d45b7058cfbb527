"""Scenarios of pull consumers: requests, statuses, deliver policies, counters.

See docs/internals/consumers.md and docs/internals/api.md#statuses.
"""

from __future__ import annotations

from typing import Any

from tests.conformance.harness import Script, scenario, table

SECOND = 1_000_000_000
SHORT = SECOND // 5
LONG_AGO = "2001-01-01T00:00:00Z"
SUBJECTS = ["a.1", "a.2", "a.1", "b.1", "a.3", "a.2"]


def _stage(t: Script, **config: Any) -> None:
    t.stream("S", ["a.*", "b.*"])
    t.fill(SUBJECTS)
    t.consumer("S", "c", **config)


# Each row: the body of one request, and its number of answers, on a stream with six messages.
@table(
    [
        ("empty", b"", 1),
        ("number", b"3", 3),
        ("number_with_blanks", b" 3 ", 1),
        ("other_text", b"three", 1),
        ("zero", b"0", 1),
        ("negative_number", b"-3", 1),
        ("one", {"batch": 1}, 1),
        ("three", {"batch": 3}, 3),
        ("all", {"batch": 6}, 6),
        ("empty_object", {}, 1),
        ("batch_zero", {"batch": 0}, 1),
        ("batch_negative", {"batch": -1}, 1),
        ("unknown_field", {"batch": 2, "colour": 1}, 2),
        ("no_wait_part", {"batch": 10, "no_wait": True}, 7),
        ("no_wait_exact", {"batch": 6, "no_wait": True}, 6),
        ("expires_part", {"batch": 10, "expires": SHORT}, 7),
        ("no_wait_and_expires", {"batch": 10, "no_wait": True, "expires": SHORT}, 7),
        ("max_bytes", {"batch": 10, "max_bytes": 150, "expires": SECOND}, 3),
        ("max_bytes_too_small", {"batch": 10, "max_bytes": 5, "expires": SECOND}, 1),
        ("max_bytes_all", {"batch": 3, "max_bytes": 100000, "expires": SECOND}, 3),
        ("heartbeat_too_large", {"batch": 1, "expires": SECOND, "idle_heartbeat": SECOND}, 1),
        ("heartbeat_without_expires", {"batch": 7, "idle_heartbeat": SECOND}, 1),
        ("bad_json", b'{"batch":', 1),
        ("wrong_type", {"batch": "3"}, 1),
        ("negative_expires", {"batch": 1, "expires": -1}, 1),
        ("group_without_policy", {"batch": 1, "group": "g"}, 1),
        ("priority_without_policy", {"batch": 1, "priority": 3}, 1),
        ("priority_too_large", {"batch": 1, "priority": 30}, 1),
        ("pin_id_without_policy", {"batch": 1, "id": "x"}, 1),
        ("min_ack_pending_without_policy", {"batch": 1, "min_ack_pending": 3}, 1),
        ("min_pending_without_policy", {"batch": 1, "min_pending": 3}, 1),
    ]
)
def request(t: Script, body: Any, answers: int) -> None:
    _stage(t)
    t.pull("S", "c", body, answers)
    t.numbers("S", "c")


# Each row: the body of one request on a consumer with nothing to deliver.
@table(
    [
        ("no_wait", {"batch": 1, "no_wait": True}),
        ("no_wait_more", {"batch": 10, "no_wait": True}),
        ("expires", {"batch": 1, "expires": SHORT}),
        ("expires_more", {"batch": 10, "expires": SHORT, "max_bytes": 1000}),
        ("no_wait_and_expires", {"batch": 5, "no_wait": True, "expires": SHORT}),
    ]
)
def request_for_nothing(t: Script, body: Any) -> None:
    t.stream("S", ["a.*"])
    t.consumer("S", "c")
    t.pull("S", "c", body, 1)
    t.numbers_when("S", "c", lambda info: info["num_waiting"] == 0)


@scenario
def heartbeats_while_waiting(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.consumer("S", "c")
    t.pull("S", "c", {"batch": 2, "expires": SECOND // 2, "idle_heartbeat": SECOND // 5}, 3)


@scenario
def heartbeats_stop_with_the_last_message(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.consumer("S", "c")
    wire = t.wire
    reply = wire.new_reply()
    wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":1,"expires":1000000000,"idle_heartbeat":100000000}', reply)
    t.frames("first a heartbeat", t.collect(wire, 1))
    t.connect().request("a.1", b"x")
    frames = t.collect(wire, 1)
    while frames[-1].status == 100:
        frames = t.collect(wire, 1)
    t.frames("then the message", frames)
    t.numbers_when("S", "c", lambda info: info["num_waiting"] == 0)


@scenario
def waiting_request_is_served_when_a_message_comes(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.consumer("S", "c")
    wire, publisher = t.wire, t.connect()
    wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":3,"expires":5000000000}', wire.new_reply())
    t.numbers_when("S", "c", lambda info: info["num_waiting"] == 1)
    for n in range(3):
        publisher.request(f"a.{n}", b"x")
        t.frames(f"message {n}", t.collect(wire, 1))
    t.numbers_when("S", "c", lambda info: info["num_waiting"] == 0)


@scenario
def request_without_expires_waits(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.consumer("S", "c")
    wire = t.wire
    wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b"2", wire.new_reply())
    t.numbers_when("S", "c", lambda info: info["num_waiting"] == 1)
    publisher = t.connect()
    for subject in ("a.1", "a.2"):
        publisher.request(subject, b"x")
        t.frames("served", t.collect(wire, 1))
    t.numbers_when("S", "c", lambda info: info["num_waiting"] == 0)


@scenario
def waiting_requests_take_turns(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.consumer("S", "c")
    one, two = t.connect(), t.connect()
    for n, wire in enumerate((one, two), 1):
        wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":3,"expires":5000000000}', wire.new_reply())
        t.numbers_when("S", "c", lambda info, n=n: info["num_waiting"] == n)  # type: ignore[misc]
    t.fill([f"a.{n}" for n in range(6)])
    for wire in (one, two):
        t.note("its turns", [frame.subject for frame in t.collect(wire, 3)])


@scenario
def too_many_waiting(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.consumer("S", "c", max_waiting=2)
    wire = t.wire
    for n in (1, 2):
        wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":1,"expires":10000000000}', wire.new_reply())
        t.numbers_when("S", "c", lambda info, n=n: info["num_waiting"] == n)  # type: ignore[misc]
    t.pull("S", "c", {"batch": 1, "expires": 10 * SECOND}, 1)
    t.pull("S", "c", {"batch": 1, "no_wait": True}, 1)


@scenario
def requests_pending_before_a_no_wait(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.consumer("S", "c")
    wire = t.wire
    wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":5,"expires":10000000000}', wire.new_reply())
    t.numbers_when("S", "c", lambda info: info["num_waiting"] == 1)
    t.pull("S", "c", {"batch": 1, "no_wait": True}, 1)


@scenario
def request_of_a_gone_client_is_dropped(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.consumer("S", "c")
    gone = t.connect()
    gone.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":5,"expires":20000000000}', gone.new_reply())
    t.numbers_when("S", "c", lambda info: info["num_waiting"] == 1)
    gone.close()
    t.wire.ping()
    t.fill(["a.1"])
    t.pull("S", "c", {"batch": 1, "expires": 5 * SECOND}, 1)


@table(
    [
        ("batch", {"max_batch": 2}, {"batch": 3, "expires": SHORT}),
        ("batch_within", {"max_batch": 2}, {"batch": 2, "expires": SHORT}),
        ("expires", {"max_expires": SECOND}, {"batch": 1, "expires": 2 * SECOND}),
        ("expires_absent", {"max_expires": SECOND}, {"batch": 1, "no_wait": True}),
        ("bytes", {"max_bytes": 100}, {"batch": 1, "max_bytes": 101, "no_wait": True}),
        ("bytes_absent", {"max_bytes": 100}, {"batch": 1, "no_wait": True}),
    ]
)
def caps_of_the_consumer(t: Script, config: Any, body: Any) -> None:
    _stage(t, **config)
    t.pull("S", "c", body, 1)


@scenario
def absent_consumer_and_stream(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.frames("consumer", [t.wire.request("$JS.API.CONSUMER.MSG.NEXT.S.none", b"1")])
    t.frames("stream", [t.wire.request("$JS.API.CONSUMER.MSG.NEXT.T.none", b"1")])


@scenario
def a_push_consumer_refuses(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.consumer("S", "c", deliver_subject="to.me")
    t.pull("S", "c", {"batch": 1}, 1)


@scenario
def deleted_consumer_tells_the_waiting(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.consumer("S", "c")
    wire = t.wire
    reply = wire.new_reply()
    wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":5,"expires":10000000000}', reply)
    t.numbers_when("S", "c", lambda info: info["num_waiting"] == 1)
    t.setup("CONSUMER.DELETE.S.c")
    t.frames("409", [wire.message(reply)])


@scenario
def deleted_stream_tells_the_waiting(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.consumer("S", "c")
    wire = t.wire
    reply = wire.new_reply()
    wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":5,"expires":10000000000,"max_bytes":1000}', reply)
    t.numbers_when("S", "c", lambda info: info["num_waiting"] == 1)
    t.setup("STREAM.DELETE.S")
    t.frames("409", [wire.message(reply)])


# Each row: the deliver policy and filter. Recorded: the deliveries from six messages, then one more.
@table(
    [
        ("all", {}),
        ("last", {"deliver_policy": "last"}),
        ("last_filtered", {"deliver_policy": "last", "filter_subject": "a.1"}),
        ("new", {"deliver_policy": "new"}),
        ("by_sequence_1", {"deliver_policy": "by_start_sequence", "opt_start_seq": 1}),
        ("by_sequence_3", {"deliver_policy": "by_start_sequence", "opt_start_seq": 3}),
        ("by_sequence_of_the_next", {"deliver_policy": "by_start_sequence", "opt_start_seq": 7}),
        ("by_sequence_filtered", {"deliver_policy": "by_start_sequence", "opt_start_seq": 2, "filter_subject": "a.1"}),
        ("by_time", {"deliver_policy": "by_start_time", "opt_start_time": LONG_AGO}),
        ("last_per_subject", {"deliver_policy": "last_per_subject", "filter_subject": ">"}),
        ("last_per_subject_filtered", {"deliver_policy": "last_per_subject", "filter_subject": "a.*"}),
        ("last_per_subject_filters", {"deliver_policy": "last_per_subject", "filter_subjects": ["a.1", "b.1"]}),
        ("filter", {"filter_subject": "a.2"}),
        ("filter_wildcard", {"filter_subject": "*.1"}),
        ("filters", {"filter_subjects": ["a.1", "b.*"]}),
        ("filter_nothing", {"filter_subject": "a.9"}),
        ("headers_only", {"headers_only": True}),
        ("ack_none", {"ack_policy": "none"}),
        ("ack_all", {"ack_policy": "all"}),
    ]
)
def delivers(t: Script, config: dict[str, Any]) -> None:
    _stage(t, **config)
    before = t.numbers("S", "c")
    t.pull("S", "c", {"batch": 10, "no_wait": True}, before["num_pending"] + 1)
    t.numbers("S", "c")
    matching = int(config.get("filter_subject") not in ("a.2", "a.9"))
    t.fill_seen("S", "c", ["a.1"], b"after", {"A": "b"}, matching=matching)
    t.pull("S", "c", {"batch": 10, "no_wait": True}, matching + 1)
    t.numbers("S", "c")


@scenario
def deliver_by_time_between(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.fill(["a.1"] * 3)
    time_of_3 = t.wire.api("STREAM.MSG.GET.S", {"seq": 3})["message"]["time"]
    t.fill(["a.1"] * 2)
    t.hide(time_of_3, "<time of 3>")
    t.consumer("S", "c", deliver_policy="by_start_time", opt_start_time=time_of_3)
    t.consumer("S", "far", deliver_policy="by_start_time", opt_start_time="2099-01-01T00:00:00Z")
    t.pull("S", "c", {"batch": 10, "no_wait": True}, 4)
    t.numbers("S", "far")
    t.pull("S", "far", {"batch": 10, "no_wait": True}, 1)


@scenario
def numbers_step_by_step(t: Script) -> None:
    _stage(t)
    t.numbers("S", "c")
    frames = t.pull("S", "c", {"batch": 3}, 3)
    t.numbers("S", "c")
    t.ack(frames[1])
    t.numbers("S", "c")
    t.ack(frames[0])
    t.numbers("S", "c")
    t.ack(frames[2])
    t.numbers("S", "c")
    t.fill_seen("S", "c", ["a.1", "b.1"])
    t.numbers("S", "c")


@scenario
def pending_with_a_filter_and_deletes(t: Script) -> None:
    _stage(t, filter_subject="a.1")
    t.numbers("S", "c")
    t.setup("STREAM.MSG.DELETE.S", {"seq": 3})
    t.numbers("S", "c")
    t.fill_seen("S", "c", ["a.1", "a.2", "a.1"], matching=2)
    t.numbers("S", "c")
    t.pull("S", "c", {"batch": 10, "no_wait": True}, 4)
    t.numbers("S", "c")


@scenario
def purge_under_a_consumer(t: Script) -> None:
    _stage(t)
    frames = t.pull("S", "c", {"batch": 2}, 2)
    t.ack(frames[0])
    t.setup("STREAM.PURGE.S")
    t.numbers_when("S", "c", lambda info: info["num_ack_pending"] == 0)
    t.fill_seen("S", "c", ["a.1"])
    t.pull("S", "c", {"batch": 5, "no_wait": True}, 2)
    t.numbers("S", "c")


@scenario
def purge_of_a_part_under_a_consumer(t: Script) -> None:
    _stage(t)
    t.pull("S", "c", {"batch": 4}, 4)
    t.setup("STREAM.PURGE.S", {"seq": 4})
    t.numbers_when("S", "c", lambda info: info["num_ack_pending"] == 1)
    t.pull("S", "c", {"batch": 5, "no_wait": True}, 3)


@scenario
def delete_of_a_pending_message(t: Script) -> None:
    _stage(t)
    t.pull("S", "c", {"batch": 3}, 3)
    t.setup("STREAM.MSG.DELETE.S", {"seq": 2})
    t.numbers_when("S", "c", lambda info: info["num_ack_pending"] == 2)


@scenario
def limits_remove_what_was_not_delivered(t: Script) -> None:
    t.stream("S", ["a.*"], max_msgs=3)
    t.consumer("S", "c")
    t.fill([f"a.{n}" for n in range(8)])
    t.numbers_when("S", "c", lambda info: info["num_pending"] == 3)
    t.pull("S", "c", {"batch": 10, "no_wait": True}, 4)
    t.numbers("S", "c")


@scenario
def gaps_are_skipped(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.fill([f"a.{n}" for n in range(10)])
    for seq in (1, 2, 5, 6, 10):
        t.setup("STREAM.MSG.DELETE.S", {"seq": seq})
    t.consumer("S", "c")
    t.pull("S", "c", {"batch": 10, "no_wait": True}, 6)
    t.numbers("S", "c")


@scenario
def many_messages_in_order(t: Script) -> None:
    t.stream("S", ["a.*"], storage="file")
    t.fill([f"a.{n % 3}" for n in range(2000)], b"x" * 50)
    t.consumer("S", "c", ack_policy="none", filter_subjects=["a.0", "a.2"])
    wire, reply = t.wire, t.wire.new_reply()
    sequences: list[int] = []
    for count in (500, 500, 333):
        wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":500,"no_wait":true}', reply)
        sequences += [int(frame.reply.split(".")[5]) for frame in t.collect(wire, count)]
    t.frames("end", t.collect(wire, 1))
    t.note("right", sequences == [n for n in range(1, 2001) if (n - 1) % 3 != 1])
    t.numbers("S", "c")


@scenario
def two_consumers_are_independent(t: Script) -> None:
    _stage(t)
    t.consumer("S", "d", filter_subject="a.1")
    t.pull("S", "c", {"batch": 2}, 2)
    t.pull("S", "d", {"batch": 2}, 2)
    t.numbers("S", "c")
    t.numbers("S", "d")


@scenario
def filter_update_keeps_the_position(t: Script) -> None:
    _stage(t)
    t.pull("S", "c", {"batch": 2}, 2)
    t.consumer("S", "c", filter_subject="a.1")
    t.numbers("S", "c")
    t.pull("S", "c", {"batch": 5, "no_wait": True}, 2)
    t.numbers("S", "c")


@scenario
def messages_keep_headers_and_subject(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.fill(["a.1"], b"x", {"A": "b", "Nats-Msg-Id": "7"})
    t.fill(["a.2"], b"", {"C": "d"})
    t.consumer("S", "c")
    t.pull("S", "c", {"batch": 2}, 2)
    t.consumer("S", "h", headers_only=True)
    t.pull("S", "h", {"batch": 2}, 2)
