"""Groups of one in the same store: writes that come together share one sync, and a lone one waits for nobody."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakestream.log.format.errors import LogClosed
from lakestream.log.format.files import Brief, Files, InlineIo, Io
from lakestream.log.format.frame import Kind
from lakestream.log.store.journal import NAME
from lakestream.log.store.segment_log import TOGETHER_BYTES, LogOptions
from lakestream.log.store.segment_store import SegmentStore
from lakestream.log.store.store import Store
from lakestream.meta.stores import FileStores
from lakestream.raft.core.messages import Membership
from lakestream.raft.group.group import Callbacks, Committed, Group, Proposal
from lakestream.raft.group.solo import AT_ONCE, SoloGroups

pytestmark = pytest.mark.unit

JOURNAL, SEGMENT = "journal", "segment"


class Syncs(Files):
    """Files that count syncs of the journal and of segments."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def sync(self, fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        self.counts[JOURNAL if NAME in path.name else SEGMENT] += 1

    def sync_directory(self, path: str) -> None:
        """Count nothing."""

    def taken(self) -> dict[str, int]:
        """Return the counts since the last call."""
        counts, self.counts = self.counts, Counter()
        return dict(counts)


class TurnIo(Io):
    """Threads that work when the test says so, and turns that end when it says so."""

    def __init__(self) -> None:
        self.work: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []
        self.ending = self.more = False
        self.gathered: list[Callable[[], None]] = []

    def submit(
        self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None], brief: Brief = Brief.NO
    ) -> None:
        self.work.append((work, done))

    def call_gathered(self, call: Callable[[], None]) -> bool:
        if self.ending:
            self.gathered.append(call)
        return self.ending

    def gathers(self) -> bool:
        return self.more

    def turn(self, *submit: Callable[[], None]) -> None:
        """End a turn that submits this."""
        self.ending = True
        for at, each in enumerate(submit, 1):
            self.more = at < len(submit)
            each()
        while self.gathered:
            gathered, self.gathered = self.gathered, []
            for call in gathered:
                call()
        self.ending = False

    def do(self, at: int = 0) -> None:
        """Do a piece of work."""
        work, done = self.work.pop(at)
        InlineIo().submit(work, done)


class World:
    """Some streams of one store, whose first writes are long past."""

    def __init__(self, path: Path, count: int) -> None:
        self.files, self.io = Syncs(), TurnIo()
        self.stores = FileStores(str(path), LogOptions(seal_age_ns=1 << 60), 1 << 20, InlineIo(), self.files)
        groups = SoloGroups("me")
        self.commits: list[list[str]] = [[] for _ in range(count)]
        self.failures: list[Exception] = []
        self.answering: list[bool] = []
        self.opened: list[Store] = []
        self.groups: list[Group] = []
        for at in range(count):
            store = self.stores.create("A", f"S{at}", f"u{at}", b"creation", memory=False)
            member = groups.member(f"S{at}", "", Membership(("me",)))
            owner = Callbacks(lambda entries, at=at: self._committed(at, entries), self.failures.append)
            self.opened.append(store)
            self.groups.append(member.join(store.log, self.io, owner))
        self.stores.mark()
        self.files.taken()

    def _committed(self, at: int, entries: list[Committed]) -> None:
        self.answering.append(self.groups[at].in_company)
        for entry in entries:
            self.opened[at].applied = entry.frame.index
            self.commits[at].append(str(entry.context))
            if entry.context == "and another":
                self.propose(at, "another")

    def propose(self, at: int, context: str, size: int = 10) -> None:
        self.groups[at].propose([Proposal(Kind.MESSAGES, bytes(size), 1, context)])

    def proposing(self, at: int, context: str, size: int = 10) -> Callable[[], None]:
        return lambda: self.propose(at, context, size)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, 5)


def test_one_sync_serves_all_streams_that_are_written_to_in_a_turn(world: World) -> None:
    world.io.turn(*[world.proposing(at, "x") for at in range(5)])
    assert len(world.io.work) == 1
    world.io.do()
    assert world.files.taken() == {JOURNAL: 1}
    assert world.commits == [["x"]] * 5
    assert world.answering == [True] * 5, "their answers leave together"


def test_a_lone_stream_syncs_its_own_segment(world: World) -> None:
    for _ in range(3):
        world.io.turn(world.proposing(0, "x"), lambda: None)
        world.io.do()
    assert world.files.taken() == {SEGMENT: 3}
    assert world.answering == [False] * 3


def test_the_last_stream_of_a_turn_waits_for_nobody_unless_others_wait(world: World) -> None:
    world.io.turn(lambda: None, world.proposing(0, "x"))
    world.io.ending = True
    world.propose(1, "x")
    assert not world.io.gathered
    assert len(world.io.work) == 2
    world.io.do()
    world.io.do()
    assert world.files.taken() == {SEGMENT: 2}


def test_what_gathers_while_streams_are_written_to_together_is_written_together(world: World) -> None:
    world.io.turn(world.proposing(0, "and another"), world.proposing(1, "and another"))
    world.propose(2, "meanwhile")
    assert len(world.io.work) == 1
    world.io.do()
    assert len(world.io.work) == 1
    world.io.do()
    assert world.files.taken() == {JOURNAL: 2}
    assert world.commits[:3] == [["and another", "another"], ["and another", "another"], ["meanwhile"]]


def test_a_stream_alone_goes_on_without_waiting_for_the_end_of_a_turn(world: World) -> None:
    world.io.turn(world.proposing(0, "and another"))
    world.io.do()
    assert len(world.io.work) == 1
    assert not world.io.gathered


def test_streams_do_not_wait_for_others_that_write_alone(world: World) -> None:
    for at in range(3):
        world.io.turn(world.proposing(at, "x"))
    world.propose(3, "x")
    world.io.do(-1)
    assert world.commits[3] == ["x"]


def test_a_stream_with_a_slow_disk_shares_no_sync(world: World) -> None:
    world.io.slow = True
    world.io.turn(world.proposing(3, "y"), world.proposing(4, "y"))
    world.io.do()
    world.io.do()
    assert world.files.taken() == {SEGMENT: 2}


def test_many_messages_are_committed_in_several_turns(world: World) -> None:
    def many(at: int) -> None:
        world.groups[at].propose([Proposal(Kind.MESSAGES, bytes(10), AT_ONCE, f"x{at}")])

    world.io.turn(*[functools.partial(many, at) for at in range(5)])
    done = [0]
    while world.io.work:
        world.io.do()
        done.append(sum(map(len, world.commits)))
    assert done == [0, 2, 4, 5]
    assert world.files.taken() == {JOURNAL: 1}


def test_a_long_write_shares_no_sync(world: World) -> None:
    world.io.turn(world.proposing(0, "x"), world.proposing(1, "x"), world.proposing(2, "x", TOGETHER_BYTES + 1))
    world.io.do()
    world.io.do()
    assert world.files.taken() == {JOURNAL: 1, SEGMENT: 1}


def test_the_failure_of_one_stream_is_not_that_of_the_others(world: World) -> None:
    world.io.turn(*[world.proposing(at, "x") for at in range(3)])
    store = world.opened[1]
    assert isinstance(store, SegmentStore)
    store.destroy()
    world.io.do()
    assert world.commits[:3] == [["x"], [], ["x"]]
    assert [type(failure) for failure in world.failures] == [LogClosed]
