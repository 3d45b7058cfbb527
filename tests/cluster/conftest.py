"""Fixtures for clusters: one per program shared by the session, and new ones for tests that break them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.nodes import Cluster
from tests.cluster.peer_world import World
from tests.conftest import SHOWN_LOGS, recordings_of
from tests.recordings import Recordings, Referee
from tests.servers import Kind

TAGS = (("cloud:aws", "az:a"), ("cloud:gcp", "az:b"), ("cloud:gcp", "az:c"))
"""Tags of the nodes in the clusters that scenarios use."""

StartCluster = Callable[..., Cluster]


class Kept:
    """Cluster of one program that tests share; replaced after a test broke it."""

    def __init__(self, kind: Kind, directory: Path, **options: Any) -> None:
        self.kind = kind
        self._options = options
        self._directory = directory
        self._made = 0
        self._cluster: Cluster | None = None

    def get(self) -> Cluster:
        """Return the cluster with all nodes running."""
        cluster = self._cluster
        if cluster is not None and len(cluster.running) == len(cluster.nodes):
            return cluster
        self.drop()
        self._made += 1
        self._cluster = Cluster(
            self.kind, self._directory / f"{self.kind.value}-{self._made}", tags=TAGS, **self._options
        )
        self._cluster.start()
        return self._cluster

    def drop(self) -> None:
        """Stop the cluster; the next use starts a new one on empty stores."""
        if self._cluster is not None:
            self._cluster.kill()
            self._cluster = None

    def log(self) -> str:
        """Return the last lines printed by the nodes."""
        return "" if self._cluster is None else self._cluster.log()


@pytest.fixture(scope="session")
def recordings(referee: Referee) -> Iterator[Recordings]:
    """Yield the recordings of tests/cluster; write new ones when the session ends."""
    recordings = recordings_of(Path(__file__).parent, referee)
    yield recordings
    recordings.save()


@pytest.fixture(scope="session")
def _clusters(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Kept, Kept]]:
    kept = tuple(Kept(of, tmp_path_factory.mktemp("cluster")) for of in (Kind.REAL, kind))
    yield kept  # type: ignore[misc]
    for one in kept:
        one.drop()


@pytest.fixture
def clusters(_clusters: tuple[Kept, Kept], request: pytest.FixtureRequest) -> tuple[Kept, Kept]:
    """Return nats-server's cluster and the one under test."""
    request.node.stash.setdefault(SHOWN_LOGS, []).append(_clusters[1].log)
    return _clusters


@pytest.fixture
def start_cluster(kind: Kind, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StartCluster]:
    """Make and start a cluster for this test alone: `start_cluster(5, links=True, …)`; kill it after the test."""
    made: list[Cluster] = []

    def start(size: int = 3, **options: Any) -> Cluster:
        cluster = Cluster(kind, tmp_path / f"cluster{len(made)}", size, **options)
        made.append(cluster)
        request.node.stash.setdefault(SHOWN_LOGS, []).append(cluster.log)
        return cluster.start()

    yield start
    for cluster in made:
        cluster.kill()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Yield a `World`, in which nodes are only route connections."""
    world = World()
    yield world
    await asyncio.gather(*(node.peers.stop() for node in world.nodes))
