"""Assignments: the streams that exist, and their nodes.

Belongs here: the entries of the meta log, the state machine that applies them, and its snapshot. No clock, no node
names beyond those in the entries, no I/O: every node of the cluster has the same state at the same index. placement.py
chooses nodes, local.py acts on the assignments of its own node.

A node removes a stream's files only for an applied entry: the stream's uid was removed, or the stream has left the node
and its group has confirmed its new members (`SettleStream`). A stream that is merely unknown here is never removed.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from lakestream.protocol.decoding import PackDecoder

MAX_TOMBSTONES = 65_536
"""Maximum number of tombstones; beyond it the oldest are dropped. A node that was down for longer keeps its files of
such streams, offline."""


class AssignStream(msgspec.Struct, frozen=True, tag="assign"):
    """Assign a new stream. `config` is the validated StreamConfig as JSON; the first of `peers` is its first leader."""

    uid: str
    account: str
    name: str
    config: bytes
    peers: tuple[str, ...]
    created_ns: int
    restoring: str = ""
    """The node that restores the stream from an archive, "" for none; until `RestoredStream` the stream is hidden."""


class ChangeStream(msgspec.Struct, frozen=True, tag="change"):
    """Change a stream's configuration, and the nodes that are to hold it."""

    uid: str
    config: bytes
    peers: tuple[str, ...]


class SettleStream(msgspec.Struct, frozen=True, tag="settle"):
    """Confirm that the members of the stream's group are now `peers`: other holders may remove their files."""

    uid: str
    peers: tuple[str, ...]


class RemoveStream(msgspec.Struct, frozen=True, tag="remove"):
    """Remove a stream for good."""

    uid: str


class RestoredStream(msgspec.Struct, frozen=True, tag="restored"):
    """Show a stream whose archive is restored."""

    uid: str


class AbandonStream(msgspec.Struct, frozen=True, tag="abandon"):
    """Remove a stream unless it is restored."""

    uid: str


MetaOp = AssignStream | ChangeStream | SettleStream | RemoveStream | RestoredStream | AbandonStream


class Assignment(msgspec.Struct, frozen=True):
    """The nodes of a stream.

    `peers` are to hold it. `settled` were the voters of its group when that last agreed with `peers`. `holders` are all
    nodes that may have files of it: `settled`, and every node that was to join or leave since.
    """

    uid: str
    account: str
    name: str
    config: bytes
    peers: tuple[str, ...]
    settled: tuple[str, ...]
    holders: tuple[str, ...]
    created_ns: int
    index: int
    """Index of the entry that assigned it first."""
    restoring: str = ""
    """The node that restores it; "" if none does."""

    @property
    def moving(self) -> bool:
        """Return True while the group is changing its members."""
        return not set(self.peers) == set(self.settled) == set(self.holders)


class MetaSnapshot(msgspec.Struct, frozen=True):
    """The whole state, for the checkpoint and for a node whose log is too far behind."""

    streams: list[Assignment]
    tombstones: list[tuple[str, str]]


class Applied(msgspec.Struct, frozen=True):
    """The effect of an entry: the assignment before and after it; for a rejected entry both are None."""

    before: Assignment | None = None
    after: Assignment | None = None
    refused: str = ""


