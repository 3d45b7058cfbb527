"""The files of the replicas of a node.

Belongs here: creating, opening and removing them, for a group of one and for a member of a group with other nodes. The
file `replica` in a member's directory identifies its stream, because its log may still be empty.
"""

from __future__ import annotations

from typing import Protocol

from lakestream.log.format.errors import LogError
from lakestream.log.store.repair import salvage
from lakestream.log.store.store import Store
from lakestream.meta.stores import FileStores, set_aside
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.stream.core.operations import CreateStream, decode_operation, stream_name


class ReplicaFacts(Protocol):
    """Interface to a replica, for its files."""

    uid: str
    account: str
    name: str
    memory: bool
    found: bool

    @property
    def identity(self) -> bytes:
        """Return the stream's encoded creation as assigned, for its directory."""


class ReplicaFiles(Protocol):
    """The files of one kind of replicas. Every method but `directory` blocks."""

    @property
    def stores(self) -> FileStores:
        """Return the stores, for transfers of states."""

    creates: bool
    """True if `open` creates a stream with its first entry; otherwise the group logs it."""

    def directory(self, account: str, name: str) -> str:
        """Return the directory of a stream's files; "" when it has none."""

    def begin(self, replica: ReplicaFacts) -> None:
        """Prepare the directory of a new replica. Raise LogError if it has another stream's files."""

    def open(self, replica: ReplicaFacts, durable_through: int | None) -> Store:
        """Open the log, or create an empty one. Raise LogError."""

    def salvage(self, replica: ReplicaFacts, usable: bool) -> str:
        """Truncate a damaged log to its intact entries, or empty it; return the damage, and what cannot be read."""

    def set_aside(self, replica: ReplicaFacts) -> str:
        """Move log and checkpoint, which other members have, to a directory that stays; return it."""

    def remove(self, replica: ReplicaFacts, note: bytes = b"") -> str:
        """Remove the files of a replica that is not open; see `FileStores.remove` for the note."""


class SoloFiles:
    """The files of groups of one. A memory stream has none."""

    creates = True

    def __init__(self, stores: FileStores) -> None:
        self._stores = stores

    @property
    def stores(self) -> FileStores:
        """Raise LookupError: a group of one transfers no state."""
        raise LookupError("a group of one exchanges no state with other nodes")

    def directory(self, account: str, name: str) -> str:
        return ""

    def begin(self, replica: ReplicaFacts) -> None: ...

    def open(self, replica: ReplicaFacts, durable_through: int | None) -> Store:
        stores = self._stores
        return stores.create(replica.account, replica.name, replica.uid, replica.identity, memory=replica.memory)

    def salvage(self, replica: ReplicaFacts, usable: bool) -> str:
        return ""

    def set_aside(self, replica: ReplicaFacts) -> str:
        """Raise LookupError: they are the only copy."""
        raise LookupError("a group of one has no other copy")

    def remove(self, replica: ReplicaFacts, note: bytes = b"") -> str:
        """Remove the files if they were found at the start; others belong to another stream."""
        return self._stores.remove(replica.account, replica.name, note) if replica.found else ""


class MemberFiles:
    """The files of members of groups in a cluster."""

    creates = False

    def __init__(self, stores: FileStores) -> None:
        self.stores = stores

    def directory(self, account: str, name: str) -> str:
        return self.stores.directory(account, name)

    def begin(self, replica: ReplicaFacts) -> None:
        there = self.stores.identity(replica.account, replica.name)
        if not self._mine(replica, there):
            raise LogError(
                f"{self.directory(replica.account, replica.name)} has the files of another stream; move them away",
                "another stream's files are in the way; the server's log names them",
            )
        if there is None or not names(there, replica.uid, replica.account, replica.name):
            self.stores.begin(replica.account, replica.name, replica.identity)

    def open(self, replica: ReplicaFacts, durable_through: int | None) -> Store:
        return self.stores.open_member(
            replica.account, replica.name, replica.uid, memory=replica.memory, durable_through=durable_through
        )

    def salvage(self, replica: ReplicaFacts, usable: bool) -> str:
        return salvage(self.directory(replica.account, replica.name), self.stores.files, usable).damage

    def set_aside(self, replica: ReplicaFacts) -> str:
        return set_aside(self.stores.files, self.directory(replica.account, replica.name))

    def remove(self, replica: ReplicaFacts, note: bytes = b"") -> str:
        if not self._mine(replica, self.stores.identity(replica.account, replica.name)):
            return ""
        return self.stores.remove(replica.account, replica.name, note)

    def _mine(self, replica: ReplicaFacts, there: bytes | None) -> bool:
        """Return True if the directory, with this identity, can be this stream's. Directories created by a server
        without a cluster have no identity."""
        uid = uid_of(there) if there is not None else ""
        place = (replica.account, replica.name, replica.uid)
        if uid == "":
            return self.stores.belongs(*place)
        # The identity has no checksum: where they differ, the log is right.
        return uid == replica.uid or self.stores.holds(*place)


def decode_identity(identity: bytes) -> CreateStream | None:
    """Decode `Replica.identity`; return None if it is damaged."""
    try:
        create = decode_operation(identity)
        return create if isinstance(create, CreateStream) and stream_name(create) else None
    except DECODE_ERRORS:
        return None


def names(identity: bytes, uid: str, account: str, name: str) -> bool:
    """Return True if an identity is that of this stream."""
    create = decode_identity(identity)
    return create is not None and (create.uid, create.account, stream_name(create)) == (uid, account, name)


def uid_of(identity: bytes) -> str:
    """Return the uid in an identity; "" when it is damaged."""
    create = decode_identity(identity)
    return create.uid if create is not None else ""
