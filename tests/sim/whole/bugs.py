"""Bugs that the simulation of servers must find.

Belongs here: planted bugs, each with the work and the faults that show it. test_whole.py requires that a few seeds find
every one of them; what the simulation cannot find it does not test.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from lakestream.lake.errors import LakeError
from lakestream.lake.table import batches
from lakestream.lake.table.actions import locate
from lakestream.log.format.segment import SealedSegment
from lakestream.net.peers.dialler import DialTarget
from lakestream.ports import Single
from lakestream.server.lake.stream_sync import LookResult, StreamSync
from lakestream.stream.consumer.acks import AckHandler
from lakestream.stream.core.applier import Applier
from lakestream.stream.core.operations import Operation, Purge
from lakestream.stream.features.dedupe import Dedupe
from lakestream.stream.mirroring.session import OriginSession
from lakestream_spark.write.stream_compaction import CommitPlan, StreamCompaction
from lakestream_spark.write.tasks import Output
from tests.sim.bugs import CORE_BUGS, Bug, writes_the_log_without_sync
from tests.sim.events import MS, S
from tests.sim.whole.world import Plan, plan_of


class Planted(msgspec.Struct, frozen=True):
    """A bug, and the parts of workload and faults that show it."""

    plant: Bug
    work: tuple[str, ...]
    faults: tuple[str, ...]
    seconds: int = 8
    nodes: int = 3
    lake: bool = False

    def plan(self, seed: int) -> Plan:
        """Return the plan of a seed."""
        return msgspec.structs.replace(
            plan_of(seed),
            work=self.work,
            faults=self.faults,
            nodes=self.nodes,
            fault_ns=self.seconds * S,
            faults_every_ns=700 * MS,
            lake=self.lake,
        )


def stores_repeated_messages(stack: ExitStack) -> None:
    """A message whose id was seen is stored again."""
    stack.enter_context(patch.object(Dedupe, "seen", lambda self, msg_id: 0))


def confirms_acks_before_the_log(stack: ExitStack) -> None:
    """A consumer's ack is confirmed and not logged."""

    def confirm(self: AckHandler, reply: bytes) -> None:
        self._bus.send(Single(reply))

    stack.enter_context(patch.object(AckHandler, "_confirm", confirm))
    stack.enter_context(patch.object(AckHandler, "_progressed", lambda self: None))


def purges_only_the_leader(stack: ExitStack) -> None:
    """A follower does not apply purges."""
    real = Applier.operation

    def operation(self: Applier, operation: Operation, own: bool) -> Generator[None, None, object]:
        if own or not isinstance(operation, Purge):
            return (yield from real(self, operation, own))
        return None

    stack.enter_context(patch.object(Applier, "operation", operation))


def dials_only_once(stack: ExitStack) -> None:
    """A node that could not be reached is never dialled again."""
    stack.enter_context(patch.object(DialTarget, "finished", property(lambda self: self.myself or self.failures > 0)))


def mirrors_only_once(stack: ExitStack) -> None:
    """A mirror whose origin has moved does not ask for it again."""
    stack.enter_context(patch.object(OriginSession, "_again", lambda self, error=None, pause=0: None))


def drops_what_is_only_staged(stack: ExitStack) -> None:
    """A segment leaves the log once it is staged."""
    real = StreamSync.look

    def look(self: StreamSync, sealed: Sequence[SealedSegment], *rest: Any) -> LookResult:
        found = real(self, sealed, *rest)
        return msgspec.structs.replace(found, held=sealed[-1].last_index) if sealed else found

    stack.enter_context(patch.object(StreamSync, "look", look))


def keeps_deleted_rows(stack: ExitStack) -> None:
    """Rows of the table stay when their messages are removed."""
    stack.enter_context(patch.object(batches, "deleted_rows", lambda position, before, dead: []))


_Commit = Callable[[StreamCompaction, CommitPlan, Output], Any]


