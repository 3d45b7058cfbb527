"""Tests of the defaults of streams' metadata by name, and of streams that stay out of the lake."""

from __future__ import annotations

from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import KeyValueConfig, StreamConfig
from nats.js.errors import APIError

from lakestream.lake.storage import paths
from tests.conftest import StartServer
from tests.servers import Kind, Server, run_to_end

TRAVEL, LAKE = "lakestream.time_travel", "lakestream.lake"
DEFAULTS = """lake { seal_bytes: 1KB, poll: 100ms, defaults {
  "KV_short": { time_travel: 12h }
  "KV_now": { time_travel: off }
  "tmp_*": { lake: off }
} }"""


async def metadata(client: Client, stream: str) -> dict[str, str]:
    """Return the `lakestream.*` metadata of a stream."""
    info = await client.jetstream().stream_info(stream)
    return {key: value for key, value in (info.config.metadata or {}).items() if key.startswith("lakestream.")}


async def created(client: Client, *buckets: str) -> dict[str, dict[str, str]]:
    """Create buckets; return the metadata of their streams."""
    found = {}
    for bucket in buckets:
        await client.jetstream().create_key_value(KeyValueConfig(bucket=bucket, history=3))
        found[bucket] = await metadata(client, f"KV_{bucket}")
    return found


async def test_buckets_get_the_time_travel_of_the_first_matching_pattern(start_server: StartServer) -> None:
    server: Server = start_server(config=DEFAULTS)
    client = await nats.connect(server.url)
    expected = {"short": {TRAVEL: "12h"}, "now": {TRAVEL: "off"}, "other": {TRAVEL: "7d"}}
    assert await created(client, "short", "now", "other") == expected
    await client.jetstream().create_object_store("files")
    assert await metadata(client, "OBJ_files") == {TRAVEL: "7d"}
    await client.jetstream().add_stream(name="ORDERS", subjects=["orders"])
    assert await metadata(client, "ORDERS") == {}
    server.stop()
    server.config = DEFAULTS.replace("12h", "30d")
    server.start()
    again = await nats.connect(server.url)
    assert await created(again, "short", "other") == {"short": {TRAVEL: "12h"}, "other": {TRAVEL: "7d"}}
    await again.close()
    await client.close()


async def test_a_bucket_can_be_read_as_it_was_without_any_setting(start_server: StartServer) -> None:
    server: Server = start_server()
    client = await nats.connect(server.url)
    bucket = await client.jetstream().create_key_value(KeyValueConfig(bucket="conf", direct=True))
    first = await bucket.put("mode", b"old")
    await bucket.put("mode", b"new")
    body = b'{"multi_last": ["$KV.conf.mode"], "up_to_seq": %d}' % first
    answer = await client.request("$JS.API.DIRECT.GET.KV_conf", body)
    assert answer.data == b"old"
    await client.close()


async def test_a_stream_out_of_the_lake_is_served_from_its_log(start_server: StartServer) -> None:
    server: Server = start_server(config=DEFAULTS)
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(name="tmp_1", subjects=["tmp.1"])
    await js.add_stream(name="IN", subjects=["in"])
    for _ in range(100):
        await js.publish("tmp.1", bytes(100))
        await js.publish("in", bytes(100))
    assert (await client.request("$LAKE.API.FLUSH.IN", b"")).data.startswith(b'{"type"')
    refused = (await client.request("$LAKE.API.FLUSH.tmp_1", b"")).data
    assert b"stream tmp_1 is not in the lake (its metadata has lakestream.lake: off)" in refused
    lake = server.store / "lake"
    assert (lake / "segments" / "IN").is_dir()
    assert not (lake / "segments" / "tmp_1").exists()
    assert not Path(paths.table(str(lake), "tmp_1")).exists()
    server.kill()
    server.start()
    again = await nats.connect(server.url)
    assert (await again.jetstream().stream_info("tmp_1")).state.messages == 100
    assert (await again.jetstream().get_msg("tmp_1", 1)).data == bytes(100)
    with pytest.raises(APIError, match=r"can not change lakestream\.lake"):
        await again.jetstream().update_stream(
            StreamConfig(name="tmp_1", subjects=["tmp.1"], max_msgs=1000, metadata={LAKE: "on"})
        )
    updated = await again.jetstream().update_stream(StreamConfig(name="tmp_1", subjects=["tmp.1"], max_msgs=50))
    assert updated.state.messages == 50
    assert (updated.config.metadata or {})[LAKE] == "off"
    await again.jetstream().delete_stream("tmp_1")
    assert not (lake / "segments" / "tmp_1").exists()
    await again.close()
    await client.close()


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ("{ time_travel: 5s }", '"defaults" of "KV_*": lakestream.time_travel: '),
        ("{ lake: 5 }", '"lake" must be a string'),
        ("{ tables: x }", "lakestream.tables: no such setting"),
        ("30d", '"defaults.KV_*" must be'),
    ],
)
def test_wrong_defaults_are_refused_at_the_start(kind: Kind, tmp_path: Path, settings: str, error: str) -> None:
    config = tmp_path / "nats.conf"
    config.write_text(f'jetstream: true\nlake {{ defaults {{ "KV_*": {settings} }} }}\n')
    done = run_to_end(kind, "-c", str(config), "-t")
    assert done.returncode == 1
    assert error in done.stderr
