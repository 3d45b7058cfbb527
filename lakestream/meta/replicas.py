"""This node's replicas of the cluster's streams.

Belongs here: opening, creating and removing the local replica of a stream that other nodes hold too, and the way by
which a change of its role reaches the engine. Which nodes hold a stream is the meta group's business; what a stream
does as leader and follower is stream/stream.py's and replica.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from lakestream.log.format.errors import LogError
from lakestream.log.format.files import Files
from lakestream.log.store.store import Store
from lakestream.meta import leaving
from lakestream.meta.replica import Opened, Replica, decode_identity
from lakestream.meta.replica_repair import Repairs
from lakestream.meta.replica_transfer import Sender
from lakestream.protocol.api.errors import ApiError, api_error, for_clients
from lakestream.raft.core.messages import Membership
from lakestream.raft.group.groups import Groups
from lakestream.raft.group.ports import Calls, Peers
from lakestream.stream.core.operations import CreateStream
from lakestream.stream.mirroring.clone import READ_AGAIN_NS, Bases, BaseUnreadable

if TYPE_CHECKING:
    from lakestream.account.engine import Engine
    from lakestream.meta.shared import Shared
    from lakestream.stream.assembly import Stream


NAMED_LATER = "it is opened when the meta group names it"


class Host(Protocol):
    """What replicas tell the engine. Everything in the event loop."""

    def opened(self, replica: Replica) -> None:
        """`replica.stream` is there and follows. What it holds may be old, see `caught_up`."""

    def caught_up(self, replica: Replica) -> None:
        """Its stream, which follows, has come to what its leader has: direct gets may be answered from it."""

    def leads(self, replica: Replica) -> None:
        """Its stream leads and is ready: subscribe its subjects. Called once for each leadership, after everything
        committed was applied and `Stream.lead` has run. Tell the other nodes who leads."""

    def follows(self, replica: Replica) -> None:
        """Its stream leads no more, or another leader is known (`replica.leader`, "" for none), or the term changed:
        cancel the subscriptions of a leader, if there are any."""

    def reopened(self, replica: Replica) -> None:
        """`replica.stream` is another object now, with a state that came from another node: whatever held on to the
        one before (direct gets, lake) takes this one. It follows."""

    def serves(self, account: str) -> bool:
        """Whether the account has JetStream on this node: else none of its replicas leads here."""

    def gone(self, replica: Replica) -> None:
        """The replica is being removed, or its log cannot be used (`replica.trouble` says why)."""


class ReplicaStores(Protocol):
    """The files of replicas. Every method blocks but `directory`."""

    @property
    def files(self) -> Files:
        """How files are read and written."""

    def directory(self, account: str, name: str) -> str:
        """Where a stream's files are, or would be."""

    def identity(self, account: str, name: str) -> bytes | None:
        """What `begin` was given for this stream; None when its directory is not a replica's."""

    def belongs(self, directory: str, uid: str) -> bool:
        """Whether the files there, if any, are not known to be another stream's."""

    def begin(self, directory: str, identity: bytes) -> None:
        """Make the directory of a replica, durably."""

    def open(self, directory: str, uid: str, *, memory: bool, durable_through: int | None) -> Store:
        """Open the store; entries through `durable_through` must be there. Raises LogError."""

    def empty(self, directory: str) -> None:
        """Remove log and checkpoint: other members have them."""

    def remove(self, directory: str) -> None:
        """Remove everything."""

    def leave(self, directory: str, note: bytes) -> str:
        """Have the files of a deleted stream, which is not open, wait for the lake; see `Stores.leave`."""

    def salvage(self, directory: str) -> None:
        """Cut a damaged log to what is intact, or to nothing."""

    def incoming(self, directory: str, identity: bytes, names: Sequence[str]) -> str:
        """Make an empty directory, with these empty files, for a state that is to replace `directory`; its path."""

    def write(self, path: str, data: bytes, offset: int) -> None:
        """Write a piece of one of its files."""

    def repairing(self, directory: str, number: int, names: Sequence[str]) -> str:
        """Make a directory with these empty files below `directory`, for a good copy of a damaged one; its path."""

    def arrived(self, path: str, names: Sequence[str]) -> None:
        """Make the files durable."""

    def take_in(self, directory: str) -> None:
        """What `incoming` made takes the place of `directory`, which is gone."""

    def sending(self, directory: str, number: int) -> str:
        """Make an empty directory for what another node fetches of `directory`; its path."""

    def sent(self, path: str) -> None:
        """Remove it."""

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Read a piece of a file."""


class LakeWatch(Bases, Protocol):
    """What the lake's keeper knows that concerns other nodes, and reads for replicas."""

    def position_of(self, uid: str, account: str, name: str, done: Callable[[int], None]) -> None:
        """`done` with the log index through which this node can read the stream from the lake; 0 when it can not."""


