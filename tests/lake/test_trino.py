"""Tests of Trino as a reader of Delta: deletion vectors, partitions, statistics, time travel, and what it shortens; and
of Iceberg, by the REST catalog."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from lakestream.lake.storage.lake import identify, open_storage
from tests.lake.foreign import Readers
from tests.lake.iceberg import IcebergStream, serving
from tests.lake.test_foreign_readers import LAYOUTS, Table, messages
from tests.lake.trino import Trino, TrinoError
from tests.servers import Kind, Server

pytestmark = [pytest.mark.lake, pytest.mark.timeout(1800)]

STORED_NS = 1_700_000_000_123_456_789


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of all lakes of this module."""
    return tmp_path_factory.mktemp("lakes")


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory, tables: Path) -> Iterator[str]:
    """Yield the URL of the REST catalog of the lake `iceberg`."""
    login = "authorization { user: alice, password: secret }"
    server = Server(Kind.OURS, tmp_path_factory.mktemp("nats"), config=login)
    server.start()
    identify(open_storage(str(tables / "iceberg")))
    with serving(tables / "iceberg", server.url) as url:
        yield url
    server.kill()


@pytest.fixture(scope="module")
def trino(tmp_path_factory: pytest.TempPathFactory, tables: Path, rest: str) -> Iterator[Trino]:
    directory = tmp_path_factory.mktemp("trino")
    trino = Trino(directory, tables, rest)
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


COLUMNS = ("subject", "seq", "time_ns", "headers", "data", "header_block", "subject_bytes")


def test_trino_reads_every_message_of_iceberg_after_each_change(
    spark: Any, trino: Trino, tables: Path, tmp_path: Path
) -> None:
    metadata = {"lakestream.iceberg": "v2", "lakestream.partition": "subject"}
    stream = IcebergStream(spark, tables / "iceberg", tmp_path / "log", metadata)

    def rows(table: str) -> list[dict[str, Any]]:
        name = f'iceberg.lakestream."{Path(table).name}"'
        found = []
        for values in trino.ask(f"SELECT {', '.join(COLUMNS)} FROM {name} ORDER BY seq"):
            row = dict(zip(COLUMNS, values, strict=True))
            for column in ("data", "header_block", "subject_bytes"):
                row[column] = None if row[column] is None else base64.b64decode(row[column])
            found.append(row)
        return found

    for _ in stream.history():
        stream.check(readers={"trino": rows})
    stream.model.configure(metadata | {"lakestream.iceberg": "v3"})
    stream.publish(10)
    stream.compact()
    stream.check(readers={"trino": rows})
    stream.model.remove([stream.model.next_seq - 2])
    stream.compact()
    assert stream.export.run()
    with pytest.raises(TrinoError, match="Unexpected PUFFIN file format"):
        rows(stream.table)
