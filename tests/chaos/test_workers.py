"""Tests of SIGKILL of single worker processes under load: what was acked stays, and clients go on at the same address.

Number of kills: LAKESTREAM_WORKER_KILLS (6).
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import pytest

from tests.conformance.test_workers import pids, until
from tests.conftest import StartServer
from tests.servers import Server
from tests.wire import Closed, Wire, WireTimeout

pytestmark = pytest.mark.chaos

KILLS = int(os.environ.get("LAKESTREAM_WORKER_KILLS", "6"))
STREAMS = CLIENTS = 4


class Publisher:
    """Publishes numbered messages to all streams in turn until it is told to stop; repeats what was not acked.

    Attributes:
        acked: the numbers that were acked, by stream.
    """

    def __init__(self, server: Server, number: int) -> None:
        self._server, self._number = server, number
        self.acked: list[list[int]] = [[] for _ in range(STREAMS)]
        self.stop = threading.Event()
        self.reconnects = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                try:
                    with Wire(self._server.address, timeout=5) as wire:
                        self._publish(wire)
                except (Closed, OSError, WireTimeout):
                    self.reconnects += 1
        except BaseException as error:
            self.failure = error

    def _publish(self, wire: Wire) -> None:
        while not self.stop.is_set():
            for stream, acked in enumerate(self.acked):
                body = b"%d %d" % (self._number, len(acked))
                answer = wire.request(f"s{stream}.{self._number}", body, {"Nats-Msg-Id": body.decode()}, timeout=2)
                if answer.data and "seq" in answer.json():
                    acked.append(len(acked))
                else:
                    time.sleep(0.01)  # no responders: the stream's worker is restarting


def test_killed_workers_lose_nothing_that_was_acked(start_server: StartServer) -> None:
    choice = random.Random(7)
    server = start_server(args=["--workers", "2"], config="lake { seal_bytes: 200k, seal_age: 1s }")
    with Wire(server.address) as wire:
        for stream in range(STREAMS):
            wire.api(f"STREAM.CREATE.S{stream}", {"name": f"S{stream}", "subjects": [f"s{stream}.*"]})
    publishers = [Publisher(server, number) for number in range(CLIENTS)]
    threads = [threading.Thread(target=each.run) for each in publishers]
    for thread in threads:
        thread.start()
    for _ in range(KILLS):
        time.sleep(choice.uniform(0.1, 0.6))
        before = pids(server)
        os.kill(choice.choice(before), signal.SIGKILL)
        until(lambda before=before: len(pids(server)) == 2 and pids(server) != before, "a worker is restarted")
    acked = sum(len(each) for publisher in publishers for each in publisher.acked)

    def going_on() -> bool:
        return sum(len(each) for publisher in publishers for each in publisher.acked) > acked + 50

    until(going_on, "publishers go on")
    for publisher, thread in zip(publishers, threads, strict=True):
        publisher.stop.set()
        thread.join(30)
        assert publisher.failure is None
    with Wire(server.address, timeout=15) as wire:
        for stream in range(STREAMS):
            state = wire.api(f"STREAM.INFO.S{stream}", {"subjects_filter": ">"})["state"]
            for publisher in publishers:
                wanted = len(publisher.acked[stream])
                # Besides, the last one may be stored without its ack having arrived.
                assert wanted <= state["subjects"][f"s{stream}.{publisher._number}"] <= wanted + 1
