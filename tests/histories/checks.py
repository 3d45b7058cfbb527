"""The promises, each checked by a function over a history.

Belongs here: the checkers and the list of them. Each returns its violations; none needs a server. docs/campaigns.md
(Histories) names the promises; docs/replication.md says what each kind of read guarantees.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from tests.histories.record import EVENTS, JOBS, KEYS, LIMITS, MIRROR, NEWS, OBJECTS, TOTAL, Event, History
from tests.linearizable import NEVER, Operation, Outcome, explain

SECOND = 10**9
ACK_WAIT_NS = 5 * SECOND
"""`ack_wait` of the work queue's consumer."""
UNDER_WAY_NS = 7 * SECOND
"""A delivery may have been sent before its ack was confirmed, and arrive up to this much later: a connection between
nodes survives 5 s of silence, and then delivers what was sent before."""
GRACE_NS = 5 * SECOND
"""After a fault, its effects on deliveries (late messages, a new leader) may last this long."""


class Violation(NamedTuple):
    """One broken promise.

    Fields:
        promise: key of `CHECKS`.
        text: the difference.
        events: the events that contradict each other.
    """

    promise: str
    text: str
    events: tuple[Event, ...] = ()


Check = Callable[[History], Iterator[Violation]]
CHECKS: dict[str, Check] = {}


def _check(promise: str) -> Callable[[Check], Check]:
    def add(function: Check) -> Check:
        CHECKS[promise] = function
        return function

    return add


def check(history: History) -> list[Violation]:
    """Return all violations of all promises."""
    return [violation for function in CHECKS.values() for violation in function(history)]


# ---- what a stream holds


def _written(history: History, stream: str) -> dict[str, list[Event]]:
    """Return the attempts to write each value: retries of a publish are several."""
    found: dict[str, list[Event]] = defaultdict(list)
    for event in history.of("publish", "batch", "put", stream=stream):
        for value in event.values or (event.value,):
            found[value].append(event)
    return found


@_check("lost")
def lost(history: History) -> Iterator[Violation]:
    """Every acked message of a stream that keeps its messages is in each replica, at the sequence that was acked."""
    for stream in LIMITS:
        acked = [event for event in history.of("publish", "batch", stream=stream) if event.outcome == "ok"]
        for node, messages in history.stored[stream].items():
            for event in acked:
                values = event.values or (event.value,)
                for value, seq in zip(values, range(event.seq - len(values) + 1, event.seq + 1), strict=True):
                    held = messages.get(seq)
                    if held is None:
                        text = f"{value} was acked as {stream} {seq}, and is missing at {node}"
                        yield Violation("lost", text, (event,))
                    elif held.value != value:
                        text = f"{value} was acked as {stream} {seq}, and {node} has {held.value} there"
                        yield Violation("lost", text, (event, held))


@_check("doubled")
def doubled(history: History) -> Iterator[Violation]:
    """No message is stored twice: retries within the duplicate window have the same message id."""
    for stream in (*LIMITS, TOTAL, KEYS):
        for node, messages in history.stored[stream].items():
            by_value: dict[str, Event] = {}
            for event in messages.values():
                if (other := by_value.setdefault(event.value, event)) is not event:
                    text = f"{event.value} is stored twice in {stream} at {node}: {other.seq}, {event.seq}"
                    yield Violation("doubled", text, (other, event))


@_check("invented")
def invented(history: History) -> Iterator[Violation]:
    """Everything that is stored or delivered was published with this content, on this subject, and never refused.

    An object that lacks a chunk, or has another one, is none that was published.
    """
    for stream in (*LIMITS, JOBS, NEWS, KEYS, OBJECTS):
        written = _written(history, stream)
        for event in history.of("stored", "deliver", "get", "direct", "read", stream=stream):
            if not event.value:
                continue
            attempts = written.get(event.value)
            if attempts is None:
                text = f"{event.value!r} in {stream} {event.seq} was never published"
                yield Violation("invented", text, (event,))
            elif all(attempt.outcome == "refused" for attempt in attempts):
                text = f"{event.value} in {stream} {event.seq} was refused at each attempt"
                yield Violation("invented", text, (event, *attempts))
            elif event.subject and attempts[0].subject != event.subject:
                text = f"{event.value} was published on {attempts[0].subject}, not on {event.subject}"
                yield Violation("invented", text, (event, *attempts))


