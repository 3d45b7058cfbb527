"""Test of Iceberg tables of a lake in an object store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from lakestream.lake.storage.lake import open_storage
from lakestream_spark.write import iceberg_files
from tests.lake.iceberg import record
from tests.lake.model import StreamModel, flights
from tests.lake.test_compact_job import Job
from tests.s3_server import S3Server

pytestmark = pytest.mark.lake


@pytest.fixture
def started() -> Iterator[list[Job]]:
    """Yield the list of a test's jobs; kill those that still run at its end."""
    running: list[Job] = []
    yield running
    for each in running:
        each.kill()


def test_pyiceberg_reads_a_stream_in_a_bucket(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[Job]
) -> None:
    s3_server.enter(monkeypatch)
    lake = s3_server.url("the/lake")
    model = StreamModel(tmp_path / "log")
    for number in range(2):
        model.publish(flights(50))
        model.remove([number + 1])
        model.stage(lake)
    job = Job(lake, "--once", "--iceberg", "v3")
    started.append(job)
    assert job.end() == 0, job.lines
    found = iceberg_files.newest(open_storage(lake), model.table(lake))
    assert found is not None, job.lines
    assert json.loads(found.content)["location"] == model.table(lake)
    options = {"s3.endpoint": s3_server.endpoint, "s3.access-key-id": s3_server.access_key}
    table = StaticTable.from_metadata(
        found.location, {**options, "s3.secret-access-key": s3_server.secret_key, "s3.region": "us-east-1"}
    )
    rows = table.scan().to_arrow().sort_by("seq").to_pylist()
    assert [record(row) for row in rows] == model.expected()
