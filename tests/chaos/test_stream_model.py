"""Tests of a server's stream against its model, under the same random operations, restarts and kills.

The short form of tests/unit/stream/core/test_stream_model.py with real processes, sockets and disks. With `--against
real` nats-server is compared with the model, which shows that the model is right; it is neither stopped nor killed,
because a restarted nats-server forgets the message ids of removed messages, and a killed one brings removed messages
back. LAKESTREAM_MODEL_ROUNDS sets the number of streams (4), LAKESTREAM_MODEL_SEED repeats the choices of a run that
failed; the failure's message contains both.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.chaos.model_round import Round
from tests.conftest import StartServer
from tests.servers import Kind

pytestmark = pytest.mark.chaos

ROUNDS = int(os.environ.get("LAKESTREAM_MODEL_ROUNDS", "4"))
SEED = int(os.environ.get("LAKESTREAM_MODEL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
STEPS = 120
SMALL_SEGMENTS = "lake { seal_bytes: 8k, seal_age: 1s }"


def test_a_stream_is_what_the_model_says(start_server: StartServer, kind: Kind) -> None:
    server = start_server(config=SMALL_SEGMENTS if kind is Kind.OURS else None)
    for number in range(ROUNDS):
        name = f"S{number}"
        playing = Round(server, name, f"{SEED}-{number}")
        for done in range(STEPS):
            try:
                playing.step()
            except Exception as error:
                pytest.fail(
                    f"LAKESTREAM_MODEL_SEED={SEED} LAKESTREAM_MODEL_ROUNDS={ROUNDS}, step {done} of {name}:\n"
                    f"{playing.told(error)}",
                    pytrace=False,
                )
        playing.compare(whole=True)
        playing.wire.close()
