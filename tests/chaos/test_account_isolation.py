"""Tests of account isolation: streams of the same name and subjects in several accounts stay independent.

Three accounts of one server get random operations in random order, with restarts and kills of the server. A message,
deletion or update that reached another account's stream would make that stream differ from its model.
LAKESTREAM_MODEL_STEPS sets the number of steps (200), LAKESTREAM_MODEL_SEED repeats the choices of a run that failed.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.chaos.model_round import RESTARTS, Round
from tests.conftest import StartServer
from tests.servers import Kind

pytestmark = pytest.mark.chaos

STEPS = int(os.environ.get("LAKESTREAM_MODEL_STEPS", "200"))
SEED = int(os.environ.get("LAKESTREAM_MODEL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
USERS = ("a", "b", "c")
ACCOUNTS = """\
accounts {
  A { users: [{user: a, password: p}], jetstream: enabled }
  B { users: [{user: b, password: p}], jetstream: enabled }
  C { users: [{user: c, password: p}], jetstream: enabled }
}
"""
SMALL_SEGMENTS = "lake { seal_bytes: 8k, seal_age: 1s }\n"


def test_streams_of_one_name_keep_apart(start_server: StartServer, kind: Kind) -> None:
    server = start_server(config=ACCOUNTS + (SMALL_SEGMENTS if kind is Kind.OURS else ""))
    rng = random.Random(SEED)
    rounds = [Round(server, "S", f"{SEED}-{user}", user) for user in USERS]

    def end() -> None:
        """Restart or kill the server for all accounts."""
        if rng.random() < 0.3:
            for each in rounds:
                each.leave()
            server.stop()
            server.start()
            for each in rounds:
                each.come_back()
        else:
            for each in rounds:
                each.before_kill()
            server.kill()
            server.start()
            for each in rounds:
                each.after_kill()
        for each in rounds:
            each.compare(whole=True)

    for done in range(STEPS):
        one = rng.choice(rounds)
        try:
            if rng.random() < RESTARTS and kind is Kind.OURS:
                end()
            else:
                one.ask()
                rng.choice(rounds).compare(whole=False)
        except Exception as error:
            told = "\n".join(f"{user}: {each.told(error)}" for user, each in zip(USERS, rounds, strict=True))
            pytest.fail(f"LAKESTREAM_MODEL_SEED={SEED} LAKESTREAM_MODEL_STEPS={STEPS}, step {done}:\n{told}", False)
    for each in rounds:
        each.compare(whole=True)
        each.wire.close()
