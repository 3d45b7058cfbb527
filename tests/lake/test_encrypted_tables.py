"""Tests of encrypted tables (`lake { encryption: parquet }`): who reads them, and what their files show."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import polars
import pytest

from lakestream.lake.errors import TableBusy
from lakestream.lake.staging import scan
from lakestream.lake.storage import paths
from lakestream.lake.table import encryption
from lakestream.lake.table.encryption import BOUNDED, TableSealed
from lakestream.log.sealing.keys import VARIABLE
from lakestream_client import connect
from lakestream_client.lake import readers
from lakestream_spark.write.maintainer import Maintainer
from lakestream_spark.write.maintenance_plan import Policy
from lakestream_sql.session import Session
from tests.lake.compacting import compact
from tests.lake.test_end_to_end import Compaction, eventually
from tests.servers import Kind, Server
from tests.wire import Wire

WORDS = (b"SECRETTEXT", b"SECRETSUBJECT", b"SECRETHEADER", b"SECRETABOUT")
BOUNDS = ("minValues", "maxValues", "nullCount")
MESSAGES = 10_000
PATIENCE_S = 400.0


@pytest.fixture
def server(tmp_path: Path, spark: Any) -> Iterator[Server]:
    key = os.environ[VARIABLE].splitlines()[0]
    config = (
        f'jetstream {{ key: "{key}" }}\nlake {{ encryption: parquet, seal_bytes: 65536, '
        'seal_age: "200ms", retain_bytes: 0, poll: "100ms", staged_grace: 0 }\nsql: true\n'
    )
    server = Server(Kind.OURS, tmp_path / "store", config=config)
    server.start()
    yield server
    server.kill()


class Steady(Compaction):
    """Compaction without Spark's streaming engine, which gives up on a busy machine."""

    def __init__(self, spark: Any, server: Server) -> None:
        super().__init__(spark, server)
        self._spark = spark

    async def run(self) -> None:
        await asyncio.to_thread(self._all)

    def _all(self) -> None:
        for stream in scan.Scanner(self.lake).scan():
            with contextlib.suppress(TableBusy):
                compact(self._spark, self.lake, stream)


def payload(seq: int) -> bytes:
    return b"SECRETTEXT %d" % seq


def fill(server: Server, count: int) -> None:
    with Wire(server.address, timeout=60) as wire:
        stream: dict[str, Any] = {
            "name": "S",
            "subjects": ["SECRETSUBJECT.>"],
            "description": "SECRETABOUT",
            "allow_direct": True,
        }
        stream["metadata"] = {"lakestream.table": "latest"}
        assert "error" not in wire.api("STREAM.CREATE.S", stream)
        for seq in range(1, count + 1):
            subject = f"SECRETSUBJECT.{seq % 100}"
            if seq % 100:
                wire.publish(subject, payload(seq))
            else:
                wire.request(subject, payload(seq), {"SECRETHEADER": "x"})


def shown(server: Server) -> set[tuple[str, bytes]]:
    """Return where one of the words is on disk, in a file or its path."""
    files = [path for path in server.store.rglob("*") if path.is_file()]
    assert any(path.suffix == ".parquet" for path in files)
    return {(str(path), word) for path in files for word in WORDS if word in bytes(path) + path.read_bytes()}


