"""`python -m tests.sim.shrink SEED`: the smallest run that fails as a seed does.

Belongs here: leaving out acts (delta debugging, Zeller 2002), simplifying what is left, and the form in which it is
kept in tests/sim/cases, where test_cases.py replays it. A run is chaotic: without one act, all that follows meets
another network. So what cannot be left out is tried again under other seeds of network and disks.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tests.sim import bugs, runner, world
from tests.sim.acts import Act
from tests.sim.events import MS

CASES = Path(__file__).with_name("cases")
OTHERS = 8
"""Other seeds under which a smaller run is tried."""
TRIES = 3000
"""Runs after which the smallest one found is taken."""

Plan = Any
"""Plan of a group (world.py) or of whole servers (whole/world.py): both have seed, nodes, fault_ns and acts."""
T = TypeVar("T")


class Case(msgspec.Struct, frozen=True):
    """A run that fails, or did.

    Attributes:
        shell: "core", "group" (world.py), or "whole" for servers.
        bug: planted one that it needs; "": it failed by itself.
        failure: kind of its failure (`kind_of`).
        plan: of the run.
    """

    shell: str
    bug: str
    failure: str
    plan: msgspec.Raw


class Result(msgspec.Struct):
    """Failure of a run ("": none), and the acts until then."""

    failure: str
    acts: tuple[Act, ...]


def kind_of(failure: str) -> str:
    """Return the start of a failure without its place, names and numbers."""
    plain = re.sub(r"^Violation in \S+ \w+: ", "", failure.splitlines()[0] if failure else "")
    plain = re.sub(r"b'[^']*'|b\"[^\"]*\"|'[^']*'", "…", plain)
    return re.sub(r"\b[nc]?\d+\b|\b[a-g]\b", "#", plain)[:50].rstrip()


def run(shell: str, bug: str, plan: Plan) -> Result:
    """Run a plan, with a bug planted unless it is ""."""
    if shell != "whole":
        planted = bugs.planted((bugs.CORE_BUGS | bugs.GROUP_BUGS)[bug]) if bug else nullcontext()
        with planted:
            outcome = runner.run_seed(plan.seed, shell, plan=plan)
        return Result(outcome.failure, tuple(outcome.acts))
    from tests.sim.whole.bugs import BUGS  # with the whole server
    from tests.sim.whole.bugs import planted as whole_planted
    from tests.sim.whole.world import run_seed

    with whole_planted(BUGS[bug]) if bug else nullcontext():
        found = run_seed(plan.seed, plan=plan)
    return Result(found.failure, tuple(found.acts))


def drawn_plan(seed: int, shell: str, bug: str, seconds: int, *, swarm: bool = False) -> Plan:
    """Return the plan of a seed."""
    if shell != "whole":
        return world.plan_of(seed, shell)
    from tests.sim.whole.bugs import BUGS  # with the whole server
    from tests.sim.whole.workload import PARTS
    from tests.sim.whole.world import plan_of, swarmed

    plan = BUGS[bug].plan(seed) if bug else plan_of(seed, seconds)
    plan = swarmed(plan) if swarm else plan
    return msgspec.structs.replace(plan, work=plan.work or PARTS)


def read(path: Path) -> tuple[Case, Plan]:
    """Return a case and its plan."""
    case = msgspec.json.decode(path.read_bytes(), type=Case)
    if case.shell != "whole":
        return case, msgspec.json.decode(case.plan, type=world.Plan)
    from tests.sim.whole.world import Plan as WholePlan  # with the whole server

    return case, msgspec.json.decode(case.plan, type=WholePlan)


def write(path: Path, shell: str, bug: str, failure: str, plan: Plan) -> None:
    """Write a case, one act a line."""
    acts, rest = plan.acts, msgspec.structs.replace(plan, acts=None)
    kept = msgspec.json.decode(msgspec.json.encode(rest))
    kept["acts"] = "ACTS"
    text = msgspec.json.format(
        msgspec.json.encode({"shell": shell, "bug": bug, "failure": kind_of(failure), "plan": kept}), indent=2
    )
    lines = b",\n      ".join(msgspec.json.format(msgspec.json.encode(act), indent=0) for act in acts)
    lines = re.sub(rb"\s*\n\s*", b" ", lines) if not acts else lines
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.replace(b'"ACTS"', b"[\n      " + lines + b"\n    ]" if acts else b"[]") + b"\n")


def fewer(items: Sequence[T], fails: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """Return a part of the items that still fails, and no longer does without any single one of them."""
    kept = tuple(items)
    size = len(kept)
    while size:
        at, removed = 0, False
        while at < len(kept):
            candidate = kept[:at] + kept[at + size :]
            if fails(candidate):
                kept, removed = candidate, True
            else:
                at += size
        if size > 1:
            size = min(size // 2, max(1, len(kept) // 2))
        elif not removed:
            break
    return kept


class Shrinker:
    """Makes a failing plan smaller as long as it fails in the same way.

    Attributes:
        plan: the smallest one so far.
        tries: runs that it took, of which there may be `most`.
        say: gets a line after each turn.
    """

    def __init__(self, plan: Plan, kind: str, attempt: Callable[[Plan], Result]) -> None:
        self.plan, self.tries, self.most = plan, 0, TRIES
        self.say: Callable[[str], None] = lambda text: None
        self._kind, self._attempt = kind, attempt

    def shrink(self) -> None:
        """Find the smallest plan."""
        for turn in count(1):
            before = self.plan
            self._leave_out()
            self._simplify_plan()
            self._round()
            self._leave_out_under_other_seeds()
            self.say(f"turn {turn}: {len(self.plan.acts)} acts, {self.plan.nodes} nodes, {self.tries} runs")
            if self.plan == before or self.tries >= self.most:
                return

    def _fails(self, **changes: Any) -> bool:
        """Return True if the plan with the changes fails, which is then the smallest."""
        plan = msgspec.structs.replace(self.plan, **changes)
        if plan == self.plan or self.tries >= self.most:
            return bool(plan == self.plan)
        self.tries += 1
        found = self._attempt(plan)
        if kind_of(found.failure) != self._kind:
            return False
        self.plan = msgspec.structs.replace(plan, acts=found.acts)  # what came after the failure is not among these
        return True

    def _leave_out(self) -> None:
        for field in ("acts", "work"):
            if getattr(self.plan, field, None):
                fewer(getattr(self.plan, field), lambda kept, field=field: self._fails(**{field: kept}))  # type: ignore[misc]

    def _simplify_plan(self) -> None:
        for nodes in range(getattr(self.plan, "FEWEST", 1), self.plan.nodes):
            if self._fails(nodes=nodes):
                break
        last = max((act.at for act in self.plan.acts), default=0)
        for end in (last + MS, last + 100 * MS, last + 1000 * MS):
            if end < self.plan.fault_ns and self._fails(fault_ns=end):
                break
        for field in msgspec.structs.fields(self.plan):
            value = getattr(self.plan, field.name)
            if field.name in ("seed", "shell", "nodes", "fault_ns", "acts", "work"):
                continue
            if not self._fails(**{field.name: field.default}) and isinstance(value, msgspec.Struct):
                for part in msgspec.structs.fields(value):
                    plain = {part.name: getattr(field.default, part.name)}
                    self._fails(**{field.name: msgspec.structs.replace(getattr(self.plan, field.name), **plain)})

    def _round(self) -> None:
        """Give each act a round time and a small seed, for those who read it."""
        for number in range(len(self.plan.acts)):
            for change in self._rounded(self.plan.acts[number] if number < len(self.plan.acts) else None):
                acts = (*self.plan.acts[:number], change, *self.plan.acts[number + 1 :])
                if self._fails(acts=acts):
                    break

    @staticmethod
    def _rounded(act: Act | None) -> Iterator[Act]:
        if act is None:
            return
        for unit in (1000 * MS, 100 * MS, 10 * MS, MS):
            if act.at % unit:
                at = act.at // unit * unit
                yield from (Act(at, act.name, chance) for chance in (0, 1))
                yield Act(at, act.name, act.chance)
        yield from (Act(act.at, act.name, chance) for chance in range(min(4, act.chance)))

    def _leave_out_under_other_seeds(self) -> None:
        number = 0
        while number < len(self.plan.acts):
            acts = (*self.plan.acts[:number], *self.plan.acts[number + 1 :])
            if not any(self._fails(acts=acts, seed=seed) for seed in range(OTHERS)):
                number += 1


def main() -> int:
    """Shrink the run of a seed; return 1 if it does not fail."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.shrink", description="Find the smallest failing run.")
    parser.add_argument("seed", type=int)
    parser.add_argument("--shell", choices=("core", "group", "whole"), default="whole", help="default whole")
    parser.add_argument("--seconds", type=int, default=20, help="virtual seconds of faults, as in the failing run")
    parser.add_argument("--swarm", action="store_true", help="the failing run was one of a swarm")
    parser.add_argument("--bug", default="", help="plant a bug; the next seeds are tried until it shows")
    parser.add_argument("--tries", type=int, default=TRIES, help=f"how many runs (default {TRIES})")
    parser.add_argument("--name", default="", help="file in tests/sim/cases (default: by shell, and seed or bug)")
    args = parser.parse_args()
    for seed in range(args.seed, args.seed + (400 if args.bug else 1)):
        plan = drawn_plan(seed, args.shell, args.bug, args.seconds, swarm=args.swarm)
        first = run(args.shell, args.bug, plan)
        if first.failure:
            return 0 if keep(args.shell, args.bug, plan, first, args.tries, args.name) else 1
    print(f"seed {args.seed} does not fail")
    return 1


