"""This node's replicas, as the assignments ask for them.

Belongs here: holding a replica of each stream that is assigned to this node and of no other, what changes when one of
them begins or ceases to lead, and the leader's duty to bring its stream's configuration and members to what is
assigned. What the meta layer decides is in assignments.py, a replica's own life in replica.py.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lakestream.meta import deleted_streams, scaling
from lakestream.meta.assignments import Applied, Assignment, SettleStream
from lakestream.meta.info import Advisories
from lakestream.meta.meta import Acted, Meta
from lakestream.meta.ports import AllAccounts, Led, Nodes
from lakestream.meta.replica import Replica
from lakestream.meta.replicas import Replicas
from lakestream.meta.shared import Shared
from lakestream.protocol.api.errors import ApiError
from lakestream.raft.core.messages import Membership
from lakestream.stream.assembly import Stream
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.operations import CreateStream, UpdateStream

STEP_NS = 100_000_000
"""Interval between the steps of a stream to other members (100 ms)."""
SETTLE_NS = 1_000_000_000
"""Interval at which its leader reports to the meta group that it has these members (1 s)."""
URGES_NS = (0, 30_000_000, 100_000_000, 200_000_000, 400_000_000)
"""Delays after which the first choice of a new stream stands for election: the others still make their files."""


class LocalStreams:
    """This node's part of the assignments; the `Host` of its replicas.

    `replicas` is set before anything happens.
    """

    replicas: Replicas

    def __init__(
        self,
        shared: Shared,
        accounts: AllAccounts,
        meta: Meta,
        nodes: Nodes,
        leaders: Led,
        advisories: Advisories,
    ) -> None:
        self._shared, self._accounts, self._meta, self._nodes = shared, accounts, meta, nodes
        self._leaders, self._advisories = leaders, advisories
        self.on_dropped: Callable[[str], None] = lambda uid: None
        """Called with the uid of a stream whose files are gone from this node."""
        self.settle: Callable[[SettleStream], None] = lambda op: None
        """Asks the leader of the meta group to log this."""
        self.updating: set[str] = set()
        """Streams that a request is updating: it brings the configuration itself."""
        self._leading: set[str] = set()
        self._tending: set[str] = set()
        self._stopped = False

    # ------------------------------------------------------------------ assignments
    def take_up(self) -> None:
        """Compare what is here with all assignments: at start, and once this node has caught up.

        A replica that is not assigned is neither started nor removed: the meta group may have forgotten it.
        """
        state = self._meta.state
        for uid in list(self.replicas.by_uid):
            if state.removed(uid):
                self._drop(uid)
        for assignment in list(state.by_uid.values()):
            self._follow(assignment)

    def look_for_strays(self) -> None:
        """Log which replicas are not assigned."""
        for uid, replica in self.replicas.by_uid.items():
            if uid not in self._meta.state.by_uid:
                where = replica.directory
                self._shared.log.warn(
                    f"stream {replica.name} ({uid}) is not assigned: its files stay in {where}, unused"
                )

    def applied(self, applied: Applied, acted: Acted = lambda error: None) -> None:
        """Act on a changed assignment; call `acted` once its replica is made or removed here, or could not be."""
        if applied.after is not None:
            self._follow(applied.after)
            replica = self.replicas.by_uid.get(applied.after.uid) if applied.before is None else None
            if replica is None:
                acted(None)
            else:
                replica.when_made(acted)
        elif applied.before is not None:
            self._leaders.forget(applied.before.uid)
            self._drop(applied.before.uid, applied.before, acted)

    def _follow(self, assignment: Assignment) -> None:
        uid = assignment.uid
        replica = self.replicas.by_uid.get(uid)
        # Invariant: before it has caught up, this node neither makes nor removes a replica. What an old entry says may
        # have been done and undone since, and what lies here be of a later time.
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
            self._tend(replica)

    def _attach(self, stream: Stream) -> None:
        """Show a stream to its account, unless it is being restored."""
        assignment = self._meta.state.by_uid.get(stream.uid)
        # What its log says counts where this node has not heard yet what is assigned.
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
        """Remove what is here of a stream, because an applied entry says so; `before`: as it was assigned until then,
        which is the same on all nodes. One that was away goes by what it knows."""
        replica = self.replicas.by_uid.get(uid)
        stream = replica.stream if replica is not None else None
        shown = stream if stream is not None and stream.applier.created and not stream.hidden else None
        led, removed = uid in self._leading, self._meta.state.removed(uid)
        unopened = replica is not None and replica.found and stream is None  # only this node ever had it

        def dropped(error: ApiError | None) -> None:
            if error is not None and replica is not None:
                self._shared.log.error(f"stream {replica.name}: its files cannot be removed: {error}")
            if stream is not None and not stream.hidden and deleted is None:
                self._shared.lake.detached(stream)
            self.on_dropped(uid)
            acted(error)

        deleted = None
        if removed and shown is not None:  # else the lake never heard of it
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
            return  # it is attached once its creation is logged
        self._attach(replica.stream)
        assignment = self._meta.state.by_uid.get(replica.uid)
        if assignment is not None and assignment.peers[0] == self._meta.me and not replica.stream.applier.created:
            self._urge(replica, 0)

    def caught_up(self, replica: Replica) -> None:
        if replica.stream is not None and not replica.stream.hidden:
            self._accounts.of(replica.account).refresh(replica.stream)

    def created(self, replica: Replica) -> None:
        """See `Host.created`."""
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
        replica.made(None)
        self._tend(replica)

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

    def _urge(self, replica: Replica, at: int) -> None:
        """Have the first choice stand for election without waiting for a timeout."""

        def stand() -> None:
            if replica.group is None or replica.leader or self._stopped:
                return
            replica.group.campaign()
            if at + 1 < len(URGES_NS):
                self._urge(replica, at + 1)

        self._shared.clock.call_later(URGES_NS[at], stand)

    # ------------------------------------------------------------------ the leader's duties
    def _tend(self, replica: Replica) -> None:
        """Bring the stream's configuration and members to the assignment. On its leader."""
        assignment, stream = self._meta.state.by_uid.get(replica.uid), replica.stream
        if assignment is None or stream is None:
            return
        if not self._meta.caught_up:
            # What this node knows may be long outdated: an older configuration may have limits that cost messages, and
            # members of now may not be in it. `take_up` comes back to this.
            return
        if assignment.uid not in self.updating and msgspec.json.encode(stream.config) != assignment.config:
            wanted = msgspec.json.decode(assignment.config, type=StreamConfig)
            if wanted != stream.config:
                stream.propose(UpdateStream(assignment.config))
        if replica.uid not in self._tending and (assignment.moving or self._unsettled(replica, assignment)):
            self._tending.add(replica.uid)
            self._step(replica)

    def not_updated(self, uid: str) -> None:
        """Bring an update that a request failed to bring to its stream: it may be assigned all the same."""
        self.updating.discard(uid)
        replica = self.replicas.by_uid.get(uid)
        if replica is not None and replica.leading:
            self._tend(replica)

    @staticmethod
    def _unsettled(replica: Replica, assignment: Assignment) -> bool:
        membership = replica.membership
        return set(membership.voters) != set(assignment.peers) or bool(membership.learners)

    def _step(self, replica: Replica) -> None:
        assignment = self._meta.state.by_uid.get(replica.uid)
        if assignment is None or not replica.leading or self._stopped:
            self._tending.discard(replica.uid)
            return
        step = scaling.next_step(self._meta.me, replica.membership, assignment.peers, self._standing(replica))
        wait = STEP_NS
        match step:
            case scaling.Change():
                self._shared.log.info(f"stream {replica.name}: {step.what}")
                replica.propose_membership(step.membership, lambda why: self._later(replica, STEP_NS if why else 0))
                return
            case scaling.HandOver():
                replica.transfer(step.to)
            case scaling.Settled() if not assignment.moving:
                self._tending.discard(replica.uid)
                return
            case scaling.Settled():
                self.settle(SettleStream(replica.uid, assignment.peers))
                wait = SETTLE_NS
        self._later(replica, wait)

    def _standing(self, replica: Replica) -> dict[str, scaling.Standing]:
        """Return the standing of the other members. One that never took an entry is not there."""
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
    def yield_all(self) -> None:
        """Let other nodes lead what this one leads, because it is about to go."""
        for uid in list(self._leading) if not self._stopped else ():
            replica = self.replicas.by_uid.get(uid)
            if replica is not None and len(replica.membership.voters) > 1:
                replica.transfer()

    def stop(self) -> None:
        """Begin nothing new."""
        self._stopped = True
