"""The files of the streams of a server.

Belongs here: the directory of each stream, the options and the read cache with which its log is opened, deleted streams
whose files the lake still needs, and how a state that another node sent takes the place of this node's. After a kill
between any two steps either the old files or the new ones are whole.

    <stream>/log, checkpoint, synced   every stream; see log/store/store.py
    <stream>/replica             the stream as it was assigned (MessagePack); only on a node of a cluster
    <stream>/raft                the member's own file (raft/group/hard_state.py); only on a node of a cluster
    <stream>.incoming/           a state that is being fetched; once it is whole it becomes <stream>
    <stream>/sending-<n>/        links to files that another node fetches from here
    <stream>/repairing-<n>/      a good copy of a damaged segment that is being fetched
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence

from lakestream.log.format.errors import LogError
from lakestream.log.format.files import Files, Io, naming
from lakestream.log.format.outline import SUFFIX as OUTLINE_SUFFIX
from lakestream.log.format.segment import LOG_DIRECTORY, SUFFIX
from lakestream.log.index.subject_index import SCRATCH
from lakestream.log.store import root as leaving
from lakestream.log.store.base import remove_base
from lakestream.log.store.cache import ReadCache
from lakestream.log.store.checkpoint import NAME as CHECKPOINT
from lakestream.log.store.checkpoint import read_checkpoint
from lakestream.log.store.memory import MemoryStore
from lakestream.log.store.repair import salvage
from lakestream.log.store.root import INCOMING, UNKNOWN, StoreRoot, Survey, Tell
from lakestream.log.store.segment_log import LogOptions
from lakestream.log.store.segment_store import open_store
from lakestream.log.store.store import Store
from lakestream.raft.group.hard_state import NAME as RAFT

IDENTITY = "replica"
SENDING = "sending-"
REPAIRING = "repairing-"
PARTS = ("log", "checkpoint", "synced", "base", "leaving", IDENTITY, RAFT, SENDING, REPAIRING, SCRATCH)
"""Prefixes of the names in a stream's directory."""


class UnsyncedFiles(Files):
    """Files of a memory stream in a cluster: they outlive a killed process, but not a lost machine."""

    def sync(self, fd: int) -> None:
        """Do nothing."""

    def sync_directory(self, path: str) -> None:
        """Do nothing."""


