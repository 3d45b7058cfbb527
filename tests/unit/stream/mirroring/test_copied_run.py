"""Tests of runs of an origin's messages: which are applied at once, with the same result as one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from lakestream.log.format.record import Record
from lakestream.ports import Single
from lakestream.protocol import headers
from lakestream.protocol.deliveries import FirstDeliveries
from lakestream.stream.mirroring import runs
from lakestream.stream.mirroring.runs import MAX_SEQ, Run, run_of, runs_in
from tests.unit.api_world import ApiWorld
from tests.unit.consumer_world import MS

pytestmark = pytest.mark.unit

HEADERS = (b"", b"", b"NATS/1.0\r\nA: b\r\n\r\n", b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n", b"NATS/1.0\r\n\r\n")


def delivery(seq: int, order: int, header: bytes = b"", prefix: bytes = b"$JS.ACK.O.c", last: bytes = b"") -> Single:
    """Return a message as an origin's consumer sends it."""
    reply = b"%b.1.%d.%d.%d.%d%b" % (prefix, seq, order, 1000 + seq, 99 - order, last)
    return Single(b"o.%d" % seq, reply, header, b"data %d" % seq)


def together(messages: list[Single], first: int = 0) -> Run | None:
    """Return the run that begins at a place; None if the message there is processed by itself, or ignored."""
    found = run_of(messages, first)
    return found[1] if found is not None and len(found[1]) > 1 else None


def test_a_run_has_columns_of_what_came() -> None:
    run = together([delivery(2 * each, each) for each in range(1, 6)])
    assert run is not None
    assert (run.seqs, run.times, run.pending) == (
        [2, 4, 6, 8, 10],
        [1002, 1004, 1006, 1008, 1010],
        [98, 97, 96, 95, 94],
    )
    assert (run.subjects[0], run.headers[0], run.payloads[0]) == (b"o.2", b"", b"data 2")
    assert run.stretches() == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    assert run.after(5).seqs == [6, 8, 10]
    assert run.after(10).seqs == []


@pytest.mark.parametrize(
    "breaks",
    [
        Single(b"d", b"", b"NATS/1.0 100 Idle Heartbeat\r\n\r\n"),
        Single(b"d", b"$JS.FC.O.c.abcd", b"NATS/1.0 100 FlowControl Request\r\n\r\n"),
        delivery(5, 5, b"NATS/1.0\r\nNats-Rollup: all\r\n\r\n"),
        delivery(5, 5, b"NATS/1.0 503\r\n\r\n"),
    ],
)
def test_a_run_ends_before_what_has_to_be_looked_at(breaks: Single) -> None:
    plain = [delivery(each, each) for each in range(1, 5)]
    found = together([*plain, breaks, delivery(6, 6)])
    assert found is not None
    assert found.seqs == [1, 2, 3, 4]
    behind = together([breaks, *plain, breaks], 1)
    assert behind == found
    assert together([breaks, *plain, delivery(6, 6)]) is None


@pytest.mark.parametrize("breaks", [Single(b"o.5", b"_INBOX.x"), Single(b"o.5"), Single(b"o.5", b"a.b.c.d.e.1.2.3.4")])
def test_a_message_of_others_is_ignored(breaks: Single) -> None:
    assert run_of([breaks, *[delivery(each, each) for each in range(1, 5)]], 0) is None
    found = run_of([delivery(1, 1), breaks], 0)
    assert found is not None
    assert (found[0], found[1].seqs) == (1, [1])


@pytest.mark.parametrize(
    ("prefix", "last"), [(b"$JS.ACK.d.hash.O.c", b""), (b"$JS.ACK.d.hash.O.c", b".random"), (b"$JS.ACK.O.c", b"")]
)
def test_all_forms_of_ack_subjects_are_read(prefix: bytes, last: bytes) -> None:
    found = together([delivery(each + 7, each, prefix=prefix, last=last) for each in range(3, 9)])
    assert found is not None
    assert found.seqs == [10, 11, 12, 13, 14, 15]


@pytest.mark.parametrize(
    "messages",
    [
        [delivery(each, each if each < 5 else each + 1) for each in range(1, 9)],
        [delivery(9 - each, each) for each in range(1, 9)],
        [delivery(3, each) for each in range(1, 9)],
        [delivery(MAX_SEQ - 4 + each, each) for each in range(1, 9)],
        [delivery(each - 1, each) for each in range(1, 9)],
        [delivery(each, each, prefix=b"$JS.ACK.O") for each in range(1, 9)],
        [delivery(each, each, last=b"x") for each in range(1, 9)],
        [delivery(each, each, prefix=b"$JS.ACK.O.c.x" if each % 2 else b"$JS.ACK.c") for each in range(1, 9)],
        [delivery(each, each) for each in range(1, runs.MIN_RUN)],
    ],
)
def test_what_is_no_run_is_left_to_be_looked_at(messages: list[Single]) -> None:
    assert together(messages) is None


def settle(world: ApiWorld, seconds: float) -> None:
    """Let time pass."""
    for _ in range(int(seconds * 200)):
        world.clock.advance(5 * MS)
        world.settle()


