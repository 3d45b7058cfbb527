"""A server's stream and a model of it are asked the same, at random, and hold the same after each step and each kill.

The short form of tests/unit/stream/core/test_stream_model.py, with real processes, sockets and disks, and the same
against nats-server (`--against real`), which shows that the model is right. That is neither stopped nor killed: a
restarted nats-server has forgotten the ids of messages that were removed, and a killed one brings removed messages
back. LAKESTREAM_MODEL_ROUNDS sets the number of streams (4), LAKESTREAM_MODEL_SEED repeats the choices of a run that
failed; both are in the failure's text.
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
