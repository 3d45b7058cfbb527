"""The base of a store: messages that were never in its log.

Belongs here: the sequences, subjects, sizes and times of the messages that a stream began with as a copy of another
stream's table. Their records are only in the stream's own table, like those of segments that have left the log, so they
are described by outlines like those. The base is a directory beside the log, complete before an entry of the log names
it, and stays there.

    base/checkpoint             live sequences and the subject index, as a checkpoint has them (checkpoint.py)
    base/<0>-<number>.outline   outlines (format/outline.py) of no entries of the log, in order
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from lakestream.log.format.errors import CorruptLog, LogError
from lakestream.log.format.files import Files
from lakestream.log.format.outline import SUFFIX, Outline, OutlineFile, read_outline_info, write_outline
from lakestream.log.index.sequences import SequenceSet
from lakestream.log.index.subject_index import SubjectIndex
from lakestream.log.store.checkpoint import NAME as CHECKPOINT
from lakestream.log.store.checkpoint import Snapshot, StoreState, read_checkpoint, write_checkpoint
from lakestream.protocol.decoding import PackDecoder

READ_AGAIN_NS = 2_000_000_000
"""Pause before a table that could not be read is read again (2 s)."""
DIRECTORY = "base"
UNFINISHED = ".making"
"""Suffix of the directory while it is being made."""


class BaseOrigin(msgspec.Struct, frozen=True):
    """The version of the stream's table that a base was read from, and the sequence through which it reaches, which may
    be above its last message."""

    version: int
    through: int


_ORIGIN = PackDecoder(BaseOrigin)


class Base:
    """A base, as read from its files."""

    def __init__(
        self,
        origin: BaseOrigin,
        live: SequenceSet,
        subjects: SubjectIndex,
        size: int,
        last_time: int,
        files: list[OutlineFile],
    ) -> None:
        self.origin, self.live, self.subjects = origin, live, subjects
        self.size, self.last_time, self.outlines = size, last_time, files


class BaseWriter:
    """Write the base of a stream, in ascending sequence. All methods block and may raise OSError.

    Args:
        directory: the stream's; a base that is there is replaced.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self._files, self._unsynced = files, files.unsynced()
        self._target = os.path.join(directory, DIRECTORY)
        self._making = self._target + UNFINISHED
        self._outlines = self._size = self._last_time = 0
        self._live = SequenceSet()
        files.remove_tree(self._making)
        files.make_directory(self._making)

    def add(self, outline: Outline) -> None:
        """Add the next messages: all rows of an outline that have a size."""
        runs = outline.runs
        if not runs.rows:
            return
        self._outlines += 1
        path = os.path.join(self._making, f"{0:020d}-{self._outlines:06d}{SUFFIX}")
        write_outline(self._unsynced, path, 0, 0, outline, runs.next_seq - 1)
        self._size += sum(outline.sizes)
        self._last_time = outline.times[-1]
        row = 0
        for first, rows in runs.pairs():
            sizes = outline.sizes[row : row + rows]
            row += rows
            self._add_live(first, sizes)

    def _add_live(self, first: int, sizes: array[int]) -> None:
        """Add the sequences of rows to the live ones; rows of size 0 are no messages."""
        at, end = 0, len(sizes)
        while at < end:
            try:
                hole = sizes.index(0, at)
            except ValueError:
                hole = end
            if hole > at:
                self._live.add_run(first + at, first + hole - 1)
            at = hole + 1

    def finish(self, origin: BaseOrigin, subjects: SubjectIndex) -> None:
        """Complete the base durably, with the subjects of all messages that were added."""
        first = self._live.next_at_or_after(1) or origin.through + 1
        state = StoreState(
            index=0,
            uid="",
            stream="",
            account="",
            config=b"",
            size=self._size,
            first_seq=first,
            last_seq=origin.through,
            last_time=self._last_time,
            opened_index=0,
            removed=[],
            moved=False,
            live=self._live.to_bytes(),
            extra=msgspec.msgpack.encode(origin),
        )
        for name in self._files.names(self._making):
            self._files.sync_file(os.path.join(self._making, name))
        write_checkpoint(self._files, os.path.join(self._making, CHECKPOINT), Snapshot(state, subjects.snapshot()))
        self._files.remove_tree(self._target)
        self._files.replace(self._making, self._target)
        self._files.sync_directory(os.path.dirname(self._target))


