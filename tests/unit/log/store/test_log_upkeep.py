"""Tests of checkpoints, of segments released to the lake, and of clean stops."""

from __future__ import annotations

import gc
import os
import random
from pathlib import Path
from zlib import crc32

import msgspec
import pytest

from lakestream.log.format import outline as outline_module
from lakestream.log.format.errors import Compacted, CorruptLog, LogClosed, StoreVersionError
from lakestream.log.format.files import Files
from lakestream.log.format.record import record_length
from lakestream.log.store import segment_rows as rows_module
from lakestream.log.store import segment_store as upkeep_module
from lakestream.log.store.checkpoint import HEAD_SIZE, PLAIN_VERSION, VERSION
from lakestream.log.store.root import GONE
from lakestream.log.store.segment_log import LogOptions
from lakestream.log.store.segment_store import open_store
from lakestream.raft.group.group import Proposal
from tests.faults.files import FaultyFiles
from tests.unit.log.format.test_log_outline import write_old
from tests.unit.logkit import T0, HeldIo, MiniStream, Model, flip, message, segment_files

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("closing")]

SMALL = LogOptions(seal_bytes=600, seal_age_ns=1 << 60, retain_bytes=0)


def filled(directory: str, options: LogOptions = SMALL, count: int = 60) -> tuple[MiniStream, Model]:
    stream, model = MiniStream(directory, options), Model()
    for number in range(1, count + 1):
        stream.publish(message(number))
        model.publish(message(number))
        if number % 9 == 0:
            stream.operate("remove", number - 2)
            model.operate("remove", number - 2)
    return stream, model


def outlines(directory: Path) -> list[str]:
    return sorted(name for name in os.listdir(directory / "log") if name.endswith(".outline"))


# ---------------------------------------------------------------- releasing segments
def test_only_what_the_lake_and_the_checkpoint_hold_leaves(tmp_path: Path) -> None:
    stream, _ = filled(str(tmp_path))
    store = stream.store
    sealed = store.sealed()
    assert len(sealed) > 6
    assert store.drop_through(1 << 60) == []  # no checkpoint yet
    store.checkpoint(b"")
    assert store.drop_through(sealed[0].last_index - 1) == []
    assert store.drop_through(sealed[2].last_index) == sealed[:3]
    assert store.sealed() == sealed[3:]
    assert segment_files(str(tmp_path))[0] == sealed[3].path
    assert store.local_floor == sealed[3].first_seq
    assert store.drop_through(sealed[2].last_index) == []


def test_the_newest_segments_are_retained(tmp_path: Path) -> None:
    for name, options in (
        ("segments", LogOptions(seal_bytes=600, seal_age_ns=1 << 60, retain_segments=3)),
        ("bytes", LogOptions(seal_bytes=600, seal_age_ns=1 << 60, retain_bytes=5000)),
    ):
        stream, _ = filled(str(tmp_path / name), options)
        sealed = stream.store.sealed()
        stream.store.checkpoint(b"")
        stream.store.drop_through(1 << 60)
        kept = stream.store.sealed()
        assert 0 < len(kept) < len(sealed)
        assert kept == sealed[-len(kept) :]
        if name == "segments":
            assert len(kept) == 3
        else:
            assert sum(s.bytes for s in kept) <= 5000 < sum(s.bytes for s in sealed[-len(kept) - 1 :])


def test_what_has_left_is_still_known_exactly(tmp_path: Path) -> None:
    stream, model = filled(str(tmp_path))
    stream.store.checkpoint(b"")
    stream.store.drop_through(1 << 60)
    for stream in (stream, MiniStream(str(tmp_path), SMALL)):  # noqa: B020 - and again after a restart
        store = stream.store
        floor = store.local_floor
        assert 40 < floor < 60
        model.check(store, local=False)
        assert store.read(floor - 1) is None
        assert not store.is_local(1)
        assert store.read_run(1, 100, 1 << 20)[0].seq == store.live.next_at_or_after(floor)
        assert [store.first_at(T0 + seq) for seq in (0, 1, 20, 59)] == [1, 1, 20, 59]
        assert store.first_time == T0 + 1
    subject, header, data = message(20)
    assert stream.store.remove(20) == (subject, record_length(subject, header, data))
    model.operate("remove", 20)
    gone = stream.store.remove_through(50)
    assert gone == [(seq, model.live[seq].subject) for seq in sorted(model.live) if seq <= 50]
    model.operate("remove_through", 50)
    model.check(stream.store, local=False)


