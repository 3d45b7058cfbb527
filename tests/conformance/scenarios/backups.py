"""Scenarios of snapshots and restores (docs/internals/api.md)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from lakestream.account.backup import archive
from lakestream.protocol import s2
from tests.conformance.harness import Script, scenario, table
from tests.wire import Frame

SECOND = 1_000_000_000
THEN = 1_795_286_767_245_884_336
"""Store time of the archived messages."""
CHUNK = 1 << 20

Entries = list[bytes]


def state(first: int = 1, last: int = 2, messages: int = 2, consumers: int = 0) -> dict[str, Any]:
    """Return the content of state.json."""
    return {
        "messages": messages,
        "bytes": 0,
        "first_seq": first,
        "first_ts": "2026-11-21T18:46:07.2Z",
        "last_seq": last,
        "last_ts": "2026-11-21T18:46:10Z",
        "consumer_count": consumers,
    }


def message(seq: int, subject: bytes = b"r.1", data: bytes = b"x", header: bytes = b"", after_ns: int = 0) -> bytes:
    """Return an archived message."""
    return archive.entry(subject, THEN + after_ns, seq, header, data)


def with_header(seq: int, *fields: bytes) -> bytes:
    """Return an archived message with header fields."""
    return message(seq, header=b"NATS/1.0\r\n" + b"".join(field + b"\r\n" for field in fields) + b"\r\n")


def consumer(name: str, saved: Any) -> bytes:
    """Return an archived consumer."""
    return archive.entry(b"consumers/" + name.encode(), THEN, body=json.dumps(saved).encode())


def raw(saved: Any, entries: Entries, end: bytes = archive.END) -> bytes:
    """Return an archive without S2 compression."""
    return (
        archive.MAGIC
        + archive.entry(archive.STATE_NAME, THEN, body=json.dumps(saved).encode())
        + b"".join([*entries, end])
    )


def packed(data: bytes) -> bytes:
    """Return the data compressed with S2."""
    return s2.MAGIC + s2.encode(data)


def send(t: Script, data: bytes, config: dict[str, Any], saved: Any, chunk: int = CHUNK) -> Any:
    """Restore a stream; record the outcome. The acks of the chunks must be empty."""
    name = config["name"]
    answer = t.wire.api(f"STREAM.RESTORE.{name}", {"config": config, "state": saved})
    assert "error" not in answer, answer
    to = answer["deliver_subject"]
    assert to.startswith(f"$JS.SNAPSHOT.RESTORE.{name}.")
    for at in range(0, len(data), chunk):
        ack = t.wire.request(to, data[at : at + chunk])
        assert (ack.data, ack.header) == (b"", b""), ack
    outcome = t.wire.request(to)
    t.note(f"restore of {name}", outcome.json())
    return outcome.json()


def stream(**fields: Any) -> dict[str, Any]:
    """Return the configuration of the restored stream."""
    return {"name": "R", "subjects": ["r.*"], "storage": "file", "retention": "limits", **fields}


FOUR = [message(seq, b"r.%d" % seq) for seq in range(1, 5)]
SAME = [message(seq) for seq in range(1, 5)]


# Each row: the archive's state and messages, and configuration fields that override `stream()`.
@table(
    [
        ("plain", state(), [message(1), message(2)], {}),
        ("in_memory", state(), [message(1), message(2)], {"storage": "memory"}),
        ("headers", state(), [with_header(1, b"A: b"), with_header(2, b"Nats-Msg-Id: q", b"X:y")], {}),
        ("gaps", state(3, 9), [message(3), message(7)], {}),
        ("gap_in_front", state(3, 9, 1), [message(5)], {}),
        ("gap_in_front_in_memory", state(3, 9, 1), [message(5)], {"storage": "memory"}),
        ("more_than_the_state_says", state(1, 2), [message(1), message(7)], {}),
        ("fewer_than_the_state_says", state(1, 2), [message(1)], {}),
        ("never_held_a_message", state(0, 0, 0), [], {}),
        ("empty_at_ten", state(10, 9, 0), [], {}),
        ("all_deleted", state(1, 9, 0), [], {}),
        ("empty_in_memory", state(10, 9, 0), [], {"storage": "memory"}),
        ("large_sequences", state(1 << 40, (1 << 40) + 7), [message(1 << 40), message((1 << 40) + 5)], {}),
        ("foreign_subject", state(), [message(1, b"foreign"), message(2, b"a.b.c")], {}),
        ("no_subjects", state(), [message(1), message(2)], {"subjects": None}),
        ("max_msgs", state(1, 4, 4), FOUR, {"max_msgs": 2}),
        ("max_msgs_discard_new", state(1, 4, 4), FOUR, {"max_msgs": 2, "discard": "new"}),
        ("max_bytes", state(1, 4, 4), FOUR, {"max_bytes": 80}),
        ("per_subject", state(1, 4, 4), SAME, {"max_msgs_per_subject": 1}),
        ("interest_without_consumers", state(1, 4, 4), FOUR, {"retention": "interest"}),
        ("workqueue", state(1, 4, 4), FOUR, {"retention": "workqueue"}),
        ("sealed", state(1, 4, 4), FOUR, {"sealed": True}),
        ("denied", state(1, 4, 4), FOUR, {"deny_delete": True, "deny_purge": True}),
        ("direct", state(1, 4, 4), FOUR, {"allow_direct": True}),
        (
            "rollup_is_over",
            state(1, 3, 3),
            [message(1), message(2), with_header(3, b"Nats-Rollup: all")],
            {"allow_rollup_hdrs": True},
        ),
        ("first_seq_below", state(5, 6), [message(5), message(6)], {"first_seq": 3}),
        (
            "metadata",
            state(),
            [message(1), message(2)],
            {"metadata": {"a": "b", "_nats.ver": "1", "_nats.req.level": "0"}},
        ),
        ("trailing_bytes", state(), [message(1), message(2), archive.END, b"what comes here is not read"], {}),
    ]
)
def restored(t: Script, saved: Any, entries: Entries, fields: dict[str, Any]) -> None:
    send(t, packed(raw(saved, entries)), stream(**fields), saved)
    t.api("STREAM.INFO.R", {"deleted_details": True})
    t.api("STREAM.INFO.R", {"subjects_filter": ">"})
    if fields.get("subjects", True) and not fields.get("sealed"):
        t.publish("r.new", b"more")


@scenario
def restored_messages_are_as_they_were(t: Script) -> None:
    entries = [
        message(2, b"r.a", b"\x00\xff", after_ns=5),
        message(4, b"r.b", b"", b"NATS/1.0\r\nA:  b \r\na: c\r\n\r\n", after_ns=7),
        message(5, b"r.a", b"z" * 5000, after_ns=1_000_000),
    ]
    send(t, packed(raw(state(2, 5, 3), entries)), stream(allow_direct=True), state(2, 5, 3))
    for seq in (2, 4, 5):
        answer = t.api("STREAM.MSG.GET.R", {"seq": seq})
        t.note("its time", str(answer["message"]["time"]).removeprefix("2026-11-21T"))
    t.api("STREAM.MSG.GET.R", {"seq": 3})
    t.direct("R", {"last_by_subj": "r.b"})


@scenario
def message_ids_are_not_remembered(t: Script) -> None:
    entries = [with_header(1, b"Nats-Msg-Id: q"), message(2)]
    send(t, packed(raw(state(), entries)), stream(), state())
    t.publish("r.1", b"again", {"Nats-Msg-Id": "q"})
    t.publish("r.1", b"again", {"Nats-Msg-Id": "q"})
    t.publish("r.1", b"", {"Nats-Expected-Last-Sequence": "3"})
    t.publish("r.1", b"", {"Nats-Expected-Last-Subject-Sequence": "4"})


@scenario
def ages_go_on(t: Script) -> None:
    old = [message(seq, b"r.%d" % seq, after_ns=-(10**14)) for seq in (1, 2)]
    send(t, packed(raw(state(), old)), stream(max_age=SECOND), state())
    t.state_when("R", lambda now: now["messages"] == 0)


@scenario
def times_to_live_go_on(t: Script) -> None:
    entries = [with_header(1, b"Nats-TTL: 1s"), with_header(2, b"Nats-TTL: 99999h"), message(3)]
    data = packed(raw(state(1, 3, 3), entries))
    answer = t.wire.api("STREAM.RESTORE.R", {"config": stream(allow_msg_ttl=True), "state": state(1, 3, 3)})
    t.wire.request(answer["deliver_subject"], data)
    t.wire.request(answer["deliver_subject"])
    t.state_when("R", lambda now: now["messages"] == 2)


@table([("bytes", 1), ("pieces", 100), ("whole", CHUNK)])
def chunks_of_any_size(t: Script, size: int) -> None:
    send(t, packed(raw(state(1, 4, 4), FOUR)), stream(), state(1, 4, 4), size)


@scenario
def schedules_go_on(t: Script) -> None:
    entries = [
        with_header(1, b"Nats-Schedule: @at 2026-11-21T18:00:00Z", b"Nats-Schedule-Target: r.target"),
        with_header(2, b"Nats-Schedule: @at 2100-01-01T00:00:00Z", b"Nats-Schedule-Target: r.never"),
    ]
    t.wire.subscribe("r.target")
    answer = t.wire.api("STREAM.RESTORE.R", {"config": stream(allow_msg_schedules=True), "state": state()})
    t.wire.request(answer["deliver_subject"], packed(raw(state(), entries)))
    t.wire.request(answer["deliver_subject"])
    t.state_when("R", lambda now: now["last_seq"] == 3)
    t.api("STREAM.MSG.GET.R", {"seq": 3})


NOTHING: Entries = []


# Each row: the content of all chunks.
@table(
    [
        ("no_bytes", b""),
        ("no_s2_stream", b"garbage that is no s2 at all"),
        ("without_identifier", s2.encode(raw(state(), NOTHING))),
        ("empty_stream", s2.MAGIC),
        ("no_archive", packed(b"hello world")),
        ("cut_in_a_chunk", packed(raw(state(), SAME))[:-4]),
        ("bad_checksum", packed(raw(state(), SAME)).replace(b"r.1x", b"r.1y")),
        ("no_end", packed(raw(state(1, 4, 4), SAME, b""))),
        ("cut_in_a_message", packed(raw(state(1, 4, 4), SAME, b"")[:-3])),
        ("message_first", packed(archive.MAGIC + message(1) + archive.END)),
        ("state_is_no_json", packed(archive.MAGIC + archive.entry(b"state.json", THEN, body=b"[") + archive.END)),
        ("more_messages_than_sequences", packed(raw(state(1, 2, 3), SAME))),
        ("sequence_twice", packed(raw(state(), [message(1), message(1)]))),
        ("sequences_descend", packed(raw(state(), [message(2), message(1)]))),
        ("sequence_below_the_first", packed(raw(state(5, 9), [message(3)]))),
        ("entry_without_sequence", packed(raw(state(), [message(1), archive.entry(b"weird", THEN)]))),
        ("consumer_not_counted", packed(raw(state(), [consumer("C", {})]))),
        ("consumer_missing", packed(raw(state(consumers=1), [message(1)]))),
        ("consumer_without_config", packed(raw(state(consumers=1), [consumer("C", {})]))),
        ("consumer_without_state", packed(raw(state(consumers=1), [consumer("C", {"config": {"name": "C"}})]))),
        (
            "consumer_with_bad_config",
            packed(raw(state(consumers=1), [consumer("C", {"config": {"ack_policy": "bad"}, "state": {}})])),
        ),
        (
            "consumer_refused",
            packed(
                raw(
                    state(consumers=1),
                    [consumer("C", {"config": {"name": "C", "deliver_policy": "by_start_sequence"}, "state": {}})],
                )
            ),
        ),
    ]
)
def no_good(t: Script, data: bytes) -> None:
    send(t, data, stream(), state())


@table(
    [
        ("message_too_large", {"max_msg_size": 10}),
        ("first_seq_above", {"first_seq": 50}),
        ("replicas_on_one_server", {"num_replicas": 3}),
        ("subjects_overlap", {"subjects": ["taken.>"]}),
    ]
)
def not_with_this_configuration(t: Script, fields: dict[str, Any]) -> None:
    t.stream("T", ["taken.*"])
    send(t, packed(raw(state(1, 1, 1), [message(1, data=b"x" * 100)])), stream(**fields), state(1, 1, 1))


# Each row: the body of a RESTORE that is refused at once.
@table(
    [
        ("empty", None),
        ("empty_object", {}),
        ("no_json", b"x"),
        ("cut", b"["),
        ("unknown_field", {"config": {"name": "R"}, "foo": 1}),
        ("unknown_field_of_the_configuration", {"config": {"name": "R", "foo": 1}}),
        ("wrong_type_in_the_state", {"config": {"name": "R"}, "state": {"messages": "x"}}),
        ("another_name", {"config": {"name": "X"}}),
        ("another_name_that_exists", {"config": {"name": "T"}}),
        ("bad_configuration", {"config": {"name": "R", "max_age": -1}}),
        ("too_many_replicas", {"config": {"name": "R", "num_replicas": 9}}),
        ("bad_retention", {"config": {"name": "R", "retention": "foo"}}),
    ]
)
def restore_refused(t: Script, body: Any) -> None:
    t.stream("T", ["taken.*"])
    t.api("STREAM.RESTORE.R", body)


@table(
    [
        ("exists", {"config": {"name": "T"}}),
        ("exists_and_bad_configuration", {"config": {"name": "T", "max_age": -1}}),
        ("exists_and_too_many_replicas_for_one", {"config": {"name": "T", "num_replicas": 3}}),
        ("exists_and_another_name", {"config": {"name": "X"}}),
    ]
)
def restore_of_what_exists(t: Script, body: Any) -> None:
    t.stream("T", ["taken.*"])
    t.api("STREAM.RESTORE.T", body)


@scenario
def the_name_may_be_left_out(t: Script) -> None:
    answer = t.wire.api("STREAM.RESTORE.R", {"config": {"subjects": ["r.*"]}})
    t.note("subject", answer["deliver_subject"].rpartition(".")[0])
    t.wire.request(answer["deliver_subject"], packed(raw(state(), [message(1), message(2)])))
    t.note("outcome", t.wire.request(answer["deliver_subject"]).json())


def drain(t: Script, name: str, stream_name: str = "R") -> None:
    """Record the answers to a pull of all messages, with the final status."""
    reply = t.wire.new_reply()
    t.wire.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream_name}.{name}", b'{"batch":10,"no_wait":true}', reply)
    frames = t.collect(t.wire, 1)
    while not frames[-1].status and frames[-1].verb in ("MSG", "HMSG"):
        frames += t.collect(t.wire, 1)
    t.frames("all there is", frames)


def positions(consumer_seq: int, stream_seq: int) -> dict[str, int]:
    """Return a consumer's position."""
    return {"consumer_seq": consumer_seq, "stream_seq": stream_seq}


