"""Message counts of the subjects of a stream, one page at a time.

Belongs here: the page of STREAM.INFO for a `subjects_filter`: the matching subjects in order, from an offset, at most
`SUBJECTS_LIMIT` of them. With many subjects that takes seconds; it is done in steps, between which the event loop runs.
"""

from __future__ import annotations

from lakestream.log.index.subject_index import SubjectIndex
from lakestream.protocol.subjects import Steps

SUBJECTS_LIMIT = 100_000
"""Subjects in one reply of STREAM.INFO with a subjects_filter."""

COUNTED = 4096
"""Subjects that are counted in one step."""
PARTS = 8
"""Parts of the index, of some hundred subjects each, that are searched in one step."""

Page = tuple[int, dict[str, int]]
"""The number of matching subjects, and the message counts of those on the page."""


def page_of(index: SubjectIndex, pattern: bytes, offset: int) -> Steps[Page]:
    """Return the page of a stream as of the first step; the counts may be newer."""
    found: list[bytes] = []
    for number, some in enumerate(index.some_matching(pattern), 1):
        found += sorted(some)  # the parts themselves come in order
        if number % PARTS == 0:
            yield
    shown: dict[str, int] = {}
    total, found = len(found), found[offset : offset + SUBJECTS_LIMIT]
    for at in range(0, len(found), COUNTED):
        some = found[at : at + COUNTED]
        names = b"\n".join(some).decode("utf-8", "replace").split("\n")  # no subject has a line end
        counts = index.count_each(some)
        if 0 in counts:  # its last message was removed meanwhile
            kept = [place for place, count in enumerate(counts) if count]
            names, counts = [names[place] for place in kept], [counts[place] for place in kept]
        shown.update(zip(names, counts, strict=True))
        yield
    return total, shown
