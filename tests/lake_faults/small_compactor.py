"""Compactor without Spark, for cases whose subject is the server.

    python -m tests.lake_faults.small_compactor --lake LAKE

Belongs here: appending what is staged of every stream to its table with deltalake, in commits like the compactor's. It
knows neither removals nor maintenance. An error ends a round, not the program.
"""

from __future__ import annotations

import sys
import time

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from lakestream.lake.delta.position import Progress, application
from lakestream.lake.delta.schema import table_schema
from lakestream.lake.files import scan, staging
from lakestream.lake.files.staging import StagedStream
from lakestream.lake.read import live

INTERVAL_S = 0.3
OPTIONS = {"timeout": "10s", "connect_timeout": "5s"}


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
    """Append the staged messages of a stream that its table lacks."""
    name, uid = stream.identity.name, stream.identity.uid
    view = live.open_view(lake, name, flush=False)
    batches = list(view.tail_batches())
    if not batches:
        return
    rows = pa.Table.from_batches(batches, table_schema(view.columns))
    times = rows.column("time_ns").to_pylist()
    progress = Progress(uid=uid, last_index=view.last_index, last_seq=view.last_seq, last_time_ns=times[-1])
    if view.version is None:
        DeltaTable.create(
            view.table,
            rows.schema,
            configuration={"lakestream.uid": uid, "lakestream.stream": name},
            raise_if_key_not_exists=False,
            storage_options=OPTIONS,
        )
    write_deltalake(
        view.table,
        rows,
        mode="append",
        storage_options=OPTIONS,
        commit_properties=CommitProperties(
            custom_metadata={"userMetadata": msgspec.json.encode(progress).decode()},
            app_transactions=[Transaction(application(uid), view.last_index)],
        ),
    )


if __name__ == "__main__":
    main(sys.argv[sys.argv.index("--lake") + 1])
