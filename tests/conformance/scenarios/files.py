"""Scenarios of stream options that only affect files: clients see no difference (docs/internals/streams.md)."""

from __future__ import annotations

from typing import Any

from tests.conformance.harness import Script, scenario, table

ROWS: list[tuple[str, dict[str, Any]]] = [
    ("async", {"persist_mode": "async"}),
    ("default", {"persist_mode": "default"}),
    ("s2", {"compression": "s2"}),
    ("async_and_s2", {"persist_mode": "async", "compression": "s2"}),
    ("async_workqueue", {"persist_mode": "async", "retention": "workqueue"}),
    ("async_interest", {"persist_mode": "async", "retention": "interest"}),
    ("async_max_msgs", {"persist_mode": "async", "max_msgs": 3, "discard": "new"}),
    ("async_sealed_later", {"persist_mode": "async", "compression": "s2", "allow_rollup_hdrs": True}),
]


@table(ROWS)
def kept(t: Script, config: dict[str, Any]) -> None:
    t.stream("S", ["a.*"], storage="file", allow_direct=True, **config)
    for n in range(5):
        t.publish(f"a.{n % 2}", b"%d" % n, {"Nats-Msg-Id": str(n % 4)})
    t.publish("a.0", b"x", {"Nats-Expected-Last-Sequence": "1"})
    t.publish("a.0", b"x", {"Nats-Rollup": "sub"})
    t.api("STREAM.MSG.DELETE.S", {"seq": 2})
    t.api("STREAM.MSG.DELETE.S", {"seq": 3, "no_erase": True})
    t.api("STREAM.MSG.GET.S", {"seq": 2})
    t.api("STREAM.MSG.GET.S", {"last_by_subj": "a.1"})
    t.state("S", subjects_filter=">", deleted_details=True)
    t.api("STREAM.PURGE.S", {"keep": 1})
    t.state("S")
    t.api("STREAM.INFO.S")


@scenario
def compression_changes_while_it_is_in_use(t: Script) -> None:
    t.stream("S", ["a"], storage="file")
    for compression in ("s2", "none", "s2", "S2", ""):
        t.publish("a", b"x" * 100)
        t.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["a"], "storage": "file", "compression": compression})
    t.state("S")


@scenario
def persist_mode_stays_what_it_was(t: Script) -> None:
    t.stream("S", ["a"], storage="file", persist_mode="async")
    for change in ({}, {"persist_mode": "default"}, {"persist_mode": "async", "allow_atomic": True}):
        t.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["a"], "storage": "file", **change})
        t.publish("a", b"x")
    t.stream("T", ["b"], storage="file")
    t.api("STREAM.UPDATE.T", {"name": "T", "subjects": ["b"], "storage": "file", "persist_mode": "async"})


@scenario
def erased_messages_leave_consumers_alone(t: Script) -> None:
    t.stream("S", ["a"], storage="file")
    t.fill(["a"] * 4)
    t.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit"}})
    for seq in (1, 3):
        t.api("STREAM.MSG.DELETE.S", {"seq": seq})
    t.api("CONSUMER.INFO.S.c")
    t.api("STREAM.MSG.DELETE.S", {"seq": 3})
    t.state("S", deleted_details=True)
