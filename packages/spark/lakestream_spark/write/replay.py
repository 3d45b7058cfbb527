"""Replay of misfits: their rows get typed columns, once a schema is mended.

Belongs here: decoding the messages of a table of misfits again, from the payloads that their rows keep. Now the rule
`orders@latest` means the latest version of today. What fits gets its columns in one MERGE of the table, with new
columns in a commit before it; then its rows leave the table of misfits. A crash in between repeats no change: rows that
have a schema are only taken off the list. An upsert table takes all messages since the first of them once more.

A table of misfits with missing files is repaired from the same payloads (`Replay.repair`): what the list said is found
again, by the rules of today.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestream.lake.errors import LakeError
from lakestream.lake.staging.staging import StreamIdentity
from lakestream.lake.storage import locks
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import policy
from lakestream.lake.table.at import open_log
from lakestream.lake.table.batches import CONDITION_TERMS
from lakestream.lake.table.check import Damage
from lakestream.lake.table.scan import Scan
from lakestream.lake.table.schema import (
    END,
    FORMAT_COLUMN,
    SCHEMA_COLUMN,
    Layout,
    column_names,
    message_schema,
    ticked,
)
from lakestream.lake.table.typed_columns import of_table, plain
from lakestream.lake.table.typed_rows import MISFIT_SCHEMA
from lakestream.log.format.runs import SchemaRun
from lakestream.schemas.naming import SCHEMA_KEY
from lakestream_client.lake.partitions import arrays
from lakestream_spark.write.commit import Commit, own_session
from lakestream_spark.write.keyed_table import KeyedTable
from lakestream_spark.write.misfits import MisfitTable
from lakestream_spark.write.table import ExistingTable, StreamTable
from lakestream_spark.write.tasks import CommitColumns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCK_SECONDS = 30.0
"""Maximum time to wait for the table's lock."""
REPLAY_ROWS = CONDITION_TERMS
"""Misfits that are decoded together; each such group is a commit."""
LOST = "lost"
"""Rule of a misfit whose reason was in a file that is missing, and whose message fits the schemas of today."""
_LOST_REASON = "the file that said why is missing; the message fits now, and a replay decodes it"


class ReplayResult(msgspec.Struct, frozen=True):
    """Result of a replay: the misfits that were listed, those that have columns now, and those whose message the table
    has no more."""

    misfits: int = 0
    mended: int = 0
    gone: int = 0


class NoReplay(LakeError):
    """Raised when the misfits of a stream cannot be replayed now."""


