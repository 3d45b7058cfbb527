"""Changes of a stream's table by other programs.

Belongs here: recognising commits that lakestream did not make and that change rows, finding the sequences whose rows
they deleted, changed or inserted, and noticing when a later commit has undone that. Whoever sees such a commit first,
server or compactor, leaves a note in the stream's staging directory, so that neither a restart nor later commits hide
it:

    foreign-<version>.json      a commit by another program. Once the table is again what the stream has, the server
                                that leads the stream empties it, and deletes it after the compactor's next commit.

A commit is lakestream's if it has the transaction identifier or the progress of a stream, or the mark of the
compactor's session. OPTIMIZE and other commits that change no row (`dataChange`) are of no interest, whoever makes
them. The versions before and after a commit are compared row by row, with DataFusion, over the sequences of the files
that it added and removed.

Source: Delta protocol, "Add File and Remove File" (dataChange), "Commit Provenance Information".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from lakestream.lake.errors import DamagedLog
from lakestream.lake.storage.storage import FileEntry, Storage
from lakestream.lake.table import erasures
from lakestream.lake.table.actions import AddFile, MetaData, RemoveFile, TableProtocol, statistics
from lakestream.lake.table.log import LogCommit, TableLog
from lakestream.lake.table.progress import APPLICATION, progress_of
from lakestream.lake.table.schema import (
    END,
    FORMAT_COLUMN,
    SCHEMA_COLUMN,
    UID_PROPERTY,
    column_names,
    doubled,
    is_own,
    is_partition_value,
    ticked,
)
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder

MARK = '{"lakestream":"compactor"}'
"""userMetadata of the compactor's commits that state no progress."""
CHUNK_ROWS = 16_384
"""Rows of each version that are compared at once."""
MAX_RUNS = 10_000
"""Maximum number of runs of sequences that are kept of a commit; beyond, near ones are joined."""
READABLE = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "inCommitTimestamp",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
        "variantType-preview",
    }
)
"""Reader features of tables that deltalake reads. With others only small files are read, if at all."""
MESSAGE_COLUMNS = ("seq", "time_ns", "subject", "subject_bytes", "headers", "header_block", "data")
"""Columns of a table without which no message is read."""
MAPPING = "delta.columnMapping.mode"
"""Property of tables whose columns have other names in their files; lakestream never sets it."""
NAMED_RUNS = 10
"""Maximum number of runs of sequences that a text names."""
MAX_GONE = 1000
"""Maximum number of sequences without messages that a text leaves out of its runs."""
AND_WITH = "; and with "
"""Text between two commands that undo a change together."""
_NAME = re.compile(r"^foreign-(\d{1,20})\.json$")
_COLUMNS = "seq, time_ns, subject, subject_bytes, headers, header_block, sha256(data) AS data"

Run = tuple[int, int]
"""First and last sequence, inclusive."""


class RowChange(msgspec.Struct, frozen=True):
    """Effect of a foreign commit.

    `changed`: sequences whose rows were deleted or changed; `inserted`: those that had no row before. `compared` is
    False if the versions could not be compared: then any row of the commit's files may have been changed.
    """

    changed: list[Run] = []
    inserted: list[Run] = []
    compared: bool = True


class ForeignCommit(msgspec.Struct, frozen=True):
    """A commit by another program, and the content of a note.

    Sequences of its files, as far as their statistics tell, are `first` to `last`. `change` is its effect, without that
    on sequences which an earlier one had changed; None: not compared yet. `select` is the SELECT list by which rows of
    the version before have the columns of the table today; "": it is not known, or there is none.
    """

    version: int
    operation: str
    first: int
    last: int
    change: RowChange | None = None
    select: str = ""


_FOREIGN = JsonDecoder(ForeignCommit)


def foreign(commit: LogCommit) -> ForeignCommit | None:
    """Return a commit that changes rows and is not lakestream's; None for any other."""
    info = commit.info
    if any(action.txn is not None and action.txn.app_id.startswith(APPLICATION) for action in commit.actions):
        return None
    if info.user_metadata == MARK or progress_of(info) is not None:
        return None
    found = (action.add or action.remove for action in commit.actions)
    files: list[AddFile | RemoveFile] = [file for file in found if file is not None and file.data_change]
    if not files:
        return None
    stats = [statistics(file) for file in files]
    first = min((each.min_seq for each in stats), default=0)
    last = max((each.max_seq or END for each in stats), default=END)
    return ForeignCommit(commit.version, info.operation or "an unknown operation", first, last)