DURABLE = {"name": "C", "durable_name": "C", "ack_policy": "explicit"}
HALFWAY = {
    "delivered": positions(3, 3),
    "ack_floor": positions(1, 1),
    "pending": {"3": {"Sequence": 3, "Timestamp": THEN * 2}},
}


# Each row: a consumer's configuration and state in the archive of four messages.
@table(
    [
        ("new", DURABLE, {"delivered": positions(0, 0), "ack_floor": positions(0, 0)}),
        ("state_of_nothing", DURABLE, {}),
        ("halfway", {**DURABLE, "ack_wait": 3600 * SECOND}, HALFWAY),
        ("redelivered", {**DURABLE, "max_deliver": 5, "ack_wait": 3600 * SECOND}, {**HALFWAY, "redelivered": {"3": 2}}),
        ("unnamed", {"ack_policy": "explicit"}, {}),
        ("another_name_inside", {"name": "D", "durable_name": "D"}, {}),
        ("unknown_fields", {**DURABLE, "foo": 1}, {"bar": 1}),
        ("in_memory", {**DURABLE, "mem_storage": True}, HALFWAY),
        (
            "filtered",
            {**DURABLE, "filter_subject": "r.4"},
            {"delivered": positions(0, 0), "ack_floor": positions(0, 0)},
        ),
        ("ack_none", {"durable_name": "C", "ack_policy": "none"}, {"delivered": positions(2, 2)}),
        ("deliver_new", {**DURABLE, "deliver_policy": "new"}, {"delivered": positions(0, 4)}),
        ("push", {**DURABLE, "deliver_subject": "nobody.there"}, HALFWAY),
    ]
)
def consumers(t: Script, config: dict[str, Any], saved: dict[str, Any]) -> None:
    entries = [consumer("C", {"config": config, "state": saved}), *FOUR]
    send(t, packed(raw(state(1, 4, 4, 1), entries)), stream(), state(1, 4, 4, 1))
    names = t.api("CONSUMER.NAMES.R")["consumers"]
    for name in names:
        t.api(f"CONSUMER.INFO.R.{name}")
    if not config.get("deliver_subject"):
        drain(t, names[0])


