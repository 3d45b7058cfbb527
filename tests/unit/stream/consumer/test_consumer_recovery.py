"""Tests of consumers after a kill, and of messages that are only in the lake."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from lakestream.log.format.record import Record
from lakestream.protocol.subjects import matches
from lakestream.stream.core.reader import HistoryUnavailableError
from tests.unit.consumer_world import SECOND, Message, World

pytestmark = pytest.mark.unit

WAIT = 30 * SECOND


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.stream()
    return world


def confirmed(world: World, message: Message) -> None:
    assert world.request(message.reply, b"+ACK").data == b""


def test_a_confirmed_ack_survives_a_kill_at_once(world: World, tmp_path: Path) -> None:
    world.store("s.a", "s.b", "s.c")
    world.consumer()
    got = world.pull(3)
    confirmed(world, got[1])
    after = world.crash(tmp_path)
    after.next({"batch": 9})
    after.clock.advance(2 * WAIT)
    assert sorted({message.seq for message in after.client.taken()}) == [1, 3]


def test_a_reply_waits_for_the_disk(world: World) -> None:
    world.store("s.a")
    world.consumer()
    (message,) = world.pull(1)
    stream = world.engine.streams["S"]
    asked: list[object] = []
    stream.pipeline.log_progress = lambda entries, done: asked.append(done)  # type: ignore[method-assign, assignment]
    world.ack(message, reply="_INBOX.me.x")
    assert world.client.taken() == []
    assert len(asked) == 1
    asked[0]()  # type: ignore[operator]
    assert [answer.subject for answer in world.client.taken()] == ["_INBOX.me.x"]


def test_confirmations_of_one_turn_share_an_entry(world: World) -> None:
    world.store(*["s.a"] * 5)
    world.consumer()
    got = world.pull(5)
    index = world.engine.streams["S"].store.applied
    for at, message in enumerate(got):
        world.publish(message.reply, b"", f"_INBOX.me.ack{at}")
    world.clock.turn()
    assert len(world.client.taken()) == 5
    assert world.engine.streams["S"].store.applied == index + 1


def test_progress_is_logged_within_a_quarter_second(world: World, tmp_path: Path) -> None:
    world.store("s.a", "s.b", "s.c")
    world.consumer()
    first, _ = world.pull(2)
    world.ack(first)
    world.clock.advance(SECOND // 4)
    before = world.numbers()
    after = world.crash(tmp_path)
    assert after.numbers() == before == ((2, 2), (1, 1), 1, 0, 1)


def test_what_was_not_logged_is_delivered_again(world: World, tmp_path: Path) -> None:
    world.store("s.a", "s.b")
    world.consumer()
    world.pull(2)
    after = world.crash(tmp_path)
    assert after.numbers() == ((0, 0), (0, 0), 0, 0, 2)
    assert [message.seq for message in after.pull(2)] == [1, 2]


def test_a_checkpoint_between_two_deltas(world: World, tmp_path: Path) -> None:
    world.store(*["s.a"] * 6)
    world.consumer()
    got = world.pull(4)
    world.ack(got[0])
    world.engine.streams["S"].checkpoint()
    world.clock.turn()
    confirmed(world, got[2])
    after = world.crash(tmp_path)
    assert after.numbers() == ((4, 4), (1, 1), 2, 0, 2)


def test_redelivery_counts_and_deadlines_survive(world: World, tmp_path: Path) -> None:
    world.store("s.a")
    world.consumer(max_deliver=3)
    world.pull(1)
    world.clock.advance(WAIT)
    world.pull(1)
    world.clock.advance(SECOND)
    after = world.crash(tmp_path)
    assert after.numbers() == ((2, 1), (0, 0), 1, 1, 0)
    after.next({"batch": 1})
    after.clock.advance(WAIT - 2 * SECOND)
    assert after.client.taken() == []
    after.clock.advance(SECOND)
    assert [message.numbers[0] for message in after.client.taken()] == [3]


def test_creation_update_reset_and_deletion_are_entries(world: World, tmp_path: Path) -> None:
    world.store(*["s.a"] * 4)
    world.consumer("kept", description="one")
    world.consumer("kept", description="two")
    world.consumer("reset")
    world.pull(4, "reset")
    world.clock.advance(SECOND)
    world.ask("CONSUMER.RESET.S.reset", {"seq": 3})
    world.consumer("gone")
    world.ask("CONSUMER.DELETE.S.gone")
    created = world.info("kept")["created"]
    after = world.crash(tmp_path)
    assert after.ask("CONSUMER.NAMES.S")["consumers"] == ["kept", "reset"]
    assert after.info("kept")["config"]["description"] == "two"
    assert after.info("kept")["created"] == created
    assert after.numbers("reset") == ((0, 2), (0, 2), 0, 0, 2)


def test_a_consumer_in_memory_does_not_survive(world: World, tmp_path: Path) -> None:
    world.client.subscribe("to.me")
    world.consumer(deliver_subject="to.me", mem_storage=True, ack_policy="none")
    assert "error" not in world.info()
    after = world.crash(tmp_path)
    assert after.info()["error"]["err_code"] == 10014


def test_a_consumer_in_memory_comes_and_goes_without_a_sync(world: World) -> None:
    log = world.engine.streams["S"].store.log
    world.consumer("kept")
    assert not log.unsynced
    world.consumer("gone", mem_storage=True)
    world.ask("CONSUMER.DELETE.S.gone")
    assert log.unsynced
    world.store("s.a")
    assert not log.unsynced


def test_last_per_subject_survives_in_the_middle(world: World, tmp_path: Path) -> None:
    world.store("s.a", "s.b", "s.a", "s.c")
    world.consumer(deliver_policy="last_per_subject", filter_subject="s.>")
    world.store("s.d")
    assert [message.seq for message in world.pull(1)] == [2]
    world.clock.advance(SECOND)
    world.ask("STREAM.MSG.DELETE.S", {"seq": 3})
    after = world.crash(tmp_path)
    assert after.numbers()[-1] == 2
    assert [message.seq for message in after.pull(5)] == [4, 5]


class Lake:
    """`History` over records taken from a stream."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = list(records)
        self.reads: list[tuple[int, int, Sequence[bytes] | None]] = []
        self.broken = False

    async def read(
        self, first: int, last: int, limit: int, subjects: Sequence[bytes] | None = None, max_bytes: int = 0
    ) -> list[Record]:
        self.reads.append((first, last, subjects))
        if self.broken:
            raise HistoryUnavailableError("no table")
        return [
            record
            for record in self.records
            if first <= record.seq <= last
            and (subjects is None or any(matches(one, record.subject) for one in subjects))
        ][:limit]

    async def read_many(self, seqs: Sequence[int], subjects: Sequence[bytes] | None = None) -> list[Record]:
        if self.broken:
            raise HistoryUnavailableError("no table")
        return [record for record in self.records if record.seq in seqs]

    def forget(self) -> bool:
        return False

    async def first_at(self, time_ns: int) -> int:
        return next((record.seq for record in self.records if record.time_ns >= time_ns), 0)


