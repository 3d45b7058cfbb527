"""Tests of opening the log of an earlier process (invariant 3): torn tails are truncated, other damage is refused."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.log.format.errors import CorruptLog, StoreLocked, StoreVersionError
from lakestream.log.format.files import Files
from lakestream.log.format.record import Record
from lakestream.log.format.runs import joined
from lakestream.log.format.segment import HEADER_SIZE, TRAILER_SIZE, encode_trailer, read_footer
from lakestream.log.sealing.files import SealedFiles
from lakestream.log.sealing.keys import Keyring
from lakestream.log.store import checkpoint
from lakestream.log.store.root import StoreRoot
from lakestream.log.store.segment_log import LogOptions
from lakestream.log.store.segment_store import open_store
from tests.unit.logkit import MiniStream, Model, QuickFiles, close_all, flip, message, segment_files

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("closing")]


def three_writes(directory: str) -> tuple[MiniStream, list[int]]:
    """Write 2, 1 and 3 frames in three writes; return the file's length before each of them, and at the end."""
    stream = MiniStream(directory)
    ends = [stream.store.log.open_segment.end]  # type: ignore[union-attr]
    number = 1
    for frames in (2, 1, 3):
        proposals = []
        for _ in range(frames):
            proposals.append(stream.messages(number, message(number), message(number + 1)))
            number += 2
        stream.propose(proposals)
        ends.append(stream.store.log.open_segment.end)  # type: ignore[union-attr]
    return stream, ends


def damaged_copy(directory: Path, name: str, content: bytes) -> str:
    """Create a stream directory with only a first segment of this content."""
    target = directory / name
    (target / "log").mkdir(parents=True)
    (target / "log" / f"{1:020d}.seg").write_bytes(content)
    return str(target)


def test_a_tail_torn_at_any_byte_keeps_every_earlier_write_and_invents_nothing(tmp_path: Path) -> None:
    stream, ends = three_writes(str(tmp_path / "whole"))
    everything = stream.all()
    content = Path(segment_files(str(tmp_path / "whole"))[0]).read_bytes()
    assert content[ends[-1] :] == bytes(len(content) - ends[-1])
    for kept in range(ends[2], ends[3]):
        zeros = (0, 20, 5000)[kept % 3]
        directory = damaged_copy(tmp_path, f"torn{kept}", content[:kept] + bytes(zeros))
        again = MiniStream(directory)
        found = again.all()
        assert found == everything[: len(found)]
        assert len(found) >= 6  # the frames of the first two writes
        assert len(found) < 12
        assert again.store.log.last_index == 3 + (len(found) - 6) // 2
        again.publish(message(100))
        assert MiniStream(directory).all() == again.all()
        shutil.rmtree(directory)


def test_a_write_whose_pages_came_out_of_order_is_cut(tmp_path: Path) -> None:
    """Any part of the last write may be missing: frames after a hole are of the same write, which is truncated."""
    stream, ends = three_writes(str(tmp_path / "whole"))
    everything = stream.all()
    content = Path(segment_files(str(tmp_path / "whole"))[0]).read_bytes()
    for hole in range(ends[2], ends[3], 7):
        size = min(20, ends[3] - hole)
        torn = content[:hole] + bytes(size) + content[hole + size :]
        if torn == content:
            continue
        found = MiniStream(damaged_copy(tmp_path, f"hole{hole}", torn)).all()
        assert 6 <= len(found) < 12
        assert found == everything[: len(found)]


def test_garbage_behind_the_last_write_is_cut_also_if_zeros_come_first(tmp_path: Path) -> None:
    stream, ends = three_writes(str(tmp_path / "whole"))
    everything = stream.all()
    content = Path(segment_files(str(tmp_path / "whole"))[0]).read_bytes()
    for name, rest in (("garbage", bytes(range(256)) * 9), ("magic", content[64:68] * 500), ("bit", b"\1" + bytes(30))):
        for zeros in (0, 1, 47, 5000):
            directory = damaged_copy(tmp_path, f"{name}{zeros}", content[: ends[-1]] + bytes(zeros) + rest)
            again = MiniStream(directory)
            assert again.all() == everything
            assert os.path.getsize(segment_files(directory)[0]) == ends[-1]
            assert f"cut {zeros + len(rest.rstrip(bytes(1)))} bytes" in again.store.log.notes[0]  # type: ignore[union-attr]


