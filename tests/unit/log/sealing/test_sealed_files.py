"""Sealed files: they read as what was written to them, and as nothing else.

Belongs here: the sealing layer against a model, over files that are torn, flipped, cut, moved and rolled back.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.files import Files, WriteRoom
from lakestream.log.sealing.content import CHUNK_BYTES, FILL, HEADER_SIZE, MAGIC, OVERHEAD, PAGE
from lakestream.log.sealing.files import SealedFiles
from lakestream.log.sealing.keys import COPY, Keyring, WrongKey
from lakestream.log.sealing.stores import SealedStore, rotate, sealed_store
from lakestream.log.store.journal import KEY, Journal
from lakestream.log.store.segment_log import LogOptions
from lakestream.log.store.segment_store import SegmentStore
from lakestream_verify.log.overlay import Overlay
from tests.unit.logkit import QuickFiles
from tests.unit.stream_world import World

KEYS = Keyring(["secret"])


def store(tmp_path: Path, keys: Keyring = KEYS) -> Files:
    return sealed_store(str(tmp_path / "store"), QuickFiles(), keys, lambda line: None)


def path_in(tmp_path: Path, name: str = "file") -> str:
    directory = tmp_path / "store" / "$G" / "streams" / "S" / "log"
    directory.mkdir(parents=True, exist_ok=True)
    return str(directory / name)


def reopened(files: Files) -> Files:
    """Return the same files, of another process."""
    assert isinstance(files, SealedFiles)
    return SealedFiles(files.inner, files._root, files.keys)


# ---------------------------------------------------------------------- a file is what was written
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 300), st.booleans()),
        st.tuples(
            st.just("append"), st.sampled_from([CHUNK_BYTES - 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 7]), st.just(False)
        ),
        st.tuples(st.just("write"), st.integers(0, 5000), st.integers(1, 300)),
        st.tuples(st.just("again"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("cut"), st.integers(0, 100_000), st.just(0)),
        st.tuples(st.just("reopen"), st.just(0), st.just(0)),
        st.tuples(st.just("read"), st.integers(0, 100_000), st.integers(0, 70_000)),
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(steps, st.sampled_from(["chachapoly", "aes"]))
@example([("write", 2, 1), ("cut", 2, 0), ("write", 0, 1), ("append", CHUNK_BYTES - 1, False)], "aes")
def test_a_sealed_file_reads_as_a_plain_one(tmp_path_factory: pytest.TempPathFactory, todo: list, cipher: str) -> None:
    tmp_path = tmp_path_factory.mktemp("model")
    files = store(tmp_path, Keyring(["secret"], cipher))
    path = path_in(tmp_path)
    fd, model, written = files.create(path), bytearray(), list[tuple[int, int]]()
    for number, (what, a, b) in enumerate(todo):
        if what == "append":
            data = bytes([number % 251 + 1]) * a
            files.write(fd, [data[: a // 2], data[a // 2 :], *([WriteRoom(500)] if b else [])], len(model))
            model += data
        elif what == "write" or (what == "again" and written):
            at, size = (a, b) if what == "write" else written[a % len(written)]
            data = os.urandom(size)
            files.write(fd, [data], at)
            model.extend(bytes(max(0, at + size - len(model))))
            model[at : at + size] = data
            written.append((at, size))
        elif what == "cut":
            length = a % (len(model) + 10)
            files.truncate(fd, length)
            model = model[:length].ljust(length, b"\0")
        elif what == "reopen":
            files.close(fd)
            files = reopened(files)
            fd = files.open(path, write=True)
        else:
            assert files.read_at(fd, b, a) == bytes(model[a : a + b])
        assert files.size(fd) == len(model)
    assert files.read_at(fd, len(model) + 10, 0) == bytes(model)
    files.close(fd)
    assert reopened(files).read(path) == bytes(model)
    assert reopened(files).length(path) == len(model)


def written_in_pieces(files: Files, path: str, pieces: list[bytes]) -> list[int]:
    """Write each piece by itself; return the length of the file on disk after each."""
    ends, at = [], 0
    fd = files.create(path)
    for piece in pieces:
        files.write(fd, [piece], at)
        at += len(piece)
        ends.append(os.path.getsize(path))
    files.close(fd)
    return ends


PIECES = [bytes([65 + number]) * (20 + 7 * number) for number in range(8)]


def is_known(content: bytes) -> bool:
    """Return True if a content is PIECES, with FILL in the place of some and perhaps cut behind one."""
    whole = b"".join(PIECES)
    return all(mine == FILL[0] or mine == theirs for mine, theirs in zip(content, whole, strict=False))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_flip_goes_unnoticed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    tmp_path = tmp_path_factory.mktemp("flip")
    files, path = store(tmp_path), path_in(tmp_path)
    end = written_in_pieces(files, path, PIECES)[-1]
    at, bit = data.draw(st.integers(0, end - 1)), data.draw(st.integers(0, 7))
    content = bytearray(Path(path).read_bytes())
    content[at] ^= 1 << bit
    Path(path).write_bytes(content)
    try:
        found = reopened(files).read(path)
    except CorruptLog:
        assert at < HEADER_SIZE, "only the header names the key"
        return
    if at >= HEADER_SIZE - 12:
        assert is_known(found)
    whole = b"".join(PIECES)
    if 52 <= at < HEADER_SIZE:
        assert FILL in found, "the header's last bytes are part of the key"
    else:
        assert found != whole
    assert FILL in found


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_torn_end_keeps_what_was_before_it(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    tmp_path = tmp_path_factory.mktemp("torn")
    files, path = store(tmp_path), path_in(tmp_path)
    ends = written_in_pieces(files, path, PIECES)
    cut = data.draw(st.integers(ends[-2], ends[-1] - 1))
    keep_zeros = data.draw(st.booleans())
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[:cut] + (bytes(len(content) - cut + 100) if keep_zeros else b""))
    files = reopened(files)
    before = b"".join(PIECES[:-1])
    fd = files.open(path, write=True)
    found = files.read_at(fd, 1 << 20, 0)
    assert found.startswith(before)
    assert set(found[len(before) :]) <= {FILL[0]}
    files.truncate(fd, len(before))
    files.write(fd, [b"again"], len(before))
    files.close(fd)
    assert reopened(files).read(path) == before + b"again"


@settings(max_examples=100, deadline=None)
@given(st.permutations(range(8)), st.integers(0, 8))
def test_chunks_that_were_moved_left_out_or_repeated_do_not_open(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], count: int
) -> None:
    tmp_path = tmp_path_factory.mktemp("moved")
    files, path = store(tmp_path), path_in(tmp_path)
    same = [bytes([65 + number]) * 40 for number in range(8)]
    ends = written_in_pieces(files, path, same)
    content = Path(path).read_bytes()
    chunks = [content[start:end] for start, end in zip([HEADER_SIZE, *ends], ends, strict=False)]
    Path(path).write_bytes(content[:HEADER_SIZE] + b"".join(chunks[each] for each in order[:count]))
    found = reopened(files).read(path)
    whole = b"".join(same)
    assert all(mine in (FILL[0], theirs) for mine, theirs in zip(found, whole, strict=False))
    kept = [number for number in range(count) if order[number] == number]
    assert sum(each != FILL[0] for each in found) <= 40 * len(kept)


def test_a_chunk_of_before_a_cut_does_not_open_in_the_place_of_a_later_one(tmp_path: Path) -> None:
    files, path = store(tmp_path), path_in(tmp_path)
    written_in_pieces(files, path, [b"a" * 50, b"old" * 10])
    old = Path(path).read_bytes()
    with files.opened(path, write=True) as fd:
        files.truncate(fd, 50)
        files.write(fd, [b"new" * 10], 50)
        files.write(fd, [b"end"], 80)
    now = bytearray(Path(path).read_bytes())
    assert reopened(files).read(path) == b"a" * 50 + b"new" * 10 + b"end"
    now[HEADER_SIZE + 110 : len(old)] = old[HEADER_SIZE + 110 :]
    Path(path).write_bytes(now)
    assert reopened(files).read(path) == b"a" * 50 + FILL * 30 + b"end"


def test_a_file_in_the_place_of_another_does_not_open(tmp_path: Path) -> None:
    files, path, other = store(tmp_path), path_in(tmp_path), path_in(tmp_path, "other")
    written_in_pieces(files, path, [b"a" * 50, b"b" * 50])
    written_in_pieces(files, other, [b"c" * 50, b"d" * 50])
    mine, theirs = Path(path).read_bytes(), Path(other).read_bytes()
    Path(path).write_bytes(mine[: HEADER_SIZE + 110] + theirs[HEADER_SIZE + 110 :])
    assert reopened(files).read(path) == b"a" * 50 + FILL * 50


def test_a_nonce_is_never_used_again(tmp_path: Path) -> None:
    files, path = store(tmp_path), path_in(tmp_path)
    seen: set[bytes] = set()
    for _ in range(50):
        fd = files.open(path, write=True) if os.path.exists(path) else files.create(path)
        files.write(fd, [b"same"], 0)
        files.truncate(fd, 2)
        files.write(fd, [b"me"], 2)
        files.close(fd)
        content, at = Path(path).read_bytes(), HEADER_SIZE
        nonces = set()
        while (at := content.find(b"LKCH", at)) >= 0:
            nonces.add(content[at : at + 36])
            at += 1
        seen |= nonces
    assert len({each[20:32] for each in seen}) == len(seen)
    files = reopened(files)


def test_two_slots_are_overwritten_in_place_and_apart(tmp_path: Path) -> None:
    files, path = store(tmp_path), path_in(tmp_path)
    fd = files.create(path)
    for number in range(200):
        files.write(fd, [b"%040d" % number], number % 2 * 4096)
    files.close(fd)
    assert os.path.getsize(path) < 3 * 4096
    found = reopened(files).read(path)
    assert (found[:40], found[4096:]) == (b"%040d" % 198, b"%040d" % 199)
    places = [at for at in range(len(Path(path).read_bytes())) if Path(path).read_bytes().startswith(b"LKCH", at)]
    assert places[1] - places[0] >= 512 + 40 + OVERHEAD


def test_small_pieces_are_gathered(tmp_path: Path) -> None:
    files, path = store(tmp_path), path_in(tmp_path)
    written_in_pieces(files, path, [b"%07d" % number for number in range(1000)])
    before, content = os.path.getsize(path), files.read(path)
    assert files.gather(path)
    assert os.path.getsize(path) < before / 3
    assert reopened(files).read(path) == content
    assert not files.gather(path)


def test_a_file_of_which_much_was_cut_off_is_gathered(tmp_path: Path) -> None:
    files, path = store(tmp_path), path_in(tmp_path)
    fd = files.create(path)
    for size in (5 * CHUNK_BYTES, 3 * CHUNK_BYTES):  # each cut is in a chunk, and leaves a mark
        files.write(fd, [b"x" * size], files.size(fd))
        files.truncate(fd, 100)
    files.close(fd)
    assert os.path.getsize(path) > 3 * CHUNK_BYTES
    assert files.gather(path)
    assert os.path.getsize(path) < PAGE
    assert reopened(files).read(path) == b"x" * 100


def test_a_plain_file_in_an_encrypted_store_is_called_so(tmp_path: Path) -> None:
    files, path = store(tmp_path), path_in(tmp_path)
    Path(path).write_bytes(b"LKSG" + bytes(range(200)))
    with pytest.raises(CorruptLog, match="plain file in an encrypted store"):
        files.read(path)


def test_what_a_tool_writes_meanwhile_is_sealed(tmp_path: Path) -> None:
    """As verify does while it recovers a store: its copies are in a temporary directory."""
    path = path_in(tmp_path)
    store(tmp_path).write_whole(path, [PIECES[0]])
    (tmp_path / "upper").mkdir()
    files = SealedFiles(QuickFiles(), "", KEYS).over(Overlay(str(tmp_path / "upper")))
    with files.opened(path, write=True) as fd:
        files.write(fd, [PIECES[1]], files.size(fd))
    files.write_whole(path_in(tmp_path, "new"), [PIECES[2]])
    assert files.read(path) == PIECES[0] + PIECES[1]
    assert files.read(path_in(tmp_path, "new")) == PIECES[2]
    written = [each.read_bytes() for each in (tmp_path / "upper").iterdir()]
    assert len(written) == 2
    assert all(each.startswith(MAGIC) for each in written)


def test_room_is_zeros_on_disk_and_nothing_in_the_file(tmp_path: Path) -> None:
    files, path = store(tmp_path), path_in(tmp_path)
    fd = files.create(path)
    lengths = set()
    for number in range(20):
        files.write(fd, [b"x" * 100, *([WriteRoom(8000)] if not number else [])], 100 * number)
        lengths.add(os.path.getsize(path))
    assert len(lengths) == 1, "they went into the room"
    assert files.size(fd) == 2000
    files.truncate(fd, 2000)
    assert os.path.getsize(path) == HEADER_SIZE + 20 * (100 + OVERHEAD)
    files.close(fd)
    assert reopened(files).read(path) == b"x" * 2000


# ---------------------------------------------------------------------- keys and stores
def test_a_wrong_key_is_refused_and_touches_nothing(tmp_path: Path) -> None:
    files = store(tmp_path)
    files.write_whole(path_in(tmp_path), [b"content"])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(WrongKey, match=r"sealed with another key .* set jetstream \{ key \} to that key"):
        store(tmp_path, Keyring(["other"]))
    with pytest.raises(SealedStore, match=r"is encrypted; set jetstream \{ key \}"):
        sealed_store(str(tmp_path / "store"), QuickFiles(), None, lambda line: None)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_new_key_takes_over_and_no_data_is_rewritten(tmp_path: Path) -> None:
    path = path_in(tmp_path)
    store(tmp_path).write_whole(path, [b"content"])
    before = Path(path).read_bytes()
    lines: list[str] = []
    sealed_store(str(tmp_path / "store"), QuickFiles(), Keyring(["new", "secret"]), lines.append)
    assert lines == [f"  Changing the key of 2 directories of {tmp_path / 'store'}"]
    assert Path(path).read_bytes() == before
    assert store(tmp_path, Keyring(["new"])).read(path) == b"content"
    with pytest.raises(WrongKey):
        store(tmp_path)


def test_a_change_of_keys_that_was_killed_is_finished(tmp_path: Path) -> None:
    path = path_in(tmp_path)
    store(tmp_path).write_whole(path, [b"content"])

    class Killed(QuickFiles):
        def replace(self, source: str, target: str) -> None:
            if target == str(tmp_path / "store" / "sealing.key"):
                raise OSError("killed")
            super().replace(source, target)

    both = Keyring(["new", "secret"])
    with pytest.raises(OSError, match="killed"):
        rotate(str(tmp_path / "store"), Killed(), both)
    assert store(tmp_path, both).read(path) == b"content"
    assert store(tmp_path, Keyring(["new"])).read(path) == b"content"


def test_plain_files_are_sealed_at_the_first_start_with_a_key(tmp_path: Path) -> None:
    path = path_in(tmp_path)
    Path(path).write_bytes(b"plain text" * 1000)
    (tmp_path / "store" / "VERSION").write_bytes(b"1\n")
    lines: list[str] = []
    files = sealed_store(str(tmp_path / "store"), QuickFiles(), KEYS, lines.append)
    assert lines == ["  Encrypting stream 'S'"]
    assert Path(path).read_bytes().startswith(MAGIC)
    assert b"plain text" not in Path(path).read_bytes()
    assert (tmp_path / "store" / "VERSION").read_bytes() == b"1\n"
    assert files.read(path) == b"plain text" * 1000
    Path(path).write_bytes(b"plain text" * 1000)
    assert b"plain" not in store(tmp_path).read(path), "a sealed store takes no plain file for its own"


def test_without_its_key_a_stream_is_unreadable(tmp_path: Path) -> None:
    files, path = store(tmp_path), path_in(tmp_path)
    files.write_whole(path, [b"content"])
    os.remove(tmp_path / "store" / "$G" / "streams" / "S" / "sealing.key")
    with pytest.raises(CorruptLog, match="its key is missing"):
        reopened(files).read(path)


@pytest.mark.parametrize("at", [30, 70, COPY + 30])
def test_one_damaged_copy_of_a_key_costs_nothing(tmp_path: Path, at: int) -> None:
    files, path = store(tmp_path), path_in(tmp_path)
    files.write_whole(path, [b"content"])
    key = tmp_path / "store" / "$G" / "streams" / "S" / "sealing.key"
    content = bytearray(key.read_bytes())
    content[at] ^= 1
    key.write_bytes(content)
    assert reopened(files).read(path) == b"content"


def test_files_open_wherever_they_are_linked_or_moved(tmp_path: Path) -> None:
    files, path = store(tmp_path), path_in(tmp_path)
    files.write_whole(path, [b"content"])
    aside = tmp_path / "store" / "$G" / "aside"
    aside.mkdir()
    files.link(path, str(tmp_path / "link"))
    files.replace(path, str(aside / "file"))
    assert files.read(str(tmp_path / "link")) == b"content"
    assert reopened(files).read(str(aside / "file")) == b"content"
    directory = tmp_path / "store" / "$G" / "streams" / "S"
    files.write_whole(path, [b"more"])
    files.replace(str(directory), str(directory) + "2")
    assert files.read(str(directory) + "2/log/file") == b"more"
    shutil.rmtree(str(directory) + "2")
    files.make_directory(os.path.dirname(path))
    files.write_whole(path, [b"another stream"])
    assert reopened(files).read(path) == b"another stream"


def test_readers_see_what_another_descriptor_wrote(tmp_path: Path) -> None:
    files, path = store(tmp_path), path_in(tmp_path)
    fd = files.create(path)
    files.write(fd, [b"one"], 0)
    with files.opened(path) as reader:
        files.write(fd, [b"two"], 3)
        assert files.read_at(reader, 100, 0) == b"onetwo"
        files.truncate(fd, 3)
        files.write(fd, [b"abc"], 3)
        assert files.read_at(reader, 100, 0) == b"oneabc"
    files.close(fd)


@pytest.mark.parametrize("damage", [b"", b"damaged" * 1000], ids=["never durable", "damaged"])
def test_a_new_log_is_made_anew_without_its_key_and_kept_with_a_damaged_one(tmp_path: Path, damage: bytes) -> None:
    """Entries that the journal does not have may follow in a log whose key was durable."""
    files, root = store(tmp_path), tmp_path / "store"
    stream = root / "A" / "streams" / "S"
    Journal(str(root), files).create(str(stream), 1, 2, b"creation", 0)
    log = (stream / "log" / "00000000000000000001.seg").read_bytes() if damage else b""
    (stream / KEY).write_bytes(damage)
    again = reopened(files)
    notes = Journal(str(root), again).recover(0)
    (segment,) = (stream / "log").iterdir()
    if damage:
        assert (notes, segment.read_bytes()) == ([], log)
    else:
        assert "was made anew" in notes[0]
        assert b"creation" in again.read(str(segment))


def test_pieces_that_a_killed_process_left_in_a_sealed_segment_are_gathered_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop was held up for 104 ms by the first read of a segment of 3,356 chunks."""
    directory = str(tmp_path / "store" / "$G" / "streams" / "S")
    world = World(directory, store(tmp_path), options=LogOptions(seal_bytes=20_000))
    monkeypatch.setattr(SealedFiles, "gather", lambda files, path: False)  # killed before
    while not isinstance(world.stream.store, SegmentStore) or len(world.stream.store.log.segments) < 2:
        world.acked("s.a", bytes(100))
    monkeypatch.undo()
    content = world.content()
    world.stream.store.abandon()
    path = world.stream.store.log.segments[0].path
    before = os.path.getsize(path)
    again = World(directory, reopened(store(tmp_path)))
    assert os.path.getsize(path) < before - 64 * OVERHEAD
    assert again.content() == content
    again.stream.store.abandon()


