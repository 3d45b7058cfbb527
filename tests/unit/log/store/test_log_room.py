"""Tests of the zeros behind the frames of an open segment: written by small appends, taken for room by recovery."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.files import UnsyncedFiles
from lakestream.log.format.frame import HEADER_SIZE as FRAME_HEADER
from lakestream.log.format.frame import Frame, Kind, decode_frame, encode_header
from lakestream.log.format.segment import Header, encode_segment_header, read_footer, segment_name
from lakestream.log.store.recovery import open_log
from lakestream.log.store.repair import salvage
from lakestream.log.store.segment_log import ROOM_APPEND_BYTES, ROOM_BYTES, LogOptions, SegmentLog
from tests.unit.logkit import Clock, MiniStream, QuickFiles, message, segment_files

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("closing")]

SALT = 0  # the salt that zeros would carry


def opened(directory: Path, options: LogOptions | None = None, durable_through: int = 0) -> SegmentLog:
    return open_log(str(directory), QuickFiles(), options or LogOptions(), Clock(), durable_through=durable_through)


def entry(index: int, size: int = 100, kind: Kind = Kind.NOOP) -> Frame:
    return Frame(kind, 1, index, 0, b"x" * size)


def length(log: SegmentLog) -> int:
    return os.path.getsize(log.open_segment.path)


def contents(log: SegmentLog) -> list[bytes]:
    return [frame.body for frame, _ in log.frames(1)]


def killed(log: SegmentLog, directory: Path) -> Path:
    """Copy the files of a log as a kill at this moment would leave them."""
    directory.mkdir()
    for segment in log.segments:
        (directory / os.path.basename(segment.path)).write_bytes(Path(segment.path).read_bytes())
    return directory


@pytest.mark.parametrize("size", [0, 1, FRAME_HEADER - 1, FRAME_HEADER, 5000])
def test_zeros_are_never_a_frame(size: int) -> None:
    assert isinstance(decode_frame(bytes(size), 0, size, SALT), str)


def test_small_appends_go_where_the_file_has_room(tmp_path: Path) -> None:
    """The file's length changes a few times only, and the room is never longer than what was written."""
    log = opened(tmp_path)
    lengths = set()
    for index in range(1, 20_001):
        log.append([entry(index)])
        lengths.add(length(log))
        room = length(log) - log.open_segment.end
        assert 0 <= room < min(log.open_segment.end, ROOM_BYTES) + 4096
    assert len(lengths) < 35
    assert len(contents(log)) == 20_000
    log.close()