class Replay:
    """Replays the misfits of one stream.

    Args:
        spark: a session with Delta.
        lake: the lake's root.
        identity: the stream.
        clock: returns the time, ns since the epoch.
        table: the path of its table; the stream's usual place by default.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: str,
        identity: StreamIdentity,
        clock: Callable[[], int] = time.time_ns,
        table: str | None = None,
    ) -> None:
        self._spark = own_session(spark)
        self._storage = open_storage(lake)
        self._identity = identity
        self._clock = clock
        self._table = StreamTable(self._spark, self._storage, identity, table)
        self._misfits = MisfitTable(self._spark, self._storage, identity, self._table.path)

    def run(self) -> ReplayResult:
        """Replay all misfits.

        Raises:
            NoReplay: the stream has no schemas, or no table, or its compaction is under way.
            TableBusy: the table stays locked.
        """
        asked = policy.of_config(bytes(self._identity.config))
        if asked.schema is None:
            raise NoReplay(f"stream {self._identity.name} has no schemas: set {SCHEMA_KEY} in its metadata")
        done = ReplayResult()
        with locks.held(self._spark, self._storage.root, self._table.path, LOCK_SECONDS) as lock:
            self.repair(lock.check)
        listed = self._listed()
        for at in range(0, len(listed), REPLAY_ROWS):
            with locks.held(self._spark, self._storage.root, self._table.path, LOCK_SECONDS) as lock:
                found = self._replay(asked, listed[at : at + REPLAY_ROWS], lock)
            done = ReplayResult(done.misfits + found.misfits, done.mended + found.mended, done.gone + found.gone)
        return done

    def repair(self, check: Callable[[], None] = lambda: None) -> int:
        """Replace missing files of the table of misfits by what the messages tell, in one commit; return the number of
        these files. Requires the lock of the stream's table.

        A misfit is listed again if the stream has a rule for its subject now.

        Args:
            check: raises when that lock may be lost.
        """
        damaged = self._misfits.damaged()
        if not damaged:
            return 0
        asked, found = policy.of_config(bytes(self._identity.config)), self._table.find()
        again: list[pa.Table] = []
        if asked.schema is not None and found is not None and found.uid == self._identity.uid:
            seqs = self._lost(found, damaged)
            for at in range(0, len(seqs), REPLAY_ROWS):
                again.append(self._again(asked, found, seqs[at : at + REPLAY_ROWS]))
        check()
        self._misfits.replace(damaged, again)
        return len(damaged)

    def _lost(self, found: ExistingTable, damaged: Sequence[Damage]) -> list[int]:
        """Return the sequences of messages without typed columns that these files may have listed, and no other file
        lists, ascending."""
        files = [each.file for each in damaged]
        # A file without statistics may have listed any.
        runs = [(file.min_seq, file.max_seq) if file.rows else (0, END) for file in files]
        low, high = min(first for first, _ in runs), max(last for _, last in runs)
        sql = f"SELECT seq FROM t WHERE seq >= {low} AND seq <= {high}{_untyped(column_names(found.schema))}"
        seqs = self._rows_of(self._table.path, f"{sql} ORDER BY seq").column("seq").to_numpy()
        inside = np.zeros(len(seqs), bool)
        for first, last in runs:
            inside |= (seqs >= first) & (seqs <= last)
        listed: list[int] = seqs[inside & ~np.isin(seqs, self._misfits.listed(damaged))].tolist()
        return listed

    def _again(self, asked: policy.StreamPolicy, found: ExistingTable, seqs: Sequence[int]) -> pa.Table:
        """Return rows of the table of misfits for these messages, by the rules of today and the versions of then."""
        rows = self._messages(seqs, column_names(found.schema), then=True)
        _, fitting, misfits = self._typed(self._columns(asked, found), rows)
        known = dict(zip(fitting.column("seq").to_pylist(), fitting.column(SCHEMA_COLUMN).to_pylist(), strict=True))
        fit = rows.filter(pc.is_in(rows.column("seq"), pa.array(list(known), pa.int64())))
        micros = pc.divide(fit.column("time_ns"), pa.scalar(1000, pa.int64())).cast(pa.timestamp("us", "UTC"))
        said = [known[seq] for seq in fit.column("seq").to_pylist()]
        texts = [pa.repeat(text, len(said)) for text in ("", LOST, _LOST_REASON)]
        columns = [fit.column("seq"), micros, fit.column("subject"), pa.array(said, pa.string()), *texts]
        return pa.concat_tables([misfits, pa.table(columns, schema=MISFIT_SCHEMA)]).sort_by("seq")

    def _columns(self, asked: policy.StreamPolicy, found: ExistingTable) -> CommitColumns:
        return CommitColumns(
            lake=self._storage.root,
            account=self._identity.account,
            schemas=(SchemaRun(0, asked.schema or ""),),
            table=of_table(found.schema),
            drop_data=False,
            misfits=self._misfits.path,
            empty_deletes=asked.empty_deletes,
        )

    def _listed(self) -> list[int]:
        """Return the sequences of all misfits, ascending."""
        if self._misfits.reached() is None:
            return []
        found = self._rows_of(self._misfits.path, "SELECT DISTINCT seq FROM t ORDER BY seq")
        seqs: list[int] = found.column("seq").to_pylist()
        return seqs

    def _replay(self, asked: policy.StreamPolicy, seqs: Sequence[int], lock: locks.Lock) -> ReplayResult:
        """Replay some misfits, with the table's lock held."""
        found = self._table.find()
        if found is None or found.uid != self._identity.uid:
            raise NoReplay(f"stream {self._identity.name} has no table")
        log = open_log(self._table.path)
        if log.pending_deletes(log.latest) is not None:
            raise NoReplay("the compaction of the stream is not complete; try again when it is")
        present = column_names(found.schema)
        rows = self._messages(seqs, present)
        there = set(rows.column("seq").to_pylist())
        columns = self._columns(asked, found)
        mended, fitting, _ = self._typed(columns, rows)
        if fitting.num_rows:
            lock.check()
            keyed = KeyedTable(self._spark, self._storage, self._identity, self._table.path)
            reached = keyed.rewind(fitting.column("seq")[0].as_py())  # first: a crash must not let it miss them
            if mended.table != columns.table or SCHEMA_COLUMN not in present:
                self._widen(mended)
            self._merge(fitting, found.layout)
            keyed.follow(asked, reached)
        settled = {*fitting.column("seq").to_pylist(), *(seq for seq in seqs if seq not in there)}
        if settled:
            self._misfits.delete([f"seq IN ({', '.join(map(str, sorted(settled)))})"])
        return ReplayResult(len(seqs), fitting.num_rows, len(settled) - fitting.num_rows)

    def _messages(self, seqs: Sequence[int], present: Sequence[str], then: bool = False) -> pa.Table:
        """Return the messages with these sequences that have no schema, as the typed rows of today take them.

        Args:
            seqs: ascending.
            present: the columns of the table.
            then: with the times of the messages, by which `latest` means the version of then.
        """
        names = [name for name in message_schema().names if then or name != "time_ns"]
        listed = ", ".join(map(str, seqs))
        sql = f"SELECT {', '.join(names)} FROM t WHERE seq >= {seqs[0]} AND seq <= {seqs[-1]} AND seq IN ({listed})"
        rows = self._rows_of(self._table.path, f"{sql}{_untyped(present)} ORDER BY seq")
        if not then:
            rows = rows.append_column("time_ns", pa.repeat(pa.scalar(self._clock(), pa.int64()), rows.num_rows))
        return rows.select(message_schema().names).cast(message_schema())

    def _typed(self, columns: CommitColumns, rows: pa.Table) -> tuple[CommitColumns, pa.Table, pa.Table]:
        """Return the columns that the table needs, the messages that fit (seq, schema, and typed columns), and the
        others as misfits."""
        batches: list[pa.RecordBatch] = rows.combine_chunks().to_batches()
        while True:
            typed = columns.rows()
            found = [typed.add(batch) for batch in batches]
            if not typed.needed:
                break
            columns = columns.extended(typed.needed)
        own = [field.column for field in columns.table.fields]
        misfits = pa.Table.from_batches([each.misfits for each in found], MISFIT_SCHEMA)
        parts = [pa.Table.from_batches([each.rows]) for each in found]
        if not parts:
            return (
                columns,
                pa.table({"seq": pa.array([], pa.int64()), SCHEMA_COLUMN: pa.array([], pa.string())}),
                misfits,
            )
        whole = pa.concat_tables(parts, promote_options="default")
        whole = whole.select(["seq", SCHEMA_COLUMN, *(name for name in own if name in whole.column_names)])
        return columns, whole.filter(whole.column(SCHEMA_COLUMN).is_valid()), misfits

    def _widen(self, columns: CommitColumns) -> None:
        """Add columns to the table, in a commit without rows."""
        commit = Commit(self._spark, self._storage, self._table.path)
        commit.change_schema(columns.widen)
        commit.run("update")

    def _merge(self, rows: pa.Table, layout: Layout | None) -> None:
        """Write the columns of these messages into their rows, and move these to their partitions by fields."""
        fields = tuple(term for term in layout.terms if term.startswith("$")) if layout is not None else ()
        columns = dict(zip(rows.column_names, rows.columns, strict=True))
        for name, values in arrays(Layout("fields", terms=fields), columns, rows.num_rows).items():
            rows = rows.append_column(name, values)
        source = self._spark.createDataFrame(rows)
        pairs = {ticked(name): f"s.{ticked(name)}" for name in rows.column_names if name != "seq"}
        low, high = rows.column("seq")[0].as_py(), rows.column("seq")[-1].as_py()
        # The range lets Delta skip files.
        matched = f"t.seq = s.seq AND t.seq >= {low} AND t.seq <= {high}"
        merge = self._table.delta().alias("t").merge(source.alias("s"), matched)
        merge.whenMatchedUpdate(f"t.{SCHEMA_COLUMN} IS NULL", pairs).execute()

    def _rows_of(self, table: str, sql: str) -> pa.Table:
        return plain(Scan(table, storage=self._storage).query(sql))


def _untyped(present: Sequence[str]) -> str:
    """Return the condition of rows without a schema, to follow others. `present`: the columns of the table."""
    return "".join(f" AND {column} IS NULL" for column in (SCHEMA_COLUMN, FORMAT_COLUMN) if column in present)