def origin_of(files: Files, directory: str) -> BaseOrigin | None:
    """Return the origin of the base in a stream's directory, or None. Block. Raise CorruptLog, OSError."""
    found = read_checkpoint(files, os.path.join(directory, DIRECTORY, CHECKPOINT))
    return None if found is None else _ORIGIN.decode(found[0].extra)


def read_base(files: Files, directory: str) -> Base | None:
    """Return the base in a stream's directory, or None if there is none. Block. Raise CorruptLog, OSError."""
    found = read_checkpoint(files, os.path.join(directory, DIRECTORY, CHECKPOINT))
    if found is None:
        return None
    state, subjects = found.state, found.subjects
    origin = _ORIGIN.decode(state.extra)
    live, outlines = SequenceSet.from_bytes(state.live), outlines_of(files, directory)
    _check_outlines(directory, outlines, live, origin.through)
    return Base(origin, live, subjects, state.size, state.last_time, outlines)


def outlines_of(files: Files, directory: str) -> list[OutlineFile]:
    """Return the outlines of the base in a stream's directory, ascending. Block. Raise CorruptLog, OSError.

    The first ones may have been removed with the last of their messages.
    """
    path = os.path.join(directory, DIRECTORY)
    names = sorted(name for name in files.names(path) if name.endswith(SUFFIX))
    paths = [os.path.join(path, name) for name in names]
    return [OutlineFile(each, read_outline_info(files, each)) for each in paths]


def check_base(files: Files, directory: str, live: SequenceSet, outlines: Sequence[OutlineFile]) -> None:
    """Check that the outlines of a stream's base hold its live messages. Block. Raise CorruptLog, OSError.

    Args:
        live: of the stream.
        outlines: those of its base; outlines of its log are ignored.
    """
    found = read_checkpoint(files, os.path.join(directory, DIRECTORY, CHECKPOINT))
    if found is not None:
        of_base = [each for each in outlines if not each.info.last_index]
        _check_outlines(directory, of_base, live, _ORIGIN.decode(found[0].extra).through)


def _check_outlines(directory: str, outlines: Sequence[OutlineFile], live: SequenceSet, last: int) -> None:
    """Raise CorruptLog unless the live sequences through `last` are in outlines."""
    first = 1
    for each in outlines:
        if live.count(first, min(last, each.info.first_seq - 1)):
            break
        first = each.info.last_seq + 1
    else:
        if not live.count(first, last):
            return
    seq = live.next_at_or_after(first)
    what = f"the outline with message {seq} is missing; the stream's table has the message"
    raise CorruptLog(os.path.join(directory, DIRECTORY), 0, what)


def remove_base(files: Files, directory: str) -> None:
    """Remove the files of a base that no entry names. Block. Raise OSError."""
    for name in (DIRECTORY, DIRECTORY + UNFINISHED):
        files.remove_tree(os.path.join(directory, name))


class NoBase(LogError):
    """Raised when the log says that the stream began with a copy, and its base is missing."""

    def __init__(self, directory: str) -> None:
        super().__init__(f"{directory} lacks its base, which its log names; the stream's table has it")


class BaseUnreadable(LogError):
    """Raised when the clone that a stream began with is not known here and its table can not be read now."""


class Bases(Protocol):
    """Reads the tables of streams that began with a clone."""

    def make_base(self, files: Files, directory: str, account: str, name: str, origin: BaseOrigin) -> Base:
        """Return the base of the stream in `directory`; make it unless it exists. Blocks for seconds.

        Raises:
            BaseUnreadable, LogError, OSError: it could not be made.
        """

    def read_base(
        self,
        files: Files,
        directory: str,
        account: str,
        name: str,
        origin: BaseOrigin,
        done: Callable[[Base | None, BaseException | None], None],
    ) -> None:
        """Call `make_base` in a thread."""
