"""`python -m tests.histories`: clients of every kind on a cluster under faults, and the check of their history.

    python -m tests.histories --seconds 600 --seed 7 --faults kill,pause,isolate

Exit code 1 if a promise is broken; history, schedule and logs of the servers stay in the directory that is printed.
`--check FILE` checks a history again. `--save` writes the results to docs/reliability.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests import campaigns
from tests.cluster.nemesis import possible
from tests.histories.campaign import Campaign, Plan, Result
from tests.histories.checks import CHECKS, check, report
from tests.histories.record import History, load
from tests.servers import Kind

GROUPS = {
    "killed nodes (one, a minority, all), restarts": ("kill", "kill-minority", "kill-all", "restart", "roll"),
    "paused nodes": ("pause",),
    "partitions (full, one way, halves, bridge), slow and broken links": (
        "isolate",
        "one-way",
        "halves",
        "bridge",
        "slow-network",
        "reset",
    ),
    "full, failing and slow disks, damaged segments": ("disk-error", "slow-disk", "damage"),
    "stepped clocks": ("clock",),
    "membership: step down, scale, move, leave and join": ("step-down", "scale", "remove-peer", "leave"),
    "killed compactor, lake away": ("kill-compactor", "lake-away"),
}
"""Rows of the table in the documentation."""


def main() -> int:
    """Run a campaign; return 1 if a promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.histories", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="duration of the faults (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="default: random")
    parser.add_argument(
        "--nodes", type=int, default=5, help="nodes of the cluster; streams have 3 replicas (default 5)"
    )
    parser.add_argument("--faults", default="", help="names, separated by commas; none: no faults (default: all)")
    parser.add_argument("--no-lake", action="store_true", help="without lake and compactor")
    parser.add_argument("--out", type=Path, help="directory for history and stores (default: temporary)")
    parser.add_argument("--check", type=Path, help="check this history (JSON lines), and run nothing")
    parser.add_argument("--save", action="store_true", help="write the results to docs/reliability")
    arguments = parser.parse_args()
    if arguments.check:
        history = History(load(arguments.check))
        violations = check(history)
        print(report(history, violations) if violations else f"{len(history.events)} events, no promise is broken")
        return int(bool(violations))
    names = possible(Kind.OURS, arguments.nodes, not arguments.no_lake)
    if arguments.faults:
        chosen = [] if arguments.faults == "none" else arguments.faults.split(",")
        if unknown := set(chosen) - set(names):
            parser.error(f"not possible here: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
        names = chosen
    seed = arguments.seed or random.SystemRandom().randrange(1, 1 << 32)
    plan = Plan(seed, arguments.seconds, tuple(names), arguments.nodes, not arguments.no_lake)
    directory = arguments.out or Path(tempfile.mkdtemp(prefix="histories-"))
    print(f"seed {seed}, in {directory}", flush=True)
    result = Campaign(plan, directory).run()
    print(f"{len(result.steps)} faults, {result.figures()}; {result.seconds:.0f} s")
    if arguments.save:
        campaigns.save(_campaign(plan, result))
    if result.violations:
        print(report(History(result.events), result.violations))
        print(f"repeat: {plan.command}")
        print(f"the faults in the simulator: python -m tests.sim --script {directory}/schedule.json")
        return 1
    if not arguments.out:
        shutil.rmtree(directory)
    print(f"kept: {', '.join(CHECKS)}")
    return 0


def _campaign(plan: Plan, result: Result) -> campaigns.Campaign:
    counts = Counter(step.fault for step in result.steps)
    broken = Counter(violation.promise for violation in result.violations)
    text = "kept" if not broken else ", ".join(f"{promise} {count}" for promise, count in broken.items())
    promises = f"all {len(CHECKS)} promises of [histories](#histories)"
    rows = [
        campaigns.Row(group, promises, "tests/histories", sum(counts[name] for name in names), text)
        for group, names in GROUPS.items()
        if set(names) & set(plan.faults)
    ]
    command = f"python -m tests.histories --seconds {plan.seconds:g} --seed {plan.seed} --nodes {plan.nodes}"
    return campaigns.Campaign("histories", command, round(result.seconds), rows, plan.seed)


if __name__ == "__main__":
    sys.exit(main())
