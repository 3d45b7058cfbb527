"""Tests of operations interrupted by a kill, a deletion or damage: acked messages stay, and nothing waits for ever."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lakestream.account.engines import Engines
from lakestream.config.options import JetStreamOptions, LakeOptions
from lakestream.log.format.errors import CorruptLog, LogError, LogFrozen
from lakestream.logging import Logger
from lakestream.meta.assignments import Applied, AssignStream
from lakestream.meta.shared import EngineOptions, Shared
from lakestream.net.hub import Hub
from lakestream.net.turn import Turn
from lakestream.ports import Single
from lakestream.protocol.api.errors import ApiError, for_clients
from lakestream.raft.group import solo
from lakestream.server import jetstream
from lakestream.server.jetstream import open_stores
from lakestream.stream.assembly import Stream
from lakestream.stream.core import batch
from lakestream.stream.core.batch import MAX_BATCH_BYTES
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.operations import DeleteMessage, Purge, Remove
from lakestream.stream.core.pipeline import (
    OPERATION_BYTES,
    SLOW_WRITE_BYTES,
    SLOW_WRITE_NS,
    WRITE_BYTES,
    Pipeline,
    Uncommitted,
)
from lakestream.stream.core.proposer import BufferLimits
from lakestream.stream.core.reader import HistoryUnavailableError
from lakestream.stream.features import expiry
from tests.faults.files import FaultyFiles
from tests.unit.consumer_world import World as ConsumerWorld
from tests.unit.stream_world import CLIENT, ManualClock, ManualIo, World

pytestmark = pytest.mark.unit


def killed(tmp_path: Path) -> World:
    """Return the stream as the next process finds it: work submitted to a thread but not done never happens."""
    copy = tmp_path / "killed" / "S"
    shutil.copytree(tmp_path / "S", copy)
    return World(str(copy))


class EngineWorld:
    """Engine over a directory."""

    def __init__(self, directory: Path, log: Logger | None = None) -> None:
        self.clock, self.io, log = ManualClock(), ManualIo(), log or Logger()
        self.hub = Hub(Turn(self.clock.call_soon), log)
        self.stores = open_stores(
            JetStreamOptions(store_dir=str(directory), max_memory=-1, max_file=-1), LakeOptions(), self.io
        )
        options = EngineOptions(server_name="srv", server_id="NSRV")
        self.engines = Engines(Shared(self.clock, self.io, self.stores, options, log, lambda account: self.hub))
        self.engine = self.engines.serve("$G")
        self.made: list[Stream | ApiError] = []

    def create(self, name: str) -> None:
        config = msgspec.json.encode(StreamConfig(name=name, subjects=[f"{name}.>"]))
        op = AssignStream(f"{name}{len(self.made)}", "$G", name, config, ("srv",), self.clock.now())

        def decided(outcome: Applied | ApiError) -> None:
            self.made.append(outcome if isinstance(outcome, ApiError) else self.engine.streams[name])

        self.engine.node.meta.propose(op, decided)

    def settle(self) -> None:
        self.clock.turn()
        while self.io.waiting:
            self.io.work()
            self.clock.turn()

    def publish(self, subject: str) -> None:
        self.hub.route(None, CLIENT, Single(subject.encode(), b"", b"", b"x"))


# ---------------------------------------------------------------- deleted and created again
@pytest.mark.parametrize("order", ["as submitted", "the other way round"])
def test_a_stream_made_anew_waits_until_the_old_one_is_gone(tmp_path: Path, order: str) -> None:
    world = EngineWorld(tmp_path)
    world.create("A")
    world.settle()
    world.publish("A.old")
    world.settle()
    deleted: list[ApiError | None] = []
    world.engine.delete_stream("A", deleted.append)
    world.create("A")
    if order == "the other way round":  # threads may start them in any order
        world.io.waiting.reverse()
    world.settle()
    assert deleted == [None]
    anew = world.made[1]
    assert isinstance(anew, Stream)
    assert (anew.store.msgs, anew.store.last_seq, anew.store.uid) == (0, 0, anew.uid)
    world.publish("A.new")
    world.settle()
    world.stores.close()
    again = EngineWorld(tmp_path)
    again.engines.recover()
    assert again.engine.streams["A"].store.msgs == 1


def test_a_new_stream_never_begins_in_the_directory_of_an_old_one(tmp_path: Path) -> None:
    world = EngineWorld(tmp_path)
    world.create("A")
    world.settle()
    with pytest.raises(Exception, match="already"):
        world.stores.create("$G", "A", "another", b"", memory=False)


# ---------------------------------------------------------------- a checkpoint while something is in flight
def test_a_checkpoint_knows_no_message_id_that_is_not_on_disk(tmp_path: Path) -> None:
    world = World(str(tmp_path / "S"))
    assert world.acked("s.a", Nats_Msg_Id="first")["seq"] == 1
    world.publish("s.a", b"lost", Nats_Msg_Id="second")
    world.clock.turn()
    world.stream.checkpoint()
    assert len(world.io.waiting) == 2
    world.io.waiting.pop(0)  # the write never happens: the process is killed before
    world.io.work()
    after = killed(tmp_path)
    assert after.acked("s.a", b"again", Nats_Msg_Id="first")["duplicate"] is True
    assert after.acked("s.a", b"again", Nats_Msg_Id="second") == {"stream": "S", "seq": 2}


def test_a_checkpoint_keeps_the_removals_that_are_not_on_disk(tmp_path: Path) -> None:
    world = World(str(tmp_path / "S"), allow_msg_ttl=True)
    world.acked("s.a", Nats_TTL="1s")
    world.acked("s.b")
    world.clock.advance(2_000_000_000)  # the message's TTL is over: its removal is proposed
    assert world.io.waiting
    world.stream.checkpoint()
    world.io.waiting.pop(0)
    world.io.work()
    after = killed(tmp_path)
    after.settle()
    assert [seq for seq, _, _ in after.content()] == [2]


# ---------------------------------------------------------------- sequences
def test_a_publish_behind_a_purge_beyond_the_end_gets_the_sequence_that_follows(tmp_path: Path) -> None:
    world = World(str(tmp_path / "S"))
    world.acked("s.a")
    world.stream.propose(Purge(seq=100))
    reply = world.publish("s.a", b"after")
    world.settle()
    assert world.answer(reply) == {"stream": "S", "seq": 100}
    assert killed(tmp_path).content() == [(100, b"s.a", b"after")]


# ---------------------------------------------------------------- failures
def test_what_fails_while_it_is_applied_freezes_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(str(tmp_path / "S"))
    world.acked("s.a")

    def damaged(*_: Any) -> None:
        raise CorruptLog("file", 7, "damaged")

    monkeypatch.setattr(world.stream.store, "remove", damaged)
    answers: list[object] = []
    world.stream.propose(DeleteMessage(1), answers.append)
    reply = world.publish("s.a")
    world.settle()
    assert isinstance(answers[0], ApiError)
    assert "damaged" in str(world.answer(reply))
    assert "damaged" in str(world.acked("s.b"))
    world.stream.store.close(world.stream.dump())
    assert killed(tmp_path).stream.store.applied > world.stream.store.applied, "no checkpoint of half an entry"


class Report(Logger):
    """Keeps reported errors."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []

    def error(self, text: str) -> None:
        self.errors.append(text)


