"""Scenarios of sources: stored messages, each once, and later changes.

See docs/internals/streams.md#mirrors-and-sources.
"""

from __future__ import annotations

from typing import Any

from tests.conformance.harness import Script, scenario, table
from tests.conformance.origins import (
    came,
    connected,
    holds,
    info_when,
    messages,
    origins,
    publish,
    retention_scene,
    shown,
    times,
)
from tests.conformance.scenarios.mirror_config import mapped
from tests.conformance.scenarios.mirrors import HEADERS, KEPT, SUBJECTS

SECOND = 1_000_000_000


def _filled(t: Script, **config: Any) -> None:
    """Create an origin with gaps at its beginning and between its messages."""
    t.stream("O", ["o.>", "p.*.*"], **config)
    publish(t, ["o.x", *SUBJECTS])
    for seq in (1, 6):
        t.setup("STREAM.MSG.DELETE.O", {"seq": seq})


# Each row: the source's filters and transforms, the number of messages taken, and their number after two more.
TAKEN: list[tuple[str, dict[str, Any], int, int]] = [
    ("all", {}, 5, 7),
    ("a_filter", {"filter_subject": "o.>"}, 4, 5),
    ("one_subject", {"filter_subject": "o.a"}, 2, 3),
    ("from_a_sequence", {"opt_start_seq": 4}, 3, 5),
    ("from_a_gap", {"opt_start_seq": 6}, 1, 3),
    ("a_filter_from_a_sequence", {"filter_subject": "p.>", "opt_start_seq": 3}, 1, 2),
    ("a_filter_from_behind_it", {"filter_subject": "p.>", "opt_start_seq": 5}, 0, 1),
    ("since_long_ago", {"opt_start_time": "2020-01-01T00:00:00Z"}, 5, 7),
    ("mapped", {"subject_transforms": mapped(("o.*", "q.{{wildcard(1)}}"))}, 4, 5),
    ("selected_and_mapped", {"subject_transforms": mapped(("o.a", ""), ("p.*.*", "r.$2.$1"))}, 3, 5),
    ("selected", {"subject_transforms": mapped(("o.a", ""), ("o.b", ""))}, 3, 4),
    ("all_mapped", {"subject_transforms": mapped((">", "z.>"))}, 5, 7),
    ("mapped_from_a_sequence", {"subject_transforms": mapped(("p.>", "z.>")), "opt_start_seq": 4}, 1, 2),
]


@table(TAKEN)
def what_is_taken(t: Script, fields: dict[str, Any], before: int, after: int) -> None:
    _filled(t)
    t.stream("S", sources=[{"name": "O", **fields}])
    holds(t, "S", before)
    publish(t, ["p.9.9", "o.a"])
    holds(t, "S", after, "then")


@scenario
def times_and_sequences_are_its_own(t: Script) -> None:
    t.stream("O", ["o.*"])
    publish(t, ["o.1", "o.2"])
    t.stream("S", ["s.*"], sources=[{"name": "O"}], first_seq=10)
    connected(t, "S")
    came(t, "S", 11)
    publish(t, ["s.1", "o.3"])
    holds(t, "S", 13)
    there, here = times(t, "O"), times(t, "S")
    t.note("later than in the origin", here[10] > there[1] and here[11] > there[2])


@scenario
def several_sources_and_own_subjects(t: Script) -> None:
    for name in "OPQ":
        t.stream(name, [f"{name.lower()}.*"])
    sources = [
        {"name": "O"},
        {"name": "P", "filter_subject": "p.1"},
        {"name": "Q", "subject_transforms": mapped(("q.*", "s.{{wildcard(1)}}"))},
    ]
    t.stream("S", ["s.*"], sources=sources)
    connected(t, "S")
    for last, subject in enumerate(["o.1", "p.1", "q.1", "s.1", "q.2", "o.2"], 1):
        publish(t, [subject])
        came(t, "S", last)
    publish(t, ["p.2"])
    holds(t, "S", 6)


