"""Scenarios of key-value buckets as clients create and use them, on the wire (docs/internals/kv-object.md; ADR-8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.conformance.harness import Script, scenario, table
from tests.conformance.scenarios.counters import content
from tests.wire import Wire

SECOND = 1_000_000_000
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
TTL = "Nats-TTL"
DELETE = {"KV-Operation": "DEL"}
PURGE = {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}

GO = {
    "name": "KV_b",
    "description": "",
    "subjects": ["$KV.b.>"],
    "retention": "limits",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "discard": "new",
    "max_age": 0,
    "max_msgs_per_subject": 1,
    "max_msg_size": -1,
    "storage": "file",
    "num_replicas": 1,
    "duplicate_window": 120 * SECOND,
    "compression": "none",
    "deny_delete": True,
    "allow_rollup_hdrs": True,
    "allow_direct": True,
    "mirror_direct": False,
    "consumer_limits": {},
}
PYTHON = {
    "name": "KV_b",
    "subjects": ["$KV.b.>"],
    "allow_direct": False,
    "allow_rollup_hdrs": True,
    "allow_msg_ttl": True,
    "deny_delete": True,
    "deny_purge": False,
    "discard": "new",
    "discard_new_per_subject": False,
    "duplicate_window": 120 * SECOND,
    "max_age": 0,
    "max_consumers": -1,
    "max_msgs": -1,
    "max_msgs_per_subject": 1,
    "mirror_direct": False,
    "num_replicas": 1,
    "no_ack": False,
    "sealed": False,
}
JAVASCRIPT = {
    "name": "KV_b",
    "retention": "limits",
    "max_msgs_per_subject": 1,
    "max_bytes": -1,
    "max_msg_size": -1,
    "storage": "file",
    "subjects": ["$KV.b.>"],
    "discard": "new",
    "allow_direct": True,
    "num_replicas": 1,
    "allow_rollup_hdrs": True,
}

WATCH = {
    "deliver_subject": "to.me",
    "deliver_policy": "last_per_subject",
    "ack_policy": "none",
    "ack_wait": 22 * 3600 * SECOND,
    "max_deliver": 1,
    "flow_control": True,
    "idle_heartbeat": 5 * SECOND,
    "inactive_threshold": 300 * SECOND,
    "mem_storage": True,
    "num_replicas": 1,
}


def bucket(t: Script, **config: Any) -> None:
    """Create a bucket as the Go client does, as preparation; in memory by default."""
    t.setup("STREAM.CREATE.KV_b", {**GO, "storage": "memory", **config})


def write(t: Script, *writes: tuple[str, dict[str, str]] | str) -> None:
    """Put, delete and purge keys as preparation: a key alone is a put of v1, v2…"""
    for n, one in enumerate(writes, 1):
        key, headers = (one, None) if isinstance(one, str) else one
        frame = t.wire.request(f"$KV.b.{key}", b"" if headers else f"v{n}".encode(), headers)
        assert "error" not in frame.json(), frame.json()


def watch(t: Script, name: str = "w", **config: Any) -> tuple[Wire, str, Any]:
    """Create a watcher's consumer and record the answer; return its connection, subscription and num_pending."""
    wire = t.connect()
    sid = wire.subscribe(f"to.{name}")
    wire.ping()
    asked = {**WATCH, "name": name, "deliver_subject": f"to.{name}", **config}
    one = asked.get("filter_subject")
    answer = t.api(
        f"CONSUMER.CREATE.KV_b.{name}" + (f".{one}" if one else ""),
        {"stream_name": "KV_b", "config": asked, "action": "create"},
    )
    return wire, sid, answer.get("num_pending", 0)


def told(t: Script, label: str, wire: Wire, sid: str, count: int) -> None:
    """Record the next entries of a watch."""
    t.frames(label, t.collect(wire, count, sid=sid))


