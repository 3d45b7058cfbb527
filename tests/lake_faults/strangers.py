"""Other programs at the tables: a user's Spark, deltalake, and files that somebody deletes.

Belongs here: the cases, and what such a program does. Publishing goes on in each. What changes no message (OPTIMIZE,
VACUUM, an added column) is not noticed. What deletes, changes or inserts rows is named by `status` with the command
that undoes it, which the case runs as it is printed. Until then no reader gets other messages than were published, and
none is passed over.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from lakestream.lake.table.foreign_commits import AND_WITH
from lakestream_spark import session as sessions
from tests.lake_faults.cases import Broken, Case, Site, Traffic, reads_truly

HISTORY = 150
"""Messages that have left the log when another program comes."""
TRIES = 10
"""Attempts of a statement that conflicts with the compactor's commits."""
HARMLESS = "publishing goes on; nothing else is noticed"
MENDED = "publishing goes on; what it deletes of a commit under way is committed again; nothing else is noticed"
NAMED = "no message is passed over, doubled or other; status names the command that undoes it, and it does"
REFUSED = "publishing goes on; no message is passed over, doubled or other; status says what to do, and that helps"
_UNDO = re.compile(r"in Spark SQL with (.*?)(?:; or accept it| \(docs/)")
_INSERT = (
    "INSERT INTO {{t}} (subject, seq, time, time_ns, headers, data, header_block, subject_bytes) "
    "SELECT subject, {seq}L, time, time_ns, headers, cast('of another program' as binary), header_block, subject_bytes "
    "FROM {{t}} WHERE seq = 7"
)


@functools.cache
def _spark() -> Any:
    """Return a user's Spark with lakestream's settings."""
    spark = sessions.session("another program", extra={"spark.sql.shuffle.partitions": "2"})
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    return spark


def sql(*statements: str) -> Callable[[Site, str], None]:
    """Return what runs these statements; `{t}` is the table."""

    def change(site: Site, table: str) -> None:
        for statement in statements:
            command = statement.replace("{t}", f"delta.`{table}`")
            try:
                _spark().sql(command)
            except Exception as error:
                if "DELTA_CONCURRENT" not in str(error):  # the compactor has committed meanwhile
                    raise
                with site.quiet():
                    _again(command)

    return change


def _again(command: str) -> None:
    """Run a statement while only the last commits of the compactor conflict with it."""
    for left in reversed(range(TRIES)):
        try:
            _spark().sql(command)
            return
        except Exception as error:
            if not left or "DELTA_CONCURRENT" not in str(error):
                raise


def harmless(change: Callable[[Site, str], object]) -> Callable[[Site], None]:
    """Return a case of what changes no message."""

    def run(site: Site) -> None:
        traffic = site.traffic()
        site.in_table(traffic, HISTORY)
        change(site, site.table(traffic))
        site.goes_on(traffic)
        site.follows(traffic)
        reads_truly(site, traffic, set())

    return run


def undone(change: Callable[[Site, str], object], changed: set[int], committed: bool = False) -> Callable[[Site], None]:
    """Return a case of what changes these messages: it is named, and the commands that status prints undo it.

    Args:
        change: what another program does to the table.
        changed: sequences whose rows it deletes, changes or doubles.
        committed: the compactor commits before it is undone, so that RESTORE would undo that commit, too.
    """

    def run(site: Site) -> None:
        traffic = site.traffic()
        site.in_table(traffic, HISTORY)
        change(site, site.table(traffic))
        if committed:
            last = traffic.last + 1
            site.until(lambda: last in _sequences(site, traffic), f"the table has message {last}")
        site.until(lambda: "was changed by another program" in site.warnings(), "status names the change", 60)
        site.goes_on(traffic)
        reads_truly(site, traffic, changed)
        for _ in range(3):  # the compactor may commit between the look and the command
            found = _UNDO.search(site.warnings())
            if found is None:
                break
            sql(*found[1].split(AND_WITH))(site, "")
            with contextlib.suppress(Broken):
                site.until(lambda: "was changed by another" not in site.warnings(), "the warning goes", 30)
        site.follows(traffic)
        reads_truly(site, traffic, set())

    return run


def _sequences(site: Site, traffic: Traffic) -> set[int]:
    return {seq for seq, _ in site.rows(traffic)}


def _accepted(site: Site) -> None:
    traffic = site.traffic()
    site.in_table(traffic, HISTORY)
    sql("DELETE FROM {t} WHERE seq BETWEEN 30 AND 32")(site, site.table(traffic))
    site.until(lambda: "was changed by another program" in site.warnings(), "status names the change", 60)
    for seq in (30, 31, 32):
        site.api(f"STREAM.MSG.DELETE.{traffic.name}", {"seq": seq})
        traffic.removed.add(seq)
    site.follows(traffic)
    reads_truly(site, traffic, set())


def _hidden(site: Site) -> None:
    """The server is down at the time of the change, and the compactor commits after it."""
    traffic = site.traffic()
    site.in_table(traffic, HISTORY)
    traffic.end()
    site.server.kill()
    sql("DELETE FROM {t} WHERE seq = 30")(site, site.table(traffic))
    site.server.start()
    traffic.begin(site.server.address)
    site.until(lambda: "was changed by another program" in site.warnings(), "status names the change", 60)
    reads_truly(site, traffic, {30})
    found = _UNDO.search(site.warnings())
    assert found is not None
    sql(found[1])(site, "")
    site.follows(traffic)