def test_a_segment_of_one_small_append_has_no_room(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append([entry(1)])
    assert length(log) == log.open_segment.end
    log.append([entry(2)])
    assert length(log) == 4096
    log.close()


def test_large_appends_write_no_zeros_and_use_the_room_that_is_there(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append([entry(1), entry(2)])
    log.append([entry(3, ROOM_APPEND_BYTES)])
    assert length(log) == log.open_segment.end
    log.append([entry(4)])
    before = length(log)
    assert before > log.open_segment.end
    log.append([entry(5, ROOM_APPEND_BYTES)])
    assert length(log) == before or length(log) == log.open_segment.end
    assert [len(body) for body in contents(log)] == [100, 100, ROOM_APPEND_BYTES, 100, ROOM_APPEND_BYTES]
    log.close()


def test_a_log_that_does_not_sync_its_appends_has_no_room(tmp_path: Path) -> None:
    relaxed = opened(tmp_path / "relaxed", LogOptions(sync_always=False))
    unsynced = open_log(str(tmp_path / "memory"), UnsyncedFiles(), LogOptions(), Clock())
    for log in (relaxed, unsynced):
        for index in range(1, 10):
            log.append([entry(index)])
            assert length(log) == log.open_segment.end
        log.close()


def test_a_closed_log_has_no_room_and_a_killed_one_uses_its_own(tmp_path: Path) -> None:
    log = opened(tmp_path / "log")
    for index in range(1, 6):
        log.append([entry(index)])
    left = killed(log, tmp_path / "killed")
    log.close()
    assert length(log) == log.open_segment.end

    again = opened(left)
    assert (again.notes, again.last_index, length(again)) == ([], 5, 4096)
    again.append([entry(6)])
    assert length(again) == 4096
    assert opened(killed(again, tmp_path / "twice")).last_index == 6
    again.close()
    assert length(again) == again.open_segment.end


def test_a_sealed_segment_ends_with_its_footer(tmp_path: Path) -> None:
    stream = MiniStream(str(tmp_path), LogOptions(seal_bytes=3000, seal_age_ns=1 << 60))
    for number in range(1, 100):
        stream.publish(message(number))
    sealed = stream.store.log.segments[:-1]  # type: ignore[union-attr]
    assert len(sealed) >= 3
    for segment in sealed:
        assert os.path.getsize(segment.path) == segment.file_bytes
        footer, _, end = read_footer(segment.path)
        assert (footer.last_index, end) == (segment.last_index, segment.end)
    assert [record.seq for record in stream.all()] == list(range(1, 100))


def test_entries_that_are_cut_off_leave_no_bytes_behind(tmp_path: Path) -> None:
    log = opened(tmp_path / "log")
    for index in range(1, 10):
        log.append([entry(index)])
    log.truncate(4)
    assert length(log) == log.open_segment.end
    log.append([Frame(Kind.NOOP, 2, 5, 0, b"other")])
    content = Path(log.open_segment.path).read_bytes()
    assert content[log.open_segment.end :].count(0) == len(content) - log.open_segment.end > 0
    assert opened(killed(log, tmp_path / "killed")).last_index == 5
    log.close()


def test_a_salvage_takes_zeros_for_room_only_at_the_end_of_the_open_segment(tmp_path: Path) -> None:
    stream = MiniStream(str(tmp_path / "a"), LogOptions(seal_bytes=3000, seal_age_ns=1 << 60))
    for number in range(1, 60):
        stream.publish(message(number))
    stream.store.close()
    newest = Path(segment_files(str(tmp_path / "a"))[-1])
    with newest.open("ab") as file:
        file.write(bytes(1000))
    size = newest.stat().st_size
    found = salvage(str(tmp_path / "a"), QuickFiles())
    assert (found.intact_through, found.damage, newest.stat().st_size) == (59, "", size)
    with newest.open("ab") as file:
        file.write(b"x")
    assert f"{newest}: damaged at offset {size - 1000}" in salvage(str(tmp_path / "a"), QuickFiles()).damage
    assert newest.stat().st_size == size - 1000
    with open(segment_files(str(tmp_path / "a"))[0], "ab") as file:
        file.write(bytes(10))
    assert "no frame starts here" in salvage(str(tmp_path / "a"), QuickFiles()).damage


def test_zeros_behind_a_sealed_segment_are_damage(tmp_path: Path) -> None:
    stream = MiniStream(str(tmp_path), LogOptions(seal_bytes=3000, seal_age_ns=1 << 60))
    for number in range(1, 60):
        stream.publish(message(number))
    stream.store.close()
    with open(segment_files(str(tmp_path))[0], "ab") as file:
        file.write(bytes(10))
    with pytest.raises(CorruptLog, match="the footer of this sealed segment is damaged"):
        MiniStream(str(tmp_path))


bodies = st.one_of(
    st.binary(max_size=60),
    st.integers(0, 300).map(bytes),
    st.tuples(st.binary(max_size=20), st.integers(0, 100)).map(lambda pair: pair[0] + bytes(pair[1])),
)
writes = st.lists(st.lists(bodies, min_size=1, max_size=4), min_size=1, max_size=5)


@settings(max_examples=300, deadline=None)
@given(
    writes=writes,
    cut=st.floats(0, 1),
    zeros=st.integers(0, 9000),
    hole=st.integers(0, 60),
    salt=st.sampled_from([0, 7]),
)
def test_any_start_of_a_log_and_any_zeros_behind_it_recover_every_whole_frame(
    tmp_path_factory: pytest.TempPathFactory, writes: list[list[bytes]], cut: float, zeros: int, hole: int, salt: int
) -> None:
    """A power loss leaves the synced writes and a part of the last one, of which bytes may be missing."""
    content = encode_segment_header(Header(1, 1, 0, salt))
    expected, ends, synced, index = [], [len(content)], 0, 1
    for write in writes:
        first, synced = index, len(expected)
        for body in write:
            frame = Frame(Kind.NOOP, 1, index, 0, body)
            content += encode_header(frame, first, salt) + body
            expected.append(body)
            ends.append(len(content))
            index += 1
    kept = ends[synced] + round(cut * (len(content) - ends[synced]))
    start = max(ends[synced], kept - hole * 3)
    left = content[:start] + bytes(min(hole, kept - start)) + content[start + min(hole, kept - start) : kept]
    left += bytes(zeros)
    whole = max(number for number, end in enumerate(ends) if left[:end] == content[:end])
    directory = tmp_path_factory.mktemp("log")
    path = directory / segment_name(1)
    path.write_bytes(left)

    log = opened(directory, durable_through=synced)
    assert log.last_index == whole >= synced
    assert contents(log) == expected[:whole]
    torn = left[ends[whole] :].rstrip(b"\0")
    assert len(log.notes) == bool(torn)
    assert path.stat().st_size == (ends[whole] if torn else len(left))
    for number in range(whole + 1, whole + 4):
        log.append([entry(number)])
    (directory / "killed").mkdir()
    after = directory / "killed" / path.name
    after.write_bytes(path.read_bytes())
    log.close()
    for again in (opened(directory), opened(after.parent)):
        assert (again.last_index, again.notes[1:]) == (whole + 3, [])
        assert contents(again)[:whole] == expected[:whole]
        again.close()


@pytest.mark.parametrize("zeros", [0, 1, 48, 5000])
def test_a_later_write_behind_zeros_is_damage_and_not_room(tmp_path: Path, zeros: int) -> None:
    """Entry 2 was durable before the write of entry 3 began: zeros in its place hide an acked message."""
    first, third = Frame(Kind.NOOP, 1, 1, 0, b"one"), Frame(Kind.NOOP, 1, 3, 0, b"three")
    content = encode_segment_header(Header(1, 1, 0, SALT)) + encode_header(first, 1, SALT) + first.body
    later = encode_header(third, 3, SALT) + third.body
    path = tmp_path / segment_name(1)
    path.write_bytes(content + bytes(zeros) + later + bytes(100))
    with pytest.raises(CorruptLog) as caught:
        opened(tmp_path)
    assert (caught.value.file, caught.value.offset) == (str(path), len(content))
    assert path.read_bytes() == content + bytes(zeros) + later + bytes(100)


def test_zeros_in_place_of_a_durable_entry_are_damage(tmp_path: Path) -> None:
    log = opened(tmp_path / "log")
    for index in range(1, 6):
        log.append([entry(index)])
    left = killed(log, tmp_path / "killed") / segment_name(1)
    content = left.read_bytes()
    left.write_bytes(content[: log.open_segment.frame_offsets[4]].ljust(len(content), b"\0"))
    log.close()
    with pytest.raises(CorruptLog, match="ends before entry 5, which was durable"):
        opened(left.parent, durable_through=5)
    assert opened(left.parent, durable_through=4).last_index == 4