def test_rows_are_read_without_loading_outlines_for_a_few_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A get of any of 50 million messages loaded one of 381 outlines, for ten milliseconds in the event loop."""
    monkeypatch.setattr(rows_module, "ALONE", 4)
    stream, model = filled(str(tmp_path), count=400)
    stream.store.checkpoint(b"")
    stream.store.drop_through(1 << 60)
    store = MiniStream(str(tmp_path), SMALL).store
    (file,) = store._rows.outlines  # type: ignore[attr-defined]
    most = file.info.rows // 4
    seqs = random.Random(3).sample(store.live.members(1, 1000, store.local_floor - 1), most + 2)
    sizes = {seq: record_length(each.subject, each.header, each.data) for seq, each in model.live.items()}
    for seq in seqs[:most]:
        assert store.subject_of(seq) == model.live[seq].subject
        assert (store.size_of(seq), store.time_of(seq)) == (sizes[seq], model.live[seq].time_ns)
    some = sorted(seqs[most - 5 : most])
    assert store.subjects_of(some) == [model.live[seq].subject for seq in some]
    assert store.sizes_of(some) == [sizes[seq] for seq in some]
    assert file.outline is None
    assert store.subject_of(seqs[-2]) == model.live[seqs[-2]].subject
    assert file.outline is not None, "many are read at once"
    with pytest.raises(Compacted):
        store._rows.subjects([0])  # type: ignore[attr-defined]


def test_outlines_of_earlier_releases_get_an_index_by_and_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outline_module, "MERGE_ROWS", 8)
    monkeypatch.setattr(outline_module, "PRUNED_AT_ONCE", 2)
    stream, model = filled(str(tmp_path))
    stream.store.checkpoint(b"")
    stream.store.drop_through(stream.store.sealed()[-4].last_index)
    for path in [str(tmp_path / "log" / name) for name in outlines(tmp_path)]:
        info = outline_module.read_outline_info(Files(), path)
        write_old(Path(path), outline_module.read_outline(Files(), path), info)
    stream = MiniStream(str(tmp_path), SMALL)

    def lacking() -> int:
        return sum(not each.info.index_size for each in stream.store._rows.outlines)  # type: ignore[attr-defined]

    before = lacking()
    assert before > 3
    stream.store.checkpoint(b"")
    assert stream.store.drop_through(1 << 60)
    assert 0 < lacking() <= before - 2
    model.check(stream.store, local=False)
    model.check(MiniStream(str(tmp_path), SMALL).store, local=False)


def test_small_outlines_are_merged(tmp_path: Path) -> None:
    stream, model = filled(str(tmp_path))
    store = stream.store
    store.checkpoint(b"")
    for sealed in store.sealed():
        store.drop_through(sealed.last_index)
    assert len(outlines(tmp_path)) == 1
    model.check(store, local=False)
    model.check(MiniStream(str(tmp_path), SMALL).store, local=False)


def test_outlines_end_at_their_size_and_dead_ones_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outline_module, "MERGE_ROWS", 8)
    stream, model = filled(str(tmp_path))
    store = stream.store
    store.checkpoint(b"")
    store.drop_through(store.sealed()[-4].last_index)
    many = outlines(tmp_path)
    assert len(many) > 3
    model.check(store, local=False)
    stream.operate("remove_through", 30)
    model.operate("remove_through", 30)
    store.checkpoint(b"")
    store.drop_through(1 << 60)
    assert many[0] not in outlines(tmp_path)
    model.check(store, local=False)
    model.check(MiniStream(str(tmp_path), SMALL).store, local=False)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("operation", ["remove_through", "set_first"])
def test_outlines_of_what_was_removed_since_the_checkpoint_stay_for_the_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, killed: bool
) -> None:
    monkeypatch.setattr(outline_module, "MERGE_ROWS", 8)
    options = LogOptions(seal_bytes=600, seal_age_ns=1 << 60, retain_segments=3)
    stream, model = filled(str(tmp_path), options)
    store = stream.store
    store.checkpoint(b"")
    store.drop_through(1 << 60)
    many = outlines(tmp_path)
    assert len(many) > 3
    for target in (stream, model):
        target.operate(operation, 30)
        for number in range(61, 81):
            target.publish(message(number))
    if killed:
        stream = MiniStream(str(tmp_path), options)
    assert stream.store.drop_through(1 << 60)
    assert outlines(tmp_path)[: len(many) - 1] == many[:-1]
    stream = MiniStream(str(tmp_path), SMALL)
    model.check(stream.store, local=False)
    stream.store.checkpoint(b"")
    stream.publish(message(81))
    stream.store.drop_through(1 << 60)
    assert many[0] not in outlines(tmp_path)


def rows_of(directory: Path) -> int:
    """Return the rows of all outlines in a stream's log."""
    paths = [str(directory / "log" / name) for name in outlines(directory)]
    return sum(outline_module.read_outline_info(Files(), path).rows for path in paths)


