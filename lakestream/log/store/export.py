"""Export of a store to another node.

Belongs here: collecting the files that another node needs to have a store at this moment, while the store continues:
links to immutable files, the open segment through the applied entry, and a checkpoint of now.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import msgspec

from lakestream.log.format.outline import OutlineFile, outline_segments
from lakestream.log.format.segment import Segment
from lakestream.log.store.checkpoint import NAME as CHECKPOINT
from lakestream.log.store.checkpoint import Snapshot, write_checkpoint
from lakestream.log.store.segment_log import SegmentLog


class Part(msgspec.Struct, frozen=True):
    """A file of an export: its path below the stream's directory, and its length in bytes."""

    name: str
    size: int


def link_part(path: str, directory: str, within: str, size: int | None = None) -> Part:
    """Link a file, of which `size` bytes count, to `directory`/`within`. Block. Raise OSError."""
    name = os.path.basename(path)
    target = os.path.join(directory, within, name)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        os.link(path, target)
    except PermissionError:  # a file system without hard links
        import shutil  # with every kind of compression

        shutil.copyfile(path, target)
    # Take the size of the link: the file may be compressed or replaced at this moment.
    return Part(f"{within}/{name}", os.path.getsize(target) if size is None else size)


class Export:
    """The files of one store as of its applied entry. Made in the event loop, written in a thread.

    Args:
        log: the store's log.
        outlines: of the segments that have left it.
        snapshot: the store's state now.
        skip_through: the receiver reads messages through this index from the lake: of those segments it gets
            outlines. The newest sealed segment is always sent: it has the terms of the entries.
        lock: held while files are linked, so that none of them is removed.
    """

    def __init__(
        self,
        log: SegmentLog,
        outlines: Sequence[OutlineFile],
        snapshot: Snapshot,
        skip_through: int,
        lock: threading.Lock,
    ) -> None:
        self.index = snapshot.state.index
        self._files, self._lock, self._snapshot = log.files, lock, snapshot
        self._name = os.path.basename(log.directory)
        self._outlines = list(outlines)
        segments = [segment for segment in log.segments if segment.first_index <= self.index]
        sealed = [segment for segment in segments if segment.footer is not None]
        self._skipped = [each for each in sealed[:-1] if each.last_index <= skip_through]
        self._sealed = sealed[len(self._skipped) :]
        self._open = [(each.path, self._applied_end(each)) for each in segments if each.footer is None]

    def _applied_end(self, segment: Segment) -> int:
        """Return the end of the applied entry's frame. A thread may be adding frames: read the end first, then check
        for a later frame."""
        end, following = segment.end, self.index + 1 - segment.first_index
        offsets = segment.frame_offsets
        return offsets[following] if following < len(offsets) else end

    def write(self, directory: str) -> list[Part]:
        """Collect everything in `directory`, which is empty. Block. Raise OSError, CorruptLog."""
        log_directory = os.path.join(directory, self._name)
        self._files.make_directory(log_directory)
        parts: list[Part] = []
        with self._lock:
            for path in [outline.path for outline in self._outlines] + [each.path for each in self._sealed]:
                parts.append(link_part(path, directory, self._name))
            for path, end in self._open:
                parts.append(link_part(path, directory, self._name, end))
            # The receiver finds the messages of these segments in the lake.
            for made in outline_segments(self._files, log_directory, self._skipped):
                name = os.path.basename(made.path)
                parts.append(Part(f"{self._name}/{name}", os.path.getsize(made.path)))
        size = write_checkpoint(self._files, os.path.join(directory, CHECKPOINT), self._snapshot)
        return [*parts, Part(CHECKPOINT, size)]
