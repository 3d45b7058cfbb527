"""Tests of Trino as a reader: deletion vectors, partitions, statistics, time travel, and what it shortens."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.lake.foreign import Readers
from tests.lake.test_foreign_readers import LAYOUTS, Table, messages
from tests.lake.trino import Trino, TrinoError

pytestmark = [pytest.mark.lake, pytest.mark.timeout(1800)]

STORED_NS = 1_700_000_000_123_456_789


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of all lakes of this module."""
    return tmp_path_factory.mktemp("lakes")


@pytest.fixture(scope="module")
def trino(tmp_path_factory: pytest.TempPathFactory, tables: Path) -> Iterator[Trino]:
    directory = tmp_path_factory.mktemp("trino")
    trino = Trino(directory, tables)
    trino.ask("CREATE SCHEMA delta.streams")
    yield trino
    trino.stop()
    shutil.rmtree(directory)  # half a gigabyte


@pytest.mark.parametrize("layout", LAYOUTS)
def test_trino_reads_what_spark_reads_but_times_in_milliseconds(
    spark: Any, trino: Trino, tables: Path, tmp_path: Path, layout: str
) -> None:
    name = layout.partition(":")[0]
    lake = tables / name
    table = Table(spark, Readers(spark), lake, tmp_path / "log", {"lakestream.partition": layout})
    table.model.publish(messages(30), time_ns=STORED_NS)
    table.compact()
    version = int(DeltaTable(table.path).version())
    table.model.remove([2, 3, 17], erase=True)
    table.model.publish(messages(3))
    table.compact()
    location = Path(table.path).relative_to(tables)
    trino.ask(f"CALL delta.system.register_table('streams', '{name}', 'local:///{location}')")
    wanted = table.model.expected()
    assert trino.ask(f"SELECT count(*) FROM {name}") == [[len(wanted)]]
    rows = trino.ask(f"SELECT seq, time_ns, to_unixtime(time), headers, data FROM {name} ORDER BY seq")
    assert [row[:2] for row in rows] == [[found.seq, found.time_ns] for found in wanted]
    assert [round(row[2] * 1000) for row in rows] == [found.time_ns // 1_000_000 for found in wanted]
    assert [row[3] is None for row in rows] == [found.header == b"" for found in wanted]
    by_spark = spark.sql(f"SELECT data FROM delta.`{table.path}` ORDER BY seq").collect()
    payloads = [None if row[4] is None else base64.b64decode(row[4]) for row in rows]
    assert payloads == [None if row.data is None else bytes(row.data) for row in by_spark]
    assert b"" in payloads
    one = trino.ask(f"SELECT seq FROM {name} WHERE subject = 'größe.日本' ORDER BY seq")
    assert one == [[found.seq] for found in wanted if found.subject == "größe.日本".encode()]
    types = {row[0]: row[1] for row in trino.ask(f"DESCRIBE {name}")}
    assert types["time"] == "timestamp(3) with time zone"
    statistics = {row[0]: row for row in trino.ask(f"SHOW STATS FOR {name}")}
    assert statistics["seq"][5:] == ["1", str(wanted[-1].seq)]
    assert trino.ask(f"SELECT count(*), max(seq) FROM {name} FOR VERSION AS OF {version}") == [[31, 31]]
    moment = trino.ask(f'SELECT max(timestamp) FROM "{name}$history"')[0][0]
    assert trino.ask(f"SELECT count(*) FROM {name} FOR TIMESTAMP AS OF TIMESTAMP '{moment}'") == [[len(wanted)]]
    with pytest.raises(TrinoError, match="not in the past"):
        trino.ask(f"SELECT count(*) FROM {name} FOR TIMESTAMP AS OF current_timestamp + INTERVAL '1' HOUR")
