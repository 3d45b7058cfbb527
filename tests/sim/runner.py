"""Runs of seeds.

Belongs here: running one seed to its end, many seeds on several processes, and the report of a failed one.
"""

from __future__ import annotations

import logging
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from unittest.mock import patch

import msgspec

from lakestream.raft.core.core import Core
from tests.sim.acts import Act
from tests.sim.script import Step, scripted
from tests.sim.world import Plan, World, plan_of


class Outcome(msgspec.Struct):
    """Result of a seed: `failure` is "" if every property held, `acts` are faults and operations until then."""

    seed: int
    failure: str
    counts: dict[str, int]
    seconds: float
    trace: list[str]
    acts: list[Act]


def run_seed(
    seed: int,
    shell: str = "core",
    tracing: bool = False,
    core_class: type[Core] = Core,
    script: Sequence[Step] | None = None,
    plan: Plan | None = None,
) -> Outcome:
    """Run one seed, with the faults of a script if there is one, or a plan."""
    logging.disable(logging.CRITICAL)  # disk failures are intended
    began = time.perf_counter()
    if script is None:
        world = World(plan or plan_of(seed, shell), core_class, tracing)
    else:
        world = scripted(seed, shell, script, core_class, tracing)
    failure = ""
    try:
        with small(world.plan):
            world.run()
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        failure = f"{type(error).__name__} in {os.path.basename(at.filename)}:{at.lineno} {at.name}: {error}"
        world.say(failure)
    finally:
        logging.disable(logging.NOTSET)
    world.counts.update(
        committed=len(world.checker.committed), acked=len(world.checker.acked), terms=len(world.checker.leaders)
    )
    return Outcome(seed, failure, dict(world.counts), time.perf_counter() - began, world.trace, world.acts)


@contextmanager
def small(plan: Plan) -> Iterator[None]:
    """Lower the limits that a run of seconds would not reach."""
    with (
        patch("lakestream.raft.group.raft_group.RECENT_BYTES", plan.recent_bytes),
        patch("lakestream.raft.group.raft_group.LOAD_BYTES", plan.load_bytes),
        patch("lakestream.log.format.entries.MARK_BYTES", plan.mark_bytes),
    ):
        yield


def command(seed: int, shell: str) -> str:
    """Return the command that repeats a run."""
    return f"python -m tests.sim --shell {shell} --seed {seed} --seeds 1 --trace"


def run_seeds(
    seeds: Iterable[int], shell: str = "core", jobs: int = 1, script: Sequence[Step] | None = None
) -> Iterator[Outcome]:
    """Run the seeds on `jobs` processes; yield the outcomes in the order of the seeds."""
    if jobs == 1:
        for seed in seeds:
            yield run_seed(seed, shell, script=script)
        return
    with ProcessPoolExecutor(jobs) as pool:
        work: Callable[[int], Outcome] = _Run(shell, script)
        yield from pool.map(work, seeds, chunksize=4)


class _Run:
    def __init__(self, shell: str, script: Sequence[Step] | None) -> None:
        self.shell = shell
        self.script = script

    def __call__(self, seed: int) -> Outcome:
        return run_seed(seed, self.shell, script=self.script)
