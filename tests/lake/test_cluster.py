"""Tests of `jobs/compact.py` on a Spark cluster of a master and two workers, with the lake on a mount and on S3."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakestream.lake.table.state import position_of
from lakestream_spark import jars
from tests.lake.cluster import Cluster
from tests.lake.conftest import job
from tests.lake.model import StreamModel, flights
from tests.lake.tables import records
from tests.lake.test_compact_job import Job
from tests.s3_server import S3Server

pytestmark = pytest.mark.lake

PROPERTIES = job().parents[1] / "spark_conf" / "cluster" / "spark-defaults.conf"
SECONDS = 900.0
"""Timeout; a busy machine starts six JVMs slowly."""


@pytest.fixture(scope="module")
def cluster(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    started = Cluster(tmp_path_factory.mktemp("cluster"), s3_server.environ())
    started.start()
    yield started
    started.stop()


def compact(cluster: Cluster, lake: str, executors: int) -> Job:
    """Compact once on the cluster and wait for the end."""
    command = cluster.submit(job(), PROPERTIES, jars.ensure("s3"), executors)
    running = Job(lake, "--once", program=["env", *_changes(cluster.environ), *command])
    try:
        assert running.end(SECONDS) == 0, running.lines
    finally:
        running.kill()
    return running


def _changes(environ: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in environ.items() if os.environ.get(name) != value]


def publish(model: StreamModel, lake: str, segments: int) -> None:
    for _ in range(segments):
        model.publish(flights(500, subjects=5, headers=True))
        model.stage(lake)


def test_the_lake_on_s3_then_on_a_mount_and_with_a_worker_less(
    cluster: Cluster, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_server.enter(monkeypatch)
    remote, local = s3_server.url("lake"), str(tmp_path / "lake")
    model = StreamModel(tmp_path / "log")
    publish(model, remote, 4)
    said = compact(cluster, remote, executors=2).lines
    assert records(model.table(remote)) == model.expected()
    assert position_of(model.table(remote), "UID1") == model.sealed[-1].last_index
    assert all(list(work.glob("app-*/*/stderr")) for work in cluster.work), "both workers ran an executor"
    cluster.workers[0].kill()
    other = StreamModel(tmp_path / "log2")
    publish(other, local, 2)
    said += compact(cluster, local, executors=1).lines
    assert records(other.table(local)) == other.expected()
    assert s3_server.seen_in(*cluster.logs()) == []
    assert not [line for line in said if any(secret in line for secret in s3_server.secrets)]
