"""Tests that other Delta readers return the right rows of lakestream's tables after each kind of change."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from delta.tables import DeltaTable as DeltaTables
from deltalake import DeltaTable

from lakestream.lake.staging import scan
from lakestream.lake.table import schema
from lakestream.log.format.record import Record
from lakestream_client.lake import readers
from lakestream_spark.write.stream_compaction import CompactionOptions
from tests.lake.compacting import compact as compact_stream
from tests.lake.foreign import COLUMNS, Readers, micros, record
from tests.lake.model import StreamModel
from tests.lake.tables import partition_columns

pytestmark = pytest.mark.lake

PREFIXES = "lakestream.properties.delta.randomizeFilePrefixes"
"""Property without which two readers fail for subjects that a directory name has to escape: see their tests."""
LAYOUTS = {"subject": ["subject"], "tokens:1,2": ["token1", "token2"], "bucket:3": ["bucket"]}
BLOCKS = [
    b"",
    b"NATS/1.0\r\nA: 1\r\nB: 2\r\n\r\n",
    b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n",
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0\r\nA:1\r\nB:  2 \r\n\r\n",
    b"NATS/1.0 503\r\n\r\n",
    "NATS/1.0\r\nGröße: »\r\n\r\n".encode(),
]
NO_CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Return a lake's root that Polars can read too; for unusual paths see the test of them."""
    root = tmp_path / "lake_$X~1"
    root.mkdir()
    return root


@pytest.fixture(scope="module")
def foreign(spark: Any) -> Readers:
    return Readers(spark)


def messages(count: int) -> list[tuple[bytes, bytes, bytes]]:
    subjects = [b"orders.de.1", b"orders.fr.2", "größe.日本".encode(), b"raw.\xff\xfe", b"one"]
    payloads = [b"", b"\x00\xff" * 20, "Köln".encode(), b'{"price": 1.5}']
    return [
        (subjects[n % len(subjects)], BLOCKS[n % len(BLOCKS)], payloads[n % len(payloads)] + b"%d" % n)
        for n in range(count)
    ] + [(b"one", b"", b"")]


