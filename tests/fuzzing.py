"""Inputs that nobody should send, made from inputs that somebody may send.

Belongs here: the number of inputs and the seed of a campaign (`make chaos` draws many, with a random seed), changes of
bytes and texts, and how the time for an input grows with its size.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

ROUNDS = int(os.environ.get("LAKESTREAM_FUZZ_ROUNDS", "2000"))
"""Number of inputs."""

CAMPAIGN = 10_000
"""Number of inputs from which on processor times are checked, which are not reliable beside other tests."""

SEED = os.environ.get("LAKESTREAM_FUZZ_SEED", "1")
if SEED == "random":
    SEED = str(random.SystemRandom().randrange(1 << 32))
    print(f"LAKESTREAM_FUZZ_SEED={SEED}")

Text = TypeVar("Text", str, bytes)


def mutated(rng: random.Random, text: Text, others: Sequence[Text], *, changes: int = 4) -> Text:
    """Return a text after 0 up to `changes` changes: pieces cut out, doubled, moved, or taken from another text."""
    for _ in range(rng.randrange(changes + 1)):
        at, end = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        match rng.randrange(5):
            case 0:
                text = text[:at] + text[min(end, at + 8) :]
            case 1:
                text = text[:at] + text[at : at + 30] * rng.randrange(1, 4) + text[at:]
            case 2:
                text = text[:at] + text[end:] + text[at:end]
            case 3:
                other = rng.choice(others)
                start = rng.randrange(len(other) + 1)
                text = text[:at] + other[start : start + rng.randrange(1, 30)] + text[at:]
            case _:
                text = text[:at]
    return text


def growth(run: Callable[[int], object], size: int, *, times: int = 4, attempts: int = 7) -> float:
    """Return how many times more processor time `run` takes for `times` the size: 4 if it is linear, 16 if quadratic.

    The best of several attempts counts for each size, alternately, so that what else the machine does matters little.
    """
    best = [float("inf"), float("inf")]
    for _ in range(attempts):
        for at, each in enumerate((size, times * size)):
            began = time.process_time_ns()
            run(each)
            best[at] = min(best[at], time.process_time_ns() - began)
    return best[1] / max(best[0], 1)
