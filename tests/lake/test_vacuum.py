"""Tests of our VACUUM compared with Delta's own, and of clones that outlive it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table.at import open_log
from lakestream.lake.table.log import TableLog
from lakestream.lake.table.policy import HOUR_NS
from lakestream.lake.table.schema import UID_PROPERTY
from lakestream_spark.write import clone_maker, maintainer
from lakestream_spark.write.clones import CloneRefused, CloneUnreadable, References
from lakestream_spark.write.maintainer import Maintainer
from lakestream_spark.write.maintenance_plan import MARGIN_NS, Policy
from lakestream_spark.write.vacuum import dead_files
from tests.lake.conftest import job
from tests.lake.model import StreamModel
from tests.lake.tables import version
from tests.lake.test_maintenance import NOW, check, grow, maintain, on_disk

pytestmark = pytest.mark.lake

OPERATIONS = int(os.environ.get("LAKESTREAM_VACUUM_OPERATIONS", "6"))
SEED = int(os.environ.get("LAKESTREAM_SEED", "1"))


def ours(table: str, retain_ns: int = 0, later_ns: int = 0) -> set[str]:
    storage = open_storage(table)
    log = TableLog(storage, table)
    return set(dead_files(storage, log, log.state(), retain_ns, time.time_ns() + later_ns, set()))


def deltas(spark: Any, table: str) -> set[str]:
    session = spark.newSession()
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    session.conf.set("spark.databricks.delta.vacuum.relativize.ignoreError", "true")
    found = session.sql(f"VACUUM delta.`{table}` RETAIN 0 HOURS DRY RUN").collect()
    paths = {row.path.removeprefix("file:") for row in found}
    return {path for path in paths if os.path.isfile(path)}


def test_what_is_dead_is_what_delta_says(spark: Any, tmp_path: Path) -> None:
    table = str(tmp_path / "t")
    dice = random.Random(SEED)
    spark.sql(
        f"CREATE TABLE delta.`{table}` (subject STRING, seq BIGINT) USING delta PARTITIONED BY (subject) "
        f"TBLPROPERTIES ('delta.enableDeletionVectors'='true', '{UID_PROPERTY}'='U', "
        "'delta.enableInCommitTimestamps'='true', "
        "'delta.enableChangeDataFeed'='true', 'delta.checkpointInterval'='4', 'delta.randomizeFilePrefixes'='false')"
    )
    next_seq = 0

    def append() -> None:
        nonlocal next_seq
        rows = spark.range(next_seq, next_seq + 40, 1, 2).selectExpr("concat('a b%=', id % 3) AS subject", "id AS seq")
        rows.write.format("delta").mode("append").save(table)
        next_seq += 40

    def sql(text: str) -> Callable[[], None]:
        return lambda: spark.sql(text.format(f"delta.`{table}`", dice.randrange(2, 9))).collect() and None

    def restore() -> None:
        spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF {dice.randrange(1, open_log(table).latest)}")

    operations = [
        append,
        sql("DELETE FROM {0} WHERE seq % {1} = 0"),
        sql("UPDATE {0} SET seq = seq + 1000 WHERE seq % {1} = 1"),
        sql("OPTIMIZE {0}"),
        sql("REORG TABLE {0} APPLY (PURGE)"),
        restore,
    ]
    append()
    append()
    for number in range(OPERATIONS):
        dice.choice(operations)()
        if number % 3 == 2:
            directory = next(each for each in Path(table).iterdir() if each.is_dir() and each.name != "_delta_log")
            (directory / f"part-stray-{number}.parquet").touch()
            dead = ours(table)
            assert dead == deltas(spark, table)
            # A retention that has just passed, also for one that checkpoints do not remember.
            assert ours(table, 2 * HOUR_NS, 2 * HOUR_NS + MARGIN_NS) == dead
            assert ours(table, 500 * HOUR_NS, 500 * HOUR_NS + MARGIN_NS) == dead
            assert ours(table, 2 * HOUR_NS) == set()  # everything is too new
    held = spark.read.format("delta").load(table).count()
    open_storage(table).delete_all(ours(table))
    assert ours(table) == deltas(spark, table) == set()
    assert spark.read.format("delta").load(table).count() == held
    if OPERATIONS > 2:
        assert dead


def test_every_version_within_the_retention_can_be_read(spark: Any, lake: Path, tmp_path: Path) -> None:
    """With the table's history cut between its versions, every version within the retention stays readable."""
    model = StreamModel(tmp_path / "log")
    grow(spark, lake, model, 2)
    table = model.table(lake)
    model.remove(list(range(1, 30)))
    grow(spark, lake, model, 1)
    maintain(spark, lake, NOW)
    counts = {}
    for each in open_log(table).versions[1:]:
        counts[each] = spark.read.format("delta").option("versionAsOf", each).load(table).count()
    cut = 3
    begin_ns = open_log(table).summary(cut).time_ms * 1_000_000
    retain_ns = 2 * HOUR_NS
    later_ns = begin_ns - time.time_ns() + retain_ns + MARGIN_NS
    maintain(spark, lake, Policy(min_files=2, retain_ns=retain_ns), later_ns)
    for each, held in counts.items():
        if each >= cut:
            assert spark.read.format("delta").option("versionAsOf", each).load(table).count() == held
    check(lake, model)


