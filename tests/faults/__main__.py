"""Campaign of failing files.

python -m tests.faults [--seed N] [--rounds N] [--save]

Each file operation of a store's steps fails once in each way; then files of a real server, and of one node of three.
`--rounds`: instead of that, this many servers, each with faults of chance.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random

from tests.campaigns import Campaign, Row, save
from tests.faults import group_steps, meta_steps, replica_steps
from tests.faults.cluster import RULES, Nodes
from tests.faults.matrix import WAYS, at_the_stop, drawn, lives, rules
from tests.faults.plan import Rule
from tests.faults.servers import Site
from tests.faults.store_steps import STEPS, Case, cases, check

TOOLS = Path(tempfile.gettempdir(), "lakestream-faults")
PROMISE = "acked messages are there; errors are answered; other streams go on"
DRAWN = 20
"""Faults of one server with faults of chance."""


def main() -> int:
    """Run the campaign; return 1 if a promise is broken."""
    parser = argparse.ArgumentParser(prog="tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    began = time.monotonic()
    logging.disable(logging.CRITICAL)  # of the stores in this process
    with tempfile.TemporaryDirectory() as place:
        if options.rounds:
            rows = _chance(Path(place), options.seed, options.rounds)
        else:
            rows = [*_steps(), *_members(), *_servers(Path(place), options.seed), _cluster(Path(place))]
    if options.save:
        command = f"python -m tests.faults --seed {options.seed}"
        save(Campaign("faults", command, int(time.monotonic() - began), rows, options.seed))
    return int(any(row.result != "kept" for row in rows))


def _row(fault: str, promise: str, test: str, rounds: int, problems: list[str]) -> Row:
    print(f"{fault}: {rounds} cases, {len(problems)} broken promises", flush=True)
    for problem in problems:
        print(f"  {problem}", flush=True)
    return Row(
        fault, promise, test, rounds, f"{len(problems)} broken" if problems else "kept" if rounds else "no fault came"
    )


def _steps() -> list[Row]:
    ran, broken = Counter[str](), dict[str, list[str]]()
    for case in itertools.chain.from_iterable(map(cases, STEPS)):
        ran[case.fault.value] += 1
        if problem := check(case):
            broken.setdefault(case.fault.value, []).append(f"{case}: {problem}")
    promise = "what was acked is there, in this process and after a kill or a power loss; errors name the file"
    test = "test_every_operation_of_a_step_fails_once"
    return [
        _row(f"one operation of a store: {fault}", promise, test, count, broken.get(fault, []))
        for fault, count in ran.items()
    ]


def _members() -> list[Row]:
    return [
        _every(
            "a member of a Raft group",
            "what was acked is on every member in the end; one leader for each term",
            "test_every_operation_of_a_members_step_fails_once",
            group_steps.STEPS,
            group_steps.cases,
            group_steps.check,
        ),
        _every(
            "a member of the meta group (change, start, state of others, join)",
            "the others go on; what was assigned or removed is so on every member in the end",
            "test_every_operation_of_a_meta_members_step_fails_once",
            meta_steps.STEPS,
            meta_steps.cases,
            meta_steps.check,
        ),
        _every(
            "a replica (creation, snapshot install, join, clone)",
            "the others go on; the replica has everything in the end",
            "test_every_operation_of_a_replicas_step_fails_once",
            replica_steps.STEPS,
            replica_steps.cases,
            replica_steps.check,
        ),
    ]


def _every(
    of: str,
    promise: str,
    test: str,
    steps: Iterable[str],
    cases: Callable[[str], Iterator[Case]],
    check: Callable[[Case], str],
) -> Row:
    ran, broken = 0, list[str]()
    for case in itertools.chain.from_iterable(map(cases, steps)):
        ran += 1
        if problem := check(case):
            broken.append(f"{case}: {problem}")
    return _row(f"one operation of {of}: all of these", promise, test, ran, broken)


def _servers(place: Path, seed: int) -> list[Row]:
    rows = []
    for number, way in enumerate(WAYS):
        hits, problems = live(place / str(number), seed, rules(way, Random(seed)), at_the_stop(way, Random(seed)))
        rows.append(_row(f"files of a stream: {way}", PROMISE, "test_each_way_in_which_files_fail", hits, problems))
    hits, problems = live(place / "lives", seed, lives(), [])
    test = "test_streams_that_are_created_and_deleted_while_files_fail"
    return [*rows, _row("files of a stream that is created and deleted: EIO, ENOSPC", PROMISE, test, hits, problems)]


def _cluster(place: Path) -> Row:
    directory = place / "cluster"
    directory.mkdir()
    with Nodes(directory, TOOLS) as nodes:
        for rule in RULES:
            nodes.suffer(rule)
    promise = "another node leads, nothing acked is lost, the node comes back"
    hits = sum(1 for count in nodes.hits.values() if count)
    return _row("files of one of three nodes", promise, "test_nodes_whose_files_fail", hits, nodes.problems)


def _chance(place: Path, seed: int, rounds: int) -> list[Row]:
    hits, problems = 0, list[str]()
    for number in range(seed, seed + rounds):
        random = Random(number)
        some, broken = live(place / str(number), number, [drawn(random) for _ in range(DRAWN)], [])
        hits, problems = hits + some, problems + broken
        print(f"python -m tests.faults --seed {number} --rounds 1: {some} faults, {len(broken)} broken", flush=True)
    return [_row("faults of chance", PROMISE, "tests/faults/servers.py", hits, problems)]


def live(directory: Path, seed: int, todo: list[Rule], last: list[Rule]) -> tuple[int, list[str]]:
    """Let streams of a new server live under these rules, and stop it under the last ones.

    Return the number of rules by which a call has failed, and the broken promises.
    """
    directory.mkdir()
    with Site(directory, seed, TOOLS) as site:
        for rule in todo:
            site.suffer(rule)
        problems = site.end(*last)
    return sum(1 for count in site.hits.values() if count), problems


if __name__ == "__main__":
    raise SystemExit(main())