def test_a_flipped_bit_in_an_earlier_write_is_refused_with_file_and_offset(tmp_path: Path) -> None:
    _, ends = three_writes(str(tmp_path / "whole"))
    path = segment_files(str(tmp_path / "whole"))[0]
    content = Path(path).read_bytes()
    for at in range(ends[0], ends[2]):
        flipped = bytearray(content)
        flipped[at] ^= 1 << at % 8
        directory = damaged_copy(tmp_path, f"flip{at}", bytes(flipped))
        with pytest.raises(CorruptLog) as caught:
            MiniStream(directory)
        assert caught.value.file == segment_files(directory)[0]
        assert ends[0] <= caught.value.offset <= at < caught.value.offset + 400
        assert caught.value.file in str(caught.value)
        assert f"offset {caught.value.offset}" in str(caught.value)
        # Nothing was truncated: the file can still be repaired.
        assert Path(segment_files(directory)[0]).read_bytes() == bytes(flipped)
        shutil.rmtree(directory)


def test_a_flipped_bit_in_what_a_checkpoint_covers_is_refused_even_in_the_last_write(tmp_path: Path) -> None:
    stream, ends = three_writes(str(tmp_path))
    stream.store.close()
    flip(segment_files(str(tmp_path))[0], ends[2] + 60)
    with pytest.raises(CorruptLog) as caught:
        open_store(str(tmp_path), stream.io)
    assert caught.value.offset == ends[2]
    assert os.path.getsize(segment_files(str(tmp_path))[0]) == ends[3]  # nothing was truncated


def test_a_log_that_ends_before_its_checkpoint_is_refused(tmp_path: Path) -> None:
    stream, ends = three_writes(str(tmp_path))
    stream.store.close()
    os.truncate(segment_files(str(tmp_path))[0], ends[2])
    with pytest.raises(CorruptLog, match="checkpoint is of entry 6"):
        open_store(str(tmp_path), stream.io)


def test_a_damaged_header_is_refused_unless_the_segment_was_still_being_made(tmp_path: Path) -> None:
    stream, _ = three_writes(str(tmp_path / "whole"))
    content = Path(segment_files(str(tmp_path / "whole"))[0]).read_bytes()
    with pytest.raises(CorruptLog) as caught:
        MiniStream(damaged_copy(tmp_path, "damaged", b"X" + content[1:]))
    assert caught.value.offset == 0
    for kept in (0, 1, 40, HEADER_SIZE - 1):
        directory = damaged_copy(tmp_path, f"making{kept}", content[:kept])
        fresh = MiniStream(directory)
        fresh.publish(message(1))
        assert MiniStream(directory).all() == fresh.all() == stream.all()[:1]


def small(retain: int = 0) -> LogOptions:
    return LogOptions(seal_bytes=600, seal_age_ns=1 << 60, retain_bytes=retain)


def several_segments(directory: str) -> MiniStream:
    stream = MiniStream(directory, small())
    for number in range(1, 41):
        stream.publish(message(number))
        if number % 10 == 0:
            stream.operate("remove", number - 4)
    return stream


