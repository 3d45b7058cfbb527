"""Tests of SQL on the lake of a cluster: it returns every acked message, whichever nodes run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lakestream_sql.session import Session
from lakestream_sql.uncompacted import FlushServer
from tests.cluster.nodes import Cluster, Node
from tests.servers import Kind
from tests.wire import Wire

pytestmark = [pytest.mark.lake, pytest.mark.cluster]

COUNT = "SELECT count(*) FROM delta.`streams/{}`"


def publish(cluster: Cluster, subject: str, count: int) -> None:
    with cluster.wire(timeout=20) as wire:
        for _ in range(count):
            assert "error" not in wire.request(subject, b"x").json()


def counted(lake: Path, stream: str) -> tuple[int, list[str]]:
    """Return the number of messages that SQL finds, and its notices."""
    said: list[str] = []
    with Session(lake, server=FlushServer(), notify=said.append) as session:
        return session.query(COUNT.format(stream)).fetchall()[0][0], said


def named(lake: Path) -> list[str]:
    return sorted(path.stem for path in (lake / "_servers").iterdir())


def test_sql_has_no_lag_when_nodes_end_and_says_so_when_none_is_left(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    cluster = Cluster(Kind.OURS, tmp_path, 3, config=f'lake {{ url: "{lake}", seal_age: "1h" }}')
    first, second, third = cluster.nodes
    (lake / "_server.json").write_text('{"server_id":"GONE","server_name":"old","urls":["nats://127.0.0.1:1"]}')
    try:
        cluster.start()
        cluster.stream("R3", ["r3"], 3)
        cluster.stream("R1", ["r1"], 1)
        assert named(lake) == ["n1", "n2", "n3"]
        for leader in cluster.nodes:
            cluster.lead("R3", leader)
            publish(cluster, "r3", 1)
            assert counted(lake, "R3") == (cluster.nodes.index(leader) + 1, [])
        publish(cluster, "r1", 3)
        home: Node = cluster.stream_leader("R1")
        assert counted(lake, "R1") == (3, [])

        gone = next(node for node in cluster.nodes if node is not home)
        gone.stop()
        assert gone.name not in named(lake)
        cluster.stream_leader("R3")
        publish(cluster, "r3", 2)
        publish(cluster, "r1", 2)
        assert counted(lake, "R3") == (5, [])
        assert counted(lake, "R1") == (5, [])

        gone.start()
        cluster.wait_ready()
        other = next(node for node in cluster.nodes if node not in (home, gone))
        other.kill()
        assert named(lake) == ["n1", "n2", "n3"]
        cluster.stream_leader("R3")
        publish(cluster, "r3", 2)
        assert counted(lake, "R3") == (7, [])

        publish(cluster, "r1", 1)
        for node in cluster.nodes:
            node.kill()
        command = [sys.executable, "-m", "lakestream.cli.main", "sql", "--lake", str(lake), "--format", "csv"]
        done = subprocess.run([*command, "-q", COUNT.format("R1")], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["count(*)", "5"]
        (warning,) = done.stderr.splitlines()
        assert warning.startswith("lakestream: messages that are not staged yet are missing: ")
        assert all(node.url.removeprefix("nats://") in warning for node in (first, second, third))
    finally:
        cluster.kill()


def asked(wire: Wire, query: str) -> list[bytes]:
    """Return the rows of a query over NATS, as lines of JSON."""
    inbox = wire.new_reply()
    sid = wire.subscribe(inbox)
    wire.publish("$LAKE.API.SQL", query.encode(), inbox)
    lines: list[bytes] = []
    while (part := (frame := wire.delivered(sid, 90)).headers.get("Lake-Sql-Part")) != "end":
        if part == "batch":
            lines += frame.data.splitlines()
            wire.publish(frame.reply)
    assert "Nats-Service-Error" not in frame.headers, frame.headers
    return lines


def test_sql_over_nats_has_no_lag_whichever_node_is_asked(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    sql = "sql { enabled: $SQL_HERE, batch_bytes: 16KB, window: 2, memory: 200MB }"
    cluster = Cluster(Kind.OURS, tmp_path, 3, config=f'lake {{ url: "{lake}", seal_age: "1h" }}\n{sql}')
    first, second, _ = cluster.nodes
    for node in cluster.nodes:
        node.environment["SQL_HERE"] = "true" if node is first else "false"
    try:
        cluster.start()
        cluster.stream("R3", ["r3"], 3)
        for number, leader in enumerate(cluster.nodes, 1):
            cluster.lead("R3", leader)
            publish(cluster, "r3", 1)
            with cluster.wire(first, timeout=20) as wire:
                assert asked(wire, COUNT.format("R3")) == [b'{"count(*)":%d}' % number]
        # Requests, batches and acknowledgements cross the route to the only node that answers.
        with cluster.wire(second, timeout=20) as wire:
            publish(cluster, "r3", 1)
            assert asked(wire, COUNT.format("R3")) == [b'{"count(*)":4}']
            assert len(asked(wire, "SELECT * FROM range(20000)")) == 20_000
            assert wire.request("$SRV.PING").json()["name"] == "lakestream-sql"
    finally:
        cluster.kill()
