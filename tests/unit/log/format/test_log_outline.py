"""Tests of outlines on disk: one row read without the others, and what earlier releases make of the file."""

from __future__ import annotations

import os
from array import array
from pathlib import Path
from zlib import crc32

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.log.format import outline as outline_module
from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.files import Files
from lakestream.log.format.outline import Outline, OutlineInfo, OutlineRow, read_outline, read_rows, write_outline

pytestmark = pytest.mark.unit

FILES = Files()
T0 = 1_700_000_000_000_000_000
HEAD = outline_module._HEAD


def made(runs: list[tuple[int, int]], names: list[bytes], holes: int = 7) -> Outline:
    """Return an outline of runs (gap before it, messages), in which every so manieth message is missing."""
    outline, seq = Outline(), 1
    outline.names = names
    for gap, count in runs:
        seq += gap
        outline.pad(outline.runs.extend(seq, count))
        for each in range(seq, seq + count):
            there = each % holes > 0
            outline.ids.append(each * 31 % len(names) if there else 0)
            outline.sizes.append(each % 5000 + 30 if there else 0)
            outline.times.append(T0 + each * 1000)
        seq += count
    return outline


def expected(outline: Outline, seq: int) -> OutlineRow | None:
    row = outline.row(seq)
    return None if row < 0 else OutlineRow(outline.names[outline.ids[row]], outline.sizes[row], outline.times[row])


def written(path: Path, outline: Outline) -> OutlineInfo:
    return write_outline(FILES, str(path), 1, 9, outline, outline.runs.next_seq)


def names_of(count: int, long: int) -> list[bytes]:
    return [b"s.%d.%s" % (number, b"x" * (long * (number % 3))) for number in range(count)]


@settings(max_examples=60, deadline=None)
@given(
    runs=st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 900)), min_size=1, max_size=5),
    count=st.sampled_from([1, 15, 16, 63, 64, 65, 128, 700]),
    long=st.sampled_from([0, 90, 200, 30_000]),
    data=st.data(),
)
def test_a_row_read_alone_is_that_of_the_whole(
    runs: list[tuple[int, int]], count: int, long: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "rows.outline"
    outline = made(runs, names_of(count, long if count < 20 else min(long, 200)))
    info = written(path, outline)
    assert outline_module.read_outline_info(FILES, str(path)) == info
    last = outline.runs.next_seq
    seqs = data.draw(st.lists(st.integers(0, last + 3), max_size=12))
    whole = read_outline(FILES, str(path))
    assert (list(whole.names), whole.runs.pairs()) == (outline.names, outline.runs.pairs())
    assert (whole.ids, whole.sizes, whole.times) == (outline.ids, outline.sizes, outline.times)
    assert read_rows(FILES, str(path), seqs) == [expected(whole, seq) for seq in seqs]


@pytest.mark.parametrize("rows", [1, 40, 5000])
def test_a_damaged_byte_is_found_by_the_rows_that_need_it(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "one.outline"
    outline = made([(3, rows)], names_of(rows, 3))
    written(path, outline)
    content, seqs = path.read_bytes(), [4, 3 + rows // 2, 3 + rows]
    wanted = [expected(outline, seq) for seq in seqs]
    refused = 0
    for at in range(0, len(content), max(1, len(content) // 700)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
        try:
            assert read_rows(FILES, str(path), seqs) == wanted
        except CorruptLog as error:
            refused += error.file == str(path)
    assert refused > 30
    for length in (0, 10, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(CorruptLog):
            read_rows(FILES, str(path), seqs)


class _Info(msgspec.Struct):
    """`OutlineInfo` of release 0.1.0."""

    first_index: int
    last_index: int
    first_seq: int
    last_seq: int
    last_time: int
    rows: int


class _Content(msgspec.Struct):
    """The content of an outline in release 0.1.0."""

    runs: list[tuple[int, int]]
    names: list[bytes]
    ids: bytes
    sizes: bytes
    times: bytes


def write_old(path: Path, outline: Outline, info: OutlineInfo) -> None:
    """Write an outline as release 0.1.0 does."""
    columns = (outline.ids, outline.sizes, outline.times)
    pairs, texts = outline.runs.pairs(), outline.names[:]
    content = msgspec.msgpack.encode(_Content(pairs, texts, *(column.tobytes() for column in columns)))
    values = (info.first_index, info.last_index, info.first_seq, info.last_seq, info.last_time, info.rows)
    head = msgspec.msgpack.encode(_Info(*values))
    path.write_bytes(HEAD.pack(b"LKOL", 1, len(head), crc32(head), crc32(content)) + head + content)


def test_release_0_1_0_reads_an_outline_with_an_index(tmp_path: Path) -> None:
    """Replicas of mixed releases fetch outlines from each other."""
    path = tmp_path / "new.outline"
    outline = made([(0, 300), (5000, 20)], names_of(70, 100))
    info = written(path, outline)
    data = path.read_bytes()
    magic, version, length, head_crc, crc = HEAD.unpack_from(data)
    head, content = data[HEAD.size : HEAD.size + length], data[HEAD.size + length :]
    assert (magic, version) == (b"LKOL", 1)
    assert HEAD.size + length <= 256, "as much as 0.1.0 reads of it"
    assert (crc32(head), crc32(content)) == (head_crc, crc)
    assert msgspec.msgpack.decode(head, type=_Info).rows == info.rows
    old = msgspec.msgpack.decode(content, type=_Content)
    assert (old.runs, old.names) == (outline.runs.pairs(), outline.names)
    assert (array("I", old.ids), array("I", old.sizes), array("q", old.times)) == (
        outline.ids,
        outline.sizes,
        outline.times,
    )


def test_an_outline_without_an_index_is_read_whole(tmp_path: Path) -> None:
    outline = made([(0, 300)], names_of(70, 1))
    info = written(tmp_path / "new.outline", outline)
    write_old(tmp_path / "old.outline", outline, info)
    assert os.path.getsize(tmp_path / "old.outline") < os.path.getsize(tmp_path / "new.outline")
    assert outline_module.read_outline_info(FILES, str(tmp_path / "old.outline")).index_size == 0
    whole = read_outline(FILES, str(tmp_path / "old.outline"))
    assert [expected(whole, seq) for seq in range(310)] == [expected(outline, seq) for seq in range(310)]