def test_a_flipped_bit_in_a_sealed_segment_is_refused_when_it_is_replayed(tmp_path: Path) -> None:
    several_segments(str(tmp_path / "whole"))
    names = [os.path.basename(path) for path in segment_files(str(tmp_path / "whole"))]
    assert len(names) > 4
    sealed = tmp_path / "whole" / "log" / names[1]
    size = sealed.stat().st_size
    for at in [*range(0, HEADER_SIZE - 24, 3), *range(HEADER_SIZE, size, 11), size - 1]:
        directory = tmp_path / f"flip{at}"
        shutil.copytree(tmp_path / "whole", directory)
        flip(str(directory / "log" / names[1]), at, at % 8)
        with pytest.raises(CorruptLog) as caught:
            MiniStream(str(directory), small()).all()
        assert caught.value.file == str(directory / "log" / names[1])
        shutil.rmtree(directory)


def test_a_flipped_bit_in_a_sealed_segment_is_found_by_reading_when_the_checkpoint_covers_it(tmp_path: Path) -> None:
    stream = several_segments(str(tmp_path))
    stream.store.close()
    path = segment_files(str(tmp_path))[1]
    again = MiniStream(str(tmp_path), small())
    assert again.replayed == 0
    _, tables, _ = read_footer(path)
    first = again.store.live.next_at_or_after(tables.runs.firsts[0])
    offset = tables.offsets[tables.row(first)]
    flip(path, offset + 40)
    with pytest.raises(CorruptLog) as caught:
        again.store.read(first)
    assert (caught.value.file, caught.value.offset) == (path, offset)
    with pytest.raises(CorruptLog) as caught:
        again.all()
    assert (caught.value.file, caught.value.offset) == (path, offset)


def test_a_sealed_segment_with_damaged_tables_is_refused_by_the_first_read(tmp_path: Path) -> None:
    stream = several_segments(str(tmp_path))
    stream.store.close()
    path = segment_files(str(tmp_path))[0]
    again = MiniStream(str(tmp_path), small())
    flip(path, again.store.log.segments[0].end + 1)  # type: ignore[union-attr]
    with pytest.raises(CorruptLog, match="tables"):
        again.store.read(1)


def test_a_missing_segment_is_refused(tmp_path: Path) -> None:
    several_segments(str(tmp_path))
    os.unlink(segment_files(str(tmp_path))[2])
    with pytest.raises(CorruptLog, match="is missing before it"):
        MiniStream(str(tmp_path), small())


def test_a_missing_first_segment_is_refused_although_a_checkpoint_covers_it(tmp_path: Path) -> None:
    """A missing first segment is refused unless an outline says that the lake has its messages."""
    stream = MiniStream(str(tmp_path), LogOptions(seal_bytes=300, seal_age_ns=1 << 60))
    for number in range(1, 12):
        stream.publish(message(number))
    stream.store.close()
    os.unlink(segment_files(str(tmp_path))[0])
    with pytest.raises(CorruptLog, match="begins with entry 1 is missing"):
        MiniStream(str(tmp_path))


def test_missing_first_segments_are_refused(tmp_path: Path) -> None:
    several_segments(str(tmp_path))
    os.unlink(segment_files(str(tmp_path))[0])
    with pytest.raises(CorruptLog, match="the log begins with entry"):
        MiniStream(str(tmp_path), small())


def test_a_stream_whose_segments_all_vanished_is_refused(tmp_path: Path) -> None:
    stream = several_segments(str(tmp_path))
    stream.store.close()
    for path in segment_files(str(tmp_path)):
        os.unlink(path)
    with pytest.raises(CorruptLog, match="are missing"):
        MiniStream(str(tmp_path), small())


