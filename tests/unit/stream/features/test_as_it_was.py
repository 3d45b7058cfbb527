"""Tests of time travel between log and table: the reads of each, and how long the event loop waits."""

from __future__ import annotations

import asyncio
import tempfile
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.log.format.departures import Departures, Point
from lakestream.log.format.files import InlineIo
from lakestream.log.format.frame import Kind
from lakestream.log.format.record import Record, iter_records
from lakestream.log.index.subject_index import SubjectIndex
from lakestream.log.store.past import PIECE, LogPast
from lakestream.log.store.segment_log import LogOptions, SegmentLog
from lakestream.ports import PastUnavailableError, Was
from lakestream.stream.core.batch import Run
from lakestream.stream.core.operations import Purge, UpdateStream
from lakestream.stream.features import time_travel as as_it_was
from lakestream.stream.features.time_travel import Past
from tests.unit.api_world import ApiWorld
from tests.unit.logkit import MiniStream, closing
from tests.unit.stream_world import World

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("closing")]

__all__ = ["closing"]

TRAVELS = {"lakestream.time_travel": "30d"}
HOUR = 3600 * 10**9


class Table:
    """`History` with prepared answers, which records its requests."""

    def __init__(self, *answers: Was) -> None:
        self.answers = list(answers)
        self.without: list[Sequence[tuple[int, int]]] = []

    async def was(self, patterns: Sequence[bytes], point: Point, limit: int, without: Sequence[tuple[int, int]]) -> Was:
        self.without.append(without)
        return self.answers.pop(0)


def past_of(stream: MiniStream, table: Table | None = None) -> Past:
    history: Any = table
    return Past("KV", stream.store, InlineIo(), history)


def overwritten(path: Path, keys: int) -> MiniStream:
    """Return a stream of `keys` keys, written in order and overwritten in another order."""
    stream = MiniStream(str(path), LogOptions(seal_bytes=16 << 20, seal_age_ns=1 << 60))
    stream.store.keep_departures(True)
    stream.publish(*[(b"K.%d" % key, b"", b"v") for key in range(keys)])
    step = 7919  # a prime: adjacent messages are removed at distant times
    for at in range(keys):
        key = at * step % keys
        stream.publish((b"K.%d" % key, b"", b"w"))
        stream.store.remove(key + 1, b"K.%d" % key)
    return stream


async def test_many_that_left_are_looked_up_in_pieces_between_which_others_have_their_turn(tmp_path: Path) -> None:
    stream = overwritten(tmp_path, 3 * PIECE)
    turns, asked = 0, 0
    subjects = LogPast.subjects

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def counted(self: LogPast, seqs: Sequence[int]) -> list[bytes]:
        nonlocal asked
        asked += 1
        assert list(seqs) == sorted(seqs), "as they lie in the file"
        assert len(seqs) <= 2 * PIECE
        return subjects(self, seqs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogPast, "subjects", counted)
        task = asyncio.create_task(others())
        found = await past_of(stream).find([b"K.5"], 3 * PIECE, 0, 1024)
        assert found is not None
        assert found.seqs == [6]
        assert asked == 3, "one run each would be as many calls as keys"
        assert turns >= 3
        asked = 0
        assert await past_of(stream).find([b">"], 3 * PIECE, 0, 1024) is None
        assert asked <= 2, "too many are known by then"
        task.cancel()


async def test_too_many_that_live_are_refused_before_all_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = MiniStream(str(tmp_path))
    stream.store.keep_departures(True)
    stream.publish(*[(b"K.%d" % key, b"", b"v") for key in range(500)])
    monkeypatch.setattr(as_it_was, "SUBJECTS", 50)
    looked, last = [], SubjectIndex.last_at_or_before

    def counted(index: SubjectIndex, subject: bytes, through: int) -> int:
        looked.append(subject)
        return last(index, subject, through)

    monkeypatch.setattr(SubjectIndex, "last_at_or_before", counted)
    assert await past_of(stream).find([b">"], 500, 0, 120) is None
    assert len(looked) == 150


async def test_what_leaves_while_the_past_is_looked_for_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(as_it_was, "SUBJECTS", 1)
    stream = MiniStream(str(tmp_path))
    stream.store.keep_departures(True)
    stream.publish(*[(b"K.%d" % key, b"", b"v") for key in range(10)])
    task = asyncio.create_task(past_of(stream).find([b">"], 0, stream.store.last_time + 10**9, 1024))
    for key in range(10):
        await asyncio.sleep(0)
        stream.publish((b"K.%d" % (9 - key), b"", b"w"))
        stream.store.remove(10 - key)
    found = await task
    assert found is not None
    assert found.seqs == list(range(1, 11))


