"""`python -m tests.sim --whole`: seeds of the simulation of servers, and their results.

Belongs here: running the seeds in processes, the lines that are printed, and the campaign in docs/reliability.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.campaigns import Campaign, Row, save
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


def run(args: argparse.Namespace) -> int:
    """Run the seeds; return 1 if one failed."""
    began, failed = time.monotonic(), 0
    counts: Counter[str] = Counter()
    done: list[Outcome] = []
    for outcome in _outcomes(args):
        done.append(outcome)
        counts.update(outcome.counts)
        if args.trace:
            print("\n".join(outcome.trace))
        if outcome.failure:
            failed += 1
            print(
                f"seed {outcome.seed}: {outcome.failure}\n  repeat: {command(outcome.seed, args.seconds)}", flush=True
            )
        print(
            f"  seed {outcome.seed}: {outcome.virtual_s:.1f} virtual s, {outcome.steps:,} steps, "
            f"digest {outcome.digest:08x}"
        )
        if outcome.failure and not args.keep_going:
            break
    steps, messages = sum(each.steps for each in done), sum(each.messages for each in done)
    spent = sum(each.processor_s for each in done)
    happened = ", ".join(f"{number} {what}" for what, number in sorted(counts.items()))
    print(
        f"{len(done)} seeds in {time.monotonic() - began:.1f} s, {failed} failed: {steps:,} steps and {messages:,} "
        f"messages in {spent:.1f} s of a processor, {steps / spent * 60:,.0f} steps a minute; {happened}"
    )
    if args.save:
        _save(args, len(done), failed, int(spent), counts)
    return 1 if failed else 0


def _outcomes(args: argparse.Namespace) -> Iterator[Outcome]:
    seeds = range(args.seed, args.seed + args.seeds)
    if args.bug:
        with planted(BUGS[args.bug]):
            for seed in seeds:
                yield run_seed(seed, args.seconds, args.trace)
    elif args.jobs == 1 or args.seeds == 1:
        for seed in seeds:
            yield run_seed(seed, args.seconds, args.trace)
    else:
        with ProcessPoolExecutor(args.jobs, max_tasks_per_child=20) as pool:
            yield from pool.map(partial(run_seed, seconds=args.seconds, tracing=args.trace), seeds)


def _save(args: argparse.Namespace, done: int, failed: int, spent: int, counts: Counter[str]) -> None:
    result = "kept" if not failed else f"{failed} of {done} seeds failed"
    rows = []
    for names, fault in ROWS:
        rounds = sum(counts[f"fault {name}"] for name in names)
        rows.append(Row(fault, PROMISE, TEST, rounds, result))
    again = f"python -m tests.sim --whole --seed {args.seed} --seeds {args.seeds} --seconds {args.seconds}"
    save(Campaign("simulation", again, spent, rows, args.seed))
