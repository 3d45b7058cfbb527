"""Command line for recordings and crashes.

python -m tests.power record DIR [--seed N] [--rounds N] [--streams A,B]
python -m tests.power replay DIR [--point N] [--loss KIND] [--seed N] [--points N]    without a point: many
python -m tests.power replay DIR … --compact                                          then compact the image
python -m tests.power trace DIR NAME [--point N]                                      operations on files of this name
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from random import Random

from tests.power.disk import Loss
from tests.power.lake_job import LakeJob
from tests.power.replay import Crash, Finding, Replay
from tests.power.workload import ALL, Recording, recorded


def main() -> int:
    """Run one command; a replay returns 1 if anything is lost."""
    parser = argparse.ArgumentParser(
        prog="tests.power", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("command", choices=["record", "replay", "trace"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("name", nargs="?", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", default=",".join(ALL))
    parser.add_argument("--point", type=int)
    parser.add_argument("--points", type=int, default=10)
    parser.add_argument("--compact", action="store_true")
    parser.add_argument("--loss", type=Loss, choices=list(Loss))
    options = parser.parse_args()
    if options.command == "record":
        tools = Path(tempfile.gettempdir(), "lakestream-power")
        with recorded(options.directory.resolve(), options.seed, options.streams.split(","), options.rounds, tools) as (
            recording,
            _,
        ):
            differences = Replay(recording).differences()
        print("\n".join(["the journal is not what happened:", *differences]) if differences else "recorded")
        return int(bool(differences))
    replay = Replay(Recording.load(options.directory))
    if options.command == "trace":
        print("\n".join(replay.trace(options.name, options.point or len(replay.operations))))
        return 0
    if options.point is None:
        crashes = replay.crashes(options.points, Random(options.seed))
    else:
        losses = [options.loss] if options.loss else list(Loss)
        crashes = [Crash(options.point, loss, options.seed) for loss in losses]

    def report(finding: Finding) -> None:
        print(finding.describe(str(options.directory)), flush=True)

    findings = replay.run(crashes, report)
    if options.compact:
        with LakeJob(options.directory) as job:
            findings += replay.run_compactions(crashes, job, report)
    print(f"{len(crashes)} crashes, {replay.distinct} different images, {len(findings)} with losses")
    return int(bool(findings))


if __name__ == "__main__":
    raise SystemExit(main())