@scenario
def one_origin_by_two_filters(t: Script) -> None:
    t.stream("O", ["o.*"])
    sources = [{"name": "O", "filter_subject": "o.1"}, {"name": "O", "filter_subject": "o.2"}]
    t.stream("S", sources=sources)
    connected(t, "S")
    for last, subject in enumerate(["o.1", "o.2", "o.2", "o.1"], 1):
        publish(t, [subject])
        came(t, "S", last)
    publish(t, ["o.3"])
    holds(t, "S", 4)


@scenario
def one_origin_to_two_subjects(t: Script) -> None:
    t.stream("O", ["o.*"])
    sources = [{"name": "O", "subject_transforms": mapped(("o.*", f"{to}.$1"))} for to in ("x", "y")]
    t.stream("S", sources=sources)
    connected(t, "S")
    publish(t, ["o.1"])
    info = info_when(t, "S", lambda info: info["state"]["messages"] == 2)
    subjects = {t.wire.api("STREAM.MSG.GET.S", {"seq": seq})["message"]["subject"] for seq in (1, 2)}
    t.note("subjects", sorted(subjects))
    t.note("sequences", sorted(each.get("seq", 0) for each in origins(info)))


@table([(name, fields) for name, fields in KEPT if fields.get("discard") != "new" and not fields.get("no_ack")])
def headers_and_limits(t: Script, fields: dict[str, Any]) -> None:
    t.stream("O", ["o.*"], allow_msg_ttl=True, allow_rollup_hdrs=True)
    t.stream("S", sources=[{"name": "O"}], **fields)
    connected(t, "S")
    for subject, headers in HEADERS:
        publish(t, [subject], b"data", headers)
    holds(t, "S", len(HEADERS))


@scenario
def a_chain(t: Script) -> None:
    t.stream("O", ["o.*"])
    t.stream("M", mirror={"name": "O"})
    t.stream("S", sources=[{"name": "M", "filter_subject": "o.1"}])
    t.stream("R", sources=[{"name": "S", "subject_transforms": mapped(("o.*", "r.$1"))}])
    connected(t, "M", "S", "R")
    publish(t, ["o.1", "o.2", "o.1"], b"x", {"Nats-Expected-Stream": "O", "K": "v"})
    holds(t, "R", 2)
    messages(t, "S")


@scenario
def duplicates_of_what_came(t: Script) -> None:
    t.stream("O", ["o.*"])
    t.stream("S", ["s.*"], sources=[{"name": "O"}], duplicate_window=60 * SECOND)
    connected(t, "S")
    publish(t, ["o.1"], b"1", {"Nats-Msg-Id": "a"})
    came(t, "S", 1)
    t.publish("s.1", b"1", {"Nats-Msg-Id": "a"})
    t.publish("s.1", b"1", {"Nats-Msg-Id": "b"})
    publish(t, ["o.1"], b"not a duplicate here", {"Nats-Msg-Id": "b"})
    publish(t, ["o.2"], b"next")
    info_when(t, "S", lambda info: origins(info)[0].get("seq") == 3)
    messages(t, "S")
    shown(t, "S")


@scenario
def without_a_window_there_are_none(t: Script) -> None:
    t.stream("O", ["o.*"])
    t.stream("S", ["s.*"], sources=[{"name": "O"}])
    connected(t, "S")
    publish(t, ["o.1"], b"1", {"Nats-Msg-Id": "a"})
    came(t, "S", 1)
    t.publish("s.1", b"1", {"Nats-Msg-Id": "a"})
    t.publish("s.1", b"1", {"Nats-Msg-Id": "a"})


@scenario
def clients_do_not_say_where_it_came_from(t: Script) -> None:
    t.stream("S", ["s.*"], sources=[{"name": "O"}])
    t.publish("s.1", b"", {"Nats-Stream-Source": "O 1 > > o.1 abcdefgh"})
    t.publish("s.1", b"", {"Nats-Stream-Source": ""})
    t.state("S")


