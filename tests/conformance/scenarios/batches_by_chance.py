"""Random scenarios of atomic and fast batches, mixed with single messages and configuration updates.

A seed always gives the same steps. LAKESTREAM_CHANCE_SEEDS sets the number of seeds, which then start at a random one,
or at LAKESTREAM_CHANCE_FIRST.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

from tests.conformance.harness import Script, table
from tests.conformance.scenarios.atomic import LAST, LAST_SUBJECT, MSG_ID, OTHER_SUBJECT, ROLLUP, STREAM, M
from tests.conformance.scenarios.fast import APPEND, COMMIT, END, PING, START, F, Step, Talk, update

STEPS = 120
SEEDS = int(os.environ.get("LAKESTREAM_CHANCE_SEEDS", "0"))
FIRST = int(os.environ.get("LAKESTREAM_CHANCE_FIRST", "0")) or (random.SystemRandom().randrange(10**6) if SEEDS else 1)

SUBJECTS = ("a.1", "a.2", "a.3")
CONFIGS: tuple[dict[str, Any], ...] = (
    {},
    {"max_msgs": 7},
    {"max_msgs_per_subject": 2, "max_bytes": 2000},
    {"storage": "file", "max_bytes": 3000},
    {"discard": "new", "max_msgs": 30},
    {"max_msgs_per_subject": 3, "discard": "new", "discard_new_per_subject": True},
    {"max_msg_size": 250},
)
"""Configurations; those that refuse messages come last."""


class Chance:
    """Draws the steps."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.atomic = {"p": 1, "q": 1}
        self.fast = {"r": 1, "s": 1}
        self.gaps = seed % 2 == 0
        self.config = {"allow_rollup_hdrs": True, **self.rng.choice(CONFIGS[: 4 if self.gaps else None])}

    def _near(self, wanted: int) -> int:
        """Return the wanted sequence, or rarely one near it."""
        return max(0, wanted + self.rng.choice((0,) * 12 + (-1, 1, 2)))

    def _in_fast(self) -> dict[str, str]:
        """Draw the headers of a fast batch's member; a seed has either gaps or refusals.

        After a gap behind a refused message nats-server takes everything for the batch and does not answer any more.
        And it counts the members of a refused atomic batch as stored for a while, which Nats-Expected-Last-Sequence
        shows.
        """
        if self.gaps:
            return {MSG_ID: str(self.rng.randrange(12))} if self.rng.random() < 0.4 else {}
        conditions = self._conditions()
        conditions.pop(LAST, None)
        return conditions

    def _conditions(self) -> dict[str, str]:
        rng = self.rng
        if rng.random() < 0.6:
            return {}
        return rng.choice(
            (
                {MSG_ID: str(rng.randrange(12))},
                {ROLLUP: rng.choice(("sub", "sub", "all", "x"))},
                {STREAM: rng.choice(("S", "S", "T"))},
                {LAST: str(rng.randrange(40))},
                {LAST_SUBJECT: str(rng.randrange(12))},
                {LAST_SUBJECT: "0", OTHER_SUBJECT: rng.choice(("a.4", "a.*", "a.1"))},
                {MSG_ID: str(rng.randrange(12)), LAST_SUBJECT: str(rng.randrange(12))},
            )
        )

    def _atomic(self) -> M:
        rng = self.rng
        name = rng.choice("pq")
        seq = self._near(self.atomic[name])
        commit = rng.choice((None, None, None, "1", "eob")) if rng.random() < 0.95 else "x"
        self.atomic[name] = 1 if commit or seq != self.atomic[name] else seq + 1
        return M(seq, commit, self._conditions(), rng.choice(SUBJECTS), b"x" * rng.choice((1, 1, 1, 300)), name)

    def _fast(self) -> F:
        rng = self.rng
        name = rng.choice("rs")
        wanted = self.fast[name]
        seq = self._near(wanted) if self.gaps else wanted
        operation = START if seq == 1 else APPEND
        if rng.random() < 0.3:
            operation = rng.choice((COMMIT, END, PING, PING))
        self.fast[name] = wanted if operation == PING else 1 if operation in (COMMIT, END) else seq + 1
        mode = "ok" if name == "r" or (self.gaps and rng.random() < 0.2) else "fail"
        conditions = self._in_fast() if operation not in (END, PING) else {}
        return F(
            seq,
            operation,
            mode,
            rng.choice((1, 2, 5)),
            conditions or None,
            name,
            b"x" * rng.choice((1, 1, 1, 100)),
            rng.choice(SUBJECTS),
        )

    def steps(self) -> Iterator[M | Step]:
        """Yield all steps."""
        rng = self.rng
        for _ in range(STEPS):
            kind = rng.random()
            if kind < 0.45:
                yield self._atomic()
            elif kind < 0.85:
                yield self._fast()
            elif kind < 0.95:
                yield M(None, None, self._conditions(), rng.choice(SUBJECTS), id=None)
            elif kind < 0.98:
                yield lambda t: t.setup("STREAM.PURGE.S", {"keep": 1})
            else:
                off = rng.choice(("allow_atomic", "allow_batched"))
                yield update(**{"allow_atomic": True, "allow_batched": True, **self.config, off: False})
                yield update(allow_atomic=True, allow_batched=True, **self.config)


@table([(f"seed_{seed}", seed) for seed in range(FIRST, FIRST + (SEEDS or 6))], recorded=not SEEDS)
def batches_and_others(t: Script, seed: int) -> None:
    chance = Chance(seed)
    t.stream("S", ["a.*"], **{"allow_atomic": True, "allow_batched": True, **chance.config})
    talk = Talk(t)
    for step in chance.steps():
        if isinstance(step, M):
            t.publish(step.subject, step.data, step.headers or None)
        else:
            talk.send([step])
    state = t.state("S")["state"]
    for seq in range(state["first_seq"], state["last_seq"] + 1):
        t.api("STREAM.MSG.GET.S", {"seq": seq})
