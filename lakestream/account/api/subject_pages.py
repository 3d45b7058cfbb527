"""Message counts of the subjects of a stream, one page at a time.

Belongs here: the page of STREAM.INFO for a `subjects_filter`: the matching subjects in order, from an offset, at most
`SUBJECTS_LIMIT` of them. With many subjects that takes seconds; it is done in steps, between which the event loop runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice

from lakestream.log.index.subject_index import SubjectIndex
from lakestream.protocol import subjects as grammar

SUBJECTS_LIMIT = 100_000
"""Subjects in one reply of STREAM.INFO with a subjects_filter."""

AT_ONCE = 20_000
"""Up to this many subjects of a stream are counted in one step."""
COUNTED = 4096
"""Subjects of a larger stream that are counted in one step."""
PARTS = 32
"""Parts of the index, of some hundred subjects each, that are searched in one step."""

Page = tuple[int, dict[str, int]]
"""The number of matching subjects, and the message counts of those on the page."""


def page_at_once(index: SubjectIndex, pattern: bytes, offset: int) -> Page:
    """Return the page of a stream with few subjects."""
    found = sorted(index.matching(pattern))
    return len(found), dict(_counts(index, found[offset : offset + SUBJECTS_LIMIT]))


async def page_in_steps(index: SubjectIndex, pattern: bytes, offset: int) -> Page:
    """Return the page of a stream with any number of subjects, as of the call; the counts may be newer."""
    if grammar.is_literal(pattern):
        return page_at_once(index, pattern, offset)
    found: list[bytes] = []
    for number, some in enumerate(index.some_matching(pattern), 1):
        found += sorted(some)  # the parts themselves come in order
        if number % PARTS == 0:
            await asyncio.sleep(0)
    shown: dict[str, int] = {}
    wanted = iter(found[offset : offset + SUBJECTS_LIMIT])
    while some := list(islice(wanted, COUNTED)):
        shown.update(_counts(index, some))
        await asyncio.sleep(0)
    return len(found), shown


def _counts(index: SubjectIndex, subjects: Iterable[bytes]) -> Iterator[tuple[str, int]]:
    for subject in subjects:
        count = index.count(subject)
        if count:  # 0: its last message was removed meanwhile
            yield subject.decode("utf-8", "replace"), count
