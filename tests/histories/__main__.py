"""`python -m tests.histories`: clients of every kind on a cluster under faults, and the check of their history.

    python -m tests.histories --seconds 600 --seed 7 --faults kill,pause,isolate

Exit code 1 if a promise is broken; history, schedule and logs of the servers stay in the directory that is printed.
`--check FILE` checks a history again, `--judge` has porcupine check it too (tests/judge, needs Go). `--bug` and
`--plant` are for tests of the checkers. `--save` writes the results to docs/reliability.
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
from tests.histories.bugs import BUGS
from tests.histories.campaign import Campaign, Plan, Result, is_encrypted
from tests.histories.checks import CHECKS, check, report
from tests.histories.plants import PLANTS
from tests.histories.record import History, load, save
from tests.judge.verdict import NoJudge, build, judge
from tests.servers import Kind

GROUPS = {
    "killed nodes (one, a minority, all), restarts": ("kill", "kill-minority", "kill-all", "restart", "roll"),
    "power losses (one, all)": ("power", "power-all"),
    "changed keys of encrypted stores": ("rotate-key",),
    "paused nodes": ("pause",),
    "partitions (full, one way, halves, bridge), slow and broken links": (
        "isolate",
        "one-way",
        "halves",
        "bridge",
        "slow-network",
        "reset",
    ),
    "full, failing and slow disks, damaged segments, disks rolled back": (
        "disk-error",
        "slow-disk",
        "damage",
        "roll-back",
    ),
    "stepped and skewed clocks": ("clock", "clock-skew"),
    "membership: step down, scale, move, leave and join": ("step-down", "scale", "remove-peer", "leave"),
    "killed compactor and JVM, lake away or slow": ("kill-compactor", "kill-jvm", "lake-away", "slow-lake"),
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
    parser.add_argument("--together", type=int, default=1, metavar="N", help="two to N faults at once (default 1)")
    parser.add_argument("--sync", default="", help="sync_interval of the servers (default: always)")
    parser.add_argument(
        "--encrypted", choices=("yes", "no"), help="encrypted stores (default: by the seed, half of them)"
    )
    parser.add_argument("--power", action="store_true", help="nodes can lose their power, each once (Linux, x86-64)")
    parser.add_argument("--iceberg", action="store_true", help="the compactor keeps Iceberg tables, too")
    parser.add_argument("--no-lake", action="store_true", help="without lake and compactor")
    parser.add_argument("--out", type=Path, help="directory for history and stores (default: temporary)")
    parser.add_argument("--check", type=Path, help="check this history (JSON lines, or .xz), and run nothing")
    parser.add_argument("--judge", action="store_true", help="have porcupine judge the same history (needs Go)")
    parser.add_argument("--plant", choices=sorted(PLANTS), help="with --check: plant this bug in the history first")
    parser.add_argument("--bug", default="", choices=sorted(BUGS), help="plant this bug in the servers")
    parser.add_argument("--save", action="store_true", help="write the results to docs/reliability")
    arguments = parser.parse_args()
    if arguments.check:
        history = History(load(arguments.check))
        if arguments.plant:
            history = History(PLANTS[arguments.plant].change(history))
        violations = check(history)
        print(report(history, violations) if violations else f"{len(history.events)} events, no promise is broken")
        return max(int(bool(violations)), _judge(history) if arguments.judge else 0)
    seed = arguments.seed or random.SystemRandom().randrange(1, 1 << 32)
    encrypted = arguments.encrypted == "yes" if arguments.encrypted else is_encrypted(seed)
    names = possible(
        Kind.OURS,
        arguments.nodes,
        not arguments.no_lake,
        synced=not arguments.sync,
        power=arguments.power,
        encrypted=encrypted,
    )
    if arguments.faults:
        chosen = [] if arguments.faults == "none" else arguments.faults.split(",")
        if unknown := set(chosen) - set(names):
            parser.error(f"not possible here: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
        names = chosen
    plan = Plan(
        seed,
        arguments.seconds,
        tuple(names),
        arguments.nodes,
        not arguments.no_lake,
        arguments.bug,
        arguments.together,
        arguments.sync,
        encrypted,
        arguments.power,
        arguments.iceberg,
    )
    directory = arguments.out or Path(tempfile.mkdtemp(prefix="histories-"))
    stores = "encrypted" if plan.encrypted else "plain"
    print(f"seed {seed}, {stores} stores, in {directory}", flush=True)
    result = Campaign(plan, directory).run()
    print(f"{len(result.steps)} faults, {result.figures()}; {result.seconds:.0f} s")
    if arguments.save:
        campaigns.save(_campaign(plan, result))
    judged = _judge(History(result.events)) if arguments.judge else 0
    if result.violations:
        print(report(History(result.events), result.violations))
        print(f"repeat: {plan.command}")
        print(f"the faults in the simulator: python -m tests.sim --script {directory}/schedule.json")
        return 1
    if judged:
        return judged
    if not arguments.out:
        shutil.rmtree(directory)
    print(f"kept: {', '.join(CHECKS)}")
    return 0


def _judge(history: History) -> int:
    """Print porcupine's verdict; return 1 if something is not linearizable or not decided, 2 without a verdict."""
    with tempfile.TemporaryDirectory(prefix="judge-") as directory:
        path = Path(directory) / "history.jsonl"
        save(path, history.events)
        try:
            [verdict] = judge(build(Path(directory)), [path])
        except NoJudge as error:
            print(f"porcupine: no verdict: {error}")
            return 2
    print(verdict)
    return int(bool(verdict.broken or verdict.undecided))


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
    command += f" --encrypted {'yes' if plan.encrypted else 'no'}"
    return campaigns.Campaign("histories", command, round(result.seconds), rows, plan.seed)


if __name__ == "__main__":
    sys.exit(main())
