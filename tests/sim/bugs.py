"""Bugs that the simulator must find.

Belongs here: planted bugs, at least one for each rule, most of them mistakes that Raft implementations are known to
have made. Each patches the real code for the time of a run. test_bugs.py requires that the simulator finds every one of
them; what it cannot find it does not test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from lakestream.log.format.frame import Frame, Kind
from lakestream.log.store.segment_log import SegmentLog
from lakestream.raft.core import confirmed, core, election, follower, restore
from lakestream.raft.core.leader import Leader
from lakestream.raft.core.log_view import LogView
from lakestream.raft.core.messages import Append, AppendReply, Membership, Vote, encode_membership
from lakestream.raft.core.reads import Reads
from lakestream.raft.core.ready import Ready
from lakestream.raft.core.state import State
from lakestream.raft.group.callbacks import OwnerState
from lakestream.raft.group.group import Proposal
from lakestream.raft.group.hard_state import PersistentState, StateFile
from lakestream.raft.group.member import RaftMember
from lakestream.raft.group.outgoing import Item, Outgoing
from lakestream.raft.group.raft_group import RaftGroup
from lakestream.raft.group.unstable import Unstable
from tests.sim.disk import SimFiles

Bug = Callable[[ExitStack], None]


def votes_twice(stack: ExitStack) -> None:
    """A second candidate of the same term also gets the vote (§5.2)."""
    real = election.on_vote

    def on_vote(state: State, sender: str, message: Vote) -> None:
        if not message.pre and message.term == state.term and state.leading is None:
            state.vote = ""
            state.leader = ""
        real(state, sender, message)

    stack.enter_context(patch.object(election, "on_vote", on_vote))


def votes_for_anybody(stack: ExitStack) -> None:
    """A candidate with an outdated log also gets the vote (§5.4.1)."""
    stack.enter_context(patch.object(LogView, "up_to_date", lambda self, index, term: True))


def forgets_its_vote(stack: ExitStack) -> None:
    """Term and vote are not made durable before the answer (§5.2)."""
    real = core.Core.ready

    def ready(self: core.Core) -> Ready | None:
        found = real(self)
        if found is not None:
            found.hard = None
        return found

    stack.enter_context(patch.object(core.Core, "ready", ready))


def _on_append(change: Callable[[State, Append], None]) -> Bug:
    def plant(stack: ExitStack) -> None:
        real = follower.on_append

        def on_append(state: State, sender: str, message: Append) -> None:
            change(state, message)
            real(state, sender, message)

        stack.enter_context(patch.dict(core._HANDLERS, {Append: on_append}))

    return plant


def _trusts(state: State, message: Append) -> None:
    mine = state.log.terms.term(message.prev_index)
    if mine is not None and not message.entries:
        message.prev_term = mine


ignores_the_term_before = _on_append(_trusts)
"""A probe matches if the index exists, whatever its term (§5.3)."""


def acknowledges_before_the_disk(stack: ExitStack) -> None:
    """A follower acknowledges entries that are not durable yet (§5.3)."""
    stack.enter_context(patch.object(State, "durable_match", lambda self: self.matched))


def cuts_on_every_append(stack: ExitStack) -> None:
    """A late Append truncates entries of a newer one (§5.3: only a conflict truncates)."""
    real = follower._append

    def append(state: State, frames: list[Frame]) -> None:
        first = frames[0].index - 1
        if state.log.commit <= first < state.log.last:
            state.log.cut(first)
        real(state, frames)

    stack.enter_context(patch.object(follower, "_append", append))


def _counts(change: Callable[[Leader], list[int]], quorum: Callable[[Leader], int], guard: bool = True) -> Bug:
    def plant(stack: ExitStack) -> None:
        real = Leader.count

        def count(self: Leader) -> None:
            log = self.log
            matches = sorted(change(self))
            index = matches[max(0, len(matches) - quorum(self))]
            if index > log.commit and (index >= self.first or not guard) and index <= log.last:
                log.commit_to(index)
            real(self)

        stack.enter_context(patch.object(Leader, "count", count))

    return plant


def _voters(leader: Leader) -> list[int]:
    return [peer.match for peer in leader._voters] + ([leader.log.durable] if leader._i_vote else [])


def _everybody(leader: Leader) -> list[int]:
    return [peer.match for peer in leader.progress.values()] + [leader.log.durable]


counts_old_terms = _counts(_voters, lambda leader: leader._quorum, guard=False)
"""An entry of an earlier term is committed by counting its replicas (§5.4.2, Figure 8)."""
counts_one_too_few = _counts(_voters, lambda leader: max(1, leader._quorum - 1))
"""Half of an even group, or less than half, counts as a majority."""
counts_learners = _counts(_everybody, lambda leader: leader._quorum)
"""Learners count for the quorum."""


def counts_itself_before_the_disk(stack: ExitStack) -> None:
    """A leader counts its own copy before it is durable (thesis §10.2.1)."""
    _counts(lambda leader: [peer.match for peer in leader._voters] + [leader.log.last], lambda leader: leader._quorum)(
        stack
    )


def reads_without_asking(stack: ExitStack) -> None:
    """A deposed leader answers reads (§8)."""

    def confirm(self: Leader) -> None:
        self.state.out.reads.extend(self.reads.confirmed(1 << 62))

    stack.enter_context(patch.object(Leader, "_confirm", confirm))


def reads_before_its_first_commit(stack: ExitStack) -> None:
    """A new leader serves reads at its initial commit index (§8)."""

    def ask(self: Leader) -> None:
        if self.reads.waiting:
            round_id = self._new_round()
            self.reads.ask(round_id, self.log.commit)
            self._beat(round_id)
            self._confirm()

    stack.enter_context(patch.object(Leader, "_ask_reads", ask))


def changes_members_at_once(stack: ExitStack) -> None:
    """A second membership change starts before the first is committed (thesis §4.1)."""

    def propose(self: Leader, membership: Membership) -> int:
        self._refuse_while_transferring()
        index = self.log.last + 1
        frame = Frame(Kind.MEMBERSHIP, self.state.term, index, 0, encode_membership(membership))
        self.log.append([frame])
        self._follow_membership()
        self.count()
        return index

    stack.enter_context(patch.object(Leader, "propose_membership", propose))


def trusts_a_disk_that_was_rolled_back(stack: ExitStack) -> None:
    """A member's log is not compared with what the member had confirmed."""
    stack.enter_context(patch.object(confirmed, "_fits", lambda *_, **__: True))
    stack.enter_context(patch.object(confirmed, "known_of", lambda state, member: (0, 0)))


