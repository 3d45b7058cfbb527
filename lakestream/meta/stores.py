"""The files of the streams of a server.

Belongs here: the directory of each stream, the options and the read cache with which its log is opened, and replacing
its files by a state from another node. After a kill between any two steps either the old files or the new ones are
complete.

    <stream>/log, checkpoint, synced   every stream; see log/store/store.py
    <stream>/replica             the stream as it was assigned (MessagePack); only on a node of a cluster
    <stream>/raft                the member's own file (raft/group/hard_state.py); only on a node of a cluster
    <stream>.incoming/           a state that is being fetched; once complete it becomes <stream>
    <stream>/sending-<n>/        links to files that another node fetches from here
    <stream>/repairing-<n>/      a good copy of a damaged segment that is being fetched
    <stream>/verifying-<n>/      links to files that are being verified
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING
from zlib import crc32

from lakestream.log.format.errors import LogError
from lakestream.log.format.files import AT_ONCE, Files, Io, at_once, naming
from lakestream.log.format.frame import Kind
from lakestream.log.format.outline import SUFFIX as OUTLINE_SUFFIX
from lakestream.log.format.segment import LOG_DIRECTORY, SUFFIX, read_footer
from lakestream.log.index.memory_limit import IndexMemory
from lakestream.log.index.subject_index import SCRATCH
from lakestream.log.store import root
from lakestream.log.store.base import DIRECTORY as BASE
from lakestream.log.store.cache import ReadCache
from lakestream.log.store.checkpoint import NAME as CHECKPOINT
from lakestream.log.store.checkpoint import read_checkpoint
from lakestream.log.store.figures import WriteFigures
from lakestream.log.store.journal import KEY
from lakestream.log.store.memory import MemoryStore
from lakestream.log.store.root import INCOMING, UNKNOWN, StoreRoot, Tell
from lakestream.log.store.segment_log import LogOptions, SegmentLog
from lakestream.log.store.segment_store import SegmentStore, begin_store, open_store
from lakestream.log.store.store import Store
from lakestream.raft.group.hard_state import NAME as RAFT

if TYPE_CHECKING:
    from lakestream.stream.dormant import Dormant

IDENTITY = "replica"
"""Name of the file with the stream as it was assigned: MessagePack, magic, u32 crc of the MessagePack. Earlier releases
wrote no crc."""
SENDING = "sending-"
REPAIRING = "repairing-"
VERIFYING = "verifying-"
_COPIES = (SENDING, REPAIRING, VERIFYING, SCRATCH)
PARTS = ("log", "checkpoint", "synced", "base", "aside", KEY, root.NOTE, IDENTITY, RAFT, *_COPIES)
"""Prefixes of the names in a stream's directory."""

