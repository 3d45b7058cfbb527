"""A good copy in the place of a damaged sealed segment.

Belongs here: reading a sealed segment from its beginning to its end, and putting another replica's file of the same
entries in its place. The two differ in salt and time of sealing, and in nothing that anybody reads.
"""

from __future__ import annotations

import os

import msgspec

from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.files import Files
from lakestream.log.format.frame import Kind
from lakestream.log.format.packed import read_plain
from lakestream.log.format.record import iter_records
from lakestream.log.format.segment import Footer, Header, Segment, decode_segment_header, iter_frames, read_footer
from lakestream.log.store.cache import ReadCache


def verify(files: Files, path: str) -> tuple[Header, Footer]:
    """Read everything of the sealed segment at `path`. Blocks. Raises CorruptLog at the first damage, OSError."""
    footer, _, frames_end = read_footer(path, files)
    content = read_plain(files, path)
    header = decode_segment_header(content)
    if isinstance(header, str):
        raise CorruptLog(path, 0, header)
    last = header.first_index - 1
    for frame, _ in iter_frames(content, path, header, frames_end):
        last = frame.index
        if frame.kind == Kind.MESSAGES:
            for _ in iter_records(frame.body):
                pass
    if (header.first_index, last) != (footer.first_index, footer.last_index):
        raise CorruptLog(path, frames_end, f"it holds entries {header.first_index} to {last}")
    return header, footer


def take_over(files: Files, segment: Segment, fetched: str) -> Header:
    """Replace the file of a sealed segment by `fetched`, another replica's of the same entries. Blocks.

    Returns the new header, for `adopt`. Raises CorruptLog when the other file is damaged or holds something else.
    """
    header, footer = verify(files, fetched)
    known = segment.footer
    assert known is not None, "only a sealed segment is replaced"
    if msgspec.structs.replace(footer, closed_ns=known.closed_ns) != known:
        raise CorruptLog(fetched, 0, "it does not hold the same messages")
    files.replace(fetched, segment.path)
    files.sync_directory(os.path.dirname(segment.path))
    return header


def adopt(cache: ReadCache, segment: Segment, header: Header) -> None:
    """The file is another one now: forget what is known of the one before. In the event loop."""
    segment.header = header
    segment.file_bytes = os.path.getsize(segment.path)  # one of the two may be compressed
    cache.forget(segment.path)
    cache.drop(segment)
