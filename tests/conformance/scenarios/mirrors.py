"""Scenarios of mirrors.

Stored messages, and the mirror's later changes (docs/internals/streams.md#mirrors-and-sources).
"""

from __future__ import annotations

import json
from typing import Any

from tests.conformance.harness import Script, scenario, table
from tests.conformance.origins import (
    came,
    connected,
    holds,
    info_when,
    messages,
    publish,
    retention_scene,
    shown,
    times,
)
from tests.conformance.scenarios.mirror_config import mapped

SECOND = 1_000_000_000
SUBJECTS = ["o.a", "o.b", "p.1.2", "o.a", "p.2.2", "o.c"]


def _filled(t: Script, **config: Any) -> None:
    """Create an origin with gaps at its beginning and between its messages."""
    t.stream("O", ["o.>", "p.*.*"], **config)
    publish(t, ["o.x", *SUBJECTS])
    for seq in (1, 6):
        t.setup("STREAM.MSG.DELETE.O", {"seq": seq})


# Each row: the mirror's filters and transforms, and the last sequence that it takes.
TAKEN: list[tuple[str, dict[str, Any], int]] = [
    ("all", {}, 9),
    ("a_filter", {"filter_subject": "o.>"}, 9),
    ("one_subject", {"filter_subject": "o.a"}, 9),
    ("from_a_sequence", {"opt_start_seq": 4}, 9),
    ("from_a_gap", {"opt_start_seq": 6}, 9),
    ("from_the_beginning", {"opt_start_seq": 1}, 9),
    ("a_filter_from_a_sequence", {"filter_subject": "p.>", "opt_start_seq": 3}, 8),
    ("a_filter_from_behind_it", {"filter_subject": "p.>", "opt_start_seq": 5}, 8),
    ("since_long_ago", {"opt_start_time": "2020-01-01T00:00:00Z"}, 9),
    ("mapped", {"subject_transforms": mapped(("o.*", "q.{{wildcard(1)}}"))}, 9),
    ("selected_and_mapped", {"subject_transforms": mapped(("o.a", ""), ("p.*.*", "r.$2.$1"))}, 9),
    ("all_mapped", {"subject_transforms": mapped((">", "z.>"))}, 9),
    ("any_mapped", {"subject_transforms": mapped(("", "z.>"))}, 9),
    ("mapped_from_a_sequence", {"subject_transforms": mapped(("p.>", "z.>")), "opt_start_seq": 4}, 8),
]


@table(TAKEN)
def what_is_taken(t: Script, fields: dict[str, Any], last: int) -> None:
    _filled(t)
    t.stream("M", mirror={"name": "O", **fields})
    connected(t, "M")
    publish(t, ["p.9.9", "o.a"])
    holds(t, "M", last)
    there, here = times(t, "O"), times(t, "M")
    t.note("times are the origin's", all(there[seq] == at for seq, at in here.items()))


@table([(f"after_{count}", count) for count in (0, 2, 5)])
def a_start_time_between_messages(t: Script, count: int) -> None:
    t.stream("O", ["o.*"])
    publish(t, [f"o.{n}" for n in range(6)])
    at = times(t, "O")[count + 1]
    t.hide(at, "<time>")
    t.stream("M", mirror={"name": "O", "opt_start_time": at})
    holds(t, "M", 6)


@scenario
def a_start_beyond_the_end(t: Script) -> None:
    t.stream("O", ["o"])
    publish(t, ["o", "o"])
    t.stream("M", mirror={"name": "O", "opt_start_seq": 5})
    connected(t, "M")
    shown(t, "M")
    publish(t, ["o"] * 4)
    holds(t, "M", 6)


@scenario
def nothing_that_the_filter_wants(t: Script) -> None:
    _filled(t)
    t.stream("M", mirror={"name": "O", "filter_subject": "none"})
    connected(t, "M")
    publish(t, ["o.a"])
    shown(t, "M")


@scenario
def an_empty_origin(t: Script) -> None:
    t.stream("O", ["o"])
    t.stream("M", mirror={"name": "O"})
    connected(t, "M")
    shown(t, "M")
    publish(t, ["o"])
    holds(t, "M", 1)


