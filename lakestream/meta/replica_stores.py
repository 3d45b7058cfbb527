"""The files of replicas.

Belongs here: which files a replicated stream has beside its log, opening its store, and how a state that was fetched
from another node takes the place of this node's, so that a kill between any two steps leaves one of the two whole.

    <stream>/replica             the stream as it was assigned (MessagePack): a directory with it is a replica's
    <stream>/raft                the member's own file (raft/group/hard_state.py)
    <stream>/log, checkpoint     as in every stream
    <stream>.incoming/           a state that is being fetched; once it is whole it becomes <stream>
    <stream>/sending-<n>/        links to what another node is fetching from here
    <stream>/repairing-<n>/      a good copy of a damaged segment, on its way
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence

from lakestream.log.format.errors import LogError
from lakestream.log.format.files import Files, Io
from lakestream.log.format.outline import SUFFIX as OUTLINE_SUFFIX
from lakestream.log.format.segment import LOG_DIRECTORY, SUFFIX
from lakestream.log.store import root as leaving
from lakestream.log.store.base import remove_base
from lakestream.log.store.cache import ReadCache
from lakestream.log.store.checkpoint import NAME as CHECKPOINT
from lakestream.log.store.checkpoint import read_checkpoint
from lakestream.log.store.repair import salvage
from lakestream.log.store.root import INCOMING, StoreRoot, Tell
from lakestream.log.store.segment_log import LogOptions
from lakestream.log.store.segment_store import open_store
from lakestream.log.store.store import Store
from lakestream.raft.group.hard_state import NAME as RAFT

IDENTITY = "replica"
SENDING = "sending-"
REPAIRING = "repairing-"


def _checked(name: str) -> str:
    """A name that another node gave: the checkpoint's, or a file's in the log directory. Raises LogError."""
    directory, base = os.path.split(name)
    if name != CHECKPOINT and (directory != LOG_DIRECTORY or not base.endswith((SUFFIX, OUTLINE_SUFFIX))):
        raise LogError(f"a replica has no file {name!r}")
    return name


class ReplicaStores:
    """See `jetstream.replicas.ReplicaStores`. Every method blocks.

    Args:
        root: the locked store.
        now: wall time in ns; None: the system's.
    """

    def __init__(
        self,
        root: StoreRoot,
        files: Files,
        io: Io,
        options: LogOptions,
        cache: ReadCache,
        now: Callable[[], int] | None = None,
    ) -> None:
        self._root, self.files, self._io, self._options, self._cache = root, files, io, options, cache
        self._now = now or time.time_ns

    def directory(self, account: str, name: str) -> str:
        """See `ReplicaStores.directory`."""
        return self._root.stream_directory(account, name)

    def identity(self, account: str, name: str) -> bytes | None:
        """See `ReplicaStores.identity`."""
        try:
            return self.files.read(os.path.join(self.directory(account, name), IDENTITY))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def belongs(self, directory: str, uid: str) -> bool:
        """See `ReplicaStores.belongs`."""
        try:
            found = read_checkpoint(self.files, os.path.join(directory, CHECKPOINT))
        except LogError:
            return True  # it does not say
        return found is None or found[0].uid in ("", uid)

    def begin(self, directory: str, identity: bytes) -> None:
        """See `ReplicaStores.begin`."""
        self.files.make_directory(directory)
        self.files.write_whole(os.path.join(directory, IDENTITY), [identity])

    def open(self, directory: str, uid: str, *, memory: bool, durable_through: int | None) -> Store:
        """See `ReplicaStores.open`."""
        # A kill may have come between a swap and its sync: nothing is promised on a name that a power cut takes back.
        self.files.sync_directory(os.path.dirname(directory))
        for name in self.files.names(directory):
            if name.startswith((SENDING, REPAIRING)):
                self.files.remove_tree(os.path.join(directory, name))
        return open_store(
            directory,
            self._io,
            self._options,
            uid=uid,
            memory=memory,
            files=self.files,
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

    def remove(self, directory: str) -> None:
        """See `ReplicaStores.remove`. Renamed first: half a replica must not be taken for a stream later on."""
        self.files.remove_tree(directory + INCOMING)
        leaving.discard(self.files, directory)

    def leave(self, directory: str, note: bytes) -> str:
        """See `ReplicaStores.leave`."""
        self.files.remove_tree(directory + INCOMING)
        return leaving.leave(self.files, directory, note)

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

    def settle(self, tell: Tell) -> None:
        """After a kill: a state that had arrived and lost the old one takes its place, others are fetched anew."""
        for account in self._root.accounts(self.files):
            base = os.path.dirname(self._root.stream_directory(account, "_"))
            with contextlib.suppress(OSError):  # the survey that follows tells of it
                for name in self.files.names(base):
                    if name.endswith(INCOMING):
                        self._try_settle(os.path.join(base, name), tell)

    def _try_settle(self, incoming: str, tell: Tell) -> None:
        try:
            self._settle(incoming)
        except OSError as error:
            tell(f"{incoming} was to take a replica's state and cannot be removed or used: {error}; move it away")

    def _settle(self, incoming: str) -> None:
        directory = incoming[: -len(INCOMING)]
        # Invariant: the member's own file goes there last, when everything else has arrived.
        if os.path.exists(directory) or not os.path.exists(os.path.join(incoming, RAFT)):
            self.files.remove_tree(incoming)
        else:
            self.take_in(directory)

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
