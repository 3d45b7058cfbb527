"""Tests of finding what other programs have changed in a table, with deltalake as the other program."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, write_deltalake

from lakestream.lake.staging import staging
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table import foreign_commits
from lakestream.lake.table.actions import MetaData, TableProtocol
from lakestream.lake.table.check import Budget, TableCheck
from lakestream.lake.table.foreign_commits import MARK, ForeignCommit, ForeignCommits, RowChange
from lakestream.lake.table.log import TableLog
from lakestream.lake.table.progress import application
from lakestream.lake.table.schema import UID_PROPERTY, table_schema
from lakestream.lake.table.state import TableFollower
from lakestream.log.index.sequences import SequenceSet

pytestmark = pytest.mark.unit

OURS = CommitProperties(custom_metadata={"userMetadata": MARK})
COLUMNS = ["subject", "seq", "time", "time_ns", "headers", "data", "header_block", "subject_bytes"]


def rows(seqs: Sequence[int], data: bytes = b"payload") -> pa.Table:
    schema = table_schema(COLUMNS)
    found = [{"subject": f"s.{seq % 3}", "seq": seq, "time_ns": seq, "data": data + b"%d" % seq} for seq in seqs]
    return pa.Table.from_pylist(found, schema=schema)


class Table:
    """A table that lakestream has written rows 1 to 30 to, and what another program does to it."""

    def __init__(self, root: Path) -> None:
        self.path, self.staging = str(root / "streams" / "S"), str(root / "segments" / "S" / "uid")
        Path(self.staging).mkdir(parents=True)
        self.storage: Storage = open_storage(str(root))
        for first in (1, 11, 21):
            self.ours(range(first, first + 10))
        self.foreign = ForeignCommits(self.storage, self.path, self.staging)
        self._seen = self.version

    @property
    def version(self) -> int:
        return DeltaTable(self.path).version()

    def ours(self, seqs: Sequence[int]) -> None:
        write_deltalake(self.path, rows(seqs), mode="append", commit_properties=OURS)

    def theirs(self, seqs: Sequence[int]) -> None:
        write_deltalake(self.path, rows(seqs, b"of another program"), mode="append")

    def look(self) -> list[tuple[int, RowChange]]:
        """Return what is left of other programs' changes, by version."""
        log = TableLog(self.storage, self.path)
        commits = [foreign_commits.foreign(log.commit(each)) for each in range(self._seen + 1, self.version + 1)]
        self._seen = self.version
        found = self.foreign.look(
            [each for each in commits if each], self.storage.list(self.staging), self.version, leads=True
        )
        self.found = [commit for commit, _ in found.values()]
        return [(version, left) for version, (_, left) in found.items()]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def update(table: Table) -> None:
    DeltaTable(table.path).update(updates={"data": "X'7061796c6f616435ff'"}, predicate="seq = 5")


