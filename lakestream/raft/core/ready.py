"""Output of the Raft core and its options.

Belongs here: `RaftOptions`, `Role`, `Ready` and the records in it, the typed errors. Rules are in core.py and beside
it.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from lakestream.log.format.frame import Frame
from lakestream.raft.core.messages import HardState, Install, Membership, Message


class RaftError(Exception):
    """Raised when the Raft core rejects a call."""


class NotLeader(RaftError):
    """Raised when this member does not lead; `leader` is the leader as far as it knows ("" unknown)."""

    def __init__(self, leader: str) -> None:
        super().__init__(f"this member does not lead; ask {leader!r}" if leader else "no leader is known; try again")
        self.leader = leader


class Transferring(RaftError):
    """Raised while the leader transfers its leadership and takes nothing new."""

    def __init__(self, to: str) -> None:
        super().__init__(f"the leadership is being handed over to {to!r}; propose there")
        self.to = to


class TooMuchUncommitted(RaftError):
    """Raised when `max_uncommitted_bytes` are proposed and not committed; propose again after a commit."""


class ChangePending(RaftError):
    """Raised when a membership change must wait until the one before, or the leader's first entry, is committed."""


class BadMessage(RaftError):
    """Raised for a message that no correct member sends. It was dropped before it changed anything."""


class Role(Enum):
    """Current role of a member. A learner is a follower that is not among the voters."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class RaftOptions(msgspec.Struct, frozen=True):
    """Options of a core. Times are in ticks (the shell's, usually 100 ms), sizes in bytes of entry bodies.

    `election_ticks`: a follower that receives nothing for that long, and up to as much again at random, campaigns; a
    leader without answers of a quorum for that long steps down; a member that heard from its leader within it votes for
    no other member. At least 4.
    `max_inflight`, `max_inflight_bytes`: per follower, how many Appends with entries and how many bytes may be
    unanswered; more waits. `max_append_bytes`: one Append (a larger entry goes alone).
    `max_uncommitted_bytes`: `propose` raises TooMuchUncommitted beyond it; one proposal is always possible.
    `quiesce_ticks`: a group that is idle for so long stops its clocks; 0: never.
    `transfer_ticks`: a leader transfer that takes longer is given up.
    `install_ticks`: an Install without answer is repeated after so long.
    `eager_commit`: tell the followers of every commit at once, not with the next entries or heartbeat.
    """

    heartbeat_ticks: int = 1
    election_ticks: int = 10
    max_inflight: int = 64
    max_inflight_bytes: int = 8 << 20
    max_append_bytes: int = 1 << 20
    max_uncommitted_bytes: int = 64 << 20
    quiesce_ticks: int = 1
    transfer_ticks: int = 10
    install_ticks: int = 20
    eager_commit: bool = False


class RolledBack(msgspec.Struct, frozen=True):
    """A member has less on its disk than it had acknowledged: `teller` knows that `member` had confirmed the committed
    entry `index` of `term`. Its durable log ends at `last` (-1: not known) or holds another entry there."""

    teller: str
    member: str
    index: int
    term: int
    last: int


class Conflict(msgspec.Struct, frozen=True):
    """This member and `member` have different committed entries at `index`: of term `mine` here (0: not known any more)
    and of term `other` there."""

    member: str
    index: int
    mine: int
    other: int


class SendEntries(msgspec.Struct, gc=False, eq=False):
    """Read the entries `first`…`last`, as many as fit into `max_bytes` of bodies (at least one), and give them to
    `Core.fill`, which returns the Append to send. Every SendEntries wants exactly one `fill`: at once when the entries
    are at hand, later when they come from the disk, with no entries when they cannot be had."""

    to: str
    first: int
    last: int
    max_bytes: int
    prev_term: int


class Ready(msgspec.Struct):
    """Actions to take, returned by `Core.ready`. The order matters:

    1. `hard` must be durable before anything else of this or a later Ready is sent or written: no message (nor what
       `fill` returns), no truncation, no entry. It is set only when term or vote changed.
    2. `messages` and `sends` may be sent now; they need not wait for `append`.
    3. The log is cut after `truncate_after`, then `append` is written, both after those of every earlier Ready. When
       that is durable: `Core.persisted(index of the last entry, epoch)`. Several Readys may share one write; `epoch`
       is then the last one's.
    4. `commit`: everything through here is committed, also entries that are not durable here yet: hand out those that
       are both. It is set when the index moved; after a start, read `Core.commit`.
    5. `reads`: each context may be answered from a state that has everything through its index.
    """

    hard: HardState | None = None
    truncate_after: int | None = None
    append: list[Frame] = []
    epoch: int = 0
    messages: list[tuple[str, Message]] = []
    sends: list[SendEntries] = []
    commit: int | None = None
    install: Install | None = None
    """Fetch the state as of `install.index` or later from `install_from`, then `Core.installed` or `install_failed`."""
    install_from: str = ""
    reads: list[tuple[object, int]] = []
    lost_reads: list[object] = []
    """Contexts of reads that will not be answered, because this member leads no more."""
    changed: bool = False
    """True if role, leader or term changed since the last Ready."""
    membership: Membership | None = None
    """The membership that is valid from now on: of an appended entry, or the former one when that entry was cut."""
    recovered: bool = False
    """True if a damaged log is complete again: the mark on disk can be removed."""
    rolled_back: RolledBack | None = None
    """This member has less than it had confirmed: `Core.recovering` and `forgetful` must be durable before anything of
    this or a later Ready leaves."""
    stopped: Conflict | None = None
    """This member's committed entries are not its leader's: the core is frozen, the shell stops the member. The
    AppendReply in `messages` that reports it promises nothing and may be sent at once."""
    missing: tuple[int, int] | None = None
    """The first and last of the entries that are damaged here, and that no member without a leader has sent."""
    warnings: list[RolledBack | Conflict] = []
    """The same findings about other members, to be logged; this member continues."""
