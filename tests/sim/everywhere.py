"""`python -m tests.sim.everywhere`: damage of two or of all three members of a group at once.

Belongs here: one such case and the counts of many. After some seconds of work all processes end, the files of two or
three members are damaged, and all start again. The checkers of checks.py look for silent loss (a leader without an
entry that was committed, a log that comes back shorter and does not say so) and for what comes back from the dead; a
group may stop, if the members that stop it say that they are damaged. It may not stop if the entries that they have
left are all that was committed (`DAMAGES`).
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from random import Random

import msgspec

from lakestream.log.store.checkpoint import NAME as CHECKPOINT
from lakestream.raft.group.hard_state import NAME as KEPT
from tests.sim.checks import Violation
from tests.sim.events import MS, S
from tests.sim.group_node import GroupHost
from tests.sim.runner import small
from tests.sim.world import World, plan_of

MEMBERS = 3
WORK_S = (3, 8)
CALM_S = 25
AGREE_S = 5
BEHIND_S = 2
"""Time for which a member is down before all end, if it is to be behind."""
PROGRESS_S = 30.0
NEAR = 8
"""Entries before the newest one that are damaged on purpose."""


def damage_everywhere(seed: int, how: str = "") -> str:
    """Return the outcome of a seed: "whole" or "stopped", behind the kind of damage.

    Args:
        how: the kind of damage, one of `DAMAGES`; "": drawn from the seed.

    Raises:
        Violation: acked entries are missing and nobody says so, or something else that the checkers look for.
    """
    logging.disable(logging.CRITICAL)  # the damages are intended
    random = Random(f"everywhere {seed}")
    plan = msgspec.structs.replace(
        plan_of(seed, "group"), nodes=MEMBERS, spare=0, damage=False, changes=False, rollbacks=False, acts=()
    )
    world = World(plan)
    how = how or Random(f"damage {seed}").choice(sorted(DAMAGES))
    try:
        with small(plan):
            return f"{how}: {_case(world, random, how)}"
    finally:
        logging.disable(logging.NOTSET)


def _case(world: World, random: Random, how: str) -> str:
    for machine in world.machines.values():
        machine.start()
    world.work()
    world.events.run_until(random.randrange(*WORK_S) * S)
    if how == "behind":
        world.machines[world.names[0]].end(power=False)
        world.events.run_until(world.events.now + BEHIND_S * S)
    world.calm = True
    if how == "checkpoints":
        for machine in world.machines.values():
            if machine.process is not None:
                machine.run(machine.process, lambda process=machine.process: process.compact(random))  # type: ignore[misc]
    if how not in ("anything", "behind"):
        _until(world, AGREE_S, world.agreed)
    together = world.agreed() or how == "behind"
    for machine in world.machines.values():
        machine.end(power=False)
    must_be_whole = DAMAGES[how](world, random) and together
    for name in world.names:
        world.start(name)
        if how == "behind" and name == world.names[1]:
            world.events.run_until(world.events.now + AGREE_S * S)
    written = False

    def whole() -> bool:
        nonlocal written
        world.nemesis.repair()
        written = written or world.write([world.next_command()])
        return written and world.agreed()

    if _until(world, CALM_S, whole):
        missing = world.checker.acked - world.checker.places.keys()
        if missing:
            raise Violation(f"acknowledged and gone: {sorted(missing)}")
        return "whole"
    if must_be_whole:
        raise Violation(f"it stopped, and its members have everything: {world.describe()}")
    processes = [machine.process for machine in world.machines.values()]
    recovering = sum(process is not None and process.recovering for process in processes)
    if 2 * recovering <= MEMBERS:
        raise Violation(f"stopped with {recovering} members that say that they are damaged: {world.describe()}")
    return "stopped"


def _until(world: World, seconds: int, done: Callable[[], bool]) -> bool:
    end = world.events.now + seconds * S
    while not done():
        if world.events.now >= end:
            return False
        world.events.run_until(world.events.now + 500 * MS)
    return True


def _hosts(world: World) -> list[GroupHost]:
    hosts = [machine.host for machine in world.machines.values()]
    return [host for host in hosts if isinstance(host, GroupHost)]


def _anything(world: World, random: Random) -> bool:
    """Damage the segments of two or three members anywhere."""
    for host in random.sample(_hosts(world), random.choice((2, MEMBERS))):
        host.damage(random)
    return False


def _apart(world: World, random: Random) -> bool:
    """Damage entries of two or three members, each of them on one member only."""
    return _spoil(world, random, random.choice((2, MEMBERS)), common=False)


def _newest(world: World, random: Random) -> bool:
    """Damage the newest committed entry on two members, and one before it on the third."""
    hosts = random.sample(_hosts(world), MEMBERS)
    newest = len(world.checker.committed)
    for host in hosts[:2]:
        host.spoil(newest, random)
    if newest > 1 and random.random() < 0.5:
        hosts[2].spoil(random.randrange(max(newest - NEAR, 1), newest), random)
    return True


def _behind(world: World, random: Random) -> bool:
    """Damage the newest committed entries of the second member; the first one has none of them."""
    newest = len(world.checker.committed)
    for index in range(max(newest - random.randrange(NEAR), 1), newest + 1):
        _hosts(world)[1].spoil(index, random)
    return True


def _lost(world: World, random: Random) -> bool:
    """Damage one entry on all members, and others on one of them: the group has to stop."""
    _spoil(world, random, MEMBERS, common=True)
    return False


def _spoil(world: World, random: Random, members: int, *, common: bool) -> bool:
    newest = len(world.checker.committed)
    near = list(range(max(newest - NEAR, 1), newest + 1))
    random.shuffle(near)
    if common:
        index = near.pop()
        for host in _hosts(world):
            host.spoil(index, random)
    for host in random.sample(_hosts(world), members):
        for _ in range(min(random.choice((1, 1, 2)), len(near))):
            host.spoil(near.pop(), random)
    return True


def _checkpoints(world: World, random: Random) -> bool:
    """Damage the checkpoints of two or three members."""
    return _files(world, random, CHECKPOINT)


def _hard_states(world: World, random: Random) -> bool:
    """Damage the files `raft` of one to three members."""
    return _files(world, random, KEPT)


def _files(world: World, random: Random, name: str) -> bool:
    count = random.randint(1, MEMBERS)
    return sum(host.spoil_file(name, random) for host in random.sample(_hosts(world), count)) == 1


DAMAGES: dict[str, Callable[[World, Random], bool]] = {
    "anything": _anything,
    "apart": _apart,
    "behind": _behind,
    "checkpoints": _checkpoints,
    "hard states": _hard_states,
    "lost": _lost,
    "newest": _newest,
}
"""Kinds of damage. Each returns True if the members have left what they need to go on, if they were equal before."""


def main() -> int:
    """Run the cases; return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.everywhere", description="Damage of all members.")
    parser.add_argument("--seed", type=int, default=1, help="the first one (default 1)")
    parser.add_argument("--seeds", type=int, default=10_000, help="how many (default 10000)")
    parser.add_argument("--how", choices=sorted(DAMAGES), default="", help="the kind of damage (default: any)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    args = parser.parse_args()
    began = said = time.monotonic()
    counts: Counter[str] = Counter()
    failed = 0
    with ProcessPoolExecutor(args.jobs) as pool:
        seeds = range(args.seed, args.seed + args.seeds)
        for seed, outcome in zip(seeds, pool.map(_outcome, seeds, [args.how] * args.seeds, chunksize=8), strict=True):
            if not outcome.endswith((": whole", ": stopped")):
                failed += 1
                print(f"seed {seed}: {outcome}", flush=True)
                outcome = "failed"
            counts[outcome] += 1
            if time.monotonic() - said > PROGRESS_S:
                said = time.monotonic()
                print(f"  {counts.total():,} of {args.seeds:,}, {failed} failed", flush=True)
    what = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(counts.items()))
    print(f"{counts.total():,} cases in {time.monotonic() - began:.0f} s, {failed} failed: {what}")
    return 1 if failed else 0


def _outcome(seed: int, how: str) -> str:
    try:
        return damage_everywhere(seed, how)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
