"""Tests of `$LAKE.API.LAST.<stream>` with simulated turns: pages, filters, limits, and changes meanwhile."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lakestream.lake.last_messages import MAX_FILTERS, PAGE, LastPage, LastRequest
from lakestream.log.index import subject_leaves
from lakestream.ports import Single, singly
from lakestream.protocol.api.errors import api_error
from lakestream.server.lake import last_api
from lakestream.server.lake.last_api import MAX_ANSWERS, LastApi
from tests.unit.logkit import QuickFiles
from tests.unit.stream_world import CLIENT, World


class LastWorld(World):
    """A stream and its requests for last messages."""

    def __init__(self, directory: Path) -> None:
        super().__init__(str(directory / "store"), QuickFiles())

        def asked_here(account: str, name: str) -> Any:
            if name != "S":
                raise api_error(10059)
            return self.stream if self.leads else None

        self.leads = True
        engine: Any = SimpleNamespace(
            bus=self.hub, clock=self.clock, account="$G", node=SimpleNamespace(asked_here=asked_here)
        )
        self.api = LastApi(engine)
        self.hub.subscribe(b"$LAKE.API.LAST.*", singly(self.api.asked))
        self.settle()

    def ask(self, *filters: str, most: int = 100_000, name: str = "S", body: bytes = b"") -> list[bytes]:
        """Send a request; return the list that gets the answers."""
        self._number += 1
        reply, answers = b"_INBOX.last.%d" % self._number, list[bytes]()
        self.hub.subscribe(reply, lambda messages, begin, end, client: (answers.append(messages.payload), end)[1])
        body = body or msgspec.json.encode(LastRequest(list(filters), most))
        self.hub.route(None, CLIENT, Single(b"$LAKE.API.LAST.%b" % name.encode(), reply, b"", body))
        return answers

    def found(self, answers: list[bytes]) -> dict[bytes, int]:
        """Return the last sequences of a whole answer."""
        self.settle()
        assert answers.pop() == b"", "an empty message ends the answer"
        pages = list(map(PAGE.decode, answers))
        assert [page.done for page in pages] == [False] * (len(pages) - 1) + [True]
        assert {page.uid for page in pages} == {self.stream.uid}
        found: dict[bytes, int] = {}
        for page in pages:
            at = 0
            for seq, length in zip(array("q", page.seqs), array("I", page.lengths), strict=True):
                found[page.subjects[at : at + length]] = seq
                at += length
        return found

    def error(self, answers: list[bytes]) -> tuple[int, str]:
        self.settle()
        page, end = answers
        assert end == b""
        failure: LastPage = PAGE.decode(page)
        assert failure.done
        return failure.code, failure.error


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LastWorld]:
    made = LastWorld(tmp_path)
    yield made
    made.stream.store.close()


def test_the_last_sequence_of_each_subject_comes_with_the_entry_of_the_index(world: LastWorld) -> None:
    for subject in ("s.a", "s.b", "s.a", "s.c.d"):
        world.acked(subject, b"1")
    answers = world.ask()
    world.settle()
    assert [PAGE.decode(page).applied for page in answers[:-1]] == [world.stream.store.applied]
    assert world.found(answers) == {b"s.a": 3, b"s.b": 2, b"s.c.d": 4}
    assert world.found(world.ask("s.*")) == {b"s.a": 3, b"s.b": 2}
    assert world.found(world.ask("s.b", "s.c.>", "s.none")) == {b"s.b": 2, b"s.c.d": 4}
    assert world.found(world.ask("s.none")) == {}


def test_an_empty_stream_has_a_page(world: LastWorld) -> None:
    assert world.found(world.ask()) == {}


def test_many_subjects_come_in_pages_and_in_several_turns(world: LastWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first page tells the entry at the beginning, the last one the entry at the end."""
    monkeypatch.setattr(last_api, "PAGE_SUBJECTS", 1)
    monkeypatch.setattr(last_api, "TURN_NS", 0)
    for number in range(3):
        world.acked(f"s.{number}", b"1")
    begun = world.stream.store.applied
    monkeypatch.setattr(subject_leaves, "LEAF_ROWS", 1)
    world.stream.store.subjects._ordered()
    later = list[Callable[[], None]]()
    monkeypatch.setattr(world.hub, "when_writable", lambda to, callback: later.append(callback))
    answers = world.ask()
    assert len(answers) == 1
    world.acked("s.2", b"2")
    while later:
        later.pop()()
    assert world.found(answers) == {b"s.0": 1, b"s.1": 2, b"s.2": 4}
    pages = list(map(PAGE.decode, answers))
    assert pages[0].applied == begun
    assert pages[-1].applied == world.stream.store.applied > begun


def test_an_operation_that_is_half_applied_counts_as_in_the_index(world: LastWorld) -> None:
    world.acked("s.a", b"1")
    store = world.stream.store
    store.operation_ns = 0
    answers = world.ask()
    world.settle()
    store.operation_ns = None
    pages = list(map(PAGE.decode, answers[:-1]))
    assert (pages[0].applied, pages[-1].applied) == (store.applied, store.applied + 1)
    assert world.found(answers) == {b"s.a": 1}


def test_requests_that_cannot_be_answered_get_an_error(world: LastWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        world.acked(f"s.{number}", b"1")
    assert world.error(world.ask(most=2)) == (413, "more than 2 subjects")
    assert world.error(world.ask("s.*", most=2)) == (413, "more than 2 subjects")
    assert world.error(world.ask(name="NONE"))[0] == 404
    for body in (b"[]", b'{"filters": ["s..a"]}', msgspec.json.encode({"filters": ["s.a"] * (MAX_FILTERS + 1)})):
        assert world.error(world.ask(body=body))[0] == 400
    world.leads = False
    assert world.ask() == [], "another node answers"
    world.leads = True
    monkeypatch.setattr(world.hub, "writable", lambda to: False)
    monkeypatch.setattr(world.hub, "when_writable", lambda to, callback: None)
    waiting = [world.ask() for _ in range(MAX_ANSWERS)]
    assert waiting == [[]] * MAX_ANSWERS
    assert world.error(world.ask())[0] == 429
