"""`python -m tests.damage`: files of all three nodes of real clusters are damaged at once.

    python -m tests.damage --seed 1 --cases 200

Each case begins with a copy of the stores of three stopped nodes, damages them as its seed says, starts the nodes, and
compares what they serve with what clients were told. Exit code 1 if a promise is broken; the stores of such a case, as
they were before the start and afterwards, stay in the directory that is printed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import msgspec

from tests import campaigns
from tests.damage.harms import KINDS, SINGLE, Harm, Scene
from tests.damage.judge import WHOLE, Broken, Judge
from tests.damage.prepared import Prepared, prepare

NAME = "damage"
EACH = 30
"""Cases that begin with the same stores."""
PROMISE = (
    "every acked message is there, or its stream stops by name; none that was removed is back, no sequence is given "
    "twice; the other streams go on"
)


class Result(msgspec.Struct):
    """Result of a case.

    Attributes:
        kind: kind of damage.
        end: how the nodes ended before.
        harms: what was damaged.
        outcomes: by stream; empty if a promise is broken.
        broken: the promise.
    """

    seed: int
    kind: str
    end: str
    harms: list[Harm]
    seconds: float
    outcomes: dict[str, str] = {}
    broken: str = ""

    def __str__(self) -> str:
        other = ", ".join(f"{name} {how}" for name, how in self.outcomes.items() if how != WHOLE)
        what = f"BROKEN: {self.broken}" if self.broken else other or WHOLE
        how = f"{self.kind} of {self.end} nodes, {len(self.harms)} damages"
        return f"seed {self.seed}, {how}: {what} ({self.seconds:.0f} s)"


def case(prepared: Prepared, seed: int, how: str = "") -> Result:
    """Run one case.

    Args:
        how: kind of damage, one of `KINDS` or `SINGLE`; "": drawn from the seed.
    """
    began, dice = time.monotonic(), Random(f"damage {seed}")
    drawn = dice.choice(sorted(KINDS))
    kind = how or drawn
    cluster, known = prepared.begin()
    scene = Scene(cluster.nodes, prepared.old, dice)
    (KINDS | SINGLE)[kind](scene)
    outcomes, broken = dict[str, str](), ""
    before = prepared.run.with_name(f"before-{seed}")
    shutil.copytree(prepared.run, before)
    try:
        outcomes = Judge(cluster, known, scene).judge()
    except Exception as error:  # another promise: servers answer
        broken = str(error) if isinstance(error, Broken) else repr(error)
        prepared.run.with_name(f"log-{seed}").write_text(
            "\n".join([*map(str, scene.harms), *(f"===== {node.name}\n{node.log(2000)}" for node in cluster.nodes)])
        )
    finally:
        cluster.kill()
    if not broken:
        shutil.rmtree(before)
    return Result(seed, kind, prepared.end, scene.harms, time.monotonic() - began, outcomes, broken)


def run(seeds: Sequence[int], place: Path, jobs: int, how: str = "") -> list[Result]:
    """Run the cases of these seeds, in blocks that share stores."""
    blocks: dict[int, list[int]] = {}
    for seed in seeds:
        blocks.setdefault(seed // EACH, []).append(seed)
    results, lock = list[Result](), threading.Lock()

    def block(number: int) -> None:
        prepared = prepare(place / str(number), number)
        for seed in blocks[number]:
            result = case(prepared, seed, how)
            with lock:
                results.append(result)
                print(f"{len(results):4} {result}", flush=True)
                for harm in result.harms if result.broken else ():
                    print(f"       {harm}", flush=True)
        for path in (prepared.kept, prepared.old, prepared.run):
            shutil.rmtree(path, ignore_errors=True)

    with ThreadPoolExecutor(jobs) as threads:
        list(threads.map(block, blocks))
    return results


def main() -> int:
    """Run the campaign; return 1 if a promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.damage", description="Damage of all replicas.")
    parser.add_argument("--seed", type=int, default=1, help="the first one (default 1)")
    parser.add_argument("--cases", type=int, default=200, help="how many (default 200)")
    parser.add_argument("--how", choices=sorted(KINDS | SINGLE), default="", help="the kind of damage (default: any)")
    parser.add_argument("--jobs", type=int, default=2, help="cases at the same time (default 2)")
    parser.add_argument("--save", action="store_true", help="write the results to docs/reliability")
    options = parser.parse_args()
    began, place = time.monotonic(), Path(tempfile.mkdtemp(prefix="damage-"))
    results = run(range(options.seed, options.seed + options.cases), place, options.jobs, options.how)
    broken, seconds = [result for result in results if result.broken], time.monotonic() - began
    counts = Counter(how for result in results for how in result.outcomes.values())
    streams = ", ".join(f"{count:,} {how}" for how, count in counts.items())
    print(f"{len(results)} cases in {seconds:.0f} s, {len(broken)} broken; streams: {streams}")
    if options.save:
        command = f"python -m tests.damage --seed {options.seed} --cases {options.cases}"
        campaigns.save(campaigns.Campaign(NAME, command, round(seconds), rows(results), options.seed))
    if broken:
        print(f"stores and logs: {place}")
        return 1
    shutil.rmtree(place)
    return 0


def rows(results: Sequence[Result]) -> list[campaigns.Row]:
    """Return the rows of the table in the documentation, one for each kind."""
    found = list[campaigns.Row]()
    for kind, draw in KINDS.items():
        chosen = [result for result in results if result.kind == kind]
        counts = Counter(how for result in chosen for how in result.outcomes.values())
        broken = sum(bool(result.broken) for result in chosen)
        said = "kept: streams " + ", ".join(f"{count} {how}" for how, count in counts.items())
        fault = (draw.__doc__ or "").partition("\n")[0].rstrip(".")
        result = f"{broken} broken" if broken else said
        if chosen:
            found.append(
                campaigns.Row(f"all nodes: {fault[0].lower()}{fault[1:]}", PROMISE, "tests/damage", len(chosen), result)
            )
    return found


if __name__ == "__main__":
    sys.exit(main())
