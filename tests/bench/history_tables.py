"""Tables for measurements of history reads, as the compactor, the maintainer and a user's DELETE leave them.

Belongs here: creating them with Spark, once, in a directory that later runs find again. Every table holds the same
messages: sequences 1 to `rows`, subjects `orders.0` to `orders.9` (`sensor.0` to `sensor.999` in buckets), 128 bytes of
payload that do not compress, a millisecond between two messages.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from lakestream.lake.table import schema
from lakestream_spark.write import layouts

T0_NS = 1_700_000_000_000_000_000
STEP_NS = 1_000_000
COMMIT_ROWS = 1_000
"""Messages of one simulated commit."""
BOUNDS = tuple(f"sensor.{first}" for first in (1, 2, 3, 4, 5, 6, 7))

TABLES = {
    "1,000 files in sequence order": "files",
    "10 large files": "large",
    "8 buckets, a commit each 1,000": "buckets",
    "10 subjects, a commit each 10,000": "subjects",
    "10 large files, 5 % deleted": "deleted",
    "1 large file sorted by subject": "sorted",
}


def ensure(root: Path, rows: int) -> None:
    """Create the tables that do not exist yet."""
    missing = [name for name in TABLES.values() if not (root / name / "complete").exists()]
    if not missing:
        return
    from lakestream_spark.session import session

    spark = session("history benchmark", heap_mib=1024)
    try:
        for name in missing:
            _make(spark, root / name, name, rows)
            (root / name / "complete").touch()
    finally:
        spark.stop()


def _make(spark: Any, path: Path, name: str, rows: int) -> None:
    commits = rows // COMMIT_ROWS
    source = _messages(spark, rows, "sensor" if name == "buckets" else "orders", 1000 if name == "buckets" else 10)
    layout = schema.SUBJECT if name == "subjects" else schema.Layout("bucket")
    if name == "files":
        source = source.repartitionByRange(commits, "seq").sortWithinPartitions("subject", "seq")
    elif name in ("large", "deleted"):
        source = source.repartitionByRange(10, "seq").sortWithinPartitions("commit", "subject", "seq")
    elif name == "buckets":
        layout = schema.Layout("bucket", bounds=BOUNDS)
        source = source.repartitionByRange(commits, "seq").sortWithinPartitions("subject", "seq")
    elif name == "subjects":
        source = source.repartitionByRange(max(1, commits // 10), "seq").sortWithinPartitions("subject", "seq")
    else:
        source = source.repartition(1).sortWithinPartitions("subject", "seq")
    source = source.drop("commit").selectExpr("*", *layout.expressions())
    writer = source.write.format("delta").mode("overwrite").partitionBy(*layout.columns)
    for key in ("delta.enableDeletionVectors", "delta.enableInCommitTimestamps"):
        writer = writer.option(key, "true")
    writer.save(str(path))
    if name == "deleted":
        spark.sql(f"DELETE FROM delta.`{path}` WHERE seq % 20 = 0")


def _messages(spark: Any, rows: int, prefix: str, subjects: int) -> Any:
    return spark.range(1, rows + 1).selectExpr(
        f"concat('{prefix}.', cast(pmod(id, {subjects}) as string)) AS subject",
        "id AS seq",
        f"timestamp_micros(({T0_NS} + id * {STEP_NS}) div 1000) AS time",
        f"{T0_NS} + id * {STEP_NS} AS time_ns",
        "cast(NULL AS map<string, array<string>>) AS headers",
        "unhex(concat(sha2(cast(id AS string), 512), sha2(cast(-id AS string), 512))) AS data",
        "cast(NULL AS binary) AS header_block",
        "cast(NULL AS binary) AS subject_bytes",
        f"(id - 1) div {COMMIT_ROWS} AS commit",
    )


# ---------------------------------------------------------------------- as the compactor writes it, without Spark
KEYS = 100_000
SIZE = 128
TASK_ROWS = 200_000
"""Messages of one task: 32 MiB of segments."""
BATCH_ROWS = 10_000


def key(seq: int) -> str:
    """Return the subject of a message of `compacted`."""
    number = seq * 7919 % KEYS
    return f"sensor.{number // 1000:03}.{number:06}"


SECOND_NS = 1_000_000_000
"""Time between two messages of a table by day: a million of them are of 12 days."""
COUNTRIES = [f"c{number}" for number in range(10)]


def compacted(path: Path, rows: int, by_day: bool = False) -> None:
    """Create a table with the compactor's own files, 128 random bytes a message, unless it exists.

    It has 8 buckets, or with `by_day` the partitions of `day(time), $.country`.
    """
    from lakestream_spark.write.data_files import DataFiles

    log = path / "_delta_log"
    if log.exists():
        return
    path.mkdir(parents=True)
    names = sorted(f"sensor.{number // 1000:03}.{number:06}" for number in range(0, KEYS, 25))
    layout = schema.Layout("bucket", bounds=layouts.choose_bounds(names, 8))
    if by_day:
        layout = schema.Layout("fields", terms=("day", "$country"))
    texts = {"type": "array", "elementType": "string", "containsNull": True}
    kinds: dict[str, Any] = {"seq": "long", "time_ns": "long", "time": "timestamp", "bucket": "integer"}
    kinds |= dict.fromkeys(("subject", "schema", "country", schema.BY_FIELD + "1"), "string") | {schema.BY_DAY: "date"}
    kinds |= {"headers": {"type": "map", "keyType": "string", "valueType": texts, "valueContainsNull": True}}
    fields = [
        {"name": name, "type": kinds.get(name, "binary"), "nullable": True, "metadata": {}}
        for name in (*schema.TABLE_COLUMNS, *layout.columns, *(["schema", "country"] if by_day else []))
    ]
    described = {"id": "bench", "format": {"provider": "parquet", "options": {}}, "configuration": {}}
    described |= {"schemaString": json.dumps({"type": "struct", "fields": fields}), "partitionColumns": layout.columns}
    actions: list[dict[str, Any]] = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}]
    actions.append({"metaData": described})
    pool = os.urandom(1 << 26)
    for first in range(1, rows + 1, TASK_ROWS):
        files = DataFiles(str(path), layout).write(_batches(first, min(TASK_ROWS, rows + 1 - first), pool, by_day))
        actions += [{"add": msgspec.to_builtins(file)} for file in files]
    log.mkdir()
    (log / f"{0:020d}.json").write_text("\n".join(map(json.dumps, actions)))


def _batches(first: int, count: int, pool: bytes, by_day: bool) -> Iterator[Any]:
    import numpy as np
    import pyarrow as pa

    kinds = schema.message_schema()
    for begin in range(first, first + count, BATCH_ROWS):
        seqs = np.arange(begin, min(begin + BATCH_ROWS, first + count))
        at, ends = begin * 131 % (len(pool) - SIZE * BATCH_ROWS), (np.arange(len(seqs) + 1) * SIZE).astype(np.int32)
        content = pa.py_buffer(pool[at : at + SIZE * len(seqs)])
        columns = {
            "subject": pa.array(map(key, seqs.tolist()), pa.string()),
            "seq": pa.array(seqs),
            "time_ns": pa.array(T0_NS + seqs * (SECOND_NS if by_day else STEP_NS)),
            "data": pa.Array.from_buffers(pa.binary(), len(seqs), [None, pa.py_buffer(ends), content]),
        }
        found = [columns.get(field.name, pa.nulls(len(seqs), field.type)) for field in kinds]
        batch = pa.RecordBatch.from_arrays(found, schema=kinds)
        if by_day:
            batch = batch.append_column("schema", pa.array(["s@1"] * len(seqs)))
            batch = batch.append_column("country", pa.array([COUNTRIES[seq * 31 % 97 % 10] for seq in seqs.tolist()]))
        yield batch
