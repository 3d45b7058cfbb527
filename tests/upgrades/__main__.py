"""`python -m tests.upgrades`: server and compactor of a lake are upgraded and brought back under load.

    python -m tests.upgrades --releases 0.1.0 --seed 7

Exit code 1 if a promise is broken; store and lake stay in the directory that is printed. `--save` writes the results to
docs/reliability. The older programs are commits of this repository (tests/releases.py).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests import campaigns
from tests.releases import RELEASES, unpacked
from tests.upgrades.programs import Broken
from tests.upgrades.walk import EVERYTHING, FEW_STEPS, WITHOUT_SQL, Result, Walk, refuses_encrypted

NAME = "upgrades"
WITHOUT_ENCRYPTION = ("0.1.0",)
"""Releases that refuse encrypted stores."""


def refusal(name: str, place: Path) -> campaigns.Row:
    """Have an older server refuse a store; return the row of the table."""
    try:
        refuses_encrypted(unpacked(name, place / "other"), place / "encrypted")
        result = "kept"
    except Broken as error:
        result = f"broken: {error}"
    promise = "one line, before anything is written; this release opens the store afterwards"
    return campaigns.Row(f"a server of {name} starts on an encrypted store", promise, "tests/upgrades", 1, result)


def rows(results: Sequence[Result]) -> list[campaigns.Row]:
    """Return the rows of the table in the documentation."""
    found = []
    for result in results:
        kept = "broken" if result.broken else "kept"
        beside = "beside both of the other" if result.steps > FEW_STEPS else "the server first"
        programs = f"server and compactor of {result.older} and of this release: each is upgraded and brought back"
        sql = "SQL" if result.older in WITHOUT_SQL else "SQL of both releases"
        found += [
            campaigns.Row(
                f"{programs}, {beside}; one SIGKILL in each step, under load",
                f"acked messages are in stream and table once; {sql} and Delta readers find none doubled, changed or "
                "missing meanwhile",
                "tests/upgrades",
                result.steps,
                f"{kept}: {result.messages:,} messages, {result.reads:,} reads",
            ),
            campaigns.Row(
                f"the compactor of {result.older} beside streams that it does not know",
                "one line for each, and their tables stay as they are; the next compactor takes them",
                "tests/upgrades",
                result.refused,
                kept,
            ),
        ]
    return found


def main() -> int:
    """Run the campaign; return 1 if a promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.upgrades", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--releases", default=",".join(RELEASES), help="older ones (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of kills (default 1)")
    parser.add_argument("--streams", default="", help=f"of {', '.join(EVERYTHING)} (default: all)")
    parser.add_argument(
        "--steps", type=int, choices=(FEW_STEPS, 8), default=8, help="4: each change beside one release only"
    )
    parser.add_argument("--save", action="store_true", help="write the results to docs/reliability")
    options = parser.parse_args()
    began, place = time.monotonic(), Path(tempfile.mkdtemp(prefix="upgrades-"))
    results, refusals = list[Result](), list[campaigns.Row]()
    for number, name in enumerate(options.releases.split(",")):
        here = place / str(number)
        here.mkdir()
        streams = options.streams.split(",") if options.streams else EVERYTHING
        results.append(Walk(unpacked(name, here / "older"), here, options.seed, streams, options.steps).run())
        print(results[-1], flush=True)
        if name in WITHOUT_ENCRYPTION:
            refusals.append(refusal(name, here))
    found = [*rows(results), *refusals]
    if options.save:
        command = f"python -m tests.upgrades --seed {options.seed}"
        command += f" --releases {options.releases}" if options.releases != ",".join(RELEASES) else ""
        command += f" --streams {options.streams}" if options.streams else ""
        command += f" --steps {options.steps}" if options.steps != 8 else ""
        campaigns.save(campaigns.Campaign(NAME, command, round(time.monotonic() - began), found, options.seed))
    if not all(row.result.startswith(campaigns.KEPT) for row in found):
        print(f"stores, lakes: {place}")
        return 1
    shutil.rmtree(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