FEED = {"delta.enableChangeDataFeed": "true"}
DELETED = RowChange([(5, 5), (9, 12)])
CHANGES: dict[str, tuple[Callable[[Table], Any], RowChange]] = {
    "nothing": (lambda table: None, RowChange()),
    "ours": (lambda table: table.ours([31, 32]), RowChange()),
    "OPTIMIZE": (lambda table: DeltaTable(table.path).optimize.compact(), RowChange()),
    "Z-order": (lambda table: DeltaTable(table.path).optimize.z_order(["time_ns"]), RowChange()),
    "DELETE": (
        lambda table: DeltaTable(table.path).delete("seq = 5 OR seq BETWEEN 9 AND 12"),
        DELETED,
    ),
    "DELETE of all": (lambda table: DeltaTable(table.path).delete(), RowChange([(1, 30)])),
    "UPDATE": (update, RowChange([(5, 5)])),
    "INSERT of others": (lambda table: table.theirs([40, 41]), RowChange([], [(40, 41)])),
    "INSERT of the same sequence": (lambda table: table.theirs([7]), RowChange([(7, 7)])),
    "RESTORE": (lambda table: DeltaTable(table.path).restore(0), RowChange([(11, 30)])),
    "properties": (
        lambda table: DeltaTable(table.path).alter.set_table_properties(FEED),
        RowChange(),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_kind_of_change_is_found_with_its_sequences(table: Table, name: str) -> None:
    change, wanted = CHANGES[name]
    change(table)
    assert table.look() == ([(3, wanted)] if wanted != RowChange() else [])


@pytest.mark.parametrize("name", ["DELETE", "DELETE of all", "UPDATE", "INSERT of others", "RESTORE"])
def test_restoring_the_version_before_leaves_nothing_of_a_change(table: Table, name: str) -> None:
    CHANGES[name][0](table)
    assert table.look()
    DeltaTable(table.path).restore(2)
    left = table.look()
    assert [each for each in left if each[1] != RowChange()] == []
    table.foreign.settle([version for version, _ in left], 2, leads=True)
    assert [change for _, change in table.look()] == [RowChange(), RowChange()]
    assert len(list(Path(table.staging).iterdir())) == 2, "the compactor may still find them"
    table.ours([31])
    table.foreign.settle([version for version, _ in left], table.version, leads=True)
    assert table.look() == []
    assert list(Path(table.staging).iterdir()) == []


def test_a_change_is_known_after_a_restart_and_after_later_commits(table: Table) -> None:
    CHANGES["DELETE"][0](table)
    table.ours(range(31, 41))
    before = table.look()
    assert before == [(3, DELETED)]
    DeltaTable(table.path).optimize.compact()
    table.foreign = ForeignCommits(table.storage, table.path, table.staging)
    table._seen = table.version
    assert table.look() == before


def test_rows_of_one_change_may_be_put_back_one_by_one(table: Table) -> None:
    CHANGES["DELETE"][0](table)
    assert table.look() == [(3, DELETED)]
    write_deltalake(table.path, rows([5, 9]), mode="append")
    assert table.look()[0] == (3, RowChange([(10, 12)]))
    write_deltalake(table.path, rows([10, 11], b"other"), mode="append")
    assert table.look()[0] == (3, RowChange([(10, 12)])), "these are not the rows that were deleted"


def test_versions_that_cannot_be_compared_doubt_every_row_of_the_files(table: Table) -> None:
    victims = [path for path in Path(table.path).rglob("*.parquet") if "_delta_log" not in path.parts]
    update(table)
    for victim in victims:
        victim.unlink()
    [(version, left)] = table.look()
    assert (version, left.compared) == (3, False)
    assert left.changed[0][0] <= 5 <= left.changed[0][1]


def test_the_compactor_finds_commits_since_its_own_last_one(table: Table) -> None:
    log = TableLog(table.storage, table.path)
    assert foreign_commits.since_progress(log, application("uid")) == []
    CHANGES["DELETE"][0](table)
    table.theirs([40])
    log = TableLog(table.storage, table.path)
    found = foreign_commits.since_progress(log, application("uid"))
    assert [(each.version, each.operation) for each in found] == [(3, "DELETE"), (4, "WRITE")]
    assert foreign_commits.since_progress(log, application("uid"), 2) == found
    foreign_commits.leave_notes(table.storage, table.staging, found)
    table._seen = table.version
    assert [version for version, _ in table.look()] == [3, 4]


def test_a_change_that_was_undone_is_not_found_again_by_the_compactor(table: Table) -> None:
    CHANGES["DELETE"][0](table)
    table.look()
    DeltaTable(table.path).restore(2)
    left = table.look()
    table.foreign.settle([version for version, _ in left], 2, leads=True)
    found = foreign_commits.since_progress(TableLog(table.storage, table.path), application("uid"))
    for each in found:  # one at a time: the server may look in between
        foreign_commits.leave_notes(table.storage, table.staging, [each])
        assert [change for _, change in table.look()] == [RowChange(), RowChange()]


def test_a_note_of_a_table_that_was_there_before_does_not_count(table: Table) -> None:
    foreign_commits.leave_notes(table.storage, table.staging, [ForeignCommit(99, "DELETE", 1, 30)])
    assert table.look() == []


def test_runs_are_joined_and_limited() -> None:
    assert foreign_commits.joined([(5, 6), (1, 2), (3, 3), (9, 9)]) == [(1, 3), (5, 6), (9, 9)]
    many = [(seq, seq) for seq in range(0, 4 * foreign_commits.MAX_RUNS, 2)]
    found = foreign_commits.joined(many)
    assert len(found) <= foreign_commits.MAX_RUNS
    assert (found[0][0], found[-1][1]) == (many[0][0], many[-1][1])


def undo(commit: ForeignCommit, left: RowChange, newest: int) -> str:
    """Return the description of a change whose sequences all have messages."""
    commit = msgspec.structs.replace(commit, select="`seq`, NULL AS `n`")
    held = left.changed
    return foreign_commits.described("t", commit, left, held, sum(last - first + 1 for first, last in held), newest)


def test_a_change_that_no_commit_has_followed_is_undone_by_restoring_the_version_before() -> None:
    said = undo(ForeignCommit(7, "WRITE", 1, 30), RowChange([(5, 5)], [(40, 41)]), 7)
    assert "in Spark SQL with RESTORE TABLE delta.`t` TO VERSION AS OF 6; or accept it" in said


def test_rows_that_were_doubled_or_changed_are_all_replaced_once_the_compactor_has_committed() -> None:
    said = undo(ForeignCommit(7, "WRITE", 1, 30), RowChange([(5, 5), (8, 9)]), 9)
    where = "seq BETWEEN 5 AND 5 OR seq BETWEEN 8 AND 9"
    command = f"INSERT INTO delta.`t` REPLACE WHERE {where} SELECT `seq`, NULL AS `n` FROM delta.`t` VERSION AS OF 6"
    command += f" WHERE {where}; or"
    assert command in said
    assert foreign_commits.AND_WITH not in said


def test_inserted_rows_are_deleted_once_the_compactor_has_committed() -> None:
    said = undo(ForeignCommit(7, "WRITE", 1, 30), RowChange([], [(40, 41)]), 9)
    assert "in Spark SQL with MERGE INTO delta.`t` t USING" in said
    assert "VERSION AS OF 7 WHERE seq BETWEEN 40 AND 41) o" in said
    assert "WHEN MATCHED THEN DELETE (docs/" in said
    both = undo(ForeignCommit(7, "WRITE", 1, 30), RowChange([(5, 5)], [(40, 41)]), 9)
    assert [each.count("MERGE") for each in both.split(foreign_commits.AND_WITH)] == [0, 1]


def test_rows_that_may_have_changed_are_not_deleted_by_the_undo() -> None:
    said = undo(ForeignCommit(7, "WRITE", 1, 30), RowChange([(1, 30)], compared=False), 9)
    assert "REPLACE WHERE" not in said
    assert "WHEN NOT MATCHED THEN INSERT *" in said


def test_rows_of_deleted_messages_are_not_put_back_by_the_undo() -> None:
    live = SequenceSet()
    live.add_run(1, 100)
    assert foreign_commits.with_messages([(5, 5), (8, 12)], live.iter_missing) == [(5, 5), (8, 12)]
    live.discard_all([9, 10, 50])
    assert foreign_commits.with_messages([(5, 5), (8, 12)], live.iter_missing) == [(5, 5), (8, 8), (11, 12)]
    runs = [(1, 40), (60, 1 << 40)]
    assert foreign_commits.with_messages(runs, live.iter_missing) == runs, "too many sequences have no message"
    live.discard_all(range(60, 100, 2))
    assert foreign_commits.with_messages([(60, 100)], live.iter_missing) == [(60, 100)], "too many runs are left"


def test_a_change_of_many_runs_has_no_command_once_the_compactor_has_committed() -> None:
    many = [(seq, seq) for seq in range(0, 3 * foreign_commits.NAMED_RUNS, 2)]
    assert "put the rows of VERSION AS OF 6 back" in undo(ForeignCommit(7, "WRITE", 1, 30), RowChange(many), 9)
    said = undo(ForeignCommit(7, "WRITE", 1, 30), RowChange([], many), 9)
    assert "delete the rows that are in VERSION AS OF 7 and not in 6" in said


FIELDS = [{"name": name} for name in foreign_commits.MESSAGE_COLUMNS]
OBSTACLES: dict[str, tuple[list[dict[str, str]], TableProtocol, str]] = {
    "none": (FIELDS, TableProtocol(3, ["deletionVectors"]), ""),
    "a later protocol": (FIELDS, TableProtocol(4), "upgrade lakestream"),
    "an unknown feature": (FIELDS, TableProtocol(3, ["deletionVectors", "future"]), "DROP FEATURE future"),
    "a dropped column": (FIELDS[:-1], TableProtocol(), "RESTORE TABLE delta.`t` TO VERSION AS OF 6"),
    "column mapping": (FIELDS, TableProtocol(3, ["deletionVectors", "columnMapping"]), "DROP FEATURE columnMapping"),
    "another column first": ([{"name": "note"}, *FIELDS], TableProtocol(), ""),
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_a_table_that_cannot_be_read_as_it_is_declared_is_named_with_the_remedy(name: str) -> None:
    fields, protocol, wanted = OBSTACLES[name]
    schema = msgspec.json.encode({"type": "struct", "fields": fields}).decode()
    found = foreign_commits.obstacle("t", 7, MetaData("id", schema, configuration={UID_PROPERTY: "uid"}), protocol)
    assert wanted in found
    assert bool(found) == bool(wanted)


def test_the_undo_of_a_change_names_the_columns_of_today(table: Table) -> None:
    CHANGES["DELETE"][0](table)
    table.look()
    [commit] = table.found
    assert commit.select == "", "RESTORE needs none"
    table.ours(range(31, 41))
    table.look()
    assert table.found[0].select == ", ".join(f"`{name}`" for name in COLUMNS)
    DeltaTable(table.path).alter.add_columns([Field("od`d", "double"), Field("n", "string")])
    table.look()
    assert table.found[0].select.endswith("`subject_bytes`, NULL AS `od``d`, NULL AS `n`")
    DeltaTable(table.path).alter.add_columns([Field("bucket", "integer")])
    table.look()
    assert table.found[0].select == "", "its values follow from the layout"
    assert "put the rows of VERSION AS OF 2 back" in foreign_commits.described(
        "t", table.found[0], DELETED, [(5, 5)], 1, 9
    )


def test_a_feature_that_another_program_has_enabled_is_found_with_its_commit(table: Table) -> None:
    follower = TableFollower(table.path, "uid")
    files = TableCheck(table.storage, follower)
    assert files.look(follower.newest(), Budget())
    assert files.obstacle == ""
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["new"], "writerFeatures": ["new"]}
    commit = Path(table.path, "_delta_log", f"{table.version + 1:020d}.json")
    commit.write_text(json.dumps({"protocol": protocol}) + "\n")
    assert files.look(follower.newest(), Budget())
    assert "needs features that the server cannot read: new" in files.obstacle


def test_the_compactors_error_is_told_to_the_server(table: Table) -> None:
    storage, directory = table.storage, table.staging
    staging.refuse(storage, directory, "of a stream that is gone")
    assert storage.list(directory) == []
    Path(directory, "stream.json").write_text("{}")
    staging.refuse(storage, directory, "a feature of tomorrow")
    assert "a feature of tomorrow" in staging.refusal(storage, directory, storage.list(directory))
    staging.refuse(storage, directory, "")
    assert staging.refusal(storage, directory, storage.list(directory)) == ""