def votes_with_a_damaged_log(stack: ExitStack) -> None:
    """A member that lost acknowledged entries helps to elect a leader that never had them (invariant 3)."""
    real = core.Core.__init__

    def init(self: core.Core, *args: Any, **kwargs: Any) -> None:
        kwargs["recovering"] = False
        real(self, *args, **kwargs)

    stack.enter_context(patch.object(core.Core, "__init__", init))


def commits_what_it_has(stack: ExitStack) -> None:
    """A follower applies the leader's commit index to its whole log, including entries that no Append has verified."""
    real = follower.on_append

    def on_append(state: State, sender: str, message: Append) -> None:
        real(state, sender, message)
        commit = min(message.commit, state.log.last)
        if commit > state.log.commit:
            state.log.commit_to(commit)

    stack.enter_context(patch.dict(core._HANDLERS, {Append: on_append}))


def loses_a_promise_on_replies(stack: ExitStack) -> None:
    """A rejected Append counts as a match."""
    real = Leader.on_append_reply

    def on_append_reply(self: Leader, sender: str, message: AppendReply) -> None:
        if message.rejected and message.match <= self.log.last:
            message = msgspec.structs.replace(message, rejected=False)
        real(self, sender, message)

    stack.enter_context(patch.object(Leader, "on_append_reply", on_append_reply))


def answers_reads_of_a_later_round(stack: ExitStack) -> None:
    """Reads return an index lower than the commit index at their confirmation."""
    stack.enter_context(
        patch.object(
            Reads,
            "ask",
            lambda self, round_id, index: (
                self._asked.append((round_id, max(0, index - 1), self._new)) or setattr(self, "_new", [])
            ),
        )
    )


CORE_BUGS: dict[str, Bug] = {
    bug.__name__: bug
    for bug in (
        votes_twice,
        votes_for_anybody,
        forgets_its_vote,
        acknowledges_before_the_disk,
        cuts_on_every_append,
        counts_itself_before_the_disk,
        reads_without_asking,
        reads_before_its_first_commit,
        changes_members_at_once,
        trusts_a_disk_that_was_rolled_back,
        votes_with_a_damaged_log,
        commits_what_it_has,
        loses_a_promise_on_replies,
        answers_reads_of_a_later_round,
    )
} | {
    "ignores_the_term_before": ignores_the_term_before,
    "counts_old_terms": counts_old_terms,
    "counts_one_too_few": counts_one_too_few,
    "counts_learners": counts_learners,
}


