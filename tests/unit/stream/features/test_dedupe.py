"""Tests of the duplicate window of a stream, with a store; test_message_ids.py has those of the ids alone."""

import logging
import os
from pathlib import Path

import pytest

from lakestream.log.format.files import Files
from lakestream.log.index.memory_limit import IndexMemory
from lakestream.log.sealing.keys import Keyring
from lakestream.log.sealing.stores import sealed_store
from lakestream.log.store.checkpoint import PLAIN_VERSION, VERSION, read_checkpoint
from lakestream.stream.features import message_ids
from lakestream.stream.features.dedupe import Dedupe
from lakestream.stream.features.message_ids import MessageIds
from tests.unit.stream_world import World

pytestmark = pytest.mark.unit

FILES = Files()
WINDOW_NS = 3600 * 1_000_000_000


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_ids, "CHUNK_IDS", 4)
    monkeypatch.setattr(message_ids, "NEWEST", 2)
    monkeypatch.setattr(message_ids, "TRIM_IDS", 4)


def ids_of(world: World) -> MessageIds:
    return world.stream.feature(Dedupe).ids


def version_of(directory: Path, files: Files = FILES) -> int:
    [path] = directory.rglob("checkpoint")
    return int.from_bytes(files.read(str(path))[4:8], "little")


def fill(world: World, begin: int, end: int) -> None:
    for number in range(begin, end):
        assert "duplicate" not in world.acked("s.a", Nats_Msg_Id=f"id-{number}")


def known(world: World, begin: int, end: int) -> None:
    for number in range(begin, end):
        answer = world.acked("s.a", Nats_Msg_Id=f"id-{number}")
        assert (answer["seq"], answer["duplicate"]) == (number, True)


def test_a_stop_writes_no_checkpoint_again_that_has_the_same_ids(tmp_path: Path) -> None:
    world = World(str(tmp_path))
    world.acked("s.a", Nats_Msg_Id="a")
    written = set[int]()
    for turn in range(3):
        world.stream.store.close(world.stream.dump())
        [path] = tmp_path.rglob("checkpoint")
        written.add(os.stat(path).st_ino)
        if turn < 2:
            world = World(str(tmp_path), clock=world.clock)
            assert world.stream.feature(Dedupe).ids.seen(b"a", world.clock.steady()) == 1
    assert len(written) == 1


def test_ids_beyond_the_newest_stay_in_the_checkpoint_file_over_restarts(tmp_path: Path) -> None:
    world = World(str(tmp_path), duplicate_window=WINDOW_NS)
    fill(world, 1, 12)
    world.stream.store.close(world.stream.dump())
    assert version_of(tmp_path) == PLAIN_VERSION, "earlier releases can read it"
    for turn in range(1, 4):
        world = World(str(tmp_path), clock=world.clock)
        fill(world, 12 * turn, 12 * turn + 12)
        known(world, 1, 12 * turn + 12)
        world.stream.store.close(world.stream.dump())
        assert version_of(tmp_path) == VERSION
    world = World(str(tmp_path), clock=world.clock)
    found = read_checkpoint(FILES, str(next(tmp_path.rglob("checkpoint"))))
    assert found is not None
    assert len(found.blocks) == 47 // 4 - 2
    assert ids_of(world)._cold == len(found.blocks)
    known(world, 1, 48)


def test_a_kill_behind_a_checkpoint_loses_no_id(tmp_path: Path) -> None:
    world = World(str(tmp_path), duplicate_window=WINDOW_NS)
    fill(world, 1, 30)
    world.stream.checkpoint()
    world.settle()
    assert version_of(tmp_path) == VERSION
    fill(world, 30, 50)
    ids_of(world).cool(1 << 20)
    world.stream.store.abandon()
    world = World(str(tmp_path), clock=world.clock)
    known(world, 1, 50)
    fill(world, 50, 60)


def test_ids_leave_memory_at_the_limit_and_the_disk_when_they_expire(tmp_path: Path) -> None:
    world = World(str(tmp_path), duplicate_window=WINDOW_NS)
    ids = ids_of(world)
    shared = IndexMemory(0)
    ids.keep_within(shared, world.stream.store.log.files, str(tmp_path))
    shared.add(ids)
    fill(world, 1, 41)
    assert ids._cold >= 8
    assert ids._bytes <= 2 * 200
    assert shared.used == ids.memory > 0
    known(world, 1, 41)
    world.stream.start()
    world.clock.advance(WINDOW_NS + 1)
    world.settle()
    assert (len(ids), ids.memory, ids._scratch) == (0, 0, None), "without a publish"


def test_no_id_is_readable_in_the_files_of_an_encrypted_store(tmp_path: Path) -> None:
    files = sealed_store(str(tmp_path / "store"), Files(), Keyring(["secret"]), lambda line: None)
    directory = tmp_path / "store" / "$G" / "streams" / "S"
    world = World(str(directory), files=files, duplicate_window=WINDOW_NS)
    fill(world, 1, 30)
    ids = ids_of(world)
    assert ids.cool(1 << 20) == 28
    assert ids._scratch is not None
    moved = Path(f"/proc/self/fd/{ids._scratch._fd}").read_bytes()
    known(world, 1, 30)
    world.stream.store.close(world.stream.dump())
    assert version_of(directory, files) == VERSION
    for content in [moved, *(path.read_bytes() for path in directory.rglob("*") if path.is_file())]:
        assert content
        assert b"id-1" not in content
    known(World(str(directory), files=files, clock=world.clock), 1, 30)


def test_a_damaged_block_refuses_what_may_be_a_duplicate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = World(str(tmp_path), duplicate_window=WINDOW_NS)
    fill(world, 1, 30)
    ids = ids_of(world)
    assert ids.cool(1 << 20) == 28
    assert ids._scratch is not None
    files = world.stream.store.log.files
    files.write(ids._scratch._fd, [b"\xff"], 20)
    assert world.acked("s.a", Nats_Msg_Id="id-2")["error"]["err_code"] == 10077
    known(world, 5, 30)
    fill(world, 30, 32)
    with caplog.at_level(logging.ERROR):
        world.stream.checkpoint()
        world.settle()
    assert "no checkpoint was written" in caplog.text
