"""Tests of the blocking client's completeness, and of what an import loads."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from typing import Any

import pytest

from lakestream_client import bucket, client, past, sql, sync

pytestmark = pytest.mark.unit

PAIRS: list[tuple[type, type]] = [
    (client.Client, sync.SyncClient),
    (past.AsOf, sync.SyncAsOf),
    (bucket.Bucket, sync.SyncBucket),
    (bucket.BucketAt, sync.SyncBucketAt),
    (sql.Answer, sync.SyncAnswer),
]


def public(kind: type) -> dict[str, Any]:
    return {name: each for name, each in inspect.getmembers(kind, callable) if not name.startswith("_")}


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS, ids=lambda kind: kind.__name__)
def test_every_operation_can_be_called_without_an_event_loop(asynchronous: type, blocking: type) -> None:
    wanted, there = public(asynchronous), public(blocking)
    assert wanted.keys() - there.keys() == set()
    for name, operation in wanted.items():
        assert not inspect.iscoroutinefunction(there[name]), name
        if name != "close":
            assert (there[name].__doc__, inspect.signature(there[name])) == (
                operation.__doc__,
                inspect.signature(operation),
            )


def test_an_import_loads_nothing_heavy() -> None:
    code = "import sys, json, lakestream_client.sync; print(json.dumps(sorted(m.split('.')[0] for m in sys.modules)))"
    loaded = set(json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout))
    assert not loaded & {"deltalake", "duckdb", "nats", "pandas", "polars", "pyarrow", "pyspark", "typer"}