@pytest.mark.parametrize(("operation", "code"), [("write", errno.ENOSPC), ("sync", errno.EIO)])
def test_a_frozen_stream_is_logged_at_once_and_every_minute_while_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, code: int
) -> None:
    files = FaultyFiles()
    monkeypatch.setattr(jetstream, "Files", lambda: files)
    log = Report()
    world = EngineWorld(tmp_path, log)
    world.create("A")
    world.settle()
    files.fail, files.code = operation, code
    world.publish("A.x")
    world.settle()
    files.fail = ""
    (line,) = log.errors
    assert line.startswith("stream A: takes no more messages: ")
    assert str(tmp_path) in line
    assert os.strerror(code) in line
    assert "make room or repair the device, then restart the server" in line
    world.clock.advance(59_000_000_000)
    world.publish("A.x")
    world.settle()
    assert log.errors == [line]
    for minutes in (1, 2, 3):
        world.clock.advance(60_000_000_000)
        assert log.errors[1:] == [line.replace("takes no more messages", "still takes no messages")] * minutes
    world.engine.delete_stream("A", world.made.append)
    world.settle()
    world.clock.advance(600_000_000_000)
    assert len(log.errors) == 4


@pytest.mark.parametrize(
    ("error", "told_as"),
    [
        (LogFrozen("/srv/js/S/log/1.seg", OSError(errno.ENOSPC, "No space left on device")), "No space left on device"),
        (LogFrozen("/srv/js/S/log/1.seg", ValueError("/srv/js")), "a write failed"),
        (CorruptLog("/srv/js/S/log/1.seg", 7, "the crc does not match"), "damaged at offset 7: the crc does not match"),
        (LogError("/srv/js/S is there already"), "the server's log says why"),
        (OSError(errno.EACCES, "Permission denied", "/srv/js/S"), "Permission denied"),
        (RuntimeError("file:///srv/lake/streams/S"), "whose log says why"),
        (HistoryUnavailableError("S: sequence 4 is not readable from the lake"), "sequence 4 is not readable"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_clients_get_the_reason_without_paths(error: Exception, told_as: str) -> None:
    assert told_as in for_clients(error)
    assert "/srv" not in for_clients(error)


def test_publishes_with_headers_are_refused_by_a_frozen_stream_whatever_was_in_flight(tmp_path: Path) -> None:
    files = FaultyFiles()
    world = World(str(tmp_path / "S"), files=files)
    files.fail = "sync"
    world.stream.propose(Remove([1]))
    world.settle()
    assert world.stream.failed is not None
    assert "error" in world.acked("s.a", Nats_Msg_Id="x")


def test_one_stream_that_cannot_be_recovered_does_not_keep_the_others_from_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    world = EngineWorld(tmp_path)
    world.create("A")
    world.create("B")
    world.settle()
    world.stores.close()
    apply_frame = Stream.apply_frame

    def broken(stream: Stream, *arguments: Any) -> None:
        assert stream.name != "A", "this stream is broken"
        apply_frame(stream, *arguments)

    monkeypatch.setattr(Stream, "apply_frame", broken)
    again = EngineWorld(tmp_path)
    again.engines.recover()
    assert list(again.engine.streams) == ["B"]
    assert "whose log says why" in again.engine.offline["A"]
    assert "broken" in capfd.readouterr().err


def test_waiting_operations_on_a_deleted_stream_are_answered(tmp_path: Path) -> None:
    world = EngineWorld(tmp_path)
    world.create("A")
    world.settle()
    stream = world.engine.streams["A"]
    world.publish("A.x")
    world.clock.turn()  # a write is in progress
    answers: list[object] = []
    stream.propose(DeleteMessage(1), answers.append)
    world.engine.delete_stream("A", lambda _: None)
    world.settle()
    assert len(answers) == 1
    assert isinstance(answers[0], ApiError)
    assert not os.path.exists(stream.store.directory)


def test_a_server_that_stops_takes_no_more_messages_and_finishes_what_it_took(tmp_path: Path) -> None:
    world = EngineWorld(tmp_path)
    world.create("A")
    world.settle()
    world.publish("A.x")
    world.clock.turn()
    world.engine.cease()
    world.publish("A.y")
    world.settle()
    stream = world.engine.streams["A"]
    assert (stream.store.msgs, stream.pipeline.uncommitted()) == (1, [])


# ---------------------------------------------------------------- leftovers
def test_what_a_deleted_consumer_released_goes_also_when_a_kill_came_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = ConsumerWorld(tmp_path)
    world.stream(retention="interest")
    world.consumer("a")
    world.consumer("b")
    world.store("s.1", "s.2")
    for message in world.pull(2, "a"):
        world.ack(message)
    world.clock.advance(1_000_000_000)
    propose = Pipeline.propose

    def unless_killed(pipeline: Pipeline, operation: Any, done: Any = None, *, volatile: bool = False) -> None:
        if not isinstance(operation, Remove):
            propose(pipeline, operation, done, volatile=volatile)

    with monkeypatch.context() as patch:
        patch.setattr(Pipeline, "propose", unless_killed)
        world.publish("$JS.API.CONSUMER.DELETE.S.b", reply="_INBOX.me.last")
        world.clock.turn()
    assert world.engine.streams["S"].store.msgs == 2
    after = world.crash(tmp_path)
    assert after.engine.streams["S"].store.msgs == 0
    assert list(after.engine.streams["S"].consumers) == ["a"]


def test_ttls_of_messages_that_are_gone_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "SLACK", 10)
    world = World(str(tmp_path / "S"), allow_msg_ttl=True, max_msgs_per_subject=1)
    for _ in range(50):
        world.publish("s.a", Nats_TTL="never")
        world.publish("s.b", Nats_TTL="1h")
    world.settle()
    for _ in range(50):
        world.acked("s.a", Nats_TTL="never")
        world.acked("s.b", Nats_TTL="1h")
    assert len(world.stream.feature(expiry.Expiry).dump()["ttls"]) <= 16
    world.clock.advance(3_700_000_000_000)
    world.settle()
    assert [subject for _, subject, _ in world.content()] == [b"s.a"]


def test_publishes_that_wait_for_an_operation_are_bounded(tmp_path: Path) -> None:
    world = World(str(tmp_path / "S"), buffer=BufferLimits(max_bytes=1000))
    world.stream.propose(Remove([1]))
    replies = [world.publish("s.a", bytes(100), Nats_Msg_Id=str(number)) for number in range(20)]
    refused = [reply for reply in replies if world.answer(reply) is not None]
    assert 5 < len(refused) < 15
    assert "10167" in str(world.answer(refused[0]))
    world.settle()
    assert world.stream.store.msgs == 20 - len(refused)


def test_what_has_gathered_behind_a_slow_write_is_not_applied_all_at_once(tmp_path: Path) -> None:
    world = World(str(tmp_path / "S"))
    pipeline = world.stream.pipeline
    for _ in range(100):
        world.stream.propose(Remove([1]))
    most = WRITE_BYTES // OPERATION_BYTES
    pipeline.flush()
    assert (len(pipeline.flying()), len(pipeline)) == (most, 100)
    world.io.work()
    assert (len(pipeline.flying()), len(pipeline)) == (most, 100 - most)
    world.settle()
    assert not len(pipeline)


def test_deletions_of_single_messages_are_written_together(tmp_path: Path) -> None:
    world = World(str(tmp_path / "S"))
    for _ in range(100):
        world.stream.propose(DeleteMessage(1))
    world.stream.pipeline.flush()
    assert len(world.stream.pipeline.flying()) == 100
    world.settle()


def test_messages_behind_a_slow_write_are_written_in_parts(tmp_path: Path) -> None:
    world = World(str(tmp_path / "S"))
    pipeline = world.stream.pipeline
    for _ in range(40):
        world.publish("s.a", bytes(1 << 20))
    pipeline.flush()
    assert len(pipeline.flying()) == 1, "a batch of more than 1 MiB"
    assert pipeline.pending_bytes > 40 << 20
    world.settle()
    assert (world.stream.store.msgs, pipeline.pending_bytes) == (40, 0)


def test_many_small_messages_are_written_together_and_applied_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "MAX_BATCH_MSGS", 10)
    monkeypatch.setattr(solo, "AT_ONCE", 10)
    world = World(str(tmp_path / "S"))
    for _ in range(25):
        world.publish("s.a")
    world.clock.turn()
    stored = []
    while world.io.waiting:
        world.io.work()
        stored.append(world.stream.store.msgs)
        world.clock.turn()
    assert stored == [10, 20, 25]
    assert [frame.count for frame, _ in world.stream.store.log.entries(2, 1 << 20)] == [10, 10, 5]  # type: ignore[attr-defined]


def test_writes_behind_a_slow_one_are_larger_until_the_disk_is_fast(tmp_path: Path) -> None:
    """With a sync of 0.5 s and 1 MiB a write, 128 MiB that have gathered would take a minute."""
    world = World(str(tmp_path / "S"))
    pipeline = world.stream.pipeline
    for _ in range(60):
        world.publish("s.a", bytes(200_000))
    pipeline.flush()
    sizes = []
    for slow in (False, True, False, False):
        sizes.append(len(pipeline.flying()))
        world.clock.time += SLOW_WRITE_NS + 1 if slow else 0
        world.io.work()
        world.clock.turn()
    assert sizes == [1, 1, SLOW_WRITE_BYTES // MAX_BATCH_BYTES - 1, 1], "batches of a little over 1 MiB"
    world.settle()
    assert world.stream.store.msgs == 60


def test_streams_share_a_limit_of_uncommitted_messages_and_a_small_one_goes_on(tmp_path: Path) -> None:
    """Publishes that streams on slow disks gather are bounded together; a stream that holds little is not refused."""
    every = Uncommitted(4 << 20)
    large, small = (World(str(tmp_path / name), uncommitted=every) for name in "AB")
    for _ in range(20):
        large.publish("s.a", bytes(1 << 20))
    assert every.limit < every.total < every.limit + (2 << 20)
    taken = every.total >> 20
    small.publish("s.a", b"x")
    large.settle()
    small.settle()
    assert (large.stream.store.msgs, small.stream.store.msgs) == (taken, 1)
    assert sum(b"10167" in answer for _, answer in large.inbox.got) == 20 - taken
    assert every.total == 0
    large.publish("s.a", b"x")
    large.settle()
    assert large.stream.store.msgs == taken + 1


def test_publishes_that_wait_for_an_operation_share_that_limit(tmp_path: Path) -> None:
    """Each stream had a limit of its own for them, a server with many streams none."""
    every = Uncommitted(4 << 20)
    large, small = (World(str(tmp_path / name), uncommitted=every) for name in "AB")
    for world in (large, small):
        world.stream.propose(Purge())
    for number in range(20):
        large.publish("s.a", bytes(1 << 20), Nats_Msg_Id=str(number))
    assert every.total <= every.limit
    taken = every.total >> 20
    refused = sum(b"10167" in answer for _, answer in large.inbox.got)
    assert (taken, refused) == (3, 17)
    for number in range(500):  # of a stream that holds less than 1 MiB nothing is refused
        small.publish("s.a", b"x", Nats_Msg_Id=str(number))
    assert not small.inbox.got
    large.settle()
    small.settle()
    assert (large.stream.store.msgs, small.stream.store.msgs) == (taken, 500)
    assert every.total == 0


@pytest.mark.parametrize("deleted", [False, True])
def test_publishes_that_wait_when_a_stream_ends_do_not_count(tmp_path: Path, deleted: bool) -> None:
    every = Uncommitted()
    world = World(str(tmp_path / "S"), uncommitted=every)
    world.stream.propose(Purge())
    world.publish("s.a", bytes(1000), Nats_Msg_Id="1")
    assert every.total > 1000
    world.stream.stop(deleted=deleted)
    assert every.total == 0


def test_uncommitted_messages_of_a_stream_that_ends_do_not_count(tmp_path: Path) -> None:
    every = Uncommitted()
    world = World(str(tmp_path / "S"), uncommitted=every)
    world.publish("s.a", bytes(1000))
    assert every.total > 1000
    world.stream.stop(deleted=True)
    assert every.total == 0
