#!/usr/bin/env python3
"""Measure operations on whole streams, and the longest wait of other clients meanwhile; beside nats-server.

    python -m tests.bench.bench_loop [purge] [filter] [keep] [filter-keep] [consumer] [info] [age] [lower] [delete]
                                     [restart] [--messages 1000000] [--subjects 100000] [--many 300000]
                                     [--against real]

purge, filter, keep, filter-keep: STREAM.PURGE of everything, of all subjects by a wildcard, of all but 1000, of all but
          1000 by a wildcard.
age, lower: an update of max_age or max_msgs at which all messages (but 1000) go at once.
delete:   STREAM.DELETE.
restart:  stop and start, kill and start: until the stream is there.
consumer, info: a consumer with deliver policy last_per_subject, made and asked for its first message; STREAM.INFO with
          the subjects, all pages; on `--many` subjects.

A pause is the longest time that a connection which does nothing but PING waited for its PONG.

Figures: docs/benchmarks.md#operations-on-whole-streams
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.bench.bench_scale import used
from tests.bench.bench_subjects import BLOCK, WINDOW
from tests.servers import Kind, Server
from tests.wire import Wire, pub

PAYLOAD = b"x" * 100
KEPT = 1000
LONG_S = 600.0
NS = 1_000_000_000


def main() -> int:
    """Run the measurements of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=[*PARTS, "restart", "consumer", "info"])
    parser.add_argument("--messages", type=int, default=1_000_000, help="(default: 1 million)")
    parser.add_argument("--subjects", type=int, default=100_000, help="(default: 100,000)")
    parser.add_argument("--many", type=int, default=300_000, help="subjects for consumer and info (default: 300,000)")
    parser.add_argument("--against", choices=["lakestream", "real"], default="lakestream", help="(default: lakestream)")
    options = parser.parse_args()
    kind = Kind.REAL if options.against == "real" else Kind.OURS
    with tempfile.TemporaryDirectory(prefix="bench-loop-") as directory:
        server = Server(kind, Path(directory) / "data")
        server.start(timeout=LONG_S)
        try:
            for part in options.parts:
                if part in PARTS:
                    fill(server, options.messages, options.subjects, quiet=part != options.parts[0])
                    measure(server, part)
            if "restart" in options.parts:
                fill(server, options.messages, options.subjects, quiet=True)
                restart(server)
            if "consumer" in options.parts or "info" in options.parts:
                fill(server, options.many, options.many, quiet=True)
                ask(server, options.parts, options.many)
        finally:
            server.kill()
    return 0


def fill(server: Server, messages: int, subjects: int, *, quiet: bool) -> None:
    """Create the stream BIG anew and publish `messages` messages, on the subjects in turn."""
    with Wire(server.address, timeout=LONG_S) as wire:
        wire.api("STREAM.DELETE.BIG", timeout=LONG_S)
        answer = wire.api("STREAM.CREATE.BIG", {"name": "BIG", "subjects": ["big.>"], "allow_direct": True})
        assert "error" not in answer, answer
        with pause(server, f"{messages} messages on {subjects} subjects", quiet=quiet):
            waiting: list[str] = []
            for first in range(0, messages, BLOCK):
                numbers = [number % subjects for number in range(first, first + BLOCK)]
                names = [b"big.%d.%07d" % (number % 7, number) for number in numbers]
                blocks = [b"PUB %b %d\r\n%b\r\n" % (name, len(PAYLOAD), PAYLOAD) for name in names[:-1]]
                waiting.append(wire.new_reply())
                wire.send(b"".join(blocks) + pub(names[-1].decode(), PAYLOAD, waiting[-1]))
                if len(waiting) == WINDOW:
                    wire.message(waiting.pop(0))
            waiting.append(wire.new_reply())
            wire.send(pub("big.other", PAYLOAD, waiting[-1]))  # a filter does not match it
            for reply in waiting:
                wire.message(reply)
        state = wire.api("STREAM.INFO.BIG", timeout=LONG_S)["state"]
        assert state["messages"] == messages + 1, state


def measure(server: Server, part: str) -> None:
    """Run one operation on the full stream to its end."""
    with Wire(server.address, timeout=LONG_S) as wire:
        time.sleep(1)  # let the background work of the fill finish
        config = wire.api("STREAM.INFO.BIG", timeout=LONG_S)["config"]
        with pause(server, part):
            PARTS[part](wire, config)


