"""Time and chance of the whole process while a simulation runs.

Belongs here: what servers take from the interpreter instead of their machine: the `time` module (monitoring, links
between nodes, statistics), numbers without a seed (names, nonces, jitter), the modules' own generators. All of it comes
from virtual time and the seed, so that a seed is the whole run.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any, Protocol
from unittest.mock import patch

import msgspec
from nacl import bindings

from lakestream.protocol.nkeys import CurveKey
from tests.sim.events import EPOCH, Events


class Place(Protocol):
    """A machine.

    Attributes:
        address: in the network.
        offset_ns: error of its wall clock.
        files: of the process; None: it has none.
    """

    address: str
    offset_ns: int
    files: Any


class Bare(msgspec.Struct):
    """A machine without a store, whose clock is right."""

    address: str = ""
    offset_ns: int = 0
    files: Any = None


class Current:
    """The `machine` whose turn it is."""

    def __init__(self) -> None:
        self.machine: Place = Bare()

    def turn(self, machine: Place) -> None:
        """Begin the turn of a machine."""
        self.machine = machine


@contextmanager
def surroundings(events: Events, current: Current, seed: str) -> Iterator[None]:
    """Replace time and chance by those of the simulation for the duration of the block."""
    chance = Random(f"chance {seed}")
    real = Random

    class Seeded(real):
        """`random.Random`, which without a seed takes one from the simulation's."""

        def __init__(self, x: object = None) -> None:
            super().__init__(chance.getrandbits(64) if x is None else x)  # type: ignore[arg-type]

    def wall() -> int:
        return EPOCH + events.now + current.machine.offset_ns

    def steady() -> int:
        return EPOCH + events.now

    def curve_key() -> CurveKey:
        public, private = bindings.crypto_box_seed_keypair(chance.randbytes(bindings.crypto_box_SEEDBYTES))
        return CurveKey("X" + public.hex(), private)

    state = random.getstate()
    replaced: dict[str, Callable[..., object]] = {
        "time.time_ns": wall,
        "time.time": lambda: wall() / 1e9,
        "time.monotonic_ns": steady,
        "time.monotonic": lambda: steady() / 1e9,
        "time.perf_counter_ns": steady,
        "time.perf_counter": lambda: steady() / 1e9,
        "os.urandom": chance.randbytes,
        "random._urandom": chance.randbytes,
        "random.Random": Seeded,
        "lakestream.meta.cluster.Random": Seeded,
        "lakestream.server.logins.new_curve_key": curve_key,
        "lakestream.server.node.trim": lambda: False,  # of the whole process, at each start of a server
    }
    assert time.time_ns is not wall
    with ExitStack() as stack:
        for name, value in replaced.items():
            stack.enter_context(patch(name, value))
        random.seed(f"global {seed}")
        try:
            yield
        finally:
            random.setstate(state)
