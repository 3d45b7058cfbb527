"""A group of one: this node is its only member.

Belongs here: the group of a server without a cluster. An entry is committed once this node's write is durable, a
volatile one once it is written. There are no elections, no hard state beside the log, and no messages.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lakestream.log.format.errors import LogError
from lakestream.log.format.files import Brief, Io
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.store.log import Appended, Log, SealState
from lakestream.log.store.segment_log import SegmentLog
from lakestream.raft.core.messages import Install, Membership
from lakestream.raft.group.group import (
    Committed,
    Group,
    GroupOwner,
    Member,
    MemberProgress,
    Proposal,
    Steps,
    Wait,
    brief,
    failure_of,
    frames_of,
    size_of,
    unapplied,
)

AT_ONCE = 512
"""Number of messages of one write that are committed in one turn of the event loop; the others follow in later ones, so
that a slow disk with much to write does not delay other streams."""
OPERATION_MSGS = 4
"""An operation counts as so many of them: the deletion of a message takes some 10 µs."""
BRIEF_WRITES = 8
"""Appends to up to this many logs with one sync are brief work, if each is."""


class _Write(msgspec.Struct, gc=False):
    """A write of a group that may share a sync: its proposals, the index of the first, their term, their frames."""

    group: SoloGroup
    proposals: list[Proposal]
    first: int
    term: int
    frames: list[Frame] = []


class Company:
    """The groups of one store, whose writes share a sync if they come together: in one turn of the event loop, or while
    such a write is under way. No timer, and no group, delays a lone one: it writes as if there were no others.

    Attributes:
        answering: entries of several groups are being committed.
    """

    def __init__(self) -> None:
        self.answering = False
        self._waiting: list[_Write] = []
        self._asked = self._together = False  # the end of the turn begins writes; one for several groups is under way

    @property
    def gathers(self) -> bool:
        """Return True if a write that is added now shares a sync with others."""
        return self._asked or self._together

    def add(self, write: _Write) -> None:
        """Take a write, and begin it soon."""
        self._waiting.append(write)
        if not self.gathers:
            self._asked = write.group.io.call_gathered(self._begin)

    def _begin(self) -> None:
        self._asked = False
        writes, self._waiting = self._waiting, []
        if len(writes) == 1:
            writes[0].group.write_alone(writes[0].proposals, None)
        elif writes:
            self._together = True
            small = len(writes) <= BRIEF_WRITES and all(brief(each.proposals) for each in writes)
            writes[0].group.io.submit(
                lambda: _append(writes),
                lambda found, error: self._ended(writes, found, error),
                Brief.NOW if small else Brief.NO,
            )

    def _ended(
        self,
        writes: list[_Write],
        found: list[list[Appended] | Exception] | None,
        error: BaseException | None,
    ) -> None:
        """Commit entries of several groups, in later turns of the event loop what is more than `AT_ONCE` messages."""
        failed: list[BaseException] = []
        self.answering, messages, at = True, 0, 0
        while at < len(writes) and messages <= AT_ONCE:
            write, placed = writes[at], found[at] if found is not None else None
            messages += sum([_share(each.kind, each.count) for each in write.proposals])
            at += 1
            try:
                if isinstance(placed, list):
                    write.group.written(_committed(write.frames, placed, write.proposals), None)
                else:
                    write.group.written(None, error or placed)
            except Exception as wrong:  # the others are committed all the same
                failed.append(wrong)
        self.answering = False
        if at < len(writes):
            rest = found[at:] if found is not None else None
            writes[at].group.io.submit(lambda: rest, lambda _, __: self._ended(writes[at:], rest, error))
        else:
            self._together = False
            self._begin()
        if failed:
            raise failed[0]


def _append(writes: list[_Write]) -> list[list[Appended] | Exception]:
    """Append to the logs of several groups. In a thread."""
    parts = []
    for write in writes:
        write.frames = frames_of(write.proposals, write.first, write.term)
        parts.append((write.group.segment_log, write.frames))
    return SegmentLog.append_together(parts)


def _committed(frames: list[Frame], placed: list[Appended], proposals: list[Proposal]) -> list[Committed]:
    return [
        Committed(frame, at, proposal.context) for frame, at, proposal in zip(frames, placed, proposals, strict=True)
    ]


class SoloGroup(Group):
    """The group of a log that only this node holds. It always leads."""

    def __init__(self, log: Log, io: Io, owner: GroupOwner, me: str = "", company: Company | None = None) -> None:
        """Take an open `log` whose entries are all applied. `io` are threads for the writes, `company` the groups of
        the other logs of the store."""
        self.me = me
        self.io = io
        self._company = company
        self.failed: Exception | None = None
        self._log, self._owner = log, owner
        self._term = max(log.last_term, 1)
        self._last_index = log.last_index
        self._queue: list[list[Proposal]] = []
        self._draining = self._stopped = False
        self._resting: tuple[Callable[[], None], ...] = ()  # to be called when the last work has ended
        log.on_idle = self._idle

    # ------------------------------------------------------------------ state
    @property
    def in_flight(self) -> bool:
        return self._log.busy

    @property
    def at_rest(self) -> bool:
        return not self._log.busy

    @property
    def in_company(self) -> bool:
        return self._company is not None and self._company.answering

    @property
    def segment_log(self) -> SegmentLog:
        """Return the log of a group whose writes share a sync."""
        assert isinstance(self._log, SegmentLog)
        return self._log

    @property
    def is_leader(self) -> bool:
        return True

    @property
    def leader(self) -> str:
        return self.me

    @property
    def term(self) -> int:
        return self._term

    @property
    def last_index(self) -> int:
        return self._last_index

    commit_index = heard_commit = last_index

    @property
    def membership(self) -> Membership:
        return Membership((self.me,))

    @property
    def recovering(self) -> bool:
        return False

    @property
    def handing_over(self) -> bool:
        return False

    @property
    def gave_up(self) -> bool:
        return True

    @property
    def replicated(self) -> bool:
        return False

    def progress(self) -> list[MemberProgress]:
        return [MemberProgress(self.me, self._last_index, False, True, 0)]

    def snapshot(self) -> Install:
        return Install(self._term, self._last_index, self._log.last_term, self.membership)

    # ------------------------------------------------------------------ life
    def start(self) -> None:
        self._owner.on_role(True, self.me, self._term)

    def stop(self, done: Callable[[], None] | None = None) -> None:
        self._stopped = True
        if done is not None and self._log.busy:
            self._resting += (done,)
        elif done is not None:
            done()

    def give_up(self, error: Exception) -> None:
        failure = self._log.failed or unapplied(error)
        self._log.failed = failure
        self._fail(failure)

    # ------------------------------------------------------------------ log
    def propose(self, proposals: list[Proposal]) -> None:
        assert not self._log.busy, "a write is under way"
        if self.failed is not None:
            raise self.failed
        if not proposals:
            return
        if not self._log.durable:
            self._commit_at_once(proposals)
            return
        state = self._log.seal_state(self._log.now())
        self._log.busy = True
        company = self._company
        # A lone stream asks no more than this: it is the last one of its turn, and nothing else waits.
        if state is None and company is not None and (company.gathers or self.io.gathers()) and self._joins(proposals):
            company.add(_Write(self, proposals, self._last_index + 1, self._term))
        else:
            self.write_alone(proposals, state)

    def _joins(self, proposals: list[Proposal]) -> bool:
        """Return True if this write shares a sync with others that come at the same time."""
        log = self._log
        if not isinstance(log, SegmentLog) or self.io.slow or not log.joins(size_of(proposals)):
            return False
        return not _volatile(proposals)

    def read_index(self, done: Callable[[int], None]) -> None:
        done(self._last_index)

    def sync(self) -> None:
        if self._log.busy or self.failed is not None or not self._log.unsynced:
            return
        self._log.busy = True
        self.io.submit(self._log.sync, lambda _, error: self._synced(error))

    def compact_through(self, index: int, done: Callable[[BaseException | None], None] | None = None) -> None:
        log = self._log
        self.io.submit(
            lambda: log.remove_through(index) if isinstance(log, SegmentLog) else None,
            lambda _, error: done(error) if done is not None else None,
        )

    # ------------------------------------------------------------------ leadership and members
    def transfer(self, to: str = "") -> bool:
        return False

    def stay(self) -> None:
        pass

    def step_down(self) -> None:
        pass

    def campaign(self) -> None:
        pass

    def propose_membership(self, membership: Membership, done: Callable[[bool], None]) -> None:
        raise ValueError("a group of one gets members when its server is part of a cluster")

    # ------------------------------------------------------------------ writing
    def write_alone(self, proposals: list[Proposal], state: SealState | None) -> None:
        """Write entries with a sync of their own; with `state`, seal the open segment before."""
        first, term = self._last_index + 1, self._term
        how = Brief.NOW if state is None and brief(proposals) else Brief.NO
        self.io.submit(lambda: self._write(proposals, first, term, state), self.written, how)

    def _write(self, proposals: list[Proposal], first: int, term: int, state: SealState | None) -> list[Committed]:
        """Write in the I/O thread. Raise LogFrozen."""
        if state is not None:
            self._log.seal(state)
        frames: list[Frame] = frames_of(proposals, first, term)
        placed = self._log.append(frames, volatile=_volatile(proposals))
        return _committed(frames, placed, proposals)

    def written(self, committed: list[Committed] | None, error: BaseException | None) -> None:
        """Commit entries that are durable, or fail with the error of their write."""
        if committed is None:
            self._log.busy = False
            self._fail(error)
        else:
            self._commit(committed)
        if self._resting and not self._log.busy:
            self._rest()

    def _commit(self, entries: list[Committed]) -> None:
        """Commit entries that are durable, in parts. The log stays busy until the last one."""
        part, rest = _parted(entries) if self._log.durable else (entries, [])
        self._last_index = part[-1].frame.index
        self._log.busy = bool(rest)
        steps = None
        try:
            if not self._stopped:
                steps = self._owner.on_commit(part)
        finally:
            self._go_on(steps, rest)

    def _go_on(self, steps: Steps | None, rest: list[Committed], wait: Wait | None = None) -> None:
        """Leave the next step, or the next part of what is durable, to a later turn. The log is busy until then."""
        if self._stopped or self.failed is not None:
            if steps is not None or rest:
                self._log.busy = False
        elif steps is not None:
            self._log.busy = True
            if wait is not None:
                wait(lambda: self._step(steps, rest))
            else:
                self.io.submit(lambda: None, lambda _, error: self._step(steps, rest))
        elif rest:
            self.io.submit(lambda: rest, self.written)

    def _step(self, steps: Steps, rest: list[Committed]) -> None:
        """Take one step. What the owner proposes with the last one is written at once if there is no other part."""
        left: Steps | None = None
        wait: Wait | None = None
        self._log.busy = bool(rest)
        try:
            if not self._stopped and self.failed is None:
                for found in steps:
                    left, wait = steps, found
                    break
        finally:
            self._go_on(left, rest, wait)
        if self._resting and not self._log.busy:
            self._rest()

    def _synced(self, error: BaseException | None) -> None:
        self._log.busy = False
        self._idle(error)

    def _idle(self, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error)
        elif self.failed is None and not self._stopped:
            self._owner.on_commit([])
        if self._resting:
            self._rest()

    def _rest(self) -> None:
        resting, self._resting = self._resting, ()
        for done in resting:
            done()

    def _fail(self, error: BaseException | None) -> None:
        if self.failed is None:
            self.failed = failure_of(error)
            if not self._stopped:
                self._owner.on_failure(self.failed)

    def _commit_at_once(self, proposals: list[Proposal]) -> None:
        self._queue.append(proposals)
        if self._draining:
            return
        self._draining = True
        try:
            while self._queue:
                self.written(self._write(self._queue.pop(0), self._last_index + 1, self._term, None), None)
        except Exception as error:
            self._queue.clear()
            self._fail(error)
            raise
        finally:
            self._draining = False


def _volatile(proposals: list[Proposal]) -> bool:
    """Return True if none of these has to be durable."""
    return proposals[0].volatile and all(each.volatile for each in proposals)


def _parted(entries: list[Committed]) -> tuple[list[Committed], list[Committed]]:
    """Return the first entries, with up to `AT_ONCE` messages, and the others."""
    messages = 0
    for at, entry in enumerate(entries if len(entries) > 1 else ()):
        messages += _share(entry.frame.kind, entry.frame.count)
        if at and messages > AT_ONCE:
            return entries[:at], entries[at:]
    return entries, []


def _share(kind: Kind, count: int) -> int:
    """Return the number of messages that an entry with `count` of them counts for."""
    return OPERATION_MSGS if kind is Kind.OPERATION else max(count, 1)


class SoloMember(Member):
    """This node's part in a group of one: everything in its log is committed, and the log knows what was durable."""

    durable_through = None
    commit_through = 1 << 62
    recovering = begins = False

    def __init__(self, group: str, me: str, company: Company) -> None:
        self.group, self.me, self._company = group, me, company

    @property
    def membership(self) -> Membership:
        return Membership((self.me,))

    def damaged(self) -> None:
        raise LogError(f"the log of group {self.group} is damaged, and no other node has a copy; restore a backup")

    def recall(self) -> None: ...

    def join(self, log: Log, io: Io, owner: GroupOwner) -> SoloGroup:
        return SoloGroup(log, io, owner, self.me, self._company)


class SoloGroups:
    """The groups of a server without a cluster."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._company = Company()

    def member(self, group: str, directory: str, membership: Membership, *, lost: bool = False) -> SoloMember:
        """Return a member that is the only voter, whatever `membership` says."""
        return SoloMember(group, self._me, self._company)

    def replicated(self) -> dict[str, Group]:
        return {}

    def start(self) -> None: ...

    def stop(self) -> None: ...
