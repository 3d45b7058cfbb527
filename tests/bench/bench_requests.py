"""Measure single requests: the client's waiting time, and the server's processor time.

    python -m tests.bench.bench_requests [--requests N] [--rounds N] [--only direct_get,kv_put]

Beside nats-server in its default mode (it does not sync), in turn, on empty stores. `alone`: one client, one request at
a time, as a caller sees it. `together`: many requests under way. Processor time is that of the whole server process,
threads and kernel included, so that what other programs do meanwhile hardly shows; times of the wall do show it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from tests.servers import Kind, Server
from tests.wire import Wire, pub

KEYS = 10_000
VALUE = b"v" * 128
WINDOW = 1000
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
BUCKET = {
    "name": "KV_b",
    "subjects": ["$KV.b.>"],
    "max_msgs_per_subject": 1,
    "discard": "new",
    "allow_rollup_hdrs": True,
    "deny_delete": True,
    "allow_direct": True,
}


class Figures(NamedTuple):
    """Figures of one kind of request, in µs: median wait, and processor time of each, alone and together."""

    wait: float
    alone: float
    together: float


class Counting:
    """Connection that counts answers instead of parsing them."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._wire = Wire(address, timeout=60)
        self.reply = self._wire.new_reply().rpartition(".")[0]
        self._wire.ping()
        self._socket = self._wire.socket
        self._socket.settimeout(60)
        self._mark = f"MSG {self.reply}.".encode()

    def api(self, subject: str, body: object = None) -> None:
        """Send an API request that must succeed."""
        answer = self._wire.api(subject, body, timeout=60)
        assert "error" not in answer, answer
        self._socket.settimeout(60)

    def one(self, frame: bytes) -> float:
        """Send one request; return the seconds until its answer begins to arrive."""
        began = time.perf_counter()
        self._socket.sendall(frame)
        got = b""
        while self._mark not in got or not got.endswith(b"\r\n"):
            got += self._socket.recv(1 << 16)
        return time.perf_counter() - began

    def many(self, frames: Iterable[bytes]) -> None:
        """Send all frames, with at most `WINDOW` unanswered."""
        waiting, rest = 0, b""
        group: list[bytes] = []
        for frame in frames:
            group.append(frame)
            if len(group) == WINDOW // 2:
                self._socket.sendall(b"".join(group))
                waiting += len(group)
                group = []
                while waiting >= WINDOW:
                    done, rest = self._answers(rest)
                    waiting -= done
        self._socket.sendall(b"".join(group))
        waiting += len(group)
        while waiting:
            done, rest = self._answers(rest)
            waiting -= done

    def _answers(self, rest: bytes) -> tuple[int, bytes]:
        """Read once; return the number of answers that began, and the bytes in which the next may begin."""
        got = rest + self._socket.recv(1 << 20)
        count = got.count(self._mark)
        tail = got[-(len(self._mark) - 1) :]
        return count, tail

    def close(self) -> None:
        """End it."""
        self._wire.close()


Frame = Callable[[int, str], bytes]


def _get(number: int, reply: str) -> bytes:
    return pub(f"$JS.API.DIRECT.GET.KV_b.$KV.b.key.{number * 7919 % KEYS}", b"", f"{reply}.{number}")


def _get_by_body(number: int, reply: str) -> bytes:
    body = b'{"last_by_subj":"$KV.b.key.%d"}' % (number * 7919 % KEYS)
    return pub("$JS.API.DIRECT.GET.KV_b", body, f"{reply}.{number}")


def _get_from_leader(number: int, reply: str) -> bytes:
    body = b'{"last_by_subj":"$KV.b.key.%d"}' % (number * 7919 % KEYS)
    return pub("$JS.API.STREAM.MSG.GET.KV_b", body, f"{reply}.{number}")


def _put(number: int, reply: str) -> bytes:
    return pub(f"$KV.b.key.{number % KEYS}", VALUE, f"{reply}.{number}")


def _create(number: int, reply: str) -> bytes:
    """Create an existing key: refused, as most creates of a lock are."""
    expected = {"Nats-Expected-Last-Subject-Sequence": "0"}
    return pub(f"$KV.b.key.{number % KEYS}", VALUE, f"{reply}.{number}", expected)


def _publish(number: int, reply: str) -> bytes:
    return pub(f"s.{number % 10}", VALUE, f"{reply}.{number}")


REQUESTS: dict[str, Frame] = {
    "direct_get": _get,
    "direct_get_by_body": _get_by_body,
    "msg_get": _get_from_leader,
    "kv_put": _put,
    "kv_create_refused": _create,
    "js_publish": _publish,
}


def _cpu_s(server: Server) -> float:
    """Return the processor time that a server has used, all its threads, user and kernel."""
    assert server.process is not None
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def measure(server: Server, names: Iterable[str], requests: int) -> dict[str, Figures]:
    """Measure each kind of request on a server with a stream of its own."""
    client = Counting(server.address)
    client.api("STREAM.CREATE.KV_b", BUCKET)
    client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.*"]})
    client.many(_put(number, client.reply) for number in range(KEYS))
    figures = {}
    for name in names:
        frame = REQUESTS[name]
        client.many(frame(number, client.reply) for number in range(1000))  # warm up
        before = _cpu_s(server)
        waits = [client.one(frame(number, client.reply)) for number in range(requests)]
        between = _cpu_s(server)
        together = 10 * requests
        client.many([frame(number, client.reply) for number in range(together)])
        after = _cpu_s(server)
        each = (between - before) / requests, (after - between) / together
        figures[name] = Figures(statistics.median(waits) * 1e6, each[0] * 1e6, each[1] * 1e6)
    client.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--requests", type=int, default=3000, help="of each kind, one at a time; ten times that together"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(REQUESTS))
    arguments = parser.parse_args()
    found: dict[Kind, list[dict[str, Figures]]] = {Kind.REAL: [], Kind.OURS: []}
    for _ in range(arguments.rounds):
        for kind, rounds in found.items():
            with tempfile.TemporaryDirectory() as directory:
                server = Server(kind, Path(directory) / "store").start()
                try:
                    rounds.append(measure(server, arguments.only, arguments.requests))
                finally:
                    server.kill()
    columns = ("wait p50", "cpu alone", "cpu together")
    print(f"{'µs':20}" + "".join(f"{column:>34}" for column in columns))
    print(f"{'':20}" + f"{'nats-server':>14}{'lakestream':>12}{'ratio':>8}" * 3)
    for name in arguments.only:
        line = f"{name:20}"
        for column in range(3):
            real, ours = (statistics.median(one[name][column] for one in found[kind]) for kind in found)
            line += f"{real:14.1f}{ours:12.1f}{ours / real if real else 0:8.2f}"
        print(line)


if __name__ == "__main__":
    main()
