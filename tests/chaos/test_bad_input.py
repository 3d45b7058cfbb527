"""Tests of misbehaving clients (malformed input, too many connections, slow readers) and of starts that must fail.

Other clients and the store are not harmed.
"""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import StartServer
from tests.servers import Kind, run_to_end
from tests.websocket import frame, request
from tests.wire import Closed, Wire, WireTimeout

pytestmark = [pytest.mark.chaos, pytest.mark.smoke]

CONNECTIONS = 400
GARBAGE_CLIENTS = 6
GARBAGE_ROUNDS = int(os.environ.get("LAKESTREAM_GARBAGE_ROUNDS", "60"))

HELLO = b'CONNECT {"verbose":false,"headers":true}\r\n'
SEEDS = (
    b"PUB a 5\r\nhello\r\n",
    b"HPUB a b 12 17\r\nNATS/1.0\r\n\r\nhello\r\n",
    b"SUB a.* q 1\r\nUNSUB 1 5\r\nPING\r\n",
    b'CONNECT {"verbose":true,"lang":"x"}\r\nPING\r\n',
    b'PUB $JS.API.STREAM.CREATE.X r 12\r\n{"name":"X"}\r\n',
    b"PUB $JS.API.STREAM.INFO.GOOD r 2\r\n{}\r\n",
    b"PUB $JS.API.CONSUMER.CREATE.GOOD r 4\r\nnull\r\n",
    b'PUB $JS.API.CONSUMER.MSG.NEXT.GOOD.c r 13\r\n{"batch":1e99}\r\n',
    b'PUB $JS.API.DIRECT.GET.GOOD r 19\r\n{"seq":99999999999}\r\n',
    b"PUB $JS.ACK.GOOD.c.1.1.1.1.1 4\r\n+ACK\r\n",
    b"PUB $JS.FC.GOOD.c.x 0\r\n\r\n",
    b"HPUB good.h r 30 30\r\nNATS/1.0\r\nNats-Msg-Id:\xff\xfe\r\n\r\n\r\n",
    b"HPUB good.h r 45 45\r\nNATS/1.0\r\nNats-Expected-Last-Sequence: -9\r\n\r\n\r\n",
    b'PUB $JS.API.STREAM.CREATE.X r 29\r\n{"name":"X","retention":[1.5]}\r\n',
    b'PUB $JS.API.CONSUMER.PAUSE.GOOD.c r 31\r\n{"pause_until":"9999-12-31T23:59:59-23:59"}\r\n',
    b"PUB $JS.API.\x00.\xff r 0\r\n\r\n",
    b"PUB . 0\r\n\r\nPUB .. 0\r\n\r\nSUB . 1\r\n",
    b"PUB a 1048577\r\n",
    b"A" * 5000,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    b"GET /varz HTTP/1.1\r\n\r\n",
)


def _mutated(rng: random.Random, text: bytes) -> bytes:
    data = bytearray(text)
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(data) + 1)
        action = rng.randrange(4)
        if action == 0:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
        elif action == 1:
            del data[at : at + rng.randrange(1, 9)]
        elif action == 2 and at < len(data):
            data[at] = rng.randrange(256)
        else:
            data[at:at] = bytes(data[: rng.randrange(30)])
    return bytes(data)


UPGRADE = request(host="h")
WEB_SEEDS = (
    UPGRADE,
    UPGRADE.replace(b"\r\n\r\n", b"\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"),
    *(frame(2, seed) for seed in SEEDS),
    frame(2, b"PUB a 5\r\nhe", final=False) + frame(9, b"x") + frame(0, b"llo\r\n"),
    frame(2, b"\x00", reserved=4),
    frame(8, b"\x03\xe8"),
    frame(3, b""),
)


def _talk_garbage(
    address: tuple[str, int], hello: bytes, seeds: Sequence[bytes], seed: int, stop: threading.Event
) -> None:
    """Connect, send random bytes, read a little and disconnect, repeatedly."""
    rng = random.Random(seed)
    for _ in range(GARBAGE_ROUNDS):
        if stop.is_set():
            return
        try:
            with socket.create_connection(address, 5) as sock:
                sock.settimeout(0.05)
                if rng.random() < 0.7:
                    sock.sendall(hello)
                    sock.recv(65536)
                sock.sendall(b"".join(_mutated(rng, rng.choice(seeds)) for _ in range(rng.randrange(1, 30))))
                if rng.random() < 0.5:
                    sock.shutdown(socket.SHUT_WR)
                while sock.recv(65536):
                    pass
        except OSError:  # the server closed the connection
            continue


