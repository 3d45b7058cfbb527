"""Tests of streams at rest: nothing is done for them, and whatever may concern their tables wakes them."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lakestream.lake.storage.locks import COMPACTOR_LOCK, mark
from lakestream.lake.storage.paths import DELETED_FILE
from lakestream.log.store.segment_log import LogOptions
from lakestream.ports import Share
from lakestream.server.lake import keeper
from lakestream.server.lake.stream_sync import StreamSync
from tests.unit.account.test_engines import World

pytestmark = pytest.mark.unit

SECOND = 1_000_000_000
STREAMS = 12


class Resting:
    """Streams whose messages are staged, on a server without a compactor; counts the looks at their tables."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = World(directory, "A", lake=True)
        self.world.stores._options = LogOptions(seal_age_ns=1)
        self.looks: list[str] = []
        look = StreamSync.look

        def counted(sync: StreamSync, *arguments: object) -> object:
            self.looks.append(sync.stream.name)
            return look(sync, *arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(StreamSync, "look", counted)
        self.keeper = self.world.keeper
        self.keeper.start()
        for number in range(STREAMS):
            self.world.create("A", f"S{number}")
            self.world.publish("A", f"S{number}")
        self.poll(30)
        self.staged = sorted(each.name for each in directory.glob("lake/**/*.seg"))
        assert len(self.staged) == STREAMS
        self.lock = directory / "lake" / COMPACTOR_LOCK
        self.looks.clear()

    def poll(self, seconds: int) -> list[str]:
        """Let time pass; return the streams whose tables were looked at."""
        before = len(self.looks)
        for _ in range(seconds):
            self.world.clock.advance(SECOND)
            self.world.settle()
        return self.looks[before:]


@pytest.fixture
def resting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Resting]:
    monkeypatch.setattr(keeper, "IDLE_LOOKS", 0)
    made = Resting(tmp_path, monkeypatch)
    yield made
    made.world.stop()


def test_streams_at_rest_cost_nothing_without_a_compactor(resting: Resting) -> None:
    assert resting.poll(100) == []
    assert not resting.keeper._polled


def test_a_message_wakes_its_stream_until_it_is_staged(resting: Resting) -> None:
    resting.world.publish("A", "S3")
    assert list(resting.keeper._polled) == [resting.keeper._syncs["A", "S3"]]
    assert set(resting.poll(30)) == {"S3"}
    assert not resting.keeper._polled
    assert len(list(resting.lock.parent.glob("**/*.seg"))) == STREAMS + 1