class Log(Protocol):
    """Where replicas report."""

    def info(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...
    def error(self, text: str) -> None: ...


class Replicas:
    """The replicas on this node, by uid. Only in a cluster.

    Args:
        shared: clock, threads, files, options and log.
        host: told of roles.
        groups: the groups of this node.
        calls: to ask other nodes for states.
    """

    def __init__(self, shared: Shared, host: Host, groups: Groups, peers: Peers, calls: Calls) -> None:
        self.shared, self.stores, self.host = shared, shared.stores.replicas, host
        self.groups, self.peers, self.calls = groups, peers, calls
        self.log: Log = shared.log
        self.lake: LakeWatch | None = None
        self.by_uid: dict[str, Replica] = {}
        self.bytes_fetched = 0
        """What came from other nodes, as states, since the start."""
        self.on_damage: Callable[[Replica, str], None] = lambda replica, what: None
        """Told of damage that is being repaired from other members, for an advisory."""
        self.sender = Sender(self)
        self.repairs = Repairs(self)
        self._started = False
        self._going: dict[str, list[Callable[[], None]]] = {}
        """Directories whose files are going, and what waits for that."""
        self._removal: dict[str, ApiError] = {}

    # ------------------------------------------------------------------ start
    def recover(self, account: str, name: str) -> bool:
        """Open a stream found on disk. Blocks, at start only.

        Returns False when the directory is not a replica's: the stream of a server without a cluster.
        """
        try:
            identity = self.stores.identity(account, name)
            if identity is None:
                return False
            create = decode_identity(identity)
            if create is None:
                self.log.error(f"stream {name}: its file `replica` is damaged; {NAMED_LATER}")
                return True
            replica = Replica(self, create)
        except (OSError, msgspec.MsgspecError) as error:
            self.log.error(f"stream {name}: its file `replica` cannot be used: {error}; {NAMED_LATER}")
            return True
        if (replica.account, replica.name) != (account, name):
            self.log.error(
                f"stream {name}: {self.stores.directory(account, name)} holds a replica of stream {replica.name} of "
                f'account "{replica.account}": a copied or renamed directory is never served; move it back, or away'
            )
            return True
        self.by_uid[replica.uid] = replica
        try:
            opened = replica.open(Membership(()))
        except Exception as error:  # whatever is wrong with one replica: the others serve
            self._broken(replica, error)
        else:
            self._begin(replica, opened)
        return True

    def start(self) -> None:
        """Take part in all groups, once the other nodes can be reached: in that of a replica found on disk when `hold`
        has named it, because it may have been removed meanwhile."""
        self._started = True
        for replica in list(self.by_uid.values()):
            self._start(replica)

    def _start(self, replica: Replica) -> None:
        if self._started and replica.wanted and not replica.started and replica.group is not None:
            replica.started = True
            replica.start()

    def _begin(self, replica: Replica, opened: Opened) -> None:
        if opened.damage:
            self.log.error(f"stream {replica.name}: {opened.damage}; what is missing comes from the other members")
            self.on_damage(replica, opened.damage)
        replica.begin(opened)
        self.host.opened(replica)
        self._start(replica)
        self.repairs.look_at(replica)

    def _broken(self, replica: Replica, error: BaseException) -> None:
        replica.trouble = for_clients(error)
        reason = str(error) if isinstance(error, LogError | OSError) else repr(error)
        self.log.error(f"stream {replica.name} is offline here: {reason}")
        self.host.gone(replica)
        if isinstance(error, BaseUnreadable):
            self.shared.clock.call_later(READ_AGAIN_NS, lambda: self._again(replica))

    def _again(self, replica: Replica) -> None:
        """What it needs of the lake may be readable by now."""
        if replica.trouble and replica.group is None and not replica.making:
            replica.trouble = ""
            self._make(replica, Membership(()), False)

    # ------------------------------------------------------------------ assignments
    def hold(self, create: CreateStream, membership: Membership, *, lost: bool = False) -> Replica:
        """Have a replica of this stream here: open it, or begin an empty one. Idempotent; the files are made in a
        thread, `replica.stream` is there later (`Host.opened`).

        Args:
            create: the stream as it was assigned, the same on every node. The first leader logs it.
            membership: the members that a new group begins with, the same on every one of them. A node that joins a
                group which exists already passes the others; the log tells it the rest.
            lost: this node may have been a member before and lost its files; see `Groups.member`.
        """
        replica = self.by_uid.get(create.uid)
        if replica is None:
            replica = self.by_uid[create.uid] = Replica(self, create)
            made = replica  # the name above may mean another replica by the time this one is made
            if replica.directory in self._going:
                self._going[replica.directory].append(lambda: self._make(made, membership, lost))
            else:
                self._make(replica, membership, lost)
        elif replica.trouble and replica.group is None and not replica.making:
            replica.trouble = ""  # what the assignment says may be what was missing to open it
            self._make(replica, membership, lost)
        replica.wanted = True
        self._start(replica)
        return replica

    def _make(self, replica: Replica, membership: Membership, lost: bool) -> None:
        if replica.closed:
            return  # removed before it was begun
        replica.making = True

        def made(opened: Opened | None, error: BaseException | None) -> None:
            replica.making = False
            if replica.closed:
                self.too_late(replica, opened)
            elif opened is None:
                self._broken(replica, error or OSError("no answer"))
            else:
                self._begin(replica, opened)

        self.shared.io.submit(lambda: replica.make(membership, lost), made)

    def drop(self, uid: str, done: Callable[[ApiError | None], None], deleted: CreateStream | None = None) -> None:
        """Remove the replica with its files; `done(None)` once they are gone, also when there was none.

        `deleted`: so was this stream, so the files are gone once that cannot be undone any more: what the lake is
        owed of them comes behind (leaving.py).
        """
        replica = self.by_uid.pop(uid, None)
        if replica is None:
            done(None)
            return
        self.host.gone(replica)
        replica.deleted = deleted
        replica.stop(deleted=True)
        if replica.directory in self._going:  # of its predecessor: it has no files yet
            done(None)
            return
        self._going[replica.directory] = [lambda: done(self._removal.pop(uid, None))]
        if replica.making:
            return  # destroyed when that is done
        if replica.group is None:
            self._destroy(replica)
        else:  # a state that is being put in place makes the directory anew
            replica.group.stop(lambda: self._destroy(replica))

    def too_late(self, replica: Replica, opened: Opened | None) -> None:
        """It was opened while it was being removed, or while the server ended: then its files stay."""
        if replica.removed:
            if opened is not None:
                replica.stream = opened.stream
            self._destroy(replica)
        elif opened is not None:
            opened.store.abandon()

    def _destroy(self, replica: Replica) -> None:
        deleted = replica.deleted

        def destroy() -> str:
            if deleted is not None:
                return replica.leave(deleted)
            replica.destroy()
            return ""

        def destroyed(left: str | None, error: BaseException | None) -> None:
            if error is not None:
                self.log.error(f"stream {replica.name}: its files could not be removed: {error}")
                self._removal[replica.uid] = api_error(10050, err=for_clients(error))
            elif deleted is not None:
                leaving.begin(self.shared, deleted, left or "")
            for waiting in self._going.pop(replica.directory, []):
                waiting()

        self.shared.io.submit(destroy, destroyed)

    # ------------------------------------------------------------------ accounts
    def readable(self, uid: str) -> bool:
        """Whether clients may read from a stream of this node. One that is nobody's replica is whole."""
        replica = self.by_uid.get(uid)
        return replica is None or replica.readable

    def served(self, account: str) -> None:
        """An account has JetStream from now on."""
        for replica in list(self.by_uid.values()):
            if replica.account == account:
                replica.take_lead()

    def withdrawn(self, account: str) -> None:
        """An account has JetStream no more: see `Host.serves`."""
        for replica in list(self.by_uid.values()):
            if replica.account == account and replica.leading:
                replica.step_down()

    # ------------------------------------------------------------------ the lake
    def lake_through(self, replica: Replica, done: Callable[[int], None]) -> None:
        """`done` with the entry through which this node can read the stream from the lake; 0 without a lake."""
        if self.lake is None:
            done(0)
        else:
            self.lake.position_of(replica.uid, replica.account, replica.name, done)

    def check_history(self, replica: Replica, left_through: int) -> None:
        """Say so when messages that only the lake holds can not be read here."""

        def known(position: int) -> None:
            if position < left_through:
                self.log.error(
                    f"stream {replica.name}: messages of entries through {left_through} are only in a lake that this "
                    f"node can not read (it finds {position}): give all nodes the same lake"
                )

        self.lake_through(replica, known)

    # ------------------------------------------------------------------ end
    def stop(self) -> None:
        """The server ends: leaders hand over as far as they can, then take part no more. In the event loop."""
        for replica in self.by_uid.values():
            replica.stop()

    def close(self) -> None:
        """Write the last checkpoints. Blocks; after `stop`."""
        for replica in self.by_uid.values():
            try:
                replica.close()
            except Exception as error:  # the others get their checkpoints; this one is replayed from its log
                self.log.error(f"stream {replica.name}: no last checkpoint was written: {error!r}")


def asked_here(engine: Engine, name: str) -> Stream | None:
    """The stream that a request to all nodes is about, if this node is the one to answer it; None: another node does.

    Its leader answers; that there is no such stream, the leader of the meta group says: then this raises ApiError.
    """
    stream, cluster = engine.streams.get(name), engine.cluster
    if cluster is None:
        if stream is None:
            raise api_error(10059)
        return stream
    if stream is not None:
        return stream if stream.leading else None
    if cluster.meta.leading and cluster.meta.state.find(engine.account, name) is None:
        raise api_error(10059)
    return None
