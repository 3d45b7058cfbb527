"""Readers of Iceberg tables, and a stream with its Delta table and the Iceberg table over it."""

from __future__ import annotations

import atexit
import base64
import contextlib
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_avro
import duckdb_extension_httpfs
import duckdb_extension_iceberg
import polars
import pyspark
from pyiceberg.table import StaticTable

from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table.log import TableLog
from lakestream.lake.table.schema import join_headers
from lakestream.log.format.record import Record
from lakestream_iceberg.export import TableExport
from lakestream_iceberg.library import IcebergLibrary
from lakestream_iceberg.metadata import any_behind
from lakestream_spark import jars
from lakestream_spark.write import iceberg_files
from tests import maven
from tests.lake.model import StreamModel
from tests.lake.tables import records
from tests.lake.test_maintenance import NOW, compact, maintain

os.environ.setdefault("POLARS_ICEBERG_PLANNER", "pyiceberg")  # its own planner is another package, about which it warns
HINT = "version-hint.text"
BLOCK = b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n"
HTTPFS, *EXTENSIONS = (
    Path(package.__file__).parent / "extensions" / "v1.5.5" / f"{name}.duckdb_extension"
    for name, package in (
        ("httpfs", duckdb_extension_httpfs),
        ("avro", duckdb_extension_avro),
        ("iceberg", duckdb_extension_iceberg),
    )
)


def newest(table: str) -> str:
    """Return the path of the newest metadata file, by the hint that readers follow."""
    number = Path(table, "metadata", HINT).read_text()
    return f"{table}/metadata/v{number}.metadata.json"


def static(table: str) -> StaticTable:
    """Return the table as pyiceberg opens it."""
    return StaticTable.from_metadata(newest(table))


def by_pyiceberg(table: str) -> list[dict[str, Any]]:
    """Return the rows as pyiceberg finds them, in sequence order."""
    return static(table).scan().to_arrow().sort_by("seq").to_pylist()


def by_duckdb(table: str) -> list[dict[str, Any]]:
    """Return the rows as DuckDB finds them, in sequence order."""
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        for extension in EXTENSIONS:
            connection.execute(f"LOAD '{extension}'")
        found = connection.execute("SELECT * FROM iceberg_scan(?) ORDER BY seq", [table])
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def duckdb_of_catalog(url: str, user: str, password: str) -> duckdb.DuckDBPyConnection:
    """Return a connection of DuckDB whose database `lake` is a REST catalog."""
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for extension in (HTTPFS, *EXTENSIONS):
        connection.execute(f"LOAD '{extension}'")
    login = f"CLIENT_ID '{user}', CLIENT_SECRET '{password}', OAUTH2_SERVER_URI '{url}/v1/oauth/tokens'"
    connection.execute(f"CREATE SECRET login (TYPE iceberg, {login})")
    connection.execute(f"ATTACH 'lake' AS lake (TYPE iceberg, SECRET login, ENDPOINT '{url}')")
    return connection


def by_polars(table: str) -> list[dict[str, Any]]:
    """Return the rows as Polars finds them, in sequence order."""
    return polars.scan_iceberg(static(table)).sort("seq").collect().to_dicts()


def by_iceberg(table: str) -> list[dict[str, Any]]:
    """Return the rows as Iceberg's own library for Java finds them, in sequence order."""
    rows = _library().rows(newest(table))
    names = [field.name for field in static(table).schema().fields]  # it shows `_pos`, too, where rows are deleted
    return sorted(({name: row[name] for name in names} for row in rows), key=lambda row: row["seq"])