@pytest.fixture
def lake() -> tuple[World, Lake]:
    """Return a stream of 20 messages of which the first 10 are only in the lake."""
    world = World()
    world.stream()
    world.store(*["s.a", "s.b"] * 10)
    stream = world.engine.streams["S"]
    history = Lake(stream.store.read_run(1, 10, 1 << 20))
    stream.reader.history = history
    stream.store._rows.local_floor = 11  # type: ignore[misc]
    return world, history


def test_old_messages_come_from_the_lake_without_gap_or_repeat(lake: tuple[World, Lake]) -> None:
    world, history = lake
    world.ask("STREAM.MSG.DELETE.S", {"seq": 15})
    world.consumer()
    got = [message for _ in range(7) for message in world.pull(3)]
    assert [message.seq for message in got] == [seq for seq in range(1, 21) if seq != 15]
    assert [message.numbers[3] for message in got] == list(range(18, -1, -1))
    assert len(history.reads) == 1


def test_a_filter_narrows_the_read(lake: tuple[World, Lake]) -> None:
    world, history = lake
    world.consumer(filter_subject="s.b")
    assert [message.seq for message in world.pull(20)] == list(range(2, 21, 2))
    assert history.reads[0][2] == [b"s.b"]


def test_redelivery_of_a_message_that_has_left_the_log(lake: tuple[World, Lake]) -> None:
    world, _ = lake
    world.consumer()
    world.pull(12)
    world.next({"batch": 12})
    world.client.taken()
    world.clock.advance(WAIT)
    world.next({"batch": 20})
    assert sorted({message.seq for message in world.client.taken()}) == list(range(1, 21))


def test_last_per_subject_from_the_lake(lake: tuple[World, Lake]) -> None:
    world, _ = lake
    stream = world.engine.streams["S"]
    for seq in range(5, 20):
        stream.store.remove(seq, stream.store.subject_of(seq))
    world.store("s.b")
    stream.store.remove(20, b"s.b")
    world.consumer(deliver_policy="last_per_subject", filter_subject="s.>", mem_storage=True)
    assert [message.seq for message in world.pull(9)] == [3, 21]


def test_a_lake_that_does_not_answer_is_asked_again(lake: tuple[World, Lake]) -> None:
    world, history = lake
    history.broken = True
    world.consumer()
    world.next({"batch": 2})
    assert world.client.taken() == []
    assert len(world.clock.failures) == 1
    history.broken = False
    world.clock.advance(SECOND)
    assert [message.seq for message in world.client.taken()] == [1, 2]


