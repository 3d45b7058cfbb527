"""Metrics and traces of a real server with a real compactor: pages, dashboard and alert rules as Prometheus sees them,
and the spans of a message from its publish to its commit in the table, as a collector receives them."""

from __future__ import annotations

import re
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from lakestream.ops.metrics.names import RAFT, RAFT_LAG
from tests.lake.conftest import job
from tests.lake.test_compact_job import Job
from tests.metrics_named import CONFIG, RULES, RULES_TEST, named
from tests.otlp import Received, Receiver
from tests.promtool import find_promtool, promtool
from tests.servers import Kind, Server
from tests.wire import Wire

pytestmark = pytest.mark.lake

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, NOT_SAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"
SECONDS = 240
FURTHER = 60
OF_THE_EXPORTER = "jetstream_stream_consumer_count", "jetstream_stream_subject_count"
"""Names that Prometheus' conventions would not allow, and that dashboards of the exporter have."""


class System:
    """A server, its compactor and their collector, with a stream that has traced messages in its table."""

    def __init__(self, directory: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.compactor_port = free.getsockname()[1]
        self.receiver = Receiver()
        config = (
            "lake { seal_bytes: 16384, seal_age: 200ms, poll: 100ms, retain_bytes: 0, staged_grace: 0 }\n"
            f'otel {{ endpoint: "{self.receiver.endpoint}" }}\n'
            "accounts { A { users: [{user: a, password: p}], jetstream: enabled } }\n"
        )
        fast = {"OTEL_BSP_SCHEDULE_DELAY": "100"}
        self.server = Server(Kind.OURS, directory / "store", config=config, args=["-m", "-1"], environment=fast)
        self._environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": self.receiver.endpoint, **fast}
        self.job: Job | None = None

    def start(self) -> None:
        self.receiver.__enter__()
        self.server.start()
        variables = [f"{name}={value}" for name, value in self._environ.items()]
        program = ["env", *variables, sys.executable, str(job())]
        lake, port = self.server.store / "lake", str(self.compactor_port)
        self.job = Job(lake, "--interval", "0.5", "--metrics", port, program=program)
        self.job.wait_for("compactor ready")
        with self.client() as client:
            client.api("STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["o.>"]})
            config = {"durable_name": "D", "ack_policy": "explicit"}
            client.api("CONSUMER.CREATE.ORDERS.D", {"stream_name": "ORDERS", "config": config})
            client.request("o.1", b"one", headers={"traceparent": SAMPLED})
            client.request("o.2", b"two", headers={"traceparent": NOT_SAMPLED})
            for _ in range(FURTHER):  # so many that segments leave the log
                client.request("o.3", bytes(4096))

    def client(self) -> Wire:
        return Wire(self.server.address, {"user": "a", "pass": "p"})

    def stop(self) -> None:
        if self.job is not None:
            self.job.process.terminate()
            self.job.end()
        self.server.stop()
        self.receiver.__exit__()

    def pages(self) -> tuple[str, str]:
        """Return the text of the server's page and of the compactor's."""
        return _get(self.server.http_port), _get(self.compactor_port)


def _get(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return answer.read().decode()


def _values(text: str) -> dict[str, float]:
    return {
        f"{each.name}{sorted(each.labels.values())}": each.value
        for family in parse_text(text)
        for each in family.samples
    }


def until(ready: Callable[[], bool], what: str, seen: Callable[[], object] = lambda: None) -> None:
    deadline = time.monotonic() + SECONDS
    while not ready():
        assert time.monotonic() < deadline, (what, seen())
        time.sleep(0.1)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Yield the running system once the table has the messages."""
    running = System(tmp_path_factory.mktemp("metrics"))
    try:
        running.start()
        key = "lakestream_lake_lag_messages['A', 'ORDERS']"
        until(lambda: _values(_get(running.server.http_port)).get(key) == 0, "the table has everything")
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of promtool."""
    return find_promtool(tmp_path_factory.mktemp("promtool"))


def test_the_compactor_counts_its_commits_and_shows_its_jvm(system: System) -> None:
    counted = "lakestream_compaction_messages_total[]"
    until(lambda: _values(system.pages()[1])[counted] >= 2 + FURTHER, "the end of the batches")
    server, compactor = map(_values, system.pages())
    assert compactor["lakestream_compaction_commits_total['A', 'ORDERS']"] >= 1
    assert compactor[counted] == 2 + FURTHER
    assert compactor["lakestream_compaction_batch_duration_seconds_count[]"] >= 1
    assert compactor["lakestream_compaction_failing_streams[]"] == 0
    assert compactor["lakestream_compactor_active[]"] == 1
    assert abs(compactor["lakestream_compaction_last_commit_timestamp_seconds[]"] - time.time()) < 3600
    heap, resident = compactor["jvm_memory_used_bytes['heap']"], compactor["lakestream_jvm_resident_memory_bytes[]"]
    assert 10e6 < heap <= compactor["jvm_memory_max_bytes['heap']"] <= 1e9
    assert resident > heap
    assert server["lakestream_lake_compactor_alive[]"] == 1
    assert server["lakestream_lake_last_commit_timestamp_seconds['A', 'ORDERS']"] > 0


def test_reads_of_old_messages_are_counted(system: System) -> None:
    with system.client() as client:

        def read() -> dict[str, float]:
            assert client.api("STREAM.MSG.GET.ORDERS", {"seq": 1}, timeout=30)["message"]["seq"] == 1
            return _values(system.pages()[0])

        until(lambda: read()["lakestream_history_read_duration_seconds_count[]"] > 0, "a read from the lake")
        before, after = read(), read()
    for name, more in (("read_duration_seconds_count", 1), ("cache_hits_total", 1), ("cache_misses_total", 0)):
        assert after[f"lakestream_history_{name}[]"] == before[f"lakestream_history_{name}[]"] + more
    assert after["lakestream_history_read_duration_seconds_sum[]"] > 0
    assert after["lakestream_history_read_failures_total[]"] == 0
    assert after["lakestream_history_cache_bytes[]"] > 0


def test_every_metric_of_dashboard_and_rules_is_on_the_pages(system: System) -> None:
    with system.client() as client:
        client.api("STREAM.INFO.ORDERS")
    found = {line.split()[2] for page in system.pages() for line in page.splitlines() if line.startswith("# TYPE ")}
    of_clusters = {each.name for each in (*RAFT, RAFT_LAG)}  # tests/cluster/test_metrics.py
    only_after_errors = {"lakestream_compaction_failures_total"}  # tests/unit/spark/test_compactor_metrics.py
    only_with_tls = {"lakestream_tls_certificate_expiry_timestamp_seconds"}  # tests/conformance/test_metrics.py
    only_with_catalogs = {"lakestream_catalog_up"}  # tests/unit/spark/test_compactor_metrics.py
    assert named() - found - of_clusters - only_after_errors - only_with_tls - only_with_catalogs == set()


def test_the_pages_follow_the_conventions_of_prometheus(system: System, checker: str) -> None:
    for page in system.pages():
        _, said = promtool(checker, "check", "metrics", text=page)
        findings = [line for line in said.splitlines() if line and not line.startswith(OF_THE_EXPORTER)]
        assert findings == []


def test_the_rules_are_valid_and_fire_when_they_should(checker: str) -> None:
    for arguments in (("check", "rules", RULES), ("check", "config", CONFIG), ("test", "rules", RULES_TEST)):
        code, said = promtool(checker, *arguments)
        assert code == 0, said


def test_a_traced_publish_has_spans_from_the_publish_to_the_commit_in_the_table(system: System) -> None:
    spans = {each.name: each for each in system.receiver.wait(4)}
    assert sorted(spans) == ["commit ORDERS", "publish ORDERS", "stage ORDERS", "table ORDERS"]
    publish, commit, stage, table = (spans[f"{name} ORDERS"] for name in ("publish", "commit", "stage", "table"))
    assert {each.trace for each in spans.values()} == {TRACE}
    assert publish.parent == SPAN
    assert {each.parent for each in (commit, stage, table)} == {publish.id}
    assert publish.start_ns <= commit.start_ns <= commit.end_ns == publish.end_ns == stage.start_ns
    assert stage.start_ns < stage.end_ns <= table.end_ns
    assert table.start_ns < table.end_ns
    assert {each.service for each in (publish, commit, stage)} == {"lakestream"}
    assert table.service == "lakestream-compactor"
    assert {each.attributes["lakestream.sequence"] for each in spans.values()} == {1}
    assert {each.attributes["lakestream.account"] for each in spans.values()} == {"A"}


def test_messages_that_are_not_sampled_have_no_span(system: System) -> None:
    with system.client() as client:
        last = client.request("o.4", b"last", headers={"Traceparent": SAMPLED.replace(SPAN, "00000000000000aa")})

    seq = last.json()["seq"]

    def of_last() -> list[Received]:
        return [each for each in system.receiver.received() if each.attributes["lakestream.sequence"] == seq]

    until(lambda: len(of_last()) == 4, "the spans of a later message", lambda: [each.name for each in of_last()])
    assert {each.attributes["lakestream.sequence"] for each in system.receiver.received()} == {1, seq}


def test_a_taken_port_is_reported_and_the_compactor_works(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = Job(tmp_path / "lake", "--create", "--once", "--metrics", str(port))
        assert run.end() == 0
        run.wait_for("compacted 0 streams")
    assert any(re.match(rf"lakestream: no metrics: cannot listen on 127\.0\.0\.1:{port}: ", line) for line in run.lines)


def test_the_page_ends_with_the_compactor(tmp_path: Path) -> None:
    run = Job(tmp_path / "lake", "--create", "--once", "--metrics", "0")
    assert run.end() == 0
    run.wait_for("metrics at http://127.0.0.1:")
    (url,) = [line.removeprefix("metrics at ") for line in run.lines if line.startswith("metrics at ")]
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=5)
