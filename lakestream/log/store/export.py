"""Files of a store as of its applied entry, while the store continues.

Belongs here: collecting the files that another node needs to have a store at this moment (`StoreExport`: links to
immutable files, the open segment through the applied entry, and a checkpoint of now), and the files as they are on
disk, for their verification (`StorePin`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import msgspec

from lakestream.log.format.errors import LogError
from lakestream.log.format.files import Files
from lakestream.log.format.outline import OutlineFile, outline_segments
from lakestream.log.format.segment import Segment
from lakestream.log.store.base import DIRECTORY as BASE
from lakestream.log.store.checkpoint import NAME as CHECKPOINT
from lakestream.log.store.checkpoint import Snapshot, read_checkpoint, write_checkpoint
from lakestream.log.store.segment_log import SegmentLog

COPY_BYTES = 1 << 20
"""Bytes of the open segment that are copied at once (1 MiB)."""


class ExportPart(msgspec.Struct, frozen=True):
    """A file of an export: its path below the stream's directory, and its length in bytes."""

    name: str
    size: int


def link_part(files: Files, path: str, directory: str, within: str, size: int | None = None) -> ExportPart:
    """Link a file, of which `size` bytes count, to `directory`/`within`. Block. Raise OSError."""
    name = os.path.basename(path)
    target = os.path.join(directory, within, name)
    files.make_directory(os.path.dirname(target))
    files.link(path, target)
    # Take the size of the link: the file may be compressed or replaced at this moment.
    return ExportPart(f"{within}/{name}", files.length(target) if size is None else size)


class _Collection:
    """The segments and outlines of one store as of its applied entry. Made in the event loop, written in a thread.

    Args:
        log: the store's log.
        outlines: of the segments that have left it.
        index: the applied entry.
        lock: held while files are linked, so that none of them is removed.
    """

    def __init__(self, log: SegmentLog, outlines: Sequence[OutlineFile], index: int, lock: threading.Lock) -> None:
        self.index = index
        self._files, self._lock = log.files, lock
        self._name = os.path.basename(log.directory)
        self._outlines = list(outlines)
        segments = [segment for segment in log.segments if segment.first_index <= index]
        self._sealed = [segment for segment in segments if segment.footer is not None]
        self._open = [(each.path, self._applied_end(each)) for each in segments if each.footer is None]

    def _applied_end(self, segment: Segment) -> int:
        """Return the end of the applied entry's frame. A thread may be adding frames: read the end first, then check
        for a later frame."""
        end, following = segment.end, self.index + 1 - segment.first_index
        offsets = segment.frame_offsets
        return offsets[following] if following < len(offsets) else end


class FilesMoved(LogError):
    """Raised when the files of a store changed while they were collected."""


class StorePin(_Collection):
    """The files of one store as they are on disk, for their verification.

    Args:
        directory: the store's.
    """

    def __init__(
        self, log: SegmentLog, outlines: Sequence[OutlineFile], index: int, lock: threading.Lock, directory: str
    ) -> None:
        super().__init__(log, outlines, index, lock)
        self._directory, self._checkpoint_index = directory, 0
        self._growing = [each for each in log.segments if each.footer is None]
        self.bytes = sum(each.file_bytes for each in self._sealed) + sum(end for _, end in self._open)
        """Bytes of the segments."""

    @property
    def floor(self) -> int:
        """Return the lowest entry as of which these files can be recovered: a recovery uses the checkpoint, and applies
        every sealed entry. Call it after `write`."""
        return max([self._checkpoint_index, *(each.last_index for each in self._sealed)])

    def write(self, target: str) -> None:
        """Collect the files in `target`, which is empty. Block. Raise FilesMoved if that has to be repeated, OSError.

        Sealed segments, outlines, the checkpoint and the base are links. The open segment is a copy.
        """
        log_directory = os.path.join(target, self._name)
        self._files.make_directory(log_directory)
        with self._lock:
            for path in [outline.path for outline in self._outlines] + [each.path for each in self._sealed]:
                link_part(self._files, path, target, self._name)
            checkpoint = os.path.join(self._directory, CHECKPOINT)
            if self._files.exists(checkpoint):
                link_part(self._files, checkpoint, target, ".")
            for name in self._files.names(os.path.join(self._directory, BASE)):
                link_part(self._files, os.path.join(self._directory, BASE, name), target, BASE)
        for path, end in self._open:
            _copy(self._files, path, os.path.join(log_directory, os.path.basename(path)), end)
        if any(each.footer is not None for each in self._growing):  # a copy of what is compressed now
            raise FilesMoved(f"{self._directory}: a segment was sealed meanwhile")
        self._checkpoint_index = _index_of(self._files, os.path.join(target, CHECKPOINT))  # a new one, perhaps
        if self._checkpoint_index > self.index:
            raise FilesMoved(f"{self._directory}: a checkpoint was written meanwhile")


class StoreExport(_Collection):
    """The files that another node needs.

    Args:
        snapshot: the store's state now.
        skip_through: the receiver reads messages through this index from the lake: of those segments it gets
            outlines. The newest sealed segment is always sent: it has the terms of the entries.
    """

    def __init__(
        self,
        log: SegmentLog,
        outlines: Sequence[OutlineFile],
        snapshot: Snapshot,
        skip_through: int,
        lock: threading.Lock,
    ) -> None:
        super().__init__(log, outlines, snapshot.state.index, lock)
        self._snapshot = snapshot
        self._skipped = [each for each in self._sealed[:-1] if each.last_index <= skip_through]
        self._sealed = self._sealed[len(self._skipped) :]

    def write(self, directory: str) -> list[ExportPart]:
        """Collect everything in `directory`, which is empty. Block. Raise OSError, CorruptLog."""
        log_directory = os.path.join(directory, self._name)
        self._files.make_directory(log_directory)
        parts: list[ExportPart] = []
        with self._lock:
            for path in [outline.path for outline in self._outlines] + [each.path for each in self._sealed]:
                parts.append(link_part(self._files, path, directory, self._name))
            for path, end in self._open:
                parts.append(link_part(self._files, path, directory, self._name, end))
            # The receiver finds the messages of these segments in the lake.
            for made in outline_segments(self._files, log_directory, self._skipped):
                name = os.path.basename(made.path)
                parts.append(ExportPart(f"{self._name}/{name}", self._files.length(made.path)))
        size = write_checkpoint(self._files, os.path.join(directory, CHECKPOINT), self._snapshot)
        return [*parts, ExportPart(CHECKPOINT, size)]


def _index_of(files: Files, checkpoint: str) -> int:
    """Return the entry of a checkpoint; 0 if there is none, or it is damaged, which its verification reports."""
    try:
        found = read_checkpoint(files, checkpoint)
    except LogError:
        return 0
    return found[0].index if found is not None else 0


def _copy(files: Files, source: str, target: str, length: int) -> None:
    """Copy the first `length` bytes of a file."""
    copy = files.create(target)
    try:
        with files.opened(source) as fd:
            for offset in range(0, length, COPY_BYTES):
                files.write(copy, [files.read_at(fd, min(COPY_BYTES, length - offset), offset)], offset)
    finally:
        files.close(copy)
