"""Bugs planted in a recorded history: every checker must find each of them.

Belongs here: for each promise a change of the events that makes it look broken, as a server with that bug would have
answered. Bugs of running servers are in tests/sim/bugs.py; `python -m tests.histories --bug NAME` has the servers of a
campaign start with one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from tests.histories.checks import SECOND, UNDER_WAY_NS
from tests.histories.record import ALONE, EVENTS, FLEETING, JOBS, KEYS, OBJECTS, TOTAL, Event, History

Change = Callable[[History], list[Event]]


class Plant(NamedTuple):
    """One bug.

    Fields:
        change: returns the events with the bug.
        promise: key of `CHECKS` that breaks.
        model: model of tests/judge that has no order for them.
    """

    change: Change
    promise: str
    model: str


PLANTS: dict[str, Plant] = {}


def _plant(promise: str, model: str) -> Callable[[Change], Change]:
    def add(change: Change) -> Change:
        PLANTS[change.__name__.replace("_", "-")] = Plant(change, promise, model)
        return change

    return add


def _replaced(history: History, changes: dict[int, Event]) -> list[Event]:
    """Return the events with some of them, named by `id`, replaced."""
    return [changes.get(id(event), event) for event in history.events]


def _without(history: History, gone: Callable[[Event], bool]) -> list[Event]:
    return [event for event in history.events if not gone(event)]


def _middle(found: Sequence[Event]) -> Event:
    """Return one event from the middle of those that a bug fits."""
    assert found, "the history is too short for this bug"
    return found[len(found) // 2]


def _before(events: Iterable[Event], event: Event) -> Event | None:
    """Return the message of the same subject before this one."""
    older = [each for each in events if each.subject == event.subject and each.seq < event.seq]
    return max(older, key=lambda each: each.seq, default=None)


def _stale(history: History, stream: str, kind: str, written: str) -> list[Event]:
    """Let one read return the message before the one that was acked before the read began."""
    acked = {event.value: event for event in history.events if event.kind == written and event.outcome == "ok"}
    reads = [
        event
        for event in history.events
        if event.kind == kind
        and event.stream == stream
        and event.value in acked
        and acked[event.value].ended < event.began
        and _before(acked.values(), event) is not None
    ]
    read = _middle(reads)
    older = _before([each for each in acked.values() if each.stream == stream], read)
    assert older is not None
    return _replaced(history, {id(read): msgspec.structs.replace(read, value=older.value, seq=older.seq)})


@_plant("stale", "register")
def stale_read(history: History) -> list[Event]:
    """A get at the leader returns the message before the last one."""
    return _stale(history, EVENTS, "get", "publish")


@_plant("keys", "register")
def stale_key(history: History) -> list[Event]:
    """A get of a key returns the revision before the last one."""
    return _stale(history, KEYS, "read", "put")


@_plant("keys", "register")
def stale_object(history: History) -> list[Event]:
    """A get of an object returns the one before the last one."""
    return _stale(history, OBJECTS, "read", "put")


@_plant("invented", "register")
def torn_object(history: History) -> list[Event]:
    """An object that is read lacks a chunk."""
    read = _middle([event for event in history.of("read", stream=OBJECTS) if event.value])
    return _replaced(history, {id(read): msgspec.structs.replace(read, value=f"incomplete {read.value}")})


@_plant("keys", "register")
def lost_update(history: History) -> list[Event]:
    """A compare-and-set succeeds although another client has written since."""
    acked = [event for event in history.of("put", stream=KEYS) if event.outcome == "ok"]
    fits = [event for event in acked if event.expected > 0 and _before(acked, event) is not None]
    put = _middle(fits)
    older = [each for each in acked if each.subject == put.subject and each.seq < put.expected]
    expected = max((each.seq for each in older), default=0)
    return _replaced(history, {id(put): msgspec.structs.replace(put, expected=expected)})


def _acked(history: History, stream: str) -> list[Event]:
    return [event for event in history.of("publish", stream=stream) if event.outcome == "ok" and not event.text]


@_plant("lost", "message")
def lost_message(history: History) -> list[Event]:
    """An acked message is in no replica."""
    lost = _middle(_acked(history, EVENTS)).value
    return _without(history, lambda event: event.kind in ("stored", "row", "deliver") and event.value == lost)


@_plant("lost", "message")
def lost_replica(history: History) -> list[Event]:
    """An acked message is missing in one of the replicas."""
    lost = _middle(_acked(history, EVENTS)).value
    node = next(iter(history.stored[EVENTS]))
    return _without(history, lambda event: event.kind == "stored" and event.client == node and event.value == lost)


def _lost_end(history: History, stream: str) -> list[Event]:
    """Let the last acked message of a stream with one replica be lost."""
    lost = max(_acked(history, stream), key=lambda event: event.seq).value
    return _without(history, lambda event: event.kind in ("stored", "deliver") and event.value == lost)


@_plant("lost", "message")
def lost_end(history: History) -> list[Event]:
    """The only replica of a stream lacks the last message that it acked."""
    return _lost_end(history, ALONE)


@_plant("lost", "message")
def lost_memory(history: History) -> list[Event]:
    """The only replica of a stream in memory lacks the last message that it acked."""
    return _lost_end(history, FLEETING)


@_plant("dropped", "delivery")
def lost_job(history: History) -> list[Event]:
    """A job leaves the queue and was given to nobody."""
    job = _middle(_acked(history, JOBS))
    return _without(
        history, lambda event: event.stream == JOBS and event.seq == job.seq and event.kind in ("deliver", "ack")
    )


@_plant("returned", "delivery")
def lost_ack(history: History) -> list[Event]:
    """A message is delivered again long after its ack was confirmed."""
    ack = _middle([event for event in history.of("ack") if event.outcome == "ok"])
    first = next(
        event
        for event in history.of("deliver")
        if (event.stream, event.consumer, event.seq) == (ack.stream, ack.consumer, ack.seq)
    )
    late = ack.ended + UNDER_WAY_NS + SECOND
    again = msgspec.structs.replace(first, began=late, ended=late, count=first.count + 1)
    return [*history.events, again]


@_plant("skipped", "ordered")
def doubled_delivery(history: History) -> list[Event]:
    """An ordered consumer gets a message twice."""
    given = _middle([event for event in history.of("deliver") if event.consumer.startswith("ordered")])
    again = msgspec.structs.replace(given, began=given.began + 1, ended=given.ended + 1)
    return [*history.events, again]


@_plant("skipped", "delivery")
def missed_delivery(history: History) -> list[Event]:
    """A durable consumer never gets a message."""
    given = _middle([event for event in history.of("deliver", stream=EVENTS) if event.consumer == "pulled"])
    return _without(
        history,
        lambda event: event.kind in ("deliver", "ack") and event.consumer == "pulled" and event.seq == given.seq,
    )


@_plant("doubled", "message")
def doubled_publish(history: History) -> list[Event]:
    """A repeated publish is stored a second time."""
    value = _middle(_acked(history, EVENTS)).value
    last = max(history.content(EVENTS))
    copies = [
        msgspec.structs.replace(event, seq=last + 1)
        for event in history.events
        if event.kind == "stored" and event.stream == EVENTS and event.value == value
    ]
    return [*history.events, *copies]


@_plant("reordered", "sequence")
def reordered_publish(history: History) -> list[Event]:
    """Two messages have each other's sequence, although one was acked before the other was published."""
    found = _acked(history, EVENTS)
    one = _middle(found)
    other = next(event for event in found if event.began > one.ended and event.subject != one.subject)
    places = {one.value: other.seq, other.value: one.seq}
    changes = {
        id(event): msgspec.structs.replace(event, seq=places[event.value])
        for event in history.events
        if event.value in places and event.seq and event.stream in (EVENTS, TOTAL)
    }
    return _replaced(history, changes)


@_plant("torn", "message")
def torn_batch(history: History) -> list[Event]:
    """Half of an acked batch is stored."""
    batch = _middle([event for event in history.of("batch") if event.outcome == "ok" and len(event.values) > 1])
    gone = set(batch.values[len(batch.values) // 2 :])
    return _without(history, lambda event: event.kind == "stored" and event.value in gone)


@_plant("invented", "message")
def invented_message(history: History) -> list[Event]:
    """A message that was refused is stored."""
    last = max(history.content(EVENTS))
    like = next(iter(history.of("stored", stream=EVENTS)))
    refused = Event("one", "publish", like.began - 2, like.began - 1, "refused", EVENTS, "events.one", "one-refused")
    copies = [
        msgspec.structs.replace(like, client=node, subject="events.one", value="one-refused", seq=last + 1)
        for node in history.stored[EVENTS]
    ]
    return [*history.events, msgspec.structs.replace(refused, text="wrong last sequence"), *copies]