@scenario
def an_origin_that_was_purged(t: Script) -> None:
    t.stream("O", ["o"])
    publish(t, ["o"] * 3)
    t.setup("STREAM.PURGE.O")
    t.stream("M", mirror={"name": "O"})
    connected(t, "M")
    publish(t, ["o"])
    holds(t, "M", 4)


@scenario
def an_origin_that_begins_later(t: Script) -> None:
    t.stream("O", ["o"], first_seq=100)
    t.stream("M", mirror={"name": "O"})
    connected(t, "M")
    publish(t, ["o"])
    holds(t, "M", 100)


# Each row: the mirror's own configuration.
KEPT: list[tuple[str, dict[str, Any]]] = [
    ("plain", {}),
    ("ttl", {"allow_msg_ttl": True}),
    ("rollup", {"allow_rollup_hdrs": True}),
    ("one_of_each_subject", {"max_msgs_per_subject": 1}),
    ("few", {"max_msgs": 3}),
    ("few_and_no_more", {"max_msgs": 3, "discard": "new"}),
    ("little", {"max_bytes": 150}),
    ("transform", {"subject_transform": {"src": "o.*", "dest": "zz.{{wildcard(1)}}"}}),
    ("file", {"storage": "file"}),
    ("compressed", {"storage": "file", "compression": "s2"}),
    ("no_ack", {"no_ack": True}),
    ("duplicates", {"duplicate_window": 60 * SECOND}),
]

HEADERS: list[tuple[str, dict[str, str]]] = [
    ("o.1", {}),
    ("o.1", {"Nats-Expected-Stream": "O"}),
    ("o.1", {"Nats-Msg-Id": "a", "X": "y"}),
    ("o.2", {"Nats-Expected-Last-Sequence": "3", "Nats-Expected-Last-Subject-Sequence": "0", "X": "z"}),
    ("o.3", {"Nats-TTL": "1h"}),
    ("o.1", {"Nats-Rollup": "sub"}),
    ("o.4", {"x-own": "1", "Nats-Own": "2"}),
]


@table([(name, fields) for name, fields in KEPT if fields.get("discard") != "new"])
def headers_and_limits(t: Script, fields: dict[str, Any]) -> None:
    t.stream("O", ["o.*"], allow_msg_ttl=True, allow_rollup_hdrs=True)
    t.stream("M", mirror={"name": "O"}, **fields)
    connected(t, "M")
    for subject, headers in HEADERS:
        publish(t, [subject], b"data", headers)
    holds(t, "M", len(HEADERS))


@scenario
def batches(t: Script) -> None:
    t.stream("O", ["o.*"], allow_atomic=True)
    t.stream("M", mirror={"name": "O"})
    connected(t, "M")
    for number in (1, 2):
        fields = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": str(number), "K": str(number)}
        t.wire.request("o.b", b"member", fields)
    fields = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "3", "Nats-Batch-Commit": "1"}
    publish(t, ["o.b"], b"last", fields)
    holds(t, "M", 3)


@scenario
def deletes_are_not_followed(t: Script) -> None:
    t.stream("O", ["o.*"])
    t.stream("M", mirror={"name": "O"})
    connected(t, "M")
    publish(t, ["o.1", "o.2", "o.3"])
    came(t, "M", 3)
    t.setup("STREAM.MSG.DELETE.O", {"seq": 2})
    publish(t, ["o.4"])
    holds(t, "M", 4, "after a delete")
    t.setup("STREAM.PURGE.O", {"filter": "o.1"})
    publish(t, ["o.5"])
    holds(t, "M", 5, "after a purge")
    t.setup("STREAM.PURGE.O", {"seq": 20})
    publish(t, ["o.6"])
    holds(t, "M", 20, "after a purge into the future")


@scenario
def its_own_messages_may_go(t: Script) -> None:
    t.stream("O", ["o.*"])
    t.stream("M", mirror={"name": "O"})
    publish(t, [f"o.{n}" for n in range(6)])
    came(t, "M", 6)
    t.api("STREAM.MSG.DELETE.M", {"seq": 2})
    t.api("STREAM.PURGE.M", {"keep": 3})
    shown(t, "M")
    t.api("STREAM.PURGE.M")
    shown(t, "M", "empty")
    publish(t, ["o.9"])
    holds(t, "M", 7)
    t.state("O")


