"""What all roles of a member share.

Belongs here: the member's state, and the transitions between roles that everybody may cause. What a role does with it
is in election.py, follower.py and leader.py; the face to the outside is core.py.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from lakestream.raft.core.log_view import LogView
from lakestream.raft.core.messages import Confirmed, HardState, Install, Message
from lakestream.raft.core.ready import Options, Ready, Role

if TYPE_CHECKING:
    from lakestream.raft.core.leader import Leader

NEVER = -(1 << 40)
"""A tick long ago."""


class State:
    """One member of one group. See `Core` for what may be read from outside."""

    def __init__(self, me: str, hard: HardState, log: LogView, options: Options, random: Random) -> None:
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
        self.leading: Leader | None = None
        self.votes: dict[str, bool] = {}
        """Candidates: who answered what."""
        self.transfer_vote = False
        """Candidates: the former leader wants this election."""
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
        """Tick at which a leader was last heard."""
        self.matched = log.commit
        """Through where this log is known to agree with that of the leader of `term`: what is committed (Raft §5.4.3,
        leader completeness), and what its Appends proved."""
        self.acked = 0
        """What the leader of `term` was last told of it."""
        self.heard_commit = 0
        """The most that any leader said is committed, since this process began; 0: no leader said anything yet."""
        self.installing: Install | None = None
        self.recovering = False
        self.forgetful = False
        """Its hard state was lost, too: it believes no leader that is not confirmed without it."""
        self.joining = False
        """Recovering only because it is new: it has no promise to break, so it votes."""
        self.nonce = random.getrandbits(48)
        self.recover_to: int | None = None
        """What the leader of `term` told."""
        self.recover_asked = NEVER
        self.remembers = True
        """True if acknowledged entries are durable, so that a log with fewer means a disk that was rolled back."""
        self.confirmed: dict[str, Confirmed] = {}
        """Of each member the newest committed entry that it is known to have acknowledged; see confirmed.py."""
        self.warned: set[str] = set()
        """Members of whose conflicting entries the shell was told."""
        if hard.term > 0 and any(other.voters != (me,) for _, other in log.memberships):
            # A restarted member does not remember what it promised to whom: it keeps a promise that it may have made.
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
        """Whether this member heard from a leader so recently that it votes for nobody else (thesis §4.2.3, §6.4)."""
        return self.leading is not None or self.now - self.heard < self.options.election_ticks

    @property
    def promotable(self) -> bool:
        """Whether this member may become leader.

        One that is not in its newest membership still may while that is not committed: without it the group could be
        stuck (thesis §4.2.2).
        """
        if self.recovering or self.frozen or self.installing is not None:
            return False
        return any(self.me in membership.voters for _, membership in self.log.memberships)

    def set_term(self, term: int) -> None:
        """A newer term: no vote in it yet, no leader known."""
        assert term > self.term, f"term {self.term} → {term}"
        self.term = term
        self.vote = ""
        self.matched = self.log.commit
        self.acked = 0
        self.recover_to = None
        self.recover_asked = NEVER

    def become_follower(self, term: int, leader: str) -> None:
        """Follow `leader` ("" when nobody is known) in `term`, which is this member's or newer."""
        if term != self.term:
            self.set_term(term)
        if self.leading is not None:
            self.out.lost_reads.extend(self.leading.reads.drop())
            self.leading = None
        # Raft §5.2: a follower's clock goes on when it only hears of a newer term.
        if leader or self.role is not Role.FOLLOWER:
            self.reset_clock()
        self.role = Role.FOLLOWER
        self.leader = leader
        self.votes = {}

    def retire(self) -> None:
        """Take part no more, for good."""
        if self.role is not Role.FOLLOWER:
            self.become_follower(self.term, "")
        self.wake()
        self.leader = ""
        self.frozen = True

    def hear(self) -> None:
        """The leader gave a sign of life."""
        self.elapsed = 0
        self.heard = self.now

    def durable_match(self) -> int:
        """Through where this log agrees with the leader's, and is durable."""
        return min(self.matched, self.log.durable)

    def wake(self) -> None:
        """The clocks run again."""
        if not self.quiescent:
            return
        self.quiescent = False
        if self.leading is not None:
            self.leading.woken()
        else:
            self.reset_clock()
            self.heard = self.now  # the leader's node was alive all the time: see node_down