@_check("diverged")
def diverged(history: History) -> Iterator[Violation]:
    """All replicas have the same messages, and sequences without gaps where nothing was removed."""
    for stream, replicas in history.stored.items():
        if stream in (*LIMITS, MIRROR, TOTAL):
            for node, messages in replicas.items():
                missing = sorted(set(range(1, max(messages, default=0) + 1)) - set(messages))
                if missing:
                    yield Violation("diverged", f"{node} has no {stream} {missing[:10]} ({len(missing)} are missing)")
        (first, held), *others = replicas.items() or [("", {})]
        for node, messages in others:
            for seq in sorted(set(held) | set(messages)):
                mine, theirs = held.get(seq), messages.get(seq)
                if (mine and mine.value) != (theirs and theirs.value):
                    text = (
                        f"{stream} {seq} differs: {first} has {mine and mine.value}, {node} {theirs and theirs.value}"
                    )
                    yield Violation("diverged", text, tuple(each for each in (mine, theirs) if each is not None))
                    break


@_check("torn")
def torn(history: History) -> Iterator[Violation]:
    """An atomic batch is stored as a whole, at consecutive sequences in its order, or not at all."""
    at = {event.value: event for event in history.content(EVENTS).values()}
    for event in history.of("batch", stream=EVENTS):
        held = [at[value] for value in event.values if value in at]
        if held and [each.seq for each in held] != list(range(held[0].seq, held[0].seq + len(event.values))):
            text = f"of the batch {event.values[0]} … {event.values[-1]} {[each.seq for each in held]} are stored"
            yield Violation("torn", text, (event, *held))


@_check("reordered")
def reordered(history: History) -> Iterator[Violation]:
    """A message that was published after another one was acked has a higher sequence, whoever published them.

    A retry that is acked may have been stored by its first attempt.
    """
    for stream in (*LIMITS, JOBS, NEWS, OBJECTS):
        stored: list[tuple[int, int, Event]] = []
        for attempts in _written(history, stream).values():
            acked = next((event for event in attempts if event.outcome == "ok"), None)
            if acked is not None:
                stored.append((attempts[0].began, acked.ended, acked))
        by_end = sorted(stored, key=lambda each: each[1])
        newest: Event | None = None
        at = 0
        for began, _, event in sorted(stored, key=lambda each: each[0]):
            while at < len(by_end) and by_end[at][1] < began:
                if newest is None or by_end[at][2].seq > newest.seq:
                    newest = by_end[at][2]
                at += 1
            first = event.seq - len(event.values) + 1 if event.values else event.seq
            if newest is not None and newest.value != event.value and newest.seq >= first:
                text = f"{event.value or event.values} got {first} after {newest.value or newest.values} {newest.seq}"
                yield Violation("reordered", text, (newest, event))


@_check("overwritten")
def overwritten(history: History) -> Iterator[Violation]:
    """A publish that expected a last sequence of its subject is stored right after that one, on its subject."""
    wanted = {event.value: event for event in history.of("publish", stream=EVENTS) if event.expected >= 0}
    last: dict[str, int] = {}
    for seq, event in sorted(history.content(EVENTS).items()):
        attempt = wanted.get(event.value)
        if attempt is not None and attempt.expected != last.get(event.subject, 0):
            text = f"{event.value} expected {attempt.expected} and is stored behind {last.get(event.subject, 0)}"
            yield Violation("overwritten", text, (attempt, event))
        last[event.subject] = seq


# ---- what reads return


@_check("stale")
def stale(history: History) -> Iterator[Violation]:
    """A get at the leader is linearizable.

    It is not older than what was acked, or read by such a get, before it was asked for, and not from the future.
    """
    told: dict[tuple[str, str], list[Event]] = defaultdict(list)
    began: dict[str, int] = {}
    for stream in LIMITS:
        for event in history.of("publish", "get", stream=stream):
            if event.outcome == "ok":
                told[stream, event.subject].append(event)
        for event in history.of("publish", stream=stream):
            began.setdefault(event.value, event.began)
    for events in told.values():
        by_end = sorted(events, key=lambda event: event.ended)
        newest: Event | None = None
        at = 0
        for event in events:
            while at < len(by_end) and by_end[at].ended < event.began:
                if newest is None or by_end[at].seq > newest.seq:
                    newest = by_end[at]
                at += 1
            if event.kind != "get":
                continue
            if newest is not None and newest.seq > event.seq:
                text = f"a get of {event.subject} at the leader returned {event.seq} after {newest.seq} was known"
                yield Violation("stale", text, (newest, event))
            if event.value and began.get(event.value, 0) > event.ended:
                yield Violation("stale", f"{event.value} was read before it was published", (event,))


