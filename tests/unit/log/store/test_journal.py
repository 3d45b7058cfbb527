"""The journal of new streams: one sync for a stream, which no loss of its own files can take back."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from lakestream.log.format.errors import LogFrozen
from lakestream.log.format.files import AT_ONCE, Files, InlineIo, UnsyncedFiles
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.format.segment import segment_name
from lakestream.log.sealing.files import SealedFiles
from lakestream.log.sealing.keys import Keyring
from lakestream.log.store.journal import KEY, MAX_BYTES, NAME, Journal
from lakestream.log.store.root import StoreRoot
from lakestream.log.store.segment_log import (
    JOURNALED_BYTES,
    JOURNALED_ENTRIES,
    TOGETHER_BYTES,
    LogOptions,
    SegmentLog,
)
from lakestream.log.store.segment_store import SegmentStore
from lakestream.log.store.synced import MarkFile
from lakestream.meta.stores import FileStores

pytestmark = pytest.mark.unit

SEGMENT = segment_name(1)
LARGE = bytes(JOURNALED_BYTES)
"""The body of an entry that the journal does not take."""


class Syncs(Files):
    """Files that record what is synced, and fail on request."""

    def __init__(self) -> None:
        self.synced: list[str] = []
        self.fail_on = ""
        self.before_sync: Callable[[str], object] = lambda path: None

    def _note(self, path: str) -> None:
        self.before_sync(path)
        if self.fail_on and self.fail_on in path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        self.synced.append(os.path.basename(path))

    def sync(self, fd: int) -> None:
        self._note(os.readlink(f"/proc/self/fd/{fd}"))

    def sync_directory(self, path: str) -> None:
        self._note(path)

    def taken(self) -> list[str]:
        """Return the names that were synced since the last call."""
        taken, self.synced = self.synced, []
        return taken


class Store:
    """A store whose process and power can go."""

    def __init__(self, path: Path) -> None:
        self.path, self.files = path, Syncs()
        self.stores = FileStores(str(path), LogOptions(), 1 << 20, InlineIo(), self.files)
        self.opened: dict[str, SegmentStore] = {}
        self.files.taken()

    def create(self, name: str) -> SegmentStore:
        store = self.stores.create("A", name, f"u-{name}", b"creation of " + name.encode(), memory=False)
        assert isinstance(store, SegmentStore)
        self.opened[name] = store
        return store

    def append(self, name: str, body: bytes = b"another") -> None:
        log = self.opened[name].log
        assert isinstance(log, SegmentLog)
        log.append([Frame(Kind.OPERATION, 1, log.last_index + 1, 0, body)])

    def directory(self, name: str = "") -> Path:
        return self.path / "jetstream" / "A" / "streams" / name

    def killed(self) -> Path:
        """Return a copy of the store as a killed process leaves it."""
        copy = self.path.with_name(f"killed-{len(list(self.path.parent.iterdir()))}")
        shutil.copytree(self.path, copy)
        return copy


def entries(path: Path) -> dict[str, list[bytes]]:
    """Return the bodies of the entries of every stream, as the next process finds them."""
    stores = FileStores(str(path), LogOptions(), 1 << 20, InlineIo())
    lines: list[str] = []
    found = {}
    for account, name in stores.found(lines.append):
        store = stores.open(account, name)
        found[name] = [frame.body for frame, _ in store.replay()]
        store.close()
    stores.close()
    return found


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "store")
    store.create("FIRST")  # makes the account's directory and the journal
    store.files.taken()
    return store


def test_a_new_stream_is_one_sync(store: Store) -> None:
    store.create("S")
    assert store.files.taken() == [NAME]


def test_streams_that_are_created_meanwhile_share_a_sync(store: Store) -> None:
    waiting, going_on = threading.Event(), threading.Event()
    journal = store.stores._root.journal

    def before(path: str) -> None:
        if not waiting.is_set():
            waiting.set()
            going_on.wait(10)

    store.files.before_sync = before
    threads = [threading.Thread(target=store.create, args=(f"S{at}",)) for at in range(6)]
    threads[0].start()
    assert waiting.wait(10)
    for thread in threads[1:]:
        thread.start()
    while len(journal._waiting) < 5:
        waiting.wait(0.001)
    going_on.set()
    for thread in threads:
        thread.join()
    assert store.files.taken() == [NAME, NAME]
    assert set(entries(store.killed())) == {"FIRST", *(f"S{at}" for at in range(6))}


def _lose_all(directory: Path) -> None:
    shutil.rmtree(directory)


def _lose_log(directory: Path) -> None:
    shutil.rmtree(directory / "log")


def _lose_segment(directory: Path) -> None:
    next((directory / "log").iterdir()).unlink()


def _lose_content(directory: Path) -> None:
    os.truncate(next((directory / "log").iterdir()), 0)


def _lose_end(directory: Path) -> None:
    os.truncate(next((directory / "log").iterdir()), 100)


def _zeros(directory: Path) -> None:
    segment = next((directory / "log").iterdir())
    segment.write_bytes(bytes(segment.stat().st_size))


@pytest.mark.parametrize("lose", [_lose_all, _lose_log, _lose_segment, _lose_content, _lose_end, _zeros])
def test_a_created_stream_survives_any_loss_of_its_own_files(store: Store, lose: Callable[[Path], None]) -> None:
    store.create("S")
    store.create("T")
    for body in (b"one", b"two"):
        store.append("T", body)
    copy = store.killed()
    for name in ("S", "T"):
        lose(copy / "jetstream" / "A" / "streams" / name)
    expected = {"FIRST": [b"creation of FIRST"], "S": [b"creation of S"], "T": [b"creation of T", b"one", b"two"]}
    assert entries(copy) == expected
    assert entries(copy) == expected, "also without the journal, which the first start has removed"


def test_the_journal_takes_the_next_small_entries_of_a_new_log(store: Store) -> None:
    store.create("S")
    store.files.taken()
    for _ in range(JOURNALED_ENTRIES - 1):
        store.append("S")
        assert store.files.taken() == [NAME]
    store.append("S")
    assert store.files.taken() == [SEGMENT, "log", "S", "streams", SEGMENT]
    store.append("S")
    assert store.files.taken() == [SEGMENT]
    copy = store.killed()
    assert len(entries(copy)["S"]) == JOURNALED_ENTRIES + 2


def test_a_log_is_durable_before_an_entry_is_written_that_the_journal_does_not_take(store: Store) -> None:
    store.create("S")
    store.append("S")
    store.files.taken()
    store.append("S", LARGE)
    assert store.files.taken() == [SEGMENT, "log", "S", "streams", SEGMENT]
    assert entries(store.killed())["S"] == [b"creation of S", b"another", LARGE]


def test_the_entries_of_a_new_log_may_be_in_both_files(store: Store) -> None:
    store.create("S")
    store.append("S", b"one")
    store.stores._root.journal.turn()
    store.append("S", b"two")
    store.append("S", b"three")
    copy = store.killed()
    _lose_all(copy / "jetstream" / "A" / "streams" / "S")
    assert entries(copy)["S"] == [b"creation of S", b"one", b"two", b"three"]


def test_an_entry_that_the_journal_has_and_the_log_does_not_is_there_after_a_start(store: Store) -> None:
    """The process was killed between the two writes."""
    store.create("S")
    segment = store.directory("S") / "log" / SEGMENT
    before = segment.read_bytes()
    store.append("S", b"one")
    copy = store.killed()
    (copy / "jetstream" / "A" / "streams" / "S" / "log" / SEGMENT).write_bytes(before)
    assert entries(copy)["S"] == [b"creation of S", b"one"]


def test_a_log_syncs_for_itself_when_the_sync_of_the_journal_fails(store: Store) -> None:
    store.create("S")
    store.files.taken()
    store.files.fail_on = NAME
    store.append("S")
    assert store.files.taken() == [SEGMENT, "log", "S", "streams", SEGMENT]
    store.files.fail_on = ""
    store.create("T")  # in the other file
    copy = store.killed()
    _lose_all(copy / "jetstream" / "A" / "streams" / "T")
    assert entries(copy)["S"] == [b"creation of S", b"another"]
    assert entries(copy)["T"] == [b"creation of T"]


def test_a_round_settles_new_streams_and_empties_the_journal(store: Store) -> None:
    for name in ("S", "T"):
        store.create(name)
    assert store.stores._root.journal.due
    assert store.stores.mark() == []
    assert not store.stores._root.journal.due
    store.files.taken()
    assert not store.stores.unmarked
    store.append("S")
    assert store.files.taken() == [SEGMENT], "its names are durable already"


def test_the_first_mark_takes_its_place_behind_the_syncs_of_segment_and_mark(store: Store) -> None:
    store.stores.mark()
    store.create("S")
    mark, seen = store.directory("S") / "synced", list[tuple[str, bool]]()
    store.files.before_sync = lambda path: seen.append((os.path.basename(path), mark.exists()))
    store.stores.mark()
    own = [each for each in seen if not each[0].startswith(NAME)]
    assert own == [(SEGMENT, False), ("synced.tmp", False), ("log", True), ("S", True), ("streams", True)]
    assert MarkFile(Files(), str(mark.parent)).read().index == 1


def test_a_first_mark_that_was_being_written_does_not_keep_a_stream_from_being_made_anew(store: Store) -> None:
    store.create("S")
    (store.directory("S") / "log" / SEGMENT).write_bytes(b"")
    (store.directory("S") / "synced.tmp").write_bytes(b"")
    assert entries(store.killed())["S"] == [b"creation of S"]


def test_a_first_mark_that_cannot_be_synced_is_written_again(store: Store) -> None:
    store.create("S")
    store.files.fail_on = "S/synced.tmp"
    assert [stream for stream, _ in store.stores.mark()] == ["S"]
    assert not (store.directory("S") / "synced").exists()
    store.files.fail_on = ""
    assert store.stores.mark() == []
    assert (store.directory("S") / "synced").exists()


@pytest.mark.parametrize("stopped", [False, True])
def test_many_new_streams_are_synced_at_the_same_time(store: Store, stopped: bool) -> None:
    store.stores.mark()
    names = [f"S{at}" for at in range(2 * AT_ONCE)]
    for name in names:
        store.create(name)
    store.files.taken()
    together = threading.Barrier(AT_ONCE, timeout=10)
    store.files.before_sync = lambda path: path.endswith(SEGMENT) and together.wait()
    if stopped:
        for one in store.opened.values():
            one.close()
        assert store.files.taken() == []
        store.stores.close()
    else:
        assert store.stores.mark() == []
    synced = store.files.taken()
    assert [synced.count(each) for each in (SEGMENT, "log", "streams")] == [len(names), len(names), 1]
    assert set(names) <= set(synced)


def test_of_many_new_streams_one_that_cannot_be_synced_stays_in_the_journal(store: Store) -> None:
    for at in range(2 * AT_ONCE):
        store.create(f"S{at}")
    store.files.fail_on = "/S3/log"
    assert store.stores.mark() == [], "the next write to the stream says it"
    assert store.opened["S3"].log.failed is not None
    assert list(store.stores._root.journal._unsettled) == ["A/streams/S3"]


@pytest.mark.parametrize("settled", [False, True])
def test_a_deleted_stream_does_not_come_back(store: Store, settled: bool) -> None:
    store.create("S")
    store.create("T")
    for name in ("T", "S"):  # if they are settled, the record of S stays in the file
        store.append(name, LARGE if settled else b"another")
    store.opened["S"].destroy()
    assert set(entries(store.killed())) == {"FIRST", "T"}
    store.create("S")
    again = store.killed()
    _lose_all(again / "jetstream" / "A" / "streams" / "S")
    assert entries(again)["S"] == [b"creation of S"]


@pytest.mark.parametrize("settled", [False, True])
def test_a_deletion_is_noted_before_the_directory_of_messages_goes_and_after_that_of_none(
    store: Store, settled: bool
) -> None:
    """A power loss in between leaves the stream or not, but never half of the deletion."""
    store.create("S")
    store.create("T")  # not settled: the journal keeps the records
    store.append("S", LARGE if settled else b"another")
    there: list[bool] = []
    store.files.taken()
    store.files.before_sync = lambda path: there.append(store.directory("S").exists())
    store.opened["S"].destroy()
    synced = list(zip(store.files.taken(), there, strict=True))
    assert synced == ([(NAME, True), ("streams", False)] if settled else [("streams", False), (NAME, False)])


def test_a_round_that_began_before_a_deletion_leaves_the_record_of_the_next_stream(tmp_path: Path) -> None:
    journal, directory = Journal(str(tmp_path), UnsyncedFiles()), tmp_path / "S"
    birth, _ = journal.create(str(directory), 1, Kind.OPERATION, b"first", 1)
    shutil.rmtree(directory)
    journal.forget(str(directory))
    journal.create(str(directory), 1, Kind.OPERATION, b"second", 1)
    journal.settle_all([birth])
    journal.turn()
    assert not journal.release()
    shutil.rmtree(directory)
    [note] = Journal(str(tmp_path), UnsyncedFiles()).recover(1)
    assert "was made anew" in note
    assert b"second" in (directory / "log" / SEGMENT).read_bytes()


def test_a_failed_sync_of_the_journal_refuses_the_stream_and_no_later_one(store: Store) -> None:
    store.files.fail_on = NAME
    with pytest.raises(OSError, match=r"created\.journal"):
        store.create("S")
    store.files.fail_on = ""
    assert not store.directory("S").exists()
    store.create("T")
    store.append("T")
    store.stores.mark()
    copy = store.killed()
    assert entries(copy) == {"FIRST": [b"creation of FIRST"], "T": [b"creation of T", b"another"]}


def test_damage_of_the_journal_is_reported_and_costs_no_stream_that_has_its_files(store: Store) -> None:
    for name in ("S", "T"):
        store.create(name)
    copy = store.killed()
    path = copy / "jetstream" / NAME
    content = bytearray(path.read_bytes())
    content[64 + 60] ^= 1  # in the first record; others follow
    path.write_bytes(content)
    root = StoreRoot.open(str(copy / "jetstream"))
    (line,) = root.notes
    assert NAME in line
    assert "missing" in line
    root.close()
    assert set(entries(copy)) == {"FIRST", "S", "T"}


def test_a_torn_record_was_never_acknowledged(store: Store) -> None:
    store.create("S")
    copy = store.killed()
    path = copy / "jetstream" / NAME
    content = path.read_bytes()
    path.write_bytes(content.rstrip(b"\0")[:-3] + bytes(100))
    _lose_all(copy / "jetstream" / "A" / "streams" / "S")
    root = StoreRoot.open(str(copy / "jetstream"))
    assert root.notes == []
    root.close()
    assert set(entries(copy)) == {"FIRST"}


def test_what_was_durable_once_is_never_made_anew(store: Store) -> None:
    store.create("S")
    store.append("S", LARGE)  # settled, but its record is still in the file
    copy = store.killed()
    segment = next((copy / "jetstream" / "A" / "streams" / "S" / "log").iterdir())
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(content)
    root = StoreRoot.open(str(copy / "jetstream"))
    root.close()
    assert segment.read_bytes() == bytes(content)


def test_the_journal_goes_with_a_clean_stop_and_the_version_says_while_it_is_there(store: Store) -> None:
    root = store.path / "jetstream"
    store.stores.mark()
    store.create("S")
    assert [(root / (NAME + suffix)).exists() for suffix in ("", ".2")] == [True, True]
    assert (root / "VERSION").read_text() == "3\n"
    killed = store.killed()
    for one in store.opened.values():
        one.close()
    store.stores.close()
    assert sorted(path.name for path in root.iterdir()) == ["A", "LOCK", "VERSION"]
    assert (root / "VERSION").read_text() == "1\n"
    assert set(entries(killed)) == {"FIRST", "S"}
    assert (killed / "jetstream" / "VERSION").read_text() == "1\n"


# ---------------------------------------------------------------------- writes of several logs
def together(store: Store, **bodies: bytes) -> list[list[str] | Exception]:
    """Append an entry to each of these logs with one sync; return what was synced then, or the error."""
    writes = []
    for name, body in bodies.items():
        log = store.opened[name].log
        assert isinstance(log, SegmentLog)
        writes.append((log, [Frame(Kind.OPERATION, 1, log.last_index + 1, 0, body)]))
    found = SegmentLog.append_together(writes)
    return [each if isinstance(each, Exception) else [] for each in found]


NAMES = ("S", "T", "U")


@pytest.fixture
def several(store: Store) -> Store:
    """A store with three settled streams of one large entry."""
    for name in NAMES:
        store.create(name)
        store.append(name, LARGE)
    store.stores.mark()
    store.files.taken()
    return store


def _cut_all(copy: Path, store: Store) -> None:
    """Take from each segment what was not synced: as after a power loss."""
    for name in NAMES:
        path = copy / "jetstream" / "A" / "streams" / name / "log" / SEGMENT
        with path.open("r+b") as file:
            file.truncate(store.opened[name].log.synced[2])  # type: ignore[union-attr]


def test_one_sync_serves_all_logs_that_are_written_to_together(several: Store) -> None:
    assert together(several, S=b"s", T=b"t", U=b"u") == [[], [], []]
    assert len(several.files.taken()) == 1
    copy = several.killed()
    _cut_all(copy, several)
    found = entries(copy)
    for name in NAMES:
        assert found[name] == [b"creation of %b" % name.encode(), LARGE, name.lower().encode()]


def test_what_was_written_together_survives_any_loss_of_unsynced_bytes(several: Store) -> None:
    for body in (b"1", b"2"):
        together(several, S=body, T=body, U=body)
        several.stores._root.journal.turn()
    copies = [several.killed() for _ in range(3)]
    _cut_all(copies[0], several)
    for at, name in enumerate(NAMES):
        path = copies[1] / "jetstream" / "A" / "streams" / name / "log" / SEGMENT
        content, synced = bytearray(path.read_bytes()), several.opened[name].log.synced[2]  # type: ignore[union-attr]
        content[synced:] = bytes(len(content) - synced)
        path.write_bytes(content)
        path = copies[2] / "jetstream" / "A" / "streams" / name / "log" / SEGMENT
        content = bytearray(path.read_bytes())
        content[synced : synced + 10 * at + 10] = bytes(10 * at + 10)  # the later frame is whole
        path.write_bytes(content)
    for copy in copies:
        for again in range(2):
            found = entries(copy)
            assert [found[name][2:] for name in NAMES] == [[b"1", b"2"]] * 3, again


def test_a_round_settles_what_was_written_together_and_forgets_it(several: Store) -> None:
    together(several, S=b"s", T=b"t")
    assert several.stores.mark() == []
    assert several.files.taken().count(SEGMENT) == 2
    assert not several.stores._root.journal.due
    copy = several.killed()
    for suffix in ("", ".2"):
        (copy / "jetstream" / (NAME + suffix)).unlink()
    _cut_all(copy, several)
    assert entries(copy)["S"][-1] == b"s"


def test_the_synced_mark_does_not_run_ahead_of_the_segment(several: Store) -> None:
    log = several.opened["S"].log
    assert isinstance(log, SegmentLog)
    before = log.synced
    together(several, S=b"s", T=b"t")
    assert log.synced == before
    several.stores.mark()
    assert log.synced == log.open_segment.newest


@pytest.mark.parametrize("how", ["seal", "checkpoint", "close", "alone"])
def test_the_segment_is_synced_before_whatever_relies_on_it(several: Store, how: str) -> None:
    together(several, S=b"s", T=b"t")
    several.files.taken()
    store = several.opened["S"]
    log = store.log
    assert isinstance(log, SegmentLog)
    if how == "seal":
        log.seal(store.sealing_state())
        assert several.files.taken()[:2] == [SEGMENT, SEGMENT], "the frames, then the footer"
    elif how == "checkpoint":
        store.applied = log.last_index
        store.checkpoint(b"")
        assert several.files.taken()[0] == SEGMENT
    elif how == "close":
        log.close()
        assert several.files.taken()[0] == SEGMENT
    else:
        several.append("S", LARGE)
        assert several.files.taken() == [SEGMENT]
    assert log.has_durably(3)


def test_the_records_of_a_stream_do_not_go_to_its_successor(several: Store) -> None:
    together(several, S=b"s", T=b"t")
    several.opened["S"].destroy()
    assert set(entries(several.killed())) == {"FIRST", "T", "U"}
    several.create("S")
    several.append("S", LARGE)
    copy = several.killed()
    assert entries(copy)["S"] == [b"creation of S", LARGE]
    assert entries(copy)["T"][-1] == b"t"


def test_a_sealed_segment_is_not_written_to_by_recovery(several: Store) -> None:
    together(several, S=b"secret", T=b"t")
    store = several.opened["S"]
    log = store.log
    assert isinstance(log, SegmentLog)
    sealed = log.seal(store.sealing_state())
    copy = several.killed()
    path = Path(str(sealed.path).replace(str(several.path), str(copy)))
    content = path.read_bytes().replace(b"secret", b"------")
    path.write_bytes(content)
    StoreRoot.open(str(copy / "jetstream")).close()
    assert path.read_bytes() == content


def test_logs_sync_for_themselves_when_the_journal_fails(several: Store) -> None:
    several.files.fail_on = NAME
    assert together(several, S=b"s", T=b"t") == [[], []]
    assert several.files.taken() == [SEGMENT, SEGMENT]
    several.files.fail_on = ""
    together(several, S=b"again", T=b"again")
    copy = several.killed()
    _cut_all(copy, several)
    assert [entries(copy)[name][-2:] for name in ("S", "T")] == [[b"s", b"again"], [b"t", b"again"]]
    for _ in range(2):  # the other file comes first
        several.stores.mark()
    assert not several.stores._root.journal.due


def test_a_log_that_cannot_be_settled_keeps_its_records(several: Store) -> None:
    together(several, S=b"s", T=b"t")
    several.files.fail_on = "/S/log"
    several.stores.mark()
    several.files.fail_on = ""
    assert isinstance(several.opened["S"].log.failed, LogFrozen)
    for _ in range(3):
        together(several, T=b"more", U=b"u")
        several.stores.mark()
    for one in several.opened.values():
        one.abandon()
    several.stores.close()
    copy = several.killed()
    _cut_all(copy, several)
    found = entries(copy)
    assert found["S"][-1] == b"s"
    assert found["T"][-4:] == [b"t", b"more", b"more", b"more"]


def test_a_full_journal_takes_nothing_until_it_is_settled(several: Store) -> None:
    body = bytes(TOGETHER_BYTES // 2)
    for _ in range(2 * MAX_BYTES // TOGETHER_BYTES + 5):
        together(several, S=body, T=body)
    assert several.files.taken()[-2:] == [SEGMENT, SEGMENT]
    root = several.path / "jetstream"
    assert sum((root / (NAME + suffix)).stat().st_size for suffix in ("", ".2")) < 2 * MAX_BYTES + (4 << 20)
    several.stores.mark()
    several.files.taken()
    together(several, S=b"s", T=b"t")
    assert len(several.files.taken()) == 1


def test_a_log_with_entries_that_are_durable_nowhere_is_not_journaled(several: Store) -> None:
    log = several.opened["S"].log
    assert isinstance(log, SegmentLog)
    log.append([Frame(Kind.OPERATION, 1, log.last_index + 1, 0, b"volatile")], volatile=True)
    several.files.taken()
    together(several, S=b"s", T=b"t")
    assert SEGMENT in several.files.taken()


def test_erased_bytes_do_not_stay_in_the_journal(several: Store) -> None:
    together(several, S=b"secret", T=b"t")
    several.stores.mark()
    journal = several.stores._root.journal
    journal.outdate()
    for _ in range(2):
        several.stores.mark()
    root = several.path / "jetstream"
    assert not any(b"secret" in (root / (NAME + suffix)).read_bytes() for suffix in ("", ".2"))
    assert not journal.due


def test_bytes_that_are_erased_while_a_file_is_emptied_do_not_stay_in_it(several: Store) -> None:
    together(several, S=b"secret", T=b"t")
    journal = several.stores._root.journal
    several.files.before_sync = lambda path: journal.outdate() if NAME in path else None
    several.stores.mark()
    several.files.before_sync = lambda path: None
    for _ in range(2):
        several.stores.mark()
    root = several.path / "jetstream"
    assert not any(b"secret" in (root / (NAME + suffix)).read_bytes() for suffix in ("", ".2"))


def test_entries_are_durable_in_their_segment_before_there_is_a_next_one(several: Store) -> None:
    """Recovery writes to no segment that has one."""
    for body in (b"applied", b"not applied"):
        together(several, S=body, T=body)
    several.files.taken()
    log = several.opened["S"].log
    assert isinstance(log, SegmentLog)
    log.seal_rest(log.last_index - 1, several.opened["S"].sealing_state)
    assert several.files.taken()[:2] == [SEGMENT, segment_name(log.last_index)]


def test_a_new_log_is_in_memory_as_the_next_process_reads_it(tmp_path: Path) -> None:
    def of(log: SegmentLog) -> tuple[object, ...]:
        segment = log.open_segment
        header = (segment.header, segment.first_index, segment.last_index, segment.end, list(segment.frame_offsets))
        return header, log.terms, log.last_term, log.synced, segment.first_append_ns, next(log.frames(1))[0]

    store = Store(tmp_path / "store")
    made = store.create("S")
    assert made.applied == 1
    again = FileStores(str(store.killed()), LogOptions(), 1 << 20, InlineIo())
    again.found(lambda line: None)
    read = again.open("A", "S")
    assert isinstance(made.log, SegmentLog)
    assert isinstance(read.log, SegmentLog)
    assert of(made.log) == of(read.log)


def test_the_key_of_a_stream_that_a_killed_server_created_is_synced_at_the_next_start(tmp_path: Path) -> None:
    """Its run had made it without a sync, and a loss of power would take the key, and so the stream, at any time."""
    syncs, root, masters = Syncs(), tmp_path / "store", Keyring(["key"])
    files = SealedFiles(syncs, str(root / "jetstream"), masters)
    stores = FileStores(str(root), LogOptions(), 1 << 20, InlineIo(), files)
    stores.create("A", "S", "u-S", b"creation", memory=False)
    assert KEY not in syncs.taken()
    killed = tmp_path / "killed"
    shutil.copytree(root, killed)
    stores.close()
    syncs.taken()
    FileStores(str(killed), LogOptions(), 1 << 20, InlineIo(), SealedFiles(syncs, str(killed / "jetstream"), masters))
    assert KEY in syncs.taken()
