"""Compactor without Spark, for cases whose subject is the server.

    python -m tests.lake_faults.small_compactor --lake LAKE

Belongs here: appending what is staged of every stream to its table, in commits like the compactor's. It
knows neither removals nor maintenance. An error ends a round, not the program.
"""

from __future__ import annotations

import sys
import time
import uuid

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import Schema

from lakestream.lake.errors import LakeError
from lakestream.lake.staging import scan, staging
from lakestream.lake.staging.staging import StagedStream
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table.log import TableLog
from lakestream.lake.table.progress import TableProgress, application
from lakestream.lake.table.schema import table_schema
from lakestream_client.lake import view as views

INTERVAL_S = 0.3


def main(lake: str) -> None:
    """Compact a lake until the process is killed."""
    scanner = scan.Scanner(lake)
    print("compactor ready", flush=True)
    while True:
        try:
            for stream in staging.current(scanner.scan())[0]:
                compact(lake, stream)
        except Exception as error:  # deltalake raises bare Exception
            print(f"{type(error).__name__}: {str(error)[:200]}", flush=True)
        time.sleep(INTERVAL_S)


def compact(lake: str, stream: StagedStream) -> None:
    """Append the staged messages of a stream that its table lacks.

    Through `Storage`, as deltalake makes the directories above its files, also those of a lake that is away by then.
    """
    name, uid = stream.identity.name, stream.identity.uid
    view = views.open_view(lake, name, flush=False)
    batches = list(view.tail_batches())
    if not batches:
        return
    rows, storage = pa.Table.from_batches(batches, table_schema(view.columns)), open_storage(lake)
    times, seqs = rows.column("time_ns").to_pylist(), rows.column("seq").to_pylist()
    file = f"part-00000-{uuid.uuid4()}.c000.snappy.parquet"
    with storage.writing(f"{view.table}/{file}") as content:
        pq.write_table(rows, content)
        size = content.tell()
    stats = {
        "numRecords": len(rows),
        "minValues": {"seq": seqs[0], "time_ns": times[0]},
        "maxValues": {"seq": seqs[-1], "time_ns": times[-1]},
        "nullCount": {field: rows.column(field).null_count for field in ("seq", "time_ns")},
    }
    progress = TableProgress(uid=uid, last_index=view.last_index, last_seq=view.last_seq, last_time_ns=times[-1])
    now_ms, said = time.time_ns() // 1_000_000, msgspec.json.encode(progress).decode()
    add = {"path": file, "partitionValues": {}, "size": size, "modificationTime": now_ms, "dataChange": True}
    actions: list[dict[str, object]] = [
        {"commitInfo": {"timestamp": now_ms, "operation": "WRITE", "operationParameters": {}, "userMetadata": said}},
        {"txn": {"appId": application(uid), "version": view.last_index, "lastUpdated": now_ms}},
        {"add": {**add, "stats": msgspec.json.encode(stats).decode()}},
    ]
    if view.version is None:
        metadata = {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": Schema.from_arrow(rows.schema).to_json(),
            "partitionColumns": [],
            "configuration": {"lakestream.uid": uid, "lakestream.stream": name},
            "createdTime": now_ms,
        }
        actions[1:1] = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]
    version = 0 if view.version is None else view.version + 1
    if not storage.create(TableLog(storage, view.table).path(version), b"\n".join(map(msgspec.json.encode, actions))):
        raise LakeError(f"another program has committed version {version} of {view.table}")


if __name__ == "__main__":
    main(sys.argv[sys.argv.index("--lake") + 1])