def since_progress(log: TableLog, application: str, moved: int = -1) -> list[ForeignCommit]:
    """Return the foreign commits after the last one that moved the position of `application`, ascending.

    Args:
        log: the table's log.
        application: `txnAppId` of the stream's commits.
        moved: version of that commit, which spares listing the log; -1: unknown.
    """
    if moved >= 0:
        return [each for commit in log.commits_after(moved) if (each := foreign(commit)) is not None]
    found = []
    for version in reversed(log.commits):
        try:
            commit = log.commit(version)
        except (FileNotFoundError, DamagedLog):
            break
        if any(action.txn is not None and action.txn.app_id == application for action in commit.actions):
            break
        if (each := foreign(commit)) is not None:
            found.append(each)
    return found[::-1]


def leave_notes(storage: Storage, directory: str, commits: Iterable[ForeignCommit]) -> None:
    """Write a note of each commit that has none yet."""
    for each in commits:
        storage.create(_note(directory, each.version), msgspec.json.encode(each))


def _note(directory: str, version: int) -> str:
    return f"{directory}/foreign-{version}.json"


class ForeignCommits:
    """The foreign commits of one table that are not undone. Blocks; not for use by two threads at once.

    Args:
        storage: the lake.
        table: the table's path.
        directory: the stream's staging directory.
    """

    def __init__(self, storage: Storage, table: str, directory: str) -> None:
        self._storage, self._table, self._directory = storage, table, directory
        self._known: dict[int, ForeignCommit] = {}
        self._now: dict[int, RowChange] = {}
        self._version = -1

    def look(
        self, new: Sequence[ForeignCommit], entries: Sequence[FileEntry], version: int, leads: bool
    ) -> dict[int, tuple[ForeignCommit, RowChange]]:
        """Return the foreign commits with what is left of their changes, by version, ascending.

        Args:
            new: foreign commits that were found since the last look.
            entries: the stream's staging directory.
            version: the table's newest version.
            leads: this replica writes notes.
        """
        fresh = {each.version: each for each in new if each.version not in self._known}
        for entry in entries:
            found = _NAME.match(entry.name)
            if found is None or int(found[1]) in self._known:
                continue
            try:
                note = _FOREIGN.decode(self._storage.read(entry.path))
            except (FileNotFoundError, *DECODE_ERRORS):
                continue
            if note.version <= version:  # else of a table that was there before
                fresh[note.version] = note
        for each in sorted(fresh):
            self._known[each] = commit = self._compared(fresh[each])
            if leads:
                self._storage.write(_note(self._directory, each), msgspec.json.encode(commit))
        if fresh or version != self._version:
            there = sorted(each for each in self._known if each <= version)  # an older copy has not all of them
            self._now = {each: self._left(self._known[each], version) for each in there}
            for each in there:
                select = self._select(each - 1, version) if self._now[each] != RowChange() and each < version else ""
                self._known[each] = msgspec.structs.replace(self._known[each], select=select)
        self._version = version
        return {each: (self._known[each], left) for each, left in self._now.items()}

    def settle(self, versions: Iterable[int], moved: int, leads: bool) -> None:
        """Forget the changes of these commits, which have no effect any more.

        Args:
            moved: version of the last commit of the compactor, which looks no further back for foreign commits.
            leads: this replica writes notes.
        """
        for version in versions:
            commit = self._known.get(version)
            if commit is None:
                continue
            if version < moved:
                del self._known[version]
                self._now.pop(version, None)
                if leads:
                    self._storage.delete(_note(self._directory, version))
            elif commit.change != RowChange():
                self._known[version] = commit = msgspec.structs.replace(commit, change=RowChange())
                self._now[version] = RowChange()
                if leads:
                    self._storage.write(_note(self._directory, version), msgspec.json.encode(commit))

    def _left(self, commit: ForeignCommit, version: int) -> RowChange:
        """Return what is left of a commit's change at a version."""
        made = commit.change or RowChange()
        if made == RowChange() or not made.compared or version <= commit.version:
            return made
        try:
            before, then, now = (self._open(each) for each in (commit.version - 1, commit.version, version))
            changed = [run for each in made.changed for run in _differing(before, now, each)[0]]
            inserted = [run for each in made.inserted for run in _common(then, now, each)]
        except Exception:  # deltalake raises bare Exception for a file that is gone
            return made
        return RowChange(joined(changed), joined(inserted))

    def _select(self, before: int, now: int) -> str:
        """Return `ForeignCommit.select` for two versions."""
        try:
            then, today = ({each.name: each.type for each in self._open(at).scan.schema.fields} for at in (before, now))
        except Exception:  # as above
            return ""
        added = [name for name in today if name not in then]
        others = [name for name, of in today.items() if then.get(name, of) != of]
        if others or any(is_partition_value(name) for name in added):
            return ""  # the types of fields differ, or the values follow from the layout
        return ", ".join(f"NULL AS {ticked(name)}" if name in added else ticked(name) for name in today)

    def _compared(self, commit: ForeignCommit) -> ForeignCommit:
        """Return the commit with its change."""
        if commit.change is not None:
            return commit
        span = (commit.first, commit.last)
        try:
            before, after = self._open(commit.version - 1), self._open(commit.version)
            changed, inserted = map(joined, _differing(before, after, span))
        except Exception:  # as above
            return msgspec.structs.replace(commit, change=RowChange([span], compared=False))
        earlier = [each.change for each in self._known.values() if each.version < commit.version and each.change]
        known = joined(run for each in earlier for run in (*each.changed, *each.inserted))
        return msgspec.structs.replace(commit, change=RowChange(_without(changed, known), _without(inserted, known)))

    def _open(self, version: int) -> _Version:
        from lakestream.lake.table.scan import Scan  # loads pyarrow

        scan = Scan(self._table, version, self._storage)
        names = scan.names
        # Payloads may be in typed columns, which other programs change too.
        more = [SCHEMA_COLUMN, FORMAT_COLUMN, *(doubled(name) for name in names if not is_own(name))]
        return _Version(scan, ", ".join([_COLUMNS, *(more if FORMAT_COLUMN in names else [])]))


