"""One stream's replica on this node: its group, its role, its files.

Belongs here: what has to happen when a replica begins or ceases to lead, when its log is damaged, and when its state
has to come from another node. What a stream does in between is stream/stream.py's, how a state travels
replica_transfer.py's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from lakestream.log.format.errors import CorruptLog, LogError
from lakestream.log.store.segment_log import SegmentLog
from lakestream.log.store.store import Store
from lakestream.meta import leaving
from lakestream.meta.replica_transfer import Fetch, Offer
from lakestream.protocol.api.errors import for_clients
from lakestream.raft.core.core import NotLeader, RaftError
from lakestream.raft.core.messages import Install, Membership
from lakestream.raft.group import group as raft
from lakestream.raft.group.callbacks import Diverged
from lakestream.raft.group.group import Callbacks, Committed, Group, Replacement
from lakestream.stream.assembly import Stream
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.offline import Unsupported
from lakestream.stream.core.operations import CreateStream, decode_operation, encode
from lakestream.stream.core.state import StreamState
from lakestream.stream.mirroring.clone import READ_AGAIN_NS, YIELD_NS, BaseUnreadable, Holding, held_from, prepare

if TYPE_CHECKING:
    from lakestream.meta.replicas import Replicas

LOOK_NS = 50_000_000
"""How soon to look whether a new follower has what its leader has (50 ms); then after twice as long, and so on."""
LOOK_MAX_NS = 1_000_000_000
"""At the latest after so long (1 s)."""
NEAR = 64
"""A follower that lacks no more entries than these of what was committed a moment ago is as good as its leader."""
REST_NS = 10_000_000
"""How soon to look again whether a failed member's last write has ended (10 ms)."""

CURRENT_LAG = 0
"""A member that lacks no more entries than these is current."""


class Member(msgspec.Struct, frozen=True):
    """Another member of the group, as API answers show it."""

    name: str
    current: bool
    """It was heard from lately and has everything, or nearly."""
    offline: bool
    active_ns: int
    """How long ago it was heard from."""
    lag: int
    """Log entries that it lacks."""


def group_id(uid: str) -> str:
    """The id of a stream's group."""
    return f"S-{uid}"