def _purge(body: dict[str, object], wire: Wire, _: dict[str, object]) -> None:
    answer = wire.api("STREAM.PURGE.BIG", body, timeout=LONG_S)
    assert answer.get("success"), answer


def _update(change: dict[str, object], left: int, wire: Wire, config: dict[str, object]) -> None:
    answer = wire.api("STREAM.UPDATE.BIG", {**config, **change}, timeout=LONG_S)
    assert "error" not in answer, answer
    while wire.api("STREAM.INFO.BIG", timeout=LONG_S)["state"]["messages"] > left:
        pass


def _delete(wire: Wire, _: dict[str, object]) -> None:
    answer = wire.api("STREAM.DELETE.BIG", timeout=LONG_S)
    assert answer.get("success"), answer


PARTS: dict[str, Callable[[Wire, dict[str, object]], None]] = {
    "purge": partial(_purge, {}),
    "filter": partial(_purge, {"filter": "big.*.*"}),
    "keep": partial(_purge, {"keep": KEPT}),
    "filter-keep": partial(_purge, {"filter": "big.*.*", "keep": KEPT}),
    "lower": partial(_update, {"max_msgs": KEPT}, KEPT),
    "age": partial(_update, {"max_age": NS // 2, "duplicate_window": NS // 2}, 0),
    "delete": _delete,
}


def restart(server: Server) -> None:
    """Stop and start the server, kill and start it."""
    for how in (partial(server.stop, timeout=LONG_S), server.kill):
        began = time.perf_counter()
        how()
        stopped = time.perf_counter()
        server.start(timeout=LONG_S)
        with Wire(server.address, timeout=LONG_S) as wire:
            wire.api("STREAM.INFO.BIG", timeout=LONG_S)
        took = time.perf_counter() - stopped
        name = "kill" if how == server.kill else "stop"
        print(f"  {name}: {stopped - began:.2f} s, until the stream is there: {took:.2f} s", flush=True)


def ask(server: Server, parts: list[str], subjects: int) -> None:
    """Run the operations that visit every subject."""
    with Wire(server.address, timeout=LONG_S) as wire:
        if "consumer" in parts:
            for turn in ("first", "second"):
                config = {"name": turn, "deliver_policy": "last_per_subject", "ack_policy": "none"}
                config |= {"filter_subject": "big.>"}
                request = {"stream_name": "BIG", "config": config}
                with pause(server, f"consumer last_per_subject, {turn}"):
                    answer = wire.api(f"CONSUMER.CREATE.BIG.{turn}.big.>", request, timeout=LONG_S)
                    assert answer.get("num_pending") == subjects + 1, answer
                    reply = wire.new_reply()
                    wire.send(pub(f"$JS.API.CONSUMER.MSG.NEXT.BIG.{turn}", b"{}", reply))
                    wire.delivered(wire.inbox_sid)
        if "info" in parts:
            for turn in ("first", "second"):
                with pause(server, f"STREAM.INFO with all subjects, {turn}"):
                    found = 0
                    while found < subjects:
                        body = {"subjects_filter": ">", "offset": found}
                        answer = wire.api("STREAM.INFO.BIG", body, timeout=LONG_S)
                        found += len(answer["state"]["subjects"])


@contextmanager
def pause(server: Server, what: str, *, quiet: bool = False) -> Iterator[None]:
    """Print the duration of an operation, and the longest round trip of another connection meanwhile."""
    longest, ready, over = 0.0, threading.Event(), threading.Event()

    def ping() -> None:
        nonlocal longest
        with Wire(server.address, timeout=LONG_S) as other:
            other.ping()
            ready.set()
            while not over.is_set():
                began = time.perf_counter()
                other.ping()
                longest = max(longest, time.perf_counter() - began)
                over.wait(0.002)  # without this pause it would take a core from what is measured

    thread = threading.Thread(target=ping)
    thread.start()
    ready.wait()
    began, before = time.perf_counter(), used(server)
    try:
        yield
    finally:
        took, spent = time.perf_counter() - began, used(server) - before
        over.set()
        thread.join()
    if not quiet:
        print(f"  {what}: {took:.3f} s, pause {longest * 1e3:.0f} ms, {spent:.2f} s of processor time", flush=True)


if __name__ == "__main__":
    sys.exit(main())
