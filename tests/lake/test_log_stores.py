"""Tests of concurrent commits: of two processes exactly one gets each version, and the files it names are on disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import py4j.java_gateway
import py4j.protocol
import pyarrow as pa
import pyspark
import pytest
from deltalake import DeltaTable, QueryBuilder
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from lakestream.lake.storage.clouds.known import cloud_of
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table.actions import to_z85
from lakestream_spark import jars
from lakestream_spark.session import LAKE_SETTING
from tests.lake.tables import version
from tests.store_server import StoreServer

pytestmark = pytest.mark.lake

NEEDED = (
    "hadoop-client",
    "jackson-",
    "httpc",
    "netty-",
    "py4j",
    "slf4j-api",
    "jcl-over-slf4j",
    "log4j",
    "scala-library",
    "commons-",
)
VERSIONS = 50
COMMITS = int(os.environ.get("LAKESTREAM_COMMIT_RACES", "5"))

WRITER = """
import sys
from tests.lake.test_log_stores import append
from lakestream_spark.session import session

spark = session()
print("ready", flush=True)
sys.stdin.readline()
append(spark, sys.argv[1], "there")
spark.stop()
"""


@pytest.fixture(autouse=True)
def plain_java_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo PySpark's error translation, which a Spark in this process installs, and which asks Spark's own JVM."""
    monkeypatch.setattr(py4j.java_gateway, "get_return_value", py4j.protocol.get_return_value)


@contextmanager
def jvm(*options: str, cloud: str = "") -> Iterator[Any]:
    """Yield a Java process with Hadoop, Delta and our classes, without Spark."""
    brought = Path(pyspark.__file__).parent / "jars"
    classes = [str(path) for path in sorted(brought.iterdir()) if path.name.startswith(NEEDED)] + jars.ensure(cloud)
    found = jars.find_java()
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
    """Return a function that writes one file of the log, and returns True if it was the one to create it."""

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
    """Have both writers write each file at the same moment; return which ones succeeded."""
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


