"""`python -m tests.sim --whole`: seeds of the simulation of servers, and their results.

Belongs here: running the seeds in processes, the lines that are printed, and the campaign in docs/reliability.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from tests.campaigns import Campaign, Row, save
from tests.sim.shrink import Result, drawn_plan, keep
from tests.sim.whole.bugs import BUGS, planted
from tests.sim.whole.world import Outcome, command, run_seed

TEST = "tests/sim/whole/test_whole.py"
ROWS = (
    (
        ("kill", "cut_power", "cut_all_power", "fail_midway"),
        "kills, power cuts of one and of all machines, also in the middle of a write",
    ),
    (("isolate", "cut_one_way", "depose", "pause"), "partitions, also one-way; paused servers"),
    (("fail_once", "fill_disk", "damage"), "failing writes and syncs, full disks, a flipped bit"),
    (("slow_disk", "step_clock", "skew"), "slow disks, stepped clocks, timers at wrong rates"),
    (
        ("lake_away", "lake_cut", "lake_slow", "lake_flaky", "kill_compactor", "pause_compactor"),
        "a simulated lake away, slow or failing; killed and paused compactors",
    ),
)
PROMISE = "acked messages, order, revisions, consumers, batches, copies; replicas agree; healthy within 60 s"


LINES = 20
"""Seeds that have a line each; of more there is one every `PROGRESS_S`."""
PROGRESS_S = 30.0


def run(args: argparse.Namespace) -> int:
    """Run the seeds; return 1 if one failed."""
    began = said = time.monotonic()
    failures: list[Outcome] = []
    failed = done = steps = messages = 0
    spent = 0.0
    counts: Counter[str] = Counter()
    swarm = " --swarm" if args.swarm else ""
    for outcome in _outcomes(args):
        done, steps, messages = done + 1, steps + outcome.steps, messages + outcome.messages
        spent += outcome.processor_s
        counts.update(outcome.counts)
        if args.trace:
            print("\n".join(outcome.trace))
        if outcome.failure:
            failed += 1
            failures.append(outcome)
            options = f"--seconds {args.seconds}{swarm}"
            print(
                f"seed {outcome.seed}: {outcome.failure}\n  repeat: {command(outcome.seed, args.seconds)}{swarm}\n"
                f"  shrink: python -m tests.sim.shrink {outcome.seed} {options}",
                flush=True,
            )
        if args.seeds <= LINES or outcome.failure:
            print(
                f"  seed {outcome.seed}: {outcome.virtual_s:.1f} virtual s, {outcome.steps:,} steps, "
                f"digest {outcome.digest:08x}"
            )
        elif time.monotonic() - said > PROGRESS_S:
            said = time.monotonic()
            left = (said - began) / done * (args.seeds - done)
            print(f"  {done:,} of {args.seeds:,} seeds, {failed} failed, {left / 60:,.0f} minutes left", flush=True)
        if outcome.failure and not args.keep_going:
            break
    happened = ", ".join(f"{number} {what}" for what, number in sorted(counts.items()))
    took = time.monotonic() - began
    print(
        f"{done:,} seeds in {took:.1f} s, {failed} failed: {steps:,} steps (callbacks of event loops) and {messages:,} "
        f"messages in {spent:.1f} s of a processor: {steps / spent * 60:,.0f} steps a minute of one, "
        f"{steps / took * 60:,.0f} of the {args.jobs} that were used; {happened}"
    )
    for outcome in failures if args.shrink else ():
        plan = drawn_plan(outcome.seed, "whole", args.bug, args.seconds, swarm=args.swarm)
        keep("whole", args.bug, plan, Result(outcome.failure, tuple(outcome.acts)), args.shrink)
    if args.save:
        _save(args, done, failed, int(spent), counts)
    return 1 if failed else 0


def _outcomes(args: argparse.Namespace) -> Iterator[Outcome]:
    seeds = range(args.seed, args.seed + args.seeds)
    work = partial(run_seed, seconds=args.seconds, tracing=args.trace, swarm=args.swarm)
    if args.bug:
        with planted(BUGS[args.bug]):
            yield from map(work, seeds)
    elif args.seeds == 1:
        yield from map(work, seeds)
    else:
        # Each seed is run by a process of its own, forked from one that has loaded everything. It ends without a look
        # at its objects, which would take an eighth of the time.
        context = get_context("forkserver")
        context.set_forkserver_preload(["tests.sim.whole.world"])
        with ProcessPoolExecutor(args.jobs, context, gc.disable, max_tasks_per_child=1) as pool:
            yield from pool.map(partial(work, ends=True), seeds)


def _save(args: argparse.Namespace, done: int, failed: int, spent: int, counts: Counter[str]) -> None:
    result = "kept" if not failed else f"{failed} of {done} seeds failed"
    rows = []
    for names, fault in ROWS:
        rounds = sum(counts[f"fault {name}"] for name in names)
        rows.append(Row(fault, PROMISE, TEST, rounds, result))
    again = f"python -m tests.sim --whole --seed {args.seed} --seeds {args.seeds} --seconds {args.seconds}"
    again += " --swarm" if args.swarm else ""
    save(Campaign("simulation", again, spent, rows, args.seed))
