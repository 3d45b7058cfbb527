"""Garbage before, in and after the handshake of TLS, and in PROXY headers: it harms nobody else.

`LAKESTREAM_TLS_ROUNDS` connections (400) send inputs drawn from `LAKESTREAM_FUZZ_SEED`, while another client of the
same server measures its pings.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import socket
import ssl
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.certificates import PLACE, client_context
from tests.conftest import StartServer
from tests.fuzzing import SEED, mutated
from tests.servers import LOG_LINES_KEPT, Server
from tests.wire import Secure, Wire

ROUNDS = int(os.environ.get("LAKESTREAM_TLS_ROUNDS", "400"))
"""Number of connections, over all settings."""
CAMPAIGN = 5_000
"""From this number of connections on, a run is a campaign: the longest hold of the event loop is asserted."""
PROCESSES, CLIENTS = 2, 24
"""Attacking processes, and clients of each at the same time."""
SECONDS_EACH = 0.03
"""Time of a connection, generously."""

pytestmark = [pytest.mark.chaos, pytest.mark.smoke, pytest.mark.timeout(120 + ROUNDS * SECONDS_EACH)]

HOLD_LIMIT_S = 0.05
PATIENCE_S = 0.25
"""Time for which an attacker waits for an answer."""
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
    """Open `count` connections, `CLIENTS` at the same time, in a process of low priority: pings come first."""
    os.nice(19)
    context = client_context(certificates, "ann")
    kinds = ["handshake", "handshake", "after", "inside", *(["proxy", "proxy"] if proxied else [])]

    def attack(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        for _ in range(number, count, CLIENTS):
            with contextlib.suppress(OSError, ValueError), socket.create_connection(server, 5) as plain:
                plain.settimeout(PATIENCE_S)
                _Client(rng, context, plain, proxied=proxied).talk(rng.choice(kinds))

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(attack, range(CLIENTS)))


class _Watch:
    """Measures pings, and how long the event loop can have been held during each.

    Attributes:
        times_s: of the pings.
        holds_s: of the processor's time that the server's thread used meanwhile (Linux's schedstat): a ping that waited
            because other processes ran is no hold.
    """

    def __init__(self, wire: Wire, pid: int) -> None:
        self._wire, self._schedule = wire, Path(f"/proc/{pid}/task/{pid}/schedstat")
        self.times_s, self.holds_s = list[float](), list[float]()

    def ping(self) -> None:
        """Measure one ping, and pause."""
        used, began = self._used_ns(), time.perf_counter()
        self._wire.ping()
        took = time.perf_counter() - began
        self.times_s.append(took)
        self.holds_s.append(min(took, (self._used_ns() - used) / 1e9))
        time.sleep(0.002)

    def _used_ns(self) -> int:
        return int(self._schedule.read_text().split()[0])


@contextmanager
def _attacked(
    server: Server, count: int, *, proxied: bool, seed: str
) -> Iterator[list[multiprocessing.process.BaseProcess]]:
    make = multiprocessing.get_context("spawn").Process
    attackers = [
        make(target=_attack, args=(server.address, server.certificates, proxied, f"{seed} {number}", count))
        for number in range(PROCESSES)
    ]
    for attacker in attackers:
        attacker.start()
    try:
        yield list(attackers)
    finally:
        for attacker in attackers:
            attacker.kill()
            attacker.join()


@pytest.mark.parametrize(
    "settings", [pytest.param(each, marks=pytest.mark.heavy if number else ()) for number, each in enumerate(CONFIG)]
)
def test_garbage_harms_nobody_else(start_server: StartServer, settings: str) -> None:
    server = start_server(config=CONFIG[settings], jetstream=False)
    secure = Secure(client_context(server.certificates, "ann"))
    process = psutil.Process(_pid(server))
    count = max(ROUNDS // len(CONFIG) // PROCESSES, 1)
    with Wire(server.address, secure=secure, timeout=20) as wire:
        watch, memory = _Watch(wire, process.pid), 0
        with _attacked(server, count, proxied=settings == "proxy", seed=f"{SEED} {settings}") as attackers:
            while any(attacker.is_alive() for attacker in attackers) or len(watch.times_s) < 200:
                watch.ping()
                memory = memory or process.memory_info().rss
                if len(watch.times_s) % 500 == 0:  # before lines are forgotten (LOG_LINES_KEPT)
                    _check_log(server)
            assert [attacker.exitcode for attacker in attackers] == [0] * PROCESSES
        grown = process.memory_info().rss - memory
    marks = statistics.quantiles(watch.times_s, n=1000)
    print(f"{count * PROCESSES} connections; {len(watch.times_s)} pings, p99 {marks[989] * 1e3:.1f} ms,", end=" ")
    print(f"p99.9 {marks[998] * 1e3:.1f} ms, longest {max(watch.times_s) * 1e3:.1f} ms;", end=" ")
    print(f"longest hold {max(watch.holds_s) * 1e3:.1f} ms; memory grew by {grown >> 20} MiB")
    assert server.running
    _check_log(server)
    assert grown < MOST_MEMORY
    assert ROUNDS < CAMPAIGN or max(watch.holds_s) < HOLD_LIMIT_S
    with Wire(server.address, secure=secure) as again:
        assert again.ping() == []


def _check_log(server: Server) -> None:
    log = server.log(LOG_LINES_KEPT)
    assert "Traceback" not in log
    assert "internal error" not in log
    assert "Task exception" not in log


def _pid(server: Server) -> int:
    assert server.process is not None
    return server.process.pid
