"""Steps of a member of the meta group, each of whose file operations fails once.

Belongs here: the steps of up to four nodes of which one has a failing disk, and what must be true afterwards. Meta
group, joining, transfers of its state, groups, logs and hard states are the real ones, on simulated disks and calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from lakestream.log.format.errors import LogError
from lakestream.log.format.files import Files
from lakestream.meta.assignments import Applied, RemoveStream
from lakestream.protocol.api.errors import ApiError
from tests.faults.files import FAULTS, Fault, FaultyFiles, Operation, Schedule
from tests.faults.store_steps import Case
from tests.sealing import sealed
from tests.sim.disk import Disk, PowerCut, SimFiles
from tests.unit.meta_world import World

NODES = "abcd"
SEAL_BYTES = 300
MANY = 24
"""Number of assignments that fill more segments than the meta log keeps."""
WHILE = 40
"""Duration of a step that is not awaited (in steps of 100 ms)."""


class Bench:
    """Up to four nodes; the disk of the one named `faulty` may fail."""

    def __init__(self, step: str) -> None:
        self.faulty, prepare, self.act = STEPS[step]
        self.disks = {name: Disk(Random(f"{step} {name}")) for name in NODES}
        self.schedule = Schedule()
        self.acked: set[str] = set()
        self.removed: set[str] = set()
        self.asked = 0
        self.world = World(Path("/nodes"), *NODES, seal_bytes=SEAL_BYTES, files=self._files)
        self.world.net.down = set(NODES)
        self.world.start("a", "b", "c")
        self._settled("a", "b", "c")
        prepare(self)

    def _files(self, name: str) -> Files:
        files = SimFiles(self.disks[name], Random(name))
        return sealed(
            FaultyFiles(files, self.schedule) if name == self.faulty else files,
            "/nodes",
            name,
            len(self.disks[name].files),
        )

    def _settled(self, *names: str) -> None:
        """Wait until these nodes run, agree on a leader, and have applied what was committed before."""
        world = self.world
        world.until(
            lambda: world.elected() and all(world.servers[name].meta.caught_up for name in names), f"{names} are ready"
        )

    def lead(self, name: str) -> None:
        """Make this node the leader of the meta group."""
        world = self.world

        def leads() -> bool:
            return world.elected() and (world.leader.name == name or (world.leader.meta.transfer(name) and False))

        world.until(leads, f"{name} leads")

    def assign(self, count: int) -> None:
        """Assign streams one after the other; those that the leader has applied are acked."""
        for _ in range(count):
            self.asked += 1
            if not any(server.meta.leading for server in self.world.servers.values()):
                return  # the request is answered 10008, and the next one waits for a leader
            if isinstance(self.world.assign(f"S{self.asked}", "a", "b", "c"), Applied):
                self.acked.add(f"S{self.asked}")

    def remove(self, name: str) -> None:
        """Remove a stream."""
        outcomes: list[Applied | ApiError] = []
        self.acked.discard(name)  # it may be gone from now on
        if any(server.meta.leading for server in self.world.servers.values()):
            self.world.leader.meta.propose(RemoveStream(f"u-{name}"), outcomes.append)
            self.world.until(lambda: outcomes, f"an answer about {name}")
        if outcomes and isinstance(outcomes[0], Applied):
            self.removed.add(name)

    def down(self) -> None:
        """End the process with the failing disk as a power loss does."""
        if self.faulty in self.world.servers:
            self.world.kill(self.faulty)
        self.disks[self.faulty].cut_power()

    def run(self, at: int, fault: Fault | None) -> tuple[list[Operation], BaseException | None]:
        """Do the step, and let its operation `at` fail; return its operations and what it raised."""
        error: BaseException | None = None
        self.schedule.fail_at(at, fault)
        try:
            self.act(self)
        except (PowerCut, LogError, OSError) as raised:
            error = raised
        operations = list(self.schedule.operations)
        self.schedule.fail_at(-1, None)
        return operations, error


def _led_by(name: str, count: int = 3) -> Callable[[Bench], None]:
    def prepare(bench: Bench) -> None:
        bench.lead(name)
        bench.assign(count)

    return prepare


def _change(bench: Bench) -> None:
    bench.assign(4)
    bench.remove("S2")
    bench.assign(1)


def _down(count: int) -> Callable[[Bench], None]:
    """Assign streams while the node is down: it misses entries, or more than the log keeps."""

    def prepare(bench: Bench) -> None:
        _led_by("a")(bench)
        bench.down()
        bench.assign(count)
        bench.remove("S1")

    return prepare


def _cut(bench: Bench) -> None:
    """Assign streams while the node is cut off: it needs more than the log keeps."""
    _led_by("a")(bench)
    bench.world.net.cut(bench.faulty)
    bench.assign(MANY)


def _heal(bench: Bench) -> None:
    bench.world.net.heal(bench.faulty)
    bench.world.steps(WHILE)


def _start(bench: Bench) -> None:
    bench.world.start(bench.faulty)
    bench.world.steps(WHILE)
    bench.assign(1)


class Step(NamedTuple):
    """Step of the node `faulty`, with the preparation before it."""

    faulty: str
    prepare: Callable[[Bench], None]
    act: Callable[[Bench], None]


STEPS: dict[str, Step] = {
    "meta change at the leader": Step("b", _led_by("b"), _change),
    "meta change at a follower": Step("b", _led_by("a"), _change),
    "meta change with a checkpoint": Step("b", _led_by("b", 9), lambda bench: bench.assign(6)),
    "meta start": Step("b", _down(2), _start),
    "meta start with a state of others": Step("b", _down(MANY), _start),
    "meta state of others": Step("b", _cut, _heal),
    "join": Step("d", _led_by("a"), _start),
    "join with a state of others": Step("d", _led_by("a", MANY), _start),
}


def cases(step: str) -> Iterator[Case]:
    """Yield every failure of every operation of a step."""
    operations, error = Bench(step).run(-1, None)
    assert error is None, error
    for at, operation in enumerate(operations):
        for fault in FAULTS[operation.name]:
            yield Case(step, at, operation, fault, True)


def check(case: Case) -> str:
    """Let a case happen; return the broken promise, "" if none is."""
    bench = Bench(case.step)
    try:
        operations, error = bench.run(case.at, case.fault)
        assert operations[case.at] == case.operation, f"another operation: {operations[case.at]}"
        server = bench.world.servers.get(bench.faulty)
        for each in [error, server.meta.failed if server is not None else None]:
            told = each is None or (isinstance(each, LogError | OSError) and "/nodes" in str(each))
            if not told and not bench.schedule.crashed:
                return f"the error is {each!r}"
        return _goes_on(bench, case)
    except Exception as raised:
        return f"{type(raised).__name__}: {raised}"


def _goes_on(bench: Bench, case: Case) -> str:
    """Look at the group without the member, and with its next process."""
    world = bench.world
    bench.down()
    world.until(world.elected, "the others elect a leader")
    bench.assign(2)
    if not bench.acked >= {f"S{bench.asked - 1}", f"S{bench.asked}"}:
        return "the others take no assignments"
    try:
        world.start(bench.faulty)
    except (LogError, OSError) as error:
        told = "/nodes/" in str(error)
        return "" if case.fault is Fault.VANISHED and told else f"the member does not start: {error!r}"
    world.until(lambda: bench.faulty in world.voters(), "the member votes")
    bench.assign(1)
    world.until(
        lambda: world.elected() and len({each.meta.state.dump() for each in world.servers.values()}) == 1,
        "all have the same state",
    )
    held = set(world.leader.streams)
    if not held >= bench.acked:
        return f"{sorted(bench.acked - held)} were assigned, and are gone"
    return f"{sorted(bench.removed & held)} were removed, and are back" if bench.removed & held else ""