@pytest.mark.parametrize("merged", [8, 1 << 17])
@pytest.mark.parametrize("restarted", [False, True])
def test_one_message_that_stays_does_not_keep_the_rows_of_all_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarted: bool, merged: int
) -> None:
    """A bucket with a key that is never written again, and others that are overwritten."""
    monkeypatch.setattr(outline_module, "MERGE_ROWS", merged)
    monkeypatch.setattr(outline_module, "PRUNE_ROWS", 4)
    stream, model = MiniStream(str(tmp_path), SMALL), Model()
    for number in range(1, 201):
        for target in (stream, model):
            target.publish(message(number))
            if number > 5:
                target.operate("remove", number - 3)
        if number % 20 == 0:
            stream.store.checkpoint(b"")
            stream.store.drop_through(1 << 60)
            if restarted:
                stream = MiniStream(str(tmp_path), SMALL)
            model.check(stream.store, local=False)
    assert rows_of(tmp_path) < 40
    model.check(MiniStream(str(tmp_path), SMALL).store, local=False)


def test_rows_of_what_was_removed_since_the_checkpoint_stay_for_the_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outline_module, "MERGE_ROWS", 8)
    monkeypatch.setattr(outline_module, "PRUNE_ROWS", 4)
    options = LogOptions(seal_bytes=600, seal_age_ns=1 << 60, retain_segments=3)
    stream, model = filled(str(tmp_path), options)
    stream.store.checkpoint(b"")
    for target in (stream, model):
        for seq in range(2, 40):
            target.operate("remove", seq)
    assert stream.store.drop_through(1 << 60)
    assert rows_of(tmp_path) > 30
    stream = MiniStream(str(tmp_path), options)  # killed: the removals are repeated
    model.check(stream.store, local=False)
    stream.store.checkpoint(b"")
    for target in (stream, model):
        for number in range(61, 81):
            target.publish(message(number))
    assert stream.store.drop_through(1 << 60)
    assert rows_of(tmp_path) < 30
    model.check(MiniStream(str(tmp_path), options).store, local=False)


def test_a_purge_beyond_all_that_has_left_keeps_the_newest_outline(tmp_path: Path) -> None:
    stream, model = filled(str(tmp_path))
    stream.store.checkpoint(b"")
    stream.store.drop_through(1 << 60)
    for target in (stream, model):
        target.operate("set_first", 1000)
        target.publish(message(1))
    model.check(stream.store)
    again = MiniStream(str(tmp_path), SMALL)
    model.check(again.store)
    assert len(outlines(tmp_path)) == 1


def test_segments_whose_removal_was_interrupted_are_removed_by_recovery(tmp_path: Path) -> None:
    stream, model = filled(str(tmp_path))
    paths = segment_files(str(tmp_path))
    kept = {path: Path(path).read_bytes() for path in paths}
    stream.store.checkpoint(b"")
    leaving = stream.store.drop_through(1 << 60)
    for sealed in leaving[1:3]:
        Path(sealed.path).write_bytes(kept[sealed.path])
    again = MiniStream(str(tmp_path), SMALL)
    model.check(again.store, local=False)
    assert not set(segment_files(str(tmp_path))) & {sealed.path for sealed in leaving}


