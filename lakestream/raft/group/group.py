"""The interface between a group and the owner of its log.

Belongs here: proposals, committed entries, the owner's callbacks, and what every group and every member can do. There
are two implementations. In a `SoloGroup` (solo.py) an entry is committed once it is durable on this node; in a
`RaftGroup` (raft_group.py) once it is durable on a quorum. Callers need not know which one they hold.

Open a log in this order: `Groups.member`, `open_store(…, durable_through=member.durable_through)`, apply
`store.replay(through=member.commit_through)`, `member.join(store.log, io, callbacks)`, `group.start()`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from lakestream.log.format.errors import LogError
from lakestream.log.format.files import Io
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.store.log import Appended, Log
from lakestream.log.store.segment_log import SegmentLog
from lakestream.raft.core.messages import Install, Membership

BRIEF_MSGS = 64
"""An append of one entry with up to this many messages is brief work (see `Io.submit`)."""
BRIEF_BYTES = 16 << 10
"""An append of one entry with up to this many bytes (16 KiB) is brief work."""


class Diverged(LogError):
    """Raised when this member's committed entries differ from its leader's: it leaves the group, its files stay."""


class Proposal(msgspec.Struct, gc=False):
    """An entry on its way into the log.

    `body` may be pieces, which are joined before they are written; `count` is the number of messages in it; `context`
    comes back unchanged with the committed entry. A `volatile` one has no effect after a restart, so a group of one
    commits it without a sync of its own.
    """

    kind: Kind
    body: bytes | list[bytes]
    count: int
    context: object
    volatile: bool = False


class Committed(msgspec.Struct, gc=False):
    """A committed entry that is durable here, its place in the log, and the context of its proposal."""

    frame: Frame
    at: Appended
    context: object


class Replacement(msgspec.Struct, frozen=True):
    """A state fetched from the leader that takes the place of this member's.

    index, term, membership: of the last entry in the state (the sender's `Group.snapshot()` when it took the state).
    directory: where the state lies. The member writes its own file `raft` there before `swap`.
    swap: called in an I/O thread while no other work of the group runs: closes the old log, moves the directory to the
        group's place, and returns the new log, which is empty after `index`.
    swapped: called in the event loop afterwards, before the next entry is handed out.
    """

    index: int
    term: int
    membership: Membership
    directory: str
    swap: Callable[[], SegmentLog]
    swapped: Callable[[], None]


Installed = Callable[[Replacement | None], None]

Wait = Callable[[Callable[[], None]], None]
"""Has a function called, once, when what is waited for has come; never, if that has become pointless."""
Steps = Iterator[Wait | None]
"""Work that goes on from turn to turn of the event loop: each step is short, other work may be done between two. A step
may end with what has to come before the next one."""


class GroupOwner(Protocol):
    """The owner of a group, as the group calls it. All calls are in the event loop."""

    def on_commit(self, entries: list[Committed], /) -> Steps | None:
        """Take committed entries in index order, each exactly once, durable here.

        Return None once they are applied, or the steps that are left of it. The group takes these one after the other,
        and until the last one it hands out nothing else, seals nothing, and is `in_flight`. While a step waits, only
        another state (`on_install`) may take the place of this one; the steps that are left are dropped then.

        Entries that this node did not propose, or proposed in an earlier leadership, have the context None. An empty
        list means that proposals gathered meanwhile can be proposed now. A SEAL is the last entry of its call.
        """

    def on_failure(self, error: Exception, /) -> None:
        """Note, once, that a write or sync failed (invariant 4). The group commits nothing more in this process; what
        was proposed and not handed out is not committed as far as this process knows."""

    def on_role(self, leads: bool, leader: str, term: int, /) -> None:
        """Take this node's role, the leader's name or "", and the term, whenever one of them changes.

        A new leader is called once everything before its own term is handed out; on the way there it may be called with
        (False, "", term).
        """

    def on_lost(self, contexts: list[object], /) -> None:
        """Note contexts of proposals that will not come back, because leadership was lost.

        Their outcome is unknown: the entries may still be handed out, without context. Called before `on_role`.
        """

    def on_install(self, sender: str, install: Install, done: Installed, /) -> None:
        """Fetch a state: the leader's log begins after what is missing here.

        The state as of `install.index` or later comes from `sender`; call `done` with it, or with None to be asked
        again.
        """

    def on_notice(self, text: str, bad: bool, /) -> None:
        """Log a finding about disks that were rolled back; `bad`: it is an error."""


class Callbacks(msgspec.Struct):
    """The owner of a group as functions, which default to doing nothing."""

    on_commit: Callable[[list[Committed]], Steps | None]
    on_failure: Callable[[Exception], None]
    on_role: Callable[[bool, str, int], None] = lambda leads, leader, term: None
    on_lost: Callable[[list[object]], None] = lambda contexts: None
    on_install: Callable[[str, Install, Installed], None] = lambda sender, install, done: done(None)
    on_notice: Callable[[str, bool], None] = lambda text, bad: None


class MemberProgress(msgspec.Struct, frozen=True):
    """Progress of a member as its leader sees it. `contact_ns`: time since its last answer in ns; 0 for the leader."""

    name: str
    match: int
    learner: bool
    active: bool
    contact_ns: int


class Group(ABC):
    """The members of one log. Only writes happen in threads; everything else happens in the event loop."""

    me: str
    """This node's name."""
    failed: Exception | None
    """The failure that ended this member's part; see `GroupOwner.on_failure`."""

    # ------------------------------------------------------------------ state
    @property
    @abstractmethod
    def in_flight(self) -> bool:
        """Return True while the caller shall gather proposals: during a write, a seal or the steps of an entry, or with
        too much uncommitted."""

    @property
    @abstractmethod
    def at_rest(self) -> bool:
        """Return True if no thread works on the files of this group."""

    @property
    def in_company(self) -> bool:
        """Return True while other groups of this node hand out entries too: answers are best written together."""
        return False

    @property
    @abstractmethod
    def is_leader(self) -> bool:
        """Return True if `on_role` last said that this node leads."""

    @property
    @abstractmethod
    def leader(self) -> str:
        """Return the leader's name, or "" when it is not known."""

    @property
    @abstractmethod
    def term(self) -> int:
        """Return the current term."""

    @property
    @abstractmethod
    def last_index(self) -> int:
        """Return the index of the newest entry of the log, committed or not."""

    @property
    @abstractmethod
    def commit_index(self) -> int:
        """Return the index of the newest entry that this member knows to be committed."""

    @property
    @abstractmethod
    def heard_commit(self) -> int:
        """Return the newest commit index that a leader announced since this process began, or 0."""

    @property
    @abstractmethod
    def membership(self) -> Membership:
        """Return voters and learners as of the newest entry."""

    @property
    @abstractmethod
    def recovering(self) -> bool:
        """Return True while this log lacks entries that the member may have acknowledged; it does not vote then."""

    @property
    @abstractmethod
    def handing_over(self) -> bool:
        """Return True while a transfer that this node began is under way."""

    @property
    @abstractmethod
    def gave_up(self) -> bool:
        """Return True if only this node received the messages that clients sent while it did not lead.

        That is so after it gave up leading on request. A node that was replaced, cut off or stopped may learn late of
        a new leader, which received the same messages.
        """

    @property
    def replicated(self) -> bool:
        """Return True if other nodes hold this log too."""
        return any(name != self.me for name in self.membership.members)

    @abstractmethod
    def progress(self) -> list[MemberProgress]:
        """Return the progress of each member, this node included; empty unless this node leads."""

    @abstractmethod
    def snapshot(self) -> Install:
        """Describe the state of everything handed out so far: its last entry, and the members as of that entry.

        For the sender of a state: call it in the turn in which the state is copied (see `Replacement`).
        """

    # ------------------------------------------------------------------ life
    @abstractmethod
    def start(self) -> None:
        """Take part from now on: `on_role` tells who leads."""

    @abstractmethod
    def stop(self, done: Callable[[], None] | None = None) -> None:
        """Take no more part, because the log is about to be closed. No callback is called any more.

        `done` is called when no thread works on the group's files any more; before that, the directory must not be
        opened again in this process.
        """

    @abstractmethod
    def give_up(self, error: Exception) -> None:
        """Fail because a committed entry could not be applied: nothing more is written, and no checkpoint of half an
        entry."""

    # ------------------------------------------------------------------ log
    @abstractmethod
    def propose(self, proposals: list[Proposal]) -> None:
        """Append entries in order: one write, one fdatasync, then `on_commit` in the event loop.

        Invariant: not in_flight. Entries of a stream in memory are committed before this returns, except in a call from
        `on_commit`: then they follow it. Raise NotLeader, or the failure of a group that failed.
        """

    @abstractmethod
    def read_index(self, done: Callable[[int], None]) -> None:
        """Call `done(index)` once everything that was committed before this call is handed out here (§6.4).

        Call `done(-1)` when this node does not lead, or leads no more.
        """

    @abstractmethod
    def sync(self) -> None:
        """Make durable what relaxed writes left (see `LogOptions.sync_always`). Call it from a timer."""

    @abstractmethod
    def compact_through(self, index: int, done: Callable[[BaseException | None], None] | None = None) -> None:
        """Remove sealed segments whose entries are all ≤ `index`, except the newest: a snapshot has their state.

        For logs whose store does not remove segments itself.
        """

    # ------------------------------------------------------------------ leadership and members
    @abstractmethod
    def transfer(self, to: str = "") -> bool:
        """Hand leadership to the voter `to`, or to the most advanced one. Return False when this node cannot begin.

        `in_flight` while it goes on; it is given up after an election timeout. The next leader may receive messages of
        clients before this node knows of it: the owner takes none while `handing_over`, and calls `stay` before it
        does again.
        """

    @abstractmethod
    def stay(self) -> None:
        """Keep leading after a transfer that failed. The other voter may still stand for election."""

    @abstractmethod
    def step_down(self) -> None:
        """Give up leading. Another voter is elected, or this one again."""

    @abstractmethod
    def campaign(self) -> None:
        """Stand for election now rather than after the timeout (the preferred leader of a new group)."""

    @abstractmethod
    def propose_membership(self, membership: Membership, done: Callable[[bool], None]) -> None:
        """Change the members, by at most one voter; call `done(True)` once it is committed.

        Call `done(False)` when leadership was lost meanwhile. Raise NotLeader, Transferring, ChangePending while an
        earlier change is not committed, ValueError for a change that is not possible.
        """


class Member(ABC):
    """This node's part in a group before the log is open."""

    group: str
    """The group's id."""

    @property
    @abstractmethod
    def membership(self) -> Membership:
        """Return voters and learners as of the newest entry that is known to be committed."""

    @property
    @abstractmethod
    def durable_through(self) -> int | None:
        """Return the index through which this log was durable: a missing entry is damage, not a torn write.

        None: the log itself keeps it (see `open_store`).
        """

    @property
    @abstractmethod
    def commit_through(self) -> int:
        """Return the index through which entries are known to be committed: recovery applies them."""

    @property
    @abstractmethod
    def recovering(self) -> bool:
        """Return True if entries that this member acknowledged may be missing from its log."""

    @property
    @abstractmethod
    def begins(self) -> bool:
        """Return True if this member of several has no state yet: a log with entries has lost it."""

    @abstractmethod
    def damaged(self) -> None:
        """Note durably that the log is damaged and will be cut or emptied: from now on `recovering`. Block.

        Call it before `repair.salvage`, which cuts the log to what is intact. Raise OSError, and LogError when no
        other member can give what is cut.
        """

    @abstractmethod
    def recall(self) -> None:
        """Read what `repair.salvage` has set aside. Block; call it behind that, before `join`."""

    @abstractmethod
    def join(self, log: Log, io: Io, owner: GroupOwner) -> Group:
        """Return the group over an open log of which everything known to be committed is applied.

        Nothing happens before `Group.start`.
        """


class Groups(Protocol):
    """The source of this node's memberships: `groups.RaftGroups` in a cluster, `SoloGroups` in a server of its own."""

    def member(self, group: str, directory: str, membership: Membership, *, lost: bool = False) -> Member:
        """Return this node's membership in `group`, whose log is in `directory`. Block.

        Args:
            group: its id, the same on every node.
            directory: of the log; made when it is missing.
            membership: what a new group begins with, the same on every member. A member that joins an existing group
                passes itself as a learner: `Membership(voters, learners)` as the assignment says; it is told by the
                log, and does not campaign before that. Without effect on a group that is there already. If this node
                is the only voter, it leads at once.
            lost: there is no hard state, or a damaged one, but this node may have been a voter of the group before (its
                disk was replaced): it begins as a recovering member, which does not vote before it holds what the
                leader has, and acknowledges nothing before a majority without it confirmed who leads. Of two voters it
                never becomes whole again: the other one must be made the only voter first.

        Raise CorruptLog when the hard state is damaged (and not `lost`), OSError.
        """

    def replicated(self) -> Mapping[str, Group]:
        """Return the groups here that other nodes take part in, by id."""

    def start(self) -> None:
        """Begin to send ticks to the groups."""

    def stop(self) -> None:
        """Stop ticks and sending, and ignore what arrives. Stop the groups first."""


def brief(entries: Sequence[Frame] | Sequence[Proposal]) -> bool:
    """Return True if appending these is brief work (`Io.submit`): a lone small publish, or nearly.

    For more, a thread writes while the event loop takes in the next messages.
    """
    return len(entries) == 1 and entries[0].count <= BRIEF_MSGS and size_of(entries) <= BRIEF_BYTES


def size_of(entries: Sequence[Frame] | Sequence[Proposal]) -> int:
    """Return the bytes of the bodies of entries."""
    size = 0
    for each in entries:
        size += len(each.body) if isinstance(each.body, bytes) else sum(map(len, each.body))
    return size


def frames_of(proposals: Sequence[Proposal], first: int, term: int) -> list[Frame]:
    """Return the frames of proposals that become the entries from `first` on, in `term`."""
    frames = []
    for index, proposal in enumerate(proposals, first):
        body = proposal.body if isinstance(proposal.body, bytes) else b"".join(proposal.body)
        frames.append(Frame(proposal.kind, term, index, proposal.count, body))
    return frames


def take_all(steps: Steps | None) -> None:
    """Take all steps that are left, of which none waits."""
    for wait in steps or ():
        assert wait is None


def unapplied(error: Exception) -> LogError:
    """Return the failure of a group whose owner could not apply a committed entry."""
    if isinstance(error, LogError):
        return error
    return LogError(
        f"a committed entry could not be applied: {error!r}; the log takes no more entries, restart the server"
    )


def failure_of(error: BaseException | None) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(f"the write was given up: {error!r}")
