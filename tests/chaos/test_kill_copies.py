"""Tests of SIGKILL while mirrors and sources copy: every message of an origin is in its copies exactly once.

Origins of both kinds (limits, work queue) get messages and deletes meanwhile; a mirror, a mirror of the mirror and a
stream with two sources and messages of its own copy them. The seed is printed; LAKESTREAM_KILL_SEED repeats its
choices. LAKESTREAM_COPY_KILLS (4) sets the number of kills.
"""

from __future__ import annotations

import os
import random
import threading
import time

import pytest

from tests.chaos.copies import SOON_S, Writer, check, wait_until_copied
from tests.conftest import StartServer
from tests.servers import Kind
from tests.wire import Wire

pytestmark = pytest.mark.chaos

KILLS = int(os.environ.get("LAKESTREAM_COPY_KILLS", "4"))
LONGEST_LIFE_S = 1.5
SMALL_SEGMENTS = "lake { seal_bytes: 100k, seal_age: 1s }"


def test_copies_survive_kills(start_server: StartServer) -> None:
    seed = int(os.environ.get("LAKESTREAM_KILL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"LAKESTREAM_KILL_SEED={seed}")
    rng = random.Random(seed)
    server = start_server(of=Kind.OURS, config=SMALL_SEGMENTS)
    writer = Writer(random.Random(rng.random()))
    with Wire(server.address) as wire:
        writer.prepare(wire)
    for _ in range(KILLS):
        thread = threading.Thread(target=writer.work, args=(server.address,))
        thread.start()
        time.sleep(rng.uniform(0.2, LONGEST_LIFE_S))
        server.kill()
        thread.join(SOON_S)
        assert not thread.is_alive()
        server.start()
    with Wire(server.address, timeout=SOON_S) as wire:
        wait_until_copied(wire.api)
        check(wire, writer.acked)
        print(f"{KILLS} kills, {wire.api('STREAM.INFO.S')['state']['last_seq']} messages with sources")