async def test_what_the_log_knows_to_be_deleted_securely_is_not_asked_of_the_table(tmp_path: Path) -> None:
    stream = MiniStream(str(tmp_path))
    stream.publish(*[(b"K.a", b"", b"%d" % number) for number in range(4)])
    store = stream.store
    store.shredding = store.erasing = True
    store.remove(2)
    store.shredding = store.erasing = False
    store.keep_departures(True)  # not for the whole segment: only the table can know
    table = Table(Was(True, 1, 3, [1]))
    found = await past_of(stream, table).find([b"K.a"], 2, 0, 9)
    assert found is not None
    assert table.without == [[(2, 2)]]
    assert [record.seq for record in await found.read([1, 2, 3], 1 << 20)] == [1, 3], "nor is it read from the log"


async def test_a_moment_between_what_was_kept_and_what_was_not_is_refused_by_the_log_too(tmp_path: Path) -> None:
    stream = MiniStream(str(tmp_path), LogOptions(seal_bytes=65, seal_age_ns=1 << 60))
    stream.publish((b"K.a", b"", b"1"))
    stream.publish((b"K.b", b"", b"2"))
    stream.operate("remove", 1)  # its time is not recorded
    position = stream.store.log.last_index  # the table has all of that
    stream.store.keep_departures(True)
    stream.publish((b"K.c", b"", b"3"))
    stream.publish((b"K.d", b"", b"4"))
    last_time = stream.store.last_time
    log = LogPast(stream.store)
    assert log.holds_from(position + 1)
    for kept in (False, True):
        was = Was(False, position, 2, [], kept)
        found = await past_of(stream, Table(was)).find([b">"], 0, last_time, 9)
        assert found is not None, "behind the first message that the log alone has"
        asking = past_of(stream, Table(was)).find([b">"], 0, last_time - 1, 9)
        if kept:
            assert (await asking) is not None
        else:
            with pytest.raises(PastUnavailableError, match="not kept for all of that time"):
                await asking


async def test_so_many_requests_of_the_past_are_answered_at_once_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lakestream.account.get.direct.MAX_IN_PAST", 2)
    world = ApiWorld()
    world.fill()

    async def find(*_: object) -> None:
        await asyncio.sleep(0)

    past: Any = types.SimpleNamespace(find=find)
    monkeypatch.setattr(as_it_was.TimeTravel, "past", past)
    body = {"multi_last": ["a.*"], "up_to_seq": 4}
    asked = [world.send("$JS.API.DIRECT.GET.A", body) for _ in range(3)]
    assert [len(world.answers(reply)) for reply in asked] == [0, 0, 1]
    assert world.answers(asked[2])[0][0].startswith(b"NATS/1.0 429")
    await world.awaited()
    assert all(world.answers(reply)[0][0].startswith(b"NATS/1.0 413") for reply in asked[:2])
    again = world.send("$JS.API.DIRECT.GET.A", body)
    await world.awaited()
    assert world.answers(again)[0][0].startswith(b"NATS/1.0 413")


@pytest.mark.parametrize("metadata", [{}, TRAVELS], ids=["plain", "time travel"])
def test_messages_of_a_mirror_keep_the_times_of_their_origin_behind_a_removal(
    tmp_path: Path, metadata: dict[str, str]
) -> None:
    world = World(str(tmp_path), metadata=metadata, subjects=[], mirror={"name": "O"})
    stream = world.stream
    begin = world.clock.now() - HOUR
    stream.proposer.copy(Run([1], [begin], [b"x"], [b""], [b"1"], [1]))
    world.settle()
    stream.propose(Purge())
    world.settle()
    stream.proposer.copy(Run([2], [begin + 10], [b"x"], [b""], [b"2"], [0]))
    world.settle()
    assert stream.store.read(2).time_ns == begin + 10
    if metadata:
        assert stream.store.departures is not None
        assert stream.store.departures.moment() > begin + HOUR - 60 * 10**9, "the purge was now"


def test_messages_published_behind_a_removal_are_not_before_it(tmp_path: Path) -> None:
    world = World(str(tmp_path), metadata=TRAVELS)
    world.acked("s.a", b"1")
    world.stream.propose(Purge())
    world.acked("s.a", b"2")
    departures = world.stream.store.departures
    assert departures is not None
    assert world.stream.store.last_time >= departures.moment() > 0