@scenario
def deletes_are_not_followed(t: Script) -> None:
    t.stream("O", ["o.*"])
    t.stream("S", sources=[{"name": "O"}])
    connected(t, "S")
    publish(t, ["o.1", "o.2"])
    came(t, "S", 2)
    t.setup("STREAM.MSG.DELETE.O", {"seq": 1})
    t.setup("STREAM.PURGE.O", {"seq": 20})
    publish(t, ["o.3"])
    holds(t, "S", 3)


@scenario
def purged_it_goes_on_where_it_was(t: Script) -> None:
    t.stream("O", ["o.*"])
    t.stream("S", ["s.*"], sources=[{"name": "O"}])
    connected(t, "S")
    publish(t, ["o.1", "o.2"])
    came(t, "S", 2)
    t.setup("STREAM.PURGE.S")
    shown(t, "S", "purged")
    publish(t, ["s.1", "o.3"])
    holds(t, "S", 4)


@scenario
def an_origin_made_anew(t: Script) -> None:
    t.stream("O", ["o.*"])
    t.stream("S", sources=[{"name": "O"}])
    connected(t, "S")
    publish(t, ["o.1", "o.2", "o.3"])
    came(t, "S", 3)
    messages(t, "S", label="of the first")
    t.setup("STREAM.DELETE.O")
    t.stream("O", ["o.*"])
    publish(t, ["o.4", "o.5"])
    holds(t, "S", 5, "of both")


@scenario
def an_origin_that_comes_later(t: Script) -> None:
    t.stream("S", sources=[{"name": "O"}])
    info_when(t, "S", lambda info: "error" in info["sources"][0])
    shown(t, "S")
    t.stream("O", ["o"])
    publish(t, ["o"])
    holds(t, "S", 1)


@table([(policy, policy) for policy in ("limits", "interest", "workqueue")])
def an_origin_with_retention(t: Script, policy: str) -> None:
    retention_scene(t, policy, "S", sources=[{"name": "O"}])


@scenario
def a_work_queue_for_two(t: Script) -> None:
    """Two streams source from one work queue with filters that do not overlap; each message goes to one of them."""
    t.stream("O", ["o.*"], retention="workqueue")
    for name in ("1", "2"):
        t.stream(f"S{name}", sources=[{"name": "O", "filter_subject": f"o.{name}"}])
    connected(t, "S1", "S2")
    publish(t, ["o.1", "o.2", "o.1"])
    holds(t, "S1", 2)
    holds(t, "S2", 1)
    t.state_when("O", lambda state: state["messages"] == 0)


@scenario
def the_request_for_a_consumer(t: Script) -> None:
    t.stream("O", ["o.*"])
    watcher = t.connect()
    watcher.subscribe("$JS.API.CONSUMER.>")
    watcher.ping()
    transforms = mapped(("o.1", ""), ("o.2", "x"))
    t.stream("S", sources=[{"name": "O", "subject_transforms": transforms, "opt_start_time": "2020-01-01T00:00:00Z"}])
    frame = watcher.next(lambda frame: frame.subject.startswith("$JS.API.CONSUMER.CREATE"))
    body = frame.json()
    t.hide(body["config"]["name"], "<name>")
    t.hide(body["config"]["deliver_subject"], "<deliver>")
    t.note("asked", {"subject": frame.subject, "header": frame.header, "body": body})
    t.note("forms", (body["config"]["name"].rpartition("_")[0], body["config"]["deliver_subject"].rpartition(".")[0]))
    connected(t, "S")
    t.setup("STREAM.DELETE.S")
    frame = watcher.next(lambda frame: frame.subject.startswith("$JS.API.CONSUMER.DELETE"))
    t.note("removed", (frame.subject, frame.data))


