"""State of a member, shared by all roles.

Belongs here: the member's state, and the transitions between roles that any message may cause. The rules of the roles
are in election.py, follower.py and leader.py; the interface to callers is core.py.
"""

from __future__ import annotations

from random import Random
from typing import Protocol

from lakestream.log.format.frame import UNKNOWN, Held
from lakestream.raft.core.log_view import LogView
from lakestream.raft.core.messages import Confirmed, HardState, Install, Message, Recover
from lakestream.raft.core.ready import RaftOptions, Ready, Role, SendEntries

NEVER = -(1 << 40)
"""A tick long ago."""


class Leadership(Protocol):
    """The part of leader.py that ends or wakes with the member."""

    def end(self) -> list[object]:
        """End it; return the contexts of reads that were not answered."""

    def woken(self, beat: bool) -> None:
        """End quiescence: the clocks of all members must run again."""


class State:
    """One member of one group. See `Core` for what may be read from outside."""

    def __init__(self, me: str, hard: HardState, log: LogView, options: RaftOptions, random: Random) -> None:
        assert options.election_ticks >= 4, "a lease needs an election timeout of 4 ticks or more"
        assert 1 <= options.heartbeat_ticks < options.election_ticks, "heartbeats must come within an election timeout"
        self.me = me
        self.options = options
        self.random = random
        self.log = log
        self.term = hard.term
        self.vote = hard.vote
        self.role = Role.FOLLOWER
        self.leader = ""
        self.leading: Leadership | None = None
        self.votes: dict[str, bool] = {}
        """On a candidate: the answer of each voter."""
        self.transfer_vote = False
        """On a candidate: True if the former leader asked for this election."""
        self.quiescent = False
        self.frozen = False
        self.down: set[str] = set()
        """Nodes that are known not to be alive."""
        self.out = Ready()
        self.now = 1
        """Ticks so far."""
        self.elapsed = 0
        """Ticks since there was reason not to campaign."""
        self.timeout = 0
        self.heard = NEVER
        """Tick of the last message of a leader."""
        self.matched = log.commit
        """The index through which this log is known to agree with that of the leader of `term`: committed entries (Raft
        §5.4.3, leader completeness), and those that its Appends proved."""
        self.acked = 0
        """The index that was last acknowledged to the leader of `term`."""
        self.heard_commit = 0
        """The newest commit index that a leader announced since this process began, or 0."""
        self.installing: Install | None = None
        self.recovering = False
        self.forgetful = False
        """True if its hard state was lost, too: it trusts no leader that is not confirmed without it."""
        self.joining = False
        """True if recovering only because it is new: it has no promise to break, so it votes."""
        self.nonce = random.getrandbits(48)
        self.recover_to: int | None = None
        """The index that the leader of `term` sent; see `RecoverTo`."""
        self.recover_asked = NEVER
        self.held = Held()
        """Knowledge of a damaged log as it was before."""
        self.missed = UNKNOWN
        """Index and term of the newest entry that a damaged voter had and this whole log lacks."""
        self.offers: dict[str, tuple[SendEntries, Recover]] = {}
        """Entries that are being read for other damaged members, by their names."""
        self.in_vain = 0
        """Number of times that a damaged member asked for the entries behind its log."""
        self.remembers = True
        """True if acknowledged entries are durable, so that a log with fewer means a disk that was rolled back."""
        self.confirmed: dict[str, Confirmed] = {}
        """The newest committed entry that each member is known to have acknowledged; see confirmed.py."""
        self.warned: set[str] = set()
        """Members whose conflicting entries were reported to the shell."""
        if hard.term > 0 and any(other.voters != (me,) for _, other in log.memberships):
            # A restarted member does not remember its promises: keep one that it may have made.
            self.heard = self.now
        self.reset_clock()

    def send(self, to: str, message: Message) -> None:
        """Put a message into the next Ready."""
        self.out.messages.append((to, message))

    def reset_clock(self) -> None:
        """Begin a new election timeout (Raft §5.2: random, so that votes are rarely split)."""
        ticks = self.options.election_ticks
        self.elapsed = 0
        self.timeout = ticks + self.random.randrange(ticks)

    @property
    def in_lease(self) -> bool:
        """Return True if a leader's message came recently, so that it votes for no other (thesis §4.2.3, §6.4)."""
        return self.leading is not None or self.now - self.heard < self.options.election_ticks

    @property
    def promotable(self) -> bool:
        """Return True if this member may become leader.

        One that is not in its newest membership still may while that is not committed: without it the group could be
        stuck (thesis §4.2.2).
        """
        if self.recovering or self.frozen or self.installing is not None:
            return False
        return any(self.me in membership.voters for _, membership in self.log.memberships)

    def set_term(self, term: int) -> None:
        """Adopt a newer term: no vote in it yet, no leader known."""
        assert term > self.term, f"term {self.term} → {term}"
        self.term = term
        self.vote = ""
        self.matched = self.log.commit
        self.acked = 0
        self.recover_to = None
        self.recover_asked = NEVER

    def become_follower(self, term: int, leader: str) -> None:
        """Follow `leader` ("" if unknown) in `term`, which is this member's or newer."""
        if term != self.term:
            self.set_term(term)
        if self.leading is not None:
            self.out.lost_reads.extend(self.leading.end())
            self.leading = None
        # Raft §5.2: a newer term alone does not reset a follower's election clock.
        if leader or self.role is not Role.FOLLOWER:
            self.reset_clock()
        self.role = Role.FOLLOWER
        self.leader = leader
        self.votes = {}

    def retire(self) -> None:
        """Leave the group for good."""
        if self.role is not Role.FOLLOWER:
            self.become_follower(self.term, "")
        self.wake()
        self.leader = ""
        self.frozen = True

    def note_contact(self) -> None:
        """Note a message of the leader."""
        self.elapsed = 0
        self.heard = self.now

    def durable_match(self) -> int:
        """Return the index through which this log agrees with the leader's and is durable."""
        return min(self.matched, self.log.durable)

    def wake(self, beat: bool = True) -> None:
        """Start the clocks again after quiescence. `beat`: a leader has nothing else to send that wakes the others."""
        if not self.quiescent:
            return
        self.quiescent = False
        if self.leading is not None:
            self.leading.woken(beat)
        else:
            self.reset_clock()
            self.heard = self.now  # the leader's node was alive meanwhile; see node_down