class OneStep(Share):
    """A turn that is over after each step."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def is_over(self) -> bool:
        return True

    def wait(self, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)


def test_clients_are_served_between_the_looks_at_two_streams(resting: Resting) -> None:
    for number in range(STREAMS):
        resting.world.publish("A", f"S{number}")
    resting.keeper._share = share = OneStep()
    counts = [len(resting.poll(1))]
    while share.waiting and len(resting.looks) < STREAMS:
        before = len(resting.looks)
        share.waiting.pop(0)()
        resting.poll(1)  # the next round begins behind this one
        counts.append(len(resting.looks) - before)
    assert max(counts) == 1
    assert sorted(resting.looks) == sorted(f"S{number}" for number in range(STREAMS))


def test_a_compactor_wakes_all_streams_that_are_behind(resting: Resting) -> None:
    descriptor = os.open(resting.lock, os.O_RDWR | os.O_CREAT)
    assert len(set(resting.poll(3))) == STREAMS  # the new file
    assert not resting.keeper._polled
    pid = os.fork()
    if not pid:  # locks of the same process are not seen
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        os.kill(os.getpid(), 19)  # SIGSTOP
        os._exit(0)
    os.waitpid(pid, os.WUNTRACED)
    os.close(descriptor)
    found = resting.poll(5)
    assert min(found.count(name) for name in set(found)) >= 3, "at each poll while it is there"
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    assert len(set(resting.poll(3))) == STREAMS, "once more: its last commit"
    assert not resting.keeper._polled
    assert resting.poll(20) == []


def test_a_compactor_that_came_and_went_between_two_polls_is_noticed(resting: Resting) -> None:
    for _ in range(2):  # the first creates the file
        mark(str(resting.lock))
        assert len(set(resting.poll(3))) == STREAMS
        assert resting.poll(5) == []


def test_a_read_that_failed_has_the_table_checked(resting: Resting) -> None:
    history = resting.keeper._syncs["A", "S5"].history
    assert history is not None
    history.is_suspect = True
    history.on_failure()
    assert set(resting.poll(3)) == {"S5"}


def test_the_looks_at_streams_at_rest_are_few_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resting = Resting(tmp_path, monkeypatch)
    assert len(resting.poll(300)) == 300 * STREAMS // keeper.IDLE_POLLS
    monkeypatch.setattr(keeper, "IDLE_POLLS", 1)
    monkeypatch.setattr(keeper, "IDLE_LOOKS", 3)
    looks = resting.poll(40)
    assert len(looks) == 40 * 3
    assert all(looks.count(f"S{number}") == 10 for number in range(STREAMS)), "in turn"
    resting.world.stop()


def test_a_new_stream_is_not_looked_for_in_the_lake_before_it_has_something_to_stage(resting: Resting) -> None:
    resting.world.create("A", "NEW")
    assert resting.poll(30) == []
    assert not resting.keeper._polled
    resting.world.publish("A", "NEW")
    assert set(resting.poll(30)) == {"NEW"}
    assert len(list(resting.lock.parent.glob("**/*.seg"))) == STREAMS + 1


def test_a_stream_that_was_never_staged_leaves_nothing_in_the_lake_and_another_its_mark(resting: Resting) -> None:
    resting.world.create("A", "NEW")
    for name in ("NEW", "S3"):
        assert resting.world.ask("A", f"$JS.API.STREAM.DELETE.{name}")["success"]
    resting.poll(3)
    lake = resting.lock.parent
    assert not list(lake.glob("**/NEW"))
    assert [each.parent.parent.name for each in lake.glob(f"**/{DELETED_FILE}")] == ["S3"]
    assert sorted(name for _, name in resting.keeper._syncs) == sorted(f"S{at}" for at in range(STREAMS) if at != 3)


def test_messages_of_a_stream_whose_table_is_kept_are_staged_when_it_is_deleted(resting: Resting) -> None:
    resting.world.create("A", "KEPT", metadata={"lakestream.on_delete": "keep"})
    resting.world.stores._options = LogOptions()
    resting.world.publish("A", "KEPT")
    assert resting.world.ask("A", "$JS.API.STREAM.DELETE.KEPT")["success"]
    resting.poll(3)
    assert len(list(resting.lock.parent.glob("**/KEPT/*/*.seg"))) == 1


def test_a_start_looks_for_the_streams_that_the_lake_may_have_alone(resting: Resting, tmp_path: Path) -> None:
    resting.world.create("A", "NEW")
    resting.world.stop()
    resting.looks.clear()
    world = World(tmp_path, "A", lake=True)
    world.settle()
    assert sorted(resting.looks) == sorted(f"S{number}" for number in range(STREAMS))
    resting.world, resting.keeper = world, world.keeper
    world.engines.of("A").streams["NEW"].store.log.options = LogOptions(seal_age_ns=1)
    world.keeper.start()
    world.publish("A", "NEW")
    assert "NEW" in resting.poll(30)
    assert len(list(resting.lock.parent.glob("**/*.seg"))) == STREAMS + 1


def test_a_store_that_is_older_than_what_was_staged_takes_no_messages(resting: Resting, tmp_path: Path) -> None:
    resting.world.create("A", "NEW")
    resting.world.stop()
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "jetstream", copy)
    world = World(tmp_path, "A", lake=True)
    world.engines.of("A").streams["NEW"].store.log.options = LogOptions(seal_age_ns=1)
    world.keeper.start()
    world.publish("A", "NEW")
    resting.world = world
    resting.poll(30)
    assert len(list(resting.lock.parent.glob("**/*.seg"))) == STREAMS + 1
    world.stop()
    shutil.rmtree(tmp_path / "jetstream")
    copy.rename(tmp_path / "jetstream")
    resting.world = World(tmp_path, "A", lake=True)
    assert "older copy" in resting.world.publish("A", "NEW")["error"]["description"]
    assert resting.world.publish("A", "S0")["seq"] == 2
