"""Tests of `$LAKE.API.FLUSH.<stream>` through the socket: once it is answered, the lake has every acked message."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import nats
import pytest
from nats.aio.client import Client
from nats.js.api import StorageType, StreamConfig

from lakestream.lake.flush import ServerCredentials, ServerFile
from lakestream.lake.staging import staging
from lakestream_client.lake import view as views
from lakestream_client.lake.flusher import StreamNotFound
from lakestream_sql.session import Session, SqlError
from lakestream_sql.uncompacted import FlushServer as SqlServer
from tests.servers import Kind, Server

pytestmark = pytest.mark.conformance

CONFIG = 'lake { seal_age: "1h" }\n'


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(Kind.OURS, tmp_path / "store", config=CONFIG)
    server.start()
    yield server
    server.kill()


async def flush(client: Client, stream: str) -> dict[str, Any]:
    answer = json.loads((await client.request(f"$LAKE.API.FLUSH.{stream}", b"", timeout=10)).data)
    assert answer["type"] == "io.lakestream.api.v1.flush_response"
    return answer


def segments(server: Server, stream: str) -> list[str]:
    return sorted(path.name for path in (server.store / "lake" / "segments" / stream).rglob("*.seg"))


def seqs(view: views.StreamView) -> list[int]:
    return [seq for batch in view.tail_batches() for seq in batch.column("seq").to_pylist()]


async def test_what_is_acked_is_staged_when_it_answers(server: Server) -> None:
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(name="A", subjects=["A.>"])
    answer = await flush(client, "A")
    assert (answer["stream"], answer["last_index"], answer["last_seq"]) == ("A", 0, 0)
    assert answer["lake"] == str(server.store / "lake")
    for seq in (1, 2, 3):
        assert (await js.publish("A.x", b"%d" % seq)).seq == seq
        answer = await flush(client, "A")
        assert answer["last_seq"] == seq
        view = views.open_view(answer["lake"], "A", flush=False)
        assert (view.uid, view.last_index, view.last_seq) == (answer["uid"], answer["last_index"], seq)
        assert seqs(view) == list(range(1, seq + 1))
    assert len(segments(server, "A")) == 3
    for _ in range(5):
        assert await flush(client, "A") == answer
    assert len(segments(server, "A")) == 3, "without news nothing is sealed"
    await js.delete_msg("A", 2)
    assert (await flush(client, "A"))["last_index"] > answer["last_index"]
    assert seqs(views.open_view(answer["lake"], "A", flush=False)) == [1, 3]
    await js.purge_stream("A")
    await flush(client, "A")
    assert seqs(views.open_view(answer["lake"], "A", flush=False)) == []
    await client.close()


async def test_many_requests_under_load_share_flushes(server: Server) -> None:
    client, other = await nats.connect(server.url), await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(name="L", subjects=["L"])
    acked = 0
    ending = asyncio.Event()

    async def publish() -> None:
        nonlocal acked
        while not ending.is_set():
            acks = [await js.publish_async("L", b"x" * 100) for _ in range(50)]
            for ack in acks:
                acked = max(acked, (await ack).seq)

    task = asyncio.create_task(publish())
    for _ in range(20):
        before = acked
        answers = await asyncio.gather(*[flush(other, "L") for _ in range(10)])
        assert all(answer["last_seq"] >= before for answer in answers)
    ending.set()
    await task
    assert len(segments(server, "L")) <= 2 * 20 + 1, "ten requests at once take two flushes at most"
    assert (await flush(other, "L"))["last_seq"] == acked
    assert seqs(views.open_view(str(server.store / "lake"), "L", flush=False)) == list(range(1, acked + 1))
    await client.close()
    await other.close()


async def test_what_cannot_be_flushed_is_refused(server: Server) -> None:
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(name="M", subjects=["M"], storage=StorageType.MEMORY)
    missing, memory = await flush(client, "NONE"), await flush(client, "M")
    assert missing["error"] == {"code": 404, "err_code": 10059, "description": "stream not found"}
    assert memory["error"]["code"] == 400
    assert "memory storage" in memory["error"]["description"]
    with pytest.raises(StreamNotFound):
        await asyncio.to_thread(lambda: views.open_view(str(server.store / "lake"), "NONE"))
    await js.add_stream(name="D", subjects=["D"])
    await js.publish("D", b"")
    await flush(client, "D")
    await js.delete_stream("D")
    assert (await flush(client, "D"))["error"]["err_code"] == 10059
    await client.close()


def named(server: Server) -> list[Path]:
    return sorted((server.store / "lake" / "_servers").iterdir())


async def test_a_reader_finds_the_server_by_itself(server: Server, tmp_path: Path) -> None:
    lake = str(server.store / "lake")
    (path,) = named(server)
    found = msgspec.json.decode(path.read_bytes(), type=ServerFile)
    assert found.urls == [server.url]
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(name="A", subjects=["A"])
    await js.publish("A", b"1")

    def look(**options: Any) -> views.StreamView:
        return views.open_view(lake, "A", **options)

    view = await asyncio.to_thread(look)
    assert (view.flushed, view.note, seqs(view)) == (True, "", [1])
    await js.publish("A", b"2")
    assert seqs(await asyncio.to_thread(lambda: look(flush=False))) == [1]
    assert seqs(await asyncio.to_thread(lambda: look(server=server.url))) == [1, 2]

    await js.publish("A", b"3")
    path.write_bytes(msgspec.json.encode(ServerFile("SOMEBODY", "else", [server.url])))
    view = await asyncio.to_thread(look)
    assert (view.flushed, seqs(view)) == (True, [1, 2, 3]), "the answer is judged by the lake that it is about"
    await client.close()
    server.stop()
    assert named(server) == [path], "it is not this server's file"
    server.start()
    server.stop()
    assert len(named(server)) <= 1  # the port has changed
    path.unlink(missing_ok=True)
    view = await asyncio.to_thread(look)
    assert (view.flushed, seqs(view)) == (False, [1, 2, 3])
    assert "no server has said" in view.note


async def test_a_reader_tries_every_server_that_the_lake_names(server: Server, tmp_path: Path) -> None:
    lake = server.store / "lake"
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(name="A", subjects=["A"])
    await js.publish("A", b"1")
    other = Server(Kind.OURS, tmp_path / "other", config=CONFIG)
    other.start()
    try:
        # A server that has exited without a trace, an unreadable file, and an address that another lake's server uses
        # now.
        for name, text in {
            "dead": msgspec.json.encode(ServerFile("DEAD", "dead", ["nats://127.0.0.1:1"])),
            "torn": b"{",
            "taken": msgspec.json.encode(ServerFile("TAKEN", "taken", [other.url])),
        }.items():
            (lake / "_servers" / f"{name}.json").write_bytes(text)
        view = await asyncio.to_thread(lambda: views.open_view(str(lake), "A"))
        assert (view.flushed, view.note, seqs(view)) == (True, "", [1])
        await client.close()
        server.kill()
        view = await asyncio.to_thread(lambda: views.open_view(str(lake), "A"))
        assert (view.flushed, seqs(view)) == (False, [1])
        assert "127.0.0.1:1" in view.note
        assert "it has another lake" in view.note
    finally:
        other.kill()


async def test_a_lake_of_an_older_release_names_its_server_in_one_file(server: Server) -> None:
    lake = server.store / "lake"
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(name="A", subjects=["A"])
    await js.publish("A", b"1")
    (path,) = named(server)
    path.rename(lake / "_server.json")
    view = await asyncio.to_thread(lambda: views.open_view(str(lake), "A"))
    assert (view.flushed, seqs(view)) == (True, [1])
    await client.close()
    server.wanted_port = server.port
    server.kill()
    (lake / "_lake.json").unlink()  # both are unknown to older releases
    for note in server.store.rglob("lake.id"):
        note.unlink()
    server.start()
    assert not (lake / "_server.json").exists(), "the server is named in a file of its own now"
    assert len(named(server)) == 1


async def test_a_server_that_asks_for_a_password(tmp_path: Path) -> None:
    config = 'authorization { user: u, password: "p" }\nlake { seal_age: "1h" }\n'
    server = Server(Kind.OURS, tmp_path / "store", config=config)
    server.start()
    try:
        client = await nats.connect(server.url, user="u", password="p")
        js = client.jetstream()
        await js.add_stream(name="A", subjects=["A"])
        await js.publish("A", b"1")
        await flush(client, "A")
        await js.publish("A", b"2")
        lake = str(server.store / "lake")
        view = await asyncio.to_thread(lambda: views.open_view(lake, "A"))
        assert (view.flushed, seqs(view)) == (False, [1])
        assert "authorization" in view.note.lower()
        assert all(b'"p"' not in path.read_bytes() for path in named(server))
        view = await asyncio.to_thread(lambda: views.open_view(lake, "A", credentials=ServerCredentials("u", "p")))
        assert (view.flushed, seqs(view)) == (True, [1, 2])
        await client.close()
    finally:
        server.kill()


async def test_staged_segments_outlive_a_restart_and_stay_whole(server: Server) -> None:
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(name="A", subjects=["A"])
    await js.publish("A", b"1")
    answer = await flush(client, "A")
    server.kill()
    await client.close()
    server.start()
    client = await nats.connect(server.url)
    assert await flush(client, "A") == {**answer, "server_id": (await flush(client, "A"))["server_id"]}
    directory = next((server.store / "lake" / "segments" / "A").iterdir())
    assert [each.last_index for each in staging.segments(os.fspath(directory))] == [answer["last_index"]]
    await client.close()


async def test_typed_views_are_there_as_soon_as_the_stream_names_a_schema(server: Server) -> None:
    def asked(view: str, left_out: str = "time, time_ns, headers") -> tuple[list[str], list[tuple[Any, ...]]]:
        with Session(str(server.store / "lake"), server=SqlServer(server.url)) as session:
            found = session.query(f"SELECT * EXCLUDE ({left_out}) FROM delta.`streams/{view}` ORDER BY seq")
            return list(found.columns), list(found)

    client = await nats.connect(server.url)
    js = client.jetstream()
    config = StreamConfig(name="A", subjects=["A.>"], metadata={"lakestream.json_schema": "price DOUBLE"})
    await js.add_stream(config)
    assert asked("A_json") == (["subject", "seq", "price"], [])
    await js.publish("A.x", b'{"price": 1.5, "qty": 2}')
    await js.publish("A.x", b"no json")
    assert asked("A_json")[1] == [("A.x", 1, 1.5)]
    assert [row[1] for row in asked("A_json_misfits", "time, time_ns")[1]] == [2]
    # Change the schema without another message.
    config.metadata = {"lakestream.json_schema": "qty INT"}
    await js.update_stream(config)
    assert asked("A_json") == (["subject", "seq", "qty"], [("A.x", 1, 2)])
    assert not (server.store / "lake" / "streams").exists(), "all of it before the first commit"
    # A stream without a schema reports that it has none.
    await js.add_stream(name="B", subjects=["B.>"])
    await js.publish("B.x", b"{}")
    with pytest.raises(SqlError, match=r"no table delta\.`streams/B_json`"):
        asked("B_json")
    await client.close()
