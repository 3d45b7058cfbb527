"""Scenarios of mirrors and sources of key-value buckets, as clients create them.

See docs/internals/kv-object.md and docs/internals/streams.md#mirrors-and-sources.
"""

from __future__ import annotations

from typing import Any

from tests.conformance.harness import Script, scenario, table
from tests.conformance.origins import connected, holds, info_when, origins
from tests.conformance.scenarios.kv import DELETE, EXPECTED, GO, PURGE, TTL, WATCH, bucket, write

MIRROR = {name: value for name, value in GO.items() if name != "subjects"} | {
    "name": "KV_m",
    "storage": "memory",
    "mirror": {"name": "KV_b"},
    "mirror_direct": True,
}


def mirrored(t: Script, **config: Any) -> None:
    """Create a mirror of the bucket `b` as the Go client does; wait until it has every message."""
    t.setup("STREAM.CREATE.KV_m", MIRROR | config)
    connected(t, "KV_m")
    info_when(t, "KV_m", lambda info: not origins(info)[0]["lag"])


def put(t: Script, name: str, key: str, headers: dict[str, str] | None = None) -> None:
    """Put, delete or purge a key of a bucket as preparation."""
    answer = t.wire.request(f"$KV.{name}.{key}", b"" if headers else b"of " + name.encode(), headers).json()
    assert "error" not in answer, answer


@table([("history_1", 1), ("history_5", 5)])
def a_mirror_of_a_bucket(t: Script, history: int) -> None:
    """The mirror is read under the origin's subjects, writes go to the origin, purges apply to each bucket."""
    bucket(t, max_msgs_per_subject=history)
    write(t, "k", "other", "k", ("other", DELETE))
    mirrored(t, max_msgs_per_subject=history)
    write(t, "k", "new", ("k", PURGE), ("k", {EXPECTED: "7"}))
    holds(t, "KV_m", 8)
    for key in ("k", "other", "new", "none"):
        t.direct(f"KV_m.$KV.b.{key}", None)
    t.direct("KV_m", {"multi_last": ["$KV.b.>"]}, count=0)
    t.publish("$KV.m.k", b"to nobody")
    t.api("STREAM.NAMES", {"subject": "$KV.b.k"})
    t.api("STREAM.PURGE.KV_m", {"filter": "$KV.b.k"})
    t.direct("KV_m.$KV.b.k", None)
    frame = t.wire.request("$JS.API.DIRECT.GET.KV_b.$KV.b.other")  # the origin or the mirror answers
    t.note("of either", [frame.headers["Nats-Subject"], frame.headers["Nats-Sequence"], frame.headers["KV-Operation"]])


@scenario
def a_mirror_is_watched(t: Script) -> None:
    bucket(t)
    write(t, "a", "b")
    mirrored(t)
    wire = t.connect()
    sid = wire.subscribe("to.me")
    wire.ping()
    asked = WATCH | {"name": "w", "filter_subject": "$KV.b.>"}
    t.api("CONSUMER.CREATE.KV_m.w.$KV.b.>", {"stream_name": "KV_m", "config": asked, "action": "create"})
    t.frames("at first", t.collect(wire, 2, sid=sid))
    for change in ("a", ("b", DELETE), "c", ("a", PURGE)):
        write(t, change)
        t.frames("then", t.collect(wire, 1, sid=sid))


@scenario
def what_the_origin_loses_its_mirror_keeps(t: Script) -> None:
    """Purging the origin's markers does not affect mirrors."""
    bucket(t, max_msgs_per_subject=5)
    mirrored(t, max_msgs_per_subject=5)
    write(t, "a", ("a", DELETE), "b")
    holds(t, "KV_m", 3)
    t.api("STREAM.PURGE.KV_b", {"filter": "$KV.b.a"})
    write(t, "b")
    holds(t, "KV_m", 4)


@scenario
def a_mirror_of_keys_with_a_lifetime(t: Script) -> None:
    """Keys with a TTL expire in both; the origin's marker is copied as any message."""
    marked = {"allow_msg_ttl": True, "subject_delete_marker_ttl": 1_000_000_000}
    bucket(t, **marked)
    mirrored(t, allow_msg_ttl=True)
    write(t, ("k", {EXPECTED: "0", TTL: "1"}), "stays")
    t.state_when("KV_b", lambda state: state["messages"] == 1 and state["last_seq"] == 3)
    t.state_when("KV_m", lambda state: state["messages"] == 1 and state["last_seq"] == 3)
    t.direct("KV_m", {"multi_last": [">"]}, count=0)


def _sources(*names: str, target: str) -> list[dict[str, Any]]:
    """Return sources as the clients configure them: keys keep their names in another bucket."""
    return [
        {"name": f"KV_{name}", "subject_transforms": [{"src": f"$KV.{name}.>", "dest": f"$KV.{target}.>"}]}
        for name in names
    ]


@table([("history_1", 1), ("history_3", 3)])
def a_bucket_of_two(t: Script, history: int) -> None:
    """A bucket with keys of two others and its own has revisions of its own, with compare-and-set as usual."""
    for name in ("a", "b"):
        t.setup(
            f"STREAM.CREATE.KV_{name}",
            {**GO, "name": f"KV_{name}", "subjects": [f"$KV.{name}.>"], "storage": "memory", "max_msgs_per_subject": 5},
        )
    both = {**GO, "name": "KV_c", "subjects": ["$KV.c.>"], "storage": "memory", "max_msgs_per_subject": history}
    t.setup("STREAM.CREATE.KV_c", both | {"sources": _sources("a", "b", target="c")})
    connected(t, "KV_c")
    put(t, "a", "k")
    holds(t, "KV_c", 1)
    put(t, "b", "of.b")
    holds(t, "KV_c", 2)
    put(t, "b", "k")
    holds(t, "KV_c", 3)
    t.publish("$KV.c.k", b"own", {EXPECTED: "1"})
    t.publish("$KV.c.k", b"own", {EXPECTED: "3"})
    t.publish("$KV.c.new", b"own", {EXPECTED: "0"})
    put(t, "a", "k", DELETE)
    holds(t, "KV_c", 6)
    put(t, "b", "of.b", PURGE)
    holds(t, "KV_c", 7)
    for key in ("k", "of.b", "new"):
        frame = t.wire.request(f"$JS.API.DIRECT.GET.KV_c.$KV.c.{key}")
        wanted = ("Nats-Subject", "Nats-Sequence", "KV-Operation")
        t.note(key, [frame.data, {name: frame.headers.get(name) for name in wanted}])
