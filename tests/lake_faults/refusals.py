"""Tables that other programs declare in a way in which the compactor cannot write them, or nobody reads them.

Belongs here: the cases, and commits as another program's Delta would write them, for what Spark has no statement for.
Publishing goes on in each, `status` names the table and what to do, and once that is done everything resumes without a
restart.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.lake_faults.cases import Broken, Case, Site, reads_truly
from tests.lake_faults.strangers import sql

HISTORY = 150
"""Messages that have left the log when another program comes."""
TRIES = 50
"""Attempts of a commit that another one precedes."""
PROMISE = "publishing goes on; status says what to do, and that helps, without a restart; no message is other"
NEWER = "featureOfTomorrow"
REMEDY = "drop it with the program that has added it"
_ALTER = re.compile(r"in Spark SQL with (ALTER TABLE delta\.`[^`]*` .*?)(?:, or |; |$)", re.MULTILINE)
_RESTORE = re.compile(r"(RESTORE TABLE delta\.`[^`]*` TO VERSION AS OF \d+)")

Action = dict[str, Any]


# ---------------------------------------------------------------------- commits
def declared(table: str, kind: str) -> Action:
    """Return the newest action of a kind (`protocol`, `metaData`) in the commits of a table."""
    for path in sorted(Path(table, "_delta_log").glob("*.json"), reverse=True):
        for line in path.read_text().splitlines():
            if kind in (action := json.loads(line)):
                found: Action = action[kind]
                return found
    raise Broken(f"no commit of {table} has a {kind} action")


def commit(table: str, *actions: Mapping[str, Any]) -> None:
    """Commit actions as the next version of a table."""
    for _ in range(TRIES):
        newest = max(int(path.stem) for path in Path(table, "_delta_log").glob("*.json"))
        now = time.time_ns() // 1_000_000
        info = {
            "timestamp": now,
            "inCommitTimestamp": now + 1000,
            "operation": "ALTER TABLE",
            "operationParameters": {},
        }
        lines = [json.dumps(each) for each in ({"commitInfo": info}, *actions)]
        try:
            with Path(table, "_delta_log", f"{newest + 1:020d}.json").open("x") as file:
                file.write("\n".join(lines) + "\n")
        except FileExistsError:
            continue
        return
    raise Broken(f"{TRIES} commits to {table} were preceded by others")


def _protocol(table: str, *added: str, reader: bool = False) -> Action:
    found = declared(table, "protocol")
    kinds = ("readerFeatures", "writerFeatures") if reader else ("writerFeatures",)
    return {"protocol": found | {kind: sorted({*found[kind], *added}) for kind in kinds}}


def _column(table: str, name: str, **metadata: object) -> Action:
    """Return the metaData action with a further column."""
    found = declared(table, "metaData")
    schema = json.loads(found["schemaString"])
    schema["fields"].append({"name": name, "type": "long", "nullable": True, "metadata": metadata})
    return {"metaData": found | {"schemaString": json.dumps(schema)}}


# ---------------------------------------------------------------------- cases
def refused(
    change: Callable[[Site, str], object],
    names: str,
    undo: Callable[[Site, str], object],
    readable: bool = True,
) -> Callable[[Site], None]:
    """Return a case of a declaration with which the table is not written, or not read.

    Args:
        change: what another program does to the table.
        names: text of `status`.
        undo: what `status` says.
        readable: old messages are read meanwhile.
    """

    def run(site: Site) -> None:
        traffic = site.traffic()
        site.in_table(traffic, HISTORY)
        table = site.table(traffic)
        change(site, table)
        site.until(lambda: f"table of {traffic.name}: " in site.warnings(), "status names it", 60)
        site.until(lambda: names in site.warnings(), f"status says {names!r}", 30)
        site.goes_on(traffic)
        if readable:
            site.reads_history(traffic)
        undo(site, table)
        site.follows(traffic)
        reads_truly(site, traffic, set())

    return run


def as_told(command: re.Pattern[str]) -> Callable[[Site, str], None]:
    """Return what runs the command that `status` prints."""

    def undo(site: Site, table: str) -> None:
        found = command.search(site.warnings())
        if found is None:
            raise Broken(f"status has no command: {site.warnings()}")
        sql(found[1])(site, "")

    return undo


def _accepted(change: Callable[[Site, str], object]) -> Callable[[Site], None]:
    def run(site: Site) -> None:
        traffic = site.traffic()
        site.in_table(traffic, HISTORY)
        change(site, site.table(traffic))
        site.goes_on(traffic)
        site.follows(traffic)
        reads_truly(site, traffic, set())

    return run


def _newer(reader: bool) -> tuple[Callable[[Site, str], None], Callable[[Site, str], None]]:
    """Return (what adds a feature that nobody here knows, what the newer program does to drop it)."""
    before = dict[str, Action]()

    def change(site: Site, table: str) -> None:
        before[table] = declared(table, "protocol")
        commit(table, _protocol(table, NEWER, reader=reader))

    return change, lambda site, table: commit(table, {"protocol": before[table]})


def _append_only(site: Site) -> None:
    traffic = site.traffic()
    site.in_table(traffic, HISTORY)
    sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.appendOnly' = 'true')")(site, site.table(traffic))
    site.goes_on(traffic)
    site.api(f"STREAM.MSG.DELETE.{traffic.name}", {"seq": 5})
    traffic.removed.add(5)
    site.until(lambda: "APPEND_ONLY" in site.warnings(), "status names it", 60)
    site.goes_on(traffic)
    site.reads_history(traffic)
    as_told(_ALTER)(site, site.table(traffic))
    site.follows(traffic)
    reads_truly(site, traffic, set())


def _generated(site: Site, table: str) -> None:
    expression = {"delta.generationExpression": "seq + 1"}
    commit(table, _protocol(table, "generatedColumns"), _column(table, "next_seq", **expression))


def _identity(site: Site, table: str) -> None:
    identity = {"delta.identity.start": 1, "delta.identity.step": 1, "delta.identity.allowExplicitInsert": False}
    commit(table, _protocol(table, "identityColumns"), _column(table, "row_id", **identity))


def _constraint(site: Site, table: str) -> None:
    found = declared(table, "metaData")
    configuration = found["configuration"] | {"delta.constraints.positive": "seq > 0"}
    commit(table, _protocol(table, "checkConstraints"), {"metaData": found | {"configuration": configuration}})


def _commit_hidden() -> tuple[Callable[[Site, str], None], Callable[[Site, str], None]]:
    """Return (what takes a commit away from the middle of the log, what brings it back)."""

    def middle(table: str) -> Path:
        return Path(table, "_delta_log", f"{2:020d}.json")

    def change(site: Site, table: str) -> None:
        site.stop_compactor()
        middle(table).rename(Path(table, "hidden"))
        site.start_compactor()

    def undo(site: Site, table: str) -> None:
        Path(table, "hidden").rename(middle(table))

    return change, undo


def _case(name: str, fault: str, run: Callable[[Site], None], promise: str = PROMISE) -> Case:
    return Case(name, "refusals", fault, promise, run)


_REPLACED = "CREATE OR REPLACE TABLE {t} USING delta AS SELECT * FROM {t}"
_MAPPED = "ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
_WRITER, _READER = _newer(False), _newer(True)
_HIDDEN = _commit_hidden()
CASES = (
    _case(
        "constraint",
        "a CHECK constraint that all rows fulfil",
        _accepted(_constraint),
        "publishing goes on; nothing else is noticed",
    ),
    _case("newer-writer", "a feature of a newer Delta for writers", refused(_WRITER[0], REMEDY, _WRITER[1])),
    _case("newer-reader", "a feature of a newer Delta for readers", refused(_READER[0], NEWER, _READER[1], False)),
    _case(
        "type-widening",
        "type widening enabled",
        refused(
            sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"),
            "typeWidening",
            as_told(_ALTER),
        ),
    ),
    _case("append-only", "delta.appendOnly, and a message is deleted", _append_only),
    _case(
        "uid-unset",
        "property lakestream.uid unset",
        refused(sql("ALTER TABLE {t} UNSET TBLPROPERTIES ('lakestream.uid')"), "lakestream.uid", as_told(_RESTORE)),
    ),
    _case(
        "column-renamed",
        "column of messages renamed, with column mapping",
        refused(
            sql(_MAPPED, "ALTER TABLE {t} RENAME COLUMN data TO payload"),
            "has no column data",
            sql("ALTER TABLE {t} RENAME COLUMN payload TO data", "ALTER TABLE {t} DROP FEATURE columnMapping"),
            False,
        ),
    ),
    _case(
        "replaced",
        "table replaced by one with the same rows",
        refused(sql(_REPLACED), "RESTORE", as_told(_RESTORE)),
    ),
    _case("generated", "a generated column added", refused(_generated, "generated", as_told(_RESTORE))),
    _case("identity", "an identity column added", refused(_identity, "identity", as_told(_RESTORE))),
    _case("commit-missing", "a commit deleted", refused(_HIDDEN[0], "00000000000000000002", _HIDDEN[1])),
)
