"""Tests of the synced mark: missing entries that a crash cannot have removed are detected, others are reported."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from lakestream.account.engines import MARK_NS
from lakestream.lake.staging import staging
from lakestream.lake.storage import paths
from lakestream.lake.storage.probe import Probe
from lakestream.lake.table.state import TableFollower
from lakestream.log.format.errors import CorruptLog, LostEntries
from lakestream.log.format.segment import HEADER_SIZE
from lakestream.log.store import synced
from lakestream.log.store.segment_log import LogOptions
from lakestream.log.store.segment_store import open_store
from lakestream.log.store.synced import MarkFile, SyncedMark
from lakestream.server.lake import keeper
from tests.faults.files import FaultyFiles
from tests.unit.account.test_engines import World
from tests.unit.logkit import MiniStream, QuickFiles, message, segment_files

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("closing")]


def killed(stream: MiniStream) -> MiniStream:
    """Kill the process without updating the mark; return the stream."""
    stream.store.log.marks = None  # type: ignore[union-attr]
    stream.store.log.close()
    return stream


def published(directory: str, count: int, mark_after: int = 0, options: LogOptions | None = None) -> MiniStream:
    """Write `count` entries, update the mark after `mark_after` of them, and kill the process."""
    stream = MiniStream(directory, options, alone=True)
    for number in range(1, count + 1):
        stream.publish(message(number))
        if number == mark_after:
            stream.store.log.mark()
    return killed(stream)


def cut(path: str, size: int) -> None:
    os.truncate(path, os.path.getsize(path) - size)


def zero(path: str, size: int) -> None:
    with open(path, "r+b") as file:
        file.seek(-size, os.SEEK_END)
        file.write(bytes(size))


def remove(path: str, size: int) -> None:
    os.unlink(path)


def empty(path: str, size: int) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("damage", [cut, zero, remove, empty])
@pytest.mark.parametrize("several", [False, True], ids=["one segment", "several segments"])
def test_a_damaged_tail_of_what_was_synced_is_refused_and_nothing_is_touched(
    tmp_path: Path, damage: Callable[[str, int], None], several: bool
) -> None:
    options = LogOptions(seal_bytes=600, seal_age_ns=1 << 60) if several else None
    stream = published(str(tmp_path), 30, 30, options)
    path = segment_files(str(tmp_path))[-1]
    assert stream.store.log.open_segment.count > 0, "its newest segment has messages"  # type: ignore[union-attr]
    damage(path, 150)
    left = {name: Path(tmp_path, "log", name).read_bytes() for name in os.listdir(tmp_path / "log")}
    for _ in range(2):
        with pytest.raises(LostEntries, match="entries through 30 were synced") as caught:
            MiniStream(str(tmp_path), options, alone=True)
        assert str(tmp_path / synced.NAME) in str(caught.value)
        assert f"{caught.value.file}: damaged at offset {caught.value.offset}" in str(caught.value)
    assert left == {name: Path(tmp_path, "log", name).read_bytes() for name in os.listdir(tmp_path / "log")}


def test_without_the_mark_lost_entries_are_truncated_and_reported(tmp_path: Path) -> None:
    published(str(tmp_path), 30, 30)
    path = segment_files(str(tmp_path))[0]
    size = os.path.getsize(path)
    cut(path, 10)
    with pytest.raises(LostEntries):
        MiniStream(str(tmp_path), alone=True)
    os.unlink(tmp_path / synced.NAME)
    again = MiniStream(str(tmp_path), alone=True)
    assert again.store.last_seq == 29
    end = again.store.log.open_segment.end  # type: ignore[union-attr]
    (note,) = again.store.notes
    assert note.startswith(f"cut {size - 10 - end} bytes at offset {end} of {path}: ")


@pytest.mark.parametrize("damage", [cut, zero])
def test_a_damaged_tail_that_may_be_a_torn_write_is_truncated_and_reported(
    tmp_path: Path, damage: Callable[[str, int], None]
) -> None:
    published(str(tmp_path), 30, 29)
    path = segment_files(str(tmp_path))[0]
    damage(path, 9)
    again = MiniStream(str(tmp_path), alone=True)
    assert again.store.last_seq == 29
    (note,) = again.store.notes
    assert "bytes at offset" in note
    assert path in note


def test_a_segment_whose_creation_was_interrupted_is_created_again_and_reported(tmp_path: Path) -> None:
    options = LogOptions(seal_bytes=600, seal_age_ns=1 << 60)
    stream = MiniStream(str(tmp_path), options, alone=True)
    while len(segment_files(str(tmp_path))) < 3:
        stream.publish(message(stream.store.last_seq + 1))
        newest = stream.store.last_seq - 1
    stream.store.log.mark()
    killed(stream)
    path = segment_files(str(tmp_path))[-1]
    os.unlink(tmp_path / synced.NAME)
    for content in (None, b"", b"LKSG"):
        os.unlink(path)
        if content is not None:
            Path(path).write_bytes(content)
        again = killed(MiniStream(str(tmp_path), options, alone=True))
        assert again.store.last_seq == newest
        (note,) = again.store.notes
        assert ("no segment follows" if content is None else "begun anew") in note


def test_a_clean_stop_notes_the_exact_end(tmp_path: Path) -> None:
    stream = MiniStream(str(tmp_path), alone=True)
    for number in range(1, 6):
        stream.publish(message(number))
    stream.store.close()
    assert MarkFile(QuickFiles(), str(tmp_path)).read().index == 5
    os.unlink(tmp_path / "checkpoint")  # whose loss would be detected too
    cut(segment_files(str(tmp_path))[0], 1)
    with pytest.raises(LostEntries):
        MiniStream(str(tmp_path), alone=True)


def test_the_mark_of_a_relaxed_log_claims_only_what_was_synced(tmp_path: Path) -> None:
    stream = MiniStream(str(tmp_path), LogOptions(seal_age_ns=1 << 60, sync_always=False), alone=True)
    stream.publish(message(1))
    stream.store.log.mark()
    assert not stream.store.log.mark_due
    assert not (tmp_path / synced.NAME).exists()
    stream.group.sync()
    stream.publish(message(2))
    assert stream.store.log.mark_due
    stream.store.log.mark()
    assert MarkFile(QuickFiles(), str(tmp_path)).read().index == 1
    stream.store.log.relax()  # type: ignore[union-attr]
    stream.group.sync()
    killed(stream)
    cut(segment_files(str(tmp_path))[0], 1)
    assert MiniStream(str(tmp_path), alone=True).store.last_seq == 1


def test_a_write_whose_sync_failed_is_not_claimed(tmp_path: Path) -> None:
    files = FaultyFiles()
    stream = MiniStream(str(tmp_path), files=files, alone=True)
    stream.publish(message(1))
    files.fail = "sync"
    stream.publish(message(2))
    assert stream.failures
    files.fail = ""
    stream.store.close()
    assert MarkFile(QuickFiles(), str(tmp_path)).read().index == 1


def test_a_mark_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    files = FaultyFiles()
    stream = MiniStream(str(tmp_path), files=files, alone=True)
    for number in range(1, 5):
        stream.publish(message(number))
        files.fail = "write" if number % 2 else ""
        if files.fail:
            with pytest.raises(OSError, match="error"):
                stream.store.log.mark()
            assert stream.store.log.mark_due
            files.fail = ""
        stream.store.log.mark()
        assert MarkFile(QuickFiles(), str(tmp_path)).read() == SyncedMark(*stream.store.log.synced)  # type: ignore[union-attr]


def test_a_log_without_a_mark_opens_as_before(tmp_path: Path) -> None:
    stream = MiniStream(str(tmp_path))
    stream.publish(message(1))
    stream.store.close()
    assert not (tmp_path / synced.NAME).exists()
    again = MiniStream(str(tmp_path), alone=True)
    assert again.store.notes == []
    assert again.store.last_seq == 1


@pytest.mark.parametrize("content", [b"", b"garbage" * 100, None], ids=["empty", "garbage", "a directory"])
def test_a_damaged_mark_is_set_aside_and_the_stream_opens(tmp_path: Path, content: bytes | None) -> None:
    published(str(tmp_path), 5, 5)
    path = tmp_path / synced.NAME
    path.unlink()
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    again = MiniStream(str(tmp_path), alone=True)
    assert again.store.last_seq == 5
    (note,) = again.store.notes
    (aside,) = tmp_path.glob(f"{synced.NAME}.aside-*")
    assert str(path) in note
    assert str(aside) in note
    again.store.log.mark()
    assert MarkFile(QuickFiles(), str(tmp_path)).read().index == 5


def test_a_torn_slot_of_a_mark_leaves_the_one_before(tmp_path: Path) -> None:
    stream = MiniStream(str(tmp_path), alone=True)
    for number in (1, 2, 3):
        stream.publish(message(number))
        stream.store.log.mark()
    path = tmp_path / synced.NAME
    content = bytearray(path.read_bytes())
    for at, expected in ((0, 2), (synced.SLOT, 3)):  # the third one overwrites the first slot
        torn = bytearray(content)
        torn[at + 20] ^= 1
        path.write_bytes(torn)
        assert MarkFile(QuickFiles(), str(tmp_path)).read().index == expected


def test_a_member_of_a_group_forgets_the_mark_of_former_days(tmp_path: Path) -> None:
    published(str(tmp_path), 5, 5)
    open_store(str(tmp_path), MiniStream(str(tmp_path / "x")).io, files=QuickFiles(), durable_through=3).abandon()
    assert not (tmp_path / synced.NAME).exists()


def test_the_mark_of_a_removed_stream_is_not_written_into_its_successor(tmp_path: Path) -> None:
    stream = MiniStream(str(tmp_path / "S"), alone=True)
    for number in range(1, 5):
        stream.publish(message(number))
    stream.store.destroy()
    MiniStream(str(tmp_path / "S"), alone=True).publish(message(1))
    stream.store.log.mark()
    assert not (tmp_path / "S" / synced.NAME).exists()


# On a server


def marked(world: World) -> World:
    """Update the marks of a server; return it."""
    world.engines.start()
    world.clock.advance(MARK_NS)
    world.settle()
    return world


def kill(world: World) -> None:
    for stream in world.engines.streams():
        stream.store.log.marks = None  # type: ignore[union-attr]
        stream.store.abandon()
    world.stores.close()


def filled(directory: Path) -> World:
    world = World(directory, "A")
    for name in ("S", "OTHER"):
        world.create("A", name)
    for _ in range(10):
        assert "seq" in world.publish("A")
    return world


def newest(directory: Path) -> str:
    return segment_files(str(directory / "jetstream" / "A" / "streams" / "S"))[-1]


@pytest.mark.parametrize("damage", [cut, zero, remove, empty])
def test_a_server_refuses_the_damaged_stream_alone_and_gives_no_sequence_twice(
    tmp_path: Path, damage: Callable[[str, int], None]
) -> None:
    kill(marked(filled(tmp_path)))
    path = newest(tmp_path)
    damage(path, 40)
    for _ in range(2):
        world = World(tmp_path, "A")
        (line,) = world.log.errors
        assert line.startswith("stream S is offline: ")
        assert str(Path(path).parent) in line
        assert "remove " in line
        assert world.publish("A") is None
        assert world.publish("A", "OTHER")["seq"] > 0
        assert world.ask("A", "$JS.API.STREAM.INFO.S")["error"]["err_code"] == 10194
        kill(world)


def test_a_server_tells_what_it_cut(tmp_path: Path) -> None:
    world = marked(filled(tmp_path))
    world.publish("A")
    kill(world)
    cut(newest(tmp_path), 3)
    world = World(tmp_path, "A")
    (line,) = world.log.warnings
    assert line.startswith("stream S: cut ")
    assert f" of {newest(tmp_path)}: " in line
    assert world.publish("A")["seq"] == 11
    kill(world)


def test_idle_streams_are_not_marked_again(tmp_path: Path) -> None:
    world = marked(filled(tmp_path))
    world.clock.advance(MARK_NS)
    assert not world.io.waiting
    world.publish("A")
    world.clock.advance(MARK_NS)
    assert len(world.io.waiting) == 1
    world.settle()
    kill(world)


def test_a_mark_that_cannot_be_written_is_reported_once(tmp_path: Path) -> None:
    world = filled(tmp_path)
    (tmp_path / "jetstream" / "A" / "streams" / "S" / f"{synced.NAME}.tmp").mkdir()
    marked(world)
    world.clock.advance(MARK_NS)
    world.settle()
    (line,) = world.log.warnings
    assert line.startswith("stream S: its synced mark cannot be written: ")
    assert not world.engines.of("A").streams["OTHER"].store.log.mark_due
    kill(world)


def test_a_store_that_ends_before_what_is_staged_is_frozen_before_it_serves(tmp_path: Path) -> None:
    world = World(tmp_path, "A", lake=True)
    world.create("A")
    world.publish("A")
    world.settle()
    stream = world.engines.of("A").streams["S"]
    older = tmp_path / "older"
    stream.store.checkpoint(stream.dump())
    world.settle()
    shutil.copytree(tmp_path / "jetstream", older)
    for _ in range(3):
        world.publish("A")
    stream.store.ask_seal()
    world.settle()
    world.keeper.when_staged(stream, lambda wrong: None)
    world.settle()
    assert staging.segments(paths.staging(str(tmp_path / "lake"), "S", stream.uid, "A"))
    kill(world)
    shutil.rmtree(tmp_path / "jetstream")
    shutil.move(older, tmp_path / "jetstream")
    again = World(tmp_path, "A", lake=True)
    assert isinstance(again.engines.of("A").streams["S"].failed, Exception), "before anything else has run"
    answer = again.publish("A")
    assert "older copy" in answer["error"]["description"]
    kill(again)


def test_a_lake_that_does_not_answer_keeps_no_stream_from_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lake that does not answer keeps no stream from serving (invariant 9).

    However many accounts there are, a start waits only once.
    """
    world = World(tmp_path, "A", "B", lake=True)
    for account in ("A", "B"):
        world.create(account)
    kill(world)
    answers = threading.Event()
    monkeypatch.setattr(keeper, "LOOK_SECONDS", 0.05)
    with monkeypatch.context() as patched:
        patched.setattr(TableFollower, "newest", lambda follower: answers.wait() and None)
        patched.setattr(Probe, "check", lambda probe: answers.wait() and None)
        again = World(tmp_path, "A", "B", lake=True)
    answers.set()
    assert [line.partition(":")[0] for line in again.log.warnings] == ["streams S"] * 2
    assert again.publish("A")["seq"] == again.publish("B")["seq"] == 1
    kill(again)


