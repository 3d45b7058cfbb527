"""The replicas on this node.

Belongs here: opening, creating and removing this node's replica of each stream. local.py decides which replicas this
node holds; replica.py and `stream/` have a replica's behaviour as leader and follower. A server without a cluster has
replicas in groups of one.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING

from lakestream.log.format.errors import LogError
from lakestream.log.format.files import Brief, at_once
from lakestream.log.store.base import READ_AGAIN_NS, BaseUnreadable
from lakestream.meta import deleted_streams
from lakestream.meta.read_index import ReadIndexes
from lakestream.meta.replica_files import MemberFiles, decode_identity
from lakestream.meta.replica_repair import Repairs
from lakestream.meta.replica_transfer import StateSender
from lakestream.meta.site import OpenedReplica, Site
from lakestream.protocol.api.errors import ApiError, api_error, for_clients
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.raft.core.messages import Membership
from lakestream.stream.core.operations import CreateStream

if TYPE_CHECKING:
    from lakestream.meta.replica import Host, Replica


ENDED_NS = 20_000_000_000
"""Time after which nothing refers to a removed replica any more (20 s)."""

FREED_NS = 1_000_000
"""Time after which its memory is freed then (1 ms)."""

_PARTS = (
    "lakestream.meta.replica",
    "lakestream.raft",
    "lakestream.stream",
    "lakestream.log",
    "lakestream.account.get",
    "lakestream.server.lake.history",
    "lakestream.server.lake.stream_sync",
)
"""Modules of what ends with a replica; all of it has to be looked at together."""

NAMED_LATER = "it is opened when the meta group names it"


class Replicas:
    """The replicas on this node, by uid.

    Args:
        host: called when a replica's role changes.
    """

    def __init__(self, site: Site, host: Host) -> None:
        self.site, self.host = site, host
        self.by_uid: dict[str, Replica] = {}
        self.on_damage: Callable[[Replica, str], None] = lambda replica, what: None
        """Called for damage that other members repair, to send an advisory."""
        self.sender = StateSender(site, self.by_uid.get)
        self.reads = ReadIndexes(site.peers, self.by_uid.get)
        self.repairs = Repairs(site, lambda replica, what: self.on_damage(replica, what))
        self.damaged, self.scrub = self.repairs.found, self.repairs.scrub
        self._log, self._files, self._shared = site.log, site.files, site.shared
        self._started = False
        self._removals: dict[tuple[str, str], list[Callable[[ApiError | None], None]]] = {}
        """Callbacks that wait for the removal of a stream's files, by account and name."""

    # ------------------------------------------------------------------ start
    def recover(self, account: str, name: str) -> bool:
        """Open a member's files that were found on disk. Block; at start only.

        Return False when the directory belongs to a group of one.
        """
        assert isinstance(self._files, MemberFiles)  # Invariant: recovery.py opens the replicas of groups of one
        stores = self._files.stores
        try:
            identity = stores.identity(account, name)
            if identity is None:
                return False
            create = decode_identity(identity)
            if create is None:
                self._log.error(f"stream {name}: its file `replica` is damaged; {NAMED_LATER}")
                return True
            replica = self._made(create)
        except (OSError, *DECODE_ERRORS) as error:
            self._log.error(f"stream {name}: its file `replica` cannot be used: {error}; {NAMED_LATER}")
            return True
        if replica.key != (account, name):
            self._log.error(
                f"stream {name}: {stores.directory(account, name)} holds a replica of stream {replica.name} of "
                f'account "{replica.account}": a copied or renamed directory is never served; move it back, or away'
            )
            return True
        self.by_uid[replica.uid] = replica
        try:
            opened = replica.open(Membership(()))
        except Exception as error:  # the other replicas still serve
            self._broken(replica, error)
        else:
            self._begin(replica, opened)
        return True

    def _made(self, create: CreateStream) -> Replica:
        from lakestream.meta.replica import Replica  # with the first stream

        return Replica(self.site, self, create)

    def take(self, create: CreateStream, opened: OpenedReplica | BaseException) -> Replica:
        """Add a replica with files from disk, opened or with the error. It does not serve before `serve`."""
        replica = self.by_uid[create.uid] = self._made(create)
        replica.found = replica.wanted = True
        if isinstance(opened, BaseException):
            self._broken(replica, opened)
        else:
            replica.begin(opened)
        return replica

    def serve(self, replica: Replica) -> None:
        """Start the group of a replica that was opened."""
        self.host.opened(replica)
        self._start(replica)
        if replica.stream is not None and replica.stream.hidden:  # a restore fills it before it serves
            replica.report_created(None)
        self.repairs.scrub(replica)

    def release(self, replica: Replica) -> None:
        """Stop a replica and forget it; its files stay."""
        del self.by_uid[replica.uid]
        self.host.gone(replica)
        self.repairs.forget(replica)
        replica.stop()
        self._ended(replica)

    def start(self) -> None:
        """Start all groups, once the other nodes can be reached; that of a replica found on disk only after `hold`,
        because its stream may have been removed meanwhile."""
        self._started = True
        for replica in list(self.by_uid.values()):
            self._start(replica)

    def _start(self, replica: Replica) -> None:
        if self._started and replica.wanted and not replica.started and replica.group is not None:
            replica.started = True
            replica.start()

    def _begin(self, replica: Replica, opened: OpenedReplica) -> None:
        if opened.damage:
            self._log.error(f"stream {replica.name}: {opened.damage}; other members send the missing entries")
            self.on_damage(replica, opened.damage)
        replica.begin(opened)
        self.serve(replica)

    def _broken(self, replica: Replica, error: BaseException) -> None:
        replica.trouble = for_clients(error)
        self._report(replica, error)
        self.host.gone(replica)
        replica.report_created(api_error(10049, err=f"cannot create the store: {replica.trouble}"))
        if isinstance(error, BaseUnreadable):
            self._shared.clock.call_later(READ_AGAIN_NS, lambda: self._again(replica))

    def _report(self, replica: Replica, error: BaseException) -> None:
        """Log the reason why a replica's files cannot be used."""
        if not replica.found and not replica.group and not self._files.directory(*replica.key):
            self._log.error(f"stream {replica.name}: cannot create its store: {error}")
            return
        here = " here" if self._files.directory(*replica.key) else ""
        reason = str(error) if isinstance(error, LogError | OSError) else repr(error)
        self._log.error(f"stream {replica.name} is offline{here}: {reason}")

    def _again(self, replica: Replica) -> None:
        """Reopen a replica whose table could not be read."""
        if replica.trouble and replica.group is None and not replica.opening:
            replica.trouble = ""
            self._open(replica, Membership(()), False)

    # ------------------------------------------------------------------ assignments
    def hold(self, create: CreateStream, membership: Membership, *, lost: bool = False) -> Replica:
        """Create or open the replica of a stream. Idempotent; the files are opened in a thread, `Host.opened` is called
        later.

        Args:
            create: the stream as it was assigned, the same on every node. The first leader logs it.
            membership: the initial members of a new group, the same on every one of them. A node that joins an existing
                group passes the others; the log has later changes.
            lost: this node may have been a member before and lost its files; see `Groups.member`.
        """
        replica = self.by_uid.get(create.uid)
        if replica is None:
            replica = self.by_uid[create.uid] = self._made(create)
            new = replica  # bound now for the lambda
            if replica.key in self._removals:
                self._removals[replica.key].append(lambda _: self._open(new, membership, lost))
            else:
                self._open(replica, membership, lost)
        elif replica.trouble and replica.group is None and not replica.opening:
            replica.trouble = ""  # the assignment may have the information that was missing to open it
            self._open(replica, membership, lost)
        replica.wanted = True
        self._start(replica)
        return replica

    def _open(self, replica: Replica, membership: Membership, lost: bool) -> None:
        if replica.closed:
            return  # removed before its files were created
        replica.opening = True

        def done(opened: OpenedReplica | None, error: BaseException | None) -> None:
            replica.opening = False
            if replica.closed:
                self.discard_opened(replica, opened)
            elif opened is None:
                self._broken(replica, error or OSError("no answer"))
            else:
                self._begin(replica, opened)

        # A new stream of a group of one is one sync.
        how = Brief.SOON if self._files.creates else Brief.NO
        self._shared.io.submit(lambda: replica.create_or_open(membership, lost), done, how)

    def drop(self, uid: str, done: Callable[[ApiError | None], None], deleted: CreateStream | None = None) -> None:
        """Remove the replica with its files; call `done(None)` once no start finds them, or if there is no replica.

        `deleted`: the stream, if it is deleted. Then `done` is called once the deletion is durable; the files stay
        until the lake has them (deleted_streams.py).
        """
        replica = self.by_uid.pop(uid, None)
        if replica is None:
            done(None)
            return
        replica.trouble, replica.was = "", replica.trouble
        self.host.gone(replica)
        self.repairs.forget(replica)
        replica.deleted = deleted
        replica.stop(deleted=True)
        replica.report_created(api_error(10059))
        if replica.key in self._removals:  # of its predecessor: this replica has no files yet
            done(None)
            return
        self._removals[replica.key] = [done]
        if replica.opening:
            return  # `discard_opened` removes the files
        if replica.group is None:
            self._remove(replica)
        else:  # wait for the installation of a state, which creates the directory again
            replica.group.stop(lambda: self._remove(replica))

    def discard_opened(self, replica: Replica, opened: OpenedReplica | None) -> None:
        """Remove the files of a removed replica that were opened meanwhile; close those of a stopped one."""
        if replica.removed:
            if opened is not None:
                replica.stream = opened.stream
            self._remove(replica)
        elif opened is not None:
            opened.store.abandon()

    def _ended(self, replica: Replica) -> None:
        """Have the memory of a replica freed, not before its last timers have ended, which refer to it."""
        from lakestream.ended import reexamine  # once something ends

        clock = self._shared.clock

        def collect() -> None:
            gc.collect(0)  # an idle server makes few objects, and so would not come to it: 0.2 ms

        def free() -> None:
            reexamine(replica, _PARTS, self)
            clock.call_later(FREED_NS, collect)  # not now: this call has a reference

        clock.call_later(ENDED_NS, free)

    def _remove(self, replica: Replica) -> None:
        deleted = replica.deleted

        def cleared(_: object, error: BaseException | None) -> None:
            if error is not None:
                self._log.warn(f"stream {replica.name}: the next start removes its files: {error}")

        def removed(left: str | None, error: BaseException | None) -> None:
            failed = None
            if error is not None:
                self._log.error(f"stream {replica.name}: its files could not be removed: {error}")
                failed = api_error(10050, err=for_clients(error))
                if replica.found and replica.stream is None:  # add the unopened replica again
                    self.by_uid[replica.uid] = replica
                    replica.closed = replica.removed = False
                    replica.trouble = replica.was
                    self.host.gone(replica)
            elif deleted is not None:
                deleted_streams.release(self._shared, deleted, left or "")
            elif replica.found and replica.stream is None:
                self._log.warn(f"stream {replica.name}: removed; its log could not be read, so a table of it stays")
            if left and deleted is None:  # who deletes a stream does not wait for that
                remove_tree = self._shared.stores.files.remove_tree
                self._shared.io.lane(background=True).submit(lambda: remove_tree(left), cleared)
            for waiting in self._removals.pop(replica.key, []):
                waiting(failed)
            if error is None:
                self._ended(replica)

        self._shared.io.submit(lambda: replica.remove(deleted), removed)

    # ------------------------------------------------------------------ accounts
    def readable(self, uid: str) -> bool:
        """Return True if clients may read from this node's replica of a stream."""
        replica = self.by_uid.get(uid)
        return replica is not None and replica.readable

    def of(self, account: str) -> list[Replica]:
        return [replica for replica in self.by_uid.values() if replica.account == account]

    # ------------------------------------------------------------------ end
    def stop(self) -> None:
        """Stop all replicas at shutdown, in the event loop."""
        for replica in self.by_uid.values():
            replica.stop()

    def close(self) -> None:
        """Write the last checkpoints. Block; after `stop`."""
        at_once(self._close, self.by_uid.values())

    def _close(self, replica: Replica) -> None:
        try:
            replica.close()
        except Exception as error:  # write the other checkpoints; the next start replays this log
            self._log.error(f"stream {replica.name}: cannot write its last checkpoint: {error!r}")
