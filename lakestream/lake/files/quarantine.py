"""Staged segments that do not decode.

Belongs here: setting such a file aside, so that its stream alone stops at it and says why, and putting a good copy in
its place. Beside `<first>-<last>.seg.bad`, the file as it was found, `<first>-<last>.seg.why` says what is wrong.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from lakestream.lake.errors import BadSegment, QuarantinedSegment
from lakestream.lake.files import paths
from lakestream.lake.files.lake import open_storage
from lakestream.lake.files.storage import Storage
from lakestream.log.errors import CorruptLog
from lakestream.log.files import Files
from lakestream.log.packed import read_plain
from lakestream.log.segment import SealedSegment, decode_segment_header, iter_frames, read_footer

BAD = ".bad"
WHY = ".why"


def set_aside(path: str, bad: BadSegment) -> QuarantinedSegment:
    """Take a damaged segment out of the staging area's order; returns the error to raise.

    Repeated after a crash it does the rest.
    """
    storage = open_storage(path)
    reason = f"at offset {bad.offset}: {bad.reason}"
    storage.write(f"{path}{WHY}", reason.encode())
    if storage.local:
        storage.move(path, f"{path}{BAD}")
    else:
        storage.write(f"{path}{BAD}", storage.read(path))
        storage.delete(path)
    return QuarantinedSegment(path, reason)


def find(directory: str, position: int) -> QuarantinedSegment | None:
    """The first segment beyond a log index that was set aside and not replaced since; None when there is none."""
    storage = open_storage(directory)
    names = {entry.name: entry.path for entry in storage.list(directory)}
    for name in sorted(names):
        if not name.endswith(WHY):
            continue
        segment = name.removesuffix(WHY)
        indexes = paths.parse_segment_name(segment)
        if indexes is not None and indexes[1] > position and segment not in names:
            path = names[name].removesuffix(WHY)
            return QuarantinedSegment(path, storage.read(names[name]).decode(errors="replace"))
    return None


def replace(path: str, sealed: Sequence[SealedSegment]) -> bool:
    """Stage a good copy of a segment that was set aside, if the server's log has one; False when it has none.

    A copy, not a link: what damaged the staged file may have been one and the same file with the log's.
    """
    indexes = paths.parse_segment_name(path.rpartition("/")[2])
    for segment in sealed:
        if (segment.first_index, segment.last_index) == indexes and is_sound(segment.path):
            storage = open_storage(path)
            with open(segment.path, "rb") as file:
                storage.write(path, file.read())
            storage.delete(f"{path}{WHY}")
            return True
    return False


def clear(storage: Storage, directory: str, position: int) -> None:
    """Forget what was set aside up to a log index that the table holds."""
    for entry in storage.list(directory):
        name, suffix = os.path.splitext(entry.name)
        indexes = paths.parse_segment_name(name) if suffix in (BAD, WHY) else None
        if indexes is not None and indexes[1] <= position:
            storage.delete(entry.path)


def is_sound(path: str) -> bool:
    """Whether a sealed segment on this machine decodes, frame by frame."""
    try:
        content = read_plain(Files(), path)
        header = decode_segment_header(content)
        if isinstance(header, str):
            return False
        _, _, frames_end = read_footer(path)
        for _ in iter_frames(content, path, header, frames_end):
            pass
    except (CorruptLog, OSError):
        return False
    return True