@table([("go", GO), ("python", PYTHON), ("javascript", JAVASCRIPT)])
def made_by(t: Script, config: dict[str, Any]) -> None:
    """Create, find, create again, update and remove a bucket as the clients do."""
    t.api("STREAM.INFO.KV_b")
    made = t.api("STREAM.CREATE.KV_b", config)
    t.api("STREAM.CREATE.KV_b", config)
    t.api("STREAM.CREATE.KV_b", config | {"max_msgs_per_subject": 2})
    t.api("STREAM.NAMES", {"subject": "$KV.*.>"})
    t.api("STREAM.LIST", {"subject": "$KV.*.>"})
    t.api("STREAM.NAMES", {"subject": "$KV.b.key"})
    t.publish("$KV.b.key", b"v")
    t.api("STREAM.UPDATE.KV_b", made["config"] | {"description": "echoed, with what the server added"})
    t.api("STREAM.UPDATE.KV_b", made["config"] | {"max_msgs_per_subject": 64})
    t.api("STREAM.INFO.KV_b", {"subjects_filter": "$KV.b.>"})
    t.api("STREAM.DELETE.KV_b")
    t.publish("$KV.b.key", b"v")


# Each row: the bucket's configuration beside the Go client's usual one.
@table(
    [
        ("history", {"max_msgs_per_subject": 64}),
        ("more_history_than_clients_allow", {"max_msgs_per_subject": 65}),
        ("ttl", {"max_age": 90 * SECOND, "duplicate_window": 90 * SECOND}),
        ("ttl_below_the_window", {"max_age": 90 * SECOND}),
        ("ttl_below_a_second", {"max_age": SECOND // 10, "duplicate_window": SECOND // 10}),
        ("limit_marker", {"allow_msg_ttl": True, "subject_delete_marker_ttl": SECOND}),
        ("limit_marker_alone", {"subject_delete_marker_ttl": SECOND}),
        ("limit_marker_below_a_second", {"allow_msg_ttl": True, "subject_delete_marker_ttl": SECOND // 2}),
        ("limit_marker_and_ttl", {"max_age": 90 * SECOND, "subject_delete_marker_ttl": 900 * SECOND}),
        ("limits", {"max_bytes": 1000, "max_msg_size": 100}),
        ("compressed", {"compression": "s2", "storage": "file"}),
        ("compressed_in_memory", {"compression": "s2"}),
        ("republish", {"republish": {"src": ">", "dest": "told.>"}}),
        ("republish_headers", {"republish": {"src": "$KV.b.>", "dest": "told.>", "headers_only": True}}),
        ("republish_to_itself", {"republish": {"src": ">", "dest": "$KV.b.told.>"}}),
        ("metadata", {"metadata": {"owner": "tests"}}),
        ("no_rollup", {"allow_rollup_hdrs": False}),
        ("deny_purge", {"deny_purge": True}),
        ("rollup_and_deny_purge", {"deny_purge": True, "allow_rollup_hdrs": True}),
    ]
)
def configured_with(t: Script, config: dict[str, Any]) -> None:
    made = t.api("STREAM.CREATE.KV_b", {**GO, "storage": "memory", **config})
    if "error" not in made:
        t.publish("$KV.b.key", b"v")
        t.publish("$KV.b.key", b"", PURGE)
        t.state("KV_b")


# ------------------------------------------------------------------------------------------------ compare and set
# Operations on the key before; every expectation is then tried, and read back.
HISTORIES: dict[str, Sequence[tuple[str, dict[str, str]] | str]] = {
    "never_written": ["other"],
    "put": ["k", "other"],
    "put_twice": ["k", "other", "k"],
    "deleted": ["k", ("k", DELETE), "other"],
    "deleted_without_a_put": [("k", DELETE)],
    "purged": ["k", "k", ("k", PURGE), "other"],
    "put_after_a_purge": ["k", ("k", PURGE), "k"],
}
EXPECTATIONS = ("0", "1", "2", "3", "99", "18446744073709551615", "-1", "x", "", " 2", "02", "0" * 30 + "2")


@table([(f"{name}-history_{h}", writes, h) for name, writes in HISTORIES.items() for h in (1, 5)])
def compared(t: Script, writes: Sequence[tuple[str, dict[str, str]] | str], history: int) -> None:
    """Create, update, delete and purge with every expectation of the key's last revision."""
    bucket(t, max_msgs_per_subject=history)
    for operation in ({}, DELETE, PURGE):
        for value in EXPECTATIONS:
            t.setup("STREAM.PURGE.KV_b")
            before = t.wire.api("STREAM.INFO.KV_b")["state"]["last_seq"]
            write(t, *writes)
            shifted = str(int(value) + before) if value in ("1", "2", "3") else value
            answer = t.wire.request("$KV.b.k", b"" if operation else b"new", {**operation, EXPECTED: shifted}).json()
            answer.get("error", {}).pop("description", None)  # contains a sequence that depends on the rows before
            if "seq" in answer:
                answer["seq"] -= before
            t.note(f"{operation} expecting {value!r}", answer)
    content(t, "KV_b")


@scenario
def an_expectation_names_the_sequence_it_missed(t: Script) -> None:
    bucket(t, max_msgs_per_subject=5)
    write(t, "k", "other", "k")
    for value in ("0", "1", "2", "4"):
        t.publish("$KV.b.k", b"x", {EXPECTED: value})
    t.publish("$KV.b.none", b"x", {EXPECTED: "3"})
    t.publish("$KV.b.k", b"", PURGE | {EXPECTED: "2"})
    t.publish("$KV.b.k", b"", PURGE | {EXPECTED: "3"})
    t.publish("$KV.b.k", b"x", {EXPECTED: "0"})
    t.publish("$KV.b.k", b"again", {EXPECTED: "4"})


@table([(v, v) for v in ("18446744073709551616", "18446744073709551619", "1" + "0" * 30)])
def expectations_that_no_sequence_can_meet(t: Script, value: str) -> None:
    """Expected sequences are not taken modulo 2^64, where 2^64 is 0 and 2^64 + 3 is 3."""
    bucket(t, max_msgs_per_subject=5)
    write(t, "k", "k", "k")
    for key in ("k", "none"):
        t.publish(f"$KV.b.{key}", b"x", {EXPECTED: value})


@scenario
def one_of_many_creates(t: Script) -> None:
    """Of concurrent creates of one key the first is stored."""
    bucket(t)
    wires = [t.connect() for _ in range(8)]
    for n, wire in enumerate(wires):
        for m in range(20):
            wire.publish("$KV.b.k", f"{n}-{m}".encode(), wire.new_reply(), {EXPECTED: "0"})
    answers = [wire.next(lambda frame: frame.verb == "MSG").json() for wire in wires for _ in range(20)]
    t.note("stored", [answer["seq"] for answer in answers if "error" not in answer])
    t.note("refused", sorted({answer["error"]["err_code"] for answer in answers if "error" in answer}))
    t.state("KV_b")


@scenario
def updates_of_one_connection_build_on_each_other(t: Script) -> None:
    bucket(t, max_msgs_per_subject=64)
    wire = t.wire
    replies = [wire.new_reply() for _ in range(50)]
    for n, reply in enumerate(replies):
        wire.publish("$KV.b.k", str(n).encode(), reply, {EXPECTED: str(n)})
    t.note("revisions", [wire.message(reply).json().get("seq") for reply in replies])
    t.state("KV_b", subjects_filter="$KV.b.k")


# ------------------------------------------------------------------------------------------------ reading
@table([("direct", True), ("not_direct", False)])
def read(t: Script, direct: bool) -> None:
    """The last revision and every other one are read by both methods."""
    bucket(t, max_msgs_per_subject=2, allow_direct=direct)
    write(t, "k", "k", "other", "k", "gone", ("gone", DELETE), "purged", ("purged", PURGE))
    for key in ("k", "other", "gone", "purged", "none", "k.more"):
        t.api("STREAM.MSG.GET.KV_b", {"last_by_subj": f"$KV.b.{key}"})
        if direct:
            t.direct(f"KV_b.$KV.b.{key}", None)
            t.direct("KV_b", {"last_by_subj": f"$KV.b.{key}"})
    for seq in range(10):
        t.api("STREAM.MSG.GET.KV_b", {"seq": seq})
        if direct:
            t.direct("KV_b", {"seq": seq})


@scenario
def without_direct_get_nobody_answers_it(t: Script) -> None:
    bucket(t, allow_direct=False)
    write(t, "k")
    t.direct("KV_b.$KV.b.k", None)
    t.direct("KV_b", {"seq": 1})


@scenario
def many_keys_at_once(t: Script) -> None:
    """The last values of several patterns come as one direct get answer."""
    bucket(t, max_msgs_per_subject=3)
    write(t, "a.1", "a.2", "b.1", "a.1", ("b.1", DELETE), "c", "a.3")
    for patterns in (["$KV.b.>"], ["$KV.b.a.*"], ["$KV.b.a.1", "$KV.b.c"], ["$KV.b.none"], ["$KV.b.a.*", "$KV.b.b.*"]):
        t.direct("KV_b", {"multi_last": patterns}, count=0)
    t.direct("KV_b", {"multi_last": ["$KV.b.>"], "up_to_seq": 4}, count=0)
    t.direct("KV_b", {"multi_last": ["$KV.b.>"], "batch": 2}, count=0)


# ------------------------------------------------------------------------------------------------ deleting
@table([(f"{name}-history_{h}", writes, h) for name, writes in HISTORIES.items() for h in (1, 3)])
def purged(t: Script, writes: Sequence[tuple[str, dict[str, str]] | str], history: int) -> None:
    """Record a delete, a purge, and the state after purging the markers."""
    bucket(t, max_msgs_per_subject=history)
    write(t, *writes)
    t.publish("$KV.b.k", b"", DELETE)
    content(t, "KV_b")
    t.publish("$KV.b.k", b"", PURGE)
    content(t, "KV_b")
    t.api("STREAM.PURGE.KV_b", {"filter": "$KV.b.k", "keep": 1})
    content(t, "KV_b")
    t.api("STREAM.PURGE.KV_b", {"filter": "$KV.b.k"})
    t.state("KV_b", subjects_filter=">")


@table(
    [
        ("rollup_without_operation", {"Nats-Rollup": "sub"}),
        ("operation_without_rollup", {"KV-Operation": "PURGE"}),
        ("rollup_of_all", {"KV-Operation": "PURGE", "Nats-Rollup": "all"}),
        ("rollup_of_neither", {"KV-Operation": "PURGE", "Nats-Rollup": "key"}),
        ("operation_that_is_none", {"KV-Operation": "MOVE"}),
        ("marker_of_a_client", {"Nats-Marker-Reason": "MaxAge"}),
        ("with_an_id", PURGE | {"Nats-Msg-Id": "once"}),
    ]
)
def markers_by_hand(t: Script, headers: dict[str, str]) -> None:
    bucket(t, max_msgs_per_subject=3)
    write(t, "k", "k", "other")
    t.publish("$KV.b.k", b"", headers)
    t.publish("$KV.b.k", b"", headers)
    t.direct("KV_b.$KV.b.k", None)
    content(t, "KV_b")


@scenario
def what_a_bucket_denies(t: Script) -> None:
    bucket(t)
    write(t, "k")
    t.api("STREAM.MSG.DELETE.KV_b", {"seq": 1})
    t.api("STREAM.MSG.DELETE.KV_b", {"seq": 1, "no_erase": True})
    t.api("STREAM.UPDATE.KV_b", {**GO, "storage": "memory", "deny_delete": False})
    t.api("STREAM.UPDATE.KV_b", {**GO, "storage": "memory", "allow_rollup_hdrs": False})
    t.publish("$KV.b.k", b"", PURGE)
    t.state("KV_b")


@table(
    [
        ("everything", {}),
        ("a_key", {"filter": "$KV.b.a.1"}),
        ("a_pattern", {"filter": "$KV.b.a.*"}),
        ("keep_one_each", {"filter": "$KV.b.a.*", "keep": 1}),
        ("keep_of_a_key", {"filter": "$KV.b.a.1", "keep": 1}),
        ("keep_more_than_there_are", {"filter": "$KV.b.a.1", "keep": 9}),
        ("up_to_a_revision", {"filter": "$KV.b.a.1", "seq": 4}),
        ("up_to_a_revision_of_all", {"seq": 4}),
        ("keep_and_revision", {"filter": "$KV.b.a.1", "seq": 4, "keep": 1}),
        ("nothing", {"filter": "$KV.b.none"}),
    ]
)
def bucket_purged(t: Script, body: dict[str, Any]) -> None:
    bucket(t, max_msgs_per_subject=3)
    write(t, "a.1", "a.1", "a.2", "a.1", "b", ("a.2", DELETE))
    t.api("STREAM.PURGE.KV_b", body)
    content(t, "KV_b")
    write(t, "a.1")
    t.state("KV_b", subjects_filter=">")


# ------------------------------------------------------------------------------------------------ limits
@scenario
def values_too_large(t: Script) -> None:
    bucket(t, max_msg_size=100)
    for size in (100, 101):
        t.publish("$KV.b.k", b"x" * size)
    t.publish("$KV.b.k", b"x" * 80, {"A": "b" * 30})
    t.publish("$KV.b.k", b"", PURGE)


@table([(f"history_{h}-{s}", h, s) for h in (1, 3) for s in ("memory", "file")])
def full(t: Script, history: int, storage: str) -> None:
    """A full bucket refuses new keys; a new value of a key replaces its oldest one if the history is full."""
    bucket(t, max_msgs_per_subject=history, max_bytes=400, storage=storage)
    for key in ("a", "b", "c", "a", "d", "e", "a", "a", "a", "b", "f"):
        t.publish(f"$KV.b.{key}", b"x" * 40)
    t.publish("$KV.b.a", b"", DELETE)
    t.publish("$KV.b.a", b"", PURGE)
    t.publish("$KV.b.new", b"x" * 40)
    content(t, "KV_b")


@table([(f"history_{h}", h) for h in (1, 2)])
def full_per_subject(t: Script, history: int) -> None:
    """With discard_new_per_subject a key with a full history refuses new values."""
    bucket(t, max_msgs_per_subject=history, discard_new_per_subject=True)
    for key in ("a", "b", "a", "a"):
        t.publish(f"$KV.b.{key}", b"x")
    t.publish("$KV.b.a", b"", DELETE)
    t.publish("$KV.b.a", b"", PURGE)
    t.publish("$KV.b.a", b"x")
    content(t, "KV_b")


# ------------------------------------------------------------------------------------------------ lifetimes
class Life(NamedTuple):
    """Writes to a bucket with lifetimes, and the messages and last sequence left in the end."""

    config: dict[str, Any]
    writes: list[tuple[str, dict[str, str]] | str]
    left: tuple[int, int]


TTLS = {"allow_msg_ttl": True}
MARKED = TTLS | {"subject_delete_marker_ttl": SECOND}
CREATE = {EXPECTED: "0", TTL: "1"}
LIVES = {
    "a_key_without_markers": Life(TTLS, [("k", CREATE), "stays"], (1, 2)),
    "a_key_with_markers": Life(MARKED, [("k", CREATE), "stays"], (1, 3)),
    "a_purge_without_markers": Life(TTLS, ["k", ("k", PURGE | {TTL: "1"}), "stays"], (1, 3)),
    "a_purge_with_markers": Life(MARKED, ["k", ("k", PURGE | {TTL: "1"}), "stays"], (1, 3)),
    "a_key_that_never_ends": Life(TTLS | {"max_age": SECOND}, [("k", {TTL: "never"}), "goes"], (1, 2)),
    "the_whole_bucket": Life({"max_age": SECOND}, ["a", "b", ("c", DELETE)], (0, 3)),
    "the_whole_bucket_with_markers": Life(MARKED | {"max_age": SECOND}, ["a", ("c", PURGE)], (0, 3)),
    "a_delete_with_markers": Life(MARKED | {"max_age": SECOND}, ["c", ("c", DELETE)], (0, 3)),
    "an_older_value_comes_to_light": Life(TTLS, ["k", ("k", {TTL: "1"})], (1, 2)),
    "an_older_value_stays_behind_a_marker": Life(MARKED, ["k", ("k", {TTL: "1"})], (1, 2)),
}


@table(list(LIVES.items()))
def lives(t: Script, life: Life) -> None:
    """A watcher sees removals by the server only if the bucket has delete markers."""
    bucket(t, max_msgs_per_subject=3, duplicate_window=SECOND, **life.config)
    wire, sid, _ = watch(t, filter_subject="$KV.b.>")
    write(t, *life.writes)
    t.state_when("KV_b", lambda state: (state["messages"], state["last_seq"]) == life.left)
    count = life.left[1]
    told(t, "told", wire, sid, count)
    content(t, "KV_b")
    t.direct("KV_b.$KV.b.k", None)


@table([("plain", {}), ("ttl", TTLS), ("marked", MARKED)])
def lifetimes_of_writes(t: Script, config: dict[str, Any]) -> None:
    """Record which writes may have a TTL in which bucket."""
    bucket(t, max_msgs_per_subject=3, **config)
    for headers in (
        {TTL: "60"},
        CREATE | {TTL: "1m"},
        DELETE | {TTL: "60"},
        PURGE | {TTL: "60"},
        {TTL: "x"},
        {TTL: "0"},
    ):
        t.publish("$KV.b.k", b"", headers)
    content(t, "KV_b")


# ------------------------------------------------------------------------------------------------ republishing
@table(
    [
        ("all", {"src": ">", "dest": "told.>"}),
        ("some", {"src": "$KV.b.a.>", "dest": "told.>"}),
        ("headers", {"src": "$KV.b.>", "dest": "told.>", "headers_only": True}),
        ("reordered", {"src": "$KV.b.*.*", "dest": "told.{{wildcard(2)}}.{{wildcard(1)}}"}),
    ]
)
def republished(t: Script, republish: dict[str, Any]) -> None:
    bucket(t, max_msgs_per_subject=2, republish=republish)
    wire = t.connect()
    wire.subscribe("told.>")
    wire.ping()
    write(t, "a.1", "b.1", "a.1", ("a.1", DELETE), ("a.1", PURGE))
    wire.ping()
    t.publish("$KV.b.a.1", b"x", {EXPECTED: "99"})
    t.frames("told", [frame for frame in wire.ping() if frame.verb != "PONG"])


@scenario
def many_buckets(t: Script) -> None:
    for name in ("b", "c", "d-e_F"):
        t.setup(f"STREAM.CREATE.KV_{name}", {**GO, "name": f"KV_{name}", "subjects": [f"$KV.{name}.>"]})
    t.stream("NOT_KV", ["kv.>"])
    t.publish("$KV.c.k", b"of c")
    t.api("STREAM.NAMES", {"subject": "$KV.*.>"})
    t.api("STREAM.NAMES", {"subject": "$KV.c.>"})
    t.api("STREAM.LIST", {"subject": "$KV.*.>"})
    t.api("STREAM.CREATE.KV_x", {**GO, "name": "KV_x", "subjects": ["$KV.c.k"]})
    t.direct("KV_b.$KV.c.k", None)
    t.direct("KV_c.$KV.c.k", None)
