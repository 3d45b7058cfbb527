"""Services that every replica of a node uses.

Belongs here: one object with threads, groups, files, the other nodes and the lake, and the interfaces that they need.
replica.py, replica_transfer.py and replica_repair.py import it instead of `Replicas`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from lakestream.log.store.base import Bases
from lakestream.log.store.store import Store
from lakestream.meta.ports import Peers
from lakestream.meta.replica_files import ReplicaFacts, ReplicaFiles
from lakestream.meta.shared import Shared
from lakestream.raft.group import group
from lakestream.raft.group.group import Group, Groups
from lakestream.stream.core.operations import CreateStream

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream


class LakeWatch(Bases, Protocol):
    """Interface to the lake's keeper, for fetching states of other nodes."""

    def position_of(self, uid: str, account: str, name: str, done: Callable[[int], None]) -> None:
        """Call `done` with the log index through which this node can read the stream from the lake, or 0."""


class HeldReplica(ReplicaFacts, Protocol):
    """Interface to a replica, for transfers of its state."""

    closed: bool
    stream: Stream | None
    group: Group | None
    repairing: set[str]

    @property
    def directory(self) -> str:
        """Return the directory of its files."""


class PeerInfo(msgspec.Struct, frozen=True):
    """Another member of the group, for API responses."""

    name: str
    current: bool
    """True if it is active and lacks no entries."""
    offline: bool
    active_ns: int
    """Time since its last message, in ns."""
    lag: int
    """Number of log entries that it lacks."""


class OpenedReplica(msgspec.Struct):
    """The opened files of a replica. `damage`: the damage found in them; "" for none."""

    member: group.Member
    store: Store
    stream: Stream
    damage: str = ""


def group_id(uid: str) -> str:
    """Return the id of a stream's group."""
    return f"S-{uid}"


class Site:
    """The services of a node's replicas.

    Args:
        groups: opens this node's group members.
        files: the files of its replicas.
        peers: the other nodes.
    """

    def __init__(self, shared: Shared, groups: Groups, files: ReplicaFiles, peers: Peers) -> None:
        self.shared, self.log = shared, shared.log
        self.groups, self.files, self.peers = groups, files, peers
        self.lake: LakeWatch | None = None
        self.bytes_fetched = 0
        """Bytes of states received from other nodes since the start."""

    def stream(self, create: CreateStream, store: Store) -> Stream:
        """Return a stream over an open store; it serves only once its replica leads."""
        from lakestream.stream.assembly import Stream  # with the first stream

        shared = self.shared
        bus, options = shared.bus_of(create.account), shared.options
        return Stream(
            create,
            store,
            bus,
            shared.clock,
            shared.io,
            options.domain,
            alone=False,
            batches=shared.batches,
            buffer=options.buffer,
            uncommitted=shared.uncommitted,
            ack_seconds=shared.ack_seconds,
            spans=shared.spans,
            definitions=shared.definitions(create.account),
        )

    def lake_through(self, replica: HeldReplica, done: Callable[[int], None]) -> None:
        """Call `done` with the entry through which this node can read the stream from the lake; 0 without a lake."""
        if self.lake is None:
            done(0)
        else:
            self.lake.position_of(replica.uid, replica.account, replica.name, done)

    def check_history(self, replica: HeldReplica, left_through: int) -> None:
        """Log an error when messages that only the lake holds cannot be read here."""

        def known(position: int) -> None:
            if position < left_through:
                self.log.error(
                    f"stream {replica.name}: messages of entries through {left_through} are only in a lake that this "
                    f"node can not read (it finds {position}): give all nodes the same lake"
                )

        self.lake_through(replica, known)