def test_nothing_is_delivered_before_the_keys_of_pending_messages_are_known() -> None:
    world = World()
    world.stream()
    for key in "aab":
        world.publish("s.x", header=f"NATS/1.0\r\nK: {key}\r\n\r\n")
    world.consumer(metadata={"lakestream.key": "header:K"})
    first = world.pull(3, expires=10 * WAIT)
    assert [message.seq for message in first] == [1, 3]
    stream = world.engine.streams["S"]
    history = stream.reader.history = Lake(stream.store.read_run(1, 3, 1 << 20))
    history.broken = True
    stream.store._rows.local_floor = 4  # type: ignore[misc]
    stream.consumers.follow()
    stream.consumers.lead(False)
    world.publish("s.x", header="NATS/1.0\r\nK: a\r\n\r\n")
    world.next({"batch": 5, "expires": 10 * WAIT})
    assert [message for message in world.client.taken() if message.reply] == []
    assert len(world.clock.failures) == 1
    history.broken = False
    world.clock.advance(SECOND)
    assert world.client.taken() == []
    world.ack(first[0])
    assert [message.seq for message in world.client.taken()] == [2]


def test_a_purge_while_the_lake_answers(lake: tuple[World, Lake]) -> None:
    world, _ = lake
    world.consumer()
    world.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b"5", world.inbox())
    world.publish("$JS.API.STREAM.PURGE.S", b'{"seq":4}', world.inbox())
    got = [message.seq for message in world.client.taken() if message.reply]
    got += [message.seq for message in world.pull(30) if message.reply]
    assert got[-1] == 20
    assert len(got) == len(set(got))
    assert set(range(4, 21)) <= set(got)


def test_a_message_that_was_delivered_as_often_as_it_may_is_not_pending_after_a_crash(tmp_path: Path) -> None:
    before = World(tmp_path)
    before.stream()
    before.store("s.a", "s.b")
    before.consumer(max_deliver=2, ack_wait=SECOND)
    for _ in range(3):
        before.next({"batch": 2, "no_wait": True})
        before.clock.advance(SECOND)
    assert before.numbers()[2] == 0
    before.clock.advance(SECOND)
    after = before.crash(tmp_path)
    assert after.numbers()[2] == 0
    after.clock.advance(SECOND)
    assert [message for message in after.pull(5, no_wait=True) if message.reply] == []


def test_an_ack_right_before_a_clean_stop_is_kept(tmp_path: Path) -> None:
    """An ack right before a clean stop is kept: without any log entry it still causes a new checkpoint."""
    world = World(tmp_path)
    world.stream()
    world.store("s.a", "s.b")
    world.consumer()
    world.engine.node.close()
    world = World(tmp_path)
    world.ack(world.pull(2)[0])
    world.engine.node.close()
    world = World(tmp_path)
    assert list(world.engine.streams["S"].consumers["c"].ledger.pending) == [2]
    world.engine.node.close()


@pytest.mark.parametrize("filters", [{}, {"filter_subject": "s.b"}, {"filter_subject": "s.*"}], ids=str)
def test_a_message_that_the_lake_lacks_is_waited_for_and_not_passed_over(
    lake: tuple[World, Lake], filters: dict[str, str]
) -> None:
    """Another program has deleted the rows of two messages; later it puts them back."""
    world, history = lake
    whole = history.records
    history.records = [record for record in whole if record.seq not in (6, 7)]
    wanted = [seq for seq in range(1, 21) if seq % 2 == 0 or filters.get("filter_subject") != "s.b"]
    world.consumer(**filters)
    world.next({"batch": 20})
    before = [message.seq for message in world.client.taken() if message.reply]
    assert before == [seq for seq in wanted if seq < 6]
    history.records = whole
    world.clock.advance(SECOND)
    after = [message.seq for message in world.client.taken() if message.reply]
    assert before + after == wanted


def test_a_message_that_the_lake_lacks_is_passed_over_once_it_is_deleted(lake: tuple[World, Lake]) -> None:
    world, history = lake
    history.records = [record for record in history.records if record.seq != 6]
    world.consumer()
    world.next({"batch": 20})
    assert [message.seq for message in world.client.taken()][-1] == 5
    world.ask("STREAM.MSG.DELETE.S", {"seq": 6})
    world.clock.advance(SECOND)
    assert [message.seq for message in world.client.taken() if message.reply] == list(range(7, 21))


def test_a_message_that_the_lake_has_twice_is_not_delivered_twice(lake: tuple[World, Lake]) -> None:
    world, history = lake
    other = msgspec.structs.replace(history.records[5], data=b"of another program")
    history.records = sorted([*history.records, other], key=lambda record: record.seq)
    world.consumer()
    world.next({"batch": 20})
    assert [message.seq for message in world.client.taken() if message.reply] == [1, 2, 3, 4, 5]
    history.records.remove(other)
    world.clock.advance(SECOND)
    assert [message.seq for message in world.client.taken() if message.reply] == list(range(6, 21))