class Flipping(QuickFiles):
    """Files of a device that returns one flipped bit in the last bytes of a file, once."""

    def __init__(self) -> None:
        super().__init__()
        self.armed = False

    def read_at(self, fd: int, length: int, offset: int) -> bytes:
        data = super().read_at(fd, length, offset)
        if self.armed and data and offset + len(data) == self.size(fd):
            self.armed = False
            return data[:-12] + bytes([data[-12] ^ 1]) + data[-11:]
        return data


@pytest.mark.parametrize("cut", [False, True])
def test_a_bit_that_a_device_flips_once_does_not_stay(tmp_path: Path, cut: bool) -> None:
    """In the tag of the last chunk, which the next one names: read at the start, and after a cut."""
    path = path_in(tmp_path)
    written_in_pieces(store(tmp_path), path, PIECES[:3])
    flipping = Flipping()
    files, expected = SealedFiles(flipping, str(tmp_path / "store"), KEYS), PIECES[:3]
    flipping.armed = not cut
    fd = files.open(path, write=True)
    if cut:
        files.truncate(fd, len(PIECES[0]) + len(PIECES[1]))
        flipping.armed, expected = True, PIECES[:2]
    files.write(fd, [PIECES[3]], files.size(fd))
    assert not flipping.armed
    files.close(fd)
    assert reopened(files).read(path) == b"".join([*expected, PIECES[3]])