async def test_nothing_of_a_stream_is_in_the_lake_in_plain_text(spark: Any, server: Server) -> None:
    """After publishing, compaction, deletion of messages and maintenance; every reader with the key has all rows."""
    await asyncio.to_thread(fill, server, MESSAGES)
    compaction = Steady(spark, server)
    await compaction.until_caught_up("S", within_s=PATIENCE_S)
    table = paths.table(compaction.lake, "S")
    dead = {7, 5000}

    def upserted() -> list[tuple[int, bytes]]:
        """Return the rows of the upsert table, once it has followed: its commit is behind that of the stream's."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with Session(compaction.lake) as session:
                rows = session.query("SELECT seq, data FROM delta.`streams/S_latest` ORDER BY seq").fetchall()
            if rows and rows[-1][0] >= MESSAGES:
                return [(seq, bytes(data)) for seq, data in rows]
            assert time.monotonic() < deadline, rows[-1:]
            time.sleep(0.2)

    def check(dead: set[int]) -> None:
        assert upserted()[:99] == [(seq, payload(seq)) for seq in range(MESSAGES - 99, MESSAGES)]
        live = {seq: payload(seq) for seq in range(1, MESSAGES + 1) if seq not in dead}
        assert not shown(server)
        with Wire(server.address, timeout=20) as wire:
            for seq in (1, 4321, MESSAGES):
                assert wire.request("$JS.API.DIRECT.GET.S", b'{"seq":%d}' % seq).data == payload(seq)
            last = wire.request("$JS.API.DIRECT.GET.S", b'{"last_by_subj":"SECRETSUBJECT.77"}')
            assert last.data == payload(MESSAGES - 23)
        with Session(compaction.lake) as session:
            rows = session.query("SELECT seq, data FROM S").fetchall()
            assert {seq: bytes(data) for seq, data in rows} == live
            one = session.query("SELECT seq FROM S WHERE subject = 'SECRETSUBJECT.7' AND seq > 9900").fetchall()
            assert one == [(9907,)]
        frame = spark.read.format("delta").load(table)
        assert {row.seq: bytes(row.data) for row in frame.select("seq", "data").collect()} == live
        found = readers.arrow(table, ["seq", "data"], "seq <= 6000").to_pydict()
        assert dict(zip(found["seq"], found["data"], strict=True)) == {k: v for k, v in live.items() if k <= 6000}

    await asyncio.to_thread(check, set())
    with Wire(server.address, timeout=20) as wire:
        for seq in dead:
            assert wire.api("STREAM.MSG.DELETE.S", {"seq": seq})["success"]
        wire.request("SECRETSUBJECT.0", b"one more, so that a segment is sealed")
        wire.api("STREAM.MSG.DELETE.S", {"seq": MESSAGES + 1})

    async def gone() -> bool:
        await compaction.run()
        rows = spark.read.format("delta").load(table).filter(f"seq IN (7, 5000, {MESSAGES + 1})")
        return not await asyncio.to_thread(rows.count)

    await eventually(gone, PATIENCE_S)
    await asyncio.to_thread(check, {*dead, MESSAGES + 1})
    (done,) = await asyncio.to_thread(Maintainer(spark, compaction.lake, Policy(min_files=2)).once)
    assert (done.failure, done.removed > done.added > 0) == (None, True)
    await asyncio.to_thread(check, {*dead, MESSAGES + 1})
    compaction.stop()


async def test_typed_tables_and_misfits_by_each_way_in(spark: Any, server: Server) -> None:
    """SQL here and over NATS and the Python client have the rows, typed and not; neither files nor their paths show a
    value: a partition by a field, which the stream asks for, is not made."""
    properties = {"name": {"type": "string"}, "n": {"type": "integer"}}
    text = json.dumps({"type": "object", "properties": properties, "required": ["n"]})

    def load() -> None:
        with Wire(server.address, timeout=60) as wire:
            body = json.dumps({"format": "json", "text": text}).encode()
            assert "error" not in wire.request("$LAKE.API.SCHEMA.ADD.people", body).json()
            metadata = {"lakestream.schema": "people", "lakestream.partition": "$.name", "lakestream.table": "latest"}
            config = {"name": "S", "subjects": ["SECRETSUBJECT.>"], "metadata": metadata}
            assert "error" not in wire.api("STREAM.CREATE.S", config)
            for n in range(1, 101):
                value = {"name": f"SECRETTEXT {n}", "n": n} if n % 10 else {"name": "SECRETABOUT", "n": "SECRETHEADER"}
                wire.request(f"SECRETSUBJECT.{n % 7}", json.dumps(value).encode())

    await asyncio.to_thread(load)
    compaction = Steady(spark, server)
    tables = [paths.table(compaction.lake, name) for name in ("S", "S_misfits", "S_latest")]

    async def there() -> bool:
        await compaction.run()
        if not all(map(deltalake.DeltaTable.is_deltatable, tables)):
            return False
        return [len(readers.arrow(table, ["seq"])) for table in tables] == [100, 10, 7]

    await eventually(there, PATIENCE_S)
    assert not shown(server)
    for table in tables:
        assert not set(deltalake.DeltaTable(table).metadata().partition_columns) - {"bucket"}
        lines = [line for path in Path(table, "_delta_log").glob("*.json") for line in path.read_text().splitlines()]
        stated = [json.loads(each["add"]["stats"]) for each in map(json.loads, lines) if "add" in each]
        assert stated
        assert {name for each in stated for part in BOUNDS for name in each.get(part, {})} <= {*BOUNDED}, table
    misfit = [(n, "n") for n in range(10, 101, 10)]
    fitting = [(n, f"SECRETTEXT {n}", n) for n in range(1, 101) if n % 10]
    typed, odd = (
        "SELECT seq, name, n FROM S WHERE n IS NOT NULL ORDER BY seq",
        "SELECT seq, field FROM S_misfits ORDER BY seq",
    )

    def here() -> None:
        with Session(compaction.lake) as session:
            assert session.query(typed).fetchall() == fitting
            assert session.query(odd).fetchall() == misfit

    await asyncio.to_thread(here)
    async with await connect(server.url) as client:
        for query, wanted in ((typed, fitting), (odd, misfit)):
            found = await (await client.sql(query)).to_arrow()
            assert list(zip(*found.to_pydict().values(), strict=True)) == wanted
        table = await client.to_arrow("S", source="lake")
        assert table.column("seq").to_pylist() == list(range(1, 101))
        reader = await client.scan("S", ["seq", "data"], source="lake", batch_size=30)
        batches = await asyncio.to_thread(lambda: list(reader))
        seen = {row["seq"]: json.loads(row["data"])["name"] for batch in batches for row in batch.to_pylist()}
        assert {seq: name for seq, name in seen.items() if seq % 10} == {seq: name for seq, name, _ in fitting}
    compaction.stop()


async def test_readers_of_other_kinds(spark: Any, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table in docs/readers.md: who reads encrypted tables with the table's key, and what others say."""
    await asyncio.to_thread(fill, server, 300)
    compaction = Steady(spark, server)
    table = paths.table(compaction.lake, "S")

    async def there() -> bool:
        """Return True once the table has all messages. The log keeps so small a segment."""
        await compaction.run()
        return deltalake.DeltaTable.is_deltatable(table) and len(readers.arrow(table, ["seq"])) == 300

    await eventually(there, PATIENCE_S)
    files = deltalake.DeltaTable(table).file_uris()
    key = encryption.key_of(table)
    plain = polars.scan_parquet(files, decryption=polars.ParquetDecryptionProperties(footer_key=key))
    assert plain.select(polars.col("seq").sum()).collect().item() == sum(range(1, 301))
    with pytest.raises(Exception, match=r"(?i)encrypt|corrupt"):
        deltalake.QueryBuilder().register("t", deltalake.DeltaTable(table)).execute("SELECT sum(seq) FROM t").read_all()
    with pytest.raises(polars.exceptions.PolarsError):
        polars.scan_delta(table).collect()
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(TableSealed, match=VARIABLE):
        readers.arrow(table)
    compaction.stop()
