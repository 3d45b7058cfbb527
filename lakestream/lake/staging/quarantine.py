"""Quarantine for staged segments that do not decode.

Belongs here: renaming such a file, so that only its stream stops and reports the reason, and replacing it by a good
copy. `<first>-<last>.seg.bad` is the file as it was found, `<first>-<last>.seg.why` has the reason.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from lakestream.lake.errors import BadSegment, LakeError, QuarantinedSegment
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.storage import Storage
from lakestream.log.format.errors import LogError
from lakestream.log.format.segment import SealedSegment
from lakestream.log.store.repair import verify

BAD = ".bad"
WHY = ".why"


def set_aside(path: str, bad: BadSegment) -> QuarantinedSegment:
    """Move a damaged segment to quarantine and return the error to raise. May be repeated after a crash."""
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
    """Return the error for the first segment beyond a log index that is in quarantine without a replacement, or
    None."""
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
    """Stage a good copy of a segment in quarantine if the server's log has one; return False when it has none.

    The file is copied, not linked: what damaged the staged file may have damaged the log's file, if they were one.
    """
    from lakestream.lake.staging.sealed import put_key  # only with the first segment

    indexes = paths.parse_segment_name(path.rpartition("/")[2])
    for segment in sealed:
        if (segment.first_index, segment.last_index) == indexes and is_sound(segment.path):
            storage = open_storage(path)
            put_key(storage, path.rpartition("/")[0], segment.path)
            with open(segment.path, "rb") as file:
                storage.write(path, file.read())
            storage.delete(f"{path}{WHY}")
            return True
    return False


def clear(storage: Storage, directory: str, position: int) -> None:
    """Delete the quarantine files of segments up to a log index that the table holds."""
    for entry in storage.list(directory):
        name, suffix = os.path.splitext(entry.name)
        indexes = paths.parse_segment_name(name) if suffix in (BAD, WHY) else None
        if indexes is not None and indexes[1] <= position:
            storage.delete(entry.path)


def is_sound(path: str) -> bool:
    """Return True if a sealed segment on this machine decodes, record by record."""
    from lakestream.lake.staging.sealed import reader  # only with the first segment

    try:
        verify(reader(path), path)
    except (LogError, LakeError, OSError):
        return False
    return True