def clone_job(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, str(job().with_name("clone.py")), *arguments]
    return subprocess.run(program, capture_output=True, text=True, check=False, timeout=180)


def count(table: str) -> int:
    query = QueryBuilder().register("t", DeltaTable(table))
    return int(pa.table(query.execute("SELECT count(*) AS n, sum(length(data)) FROM t").read_all())["n"][0].as_py())


def test_vacuum_keeps_the_files_of_a_clone_made_through_a_symbolic_link(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    grow(spark, lake, model, 2)
    link = tmp_path / "link"
    link.symlink_to(lake)
    inside, outside = str(link / "clones" / "one"), str(tmp_path / "outside")
    for target in (inside, outside):
        clone_maker.clone(spark, str(link), model.table(link), target, 1)
    before = {path: count(path) for path in (inside, outside)}
    for _ in range(3):
        maintain(spark, lake, NOW)
    assert {path: count(path) for path in before} == before


def test_a_version_whose_files_vacuum_has_taken_is_not_cloned(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    grow(spark, lake, model, 2)
    for path in Path(model.table(lake)).rglob("*.parquet"):
        if "_delta_log" not in path.parts:
            path.unlink()
            break
    with pytest.raises(CloneRefused, match="VACUUM has taken files of version"):
        clone_maker.clone(spark, str(lake), model.table(lake), str(lake / "clones" / "broken"))
    assert not (lake / "clones").exists()
    assert not (lake / paths.CLONES).exists()


def test_clones_survive_maintenance_of_their_origin(spark: Any, lake: Path, tmp_path: Path) -> None:
    model = StreamModel(tmp_path / "log")
    grow(spark, lake, model, 2)
    model.remove([1, 2, 3])
    grow(spark, lake, model, 1)
    table, root = model.table(lake), str(lake)
    registered, plain, second = (str(lake / "clones" / name) for name in ("registered", "by hand", "of a clone"))
    outside = str(tmp_path / "outside")
    assert clone_maker.clone(spark, root, table, registered, 1) == 1
    done = clone_job("--lake", root, "--stream", "ORDERS", "--target", outside)
    assert (done.returncode, done.stdout) == (0, f"{outside} is a clone of ORDERS at version {version(table)}\n")
    done = clone_job("--lake", root, "--stream", "NONE", "--target", outside)
    assert (done.returncode, done.stderr) == (1, "lakestream: stream NONE has no table\n")
    with pytest.raises(CloneRefused, match="a table already"):
        clone_maker.clone(spark, root, table, registered)
    with pytest.raises(CloneRefused, match="no version 99"):
        clone_maker.clone(spark, root, table, str(lake / "new"), 99)
    spark.sql(f"CREATE TABLE delta.`{plain}` SHALLOW CLONE delta.`{table}` VERSION AS OF 2").collect()
    spark.sql(f"CREATE TABLE delta.`{second}` SHALLOW CLONE delta.`{registered}`").collect()
    before = {path: count(path) for path in (registered, plain, second, outside)}
    assert before == {registered: 60, plain: 120, second: 60, outside: 177}
    spark.sql(f"DELETE FROM delta.`{plain}` WHERE seq < 50")
    before[plain] = count(plain)
    for _ in range(3):
        maintain(spark, lake, NOW)
    assert {path: count(path) for path in before} == before
    assert spark.read.format("delta").option("versionAsOf", 0).load(plain).count() == 120
    check(lake, model)
    kept = on_disk(table)
    # A deleted clone in the lake needs no files; one elsewhere may come back.
    open_storage(registered).delete_tree(registered)
    os.rename(outside, outside + " moved")
    references = References(open_storage(lake))
    with pytest.raises(CloneUnreadable, match="outside cannot be read, so its origin is not vacuumed; bring it back"):
        references.into(table)
    (done,) = Maintainer(spark, root, NOW).once()
    assert done.failure is not None
    assert "cannot be read" in done.failure
    assert on_disk(table) == kept
    for entry in (lake / paths.CLONES).iterdir():
        entry.unlink()
    open_storage(second).delete_tree(second)
    open_storage(plain).delete_tree(plain)
    maintain(spark, lake, NOW)
    facts = maintainer.look(open_storage(lake), table, NOW, time.time_ns())
    assert facts is not None
    assert facts.stale == []
    assert on_disk(table) == len(facts.files) < kept
    check(lake, model)
