"""Tests of backups of one server restored by the other, and of restores interrupted by a kill."""

from __future__ import annotations

import io
import json
import tarfile
import threading
import time
from typing import Any

import pytest

from lakestream.account.backup import archive
from lakestream.log.format.record import Record
from lakestream.protocol import s2
from tests.conftest import StartServer
from tests.pairs import Pair
from tests.servers import Kind, Server
from tests.wire import Closed, Wire, WireTimeout

pytestmark = pytest.mark.conformance

SECOND = 1_000_000_000
CHUNK = 128 << 10


def fill(wire: Wire) -> None:
    """Create a stream with messages of all kinds, gaps, and consumers in several states."""
    config = {"name": "S", "subjects": ["s.>"], "max_msgs_per_subject": 50, "allow_direct": True, "allow_msg_ttl": True}
    assert "error" not in wire.api("STREAM.CREATE.S", config)
    for number in range(300):
        header = {"N": str(number), "Nats-TTL": "1h"} if number % 3 == 0 else None
        assert "error" not in wire.request(f"s.{number % 7}.x", b"%d " % number * (number % 50), header).json()
    for seq in (1, 5, 77, 78, 300):
        assert wire.api("STREAM.MSG.DELETE.S", {"seq": seq})["success"]
    for name, filters in (("ALL", []), ("SOME", ["s.1.x", "s.2.x"])):
        consumer = {
            "durable_name": name,
            "ack_policy": "explicit",
            "ack_wait": 3600 * SECOND,
            "filter_subjects": filters,
        }
        assert "error" not in wire.api(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": consumer})
        wire.publish(f"$JS.API.CONSUMER.MSG.NEXT.S.{name}", b'{"batch":9}', wire.new_reply())
        frames = [wire.next(lambda frame: frame.reply.startswith("$JS.ACK.")) for _ in range(9)]
        for at in (0, 1, 4):
            assert not wire.request(frames[at].reply, b"+ACK").data


def snapshot(wire: Wire, **fields: Any) -> tuple[Any, bytes]:
    """Return the answer to a snapshot request, and the data."""
    sid = wire.subscribe("BACKUP.here")
    answer = wire.api("STREAM.SNAPSHOT.S", {"deliver_subject": "BACKUP.here", **fields})
    data = b""
    while (frame := wire.delivered(sid)).data:
        data += frame.data
        if frame.reply:
            wire.publish(frame.reply)
    assert frame.status in (0, 204), frame
    wire.unsubscribe(sid)
    return answer, data


def restore(wire: Wire, request: Any, data: bytes) -> Any:
    """Return the outcome of a restore."""
    to = wire.api(f"STREAM.RESTORE.{request['config']['name']}", {key: request[key] for key in ("config", "state")})
    assert "error" not in to, to
    for at in range(0, len(data), CHUNK):
        assert not wire.request(to["deliver_subject"], data[at : at + CHUNK]).data
    return wire.request(to["deliver_subject"], timeout=60.0).json()


def contents(server: Server) -> Any:
    """Return everything that requests return about the stream, without data specific to the server."""
    with Wire(server.address) as wire:
        info = wire.api("STREAM.INFO.S", {"deleted_details": True, "subjects_filter": ">"})
        assert "error" not in info, info
        consumers = [wire.api(f"CONSUMER.INFO.S.{name}") for name in ("ALL", "SOME")]
        info["state"].pop("last_ts")  # of the last message, which was removed: an archive does not contain it
        for answer in (info, *consumers):
            for key in ("created", "ts", "cluster"):
                answer.pop(key, None)
            answer["config"]["metadata"] = {}
        for consumer in consumers:
            for position in ("delivered", "ack_floor"):
                consumer[position].pop("last_active", None)
        found = [wire.api("STREAM.MSG.GET.S", {"seq": seq}) for seq in range(1, 301)]
        return [info, consumers, found]


@pytest.mark.parametrize("back", [False, True], ids=["theirs_here", "ours_there"])
@pytest.mark.parametrize("fields", [{}, {"chunk_size": 1024, "window_size": 4096}], ids=["usual", "small_chunks"])
def test_a_backup_is_restored_by_the_other_server(pair: Pair, back: bool, fields: dict[str, int]) -> None:
    one, other = (pair.tested, pair.expected) if back else (pair.expected, pair.tested)
    with Wire(one.address) as wire:
        fill(wire)
        before = contents(one)
        request, data = snapshot(wire, **fields)
    try:
        with Wire(other.address) as wire:
            outcome = restore(wire, request, data)
            assert "error" not in outcome, outcome
            assert contents(other) == before
            again, copy = snapshot(wire)
            assert "error" not in again
        assert list(_messages(copy)) == list(_messages(data))
    finally:
        for server in (one, other):
            with Wire(server.address) as wire:
                wire.api("STREAM.DELETE.S")


def test_a_backup_of_an_older_release_is_taken(start_server: StartServer) -> None:
    """The archive of an older release, a tar of the stream's files in today's format, is restored."""
    theirs, ours = start_server(of=Kind.REAL), start_server(of=Kind.OURS)
    with Wire(theirs.address) as wire:
        fill(wire)
        for seq in (3, 50):  # a delete without erasing
            assert wire.api("STREAM.MSG.DELETE.S", {"seq": seq, "no_erase": True})["success"]
        before = contents(theirs)
        request, _ = snapshot(wire)
    theirs.stop()
    root, packed = theirs.store / "jetstream" / "$G" / "streams" / "S", io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path in sorted(root.rglob("*")):
            if path.is_file():
                tar.add(path, str(path.relative_to(root)))
    with Wire(ours.address) as wire:
        outcome = restore(wire, request, s2.MAGIC + s2.encode(packed.getvalue()))
        assert "error" not in outcome, outcome
        assert contents(ours) == before
        wire.api("STREAM.DELETE.S")
        request["state"]["messages"] += 1
        outcome = restore(wire, request, s2.MAGIC + s2.encode(packed.getvalue()))
        assert "restore it with nats-server" in outcome["error"]["description"]


def test_a_backup_of_the_real_server_that_is_packed_extremely_is_taken(start_server: StartServer) -> None:
    """A backup with payloads of zeros, 24 MB in about a KiB as benchmarks send, is restored."""
    theirs, ours = start_server(of=Kind.REAL), start_server(of=Kind.OURS)
    with Wire(theirs.address) as wire:
        wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        for _ in range(24):
            wire.request("s", bytes(1_000_000))
        request, data = snapshot(wire)
    assert len(data) < 24_000_000 // 10_000
    with Wire(ours.address) as wire:
        outcome = restore(wire, request, data)
        assert "error" not in outcome, outcome
        assert outcome["state"]["messages"] == 24
        assert wire.api("STREAM.MSG.GET.S", {"seq": 24})["message"]["seq"] == 24


def _messages(data: bytes) -> Any:
    return archive.Archive(archive.decoded([data])).messages()


def large(count: int) -> tuple[Any, bytes]:
    """Return a backup of `count` messages of 1 KiB: the request, and the data."""
    now = time.time_ns() - count
    state = {"messages": count, "bytes": 0, "first_seq": 1, "last_seq": count, "consumer_count": 0}
    head = archive.MAGIC + archive.entry(archive.STATE_NAME, now, body=json.dumps(state).encode())
    records = [Record(seq, now + seq, b"s.%d" % (seq % 10), b"", b"%d" % seq * 100) for seq in range(1, count + 1)]
    packed = s2.MAGIC + s2.encode(head + archive.messages(records) + archive.END)
    return {"config": {"name": "S", "subjects": ["s.>"]}, "state": state}, packed


@pytest.mark.parametrize("after_s", [0.0, 0.15])
def test_a_server_killed_while_it_restores_has_all_or_nothing(start_server: StartServer, after_s: float) -> None:
    server = start_server(of=Kind.OURS)
    request, data = large(8_000)
    outcome: list[Any] = []
    ended = threading.Event()

    def send() -> None:
        try:
            with Wire(server.address, timeout=30.0) as wire:
                to = wire.api("STREAM.RESTORE.S", request)["deliver_subject"]
                for at in range(0, len(data), CHUNK):
                    wire.request(to, data[at : at + CHUNK])
                ended.set()
                outcome.append(wire.request(to).json())
        except (Closed, WireTimeout, OSError):
            return
        finally:
            ended.set()

    sender = threading.Thread(target=send)
    sender.start()
    assert ended.wait(60.0)
    if after_s:
        sender.join(after_s)
    server.kill()
    sender.join()
    server.start()
    with Wire(server.address) as wire:
        info = wire.api("STREAM.INFO.S")
        if outcome or "error" not in info:
            assert info["state"]["messages"] == 8_000
            return
        assert info["error"]["err_code"] == 10059
        assert not wire.api("STREAM.NAMES")["streams"]
        assert not [path for path in (server.store / "jetstream").rglob("*.seg") if "/S/" in str(path)]
        answer = restore(wire, request, data)
        assert answer["state"]["messages"] == 8_000
        assert wire.request("s.1", b"more").json()["seq"] == 8_001


@pytest.mark.parametrize("kind", [Kind.OURS, Kind.REAL])
def test_chunks_wait_for_a_subscription_that_comes_after_the_response(start_server: StartServer, kind: Kind) -> None:
    """The `nats` command subscribes late, and has a wildcard subscription that receives and drops the first chunks."""
    server = start_server(of=kind)
    with Wire(server.address) as wire:
        fill(wire)
        wire.subscribe("BACKUP.*")
        assert "error" not in wire.api("STREAM.SNAPSHOT.S", {"deliver_subject": "BACKUP.here"})
        sid = wire.subscribe("BACKUP.here")
        assert wire.delivered(sid).data.startswith(s2.MAGIC)