def test_what_a_checkpoint_knows_is_refused_with_what_it_says(tmp_path: Path) -> None:
    stream = MiniStream(str(tmp_path), alone=True)
    for number in range(1, 5):
        stream.publish(message(number))
    stream.store.close()
    os.truncate(segment_files(str(tmp_path))[0], HEADER_SIZE)
    with pytest.raises(CorruptLog, match="checkpoint is of entry 4"):
        MiniStream(str(tmp_path), alone=True)


class CountingFiles(QuickFiles):
    """Counts the files that recovery syncs."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[str] = []

    def sync_file(self, path: str) -> None:
        self.synced.append(path)
        super().sync_file(path)


@pytest.mark.parametrize("sealed", [False, True])
def test_only_a_log_that_was_not_stopped_cleanly_is_synced_by_the_next_start(tmp_path: Path, sealed: bool) -> None:
    seal = LogOptions(seal_bytes=100, seal_age_ns=1 << 60) if sealed else LogOptions(seal_age_ns=1 << 60)
    stream = MiniStream(str(tmp_path), seal, alone=True)
    stream.publish(message(1))
    killed(stream)
    files = CountingFiles()
    again = MiniStream(str(tmp_path), seal, files=files, alone=True)
    assert len(files.synced) == 1, "what it found may be in the page cache alone"
    assert segment_files(str(tmp_path))[-1:] == files.synced
    again.store.close()
    files = CountingFiles()
    last = MiniStream(str(tmp_path), seal, files=files, alone=True)
    assert files.synced == []
    assert last.store.last_seq == 1
