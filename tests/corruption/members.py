"""Nodes of a cluster of three: replicas of a stream, and the assignments.

Belongs here: three stopped nodes, and the judgement of a damage in the files of one of them. The model is what was
acked: after a start of all three, each holds every acked message, or every assignment, with nothing else. The damaged
node is the first to start again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import msgspec

from lakestream.log.format.errors import CorruptLog, LogError
from lakestream.log.format.files import Files
from lakestream.meta.meta import DIRECTORY
from lakestream.raft.core.messages import Membership
from lakestream.stream.core.operations import CreateStream
from lakestream_verify.log.findings import Finding, FindingKind, Repair
from lakestream_verify.stores import check_meta
from tests.corruption.cases import CUT, Case, Copy, Outcome, damage, outcome_of
from tests.corruption.standalone import verify
from tests.unit import meta_world
from tests.unit.consumer_world import SECOND
from tests.unit.replica_world import World, fill

NODES = "abc"
STREAM = "jetstream/$G/streams/S"
SEAL_BYTES = 3000
META_SEAL_BYTES = 1500
SCRUB_SECONDS = 5
"""Interval of the rounds in which running nodes verify their sealed segments."""
KNOWN = "known"
"""File beside the nodes of a place with what the judge needs to know; it is never damaged."""

Content = list[tuple[int, bytes, bytes]]


class Known(msgspec.Struct, frozen=True):
    """The part of three nodes' history that the judge needs: the stream as it was assigned, and who led it."""

    create: CreateStream
    leader: str


def build_replicas(place: Path) -> None:
    """Make three stopped nodes with a stream, and what is known of them beside them."""
    world = World(place, NODES, seal_bytes=SEAL_BYTES)
    world.stream()
    world.consumer("c")
    for _ in range(2):
        fill(world, 6, 120)
        world.run(0.1)
    for node in world.nodes.values():
        node.stream.checkpoint()
    world.run(0.5)
    fill(world, 3, 120)
    world.converged()
    assert world.create is not None
    known = Known(world.create, world.leader().name)
    for node in list(world.nodes.values()):
        node.kill()
    (place / KNOWN).write_bytes(msgspec.msgpack.encode(known))


def files_of_replica(place: Path, *, leads: bool) -> list[str]:
    """Return the files of the replica that led, or of one that followed."""
    leader = _known(place).leader
    victim = leader if leads else next(name for name in NODES if name != leader)
    files = sorted(path for path in (place / victim / STREAM).rglob("*") if path.is_file())
    return [str(path.relative_to(place)) for path in files]


def files_of_replicas(place: Path) -> list[str]:
    """Return the files of the replica that led, and of one that followed."""
    return files_of_replica(place, leads=True) + files_of_replica(place, leads=False)


def _known(place: Path) -> Known:
    return msgspec.msgpack.decode((place / KNOWN).read_bytes(), type=Known)


class _NodesJudge(ABC):
    """Judge of the files of one node of three.

    Args:
        place: the three nodes.
        scratch: an empty directory.
    """

    def __init__(self, place: Path, scratch: Path) -> None:
        self._copy = Copy(place, scratch / "nodes")

    def judge(self, case: Case) -> Outcome:
        """Return the outcome of a case."""
        damage(self._copy.path / case.file, case)
        outcome = outcome_of(case, lambda: self._judged(case))
        self._copy.restore()
        return outcome

    @abstractmethod
    def _judged(self, case: Case) -> Outcome:
        """Return the outcome of a case whose file is damaged now."""


class ReplicaJudge(_NodesJudge):
    """Judge of the files of one replica of three."""

    def __init__(self, place: Path, scratch: Path) -> None:
        super().__init__(place, scratch)
        self._create = _known(place).create
        self._content, _, _ = self._start("a")
        assert self._content
        self._copy.restore()

    def _judged(self, case: Case) -> Outcome:
        victim = case.file[0]
        root = self._copy.path / victim
        try:
            findings = verify(root)
        except LogError as error:
            return Outcome(case, "not verified", str(error))
        wrong = [each for each in findings if not each.harmless]
        if any(each.repair not in (Repair.REPLICAS, Repair.START) for each in wrong):
            return Outcome(case, "not to be repaired by replicas", str(wrong))
        if any(not str(self._copy.path / case.file).startswith(each.file) for each in wrong):
            return Outcome(case, "another file is blamed", str(wrong))
        try:
            content, configs, said = self._start(victim)
        except (AssertionError, LogError) as error:
            return Outcome(case, "the replica is not repaired", f"{error} {findings}")
        if configs > 1:
            return Outcome(case, "the configurations differ", str(findings))
        if content != self._content:
            return Outcome(case, "the content differs", f"{findings} {len(content)} {len(self._content)}")
        if wrong and not said and case.mask != CUT and "seg" not in case.file:
            return Outcome(case, "the server says nothing", str(wrong))
        return Outcome(case, "repaired" if wrong or said else "harmless")

    def _start(self, first: str) -> tuple[Content, int, list[str]]:
        """Start the nodes, `first` before the others; return the content, the number of different configurations, and
        the lines that it logged."""
        world = World(self._copy.path, "", seal_bytes=SEAL_BYTES)
        world.create, world.membership = self._create, Membership(tuple(NODES))
        try:
            world.start(first)
            world.run(2.0)  # it votes and campaigns alone
            for name in NODES:
                if name != first:
                    world.start(name)
            said = world.nodes[first].log.said
            world.until(lambda: all("S" in node.engine.streams for node in world.nodes.values()), 60)
            content = _read(world)
            return content, len({node.stream.store.config for node in world.nodes.values()}), list(said)
        finally:
            for name in list(world.nodes):
                _kill(world, name)


