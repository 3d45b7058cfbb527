"""`python -m tests.sim.everywhere`: damage of two or of all three members of a group at once.

Belongs here: one such case and the counts of many. After some seconds of work all processes end, the logs of two or
three members are damaged at random places (a bit turns, or a segment is cut), and all start again. The checkers of
checks.py look for silent loss (a leader without an entry that was committed, a log that comes back shorter and does not
say so) and for what comes back from the dead; a group may stop, if the members that stop it say that they are damaged.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from random import Random

import msgspec

from tests.sim.checks import Violation
from tests.sim.events import MS, S
from tests.sim.runner import small
from tests.sim.world import World, plan_of

MEMBERS = 3
WORK_S = (3, 8)
CALM_S = 25
PROGRESS_S = 30.0


def damage_everywhere(seed: int) -> str:
    """Return the outcome of a seed: "whole" or "stopped", with the number of damaged members.

    Raises:
        Violation: acked entries are missing and nobody says so, or something else that the checkers look for.
    """
    logging.disable(logging.CRITICAL)  # the damages are intended
    random = Random(f"everywhere {seed}")
    plan = msgspec.structs.replace(
        plan_of(seed, "group"), nodes=MEMBERS, spare=0, damage=False, changes=False, rollbacks=False, acts=()
    )
    world = World(plan)
    try:
        with small(plan):
            return _case(world, random)
    finally:
        logging.disable(logging.NOTSET)


def _case(world: World, random: Random) -> str:
    for machine in world.machines.values():
        machine.start()
    world.work()
    world.events.run_until(random.randrange(*WORK_S) * S)
    world.calm = True
    victims = random.sample(world.names, random.choice((2, MEMBERS)))
    for machine in world.machines.values():
        machine.end(power=False)
    damaged = sum(world.machines[name].host.damage(random) for name in victims)
    for name in world.names:
        world.start(name)
    end = world.events.now + CALM_S * S
    written = False
    while world.events.now < end and not (written and world.agreed()):
        world.events.run_until(world.events.now + 500 * MS)
        world.nemesis.repair()
        written = written or world.write([world.next_command()])
    if written and world.agreed():
        missing = world.checker.acked - world.checker.places.keys()
        if missing:
            raise Violation(f"acknowledged and gone: {sorted(missing)}")
        return f"whole, {damaged} damaged"
    processes = [machine.process for machine in world.machines.values()]
    recovering = sum(process is not None and process.recovering for process in processes)
    if 2 * recovering <= MEMBERS:
        raise Violation(f"stopped with {recovering} members that say that they are damaged: {world.describe()}")
    return f"stopped, {damaged} damaged"


def main() -> int:
    """Run the cases; return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.everywhere", description="Damage of all members.")
    parser.add_argument("--seed", type=int, default=1, help="the first one (default 1)")
    parser.add_argument("--seeds", type=int, default=10_000, help="how many (default 10000)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    args = parser.parse_args()
    began = said = time.monotonic()
    counts: Counter[str] = Counter()
    failed = 0
    with ProcessPoolExecutor(args.jobs) as pool:
        seeds = range(args.seed, args.seed + args.seeds)
        for seed, outcome in zip(seeds, pool.map(_outcome, seeds, chunksize=8), strict=True):
            counts[outcome] += 1
            if not outcome.startswith(("whole", "stopped")):
                failed += 1
                print(f"seed {seed}: {outcome}", flush=True)
            if time.monotonic() - said > PROGRESS_S:
                said = time.monotonic()
                print(f"  {counts.total():,} of {args.seeds:,}, {failed} failed", flush=True)
    what = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(counts.items()))
    print(f"{counts.total():,} cases in {time.monotonic() - began:.0f} s, {failed} failed: {what}")
    return 1 if failed else 0


def _outcome(seed: int) -> str:
    try:
        return damage_everywhere(seed)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