def test_messages_stay_readable_until_the_drop_is_done(tmp_path: Path) -> None:
    io = HeldIo()
    stream, model = filled(str(tmp_path))
    stream.store.io = io
    stream.store.checkpoint(b"")
    io.run_all()
    leaving = stream.store.drop_through(1 << 60)
    assert leaving
    outlined = io.run()
    model.check(stream.store)  # written, but the event loop has not been notified
    assert stream.store.drop_through(1 << 60) == []  # one at a time
    outlined()
    floor = stream.store.local_floor
    assert floor == leaving[-1].last_seq + 1
    io.run_all()
    model.check(stream.store, local=False)
    assert not os.path.exists(leaving[0].path)


def test_a_damaged_outline_is_refused_with_file_and_offset(tmp_path: Path) -> None:
    stream, _ = filled(str(tmp_path))
    stream.store.checkpoint(b"")
    stream.store.drop_through(1 << 60)
    path = str(tmp_path / "log" / outlines(tmp_path)[0])
    flip(path, 200)
    again = MiniStream(str(tmp_path), SMALL)
    with pytest.raises(CorruptLog) as caught:
        again.store.subject_of(1)
    assert caught.value.file == path
    flip(path, 21)
    with pytest.raises(CorruptLog, match="head of the outline"):
        MiniStream(str(tmp_path), SMALL)


# ---------------------------------------------------------------- checkpoints
def test_a_checkpoint_becomes_due_by_bytes_and_by_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep_module, "CHECKPOINT_BYTES", 5000)
    stream = MiniStream(str(tmp_path / "bytes"))
    while stream.store.log.appended_bytes < 5000:
        assert not stream.store.checkpoint_due
        stream.publish(message(39))
    assert stream.store.checkpoint_due
    again = MiniStream(str(tmp_path / "bytes"))
    assert again.store.checkpoint_due  # the replayed bytes count
    again.store.checkpoint(b"x" * 5000)
    assert not again.store.checkpoint_due
    logged = again.store.log.appended_bytes
    while again.store.log.appended_bytes < logged + 6000:
        again.publish(message(39))
    assert not again.store.checkpoint_due  # the last one was large: four times its size has to be logged first
    monkeypatch.setattr(upkeep_module, "CHECKPOINT_SEGMENTS", 4)
    monkeypatch.setattr(upkeep_module, "CHECKPOINT_BYTES", 1 << 40)
    stream, _ = filled(str(tmp_path / "segments"), count=10)
    assert not stream.store.checkpoint_due
    stream, _ = filled(str(tmp_path / "more"), count=60)
    assert stream.store.checkpoint_due


def test_the_state_is_copied_at_once_and_written_later(tmp_path: Path) -> None:
    io = HeldIo()
    stream = MiniStream(str(tmp_path), io=io)
    for number in (1, 2):
        stream.publish(message(number))
        io.run_all()
    stream.store.checkpoint(b"at two")
    assert not stream.store.checkpoint_due
    stream.publish(message(3))
    io.waiting.reverse()  # the write of the third message overtakes the checkpoint
    io.run()()
    stream.store.remove(1)
    io.run()()
    assert stream.store.checkpoint_index == 2
    again = MiniStream(str(tmp_path))
    assert (again.replayed, again.store.extra) == (1, b"at two")
    assert [record.seq for record in again.all()] == [1, 2, 3]  # the removal was never logged


@pytest.mark.parametrize("offset", [0, 9, 20, 60, -1])
def test_a_damaged_checkpoint_is_refused_and_can_be_rebuilt(tmp_path: Path, offset: int) -> None:
    stream, model = filled(str(tmp_path))
    stream.store.close(b"extra")
    path = str(tmp_path / "checkpoint")
    flip(path, offset % os.path.getsize(path))
    with pytest.raises(CorruptLog, match="remove the checkpoint") as caught:
        MiniStream(str(tmp_path), SMALL)
    assert caught.value.file == path
    os.unlink(path)
    model.check(MiniStream(str(tmp_path), SMALL).store)


@pytest.mark.parametrize("fail", ["write", "sync", "replace"])
def test_a_checkpoint_that_could_not_be_written_leaves_nothing(tmp_path: Path, fail: str) -> None:
    files = FaultyFiles()
    stream = MiniStream(str(tmp_path), SMALL, files)
    stream.publish(message(1))
    stream.store.log.sync()
    errors: list[BaseException | None] = []
    files.fail = fail
    stream.store.checkpoint(b"", errors.append)
    assert isinstance(errors[0], OSError)
    assert sorted(os.listdir(tmp_path)) == ["log"]