def _refused(change: Callable[[DeltaTable], object]) -> Callable[[Site, str], None]:
    """Return what deltalake refuses, since it does not write tables with in-commit timestamps."""

    def attempt(site: Site, table: str) -> None:
        try:
            change(DeltaTable(table, storage_options=site.options()))
        except DeltaError as error:
            if "InCommitTimestamp" in str(error):
                return
        raise Broken("deltalake writes tables with in-commit timestamps now: make this a case of a change")

    return attempt


def _partitioned(statement: str) -> Callable[[Site, str], None]:
    """Return what Spark refuses, since the tables are partitioned."""

    def attempt(site: Site, table: str) -> None:
        try:
            sql(statement)(site, table)
        except Exception as error:
            if "PARTITIONED" in str(error):
                return
            raise
        raise Broken("Spark does this to partitioned tables now: make it a case of a change")

    return attempt


def _case(name: str, fault: str, promise: str, run: Callable[[Site], None], own: bool = False) -> Case:
    return Case(name, "strangers", fault, promise, run, own=own)


_SAME_SIZE = "UPDATE {t} SET data = cast(translate(cast(data as string), 'abc', 'bca') as binary) WHERE seq IN (30, 31)"
_MERGE = (
    "MERGE INTO {t} USING (SELECT 30L AS s UNION ALL SELECT 31L) v ON seq = v.s "
    "WHEN MATCHED AND seq = 30 THEN DELETE WHEN MATCHED THEN UPDATE SET data = cast('other' as binary)"
)
_HARMLESS: dict[str, tuple[str, Callable[[Site, str], object]]] = {
    "optimize": ("OPTIMIZE by Spark", sql("OPTIMIZE {t}")),
    "zorder": ("OPTIMIZE ZORDER by Spark", sql("OPTIMIZE {t} ZORDER BY (time_ns)")),
    "add-column": ("ALTER TABLE ADD COLUMNS", sql("ALTER TABLE {t} ADD COLUMNS (note STRING)")),
    "comment": (
        "COMMENT, properties of the user",
        sql("COMMENT ON TABLE {t} IS 'x'", "ALTER TABLE {t} SET TBLPROPERTIES ('a.b' = 'c')"),
    ),
    "change-feed": (
        "change data feed enabled",
        sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"),
    ),
    "no-vectors": (
        "deletion vectors disabled",
        sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')"),
    ),
    "row-tracking": (
        "row tracking enabled",
        sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')"),
    ),
    "cluster-by": ("ALTER TABLE CLUSTER BY, which Spark refuses", _partitioned("ALTER TABLE {t} CLUSTER BY (seq)")),
    "rust-optimize": ("optimize.compact by deltalake, which refuses", _refused(lambda table: table.optimize.compact())),
    "rust-delete": ("delete by deltalake, which refuses", _refused(lambda table: table.delete("seq = 30"))),
}
_CHANGES: dict[str, tuple[str, Callable[[Site, str], object], set[int]]] = {
    "delete": ("DELETE by Spark", sql("DELETE FROM {t} WHERE seq BETWEEN 30 AND 35"), set(range(30, 36))),
    "delete-purge": (
        "DELETE and REORG APPLY (PURGE)",
        sql("DELETE FROM {t} WHERE seq = 30", "REORG TABLE {t} APPLY (PURGE)"),
        {30},
    ),
    "truncate": ("TRUNCATE TABLE", sql("TRUNCATE TABLE {t}"), set(range(1, HISTORY))),
    "update": ("UPDATE with another size", sql("UPDATE {t} SET data = cast('other' as binary) WHERE seq = 30"), {30}),
    "update-same-size": ("UPDATE with the same size", sql(_SAME_SIZE), {30, 31}),
    "merge": ("MERGE that deletes and updates", sql(_MERGE), {30, 31}),
    "restore": ("RESTORE to an older version", sql("RESTORE TABLE {t} TO VERSION AS OF 1"), set(range(100, HISTORY))),
}
_INSERTS: dict[str, tuple[str, Callable[[Site, str], object], set[int]]] = {
    "insert-existing": ("INSERT of a sequence that exists", sql(_INSERT.format(seq=30)), {30}),
    "insert-beyond": ("INSERT of sequences beyond the last", sql(_INSERT.format(seq=1 << 40)), set()),
}
CASES = (
    *(_case(name, fault, HARMLESS, harmless(change)) for name, (fault, change) in _HARMLESS.items()),
    *(_case(name, fault, NAMED, undone(change, changed)) for name, (fault, change, changed) in _CHANGES.items()),
    *(_case(name, fault, NAMED, undone(change, changed, True)) for name, (fault, change, changed) in _INSERTS.items()),
    _case("delete-accepted", "DELETE by Spark, then of the same messages in the stream", REFUSED, _accepted),
    Case(
        "vacuum",
        "strangers",
        "OPTIMIZE and VACUUM RETAIN 0 HOURS by Spark",
        MENDED,
        harmless(sql("OPTIMIZE {t}", "VACUUM {t} RETAIN 0 HOURS")),
        own=True,
        grace="300s",
    ),
    _case("delete-hidden", "DELETE while the server is down", NAMED, _hidden),
)
