"""Tests of stores of one server written by an earlier release: they open with all contents and continue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import nats
import pytest

from lakestream import __version__
from tests.conftest import StartServer
from tests.registry_world import RegistryWorld
from tests.servers import Kind, Server
from tests.stored import accounts, at_rest, lake, standalone, typed
from tests.stored.facts import asked, known, names
from tests.stored.recordings import unpack
from tests.stored.standalone import Filler
from tests.wire import Frame, Wire

pytestmark = pytest.mark.conformance

SOON_S = 30.0


def until(ready: Callable[[], Any], what: str) -> Any:
    """Poll until the answer is true; return it."""
    deadline = time.monotonic() + SOON_S
    while not (found := ready()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return found


@pytest.mark.parametrize("name", ["standalone-stopped", "standalone-killed"])
def test_a_recorded_store_opens_and_goes_on(name: str, start_server: StartServer, tmp_path: Path) -> None:
    root, recorded = unpack(name, tmp_path / "recorded")
    server = start_server(of=Kind.OURS, store=root / "store", config=standalone.CONFIG)
    same(server, recorded)
    with Wire(server.address, timeout=SOON_S) as wire:
        passed(wire)
        publish(Filler(wire), recorded["streams"])
        consume(Filler(wire), recorded["streams"])
        remove(Filler(wire))
        back_up(wire, "PURGED")
        standalone.wait_copied(wire, *standalone.COPIES)
        for copy, origin in (("MIRROR", "LIMITS"),):
            assert last(wire, copy) == last(wire, origin)
    asyncio.run(use_buckets(server.url))
    time.sleep(0.3)  # progress of consumers is logged every 250 ms
    now = standalone.facts(server)
    server.stop()
    server.start()
    same(server, now)
    server.kill()
    server.start()
    same(server, now)


@pytest.mark.parametrize("written", [False, True])
def test_streams_that_only_the_journal_of_new_ones_has_are_there(
    start_server: StartServer, tmp_path: Path, written: bool
) -> None:
    root, recorded = unpack("standalone-created" + "-written" * written, tmp_path / "recorded")
    assert (root / "store" / "jetstream" / "created.journal").exists()
    server = start_server(of=Kind.OURS, store=root / "store")
    with Wire(server.address, timeout=SOON_S) as wire:
        for name in recorded["streams"]:
            info = asked(wire, f"STREAM.INFO.{name}")
            assert info["config"]["subjects"] == [f"{name}.>"]
            assert (info["state"]["messages"], info["state"]["consumer_count"]) == (written, written)
            assert b'"seq":%d' % (1 + written) in wire.request(f"{name}.x", b"1").data
    server.stop()
    assert not (root / "store" / "jetstream" / "created.journal").exists()


def test_messages_that_only_the_journal_has_are_there(start_server: StartServer, tmp_path: Path) -> None:
    root, recorded = unpack("standalone-together", tmp_path / "recorded")
    server = start_server(of=Kind.OURS, store=root / "store")
    with Wire(server.address, timeout=SOON_S) as wire:
        for name in recorded["streams"]:
            assert last(wire, name) == recorded["messages"]
            assert b'"seq":%d' % (recorded["messages"] + 1) in wire.request(f"{name}.x", b"1").data
    server.stop()
    assert not list((root / "store" / "jetstream").glob("created.journal*"))
    assert (root / "store" / "jetstream" / "VERSION").read_text() == "1\n"


def test_message_ids_in_blocks_of_a_checkpoint_and_behind_it_are_known(
    start_server: StartServer, tmp_path: Path
) -> None:
    root, recorded = unpack("standalone-ids", tmp_path / "recorded")
    server = start_server(of=Kind.OURS, store=root / "store", config=standalone.IDS_CONFIG)
    count, asked_for = recorded["ids"], [0, 1, 1_023, 1_024, standalone.OLDER_IDS - 1, standalone.OLDER_IDS]
    for turn in range(3):
        with Wire(server.address, timeout=SOON_S) as wire:
            for number in [*asked_for, count + turn - 1]:
                answer = wire.request("i", headers={"Nats-Msg-Id": f"{number}"}).json()
                assert (answer["seq"], answer["duplicate"]) == (number + 1, True), number
            wire.send(standalone.with_id(count + turn))
            wire.ping()
            assert last(wire, "IDS") == count + turn + 1
        (server.stop, server.kill)[turn % 2]()
        server.start()


@pytest.mark.parametrize("other_release", [False, True])
def test_streams_at_rest_and_outlines_with_an_index_are_used(
    start_server: StartServer, tmp_path: Path, other_release: bool
) -> None:
    root, recorded = unpack("at-rest", tmp_path / "recorded")
    dormant, lake_file = root / "store" / "jetstream" / "_meta_.dormant", root / "store" / "lake.id"
    assert dormant.exists()
    assert not lake_file.exists()
    if other_release:  # which does not use it
        content = dormant.read_bytes()[8:].replace(__version__.encode(), b"9" * len(__version__), 1)
        dormant.write_bytes(b"LKDM" + crc32(content).to_bytes(4, "little") + content)
    kept = at_rest.outlines(root / "store")
    assert sum(each.rows for each in kept) >= at_rest.LEFT
    assert all(each.index_size for each in kept)
    server = start_server(of=Kind.OURS, store=root / "store", config=at_rest.CONFIG)
    assert not dormant.exists()
    for turn in range(2):
        with Wire(server.address, timeout=SOON_S) as wire:
            assert known(wire) == recorded["streams"]
            if turn:
                return
            # The outlines say which subject and size go.
            state = asked(wire, "STREAM.INFO.OLD", {"subjects_filter": ">"})["state"]
            asked(wire, "STREAM.MSG.DELETE.OLD", {"seq": 100, "no_erase": True})
            asked(wire, "STREAM.PURGE.OLD", {"filter": at_rest.subject(149)})
            after = asked(wire, "STREAM.INFO.OLD", {"subjects_filter": ">"})["state"]
            assert after["messages"] == state["messages"] - 1 - at_rest.OLD // at_rest.NAMES
            assert state["subjects"].keys() - after["subjects"].keys() == {at_rest.subject(149)}
            assert after["subjects"][at_rest.subject(100)] == state["subjects"][at_rest.subject(100)] - 1
            recorded["streams"] = known(wire)
        server.stop()
        server.start()


def same(server: Server, expected: dict[str, Any]) -> None:
    """Assert that everything is as it was recorded."""
    with Wire(server.address, timeout=SOON_S) as wire:
        standalone.wait_copied(wire, *standalone.COPIES)
    found = standalone.facts(server)
    assert found["streams"].keys() == expected["streams"].keys()
    for stream, facts in expected["streams"].items():
        assert found["streams"][stream] == facts, stream
    assert found["buckets"] == expected["buckets"]


def last(wire: Wire, stream: str) -> int:
    """Return the last sequence of a stream."""
    return int(asked(wire, f"STREAM.INFO.{stream}")["state"]["last_seq"])


def passed(wire: Wire) -> None:
    """Assert that everything due since the recording has happened, or happens now."""
    filler = Filler(wire)
    state = until(lambda: _when_empty(wire, "AGED"), "messages beyond max_age go")
    assert state["last_seq"] == 1
    marker = "$JS.API.DIRECT.GET.MARKED.marked.soon"
    until(
        lambda: wire.request(marker).headers.get("Nats-Marker-Reason") == "MaxAge", "a message that expired is marked"
    )
    assert wire.request("$JS.API.DIRECT.GET.MARKED.marked.never").data == b"x"
    produced = until(
        lambda: _found(wire.request("$JS.API.DIRECT.GET.DUE.due.to.here")), "a schedule that was due fires"
    )
    assert produced.data == b"due"
    frames = filler.pull("SHORT", "again", 6, expires=int(SOON_S * standalone.SECOND))
    assert sorted(map(place, frames)) == [(1, 5), (1, 6), (2, 1), (2, 2), (2, 3), (2, 4)]
    for frame in frames:
        filler.tell(frame)
    assert asked(wire, "CONSUMER.INFO.SHORT.again")["num_ack_pending"] == 0
    until(lambda: "brief" not in asked(wire, "CONSUMER.NAMES.SHORT")["consumers"], "a consumer that nobody uses goes")


def _when_empty(wire: Wire, stream: str) -> Any:
    state = asked(wire, f"STREAM.INFO.{stream}")["state"]
    return state if state["messages"] == 0 else None


def _found(frame: Frame) -> Frame | None:
    return None if frame.status else frame


def place(frame: Frame) -> tuple[int, int]:
    """Return how often a message was delivered, and its sequence."""
    words = frame.reply.split(".")
    return int(words[4]), int(words[5])


def publish(filler: Filler, recorded: dict[str, Any]) -> None:
    """Publish: sequences continue, and every rule takes the earlier messages into account."""
    for stream, subject in {"LIMITS": "limits.0.x", "PACKED": "packed.0", "PER_SUBJECT": "per.1", "WORKED": "worked.1",
                            "PAST": "past.0", "ASYNC": "async.1", "PURGED": "purged.0", "SHREDDED": "shredded.0",
                            "EMPTIED": "emptied", "FIXED": "fixed", "ODD": "odd.new", "a~name$of-its_own": "named",
                            "AGAIN": "again.republish.5"}.items():  # fmt: skip
        assert filler.put(subject, b"later") == recorded[stream]["info"]["state"]["last_seq"] + 1
    again = filler.wire.request("dedupe.1", b"x", {"Nats-Msg-Id": "id 3"}).json()
    assert again == {"stream": "DEDUPE", "seq": 4, "duplicate": True}
    assert not filler.wire.request("dedupe.1", b"x", {"Nats-Msg-Id": "new"}).json().get("duplicate")
    counted = filler.wire.request("count.1", headers={"Nats-Incr": "5"}).json()
    assert counted["val"] == str(sum(range(-3, 17)) + 10 + 5)
    assert filler.wire.request("full.0", b"x").json()["error"]["err_code"] == 10077
    assert "error" in filler.wire.request("closed", b"x").json()
    filler.wire.publish("atomic.1", b"1", headers={"Nats-Batch-Id": "later", "Nats-Batch-Sequence": "1"})
    headers = {"Nats-Batch-Id": "later", "Nats-Batch-Sequence": "2", "Nats-Batch-Commit": "1"}
    assert filler.wire.request("atomic.2", b"2", headers).json()["count"] == 2
    filler.put("ttl.later", b"x", {"Nats-TTL": standalone.CENTURY_S})
    assert "MEMORY" not in names(filler.wire), "it went with its process"
    for number in range(100):
        filler.put(f"packed.{number % 5}", b"a segment of today beside the old ones " * 20)


def consume(filler: Filler, recorded: dict[str, Any]) -> None:
    """Ack recorded deliveries, and get the next ones."""
    wire = filler.wire
    assert "in_memory" not in recorded["CONSUMERS"]["consumers"], "it went with its process"
    for name in ("explicit", "filtered", "by_sequence", "by_time", "headers", "backoff"):
        was = recorded["CONSUMERS"]["consumers"][name]
        sequence = was["delivered"]["consumer_seq"]
        frames = filler.pull("CONSUMERS", name, 1)
        assert [(int(frame.reply.split(".")[4]), int(frame.reply.split(".")[6])) for frame in frames] == [
            (1, sequence + 1)
        ]
        assert not wire.request(frames[0].reply, b"+ACK").data
        assert asked(wire, f"CONSUMER.INFO.CONSUMERS.{name}")["num_ack_pending"] == was["num_ack_pending"]
    was = recorded["CONSUMERS"]["consumers"]["explicit"]
    assert not wire.request("$JS.ACK.CONSUMERS.explicit.1.3.3.0.0", b"+ACK").data
    assert asked(wire, "CONSUMER.INFO.CONSUMERS.explicit")["num_ack_pending"] == was["num_ack_pending"] - 1
    assert not wire.request("$JS.ACK.CONSUMERS.explicit.1.4.4.0.0", b"-NAK").data
    assert place(*filler.pull("CONSUMERS", "explicit", 1)) == (2, 4)
    assert asked(wire, "CONSUMER.INFO.CONSUMERS.paused")["paused"]
    assert not asked(wire, "CONSUMER.PAUSE.CONSUMERS.paused", {})["paused"]
    assert place(*filler.pull("CONSUMERS", "paused", 1)) == (1, 1)
    assert len(filler.pull("CONSUMERS", "pinned", 1, group="g")) == 1
    sid = wire.subscribe("to.pushed")
    wire.request("$JS.ACK.CONSUMERS.pushed.1.2.2.0.0", b"+ACK")
    delivered = recorded["CONSUMERS"]["consumers"]["pushed"]["delivered"]["stream_seq"]
    assert place(wire.delivered(sid)) == (1, delivered + 1)
    wire.unsubscribe(sid)
    held = asked(wire, "STREAM.INFO.WORK")["state"]["messages"]
    for frame in (taken := filler.pull("WORK", "odd", 5)):
        filler.tell(frame)
    until(lambda: asked(wire, "STREAM.INFO.WORK")["state"]["messages"] == held - len(taken), "acked work leaves")
    assert taken


def remove(filler: Filler) -> None:
    """Delete messages of old segments, also securely, and a stream with its files."""
    wire = filler.wire
    for seq in (10, 200):
        asked(wire, "STREAM.MSG.DELETE.SHREDDED", {"seq": seq})
    asked(wire, "STREAM.PURGE.PACKED", {"filter": "packed.3"})
    asked(wire, "STREAM.DELETE.NO_ACK")
    assert "NO_ACK" not in names(wire)
    assert "error" in wire.api("STREAM.MSG.DELETE.FIXED", {"seq": 1})


def back_up(wire: Wire, stream: str) -> None:
    """Replace a recorded stream by a backup of it."""
    before = asked(wire, f"STREAM.INFO.{stream}", {"deleted_details": True, "subjects_filter": ">"})["state"]
    sid = wire.subscribe("BACKUP.here")
    request = asked(wire, f"STREAM.SNAPSHOT.{stream}", {"deliver_subject": "BACKUP.here"})
    chunks = []
    while (frame := wire.delivered(sid)).data:
        chunks.append(frame.data)
        if frame.reply:
            wire.publish(frame.reply)
    asked(wire, f"STREAM.DELETE.{stream}")
    to = asked(wire, f"STREAM.RESTORE.{stream}", {key: request[key] for key in ("config", "state")})["deliver_subject"]
    for chunk in chunks:
        assert not wire.request(to, chunk).data
    answer = wire.request(to).json()
    assert "error" not in answer, answer
    after = asked(wire, f"STREAM.INFO.{stream}", {"deleted_details": True, "subjects_filter": ">"})["state"]
    assert after == before


async def use_buckets(url: str) -> None:
    """Write values and objects beside the old ones."""
    client = await nats.connect(url)
    js = client.jetstream()
    bucket = await js.key_value("config")
    revision = (await bucket.get("key.3")).revision
    await bucket.update("key.3", b"newer", last=revision)
    store = await js.object_store("files")
    await store.put("later", b"later" * 50_000)
    await store.delete("small")
    await client.close()


def test_recorded_messages_have_the_schemas_that_were_in_force(start_server: StartServer, tmp_path: Path) -> None:
    root, recorded = unpack("typed", tmp_path / "recorded")
    server = start_server(of=Kind.OURS, store=root / "store", config=typed.CONFIG)
    wanted = [*map(tuple, recorded["versions"]), typed.go_on(server)]
    assert typed.versions(server, root / "store" / "lake") == wanted


def test_recorded_misfits_are_sent_once_and_definitions_are_given_back(
    start_server: StartServer, tmp_path: Path
) -> None:
    root, recorded = unpack("typed-letters", tmp_path / "recorded")
    server = start_server(of=Kind.OURS, store=root / "store", config=lake.CONFIG)
    with Wire(server.address, timeout=SOON_S) as wire:
        until(lambda: len(typed.letters(wire)) >= 3, "the last misfit is sent")
        assert typed.letters(wire) == [1, 3, 4], "duplicates of the others were not refused: their window is over"
    world = RegistryWorld(server.url)
    try:
        assert world.ask("GET", f"{typed.SUBJECT}/1") == (200, recorded["definition"])
    finally:
        world.close()


def test_recorded_accounts_open_with_what_was_theirs(start_server: StartServer, tmp_path: Path) -> None:
    root, recorded = unpack("accounts", tmp_path / "recorded")
    server = start_server(of=Kind.OURS, store=root / "store", config=accounts.CONFIG)
    for _ in range(2):
        with accounts.user(server, "two") as wire:
            standalone.wait_copied(wire, *accounts.COPIES)
        assert accounts.facts(server) == recorded
        with accounts.user(server, "one") as wire:
            assert Filler(wire).put("orders.2", b"later") == recorded["one"]["ORDERS"]["info"]["state"]["last_seq"] + 1
        with accounts.user(server, "two") as wire:
            until(lambda wire=wire: last(wire, "COPY") == last(wire, "PART") + 38, "copies follow")
        recorded = accounts.facts(server)
        server.stop()
        server.start()
