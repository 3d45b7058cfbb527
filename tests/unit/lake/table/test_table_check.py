"""Tests of the verification of a table's files against its log: every difference is reported, and nothing else."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.lake.errors import DamagedLog, StorageFailed
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.locks import COMPACTOR_LOCK, Lease, is_held
from lakestream.lake.storage.object_storage import ObjectStorage
from lakestream.lake.storage.storage import FileEntry, Storage
from lakestream.lake.table import check as table_check
from lakestream.lake.table.actions import AddFile, table_file, to_z85
from lakestream.lake.table.check import Budget, TableCheck, check, describe, span
from lakestream.lake.table.log import TableLog
from lakestream.lake.table.state import TableFollower
from tests.s3_server import S3Server

pytestmark = pytest.mark.unit


def add_rows(table: Path, first: int, count: int) -> Path:
    """Append rows as a writer would; return the new file."""
    before = set(table.glob("*.parquet"))
    write_deltalake(table, pa.table({"seq": range(first, first + count), "data": [b"x" * 50] * count}), mode="append")
    (new,) = set(table.glob("*.parquet")) - before
    return new


def commit(table: Path, *actions: dict[str, Any]) -> None:
    version = len(list((table / "_delta_log").glob("*.json")))
    (table / "_delta_log" / f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)))


class Checks(TableCheck):
    """Check of a table that reads the newest version itself."""

    def __init__(self, storage: Storage, table: str) -> None:
        self.follower = TableFollower(table, storage=storage)
        super().__init__(storage, self.follower)

    def run(self, budget: Budget | None = None) -> bool:
        return self.look(self.follower.newest(), budget or Budget())


def checked(table: Path) -> Checks:
    files = Checks(open_storage(table.parent), str(table))
    assert files.run()
    return files


def again(files: Checks) -> Checks:
    """Check new files, with no budget left for known ones."""
    assert files.run(Budget(0))
    return files


def reasons(files: TableCheck) -> dict[str, str]:
    return {Path(each.path).name: each.reason for each in files.damaged.values()}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "streams" / "S"


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda path: path.write_bytes(b""), "it has 0 bytes instead of"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes instead of"),
        (lambda path: path.write_bytes(bytes(path.stat().st_size)), "does not end in PAR1"),
        (lambda path: path.write_bytes(path.read_bytes()[:-300] + bytes(292) + path.read_bytes()[-8:]), "footer"),
        (lambda path: path.write_bytes(path.read_bytes()[:-8] + b"\xff\xff\xff\x7fPAR1"), "do not fit"),
        (lambda path: path.unlink(), "it is missing"),
    ],
    ids=["empty", "short", "zeros", "footer zeros", "footer length", "missing"],
)
def test_invariant_10_a_file_that_is_not_what_the_commit_says_is_found(table: Path, harm: Any, says: str) -> None:
    good, bad = add_rows(table, 1, 10), add_rows(table, 11, 10)
    files = checked(table)
    assert files.damaged == {}
    harm(bad)
    found = checked(table)
    assert list(reasons(found)) == [bad.name]
    assert says in reasons(found)[bad.name]
    text = describe(str(table), found.damaged.values())
    assert bad.name in text
    assert good.name not in text
    assert "10 messages with sequences from 11 to 20" in text
    assert span(found.damaged.values()) == (11, 20)


def test_a_footer_with_another_number_of_rows_is_found(table: Path) -> None:
    path = add_rows(table, 1, 10)
    other = add_rows(table.parent / "T", 1, 11)
    path.write_bytes(other.read_bytes())
    log = table / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            line["add"]["size"] = path.stat().st_size
    log.write_text("\n".join(map(json.dumps, lines)))
    assert reasons(checked(table)) == {path.name: "its Parquet footer tells of 11 rows instead of 10"}


def test_new_commits_are_followed_and_only_their_files_looked_at(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_rows(table, 1, 10)
    files = checked(table)
    looked: list[str] = []
    real = table_check.check

    def spy(storage: Any, path: str, adds: Any, sizes: Any = None) -> Any:
        some = list(adds)
        looked.extend(add.path for add in some)
        return real(storage, path, some, sizes)

    monkeypatch.setattr(table_check, "check", spy)
    again(files)
    assert looked == []
    second = add_rows(table, 11, 10)
    content = second.read_bytes()
    second.write_bytes(b"")
    third = add_rows(table, 21, 10)
    again(files)
    assert sorted(looked) == sorted([second.name, third.name])
    assert list(reasons(files)) == [second.name]
    second.write_bytes(content)
    again(files)
    assert files.damaged == {}, "what was brought back counts"


def test_what_could_not_be_checked_is_checked_next_time(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = add_rows(table, 1, 10)
    path.write_bytes(b"")
    files = Checks(open_storage(table.parent), str(table))

    def refuse(*_: Any) -> Any:
        raise StorageFailed("read", "s3://b/x", "it is away")

    def refused() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(table_check, "check", refuse)
            with pytest.raises(StorageFailed):
                files.run()

    refused()
    assert files.run()
    assert list(reasons(files)) == [path.name]
    second = add_rows(table, 11, 10)
    second.write_bytes(b"")
    refused()
    assert set(reasons(again(files))) == {path.name, second.name}


def test_a_commit_that_is_cut_is_named(table: Path) -> None:
    add_rows(table, 1, 10)
    files = checked(table)
    bad = table / "_delta_log" / f"{1:020d}.json"
    bad.write_bytes(bytes(500))
    with pytest.raises(DamagedLog, match=bad.name):
        again(files)


def test_a_damaged_file_that_leaves_the_table_does_not_matter_any_more(table: Path) -> None:
    path = add_rows(table, 1, 10)
    files = checked(table)
    bad = add_rows(table, 11, 10)
    bad.write_bytes(b"")
    again(files)
    assert list(reasons(files)) == [bad.name]
    commit(table, {"remove": {"path": bad.name, "dataChange": True, "deletionTimestamp": 1}})
    again(files)
    assert files.damaged == {}
    path.unlink()
    assert list(reasons(checked(table))) == [path.name]


def test_a_large_table_is_checked_through_its_checkpoint_a_part_at_a_time(table: Path) -> None:
    for number in range(60):
        last = add_rows(table, 10 * number + 1, 2)
    DeltaTable(table).create_checkpoint()
    last.write_bytes(b"")
    files = Checks(open_storage(table.parent), str(table))
    assert not files.run(Budget(0))
    assert not files.run(Budget(40))
    assert files.run(Budget(40)), "the rest"
    assert list(reasons(files)) == [last.name]
    newest = table / "_delta_log" / f"{59:020d}.json"
    newest.with_suffix(".new").write_bytes(newest.read_bytes())
    newest.with_suffix(".new").rename(newest)
    assert not files.run(Budget(40)), "another table, or another log"


def vectored(table: Path) -> tuple[Path, dict[str, Any]]:
    """Create a table whose file has a deletion vector; return the vector's file and the action."""
    path = add_rows(table, 1, 10)
    raw = os.urandom(16)
    hexed = raw.hex()
    name = "-".join((hexed[:8], hexed[8:12], hexed[12:16], hexed[16:20], hexed[20:]))
    file = table / f"deletion_vector_{name}.bin"
    body = b"a bitmap of some length"
    file.write_bytes(b"\1" + struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body)))
    log = (table / "_delta_log" / f"{0:020d}.json").read_text().splitlines()
    add = next(json.loads(line)["add"] for line in log if '"add"' in line)
    add["deletionVector"] = {
        "storageType": "u",
        "pathOrInlineDv": to_z85(raw),
        "offset": 1,
        "sizeInBytes": len(body),
        "cardinality": 3,
    }
    commit(table, {"remove": {"path": path.name, "dataChange": True, "deletionTimestamp": 1}}, {"add": add})
    return file, add


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda file: file.unlink(), "it is missing"),
        (lambda file: file.write_bytes(b""), "no deletion vector of 23 bytes"),
        (lambda file: file.write_bytes(bytes(file.stat().st_size)), "no deletion vector of 23 bytes"),
        (lambda file: file.write_bytes(file.read_bytes()[:9] + b"?" + file.read_bytes()[10:]), "checksum"),
    ],
    ids=["missing", "empty", "zeros", "torn"],
)
def test_invariant_10_a_damaged_deletion_vector_is_found(table: Path, harm: Any, says: str) -> None:
    file, _ = vectored(table)
    assert checked(table).damaged == {}
    harm(file)
    found = reasons(checked(table))
    assert list(found) == [file.name]
    assert says in found[file.name]