class Table:
    """Stream and its table, which every reader must find equal."""

    def __init__(self, spark: Any, foreign: Readers, lake: Path, log: Path, metadata: dict[str, str]) -> None:
        self.spark, self.foreign, self.lake = spark, foreign, lake
        self.metadata = metadata
        self.model = StreamModel(log)
        self.model.configure(metadata)
        self.path = self.model.table(lake)
        self.kept: dict[int, Record] = {}

    def compact(self, **options: int) -> None:
        self.model.stage(self.lake)
        [stream] = scan.Scanner(str(self.lake)).scan()
        compact_stream(self.spark, str(self.lake), stream, CompactionOptions(**options))

    def sql(self, statement: str) -> None:
        self.spark.sql(statement.format(table=f"delta.`{self.path}`"))

    def check(self) -> None:
        """Assert that all readers return the rows of the stream, and those that an archive has kept."""
        wanted = sorted([*self.model.expected(), *self.kept.values()], key=lambda found: found.seq)
        for name, read in self.foreign.all.items():
            rows = read(self.path, None)
            assert [record(row) for row in rows] == wanted, name
            assert [micros(row) for row in rows] == [found.time_ns // 1000 for found in wanted], name
            for row, found in zip(rows, wanted, strict=True):
                assert set(COLUMNS) <= set(row), name
                assert (row["headers"] is None) == (found.header == b""), name
                assert row["subject"] == schema.subject_text(found.subject)[0], name

    def check_subject(self, subject: str = "größe.日本") -> None:
        """Assert that all readers return the rows of one subject."""
        wanted = [found for found in self.model.expected() if found.subject == subject.encode()]
        for name, read in self.foreign.all.items():
            found = [record(row) for row in read(self.path, subject)]
            assert [each for each in found if each.seq not in self.kept] == wanted, name

    def ended(self) -> dict[str, list[int]]:
        """Return for each reader the sequences that the stream no longer has."""
        return {
            name: [row["seq"] for row in read(self.path, None) if not _null(row[schema.REMOVED_COLUMN])]
            for name, read in self.foreign.all.items()
        }


def _null(value: Any) -> bool:
    return value is None or value != value or repr(value) == "<NA>"


@pytest.fixture
def unchecked(spark: Any) -> Iterator[None]:
    """Allow VACUUM to remove files that were replaced a moment ago."""
    spark.conf.set(NO_CHECK, "false")
    yield
    spark.conf.unset(NO_CHECK)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_reader_sees_the_stream_after_every_step(
    spark: Any, foreign: Readers, unchecked: None, lake: Path, tmp_path: Path, layout: str
) -> None:
    table = Table(spark, foreign, lake, tmp_path / "log", {"lakestream.partition": layout, PREFIXES: "true"})
    model = table.model
    model.publish(messages(30), time_ns=1_700_000_000_123_456_789)
    table.compact()
    assert partition_columns(table.path) == LAYOUTS[layout]
    model.publish(messages(20))
    table.compact()
    table.check()
    model.remove([2, 3, 17, 40], erase=True)
    model.publish(messages(3))
    table.compact()
    assert sum(_deletion_vectors(table.path)) == 4
    table.check()
    table.sql("OPTIMIZE {table}")
    table.check()
    # From now on messages removed by limits stay, with one more column.
    model.configure({**table.metadata, "lakestream.retention": "archive"})
    before = model.expected()
    model.remove([6, 7])
    model.remove([8, 41], erase=True)  # deletion vectors in the files that OPTIMIZE wrote
    model.publish(messages(5))
    table.compact()
    table.kept = {found.seq: found for found in before if found.seq in (6, 7)}
    table.check()
    assert set(map(tuple, table.ended().values())) == {(6, 7)}
    table.sql("ALTER TABLE {table} ADD COLUMNS (note STRING)")  # and a change by another writer
    model.publish(messages(5))
    table.compact()
    table.check()
    table.sql("OPTIMIZE {table}")
    table.sql("VACUUM {table} RETAIN 0 HOURS")
    table.check()
    table.check_subject()


def _deletion_vectors(table: str) -> list[int]:
    """Return the number of deleted rows of each file that has some."""
    found = pa.table(DeltaTable(table).deletion_vectors())["selection_vector"].to_pylist()
    return [kept.count(False) for kept in found]


def test_a_table_that_turns_into_buckets_stays_readable(
    spark: Any, foreign: Readers, lake: Path, tmp_path: Path
) -> None:
    table = Table(spark, foreign, lake, tmp_path / "log", {})
    table.model.publish(messages(20))
    table.compact(subject_limit=5)
    table.model.remove([4], erase=True)
    table.model.publish([*messages(10), (b"sixth", b"", b"x")])
    table.compact(subject_limit=5)
    assert partition_columns(table.path) == ["bucket"]
    table.check()


@pytest.mark.parametrize("prefixes", ["true", "false"])
def test_by_subject_polars_scan_needs_names_without_escapes(
    spark: Any, foreign: Readers, lake: Path, tmp_path: Path, prefixes: str
) -> None:
    """Polars' scan needs names without escapes, as it looks deletion vectors up by a path that it spells in two ways.

    All other readers are right in any case.
    """
    table = Table(spark, foreign, lake, tmp_path / "log", {PREFIXES: prefixes})
    table.model.publish([(subject, b"", b"") for subject in (b"plain", b"k=v", "größe".encode()) for _ in range(2)])
    table.compact()
    table.model.remove([1, 3, 5], erase=True)
    table.compact()
    found = {name: [row["seq"] for row in read(table.path, None)] for name, read in foreign.all.items()}
    assert found.pop("polars") == ([2, 4, 6] if prefixes == "true" else [2, 3, 4, 5, 6])
    assert set(map(tuple, found.values())) == {(2, 4, 6)}
    with pytest.raises(Exception, match="deletionVectors"):  # an error, rather than deleted rows
        DeltaTable(table.path).to_pyarrow_dataset()
    with pytest.raises(Exception, match="deletionVectors"):
        DeltaTable(table.path).to_pandas()


def test_at_an_odd_path_only_polars_own_scan_fails_and_says_so(spark: Any, foreign: Readers, tmp_path: Path) -> None:
    table = Table(spark, foreign, tmp_path / "lake größe #1", tmp_path / "log", {})
    table.model.publish(messages(10))
    table.compact()
    wanted = table.model.expected()
    for name, read in foreign.all.items():
        if name == "polars":
            with pytest.raises(FileNotFoundError):
                read(table.path, None)
        else:
            assert [record(row) for row in read(table.path, None)] == wanted, name


def test_arrow_reads_columns_conditions_and_versions(spark: Any, foreign: Readers, lake: Path, tmp_path: Path) -> None:
    table = Table(spark, foreign, lake, tmp_path / "log", {})
    table.model.publish(messages(10))
    table.compact()
    version = int(DeltaTable(table.path).version())
    table.model.remove([1], erase=True)
    table.model.publish(messages(10))
    table.compact()
    found = readers.arrow(table.path, ["seq"], "seq > 5 AND subject = 'one'")
    assert found.schema == pa.schema([("seq", pa.int64())])
    assert sorted(found["seq"].to_pylist()) == [
        each.seq for each in table.model.expected() if each.seq > 5 and each.subject == b"one"
    ]
    assert sorted(readers.arrow(table.path, ["seq"], version=version)["seq"].to_pylist()) == list(range(1, 12))
    assert sum(batch.num_rows for batch in readers.batches(table.path)) == len(table.model.expected())
    # deltalake goes by the times of the log's files, which are some ms after those of the commits.
    written = Path(table.path, "_delta_log", f"{version:020}.json").stat().st_mtime
    moment = datetime.fromtimestamp(written + 0.001, UTC)
    for at in (version, moment):
        rows = polars.scan_delta(table.path, version=at).select("seq").collect()
        assert sorted(rows["seq"].to_list()) == list(range(1, 12))
    earlier = DeltaTable(table.path)
    earlier.load_as_version(moment)
    assert earlier.version() == version
    frame = readers.to_pandas(table.path)
    assert str(frame["time_ns"].dtype) == "Int64"
    assert str(frame["time"].dtype) == "datetime64[us, UTC]"


# Features that streams may not ask for: policy.py has the reasons


def _with_feature(spark: Any, path: Path, feature: str) -> None:
    """Make a table with a feature, of ten messages without the second one."""
    made = DeltaTables.create(spark).location(str(path)).property("delta.enableDeletionVectors", "true")
    for name, kind in SPARK_TYPES.items():
        made = made.addColumn(name, kind)
    if feature == "clustering":
        made = made.clusterBy("subject")
    if feature == "row tracking":
        made = made.property("delta.enableRowTracking", "true")
    if feature == "variant":
        made = made.addColumn("more", "VARIANT")
    made.execute()
    names = ", ".join(f"CAST({value} AS {SPARK_TYPES[name]}) AS {name}" for name, value in TEN.items())
    more = """, parse_json('{"a": 1}') AS more""" if feature == "variant" else ""
    spark.sql(f"INSERT INTO delta.`{path}` BY NAME SELECT {names}{more} FROM range(1, 11)")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE seq = 2")


SPARK_TYPES = {
    "subject": "STRING",
    "seq": "BIGINT",
    "time": "TIMESTAMP",
    "time_ns": "BIGINT",
    "headers": "MAP<STRING, ARRAY<STRING>>",
    "data": "BINARY",
    "header_block": "BINARY",
    "subject_bytes": "BINARY",
}
TEN = dict.fromkeys(SPARK_TYPES, "NULL") | {"subject": "'a'", "seq": "id", "time_ns": "id", "data": "''"}


@pytest.mark.parametrize("feature", ["row tracking", "clustering", "variant"])
def test_polars_alone_fails_on_a_feature_of_delta_and_only_on_variant(
    spark: Any, foreign: Readers, lake: Path, feature: str
) -> None:
    table = lake / feature.replace(" ", "_")
    _with_feature(spark, table, feature)
    for name, read in foreign.all.items():
        if (name, feature) == ("polars", "variant"):
            with pytest.raises(polars.exceptions.ComputeError, match="variant"):
                read(str(table), None)
        else:
            assert [row["seq"] for row in read(str(table), None)] == [1, *range(3, 11)], name


# Change Data Feed

FEED = {"lakestream.properties.delta.enableChangeDataFeed": "true", PREFIXES: "true"}
Changes = list[tuple[int, str, int]]
"""(version, what, sequence)"""


def by_spark(spark: Any, table: str, start: int) -> Changes:
    found = spark.sql(f"SELECT _commit_version, _change_type, seq FROM table_changes_by_path('{table}', {start})")
    return sorted(tuple(row) for row in found.collect())


def by_deltalake(table: str, start: int) -> Changes:
    found = pa.table(DeltaTable(table).load_cdf(starting_version=start).read_all())
    names = ("_commit_version", "_change_type", "seq")
    return sorted(zip(*(found[name].to_pylist() for name in names), strict=True))


def test_the_change_data_feed_says_what_came_and_went(spark: Any, foreign: Readers, lake: Path, tmp_path: Path) -> None:
    table = Table(spark, foreign, lake, tmp_path / "log", FEED)
    table.model.publish(messages(9))
    table.compact()
    table.model.remove([2, 9], erase=True)
    table.model.publish(messages(4))
    table.compact()
    table.sql("OPTIMIZE {table}")
    table.model.remove([3])
    table.compact()
    found = by_spark(spark, table.path, 0)
    assert by_deltalake(table.path, 0) == found
    assert [seq for _, what, seq in found if what == "insert"] == list(range(1, 16))
    assert [seq for _, what, seq in found if what == "delete"] == [2, 9, 3]
    assert len(found) == 18, "OPTIMIZE changes no row"
    # The content of a copy that follows the feed.
    copy: set[int] = set()
    for version, what, seq in sorted(found, key=lambda change: (change[0], change[1] == "insert")):
        (copy.add if what == "insert" else copy.remove)(seq)
        assert version > 0
    assert copy == {each.seq for each in table.model.expected()}
    table.check()


def test_in_the_feed_a_change_of_layout_takes_every_row_out_and_in(
    spark: Any, foreign: Readers, lake: Path, tmp_path: Path
) -> None:
    table = Table(spark, foreign, lake, tmp_path / "log", FEED)
    table.model.publish(messages(9))
    table.compact(subject_limit=5)
    before = int(DeltaTable(table.path).version())
    table.model.publish([(b"sixth", b"", b"x")])
    table.compact(subject_limit=5)
    assert partition_columns(table.path) == ["bucket"]
    found = by_spark(spark, table.path, 0)
    rewrite = before + 1
    assert [change for change in found if change[0] == rewrite] == [
        (rewrite, what, seq) for what in ("delete", "insert") for seq in range(1, 11)
    ]
    # The changes since then, applied in order with deletes of a version first, give the same copy.
    last = int(DeltaTable(table.path).version())
    assert [change for change in found if change[0] > rewrite] == [(last, "insert", 11)]
    assert by_deltalake(table.path, rewrite + 1) == [(last, "insert", 11)]
    table.check()