def test_what_a_kill_leaves_of_a_checkpoint_is_removed_by_recovery(tmp_path: Path) -> None:
    _, model = filled(str(tmp_path))
    (tmp_path / "checkpoint.tmp").write_bytes(b"LKCP")
    model.check(MiniStream(str(tmp_path), SMALL).store)
    assert sorted(os.listdir(tmp_path)) == ["log"]


def test_a_checkpoint_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    stream, _ = filled(str(tmp_path))
    stream.store.close()
    path = tmp_path / "checkpoint"
    content = path.read_bytes()
    head, rest = content[:HEAD_SIZE], content[HEAD_SIZE:]
    newer = rest.replace(b"\xa7version" + bytes([PLAIN_VERSION]), b"\xa7version" + bytes([VERSION + 1]))
    assert newer != rest
    path.write_bytes(
        head[:4] + (VERSION + 1).to_bytes(4, "little") + head[8:-4] + crc32(newer).to_bytes(4, "little") + newer
    )
    with pytest.raises(StoreVersionError, match="run a newer lakestream"):
        MiniStream(str(tmp_path), SMALL)


def test_it_remembers_whose_log_it_is(tmp_path: Path) -> None:
    stream, _ = filled(str(tmp_path))
    stream.store.close(b"extra")

    store = open_store(str(tmp_path), stream.io)
    assert (store.uid, store.stream, store.account) == ("uid-1", "ORDERS", "$G")
    assert (store.config, store.extra) == (b'{"name":"ORDERS"}', b"extra")


# ---------------------------------------------------------------- stop
def test_a_clean_end_leaves_nothing_to_replay(tmp_path: Path) -> None:
    stream, model = filled(str(tmp_path))
    stream.store.close(b"extra")
    stream.store.close(b"again")
    assert stream.store.log.sealed
    again = MiniStream(str(tmp_path), SMALL)
    assert (again.replayed, again.store.extra) == (0, b"extra")
    model.check(again.store)
    stream.publish(message(1))
    assert isinstance(stream.failures[0], LogClosed)


def test_closing_without_anything_new_keeps_the_checkpoint(tmp_path: Path) -> None:
    stream, _ = filled(str(tmp_path))
    stream.store.close(b"first")
    before = os.stat(tmp_path / "checkpoint").st_mtime_ns
    MiniStream(str(tmp_path), SMALL).store.close(b"first")
    assert os.stat(tmp_path / "checkpoint").st_mtime_ns == before


def test_closing_with_news_of_the_consumers_alone_writes_another(tmp_path: Path) -> None:
    stream, _ = filled(str(tmp_path))
    stream.store.close(b"first")
    MiniStream(str(tmp_path), SMALL).store.close(b"second")
    again = MiniStream(str(tmp_path), SMALL)
    assert again.store.extra == b"second"
    again.store.close(b"second")


def test_closing_gives_back_every_descriptor(tmp_path: Path) -> None:
    _, model = filled(str(tmp_path))
    gc.collect()  # close the descriptors of other tests' stores now, not during the test
    before = len(os.listdir("/proc/self/fd"))
    again = MiniStream(str(tmp_path), SMALL)
    model.check(again.store)
    again.store.close()
    again.store._rows.cache.sweep()  # type: ignore[attr-defined]
    assert len(os.listdir("/proc/self/fd")) == before


def test_destroying_leaves_nothing_for_a_start_and_the_name_is_free_again(tmp_path: Path) -> None:
    stream, _ = filled(str(tmp_path / "streams" / "S"))
    left = stream.store.destroy()
    assert [str(tmp_path / "streams" / each) for each in os.listdir(tmp_path / "streams")] == [left]
    assert GONE in left
    assert stream.store.read(60) is None
    assert stream.store.read_run(1, 10, 1000) == []
    fresh = MiniStream(str(tmp_path / "streams" / "S"), SMALL)
    assert (fresh.replayed, fresh.store.msgs) == (0, 0)
    stream.store.destroy()  # once more, late: the successor is not affected
    fresh.publish(message(1))
    assert len(MiniStream(str(tmp_path / "streams" / "S"), SMALL).all()) == 1


