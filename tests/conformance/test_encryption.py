"""Tests of encryption at rest: nothing of a stream is on disk in plain text, and keys change as in nats-server."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.test_sql_over_nats import Session
from tests.conformance import test_backups as backups
from tests.conformance import test_worker_moves as moves
from tests.conftest import StartServer
from tests.servers import Kind, Server, StartFailed
from tests.stored.record import SEALED
from tests.stored.recordings import unpack
from tests.wire import Closed, Wire

pytestmark = pytest.mark.conformance

WORDS = (b"SECRETTEXT", b"SECRETSUBJECT", b"SECRETHEADER", b"SECRETCONSUMER", b"SECRETMETA")
MESSAGES = 10_000


def config(key: str, more: str = "", lake: str = "lake { encryption: storage, seal_age: 100ms }") -> str:
    return f'jetstream {{ key: "{key}", {more} }}\n{lake}\n'


def found(*places: Path) -> list[tuple[str, bytes]]:
    """Return where one of the words is."""
    every: Iterator[Path] = (path for place in places for path in place.rglob("*") if path.is_file())
    return [(str(path), word) for path in every for word in WORDS if word in path.read_bytes()]


def fill(server: Server, first: int, count: int) -> None:
    with Wire(server.address, timeout=20) as wire:
        if first == 1:
            stream = {"name": "S", "subjects": ["SECRETSUBJECT.>"], "metadata": {"SECRETMETA": "x"}}
            stream["allow_direct"] = True
            assert "error" not in wire.api("STREAM.CREATE.S", stream)
            consumer = {"durable_name": "SECRETCONSUMER", "ack_policy": "explicit"}
            body = {"stream_name": "S", "config": consumer}
            assert "error" not in wire.api("CONSUMER.CREATE.S.SECRETCONSUMER", body)
        for number in range(first, first + count):
            subject = f"SECRETSUBJECT.{number % 100}"
            if number % 10:
                wire.publish(subject, b"SECRETTEXT %d" % number)
            else:
                wire.request(subject, b"SECRETTEXT %d" % number, {"SECRETHEADER": "x"})


def check(server: Server, count: int) -> None:
    with Wire(server.address, timeout=20) as wire:
        state = wire.api("STREAM.INFO.S")["state"]
        assert (state["messages"], state["last_seq"]) == (count, count)
        for seq in (1, count // 2, count):
            answer = wire.request("$JS.API.DIRECT.GET.S", b'{"seq":%d}' % seq)
            assert answer.data == b"SECRETTEXT %d" % seq, answer
        assert wire.api("CONSUMER.INFO.S.SECRETCONSUMER")["num_pending"] == count


@pytest.mark.parametrize("cipher", ["aes", "chacha"])
def test_nothing_of_a_stream_is_on_disk_in_plain_text(start_server: StartServer, tmp_path: Path, cipher: str) -> None:
    server = start_server(config=config("one", f"cipher: {cipher}"))
    fill(server, 1, MESSAGES)
    server.stop(signal.SIGKILL)
    assert not found(server.store / "jetstream")
    server.start()
    check(server, MESSAGES)
    server.stop(signal.SIGTERM)
    assert not found(server.store / "jetstream")
    staged = list((server.store / "lake" / "segments").rglob("*.seg"))
    assert staged
    assert not any(word in path.read_bytes() for path in staged for word in WORDS)
    server.start()
    check(server, MESSAGES)


def test_sql_over_nats_reads_what_is_encrypted(start_server: StartServer) -> None:
    """Segments that are staged already: the process of a query has the keys, and no query reads its variables."""
    server = start_server(config=config("one") + "sql: true\n")
    fill(server, 1, 20)
    asked = Session(server)
    assert asked.ask("SELECT count(*) AS n, max(text(data)) AS d FROM S").rows == [{"n": 20, "d": "SECRETTEXT 9"}]
    for query in ("SELECT getenv('LAKESTREAM_KEYS')", "FROM read_text('/proc/self/environ')"):
        assert asked.ask(query).code in (400, 403)


def test_keys_change_as_in_nats_server(start_server: StartServer) -> None:
    server = start_server(config="lake: false\n")
    fill(server, 1, 100)
    server.stop(signal.SIGTERM)
    assert found(server.store)
    for key, more, said in (
        ("one", "", "Encrypting stream 'S'"),
        ("two", "prev_key: one", "Changing the key of 2 directories"),
        ("two", "", "Encryption:      ChaCha20-Poly1305"),
        ("three", "prev_encryption_key: two, cipher: aes", "Encryption:      AES-GCM"),
    ):
        server.config = config(key, more, "lake: false")
        server.start()
        check(server, 100)
        assert server.logged(said), server.log()
        server.stop(signal.SIGTERM)
        assert not found(server.store)


@pytest.mark.parametrize("wrong", ['jetstream { key: "two" }', "jetstream { }"])
def test_a_wrong_key_stops_the_start_and_changes_nothing(start_server: StartServer, wrong: str) -> None:
    server = start_server(config=config("one", lake="lake: false"))
    fill(server, 1, 100)
    server.stop(signal.SIGTERM)
    before = {path: path.read_bytes() for path in server.store.rglob("*") if path.is_file()}
    server.config = f"{wrong}\nlake: false\n"
    with pytest.raises(StartFailed, match=r"set jetstream \{ key \}"):
        server.start()
    assert {path: path.read_bytes() for path in server.store.rglob("*") if path.is_file()} == before


def test_somebody_has_to_encrypt_the_lake(start_server: StartServer) -> None:
    with pytest.raises(StartFailed, match="or `storage` if the lake"):
        start_server(config=config("one", lake=""))
    for lake, reason in (
        ("lake { encryption: nobody }", "there are storage and parquet"),
        ("lake { encryption: parquet, url: 's3://bucket/lake' }", "needs a lake in a directory"),
        ("lake { encryption: parquet, iceberg: v3 }", "exclude each other"),
    ):
        with pytest.raises(StartFailed, match=reason):
            start_server(config=config("one", lake=lake))
    with pytest.raises(StartFailed, match=r"needs jetstream \{ key \}"):
        start_server(config="lake { encryption: parquet }")


def test_a_recorded_store_opens(start_server: StartServer, tmp_path: Path) -> None:
    """Files of both ciphers, of a server that was killed after a change of its key."""
    root, facts = unpack("sealed", tmp_path / "recorded")
    server = start_server(config=SEALED, store=root / "store")
    with Wire(server.address, timeout=20) as wire:
        assert wire.api("STREAM.INFO.S")["state"]["messages"] == facts["messages"]
        for seq in range(1, facts["messages"] + 1):
            answer = wire.request("$JS.API.DIRECT.GET.S", b'{"seq":%d}' % seq)
            assert answer.data == b"message %d" % ((seq - 1) % 50)


def test_a_backup_of_nats_server_passes_through_an_encrypted_store(start_server: StartServer) -> None:
    """A store without a key gives its stream to one with a key, which is killed, and gets the same back."""
    theirs = start_server(of=Kind.REAL)
    ours = start_server(of=Kind.OURS, config=config("one", lake="lake: false"))
    with Wire(theirs.address) as wire:
        backups.fill(wire)
        before = backups.contents(theirs)
        request, data = backups.snapshot(wire)
        assert wire.api("STREAM.DELETE.S")["success"]
    with Wire(ours.address) as wire:
        assert "error" not in backups.restore(wire, request, data)
    ours.stop(signal.SIGKILL)
    files = [path.read_bytes() for path in (ours.store / "jetstream").rglob("*") if path.is_file()]
    assert not any(text in content for content in files for text in (b"s.1.x", b"49 49 49", b"SOME"))
    ours.start()
    assert backups.contents(ours) == before
    with Wire(ours.address) as wire:
        request, data = backups.snapshot(wire)
    with Wire(theirs.address) as wire:
        assert "error" not in backups.restore(wire, request, data)
    assert backups.contents(theirs) == before


def test_streams_go_from_worker_to_worker_with_their_keys(start_server: StartServer) -> None:
    server = start_server(config=config("key0", lake="lake: false"), args=["--workers", "2"])
    names = [f"SECRETSUBJECT{number}" for number in range(4)]
    with Wire(server.address, timeout=20) as wire:
        for name in names:
            assert "error" not in wire.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"]})
    for number, workers in enumerate((3, 1, 2), 1):
        with Wire(server.address, timeout=20) as wire:
            for name in names:
                assert wire.request(f"{name}.x", b"SECRETTEXT").json()["seq"] == number
        server.stop(signal.SIGKILL)
        assert not found(server.store)
        server.args = ["--workers", str(workers)]
        server.config = config(f"key{number}", f"prev_key: key{number - 1}", "lake: false")
        server.start()
        with Wire(server.address, timeout=20) as wire:
            for name in names:
                assert wire.api(f"STREAM.INFO.{name}")["state"]["messages"] == number


def test_a_stream_that_moves_between_running_workers_takes_its_key_along(start_server: StartServer) -> None:
    """And with it, once it is deleted, all that anybody could read of it."""
    encrypted = config("key0", "cipher: aes", "lake: false")
    server = start_server(config=moves.CONFIG + encrypted)

    def keys() -> list[Path]:
        return [path for path in server.store.rglob("*") if path.name.endswith(".key") and "streams" in path.parts]

    with Wire(server.address, timeout=20) as wire, Wire(server.address, moves.SYSTEM, timeout=20) as system:
        for name in ("S", "T"):
            moves.create(wire, name, [f"SECRETSUBJECT.{name}"])
        for number in range(1, 4):
            assert wire.request("SECRETSUBJECT.S", b"SECRETTEXT %d" % number).json()["seq"] == number
            before = moves.place_of(server, "S")
            answer = moves.move(system, "S")
            assert "error" not in answer, answer
            place = moves.store_of(server, moves.place_of(server, "S"))
            assert moves.place_of(server, "S") == 1 - before
            assert place / "A" / "streams" / "S" / "sealing.key" in keys()
            assert len(keys()) == 2, "one for each stream"
            assert [frame.data for frame in moves.all_of(wire, "S", number)][-1] == b"SECRETTEXT %d" % number
            assert not found(server.store)
    server.kill()
    server.start()
    with Wire(server.address, timeout=20) as wire:
        assert wire.api("STREAM.INFO.S")["state"]["messages"] == 3
        assert wire.api("STREAM.DELETE.S")["success"]
        moves.until(lambda: [path.parent.name for path in keys()] == ["T"], "its key is gone")


def publish_until_it_is_killed(server: Server, acked: list[int], some: threading.Event) -> None:
    """Publish one message after the other; note the sequences of those that were acked."""
    with contextlib.suppress(OSError, Closed), Wire(server.address, timeout=20) as wire:
        while True:
            acked.append(json.loads(wire.request("SECRETSUBJECT.load", b"SECRETTEXT").data)["seq"])
            if len(acked) % 50 == 0:
                some.set()


def test_a_change_of_keys_under_load_loses_nothing(start_server: StartServer) -> None:
    """Each start has another key, and each kill comes while messages are published."""
    server = start_server(config=config("key0", lake="lake: false"))
    fill(server, 1, 1)
    acked: list[int] = []
    for number in range(1, 5):
        some = threading.Event()
        publisher = threading.Thread(target=publish_until_it_is_killed, args=(server, acked, some))
        publisher.start()
        assert some.wait(60)
        server.stop(signal.SIGKILL)
        publisher.join(30)
        assert not publisher.is_alive()
        server.config = config(f"key{number}", f"prev_key: key{number - 1}", "lake: false")
        server.start()
    assert len(acked) >= 200
    with Wire(server.address, timeout=20) as wire:
        for seq in acked:
            answer = wire.request("$JS.API.DIRECT.GET.S", b'{"seq":%d}' % seq)
            assert answer.data == b"SECRETTEXT", (seq, answer)
