"""Steps of a replica, each of whose file operations fails once: it gets a state of another node, joins, is a clone.

Belongs here: the steps of up to four nodes of which one has a failing disk, and what must be true afterwards. Replicas,
transfers, groups, logs and streams are the real ones, on simulated disks, links and time. The table of a clone is a
real one, which does not fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

from lakestream.log.format.errors import LogError
from lakestream.log.format.files import Files
from lakestream.log.store.base import Base, BaseOrigin
from lakestream.logging import Logger
from lakestream.protocol.api.errors import ApiError
from lakestream.raft.core.messages import Membership
from lakestream.server.lake.clones import LakeClones
from lakestream.stream.core.operations import Fork
from tests.faults.files import FAULTS, Fault, FaultyFiles, Operation, Schedule
from tests.faults.store_steps import Case
from tests.sealing import sealed
from tests.sim.disk import Disk, PowerCut, SimFiles
from tests.unit.lake.read.history.test_lake_history import record, write
from tests.unit.replica_world import Node, World, change, let_go

ROOT = "/nodes"
MEMBERS = "abc"
SEAL_BYTES = 4_000
ROWS = 30
THROUGH = ROWS + 3
WHILE_S = 6.0
"""Duration of a step that is not awaited, in virtual time."""
READY_S = 60.0
_NUMBER = re.compile(r"\d{15,}")


class Table:
    """Part of a lake that replicas use, over the table of a clone. Reads of it take no virtual time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clones = LakeClones(str(path), None, None, Logger(), lambda stream: None)  # type: ignore[arg-type]
        write(path, [record(seq, b"s.%d" % (seq % 4), b"row %d" % seq) for seq in range(1, ROWS + 1)])

    def position_of(self, uid: str, account: str, name: str, done: Callable[[int], None]) -> None:
        done(0)

    def make_base(self, files: Files, directory: str, account: str, name: str, origin: BaseOrigin) -> Base:
        return self._clones.build(files, directory, str(self._path), origin)

    def read_base(
        self,
        files: Files,
        directory: str,
        account: str,
        name: str,
        origin: BaseOrigin,
        done: Callable[[Base | None, BaseException | None], None],
    ) -> None:
        try:
            base = self.make_base(files, directory, account, name, origin)
        except (OSError, LogError) as error:
            done(None, error)
        else:
            done(base, None)


class Bench:
    """Up to four nodes; the disk of the one named `faulty` may fail."""

    def __init__(self, step: str, directory: Path) -> None:
        self.step = STEPS[step]
        self.faulty = self.step.faulty
        self.disks = {name: Disk(Random(f"{step} {name}")) for name in "abcd"}
        self.schedule = Schedule()
        self.acked: dict[int, bytes] = {}
        self.doubtful = b""
        """The message whose ack was awaited when the process of the node ended."""
        self.number = 0
        self.unopened: Exception | None = None
        """The error with which a node did not start."""
        self.table = Table(directory / "table")
        self.world = World(
            Path(ROOT),
            "".join(sorted({*MEMBERS, self.faulty})),
            files=self._files,
            watch=self.table,
            seal_bytes=SEAL_BYTES,
            retain_bytes=1,
        )
        self.step.prepare(self)

    def _files(self, name: str) -> Files:
        files = SimFiles(self.disks[name], Random(name))
        return sealed(
            FaultyFiles(files, self.schedule) if name == self.faulty else files,
            "/nodes",
            name,
            len(self.disks[name].files),
        )

    @property
    def node(self) -> Node | None:
        """Return the node with the failing disk, if it runs."""
        return self.world.nodes.get(self.faulty)

    def create(self, clone: bool = False) -> None:
        """Create the stream on three nodes."""
        if clone:
            self.world.stream(MEMBERS, subjects=[], mirror={"name": "O"})
        else:
            self.world.stream(MEMBERS)

    def lead(self, name: str) -> None:
        """Let this node lead the stream."""

        def leads() -> bool:
            leader = self.world.leader()
            return leader.name == name or bool(leader.replica.transfer(name) and False)

        self.world.until(leads, READY_S)

    def publish(self, count: int, size: int = 500) -> None:
        """Publish messages one by one to the leader; each is answered."""
        for _ in range(count):
            self.number += 1
            data = b"%d:" % self.number + b"x" * size
            self.doubtful = data
            answer = self.world.acked(f"s.{self.number % 5}", data)
            self.doubtful = b""
            if "seq" in answer:
                self.acked[answer["seq"]] = data

    def fork(self, origin: BaseOrigin) -> bool:
        """Let the stream begin with the rows of the table, on its leader; return True if that is logged."""
        leader = self.world.leader()
        store, done = leader.stream.store, list[object]()

        def made(base: Base | None, error: BaseException | None) -> None:
            if base is None:
                done.append(error)
                return
            store.ready = base
            leader.stream.propose(Fork(origin.version, origin.through), done.append)

        files = leader.stores.files
        leader.life.submit(lambda: self.table.make_base(files, store.directory, "$G", "S", origin), made)
        self.world.until(lambda: done, READY_S)
        return not isinstance(done[0], ApiError | Exception)

    def start(self) -> None:
        """Start a process of the node."""
        try:
            self.world.start(self.faulty)
        except (LogError, OSError) as error:
            self.unopened = error
            self.world.nodes.pop(self.faulty, None)  # it has not joined the others

    def down(self) -> None:
        """End the process with the failing disk as a power loss does."""
        if self.node is not None:
            if self.faulty in self.world.net.members:
                self.node.kill(close=False)
            else:
                self.world.nodes.pop(self.faulty).life.dead = True
        self.disks[self.faulty].cut_power()

    def run(self, at: int, fault: Fault | None) -> list[Operation]:
        """Do the step, and let its operation `at` fail; return its operations."""
        self.schedule.fail_at(at, fault)
        try:
            self.step.act(self)
        except PowerCut:
            self.down()
        operations = list(self.schedule.operations)
        self.schedule.fail_at(-1, None)
        return operations


