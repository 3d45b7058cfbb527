"""A group: the members that agree on one stream's log.

Belongs here: the face of a group towards whoever applies its entries, and the group of one, in which an entry is
committed once it is durable here. With a `Member` the same calls go to Raft (member.py).
"""

from __future__ import annotations

from collections.abc import Callable

from lakestream.log.format.errors import LogError
from lakestream.log.format.files import Io
from lakestream.log.format.frame import Frame
from lakestream.log.store.memory import Log
from lakestream.log.store.segment_log import SealState, SegmentLog
from lakestream.raft.core.messages import Install, Membership
from lakestream.raft.core.ready import NotLeader
from lakestream.raft.group.callbacks import Owner
from lakestream.raft.group.disk import Replacement
from lakestream.raft.group.raft_group import Member, MemberProgress
from lakestream.raft.proposal import Committed, Proposal, brief

__all__ = ["Committed", "Group", "Proposal", "Replacement"]

Done = Callable[[Replacement | None], None]


class Group:
    """The members of one log. Everything but the writing happens in the event loop.

    Without a member it is a group of one: always the leader, never anything else to tell. With one, nothing happens
    before `start`; set `on_role`, `on_lost` and `on_install` before that.
    """

    def __init__(
        self,
        log: Log,
        io: Io,
        on_commit: Callable[[list[Committed]], None],
        on_failure: Callable[[Exception], None],
        *,
        member: Member | None = None,
    ) -> None:
        """Take part in the group whose entries are in `log`.

        Args:
            log: the store's log.
            io: threads for the writes.
            on_commit: called with committed entries in index order, each exactly once, durable here. Those that this
                node did not propose, or proposed in an earlier leadership, have the context None. It is called with
                none when what was gathered meanwhile can be proposed now. A SEAL comes last in its call.
            on_failure: called once when a write or sync failed (invariant 4). Nothing that was proposed and not handed
                out is committed, as far as this process knows, and nothing will be. A member has left the group then,
                for as long as this process runs; what it had acknowledged is durable.
            member: this node's membership in a group with others, from `Groups.member`.
        """
        self._log = log
        self._io = io
        self._on_commit = on_commit
        self._on_failure = on_failure
        self.on_role: Callable[[bool, str, int], None] = lambda leads, leader, term: None
        """(whether this node leads, the leader's name or "", term) whenever it changes. A new leader hears of it once
        everything before its own term is handed out; on the way there it may hear (False, "", term)."""
        self.on_lost: Callable[[list[object]], None] = lambda contexts: None
        """Contexts of proposals that will not come back: leadership was lost, and what became of them is unknown. They
        may still be handed out, without context. Called before `on_role` says so."""
        self.on_install: Callable[[str, Install, Done], None] = lambda sender, install, done: done(None)
        """The leader's log begins after what is missing here: fetch the state as of `install.index` or later from
        `sender`, then call `done` with it, or with None when it could not be had (the leader asks again)."""
        self.on_notice: Callable[[str, bool], None] = lambda text, bad: None
        """(text, whether it is an error) of what was found out about disks that were rolled back, for the log."""
        self.failed: Exception | None = None
        self._member = member
        self._given_up = 0
        """The term in which this node began to give up leading."""
        self._term = max(log.last_term, 1)
        self._last_index = log.last_index
        self._queue: list[list[Proposal]] = []
        self._draining = False
        if member is None:
            log.on_idle = self._idle
        else:
            assert isinstance(log, SegmentLog), "a log in memory has one member"
            member.attach(
                log,
                Owner(
                    on_commit=lambda entries: self._on_commit(entries),
                    on_failure=self._fail,
                    on_role=lambda leads, leader, term: self.on_role(leads, leader, term),
                    on_lost=lambda contexts: self.on_lost(contexts),
                    on_install=lambda sender, install, done: self.on_install(sender, install, done),
                    on_notice=lambda text, bad: self.on_notice(text, bad),
                ),
            )

    @property
    def in_flight(self) -> bool:
        """Whether a write or a seal is under way, or too much is uncommitted; the caller gathers meanwhile."""
        return self._log.busy if self._member is None else self._member.in_flight

    @property
    def is_leader(self) -> bool:
        """Whether `on_role` was last told so; a group of one always leads."""
        return self._member is None or self._member.leads

    @property
    def leader(self) -> str:
        """The leader's name; "" when unknown, and in a group of one."""
        return "" if self._member is None else self._member.core.leader

    @property
    def term(self) -> int:
        """The current term."""
        return self._term if self._member is None else self._member.core.term

    @property
    def last_index(self) -> int:
        """The newest entry of the log, committed or not."""
        return self._last_index if self._member is None else self._member.core.last_index

    @property
    def commit_index(self) -> int:
        """Entries through here are committed, as far as this member knows."""
        return self._last_index if self._member is None else self._member.core.commit

    @property
    def heard_commit(self) -> int:
        """The most that any leader said is committed, since this process began; 0: none was heard yet."""
        return self._last_index if self._member is None else self._member.core.heard_commit

    @property
    def membership(self) -> Membership | None:
        """Who belongs to the group as of its newest entry; None for a group of one."""
        return None if self._member is None else self._member.membership

    @property
    def recovering(self) -> bool:
        """Whether this member's log was damaged and does not yet hold again what it acknowledged."""
        return self._member is not None and self._member.recovering

    def start(self) -> None:
        """Take part from now on: elections, and entries from a leader. A group of one needs it not."""
        if self._member is not None:
            self._member.start()

    def stop(self, done: Callable[[], None] | None = None) -> None:
        """Take part no more, because the log is about to be closed. What is proposed is not told about any more.

        `done`: called when nothing of it is at work in a thread any more; before that, its directory must not be
        opened again in this process.
        """
        if self._member is not None:
            self._member.stop(done)
        elif done is not None:
            done()

    def propose(self, proposals: list[Proposal]) -> None:
        """Append entries in order: one write, one fdatasync, then `on_commit` in the event loop.

        Invariant: not in_flight. For a stream in memory they are committed before this returns, except when it is
        called from `on_commit`: then they follow after that. Raises the failure of a group that failed, and NotLeader.
        """
        if self._member is not None:
            self._given_up = 0  # a transfer that came to nothing
            self._member.propose(proposals)
            return
        assert not self._log.busy, "a write is under way"
        if self.failed is not None:
            raise self.failed
        if not proposals:
            return
        if not self._log.durable:
            self._commit_at_once(proposals)
            return
        state = self._log.seal_state(self._log.now())
        first, term = self._last_index + 1, self._term
        self._log.busy = True
        self._io.submit(
            lambda: self._write(proposals, first, term, state), self._written, state is None and brief(proposals)
        )

    def give_up(self, error: Exception) -> None:
        """A committed entry could not be applied: nothing more is written, and no checkpoint of half an entry."""
        failure = self._member.log.failed if self._member is not None else self._log.failed
        if failure is None:
            what = (
                f"a committed entry could not be applied: {error!r}; the log takes no more entries, restart the server"
            )
            failure = error if isinstance(error, LogError) else LogError(what)
        if self._member is not None:
            self._member.fail(failure)
            return
        self._log.failed = failure
        self._fail(failure)

    def sync(self) -> None:
        """Make durable what relaxed writes left (see LogOptions.sync_always). Call it from a timer."""
        if self._member is not None:
            self._member.sync()
            return
        if self._log.busy or self.failed is not None or not self._log.unsynced:
            return
        self._log.busy = True
        self._io.submit(self._log.sync, lambda _, error: self._synced(error))

    # ------------------------------------------------------------------ with a member
    def transfer(self, to: str = "") -> bool:
        """Have another voter lead, the one that is furthest when `to` is "". False when this node cannot begin that.

        `in_flight` while it goes on; it is given up after an election timeout. The next leader may hear clients before
        this node hears of it: the owner listens to none meanwhile (`handing_over`), and calls `stay` before it does
        again.
        """
        begun = self._member is not None and self._member.transfer(to)
        if begun:
            self._given_up = self.term
        return begun

    @property
    def handing_over(self) -> bool:
        """Whether a transfer that this node began goes on."""
        return self._member is not None and self._member.core.transferring != ""

    def stay(self) -> None:
        """This node leads on after a transfer that came to nothing. The other one may still stand for election."""
        self._given_up = 0

    def step_down(self) -> None:
        """Lead no more; somebody else is elected, perhaps this node again."""
        if self._member is not None:
            self._given_up = self.term
            self._member.step_down()

    @property
    def gave_up(self) -> bool:
        """Whether this node leads no more because it was asked to: then what came to it came to nobody else. A node
        that was replaced, cut off or stopped may hear late of a new leader, which has heard the same clients."""
        return self._member is None or (self._given_up > 0 and self.term <= self._given_up + 1)

    def campaign(self) -> None:
        """Stand for election now rather than after the timeout (the preferred leader of a new group)."""
        if self._member is not None:
            self._member.campaign()

    def propose_membership(self, membership: Membership, done: Callable[[bool], None]) -> None:
        """Change who belongs to the group, by at most one voter; `done(True)` once it is committed.

        `done(False)` when leadership was lost meanwhile. Raises NotLeader, Transferring, and MembershipBusy while an
        earlier change is not committed, ValueError for one that is not possible.
        """
        if self._member is None:
            raise NotLeader("")
        self._member.propose_membership(membership, done)

    def read_index(self, done: Callable[[int], None]) -> None:
        """Call `done(index)` once everything that was committed before this call is handed out here (§6.4).

        `done(-1)` when this node does not lead, or leads no more.
        """
        if self._member is None:
            done(self._last_index)
        else:
            self._member.read_index(done)

    def progress(self) -> list[MemberProgress]:
        """How far each member is, this node among them; empty unless this node leads."""
        return [] if self._member is None else self._member.progress()

    def snapshot(self) -> Install:
        """What describes the state of everything handed out so far: its last entry, and the members as of that.

        For the sender of a state: take it in the turn in which the state is copied (see `Replacement`).
        """
        assert self._member is not None
        return self._member.snapshot()

    def compact_through(self, index: int, done: Callable[[BaseException | None], None] | None = None) -> None:
        """Remove sealed segments whose entries are all ≤ `index`: a durable snapshot holds their state.

        For logs without a store. The newest sealed segment stays.
        """
        assert self._member is not None
        self._member.compact_through(index, done)

    def _write(self, proposals: list[Proposal], first: int, term: int, state: SealState | None) -> list[Committed]:
        """In the I/O thread. Raises LogFrozen."""
        if state is not None:
            self._log.seal(state)
        frames = _frames(proposals, first, term)
        placed = self._log.append(frames)
        return [
            Committed(frame, at, proposal.context)
            for frame, at, proposal in zip(frames, placed, proposals, strict=True)
        ]

    def _written(self, committed: list[Committed] | None, error: BaseException | None) -> None:
        self._log.busy = False
        if committed is None:
            self._fail(error)
            return
        self._last_index = committed[-1].frame.index
        self._on_commit(committed)

    def _synced(self, error: BaseException | None) -> None:
        self._log.busy = False
        self._idle(error)

    def _idle(self, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error)
        elif self.failed is None:
            self._on_commit([])

    def _fail(self, error: BaseException | None) -> None:
        if self.failed is None:
            self.failed = error if isinstance(error, Exception) else RuntimeError(f"the write was given up: {error!r}")
            self._on_failure(self.failed)

    def _commit_at_once(self, proposals: list[Proposal]) -> None:
        self._queue.append(proposals)
        if self._draining:
            return
        self._draining = True
        try:
            while self._queue:
                self._written(self._write(self._queue.pop(0), self._last_index + 1, self._term, None), None)
        except Exception as error:
            self._queue.clear()
            self._fail(error)
            raise
        finally:
            self._draining = False


def _frames(proposals: list[Proposal], first: int, term: int) -> list[Frame]:
    frames = []
    for index, proposal in enumerate(proposals, first):
        body = proposal.body if isinstance(proposal.body, bytes) else b"".join(proposal.body)
        frames.append(Frame(proposal.kind, term, index, proposal.count, body))
    return frames
