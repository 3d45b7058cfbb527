"""Garbage before, in and after the handshake of TLS, and in PROXY headers: it harms nobody else.

`LAKESTREAM_FUZZ_ROUNDS` connections (of 2,000, `SHARE` in `make test`) send inputs drawn from `LAKESTREAM_FUZZ_SEED`,
while another client of the same server measures its pings.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import socket
import ssl
import statistics
import time
from pathlib import Path

import psutil
import pytest

from tests.certificates import PLACE, client_context
from tests.conftest import StartServer
from tests.fuzzing import ROUNDS, SEED, mutated
from tests.servers import Server
from tests.wire import Secure, Wire

pytestmark = [pytest.mark.chaos, pytest.mark.smoke]

SHARE = 4
"""One in so many of the default inputs: a handshake takes a millisecond of both sides."""
CLIENTS = 4
PING_LIMIT_S = 0.05
MOST_MEMORY = 64 << 20
"""Bytes by which the server may grow."""

FILES = f'cert_file: "{PLACE}/server.pem", key_file: "{PLACE}/server.key"'
CONFIG = {
    "required": f"tls {{ {FILES}, timeout: 1 }}\n",
    "first": f"tls {{ {FILES}, timeout: 1, handshake_first: auto }}\n",
    "mapped": f'tls {{ {FILES}, ca_file: "{PLACE}/ca.pem", verify_and_map: true, timeout: 1 }}\n'
    'authorization { users: [{user: "ann@example.com"}] }\n',
    "proxy": f"tls {{ {FILES}, timeout: 1 }}\nproxy_protocol: true\n",
}
COMMANDS = (
    b'CONNECT {"verbose":false,"headers":true}\r\nPING\r\n',
    b"SUB a.* q 1\r\nPUB a.b 5\r\nhello\r\n",
    b"HPUB a b 12 17\r\nNATS/1.0\r\n\r\nhello\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
)
PROXY = (
    b"PROXY TCP4 10.0.0.1 10.0.0.2 1000 4222\r\n",
    b"PROXY UNKNOWN\r\n",
    b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\x0a\x00\x00\x01\x0a\x00\x00\x02\x10\x00\x20\x00",
    b"\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00",
)


class _Client:
    """One TLS connection whose records the test holds in its hands."""

    def __init__(self, rng: random.Random, context: ssl.SSLContext, plain: socket.socket, *, proxied: bool) -> None:
        self._rng, self._socket = rng, plain
        self._proxied = proxied
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname="localhost")

    def talk(self, garbage: str) -> None:
        """Send garbage at this point of the connection. Raises OSError when the server ends it."""
        if self._proxied:
            header = self._rng.choice(PROXY)
            self._socket.sendall(self._changed(header, *PROXY) if garbage == "proxy" else header)
        self._socket.recv(4096)  # INFO
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                records = self._out.read()
                self._socket.sendall(self._changed(records) if garbage == "handshake" else records)
                if not (answer := self._socket.recv(65536)):
                    return
                self._in.write(answer)
        if garbage == "inside":
            self._tls.write(self._changed(b"".join(self._rng.choices(COMMANDS, k=3)), *COMMANDS) or b"x")
            self._socket.sendall(self._out.read())
        else:
            self._tls.write(COMMANDS[0])
            records = self._out.read()
            self._socket.sendall(self._changed(records, *COMMANDS, self._rng.randbytes(200)))
        if self._rng.random() < 0.3:
            self._socket.recv(4096)

    def _changed(self, data: bytes, *others: bytes) -> bytes:
        """Return other bytes, also with single bits turned."""
        changed = bytearray(mutated(self._rng, data, [data, *others]))
        for _ in range(self._rng.randrange(3)):
            if changed:
                changed[self._rng.randrange(len(changed))] ^= 1 << self._rng.randrange(8)
        return bytes(changed)


def _attack(server: tuple[str, int], certificates: Path, proxied: bool, seed: str, count: int) -> None:
    """Open connections one after the other; a process of its own, so that it does not disturb the pings."""
    rng, context = random.Random(seed), client_context(certificates, "ann")
    kinds = ["handshake", "handshake", "after", "inside", *(["proxy", "proxy"] if proxied else [])]
    for _ in range(count):
        with contextlib.suppress(OSError, ValueError), socket.create_connection(server, 5) as plain:
            plain.settimeout(0.1)
            _Client(rng, context, plain, proxied=proxied).talk(rng.choice(kinds))


@pytest.mark.parametrize("settings", CONFIG)
def test_garbage_harms_nobody_else(start_server: StartServer, settings: str) -> None:
    server = start_server(config=CONFIG[settings], jetstream=False)
    count = max(ROUNDS // len(CONFIG) // (SHARE if ROUNDS <= 2000 else 1) // CLIENTS, 1)
    secure = Secure(client_context(server.certificates, "ann"))
    process = psutil.Process(_pid(server))
    with Wire(server.address, secure=secure, timeout=20) as wire:
        attackers = [
            multiprocessing.get_context("spawn").Process(
                target=_attack,
                args=(server.address, server.certificates, settings == "proxy", f"{SEED} {settings} {number}", count),
            )
            for number in range(CLIENTS)
        ]
        for attacker in attackers:
            attacker.start()
        memory, times = 0, list[float]()
        while any(attacker.is_alive() for attacker in attackers) or len(times) < 200:
            began = time.perf_counter()
            wire.ping()
            times.append(time.perf_counter() - began)
            memory = memory or process.memory_info().rss
            time.sleep(0.002)
        assert [attacker.exitcode for attacker in attackers] == [0] * CLIENTS
        grown = process.memory_info().rss - memory
    marks = statistics.quantiles(times, n=1000)
    print(f"{count * CLIENTS} connections; pings p99 {marks[989] * 1e3:.1f} ms, p99.9 {marks[998] * 1e3:.1f} ms, ")
    print(f"longest {max(times) * 1e3:.1f} ms; memory grew by {grown >> 20} MiB")
    assert server.running
    log = server.log(2000)
    assert "Traceback" not in log
    assert "internal error" not in log
    assert "Task exception" not in log
    assert marks[989] < PING_LIMIT_S
    assert grown < MOST_MEMORY
    with Wire(server.address, secure=secure) as again:
        assert again.ping() == []


def _pid(server: Server) -> int:
    assert server.process is not None
    return server.process.pid