ORIGIN = BaseOrigin(0, THROUGH)


def _let_go(bench: Bench) -> None:
    bench.publish(20)
    bench.world.run(0.1)
    let_go(bench.world)


def _cut(bench: Bench) -> None:
    """Publish while the node is cut off: it needs entries that the leader's log has not got any more."""
    bench.create()
    bench.lead("a")
    bench.publish(3)
    bench.world.net.split({bench.faulty}, {"a", "c"})
    _let_go(bench)


def _heal(bench: Bench) -> None:
    bench.world.net.split()
    bench.world.run(WHILE_S)


def _down(bench: Bench) -> None:
    """Publish while the node is down."""
    bench.create()
    bench.lead("a")
    bench.publish(3)
    bench.down()
    _let_go(bench)


def _start(bench: Bench) -> None:
    bench.start()
    bench.world.run(WHILE_S)


def _alone(gone: bool) -> Callable[[Bench], None]:
    def prepare(bench: Bench) -> None:
        bench.create()
        bench.lead("a")
        _let_go(bench) if gone else bench.publish(8)

    return prepare


def _join(bench: Bench) -> None:
    bench.world.hold(bench.faulty, Membership(tuple(MEMBERS)))
    change(bench.world, MEMBERS, bench.faulty)
    bench.world.run(WHILE_S)
    bench.publish(1)


def _mirror(leader: str) -> Callable[[Bench], None]:
    def prepare(bench: Bench) -> None:
        bench.create(clone=True)
        bench.lead(leader)

    return prepare


def _fork(bench: Bench) -> None:
    bench.fork(ORIGIN)
    bench.world.run(WHILE_S)


def _forked(before: bool) -> Callable[[Bench], None]:
    """End the node's process before, or after, the stream begins with the rows of the table."""

    def prepare(bench: Bench) -> None:
        _mirror("a")(bench)
        if before:
            bench.down()
        assert bench.fork(ORIGIN)
        bench.world.run(1.0)
        if not before:
            bench.down()

    return prepare


class Step(NamedTuple):
    """Step of the node `faulty`, with the preparation before it."""

    faulty: str
    prepare: Callable[[Bench], None]
    act: Callable[[Bench], None]
    clone: bool = False


STEPS: dict[str, Step] = {
    "create a replica": Step("b", lambda bench: None, lambda bench: bench.create()),
    "snapshot install": Step("b", _cut, _heal),
    "snapshot install at the start": Step("b", _down, _start),
    "join of a replica": Step("d", _alone(gone=False), _join),
    "join of a replica with a snapshot": Step("d", _alone(gone=True), _join),
    "clone at the leader": Step("b", _mirror("b"), _fork, clone=True),
    "clone at a follower": Step("b", _mirror("a"), _fork, clone=True),
    "start before the clone is known": Step("b", _forked(before=True), _start, clone=True),
    "start of a clone": Step("b", _forked(before=False), _start, clone=True),
}


