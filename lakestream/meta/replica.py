"""One stream's replica on this node: its group, its role, its files.

Belongs here: the transitions of a replica when its role changes, when its log is damaged, and when its state has to
come from another node. stream/core/stream.py has the stream itself, replica_transfer.py the transfer of a state.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

import msgspec

from lakestream.log.format.errors import CorruptLog, LogError
from lakestream.log.store.base import READ_AGAIN_NS, BaseUnreadable
from lakestream.log.store.segment_log import SegmentLog
from lakestream.log.store.store import Store
from lakestream.meta.read_index import ReadIndexes
from lakestream.meta.replica_transfer import Fetch, Offer
from lakestream.meta.site import OpenedReplica, PeerInfo, Site, group_id
from lakestream.protocol.api.errors import ApiError, for_clients
from lakestream.protocol.decoding import JsonDecoder, PackDecoder
from lakestream.raft.core.messages import Install, Membership
from lakestream.raft.core.ready import NotLeader, RaftError
from lakestream.raft.group import group as raft
from lakestream.raft.group import hard_state
from lakestream.raft.group.group import Committed, Diverged, Group, Replacement, Steps
from lakestream.stream.assembly import Stream
from lakestream.stream.core.offline import Unsupported
from lakestream.stream.core.operations import CreateStream, encode
from lakestream.stream.core.state import StreamState
from lakestream.stream.mirroring.clone import YIELD_NS, AwaitedBase, prepare, waits_for

CHECK_NS = 50_000_000
"""First delay before checking that a new follower has caught up (50 ms); it doubles with each check."""
CHECK_MAX_NS = 1_000_000_000
"""Maximum delay between these checks (1 s)."""
CAUGHT_UP_LAG = 64
"""Maximum number of committed entries that a follower lacks when it counts as caught up."""
REST_NS = 10_000_000
"""Interval of polling for the end of a failed member's last write (10 ms)."""

CURRENT_LAG = 0
"""Maximum number of entries that a current member lacks."""
_STREAM_STATE = PackDecoder(StreamState)


class _Assigned(msgspec.Struct):
    """The fields of an assigned configuration on which a replica's files depend."""

    name: str = ""
    storage: str = "file"


_ASSIGNED = JsonDecoder(_Assigned)


class Differs(CorruptLog):
    """Raised for a replica whose files are intact, but not those of the other members."""


