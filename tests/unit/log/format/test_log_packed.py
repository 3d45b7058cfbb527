"""Tests of compressed segments: every reader gets the same data as from plain ones, and damage is detected."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from lakestream.lake.staging import quarantine, staging
from lakestream.lake.staging.staging import StreamIdentity
from lakestream.lake.storage import lake as lakes
from lakestream.lake.table import segments
from lakestream.log.format import packed
from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.files import Files
from lakestream.log.format.packed import BLOCK_BYTES, PackedView, is_packed_file, pack, read_plain
from lakestream.log.format.segment import read_footer
from lakestream.log.store.repair import salvage, verify
from lakestream.log.store.segment_log import LogOptions
from tests.faults.files import FaultyFiles
from tests.unit.log.store.test_log_shred import Stream, secret
from tests.unit.logkit import Clock, MiniStream, flip, message, segment_files

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("closing")]

FILES = Files()
OPTIONS = LogOptions(seal_age_ns=1 << 60, retain_bytes=0)


def filled(directory: Path, packing: bool = True, messages: int = 6000) -> Stream:
    """Return a stream with one sealed segment of several blocks and an open one after it."""
    stream = Stream(str(directory), OPTIONS, now=Clock())
    stream.store.log.packing = packing
    for start in range(1, messages, 300):
        stream.publish(*[message(number, b"S.%d" % (number % 7)) for number in range(start, start + 300)])
    stream.operate("remove", 17)
    stream.store.ask_seal()
    stream.publish(secret(1), secret(2))
    return stream


def sealed(directory: Path) -> str:
    return segment_files(str(directory))[0]


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    stream = filled(tmp_path / "plain", packing=False)
    stream.store.checkpoint(b"")
    return tmp_path / "plain"


def test_the_file_is_shorter_and_unpacks_to_the_same_bytes(plain: Path) -> None:
    path = sealed(plain)
    with open(path, "rb") as file:
        before = file.read()
    assert len(before) > 2 * BLOCK_BYTES
    footer = read_footer(path)
    size = pack(FILES, path)
    assert size == os.path.getsize(path) < len(before) / 2
    assert is_packed_file(FILES, path)
    assert read_plain(FILES, path) == before
    again = read_footer(path)
    assert (again[0], again[2]) == (footer[0], footer[2])
    assert (again[1].offsets, again[1].lengths) == (footer[1].offsets, footer[1].lengths)
    assert verify(FILES, path)[1] == footer[0]
    assert pack(FILES, path) == 0, "once is enough"


def test_every_read_is_as_from_a_plain_file(plain: Path) -> None:
    path, dice = sealed(plain), random.Random(3)
    with open(path, "rb") as file:
        before = file.read()
    end = read_footer(path)[2]
    pack(FILES, path)
    fd = FILES.open(path)
    before = FILES.read_at(fd, 64, 0) + before[64:]  # the version differs
    view = PackedView(FILES, fd, path)
    places = [
        (0, 64),
        (0, 100),
        (10, 20),
        (64, 1),
        (64, BLOCK_BYTES),
        (64 + BLOCK_BYTES - 1, 2),
        (end - 5, 50),
        (end, 1),
    ]
    places += [(dice.randrange(end), dice.randrange(1, 3 * BLOCK_BYTES)) for _ in range(100)]
    for offset, length in places:
        assert view.read_at(length, offset) == before[offset : min(offset + length, end)], (offset, length)
    FILES.close(fd)


def test_a_stream_reads_recovers_and_lets_go_as_ever(tmp_path: Path) -> None:
    ours, theirs = filled(tmp_path / "packed"), filled(tmp_path / "plain", packing=False)
    path = sealed(tmp_path / "packed")
    assert is_packed_file(FILES, path)
    assert ours.store.sealed()[0].bytes == os.path.getsize(path) < theirs.store.sealed()[0].bytes / 2
    for again in (False, True, True):
        if again:
            ours = Stream(str(tmp_path / "packed"), OPTIONS, now=Clock())
        assert ours.all() == theirs.all()
        assert [ours.store.read(seq) for seq in (1, 17, 3000, 6001)] == [
            theirs.store.read(seq) for seq in (1, 17, 3000, 6001)
        ]
        assert ours.store.read_many([5, 900, 5999]) == theirs.store.read_many([5, 900, 5999])
        assert [ours.store.subject_of(seq) for seq in (3, 4000)] == [theirs.store.subject_of(seq) for seq in (3, 4000)]
        assert ours.store.first_at(theirs.store.time_of(2500) or 0) == 2500
        log, other = ours.store.log, theirs.store.log
        for first in (1, 7, 21):
            found, expected = log.entries(first, 50_000), other.entries(first, 50_000)  # type: ignore[union-attr]
            assert [frame.body for frame, _ in found] == [frame.body for frame, _ in expected]
        if again:
            ours.store.checkpoint(b"")
    assert [segment.first_seq for segment in ours.store.drop_through(1 << 60)] == [1]
    assert ours.store.subject_of(4000) == theirs.store.subject_of(4000), "its outline"


def test_what_does_not_shrink_stays_plain(tmp_path: Path) -> None:
    stream = MiniStream(str(tmp_path), OPTIONS, now=Clock())
    stream.store.log.packing = True
    stream.publish((b"s", b"", random.Random(1).randbytes(100_000)))
    stream.store.ask_seal()
    assert not is_packed_file(FILES, sealed(tmp_path))


def test_a_failure_leaves_the_plain_file_and_the_stream_goes_on(tmp_path: Path) -> None:
    for call in ("create", "replace"):
        files = FaultyFiles()
        directory = tmp_path / call
        stream = MiniStream(str(directory), OPTIONS, files=files, now=Clock())
        stream.store.log.packing = True
        stream.publish(*[message(number) for number in range(1, 300)])
        files.fail, files.after = call, 1 if call == "create" else 0  # the next segment is created first
        stream.store.ask_seal()
        files.fail = ""
        stream.publish(message(300))
        assert not stream.failures
        assert not is_packed_file(FILES, sealed(directory))
        assert len(MiniStream(str(directory), OPTIONS, now=Clock()).all()) == 300


def test_a_deleted_message_leaves_a_compressed_segment_too(tmp_path: Path) -> None:
    stream = filled(tmp_path / "s")
    stream.store.ask_seal()
    stream.operate("shred", 6001)
    path = segment_files(str(tmp_path / "s"))[1]
    before = stream.all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "WORTH", 9.0)  # a short segment
        pack(FILES, path)
        stream.store.log.packing = False
        while stream.store.shred():
            pass
        assert is_packed_file(FILES, path)
    content = read_plain(FILES, path)
    assert (b"secret-1." in content, b"secret-2." in content) == (False, True)
    assert stream.all() == before
    verify(FILES, path)


@pytest.mark.parametrize("at", [5, 70, 3000, -3000, -40, -10])
def test_invariant_3_damage_is_noticed(tmp_path: Path, at: int) -> None:
    filled(tmp_path / "s").store.checkpoint(b"")
    path = sealed(tmp_path / "s")
    flip(path, at % os.path.getsize(path), 3)
    told: list[CorruptLog] = []

    def read() -> None:
        stream = Stream(str(tmp_path / "s"), OPTIONS, now=Clock())
        stream.store.watch_damage(told.append)
        stream.all()

    with pytest.raises(CorruptLog) as caught:
        read()
    assert told in ([], [caught.value]), "on opening or on reading"
    assert told or not 64 <= at < 3000
    assert caught.value.file == path
    assert quarantine.is_sound(path) is False


def test_invariant_3_damage_that_comes_while_it_is_open_is_told(tmp_path: Path) -> None:
    stream = filled(tmp_path / "s")
    told: list[CorruptLog] = []
    stream.store.watch_damage(told.append)
    flip(sealed(tmp_path / "s"), os.path.getsize(sealed(tmp_path / "s")) - 10)
    with pytest.raises(CorruptLog):
        stream.all()
    assert len(told) == 1


def test_a_damaged_one_is_not_used_by_a_member_that_mends_its_log(tmp_path: Path) -> None:
    filled(tmp_path / "s")
    path = sealed(tmp_path / "s")
    flip(path, 70, 3)
    found = salvage(str(tmp_path / "s"), FILES)
    assert path in found.damage
    assert found.intact_through == 0
    filled(tmp_path / "whole")
    whole = salvage(str(tmp_path / "whole"), FILES)
    assert whole.damage == ""
    assert whole.intact_through > 20


def test_the_lake_takes_it_as_it_is(plain: Path, tmp_path: Path) -> None:
    path, copy = sealed(plain), tmp_path / "copy.seg"
    shutil.copy(path, copy)
    pack(FILES, path)
    rows = [batch.to_pydict() for batch in segments.decode(path)]
    assert rows == [batch.to_pydict() for batch in segments.decode(str(copy))]
    assert staging.footer(path) == staging.footer(str(copy))
    assert quarantine.is_sound(path)
    stream = StreamIdentity(name="ORDERS", account="$G", uid="U", created_ns=1)
    footer = read_footer(path)[0]
    lakes.require(str(tmp_path / "lake"), create=True)
    for each in (path, copy):  # two replicas stage the same entries
        staging.stage(each, footer.first_index, footer.last_index, stream, str(tmp_path / "lake"))


def test_a_segment_without_its_footer_is_not_taken_for_an_open_one(plain: Path) -> None:
    pack(FILES, sealed(plain))
    for later in segment_files(str(plain))[1:]:
        os.unlink(later)
    os.truncate(sealed(plain), os.path.getsize(sealed(plain)) - 1)
    size = os.path.getsize(sealed(plain))
    os.unlink(plain / "checkpoint")
    with pytest.raises(CorruptLog, match="footer"):
        MiniStream(str(plain), OPTIONS)
    assert os.path.getsize(sealed(plain)) == size