@scenario
def elsewhere(t: Script) -> None:
    watcher = t.connect()
    watcher.subscribe("elsewhere.>")
    watcher.ping()
    sources = [{"name": "O", "filter_subject": "o.>", "external": {"api": "elsewhere", "deliver": "to"}}]
    t.stream("S", sources=sources)
    frame = watcher.next(lambda frame: frame.subject.startswith("elsewhere."))
    body = frame.json()
    t.hide(body["config"]["name"], "<name>")
    t.note("asked", (frame.subject, frame.header))
    t.note("to", body["config"]["deliver_subject"].rpartition(".")[0])
    shown(t, "S")


@scenario
def a_source_that_is_added(t: Script) -> None:
    """An added source starts at the time of the stream's last message, not at its own beginning."""
    for name in "OP":
        t.stream(name, [f"{name.lower()}.*"])
    publish(t, ["p.old"])
    t.stream("S", sources=[{"name": "O"}])
    connected(t, "S")
    publish(t, ["o.1"])
    came(t, "S", 1)
    publish(t, ["p.new"])
    t.setup("STREAM.UPDATE.S", {"name": "S", "storage": "memory", "sources": [{"name": "O"}, {"name": "P"}]})
    connected(t, "S")
    holds(t, "S", 2)


@table([("first", 1), ("middle", 2)])
def a_source_added_to_a_stream_that_lacks_its(t: Script, deleted: int) -> None:
    """A stream without its first messages cannot know its position in a source.

    It takes nothing older than its last message.
    """
    t.stream("O", ["o.*"])
    publish(t, ["o.old"])
    t.stream("S", ["s.*"])
    publish(t, ["s.1", "s.2", "s.3"])
    t.setup("STREAM.MSG.DELETE.S", {"seq": deleted})
    t.setup("STREAM.UPDATE.S", {"name": "S", "storage": "memory", "subjects": ["s.*"], "sources": [{"name": "O"}]})
    connected(t, "S")
    publish(t, ["o.new"])
    holds(t, "S", 4 if deleted == 1 else 5)


@scenario
def a_source_that_was_there_before(t: Script) -> None:
    t.stream("O", ["o.*"])
    t.stream("S", ["s.*"], sources=[{"name": "O"}])
    connected(t, "S")
    publish(t, ["o.1"])
    came(t, "S", 1)
    plain = {"name": "S", "storage": "memory", "subjects": ["s.*"]}
    t.setup("STREAM.UPDATE.S", plain)
    publish(t, ["o.2"])
    t.setup("STREAM.UPDATE.S", {**plain, "sources": [{"name": "O"}]})
    connected(t, "S")
    holds(t, "S", 2)


@scenario
def another_start_of_the_same_source(t: Script) -> None:
    """A changed start of the same source does not copy anything again."""
    t.stream("O", ["o.*"])
    publish(t, ["o.1"])
    t.stream("S", ["s.*"], sources=[{"name": "O"}])
    connected(t, "S")
    came(t, "S", 1)
    plain = {"name": "S", "storage": "memory", "subjects": ["s.*"]}
    t.setup("STREAM.UPDATE.S", {**plain, "sources": [{"name": "O", "opt_start_seq": 1}]})
    publish(t, ["o.2"])
    holds(t, "S", 2)


@scenario
def another_filter_is_another_source(t: Script) -> None:
    t.stream("O", ["o.*"])
    publish(t, ["o.1"])
    t.stream("S", ["s.*"], sources=[{"name": "O"}])
    connected(t, "S")
    came(t, "S", 1)
    sources = [{"name": "O", "filter_subject": "o.*"}]
    t.setup("STREAM.UPDATE.S", {"name": "S", "storage": "memory", "subjects": ["s.*"], "sources": sources})
    connected(t, "S")
    holds(t, "S", 2)


@scenario
def a_source_added_to_an_empty_stream(t: Script) -> None:
    t.stream("O", ["o.*"])
    publish(t, ["o.1", "o.2"])
    t.stream("S", ["s.*"])
    t.setup("STREAM.UPDATE.S", {"name": "S", "storage": "memory", "subjects": ["s.*"], "sources": [{"name": "O"}]})
    connected(t, "S")
    holds(t, "S", 2)