class FileStores:
    """The streams below a store directory. Every method blocks.

    Args:
        store_dir: the directory that the server was given; its streams are below `jetstream` there.
        options: of every log.
        max_index_memory: bytes for the indexes of all streams.
        now: wall time in ns.

    Raises:
        StoreVersionError, StoreLocked, OSError: the directory cannot be used.
    """

    def __init__(
        self,
        store_dir: str,
        options: LogOptions,
        max_index_memory: int,
        io: Io,
        files: Files | None = None,
        now: Callable[[], int] = time.time_ns,
    ) -> None:
        self.root = os.path.join(store_dir, "jetstream")
        self.files = files or Files()
        self._unsynced = UnsyncedFiles()
        self._root = StoreRoot.open(self.root, self.files)
        self._survey = Survey([], [])
        self._io, self._now = io, now
        # A checkpoint of an index keeps what was in memory when it began, until it is written, and not all that is
        # freed between others goes back to the system: measured at ten million subjects, two and a half times as much.
        self._cache = ReadCache(self.files, max_index_memory=max_index_memory // 3)
        self._options = options

    def close(self) -> None:
        """Release the lock on the store."""
        self._root.close()

    def directory(self, account: str, name: str) -> str:
        """Return the directory of a stream, whether it exists or not."""
        return self._root.stream_directory(account, name)

    def found(self, tell: Tell) -> list[tuple[str, str]]:
        """See `Stores.found`."""
        self._settle(tell)
        self._survey = self._root.survey(self.files, tell)
        return self._survey.streams

    # ------------------------------------------------------------------ a group of one
    def create(self, account: str, name: str, uid: str, *, memory: bool) -> Store:
        """See `Stores.create`."""
        if memory:
            return MemoryStore(uid)
        directory = self.directory(account, name)
        if os.path.exists(directory):
            raise LogError(
                f"{directory} is there already: another stream's files; move them away to use this name",
                "another stream's files are in the way; the server's log names them",
            )
        try:
            return self._open_alone(account, name, uid)
        except BaseException:
            self.files.remove_tree(directory)  # nothing of it was ever used
            raise

    def open(self, account: str, name: str) -> Store:
        """See `Stores.open`."""
        return self._open_alone(account, name, "")

    def _open_alone(self, account: str, name: str, uid: str) -> Store:
        directory = self.directory(account, name)
        unknown = [each for each in self.files.names(directory) if not each.startswith(PARTS)]
        with naming(directory):
            store = open_store(
                directory, self._io, self._options, uid=uid, files=self.files, cache=self._cache, durable_through=None
            )
        store.notes.extend(f"{os.path.join(directory, each)} is no part of a stream: {UNKNOWN}" for each in unknown)
        return store

    # ------------------------------------------------------------------ a group with other nodes
    def identity(self, account: str, name: str) -> bytes | None:
        """See `ReplicaStores.identity`."""
        try:
            return self.files.read(os.path.join(self.directory(account, name), IDENTITY))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def belongs(self, account: str, name: str, uid: str) -> bool:
        """See `ReplicaStores.belongs`."""
        try:
            found = read_checkpoint(self.files, os.path.join(self.directory(account, name), CHECKPOINT))
        except LogError:
            return True  # it does not say
        return found is None or found[0].uid in ("", uid)

    def begin(self, account: str, name: str, identity: bytes) -> None:
        """See `ReplicaStores.begin`."""
        directory = self.directory(account, name)
        self.files.make_directory(directory)
        self.files.write_whole(os.path.join(directory, IDENTITY), [identity])

    def open_member(self, account: str, name: str, uid: str, *, memory: bool, durable_through: int | None) -> Store:
        """See `ReplicaStores.open_member`."""
        directory = self.directory(account, name)
        # A kill may have come between a swap and its sync: nothing is promised on a name that a power cut takes back.
        self.files.sync_directory(os.path.dirname(directory))
        for each in self.files.names(directory):
            if each.startswith((SENDING, REPAIRING)):
                self.files.remove_tree(os.path.join(directory, each))
        files = self._unsynced if memory else self.files
        return open_store(
            directory,
            self._io,
            self._options,
            uid=uid,
            files=files,
            cache=self._cache,
            durable_through=durable_through,
            now=self._now,
        )

    def empty(self, directory: str) -> None:
        """See `ReplicaStores.empty`."""
        self.files.remove(os.path.join(directory, CHECKPOINT))
        self.files.remove_tree(os.path.join(directory, LOG_DIRECTORY))
        remove_base(self.files, directory)  # a part of it may have gone with messages that the checkpoint had not
        self.files.sync_directory(directory)

    def salvage(self, directory: str) -> None:
        """See `ReplicaStores.salvage`."""
        salvage(directory, self.files)

    # ------------------------------------------------------------------ deleted streams
    def remove(self, account: str, name: str) -> None:
        """See `Stores.remove`. Rename first: half a stream must not be taken for one by a later start."""
        directory = self.directory(account, name)
        self.files.remove_tree(directory + INCOMING)
        leaving.discard(self.files, directory)

    def leave(self, account: str, name: str, note: bytes) -> str:
        """See `Stores.leave`."""
        directory = self.directory(account, name)
        self.files.remove_tree(directory + INCOMING)
        return leaving.leave(self.files, directory, note)

    def left(self) -> list[tuple[str, str, str]]:
        """See `Stores.left`."""
        return self._survey.left

    def note_in(self, directory: str) -> bytes:
        """See `Stores.note_in`."""
        return leaving.note_in(self.files, directory)

    def set_aside(self, directory: str) -> str:
        """See `Stores.set_aside`."""
        account = os.path.dirname(os.path.dirname(directory))
        return leaving.set_aside(self.files, directory, os.path.join(account, leaving.ASIDE))

    def clear(self, directory: str) -> None:
        """See `Stores.clear`."""
        leaving.clear(self.files, directory)

    # ------------------------------------------------------------------ a state from another node
    def incoming(self, directory: str, identity: bytes, names: Sequence[str]) -> str:
        """See `ReplicaStores.incoming`."""
        path = directory + INCOMING
        self.files.remove_tree(path)
        self.files.make_directory(os.path.join(path, LOG_DIRECTORY))
        self.files.write_whole(os.path.join(path, IDENTITY), [identity])
        for name in names:
            self.files.close(self.files.create(os.path.join(path, _checked(name))))
        return path

    def write(self, path: str, data: bytes, offset: int) -> None:
        """See `ReplicaStores.write`."""
        fd = self.files.open(path, write=True)
        try:
            self.files.write(fd, [data], offset)
        finally:
            self.files.close(fd)

    def repairing(self, directory: str, number: int, names: Sequence[str]) -> str:
        """See `ReplicaStores.repairing`."""
        path = os.path.join(directory, f"{REPAIRING}{number}")
        self.files.remove_tree(path)
        self.files.make_directory(os.path.join(path, LOG_DIRECTORY))
        for name in names:
            self.files.close(self.files.create(os.path.join(path, _checked(name))))
        return path

    def arrived(self, path: str, names: Sequence[str]) -> None:
        """See `ReplicaStores.arrived`."""
        for name in names:
            fd = self.files.open(os.path.join(path, name), write=True)
            try:
                self.files.sync(fd)
            finally:
                self.files.close(fd)
        self.files.sync_directory(os.path.join(path, LOG_DIRECTORY))
        self.files.sync_directory(path)

    def take_in(self, directory: str) -> None:
        """See `ReplicaStores.take_in`."""
        self.files.replace(directory + INCOMING, directory)
        self.files.sync_directory(os.path.dirname(directory))

    def _settle(self, tell: Tell) -> None:
        """After a kill: move a state that had arrived to the place of the one that was removed for it; remove others,
        which are fetched anew."""
        for account in self._root.accounts(self.files):
            base = os.path.dirname(self._root.stream_directory(account, "_"))
            with contextlib.suppress(OSError):  # the survey that follows tells of it
                for name in self.files.names(base):
                    if name.endswith(INCOMING):
                        self._settle_one(os.path.join(base, name), tell)

    def _settle_one(self, incoming: str, tell: Tell) -> None:
        directory = incoming[: -len(INCOMING)]
        try:
            # Invariant: the member's own file goes there last, when everything else has arrived.
            if os.path.exists(directory) or not os.path.exists(os.path.join(incoming, RAFT)):
                self.files.remove_tree(incoming)
            else:
                self.take_in(directory)
        except OSError as error:
            tell(f"{incoming} was to take a replica's state and cannot be removed or used: {error}; move it away")

    # ------------------------------------------------------------------ for another node
    def sending(self, directory: str, number: int) -> str:
        """See `ReplicaStores.sending`."""
        path = os.path.join(directory, f"{SENDING}{number}")
        self.files.remove_tree(path)
        self.files.make_directory(path)
        return path

    def sent(self, path: str) -> None:
        """See `ReplicaStores.sent`."""
        self.files.remove_tree(path)

    def read(self, path: str, offset: int, length: int) -> bytes:
        """See `ReplicaStores.read`."""
        fd = self.files.open(path)
        try:
            return self.files.read_at(fd, length, offset)
        finally:
            self.files.close(fd)


def _checked(name: str) -> str:
    """Return a file name that another node sent: the checkpoint, or a file in the log directory. Raise LogError."""
    directory, base = os.path.split(name)
    if name != CHECKPOINT and (directory != LOG_DIRECTORY or not base.endswith((SUFFIX, OUTLINE_SUFFIX))):
        raise LogError(f"a replica has no file {name!r}")
    return name
