"""The quiet client: a few publishes, requests and new connections a second, and how long each took.

Belongs here: a process of its own, with real-time priority where that is allowed, so that a flooding process on the
same core does not delay it. Operations begin at fixed times, whether those before have ended or not.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from tests.wire import Closed, Secure, Wire, WireTimeout

RATE = 40
"""Publishes a second, and as many requests."""
DIAL_RATE = 2
"""New connections a second."""
PATIENCE_S = 10.0
"""An operation that takes longer has failed, and counts as long."""
STREAM = "QUIET"


class Took(NamedTuple):
    """One operation: its kind, the time at which it was due (monotonic, s), and how long it took (s)."""

    kind: str
    at: float
    seconds: float


class Quiet:
    """The running quiet client of a server.

    Args:
        address: host and port.
        login: fields of its CONNECT.
        core: the processor that it uses.
        authority: certificate of the server's authority; None: plain text.
        replicas: of its stream.
    """

    def __init__(
        self, address: tuple[str, int], login: dict[str, Any], core: int, authority: Path | None, replicas: int = 1
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        self._results, theirs = context.Pipe(duplex=False)
        arguments = (address, login, core, authority, replicas, self._stop, theirs)
        self._process = context.Process(target=_run, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        assert self._results.recv() == "ready"

    def end(self) -> list[Took]:
        """Stop it; return everything that it did."""
        self._stop.set()
        took: list[Took] = [Took(*each) for each in self._results.recv()]
        self._process.join()
        return took


def _run(
    address: tuple[str, int],
    login: dict[str, Any],
    core: int,
    authority: Path | None,
    replicas: int,
    stop: Any,
    results: Connection,
) -> None:
    os.sched_setaffinity(0, {core})
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    secure = None
    if authority is not None:
        import ssl

        secure = Secure(ssl.create_default_context(cafile=str(authority)))

    def connected() -> Wire:
        return Wire(address, login, PATIENCE_S, secure=secure)

    publisher, asker, answerer = connected(), connected(), connected()
    publisher.api(f"STREAM.CREATE.{STREAM}", {"name": STREAM, "subjects": ["quiet.stored"], "num_replicas": replicas})
    answerer.subscribe("quiet.asked")
    answerer.ping()
    took: list[Took] = []

    def answer() -> None:
        while not stop.is_set():
            with contextlib.suppress(WireTimeout):
                asked = answerer.next(timeout=0.5)
                answerer.publish(asked.reply, asked.data)

    def ask(kind: str, wire: Wire, subject: str) -> None:
        """Publish at fixed times, whether the answers before have come or not."""
        wire.new_reply()
        due = time.monotonic()
        waiting: dict[str, float] = {}
        with contextlib.suppress(Closed, OSError):
            while not stop.is_set():
                if time.monotonic() >= due:
                    reply = wire.new_reply()
                    waiting[reply] = due
                    wire.publish(subject, b"x" * 100, reply)
                    due += 1 / RATE
                with contextlib.suppress(WireTimeout):
                    reply = wire.next(timeout=max(0.0005, due - time.monotonic())).subject
                    if reply in waiting:
                        took.append(Took(kind, waiting[reply], time.monotonic() - waiting.pop(reply)))
        ended = time.monotonic()
        took.extend(Took(kind, at, ended - at) for at in waiting.values() if ended - at > 1 / RATE)

    def dial() -> None:
        due = time.monotonic()
        while not stop.is_set():
            due += 1 / DIAL_RATE
            time.sleep(max(0.0, due - time.monotonic()))
            began = time.monotonic()
            with contextlib.suppress(WireTimeout, Closed, OSError), connected() as wire:
                wire.ping()
            took.append(Took("connect", began, time.monotonic() - began))

    threads = [
        threading.Thread(target=ask, args=("publish", publisher, "quiet.stored"), daemon=True),
        threading.Thread(target=ask, args=("request", asker, "quiet.asked"), daemon=True),
        threading.Thread(target=answer, daemon=True),
        threading.Thread(target=dial, daemon=True),
    ]
    for thread in threads:
        thread.start()
    results.send("ready")
    stop.wait()
    for thread in threads:
        thread.join()
    results.send([tuple(each) for each in took])
