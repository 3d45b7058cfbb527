"""Metrics of a server over its monitoring port: values follow what clients do, and every documented metric is there."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from lakestream.ops.metrics.names import FAMILIES, RAFT, RAFT_LAG, SQL, SQL_RUNNING
from tests.certificates import PLACE
from tests.conftest import StartServer
from tests.servers import Kind, Server
from tests.wire import Wire

pytestmark = pytest.mark.conformance

OPENMETRICS = "application/openmetrics-text; version=1.0.0"

Values = Callable[..., float]


def page(server: Server, accept: str = "", path: str = "/metrics") -> str:
    """Return the text of a scrape."""
    request = urllib.request.Request(f"http://{server.host}:{server.http_port}{path}", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read().decode()


def scraped(server: Server) -> Values:
    """Scrape; return a function that returns the one value of a metric with these labels."""
    found = [sample for family in parse_text(page(server)) for sample in family.samples]

    def value(name: str, **labels: str) -> float:
        of_name = [each for each in found if each.name == name and labels.items() <= each.labels.items()]
        assert len(of_name) == 1, f"{name}{labels}: {of_name}"
        return of_name[0].value

    return value


@pytest.fixture
def metered(start_server: StartServer) -> Server:
    """Start a server with a monitoring port."""
    return start_server(of=Kind.OURS, args=["-m", "-1"])


def test_values_follow_what_clients_do(metered: Server) -> None:
    with Wire(metered.address) as client:
        client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "max_msgs": 500})
        client.api(
            "CONSUMER.CREATE.S.D", {"stream_name": "S", "config": {"durable_name": "D", "ack_policy": "explicit"}}
        )
        for number in range(5):
            client.request(f"s.{number}", b"hello")
        before = scraped(metered)
        assert before("gnatsd_varz_connections", server_name="under-test") == 1
        assert before("gnatsd_varz_in_msgs") == 5 + 2
        of_stream = {"account": "$G", "stream_name": "S", "server_name": "under-test", "is_stream_leader": "true"}
        assert before("jetstream_stream_total_messages", **of_stream) == 5
        assert before("jetstream_stream_subject_count", **of_stream) == 5
        assert before("jetstream_stream_limit_messages", **of_stream) == 500
        assert before("jetstream_consumer_num_pending", consumer_name="D", **of_stream) == 5
        assert before("jetstream_server_total_streams") == 1
        assert before("jetstream_server_total_messages") == 5
        assert before("jetstream_account_storage_used", account="$G") == before("jetstream_stream_total_bytes")
        assert before("lakestream_log_write_messages_sum") == 5
        assert before("lakestream_publish_ack_duration_seconds_count") == 5
        assert before("lakestream_log_sync_duration_seconds_count") >= 5
        assert before("lakestream_lake_lag_messages", account="$G", stream_name="S") == 5
        assert before("lakestream_lake_compactor_alive") == 0
        assert before("lakestream_lake_reachable") == 1
        assert before("lakestream_jetstream_api_requests_total") == 2

        client.publish("$JS.API.CONSUMER.MSG.NEXT.S.D", b"2", client.new_reply())
        taken = [client.delivered(client.inbox_sid) for _ in range(2)]
        client.request(taken[0].reply)
        client.api("STREAM.INFO.NONE")
        after = scraped(metered)
        assert after("jetstream_consumer_num_pending", consumer_name="D") == 3
        assert after("jetstream_consumer_num_ack_pending", consumer_name="D") == 1
        assert after("jetstream_consumer_ack_floor_stream_seq", consumer_name="D") == 1
        assert after("lakestream_jetstream_api_errors_total") == 1
        assert after("process_resident_memory_bytes") > 10_000_000
        assert after("lakestream_store_size_bytes") >= after("lakestream_store_free_bytes") > 0


def test_messages_published_together_are_one_group_commit(metered: Server) -> None:
    with Wire(metered.address) as client:
        client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        sid = client.subscribe("acks")
        client.send(b"PUB s acks 1\r\nx\r\n" * 1000)
        for _ in range(1000):
            client.delivered(sid)
        value = scraped(metered)
        assert value("lakestream_log_write_messages_sum") == 1000
        assert value("lakestream_log_write_messages_count") < 100
        assert value("lakestream_publish_ack_duration_seconds_count") == value("lakestream_log_write_messages_count")


def test_every_documented_metric_is_on_the_page_and_no_other(start_server: StartServer) -> None:
    config = f'tls {{ cert_file: "{PLACE}/server.pem", key_file: "{PLACE}/server.key" }}\n'
    metered = start_server(of=Kind.OURS, config=config, args=["-m", "-1"])
    names = {line.split()[2] for line in page(metered).splitlines() if line.startswith("# TYPE ")}
    ours = {name for name in names if not name.startswith("process_")}
    assert "process_resident_memory_bytes" in names
    of_streams = {each.name for each in FAMILIES if {"stream_name"} & set(each.labels)}
    clustered = {each.name for each in (*RAFT, RAFT_LAG)}
    of_queries = {each.name for each in (*SQL, SQL_RUNNING)}  # with SQL over NATS
    assert ours == {each.name for each in FAMILIES} - of_streams - clustered - of_queries


def test_openmetrics_for_those_who_ask_for_it(metered: Server) -> None:
    with Wire(metered.address) as client:
        client.api("STREAM.CREATE.S", {"name": "S"})
    text = page(metered, OPENMETRICS)
    families = {family.name: family.type for family in parse_openmetrics(text)}
    assert families["lakestream_jetstream_api_requests"] == "counter"
    assert families["lakestream_publish_ack_duration_seconds"] == "histogram"
    assert families["jetstream_stream_total_messages"] == "gauge"


def test_the_path_follows_http_base_path_and_a_server_without_jetstream_has_a_page(start_server: StartServer) -> None:
    server = start_server(of=Kind.OURS, config='http_base_path: "/nats"\n', args=["-m", "-1"], jetstream=False)
    assert "\njetstream_server_jetstream_disabled{" in page(server, path="/nats/metrics")
    assert server.page("/nats/varz")["http_req_stats"]["/nats/metrics"] == 1


def test_removed_streams_leave_the_page(metered: Server) -> None:
    with Wire(metered.address) as client:
        client.api("STREAM.CREATE.S", {"name": "S"})
        assert 'stream_name="S"' in page(metered)
        client.api("STREAM.DELETE.S")
        deadline = time.monotonic() + 10
        while 'stream_name="S"' in page(metered):
            assert time.monotonic() < deadline, "a deleted stream is still on the page"
            time.sleep(0.05)