@scenario
def nobody_publishes_to_it(t: Script) -> None:
    t.stream("O", ["o.*"])
    t.stream("M", mirror={"name": "O", "subject_transforms": mapped(("o.*", "m.$1"))})
    connected(t, "M")
    for subject in ("M", "m.1"):
        t.frames(subject, [t.wire.request(subject, b"x")])
    for subject in ("m.1", "o.1", "M"):
        t.api("STREAM.NAMES", {"subject": subject})


@scenario
def it_is_republished(t: Script) -> None:
    t.stream("O", ["o.*"])
    t.stream("M", mirror={"name": "O"}, republish={"src": ">", "dest": "again.>"})
    connected(t, "M")
    sid = t.wire.subscribe("again.>")
    t.wire.ping()
    publish(t, ["o.1"], b"1", {"Nats-Expected-Stream": "O", "X": "y"})
    publish(t, ["o.1", "o.2"])
    t.frames("again", t.collect(t.wire, 3, sid=sid))


@scenario
def a_mirror_of_a_mirror(t: Script) -> None:
    _filled(t)
    t.stream("M", mirror={"name": "O", "filter_subject": "o.*"})
    t.stream("N", mirror={"name": "M", "subject_transforms": mapped(("o.a", "first"))})
    connected(t, "M", "N")
    publish(t, ["o.a"])
    holds(t, "N", 8)
    there, here = times(t, "O"), times(t, "N")
    t.note("times are the first origin's", all(there[seq] == at for seq, at in here.items()))


@scenario
def consumers_read_it(t: Script) -> None:
    _filled(t)
    t.stream("M", mirror={"name": "O"}, allow_direct=True)
    holds(t, "M", 7)
    t.consumer("M", "c", filter_subject="o.>")
    t.pull("M", "c", {"batch": 5, "no_wait": True}, 5)
    t.numbers("M", "c")
    publish(t, ["o.new"])
    t.pull("M", "c", {"batch": 1, "expires": 2 * SECOND}, 1)
    t.direct("M", {"last_by_subj": "o.new"})
    t.direct("M", {"seq": 6})


# Each row: the origin's retention, and its effect on streams that source from it.
@table([(policy, policy) for policy in ("limits", "interest", "workqueue")])
def an_origin_with_retention(t: Script, policy: str) -> None:
    retention_scene(t, policy, "M", mirror={"name": "O"})


@scenario
def the_request_for_a_consumer(t: Script) -> None:
    t.stream("O", ["o.*"])
    watcher = t.connect()
    watcher.subscribe("$JS.API.CONSUMER.>")
    watcher.ping()
    t.stream("M", mirror={"name": "O", "filter_subject": "o.a", "opt_start_seq": 3})
    frame = watcher.next(lambda frame: frame.subject.startswith("$JS.API.CONSUMER.CREATE"))
    body = frame.json()
    t.hide(body["config"]["name"], "<name>")
    t.hide(body["config"]["deliver_subject"], "<deliver>")
    t.note("asked", {"subject": frame.subject, "header": frame.header, "body": body})
    t.note("forms", (body["config"]["name"].rpartition("_")[0], body["config"]["deliver_subject"].rpartition(".")[0]))
    connected(t, "M")
    t.api("CONSUMER.NAMES.O")
    t.state("O")
    t.setup("STREAM.DELETE.M")
    frame = watcher.next(lambda frame: frame.subject.startswith("$JS.API.CONSUMER.DELETE"))
    t.note("removed", (frame.subject, frame.data))


@scenario
def an_origin_that_comes_later(t: Script) -> None:
    t.stream("M", mirror={"name": "O"})
    info_when(t, "M", lambda info: "error" in info["mirror"])
    shown(t, "M")
    t.stream("O", ["o"])
    publish(t, ["o"])
    holds(t, "M", 1)


@scenario
def promotion(t: Script) -> None:
    t.stream("O", ["o.*"], allow_direct=True)
    t.stream("M", mirror={"name": "O"})
    publish(t, ["o.1", "o.2"])
    came(t, "M", 2)
    t.setup("STREAM.DELETE.O")
    t.api("STREAM.UPDATE.M", {"name": "M", "storage": "memory", "subjects": ["o.*"]})
    t.publish("o.3", b"3")
    t.publish("o.3", b"3", {"Nats-Msg-Id": "a"})
    t.publish("o.3", b"3", {"Nats-Msg-Id": "a"})
    messages(t, "M")
    shown(t, "M")


