"""Tests of pages of subjects with their counts, found in steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lakestream.account.api import subject_pages
from lakestream.log.index.subject_index import SubjectIndex
from lakestream.ports import Share
from lakestream.protocol.subjects import finished, matches
from tests.unit.api_world import ApiWorld

pytestmark = pytest.mark.unit


def _index(count: int) -> SubjectIndex:
    index = SubjectIndex()
    index.add_run([b"a.%d.%d" % (n % 7, n * 7919 % count) for n in range(count)], 1)
    index.add_run([b"b.%d" % (n % 5) for n in range(20)], count + 1)
    return index


@pytest.mark.parametrize("pattern", [b">", b"a.*.>", b"a.3.*", b"a.*.7", b"b.*", b"b.1", b"none.*", b"none"])
@pytest.mark.parametrize("offset", [0, 2, 100, 10**6])
def test_a_page_has_the_matching_subjects_in_order(
    pattern: bytes, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject_pages, "COUNTED", 10)
    monkeypatch.setattr(subject_pages, "SUBJECTS_LIMIT", 64)
    index = _index(333)
    wanted = sorted(subject for subject, _ in index.items() if matches(pattern, subject))
    shown = [(subject.decode(), index.count(subject)) for subject in wanted[offset : offset + 64]]
    total, counts = finished(subject_pages.page_of(index, pattern, offset))
    assert (total, list(counts.items())) == (len(wanted), shown)


def test_a_subject_that_goes_meanwhile_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject_pages, "COUNTED", 10)
    index = SubjectIndex()
    index.add_run([b"a.%02d" % n for n in range(40)], 1)
    steps = subject_pages.page_of(index, b"a.*", 0)
    next(steps)
    index.remove(b"a.20", 21)
    _, counts = finished(steps)
    assert len(counts) == 39
    assert "a.20" not in counts


def test_many_subjects_are_found_in_many_steps() -> None:
    index = _index(200_000)
    steps = sum(1 for _ in subject_pages.page_of(index, b"a.>", 0))
    total, counts = finished(subject_pages.page_of(index, b"a.>", 0))
    assert (total, len(counts)) == (200_000, subject_pages.SUBJECTS_LIMIT)
    assert steps > 90, "some hundred subjects in each part of the index"


class OverAtOnce(Share):
    """Turns that have time for one step each."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def is_over(self) -> bool:
        return True

    def wait(self, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)


def _asked(world: ApiWorld, share: Any) -> bytes:
    world.create("S", subjects=["s.*"])
    for n in range(20):
        world.publish(f"s.{n % 10}")
    world.engine.shared.share = share
    reply = world.send("$JS.API.STREAM.INFO.S", {"subjects_filter": "s.*", "offset": 7})
    world.settle()
    return reply


def test_info_is_answered_once_a_turn_had_time_for_its_last_step() -> None:
    world, share = ApiWorld(), OverAtOnce()
    reply = _asked(world, share)
    while share.waiting:
        assert not world.answers(reply)
        share.waiting.pop()()
    world.settle()
    answer = world.answers(reply)[0][1]
    assert b'"total":10,"offset":7,"limit":100000' in answer
    assert b'"subjects":{"s.7":2,"s.8":2,"s.9":2}' in answer


def test_an_error_of_a_later_step_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    world, share = ApiWorld(), OverAtOnce()
    reply = _asked(world, share)
    assert share.waiting

    def broken(*args: object) -> Any:
        raise OSError("unreadable")

    monkeypatch.setattr("lakestream.account.api.streams.state_shown", broken)
    share.waiting.pop()()
    world.settle()
    assert b'"err_code":10051' in world.answers(reply)[0][1]
