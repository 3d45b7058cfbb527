"""Scenarios of fast batches: order, gaps, flow control, errors, limits (docs/internals/streams.md#fast-batches)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tests.conformance.harness import Script, configured, scenario, table
from tests.wire import Wire, pub

START, APPEND, COMMIT, END, PING = range(5)
LAST = "Nats-Expected-Last-Sequence"
MSG_ID = "Nats-Msg-Id"
LEVEL = "Nats-Required-Api-Level"
ROLLUP = "Nats-Rollup"
INCR = "Nats-Incr"
WRONG = {LAST: "999"}
KNOWN = {MSG_ID: "known"}
PREFIX = "_INBOX.fast"


class F(NamedTuple):
    """Message of a batch."""

    seq: int | str
    op: int | str = APPEND
    mode: str = "ok"
    flow: int | str = 10
    more: Mapping[str, str] | None = None
    id: str = "b"
    data: bytes = b"x"
    subject: str = "a.1"

    @property
    def reply(self) -> str:
        return f"{PREFIX}.{self.id}.{self.flow}.{self.mode}.{self.seq}.{self.op}.$FI"

    @property
    def wire(self) -> bytes:
        return pub(self.subject, self.data, self.reply, dict(self.more) if self.more else None)


Step = F | Callable[[Script], None]


class Talk:
    """Connection that receives all answers to batches, in order.

    The pub ack of a batch of one message, sent after a step, shows that the step's answers are complete.
    """

    def __init__(self, t: Script, wire: Wire | None = None) -> None:
        self.t = t
        self.wire: Wire = wire or t.connect()
        self.sid = self.wire.subscribe(f"{PREFIX}.>")
        self.fences = 0

    def send(self, steps: Sequence[Step], *, fence: str = "a.fence", pause: bool = True) -> None:
        """Send the messages of the steps; with `pause` each one is answered before the next is sent."""
        messages: list[F] = []
        for step in steps:
            if not isinstance(step, F):
                step(self.t)
                continue
            messages.append(step)
            if pause:
                self._exchange(messages, fence)
                messages = []
        if messages:
            self._exchange(messages, fence)

    def _exchange(self, messages: Sequence[F], fence: str) -> None:
        self.fences += 1
        last = F(1, COMMIT, "ok", 10, None, f"fence{self.fences}", b"", fence)
        self.wire.send(b"".join(message.wire for message in (*messages, last)))
        answers = []
        while (frame := self.wire.delivered(self.sid)).subject != last.reply:
            if frame.subject.endswith(".$FI"):
                answers.append([frame.subject.removeprefix(f"{PREFIX}."), frame.header, frame.json()])
        first = messages[0]
        self.t.note(f"{len(messages)} from {first.reply.removeprefix(PREFIX)} {first.more or ''}", answers)


def update(**config: Any) -> Step:
    return lambda t: t.setup("STREAM.UPDATE.S", {"name": "S", "subjects": ["a.*"], "storage": "memory", **config})


def run(first: int, last: int, flow: int = 10, batch_id: str = "b") -> list[Step]:
    return [F(seq, APPEND, "ok", flow, None, batch_id) for seq in range(first, last + 1)]


OPEN = F(1, START, "ok", 10, None, "open")
"""Batch that stays open beside the others."""
B1, B1F = F(1, START), F(1, START, "fail")

BATCHES: list[tuple[Any, ...]] = [
    ("three", {}, [B1, F(2), F(3, COMMIT)]),
    ("three_that_fail", {}, [B1F, F(2, APPEND, "fail"), F(3, COMMIT, "fail")]),
    ("single", {}, [F(1, COMMIT), F(1, COMMIT, "fail")]),
    ("end_of_batch", {}, [B1, F(2), F(3, END), F(4)]),
    ("end_after_the_first", {}, [B1, F(2, END)]),
    ("end_ahead", {}, [B1, F(5, END), B1F, F(5, END, "fail")]),
    ("end_behind", {}, [B1, F(2), F(2, END), B1F, F(1, END, "fail")]),
    ("two_ids", {}, [B1, F(1, START, id="c"), F(2), F(2, id="c"), F(3, COMMIT, id="c"), F(3, COMMIT)]),
    ("gap", {}, [B1, F(4), F(9, COMMIT)]),
    ("gap_that_fails", {}, [B1F, F(3, APPEND, "fail"), F(4, APPEND, "fail"), B1F, F(3, COMMIT, "fail")]),
    ("backward", {}, [B1, F(2), F(2), F(3), B1F, F(2, APPEND, "fail"), F(1, COMMIT, "fail"), F(3)]),
    ("begun_again", {}, [B1, B1, F(2), B1, F(2, START), F(2, COMMIT)]),
    ("mode_is_that_of_the_first", {}, [B1F, F(3), B1, F(3, APPEND, "fail"), F(4, COMMIT, "fail")]),
    ("unknown", {}, [F(2), F(2, COMMIT), F(2, END), F(1, PING), F(7, PING)]),
    ("over", {}, [B1, F(2, COMMIT), F(3), F(3, COMMIT), F(3, END), F(3, PING)]),
    ("off", {"allow_batched": False}, [B1, F("x"), F(1, 9), F(2), F(1, START, id="i" * 65), F(1, PING)]),
    (
        "sequences",
        {},
        [F(0, START), F("x", START), F("-1", START), F("+1", START), F("01", START), F("002"), F(1 << 64)],
    ),
    (
        "operations",
        {},
        [F(1, 5), F(1, "x"), F(1, "-1"), F(1, "00"), F(2, START), F(1), F(1, END), F(0, PING), F(2, "02")],
    ),
    ("modes", {}, [F(1, START, "OK"), F(1, START, "Fail"), F(1, START, "x")]),
    ("ids", {}, [F(1, COMMIT, id="i" * 64), F(1, COMMIT, id="i" * 65), F(2, id="i" * 65), F(1, COMMIT, id='"q"')]),
    ("pattern_before_id", {}, [F(1, START, "x", id="i" * 65), F("x", START, id="i" * 65)]),
    ("ping", {}, [B1, F(1, PING), F(2), F(2, PING), F(1, PING), F(3, PING), F(4), F(9, PING), F(9, COMMIT)]),
    ("ping_that_fails", {}, [B1F, F(1, PING, "fail"), F(3, PING, "fail"), F(2, COMMIT, "fail")]),
    ("error", {}, [B1, F(2, more=WRONG), F(3), F(4, COMMIT)]),
    ("error_of_the_first", {}, [F(1, START, more=WRONG), F(2), F(3, COMMIT), F(1, START, more=WRONG), F(2, END)]),
    ("error_of_the_last", {}, [B1, F(2, COMMIT, more=WRONG), F(3)]),
    ("error_of_the_only_one", {}, [F(1, COMMIT, more=WRONG), F(1, COMMIT, "fail", more=WRONG), F(2)]),
    (
        "error_that_fails",
        {},
        [B1F, F(2, APPEND, "fail", more=WRONG), F(3), B1F, F(2, COMMIT, "fail", more=WRONG), F(3)],
    ),
    ("error_of_the_first_that_fails", {}, [F(1, START, "fail", more=WRONG), F(2)]),
    ("error_after_a_gap", {}, [B1, F(5, COMMIT, more=WRONG), B1, F(5, more=WRONG), F(6, PING), F(7, END)]),
    ("too_large", {"max_msg_size": 90}, [B1, F(2, data=b"x" * 91), F(3), F(4, COMMIT, data=b"x" * 91), F(4, COMMIT)]),
    ("too_large_from_the_first", {"max_msg_size": 90}, [F(1, START, data=b"x" * 91), F(2), F("x", data=b"x" * 91)]),
    (
        "too_large_a_header",
        {},
        [F(1, START, more={"A": "h" * 66000}), F(2, COMMIT), F(1, START, "fail", more={"A": "h" * 66000})],
    ),
    ("too_large_where_off", {"allow_batched": False, "max_msg_size": 90}, [F(1, START, data=b"x" * 91)]),
    ("level", {}, [F(1, COMMIT, more={LEVEL: "5", "A": "b"}), F(1, COMMIT, more={LEVEL: ""})]),
    (
        "level_too_high",
        {},
        [
            F(1, START, more={LEVEL: "9"}),
            F(2),
            B1,
            F(2, more={LEVEL: "6"}),
            F(3),
            B1,
            F(2, COMMIT, more={LEVEL: "x"}),
            F(2),
        ],
    ),
    (
        "level_of_others",
        {},
        [
            B1,
            F(3, more={LEVEL: "9"}),
            F(2),
            B1,
            F(2, PING, more={LEVEL: "9"}),
            F(2),
            B1,
            F(2, END, more={LEVEL: "9"}),
            F(2),
        ],
    ),
    (
        "level_comes_late",
        {},
        [F(1, START, "x", more={LEVEL: "9"}), F(2, more={LEVEL: "9"}), F(1, START, id="i" * 65, more={LEVEL: "9"})],
    ),
    (
        "duplicates",
        {},
        [F(1, START, more=KNOWN), F(2, more={MSG_ID: "n"}), F(3, more={MSG_ID: "n"}), F(4, COMMIT, more={MSG_ID: "n"})],
    ),
    ("only_duplicates", {}, [F(1, START, more=KNOWN), F(2, COMMIT, more=KNOWN), F(1, START, more=KNOWN), F(2, END)]),
    ("only_duplicates_that_fail", {}, [F(1, START, "fail", more=KNOWN), F(2, COMMIT, "fail", more=KNOWN)]),
    (
        "duplicate_alone",
        {},
        [
            F(1, COMMIT, more=KNOWN),
            F(1, COMMIT, flow=1, more=KNOWN),
            F(1, COMMIT, "fail", more=KNOWN),
            F(1, COMMIT, "fail", 1, KNOWN),
        ],
    ),
    (
        "duplicates_are_acked",
        {},
        [F(1, START, flow=2, more=KNOWN), F(2, flow=2, more=KNOWN), F(3, more=KNOWN), F(4, COMMIT, more=KNOWN)],
    ),
    (
        "rollups",
        {"allow_rollup_hdrs": True},
        [B1, F(2, more={ROLLUP: "sub"}), F(3), F(4, COMMIT, more={ROLLUP: "all"})],
    ),
    ("rollup_off", {}, [B1, F(2, more={ROLLUP: "sub"}), F(3, COMMIT)]),
    ("discard_new", {"discard": "new", "max_msgs": 5}, [B1, F(2), F(3), F(4, COMMIT), F(1, START, "fail"), F(2)]),
    (
        "discard_new_by_subject",
        {"discard": "new", "max_msgs_per_subject": 1, "discard_new_per_subject": True},
        [B1, F(2), F(3, subject="a.2"), F(4, COMMIT)],
    ),
    ("discard_old", {"max_msgs": 2}, [B1, F(2), F(3), F(4, COMMIT)]),
    ("interest", {"retention": "interest"}, [B1, F(2), F(3, COMMIT)]),
    (
        "counters",
        {"allow_msg_counter": True},
        [
            F(1, START, more={INCR: "2"}, data=b""),
            F(2, more={INCR: "3"}, data=b""),
            F(3, COMMIT, more={INCR: "4"}, data=b""),
            F(1, COMMIT, more={INCR: "5"}, data=b""),
            F(1, COMMIT, data=b""),
            F(1, START, "fail", more={INCR: "x"}, data=b""),
        ],
    ),
    (
        "headers_of_atomic_batches",
        {"allow_atomic": True},
        [
            F(1, START, more={"Nats-Batch-Id": "a", "Nats-Batch-Sequence": "1"}),
            F(2, more={"Nats-Batch-Id": "a", "Nats-Batch-Sequence": "7"}),
            F(3, more={"Nats-Batch-Id": "a", "Nats-Batch-Commit": "zz"}),
            F(4, COMMIT, more={"Nats-Batch-Id": "i" * 65}),
        ],
    ),
    ("on_disk", {"storage": "file"}, [B1, F(2), F(3, flow=2), F(4, PING), F(5), F(6, COMMIT)]),
    (
        "switched_off",
        {},
        [
            B1,
            update(),
            F(2),
            update(allow_batched=True),
            F(2),
            B1,
            update(allow_batched=True, max_msgs=9),
            F(2, COMMIT),
        ],
    ),
    ("switched_off_and_on", {}, [B1, update(), update(allow_batched=True), F(2)]),
    ("sealed", {}, [B1, update(allow_batched=True, sealed=True), F(2), F(2, END), F(2, PING), F("x")]),
    (
        "not_stored_where_nobody_is_asked",
        {"no_ack": True},
        [
            B1,
            F(2),
            F(3, COMMIT),
            F(4),
            F(1, PING),
            B1F,
            F(3, APPEND, "fail"),
            B1,
            F(2, END),
            B1,
            F(2, COMMIT, more=WRONG),
            B1,
            B1,
            F(1, START, flow=1),
            F(2, PING),
            F(9, PING),
            F(10, END),
            F(1, COMMIT, flow=1, more=KNOWN),
            F(1, COMMIT, "fail", 1, KNOWN),
            F(1, COMMIT, "fail", more=WRONG),
            F(1, COMMIT, more=WRONG),
            F(1, START, "fail", more=WRONG),
            F("x"),
        ],
    ),
    # flow control
    ("flow", {}, [F(1, START, flow=3), *run(2, 10), F(11, COMMIT)]),
    ("flow_of_one", {}, [F(1, START, flow=1), *run(2, 4), F(5, COMMIT)]),
    (
        "flow_values",
        {},
        [
            step
            for flow in ("0", "x", "-1", "+7", "07", "1_0", "499", "501", "65536", "9" * 20)
            for step in (F(1, START, flow=flow), F(2, END))
        ],
    ),
    ("flow_does_not_change", {}, [F(1, START, flow=4), *run(2, 9, 2), *run(10, 20, 100), F(21, COMMIT)]),
    ("flow_beside_another", {}, [OPEN, F(1, START, flow=5), *run(2, 24, 5), F(25, COMMIT)]),
    ("flow_after_another", {}, [OPEN, F(1, START, flow=50), F(2, END, id="open"), *run(2, 20, 50), F(21, COMMIT)]),
    ("ack_with_the_commit", {}, [F(1, START, flow=2), F(2, COMMIT), F(1, START, flow=2), F(5, COMMIT)]),
    ("ack_after_an_error", {}, [F(1, START, flow=2), F(2, more=WRONG), F(3), F(4), F(9, COMMIT)]),
    ("ack_after_a_gap", {}, [OPEN, F(1, START, flow=100), F(40), F(41), F(500, PING), F(501), F(520), F(521, COMMIT)]),
    ("ack_after_pings", {}, [F(1, START, flow=3), F(2, PING), F(3, PING), F(4, PING), F(20, PING), F(21), F(22, END)]),
]


@table(BATCHES)
def batches(t: Script, config: dict[str, Any], steps: Sequence[Step]) -> None:
    t.stream("S", ["a.*"], **{"allow_batched": True, **config})
    if config.get("no_ack"):
        t.wire.publish("a.0", b"x", headers=KNOWN)
        t.state_when("S", lambda state: state["messages"] == 1)
    else:
        t.publish("a.0", b"x", KNOWN)
    Talk(t).send(steps)
    state = t.state("S")["state"]
    for seq in range(state["first_seq"], state["last_seq"] + 1):
        t.api("STREAM.MSG.GET.S", {"seq": seq})


@table(
    [
        ("alone", [F(1, START, flow=1000), *run(2, 1200)]),
        ("beside_one", [OPEN, F(1, START, flow=1000), *run(2, 900)]),
        ("beside_two", [OPEN, F(1, START, id="c"), F(1, START, flow=1000), *run(2, 900)]),
        ("fewer_later", [OPEN, F(1, START, flow=500), *run(2, 300), F(2, END, id="open"), *run(301, 1200)]),
        (
            "more_later",
            [F(1, START, flow=500), *run(2, 20), *(F(1, START, id=f"n{n}") for n in range(9)), *run(21, 1400)],
        ),
    ]
)
def paces(t: Script, steps: Sequence[Step]) -> None:
    """Messages sent without pauses are answered in order."""
    t.stream("S", ["a.*"], allow_batched=True)
    Talk(t).send([*steps, F(2000, END)], pause=False)
    t.state("S")


@table([("memory", "memory"), ("file", "file")])
def answers_are_in_order(t: Script, storage: str) -> None:
    t.stream("S", ["a.*"], allow_batched=True, storage=storage)
    talk = Talk(t)
    talk.send([B1, F(2), F(5), F(6, more=WRONG), F(6, PING), F(7), F(8, COMMIT), F(9), F(9, PING)], pause=False)
    talk.send([B1F, F(2), F(3), F(5), F(6), F(7, COMMIT)], pause=False)
    talk.send(
        [F(1, START, flow=2), *run(2, 9), F(10, COMMIT), F(1, COMMIT), F(1, START, "fail", more=WRONG)], pause=False
    )
    t.state("S")


@table(
    [
        ("short", ["$FI", "b.10.ok.1.2.$FI", "10.ok.1.2.$FI"]),
        ("other", ["x.b.10.ok.1.2.$fi", "x.b.10.ok.1.2.FI", "x.y.z.b.10.ok.1.2.$FI"]),
    ]
)
def reply_subjects(t: Script, replies: Sequence[str]) -> None:
    t.stream("S", ["a.*"], allow_batched=True)
    for reply in replies:
        t.wire.subscribe(reply)
        t.wire.publish("a.1", b"x", reply)
        t.note(reply, t.wire.message(reply).json())


@scenario
def a_thousand_at_a_time(t: Script) -> None:
    t.stream("S", ["a.*"], allow_batched=True)
    others = b"".join(F(1, START, id=f"n{n}").wire for n in range(999))
    t.wire.send(others.replace(PREFIX.encode(), b"_INBOX.others"))
    t.state_when("S", lambda state: state["messages"] == 999)
    talk = Talk(t)
    talk.send([B1])
    steps = [
        F(1, START, id="c"),
        F(1, COMMIT, id="c"),
        F(2, id="c"),
        F(1, START, id="c", more={LEVEL: "9"}),
        F(2, END, id="n7"),
    ]
    for step in steps:
        talk.wire.send(step.wire)
        t.note(step.reply, talk.wire.delivered(talk.sid).json())
    t.state("S")


SMALL = """jetstream { limits { batch { max_inflight_per_stream: 3, max_inflight_total: 4, timeout: "300ms" } } }
"""


@configured(SMALL)
def limits_of_the_server(t: Script) -> None:
    t.stream("S", ["a.*"], allow_batched=True, allow_atomic=True)
    t.stream("T", ["t"], allow_batched=True)
    talk = Talk(t)
    talk.send([*(F(1, START, id=name) for name in "abcd"), F(2, END, id="b")])
    talk.send([*(F(1, START, subject="t", id=name) for name in "efg")], fence="t")
    talk.send([F(1, START, id="h")])
    t.state("S")


@configured(SMALL)
def idle_batches_are_forgotten(t: Script) -> None:
    t.stream("S", ["a.*"], allow_batched=True, allow_atomic=True)
    events = t.connect()
    sid = events.subscribe("$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.>")
    events.ping()
    talk = Talk(t)
    talk.send([B1, F(2)])
    for name in "ab":  # advisories come when atomic batches end; the second of them starts long after the fast one
        t.wire.publish("a.1", b"x", headers={"Nats-Batch-Id": name, "Nats-Batch-Sequence": "1"})
        t.note("advisory", events.delivered(sid).json() | {"id": "<id>"})
    talk.send([F(3), F(3, COMMIT), F(3, PING), B1, F(2, COMMIT)])
    t.state("S")