@scenario
def what_was_pending_too_long_comes_again(t: Script) -> None:
    late = {**HALFWAY, "pending": {"2": {"Sequence": 2, "Timestamp": THEN}, "3": {"Sequence": 3, "Timestamp": THEN}}}
    entries = [consumer("C", {"config": {**DURABLE, "ack_wait": SECOND}, "state": late}), *FOUR]
    send(t, packed(raw(state(1, 4, 4, 1), entries)), stream(), state(1, 4, 4, 1))
    t.pull("R", "C", {"batch": 3, "expires": 3 * SECOND}, 3)


@scenario
def a_work_queue_goes_on(t: Script) -> None:
    entries = [consumer("C", {"config": {**DURABLE, "ack_wait": 3600 * SECOND}, "state": HALFWAY}), *FOUR]
    send(t, packed(raw(state(1, 4, 4, 1), entries)), stream(retention="workqueue"), state(1, 4, 4, 1))
    frames = t.pull("R", "C", {"batch": 1, "no_wait": True}, 1)
    t.ack(frames[0])
    t.state_when("R", lambda now: now["messages"] == 1)


# ---------------------------------------------------------------------------- snapshots


def take(t: Script, name: str = "S", **fields: Any) -> tuple[Any, bytes]:
    """Take a snapshot; record the answer, the entries and its end."""
    to = f"BACKUP.{len(t.transcript)}"
    sid = t.wire.subscribe(to)
    answer = t.api(f"STREAM.SNAPSHOT.{name}", {"deliver_subject": to, **fields})
    frames: list[Frame] = []
    full = True
    while not frames or frames[-1].data:
        frame = t.wire.delivered(sid)
        frames.append(frame)
        if frame.reply:
            assert frame.reply.startswith(f"$JS.SNAPSHOT.ACK.{name}."), frame
            assert frame.reply.split(".")[-2:] == [str(len(frame.data)), str(len(frames))], frame
            t.wire.publish(frame.reply)
        full = bool(frame.reply)
    assert full or not frames[-1].data
    t.wire.unsubscribe(sid)
    data = b"".join(frame.data for frame in frames)
    t.note("end", frames[-1].header)
    decoder = s2.Decoder()
    t.note("entries", list(shown(b"".join(decoder.feed(data)))))
    decoder.finish()
    return answer, data


