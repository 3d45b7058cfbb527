"""Tests of import and export requests: messages with times of their own, and refusals."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import pytest

from lakestream.account.api.transfer import MAX_SUBJECT, REFUSED_NS, TransferApi
from lakestream.lake.errors import HistoryUnavailable
from lakestream.log.format.record import Record, encode_record, iter_records
from lakestream.stream.core import limits
from lakestream.stream.core.config import StreamConfig
from tests.unit.api_world import ApiWorld

SECOND = 1_000_000_000


class TransferWorld(ApiWorld):
    """Engine that also serves imports and exports."""

    def __init__(self) -> None:
        super().__init__()
        self.transfers = TransferApi(self.engine)

    def bring(self, stream: str, *records: Record) -> dict[str, Any]:
        """Import a batch; return the answer."""
        body = b"".join(encode_record(each.seq, each.time_ns, each.subject, each.header, each.data) for each in records)
        return self.whole(f"$LAKE.API.IMPORT.{stream}", body)

    def whole(self, subject: str, body: bytes) -> dict[str, Any]:
        reply = self.send(subject, body)
        self.settle()
        (answer,) = self.answers(reply)
        found: dict[str, Any] = json.loads(answer[1])
        return found

    async def taken(self, stream: str, **request: int) -> list[Record]:
        """Return everything that an export returns."""
        reply = self.send(f"$LAKE.API.EXPORT.{stream}", json.dumps(request).encode())
        await self.awaited()
        (answer,) = self.answers(reply)
        assert answer[1][:1] == b"+"
        return list(iter_records(answer[1], 1))


@pytest.fixture
def world() -> TransferWorld:
    world = TransferWorld()
    world.create("S", subjects=["s.>"])
    return world


def records(world: ApiWorld, count: int, first: int = 1, header: bytes = b"", subject: bytes = b"s") -> list[Record]:
    """Return messages one second apart that end a minute ago."""
    now = world.clock.now() - 60 * SECOND
    return [
        Record(seq, now - (100 - seq) * SECOND, b"%b.%d" % (subject, seq), header, b"%d" % seq)
        for seq in range(first, first + count)
    ]


async def test_messages_keep_what_they_were(world: TransferWorld) -> None:
    sent = records(world, 3, header=b"NATS/1.0\r\nA:1\r\nA: 2\r\n\r\n")
    assert world.bring("S", *sent) == {"stream": "S", "seq": 3}
    assert await world.taken("S") == sent
    assert await world.taken("S", seq=2, last_seq=2) == sent[1:2]
    assert await world.taken("S", start_time_ns=sent[1].time_ns + 1) == sent[2:]
    assert await world.taken("S", seq=4) == []


async def test_batches_behind_a_refused_one_are_refused_until_an_empty_one_comes(world: TransferWorld) -> None:
    """A batch of rows 3 and 4 must not be stored where strangers have taken the sequences of rows 1 and 2."""
    sent = records(world, 6)
    for number in range(2):
        world.send(f"s.stranger{number}")
        world.settle()
    assert world.bring("S", *sent[:2])["error"]["description"] == "the next sequence is 3, not 1"
    refused = world.bring("S", *sent[2:4])
    assert (refused["error"]["description"], refused["again"]) == ("a batch before this one was refused", True)
    now = [Record(each.seq, 0, each.subject, b"", each.data) for each in sent]
    assert "no message in the batch" in world.bring("S")["error"]["description"]
    assert world.bring("S", *now[2:4])["seq"] == 4
    assert "error" in world.bring("S", *now[:1])
    assert "before this one" in world.bring("S", *now[4:])["error"]["description"]
    world.clock.advance(REFUSED_NS)
    assert world.bring("S", *now[4:])["seq"] == 6, "clients of earlier releases send no empty batch"


async def test_a_large_message_goes_alone(world: TransferWorld) -> None:
    (message,) = records(world, 1, header=b"NATS/1.0\r\nA: 1\r\n\r\n")
    subject = f"$LAKE.API.IMPORT1.S.1.{message.time_ns}.{len(message.header)}.s.1"
    assert world.whole(subject, message.header + message.data)["seq"] == 1
    assert await world.taken("S") == [message]
    assert "error" in world.whole("$LAKE.API.IMPORT1.S.x.1.1.s.1", b"")


def test_a_batch_is_taken_once_and_in_its_place(world: TransferWorld) -> None:
    sent = records(world, 3)
    world.bring("S", *sent)
    answer = world.bring("S", *sent)
    assert answer["again"] is True
    assert "next sequence is 4" in answer["error"]["description"]
    assert world.state("S")["messages"] == 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"subject": b"other.1"}, "is not one of the stream's"),
        ({"subject": b"s.*"}, "is not one of the stream's"),
        ({"time_ns": 1}, "earlier than the message before"),
        ({"time_ns": 1 << 62}, "in the future"),
        ({"header": b"NATS/1.0\r\nNats-TTL: 5s\r\n\r\n"}, "TTL"),
        ({"header": b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n"}, "rollup"),
    ],
)
def test_a_message_that_the_stream_cannot_have_is_refused(
    world: TransferWorld, change: dict[str, Any], reason: str
) -> None:
    first, second = records(world, 2)
    fields = {"seq": 2, "time_ns": second.time_ns, "subject": second.subject, "header": b"", "data": b"", **change}
    answer = world.bring("S", first, Record(**fields))
    assert reason.lower() in answer["error"]["description"].lower()
    assert (answer["stored"], answer["again"]) == (1, False)
    assert world.state("S")["messages"] == 1


def test_what_was_expected_at_first_is_not_asked_again(world: TransferWorld) -> None:
    header = b"NATS/1.0\r\nNats-Msg-Id: same\r\nNats-Expected-Last-Sequence: 77\r\nNats-Expected-Stream: T\r\n\r\n"
    assert world.bring("S", *records(world, 2, header=header))["seq"] == 2


def test_a_limit_that_refuses_new_messages_holds(world: TransferWorld) -> None:
    world.create("L", subjects=["l.>"], max_msgs=1, discard="new")
    now = world.clock.now() - SECOND
    answer = world.bring("L", *(Record(seq, now, b"l.x", b"", b"") for seq in (1, 2)))
    world.settle()
    if answer.get("again"):
        world.bring("L")
        answer = world.bring("L", Record(2, now, b"l.x", b"", b""))
    assert "maximum messages exceeded" in answer["error"]["description"]


@pytest.mark.parametrize("metadata", [{}, {"lakestream.time_travel": "30d"}])
def test_an_update_that_removes_nothing_does_not_move_the_streams_time(
    world: TransferWorld, metadata: dict[str, str]
) -> None:
    world.create("T", subjects=["t.>"], metadata=metadata)
    first, second, third = records(world, 3, subject=b"t")
    noted = {"name": "T", "subjects": ["t.>"], "metadata": {**metadata, "a": "b"}}
    assert "error" not in world.ask("STREAM.UPDATE.T", noted)
    assert world.bring("T", first)["seq"] == 1
    limit = -1 if metadata else 1
    assert "error" not in world.ask("STREAM.UPDATE.T", {**noted, "max_msgs": limit})
    assert world.bring("T", second)["seq"] == 2
    earlier = Record(3, first.time_ns, third.subject, b"", b"")
    assert "earlier than the message before" in world.bring("T", earlier)["error"]["description"]


def test_a_stream_without_a_past_takes_older_messages_after_a_purge(world: TransferWorld) -> None:
    first, second = records(world, 2)
    world.bring("S", first)
    assert world.ask("STREAM.PURGE.S")["purged"] == 1
    assert world.bring("S", second)["seq"] == 2


def test_no_message_is_earlier_than_a_removal_of_the_past_that_a_stream_keeps(world: TransferWorld) -> None:
    world.create("T", subjects=["t.>"], metadata={"lakestream.time_travel": "30d"})
    first, second = records(world, 2, subject=b"t")
    world.bring("T", first)
    world.ask("STREAM.PURGE.T")
    assert "earlier than" in world.bring("T", second)["error"]["description"]


@pytest.mark.parametrize(
    ("changed", "lowers"),
    [
        ({}, False),
        ({"max_age": 1}, False),
        ({"max_msgs": 10}, False),
        ({"max_msgs": 11}, False),
        ({"max_msgs": 9}, True),
        ({"max_bytes": 5}, True),
        ({"max_msgs": 9, "discard": "new"}, False),
        ({"max_msgs_per_subject": 1}, True),
        ({"max_msgs_per_subject": 1, "discard": "new"}, True),
    ],
)
def test_an_update_can_remove_messages_if_it_lowers_a_limit(changed: dict[str, Any], lowers: bool) -> None:
    before = StreamConfig(name="S", max_msgs=10)
    assert limits.lowered(before, msgspec.structs.replace(before, **changed)) is lowers
    assert limits.lowered(msgspec.structs.replace(before, discard="new"), before) is True


def test_damage_and_unknown_streams_are_reported(world: TransferWorld) -> None:
    assert "damaged" in world.whole("$LAKE.API.IMPORT.S", b"\x00" * 40)["error"]["description"]
    assert "no message" in world.whole("$LAKE.API.IMPORT.S", b"")["error"]["description"]
    assert world.bring("NONE", *records(world, 1))["error"]["err_code"] == 10059
    reply = world.send("$LAKE.API.EXPORT.NONE", b"")
    world.settle()
    assert world.answers(reply)[0][1].startswith(b"-{")


async def test_an_export_that_the_lake_cannot_read_is_answered_with_an_error(world: TransferWorld) -> None:
    world.bring("S", *records(world, 3))
    lake = world.to_lake("S", 2)

    def away() -> None:
        raise HistoryUnavailable("file:///lake/streams/S is away")

    lake.before = away
    reply = world.send("$LAKE.API.EXPORT.S", b"")
    with pytest.raises(HistoryUnavailable):
        await world.awaited()
    (answer,) = world.answers(reply)
    assert answer[1].startswith(b"-{")
    assert b"whose log says why" in answer[1]
    assert b"file:" not in answer[1]


async def test_reads_of_old_messages_keep_to_the_bytes_that_were_asked_for(world: TransferWorld) -> None:
    now = world.clock.now() - SECOND
    world.bring("S", *(Record(seq, now, b"s.x", b"", bytes(1000)) for seq in range(1, 101)))
    world.to_lake("S", 100)
    stream = world.stream("S")
    assert [record.seq for record in await stream.reader.fetch_run(1, 4096, 10_000)] == list(range(1, 10))
    assert [record.seq for record in await stream.reader.fetch_run(1, 4096, 1)] == [1]
    for seq in range(1, 20):
        stream.store.remove(seq)
    stream.store._rows.local_floor = 101  # type: ignore[attr-defined]
    assert [record.seq for record in await stream.reader.fetch_run(1, 4096, 3_000)] == [20, 21]


def test_a_subject_that_no_line_of_the_protocol_can_carry_is_not_imported(world: TransferWorld) -> None:
    now = world.clock.now() - SECOND
    answer = world.bring("S", Record(1, now, b"s." + b"x" * MAX_SUBJECT, b"", b""))
    assert "is not one of the stream's" in answer["error"]["description"]
    assert world.state("S")["messages"] == 0


def test_a_fault_while_a_stream_is_updated_does_not_hold_up_what_comes_after(
    world: TransferWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(config: object) -> None:
        raise ValueError("a fault of ours")

    with monkeypatch.context() as broken:
        broken.setattr(world.engine.shared.lake, "refusal", fault)
        with contextlib.suppress(ValueError):
            world.send("$JS.API.STREAM.UPDATE.S", b'{"name":"S","subjects":["s.>"]}')
        world.settle()
    assert world.whole("$JS.API.STREAM.DELETE.S", b"")["success"] is True