class _Version(NamedTuple):
    """A version of a table, and the columns that messages are made of."""

    scan: Any
    columns: str


def _query(version: _Version, first: int, last: int, limit: int) -> dict[int, list[Any]]:
    """Return the rows of a version with these sequences by sequence, at most `limit`."""
    sql = f"SELECT {version.columns} FROM t WHERE seq >= {first} AND seq <= {last} ORDER BY seq LIMIT {limit}"
    found: dict[int, list[Any]] = {}
    for row in version.scan.query(sql).to_pylist():
        found.setdefault(row["seq"], []).append(row)
    return found


def _pairs(one: _Version, other: _Version, run: Run) -> Iterator[tuple[dict[int, list[Any]], dict[int, list[Any]]]]:
    """Yield the rows of two versions by sequence, over the same ranges of sequences."""
    at, last = run
    while at <= last:
        left, right = _query(one, at, last, CHUNK_ROWS), _query(other, at, last, CHUNK_ROWS)
        ends = [max(rows) for rows in (left, right) if sum(map(len, rows.values())) >= CHUNK_ROWS]
        end = min(ends, default=last)
        yield (
            {seq: rows for seq, rows in left.items() if seq <= end},
            {seq: rows for seq, rows in right.items() if seq <= end},
        )
        at = end + 1


def _differing(before: _Version, after: _Version, run: Run) -> tuple[list[Run], list[Run]]:
    """Return (sequences whose rows of `before` are missing or other in `after`, sequences that only `after` has)."""
    changed: list[Run] = []
    inserted: list[Run] = []
    for left, right in _pairs(before, after, run):
        if left != right:
            changed += [(seq, seq) for seq, rows in left.items() if right.get(seq) != rows]
            inserted += [(seq, seq) for seq in right if seq not in left]
    return changed, inserted


def _common(then: _Version, now: _Version, run: Run) -> list[Run]:
    """Return the sequences of which both versions have the same row."""
    pairs = _pairs(then, now, run)
    return [(seq, seq) for left, right in pairs for seq in left if any(row in left[seq] for row in right.get(seq, ()))]


def with_messages(runs: Sequence[Run], missing: Callable[[int, int], Iterable[int]]) -> Sequence[Run]:
    """Return runs without the sequences that have no message, so that no row of a deleted message is put back.

    They are returned as they are if more than `NAMED_RUNS` would be left, or more than `MAX_GONE` sequences left out.

    Args:
        runs: ascending runs.
        missing: returns the sequences without messages from one to another, inclusive.
    """
    if len(runs) > NAMED_RUNS:
        return runs
    gone = list(islice((seq for run in runs for seq in missing(*run)), MAX_GONE + 1))
    if len(gone) > MAX_GONE:
        return runs
    left = _without(runs, joined((seq, seq) for seq in gone))
    return left if len(left) <= NAMED_RUNS else runs


def described(table: str, commit: ForeignCommit, left: RowChange, held: Sequence[Run], count: int, newest: int) -> str:
    """Describe a change that concerns a stream, with what to do, in one line.

    Args:
        table: the table's path.
        commit: the commit.
        left: what is left of its change.
        held: the sequences of it that have messages, and `count` of those.
        newest: the lowest version since which all commits are by other programs.
    """
    version, what = commit.version, []
    if held:
        did = "deleted or changed the rows of" if left.compared else "may have changed the rows of"
        what.append(f"{did} {count} messages with sequences from {held[0][0]} to {held[-1][1]}, which are not read")
    if left.inserted:
        what.append(f"inserted rows with sequences from {left.inserted[0][0]} to {left.inserted[-1][1]}")
    said = f"{table} was changed by another program: version {version} ({commit.operation}) {' and '.join(what)}"
    if version >= newest:
        undo = f"undo it in Spark SQL with RESTORE TABLE delta.`{table}` TO VERSION AS OF {newest - 1}"
    else:
        undo = _remedy(table, commit, held, left)
    accept = "; or accept it, by deleting these messages in the stream" if held else ""
    return f"{said}; {undo}{accept} (docs/lake.md, Changes by other programs)"