def test_garbage_harms_nobody_else(start_server: StartServer) -> None:
    server = start_server(config='websocket { listen: "127.0.0.1:-1", no_tls: true, compression: true }\n')
    seed = random.SystemRandom().randrange(1 << 32)
    over_tcp, over_web = (server.address, HELLO, SEEDS), ((server.host, server.websocket_port), WEB_SEEDS[1], WEB_SEEDS)
    print(f"seed {seed}")
    stop = threading.Event()
    with Wire(server.address, timeout=20) as wire:
        config = {"name": "GOOD", "subjects": ["good.x"], "allow_direct": True}
        assert "error" not in wire.api("STREAM.CREATE.GOOD", config)
        threads = [
            threading.Thread(target=_talk_garbage, args=(*(over_web if n % 2 else over_tcp), seed + n, stop))
            for n in range(GARBAGE_CLIENTS)
        ]
        for thread in threads:
            thread.start()
        count = 0
        try:
            while any(thread.is_alive() for thread in threads) or count < 200:
                count += 1
                answer = wire.request("good.x", b"%d" % count).json()
                assert answer == {"stream": "GOOD", "seq": count}
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert wire.request("$JS.API.DIRECT.GET.GOOD", b'{"seq":%d}' % count).data == b"%d" % count
        assert wire.api("STREAM.INFO.GOOD")["state"]["messages"] == count
    assert server.running
    assert "Traceback" not in server.log(2000)
    assert "internal error" not in server.log(2000)


def test_several_hundred_connections(start_server: StartServer) -> None:
    server = start_server()
    wires = [Wire(server.address, timeout=20) for _ in range(CONNECTIONS)]
    try:
        assert "error" not in wires[0].api("STREAM.CREATE.MANY", {"name": "MANY", "subjects": ["many.>"]})
        sids = [wire.subscribe(f"own.{n}") for n, wire in enumerate(wires)]
        everybody = [wire.subscribe("everybody") for wire in wires]
        for wire in wires:
            wire.ping()
        for n, wire in enumerate(wires):
            wire.publish(f"own.{(n + 1) % CONNECTIONS}", b"%d" % n)
        for n, (wire, sid) in enumerate(zip(wires, sids, strict=True)):
            assert wire.delivered(sid).data == b"%d" % ((n - 1) % CONNECTIONS)
        wires[7].publish("everybody", b"hello")
        assert all(wire.delivered(sid).data == b"hello" for wire, sid in zip(wires, everybody, strict=True))
        replies = [wire.new_reply() for wire in wires]
        for n, (wire, reply) in enumerate(zip(wires, replies, strict=True)):
            wire.publish(f"many.{n}", b"x", reply)
        sequences = [wire.message(reply).json()["seq"] for wire, reply in zip(wires, replies, strict=True)]
        assert sorted(sequences) == list(range(1, CONNECTIONS + 1))
    finally:
        for wire in wires:
            wire.close()
    with Wire(server.address) as wire:
        assert wire.api("STREAM.INFO.MANY")["state"]["messages"] == CONNECTIONS


def test_a_slow_consumer_is_cut_and_the_others_are_not(start_server: StartServer) -> None:
    server = start_server(config="max_pending: 1048576\n")
    size, most = 65536, 1000
    with Wire(server.address) as publisher, Wire(server.address) as fast, Wire(server.address) as slow:
        sid = fast.subscribe("flood")
        fast.ping()
        slow.subscribe("flood")
        slow.ping()  # it reads nothing from here on
        body = bytes(size)
        for _ in range(most):
            publisher.publish("flood", body)
            assert len(fast.delivered(sid).data) == size
        slow.timeout = 20
        received = slow.until_closed()
        assert len(received) < most, "the slow one was waited for"
        assert not publisher.ping()
        assert fast.ping() == []
    assert "Slow Consumer" in server.log()


def test_a_stalled_consumer_of_a_stream_is_cut_and_the_stream_goes_on(start_server: StartServer) -> None:
    server = start_server(config="max_pending: 1048576\n")
    body = bytes(65536)
    with Wire(server.address, timeout=20) as publisher, Wire(server.address) as slow:
        publisher.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "storage": "file"})
        slow.subscribe("to.slow")
        slow.ping()
        config = {"durable_name": "c", "deliver_subject": "to.slow", "ack_policy": "none"}
        assert "error" not in publisher.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
        for n in range(1, 401):
            assert publisher.request("s", body).json()["seq"] == n
        assert publisher.api("STREAM.INFO.S")["state"]["messages"] == 400


def test_a_client_that_never_reads_its_acks_stops_nobody(start_server: StartServer) -> None:
    server = start_server()
    with Wire(server.address, timeout=20) as good, Wire(server.address) as mute:
        assert "error" not in good.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.*"]})
        reply = mute.new_reply()
        mute.socket.settimeout(2)
        block = b"".join(b"PUB s.mute %s 1\r\nx\r\n" % reply.encode() for _ in range(2000))
        try:
            for _ in range(20):
                mute.send(block)
        except (TimeoutError, ConnectionError):
            pass  # the server may stop reading from it, or close it
        for _ in range(100):
            assert "error" not in good.request("s.good", b"x").json()


def test_half_a_message_stops_nobody(start_server: StartServer) -> None:
    server = start_server()
    with Wire(server.address) as half, Wire(server.address) as good:
        assert "error" not in good.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        half.send(b"PUB s 1000\r\nonly a part")
        half.close()
        assert good.request("s", b"whole").json()["seq"] == 1


