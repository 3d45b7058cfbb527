"""Tests of the server's poll of a stream's table: the staged segments that it removes, and those that it keeps."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from lakestream.lake.errors import LakeAway
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import identify, open_storage
from lakestream.lake.storage.probe import Probe
from lakestream.lake.table.check import Budget
from lakestream.lake.table.state import Head
from lakestream.server.lake.early_seals import SAVED, EarlySeals
from lakestream.server.lake.stream_sync import Grace, LookResult, StreamSync
from lakestream.stream.core.config import StreamConfig

pytestmark = pytest.mark.unit


class Look:
    """Table with two commits, through log index 10 and 20, and a staged segment of each."""

    def __init__(self, lake: Path, require: Callable[[], None] = lambda: None) -> None:
        stream = SimpleNamespace(
            name="S", account="$G", uid="U", created_ns=1, config=StreamConfig(name="S"), replicated=False, leading=True
        )
        self.kept = StreamSync(cast(Any, stream), str(lake), Grace(0, 0), EarlySeals(10**10), None, require)
        self.table = Path(self.kept.table)
        self.staging = Path(self.kept.directory)
        self.staging.mkdir(parents=True)
        self.files: list[Path] = []
        for first in (1, 11):
            self.commit(first + 9)
            (self.staging / paths.segment_name(first, first + 9)).write_bytes(b"")

    def commit(self, index: int) -> None:
        write_deltalake(
            self.table,
            pa.table({"seq": [index]}),
            mode="append",
            commit_properties=CommitProperties(app_transactions=[Transaction("lakestream:U", index)]),
        )
        self.files += set(self.table.glob("*.parquet")) - set(self.files)

    def go_back(self) -> None:
        """Commit what a repair commits: the first version once more."""
        version = len(list((self.table / "_delta_log").glob("*.json")))
        actions: list[dict[str, Any]] = [
            {"txn": {"appId": "lakestream:U", "version": 10}},
            {"remove": {"path": self.files[1].name, "dataChange": True, "deletionTimestamp": 1}},
        ]
        text = "\n".join(json.dumps(action, separators=(",", ":")) for action in actions)
        (self.table / "_delta_log" / f"{version:020d}.json").write_text(text)

    def __call__(self) -> LookResult:
        return self.kept.look([], None, True, 0, 21, 100, Budget())

    def staged(self) -> list[int]:
        return [int(path.stem.split("-")[1]) for path in sorted(self.staging.glob("*.seg"))]


def test_what_the_table_holds_in_whole_files_is_not_staged_any_more(tmp_path: Path) -> None:
    look = Look(tmp_path)
    assert look() == LookResult(20, 20, changes=[])
    assert look.staged() == []


def test_invariant_10_nothing_staged_goes_while_a_file_is_damaged(tmp_path: Path) -> None:
    look = Look(tmp_path)
    look.files[1].write_bytes(b"")
    found = look()
    assert found.held is None
    assert found.damaged
    assert look.staged() == [10, 20]
    assert (look.staging / paths.DAMAGED_FILE).exists()
    look.go_back()
    assert look() == LookResult(10, 10, changes=[])
    assert look.staged() == [20]
    assert not (look.staging / paths.DAMAGED_FILE).exists()


def test_invariant_10_a_repair_in_the_middle_of_a_look_takes_the_position_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Look(tmp_path)
    look.files[1].write_bytes(b"")
    assert look().damaged
    files = look.kept._files
    real = files.look

    def repaired(head: Head, budget: Budget) -> bool:
        look.go_back()
        return real(head, budget)

    monkeypatch.setattr(files, "look", repaired)
    assert look() == LookResult(10, 10, changes=[]), "not the position that was read before the files were found whole"
    assert look.staged() == [20]


def test_a_lake_that_goes_away_in_the_middle_of_a_look_is_not_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are missing then, and the request for a repair made the lake's directories."""
    lake = tmp_path / "lake"
    probe = Probe(str(lake))
    look = Look(lake, probe.check)
    probe.expect(identify(open_storage(lake)))
    assert look().position == 20
    look.commit(30)
    real = look.kept._files.look

    def unmounted(head: Head, budget: Budget) -> bool:
        look.files[-1].unlink()
        found = real(head, budget)
        shutil.rmtree(lake)
        return found

    monkeypatch.setattr(look.kept._files, "look", unmounted)
    with pytest.raises(LakeAway):
        look()
    assert not lake.exists()