def keep(shell: str, bug: str, plan: Plan, first: Result, tries: int, name: str = "") -> bool:
    """Shrink a run that failed, in at most so many runs, and write it to a file. Return False if its acts alone end in
    another way."""
    print(f"seed {plan.seed}, {len(first.acts)} acts: {first.failure.splitlines()[0]}", flush=True)
    began, kind, nodes = time.monotonic(), kind_of(first.failure), plan.nodes
    again = run(shell, bug, msgspec.structs.replace(plan, acts=first.acts))
    if kind_of(again.failure) != kind:
        print(f"its acts alone end in another way: {again.failure or 'no failure'}")
        return False
    path = CASES / f"{name or '-'.join((shell, bug.replace('_', '-') or str(plan.seed)))}.json"
    shrinker = Shrinker(msgspec.structs.replace(plan, acts=again.acts), kind, partial(run, shell, bug))
    shrinker.most, shrinker.say = tries, partial(print, flush=True)
    shrinker.shrink()
    write(path, shell, bug, first.failure, shrinker.plan)
    print(f"{len(shrinker.plan.acts)} acts of {len(first.acts)}, {shrinker.plan.nodes} nodes of {nodes}; ")
    print(f"{shrinker.tries} runs in {time.monotonic() - began:.0f} s: {path.relative_to(Path.cwd())}", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
