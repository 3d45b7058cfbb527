"""Command line of the campaign.

python -m tests.corruption                         every case of every place
python -m tests.corruption table replica-leader    only these places
python -m tests.corruption --every 50              one case of 50
python -m tests.corruption --case PLACE:FILE:OFFSET:MASK      one case, with its outcome

The exit code is 1 if an outcome is not as promised.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.campaigns import Campaign, Row, save, saved
from tests.corruption.cases import GOOD, Case, judged
from tests.corruption.places import PLACES, Place

SHOWN = 5
PROMISES = {
    "corruption": "detected with its file, repaired or harmless; never other data, another stream, or a traceback",
    "cluster-corruption": "the other replicas repair it; nothing acked is lost",
}
TEST = "test_a_sample_of_damages_is_detected_or_repaired"


def main() -> int:
    """Run the campaign; return 1 if an outcome is not as promised."""
    parser = argparse.ArgumentParser(
        prog="tests.corruption", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("places", nargs="*", choices=[*PLACES, []], help="default: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, help="judge only one case of so many")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--case", default="")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="lakestream-corruption-", dir=_memory()))
    os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
    try:
        if options.case:
            return one(options.case, scratch)
        chosen = [PLACES[name] for name in options.places or PLACES]
        bad = 0
        rows: dict[str, list[Row]] = {}
        seconds: Counter[str] = Counter()
        for place in chosen:
            began = time.monotonic()
            found = run(place, scratch, options.seed, options.every, options.jobs)
            wrong = sum(count for kind, count in found.items() if kind not in GOOD)
            bad += wrong
            seconds[place.campaign] += round(time.monotonic() - began)
            said = ", ".join(f"{found[kind]:,} {kind}" for kind in GOOD if found[kind])
            result = f"kept: {said}" if not wrong else f"{wrong:,} not as promised; {said}"
            print(f"{place.name}: {found.total():,} cases in {time.monotonic() - began:.0f} s, {result}", flush=True)
            promise = PROMISES[place.campaign]
            some = rows.setdefault(place.campaign, [])
            some.append(Row(place.what, promise, TEST, found.total(), result))
        if options.save:
            for name, some in rows.items():
                keep(name, some, seconds[name], options.seed)
        return int(bool(bad))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def keep(name: str, rows: list[Row], seconds: int, seed: int) -> None:
    """Save rows of a campaign, beside those of the places that did not run."""
    before = next((each for each in saved() if each.name == name), Campaign(name, "", 0, []))
    new = {row.fault: row for row in rows}
    kept = {row.fault: row for row in before.rows} | new
    places = [each for each in PLACES.values() if each.campaign == name]
    every = [kept[fault] for fault in dict.fromkeys(each.what for each in places) if fault in kept]
    again = any(row.fault in new for row in before.rows)
    command = f"python -m tests.corruption {' '.join(each.name for each in places)} --seed {seed}"
    save(Campaign(name, command, seconds if again else before.seconds + seconds, every, seed))


def run(place: Place, scratch: Path, seed: int, every: int, jobs: int) -> Counter[str]:
    """Judge the cases of a place; return the number of each outcome, and print those that are not as promised."""
    directory = scratch / place.name
    with _silence():
        place.build(directory)
        cases = place.cases(directory, seed)[::every]
        found: Counter[str] = Counter()
        shown: Counter[str] = Counter()
        for outcome in judged(place.judge, directory, scratch / "work", cases, jobs):
            found[outcome.kind] += 1
            if outcome.kind not in GOOD:
                shown[outcome.kind] += 1
                if shown[outcome.kind] <= SHOWN:
                    case = outcome.case
                    name = f"{place.name}:{case.file}:{case.offset}:{case.mask}"
                    print(f"{outcome.kind}: {outcome.why}\n  python -m tests.corruption --case '{name}'", flush=True)
    return found


def one(text: str, scratch: Path) -> int:
    """Judge one case and print its outcome."""
    name, file, offset, mask = text.split(":")
    place = PLACES[name]
    place.build(scratch / name)
    (outcome,) = judged(place.judge, scratch / name, scratch / "work", [Case(file, int(offset), int(mask))], 1)
    print(f"{outcome.kind}: {outcome.why}")
    return int(outcome.kind not in GOOD)


def _memory() -> str | None:
    """Return a directory in memory, if there is one: a case writes dozens of files."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class _silence:
    """Context in which the servers of this process and of those that it starts write no log lines."""

    def __enter__(self) -> None:
        self._stderr = os.dup(2)
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 2)
        os.close(nothing)

    def __exit__(self, *error: object) -> None:
        os.dup2(self._stderr, 2)
        os.close(self._stderr)


if __name__ == "__main__":
    raise SystemExit(main())