def test_the_authentication_window_closes_silent_connections(start_server: StartServer) -> None:
    server = start_server(config='authorization { user: a, password: b, timeout: "0.3s" }\n')
    with Wire(server.address, None) as silent:
        assert [frame.text for frame in silent.until_closed()] == ["'Authentication Timeout'"]
    with Wire(server.address, {"user": "a", "pass": "wrong"}) as wrong:
        assert [frame.text for frame in wrong.until_closed()] == ["'Authorization Violation'"]
    with Wire(server.address, {"user": "a", "pass": "b"}) as right:
        assert right.ping() == []


# ---- starts that must fail: one line that names the problem and its place, and exit code 1. Lakestream only.


def _refused(*flags: str) -> str:
    """Return the one line with which lakestream refuses to start."""
    done = run_to_end(Kind.OURS, *flags)
    said = (done.stdout + done.stderr).strip().splitlines()
    assert done.returncode == 1, said
    assert not any("Traceback" in line for line in said), said
    reasons = [line for line in said if "[FTL]" in line or line.startswith("lakestream:")]
    assert len(reasons) == 1, said
    assert said[-1] == reasons[0], said
    return reasons[0]


def _config(directory: Path, text: str) -> str:
    path = directory / "nats.conf"
    path.write_text(text)
    return str(path)


def test_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = _refused("-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(tmp_path / "s"))
    assert str(port) in line
    assert "in use" in line


def test_store_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = _refused("-a", "127.0.0.1", "-p", "-1", "-js", "-sd", str(tmp_path / "file" / "store"))
    assert line.endswith("[FTL] Can't start JetStream: storage directory is not a directory")


def test_store_not_writable(tmp_path: Path) -> None:
    if os.geteuid() == 0:  # root may write anywhere except to a file system without files
        store = "/proc/nowhere"
    else:
        tmp_path.chmod(0o500)
        store = str(tmp_path / "store")
    assert store in _refused("-a", "127.0.0.1", "-p", "-1", "-js", "-sd", store)


def test_store_of_a_newer_version(tmp_path: Path) -> None:
    (tmp_path / "jetstream").mkdir()
    (tmp_path / "jetstream" / "VERSION").write_text("999\n")
    line = _refused("-a", "127.0.0.1", "-p", "-1", "-js", "-sd", str(tmp_path))
    assert "999" in line
    assert str(tmp_path / "jetstream") in line


def test_store_used_by_another_server(start_server: StartServer, kind: Kind, tmp_path: Path) -> None:
    first = start_server(of=Kind.OURS, store=tmp_path / "shared")
    assert str(tmp_path / "shared") in _refused("-a", "127.0.0.1", "-p", "-1", "-js", "-sd", str(tmp_path / "shared"))
    with Wire(first.address) as wire:
        assert wire.api("INFO")["streams"] == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("port: 4222\nhost: a\njetstrem { }\n", '{path}:3:1: unknown field "jetstrem"'),
        ("jetstream {\n  store_dirr: x\n}\n", '{path}:2:3: unknown field "store_dirr"'),
        ("port: no\n", '{path}:1:0: "port" must be a whole number'),
        ("jetstream {\n  store_dir: x\n", "Parse error on line 3: 'Unexpected EOF processing map.'"),
        ("port: 70000\n", '[FTL] Error listening on port: 0.0.0.0:70000, "listen tcp: address 70000: invalid port"'),
        ("port 4222 host }\n", "Parse error on line 1: 'Expected a top-level value to end with a new line"),
    ],
    ids=["unknown_field", "unknown_inner_field", "wrong_type", "not_closed", "out_of_range", "bad_syntax"],
)
def test_broken_configuration(tmp_path: Path, text: str, says: str) -> None:
    path = _config(tmp_path, text)
    assert says.format(path=path) in _refused("-c", path)


def test_a_misspelt_field_is_guessed(tmp_path: Path) -> None:
    assert 'did you mean "jetstream"' in _refused("-c", _config(tmp_path, "jetstrem { }\n"))


def test_missing_configuration(tmp_path: Path) -> None:
    assert str(tmp_path / "none.conf") in _refused("-c", str(tmp_path / "none.conf"))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--no_such_flag"], "flag provided but not defined: -no_such_flag"),
        (["-p", "many"], 'invalid value "many" for flag -p: parse error'),
        (["-p"], "flag needs an argument: -p"),
    ],
    ids=["unknown", "no_number", "no_argument"],
)
def test_wrong_flag(flags: list[str], says: str) -> None:
    done = run_to_end(Kind.OURS, *flags)
    assert (done.returncode, done.stderr) == (0, f"{says}\n")  # 0 as in nats-server
    assert done.stdout.strip().startswith("Usage: lakestream serve")


def test_a_flag_out_of_range() -> None:
    assert 'Error listening on port: 0.0.0.0:99999, "listen tcp' in _refused("-p", "99999")


def test_a_closed_or_timed_out_peer_is_noticed_by_the_wire_client(start_server: StartServer) -> None:
    """The wire client reports a killed server as closed and a silent one as a timeout; the chaos tests rely on it."""
    server = start_server()
    with Wire(server.address) as wire:
        with pytest.raises(WireTimeout):
            wire.next(timeout=0.05)
        server.kill()
        with pytest.raises(Closed):
            wire.next(timeout=5)
