"""A campaign: many inputs for the targets, in a pool of processes.

    python -m tests.fuzz [TARGET…] --runs 1000000 --seed 7

Exit code 1 if a target broke a promise; the inputs are in OUT/<target>/findings, each with its traceback beside it.
`--keep` adds inputs that reach new lines to `corpora/`, which `make test` replays; `--save` writes the results to
docs/reliability/fuzzing.json and the table in docs/campaigns.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz import corpora, report
from tests.fuzz.target import CORPORA, TESTS
from tests.fuzz.targets import MODULES

PROGRESS_S = 30
_STATE = re.compile(rb"#(\d+)\t\S+ +cov: (\d+) ft: (\d+)")
_FIRST = re.compile(rb"#\d+\tINITED cov: (\d+)")


class Run:
    """The process of one target. `out`: its directory."""

    def __init__(self, name: str, out: Path, seed: int, runs: int, seconds: int) -> None:
        self.name, self.out, self.runs = name, out, runs
        out.mkdir(parents=True, exist_ok=True)
        self._log = out / "log"
        command = [sys.executable, "-m", "tests.fuzz.worker", name, str(out), str(seed), str(runs), str(seconds)]
        self._began = time.monotonic()
        self._ended = 0.0
        with self._log.open("wb") as log:
            # A low priority: a campaign takes hours, and somebody works beside it.
            self.process = subprocess.Popen(["nice", "-n", "15", *command], stdout=log, stderr=log, cwd=TESTS.parent)

    @property
    def over(self) -> bool:
        """Return True once the process has ended."""
        ended = self.process.poll() is not None
        if ended and not self._ended:
            self._ended = time.monotonic()
        return ended

    def result(self) -> report.Result:
        """Return the counts so far."""
        text = self._log.read_bytes()
        states = _STATE.findall(text)
        inputs, covered = (int(states[-1][0]), int(states[-1][1])) if states else (0, 0)
        first = _FIRST.search(text)
        seconds = (self._ended or time.monotonic()) - self._began
        return report.Result(
            self.name, inputs, round(seconds), int(first[1]) if first else 0, covered, len(self.findings())
        )

    def findings(self) -> list[str]:
        """Return a line for each broken promise, and one if the process did not reach its end."""
        found = [path.read_text().partition("\n")[0] for path in sorted((self.out / "findings").glob("*.txt"))]
        found += [f"{path.name}: the process ended" for path in sorted((self.out / "findings").glob("*-*"))]
        if not found and self.process.poll():
            found.append(f"the process ended with exit code {self.process.returncode}; see {self._log}")
        return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: all ({', '.join(MODULES)})")
    parser.add_argument("--runs", type=int, default=100_000, help="inputs for each target")
    parser.add_argument("--seconds", type=int, default=0, help="time limit of each target; 0: none")
    parser.add_argument("--seed", default="random", help="a number, or random")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--out", type=Path, help="directory for inputs and findings; default: a new temporary one")
    parser.add_argument("--keep", action="store_true", help="add inputs that reach new lines to the repository")
    parser.add_argument("--save", action="store_true", help="write the results into the documentation")
    given = parser.parse_args()
    if unknown := [name for name in given.targets if name not in MODULES]:
        parser.error(f"no such target: {', '.join(unknown)}; there are {', '.join(MODULES)}")
    if importlib.util.find_spec("atheris") is None:
        parser.error("campaigns need atheris, which is built for Linux on x86-64: make setup")
    seed = random.SystemRandom().randrange(1, 1 << 31) if given.seed == "random" else int(given.seed)
    out: Path = given.out or Path(tempfile.mkdtemp(prefix="lakestream-fuzz-"))
    names = given.targets or list(MODULES)
    print(f"fuzz: {len(names)} targets, {given.runs:,} inputs each, --seed {seed}, in {out}", flush=True)
    runs = _campaign(names, out, seed, given.runs, given.seconds, given.jobs)
    results = [run.result() for run in runs]
    if given.keep:
        for name in names:
            print(f"{name}: {corpora.keep(name, out / name / 'corpus')} inputs kept", flush=True)
    if given.save:
        report.save(results, seed)
    print(report.table(results, CORPORA), end="")
    broken = [f"{run.name}: {line}" for run in runs for line in run.findings()]
    print("\n".join(broken) or "no promise was broken")
    return bool(broken)


def _campaign(names: list[str], out: Path, seed: int, runs: int, seconds: int, jobs: int) -> list[Run]:
    waiting, begun = list(names), []
    shown = time.monotonic()
    try:
        while waiting or not all(run.over for run in begun):
            while waiting and sum(not run.over for run in begun) < jobs:
                name = waiting.pop(0)
                begun.append(Run(name, out / name, seed, runs, seconds))
            time.sleep(0.2)
            if time.monotonic() - shown > PROGRESS_S:
                shown = time.monotonic()
                for run in begun:
                    if not run.over:
                        state = run.result()
                        print(f"{run.name}: {state.inputs:,} of {runs:,}, {state.covered} edges", flush=True)
    finally:
        for run in begun:
            if not run.over:
                run.process.kill()
    return begun


if __name__ == "__main__":
    raise SystemExit(main())
