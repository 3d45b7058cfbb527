"""The meta group: the Raft group whose log holds the assignments of a cluster.

Belongs here: this node's member of the group, from its files to the applied state, and proposing entries. meta_join.py
has joining and membership, local.py acts on assignments, the API checks requests before they are proposed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.files import Files
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.store.repair import salvage
from lakestream.log.store.segment_log import LogOptions, SegmentLog
from lakestream.log.store.segment_store import open_store
from lakestream.log.store.store import Store
from lakestream.logging import Logger
from lakestream.meta.assignments import Applied, MetaOp, MetaState, decode_op, encode_op
from lakestream.meta.meta import DIRECTORY, GROUP, Outcome
from lakestream.meta.ports import Peers
from lakestream.ports import Clock, Io
from lakestream.protocol.api.errors import api_error
from lakestream.raft.core.messages import Install, Membership
from lakestream.raft.core.ready import RaftError
from lakestream.raft.group import hard_state
from lakestream.raft.group.group import (
    Callbacks,
    Committed,
    Group,
    Groups,
    Member,
    MemberProgress,
    Proposal,
    Replacement,
)

LOST = "lost"
"""Name of the file with `lost_through`."""

SEAL_BYTES = 4 << 20
"""Length of a segment of the meta log (4 MiB)."""
KEEP_SEGMENTS = 4
"""Sealed segments that the meta log keeps: a member that lags further gets the state instead of the entries."""

OnInstall = Callable[[str, Install, Callable[[Replacement | None], None]], None]


class MetaGroup:
    """This node's member of the meta group; implements `Meta`.

    Its log keeps the last entries, a few hundred bytes for each change of a stream's configuration or nodes; earlier
    ones are in the checkpoint, and a node that lacks them gets the whole state (meta_transfer.py).

    Set `on_applied` and `on_role` before `open`.

    Args:
        root: the server's store directory, the group's files are in `DIRECTORY` there.
        seal_bytes: length of a segment of its log.
        files: the operating system's if there are no others.
    """

    def __init__(
        self,
        root: str,
        nodes: Peers,
        members: Groups,
        clock: Clock,
        io: Io,
        log: Logger,
        seal_bytes: int = SEAL_BYTES,
        files: Files | None = None,
    ) -> None:
        self.me, self.state = nodes.me, MetaState()
        self.directory = os.path.join(root, DIRECTORY)
        self.leading = False
        self.leader = ""
        self.group: Group | None = None
        self.store: Store | None = None
        self.failed: Exception | None = None
        self.lost_through, self.caught_up = 0, False
        self.on_applied: Callable[[Applied], None] = lambda applied: None
        self.on_role: Callable[[], None] = lambda: None
        self.on_caught_up: Callable[[], None] = lambda: None
        self.on_install: OnInstall = lambda sender, install, done: done(None)
        """Fetches a state from another member; see `Group.on_install`."""
        self._nodes, self._members = nodes, members
        self._clock, self._io, self._log = clock, io, log
        self.files, self._options = files or Files(), LogOptions(seal_bytes=seal_bytes)
        self._queued: list[Proposal] = []
        self._proposed: dict[int, Callable[..., None]] = {}
        self._scheduled = self._stopped = False
        self._target = -1

    @property
    def as_of(self) -> int:
        return self.store.applied if self.store is not None else 0

    def transfer(self, to: str = "") -> bool:
        return self.group is not None and self.leading and self.group.transfer(to)

    def progress(self) -> list[MemberProgress]:
        return self.group.progress() if self.group is not None else []

    @property
    def membership(self) -> Membership:
        return self.group.membership if self.group is not None else Membership(())

    # ------------------------------------------------------------------ life
    def open(self) -> None:
        """Load the state of the last run, if there is one. Block, at start. Raise CorruptLog, OSError."""
        if self.files.exists(os.path.join(self.directory, hard_state.NAME)):
            with contextlib.suppress(FileNotFoundError):
                self.lost_through = int(self.files.read(os.path.join(self.directory, LOST)))
            self._take_part(Membership(()))

    def start(self) -> None:
        """Start the group, if this node is a member."""
        if self.group is not None:
            self.group.start()

    def begin(self, membership: Membership, lost_through: int) -> None:
        """Create the files and start the group.

        Args:
            membership: that of a new group, the same on every member; or the present one of an existing group.
            lost_through: > 0 if this node was a member before and has lost its files: the last entry that it may have
                applied.
        """
        assert self.group is None, "it takes part already"
        self.lost_through = lost_through
        if lost_through:  # durable, as this process may end before every replica is created
            self.files.make_directory(self.directory)
            self.keep_lost(self.directory)
        self._take_part(membership, lost=lost_through > 0)
        self.start()

    def stop(self) -> None:
        self._stopped = True
        if self.group is not None:
            self.group.stop()

    def set_aside(self) -> None:
        """Stop and move the files aside: this node was removed from the group, and may join it again as a new one.
        Block for a moment."""
        assert self.group is not None, "there are no files"
        assert self.store is not None
        self.group.stop()
        self.store.close(self.state.dump())
        self.files.replace(self.directory, f"{self.directory}.removed-{self._clock.now()}")
        self.group = self.store = None
        self.state = MetaState()
        self.leader, self.leading, self.caught_up, self._target = "", False, False, -1
        self._nodes.update(clustered=False)

    def close(self) -> None:
        if self.store is not None:
            self.store.close(self.state.dump())

    def _take_part(self, membership: Membership, *, lost: bool = False) -> None:
        """Open or create the files. Block for a few writes: at start, and once in a node's life."""
        member = self._members.member(GROUP, self.directory, membership, lost=lost)
        try:
            store = self._recover(member)
        except CorruptLog as error:
            if len(member.membership.members) < 2:
                raise
            self._log.error(f"the meta group's log is damaged, other members send the missing entries: {error}")
            store = self._repaired(member)
        self.store = store
        callbacks = Callbacks(
            self._committed,
            self._failure,
            self._role,
            self._lost,
            lambda sender, install, done: self.on_install(sender, install, done),
            self._notice,
        )
        self.group = member.join(store.log, self._io.lane(), callbacks)
        self._nodes.update(clustered=True)

    def _recover(self, member: Member) -> Store:
        """Return the store with the committed entries applied. Raise CorruptLog."""
        self.state = MetaState()
        store = self._open_store(member.durable_through)
        if store.extra:
            self.state = MetaState.load(store.extra)
        for frame, _ in store.replay(through=member.commit_through):
            self._apply(frame)
            store.applied = frame.index
        return store

    def _open_store(self, durable_through: int | None) -> Store:
        store = open_store(
            self.directory,
            self._io,
            self._options,
            uid=GROUP,
            files=self.files,
            now=self._clock.now,
            durable_through=durable_through,
            whole=False,
        )
        for note in store.notes:
            self._log.warn(f"the meta group's log: {note}")
        return store

    def _repaired(self, member: Member) -> Store:
        """Truncate a damaged log to its intact entries, or empty it; this member does not vote until the others have
        sent the rest (invariant 3)."""
        member.damaged()
        try:
            salvage(self.directory, self.files)
            member.recall()
            return self._recover(member)
        except CorruptLog:
            salvage(self.directory, self.files, usable=False)
            member.recall()
            return self._recover(member)

    # ------------------------------------------------------------------ entries
    def propose(self, op: MetaOp, done: Outcome) -> None:
        if self.group is None or not self.leading or self.failed is not None:
            done(api_error(10008))
            return
        self._queued.append(Proposal(Kind.OPERATION, encode_op(op), 0, done))
        if not self._scheduled:
            self._scheduled = True
            self._clock.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        group = self.group
        if group is None or group.in_flight or not self._queued or self.failed is not None or self._stopped:
            return
        proposals, self._queued = self._queued, []
        for proposal in proposals:
            if callable(proposal.context):
                self._proposed[id(proposal.context)] = proposal.context
        try:
            group.propose(proposals)
        except RaftError:
            self._lost([proposal.context for proposal in proposals])

    def _committed(self, entries: list[Committed]) -> None:
        store = self.store
        assert store is not None  # Invariant: set before the group exists
        for entry in entries:
            applied = self._apply(entry.frame)
            store.applied = entry.frame.index
            if applied is not None:
                self.on_applied(applied)
                if entry.context is not None:
                    self._proposed.pop(id(entry.context), None)
                    entry.context(applied)  # type: ignore[operator]
        self._check_caught_up()
        self._flush()
        if not self._stopped and (store.checkpoint_due or self._compactable(store)):
            store.checkpoint(self.state.dump(), lambda error: self._checkpointed(store, error))

    @staticmethod
    def _compactable(store: Store) -> bool:
        """Return True if a checkpoint would allow compaction of the log."""
        assert isinstance(store.log, SegmentLog)
        sealed = store.log.segments[:-1]
        return len(sealed) > KEEP_SEGMENTS and sealed[-KEEP_SEGMENTS].last_index > store.checkpoint_index

    def _checkpointed(self, store: Store, error: BaseException | None) -> None:
        """Compact the log through entries that the durable checkpoint holds."""
        if error is not None or store is not self.store or self.group is None or self._stopped:
            return
        assert isinstance(store.log, SegmentLog)
        sealed = store.log.segments[:-1]
        if len(sealed) > KEEP_SEGMENTS:
            self.group.compact_through(min(store.checkpoint_index, sealed[-KEEP_SEGMENTS - 1].last_index))

    def _apply(self, frame: Frame) -> Applied | None:
        return self.state.apply(decode_op(frame.body), frame.index) if frame.kind == Kind.OPERATION else None

    def _lost(self, contexts: list[object]) -> None:
        for context in contexts:
            if callable(context):
                self._proposed.pop(id(context), None)
                context(api_error(10008))

    def _failure(self, error: Exception) -> None:
        self.failed = error
        self._log.error(f"the meta group's log failed, this node takes no part in it any more: {error}")
        waiting, self._queued = self._queued, []
        # A group that failed hands nothing back.
        self._lost([*self._proposed.values(), *(proposal.context for proposal in waiting)])

    def _notice(self, text: str, bad: bool) -> None:
        (self._log.error if bad else self._log.info)(f"the meta group: {text}")

    def _role(self, leads: bool, leader: str, term: int) -> None:
        self.leading, self.leader = leads, leader
        if leads:
            self.catch_up_to(0)  # a leader has applied everything that was committed
        else:
            waiting, self._queued = self._queued, []
            self._lost([proposal.context for proposal in waiting])
        self.on_role()

    # ------------------------------------------------------------------ another state
    def keep_lost(self, directory: str) -> None:
        """Write `lost_through` beside the files in `directory`. Block."""
        if self.lost_through:
            self.files.write_whole(os.path.join(directory, LOST), [b"%d" % self.lost_through])

    def exchange(self, take_in: Callable[[], None]) -> tuple[Callable[[], SegmentLog], Callable[[], None]]:
        """Return the two steps of a `Replacement`: `take_in` replaces the files, which are then opened; after that the
        differences between the states are applied as changed assignments."""
        opened: list[Store] = []

        def swap() -> SegmentLog:
            if self.store is not None:
                self.store.abandon()
            take_in()
            opened.append(self._open_store(0))
            log = opened[0].log
            assert isinstance(log, SegmentLog), "the meta group's log has files"
            return log

        def swapped() -> None:
            before, self.store = self.state, opened[0]
            self.state = MetaState.load(self.store.extra)
            for applied in before.changes(self.state):
                self.on_applied(applied)
            self._check_caught_up()

        return swap, swapped

    # ------------------------------------------------------------------ members
    def change_membership(self, membership: Membership, done: Callable[[str], None]) -> None:
        if self.group is None or not self.leading:
            done("this node does not lead the meta group")
            return
        try:
            self.group.propose_membership(membership, lambda ok: done("" if ok else "leadership was lost meanwhile"))
        except RaftError as error:
            done(str(error))

    def catch_up_to(self, index: int) -> None:
        """Set `caught_up` once `index`, the group's commit index after the start of this node, is applied here."""
        if not self.caught_up:
            self._target = index
            self._check_caught_up()

    def _check_caught_up(self) -> None:
        if self.caught_up or self._target < 0 or self.store is None or self.store.applied < self._target:
            return
        self.caught_up = True
        self.on_caught_up()
