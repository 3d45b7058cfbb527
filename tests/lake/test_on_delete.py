"""Tests of tables kept after their streams (`lakestream.on_delete.

Keep`): they get all that the stream held at its deletion. Through kills, without the stream's leader, and when a new
stream has its name.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import nats
import pytest
from nats.aio.client import Client
from nats.js.errors import APIError, NotFoundError

from lakestream.lake.errors import QuarantinedSegment
from lakestream.lake.staging import scan, staging
from lakestream.lake.storage import paths
from lakestream_spark.write.compactor import Compactor
from tests.cluster.nodes import Cluster, Node
from tests.conftest import StartServer
from tests.lake.model import StreamModel, flights, unstage_through
from tests.lake.tables import records, rows
from tests.servers import Kind, Server

pytestmark = pytest.mark.lake

KEEP = {"lakestream.on_delete": "keep"}
CONFIG = 'lake { seal_bytes: 4096, seal_age: "1h", retain_bytes: 0, poll: "100ms", staged_grace: 0 }'
"""Segments are sealed by size only, so that there is an open one whenever a stream is deleted."""
KILLS = int(os.environ.get("LAKESTREAM_KILL_ROUNDS", "12"))
LONGEST_LIFE_S = 0.03
ANSWER_S = 5.0


@pytest.fixture
def compactor(spark: Any) -> Iterator[Callable[[Path], Compactor]]:
    made: list[Compactor] = []

    def make(lake: Path) -> Compactor:
        made.append(Compactor(spark, str(lake)))
        assert made[-1].acquire()
        return made[-1]

    yield make
    for each in made:
        each.stop()
        each.release()


async def create(client: Client, name: str, replicas: int = 1) -> None:
    config = {"name": name, "subjects": [f"{name}.*"], "num_replicas": replicas, "metadata": KEEP}
    answer = await client.request(f"$JS.API.STREAM.CREATE.{name}", json.dumps(config).encode(), timeout=20)
    assert b'"error"' not in answer.data, answer.data


async def publish(client: Client, name: str, first: int, count: int) -> None:
    """Publish messages until they are acked; their payloads are their sequences."""
    js = client.jetstream(timeout=20)
    for seq in range(first, first + count):
        while True:
            try:
                ack = await js.publish(f"{name}.{seq % 3}", b"%d" % seq * 20)
                break
            except (nats.errors.NoRespondersError, APIError):  # not every node knows the stream's subscription yet
                await asyncio.sleep(0.1)
        assert ack.seq == seq


def held(table: str | Path) -> list[tuple[int, bytes]]:
    return [(row["seq"], row["data"]) for row in rows(str(table))]


def published(count: int) -> list[tuple[int, bytes]]:
    return [(seq, b"%d" % seq * 20) for seq in range(1, count + 1)]


def without(failures: dict[str, str]) -> None:
    assert failures == {}


# ---------------------------------------------------------------- one server
async def test_invariant_a_kept_table_has_all_that_its_stream_held_when_it_was_deleted(
    start_server: StartServer, compactor: Callable[[Path], Compactor]
) -> None:
    server = start_server(of=Kind.OURS, config=CONFIG)
    lake = server.store / "lake"
    client = await nats.connect(server.url)
    running = await asyncio.to_thread(compactor, lake)
    await create(client, "KEPT")
    await publish(client, "KEPT", 1, 100)
    without((await asyncio.to_thread(running.once)).failures)
    await publish(client, "KEPT", 101, 33)
    js = client.jetstream()
    await js.delete_msg("KEPT", 120)
    assert await js.delete_stream("KEPT")
    with pytest.raises(NotFoundError):
        await js.stream_info("KEPT")
    await gone(server, "KEPT")
    without((await asyncio.to_thread(running.once)).failures)
    expected = [row for row in published(133) if row[0] != 120]
    assert held(lake / "streams" / "KEPT") == expected
    assert scan.Scanner(str(lake)).scan() == []
    assert os.listdir(server.store / "jetstream" / "$G" / "streams") == []
    await client.close()


async def test_a_stream_that_never_had_a_table_gets_one_when_it_is_deleted(
    start_server: StartServer, compactor: Callable[[Path], Compactor]
) -> None:
    server = start_server(of=Kind.OURS, config=CONFIG)
    client = await nats.connect(server.url)
    js = client.jetstream()
    await create(client, "BRIEF")
    uids = []
    for count in (5, 3):  # the second one gets the name before the compactor has seen the first
        await publish(client, "BRIEF", 1, count)
        assert await js.delete_stream("BRIEF")
        await gone(server, "BRIEF")
        known = {each.identity.uid for each in scan.Scanner(str(server.store / "lake")).scan()}
        uids += sorted(known - set(uids))
        await create(client, "BRIEF")
    lake = server.store / "lake"
    running = await asyncio.to_thread(compactor, lake)
    without((await asyncio.to_thread(running.once)).failures)
    tables = [str(lake / "streams" / "BRIEF"), *map(str, (lake / "kept").glob("*"))]
    assert sorted(len(held(table)) for table in tables) == [3, 5]
    assert held(lake / "kept" / f"BRIEF-{uids[0]}") == published(5)
    await client.close()


async def gone(server: Server, name: str) -> None:
    """Wait until the files of all deleted streams of this name are removed, after their last messages are staged."""
    base = server.store / "jetstream" / "$G" / "streams"

    async with asyncio.timeout(20):
        while any(path.startswith(f"{name}.") for path in os.listdir(base)):
            await asyncio.sleep(0.02)


async def test_a_kill_around_a_deletion_loses_nothing_of_the_kept_table(
    start_server: StartServer, compactor: Callable[[Path], Compactor]
) -> None:
    seed = int(os.environ.get("LAKESTREAM_KILL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"LAKESTREAM_KILL_SEED={seed}")
    dice = random.Random(seed)
    server = start_server(of=Kind.OURS, config=CONFIG)
    counts: dict[str, int] = {}
    deleted = 0
    for number in range(KILLS):
        client = await nats.connect(server.url, allow_reconnect=False)
        name = f"K{number}"
        counts[name] = dice.randrange(1, 60)
        await create(client, name)
        await publish(client, name, 1, counts[name])
        await client.publish(f"$JS.API.STREAM.DELETE.{name}", b"")
        await client.flush()
        await asyncio.sleep(dice.uniform(0, LONGEST_LIFE_S))
        server.kill()
        await client.close()
        await asyncio.to_thread(server.start)
        client = await nats.connect(server.url)
        js = client.jetstream()
        try:
            assert (await js.stream_info(name)).state.messages == counts[name]
        except NotFoundError:
            deleted += 1
        else:
            assert await js.delete_stream(name)
        await gone(server, name)
        await client.close()
    lake = server.store / "lake"
    assert all(each.deleted for each in scan.Scanner(str(lake)).scan())
    running = await asyncio.to_thread(compactor, lake)
    without((await asyncio.to_thread(running.once)).failures)
    for name, count in counts.items():
        assert held(lake / "streams" / name) == published(count), name
    print(f"{KILLS} kills, {deleted} of them behind the decision")


# ---------------------------------------------------------------- a cluster
@pytest.mark.cluster
@pytest.mark.parametrize("leader", ["alive", "dead"])
async def test_a_replicated_stream_leaves_its_kept_table_whole(
    tmp_path: Path, compactor: Callable[[Path], Compactor], leader: str
) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    cluster = Cluster(Kind.OURS, tmp_path, 3, config=CONFIG.replace("{", f'{{ url: "{lake}",', 1))
    cluster.start()
    try:
        client = await nats.connect([node.url for node in cluster.nodes])
        await create(client, "KEPT", 3)
        await publish(client, "KEPT", 1, 75)
        running = await asyncio.to_thread(compactor, lake)
        led = await asyncio.to_thread(cluster.stream_leader, "KEPT")
        await client.close()
        if leader == "dead":
            led.kill()
            await asyncio.to_thread(cluster.stream_leader, "KEPT")
        client = await nats.connect([node.url for node in cluster.running])
        answer = await client.request("$JS.API.STREAM.DELETE.KEPT", b"", timeout=20)
        assert b'"success":true' in answer.data.replace(b" ", b""), answer.data
        await client.close()
        for node in cluster.running:
            await left(node)
        without((await asyncio.to_thread(running.once)).failures)
        assert held(lake / "streams" / "KEPT") == published(75)
        if leader == "dead":  # it learns of the deletion, has no other messages, and removes its files
            led.start()
            await left(led)
            without((await asyncio.to_thread(running.once)).failures)
            assert held(lake / "streams" / "KEPT") == published(75)
        assert scan.Scanner(str(lake)).scan() == []
    finally:
        cluster.kill()


async def left(node: Node) -> None:
    """Wait until this node has no files of any stream."""
    base = node.store / "jetstream" / "$G" / "streams"
    async with asyncio.timeout(60):
        while base.is_dir() and os.listdir(base):  # a slow node learns of creation and deletion together
            await asyncio.sleep(0.05)


# ---------------------------------------------------------------- the compactor alone
def kept(directory: Path, uid: str, created: int = 0) -> StreamModel:
    model = StreamModel(directory / uid, uid=uid)
    model.configure(KEEP)
    model.identity = msgspec.structs.replace(model.identity, created_ns=model.identity.created_ns + created)
    return model


def test_what_is_staged_of_a_deleted_stream_gets_into_its_kept_table_before_the_place_is_cleared(
    compactor: Callable[[Path], Compactor], lake: Path, tmp_path: Path
) -> None:
    model = kept(tmp_path, "OLD")
    model.publish(flights(10))
    model.stage(lake)
    running = compactor(lake)
    without(running.once().failures)
    model.publish(flights(10))
    model.remove([3, 15], erase=True)
    model.stage(lake)
    staging.mark_deleted(str(lake), model.identity, keep=True)
    without(running.once().failures)
    assert records(model.table(lake)) == model.expected()
    assert scan.Scanner(str(lake)).scan() == []


@pytest.mark.parametrize("had", ["a table", "no table"])
def test_a_tail_that_comes_when_a_new_stream_has_the_name_goes_into_the_table_that_was_moved(
    compactor: Callable[[Path], Compactor], lake: Path, tmp_path: Path, had: str
) -> None:
    old, new = kept(tmp_path, "OLD"), kept(tmp_path, "NEW", created=1)
    old.publish(flights(10))
    running = compactor(lake)
    if had == "a table":
        old.stage(lake)
        without(running.once().failures)
        old.publish(flights(7))
    new.publish(flights(3))
    new.stage(lake)
    without(running.once().failures)
    old.stage(lake)  # its server could not reach the lake until now
    staging.mark_deleted(str(lake), old.identity, keep=True)
    without(running.once().failures)
    assert records(new.table(lake)) == new.expected()
    assert records(paths.kept(str(lake), "ORDERS", "OLD")) == old.expected()
    assert [each.identity.uid for each in scan.Scanner(str(lake)).scan()] == ["NEW"]
    without(running.once().failures)


def test_a_table_that_is_kept_since_its_last_commit_is_moved_when_the_name_is_used_again(
    compactor: Callable[[Path], Compactor], lake: Path, tmp_path: Path
) -> None:
    old, new = StreamModel(tmp_path / "old", uid="OLD"), kept(tmp_path, "NEW", created=1)
    old.publish(flights(10))
    old.stage(lake)
    running = compactor(lake)
    without(running.once().failures)
    old.configure(KEEP)
    staging.mark_deleted(str(lake), old.identity, keep=True)
    unstage_through(str(lake), old.identity, old.sealed[-1].last_index)  # only the table has it
    new.publish(flights(3))
    new.stage(lake)
    without(running.once().failures)
    assert records(new.table(lake)) == new.expected()
    assert records(paths.kept(str(lake), "ORDERS", "OLD")) == old.expected()


@pytest.mark.parametrize("reused", [False, True], ids=["gone", "its name used again"])
def test_a_table_goes_whose_stream_did_not_keep_it_any_more_when_it_was_deleted(
    compactor: Callable[[Path], Compactor], lake: Path, tmp_path: Path, reused: bool
) -> None:
    old, new = kept(tmp_path, "OLD"), kept(tmp_path, "NEW", created=1)
    old.publish(flights(10))
    old.stage(lake)
    running = compactor(lake)
    without(running.once().failures)
    old.configure({})
    staging.mark_deleted(str(lake), old.identity)
    if reused:
        new.publish(flights(3))
        new.stage(lake)
    without(running.once().failures)
    assert os.path.exists(new.table(lake)) == reused
    assert not os.path.exists(paths.kept(str(lake), "ORDERS", "OLD"))
    if reused:
        assert records(new.table(lake)) == new.expected()


def test_a_damaged_segment_of_a_deleted_stream_is_reported_and_its_place_stays(
    compactor: Callable[[Path], Compactor], lake: Path, tmp_path: Path
) -> None:
    old, other = kept(tmp_path, "OLD"), StreamModel(tmp_path / "other", "OTHER", uid="OTHER")
    old.publish(flights(200))
    path = Path(old.stage(lake))
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.unlink()
    path.write_bytes(content)
    staging.mark_deleted(str(lake), old.identity, keep=True)
    other.publish(flights(10))
    other.stage(lake)
    running = compactor(lake)
    ((directory, reason),) = running.once().failures.items()
    assert directory == paths.staging(str(lake), "ORDERS", "OLD")
    assert str(path) in reason, QuarantinedSegment.__doc__
    assert records(other.table(lake)) == other.expected()
    assert len(scan.Scanner(str(lake)).scan()) == 2
    os.rename(old.sealed[-1].path, path)
    for beside in Path(directory).glob("*.bad"):
        beside.unlink()
    for beside in Path(directory).glob("*.why"):
        beside.unlink()
    without(running.once().failures)
    assert records(old.table(lake)) == old.expected()


@pytest.mark.parametrize("order", ["shorter first", "longer first", "together"])
def test_replicas_that_had_applied_different_entries_leave_one_tail(
    compactor: Callable[[Path], Compactor], lake: Path, tmp_path: Path, order: str
) -> None:
    shorter, longer = kept(tmp_path / "a", "OLD"), kept(tmp_path / "b", "OLD")
    for model in (shorter, longer):
        model.publish(flights(10))
        model.remove([2], erase=True)
    longer.publish(flights(6))
    longer.remove([11, 12], erase=True)
    running = compactor(lake)
    for model in (longer, shorter) if order == "longer first" else (shorter, longer):
        model.stage(lake)
        staging.mark_deleted(str(lake), model.identity, keep=True)
        if order != "together":
            without(running.once().failures)
    without(running.once().failures)
    assert records(longer.table(lake)) == longer.expected()
    assert scan.Scanner(str(lake)).scan() == []
