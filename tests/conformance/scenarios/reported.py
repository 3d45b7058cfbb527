"""Scenarios of behaviours that users reported as defects of other servers.

Rollups and purges under consumers with several filters, and acks of all messages beside messages that a consumer does
not match.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from tests.conformance.harness import Script, scenario, table
from tests.wire import Frame

ROLLUP, ROLLUP_ALL = {"Nats-Rollup": "sub"}, {"Nats-Rollup": "all"}
SECOND = 1_000_000_000
SUBJECTS = ("s.a", "s.b", "s.c", "s.a", "s.b.x", "s.b", "s.c", "s.a", "s.b")
FILTERS: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("one", ("s.b",), 3),
    ("two", ("s.a", "s.b"), 6),
    ("three", ("s.a", "s.b", "s.c"), 8),
    ("patterns", ("s.a", "s.*.x", "s.c"), 6),
    ("all", ("s.>",), 9),
)
"""Name and filters of a consumer, and how many of `SUBJECTS` they match."""


def _counts(t: Script, *consumers: str) -> None:
    """Record the counts of consumers, without floors: those of nats-server may be above what is pending."""
    for name in consumers:
        info = t.wire.api(f"CONSUMER.INFO.S.{name}")
        t.note(name, {key: info[key] for key in ("num_pending", "num_ack_pending", "num_redelivered")})


def rest(t: Script, consumer: str, batch: int = 100) -> list[Frame]:
    """Take what a consumer has to deliver, at most `batch`, up to the status; record it."""
    wire = t.wire
    reply = wire.new_reply()
    body = json.dumps({"batch": batch, "no_wait": True}).encode()
    wire.publish(f"$JS.API.CONSUMER.MSG.NEXT.S.{consumer}", body, reply)
    frames: list[Frame] = []
    while len(frames) < batch and not (frame := wire.delivered(wire.inbox_sid)).status:
        frames.append(frame)
    # Without the number of pending ones: nats-server counts new messages after their acks.
    came = [[frame.subject, frame.data, *frame.reply.split(".")[4:6]] for frame in frames]
    t.note(f"the rest of {consumer}", came)
    return frames


@table(FILTERS)
def rollups_between_deliveries(t: Script, filters: Sequence[str], matching: int) -> None:
    t.stream("S", ["s.>"], allow_rollup_hdrs=True)
    t.consumer("S", "c", filter_subjects=list(filters))
    t.fill_seen("S", "c", SUBJECTS, matching=matching)
    rest(t, "c", 1)
    t.publish("s.b", b"rolled up", ROLLUP)
    t.publish("s.c", b"new")
    rest(t, "c", 1)
    t.publish("s.a", b"rolled up", ROLLUP)
    t.publish("s.b.x", b"rolled up", ROLLUP)
    t.publish("s.a", b"new")
    rest(t, "c")
    t.publish("s.c", b"all", ROLLUP_ALL)
    t.publish("s.b", b"new")
    rest(t, "c")


@table([(f"{seed}", seed) for seed in range(24)])
def removals_by_chance(t: Script, seed: int) -> None:
    """Rollups, purges, deletes and deliveries in any order: each message that is left is delivered, once."""
    rng = random.Random(f"removals {seed}")
    t.stream("S", ["s.>"], allow_rollup_hdrs=True, storage=rng.choice(("file", "memory")))
    for name, filters, _ in FILTERS:
        t.consumer("S", name, filter_subjects=list(filters))
    subjects = sorted(set(SUBJECTS))
    for number in range(30):
        subject, dice = rng.choice(subjects), rng.random()
        if dice < 0.5:
            t.wire.request(subject, b"%d" % number)
        elif dice < 0.65:
            t.wire.request(subject, b"%d" % number, ROLLUP if rng.random() < 0.9 else ROLLUP_ALL)
        elif dice < 0.75:
            body: dict[str, Any] = {"filter": rng.choice([*subjects, "s.*", "s.>"])}
            t.api("STREAM.PURGE.S", body | ({"keep": rng.randrange(1, 3)} if rng.random() < 0.5 else {}))
        elif dice < 0.8:
            last = t.wire.api("STREAM.INFO.S")["state"]["last_seq"]
            t.wire.api("STREAM.MSG.DELETE.S", {"seq": rng.randint(1, max(last, 1))})
        else:
            rest(t, rng.choice(FILTERS)[0])
    for name, _, _ in FILTERS:
        rest(t, name)
        _counts(t, name)


@table([(policy, policy) for policy in ("limits", "interest")])
def an_ack_of_all_leaves_what_is_outside_the_filter(t: Script, policy: str) -> None:
    t.stream("S", ["s.>"], retention=policy)
    for name, subject in (("c", "s.a"), ("other", "s.b"), ("every", "s.*")):
        t.consumer("S", name, filter_subject=subject, ack_policy="explicit" if name == "other" else "all")
    t.fill(["s.a", "s.b", "s.a", "s.b", "s.a", "s.a", "s.b"])
    for name, count in (("c", 4), ("other", 3), ("every", 7)):
        t.wait_known("S", name, count)
    frames, others, every = (rest(t, name) for name in ("c", "other", "every"))
    for frame in (frames[1], frames[3], every[4], others[2], every[6]):
        t.ack(frame)
        _counts(t, "c", "other", "every")
    left = 7 if policy == "limits" else 2
    t.state_when("S", lambda state: state["messages"] == left)


@table([(policy, policy) for policy in ("limits", "interest")])
def an_ack_of_all_under_several_filters(t: Script, policy: str) -> None:
    t.stream("S", ["s.>"], retention=policy)
    t.consumer("S", "c", filter_subjects=["s.a", "s.c.*"], ack_policy="all")
    t.consumer("S", "other", filter_subject="s.b")
    t.fill(["s.a", "s.b", "s.c.1", "s.b", "s.a", "s.c.2", "s.b"])
    for name, count in (("c", 4), ("other", 3)):
        t.wait_known("S", name, count)
    frames = rest(t, "c")
    for frame, left in ((frames[1], 5), (frames[3], 3)):
        t.ack(frame)
        t.state_when("S", lambda state, left=left: state["messages"] == (7 if policy == "limits" else left))  # type: ignore[misc]
    rest(t, "other")
    _counts(t, "c", "other")


@scenario
def an_ack_of_all_after_another_filter(t: Script) -> None:
    t.stream("S", ["s.>"], retention="interest")
    t.consumer("S", "c", filter_subject="s.a", ack_policy="all")
    t.consumer("S", "every")
    t.fill_seen("S", "every", ["s.a", "s.b", "s.a", "s.b", "s.a"])
    t.wait_known("S", "c", 3)
    rest(t, "c", 2)
    t.consumer("S", "c", filter_subject="s.b", ack_policy="all")
    frames = rest(t, "c")
    t.ack(frames[-1])
    _counts(t, "c", "every")
    t.state("S", subjects_filter=">")


@scenario
def a_message_is_given_up_though_nobody_pulls(t: Script) -> None:
    advisories = t.wire.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>")
    t.stream("S", ["s.>"])
    t.consumer("S", "c", ack_wait=SECOND // 5, max_deliver=1, max_ack_pending=3)
    t.fill_seen("S", "c", ["s.a"] * 4)
    t.pull("S", "c", {"batch": 3}, 3)
    told = [t.wire.delivered(advisories).json() for _ in range(3)]
    t.note("given up", sorted([each["stream_seq"], each["deliveries"]] for each in told))
    t.numbers_when("S", "c", lambda info: info["num_ack_pending"] == 0)
    rest(t, "c")
    _counts(t, "c")
