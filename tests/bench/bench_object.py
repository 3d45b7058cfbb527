"""Measure a large object in an object store, and the server's memory for it.

    python -m tests.bench.bench_object [--mib 1024] [--chunk-kib 128] [--kind ours|real]

The object is put as clients do it (chunks with acks, then the meta), read through an ordered consumer and its digest
checked, read again after a restart, and its chunks purged. The server is a process of its own; its resident memory is
looked at every 20 ms, and its growth over what it was before is what counts. CPU seconds are the server's. The client
keeps no more than a window of chunks.

Figures: docs/object-store.md, docs/benchmarks.md#start-and-memory
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from tests.servers import Kind, Server
from tests.wire import Wire, pub

WINDOW = 64
"""Maximum number of unacked chunks."""
LOOK_S = 0.02
META = "$O.big.M.b2JqZWN0"
STORE = {"name": "OBJ_big", "subjects": ["$O.big.C.>", "$O.big.M.>"], "discard": "new", "storage": "file"}
SWITCHES = {"allow_rollup_hdrs": True, "allow_direct": True}


class Watched:
    """Resident memory and CPU of a process during the block."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.before = self.peak = self._process.memory_info().rss
        self.cpu = self.took = 0.0

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            self.peak = max(self.peak, self._process.memory_info().rss)

    def _spent(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def __enter__(self) -> Watched:
        self.cpu, self.took = self._spent(), time.perf_counter()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cpu, self.took = self._spent() - self.cpu, time.perf_counter() - self.took
        self._over.set()
        self._thread.join()


def chunks(total: int, size: int) -> Iterator[bytes]:
    """Yield chunks that differ from each other and hardly compress."""
    block = hashlib.shake_256(b"lakestream").digest(size)
    for number in range(total // size):
        yield number.to_bytes(8, "big") + block[8:]


def put(wire: Wire, nuid: str, total: int, size: int) -> str:
    """Upload the object; return the digest."""
    digest, waiting = hashlib.sha256(), deque[str]()
    for chunk in chunks(total, size):
        digest.update(chunk)
        reply = wire.new_reply()
        wire.send(pub(f"$O.big.C.{nuid}", chunk, reply))
        waiting.append(reply)
        if len(waiting) == WINDOW:
            _acked(wire, waiting.popleft())
    while waiting:
        _acked(wire, waiting.popleft())
    found = f"SHA-256={base64.urlsafe_b64encode(digest.digest()).decode()}"
    meta = {"name": "object", "bucket": "big", "nuid": nuid, "size": total, "chunks": total // size, "digest": found}
    answer = wire.request(META, json.dumps(meta).encode(), {"Nats-Rollup": "sub"}).json()
    assert "error" not in answer, answer
    return found


def _acked(wire: Wire, reply: str) -> None:
    answer = wire.message(reply).json()
    assert "error" not in answer, answer


def get(address: tuple[str, int]) -> tuple[int, str]:
    """Read the object as clients do; return its size and digest, after comparing them with its metadata."""
    with Wire(address, timeout=120) as wire:
        stored = wire.request(f"$JS.API.DIRECT.GET.OBJ_big.{META}")
        meta = stored.json()
        sid = wire.subscribe("to.me")
        config: dict[str, Any] = {
            "name": f"reader{time.time_ns()}",
            "deliver_subject": "to.me",
            "deliver_policy": "all",
            "ack_policy": "none",
            "max_deliver": 1,
            "flow_control": True,
            "idle_heartbeat": 5_000_000_000,
            "mem_storage": True,
            "num_replicas": 1,
            "filter_subject": f"$O.big.C.{meta['nuid']}",
        }
        subject = f"CONSUMER.CREATE.OBJ_big.{config['name']}.{config['filter_subject']}"
        answer = wire.api(subject, {"stream_name": "OBJ_big", "config": config, "action": "create"})
        assert "error" not in answer, answer
        digest, size = hashlib.sha256(), 0
        while size < meta["size"]:
            frame = wire.delivered(sid)
            if frame.status == 100:
                target = frame.reply or frame.headers.get("Nats-Consumer-Stalled", "")
                if target:
                    wire.publish(target)
                continue
            digest.update(frame.data)
            size += len(frame.data)
        found = f"SHA-256={base64.urlsafe_b64encode(digest.digest()).decode()}"
        assert found == meta["digest"], "the digest differs"
        return size, found


def _report(what: str, seen: Watched, total: int) -> None:
    mib = 1 << 20
    print(
        f"{what:<22} {total / mib / seen.took:>8.0f} MiB/s   {seen.cpu / (total / (1 << 30)):>6.2f} CPU s/GiB   "
        f"rss {seen.before / mib:>5.0f} MiB, at most {(seen.peak - seen.before) / mib:>+5.0f} MiB",
        flush=True,
    )


def run(server: Server, total: int, size: int) -> None:
    """Put, get, replace, and get again after a restart."""
    server.start()
    with Wire(server.address, timeout=120) as wire:
        assert "error" not in wire.api("STREAM.CREATE.OBJ_big", STORE | SWITCHES)
        put(wire, "small", 10 * size, size)  # exclude the cost of the first object of any size
        get(server.address)
        assert server.process is not None
        with Watched(server.process.pid) as seen:
            put(wire, "large", total, size)
        _report("put", seen, total)
        with Watched(server.process.pid) as seen:
            get(server.address)
        _report("get", seen, total)
    server.stop(timeout=120)
    server.start(timeout=120)
    assert server.process is not None
    with Watched(server.process.pid) as seen:
        get(server.address)
    _report("get after a restart", seen, total)
    with Wire(server.address, timeout=120) as wire, Watched(server.process.pid) as seen:
        answer = wire.api("STREAM.PURGE.OBJ_big", {"filter": "$O.big.C.large"})
        assert answer.get("purged") == total // size, answer
    _report("purge", seen, total)
    server.stop(timeout=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--chunk-kib", type=int, default=128)
    parser.add_argument("--kind", choices=["ours", "real"], default="ours")
    arguments = parser.parse_args()
    size = arguments.chunk_kib << 10
    total = (arguments.mib << 20) // size * size
    kind = Kind.OURS if arguments.kind == "ours" else Kind.REAL
    with tempfile.TemporaryDirectory() as directory:
        run(Server(kind, Path(directory) / "store", name="bench"), total, size)


if __name__ == "__main__":
    main()