def test_relaxed_writes_become_durable_by_sync(tmp_path: Path) -> None:
    files = FaultyFiles()
    stream = MiniStream(str(tmp_path), LogOptions(sync_always=False, seal_age_ns=1 << 60), files)
    syncs = files.calls["sync"]
    for number in range(1, 4):
        stream.publish(message(number))
    assert files.calls["sync"] == syncs
    assert stream.store.log.unsynced
    stream.group.sync()
    assert files.calls["sync"] == syncs + 1
    stream.group.sync()
    assert files.calls["sync"] == syncs + 1
    assert not stream.store.log.unsynced
    stream.publish(message(4))
    stream.store.checkpoint(b"")  # never ahead of the durable log
    assert files.calls["sync"] == syncs + 3


def test_relaxed_writes_after_the_last_sync_may_all_be_torn(tmp_path: Path) -> None:
    """Relaxed writes after the last sync may all be torn.

    Without a sync between them the disk may keep any of them: that is a torn tail, not damage.
    """
    options = LogOptions(sync_always=False, seal_age_ns=1 << 60)
    stream = MiniStream(str(tmp_path), options)
    stream.publish(message(1))
    stream.group.sync()
    end = stream.store.log.open_segment.end  # type: ignore[union-attr]
    stream.publish(message(2))
    stream.publish(message(3))
    flip(segment_files(str(tmp_path))[0], end + 70)
    assert [record.seq for record in MiniStream(str(tmp_path), options).all()] == [1]


def test_volatile_entries_wait_for_the_sync_of_the_next_write(tmp_path: Path) -> None:
    files = FaultyFiles()
    stream = MiniStream(str(tmp_path), LogOptions(seal_age_ns=1 << 60), files, alone=True)
    stream.publish(message(1))
    end = stream.store.log.open_segment.end  # type: ignore[union-attr]
    syncs = files.calls["sync"]
    stream.propose([volatile(stream), volatile(stream)])
    assert (files.calls["sync"], stream.store.log.unsynced) == (syncs, True)
    stream.propose([volatile(stream), stream.messages(2, message(2))])
    assert (files.calls["sync"], stream.store.log.unsynced) == (syncs + 1, False)
    stream.publish(message(3))
    flip(segment_files(str(tmp_path))[0], end + 70)
    with pytest.raises(CorruptLog):  # all of it was synced before message 3
        MiniStream(str(tmp_path), alone=True)


def test_volatile_entries_may_be_torn_with_the_write_behind_them(tmp_path: Path) -> None:
    """No ack has left before the sync that covers both, so this is a torn tail, not damage."""
    stream = MiniStream(str(tmp_path), alone=True)
    stream.publish(message(1))
    end = stream.store.log.open_segment.end  # type: ignore[union-attr]
    stream.propose([volatile(stream)])
    stream.publish(message(2))
    flip(segment_files(str(tmp_path))[0], end + 70)
    assert [record.seq for record in MiniStream(str(tmp_path)).all()] == [1]


def volatile(stream: MiniStream) -> Proposal:
    """Return an entry that changes nothing, and need not outlive a loss of power."""
    return msgspec.structs.replace(stream.operation("remove", 10_000), volatile=True)


def test_segments_without_messages_leave_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outline_module, "MERGE_ROWS", 4)  # so that some outlines consist of such segments only
    stream, model = filled(str(tmp_path), count=20)
    for _ in range(60):
        stream.operate("remove", 10_000)  # as the progress of consumers: entries without messages
    for number in range(21, 41):
        stream.publish(message(number))
        model.publish(message(number))
    store = stream.store
    sealed = store.sealed()
    assert sum(each.first_seq > each.last_seq for each in sealed) > 4
    store.checkpoint(b"")
    store.drop_through(1 << 60)
    assert len(store.sealed()) <= 1
    assert len(segment_files(str(tmp_path))) <= 2
    for each in (stream, MiniStream(str(tmp_path), SMALL)):
        model.check(each.store, local=False)
        for seq in range(1, each.store.local_floor):
            if seq in each.store.live:
                assert each.store.subject_of(seq) == b"S.%d" % (seq % 5)