def test_a_missing_or_cut_deletion_vector_is_found_without_reading_it(table: Path) -> None:
    file, _ = vectored(table)
    found = checked(table)
    assert found.are_there()
    content = file.read_bytes()
    for harm, says in ((lambda: file.write_bytes(content[:-1]), "up to 32"), (file.unlink, "it is missing")):
        harm()
        state = TableLog(open_storage(table), str(table)).state()
        (damage,) = table_check.lacking(open_storage(table), str(table), map(table_file, state.files.values()))
        assert damage.path == str(file)
        assert says in damage.reason
        assert not found.are_there()
    file.write_bytes(content)
    assert found.are_there()


def test_invariant_10_files_and_directories_are_synced_before_they_count(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = add_rows(table, 1, 10)
    synced: set[str] = set()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    files = checked(table)
    root, log = table.parent, table / "_delta_log"
    wanted = {str(each) for each in (path, table, root, log, log / f"{0:020d}.json")}
    assert wanted <= synced
    synced.clear()
    second = add_rows(table, 11, 1)
    again(files)
    assert {str(second), str(table), str(log / f"{1:020d}.json"), str(log)} <= synced
    assert str(path) not in synced


def test_a_file_that_the_system_could_not_write_stays_damaged(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = add_rows(table, 1, 10)

    def refuse(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(path):
            raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refuse)
        files = checked(table)
    assert reasons(files) == {path.name: "it could not be written to the disk: Input/output error"}
    again(files)
    files.recheck()
    assert files.run()
    assert list(reasons(files)) == [path.name], "the next sync tells of success though the content is lost"


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_no_footer_hangs_or_escapes_the_check(tmp_path_factory: pytest.TempPathFactory, footer: bytes) -> None:
    path = tmp_path_factory.mktemp("footer") / "x.parquet"
    content = b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1"
    path.write_bytes(content)
    add = AddFile(path=str(path), partition_values={}, size=len(content), stats='{"numRecords":7}')
    check(open_storage(path.parent), str(path.parent), [table_file(add)])


def test_objects_are_checked_by_a_listing_and_new_ones_by_their_footers(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_server.enter(monkeypatch)
    lake = s3_server.url(tmp_path.name)
    storage, table = open_storage(lake), f"{lake}/streams/S"

    def append(first: int) -> None:
        rows = pa.table({"seq": range(first, first + 10)})
        write_deltalake(table, rows, mode="append", storage_options=storage.delta_options())

    append(1)
    files = Checks(storage, table)
    assert files.run()
    assert files.damaged == {}
    (old,) = [entry for entry in storage.list(table) if entry.name.endswith(".parquet")]
    append(11)
    (new,) = [entry for entry in storage.list(table) if entry.name.endswith(".parquet") and entry != old]
    storage.write(new.path, bytes(new.size))
    assert "does not end in PAR1" in reasons(again(files))[new.name]
    storage.write(new.path, b"short")
    listed: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(ObjectStorage, "stat", lambda *_: pytest.fail("a request for a single file"))
        real = ObjectStorage.tree

        def counted(self: ObjectStorage, directory: str) -> list[FileEntry]:
            listed.append(directory)
            return real(self, directory)

        patch.setattr(ObjectStorage, "tree", counted)
        (damage,) = table_check.lacking(
            storage, table, map(table_file, TableLog(storage, table).state().files.values())
        )
    assert (damage.path, listed) == (new.path, [table])
    storage.write(old.path, b"short")
    other = Checks(storage, table)
    assert other.run()
    assert "it has 5 bytes" in reasons(other)[old.name]


def test_a_lock_is_seen_without_taking_it(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s3_server.enter(monkeypatch)
    path = f"{s3_server.url(tmp_path.name)}/{COMPACTOR_LOCK}"
    assert not is_held(path)
    lease = Lease(path, 30.0)
    assert lease.acquire()
    assert is_held(path)
    lease.release()
    assert not is_held(path)
    file = tmp_path / COMPACTOR_LOCK
    assert not is_held(str(file))
    program = "import fcntl,sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert is_held(str(file))
        holder.communicate(b"\n")
    assert not is_held(str(file))


def test_files_are_checked_again_after_a_vacuum_by_another_program(table: Path) -> None:
    """A VACUUM without retention deletes files that a commit names while it runs."""
    add_rows(table, 0, 5)
    files = checked(table)
    commit(table, {"commitInfo": {"operation": "VACUUM START"}})
    assert not files.run(Budget(0)), "all files are to be checked"
    assert files.run()
    assert files.is_vacuumed
    lost = add_rows(table, 5, 5)
    assert files.run()
    lost.unlink()
    assert files.run()
    assert reasons(files) == {}
    commit(table, {"commitInfo": {"operation": "VACUUM END"}})
    assert not files.run()
    assert files.run()
    assert not files.is_vacuumed
    assert reasons(files) == {lost.name: "it is missing"}


def test_a_vacuum_without_an_end_ends_after_some_time(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_rows(table, 0, 5)
    files = checked(table)
    commit(table, {"commitInfo": {"operation": "VACUUM START"}})
    assert not files.run()
    assert files.run()
    assert files.is_vacuumed
    monkeypatch.setattr(table_check, "VACUUM_SECONDS", 0.0)
    assert files.run()
    assert not files.is_vacuumed