# -- the shell around the core -------------------------------------------------------------------------------------


def writes_the_log_without_sync(stack: ExitStack) -> None:
    """An entry counts as durable while it is only in the page cache (invariant 1)."""
    real = SimFiles.sync

    def sync(self: SimFiles, fd: int) -> None:
        if not self._open[fd][0].endswith(".seg"):
            real(self, fd)

    stack.enter_context(patch.object(SimFiles, "sync", sync))


def keeps_its_vote_without_sync(stack: ExitStack) -> None:
    """Term and vote are only in the page cache when the answer is sent (§5.2)."""
    real = StateFile.write
    stack.enter_context(patch.object(StateFile, "write", lambda self, kept, sync: real(self, kept, False)))


def keeps_its_vote_in_one_place(stack: ExitStack) -> None:
    """The file with the vote is overwritten in place: a torn write leaves neither the old vote nor the new one."""
    real = StateFile.write

    def write(self: StateFile, kept: PersistentState, sync: bool) -> None:
        self._synced = 1
        real(self, kept, sync)

    stack.enter_context(patch.object(StateFile, "write", write))


def does_not_wait_for_its_vote(stack: ExitStack) -> None:
    """Messages are sent while term and vote are still being written."""

    def put(self: Outgoing, items: Iterable[Item], unstable: Unstable, log: SegmentLog) -> None:
        for item in items:
            self._leave(item, unstable, log)

    stack.enter_context(patch.object(Outgoing, "put", put))


def forgets_that_it_was_damaged(stack: ExitStack) -> None:
    """A member whose log was truncated by damage takes part as if nothing had happened (invariant 3)."""
    real = RaftMember.damaged

    def damaged(self: RaftMember) -> None:
        real(self)
        self.kept = msgspec.structs.replace(self.kept, recovering=False)

    stack.enter_context(patch.object(RaftMember, "damaged", damaged))
    trusts_a_disk_that_was_rolled_back(stack)  # otherwise the other members report it


def keeps_contexts_after_losing(stack: ExitStack) -> None:
    """A client gets an ack when another client's entry has replaced its own."""
    stack.enter_context(patch.object(OwnerState, "_lose", lambda self, failed: None))


def seals_where_it_likes(stack: ExitStack) -> None:
    """Every member seals when its own segment is large enough."""
    real = RaftGroup._propose

    def propose(self: RaftGroup, proposals: list[Proposal]) -> None:
        real(self, proposals)
        disk, log = self._disk, self._log
        if log.seal_due(log.now()) and disk.seal is None and self._unstable.handed == log.last_index:
            disk.seal = (log.sealing_state(), self._unstable.handed)

    stack.enter_context(patch.object(RaftGroup, "_propose", propose))


def goes_on_after_a_failed_sync(stack: ExitStack) -> None:
    """A failed sync is retried, and reports success (invariant 4)."""
    real = SimFiles.sync

    def sync(self: SimFiles, fd: int) -> None:
        try:
            real(self, fd)
        except OSError:
            real(self, fd)

    stack.enter_context(patch.object(SimFiles, "sync", sync))


GROUP_BUGS: dict[str, Bug] = {
    bug.__name__: bug
    for bug in (
        writes_the_log_without_sync,
        keeps_its_vote_without_sync,
        keeps_its_vote_in_one_place,
        does_not_wait_for_its_vote,
        forgets_that_it_was_damaged,
        keeps_contexts_after_losing,
        seals_where_it_likes,
        goes_on_after_a_failed_sync,
    )
}


def votes_by_what_is_left(stack: ExitStack) -> None:
    """A member whose log was cut votes by the rest of it, not by the log that it had (invariant 3)."""
    stack.enter_context(patch.object(restore, "may_vote", lambda state, message: True))


def throws_away_what_follows(stack: ExitStack) -> None:
    """A damaged member does not keep the intact entries behind the damage."""
    stack.enter_context(patch.object(RaftMember, "recall", lambda self: None))


DAMAGE_BUGS: dict[str, Bug] = {
    bug.__name__: bug for bug in (forgets_that_it_was_damaged, votes_by_what_is_left, throws_away_what_follows)
}
"""Found by everywhere.py, which damages most members."""


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Plant the bug in the real code for the duration of the block."""
    with ExitStack() as stack:
        bug(stack)
        yield