def _commits(stack: ExitStack, plant: Callable[[_Commit], _Commit]) -> None:
    stack.enter_context(patch.object(StreamCompaction, "commit", plant(StreamCompaction.commit)))


def commits_twice(stack: ExitStack) -> None:
    """A commit is repeated although it has moved the position (invariant 8)."""

    def plant(real: _Commit) -> _Commit:
        def commit(self: StreamCompaction, plan: CommitPlan, output: Output) -> Any:
            real(self, plan, output)
            return real(self, msgspec.structs.replace(plan, position=self._watch.position() or 0), output)

        return commit

    _commits(stack, plant)


def deletes_files_of_a_commit_in_doubt(stack: ExitStack) -> None:
    """The answer to a commit is lost, and its files are deleted without a look at the log (invariant 13)."""

    def plant(real: _Commit) -> _Commit:
        def commit(self: StreamCompaction, plan: CommitPlan, output: Output) -> Any:
            real(self, plan, output)
            for file in output.files:
                self._storage.delete(locate(self.table, file.path))
            raise LakeError(f"{self.table}: no answer")

        return commit

    _commits(stack, plant)


def commits_files_that_are_not_there(stack: ExitStack) -> None:
    """A commit names a file that was not written (invariant 10)."""

    def plant(real: _Commit) -> _Commit:
        def commit(self: StreamCompaction, plan: CommitPlan, output: Output) -> Any:
            for file in output.files[:1]:
                self._storage.delete(locate(self.table, file.path))
            return real(self, plan, output)

        return commit

    _commits(stack, plant)


def unstages_with_the_commit(stack: ExitStack) -> None:
    """Staged segments go with the commit, before a server has found its files whole."""

    def plant(real: _Commit) -> _Commit:
        def commit(self: StreamCompaction, plan: CommitPlan, output: Output) -> Any:
            done = real(self, plan, output)
            self._storage.delete_all([part.path for part in plan.batch.parts])
            return done

        return commit

    _commits(stack, plant)


LAKE_BUGS: dict[str, tuple[Bug, str]] = {
    "drops_what_is_only_staged": (drops_what_is_only_staged, "WaitsForTheTable"),
    "commits_twice": (commits_twice, "ChecksPosition"),
    "commits_files_that_are_not_there": (commits_files_that_are_not_there, "CommitSyncs"),
    "deletes_files_of_a_commit_in_doubt": (deletes_files_of_a_commit_in_doubt, "ReadsOutcome"),
    "unstages_with_the_commit": (unstages_with_the_commit, "StaysForRepair"),
}
"""Bugs of the lake, with the guard of Release.tla that each breaks."""

CRASHES = ("kill", "cut_power", "cut_all_power", "fail_midway")

BUGS: dict[str, Planted] = {
    "writes_the_log_without_sync": Planted(writes_the_log_without_sync, ("events",), ("cut_all_power",)),
    "counts_one_too_few": Planted(CORE_BUGS["counts_one_too_few"], ("events",), ("isolate", "heal", "kill")),
    "stores_repeated_messages": Planted(stores_repeated_messages, ("events",), CRASHES),
    "confirms_acks_before_the_log": Planted(confirms_acks_before_the_log, ("events",), ("kill",), 20),
    "purges_only_the_leader": Planted(purges_only_the_leader, ("limits",), ()),
    "dials_only_once": Planted(dials_only_once, ("events",), ("isolate",), 20),
    "drops_what_is_only_staged": Planted(drops_what_is_only_staged, ("events",), ("lake_away",), lake=True),
    "keeps_deleted_rows": Planted(keeps_deleted_rows, ("limits",), (), lake=True),
    "mirrors_only_once": Planted(mirrors_only_once, ("events", "single", "copies"), CRASHES),
}


@contextmanager
def planted(bug: Planted) -> Iterator[None]:
    """Plant the bug in the real code for the duration of the block."""
    with ExitStack() as stack:
        bug.plant(stack)
        yield