class Replica:
    """A replica of one stream. `stream` and `group` are None while its files are being made, or cannot be used."""

    def __init__(self, replicas: Replicas, create: CreateStream) -> None:
        self._replicas = replicas
        self._create = create
        config = msgspec.json.decode(create.config, type=StreamConfig)
        self._memory = config.storage == "memory"
        self.uid, self.account, self.name = create.uid, create.account, config.name
        self.directory = replicas.stores.directory(create.account, config.name)
        self._bus = replicas.shared.bus_of(create.account)
        self.stream: Stream | None = None
        self.group: Group | None = None
        self.trouble = ""
        """Why its log cannot be used; empty when it can."""
        self.leader = ""
        """The node that leads, as far as this one knows; "" when nobody does."""
        self.leader_since_ns = 0
        self.closed = self.making = self.removed = False
        self.deleted: CreateStream | None = None
        """The stream, as it was when it was deleted, which is why this replica goes."""
        self.wanted = self.started = False
        """Whether it is known to be assigned to this node, and whether it takes part in its group."""
        self._caught_up: Stream | None = None
        """The stream, once it has led or had what its leader has."""
        self._goal = 0
        """What was committed when its leader was first heard: less is a past that no client may see again."""
        self._fetch: Fetch | None = None
        self._holding: Holding | None = None
        """Entries that wait for what a mirror begins with; roles wait behind them."""

    # ------------------------------------------------------------------ what others ask
    @property
    def leading(self) -> bool:
        """Whether this node leads the stream and serves it."""
        return self.stream is not None and self.stream.leading and self.stream.serving

    @property
    def readable(self) -> bool:
        """Whether clients may read from it: it is, or has been, as its leader is. From then on it may lag as a
        follower does; before, it may be empty, or as it was when this node was last there."""
        return self.stream is not None and self.stream is self._caught_up

    @property
    def refillable(self) -> bool:
        """Whether others can give again what is cut from a damaged log. A learner can not: it could not be elected."""
        group = self.group
        return group is not None and (group.recovering or any(name != group.me for name in group.membership.voters))

    @property
    def identity(self) -> bytes:
        """The stream as it was assigned, for its directory."""
        return encode(self._create)

    @property
    def membership(self) -> Membership:
        """Voters and learners of now, as far as this node knows."""
        return self.group.membership if self.group is not None else Membership(())

    def members(self) -> list[Member]:
        """The other members, ascending. Only the leader knows how far they are; others tell who is there at all."""
        me, peers = self._replicas.peers.me, self._replicas.peers
        if self.group is None or not self.leading:
            names = [name for name in self.membership.members if name != me]
            return [Member(name, name == self.leader, not peers.alive(name), 0, 0) for name in names]
        last = self.group.last_index
        return [
            Member(
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
        """Give the leadership to `to`, or to whoever is furthest. False when this node can not begin that."""
        group, stream = self.group, self.stream
        if group is None:
            return False
        if stream is None or not stream.serving:
            return self._transfer(group, to)

        def give() -> None:
            self._transfer(group, to)

        stream.consumers.hand_over(give)
        return True

    def _transfer(self, group: Group, to: str) -> bool:
        begun = group.transfer(to)
        if begun and self.stream is not None:
            self._listen(self.stream)
            self._stay_when(self.stream, group)
        return begun

    def _stay_when(self, stream: Stream, group: Group) -> None:
        """Messages are the next leader's; they are this one's again once the transfer has come to nothing."""

        def look() -> None:
            if self.closed or stream is not self.stream or group is not self.group or not stream.leading:
                return
            if group.handing_over:
                self._stay_when(stream, group)
            else:
                group.stay()
                self._listen(stream)

        self._replicas.shared.clock.call_later(LOOK_NS, look)

    @staticmethod
    def _listen(stream: Stream) -> None:
        """Whether clients are listened to may have changed."""
        if not stream.hidden:
            stream.on_updated(stream)

    def step_down(self) -> None:
        """Lead no more; somebody else is elected, perhaps this node again."""
        if self.group is not None:
            self.group.step_down()

    def propose_membership(self, membership: Membership, done: Callable[[str], None]) -> None:
        """On the leader: change the group by at most one voter; `done("")` once committed, or with what prevents it."""
        try:
            if self.group is None:
                raise NotLeader(self.leader)
            self.group.propose_membership(membership, lambda ok: done("" if ok else "the leadership was lost"))
        except RaftError as error:
            done(str(error))

    # ------------------------------------------------------------------ opening
    def make(self, membership: Membership, lost: bool) -> Opened:
        """Begin a replica, or open the one whose files are there. Blocks. Raises LogError, OSError."""
        stores = self._replicas.stores
        there = stores.identity(self.account, self.name)
        if not self._mine(there):
            raise LogError(
                f"{self.directory} has the files of another stream; move them away",
                "another stream's files are in the way; the server's log names them",
            )
        if there is None or uid_of(there) == "":
            stores.begin(self.directory, self.identity)
        return self.open(membership, lost)

    def open(self, membership: Membership, lost: bool = False, damage: str = "") -> Opened:
        """Open the files. Blocks. A damaged log is cut to what is intact, or emptied, if other nodes can give the rest:
        until this one has it again it does not vote (invariant 3). `damage`: what is known already. Raises
        LogError, OSError."""
        groups, stores, me = self._replicas.groups, self._replicas.stores, self._replicas.peers.me
        try:
            member = groups.member(group_id(self.uid), self.directory, membership, lost=lost)
        except CorruptLog as error:  # what it voted is not known any more: it votes when it holds what the leader has
            if set(membership.voters) <= {me}:
                raise
            member = groups.member(group_id(self.uid), self.directory, membership, lost=True)
            damage = str(error)
        if not member.membership.members:  # killed before its file `raft` was there: only who assigns it knows the rest
            raise LogError(f"{self.directory} has no file `raft` yet; it is opened when the meta group names it")
        # The only voter's log is cut for nobody: a learner has not got what is missing, and could not be elected.
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
        try:
            stores.salvage(self.directory)
            return self._open(member, damage)
        except CorruptLog:
            stores.empty(self.directory)
            return self._open(member, damage)

    def _open(self, member: raft.Member, damage: str = "") -> Opened:
        store = self._open_store(member.durable_through)
        try:
            stream = self._recover(store, member.commit_through)
        except BaseException:
            store.log.close()
            raise
        return Opened(member, store, stream, damage)

    def _open_store(self, durable_through: int | None) -> Store:
        stores = self._replicas.stores
        store = stores.open(self.directory, self.uid, memory=self._memory, durable_through=durable_through)
        for note in store.notes:
            self._replicas.log.warn(f"stream {self.name}: {note}")
        return store

    def _recover(self, store: Store, commit_through: int) -> Stream:
        """The stream as of `commit_through`. Blocks; it is nobody else's yet."""
        shared = self._replicas.shared
        state = msgspec.msgpack.decode(store.extra, type=StreamState) if store.extra else None
        create = state.create if state is not None else self._create
        stream = Stream(create, store, self._bus, shared.clock, shared.io, shared.options.domain, False, shared.batches)
        if state is not None:
            stream.load(store.extra)
        for frame, at in store.replay(through=commit_through):
            prepare(stream, frame, self._replicas.lake)
            stream.apply_frame(frame, at)
        return stream

    def begin(self, opened: Opened) -> None:
        """Take up what was opened. In the event loop; `start` follows."""
        told = Callbacks(self._committed, self._failure, self._role, self._lost, self._install, self._notice)
        self.group = opened.member.join(opened.store.log, self._replicas.shared.io, told)
        self._adopt(opened.stream)

    def _adopt(self, stream: Stream) -> None:
        assert self.group is not None
        if self._holding is not None:
            self._holding.end()
            self._holding = None
        stream.join(self.group)
        stream.store.subjects.share()
        stream.store.watch_damage(lambda error: self._replicas.repairs.found(self, error))
        self.stream = stream
        self._goal = 0
        self._look_when(LOOK_NS, stream)

    def _look_when(self, delay_ns: int, stream: Stream) -> None:
        self._replicas.shared.clock.call_later(delay_ns, lambda: self._look(delay_ns, stream))

    def _look(self, delay_ns: int, stream: Stream) -> None:
        """Whether the stream has caught up with its leader."""
        if self.closed or self.stream is not stream or self.readable or self.group is None:
            return
        heard, applied = self.group.heard_commit, stream.store.applied
        self._goal = self._goal or heard
        if heard and applied >= self._goal and heard - applied <= NEAR:
            self._caught_up = stream
            self._replicas.host.caught_up(self)
        else:
            self._look_when(min(2 * delay_ns, LOOK_MAX_NS), stream)

    def start(self) -> None:
        """Take part in the group."""
        if self.group is not None and not self.closed:
            self.group.start()

    # ------------------------------------------------------------------ the group
    def _committed(self, entries: list[Committed]) -> None:
        stream, lake = self.stream, self._replicas.lake
        if stream is None:
            return
        if self._holding is not None:
            if not self._holding.add(entries):
                self._reopen(stream, "")
            return
        held = None if lake is None or stream.config.mirror is None else held_from(stream, entries)
        if lake is None or held is None:
            stream.committed(entries)
            return
        at, origin = held
        self._holding = Holding(stream, lake, origin, self._replicas.log.warn, self._go_on)
        self._holding.add(entries[at:])
        if at:
            stream.committed(entries[:at])
        self._holding.begin()

    def _go_on(self, entries: list[Committed]) -> None:
        """What was waited for is there."""
        self._holding = None
        if self.closed or self.stream is None:
            return
        self._committed(entries)
        if self.group is not None and self._holding is None:
            self._role(self.group.is_leader, self.group.leader, self.group.term)

    def give_up(self, error: CorruptLog) -> None:
        """What is damaged can only be had again by opening the replica anew."""
        if self.group is not None and self.group.failed is None and not self.closed:
            self.group.give_up(error)

    def _failure(self, error: Exception) -> None:
        self._replicas.log.error(f"stream {self.name}: this replica takes part no more: {error}")
        stream = self.stream
        if stream is None:
            return
        stream.failure(error)
        self._replicas.host.follows(self)
        if isinstance(error, Unsupported | Diverged):
            self.trouble = for_clients(error)
            self._replicas.host.gone(self)
        if isinstance(error, CorruptLog) and self.refillable and not self.closed:
            self._reopen(stream, str(error))

    def _reopen(self, stream: Stream, damage: str) -> None:
        """Open the files anew: damage in them is not a failed write, the disk may be trusted with a good copy."""
        replicas = self._replicas
        assert self.group is not None
        if not self.group.at_rest:  # a write that was under way comes to its end first
            replicas.shared.clock.call_later(REST_NS, lambda: self._reopen(stream, damage))
            return
        if self.closed:
            return
        self.group.stop()
        stream.stop()

        def reopen() -> Opened:
            stream.store.abandon()
            return self.open(Membership(()), damage=damage)

        def reopened(opened: Opened | None, error: BaseException | None) -> None:
            self.making = False
            if self.closed:
                replicas.too_late(self, opened)
                return
            if opened is None:
                self.trouble = for_clients(error)
                replicas.log.error(f"stream {self.name} is offline here: {error}")
                replicas.host.gone(self)
                if isinstance(error, BaseUnreadable):
                    replicas.shared.clock.call_later(READ_AGAIN_NS, submit)
                return
            self.trouble = ""
            self.begin(opened)
            replicas.host.reopened(self)
            self.start()
            replicas.repairs.look_at(self)

        def submit() -> None:
            if not self.closed:
                self.making = True
                replicas.shared.io.submit(reopen, reopened)

        submit()

    def _notice(self, text: str, bad: bool) -> None:
        (self._replicas.log.error if bad else self._replicas.log.info)(f"stream {self.name}: {text}")

    def _lost(self, contexts: list[object]) -> None:
        if self.stream is not None:
            self.stream.lost(contexts)

    def _role(self, leads: bool, leader: str, term: int) -> None:
        if leader != self.leader:
            self.leader, self.leader_since_ns = leader, self._replicas.shared.clock.now()
        stream = self.stream
        if stream is None or self.closed:
            return
        if leads and self._holding is not None:
            self._replicas.shared.clock.call_later(YIELD_NS, self._yield)
            return
        if leads and self._replicas.host.serves(self.account):
            if not stream.leading:
                stream.lead(lambda: self._ready(stream))
            return
        stream.follow()
        self._replicas.host.follows(self)

    def _yield(self) -> None:
        """Another member may have what this one waits for."""
        if self._holding is not None and not self.closed:
            self.step_down()

    def take_lead(self) -> None:
        """The account has JetStream again: serve, if that is for this node to do."""
        stream = self.stream
        leads = self.group is not None and self.group.is_leader and self._holding is None
        if leads and stream is not None and not stream.leading and not self.closed:
            stream.lead(lambda: self._ready(stream))

    def _ready(self, stream: Stream) -> None:
        if stream is self.stream and not self.closed:
            self._caught_up = stream
            self._replicas.host.leads(self)

    # ------------------------------------------------------------------ state from another node
    def _install(self, sender: str, install: Install, done: Callable[[Replacement | None], None]) -> None:
        """What this replica lacks has left the leader's log: fetch its state."""
        if self.closed or self._fetch is not None:
            done(None)
            return
        self._replicas.log.info(f"stream {self.name}: its state comes from {sender}, as of entry {install.index}")

        def fetched(offer: Offer, directory: str, wrong: str) -> None:
            size, self._fetch = fetch.size, None
            if wrong or self.closed:
                self._replicas.log.warn(f"stream {self.name}: no state came from {sender}: {wrong or 'removed'}")
                done(None)
                return
            self._replicas.log.info(f"stream {self.name}: {size:,} bytes came, a state as of entry {offer.index}")
            # Until the other state is in its place there is nothing to read here, and no answer is better than that.
            self._replicas.host.gone(self)
            done(self._replacement(offer, directory))

        fetch = self._fetch = Fetch(self._replicas, self, sender, install.index, fetched)
        fetch.begin()

    def _replacement(self, offer: Offer, directory: str) -> Replacement:
        found: list[Stream] = []

        def swap() -> SegmentLog:
            before = self.stream
            if before is not None:
                before.cease()
                before.store.destroy()
            self._replicas.stores.take_in(self.directory)
            store = self._open_store(0)
            found.append(self._recover(store, offer.index))
            assert isinstance(store.log, SegmentLog), "a replica's log has files"
            return store.log

        def swapped() -> None:
            before = self.stream
            self._adopt(found[0])
            if before is not None:
                before.stop()
            self._replicas.host.reopened(self)

        return Replacement(offer.index, offer.term, offer.membership, directory, swap, swapped)

    # ------------------------------------------------------------------ end
    def stop(self, deleted: bool = False) -> None:
        """Take part no more. `deleted`: its files are about to go. In the event loop."""
        self.closed, self.removed = True, deleted
        if self._fetch is not None:
            self._fetch.cancel()
        if self._holding is not None:
            self._holding.end()
        if self.group is not None:
            self.group.stop()
        if self.stream is not None:
            self.stream.stop(deleted)

    def close(self) -> None:
        """Write the last checkpoint. Blocks; after `stop`."""
        if self.stream is not None:
            self.stream.store.close(self.stream.dump())

    def destroy(self) -> None:
        """Remove the files. Blocks; after `stop`."""
        if self.stream is not None:
            self.stream.store.destroy()
        stores = self._replicas.stores
        if self._mine(stores.identity(self.account, self.name)):  # else it could not be made because of another's files
            stores.remove(self.directory)

    def leave(self, create: CreateStream) -> str:
        """The stream was deleted: have its files wait for what the lake is owed of them (leaving.py); where. Blocks;
        after `stop`.

        What this member has applied is sealed, whatever the others have: of a range of entries all have the same.
        """
        stream, stores, left = self.stream, self._replicas.stores, ""
        if stream is not None:
            # A log that has failed takes no seal. The others, if there are any, have what it holds, or it was never
            # acked. Alone it refuses: its files stay, and the next start, which knows of the deletion, can seal it.
            alone = set(self.membership.voters) <= {self._replicas.peers.me}
            seal = (alone or stream.failed is None) and self._replicas.shared.lake.keeps(create)
            left = stream.store.leave(leaving.note(create), seal)
        if self._mine(stores.identity(self.account, self.name)):
            left = stores.leave(self.directory, leaving.note(create)) or left
        return left

    def _mine(self, there: bytes | None) -> bool:
        """Whether the directory, with this identity, can be this stream's. One that a server without a cluster made
        has none."""
        uid = uid_of(there) if there is not None else ""
        return uid == self.uid or (uid == "" and self._replicas.stores.belongs(self.directory, self.uid))


class Opened(msgspec.Struct):
    """A replica's files, opened. `damage`: what was wrong with them; empty when nothing was."""

    member: raft.Member
    store: Store
    stream: Stream
    damage: str = ""


def decode_identity(identity: bytes) -> CreateStream | None:
    """What `Replica.identity` gave; None when it is damaged."""
    try:
        create = decode_operation(identity)
    except msgspec.MsgspecError:
        return None
    return create if isinstance(create, CreateStream) else None


def uid_of(identity: bytes) -> str:
    """The uid in it; "" when it is damaged."""
    create = decode_identity(identity)
    return create.uid if create is not None else ""
