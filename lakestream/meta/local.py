"""Acting on the assignments of this node.

Belongs here: creating and removing replicas so that this node holds exactly the streams assigned to it, reacting to
changes of their leaders, and the leader's duty to reconcile its stream's configuration and members with the assignment.
assignments.py has the meta layer's state, replica.py one replica.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from lakestream.meta import deleted_streams, scaling
from lakestream.meta.assignments import Applied, Assignment, SettleStream
from lakestream.meta.info import GroupAdvisories
from lakestream.meta.meta import Acted, Meta
from lakestream.meta.ports import AllAccounts, Peers
from lakestream.meta.replicas import Replicas
from lakestream.meta.requests import Leaders
from lakestream.meta.shared import Shared
from lakestream.protocol.api.errors import ApiError
from lakestream.protocol.decoding import JsonDecoder
from lakestream.raft.core.messages import Membership
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.operations import CreateStream, UpdateStream

if TYPE_CHECKING:
    from lakestream.meta.replica import Replica
    from lakestream.stream.assembly import Stream


STEP_NS = 100_000_000
"""Interval between the steps of a membership change (100 ms)."""
SETTLE_NS = 1_000_000_000
"""Interval at which a leader proposes `SettleStream` (1 s) until it is applied."""
CAMPAIGNS_NS = (0, 30_000_000, 100_000_000, 200_000_000, 400_000_000)
"""Delays after which the preferred leader of a new stream campaigns, while the others still create their files."""
_STREAM_CONFIG = JsonDecoder(StreamConfig)


class LocalStreams:
    """Holds the replicas assigned to this node; their `Host`. Set `replicas` before any call."""

    replicas: Replicas

    def __init__(
        self,
        shared: Shared,
        accounts: AllAccounts,
        meta: Meta,
        nodes: Peers,
        leaders: Leaders,
        advisories: GroupAdvisories,
    ) -> None:
        self._shared, self._accounts, self._meta, self._nodes = shared, accounts, meta, nodes
        self._leaders, self._advisories = leaders, advisories
        self.on_dropped: Callable[[str], None] = lambda uid: None
        """Called with the uid of a stream whose files were removed from this node."""
        self.settle: Callable[[SettleStream], None] = lambda op: None
        """Proposes an entry to the meta leader."""
        self.updating: set[str] = set()
        """Streams that a request is updating, which proposes the configuration itself."""
        self._leading: set[str] = set()
        self._scaling: set[str] = set()
        self._stopped = False

    # ------------------------------------------------------------------ assignments
    def reconcile(self) -> None:
        """Reconcile the replicas with all assignments: at start, and once this node has caught up.

        A replica that is not assigned is neither started nor removed: its tombstone may have been dropped.
        """
        state = self._meta.state
        for uid in list(self.replicas.by_uid):
            if state.removed(uid):
                self._drop(uid)
        for assignment in list(state.by_uid.values()):
            self._apply(assignment)

    def log_unassigned(self) -> None:
        """Log the replicas that are not assigned."""
        for uid, replica in self.replicas.by_uid.items():
            if uid not in self._meta.state.by_uid:
                where = replica.directory
                self._shared.log.warn(
                    f"stream {replica.name} ({uid}) is not assigned: its files stay in {where}, unused"
                )

    def applied(self, applied: Applied, acted: Acted = lambda error: None) -> None:
        """Act on a changed assignment; call `acted` once its replica is created or removed, or with the error."""
        if applied.after is not None:
            self._apply(applied.after)
            replica = self.replicas.by_uid.get(applied.after.uid) if applied.before is None else None
            if replica is None:
                acted(None)
            else:
                replica.on_created(acted)
        elif applied.before is not None:
            self._leaders.forget(applied.before.uid)
            self._drop(applied.before.uid, applied.before, acted)

    def _apply(self, assignment: Assignment) -> None:
        uid = assignment.uid
        replica = self.replicas.by_uid.get(uid)
        # Invariant: before it has caught up, this node neither creates nor removes a replica: a later entry may revert
        # an old one, and the files here may be of a later time.
        if self._meta.me not in assignment.holders:
            if replica is not None and self._meta.caught_up:
                self._drop(uid)
            return
        if replica is not None or self._meta.caught_up:
            self._hold(uid)
        if replica is not None and replica.stream is not None and replica.stream.hidden and not assignment.restoring:
            self._accounts.of(replica.account).attach(replica.stream)
            replica.stream.reveal()
        elif replica is not None and replica.leading:
            self._reconcile_stream(replica)

    def _attach(self, stream: Stream) -> None:
        """Show a stream to its account, unless it is being restored."""
        assignment = self._meta.state.by_uid.get(stream.uid)
        # The stream's log decides while this node does not know the assignment yet.
        stream.hidden = (
            bool(assignment.restoring) if assignment is not None else stream.hidden or stream.applier.restoring
        )
        if not stream.hidden:
            self._accounts.of(stream.account).attach(stream)

    def _hold(self, uid: str) -> None:
        assignment = self._meta.state.by_uid.get(uid)
        if assignment is None or self._meta.me not in assignment.holders or self._stopped:
            return
        restoring = bool(assignment.restoring)
        create = CreateStream(uid, assignment.account, assignment.config, assignment.created_ns, restoring)
        me = self._meta.me
        voters = tuple(sorted(set(assignment.settled) - (set() if me in assignment.settled else {me})))
        lost = me in assignment.settled and assignment.index <= self._meta.lost_through
        self.replicas.hold(create, Membership(voters), lost=lost)

    def _drop(self, uid: str, before: Assignment | None = None, acted: Acted = lambda error: None) -> None:
        """Remove the replica of a stream for an applied entry. `before`: the assignment until then, the same on all
        nodes; None if this node has missed the entry."""
        replica = self.replicas.by_uid.get(uid)
        stream = replica.stream if replica is not None else None
        shown = stream if stream is not None and stream.applier.created and not stream.hidden else None
        led, removed = uid in self._leading, self._meta.state.removed(uid)
        unopened = replica is not None and replica.found and stream is None  # no other node has this stream

        def dropped(error: ApiError | None) -> None:
            if error is not None and replica is not None:
                self._shared.log.error(f"stream {replica.name}: its files cannot be removed: {error}")
            if stream is not None and not stream.hidden and deleted is None:
                self._shared.lake.detached(stream)
            self.on_dropped(uid)
            acted(error)

        deleted = None
        if removed and shown is not None and self._shared.lake.knows(shown):
            deleted = deleted_streams.creation(shown)
            if before is not None:
                deleted = msgspec.structs.replace(deleted, config=before.config)
        elif removed and replica is not None and unopened:
            deleted = replica.unopened
        self.replicas.drop(uid, dropped, deleted)
        if removed and before is not None and (led or unopened):
            self._accounts.of(before.account).events.stream_action(before.name, "DELETED", "delete")

    # ------------------------------------------------------------------ roles (Host)
    def opened(self, replica: Replica) -> None:
        assert replica.stream is not None  # Invariant: it was opened
        if replica.group is not None and replica.group.is_leader:
            return  # attached once its creation is logged
        self._attach(replica.stream)
        assignment = self._meta.state.by_uid.get(replica.uid)
        if assignment is not None and assignment.peers[0] == self._meta.me and not replica.stream.applier.created:
            self._campaign(replica, 0)

    def caught_up(self, replica: Replica) -> None:
        if replica.stream is not None and not replica.stream.hidden:
            self._accounts.of(replica.account).refresh(replica.stream)

    def created(self, replica: Replica) -> None:
        assert replica.stream is not None  # Invariant: it is about to lead
        if self._accounts.of(replica.account).streams.get(replica.name) is not replica.stream:
            self._attach(replica.stream)

    def leads(self, replica: Replica) -> None:
        assert replica.stream is not None  # Invariant: it leads
        assert replica.group is not None
        self._leading.add(replica.uid)
        account = self._accounts.of(replica.account)
        account.refresh(replica.stream)
        account.lead(replica.stream)
        self._leaders.lead(replica.uid, replica.group.term)
        self._advisories.stream_leader(replica)
        replica.report_created(None)
        self._reconcile_stream(replica)

    def follows(self, replica: Replica) -> None:
        if replica.stream is not None and not replica.stream.hidden:
            self._accounts.of(replica.account).refresh(replica.stream)
        if replica.uid in self._leading:
            self._leading.discard(replica.uid)
            self._accounts.of(replica.account).follow(replica.name)
            self._advisories.stream_lost(replica)
        if replica.group is not None:
            self._leaders.note(replica.uid, replica.group.term, replica.leader)

    def serves(self, account: str) -> bool:
        return self._accounts.of(account).serving

    def reopened(self, replica: Replica) -> None:
        assert replica.stream is not None  # Invariant: it was fetched
        self._attach(replica.stream)

    def gone(self, replica: Replica) -> None:
        if replica.uid in self._leading:
            self._leading.discard(replica.uid)
            self._accounts.of(replica.account).follow(replica.name)
        account = self._accounts.of(replica.account)
        account.detach(replica.name, replica.trouble)
        if replica.was and not replica.trouble:
            account.offline.pop(replica.name, None)

    def _campaign(self, replica: Replica, at: int) -> None:
        """Let the preferred leader campaign without waiting for the election timeout."""

        def campaign() -> None:
            if replica.group is None or replica.leader or self._stopped:
                return
            replica.group.campaign()
            if at + 1 < len(CAMPAIGNS_NS):
                self._campaign(replica, at + 1)

        self._shared.clock.call_later(CAMPAIGNS_NS[at], campaign)

    # ------------------------------------------------------------------ the leader's duties
    def _reconcile_stream(self, replica: Replica) -> None:
        """Reconcile the stream's configuration and members with the assignment. On its leader."""
        assignment, stream = self._meta.state.by_uid.get(replica.uid), replica.stream
        if assignment is None or stream is None:
            return
        if not self._meta.caught_up:
            # The assignment may be outdated: limits of an older configuration could remove messages, and present
            # members may be missing in it. `reconcile` repeats this.
            return
        if assignment.uid not in self.updating and stream.stored != assignment.config:
            wanted = _STREAM_CONFIG.decode(assignment.config)
            if wanted != stream.config:
                stream.propose(UpdateStream(assignment.config))
        if replica.uid not in self._scaling and (assignment.moving or self._unsettled(replica, assignment)):
            self._scaling.add(replica.uid)
            self._step(replica)

    def not_updated(self, uid: str) -> None:
        """End a request's failed update of a stream; if it is assigned all the same, the leader applies it."""
        self.updating.discard(uid)
        replica = self.replicas.by_uid.get(uid)
        if replica is not None and replica.leading:
            self._reconcile_stream(replica)

    @staticmethod
    def _unsettled(replica: Replica, assignment: Assignment) -> bool:
        membership = replica.membership
        return set(membership.voters) != set(assignment.peers) or bool(membership.learners)

    def _step(self, replica: Replica) -> None:
        assignment = self._meta.state.by_uid.get(replica.uid)
        if assignment is None or not replica.leading or self._stopped:
            self._scaling.discard(replica.uid)
            return
        step = scaling.next_step(self._meta.me, replica.membership, assignment.peers, self._standing(replica))
        wait = STEP_NS
        match step:
            case scaling.ProposeMembership():
                self._shared.log.info(f"stream {replica.name}: {step.what}")
                replica.propose_membership(step.membership, lambda why: self._later(replica, STEP_NS if why else 0))
                return
            case scaling.HandOver():
                replica.transfer(step.to)
            case scaling.Settled() if not assignment.moving:
                self._scaling.discard(replica.uid)
                return
            case scaling.Settled():
                self.settle(SettleStream(replica.uid, assignment.peers))
                wait = SETTLE_NS
        self._later(replica, wait)

    def _standing(self, replica: Replica) -> dict[str, scaling.Standing]:
        """Return the standing of the other members; one that never stored an entry counts as offline."""
        group = replica.group
        assert group is not None  # Invariant: it leads
        return {
            each.name: scaling.Standing(
                each.match > 0 and each.active and self._nodes.alive(each.name), group.last_index - each.match
            )
            for each in group.progress()
            if each.name != self._nodes.me
        }

    def _later(self, replica: Replica, delay_ns: int) -> None:
        self._shared.clock.call_later(delay_ns, lambda: self._step(replica))

    # ------------------------------------------------------------------ life
    def transfer_all(self) -> None:
        """Transfer the leadership of every replicated stream: this node is about to stop."""
        for uid in list(self._leading) if not self._stopped else ():
            replica = self.replicas.by_uid.get(uid)
            if replica is not None and len(replica.membership.voters) > 1:
                replica.transfer()

    def stop(self) -> None:
        """Stop acting on assignments."""
        self._stopped = True