class RunningReplicaJudge(_NodesJudge):
    """Judge of the files of one replica of three that are damaged while all nodes run."""

    def __init__(self, place: Path, scratch: Path) -> None:
        super().__init__(place, scratch)
        self._create = _known(place).create
        self._content, _ = self._run(None)
        assert self._content
        self._copy.restore()

    def judge(self, case: Case) -> Outcome:
        """Return the outcome of a case."""
        outcome = outcome_of(case, lambda: self._judged(case))
        self._copy.restore()
        return outcome

    def _judged(self, case: Case) -> Outcome:
        try:
            content, said = self._run(case)
        except (AssertionError, LogError) as error:
            return Outcome(case, "the replica is not repaired", str(error))
        if content != self._content:
            return Outcome(case, "the content differs", f"{said} {len(content)} {len(self._content)}")
        wrong = [each for each in verify(self._copy.path / case.file[0]) if not each.harmless]
        if wrong:
            return Outcome(case, "damage is left", str(wrong))
        return Outcome(case, "repaired" if said else "harmless")

    def _run(self, case: Case | None) -> tuple[Content, list[str]]:
        """Start the nodes, damage the file, publish, read, scrub, and start the damaged node again; return the content
        in the end, and what the node has logged about it."""
        world = World(self._copy.path, "", seal_bytes=SEAL_BYTES, scrub_interval_ns=SCRUB_SECONDS * SECOND)
        world.create, world.membership = self._create, Membership(tuple(NODES))
        victim = case.file[0] if case is not None else NODES[0]
        try:
            for name in NODES:
                world.start(name)
            world.until(lambda: all("S" in node.engine.streams for node in world.nodes.values()), 60)
            world.converged()
            before = len(world.nodes[victim].log.said)
            if case is not None:
                damage(self._copy.path / case.file, case)
            world.acked("s.1", b"late")
            content = _read(world)
            world.run(2 * SCRUB_SECONDS)
            said = world.nodes[victim].log.said[before:]
            _kill(world, victim)
            world.start(victim)
            world.until(lambda: "S" in world.nodes[victim].engine.streams, 60)
            again = _read(world)
            assert again == content, "the restart changes the content"
            world.run(2 * SCRUB_SECONDS)
            return content, [*said, *world.nodes[victim].log.said]
        finally:
            for name in list(world.nodes):
                _kill(world, name)


def _kill(world: World, name: str) -> None:
    node = world.nodes[name]
    node.kill()
    node.stores._cache.sweep()


def _read(world: World) -> Content:
    """Return what all nodes hold in the end: the first read of a damaged segment fails, and has it repaired."""
    for _ in range(20):
        try:
            return world.converged()
        except CorruptLog:
            world.run(1.0)
    return world.converged()


# ---------------------------------------------------------------------------- assignments
VICTIM = "b"


def build_assignments(place: Path) -> None:
    """Make three stopped nodes with assignments in sealed segments, a checkpoint and an open segment."""
    world = meta_world.World(place, *NODES, seal_bytes=META_SEAL_BYTES)
    world.start(*NODES)
    world.until(world.elected, "a leader")
    for number in range(16):
        world.assign(f"S{number}")
    world.until(lambda: len({server.meta.state.dump() for server in world.servers.values()}) == 1, "they agree")
    for name in NODES:
        world.end(name, gracefully=name == VICTIM)


def files_of_assignments(place: Path) -> list[str]:
    """Return the files of one node's assignments."""
    files = sorted(path for path in (place / VICTIM / DIRECTORY).rglob("*") if path.is_file())
    return [str(path.relative_to(place)) for path in files]


def verify_assignments(root: Path) -> list[Finding]:
    """Verify the assignments of a node."""
    return list(check_meta(Files(), str(root), lambda count: None))


class AssignmentsJudge(_NodesJudge):
    """Judge of the files of one node's assignments."""

    def __init__(self, place: Path, scratch: Path) -> None:
        super().__init__(place, scratch)
        self._streams = self._start()
        assert self._streams
        self._copy.restore()

    def _judged(self, case: Case) -> Outcome:
        damaged = str(self._copy.path / case.file)
        wrong = [each for each in verify_assignments(self._copy.path / VICTIM) if not each.harmless]
        unknown_vote = any(each.kind is FindingKind.RAFT for each in wrong)
        repair = Repair.NONE if unknown_vote else Repair.REPLICAS
        if any(each.repair is not repair or not damaged.startswith(each.file) for each in wrong):
            return Outcome(case, "wrongly described", str(wrong))
        try:
            streams = self._start(self._streams)
        except CorruptLog as error:  # one line for the operator; the node does not start
            named = unknown_vote and error.file == damaged
            return Outcome(case, "detected" if named else "the start fails", f"{wrong} {error}")
        except AssertionError as error:
            return Outcome(case, "the assignments are not repaired", f"{wrong} {error}")
        return Outcome(case, "repaired" if wrong else "harmless", str(streams != self._streams))

    def _start(self, streams: list[str] | None = None) -> list[str]:
        """Start all nodes and wait until they have these assignments, or else the same ones; return them."""
        world = meta_world.World(self._copy.path, *NODES, seal_bytes=META_SEAL_BYTES)
        try:
            world.start(VICTIM, *(name for name in NODES if name != VICTIM))
            world.until(
                lambda: (
                    len(found := {tuple(each.streams) for each in world.servers.values()}) == 1
                    and (list(*found) == streams if streams is not None else world.elected())
                ),
                "they agree",
            )
            return next(iter(world.servers.values())).streams
        finally:
            for name in list(world.servers):
                world.end(name, gracefully=False)
