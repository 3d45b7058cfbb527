"""Scenarios of watches of key-value buckets, as clients create them.

See docs/internals/kv-object.md#key-value-operations and ADR-8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.conformance.harness import Script, scenario, table
from tests.conformance.scenarios.kv import DELETE, PURGE, SECOND, WATCH, bucket, told, watch, write
from tests.wire import Frame

CONTENTS = ("a.1", "a.2", "a.1", "b", ("a.2", DELETE), "c.d.e", "b", "purged", ("purged", PURGE))


def resumed_from(revision: int) -> dict[str, Any]:
    """Return the configuration of a watch that resumes at a revision."""
    return {"deliver_policy": "by_start_sequence", "opt_start_seq": revision, "filter_subject": "$KV.b.>"}


CHANGES: tuple[tuple[str, dict[str, str]] | str, ...] = ("a.1", ("a.2", PURGE), "new", "c.d.f", ("new", DELETE))
ALL = range(5)


# Each row: the consumer's configuration, the number of initial messages, and which changes it delivers.
@table(
    [
        ("all", {"filter_subject": "$KV.b.>"}, 5, ALL),
        ("one_key", {"filter_subject": "$KV.b.a.1"}, 1, [0]),
        ("one_key_with_history", {"filter_subject": "$KV.b.a.1", "deliver_policy": "all"}, 2, [0]),
        ("a_pattern", {"filter_subject": "$KV.b.a.*"}, 2, [0, 1]),
        ("several_keys", {"filter_subjects": ["$KV.b.a.1", "$KV.b.b"]}, 2, [0]),
        ("several_patterns", {"filter_subjects": ["$KV.b.a.*", "$KV.b.c.>"]}, 3, [0, 1, 3]),
        (
            "several_with_history",
            {"filter_subjects": ["$KV.b.a.*", "$KV.b.c.>"], "deliver_policy": "all"},
            5,
            [0, 1, 3],
        ),
        ("history", {"filter_subject": "$KV.b.>", "deliver_policy": "all"}, 8, ALL),
        ("updates", {"filter_subject": "$KV.b.>", "deliver_policy": "new"}, 0, ALL),
        ("updates_of_a_key", {"filter_subject": "$KV.b.a.1", "deliver_policy": "new"}, 0, [0]),
        ("keys", {"filter_subject": "$KV.b.>", "headers_only": True}, 5, ALL),
        ("keys_of_several", {"filter_subjects": ["$KV.b.a.*", "$KV.b.c.>"], "headers_only": True}, 3, [0, 1, 3]),
        ("nothing", {"filter_subject": "$KV.b.none.*"}, 0, []),
        ("resumed", resumed_from(5), 4, ALL),
        ("resumed_in_a_gap", resumed_from(8), 1, ALL),
        ("resumed_at_the_end", resumed_from(10), 0, ALL),
        ("resumed_beyond", resumed_from(13), 0, [3, 4]),
        ("resumed_from_0", resumed_from(0), 0, []),
        ("overlapping", {"filter_subjects": ["$KV.b.a.*", "$KV.b.a.1"]}, 0, []),
        ("of_another_bucket", {"filter_subject": "$KV.other.>"}, 0, []),
        ("without_a_filter", {}, 0, []),
    ]
)
def watched(t: Script, config: dict[str, Any], first: int, wanted: Sequence[int]) -> None:
    bucket(t, max_msgs_per_subject=3)
    write(t, *CONTENTS)
    wire, sid, pending = watch(t, **config)
    t.note("pending as told", pending)
    told(t, "at first", wire, sid, first)
    for n, change in enumerate(CHANGES):
        write(t, change)
        if n in wanted:
            told(t, "then", wire, sid, 1)
    t.note("no more", [t.show(frame) for frame in wire.ping()])
    if wanted:
        t.numbers("KV_b", "w")


@table([("last", "last_per_subject"), ("all", "all")])
def watched_by_the_older_request(t: Script, policy: str) -> None:
    """A consumer may be created by the older request, with which nats-py has the server name it."""
    bucket(t, max_msgs_per_subject=2)
    write(t, "a", "b", "a")
    wire = t.connect()
    sid = wire.subscribe("to.me")
    wire.ping()
    body = {"stream_name": "KV_b", "config": WATCH | {"filter_subject": "$KV.b.>", "deliver_policy": policy}}
    answer = t.wire.api("CONSUMER.CREATE.KV_b", body)
    t.hide(answer["name"], "<name>")
    t.note("made", answer)
    told(t, "at first", wire, sid, 2 if policy == "last_per_subject" else 3)
    t.api(f"CONSUMER.INFO.KV_b.{answer['name']}")
    t.api(f"CONSUMER.DELETE.KV_b.{answer['name']}")


@scenario
def a_watch_loses_what_is_overwritten_before_it_is_told(t: Script) -> None:
    """With a history of one, a watcher misses values that are overwritten before it subscribes."""
    bucket(t)
    write(t, "a", "b", "c")
    t.setup(
        "CONSUMER.CREATE.KV_b.w", {"stream_name": "KV_b", "config": WATCH | {"name": "w", "filter_subject": "$KV.b.>"}}
    )
    write(t, "b", ("c", PURGE), "d", "b")
    t.numbers_when("KV_b", "w", lambda info: info["num_pending"] == 4)
    wire = t.connect()
    sid = wire.subscribe("to.me")
    told(t, "told", wire, sid, 4)
    t.numbers("KV_b", "w")


@scenario
def a_purged_bucket_has_nothing_for_a_watch(t: Script) -> None:
    bucket(t, max_msgs_per_subject=2)
    write(t, "a", "b", "a")
    t.setup("STREAM.PURGE.KV_b")
    wire, sid, _ = watch(t, filter_subject="$KV.b.>")
    t.note("nothing", len(wire.ping()))
    write(t, "a")
    told(t, "told", wire, sid, 1)


@scenario
def heartbeats_of_a_quiet_watch(t: Script) -> None:
    bucket(t)
    write(t, "a")
    wire, sid, _ = watch(t, filter_subject="$KV.b.>", idle_heartbeat=SECOND // 5)
    told(t, "told", wire, sid, 3)


@scenario
def a_watch_ends_with_its_subscriber(t: Script) -> None:
    bucket(t)
    wire, _, _ = watch(t, filter_subject="$KV.b.>", inactive_threshold=SECOND // 5)
    t.state("KV_b")
    wire.close()
    t.state_when("KV_b", lambda state: state["consumer_count"] == 0)


@scenario
def a_thousand_keys_are_listed(t: Script) -> None:
    """Keys are listed as clients do: headers only, with flow control."""
    bucket(t)
    t.fill([f"$KV.b.{n % 1000}" for n in range(1500)])
    wire, sid, pending = watch(t, filter_subject="$KV.b.>", headers_only=True)
    keys: list[str] = []
    left = [pending]
    while left[-1]:
        frame: Frame = wire.delivered(sid)
        if frame.status == 100:
            if frame.reply:
                wire.publish(frame.reply)
            continue
        keys.append(frame.subject)
        left.append(int(frame.reply.split(".")[-1]))
    t.note("keys", keys)
    t.note("pending of each", left)
