"""The Raft core of one member of one group.

Belongs here: the interface of the core. It does no I/O: it knows the indexes, terms and sizes of entries, has no clock
(`tick`), no disk and no network; `ready` returns the actions to take, and ready.py says in which order. The rules are
in state.py (shared by all roles), election.py, follower.py and leader.py; log_view.py and terms.py describe the log,
progress.py and reads.py the other members and reads.

Not thread-safe, and deterministic: the same calls with the same `random` give the same answers. "Raft §…" is the
extended version of the paper, "thesis §…" is Ongaro's dissertation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from lakestream.log.format.frame import Frame, Held
from lakestream.raft.core import election, follower, restore
from lakestream.raft.core.leader import Leader
from lakestream.raft.core.log_view import LogView
from lakestream.raft.core.messages import (
    Append,
    AppendReply,
    Confirmed,
    HardState,
    Install,
    InstallReply,
    LogEntry,
    Membership,
    Message,
    Quiesce,
    Recover,
    RecoverTo,
    TimeoutNow,
    Vote,
    VoteReply,
)
from lakestream.raft.core.ready import (
    NotLeader,
    RaftOptions,
    Ready,
    SendEntries,
)
from lakestream.raft.core.state import NEVER, State
from lakestream.raft.core.terms import TermMap, reaching


def _on_append_reply(core: Core, sender: str, message: AppendReply) -> None:
    if core.leading is not None:
        core.leading.on_append_reply(sender, message)


def _on_install_reply(core: Core, sender: str, message: InstallReply) -> None:
    if core.leading is not None:
        core.leading.on_install_reply(sender, message)


def _on_recover(core: Core, sender: str, message: Recover) -> None:
    if core.leading is not None:
        core.leading.on_recover(sender, message)


_HANDLERS: dict[type, Callable[[Core, str, Any], None]] = {
    Append: follower.on_append,
    AppendReply: _on_append_reply,
    VoteReply: election.on_vote_reply,
    TimeoutNow: election.on_timeout_now,
    Install: follower.on_install,
    InstallReply: _on_install_reply,
    Quiesce: follower.on_quiesce,
    Recover: _on_recover,
    RecoverTo: follower.on_recover_to,
}
"""Handlers for messages of the current term."""
_FROM_A_LEADER = (Append, Install, Quiesce)


class Core(State):
    """One member of one group.

    Callers may read, never write: me, term, vote, role, leader ("" unknown), quiescent (needs no ticks), recovering,
    frozen, and the properties below.
    """

    leading: Leader | None

    def __init__(
        self,
        me: str,
        membership: Membership,
        hard: HardState,
        terms: TermMap,
        *,
        options: RaftOptions = RaftOptions(),  # noqa: B008 - frozen
        random: Random,
        changes: Sequence[tuple[int, Membership]] = (),
        recovering: bool = False,
        forgetful: bool = False,
        joining: bool = False,
        confirmed: Sequence[Confirmed] = (),
        remembers: bool = True,
        held: Held = Held(),  # noqa: B008 - frozen
    ) -> None:
        """Begin (again) as a follower; everything in the log is durable.

        Args:
            me: this member's name.
            membership: the one as of `terms.base`.
            hard: as last made durable; `HardState()` for a new member. The commit index begins at its `commit`, or at
                the end of the log if that comes first.
            terms: the terms of the log's entries. The core owns it from now on.
            options: times and limits.
            random: for election timeouts.
            changes: (index, membership) of each MEMBERSHIP entry in the log, ascending.
            recovering: the log was damaged, so entries that this member acknowledged may be gone: it neither votes nor
                campaigns until its log holds all that its leader had (`Ready.recovered`).
            forgetful: recovering, and the hard state was lost, too (an empty disk in place of a former member's): it
                acknowledges nothing either before a majority without it confirmed its leader. To be passed at every
                start until `Ready.recovered`. In a group of two voters it never ends: there is no such majority.
            joining: recovering only because it is new in a group that is there already, and acknowledged nothing yet:
                it votes, but does not campaign by one of the memberships that it meets on its way through the log.
            confirmed: what the members are known to have acknowledged, as last kept.
            remembers: what this member acknowledges is durable (not with a log that is synced later, or never).
            held: what is known of a damaged log.
        """
        log = LogView(terms, membership, changes, hard.commit)
        super().__init__(me, hard, log, options, random)
        self.recovering = recovering or forgetful
        self.forgetful = forgetful
        self.joining = joining
        self.remembers = remembers
        if self.recovering and not self.forgetful:
            self.held = held
            if restore.is_whole(self):
                restore.end(self)
        self.confirmed = {each.member: each for each in confirmed} if remembers else {}
        self._given = (hard.term, hard.vote, self.role, self.leader)
        self._given_commit = log.commit
        self._given_membership = log.membership

    # -- state to read -------------------------------------------------------------------------------------------

    @property
    def membership(self) -> Membership:
        """Return the membership in force: that of the newest MEMBERSHIP entry, committed or not (Raft §6)."""
        return self.log.membership

    @property
    def commit(self) -> int:
        """Return the index of the newest committed entry."""
        return self.log.commit

    @property
    def last_index(self) -> int:
        """Return the index of the last entry, durable or not."""
        return self.log.terms.last

    @property
    def durable_index(self) -> int:
        """Return the index through which entries are on this member's disk."""
        return self.log.durable

    @property
    def hard(self) -> HardState:
        """Return the hard state to be kept on disk; its `commit` is at most `durable_index`."""
        return HardState(self.term, self.vote, min(self.log.commit, self.log.durable))

    @property
    def transferring(self) -> str:
        """Return the member that this leader transfers leadership to, or ""."""
        return "" if self.leading is None else self.leading.transfer_to

    @property
    def established(self) -> bool:
        """Return True if this leader has committed an entry of its term: its `commit` is the group's (Raft §8)."""
        return self.leading is not None and self.leading.established

    def match_of(self, member: str) -> int:
        """Return the index through which the leader knows `member`'s log to be durable and equal; elsewhere 0."""
        if self.leading is None:
            return 0
        if member == self.me:
            return self.log.durable
        peer = self.leading.progress.get(member)
        return 0 if peer is None else peer.match

    def ticks_since_contact(self, member: str) -> int | None:
        """Return the leader's ticks since the last answer of `member`; None if there was none in this term."""
        if self.leading is None:
            return None
        if member == self.me:
            return 0
        peer = self.leading.progress.get(member)
        return self.now - peer.contact if peer is not None and peer.answered else None

    # -- time and messages ---------------------------------------------------------------------------------------

    def tick(self) -> bool:
        """Advance the clock by one tick; return True if that had an effect. Not needed while `quiescent`."""
        if self.quiescent or self.frozen:
            return False
        self.now += 1
        leader = self.leading
        if leader is None:
            return election.tick(self)
        moving = leader.transfer_to
        leader.tick()
        return bool(self.quiescent or self.out.messages or self.leading is not leader or moving != leader.transfer_to)

    def step(self, sender: str, message: Message) -> None:
        """Handle a message. Late, repeated, reordered and foreign messages are allowed.

        Raise BadMessage for one that no correct member sends; the state is unchanged, apart from the term.
        """
        if self.frozen:
            return
        kind = type(message)
        if self.quiescent and kind is not Quiesce:
            self.wake()
        if isinstance(message, Vote):
            election.on_vote(self, sender, message)
            return
        # Entries are the same in every term. A leader sends them without being asked.
        if isinstance(message, Recover) and message.held:
            if self.leading is None:
                restore.on_ask(self, sender, message)
            return
        if isinstance(message, RecoverTo) and message.asked is not None:
            restore.on_answer(self, message, message.asked)
            return
        if message.term > self.term:
            # Raft §5.1. A granted pre-vote carries the requested term, which no member has adopted yet.
            if not (isinstance(message, VoteReply) and message.pre and message.granted):
                self.become_follower(message.term, "")
        elif message.term < self.term:
            if kind in _FROM_A_LEADER:  # tell the former leader of the newer term
                self.send(sender, AppendReply(self.term, 0, True))
            return
        _HANDLERS[kind](self, sender, message)

    def ready(self) -> Ready | None:
        """Return the actions to take, or None. Call it after (a turn's worth of) any other call, and again until it
        returns None: `fill` can cause more."""
        if self.leading is not None:
            self.leading.prepare()
        out, log = self.out, self.log
        some = bool(out.messages or out.sends or out.reads or out.lost_reads or out.install or out.recovered)
        some = some or bool(out.rolled_back or out.stopped or out.warnings or out.missing)
        if log.cut_after is not None:
            out.truncate_after, log.cut_after = log.cut_after, None
            some = True
        if log.pending:
            out.append, log.pending = log.pending, []
            some = True
        if log.commit != self._given_commit:
            out.commit = self._given_commit = log.commit
            some = True
        if (membership := log.memberships[-1][1]) is not self._given_membership:
            out.membership = self._given_membership = membership
            some = True
        if (self.term, self.vote, self.role, self.leader) != self._given:
            self._notice_change()
            some = True
        if not some:
            return None
        out.epoch = log.epoch
        self.out = Ready()
        return out

    # -- the log -------------------------------------------------------------------------------------------------

    def propose(self, entries: Sequence[Frame]) -> None:
        """Append entries as leader: they carry `term` and follow `last_index` without a gap.

        Raise NotLeader, Transferring, TooMuchUncommitted; then nothing was appended.
        """
        self._lead().propose(entries)

    def propose_membership(self, membership: Membership) -> int:
        """Return append a membership change as leader; return its index. It is valid at once (Raft §6, thesis §4.1).

        Raise NotLeader, Transferring; ChangePending while another is not committed, or nothing of this term is;
        ValueError when more than one voter differs (change one at a time), or no voter is left.
        """
        return self._lead().propose_membership(membership)

    def fill(self, send: SendEntries, entries: list[LogEntry]) -> Append | RecoverTo | None:
        """Return the message for a SendEntries, to be sent to `send.to` at once, or None if it is no longer needed.

        Args:
            send: as it came in a Ready.
            entries: from `send.first` on; none when they cannot be had (tell `compacted` before, when they are gone).
        """
        wanted, asked = self.offers.get(send.to, (None, Recover(0, 0)))
        if wanted is send:
            return RecoverTo(self.term, asked.nonce, 0, asked, entries)
        return None if self.leading is None else self.leading.fill(send, entries)

    def persisted(self, index: int, epoch: int) -> None:
        """Note that everything through `index` is durable here.

        Args:
            index: the last entry of a Ready's `append`.
            epoch: that Ready's. A write that ends after the log was cut again says nothing about the new log.
        """
        if self.frozen or not self.log.persisted(index, epoch):
            return
        if self.leading is not None:
            self.leading.count()
        else:
            follower.persisted(self)

    def compacted(self, index: int) -> None:
        """Note that entries through `index` have left the log. Invariant: they are committed and durable."""
        assert index <= min(self.log.commit, self.log.durable), f"entry {index} is still needed here"
        self.log.terms.forget(index)

    def installed(self, index: int, term: int, membership: Membership) -> None:
        """Note that the state of `Ready.install` is in place and durable, and the log is empty after `index`.

        Args:
            index: of the last entry in the state; at least that of the Install.
            term: of that entry.
            membership: as of that entry.
        """
        if self.frozen:
            return
        wanted = self.installing
        assert wanted is not None, "nothing was to be installed"
        assert index >= wanted.index, f"a state as of {index} instead of {wanted.index}"
        past = reaching(wanted.past, wanted.index, wanted.last_term, index, term)
        self.log.install(index, term, membership, past)
        self._given_commit = index
        self.matched = index
        self.acked = 0
        follower.installed(self, True)

    def install_failed(self) -> None:
        """Note that the state of `Ready.install` could not be fetched; the leader offers it again."""
        if not self.frozen:
            follower.installed(self, False)

    def announce(self) -> None:
        """Send the commit index to followers that do not know it and are not about to get more entries.

        The caller decides how soon after a commit (see `RaftOptions.eager_commit`); otherwise the next heartbeat tells
        them.
        """
        if self.leading is not None:
            self.leading.announce()

    # -- leadership ----------------------------------------------------------------------------------------------

    def campaign(self) -> bool:
        """Stand for election now, with a pre-vote. Return False if this member may not: it is no voter, recovering, or
        heard from a leader within `election_ticks`."""
        if self.leading is not None or not self.promotable or self.in_lease:
            return False
        self.wake()
        election.campaign(self, pre=True)
        return True

    def transfer(self, to: str = "") -> str:
        """Transfer leadership (thesis §3.10) to `to`, or if "" to the most caught-up voter. Return the target; "" if
        there is no other voter, or `to` is this leader itself.

        A second call replaces the first. Given up after `transfer_ticks`: see `transferring`.
        Raise NotLeader; ValueError when `to` is no voter.
        """
        return self._lead().transfer(to)

    def step_down(self) -> None:
        """Stop leading at once, in the same term, and ask the most caught-up voter to take over."""
        self._lead().hand_off()

    def freeze(self) -> None:
        """Stop leading, voting and acknowledging for good, because the disk failed (invariant 4)."""
        if self.leading is not None:
            self.leading.hand_off()
        self.retire()

    def read(self, context: object) -> None:
        """Request an index at which a linearizable read may be served (ReadIndex, Raft §8, thesis §6.4).

        It comes in `Ready.reads` once a quorum confirmed that this leader still leads. Raise NotLeader.
        """
        self._lead().read(context)

    # -- other nodes ---------------------------------------------------------------------------------------------

    def unreachable(self, peer: str) -> None:
        """Note that messages sent to `peer` may be lost."""
        if self.leading is not None:
            self.leading.unreachable(peer)

    def node_down(self, node: str) -> None:
        """Note that a node is not alive. Wake a quiescent group that needs it."""
        self.down.add(node)
        if not self.quiescent:
            return
        if self.leading is not None:
            if node in self.leading.progress:
                self.wake()
        elif node == self.leader:
            self.wake()
            # Its lease ended when it sent Quiesce: do not wait for a whole election timeout.
            self.heard = NEVER
            self.elapsed = self.options.election_ticks

    def node_up(self, node: str) -> None:
        """Note that a node is alive (again); messages sent to it before may be lost."""
        self.down.discard(node)
        if self.leading is not None:
            self.leading.node_up(node)
        elif node == self.leader:
            self.wake()  # it may have been restarted and no longer lead

    # -- inside --------------------------------------------------------------------------------------------------

    def _lead(self) -> Leader:
        if self.leading is None:
            raise NotLeader(self.leader)
        return self.leading

    def _notice_change(self) -> None:
        """Note in the Ready which of term, vote, role and leader changed since the last one."""
        term, vote, role, leader = self._given
        if (self.term, self.vote) != (term, vote):
            self.out.hard = self.hard
        if (self.term, self.role, self.leader) != (term, role, leader):
            self.out.changed = True
        self._given = (self.term, self.vote, self.role, self.leader)
