"""Spans of commits to tables, for messages that carry `traceparent`.

Belongs here: finding such messages in the segments of a commit, and the last span of each. The earlier ones are the
server's (stream/features/spans.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from lakestream.lake.errors import LakeError
from lakestream.lake.staging.sealed import reader
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table.batches import Part
from lakestream.lake.table.departures import DeletedMessages
from lakestream.lake.table.segments import alive
from lakestream.log.format.errors import LogError
from lakestream.log.format.packed import read_plain
from lakestream.log.format.record import decode_record
from lakestream.log.format.segment import decode_segment_header, iter_frames, read_footer
from lakestream.spans import HINT, TABLE, Parent, Spans
from lakestream.spans import traced as parent_of

MAX_COMMIT_SPANS = 1_000
"""Messages of one commit that get a span, the first ones."""


class CommitSpan(msgspec.Struct, frozen=True):
    """A commit to a table. Times in ns since the epoch; `position`: log index that the table holds since then."""

    account: str
    stream: str
    uid: str
    position: int
    began_ns: int
    ended_ns: int


class CommitSpans:
    """Exports the spans of commits. Safe to use from several threads.

    Args:
        spans: the exporter.
    """

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    def find(self, parts: Sequence[Part], dead: DeletedMessages | None) -> list[tuple[int, Parent]]:
        """Return (sequence, parent) of up to MAX_COMMIT_SPANS traced messages of these segments.

        Call it before the commit: the server may remove them afterwards.

        Args:
            dead: messages that the commit leaves out.
        """
        import numpy as np

        found: list[tuple[int, Parent]] = []
        for part in parts:
            try:
                found += traced(part.path, part.after, MAX_COMMIT_SPANS - len(found))
            except (LakeError, LogError, OSError):
                continue  # the commit itself reports a segment that is damaged or missing
        kept = alive(np.array([seq for seq, _ in found], np.int64), dead)
        return [each for each, lives in zip(found, kept, strict=True) if lives]

    def export(self, commit: CommitSpan, found: Sequence[tuple[int, Parent]]) -> None:
        """Export a span for each of the messages that `find` returned."""
        for seq, parent in found:
            message = (commit.account, commit.stream, commit.uid, seq)
            position = {"lakestream.position": commit.position}
            self._spans.message(TABLE, parent, message, commit.began_ns, commit.ended_ns, position)


def traced(path: str, after: int, most: int) -> list[tuple[int, Parent]]:
    """Return (sequence, parent) of messages of a segment that belong to sampled traces, the first ones up to `most`.

    Args:
        path: the segment.
        after: only messages of entries with a higher log index.
    """
    with open_storage(path).fetch(path) as local:
        files = reader(local, path)
        content = read_plain(files, local)
        place = content.find(HINT)
        if place < 0:
            return []
        _, tables, end = read_footer(local, files)
    header = decode_segment_header(content)
    if isinstance(header, str):
        return []
    begin = next((at for frame, at in iter_frames(content, path, header, end) if frame.index > after), end)
    offsets = [offset for offset, length in zip(tables.offsets, tables.lengths, strict=True) if length]
    found: list[tuple[int, Parent]] = []
    while 0 <= place < end and len(found) < most:
        row = bisect_right(offsets, place) - 1
        if row >= 0 and offsets[row] >= begin:
            record = decode_record(content, offsets[row])
            if (parent := parent_of(record.header)) is not None:
                found.append((record.seq, parent))
        place = content.find(HINT, offsets[row + 1] if row + 1 < len(offsets) else end)
    return found