def shown(data: bytes) -> Any:
    """Return the entries of an archive as data."""
    archived = archive.Archive([data])
    yield {key: getattr(archived.state, key) for key in ("messages", "bytes", "first_seq", "last_seq", "num_subjects")}
    yield {key: getattr(archived.state, key) for key in ("num_deleted", "consumer_count")}
    for each in sorted(archived.consumers, key=lambda one: one.name):
        yield [each.name, json.loads(each.config), _progress(each.state)]
        yield {seq: pending.sequence for seq, pending in each.state.pending.items()}
    for record in archived.messages():
        yield [record.seq, record.subject, record.header, record.data]


def _progress(saved: archive.ConsumerState) -> Any:
    pairs = [(each.consumer_seq, each.stream_seq) for each in (saved.delivered, saved.ack_floor)]
    return [*pairs, saved.redelivered]


def filled(t: Script, **fields: Any) -> None:
    """Create a stream with a gap, headers, and a larger message."""
    t.stream("S", ["s.*"], **fields)
    t.fill(["s.1", "s.2", "s.1"])
    t.fill(["s.3"], b"h", {"A": "b"})
    t.fill(["s.1"], b"z" * 2000)


@table(
    [
        ("memory", {"storage": "memory"}),
        ("file", {"storage": "file", "max_msgs_per_subject": 10}),
        ("metadata", {"metadata": {"a": "b"}}),
        ("sealed", {"storage": "file"}),
    ]
)
def snapshot(t: Script, fields: dict[str, Any]) -> None:
    filled(t, **fields)
    t.setup("STREAM.MSG.DELETE.S", {"seq": 2})
    take(t)


