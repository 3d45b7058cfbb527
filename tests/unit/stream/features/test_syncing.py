"""Tests of `persist_mode: async`: acks that do not wait for the disk, and the times of syncs."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakestream.log.store.segment_log import LogOptions
from lakestream.stream.features.async_persist import ASYNC_SYNC_NS
from tests.faults.files import FaultyFiles
from tests.unit import replica_world
from tests.unit.stream_world import World

pytestmark = pytest.mark.unit


class SyncedWorld(World):
    """World that counts syncs."""

    def __init__(self, directory: Path, mode: str = "async", options: LogOptions | None = None) -> None:
        self.files = FaultyFiles()
        super().__init__(str(directory), files=self.files, options=options, persist_mode=mode)

    @property
    def syncs(self) -> int:
        return self.files.calls.get("sync", 0)


def test_invariant_1_only_an_async_stream_acks_before_its_sync(tmp_path: Path) -> None:
    for mode, each in (("async", 0), ("", 1)):
        world = SyncedWorld(tmp_path / f"S{mode}", mode)
        before = world.syncs
        for _ in range(3):
            world.acked("s.a")
        assert world.syncs - before == 3 * each, mode


def test_what_was_written_is_synced_within_a_second_and_then_no_more(tmp_path: Path) -> None:
    world = SyncedWorld(tmp_path / "S")
    before = world.syncs
    world.acked("s.a")
    world.clock.advance(ASYNC_SYNC_NS - 1)
    world.settle()
    assert world.syncs == before
    world.acked("s.a")
    for _ in range(5):
        world.clock.advance(ASYNC_SYNC_NS)
        world.settle()
    assert world.syncs == before + 1
    assert not [timer for timer in world.clock.timers if not timer.cancelled], "a stream at rest has no timer"
    world.acked("s.a")
    world.clock.advance(ASYNC_SYNC_NS)
    world.settle()
    assert world.syncs == before + 2


def test_a_write_that_is_under_way_puts_the_sync_off(tmp_path: Path) -> None:
    world = SyncedWorld(tmp_path / "S")
    before = world.syncs
    world.acked("s.a")
    world.publish("s.a")
    world.clock.turn()
    world.clock.advance(ASYNC_SYNC_NS)
    assert len(world.io.waiting) == 1, "nothing but the write"
    world.settle()
    assert world.syncs == before
    world.clock.advance(ASYNC_SYNC_NS)
    world.settle()
    assert world.syncs == before + 1


def test_invariant_4_a_failed_sync_freezes_the_stream(tmp_path: Path) -> None:
    world = SyncedWorld(tmp_path / "S")
    world.acked("s.a")
    world.files.fail = "sync"
    world.clock.advance(ASYNC_SYNC_NS)
    world.settle()
    assert world.acked("s.a")["error"]["err_code"] == 10077
    world.clock.advance(ASYNC_SYNC_NS)
    assert not [timer for timer in world.clock.timers if not timer.cancelled]


def test_it_is_async_after_a_restart_too_and_the_end_syncs(tmp_path: Path) -> None:
    world = SyncedWorld(tmp_path / "S")
    world.acked("s.a")
    before = world.syncs
    world.stream.stop()
    world.stream.store.close(world.stream.dump())
    assert world.syncs > before
    again = SyncedWorld(tmp_path / "S", options=LogOptions())
    before = again.syncs
    assert again.acked("s.a")["seq"] == 2
    assert again.syncs == before


def test_a_member_of_a_cluster_does_so_too(tmp_path: Path) -> None:
    world = replica_world.World(tmp_path, "a")
    world.stream(persist_mode="async")
    world.acked("s.a", b"1")
    log = world.nodes["a"].stream.store.log
    assert log.unsynced
    world.run(ASYNC_SYNC_NS / 1e9 + 0.1)
    assert not log.unsynced
    world.acked("s.a", b"2")
    world.nodes["a"].kill()
    world.start("a")
    assert world.converged() == [(1, b"s.a", b"1"), (2, b"s.a", b"2")]
    assert world.acked("s.a", b"3")["seq"] == 3
    assert world.nodes["a"].stream.store.log.unsynced