@_check("uncommitted")
def uncommitted(history: History) -> Iterator[Violation]:
    """Every read and every delivery, of any replica, shows only messages that are stored, at their sequence."""
    for stream in (*LIMITS, KEYS):
        content = history.content(stream)
        began = {value: attempts[0].began for value, attempts in _written(history, stream).items()}
        for event in history.of("get", "direct", "deliver", "read", stream=stream):
            if not event.seq or not content:
                continue
            held = content.get(event.seq)
            if held is None or held.value != event.value:
                text = f"{event.kind} returned {event.value} as {stream} {event.seq}; stored is {held and held.value}"
                yield Violation("uncommitted", text, (event, *([held] if held else [])))
            elif began.get(event.value, 0) > event.ended:
                yield Violation("uncommitted", f"{event.value} was read before it was published", (event,))


@_check("keys")
def keys(history: History) -> Iterator[Violation]:
    """Writes of keys (compare-and-set, blind, markers) and of objects, and their gets, are linearizable."""
    for stream in (KEYS, OBJECTS):
        yield from _keys_of(history, stream)


def _keys_of(history: History, stream: str) -> Iterator[Violation]:
    stored = {event.value: event.seq for event in history.content(stream).values()}
    operations = []
    for event in history.of("put", "read", stream=stream):
        outcome, seq = Outcome(event.outcome), event.seq
        if outcome is Outcome.UNKNOWN and stored:  # the bucket keeps all revisions, and so shows what happened
            if event.value not in stored:
                continue
            outcome, seq = Outcome.OK, stored[event.value]
        if outcome is Outcome.REFUSED and event.text:  # no responders: nothing was compared
            continue
        operations.append(
            Operation(
                key=event.subject,
                began=event.began,
                ended=event.ended or NEVER,
                value=event.value,
                write=event.kind == "put",
                expected=None if event.expected < 0 else event.expected,
                outcome=outcome,
                seq=seq,
            )
        )
    if violation := explain(operations):
        named = {operation.value for operation in violation.stuck}
        cited = [
            event
            for event in history.of("put", "read", stream=stream)
            if event.value in named and event.subject == violation.key
        ]
        yield Violation("keys", str(violation), tuple(cited))


# ---- consumers


@_check("skipped")
def skipped(history: History) -> Iterator[Violation]:
    """An ordered consumer gets every message once, in order; a durable one gets every message."""
    by_client: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in history.of("deliver"):
        if event.stream in LIMITS:
            by_client[event.stream, event.consumer].append(event)
    for (stream, consumer), events in by_client.items():
        if consumer.startswith("ordered"):
            for one, other in pairwise(events):
                if other.seq != one.seq + 1:
                    text = f"the ordered consumer {consumer} got {other.seq} after {one.seq}"
                    yield Violation("skipped", text, (one, other))
        seen = {event.seq for event in events}
        content = history.content(stream)
        missed = [seq for seq in content if seq not in seen]
        if missed:
            text = f"{consumer} never got {missed[:10]} ({len(missed)} messages)"
            yield Violation("skipped", text, tuple(content[seq] for seq in missed[:3]))


@_check("returned")
def returned(history: History) -> Iterator[Violation]:
    """A message whose ack was confirmed is not delivered to that consumer again."""
    confirmed = {(event.consumer, event.seq): event for event in reversed(history.of("ack")) if event.outcome == "ok"}
    for event in history.of("deliver"):
        ack = confirmed.get((event.consumer, event.seq))
        if ack is not None and event.began > ack.ended + UNDER_WAY_NS:
            late = (event.began - ack.ended) / SECOND
            text = f"{event.stream} {event.seq} came to {event.consumer} again {late:.1f} s after its confirmed ack"
            yield Violation("returned", text, (ack, event))


@_check("shared")
def shared(history: History) -> Iterator[Violation]:
    """A job is one worker's until `ack_wait` has passed, as long as the same node leads the queue."""
    by_job: dict[int, list[Event]] = defaultdict(list)
    for event in history.of("deliver", stream=JOBS):
        by_job[event.seq].append(event)
    for seq, events in by_job.items():
        for one, other in pairwise(events):
            early = other.began - one.began < ACK_WAIT_NS // 2
            if (early or other.count <= one.count) and not history.disturbed(one.began, other.began, GRACE_NS):
                gap = (other.began - one.began) / SECOND
                text = (
                    f"job {seq} went to {one.client} (delivery {one.count}) and {gap:.1f} s later to {other.client} "
                    f"(delivery {other.count})"
                )
                yield Violation("shared", text, (one, other))