class MetaState:
    """The assignments of a cluster."""

    def __init__(self) -> None:
        self.streams: dict[tuple[str, str], Assignment] = {}
        """Assignments by account and name."""
        self.by_uid: dict[str, Assignment] = {}
        self.tombstones: OrderedDict[str, str] = OrderedDict()
        """Removed streams: uid to name, oldest first."""
        self.changed: dict[tuple[str, str], None] = {}
        """Account and name of each stream that was changed since inventory.py took the changes."""

    def find(self, account: str, name: str) -> Assignment | None:
        """Return the assignment of a stream, or None."""
        return self.streams.get((account, name))

    def removed(self, uid: str) -> bool:
        """Return True if a stream was removed for good."""
        return uid in self.tombstones

    def apply(self, op: MetaOp, index: int) -> Applied:
        """Apply the entry at `index`. One that does not fit the state changes nothing and returns the reason."""
        if isinstance(op, AssignStream):
            return self._assign(op, index)
        before = self.by_uid.get(op.uid)
        if before is None:
            return Applied(refused="there is no such stream")
        match op:
            case ChangeStream():
                holders = (*before.holders, *(peer for peer in op.peers if peer not in before.holders))
                after = msgspec.structs.replace(before, config=op.config, peers=op.peers, holders=holders)
            case SettleStream() if set(op.peers) != set(before.peers):
                return Applied(refused="other members are wanted meanwhile")
            case SettleStream():
                after = msgspec.structs.replace(before, settled=before.peers, holders=before.peers)
            case RestoredStream():
                after = msgspec.structs.replace(before, restoring="")
            case AbandonStream() if not before.restoring:
                return Applied(refused="the stream is restored")
            case RemoveStream() | AbandonStream():
                self._remove(before)
                return Applied(before, None)
        return Applied(before, self._put(after))

    def _assign(self, op: AssignStream, index: int) -> Applied:
        if (op.account, op.name) in self.streams:
            return Applied(refused="the name is in use")
        if op.uid in self.by_uid or op.uid in self.tombstones:
            return Applied(refused="this stream was there before")
        peers = op.peers
        new = Assignment(
            op.uid, op.account, op.name, op.config, peers, peers, peers, op.created_ns, index, op.restoring
        )
        return Applied(None, self._put(new))

    def _remove(self, assignment: Assignment) -> None:
        key = (assignment.account, assignment.name)
        del self.by_uid[assignment.uid], self.streams[key]
        self.changed[key] = None
        self.tombstones[assignment.uid] = assignment.name
        while len(self.tombstones) > MAX_TOMBSTONES:
            self.tombstones.popitem(last=False)

    def _put(self, assignment: Assignment) -> Assignment:
        # Invariant: the two views hold the same assignments.
        key = (assignment.account, assignment.name)
        self.streams[key] = assignment
        self.changed[key] = None
        self.by_uid[assignment.uid] = assignment
        return assignment

    def take_back(self, removed: Assignment) -> None:
        """Restore an assignment whose removal failed, unless another stream has its name by now."""
        if (removed.account, removed.name) not in self.streams:
            self._put(removed)

    def changes(self, later: MetaState) -> list[Applied]:
        """Return the differences between this state and a later one, one for each stream, removals first."""
        gone = [Applied(each, None) for uid, each in self.by_uid.items() if uid not in later.by_uid]
        there = [(self.by_uid.get(uid), each) for uid, each in later.by_uid.items()]
        return gone + [Applied(before, after) for before, after in there if before != after]

    # ------------------------------------------------------------------ snapshot
    def dump(self) -> bytes:
        """Return the state as bytes; equal states give equal bytes."""
        streams = [assignment for _, assignment in sorted(self.streams.items())]
        return _encoder.encode(MetaSnapshot(streams, list(self.tombstones.items())))

    @classmethod
    def load(cls, dumped: bytes) -> MetaState:
        """Return the state that `dump` encoded. Raise `msgspec.DecodeError`."""
        snapshot = _snapshot.decode(dumped)
        state = cls()
        for assignment in snapshot.streams:
            state._put(assignment)
        state.tombstones.update(snapshot.tombstones)
        return state


_encoder = msgspec.msgpack.Encoder()
_op: PackDecoder[MetaOp] = PackDecoder(MetaOp)
_snapshot: PackDecoder[MetaSnapshot] = PackDecoder(MetaSnapshot)


def encode_op(op: MetaOp) -> bytes:
    """Return the body of an entry."""
    return _encoder.encode(op)


def decode_op(body: bytes) -> MetaOp:
    """Return the entry that `encode_op` encoded. Raise `msgspec.DecodeError`."""
    return _op.decode(body)
