"""Tests of pages of subjects with their counts: the same at once and in steps, with short steps."""

from __future__ import annotations

import asyncio

import pytest

from lakestream.account.api import subject_pages
from lakestream.log.index.subject_index import SubjectIndex
from tests.unit.api_world import ApiWorld

pytestmark = pytest.mark.unit


def _index(count: int) -> SubjectIndex:
    index = SubjectIndex()
    index.add_run([b"a.%d.%d" % (n % 7, n * 7919 % count) for n in range(count)], 1)
    index.add_run([b"b.%d" % (n % 5) for n in range(20)], count + 1)
    return index


@pytest.mark.parametrize("pattern", [b">", b"a.*.>", b"a.3.*", b"b.*", b"b.1", b"none.*", b"none"])
@pytest.mark.parametrize("offset", [0, 2, 100, 10**6])
def test_in_steps_and_at_once_agree(pattern: bytes, offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject_pages, "COUNTED", 10)
    monkeypatch.setattr(subject_pages, "SUBJECTS_LIMIT", 64)
    index = _index(333)
    expected = subject_pages.page_at_once(index, pattern, offset)
    total, counts = asyncio.run(subject_pages.page_in_steps(index, pattern, offset))
    assert (total, list(counts.items())) == (expected[0], list(expected[1].items()))


def test_a_subject_that_goes_meanwhile_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject_pages, "COUNTED", 10)
    index = SubjectIndex()
    index.add_run([b"a.%02d" % n for n in range(40)], 1)

    async def both() -> subject_pages.Page:
        asked = asyncio.ensure_future(subject_pages.page_in_steps(index, b"a.*", 0))
        await asyncio.sleep(0)
        index.remove(b"a.20", 21)
        return await asked

    _, counts = asyncio.run(both())
    assert len(counts) == 39
    assert "a.20" not in counts


def test_many_subjects_leave_room_for_others() -> None:
    index, turns = _index(200_000), 0

    async def both() -> subject_pages.Page:
        nonlocal turns
        asked = asyncio.ensure_future(subject_pages.page_in_steps(index, b"a.>", 0))
        while not asked.done():
            await asyncio.sleep(0)
            turns += 1
        return await asked

    total, counts = asyncio.run(both())
    assert (total, len(counts)) == (200_000, subject_pages.SUBJECTS_LIMIT)
    assert turns > 20, "ten steps to look, ten to merge, five to count"


async def test_info_with_many_subjects_is_answered_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject_pages, "AT_ONCE", 5)
    world = ApiWorld()
    world.create("S", subjects=["s.*"])
    for n in range(20):
        world.publish(f"s.{n % 10}")
    reply = world.send("$JS.API.STREAM.INFO.S", {"subjects_filter": "s.*", "offset": 7})
    world.settle()
    assert not world.answers(reply)
    await world.awaited()
    answer = world.answers(reply)[0][1]
    assert b'"total":10,"offset":7,"limit":100000' in answer
    assert b'"subjects":{"s.7":2,"s.8":2,"s.9":2}' in answer