@scenario
def after_promotion_nothing_comes(t: Script) -> None:
    t.stream("O", ["o.*"])
    t.stream("M", mirror={"name": "O"})
    publish(t, ["o.1"])
    came(t, "M", 1)
    t.api("STREAM.UPDATE.M", {"name": "M", "storage": "memory", "subjects": ["m.*"]})
    publish(t, ["o.2", "m.1"])
    messages(t, "M")
    shown(t, "M")
    t.api("STREAM.UPDATE.M", {"name": "M", "storage": "memory", "mirror": {"name": "O"}})


@scenario
def direct_gets_of_the_origin_are_answered(t: Script) -> None:
    t.stream("O", ["o.*"], allow_direct=True)
    publish(t, ["o.1", "o.2"])
    t.stream("M", mirror={"name": "O"})
    came(t, "M", 2)
    # It is random which of them answers; both do at some time.
    who: set[str] = set()
    for subject, body in (("O", {"seq": 2}), ("O", {"last_by_subj": "o.2"}), ("O.o.2", None)) * 100:
        frame = t.wire.request(f"$JS.API.DIRECT.GET.{subject}", json.dumps(body).encode() if body else b"")
        assert frame.data == b"o.2", frame
        who.add(frame.headers["Nats-Stream"])
    t.note("answered by", sorted(who))
    for subject in ("M", "M.o.2"):
        t.frames(f"as {subject}", [t.wire.request(f"$JS.API.DIRECT.GET.{subject}", b"")])


@scenario
def the_only_one_who_answers_for_a_gone_origin(t: Script) -> None:
    t.stream("O", ["o.*"], allow_direct=True)
    publish(t, ["o.1"])
    t.stream("M", mirror={"name": "O"})
    came(t, "M", 1)
    while t.wire.request("$JS.API.DIRECT.GET.O.o.1").headers["Nats-Stream"] != "M":
        pass
    t.setup("STREAM.DELETE.O")
    t.frames("of the gone origin", [t.wire.request("$JS.API.DIRECT.GET.O.o.1")])
    t.setup("STREAM.UPDATE.M", {"name": "M", "storage": "memory", "subjects": ["o.*"]})
    t.frames("after promotion", [t.wire.request("$JS.API.DIRECT.GET.O.o.1")])


@scenario
def full_and_discarding_new(t: Script) -> None:
    t.stream("O", ["o.*"])
    t.stream("M", mirror={"name": "O"}, max_msgs=2, discard="new")
    connected(t, "M")
    publish(t, ["o.1", "o.2", "o.3"])
    came(t, "M", 2)
    # The final state is not recorded: nats-server loses the third message, and stores the fourth in its place.
    t.state("M")


@scenario
def advisories(t: Script) -> None:
    t.stream("O", ["o.*"])
    watcher = t.connect()
    watcher.subscribe("$JS.EVENT.ADVISORY.*.*.>")
    watcher.ping()
    t.stream("M", mirror={"name": "O"})
    connected(t, "M")
    kinds = [frame.subject.split(".")[3:5] for frame in watcher.ping() if frame.verb == "MSG"]
    t.note("told", sorted(map(".".join, kinds)))


@scenario
def what_is_not_there_is_not_answered(t: Script) -> None:
    """A mirror of another API at a prefix without responders gets nothing."""
    watcher = t.connect()
    watcher.subscribe("elsewhere.>")
    watcher.ping()
    t.stream("M", mirror={"name": "O", "external": {"api": "elsewhere", "deliver": "to"}})
    frame = watcher.next(lambda frame: frame.subject.startswith("elsewhere."))
    body = frame.json()
    t.note("asked", (frame.subject, frame.header))
    t.note("to", body["config"]["deliver_subject"].rpartition(".")[0])
    shown(t, "M")


@scenario
def another_api_of_the_same_account(t: Script) -> None:
    """A mirror may use a prefix that leads back to this server: its own domain's."""
    _filled(t)
    t.stream("M", mirror={"name": "O", "external": {"api": "$JS.API.x"}})
    info_when(t, "M", lambda info: True)
    shown(t, "M")
