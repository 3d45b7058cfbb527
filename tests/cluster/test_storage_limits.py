"""Tests of server storage limits in a cluster: growing reservations, and refusals once too much is stored."""

from __future__ import annotations

import json

import pytest

from tests.cluster.conftest import StartCluster
from tests.cluster.nodes import until

pytestmark = pytest.mark.cluster

LIMITED = "jetstream { max_memory_store: 4000, max_file_store: 4000 }\n"


def test_reservations_and_publishes_stop_at_the_limit(start_cluster: StartCluster) -> None:
    cluster = start_cluster(config=LIMITED)

    def update(max_bytes: int) -> int:
        body = {"name": "A", "subjects": ["a"], "num_replicas": 3, "max_bytes": max_bytes}
        answer = cluster.api("STREAM.UPDATE.A", body)
        return int(answer["error"]["err_code"]) if "error" in answer else 0

    cluster.stream("A", ["a"], 3, max_bytes=3000)
    assert update(4001) == 10047
    assert update(1000) == 0
    cluster.stream("B", ["b"], 3)

    wire = cluster.wire()
    try:
        until(lambda: wire.request("b", b"x").status != 503, "B is known here")
        answers = [json.loads(wire.request("b", b"x" * 500).data) for _ in range(8)]
        assert ["error" in answer for answer in answers] == [False] * 8
        refused = json.loads(wire.request("b", b"x").data)
        assert refused["error"]["err_code"] == 10023
        assert cluster.api("STREAM.PURGE.B")["purged"] == 9
        until(lambda: "seq" in json.loads(wire.request("b", b"x").data or b"{}"), "room again")
    finally:
        wire.close()
