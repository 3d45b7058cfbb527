"""Where streams keep their logs.

Belongs here: the `Stores` of a server with a store directory: which directory a stream has, with which options its log
is opened, and the read cache that all of them share.
"""

from __future__ import annotations

import os

from lakestream.config.options import JetStreamOptions, LakeOptions
from lakestream.log.format.errors import LogError
from lakestream.log.format.files import Files, Io, naming
from lakestream.log.index.subject_index import SCRATCH
from lakestream.log.store import root as leaving
from lakestream.log.store.cache import ReadCache
from lakestream.log.store.memory import MemoryStore
from lakestream.log.store.root import UNKNOWN, StoreRoot, Survey, Tell
from lakestream.log.store.segment_log import LogOptions
from lakestream.log.store.segment_store import open_store
from lakestream.log.store.store import Store
from lakestream.meta.replica_stores import ReplicaStores

PARTS = ("log", "checkpoint", "synced", "base", "leaving", "replica", "raft", "sending-", "repairing-", SCRATCH)
"""Prefixes of the names in a stream's directory."""


class FileStores:
    """See `jetstream.engine.Stores`.

    Raises:
        StoreVersionError, StoreLocked, OSError: the directory can not be used.
    """

    def __init__(self, options: JetStreamOptions, lake: LakeOptions, io: Io, files: Files | None = None) -> None:
        self.root = os.path.join(options.store_dir, "jetstream")
        self._files = files or Files()
        self._root = StoreRoot.open(self.root, self._files)
        self._survey = Survey([], [])
        self._io = io
        # A checkpoint of an index keeps what was in memory when it began, until it is written, and not all that is
        # freed between others goes back to the system: measured at ten million subjects, two and a half times as much.
        self._cache = ReadCache(self._files, max_index_memory=options.max_index_memory // 3)
        self._options = LogOptions(
            seal_bytes=lake.seal_bytes,
            seal_age_ns=lake.seal_age_ns,
            retain_bytes=lake.retain_bytes,
            sync_always=options.sync_always,
        )
        self.replicas = ReplicaStores(self._root, self._files, io, self._options, self._cache)

    def create(self, account: str, name: str, uid: str, *, memory: bool) -> Store:
        """See `Stores.create`."""
        if memory:
            return MemoryStore(uid)
        directory = self._root.stream_directory(account, name)
        if os.path.exists(directory):
            raise LogError(
                f"{directory} is there already: another stream's files; move them away to use this name",
                "another stream's files are in the way; the server's log names them",
            )
        try:
            return self._open(account, name, uid)
        except BaseException:
            self._files.remove_tree(directory)  # nothing of it was ever used
            raise

    def found(self, tell: Tell) -> list[tuple[str, str]]:
        """See `Stores.found`."""
        self.replicas.settle(tell)
        self._survey = self._root.survey(self._files, tell)
        return self._survey.streams

    def open(self, account: str, name: str) -> Store:
        """See `Stores.open`."""
        return self._open(account, name, "")

    def remove(self, account: str, name: str) -> None:
        """See `Stores.remove`."""
        leaving.discard(self._files, self._root.stream_directory(account, name))

    def leave(self, account: str, name: str, note: bytes) -> str:
        """See `Stores.leave`."""
        return leaving.leave(self._files, self._root.stream_directory(account, name), note)

    def left(self) -> list[tuple[str, str, str]]:
        """See `Stores.left`."""
        return self._survey.left

    def note_in(self, directory: str) -> bytes:
        """See `Stores.note_in`."""
        return leaving.note_in(self._files, directory)

    def set_aside(self, directory: str) -> str:
        """See `Stores.set_aside`."""
        account = os.path.dirname(os.path.dirname(directory))
        return leaving.set_aside(self._files, directory, os.path.join(account, leaving.ASIDE))

    def clear(self, directory: str) -> None:
        """See `Stores.clear`."""
        leaving.clear(self._files, directory)

    def _open(self, account: str, name: str, uid: str) -> Store:
        directory = self._root.stream_directory(account, name)
        unknown = [each for each in self._files.names(directory) if not each.startswith(PARTS)]
        with naming(directory):
            store = open_store(
                directory, self._io, self._options, uid=uid, files=self._files, cache=self._cache, durable_through=None
            )
        store.notes.extend(f"{os.path.join(directory, each)} is no part of a stream: {UNKNOWN}" for each in unknown)
        return store

    def close(self) -> None:
        """Let another process have the store."""
        self._root.close()