@table([("never_used", lambda t: None), ("purged", lambda t: (t.fill(["s.1"]), t.setup("STREAM.PURGE.S")))])
def snapshot_of_nothing(t: Script, prepare: Callable[[Script], Any]) -> None:
    t.stream("S", ["s.*"], storage="file")
    prepare(t)
    take(t)


@scenario
def snapshot_of_consumers(t: Script) -> None:
    filled(t, storage="file")
    t.consumer("S", "C", ack_wait=3600 * SECOND)
    t.consumer("S", "N", deliver_policy="new", filter_subject="s.1")
    t.setup("CONSUMER.CREATE.S.E", {"stream_name": "S", "config": {"name": "E", "inactive_threshold": 60 * SECOND}})
    frames = t.pull("S", "C", {"batch": 3}, 3)
    t.ack(frames[0])
    t.ack(frames[2])
    take(t)
    take(t, no_consumers=True)


@table(
    [
        ("smallest", {"chunk_size": 1024}),
        ("below_the_smallest", {"chunk_size": 10, "window_size": 10}),
        ("negative", {"chunk_size": -1, "window_size": -5}),
        ("checked", {"jsck": True, "chunk_size": 1024}),
    ]
)
def snapshot_in_chunks(t: Script, fields: dict[str, Any]) -> None:
    t.stream("S", ["s.*"], storage="file")
    # Hardly compressible data: there are full chunks whether or not the server compresses.
    for seed in range(8):
        t.fill(["s.1"], bytes((seed * 131 + at * at * 7 + at // 3 * 31) % 251 for at in range(3000)))
    take(t, **fields)


@table(
    [
        ("empty", None),
        ("empty_object", {}),
        ("no_subject", {"deliver_subject": ""}),
        ("wildcard", {"deliver_subject": "a.*"}),
        ("full_wildcard", {"deliver_subject": "a.>"}),
        ("blank", {"deliver_subject": "a b"}),
        ("empty_token", {"deliver_subject": "a..b"}),
        ("unknown_field", {"deliver_subject": "a", "foo": 1}),
        ("wrong_type", {"deliver_subject": 5}),
        ("wrong_type_of_size", {"deliver_subject": "a", "chunk_size": "x"}),
        ("no_json", b"x"),
    ]
)
def snapshot_refused(t: Script, body: Any) -> None:
    t.stream("S", ["s.*"])
    t.api("STREAM.SNAPSHOT.S", body)
    t.api("STREAM.SNAPSHOT.NONE", body)


@scenario
def there_and_back(t: Script) -> None:
    filled(t, storage="file", allow_direct=True)
    t.setup("STREAM.MSG.DELETE.S", {"seq": 2})
    t.consumer("S", "C", ack_wait=3600 * SECOND)
    t.ack(t.pull("S", "C", {"batch": 2}, 2)[0])
    answer, data = take(t)
    t.setup("STREAM.DELETE.S")
    send(t, data, answer["config"], answer["state"], 500)
    t.api("STREAM.INFO.S", {"deleted_details": True, "subjects_filter": ">"})
    t.numbers("S", "C")
    drain(t, "C", "S")
    take(t)


def event(frame: Frame) -> Any:
    """Return an advisory without its random values."""
    fields = frame.json()
    assert fields.pop("id")
    client = fields["client"]
    for key in ("id", "server", "rtt", "start"):
        client[key] = bool(client.get(key))
    return [frame.subject, list(fields), fields]


@scenario
def advisories(t: Script) -> None:
    filled(t, storage="file")
    events = [
        t.wire.subscribe(f"$JS.EVENT.ADVISORY.STREAM.{kind}.>") for kind in ("SNAPSHOT_CREATE", "SNAPSHOT_COMPLETE")
    ]
    answer, _ = take(t)
    for sid in events:
        t.note("told", event(t.wire.delivered(sid)))
    t.setup("STREAM.DELETE.S")
    created = t.wire.subscribe("$JS.EVENT.ADVISORY.STREAM.CREATED.>")
    events = [
        t.wire.subscribe(f"$JS.EVENT.ADVISORY.STREAM.{kind}.>") for kind in ("RESTORE_CREATE", "RESTORE_COMPLETE")
    ]
    send(t, packed(raw(state(), [message(1), message(2)])), {**answer["config"], "name": "S"}, answer["state"])
    for sid in events:
        t.note("told", event(t.wire.delivered(sid)))
    said = t.wire.delivered(created).json()
    t.note("created", {key: said[key] for key in ("type", "stream", "action")})
    events = [t.wire.subscribe("$JS.EVENT.ADVISORY.STREAM.RESTORE_COMPLETE.>")]
    send(t, b"no good", stream(), state())
    t.note("told", event(t.wire.delivered(events[0])))
