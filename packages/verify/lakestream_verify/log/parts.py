"""Verification of the files beside the segments of a log, and of a whole log directory.

Belongs here: outlines, the checkpoint and its indexes, the synced mark, and the order and coverage of all of them. The
owner of a log (a stream, the meta group) verifies what entries and checkpoint say to it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import msgspec

from lakestream.log.format.errors import CorruptLog, LogError
from lakestream.log.format.files import Files
from lakestream.log.format.outline import SUFFIX as OUTLINE_SUFFIX
from lakestream.log.format.outline import OutlineFile, read_outline, read_outline_info
from lakestream.log.format.segment import LOG_DIRECTORY, SUFFIX, is_segment_name
from lakestream.log.index.sequences import SequenceSet
from lakestream.log.store.checkpoint import NAME as CHECKPOINT
from lakestream.log.store.checkpoint import read_checkpoint
from lakestream.log.store.store import Store
from lakestream.log.store.synced import MarkFile
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream_verify.log.findings import Finding, FindingKind, Repair, Step, of_error
from lakestream_verify.log.frames import Chain, SegmentCheck

BLOCK = 65_536
"""Messages that are compared at once."""


def check_log(files: Files, directory: str, durable_through: int, step: Step) -> Iterator[Finding]:
    """Yield the findings of outlines and segments in the log of `directory`. Block."""
    log = os.path.join(directory, LOG_DIRECTORY)
    chain = Chain()
    names = files.names(log)
    outlines = [os.path.join(log, name) for name in names if name.endswith(OUTLINE_SUFFIX)]
    through = 0
    for path in outlines:
        info, found = check_outline(files, path)
        yield from found
        if info is not None:
            if through and info.info.first_index != through + 1:
                what = f"it begins with entry {info.info.first_index} where {through + 1} belongs"
                yield Finding(kind=FindingKind.OUTLINE, file=path, what=what)
            through = info.info.last_index
    segments = [name for name in names if is_segment_name(name)]
    for position, name in enumerate(segments):
        path = os.path.join(log, name)
        check = SegmentCheck(files, path, chain, position == len(segments) - 1, durable_through, step)
        yield from check.findings()
        step(_size(files, path))
    for name in names:
        if name.endswith((SUFFIX, OUTLINE_SUFFIX)) and (is_segment_name(name) or name.endswith(OUTLINE_SUFFIX)):
            continue
        path = os.path.join(log, name)
        yield Finding(kind=FindingKind.UNKNOWN, file=path, what="it is not part of a log", harmless=True)


def _size(files: Files, path: str) -> int:
    try:
        with files.opened(path) as fd:
            return files.size(fd)
    except OSError:
        return 0


def check_outline(files: Files, path: str) -> tuple[OutlineFile | None, Sequence[Finding]]:
    """Return an outline's range, None if it is damaged, and the findings. Block."""
    try:
        info = read_outline_info(files, path)
        outline = read_outline(files, path)
    except (LogError, OSError) as error:
        return None, [of_error(FindingKind.OUTLINE, path, error)]
    except (*DECODE_ERRORS, AssertionError, ValueError) as error:
        return None, [of_error(FindingKind.OUTLINE, path, error)]
    rows = outline.runs.rows
    columns = (len(outline.ids), len(outline.sizes), len(outline.times))
    if columns != (rows, rows, rows) or any(number >= max(len(outline.names), 1) for number in outline.ids):
        return None, [Finding(kind=FindingKind.OUTLINE, file=path, what=f"its columns do not have {rows} rows each")]
    file = OutlineFile(path, info)
    return file, []


def check_mark(files: Files, directory: str) -> tuple[int, Sequence[Finding]]:
    """Return the entry through which the synced mark says that the log is durable, and the findings. Block."""
    marks = MarkFile(files, directory)
    try:
        return marks.read().index, []
    except CorruptLog as error:
        found = of_error(FindingKind.MARK, marks.path, error, Repair.START)
        what = f"{found.what}; a loss at the end of the log could not be told from a torn write"
        return 0, [msgspec.structs.replace(found, what=what)]
    except OSError as error:
        return 0, [of_error(FindingKind.MARK, marks.path, error)]


def check_checkpoint(files: Files, directory: str) -> tuple[int, Sequence[Finding]]:
    """Return the entry of a checkpoint, 0 without one, and its findings against itself. Block."""
    path = os.path.join(directory, CHECKPOINT)
    try:
        found = read_checkpoint(files, path)
        if found is None:
            return 0, []
        state, subjects = found.state, found.subjects
        live = SequenceSet.from_bytes(state.live)
        listed = sum(subjects.count(subject) for subject, _ in subjects.items())
    except (LogError, OSError, *DECODE_ERRORS, ValueError) as error:
        return 0, [of_error(FindingKind.CHECKPOINT, path, error, Repair.REPAIR)]
    if listed != len(live):
        what = f"the subject index lists {listed} messages, {len(live)} are live"
        return state.index, [Finding(kind=FindingKind.INDEX, file=path, what=what, repair=Repair.REPAIR)]
    return state.index, []


def check_indexes(store: Store, step: Step) -> Iterator[Finding]:
    """Yield the findings of a recovered store: its indexes list the live messages under the subjects of their records.
    Block.

    Records that are only in the lake are compared by their outlines.
    """
    path = os.path.join(store.directory, CHECKPOINT)
    size = 0
    try:
        seqs = store.live.members(1, BLOCK)
        while seqs:
            step(0)
            held: dict[bytes, list[int]] = {}
            for seq, subject in zip(seqs, store.subjects_of(seqs), strict=True):
                held.setdefault(subject, []).append(seq)
            size += sum(store.sizes_of(seqs))
            for subject, some in held.items():
                if store.subjects.seqs(subject, seqs[0], seqs[-1]) != some:
                    shown = subject.decode(errors="backslashreplace")
                    what = f"messages {some[0]} through {some[-1]} have subject {shown}, the subject index differs"
                    yield Finding(kind=FindingKind.INDEX, file=path, what=what, repair=Repair.REPAIR)
                    return
            seqs = store.live.members(seqs[-1] + 1, BLOCK)
    except (LogError, LookupError, AssertionError) as error:
        yield of_error(FindingKind.INDEX, path, error)
        return
    listed = sum(store.subjects.count(subject) for subject, _ in store.subjects.items())
    for what, found, said in (("messages", listed, store.msgs), ("bytes", size, store.bytes)):
        if found != said:
            text = f"the indexes list {found} {what}, the state has {said}"
            yield Finding(kind=FindingKind.INDEX, file=path, what=text, repair=Repair.REPAIR)
