"""Tests of the checkers: each finds a hand-made history that breaks its promise, and none other does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.nemesis import APART, CLASSES, FAULTS, LAKE, together
from tests.histories.checks import ACK_WAIT_NS, CHECKS, SECOND, UNDER_WAY_NS, check, report
from tests.histories.record import (
    ALONE,
    EVENTS,
    FLEETING,
    JOBS,
    KEYS,
    MEMORY,
    MIRROR,
    NEWS,
    OBJECTS,
    OTHER,
    TOTAL,
    Event,
    History,
    Kind,
    Recorder,
    load,
)

pytestmark = pytest.mark.unit

NODES = ("n1", "n2", "n3")
S = SECOND


def event(client: str, kind: Kind, began: float, ended: float | None = None, **fields: Any) -> Event:
    """Return an event; times in seconds. `ended` None: at once."""
    end = began if ended is None else ended
    fields.setdefault("stream", EVENTS)
    return Event(client, kind, int(began * S) + 1, int(end * S) + 1 if end >= 0 else 0, **fields)


def published(client: str, number: int, seq: int, began: float, ended: float, **fields: Any) -> Event:
    value = f"{client}-{number}"
    return event(client, "publish", began, ended, subject=f"events.{client}", value=value, seq=seq, **fields)


def stored(*values: str, stream: str = EVENTS, nodes: tuple[str, ...] = NODES) -> list[Event]:
    """Return the messages of all replicas: these values from sequence 1 on."""
    return [
        event(node, "stored", 1000, stream=stream, subject=_subject(value, stream), value=value, seq=seq)
        for node in nodes
        for seq, value in enumerate(values, 1)
        if value
    ]


def _subject(value: str, stream: str) -> str:
    client = value.rpartition("-")[0]
    return f"jobs.{client}" if stream == JOBS else f"events.{client}"


def found(*events: Event) -> list[str]:
    """Return the broken promises."""
    return sorted({violation.promise for violation in check(History(events))})


TWO = [published("a", 1, 1, 0, 1), published("b", 1, 2, 2, 3)]


def test_a_history_without_differences_breaks_no_promise() -> None:
    delivered = [
        event("o", "deliver", 5, consumer="ordered", subject="events.a", value="a-1", seq=1, count=1),
        event("o", "deliver", 6, consumer="ordered", subject="events.b", value="b-1", seq=2, count=1),
        event("w", "deliver", 6, stream=JOBS, consumer="workers", subject="jobs.j", value="j-1", seq=1, count=1),
        event("w", "ack", 7, 8, stream=JOBS, consumer="workers", seq=1),
    ]
    job = event("j", "publish", 4, 5, stream=JOBS, subject="jobs.j", value="j-1", seq=1)
    reads = [
        event("r", "get", 4, 5, subject="events.b", value="b-1", seq=2),
        event("r", "direct", 4, 5, subject="events.a", value="a-1", seq=1),
        event("r", "get", 4, 5, subject="events.c"),
    ]
    batch = event("c", "batch", 7, 8, subject="events.c", values=("c-1", "c-2"), seq=4)
    more = event("o", "deliver", 9, consumer="ordered", subject="events.c", value="c-1", seq=3, count=1)
    last = event("o", "deliver", 9, consumer="ordered", subject="events.c", value="c-2", seq=4, count=1)
    everything = ("a-1", "b-1", "c-1", "c-2")
    rows = [event("table", "row", 1001, value=value, seq=seq) for seq, value in enumerate(everything, 1)]
    copies = stored(*everything, stream=MIRROR) + stored(*everything, stream=TOTAL)
    assert found(*TWO, *stored(*everything), *delivered, job, *reads, batch, more, last, *rows, *copies) == []


def test_lost() -> None:
    assert "lost" in found(*TWO, *stored("a-1", nodes=("n1",)))
    assert found(*TWO, *stored("a-1", "b-1", nodes=("n1", "n2")), *stored("a-1", nodes=("n3",))) == ["diverged", "lost"]


def test_lost_to_another_message_at_its_sequence() -> None:
    assert "lost" in found(*TWO, published("c", 1, 2, 4, -1, outcome="unknown"), *stored("a-1", "c-1"))


def test_an_unanswered_publish_may_be_stored_or_not() -> None:
    unknown = event("c", "publish", 4, -1, subject="events.c", value="c-1", outcome="unknown")
    assert found(*TWO, unknown, *stored("a-1", "b-1")) == []
    assert found(*TWO, unknown, *stored("a-1", "b-1", "c-1")) == []


def test_doubled() -> None:
    assert found(*TWO, *stored("a-1", "b-1", "a-1")) == ["doubled"]


def test_invented() -> None:
    assert found(*TWO, *stored("a-1", "b-1", "x-1")) == ["invented"]


def test_stored_although_it_was_refused() -> None:
    refused = published("c", 1, 0, 4, 5, outcome="refused")
    assert found(*TWO, refused, *stored("a-1", "b-1", "c-1")) == ["invented"]
    retried = published("c", 1, 3, 6, 7)
    assert found(*TWO, refused, retried, *stored("a-1", "b-1", "c-1")) == []


def test_delivered_on_another_subject() -> None:
    other = event("p", "direct", 5, subject="events.b", value="a-1", seq=1)
    assert found(*TWO, *stored("a-1", "b-1"), other) == ["invented"]


def test_diverged() -> None:
    differs = stored("b-1", "a-1", nodes=("n3",))
    assert "diverged" in found(*stored("a-1", "b-1", nodes=("n1", "n2")), *differs)
    assert "diverged" in found(published("a", 1, 2, 0, 1), *stored("", "a-1"))


def test_torn() -> None:
    batch = event("c", "batch", 4, -1, subject="events.c", values=("c-1", "c-2", "c-3"), outcome="unknown")
    assert found(*TWO, batch, *stored("a-1", "b-1")) == []
    assert found(*TWO, batch, *stored("a-1", "b-1", "c-1", "c-2", "c-3")) == []
    assert found(*TWO, batch, *stored("a-1", "b-1", "c-1", "c-2")) == ["torn"]
    assert "torn" in found(*TWO, batch, *stored("a-1", "b-1", "c-2", "c-1", "c-3"))


def test_reordered() -> None:
    swapped = [published("a", 1, 2, 0, 1), published("b", 1, 1, 2, 3)]
    assert found(*swapped, *stored("b-1", "a-1")) == ["reordered"]


def test_a_retry_may_have_been_stored_by_its_first_attempt() -> None:
    first = published("b", 1, 0, 0, -1, outcome="unknown")
    assert found(first, published("a", 1, 2, 1, 2), published("b", 1, 1, 3, 4), *stored("b-1", "a-1")) == []


def test_overwritten() -> None:
    chain = [published("a", 1, 1, 0, 1, expected=0), published("a", 2, 2, 2, 3, expected=1)]
    assert found(*chain, *stored("a-1", "a-2")) == []
    late = published("a", 3, 3, 4, 5, expected=1)
    assert found(*chain, late, *stored("a-1", "a-2", "a-3")) == ["overwritten"]


def test_stale() -> None:
    old = event("r", "get", 4, 5, subject="events.b")
    assert found(*TWO, *stored("a-1", "b-1"), old) == ["stale"]
    during = event("r", "get", 2.5, 5, subject="events.b")
    assert found(*TWO, *stored("a-1", "b-1"), during) == []


def test_stale_after_another_get() -> None:
    unknown = published("b", 1, 2, 2, -1, outcome="unknown")
    new = event("r", "get", 3, 4, subject="events.b", value="b-1", seq=2)
    old = event("q", "get", 5, 6, subject="events.b")
    assert found(TWO[0], unknown, *stored("a-1", "b-1"), new, old) == ["stale"]


def test_a_direct_get_may_be_old_but_shows_only_what_is_stored() -> None:
    old = event("r", "direct", 4, 5, subject="events.b")
    assert found(*TWO, *stored("a-1", "b-1"), old) == []
    unknown = event("c", "publish", 3, -1, subject="events.c", value="c-1", outcome="unknown")
    dirty = event("r", "direct", 4, 5, subject="events.c", value="c-1", seq=3)
    assert found(*TWO, unknown, *stored("a-1", "b-1"), dirty) == ["uncommitted"]
    assert found(*TWO, unknown, *stored("a-1", "b-1", "c-1"), dirty) == []


def key(kind: Kind, began: float, ended: float, value: str, seq: int, **fields: Any) -> Event:
    return event("k", kind, began, ended, subject="k", value=value, seq=seq, **{"stream": KEYS, **fields})


def test_keys_that_are_not_linearizable() -> None:
    writes = [key("put", 0, 1, "v-1", 1, expected=0), key("put", 2, 3, "v-2", 2, expected=1)]
    assert found(*writes, key("read", 4, 5, "v-2", 2)) == []
    assert found(*writes, key("read", 4, 5, "v-1", 1)) == ["keys"]
    assert found(*writes, key("put", 4, 5, "v-3", 3, expected=1)) == ["keys"]


def test_objects_that_are_not_linearizable_or_not_whole() -> None:
    puts = [key("put", 0, 1, "o-1", 2, stream=OBJECTS), key("put", 2, 3, "o-2", 7, stream=OBJECTS)]
    assert found(*puts, key("read", 4, 5, "o-2", 7, stream=OBJECTS)) == []
    assert found(*puts, key("read", 4, 5, "o-1", 2, stream=OBJECTS)) == ["keys"]
    assert "invented" in found(*puts, key("read", 4, 5, "incomplete o-2", 7, stream=OBJECTS))
    unknown = key("put", 4, -1, "o-3", 0, stream=OBJECTS, outcome="unknown")
    assert found(*puts, unknown, key("read", 5, 6, "o-2", 7, stream=OBJECTS)) == []
    assert found(*puts, unknown, key("read", 5, 6, "o-3", 9, stream=OBJECTS)) == []


@pytest.mark.parametrize("stream", [ALONE, MEMORY, FLEETING])
def test_streams_with_one_replica_and_in_memory_keep_their_messages(stream: str) -> None:
    sent = [published("a", 1, 1, 0, 1, stream=stream), published("b", 1, 2, 2, 3, stream=stream)]
    assert found(*sent, *stored("a-1", "b-1", stream=stream, nodes=("n2",))) == []
    assert found(*sent, *stored("a-1", stream=stream, nodes=("n2",))) == ["lost"]
    assert "stale" in found(*sent, event("r", "get", 4, 5, stream=stream, subject="events.b"))


def test_skipped() -> None:
    delivered = [
        event("o", "deliver", 5 + seq, consumer="ordered", subject=subject, value=value, seq=seq, count=1)
        for seq, subject, value in ((1, "events.a", "a-1"), (2, "events.b", "b-1"))
    ]
    assert found(*TWO, *stored("a-1", "b-1"), *delivered) == []
    assert found(*TWO, *stored("a-1", "b-1"), delivered[0]) == ["skipped"]
    again = event("o", "deliver", 8, consumer="ordered", subject="events.a", value="a-1", seq=1, count=1)
    assert found(*TWO, *stored("a-1", "b-1"), *delivered, again) == ["skipped"]


JOB = event("j", "publish", 0, 1, stream=JOBS, subject="jobs.j", value="j-1", seq=1)


def given(worker: str, at: float, count: int) -> Event:
    fields = {"consumer": "workers", "subject": "jobs.j", "value": "j-1", "seq": 1}
    return event(worker, "deliver", at, stream=JOBS, count=count, **fields)


def acked(at: float) -> Event:
    return event("w", "ack", at, at + 0.1, stream=JOBS, consumer="workers", seq=1)


def test_returned() -> None:
    again = 3.2 + UNDER_WAY_NS / S
    assert found(JOB, given("w", 2, 1), acked(3), given("x", again, 2)) == ["returned"]
    assert found(JOB, given("w", 2, 1), acked(3), given("x", 3.2, 2), event("n1", "leader", 3)) == []


def test_shared() -> None:
    ack_wait = ACK_WAIT_NS / S
    assert found(JOB, given("w", 2, 1), given("x", 2 + ack_wait, 2), acked(9)) == []
    assert found(JOB, given("w", 2, 1), given("x", 3, 2), acked(9)) == ["shared"]
    assert found(JOB, given("w", 2, 1), given("x", 2 + ack_wait, 1), acked(9)) == ["shared"]
    assert found(JOB, given("w", 2, 1), given("x", 3, 1), acked(9), event("n1", "leader", 2.5)) == []


def test_dropped() -> None:
    assert found(JOB) == ["dropped"]
    assert found(JOB, given("w", 2, 1)) == ["dropped"]
    assert found(JOB, given("w", 2, 1), acked(3)) == []
    assert found(JOB, *stored("j-1", stream=JOBS)) == []
    assert found(JOB, given("w", 2, 1), acked(3), *stored("j-1", stream=JOBS)) == ["dropped"]


def test_a_stream_of_another_account_is_checked_too() -> None:
    sent = event("a", "publish", 0, 1, stream=OTHER, subject="events.a", value="a-1", seq=1)
    got = event("r", "get", 2, 3, stream=OTHER, subject="events.a", value="a-1", seq=1)
    assert found(sent, got, *stored("a-1", stream=OTHER)) == []
    assert "lost" in found(sent, *stored("b-1", stream=OTHER))
    assert "stale" in found(
        sent, event("r", "get", 2, 3, stream=OTHER, subject="events.a"), *stored("a-1", stream=OTHER)
    )
    assert "invented" in found(*TWO, *stored("a-1", "b-1"), *stored("a-1", stream=OTHER))


def test_news_stay_until_every_consumer_has_acked() -> None:
    sent = event("n", "publish", 0, 1, stream=NEWS, subject="news.n", value="n-1", seq=1)
    readers = [event("campaign", "consumer", 0, stream=NEWS, consumer=name, text="explicit") for name in ("a", "b")]
    acks = [event("r", "ack", 3, 4, stream=NEWS, consumer=name, seq=1) for name in ("a", "b")]
    assert found(sent, *readers, *acks) == []
    assert found(sent, *readers, acks[0]) == ["dropped"]
    there = event("n1", "stored", 9, stream=NEWS, subject="news.n", value="n-1", seq=1)
    assert found(sent, *readers, acks[0], there) == []


def test_faults_that_begin_at_once_are_of_different_classes() -> None:
    assert sorted(fault for names in CLASSES.values() for fault in names) == sorted(FAULTS)
    of = {fault: name for name, names in CLASSES.items() for fault in names}
    faults = [fault for fault in FAULTS if fault not in LAKE]
    drawn = [steps for _, steps in zip(range(200), together(7, faults, 5, 4), strict=False)]
    assert {len(steps) for steps in drawn} == {2, 3, 4}
    assert {step.fault for steps in drawn for step in steps} == set(faults)
    for steps in drawn:
        names = [step.fault for step in steps]
        assert len({of[name] for name in names}) == len(names)
        assert not any(pair <= {*names, *(of[name] for name in names)} for pair in APART)


def test_copied() -> None:
    assert found(*TWO, *stored("a-1", "b-1"), *stored("a-1", "b-1", stream=MIRROR)) == []
    assert found(*TWO, *stored("a-1", "b-1"), *stored("a-1", stream=MIRROR)) == ["copied"]
    assert found(*TWO, *stored("a-1", "b-1"), *stored("b-1", "a-1", stream=TOTAL)) == ["copied"]
    assert found(*TWO, *stored("a-1", "b-1"), *stored("a-1", "a-1", stream=TOTAL)) == ["copied", "doubled"]


def row(value: str, seq: int) -> Event:
    return event("table", "row", 1001, value=value, seq=seq)


def test_the_table_has_each_message_exactly_once() -> None:
    content = [*TWO, *stored("a-1", "b-1")]
    assert found(*content, row("a-1", 1), row("b-1", 2)) == []
    assert found(*content, row("a-1", 1)) == ["table"]
    assert found(*content, row("a-1", 1), row("b-1", 2), row("b-1", 2)) == ["table"]
    assert found(*content, row("a-1", 1), row("b-1", 2), row("x-1", 3)) == ["table"]


def test_every_promise_has_a_test() -> None:
    source = Path(__file__).read_text()
    missing = [promise for promise in CHECKS if f'"{promise}"' not in source]
    assert missing == []


def test_a_report_shows_the_events_of_the_same_message_and_the_faults_meanwhile(tmp_path: Path) -> None:
    fault = event("nemesis", "fault", 0.5, 0.6, stream="", text="kill n1")
    path = tmp_path / "history.jsonl"
    recorder = Recorder(path)
    for each in [*TWO, fault, *stored("", "b-1")]:
        recorder.add(each)
    recorder.close()
    history = History(load(path))
    violations = check(history)
    said = report(history, violations)
    assert {violation.promise for violation in violations} == {"lost", "diverged"}
    assert "a-1 was acked as EVENTS 1, and is missing at n1" in said
    assert "kill n1" in said
    assert "b-1" not in said
