"""Counters of the compactor for its metrics, without Spark."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from lakestream.lake.catalogs.address import parse
from lakestream.lake.catalogs.keeper import CREATE
from lakestream.lake.storage import paths
from lakestream.metrics.family import Sheet
from lakestream.metrics.histogram import Buckets
from lakestream_catalogs.entries import CatalogEntry
from lakestream_catalogs.plan import EntryChange, EntryPlace, SyncResult
from lakestream_spark import job
from lakestream_spark.write import metrics
from lakestream_spark.write.lake_compaction import BatchReport
from lakestream_spark.write.maintainer import MaintenanceResult
from lakestream_spark.write.maintenance_plan import MaintenancePlan
from lakestream_spark.write.metrics import COMPACTOR_STREAMS, CompactorMetrics

pytestmark = pytest.mark.unit

LAKE = "/data/lake"


def _values(counted: CompactorMetrics) -> dict[tuple[str, ...], Any]:
    """Return values by metric and label values."""
    sheet = Sheet()
    counted.collect(sheet)
    return {
        (family.name, *row.labels.values()): row.values[column]
        for rows in sheet.rows()
        for row in rows.rows
        for column, family in enumerate(rows.families)
    }


def test_commits_and_failures_are_counted_by_stream() -> None:
    counted = CompactorMetrics(LAKE)
    orders, of_account = paths.table(LAKE, "ORDERS"), paths.table(LAKE, "A.B", "acc")
    failed = paths.staging(LAKE, "BAD", "uid1")
    counted.note(BatchReport(2, 100, 0.5, {failed: "no"}, {orders: 2, of_account: 1}), 50.0)
    counted.note(BatchReport(1, 10, 0.2, {}, {orders: 1}), 60.0)
    counted.note(BatchReport(0, 0, 0.2, {failed: "no"}), 70.0)
    found = _values(counted)
    assert found["lakestream_compaction_commits_total", "$G", "ORDERS"] == 3
    assert found["lakestream_compaction_commits_total", "acc", "A.B"] == 1
    assert found["lakestream_compaction_failures_total", "$G", "BAD"] == 2
    assert found["lakestream_compaction_messages_total",] == 110
    assert found["lakestream_compaction_last_commit_timestamp_seconds",] == 60.0
    batches = found["lakestream_compaction_batch_duration_seconds",]
    assert isinstance(batches, Buckets)
    assert batches.count == 3
    assert found["lakestream_compactor_active",] == 0


def test_streams_beyond_the_limit_are_counted_together() -> None:
    counted = CompactorMetrics(LAKE)
    tables = {paths.table(LAKE, f"S{number}"): 1 for number in range(COMPACTOR_STREAMS + 5)}
    counted.note(BatchReport(len(tables), 1, 0.1, {}, tables), 1.0)
    counted.note(BatchReport(1, 1, 0.1, {}, {paths.table(LAKE, "S0"): 1}), 2.0)
    found = _values(counted)
    assert found["lakestream_compaction_commits_total", "", ""] == 5
    assert found["lakestream_compaction_commits_total", "$G", "S0"] == 2


def test_maintenance_counts_tables_that_needed_some() -> None:
    counted = CompactorMetrics(LAKE)
    for done in (
        MaintenanceResult("A", MaintenancePlan()),
        MaintenanceResult("A", MaintenancePlan(checkpoint=True)),
        MaintenanceResult("B", MaintenancePlan(), failure="no"),
    ):
        counted.note_maintained(done)
    found = _values(counted)
    assert found["lakestream_maintenance_tables_total", "ok"] == 1
    assert found["lakestream_maintenance_tables_total", "error"] == 1


def test_catalogs_are_up_after_a_pass_without_errors() -> None:
    hive = parse("hive://a")
    counted = CompactorMetrics(LAKE, [hive])
    assert _values(counted)["lakestream_catalog_up", "hive://a"] == 0
    made = EntryPlace("lakestream", EntryChange(CREATE, CatalogEntry("orders", "/lake/streams/ORDERS")))
    counted.note_catalog(SyncResult("hive://a", (made,)))
    found = _values(counted)
    assert found["lakestream_catalog_up", "hive://a"] == found["lakestream_catalog_entries", "hive://a"] == 1
    assert found["lakestream_catalog_changes_total", "hive://a", "create"] == 1
    counted.note_catalog(SyncResult("hive://a", complete=False, error="away"))
    found = _values(counted)
    assert found["lakestream_catalog_up", "hive://a"] == 0
    assert (
        found["lakestream_catalog_entries", "hive://a"] == found["lakestream_catalog_failures_total", "hive://a"] == 1
    )


def test_every_metric_that_needs_no_spark_is_collected() -> None:
    counted = CompactorMetrics(LAKE, [parse("hive://a")])
    table = paths.table(LAKE, "S")
    counted.note(BatchReport(1, 1, 0.1, {paths.staging(LAKE, "S", "u"): "no"}, {table: 1}, {table: 2}), 1.0)
    assert _values(counted)["lakestream_compaction_misfits_total", "$G", "S"] == 2
    names = {name for name, *_ in _values(counted)}
    assert names == {family.name for family in metrics.FAMILIES if "jvm" not in family.name}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:9464", ("0.0.0.0", 9464)),
        ("[::1]:0", ("::1", 0)),
        ("", None),
        (":9464", None),
        ("host:", None),
        ("::1:9464", None),
        ("host:65536", None),
    ],
)
def test_the_address_is_host_and_port(text: str, expected: tuple[str, int] | None) -> None:
    if expected is None:
        with pytest.raises(argparse.ArgumentTypeError, match="such as 9464"):
            job.listening(text)
    else:
        assert job.listening(text) == expected