@_check("dropped")
def dropped(history: History) -> Iterator[Violation]:
    """A message leaves a work queue, or a stream with interest, only with an ack of each of its consumers.

    At the end each acked publish was acked by all of them, or is there.
    """
    for stream in (JOBS, NEWS):
        done: dict[str, set[int]] = defaultdict(set)
        for event in history.of("ack", stream=stream):
            done[event.consumer].add(event.seq)
        for event in history.of("consumer", stream=stream):
            done.setdefault(event.consumer, set())
        everybody = set.intersection(*done.values()) if done else set()
        there = history.content(stream)
        for event in history.of("publish", stream=stream):
            if event.outcome == "ok" and event.seq not in everybody and event.seq not in there:
                text = f"{event.value} ({event.seq}) left {stream} without an ack of each consumer"
                yield Violation("dropped", text, (event,))
    left = history.content(JOBS)
    for event in history.of("ack", stream=JOBS):
        if event.outcome == "ok" and event.seq in left:
            yield Violation("dropped", f"job {event.seq} is in the queue after its confirmed ack", (event,))


# ---- copies


@_check("copied")
def copied(history: History) -> Iterator[Violation]:
    """A mirror is its origin; a stream with a source has each of the source's messages once, in order."""
    origin = history.content(EVENTS)
    mirror, total = history.content(MIRROR), history.content(TOTAL)
    if history.stored[MIRROR]:
        for seq in sorted(set(origin) | set(mirror)):
            mine, theirs = origin.get(seq), mirror.get(seq)
            if (mine and mine.value) != (theirs and theirs.value):
                text = f"{EVENTS} {seq} is {mine and mine.value}, the mirror has {theirs and theirs.value}"
                yield Violation("copied", text, tuple(each for each in (mine, theirs) if each is not None))
                break
    if history.stored[TOTAL]:
        wanted = [origin[seq].value for seq in sorted(origin)]
        got = [total[seq].value for seq in sorted(total)]
        if wanted != got:
            at = next(
                (n for n, (a, b) in enumerate(zip(wanted, got, strict=False)) if a != b), min(len(wanted), len(got))
            )
            text = f"the copy of {EVENTS} has {len(got)} of {len(wanted)} messages; the first difference is at {at + 1}"
            cited = [origin[seq] for seq in sorted(origin)[at : at + 1]] + [
                total[seq] for seq in sorted(total)[at : at + 1]
            ]
            yield Violation("copied", text, tuple(cited))


@_check("table")
def table(history: History) -> Iterator[Violation]:
    """Each message of the stream is exactly once in its table, at its sequence, and nothing else is."""
    rows = history.of("row", stream=EVENTS)
    if not rows:
        return
    content = history.content(EVENTS)
    for seq, count in Counter(row.seq for row in rows).items():
        if count > 1:
            cited = tuple(row for row in rows if row.seq == seq)
            yield Violation("table", f"{EVENTS} {seq} is {count} times in the table", cited)
    by_seq = {row.seq: row for row in rows}
    for seq in sorted(set(content) | set(by_seq)):
        mine, row = content.get(seq), by_seq.get(seq)
        if (mine and mine.value) != (row and row.value):
            text = f"{EVENTS} {seq} is {mine and mine.value}, the table has {row and row.value}"
            yield Violation("table", text, tuple(each for each in (mine, row) if each is not None))
            if mine is None or row is None:
                break


def report(history: History, violations: list[Violation], most: int = 5) -> str:
    """Return the first violations, each with the part of the history that concerns its messages."""
    lines = []
    counted = Counter(violation.promise for violation in violations)
    lines.append("broken promises: " + ", ".join(f"{promise} {count}" for promise, count in counted.items()))
    start = history.events[0].began if history.events else 0
    shown: Counter[str] = Counter()
    for violation in violations:
        shown[violation.promise] += 1
        if shown[violation.promise] > most:
            continue
        lines.append(f"{violation.promise}: {violation.text}")
        for event in list(history.around(violation.events))[:40]:
            lines.append(f"    {_shown(event, start)}")
    return "\n".join(lines)


def _shown(event: Event, start: int) -> str:
    began = (event.began - start) / SECOND
    ended = f"{(event.ended - start) / SECOND:.3f}" if event.ended else "never"
    what = " ".join(
        part
        for part in (
            event.stream,
            event.consumer,
            event.subject,
            event.value or " ".join(event.values),
            f"seq {event.seq}" if event.seq else "",
            f"expected {event.expected}" if event.expected >= 0 else "",
            f"delivery {event.count}" if event.count else "",
            event.text,
        )
        if part
    )
    return f"{began:9.3f} to {ended:>9} {event.client} {event.kind} {event.outcome}: {what}"
