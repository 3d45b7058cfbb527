"""Of two processes that commit to one table at once, exactly one gets each version."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import py4j.java_gateway
import py4j.protocol
import pyarrow as pa
import pyspark
import pytest
from deltalake import DeltaTable, QueryBuilder
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from lakestream.lake import jars, java, s3
from tests.lake.tables import version
from tests.s3_server import S3Server

pytestmark = pytest.mark.lake

NEEDED = ("hadoop-client", "py4j", "slf4j-api", "jcl-over-slf4j", "log4j", "scala-library", "commons-")
VERSIONS = 50
COMMITS = int(os.environ.get("LAKESTREAM_COMMIT_RACES", "5"))

WRITER = """
import sys
from tests.lake.test_log_stores import append
from lakestream.lake.spark import session

spark = session()
print("ready", flush=True)
sys.stdin.readline()
append(spark, sys.argv[1], "there")
spark.stop()
"""


@pytest.fixture(autouse=True)
def plain_java_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Spark in this process has PySpark translate all errors of Java, and ask Spark's own JVM about them."""
    monkeypatch.setattr(py4j.java_gateway, "get_return_value", py4j.protocol.get_return_value)


@contextmanager
def jvm(*options: str, s3: bool = False) -> Iterator[Any]:
    """A Java process with Hadoop, Delta and our classes; no Spark in it."""
    brought = Path(pyspark.__file__).parent / "jars"
    classes = [str(path) for path in sorted(brought.iterdir()) if path.name.startswith(NEEDED)] + jars.ensure(s3)
    found = java.find()
    port, process = launch_gateway(
        classpath=os.pathsep.join(classes),
        javaopts=list(options),
        java_path=found.program,
        jarpath=classes[-1],
        die_on_exit=True,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()
        process.stdin.close()
        process.wait()
        process.stdout.close()


def writer(java_process: Any, store: Any, configuration: Any) -> Callable[[str, str], bool]:
    """A function that writes one file of the log, and says whether it was the one to do so."""

    def write(path: str, content: str) -> bool:
        actions = java_process.java.util.ArrayList()
        actions.add(content)
        try:
            store.write(java_process.org.apache.hadoop.fs.Path(path), actions.iterator(), False, configuration)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() != "java.nio.file.FileAlreadyExistsException":
                raise
            return False
        return True

    return write


def race(writers: Sequence[Callable[[str, str], bool]], paths: Sequence[str]) -> tuple[list[bool], list[bool]]:
    """Both write each file at the same moment; which of them says that it did."""
    together = threading.Barrier(2)

    def run(name: str, write: Callable[[str, str], bool]) -> list[bool]:
        won = []
        for path in paths:
            together.wait(timeout=300)
            try:
                won.append(write(path, name))
            except BaseException:
                together.abort()
                raise
        return won

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(run, ("first", "second"), writers)
    return first, second


@pytest.mark.parametrize("options", [(), ("-Dio.lakestream.delta.withoutLinks=true",)], ids=["links", "locks"])
def test_two_processes_never_both_write_a_version(tmp_path: Path, options: tuple[str, ...]) -> None:
    log = tmp_path / "a #table" / "_delta_log"
    log.mkdir(parents=True)
    files = [log / f"{number:020d}.json" for number in range(VERSIONS)]
    with ExitStack() as stack:
        writers = []
        for _ in range(2):
            java_process = stack.enter_context(jvm(*options))
            configuration = java_process.org.apache.hadoop.conf.Configuration(False)
            store = java_process.io.lakestream.delta.LocalCommitLogStore(configuration)
            writers.append(writer(java_process, store, configuration))
        first, second = race(writers, list(map(str, files)))
    assert [one != other for one, other in zip(first, second, strict=True)] == [True] * VERSIONS
    assert [path.read_text() for path in files] == ["first\n" if won else "second\n" for won in first]
    assert [path.name for path in log.iterdir() if path.suffix == ".tmp"] == []


def test_two_drivers_never_both_write_a_version_of_an_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    server = S3Server()
    server.start()
    try:
        server.enter(monkeypatch)
        with jvm(s3=True) as java_process:
            loaded = java_process.org.apache.hadoop.conf.Configuration()
            for name, value in s3.settings().items():
                if value:
                    loaded.set(name.removeprefix("spark.hadoop."), value)
            store = java_process.io.lakestream.delta.ConditionalS3LogStore(loaded)
            write = writer(java_process, store, loaded)
            log = f"s3a://{server.bucket}/lake/streams/ORDERS/_delta_log"
            first, second = race((write, write), [f"{log}/{number:020d}.json" for number in range(VERSIONS)])
            assert [one != other for one, other in zip(first, second, strict=True)] == [True] * VERSIONS
            assert write(f"{log}/{0:020d}.json", "first") is first[0], (
                "a repeated write of our own is ours, not a conflict"
            )
            loaded.set("fs.s3a.create.conditional.enabled", "false")
            loaded.set("fs.s3a.impl.disable.cache", "true")
            with pytest.raises(Py4JJavaError, match="need conditional writes: hadoop-aws"):
                write(f"{log}/{VERSIONS:020d}.json", "first")
    finally:
        server.stop()


def test_files_that_may_be_replaced_are_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "_last_checkpoint"
    with jvm() as java_process:
        configuration = java_process.org.apache.hadoop.conf.Configuration(False)
        store = java_process.io.lakestream.delta.LocalCommitLogStore(configuration)
        hadoop_path = java_process.org.apache.hadoop.fs.Path(f"file:{path}")
        # Hadoop's own file system leaves a checksum beside the file; it must not condemn what comes after it.
        out = hadoop_path.getFileSystem(configuration).create(hadoop_path)
        out.write(65)
        out.close()
        assert (tmp_path / "._last_checkpoint.crc").exists()
        actions = java_process.java.util.ArrayList()
        actions.add("naïve")
        store.write(hadoop_path, actions.iterator(), True, configuration)
        read = store.read(hadoop_path, configuration)
        assert [read.next(), read.hasNext()] == ["naïve", False]
        read.close()
        missing = java_process.org.apache.hadoop.fs.Path(f"file:{tmp_path}/none/0.json")
        with pytest.raises(Py4JJavaError, match=r"FileNotFoundException"):
            store.write(missing, actions.iterator(), False, configuration)
    assert os.listdir(tmp_path) == ["_last_checkpoint"]


def append(spark: Any, table: str, name: str) -> None:
    for number in range(COMMITS):
        frame = spark.createDataFrame([(name, number)], "writer string, number int").coalesce(1)
        frame.write.format("delta").mode("append").save(table)


def test_two_sparks_lose_no_commit(spark: Any, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    shape = pa.schema([pa.field("writer", pa.string()), pa.field("number", pa.int32())])
    DeltaTable.create(table, schema=shape)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, table],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={name: value for name, value in environment.items() if not name.startswith("PYSPARK_GATEWAY")},
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "ready\n"
            assert other.stdin is not None
            other.stdin.write("go\n")
            other.stdin.flush()
            append(spark, table, "here")
            assert other.wait(timeout=300) == 0
        finally:
            other.kill()
    found = sorted((row["writer"], row["number"]) for row in unsorted_rows(table))
    assert found == [(name, number) for name in ("here", "there") for number in range(COMMITS)]
    assert version(table) == 2 * COMMITS


def unsorted_rows(table: str) -> list[dict[str, Any]]:
    query = QueryBuilder().register("t", DeltaTable(table)).execute("SELECT * FROM t")
    found: list[dict[str, Any]] = pa.table(query.read_all()).to_pylist()
    return found