def cases(step: str) -> Iterator[Case]:
    """Yield every failure of every operation of a step."""
    with TemporaryDirectory() as directory:
        operations = Bench(step, Path(directory)).run(-1, None)
    for at, operation in enumerate(operations):
        for fault in FAULTS[operation.name]:
            yield Case(step, at, operation, fault, True)


def check(case: Case) -> str:
    """Let a case happen; return the broken promise, "" if none is."""
    try:
        with TemporaryDirectory() as directory:
            bench = Bench(case.step, Path(directory))
            operations = bench.run(case.at, case.fault)
            done = operations[case.at]
            assert _plain(done) == _plain(case.operation), f"another operation: {done}"
            for node in bench.world.nodes.values():
                if node.life.failures:
                    return f"{node.name} had an error that nothing handles: {node.life.failures[0]!r}"
            if bench.unopened is not None and ROOT not in str(bench.unopened):
                return f"the error names no file: {bench.unopened!r}"
            return _goes_on(bench, case)
    except Exception as raised:
        return f"{type(raised).__name__}: {raised}"


def _plain(operation: Operation) -> tuple[str, str]:
    """Return an operation without the times in names."""
    return operation.name, _NUMBER.sub("#", operation.path)


def _goes_on(bench: Bench, case: Case) -> str:
    """Look at the stream without the node, and with the node's next process."""
    world = bench.world
    world.net.split()
    bench.down()
    world.run(WHILE_S)  # what was proposed is committed, or lost
    leader = world.leader("ac")
    doubtful, bench.doubtful = bench.doubtful, b""
    if doubtful and (found := [each.seq for each in leader.records() if each.data == doubtful]):
        bench.acked[found[0]] = doubtful
    if not bench.step.clone:
        before = len(bench.acked)
        bench.publish(2)
        if len(bench.acked) < before + 2:
            return "the others take no messages"
    elif not leader.stream.store.based and not bench.fork(ORIGIN):
        return "the others take no clone"
    bench.unopened = None
    bench.start()
    if bench.unopened is not None:
        told = ROOT in str(bench.unopened)
        return "" if case.fault is Fault.VANISHED and told else f"the node does not start: {bench.unopened!r}"
    if bench.faulty not in MEMBERS:
        change(world, MEMBERS, bench.faulty)
    world.until(lambda: all(_is_current(world, node) for node in world.nodes.values()), READY_S)
    if bench.faulty not in MEMBERS:
        change(world, MEMBERS + bench.faulty)
        bench.publish(1)
        world.until(lambda: all(_is_current(world, node) for node in world.nodes.values()), READY_S)
    return _differs(bench)


def _is_current(world: World, node: Node) -> bool:
    return (
        "S" in node.engine.streams
        and node.replica.trouble == ""
        and node.stream.store.applied == world.leader().stream.group.last_index
    )


def _differs(bench: Bench) -> str:
    """Return how a replica differs from what was acked. Messages that have left the log are in the lake."""
    if bench.step.clone:
        wanted = {seq: (b"s.%d" % (seq % 4), b"row %d" % seq) for seq in range(1, ROWS + 1)}
        last = THROUGH
    else:
        wanted = {seq: (b"s.%d" % (int(data.split(b":")[0]) % 5), data) for seq, data in bench.acked.items()}
        last = max(wanted)
    for node in bench.world.nodes.values():
        store = node.stream.store
        held = list(store.live.members(1, 1 << 60))
        if (held, store.last_seq) != (sorted(wanted), last):
            return f"{node.name} holds {held} through {store.last_seq}, and {sorted(wanted)} through {last} are acked"
        for seq, (subject, data) in wanted.items():
            if store.subject_of(seq) != subject:
                return f"{node.name} has subject {store.subject_of(seq)!r} of message {seq}, not {subject!r}"
            found = store.read(seq)
            if (found is not None and found.data != data) or (found is None and store.is_local(seq)):
                return f"{node.name} has other content as message {seq}"
        if store.subjects.count(b"s.1") != sum(subject == b"s.1" for subject, _ in wanted.values()):
            return f"{node.name} has another subject index"
    return ""