def messages(world: ApiWorld, name: str) -> list[Record]:
    """Return all messages of a stream."""
    stream = world.stream(name)
    found = [stream.store.read(seq) for seq in range(1, stream.store.last_seq + 1)]
    return [record for record in found if record is not None]


def plain(record: Record) -> tuple[bytes, bytes, bytes]:
    """Return a sourced message without its source header."""
    block = headers.remove(record.header, [b"Nats-Stream-Source"])
    return record.subject, block, record.data


@pytest.mark.parametrize("at_once", [True, False])
def test_copies_are_the_same_whether_messages_are_taken_together_or_not(
    monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    taken: list[int] = []
    blocks: list[FirstDeliveries] = []

    def watched(messages: list[Single], first: int) -> tuple[int, Run] | None:
        found = run_of(messages, first)
        taken.append(len(found[1]) if found is not None and len(found[1]) > 1 else 0)
        return found

    def watched_columns(block: FirstDeliveries, begin: int, end: int) -> Iterator[tuple[int, Run]]:
        blocks.append(block)
        for consumer_seq, run in runs_in(block, begin, end):
            for at in range(0, len(run), len(run) if at_once else 1):
                taken.append(len(run) if at_once and len(run) > 1 else 0)
                yield consumer_seq + at, run[at : at + len(run) if at_once else at + 1]

    if not at_once:
        monkeypatch.setattr(runs, "MIN_RUN", 1 << 30)
    monkeypatch.setattr("lakestream.stream.mirroring.session.run_of", watched)
    monkeypatch.setattr("lakestream.stream.mirroring.session.runs_in", watched_columns)
    world, dice = ApiWorld(), random.Random(9)
    world.create("O", subjects=["o.>"], duplicate_window=0)
    for number in range(2000):
        header = dice.choice(HEADERS) if number % 300 < 40 else b""
        world.send(f"o.{dice.randrange(4)}", b"%d" % number, header % number if b"%" in header else header)
    world.settle()
    for seq in dice.sample(range(1, 2001), 30):
        world.ask("STREAM.MSG.DELETE.O", {"seq": seq})
    world.settle()
    transforms = [{"src": "o.*", "dest": "m.{{wildcard(1)}}"}]
    world.create("M", mirror={"name": "O", "subject_transforms": transforms})
    world.create("S", subjects=["s"], sources=[{"name": "O"}, {"name": "O", "filter_subject": "o.1"}])
    settle(world, 1)
    origin = messages(world, "O")
    assert len(origin) == 1970
    there = [(one.seq, one.time_ns, b"m" + one.subject[1:], one.header, one.data) for one in origin]
    assert [(one.seq, one.time_ns, one.subject, one.header, one.data) for one in messages(world, "M")] == there
    sourced = messages(world, "S")
    for index, wanted in ((b" > > ", origin), (b" o.1 > ", [one for one in origin if one.subject == b"o.1"])):
        came = [one for one in sourced if index in one.header]
        assert [plain(one)[::2] for one in came] == [(one.subject, one.data) for one in wanted]
        assert [plain(one)[1].strip() for one in came if b":" in plain(one)[1]] == [
            one.header.strip() for one in wanted if b":" in one.header
        ]
    assert [one.time_ns for one in sourced] == sorted(one.time_ns for one in sourced)
    assert dict(key_and_seq(world, "S")) == {
        "O > >": origin[-1].seq,
        "O o.1 >": max(one.seq for one in origin if one.subject == b"o.1"),
    }
    world.create("MM", mirror={"name": "S"})
    world.create("SS", subjects=["ss"], sources=[{"name": "S"}])
    settle(world, 1)
    assert messages(world, "MM") == sourced
    assert dict(key_and_seq(world, "MM")) == dict(key_and_seq(world, "S"))
    assert [plain(one) for one in messages(world, "SS")] == [plain(one) for one in sourced]
    assert key_and_seq(world, "SS") == [("S > >", sourced[-1].seq)]
    assert (sum(taken) > 8000) is at_once, "most of them together"
    assert [block for block in blocks if block.made is not None] == [], "no message was made an object"


def key_and_seq(world: ApiWorld, name: str) -> list[tuple[str, int]]:
    """Return the positions of a stream's sources."""
    return [(key, seq) for key, seq, *_ in world.stream(name).mirroring.positions.dump()]


def test_a_session_begins_again_behind_what_it_has_when_a_message_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = iter((True,))

    def losing(block: FirstDeliveries, begin: int, end: int) -> Iterator[tuple[int, Run]]:
        for consumer_seq, run in runs_in(block, begin, end):
            without = len(run) > 1 and next(lost, False)
            yield (consumer_seq + 1, run[1:]) if without else (consumer_seq, run)

    monkeypatch.setattr("lakestream.stream.mirroring.session.runs_in", losing)
    world = ApiWorld()
    world.create("O", subjects=["o"])
    world.create("M", mirror={"name": "O"})
    settle(world, 1)
    for number in range(20):
        world.send("o", b"%d" % number)
    settle(world, 2)
    assert next(lost, None) is None
    assert [one.data for one in messages(world, "M")] == [b"%d" % number for number in range(20)]