@pytest.mark.parametrize("fixture", ["s3_server", "gcs_server", "azure_server"])
def test_two_drivers_never_both_write_a_version_of_an_object_store(
    fixture: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: StoreServer = request.getfixturevalue(fixture)
    server.enter(monkeypatch)
    lake = server.url("lake")
    cloud, storage = cloud_of(lake), open_storage(lake)
    assert cloud is not None
    table = f"{lake}/streams/ORDERS"
    with jvm(cloud=cloud.name) as java_process:
        loaded = java_process.org.apache.hadoop.conf.Configuration()
        for name, value in cloud.spark_settings().items():
            if value:
                loaded.set(name.removeprefix("spark.hadoop."), value)
        stores = java_process.io.lakestream.delta
        store = {
            "s3": stores.ConditionalS3LogStore,
            "gcs": stores.ConditionalGcsLogStore,
            "azure": stores.ConditionalAzureLogStore,
        }[cloud.name](loaded)
        write = writer(java_process, store, loaded)
        log = f"{storage.spark_path(table)}/_delta_log"
        directory = java_process.org.apache.hadoop.fs.Path(log)
        directory.getFileSystem(loaded).mkdirs(directory)  # as Delta does before the first commit
        files = [f"{number:020d}.json" for number in range(VERSIONS)]
        first, second = race((write, write), [f"{log}/{name}" for name in files])
        assert [one != other for one, other in zip(first, second, strict=True)] == [True] * VERSIONS
        winners = [b"first\n" if won else b"second\n" for won in first]
        assert [storage.read(f"{table}/_delta_log/{name}") for name in files] == winners
        assert write(f"{log}/{0:020d}.json", "first") is first[0], "a repeated write of our own is ours, no conflict"
        named = {entry.name for entry in storage.list(f"{table}/_delta_log") if entry.size}
        assert named == set(files), "nothing else is left"
        # deltalake's commits and Spark's exclude each other.
        assert storage.create(f"{table}/_delta_log/{VERSIONS:020d}.json", b"other")
        assert not write(f"{log}/{VERSIONS:020d}.json", "first")
        if cloud.name == "s3":
            loaded.set("fs.s3a.create.conditional.enabled", "false")
            loaded.set("fs.s3a.impl.disable.cache", "true")
            with pytest.raises(Py4JJavaError, match="need conditional writes: hadoop-aws"):
                write(f"{log}/{VERSIONS + 1:020d}.json", "first")


def test_files_that_may_be_replaced_are_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "_last_checkpoint"
    with jvm() as java_process:
        configuration = java_process.org.apache.hadoop.conf.Configuration(False)
        store = java_process.io.lakestream.delta.LocalCommitLogStore(configuration)
        hadoop_path = java_process.org.apache.hadoop.fs.Path(f"file:{path}")
        # Hadoop's own file system leaves a checksum beside the file, which must not apply to later content.
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


def local_commit(java_process: Any, table: Path, version: int, *actions: dict[str, Any]) -> None:
    """Have the local log store write one version."""
    configuration = java_process.org.apache.hadoop.conf.Configuration(False)
    store = java_process.io.lakestream.delta.LocalCommitLogStore(configuration)
    lines = java_process.java.util.ArrayList()
    for action in actions:
        lines.add(json.dumps(action, separators=(",", ":")))
    path = java_process.org.apache.hadoop.fs.Path(f"file:{table}/_delta_log/{version:020d}.json")
    store.write(path, lines.iterator(), False, configuration)


def vector(at: Path, **changes: Any) -> dict[str, Any]:
    """Return the deletion vector descriptor of a file of this table."""
    uuid = UUID(at.name.removeprefix("deletion_vector_").removesuffix(".bin"))
    found = {"storageType": "u", "pathOrInlineDv": to_z85(uuid.bytes), "offset": 1, "sizeInBytes": 40}
    return {**found, "cardinality": 1, **changes}


def test_a_commit_is_refused_that_names_a_file_which_is_not_whole(tmp_path: Path) -> None:
    table, elsewhere = tmp_path / "a #table", tmp_path / "origin" / "part.parquet"
    log = table / "_delta_log"
    for directory in (log, table / "subject=a%2Fb", elsewhere.parent):
        directory.mkdir(parents=True)
    (table / "subject=a%2Fb" / "part.parquet").write_bytes(b"x" * 100)
    elsewhere.write_bytes(b"x" * 100)
    deleted = table / "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    deleted.write_bytes(b"x" * 49)
    plain = {"path": "subject=a%252Fb/part.parquet", "size": 100, "stats": '{"path":"none","size":1}'}
    outside = {"path": elsewhere.as_uri(), "size": 100}
    named: dict[str, dict[str, Any]] = {
        "not there": {"add": {**plain, "path": "subject=a%252Fb/other.parquet"}},
        "not there at all": {"add": {**outside, "path": "/origin/part.parquet"}},
        "short": {"add": {**plain, "size": 101}},
        "short, elsewhere": {"add": {**outside, "size": 101}},
        "short change data": {"cdc": {**plain, "size": 101}},
        "short vector": {"add": {**plain, "deletionVector": vector(deleted, offset=2)}},
        "no vector": {"add": {**plain, "deletionVector": vector(deleted, pathOrInlineDv=to_z85(bytes(16)))}},
        "no vector at a path": {"add": {**plain, "deletionVector": {**vector(deleted), "storageType": "p",
                                                                     "pathOrInlineDv": f"{table.as_uri()}/none.bin"}}},
    }  # fmt: skip
    with jvm() as java_process:
        for case, action in named.items():
            with pytest.raises(Py4JJavaError, match=r"was refused: it names a file of .* nothing was committed"):
                local_commit(java_process, table, 0, {"commitInfo": {}}, action)
            assert os.listdir(log) == [], case
        whole = {**plain, "deletionVector": vector(deleted)}
        inline = {**outside, "deletionVector": vector(deleted, storageType="i", pathOrInlineDv="wi5b=000010000siXQKl0")}
        gone = {"remove": {"path": "gone.parquet", "size": 1, "deletionVector": None}}
        stored = {"add": {"path": "s3a://bucket/part.parquet", "size": 1}}
        local_commit(java_process, table, 0, {"add": whole}, {"add": inline}, gone, stored)
    assert os.listdir(log) == [f"{0:020d}.json"]


def forced(java_process: Any, work: Callable[[], None], scratch: Path) -> set[Path]:
    """Return the files and directories that a Java process syncs during `work`, from its flight recorder."""
    recording = java_process.jdk.jfr.Recording()
    recording.enable("jdk.FileForce").withoutThreshold()
    recording.start()
    work()
    recording.stop()
    recorded = java_process.java.nio.file.Path.of(str(scratch), java_process.java.lang.reflect.Array.newInstance(
        java_process.java.lang.Class.forName("java.lang.String"), 0))  # fmt: skip
    recording.dump(recorded)
    return {
        Path(each.getString("path")) for each in java_process.jdk.jfr.consumer.RecordingFile.readAllEvents(recorded)
    }


def test_what_a_commit_names_is_brought_to_disk_up_to_the_table_and_at_first_what_is_above_it(tmp_path: Path) -> None:
    table = tmp_path / "lake" / "streams" / "ORDERS"
    parts = [table / f"day={day}" / f"hour={hour}" / "part.parquet" for day in (1, 2) for hour in (1, 2)]
    (table / "_delta_log").mkdir(parents=True)
    for part in parts:
        part.parent.mkdir(parents=True)
        part.write_bytes(b"x")
    adds = [{"add": {"path": str(part.relative_to(table)), "size": 1}} for part in parts]
    (table / "new").mkdir()
    deleted = table / "new" / "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    deleted.write_bytes(b"x" * 49)
    marked = vector(deleted)
    marked["pathOrInlineDv"] = "new" + marked["pathOrInlineDv"]
    with jvm() as java_process:
        first = forced(java_process, lambda: local_commit(java_process, table, 0, *adds), tmp_path / "first.jfr")
        assert {*parts, *(part.parent for part in parts), table / "day=1", table / "day=2"} <= first
        assert {table / "_delta_log", table, table.parent, table.parent.parent, tmp_path} <= first
        again = [
            {"add": {**adds[0]["add"], "deletionVector": marked}},
            {"remove": adds[0]["add"]},
        ]
        then = forced(java_process, lambda: local_commit(java_process, table, 1, *again), tmp_path / "then.jfr")
        assert {path for path in then if not path.name.endswith(".tmp")} == {
            deleted, deleted.parent, table, table / "_delta_log",
        }, "nothing is synced that was there before"  # fmt: skip


def test_a_checkpoint_is_on_disk_before_it_is_pointed_to(tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    for older in (10, 20):
        (log / f"{older:020d}.checkpoint.parquet").write_bytes(b"x")
    with jvm() as java_process:
        configuration = java_process.org.apache.hadoop.conf.Configuration(False)
        store = java_process.io.lakestream.delta.LocalCommitLogStore(configuration)
        path = java_process.org.apache.hadoop.fs.Path(f"file:{log}/_last_checkpoint")
        lines = java_process.java.util.ArrayList()
        lines.add('{"version":20,"size":3}')
        found = forced(
            java_process, lambda: store.write(path, lines.iterator(), True, configuration), tmp_path / "recorded.jfr"
        )
    assert {each for each in found if not each.name.endswith(".tmp")} == {log, log / f"{20:020d}.checkpoint.parquet"}


def test_a_file_is_on_disk_when_it_is_closed_and_has_no_checksum_beside_it(tmp_path: Path) -> None:
    old = tmp_path / "old"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with jvm() as java_process:
        configuration = java_process.org.apache.hadoop.conf.Configuration(False)

        def write(path: Path) -> None:
            hadoop_path = java_process.org.apache.hadoop.fs.Path(str(path))
            out = hadoop_path.getFileSystem(configuration).create(hadoop_path)
            out.write(65)
            out.close()

        write(old)
        write(tmp_path / "pipe")
        assert (tmp_path / ".old.crc").exists()
        # From here on as in a session, with Hadoop's own file system already in its cache.
        java_process.io.lakestream.delta.DurableFileSystem.use(configuration)
        with pytest.raises(Py4JJavaError, match="SyncFailedException"):  # from syncing a pipe
            write(tmp_path / "pipe")
        write(tmp_path / "new")
        path = java_process.org.apache.hadoop.fs.Path(str(old))
        store = path.getFileSystem(configuration)
        assert [each.getPath().getName() for each in store.listStatus(path.getParent())].count(".old.crc") == 0
        assert store.open(path).read() == 65
        (tmp_path / ".old.crc").write_bytes(b"")  # as after a power loss
        assert store.open(path).read() == 65, "a torn checksum condemns no file"
        write(old)
        assert store.open(path).read() == 65
    os.close(reader)
    assert sorted(os.listdir(tmp_path)) == ["new", "old", "pipe"]


@pytest.mark.parametrize("empty", [False, True], ids=["renamed", "not mounted"])
def test_hadoop_makes_nothing_in_the_place_of_a_lake_that_is_away(tmp_path: Path, empty: bool) -> None:
    lake = tmp_path / "lake of $X #1"
    lake.mkdir()
    (lake / "_lake.json").touch()
    log = lake / "streams" / "S" / "_delta_log"
    with jvm() as java_process:
        configuration = java_process.org.apache.hadoop.conf.Configuration(False)
        configuration.set(LAKE_SETTING, str(lake))
        java_process.io.lakestream.delta.DurableFileSystem.use(configuration)

        def made(path: Path) -> bool:
            directory = java_process.org.apache.hadoop.fs.Path(str(path))
            return bool(directory.getFileSystem(configuration).mkdirs(directory))

        assert made(log)
        assert made(tmp_path / "other" / "table")
        lake.rename(tmp_path / "aside")
        if empty:
            lake.mkdir()
        file = java_process.org.apache.hadoop.fs.Path(str(log / "0.json"))
        for work in (lambda: made(log), lambda: file.getFileSystem(configuration).create(file)):
            with pytest.raises(Py4JJavaError, match="the lake is away"):
                work()
    assert lake.exists() is empty
    assert list(lake.rglob("*")) == []


def test_tasks_of_a_session_write_files_that_are_on_disk_when_closed(spark: Any, tmp_path: Path) -> None:
    table = tmp_path / "table"
    rows = spark.range(0, 10, 1, 2).selectExpr("id", "id % 2 AS half")
    rows.write.format("delta").partitionBy("half").option("delta.checkpointInterval", "1").save(str(table))
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 3")
    written = [path.name for path in table.rglob("*") if path.is_file()]
    assert [name for name in written if name.endswith(".checkpoint.parquet")]
    # Hadoop's own file system would have left checksums, in tasks as in the driver.
    assert [name for name in written if name.endswith((".parquet.crc", ".bin.crc"))] == []
    context = spark.sparkContext
    file_system = context._jvm.org.apache.hadoop.fs.Path(str(table)).getFileSystem(context._jsc.hadoopConfiguration())
    assert file_system.getClass().getName() == "io.lakestream.delta.DurableFileSystem"


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