class Replica:
    """A replica of one stream, and the owner of its group.

    `stream` and `group` are None while its files are created, or if they are unusable.
    """

    __slots__ = (
        "_awaited",
        "_caught_up",
        "_fetch",
        "_goal",
        "_on_created",
        "_owner",
        "_site",
        "account",
        "closed",
        "create",
        "deleted",
        "found",
        "group",
        "leader",
        "leader_since_ns",
        "memory",
        "name",
        "opening",
        "removed",
        "repairing",
        "started",
        "stream",
        "trouble",
        "uid",
        "unopened",
        "wanted",
        "was",
    )

    def __init__(self, site: Site, owner: ReplicaOwner, create: CreateStream) -> None:
        self._site, self._owner = site, owner
        self.create = create
        config = _ASSIGNED.decode(create.config)
        self.memory = config.storage == "memory"
        self.uid, self.account, self.name = create.uid, create.account, config.name
        self.stream: Stream | None = None
        self.group: Group | None = None
        self.trouble = ""
        """The reason why its log cannot be used; "" if it can."""
        self.was = ""
        """`trouble` before the replica was removed."""
        self.leader = ""
        """The leader, as far as this node knows; "" if there is none."""
        self.leader_since_ns = 0
        self.closed = self.opening = self.removed = False
        self.found = False
        """True if its files existed before it was assigned."""
        self.unopened: CreateStream | None = None
        """The stream's creation, if known, when its files cannot be opened."""
        self._on_created: tuple[Callable[[ApiError | None], None], ...] = ()
        self.deleted: CreateStream | None = None
        """The stream at its deletion, if this replica is removed because of that."""
        self.wanted = self.started = False
        """True once its assignment to this node is known, and once it takes part in its group."""
        self.repairing: set[str] = set()
        """Paths of damaged sealed segments that are being replaced."""
        self._caught_up: Stream | None = None
        """The stream, once it has led or caught up with its leader."""
        self._goal = 0
        """The first commit index received from its leader: an older state must not be shown to clients again."""
        self._fetch: Fetch | None = None
        self._awaited: AwaitedBase | None = None
        """Entries that wait for the base of a mirror; role changes wait behind them."""

    # ------------------------------------------------------------------ state
    @property
    def key(self) -> tuple[str, str]:
        """Return account and name."""
        return self.account, self.name

    @property
    def directory(self) -> str:
        """Return the directory of its files."""
        return self._site.files.directory(self.account, self.name)

    @property
    def leading(self) -> bool:
        """Return True if this node leads the stream and serves it."""
        return self.stream is not None and self.stream.leading and self.stream.pipeline.serving

    @property
    def readable(self) -> bool:
        """Return True once clients may read from it, because it has caught up with its leader. From then on it lags
        like any follower; before, it may be empty, or in the state of this node's last run."""
        return self.stream is not None and self.stream is self._caught_up

    @property
    def refillable(self) -> bool:
        """Return True if other voters can send the entries again that are cut from a damaged log."""
        group = self.group
        return group is not None and (group.recovering or any(name != group.me for name in group.membership.voters))

    @property
    def identity(self) -> bytes:
        return encode(self.create)

    @property
    def membership(self) -> Membership:
        """Return the present voters and learners, as far as this node knows."""
        return self.group.membership if self.group is not None else Membership(())

    def members(self) -> list[PeerInfo]:
        """Return the other members, by name. Only the leader knows their progress."""
        me, peers = self._site.peers.me, self._site.peers
        if self.group is None or not self.leading:
            names = [name for name in self.membership.members if name != me]
            return [PeerInfo(name, name == self.leader, not peers.alive(name), 0, 0) for name in names]
        last = self.group.last_index
        return [
            PeerInfo(
                each.name,
                each.active and last - each.match <= CURRENT_LAG,
                not peers.alive(each.name),
                each.contact_ns,
                max(last - each.match, 0),
            )
            for each in self.group.progress()
            if each.name != me
        ]

    def transfer(self, to: str = "") -> bool:
        """Transfer leadership to `to`, or to the most advanced voter. Return False if this node cannot start that."""
        group, stream = self.group, self.stream
        if group is None:
            return False
        if stream is None or not stream.pipeline.serving:
            return self._transfer(group, to)

        def give() -> None:
            self._transfer(group, to)

        stream.consumers.hand_over(give)
        return True

    def _transfer(self, group: Group, to: str) -> bool:
        begun = group.transfer(to)
        if begun and self.stream is not None:
            self._resubscribe(self.stream)
            self._watch_transfer(self.stream, group)
        return begun

    def _watch_transfer(self, stream: Stream, group: Group) -> None:
        """Receive messages again if a transfer has failed; until then the next leader receives them."""

        def check() -> None:
            if self.closed or stream is not self.stream or group is not self.group or not stream.leading:
                return
            if group.handing_over:
                self._watch_transfer(stream, group)
            else:
                group.stay()
                self._resubscribe(stream)

        self._site.shared.clock.call_later(CHECK_NS, check)

    @staticmethod
    def _resubscribe(stream: Stream) -> None:
        """Renew the subscriptions, which depend on an ongoing leadership transfer."""
        if not stream.hidden:
            stream.on_updated(stream)

    def step_down(self) -> None:
        """Step down as leader. Another voter is elected, or this one again."""
        if self.group is not None:
            self.group.step_down()

    def propose_membership(self, membership: Membership, done: Callable[[str], None]) -> None:
        """Change the group by at most one voter, on the leader; call `done("")` once committed, or with the reason."""
        try:
            if self.group is None:
                raise NotLeader(self.leader)
            self.group.propose_membership(membership, lambda ok: done("" if ok else "the leadership was lost"))
        except RaftError as error:
            done(str(error))

    # ------------------------------------------------------------------ opening
    def on_created(self, callback: Callable[[ApiError | None], None]) -> None:
        """Call back with None once this new replica leads or is hidden, or with the error if it cannot be created."""
        self._on_created = (*self._on_created, callback)

    def report_created(self, error: ApiError | None) -> None:
        """Call the callbacks of `on_created`."""
        callbacks, self._on_created = self._on_created, ()
        for callback in callbacks:
            callback(error)

    def create_or_open(self, membership: Membership, lost: bool) -> OpenedReplica:
        """Create a replica, or open existing files. Block. Raise LogError, OSError."""
        self._site.files.begin(self)
        opened = self.open(membership, lost)
        opened.stream.is_new = opened.stream.applier.created and self._site.files.creates
        return opened

    def open(self, membership: Membership, lost: bool = False, damage: str = "", anew: bool = False) -> OpenedReplica:
        """Open the files. Block. Raise LogError, OSError.

        If other nodes can send the rest, a damaged log is truncated to its intact entries, or emptied; this member does
        not vote until it has the rest (invariant 3). `damage`: the known damage. `anew`: set the files aside, though
        they are intact.
        """
        groups, files, me = self._site.groups, self._site.files, self._site.peers.me
        try:
            member = groups.member(group_id(self.uid), files.directory(*self.key), membership, lost=lost)
        except CorruptLog as error:  # its last vote is not known: it votes once it has the leader's entries
            if set(membership.voters) <= {me}:
                raise
            member = groups.member(group_id(self.uid), self.directory, membership, lost=True)
            damage = str(error)
        if not member.membership.members:  # killed before its file `raft` was written: only the meta group has them
            raise LogError(f"{self.directory} has no file `raft` yet; it is opened when the meta group names it")
        # Never truncate the log of the only voter: a learner need not have the entries, and cannot be elected.
        alone = set(member.membership.voters) <= {me} and not member.recovering
        if not damage:
            try:
                return self._open(member)
            except CorruptLog as error:
                if alone:
                    raise
                damage = str(error)
        elif alone:
            raise LogError(damage)
        member.damaged()
        if anew:
            aside = files.set_aside(self)
            self._site.log.warn(f"stream {self.name}: the files of this replica are now {aside}")
            return self._open(member, damage)
        try:
            damage = files.salvage(self, usable=True) or damage
            member.recall()
            return self._open(member, damage)
        except CorruptLog:
            files.salvage(self, usable=False)
            member.recall()
            return self._open(member, damage)

    def _open(self, member: raft.Member, damage: str = "") -> OpenedReplica:
        store = self._open_store(member.durable_through)
        try:
            if member.begins and store.log.last_index:  # the file comes before the first entry
                path = os.path.join(self.directory, hard_state.NAME)
                raise CorruptLog(path, 0, "it is missing, and with it term and vote of the log beside it")
            stream = self._recover(store, member.commit_through)
        except BaseException:
            store.log.close()
            raise
        return OpenedReplica(member, store, stream, damage)

    def _open_store(self, durable_through: int | None) -> Store:
        store = self._site.files.open(self, durable_through)
        for note in store.notes:
            self._site.log.warn(f"stream {self.name}: {note}")
        return store

    def _recover(self, store: Store, commit_through: int) -> Stream:
        """Return the stream as of entry `commit_through`. Block."""
        state = _STREAM_STATE.decode(store.extra) if store.extra else None
        stream = self._site.stream(state.create if state is not None else self.create, store)
        if state is not None:
            stream.load(store.extra)
        elif store.applied:  # it was just created
            stream.begin(self.create)
            return stream
        for frame, at in store.replay(through=commit_through):
            prepare(stream, frame, self._site.lake)
            stream.apply_frame(frame, at)
        return stream

    def begin(self, opened: OpenedReplica) -> None:
        """Join the group with the opened files. In the event loop; `start` follows."""
        io = opened.store.io or self._site.shared.io
        self.group = opened.member.join(opened.store.log, io, self)
        self._adopt(opened.stream)

    def _adopt(self, stream: Stream) -> None:
        assert self.group is not None
        if self._awaited is not None:
            self._awaited.end()
            self._awaited = None
        stream.pipeline.group = self.group
        stream.store.share()
        stream.store.watch_damage(self._damaged)
        stream.confirming.ask_leader = lambda done: self._owner.reads.ask(self.leader, self.uid, done)
        if stream.store.config == self.create.config:
            stream.store.config = self.create.config  # one object for both
        self.stream = stream
        self._goal = 0
        if not self.group.is_leader:
            self._schedule_check(CHECK_NS, stream)

    def _damaged(self, error: CorruptLog) -> None:
        self._owner.damaged(self, error)

    def _schedule_check(self, delay_ns: int, stream: Stream) -> None:
        self._site.shared.clock.call_later(delay_ns, lambda: self._check_caught_up(delay_ns, stream))

    def _check_caught_up(self, delay_ns: int, stream: Stream) -> None:
        """Call `Host.caught_up` once the stream has caught up with its leader."""
        if self.closed or self.stream is not stream or self.readable or self.group is None:
            return
        commit, applied = self.group.heard_commit, stream.store.applied
        self._goal = self._goal or commit
        if commit and applied >= self._goal and commit - applied <= CAUGHT_UP_LAG:
            self._caught_up = stream
            self._owner.host.caught_up(self)
        else:
            self._schedule_check(min(2 * delay_ns, CHECK_MAX_NS), stream)

    def start(self) -> None:
        """Start the group."""
        if self.group is not None and not self.closed:
            self.group.start()

    # ------------------------------------------------------------------ the group
    def on_commit(self, entries: list[Committed]) -> Steps | None:
        """Apply committed entries, except those that wait for the base of a mirror."""
        stream, lake = self.stream, self._site.lake
        if stream is None:
            return None
        waits = None if lake is None or stream.config.mirror is None else waits_for(stream.store, entries)
        if lake is None or waits is None:
            return stream.committed(entries)
        at, origin = waits
        return self._apply_with(stream, AwaitedBase(stream, lake, origin, self._site.log.warn), entries, at)

    def _apply_with(self, stream: Stream, base: AwaitedBase, entries: list[Committed], at: int) -> Steps:
        """Apply entries, those from `at` on with the base of a mirror, once it has been read."""
        if at:
            yield from stream.committed(entries[:at]) or ()
        self._awaited = base
        self._site.shared.clock.call_later(YIELD_NS, self._yield)
        yield base.begin
        self._awaited = None
        yield from stream.committed(entries[at:]) or ()

    def give_up(self, error: CorruptLog) -> None:
        """Fail the group: only reopening the replica can repair the damage."""
        if self.group is not None and self.group.failed is None and not self.closed:
            self.group.give_up(error)

    def refill(self, why: str) -> None:
        """Set the files of this replica aside, and let the other members send everything again: its content differs
        from theirs. Until it has everything, it does not vote (invariant 3)."""
        assert self.refillable, "the only copy is never set aside"
        if self.group is not None and self.group.failed is None and not self.closed:
            self.group.give_up(Differs(self.directory, 0, why))

    def on_failure(self, error: Exception) -> None:
        """Report that this replica no longer takes part, and open it anew if other nodes can give what is damaged."""
        stream, group = self.stream, self.group
        alone = group is not None and not group.replicated
        what = "takes no more messages" if alone else "this replica no longer takes part"
        self._site.log.error(f"stream {self.name}: {what}: {error}")
        if stream is None:
            return
        stream.failure(error)
        self.report_created(stream.failed)
        if not stream.leading:
            self._owner.host.follows(self)
        if isinstance(error, Unsupported | Diverged):
            self.trouble = for_clients(error)
            self._owner.host.gone(self)
        if isinstance(error, CorruptLog) and self.refillable and not self.closed:
            self._reopen(stream, str(error), anew=isinstance(error, Differs))

    def _reopen(self, stream: Stream, damage: str, *, anew: bool = False) -> None:
        """Reopen the files: unlike after a failed write, the disk may be used for a good copy of damaged ones."""
        site, owner = self._site, self._owner
        assert self.group is not None
        if not self.group.at_rest:  # wait for a write in progress
            site.shared.clock.call_later(REST_NS, lambda: self._reopen(stream, damage, anew=anew))
            return
        if self.closed:
            return
        self.group.stop()
        stream.stop()

        def reopen() -> OpenedReplica:
            stream.store.abandon()
            return self.open(Membership(()), damage=damage, anew=anew)

        def reopened(opened: OpenedReplica | None, error: BaseException | None) -> None:
            self.opening = False
            if self.closed:
                owner.discard_opened(self, opened)
                return
            if opened is None:
                self.trouble = for_clients(error)
                site.log.error(f"stream {self.name} is offline here: {error}")
                owner.host.gone(self)
                if isinstance(error, BaseUnreadable):
                    site.shared.clock.call_later(READ_AGAIN_NS, submit)
                return
            self.trouble = ""
            self.begin(opened)
            owner.host.reopened(self)
            self.start()
            owner.scrub(self)

        def submit() -> None:
            if not self.closed:
                self.opening = True
                site.shared.io.submit(reopen, reopened)

        submit()

    def on_notice(self, text: str, bad: bool) -> None:
        """Log a finding about disks that were rolled back."""
        (self._site.log.error if bad else self._site.log.info)(f"stream {self.name}: {text}")

    def on_lost(self, contexts: list[object]) -> None:
        """Forget proposals that will not come back."""
        if self.stream is not None:
            self.stream.lost(contexts)

    def on_role(self, leads: bool, leader: str, term: int) -> None:
        """Lead or follow: another node leads, or this one, or the term changed."""
        if leader != self.leader:
            self.leader, self.leader_since_ns = leader, self._site.shared.clock.now()
        stream = self.stream
        if stream is None or self.closed:
            return
        if leads and self._owner.host.serves(self.account):
            if not stream.leading:
                self._lead(stream)
            return
        stream.follow()
        self._owner.host.follows(self)

    def _yield(self) -> None:
        """Step down: another member may have the base that this one waits for."""
        if self._awaited is not None and not self.closed:
            self.step_down()
            self._site.shared.clock.call_later(YIELD_NS, self._yield)

    def take_lead(self) -> None:
        """Serve the stream if this node leads it: its account has JetStream again."""
        stream = self.stream
        leads = self.group is not None and self.group.is_leader
        if leads and stream is not None and not stream.leading and not self.closed:
            self._lead(stream)

    def _lead(self, stream: Stream) -> None:
        stream.lead(lambda: self._attach(stream), lambda: self._ready(stream))

    def _attach(self, stream: Stream) -> None:
        if stream is self.stream and not self.closed:
            self._owner.host.created(self)

    def _ready(self, stream: Stream) -> None:
        if stream is self.stream and not self.closed:
            self._caught_up = stream
            self._owner.host.leads(self)

    # ------------------------------------------------------------------ state from another node
    def on_install(self, sender: str, install: Install, done: Callable[[Replacement | None], None]) -> None:
        """Fetch a state, because the leader's log no longer has the entries that this replica lacks."""
        if self.closed or self._fetch is not None:
            done(None)
            return
        self._site.log.info(f"stream {self.name}: fetching its state from {sender}, as of entry {install.index}")

        def fetched(offer: Offer, directory: str, wrong: str) -> None:
            size, self._fetch = fetch.size, None
            if wrong or self.closed:
                self._site.log.warn(f"stream {self.name}: cannot fetch its state from {sender}: {wrong or 'removed'}")
                done(None)
                return
            self._site.log.info(f"stream {self.name}: received its state as of entry {offer.index} ({size:,} bytes)")
            # Until the state is replaced the stream cannot be read here: cancel the subscriptions.
            self._owner.host.gone(self)
            done(self._replacement(offer, directory))

        fetch = self._fetch = Fetch(self._site, self, sender, install.index, fetched)
        fetch.begin()

    def _replacement(self, offer: Offer, directory: str) -> Replacement:
        found: list[Stream] = []

        def swap() -> SegmentLog:
            before = self.stream
            if before is not None:
                before.cease()
                self._site.files.stores.files.remove_tree(before.store.destroy())
            self._site.files.stores.take_in(self.directory)
            store = self._open_store(0)
            found.append(self._recover(store, offer.index))
            assert isinstance(store.log, SegmentLog), "a replica's log has files"
            return store.log

        def swapped() -> None:
            before = self.stream
            self._adopt(found[0])
            if before is not None:
                before.stop()
            self._owner.host.reopened(self)

        return Replacement(offer.index, offer.term, offer.membership, directory, swap, swapped)

    # ------------------------------------------------------------------ end
    def stop(self, deleted: bool = False) -> None:
        """Stop group and stream. `deleted`: the files are about to be removed. In the event loop."""
        self.closed, self.removed = True, deleted
        if self._fetch is not None:
            self._fetch.cancel()
        if self._awaited is not None:
            self._awaited.end()
        if self.group is not None:
            self.group.stop()
        if self.stream is not None:
            self.stream.stop(deleted)

    def close(self) -> None:
        """Write the last checkpoint. Block; after `stop`."""
        if self.stream is not None:
            self.stream.store.close(self.stream.dump())

    def remove(self, deleted: CreateStream | None) -> str:
        """Rename the files, so that no start finds them; return what remains to be removed. Block; after `stop`.

        Those of a deleted stream stay until the lake has them (deleted_streams.py). Every member seals the entries that
        it has applied: ranges of different members agree.
        """
        stream = self.stream
        if deleted is None:
            left = stream.store.destroy() if stream is not None else ""
            return self._site.files.remove(self) or left
        note, left = encode(deleted), ""
        if stream is not None:
            # A failed log cannot be sealed. Other members have all of its acked entries; without others sealing raises,
            # the files stay, and the next start, which knows of the deletion, can seal the log.
            alone = set(self.membership.voters) <= {self._site.peers.me}
            seal = (alone or stream.failed is None) and self._site.shared.lake.keeps(deleted)
            left = stream.store.leave(note, seal)
        return self._site.files.remove(self, note) or left