def test_an_update_that_gives_the_metadata_and_takes_messages_says_when_it_did(tmp_path: Path) -> None:
    world = World(str(tmp_path))
    for number in range(3):
        world.acked("s.a", b"%d" % number)
    last_time = world.stream.store.last_time
    world.clock.advance(1)
    config = msgspec.structs.replace(world.stream.config, metadata=TRAVELS, max_msgs=1)
    update = UpdateStream(msgspec.json.encode(config))
    before = world.stream.feature(as_it_was.TimeTravel).removal_time(update)
    world.stream.propose(update)
    world.settle()
    departures = world.stream.store.departures
    assert departures is not None
    assert list(departures.runs(departures.split(Point(before_ns=before)))) == [(1, 2)]
    assert before > last_time


def test_a_stream_that_loses_the_metadata_right_behind_a_checkpoint_keeps_its_past_no_longer(tmp_path: Path) -> None:
    world = World(str(tmp_path), metadata=TRAVELS, max_msgs=1)
    world.acked("s.a", b"1")
    world.acked("s.a", b"2")
    world.stream.checkpoint()
    world.settle()
    assert world.stream.store.checkpoint_index == world.stream.store.applied
    world.stream.store.log.close()
    again = World(str(tmp_path))
    departures = again.stream.store.departures
    assert departures is not None
    assert list(departures.runs()) == [(1, 1)], "a restart takes it from the checkpoint"
    config = msgspec.structs.replace(again.stream.config, metadata={})
    again.stream.propose(UpdateStream(msgspec.json.encode(config)))
    again.settle()
    assert again.stream.store.departures is None


class Model:
    """Removals of a stream that stores one message at a time, and limits messages per subject and in all."""

    def __init__(self, per_subject: int, max_msgs: int) -> None:
        self.per_subject, self.max_msgs = per_subject, max_msgs
        self.live: dict[int, bytes] = {}
        self.removed: list[tuple[int, int, int]] = []

    def store(self, record: Record) -> None:
        self.live[record.seq] = record.subject
        mine = [seq for seq, subject in self.live.items() if subject == record.subject]
        doomed = mine[: -self.per_subject]
        if 0 < self.max_msgs < len(self.live) - len(doomed):
            doomed.append(next(seq for seq in self.live if seq not in doomed))
        if b"Nats-Rollup" in record.header:
            doomed += [seq for seq in mine[:-1] if seq not in doomed]
        for seq in doomed:
            del self.live[seq]
            self.removed.append((seq, record.seq, record.time_ns))


def removals_of(departures: Departures | None) -> list[tuple[int, int, int]]:
    """Return (sequence, removed_seq, removed_ns) of each message, in the order of their removal."""
    assert departures is not None
    rows = zip(departures.runs(), departures.removed_seqs, departures.removed_ns, strict=True)
    return [(seq, by, at_ns) for (first, last), by, at_ns in rows for seq in range(first, last + 1)]


TURNS = st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=12), max_size=8)
"""Turns of the event loop, each with its publishes: (subject, 0 for a rollup)."""


@given(turns=TURNS, per_subject=st.integers(1, 3), max_msgs=st.sampled_from([-1, -1, 3]))
def test_removals_in_a_batch_have_the_times_of_the_messages_that_made_them(
    turns: list[list[tuple[int, int]]], per_subject: int, max_msgs: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        limits = {"max_msgs_per_subject": per_subject, "max_msgs": max_msgs}
        world = World(directory, metadata=TRAVELS, allow_rollup_hdrs=True, **limits)
        for turn in turns:
            for subject, kind in turn:
                world.clock.time += 1
                world.publish(f"s.{subject}", b"x", **({} if kind else {"Nats_Rollup": "sub"}))
            world.settle()
        store = world.stream.store
        assert isinstance(store.log, SegmentLog)
        model = Model(per_subject, max_msgs)
        for frame, _ in store.log.frames(1):
            if frame.kind == Kind.MESSAGES:
                for record in iter_records(frame.body):
                    model.store(record)
        assert [seq for seq, _, _ in world.content()] == sorted(model.live)
        assert removals_of(store.departures) == model.removed
        store.log.close()
        again = World(directory).stream.store
        assert removals_of(again.departures) == model.removed, "those who read the entries find the same"
        again.log.close()