class IcebergRows:
    """Iceberg's library (IcebergGenerics) in a JVM of its own."""

    def __init__(self) -> None:
        home = Path(pyspark.__file__).parent / "jars"
        data = maven.fetch("org.apache.iceberg:iceberg-data:1.12.0")
        path = os.pathsep.join([*jars.ensure_iceberg(), str(data), f"{home}/*"])
        options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", path]
        source = Path(__file__).parent / "java" / "IcebergRows.java"
        self._process = subprocess.Popen(
            [jars.find_java().program, *options, str(source)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        atexit.register(self._process.kill)

    def rows(self, metadata: str) -> list[dict[str, Any]]:
        """Return the rows of a table by the path of its metadata file. Raises RuntimeError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(metadata + "\n")
        self._process.stdin.flush()
        found = []
        for line in self._process.stdout:
            if line == "end\n":
                return found
            if line.startswith("error "):
                raise RuntimeError(line)
            found.append(json.loads(line, object_hook=_value))
        raise RuntimeError("the JVM has ended")


_library = functools.cache(IcebergRows)


def _value(found: dict[str, Any]) -> Any:
    """Return the value that IcebergRows.java shows as an object; others are rows and structs."""
    if found.keys() == {"bytes"}:
        return base64.b64decode(found["bytes"])
    if found.keys() == {"map"}:
        return [tuple(pair) for pair in found["map"]]
    if found.keys() == {"text"}:
        text = found["text"]
        return datetime.fromisoformat(text) if "T" in text else date.fromisoformat(text)
    return found


Reader = Callable[[str], list[dict[str, Any]]]
READERS: dict[str, Reader] = {
    "pyiceberg": by_pyiceberg,
    "duckdb": by_duckdb,
    "polars": by_polars,
    "iceberg": by_iceberg,
}


def record(row: Mapping[str, Any]) -> Record:
    """Return a row as the message that it represents."""
    header, headers = row["header_block"], row["headers"]
    if header is None:
        pairs = list(headers.items()) if isinstance(headers, dict) else headers
        header = b"" if pairs is None else join_headers(pairs)
    subject = row["subject"].encode() if row["subject_bytes"] is None else row["subject_bytes"]
    return Record(row["seq"], row["time_ns"], subject, header, row["data"])


class IcebergStream:
    """A stream with its Delta table, and the Iceberg table over it."""

    def __init__(self, spark: Any, lake: Path, log: Path, metadata: Mapping[str, str]) -> None:
        self.spark, self.lake, self.model = spark, lake, StreamModel(log)
        self.model.configure(dict(metadata))
        self.table = self.model.table(lake)
        self.anew()

    def anew(self) -> None:
        """Forget what the exporter knows, as a restart does."""
        self.library = IcebergLibrary(self.spark, str(self.lake))
        self.export = TableExport(self.library, open_storage(str(self.lake)), self.table)

    def publish(self, count: int, subjects: int = 3, time_ns: int | None = None) -> None:
        """Publish messages, some with headers."""
        messages = [(b"s.%d" % (n % subjects), BLOCK if n % 5 == 0 else b"", b"%d" % n) for n in range(count)]
        self.model.publish(messages, time_ns=time_ns)

    def compact(self) -> None:
        """Compact what was published and removed."""
        self.model.stage(self.lake)
        compact(self.spark, self.lake, self.model)

    def history(self) -> Iterator[str]:
        """Change the stream and its table in each way that there is; yield the name of each change."""
        model, place = self.model, f"delta.`{self.table}`"
        self.publish(40)
        self.compact()
        yield "publishes"
        self.publish(30)
        model.remove([3, 4, 20, 50])
        self.compact()
        yield "deletes"
        model.remove([5, 6, 51])  # vectors that replace others
        self.compact()
        yield "deletes in the same files"
        self.spark.sql(f"ALTER TABLE {place} ADD COLUMN note STRING")
        self.publish(5)
        self.compact()
        yield "a new column"
        assert maintain(self.spark, self.lake, NOW).plan.bins
        yield "OPTIMIZE"
        model.remove(list(range(model.floor, 20)))  # as age, TTL and limits do
        self.compact()
        yield "the end of the oldest"
        before = TableLog(open_storage(self.table), self.table).latest
        self.spark.sql(f"DELETE FROM {place} WHERE seq > 60")
        self.export.run()
        self.spark.sql(f"RESTORE TABLE {place} TO VERSION AS OF {before}")
        yield "RESTORE"
        model.purge(50)
        self.publish(5)
        self.compact()
        yield "a purge"
        model.purge(model.next_seq)
        self.compact()
        yield "a purge of everything"
        self.publish(5)
        self.compact()
        yield "publishes after it"

    def check(self, changed: bool = True, readers: Mapping[str, Reader] = READERS) -> None:
        """Bring Iceberg up to date, and assert that its rows are those of Delta and of the stream, to each reader.

        Args:
            changed: there is something to do for it.
            readers: the readers.
        """
        assert self.export.run() == changed
        storage = open_storage(str(self.lake))
        assert bool(iceberg_files.asked_to_expire(storage, self.table)) == any_behind(str(self.lake), "off")
        wanted = self.model.expected()
        assert records(self.table) == wanted
        for name, read in readers.items():
            assert [record(row) for row in read(self.table)] == wanted, name


@contextlib.contextmanager
def serving(lake: Path | str, server: str, *options: str) -> Iterator[str]:
    """Run the catalog as a process; give its URL."""
    command = [sys.executable, "-m", "lakestream", "iceberg", "serve", "--lake", str(lake), "--server", server]
    process = subprocess.Popen([*command, "--listen", "127.0.0.1:0", *options], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        assert process.wait(60) == 0
