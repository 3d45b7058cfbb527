"""`python -m tests.sim`: run many seeds, or one with its trace.

Belongs here: the command line.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.sim.runner import command, run_seed, run_seeds
from tests.sim.script import Step, read


def main() -> int:
    """Run the seeds; return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Raft groups under simulated faults.")
    parser.add_argument("--seeds", type=int, default=0, help="how many seeds (default 100, of whole servers 1)")
    parser.add_argument("--seed", type=int, default=1, help="the first one (default 1)")
    parser.add_argument("--shell", choices=("core", "group"), default="core", help="what is around the core")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    parser.add_argument("--script", type=Path, help="faults of a campaign (schedule.json of tests.histories)")
    parser.add_argument("--whole", action="store_true", help="whole servers with clients, not only groups")
    parser.add_argument("--seconds", type=int, default=20, help="virtual seconds of faults (with --whole; default 20)")
    parser.add_argument("--swarm", action="store_true", help="some faults and some work in each seed (with --whole)")
    parser.add_argument(
        "--shrink", type=int, default=0, help="runs to shrink each failing seed, at the end (with --whole)"
    )
    parser.add_argument("--bug", default="", help="plant a bug of tests/sim/whole/bugs.py (with --whole)")
    parser.add_argument("--save", action="store_true", help="write the results to docs/reliability (with --whole)")
    args = parser.parse_args()
    args.seeds = args.seeds or (1 if args.whole else 100)
    if args.whole:
        from tests.sim.whole.command import run  # with the whole server

        return run(args)
    script = read(args.script) if args.script else None
    if args.trace:
        for seed in range(args.seed, args.seed + args.seeds):
            outcome = run_seed(seed, args.shell, tracing=True, script=script)
            print("\n".join(outcome.trace))
            if outcome.failure:
                return 1
        return 0
    return _many(args, script)


def _many(args: argparse.Namespace, script: Sequence[Step] | None) -> int:
    began, failed, done = time.monotonic(), 0, 0
    counts: Counter[str] = Counter()
    for outcome in run_seeds(range(args.seed, args.seed + args.seeds), args.shell, args.jobs, script):
        done += 1
        counts.update(outcome.counts)
        if outcome.failure:
            failed += 1
            again = command(outcome.seed, args.shell) + (f" --script {args.script}" if args.script else "")
            shrink = f"python -m tests.sim.shrink {outcome.seed} --shell {args.shell}"
            print(f"seed {outcome.seed}: {outcome.failure}\n  repeat: {again}\n  shrink: {shrink}", flush=True)
            if not args.keep_going:
                break
    spent = time.monotonic() - began
    happened = ", ".join(f"{number} {what}" for what, number in sorted(counts.items()))
    print(f"{done} seeds in {spent:.1f} s, {failed} failed; {happened}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
