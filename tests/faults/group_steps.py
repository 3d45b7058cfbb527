"""Steps of a member of a Raft group, each of whose file operations fails once.

Belongs here: the steps of three members, one of which has a failing disk, and what must be true afterwards. Groups,
logs and hard states are the real ones, on simulated disks and links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from lakestream.log.format.errors import LogError
from lakestream.log.format.files import Files
from tests.faults.files import FAULTS, Fault, FaultyFiles, Operation
from tests.faults.store_steps import Case
from tests.sealing import sealed
from tests.sim.disk import Disk, PowerCut, SimFiles
from tests.unit import group_world
from tests.unit.group_world import Node, World

FAULTY = "B"
SEAL_BYTES = 500


class Bench:
    """Three members. The one named `FAULTY` has a disk that may fail."""

    def __init__(self, step: str) -> None:
        self.disks = {name: Disk(Random(f"{step} {name}")) for name in "ABC"}
        self.faulty: FaultyFiles
        self.published = 0
        self.acked: list[str] = []
        self.leaders: dict[int, set[str]] = {}
        self.world = World(Path("/nodes"), files=self._files, seal_bytes=SEAL_BYTES)
        self._seen: dict[int, int] = {}

    def _files(self, name: str) -> Files:
        files = SimFiles(self.disks[name], Random(name))
        if name != FAULTY:
            return sealed(files, "/nodes", name, len(self.disks[name].files))
        self.faulty = FaultyFiles(files)
        return sealed(self.faulty, "/nodes", name, len(self.disks[name].files))

    def publish(self, node: Node, count: int = 1, size: int = 10) -> None:
        """Publish messages one by one; those whose commit the proposer has seen are acked. A group that has failed
        takes none, as its owner knows."""
        for _ in range(count):
            if node.group.failed is not None:
                return
            self.published += 1
            node.publish(f"m{self.published}", size=size)
            if f"m{self.published}" in node.contexts:
                self.acked.append(f"m{self.published}")

    def elect(self, *among: str) -> Node:
        """Return the leader, once there is one."""
        return self.world.elect(*among)

    def down(self) -> None:
        """End the process with the failing disk as a power loss does."""
        if FAULTY in self.world.nodes:
            self.note()
            self.world.kill(FAULTY, close=False)
        self.disks[FAULTY].cut_power()

    def up(self) -> Node:
        """Start the next process there."""
        return self.world.start(FAULTY)

    def note(self) -> None:
        """Note who led in which term."""
        for node in self.world.nodes.values():
            for leads, leader, term in node.roles:
                if leads:
                    self.leaders.setdefault(term, set()).add(leader)


def _led_by(name: str) -> Callable[[Bench], None]:
    def prepare(bench: Bench) -> None:
        bench.elect()
        bench.publish(bench.world.lead(name), 3)

    return prepare


def _follow(bench: Bench) -> None:
    bench.publish(bench.world.nodes["A"], 3)


def _lead(bench: Bench) -> None:
    bench.publish(bench.world.nodes[FAULTY], 3)


def _seal(name: str) -> Callable[[Bench], None]:
    return lambda bench: bench.publish(bench.world.nodes[name], 6, size=100)


def _vote(bench: Bench) -> None:
    bench.world.kill("A", close=False)
    bench.world.ticks(60)  # without its vote nobody is elected


def _behind(bench: Bench) -> None:
    """Leave entries in the faulty member's log that are not committed, and others that it lacks."""
    _led_by(FAULTY)(bench)
    bench.world.isolate(FAULTY)
    bench.world.nodes[FAULTY].propose("lost")
    bench.world.run()
    bench.publish(bench.elect("A", "C"), 2)


def _truncate(bench: Bench) -> None:
    bench.world.heal()
    bench.world.ticks(30)


def _down(bench: Bench) -> None:
    _led_by("A")(bench)
    bench.publish(bench.world.nodes["A"], 6, size=100)
    bench.down()
    bench.publish(bench.elect("A", "C"), 2)


def _start(bench: Bench) -> None:
    bench.up()
    bench.world.ticks(10)


STEPS: dict[str, tuple[Callable[[Bench], None], Callable[[Bench], None]]] = {
    "follower: append": (_led_by("A"), _follow),
    "leader: append": (_led_by(FAULTY), _lead),
    "follower: seal": (_led_by("A"), _seal("A")),
    "leader: seal": (_led_by(FAULTY), _seal(FAULTY)),
    "vote": (_led_by("A"), _vote),
    "truncate": (_behind, _truncate),
    "start of a member": (_down, _start),
}
"""Each step, with the preparation before it."""


def _run(bench: Bench, step: str, at: int, fault: Fault | None) -> tuple[list[Operation], BaseException | None]:
    prepare, act = STEPS[step]
    prepare(bench)
    error: BaseException | None = None
    if step.startswith("start"):
        made = bench.world.files

        def failing(name: str) -> Files:
            files = made(name)
            if name == FAULTY:
                bench.faulty.fail_at(at, fault)
            return files

        bench.world.files = failing
    else:
        bench.faulty.fail_at(at, fault)
    try:
        act(bench)
    except (PowerCut, LogError, OSError) as raised:
        error = raised
    if step.startswith("start"):
        bench.world.files = made
    operations = list(bench.faulty.operations)
    bench.faulty.fail_at(-1, None)
    return operations, error


def cases(step: str) -> Iterator[Case]:
    """Yield every failure of every operation of a step."""
    operations, error = _run(Bench(step), step, -1, None)
    assert error is None, error
    for at, operation in enumerate(operations):
        for fault in FAULTS[operation.name]:
            yield Case(step, at, operation, fault, True)


def check(case: Case) -> str:
    """Let a case happen; return the broken promise, "" if none is."""
    bench = Bench(case.step)
    try:
        operations, error = _run(bench, case.step, case.at, case.fault)
        assert operations[case.at] == case.operation, f"another operation: {operations[case.at]}"
        node = bench.world.nodes.get(FAULTY)
        for each in [error, *(node.failures if node is not None else [])]:
            told = each is None or (isinstance(each, LogError | OSError) and "/nodes/" in str(each))
            if not told and not bench.faulty.crashed:
                return f"the error is {each!r}"
        return _goes_on(bench, case)
    except Exception as raised:
        return f"{type(raised).__name__}: {raised}"


def _goes_on(bench: Bench, case: Case) -> str:
    """Look at the group without the member, and with its next process."""
    world = bench.world
    world.heal()
    bench.down()
    if "A" not in world.nodes:
        world.start("A")
    bench.publish(bench.elect("A", "C"), 2)
    try:
        bench.up()
    except (LogError, OSError) as error:
        return "" if case.fault is Fault.VANISHED else f"the member does not start: {error!r}"
    bench.elect()
    bench.publish(bench.elect(), 2)
    world.ticks(30)
    bench.note()
    if doubled := {term: names for term, names in bench.leaders.items() if len(names) > 1}:
        return f"two leaders of one term: {doubled}"
    wanted = group_world.named(*bench.acked)
    for name, node in world.nodes.items():
        held = node.messages
        if [each for each in held if each in wanted] != wanted:
            return f"{name} holds {held}, and {wanted} are acked"
        if held != world.nodes["A"].messages:
            return f"{name} and A differ"
    return ""