class Host(Protocol):
    """Interface to the node that holds replicas. All calls are in the event loop."""

    def opened(self, replica: Replica) -> None:
        """Attach `replica.stream`, which follows for now. Its state may be old, see `caught_up`."""

    def caught_up(self, replica: Replica) -> None:
        """Answer direct gets from its stream, which follows and has caught up with its leader."""

    def created(self, replica: Replica) -> None:
        """Attach its stream, which this node leads, to its account and the lake, before `Stream.lead` has run."""

    def leads(self, replica: Replica) -> None:
        """Subscribe to the subjects of its stream, which leads, and announce the leader to the other nodes. Called once
        for each leadership, after all committed entries were applied and `Stream.lead` has run."""

    def follows(self, replica: Replica) -> None:
        """Cancel the subscriptions of a leader: its stream stopped leading, or another leader is known
        (`replica.leader`, "" for none), or the term changed."""

    def reopened(self, replica: Replica) -> None:
        """Attach `replica.stream`, a new object with the state from another node, in place of the previous one. It
        follows."""

    def serves(self, account: str) -> bool:
        """Return True if the account has JetStream on this node; otherwise none of its replicas leads here."""

    def gone(self, replica: Replica) -> None:
        """Detach the stream: the replica is being removed, or its log cannot be used (`replica.trouble`)."""


class ReplicaOwner(Protocol):
    """Interface to the replicas of a node, for each of them."""

    host: Host
    reads: ReadIndexes

    def damaged(self, replica: Replica, error: CorruptLog) -> None:
        """Repair damage found in a replica's files. In the event loop, perhaps within a read that fails."""

    def scrub(self, replica: Replica) -> None:
        """Verify the sealed segments of a replica that was just opened, one after the other."""

    def discard_opened(self, replica: Replica, opened: OpenedReplica | None) -> None:
        """Close, or remove, files that were opened while the replica was being stopped or removed."""