@scenario
def a_source_that_is_removed(t: Script) -> None:
    t.stream("O", ["o.*"])
    t.stream("S", ["s.*"], sources=[{"name": "O"}])
    connected(t, "S")
    publish(t, ["o.1"])
    came(t, "S", 1)
    t.setup("STREAM.UPDATE.S", {"name": "S", "storage": "memory", "subjects": ["s.*"]})
    publish(t, ["o.2", "s.1"])
    messages(t, "S")
    shown(t, "S")


@scenario
def full_and_discarding_new(t: Script) -> None:
    """A message for which there is no room is stored once there is room."""
    t.stream("O", ["o.*"])
    t.stream("S", sources=[{"name": "O"}], max_msgs=2, discard="new")
    connected(t, "S")
    publish(t, ["o.1", "o.2", "o.3"])
    came(t, "S", 2)
    t.state("S")
    t.setup("STREAM.PURGE.S")
    holds(t, "S", 3)


@scenario
def direct_gets_and_consumers(t: Script) -> None:
    t.stream("O", ["o.*"])
    t.stream("S", ["s.*"], sources=[{"name": "O", "subject_transforms": mapped(("o.*", "s.$1"))}], allow_direct=True)
    connected(t, "S")
    t.consumer("S", "c")
    publish(t, ["o.1"])
    came(t, "S", 1)
    frame = t.wire.request("$JS.API.DIRECT.GET.S.s.1")
    t.note("gotten", (frame.data, frame.headers["Nats-Stream-Source"].rpartition(" ")[0]))
    frames = t.wire.api("CONSUMER.INFO.S.c")
    t.note("pending", frames["num_pending"])


# ------------------------------------------------------------------------------------------------ prepared consumers
def _prepared(t: Script, **config: Any) -> None:
    t.stream("O", ["o.*"])
    publish(t, ["o.1", "o.2", "o.3"])
    fields = {"durable_name": "c", "deliver_subject": "to.c", "ack_policy": "flow_control", **config}
    if fields["ack_policy"] != "flow_control":
        fields |= {"flow_control": True, "idle_heartbeat": SECOND}
    t.setup("CONSUMER.CREATE.O.c", {"stream_name": "O", "config": fields})


PREPARED = {"name": "O", "consumer": {"name": "c", "deliver_subject": "to.c"}}


@table([("source", {"sources": [PREPARED]}), ("mirror", {"mirror": PREPARED})])
def by_a_prepared_consumer(t: Script, of: dict[str, Any]) -> None:
    _prepared(t)
    watcher = t.connect()
    watcher.subscribe("$JS.API.CONSUMER.>")
    watcher.ping()
    t.stream("T", **of)
    frame = watcher.next(lambda frame: frame.subject.startswith("$JS.API.CONSUMER.RESET"))
    t.note("asked", (frame.subject, frame.header, frame.data))
    holds(t, "T", 3)
    t.numbers_when("O", "c", lambda info: info["num_ack_pending"] == 0)
    publish(t, ["o.4"])
    holds(t, "T", 4, "then")
    t.setup("STREAM.DELETE.T")
    t.api("CONSUMER.NAMES.O")


@table([("source", {"sources": [PREPARED]}), ("mirror", {"mirror": PREPARED})])
def by_a_prepared_consumer_with_a_filter(t: Script, of: dict[str, Any]) -> None:
    _prepared(t, filter_subject="o.2")
    t.stream("T", **of)
    connected(t, "T")
    publish(t, ["o.1", "o.2"])
    holds(t, "T", 5 if "mirror" in of else 2)


@table([("source", {"sources": [PREPARED]}), ("mirror", {"mirror": PREPARED})])
def by_a_consumer_that_does_not_do(t: Script, of: dict[str, Any]) -> None:
    _prepared(t, ack_policy="none")
    t.stream("T", **of)
    info_when(t, "T", lambda info: "error" in origins(info)[0])
    shown(t, "T")
