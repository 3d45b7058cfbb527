"""Tests of Iceberg readers that need an environment of their own: Spark with Iceberg's runtime, and ClickHouse."""

from __future__ import annotations

import json
import pickle
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakestream.lake.storage.lake import open_storage
from lakestream_iceberg.export import TableExport
from lakestream_iceberg.library import IcebergLibrary
from tests import maven
from tests.lake.iceberg import IcebergStream, record
from tests.lake.model import StreamModel, flights
from tests.lake.test_clickhouse import ClickHouse, iceberg_rows
from tests.lake.test_clickhouse import clickhouse as clickhouse_fixture
from tests.lake.test_clones import MirrorModel, make
from tests.lake.test_maintenance import compact, grow
from tests.packages.environments import environ, make_venv

pytestmark = [pytest.mark.lake, pytest.mark.timeout(3600)]

PYSPARK = "pyspark==4.1.4"
"""The newest Spark for which Iceberg 1.12 has a runtime; 455 MB, so only these tests install it."""
RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
clickhouse = clickhouse_fixture


class IcebergSpark:
    """Spark with Iceberg's runtime, in a process of its own. `python`: has PySpark."""

    def __init__(self, python: Path, home: Path) -> None:
        program = Path(__file__).with_name("iceberg_spark.py")
        self._errors = (home / "spark.log").open("w")
        self._process = subprocess.Popen(
            [python, program, maven.fetch(RUNTIME)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environ(home),
        )

    def ask(self, query: str, **catalog: str) -> list[dict[str, Any]]:
        """Return the rows of a query. `catalog`: settings of the catalog `lake`. Raises RuntimeError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"query": query, **catalog}).encode() + b"\n")
        self._process.stdin.flush()
        length = int.from_bytes(self._process.stdout.read(8), "big")
        answer = pickle.loads(self._process.stdout.read(length))
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return list(answer)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table of the default account, in sequence order."""
        lake, stream = table.split("/streams/")
        return self.ask(f"SELECT * FROM lake.streams.`{stream}` ORDER BY seq", type="hadoop", warehouse=lake)

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._errors.close()


@pytest.fixture(scope="module")
def iceberg_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergSpark]:
    home = tmp_path_factory.mktemp("iceberg_spark")
    spark = IcebergSpark(make_venv(home / "venv", environ(home), PYSPARK) / "python", home)
    yield spark
    spark.close()


@pytest.mark.parametrize("form", ["v3", "v2"])
def test_spark_with_icebergs_runtime_reads_every_message_after_each_change(
    spark: Any, iceberg_spark: IcebergSpark, lake: Path, tmp_path: Path, form: str
) -> None:
    layout = {"v3": "subject", "v2": "bucket:3"}[form]
    metadata = {"lakestream.iceberg": form, "lakestream.partition": layout}
    stream = IcebergStream(spark, lake, tmp_path / "log", metadata)
    for _ in stream.history():
        stream.check(readers={"spark": iceberg_spark.rows})


def test_spark_with_icebergs_runtime_reads_a_mirror_whose_table_began_as_a_clone(
    spark: Any, iceberg_spark: IcebergSpark, lake: Path, tmp_path: Path
) -> None:
    mirror, table = cloned(spark, lake, tmp_path)
    assert [record(row) for row in iceberg_spark.rows(table)] == mirror.expected()


def cloned(spark: Any, lake: Path, root: Path, form: str = "v3") -> tuple[MirrorModel, str]:
    """Return a mirror whose table began as a clone, and the table, which has Iceberg metadata."""
    origin, mirror = StreamModel(root / "origin"), MirrorModel(root / "mirror")
    grow(spark, lake, origin, 1)
    origin.remove([3, 4, 50])
    grow(spark, lake, origin, 1)
    answer = make(spark, lake, mirror, origin)
    mirror.begin(origin.expected(), answer.last_seq)
    mirror.publish(flights(10))
    mirror.remove([10, 11])
    mirror.stage(lake)
    compact(spark, lake, mirror)
    table = mirror.table(lake)
    assert TableExport(IcebergLibrary(spark, str(lake)), open_storage(str(lake)), table, form).run()
    return mirror, table


def test_clickhouse_reads_every_message_of_v2_after_each_change(
    spark: Any, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    lake = tmp_path / "lake größe $X~1"
    stream = IcebergStream(spark, lake, tmp_path / "log", {"lakestream.iceberg": "v2"})
    for change in stream.history():
        if change == "a purge of everything":
            stream.export.run()
            continue
        stream.check(readers={"clickhouse": lambda table: iceberg_rows(clickhouse, table)})
    mirror, table = cloned(spark, tmp_path / "lake", tmp_path, "v2")
    assert [record(row) for row in iceberg_rows(clickhouse, table)] == mirror.expected()