def test_what_cannot_be_checked_holds_nothing(tmp_path: Path) -> None:
    look = Look(tmp_path)
    assert look().held == 20
    look.commit(30)
    (look.table / "_delta_log" / f"{3:020d}.json").write_bytes(bytes(400))
    (look.staging / paths.segment_name(21, 30)).write_bytes(b"")
    assert look().held is None
    assert "cannot be checked" in look().trouble
    assert look.staged() == [30]


def test_a_segment_is_sealed_early_only_if_a_compactor_has_caught_up_and_credits_are_left(tmp_path: Path) -> None:
    look = Look(tmp_path)
    sync, asked = look.kept, []
    store = SimpleNamespace(sealed_through=(20, 20), has_unsealed=True, ask_seal=lambda: asked.append(1))
    sync.stream.store = cast(Any, store)
    assert not sync.seal_early(0, attended=True)  # the table was not looked at yet
    look()
    sync.position = 10
    assert not sync.seal_early(0, attended=True)  # the next commit will take what is staged
    sync.position = 20
    assert not sync.seal_early(0, attended=False)
    sync.trouble = "the table is damaged"
    assert not sync.seal_early(0, attended=True)
    sync.trouble = ""
    for sealed in range(SAVED):
        store.sealed_through = (20 - sealed, 20)
        assert sync.seal_early(0, attended=True)
    store.sealed_through = (20 - SAVED, 20)
    assert not sync.seal_early(0, attended=True)
    assert len(asked) == SAVED
    assert sync.seal_early(8 * 10**9, attended=True)
    sync.stream.leading = False  # type: ignore[misc]
    assert not sync.seal_early(60 * 10**9, attended=True)


def test_invariant_13_segments_stay_while_a_file_is_missing_that_was_found_whole_before(tmp_path: Path) -> None:
    look = Look(tmp_path)
    assert look().held == 20
    content = look.files[0].read_bytes()
    look.commit(30)
    (look.staging / paths.segment_name(21, 30)).write_bytes(b"")
    look.files[0].unlink()  # by another program, whose look at the table was an older one
    found = look()
    assert (found.held, found.damaged) == (None, False), "all files are checked next"
    found = look()
    assert found.damaged
    assert f"{look.files[0].name}: it is missing" in found.trouble
    assert look.staged() == [30]
    look.files[0].write_bytes(content)
    assert look() == LookResult(30, 30, changes=[])
    assert look.staged() == []


def test_invariant_13_segments_stay_in_the_log_while_a_file_is_missing(tmp_path: Path) -> None:
    look = Look(tmp_path)
    assert look().held == 20
    look.files[0].unlink()
    sealed = cast(Any, [SimpleNamespace(path="", first_index=11, last_index=20, first_seq=11, last_seq=20)])
    look.kept.staged_through = 20
    assert look.kept.look(sealed, None, False, 0, 21, 100, Budget()).held is None
    assert look.kept.look(sealed, None, False, 0, 21, 100, Budget()).damaged


def test_files_are_looked_up_once_for_the_same_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look, times = Look(tmp_path), list[int]()
    real = look.kept._files.are_there

    def counted() -> bool:
        times.append(1)
        return real()

    monkeypatch.setattr(look.kept._files, "are_there", counted)
    sealed = [SimpleNamespace(path="", first_index=1, last_index=10, first_seq=1, last_seq=10)]
    look.kept.staged_through = 20

    def looks() -> int:
        assert look.kept.look(cast(Any, sealed), None, True, 0, 21, 100, Budget()).held == 20
        return len(times)

    assert [looks(), looks(), looks()] == [1, 1, 1]
    sealed.append(SimpleNamespace(path="", first_index=11, last_index=20, first_seq=11, last_seq=20))
    assert [looks(), looks()] == [2, 2]


def test_a_request_of_another_program_for_a_repair_has_all_files_checked(tmp_path: Path) -> None:
    look = Look(tmp_path)
    assert look().held == 20
    request = look.staging / paths.DAMAGED_FILE
    request.write_text("{}")
    assert look().held == 20
    assert not request.exists(), "the table was found whole"
    look.files[1].unlink()
    request.write_text("{}")
    assert look().damaged
    assert request.exists()