def _remedy(table: str, commit: ForeignCommit, held: Sequence[Run], left: RowChange) -> str:
    """Return what undoes a change that the compactor's commits have followed.

    Args:
        table: the table's path.
        commit: the commit that made the change.
        held: the sequences that have messages and whose rows are missing, changed or doubled.
        left: what is left of the change.
    """
    version = commit.version
    if len(held) > NAMED_RUNS or (held and not commit.select):
        return f"put the rows of VERSION AS OF {version - 1} back"
    if len(left.inserted) > NAMED_RUNS:
        return f"delete the rows that are in VERSION AS OF {version} and not in {version - 1}"
    commands = []
    # Columns are named: the table may have got more of them since, which the version before does not have.
    before, where = f"SELECT {commit.select} FROM delta.`{table}` VERSION AS OF {version - 1}", _where(held)
    if held and left.compared:  # replaces all rows of a sequence, of which a MERGE would update each
        commands.append(f"INSERT INTO delta.`{table}` REPLACE WHERE {where} {before} WHERE {where}")
    elif held:  # any row of the files, and rows that came later must stay
        commands.append(
            f"MERGE INTO delta.`{table}` t USING ({before} WHERE {where}) o ON t.seq = o.seq "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
    if left.inserted:  # a message may have got the same sequence since: only rows with the same content go
        commands.append(
            f"MERGE INTO delta.`{table}` t USING (SELECT * FROM delta.`{table}` VERSION AS OF {version} "
            f"WHERE {_where(left.inserted)}) o ON t.seq = o.seq AND t.time_ns <=> o.time_ns "
            "AND t.subject <=> o.subject AND t.data <=> o.data WHEN MATCHED THEN DELETE"
        )
    return "undo it in Spark SQL with " + AND_WITH.join(commands)


def _where(runs: Iterable[Run]) -> str:
    return " OR ".join(f"seq BETWEEN {first} AND {last}" for first, last in runs)


def obstacle(table: str, version: int, metadata: MetaData, protocol: TableProtocol) -> str:
    """Return the reason why messages cannot be read from a table as it is declared, with what to do; "" for none.

    Args:
        table: the table's path.
        version: the version that declares it so.
    """
    unknown = sorted(set(protocol.reader_features or ()) - READABLE)
    if protocol.min_reader_version > 3:
        return (
            f"{table} needs version {protocol.min_reader_version} of Delta's protocol for readers: upgrade lakestream"
        )
    if unknown:
        return (
            f"{table} needs features that the server cannot read: {', '.join(unknown)}; old messages may be errors. "
            f"Undo it in Spark SQL with ALTER TABLE delta.`{table}` DROP FEATURE {unknown[0]}, or upgrade lakestream"
        )
    try:
        names = set(column_names(metadata.schema_string))
    except DECODE_ERRORS:
        return f"{table}: version {version} has a schema that does not decode"
    lacking = [name for name in MESSAGE_COLUMNS if name not in names]
    if lacking and UID_PROPERTY in metadata.configuration:
        return (
            f"{table} has no column {lacking[0]} any more, renamed or dropped by another program; old messages are "
            f"errors. Undo it in Spark SQL with RESTORE TABLE delta.`{table}` TO VERSION AS OF {version - 1}, or "
            "rename the column back"
        )
    if "columnMapping" in (protocol.reader_features or ()) or metadata.configuration.get(MAPPING, "none") != "none":
        return (
            f"{table} was given column mapping by another program: Polars and others refuse it, and typed columns that "
            f"come new are refused. Undo it in Spark SQL with ALTER TABLE delta.`{table}` DROP FEATURE columnMapping; "
            "see docs/lake.md, Changes by other programs"
        )
    return ""


def _without(runs: Iterable[Run], gone: Sequence[Run]) -> list[Run]:
    """Return runs without the sequences of others; both ascending."""
    found = []
    for first, last in runs:
        for low, high in gone:
            if low > last:
                break
            if high < first:
                continue
            if low > first:
                found.append((first, low - 1))
            first = high + 1
        if first <= last:
            found.append((first, last))
    return found


def joined(runs: Iterable[Run]) -> list[Run]:
    """Return ascending runs with neighbours joined, at most MAX_RUNS."""
    found = erasures.joined(runs)
    if len(found) <= MAX_RUNS:
        return found
    step = -(-len(found) // MAX_RUNS)
    return [(found[at][0], found[min(at + step, len(found)) - 1][1]) for at in range(0, len(found), step)]