_CHECK = b"LKID"
_CHECK_BYTES = len(_CHECK) + 4


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
        self._unsynced = self.files.unsynced()
        self._root = StoreRoot.open(self.root, self.files)
        self.notes = self._root.notes
        """Lines for the server's log: what was made anew when the directory was opened."""
        self.deleted: list[tuple[str, str, str]] = []
        """(account, stream, directory) of the deleted streams whose files wait for the lake, as of `found`."""
        self._io, self._now = io, now
        self.dormant: dict[tuple[str, str], Dormant] = {}
        """Streams, by account and name, that the last stop left and that need not be opened, as of `found`."""
        # A checkpoint keeps a copy of the index until it is written, and not all freed memory returns to the system:
        # measured at ten million subjects, two and a half times the index.
        self._cache = ReadCache(self.files, max_index_memory=max_index_memory // 3)
        self._options = options
        self._unmarked: set[SegmentLog] = set()
        self._marking, self._closed = threading.Lock(), False
        self.figures = WriteFigures()
        """Counts the writes of all streams on disk."""

    @property
    def indexes(self) -> IndexMemory:
        """Return the memory of all subject indexes, and its limit."""
        return self._cache.indexes

    def close(self) -> None:
        """Settle what is left, and release the lock on the store."""
        with self._marking:
            self._settle_logs()
            self._closed = True
            self._root.close()

    def directory(self, account: str, name: str) -> str:
        """Return the directory of a stream, whether it exists or not."""
        return self._root.stream_directory(account, name)

    def accounts(self) -> list[str]:
        """Return every account that ever had streams here. Raise OSError."""
        return self._root.accounts(self.files)

    def found(self, tell: Tell) -> list[tuple[str, str]]:
        """Return (account, stream) of every log on disk; report everything unknown there with `tell`."""
        for note in self.notes:
            tell(note)
        self._settle(tell)
        if self.files.exists(os.path.join(self.root, root.DORMANT)):
            from lakestream.stream.dormant import take  # with the first stream

            self.dormant = take(self.files, self.root)
        survey = self._root.survey(self.files, tell)
        self.deleted = survey.left
        return survey.streams

    # ------------------------------------------------------------------ a group of one
    def create(self, account: str, name: str, uid: str, creation: bytes, *, memory: bool) -> Store:
        """Return the store of a new stream whose first operation is `creation`, which is durable then.

        The caller applies the operation; the store counts it as applied. A memory stream has an empty store. Raise
        LogError, OSError.
        """
        if memory:
            return MemoryStore(uid)
        directory = self.directory(account, name)
        if self.files.exists(directory):
            raise LogError(
                f"{directory} is there already: another stream's files; move them away to use this name",
                "another stream's files are in the way; the server's log names them",
            )
        journal = self._root.journal
        try:
            birth, segment = journal.create(directory, 1, Kind.OPERATION, creation, self._now())
            made = begin_store(
                birth,
                segment,
                self._io.lane(),
                self._options,
                uid=uid,
                files=self.files,
                now=self._now,
                cache=self._cache,
                figures=self.figures,
            )
            return self._watched(directory, made)
        except BaseException:
            try:
                journal.forget(directory)
            finally:
                self.files.remove_tree(directory)  # it was never used
            raise

    def open(self, account: str, name: str, uid: str = "") -> Store:
        """Open the log of a group of one; `uid`: that of a new stream.

        Raise LogError with file and offset when it is damaged.
        """
        directory = self.directory(account, name)
        present = self._remove_left(directory)
        unknown = [each for each in present if not each.startswith(PARTS)]
        with naming(directory):
            store = open_store(
                directory,
                self._io.lane(),
                self._options,
                uid=uid,
                files=self.files,
                cache=self._cache,
                durable_through=None,
                now=self._now,
                figures=self.figures,
                present=present,
            )
        assert isinstance(store, SegmentStore)  # Invariant: memory streams are not opened
        store.notes.extend(f"{os.path.join(directory, each)} is not part of a stream: {UNKNOWN}" for each in unknown)
        return self._watched(directory, store)

    def _watched(self, directory: str, store: SegmentStore) -> Store:
        """Return an open store whose synced mark `mark` keeps up to date."""
        store.on_removing = lambda: self._root.journal.forget(directory)
        store.log.journal, store.log.unmarked = self._root.journal, self._unmarked
        if store.log.mark_due:
            self._unmarked.add(store.log)
        return store

    @property
    def unmarked(self) -> bool:
        """Return True if there is work for `mark`."""
        return bool(self._unmarked) or self._root.journal.due

    @property
    def crowded(self) -> bool:
        """Return True if `mark` should be called again soon."""
        return self._root.journal.crowded

    def mark(self) -> list[tuple[str, Exception]]:
        """Make durable what the journal has, and empty it; update the synced marks of the logs that grew.

        Return (stream, error) for those where that failed; the next call tries again.
        """
        journal = self._root.journal
        with self._marking:
            if self._closed:
                return []
            with contextlib.suppress(OSError):  # it was logged
                journal.turn()
            failed = self._settle_logs()
            with contextlib.suppress(OSError):  # it was logged
                if not journal.release():
                    failed = self._settle_logs()  # some were written to while the files took turns
                    journal.release()
        return failed

    def _settle_logs(self) -> list[tuple[str, Exception]]:
        """Make all logs that grew durable, and note it in their marks. Return errors as `mark` does.

        A thousand busy logs take long, one after the other, but load the disk no more than one. New ones share what a
        sync costs.
        """
        failed, logs = list[tuple[str, Exception]](), sorted(self._unmarked, key=_stream_of)
        self._unmarked.difference_update(logs)
        new = {log: None for log in logs if log.birth is not None}
        parts = [part for at in range(AT_ONCE) if (part := [*new][at::AT_ONCE])]
        settling = list(chain.from_iterable(at_once(SegmentLog.catch_up, parts)))
        for log in logs:
            try:
                if log not in new:
                    SegmentLog.catch_up([log])
                if log.failed is None:
                    log.mark()
            except OSError as error:
                self._unmarked.add(log)
                failed.append((_stream_of(log), error))
        try:
            self._root.journal.settle_all(birth for _, birth in settling)
            for log, _ in settling:
                log.settled()
        except OSError as error:
            self._unmarked.update(log for log, _ in settling)
            failed += [(_stream_of(log), error) for log, _ in settling]
        return failed

    # ------------------------------------------------------------------ a group with other nodes
    def identity(self, account: str, name: str) -> bytes | None:
        """Return the identity that `begin` wrote for this stream, b"" if it is damaged; None when its directory is not
        a replica's."""
        return read_identity(self.files, self.directory(account, name))

    def belongs(self, account: str, name: str, uid: str) -> bool:
        """Return True unless the files there are known to be another stream's."""
        try:
            found = read_checkpoint(self.files, os.path.join(self.directory(account, name), CHECKPOINT))
        except LogError:
            return True  # not known
        return found is None or found[0].uid in ("", uid)

    def holds(self, account: str, name: str, uid: str) -> bool:
        """Return True if checkpoint or log are known to be those of the stream with this uid."""
        directory = self.directory(account, name)
        try:
            found = read_checkpoint(self.files, os.path.join(directory, CHECKPOINT))
            if found is not None and found[0].uid:
                return found[0].uid == uid
            sealed = root.sealed_in(self.files, directory)
            return bool(sealed) and read_footer(sealed[0][0], self.files)[0].uid == uid
        except (LogError, OSError):
            return False

    def begin(self, account: str, name: str, identity: bytes) -> None:
        """Create the directory of a replica, durably."""
        directory = self.directory(account, name)
        self.files.make_directory(directory)
        self.files.write_whole(os.path.join(directory, IDENTITY), [identity, _checksum(identity)])

    def open_member(self, account: str, name: str, uid: str, *, memory: bool, durable_through: int | None) -> Store:
        """Open the log of a member; entries through `durable_through` must be there. Raise LogError."""
        directory = self.directory(account, name)
        # After a kill between a rename and its sync, a power cut could revert the name: sync it before use.
        self.files.sync_directory(os.path.dirname(directory))
        self._remove_left(directory)
        files = self._unsynced if memory else self.files
        return open_store(
            directory,
            self._io.lane(),
            self._options,
            uid=uid,
            files=files,
            cache=self._cache,
            durable_through=durable_through,
            now=self._now,
            figures=None if memory else self.figures,
        )

    def _remove_left(self, directory: str) -> list[str]:
        """Remove the copies and links that a killed process has left in a stream's directory; return the names of what
        is there."""
        names = self.files.names(directory)
        left = [each for each in names if each.startswith((SENDING, REPAIRING, VERIFYING))]
        for each in left:
            self.files.remove_tree(os.path.join(directory, each))
        return [each for each in names if each not in left] if left else names

    def remove(self, account: str, name: str, note: bytes = b"") -> str:
        """Remove the files of a stream that is not open.

        With a note they stay until the lake has them (deleted_streams.py). This is a rename, so that a restart never
        opens a partly removed stream; return what has the files now, "" when there are none.
        """
        directory = self.directory(account, name)
        self._root.journal.forget(directory)
        self.files.remove_tree(directory + INCOMING)
        if note:
            return root.leave(self.files, directory, note)
        return root.discard(self.files, directory)

    def give(self, account: str, name: str, store: str) -> None:
        """Move the files of a stream that was closed, and is not new, to the store of another worker. Raise OSError."""
        here = self.directory(account, name)
        self._root.journal.forget(here)
        self._root.journal.outdate()  # messages that are erased there would stay here
        root.move(self.files, here, os.path.join(store, os.path.relpath(here, self.root)))

    # ------------------------------------------------------------------ a state from another node
    def incoming(self, directory: str, identity: bytes, names: Sequence[str]) -> str:
        """Create a directory with these empty files for a state that is to replace `directory`; return its path."""
        path = self._with_empty_files(directory + INCOMING, names)
        self.files.write_whole(os.path.join(path, IDENTITY), [identity, _checksum(identity)])
        return path

    def write(self, path: str, data: bytes, offset: int) -> None:
        """Write a piece of a file of an incoming state."""
        fd = self.files.open(path, write=True)
        try:
            self.files.write(fd, [data], offset)
        finally:
            self.files.close(fd)

    def repairing(self, directory: str, first_index: int, names: Sequence[str]) -> str:
        """Create a directory with these empty files below `directory`, for a copy of the damaged segment that begins
        with an entry; return its path."""
        return self._with_empty_files(os.path.join(directory, f"{REPAIRING}{first_index}"), names)

    def _with_empty_files(self, path: str, names: Sequence[str]) -> str:
        self.files.remove_tree(path)
        self.files.make_directory(os.path.join(path, LOG_DIRECTORY))
        for name in names:
            self.files.close(self.files.create(os.path.join(path, _checked(name))))
        return path

    def arrived(self, path: str, names: Sequence[str]) -> None:
        """Sync the files and their directory."""
        for name in names:
            fd = self.files.open(os.path.join(path, name), write=True)
            try:
                self.files.sync(fd)
            finally:
                self.files.close(fd)
        self.files.sync_directory(os.path.join(path, LOG_DIRECTORY))
        self.files.sync_directory(path)

    def take_in(self, directory: str) -> None:
        """Rename the directory of `incoming` to `directory`, which was removed."""
        self.files.replace(directory + INCOMING, directory)
        self.files.sync_directory(os.path.dirname(directory))

    def _settle(self, tell: Tell) -> None:
        """Complete replacements by received states after a kill; remove incomplete states, which are fetched again."""
        for account in self._root.accounts(self.files):
            base = os.path.dirname(self._root.stream_directory(account, "_"))
            with contextlib.suppress(OSError):  # the survey that follows reports it
                for name in self.files.names(base):
                    if name.endswith(INCOMING):
                        self._settle_one(os.path.join(base, name), tell)

    def _settle_one(self, incoming: str, tell: Tell) -> None:
        directory = incoming[: -len(INCOMING)]
        try:
            # Invariant: the member's file `raft` is written last, after all other files.
            if self.files.exists(directory) or not self.files.exists(os.path.join(incoming, RAFT)):
                self.files.remove_tree(incoming)
            else:
                self.take_in(directory)
        except OSError as error:
            tell(f"{incoming} is a replica's incoming state and cannot be removed or used: {error}; move it away")

    # ------------------------------------------------------------------ for another node
    def sending(self, directory: str, number: int) -> str:
        """Create an empty directory for the files of `directory` that another node fetches; return its path."""
        path = os.path.join(directory, f"{SENDING}{number}")
        self.files.remove_tree(path)
        self.files.make_directory(path)
        return path

    def sent(self, path: str) -> None:
        """Remove the directory of `sending`."""
        self.files.remove_tree(path)

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Read a piece of a file."""
        fd = self.files.open(path)
        try:
            return self.files.read_at(fd, length, offset)
        finally:
            self.files.close(fd)


def _stream_of(log: SegmentLog) -> str:
    return os.path.basename(os.path.dirname(log.directory))


def read_identity(files: Files, directory: str) -> bytes | None:
    """Return the identity in a stream's directory, b"" if it is damaged, None if it is missing. Block.

    Raise OSError.
    """
    try:
        content = files.read(os.path.join(directory, IDENTITY))
    except (FileNotFoundError, NotADirectoryError):
        return None
    identity, check = content[:-_CHECK_BYTES], content[-_CHECK_BYTES:]
    if check[: len(_CHECK)] != _CHECK:
        return content  # without a checksum, as earlier releases wrote it; else it does not decode
    return identity if check == _checksum(identity) else b""


def _checksum(identity: bytes) -> bytes:
    return _CHECK + crc32(identity).to_bytes(4, "little")


def set_aside(files: Files, directory: str) -> str:
    """Move log and checkpoint of a member's directory to one in the account's `aside`; return that. Block.

    The checkpoint first: with it alone, the log would be missing. After a kill in between, the log is replayed or sent
    again: the member is marked as recovering already.
    """
    name = f"{os.path.basename(directory)}.differs-{time.time_ns()}"
    target = os.path.join(os.path.dirname(os.path.dirname(directory)), root.ASIDE, name)
    files.make_directory(target)
    for part in (CHECKPOINT, BASE, LOG_DIRECTORY):
        if files.exists(os.path.join(directory, part)):
            files.replace(os.path.join(directory, part), os.path.join(target, part))
            files.sync_directory(directory)
    files.sync_directory(target)
    return target


def _checked(name: str) -> str:
    """Return a file name that another node sent: the checkpoint, or a file in the log directory. Raise LogError."""
    directory, base = os.path.split(name)
    if name != CHECKPOINT and (directory != LOG_DIRECTORY or not base.endswith((SUFFIX, OUTLINE_SUFFIX))):
        raise LogError(f"a replica has no file {name!r}")
    return name
