"""Command line for recordings and crashes.

python -m tests.power record DIR [--seed N] [--rounds N] [--streams A,B]              one server, its compactor
python -m tests.power record DIR --cluster [--seed N] [--spark]                       three nodes, for a while four
python -m tests.power replay DIR [--point N] [--loss KIND] [--seed N] [--points N]    without a point: many
python -m tests.power replay DIR … --images                                           only what the images of nodes show
python -m tests.power replay DIR … --compact                                          then compact the image
python -m tests.power trace DIR NAME [--point N]                                      operations on files of this name
python -m tests.power campaign DIR [--points N] [--images N] [--seed N] [--save]      record and replay both

A campaign uses the recordings that DIR has, `one` and `cluster`, and makes those that it lacks.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from tests.campaigns import Campaign, Row, save
from tests.power.cluster import STEPS, broken_promises, promises, recorded_cluster, steps
from tests.power.disk import ONE_DISK, Loss
from tests.power.lake_job import LakeJob
from tests.power.replay import Crash, Finding, Replay
from tests.power.workload import ALL, Recording, recorded

TOOLS = Path(tempfile.gettempdir(), "lakestream-power")
ONE_SERVER = ("seal", "restart")
CLUSTER = ("seal", "restart", "leave", "scale")
"""Steps that every recording has, besides those that are counted."""


def main() -> int:
    """Run one command; a replay returns 1 if anything is lost."""
    parser = argparse.ArgumentParser(
        prog="tests.power", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("command", choices=["record", "replay", "trace", "campaign"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("name", nargs="?", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", default=",".join(ALL))
    parser.add_argument("--cluster", action="store_true")
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--point", type=int)
    parser.add_argument("--points", type=int, default=10)
    parser.add_argument("--images", type=int, nargs="?", const=0)
    parser.add_argument("--compact", action="store_true")
    parser.add_argument("--loss", type=Loss, choices=list(Loss))
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    directory = options.directory.resolve()
    if options.command == "record":
        if options.cluster:
            making = recorded_cluster(directory, options.seed, options.spark, TOOLS)
        else:
            making = recorded(directory, options.seed, options.streams.split(","), options.rounds, TOOLS)
        with making as (recording, _):
            replay = Replay(recording)
            differences = replay.differences()
        if options.cluster:
            found, wanted = steps(replay.operations), (*STEPS, "clone") if options.spark else STEPS
            missing = [step for step in wanted if not found[step]]
            assert not missing, f"a recording without {missing}"
        print("\n".join(["the journal is not what happened:", *differences]) if differences else "recorded")
        return int(bool(differences))
    if options.command == "campaign":
        return _campaign(directory, options)
    replay = Replay(Recording.load(directory))
    if options.command == "trace":
        print("\n".join(replay.trace(options.name, options.point or len(replay.operations))))
        return 0
    if options.point is None:
        crashes = replay.crashes(options.points, Random(options.seed))
    else:
        kinds = list(Loss) if replay.recording.members else list(ONE_DISK)
        crashes = [Crash(options.point, loss, options.seed) for loss in ([options.loss] if options.loss else kinds)]

    def report(finding: Finding) -> None:
        print(finding.describe(str(directory)), flush=True)

    findings = (replay.run if options.images is None else replay.screen)(crashes, report)
    if options.compact:
        with LakeJob(directory) as job:
            findings += replay.run_compactions(crashes, job, report)
    print(f"{len(crashes)} crashes, {replay.distinct} different images, {len(findings)} with losses")
    return int(bool(findings))


def _campaign(directory: Path, options: argparse.Namespace) -> int:
    """Replay both recordings; save a row for each kind of check, as soon as it has ended."""
    began = time.monotonic()
    rows: list[Row] = []
    command = f"python -m tests.power campaign DIR --points {options.points} --images {options.images or 0}"
    for fault, promise, test, count, broken in _parts(directory, options):
        rows.append(Row(fault, promise, test, count, f"{len(broken)} with losses" if broken else "kept"))
        print(f"{fault}: {promise}: {count}, {rows[-1].result}", flush=True)
        if options.save:
            seconds = int(time.monotonic() - began)
            save(Campaign("power", f"{command} --seed {options.seed}", seconds, rows, options.seed))
    return int(any(row.result != "kept" for row in rows))


def _parts(directory: Path, options: argparse.Namespace) -> Iterator[tuple[str, str, str, int, Sequence[object]]]:
    """Yield fault, promise, test, number of rounds, and what was found, of each part of a campaign."""

    def report(finding: Finding) -> None:
        print(finding.describe(replay.recording.directory), flush=True)

    replay = _recording(directory / "cluster", options)
    found = steps(replay.operations)
    assert all(found[each] for each in STEPS), found
    print(", ".join(f"{step} {count}" for step, count in found.items()), flush=True)
    fault, test = (
        f"power loss of all nodes at once: {_named(found, CLUSTER)}",
        "test_nothing_is_lost_when_all_nodes_lose_power",
    )
    promise = "terms do not go back, and no member votes for two candidates in a term"
    written = list(promises(replay.operations))
    yield "write of a hard state", promise, test, len(written), broken_promises(written)
    if options.images:
        crashes = replay.crashes(options.images, Random(options.seed + 1))
        promise = "each acked message is on a majority of the images, and none is damaged"
        yield fault, promise, test, len(crashes), replay.screen(crashes, report)
    crashes = replay.crashes(options.points, Random(options.seed))
    promise = "all that clients were told is true once all nodes have started"
    yield fault, promise, test, len(crashes), replay.run(crashes, report)
    replay = _recording(directory / "one", options)
    crashes = replay.crashes(max(1, options.points // len(ONE_DISK)), Random(options.seed))
    named = _named(steps(replay.operations), ONE_SERVER)
    fault, test = f"power loss of one server and its compactor: {named}", "test_nothing_is_lost_whenever_the_power_goes"
    promise = "all that clients were told is true once the server has started"
    yield fault, promise, test, len(crashes), replay.run(crashes, report)


def _named(found: Counter[str], others: Sequence[str]) -> str:
    """Return the steps of a recording as a text."""
    return ", ".join([*(step for step, count in found.items() if count), *others])


def _recording(directory: Path, options: argparse.Namespace) -> Replay:
    if not (directory / "facts.json").exists():
        if directory.name == "cluster":
            making = recorded_cluster(directory, options.seed, options.spark, TOOLS)
        else:
            making = recorded(directory, options.seed, options.streams.split(","), options.rounds, TOOLS)
        with making as (recording, _):
            differences = Replay(recording).differences()
            assert not differences, differences
    return Replay(Recording.load(directory))


if __name__ == "__main__":
    raise SystemExit(main())
