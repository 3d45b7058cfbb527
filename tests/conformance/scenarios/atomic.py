"""Scenarios of atomic batches: members, commits, refusals and abandoned batches.

See docs/internals/streams.md#atomic-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tests.conformance.harness import Script, configured, scenario, table
from tests.wire import Wire, header_block, pub

LAST = "Nats-Expected-Last-Sequence"
LAST_SUBJECT = "Nats-Expected-Last-Subject-Sequence"
OTHER_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"
LAST_ID = "Nats-Expected-Last-Msg-Id"
STREAM = "Nats-Expected-Stream"
MSG_ID = "Nats-Msg-Id"
ROLLUP = "Nats-Rollup"
LEVEL = "Nats-Required-Api-Level"
TTL = "Nats-TTL"
INCR = "Nats-Incr"
SOURCE = "Nats-Stream-Source"
LONG = "i" * 65


class M(NamedTuple):
    """Message of a batch; without Nats-Batch-Sequence if `seq` is None, without any batch header if `id` is None."""

    seq: int | str | None
    commit: str | None = None
    more: Mapping[str, str] = {}
    subject: str = "a.1"
    data: bytes = b"x"
    id: str | None = "b"

    @property
    def headers(self) -> dict[str, str]:
        named = {"Nats-Batch-Id": self.id, "Nats-Batch-Sequence": self.seq, "Nats-Batch-Commit": self.commit}
        return {name: str(value) for name, value in named.items() if value is not None} | dict(self.more)


Step = M | Callable[[Script], None]


def play(t: Script, steps: Sequence[Step]) -> None:
    for step in steps:
        if isinstance(step, M):
            t.publish(step.subject, step.data, step.headers or None)
        else:
            step(t)


def update(**config: Any) -> Step:
    return lambda t: t.setup("STREAM.UPDATE.S", {"name": "S", "subjects": ["a.*"], "storage": "memory", **config})


def purge(t: Script) -> None:
    t.setup("STREAM.PURGE.S")


def fill(*subjects: str) -> Step:
    return lambda t: t.fill(subjects)


def content(t: Script) -> None:
    """Record every message in the stream."""
    state = t.state("S")["state"]
    for seq in range(state["first_seq"], state["last_seq"] + 1):
        t.api("STREAM.MSG.GET.S", {"seq": seq})


def many(count: int, first: int = 1, batch_id: str = "b") -> Step:
    """Return members without replies."""

    def send(t: Script) -> None:
        t.wire.send(b"".join(pub("a.1", b"x", headers=M(seq, id=batch_id).headers) for seq in range(first, count + 1)))

    return send


PAIR = [M(1), M(2, "1")]
ROLL = {"allow_rollup_hdrs": True}

MEMBERS: list[tuple[Any, ...]] = [
    ("one", {}, [M(1, "1")]),
    ("three", {}, [M(1), M(2, subject="a.2"), M(3, "1"), content]),
    ("end_of_batch", {}, [M(1), M(2), M(3, "eob"), content]),
    ("end_of_batch_after_other_headers", {}, [M(1, None, {"A": "b"}), M(2, "eob"), content]),
    ("end_of_batch_first", {}, [M(1, "eob"), M(2, "1")]),
    ("end_of_batch_after_a_gap", {}, [M(1), M(3, "eob"), M(2, "1")]),
    ("end_of_batch_is_not_judged", {}, [M(1), M(2, "eob", {STREAM: "no", LAST: "77"}), content]),
    ("two_at_a_time", {}, [M(1), M(1, id="c"), M(2, id="c"), M(2, "1"), M(3, "1", id="c"), content]),
    ("messages_between", {}, [M(1), M(None, id=None), M(2), M(None, id=None), M(3, "1"), content]),
    ("off", {"allow_atomic": False}, [M(1), M(None), M(1, "x"), M(1, id=LONG), M(1, id="")]),
    ("no_sequence", {}, [M(None), M(1), M(None), M(2, "1")]),
    ("sequence_is_no_number", {}, [M(1), M("x"), M("+2"), M("-2"), M("2.0"), M("2 "), M(1 << 64), M(""), M(2, "1")]),
    ("sequence_with_zeros", {}, [M("01"), M("002", "1")]),
    ("sequence_zero", {}, [M(0), M(1), M(0), M(2, "1")]),
    ("gap", {}, [M(1), M(3), M(2, "1")]),
    ("repeated", {}, [M(1), M(1), M(2, "1")]),
    ("unknown", {}, [M(2), M(2, "1"), M(2, "eob")]),
    ("begun_again_after_a_gap", {}, [M(1), M(3), *PAIR]),
    ("long_id", {}, [M(1, id="i" * 64), M(2, "1", id="i" * 64), M(1, id=LONG)]),
    ("empty_id_is_no_batch", {}, [M(1, id=""), M(2, "zz", id=""), content]),
    ("id_in_quotes", {}, [M(1, id='"q"'), M(2, "1", id='"q"')]),
    ("commit_without_id", {}, [M(None, "1", id=None), M(1, "no", id=None)]),
    ("commit_values", {}, [M(1, value) for value in ("", "0", "01", "2", "true", "EOB", "1 ", "eob ", "x")]),
    ("commit_value_ends_the_batch", {}, [M(1), M(2, "no"), M(2, "1"), *PAIR]),
    ("level", {}, [M(1, None, {LEVEL: "0"}), M(2, "1", {LEVEL: "5", "A": "b"}), content]),
    ("level_too_high", {}, [M(1), M(2, None, {LEVEL: "9"}), M(2, "1"), M(1, None, {LEVEL: "6"}), M(2, "1")]),
    ("level_is_no_number", {}, [M(1), M(2, None, {LEVEL: "x"}), M(2, "1")]),
    ("level_empty", {}, [M(1, None, {LEVEL: ""}), M(2, "1"), content]),
    ("level_of_a_plain_message", {}, [M(None, None, {LEVEL: "9"}, id=None), content]),
    ("too_large_a_message", {"max_msg_size": 300}, [M(1), M(2, data=b"x" * 301), M(2, "1")]),
    ("too_large_from_the_first", {"max_msg_size": 300}, [M(1, data=b"x" * 301), M(2, "1")]),
    ("size_is_judged_when_it_comes", {}, [M(1, data=b"x" * 90), update(allow_atomic=True, max_msg_size=80), M(2, "1")]),
    ("too_large_a_header", {}, [M(1), M(2, None, {"A": "h" * 66000}), M(3, "1")]),
    (
        "order_of_members_checks",
        {"max_msg_size": 300},
        [
            M(None, id=LONG),
            M(None, "7"),
            M(2, "7"),
            M(2, None, {LEVEL: "9"}),
            M(1, "7", {LEVEL: "9"}),
            M(1, data=b"x" * 301, id=LONG),
            M(None, data=b"x" * 301),
            M(None, None, {INCR: "x"}),
            M(1),
            M(3, "7"),
            M(1),
            M(3, None, {LEVEL: "9"}),
            M(2000),
            M(1),
            M(2000),
        ],
    ),
    ("switched_off_meanwhile", {}, [M(1), update(), M(2, "1"), update(allow_atomic=True), M(2, "1")]),
    ("switched_off_and_on_meanwhile", {}, [M(1), update(), update(allow_atomic=True), M(2, "1")]),
    ("updated_meanwhile", {}, [M(1), update(allow_atomic=True, max_msgs=1), M(2, "1"), content]),
    ("sealed_meanwhile", {}, [M(1), update(allow_atomic=True, sealed=True), M(2, "1"), M(2, "1", id="c")]),
    ("purged_meanwhile", {}, [fill("a.1"), M(1), purge, M(2, "1"), content]),
    (
        "subject_given_up_meanwhile",
        {},
        [M(1), update(subjects=["b"], allow_atomic=True), M(2, "1", subject="b"), content],
    ),
]


@table(MEMBERS)
def members(t: Script, config: dict[str, Any], steps: Sequence[Step]) -> None:
    t.stream("S", ["a.*"], **{"allow_atomic": True, **config})
    play(t, steps)
    t.state("S")


DUPLICATE = {MSG_ID: "old"}

COMMITS: list[tuple[Any, ...]] = [
    ("stream", {}, [M(1, None, {STREAM: "S"}), M(2, "1", {STREAM: "no"})]),
    ("last_msg_id", {}, [M(1, None, {LAST_ID: "old"}), M(2, "1")]),
    ("last_msg_id_before_stream", {}, [M(1, None, {LAST_ID: "old", STREAM: "no"}), M(2, "1")]),
    ("first_failure_counts", {}, [M(1, None, {STREAM: "no"}), M(2, "1", {LAST_ID: "x"})]),
    ("last", {}, [M(1, None, {LAST: "2"}), M(2, "1")]),
    ("last_wrong", {}, [M(1, None, {LAST: "1"}), M(2, "1")]),
    (
        "last_in_second_place",
        {},
        [M(1), M(2, "1", {LAST: "2"}), M(1), M(2, "1", {LAST: "3"}), M(1), M(2, "1", {LAST: "x"})],
    ),
    ("last_changed_meanwhile", {}, [M(1, None, {LAST: "2"}), fill("a.9"), M(2, "1")]),
    ("subject", {}, [M(1, None, {LAST_SUBJECT: "1"}), M(2, subject="a.2"), M(3, "1", {LAST_SUBJECT: "0"}, "a.3")]),
    ("subject_wrong", {}, [M(1, None, {LAST_SUBJECT: "9"}), M(2, "1")]),
    ("subject_no_number", {}, [M(1, None, {LAST_SUBJECT: "x"}), M(2, "1")]),
    ("subject_of_a_member", {}, [M(1, subject="a.5"), M(2, "1", {LAST_SUBJECT: "0"}, "a.5")]),
    ("subject_of_a_member_exactly", {}, [M(1, subject="a.5"), M(2, "1", {LAST_SUBJECT: "3"}, "a.5")]),
    ("subject_of_a_judged_member", {}, [M(1, None, {LAST_SUBJECT: "1"}), M(2, "1", {LAST_SUBJECT: "3"})]),
    ("subject_written_after_its_judgement", {}, [M(1, None, {LAST_SUBJECT: "0"}, "a.5"), M(2, "1", {}, "a.5")]),
    (
        "other_subject",
        {},
        [
            M(1, None, {LAST_SUBJECT: "0", OTHER_SUBJECT: "a.9"}),
            M(2, "1", {LAST_SUBJECT: "0", OTHER_SUBJECT: "a.9"}, "a.2"),
        ],
    ),
    ("other_subject_of_a_member", {}, [M(1), M(2, "1", {LAST_SUBJECT: "9", OTHER_SUBJECT: "a.1"}, "a.3")]),
    (
        "other_subject_written_between",
        {},
        [
            M(1, None, {LAST_SUBJECT: "0", OTHER_SUBJECT: "a.9"}),
            M(2, subject="a.9"),
            M(3, "1", {LAST_SUBJECT: "0", OTHER_SUBJECT: "a.9"}),
        ],
    ),
    ("other_subject_alone", {}, [M(1, None, {OTHER_SUBJECT: "a.9"}), M(2, "1")]),
    (
        "other_subjects_by_pattern",
        {},
        [
            M(1),
            M(2, "1", {LAST_SUBJECT: "2", OTHER_SUBJECT: "a.*"}),
            M(1),
            M(2, "1", {LAST_SUBJECT: "0", OTHER_SUBJECT: "a.*"}),
        ],
    ),
    (
        "duplicate_of_a_stored_one",
        {},
        [M(1, None, {MSG_ID: "new"}), M(2, "1", DUPLICATE), M(None, None, {MSG_ID: "new"}, id=None)],
    ),
    (
        "duplicate_inside",
        {},
        [M(1, None, {MSG_ID: "new"}), M(2, "1", {MSG_ID: "new"}), M(None, None, {MSG_ID: "new"}, id=None)],
    ),
    (
        "ids_are_known_afterwards",
        {},
        [
            M(1, None, {MSG_ID: "m1"}),
            M(2, "1", {MSG_ID: "m2"}),
            M(None, None, {MSG_ID: "m1"}, id=None),
            M(1, "1", {MSG_ID: "m2"}),
        ],
    ),
    (
        "ids_of_a_refused_batch_are_not",
        {},
        [M(1, None, {MSG_ID: "m1"}), M(2, "1", {STREAM: "no"}), M(1, "1", {MSG_ID: "m1"})],
    ),
    ("rollup_off", {}, [M(1), M(2, "1", {ROLLUP: "sub"}), M(1, "1", {ROLLUP: "x"})]),
    ("rollup_of_the_first", ROLL, [M(1, None, {ROLLUP: "sub"}), M(2), M(3, "1"), content]),
    ("rollup_of_another_subject", ROLL, [M(1), M(2, "1", {ROLLUP: "SUB"}, "a.2"), content]),
    ("rollup_of_a_member", ROLL, [M(1), M(2, "1", {ROLLUP: "sub"})]),
    ("rollup_twice", ROLL, [M(1, None, {ROLLUP: "sub"}), M(2, "1", {ROLLUP: "sub"})]),
    ("rollup_all", ROLL, [M(1, None, {ROLLUP: "all"}), M(2), M(3, "1", {ROLLUP: "sub"}, "a.2"), content]),
    ("rollup_all_in_second_place", ROLL, [M(1), M(2, "1", {ROLLUP: "all"}, "a.2")]),
    ("rollup_all_twice", ROLL, [M(1, None, {ROLLUP: "all"}), M(2, "1", {ROLLUP: "all"})]),
    ("rollup_value", ROLL, [M(1), M(2, "1", {ROLLUP: "bad"})]),
    ("ttl_off", {}, [M(1, None, {TTL: "5"}), M(2, "1"), M(1, "1", {TTL: "bad"})]),
    (
        "ttl",
        {"allow_msg_ttl": True},
        [M(1, None, {TTL: "1h"}), M(2, "1", {TTL: "never"}), M(1, "1", {TTL: "bad"}), content],
    ),
    ("increment_off", {}, [M(1, "1", {INCR: "1"}), M(1, "1", {INCR: "x"})]),
    ("source", {}, [M(1), M(2, "1", {SOURCE: "x"})]),
    ("discard_new_msgs", {"discard": "new", "max_msgs": 3}, [M(1), M(2, "1"), M(1, "1"), M(1, "1")]),
    (
        "discard_new_bytes",
        {"discard": "new", "max_bytes": 400},
        [M(1, data=b"x" * 90), M(2, "1", data=b"x" * 90), M(1, "1")],
    ),
    ("discard_new_before_the_next_member", {"discard": "new", "max_msgs": 2}, [M(1), M(2, "1", {STREAM: "no"})]),
    (
        "discard_new_comes_last",
        {"discard": "new", "max_msgs": 2},
        [M(1, "1", more) for more in ({LAST: "9"}, DUPLICATE, {ROLLUP: "x"}, {SOURCE: "x"})],
    ),
    (
        "discard_new_by_subject",
        {"discard": "new", "max_msgs_per_subject": 1, "discard_new_per_subject": True, "max_msgs": 4, **ROLL},
        [
            M(1, subject="a.5"),
            M(2, "1", {}, "a.5"),
            M(1, "1", {ROLLUP: "sub"}),
            M(1, subject="a.5"),
            M(2, "1", {}, "a.6"),
            M(1, "1", {}, "a.7"),
        ],
    ),
    (
        "discard_new_replaced",
        {"discard": "new", "max_msgs_per_subject": 1, "max_msgs": 3},
        [M(1), M(2), M(3, "1"), M(1), M(2, "1", {}, "a.5"), content],
    ),
    (
        "discard_new_and_rollup",
        {"discard": "new", "max_msgs": 3, **ROLL},
        [M(1, None, {ROLLUP: "all"}), M(2), M(3, "1"), content],
    ),
    ("discard_old", {"max_msgs": 2}, [M(1), M(2), M(3), M(4, "1"), content]),
    (
        "discard_old_by_subject",
        {"max_msgs_per_subject": 2, "max_bytes": 100000},
        [M(1), M(2), M(3), M(4, "1", {}, "a.2"), content],
    ),
    ("interest", {"retention": "interest"}, [M(1), M(2, "1")]),
    ("work_queue", {"retention": "workqueue"}, [M(1), M(2, "1"), content]),
    ("on_disk", {"storage": "file"}, [M(1), M(2, "1"), M(1), M(2, "eob"), content]),
]


@table(COMMITS)
def commits(t: Script, config: dict[str, Any], steps: Sequence[Step]) -> None:
    t.stream("S", ["a.*"], **{"allow_atomic": True, **config})
    t.fill(["a.1"])
    t.fill(["a.2"], headers=DUPLICATE)
    play(t, steps)
    t.state("S")


FAULTS: dict[str, dict[str, str]] = {
    "stream": {STREAM: "no"},
    "ttl": {TTL: "bad"},
    "duplicate": DUPLICATE,
    "source": {SOURCE: "x"},
    "last": {LAST: "99"},
    "subject": {LAST_SUBJECT: "98"},
    "other": {OTHER_SUBJECT: "a.9"},
    "schedule": {"Nats-Schedule": "bad"},
    "scheduler": {"Nats-Scheduler": "x"},
    "rollup": {ROLLUP: "bad"},
    "id": {LAST_ID: "x"},
    "increment": {INCR: "x"},
}


@table([(name, name) for name in FAULTS])
def order(t: Script, name: str) -> None:
    """Record which of two violations is reported, in the first and in the second member."""
    t.stream("S", ["a.*"], allow_atomic=True, allow_msg_ttl=True, allow_msg_schedules=True, allow_rollup_hdrs=True)
    t.fill(["a.1"], headers=DUPLICATE)
    for other in FAULTS:
        if other != name:
            both = FAULTS[name] | FAULTS[other]
            play(t, [M(1, "1", both), M(1, None, {}, "a.2"), M(2, "1", both)])
    t.state("S")


@table([("off", False), ("on", True)])
def counters(t: Script, on: bool) -> None:
    """Each member of a batch increments the value of the previous one."""
    t.stream("S", ["a.*"], allow_atomic=True, allow_msg_counter=on)
    plus = {INCR: "+2"}
    play(t, [M(1, None, plus, data=b""), M(2, None, plus, "a.2", b""), M(3, "1", {INCR: "5"}, data=b""), content])
    play(
        t,
        [
            M(1, None, plus, data=b""),
            M(2, "1", {}, data=b""),
            M(1, "1", plus),
            M(1, "1", plus | {STREAM: "S"}, data=b""),
        ],
    )
    play(t, [M(1, None, plus, data=b""), M(2, "eob"), M(1, "1", {INCR: "-20"}, data=b""), content])


@scenario
def without_acks_nothing_is_answered(t: Script) -> None:
    t.stream("S", ["a.*"], allow_atomic=True, no_ack=True)
    reply = t.wire.new_reply()
    for step in (*PAIR, M(1), M(3), M(1, "x"), M(1, "1", {STREAM: "no"}), M(1, "1")):
        t.wire.publish(step.subject, step.data, reply, step.headers)
    t.state_when("S", lambda state: state["messages"] == 3)
    t.frames("answers", t.wire.ping())


@scenario
def members_without_replies(t: Script) -> None:
    t.stream("S", ["a.*"], allow_atomic=True)
    play(t, [many(999), M(1000, "1"), many(1000), M(1001, "eob")])
    t.state("S")


@table(
    [
        ("member", 1001, None),
        ("commit", 1001, "1"),
        ("beyond", 1003, None),
        ("value", 1001, "x"),
        ("unknown", 5000, None),
    ]
)
def a_thousand_are_enough(t: Script, seq: int, commit: str | None) -> None:
    t.stream("S", ["a.*"], allow_atomic=True)
    play(t, [many(1000 if seq < 5000 else 0), M(seq, commit), M(1002, "1"), M(2, "1"), *PAIR])
    t.state("S")


@scenario
def fifty_at_a_time(t: Script) -> None:
    t.stream("S", ["a.*"], allow_atomic=True)
    t.stream("T", ["t"], allow_atomic=True)
    block = [pub("a.1", b"x", headers=M(1, id=f"n{n}").headers) for n in range(50)]
    t.wire.send(b"".join(block))
    play(
        t,
        [
            M(1),
            M(1, "1"),
            M(1, "x"),
            M(2),
            M(1, "eob"),
            M(1, None, {LEVEL: "9"}),
            M(1, None, {}, "t"),
            M(2, "1", {}, "t"),
        ],
    )
    play(
        t, [M(2, "1", id="n7"), M(1), M(1, id="n7"), M(2, "1"), M(1, "1", {STREAM: "no"}, id="n7"), M(1, "1", id="n7")]
    )
    t.state("S")


@scenario
def deleted_streams_forget(t: Script) -> None:
    t.stream("S", ["a.*"], allow_atomic=True)
    play(t, [M(1)])
    t.setup("STREAM.DELETE.S")
    t.stream("S", ["a.*"], allow_atomic=True)
    play(t, [M(2, "1"), *PAIR])
    t.state("S")


# ---------------------------------------------------------------------- advisories


def _listening(t: Script) -> tuple[Wire, str]:
    wire = t.connect()
    sid = wire.subscribe("$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.>")
    wire.ping()
    return wire, sid


def _told(t: Script, wire: Wire, sid: str) -> None:
    """Record the advisories so far, up to one that is caused here as a fence."""
    t.stream("END", ["end"], allow_atomic=True)
    play(t, [M(1, None, {}, "end", id="e"), M(3, None, {}, "end", id="e")])
    events = []
    while not (frame := wire.delivered(sid)).subject.endswith(".END"):
        events.append((frame.subject, frame.json() | {"id": "<id>"}))
    t.note("advisories", events)


@table(
    [
        ("gaps", [M(1), M(3), M(1), M(1), M(1), M(0), M(1), M(3, "eob"), M(1, "eob")]),
        ("unknown", [M(2), M(2, "1"), M(0), M(5000)]),
        ("level", [M(1), M(2, None, {LEVEL: "9"}), M(1, None, {LEVEL: "x"}), M(1), M(2, "eob", {LEVEL: "9"})]),
        ("commit_value", [M(1), M(2, "x"), M(1, "x")]),
        ("refused", [M(1, "1", more) for more in ({STREAM: "no"}, {LAST: "9"}, {LAST_ID: "x"}, {TTL: "1"})]),
        ("large", [many(1000), M(1001), M(1002)]),
        ("switched_off", [M(1), update()]),
        ("deleted", [M(1), lambda t: t.setup("STREAM.DELETE.S")]),
        ("others", [M(1), M(None), M("x"), M(1, id=LONG), M(2, "1")]),
    ]
)
def abandoned(t: Script, steps: Sequence[Step]) -> None:
    t.stream("S", ["a.*"], allow_atomic=True)
    wire, sid = _listening(t)
    play(t, steps)
    _told(t, wire, sid)


# ---------------------------------------------------------------------- options

SMALL = """jetstream { limits {
    batch { max_inflight_per_stream: 2, max_inflight_total: 3, max_msgs: 4, timeout: "300ms" }
} }
"""


@configured(SMALL)
def limits_of_the_server(t: Script) -> None:
    t.stream("S", ["a.*"], allow_atomic=True)
    t.stream("T", ["t"], allow_atomic=True)
    play(t, [M(1, id=name) for name in "123"])
    play(t, [M(1, None, {}, "t", id=name) for name in "12"])
    play(t, [M(2, "1", id="1"), M(1, "1", {}, "t", id="2"), M(1, None, {}, "t", id="3"), M(1, "1", {}, "t", id="4")])
    play(t, [M(2, id="2"), M(3, id="2"), M(4, id="2"), M(5, id="2"), M(6, id="2")])
    t.state("S")
    t.state("T")


@configured(SMALL)
def idle_batches_are_abandoned(t: Script) -> None:
    t.stream("S", ["a.*"], allow_atomic=True)
    wire, sid = _listening(t)
    play(t, [M(1, id="one"), M(1, id="two"), M(2, id="one")])
    events = [wire.delivered(sid).json() | {"id": "<id>"} for _ in range(2)]
    t.note("advisories", sorted(events, key=lambda event: str(event["batch"])))
    play(t, [M(2, "1", id="two"), M(3, "1", id="one"), M(1, id="one"), M(2, "1", id="one")])
    t.state("S")


@scenario
def headers_as_they_come(t: Script) -> None:
    """Doubled and reordered headers are stored unchanged; the first of a name counts."""
    t.stream("S", ["a.*"], allow_atomic=True)
    doubled = header_block(M(1, "1").headers).replace(b"\r\n\r\n", b"\r\nNats-Batch-Id: other\r\nX: y\r\n\r\n")
    for block in (
        doubled,
        b"NATS/1.0\r\nX: 1\r\nNats-Batch-Sequence: 1\r\nNats-Batch-Id: b\r\nZ: y\r\n\r\n",
        header_block(M(2, "eob").headers),
        b"NATS/1.0\r\nNats-Batch-Id:b\r\nNats-Batch-Sequence:  1\r\nNats-Batch-Commit:1\r\n\r\n",
        b"NATS/1.0\r\nnats-batch-id: b\r\nNats-Batch-Sequence: 1\r\n\r\n",
    ):
        t.publish("a.1", b"x", block)
    content(t)