class SnapshotFiles(QuickFiles):
    """Copies the whole directory before every durable step: each copy is what a kill at that moment leaves."""

    def __init__(self, directory: Path, target: Path) -> None:
        self.directory, self.target = directory, target
        self.copies: list[tuple[Path, int]] = []
        self.committed = lambda: 0

    def _copy(self) -> None:
        copy = self.target / f"{len(self.copies):04d}"
        shutil.copytree(self.directory, copy)
        self.copies.append((copy, self.committed()))

    def write(self, fd: int, buffers, offset: int) -> None:  # type: ignore[no-untyped-def]
        self._copy()
        whole = b"".join(buffers)
        super().write(fd, [whole[: len(whole) // 2]], offset)
        self._copy()
        super().write(fd, buffers, offset)

    def sync(self, fd: int) -> None:
        self._copy()
        super().sync(fd)

    def replace(self, source: str, target: str) -> None:
        self._copy()
        super().replace(source, target)

    def remove(self, path: str) -> None:
        self._copy()
        super().remove(path)


def test_a_kill_at_any_moment_recovers_everything_committed(tmp_path: Path) -> None:
    """After a kill at any moment all committed messages are recovered with the right indexes.

    Through appends, seals, checkpoints and drops.
    """
    home = tmp_path / "home"
    home.mkdir()
    files = SnapshotFiles(home, tmp_path / "kills")
    (tmp_path / "kills").mkdir()
    stream = MiniStream(str(home), small(), files)
    model = Model()
    models = [copy_of(model)]  # by index
    files.committed = lambda: stream.store.applied
    for number in range(1, 25):
        stream.publish(message(number))
        model.publish(message(number))
        models.append(copy_of(model))
        if number % 7 == 0:
            stream.operate("remove", number - 3)
            model.operate("remove", number - 3)
            models.append(copy_of(model))
        if number in (12, 20):
            stream.store.checkpoint(b"extra-%d" % number)
        if number in (14, 22):
            assert stream.store.drop_through(1 << 60)
    assert len(files.copies) > 100
    for directory, committed in files.copies:
        again = MiniStream(str(directory), small())
        index = again.store.applied
        assert committed <= index <= committed + 1, directory
        models[index].check(again.store, local=again.store.local_floor <= 1)
        again.publish(message(99))
        assert again.all()[-1] == Record(again.store.last_seq, again.store.last_time, *message(99))


def copy_of(model: Model) -> Model:
    made = Model()
    made.live, made.first_seq, made.last_seq = dict(model.live), model.first_seq, model.last_seq
    return made


batches = st.lists(
    st.one_of(
        st.lists(st.integers(0, 50).map(message), min_size=1, max_size=6),
        st.tuples(st.sampled_from(["remove", "remove_through", "set_first"]), st.integers(1, 40)),
        st.sampled_from(["checkpoint", "reopen", "close"]),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(batches)
def test_reopening_changes_nothing(tmp_path_factory: pytest.TempPathFactory, steps: list) -> None:  # type: ignore[type-arg]
    """A checkpoint with the log's tail gives the same state as a replay of everything, which is that of the model."""
    close_all()
    directory = str(tmp_path_factory.mktemp("stream"))
    stream, model = MiniStream(directory, small()), Model()
    for step in [*steps, "reopen"]:
        if isinstance(step, list):
            stream.publish(*step)
            model.publish(*step)
        elif isinstance(step, tuple):
            stream.operate(*step)
            model.operate(*step)
        elif step == "checkpoint":
            stream.store.checkpoint(b"x")
        else:
            if step == "close":
                stream.store.close(b"x")
            stream = MiniStream(directory, small())
        model.check(stream.store)
    before = stream.store
    if os.path.exists(os.path.join(directory, "checkpoint")):
        assert before.extra == b"x"
        os.unlink(os.path.join(directory, "checkpoint"))
    replayed = MiniStream(directory, small()).store
    model.check(replayed)
    gone, known = replayed.removals(), before.removals()
    assert (gone.index, gone.removed, gone.erased, gone.any) == (known.index, known.removed, known.erased, known.any)
    assert replayed.applied == before.applied
    assert replayed.sealed() == before.sealed()


@pytest.mark.parametrize(
    ("state", "subjects"),
    [
        (b"", b""),
        (b"\x01", b""),
        (b"\x81\xa3uid\xa1\xff", b""),
        (b"\x91" * 5000, b""),
        (None, b""),
        (None, b"\xff\xff\xff\x7f"),
        (None, b"\x01\x01\0\0\0"),
        (
            None,
            msgspec.msgpack.encode({"firsts": [b"x"], "lengths": b"\xff\xff\xff\x7f", "rows": bytes(4)})
            + b"\x25\0\0\0",
        ),
        (None, msgspec.msgpack.encode({"firsts": [], "lengths": b"\0", "rows": b""}) + b"\x18\0\0\0"),
    ],
)
def test_a_checkpoint_whose_checksum_is_right_and_content_wrong_is_refused(
    tmp_path: Path, state: bytes | None, subjects: bytes
) -> None:
    stream = MiniStream(str(tmp_path))
    stream.publish(message(1))
    stream.store.close(b"")
    path = tmp_path / checkpoint.NAME
    if state is None:
        length = int.from_bytes(path.read_bytes()[8:16], "little")
        state = path.read_bytes()[28 : 28 + length]
    head = struct.pack("<4sIQQI", b"LKCP", 3, len(state), len(subjects), crc32(subjects, crc32(state)))
    path.write_bytes(head + state + subjects)
    with pytest.raises(CorruptLog, match="content of the checkpoint makes no sense") as caught:
        checkpoint.read_checkpoint(QuickFiles(), str(path))
    assert caught.value.file == str(path)


@pytest.mark.parametrize("metadata", [b"", b"\x01", b"\x81\xa3uid\xa1\xff", b"\x91" * 5000])
def test_a_footer_whose_checksum_is_right_and_content_wrong_is_damaged(tmp_path: Path, metadata: bytes) -> None:
    stream = MiniStream(str(tmp_path), small())
    for number in range(30):
        stream.publish(message(number))
    sealed = Path(segment_files(str(tmp_path))[0])
    whole = sealed.read_bytes()
    tables_at, rows, length, tables_crc, _, _ = struct.unpack("<QIIII4s", whole[-TRAILER_SIZE:])
    trailer = encode_trailer(tables_at, rows, tables_crc, metadata)
    sealed.write_bytes(whole[: -TRAILER_SIZE - length] + metadata + trailer)
    with pytest.raises(CorruptLog, match="footer of this sealed segment is damaged"):
        read_footer(str(sealed))


def test_what_was_erased_is_read_from_a_checkpoint_of_an_earlier_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = MiniStream(str(tmp_path), small())
    stream.publish(*(message(number) for number in range(1, 10)))
    stream.store.close(b"x")
    files, path = QuickFiles(), str(tmp_path / checkpoint.NAME)
    found = checkpoint.read_checkpoint(files, path)
    assert found is not None
    earlier = msgspec.structs.replace(found[0], erased=[7, 2, 3])
    monkeypatch.setattr(checkpoint, "PLAIN_VERSION", 2)
    checkpoint.write_checkpoint(files, path, checkpoint.Snapshot(earlier, found[1].snapshot()))
    monkeypatch.undo()
    again = MiniStream(str(tmp_path), small()).store
    assert joined(again.removals().erased) == [(2, 3), (7, 7)]


def test_leftovers_of_unfinished_work_are_removed(tmp_path: Path) -> None:
    stream = several_segments(str(tmp_path))
    (tmp_path / "log" / "x.outline.tmp").write_bytes(b"half")
    again = MiniStream(str(tmp_path), small())
    assert again.all() == stream.all()
    assert not (tmp_path / "log" / "x.outline.tmp").exists()


# ---------------------------------------------------------------- the store's root
def test_an_encrypted_store_has_a_version_that_releases_without_encryption_refuse(tmp_path: Path) -> None:
    root = tmp_path / "jetstream"
    StoreRoot.open(str(root)).close()
    assert (root / "VERSION").read_text() == "1\n"
    StoreRoot.open(str(root), SealedFiles(Files(), str(root), Keyring(["key"]))).close()
    assert (root / "VERSION").read_text() == "2\n"
    StoreRoot.open(str(root)).close()  # one that was encrypted once stays so
    assert (root / "VERSION").read_text() == "2\n"


def test_a_newer_store_is_refused_with_what_to_do(tmp_path: Path) -> None:
    StoreRoot.open(str(tmp_path)).close()
    (tmp_path / "VERSION").write_text("5\n")
    with pytest.raises(StoreVersionError, match="run the newer release"):
        StoreRoot.open(str(tmp_path))
    (tmp_path / "VERSION").write_text("what\n")
    with pytest.raises(StoreVersionError, match="does not hold a number"):
        StoreRoot.open(str(tmp_path))
    (tmp_path / "VERSION").write_text("1\n")
    StoreRoot.open(str(tmp_path)).close()


def test_two_servers_cannot_share_a_store(tmp_path: Path) -> None:
    root = StoreRoot.open(str(tmp_path))
    with pytest.raises(StoreLocked, match="another server uses this store"):
        StoreRoot.open(str(tmp_path))
    root.close()
    StoreRoot.open(str(tmp_path)).close()


def test_streams_are_listed_and_deleted_ones_are_swept(tmp_path: Path) -> None:
    root = StoreRoot.open(str(tmp_path))
    for name in ("ORDERS", "KV_a"):
        MiniStream(root.stream_directory("$G", name)).publish(message(1))
    doomed = MiniStream(root.stream_directory("$G", "GONE"))
    doomed.publish(message(1))
    shutil.copytree(root.stream_directory("$G", "GONE"), root.stream_directory("$G", "OLD.deleted-5"))
    doomed.store.destroy()
    told: list[str] = []
    assert root.survey(Files(), told.append).streams == [("$G", "KV_a"), ("$G", "ORDERS")]
    assert told == []
    assert sorted(os.listdir(tmp_path / "$G" / "streams")) == ["KV_a", "ORDERS"]
    root.close()


def test_the_trailer_is_as_long_as_documented(tmp_path: Path) -> None:
    stream = several_segments(str(tmp_path))
    segment = stream.store.log.segments[0]  # type: ignore[union-attr]
    content = Path(segment.path).read_bytes()
    assert int.from_bytes(content[-TRAILER_SIZE : -TRAILER_SIZE + 8], "little") == segment.end


@pytest.mark.parametrize("how", ["remove", "remove_through", "sweep_through", "most"])
def test_a_removal_notices_the_damaged_subject_of_a_record(tmp_path: Path, how: str) -> None:
    """Subjects are read without the records' CRCs: a flipped bit must not make a removal forget another message."""
    stream = MiniStream(str(tmp_path), LogOptions(seal_bytes=900, seal_age_ns=1 << 60))
    for number in range(1, 301):
        subject = b"S.%d" % (number % 2 if how == "remove" else number)
        stream.propose([stream.messages(number, message(number, subject))])
    store, sealed = stream.store, stream.store.sealed()
    path, seq = (sealed[-1].path, sealed[-1].first_seq) if how == "most" else (sealed[0].path, 2)
    at = Path(path).read_bytes().index(b"S.%d" % (0 if how == "remove" else seq))
    flip(path, at + 2)
    removal: Callable[[int], object] = store.sweep_through if how == "most" else getattr(store, how)
    with pytest.raises(CorruptLog, match=path):
        removal(seq - 1 if how == "most" else seq if how == "remove" else seq + 2)


def test_a_damaged_version_of_a_checkpoint_names_the_file(tmp_path: Path) -> None:
    """The crc does not cover the version, and an older one is decoded differently."""
    stream = MiniStream(str(tmp_path))
    stream.propose([stream.messages(1, message(1))])
    stream.store.close()
    path = tmp_path / "checkpoint"
    content = bytearray(path.read_bytes())
    for version in set(range(256)) - {2, checkpoint.PLAIN_VERSION}:
        content[4] = version
        path.write_bytes(bytes(content))
        with pytest.raises((CorruptLog, StoreVersionError), match=str(path)):
            checkpoint.read_checkpoint(Files(), str(path))
