"""Tests of a group of one: proposing and applying are two steps, and a commit is a durable write."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakestream.log.format.errors import LogError, LogFrozen
from lakestream.log.format.files import InlineIo, Io, UnsyncedFiles
from lakestream.log.format.frame import Kind
from lakestream.log.store.memory import MemoryStore
from lakestream.log.store.segment_log import LogOptions
from lakestream.log.store.segment_store import open_store
from lakestream.log.store.store import Store
from lakestream.raft.core.messages import Install, Membership
from lakestream.raft.group.group import Callbacks, Committed, MemberProgress, Proposal
from lakestream.raft.group.solo import AT_ONCE, OPERATION_MSGS, SoloGroup, SoloGroups
from tests.faults.files import FaultyFiles
from tests.unit.logkit import HeldIo

pytestmark = pytest.mark.unit


opened: list[Store] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    for store in opened:
        store.log.close()
    opened.clear()


class Recorder:
    """Group that records its commits and failures."""

    def __init__(self, store: Store, io: object) -> None:
        self.store = store
        self.commits: list[list[Committed]] = []
        self.failures: list[Exception] = []
        self.group = SoloGroup(store.log, io, Callbacks(lambda entries: self.commit(entries), self.failures.append))  # type: ignore[arg-type]

    def commit(self, entries: list[Committed]) -> None:
        self.commits.append(entries)
        for entry in entries:
            self.store.applied = entry.frame.index


def held(directory: Path, **options: object) -> tuple[Recorder, HeldIo, FaultyFiles]:
    io, files = HeldIo(), FaultyFiles()
    settings = LogOptions(**{"seal_age_ns": 1 << 60, **options})  # type: ignore[arg-type]
    store = open_store(str(directory), io, settings, files=files, now=lambda: 10**18)
    opened.append(store)
    return Recorder(store, io), io, files


def noop(context: object, body: bytes | list[bytes] = b"") -> Proposal:
    return Proposal(Kind.NOOP, body, 0, context)


def many(context: object) -> Proposal:
    """Return an entry that counts for more than half of what is committed at once."""
    return Proposal(Kind.NOOP, b"", AT_ONCE // 2 + 1, context)


def test_a_large_write_is_committed_in_parts_and_nothing_is_written_meanwhile(tmp_path: Path) -> None:
    recorder, io, files = held(tmp_path)
    syncs = files.calls["sync"]
    recorder.group.propose([many("a"), many("b"), noop("c")])
    io.run()()
    assert [entry.context for entry in recorder.commits.pop()] == ["a"]
    assert recorder.group.in_flight
    assert (recorder.group.last_index, recorder.group.commit_index) == (1, 1)
    recorder.group.sync()  # waits for the end of the write
    io.run()()
    assert [entry.context for entry in recorder.commits.pop()] == ["b", "c"]
    assert not recorder.group.in_flight
    assert recorder.group.last_index == 3
    assert files.calls["sync"] == syncs + 1
    recorder.group.propose([noop("d")])
    io.run()()
    assert [entry.context for entry in recorder.commits.pop()] == ["d"]


def test_operations_count_as_many_messages_in_a_part(tmp_path: Path) -> None:
    recorder, io, _ = held(tmp_path)
    together = AT_ONCE // OPERATION_MSGS
    recorder.group.propose([Proposal(Kind.OPERATION, b"", 0, number) for number in range(2 * together)])
    for first in (0, together):
        io.run()()
        assert [entry.context for entry in recorder.commits.pop()] == list(range(first, first + together))
    assert not recorder.group.in_flight


def test_a_group_that_is_stopped_in_a_large_write_is_at_rest_after_the_part(tmp_path: Path) -> None:
    recorder, io, _ = held(tmp_path)
    ended: list[bool] = []
    recorder.group.propose([many("a"), many("b")])
    io.run()()
    recorder.group.stop(lambda: ended.append(True))
    assert not ended
    io.run()()
    assert ended
    assert recorder.group.at_rest
    assert [entry.context for commit in recorder.commits for entry in commit] == ["a"]


def test_a_part_that_cannot_be_applied_ends_a_large_write(tmp_path: Path) -> None:
    recorder, io, _ = held(tmp_path)
    recorder.commit = lambda entries: recorder.group.give_up(ValueError("no room"))  # type: ignore[method-assign]
    recorder.group.propose([many("a"), many("b")])
    io.run()()
    assert recorder.group.at_rest
    assert "no room" in str(recorder.failures)
    with pytest.raises(LogError):
        recorder.group.propose([noop("c")])


def test_a_group_is_in_flight_until_its_owner_has_taken_the_last_step(tmp_path: Path) -> None:
    recorder, io, _ = held(tmp_path)
    taken: list[str] = []

    def steps(entries: list[Committed]) -> Iterator[None]:
        for number in range(3):
            taken.append(f"{entries[0].context} {number}")
            yield
        taken.append(f"in flight: {recorder.group.in_flight}")

    recorder.commit = lambda entries: steps(entries)  # type: ignore[method-assign]
    recorder.group.propose([many("a"), many("b")])
    for number in range(4):
        io.run()()
        assert len(taken) == number
        assert recorder.group.in_flight
        recorder.group.sync()  # waits
    io.run_all()
    assert taken == [
        *("a 0", "a 1", "a 2", "in flight: True"),  # the other part follows
        *("b 0", "b 1", "b 2", "in flight: False"),  # what is proposed with the last step is written at once
    ]
    assert not recorder.group.in_flight


def test_a_group_that_is_stopped_between_two_steps_is_at_rest_after_the_turn(tmp_path: Path) -> None:
    recorder, io, _ = held(tmp_path)
    taken: list[str] = []

    def steps() -> Iterator[None]:
        taken.append("step")
        yield
        taken.append("last step")

    recorder.commit = lambda entries: steps()  # type: ignore[method-assign]
    recorder.group.propose([noop("a")])
    io.run()()
    io.run()()
    ended: list[bool] = []
    recorder.group.stop(lambda: ended.append(True))
    assert not ended
    io.run_all()
    assert ended
    assert taken == ["step"]


def test_entries_are_handed_out_only_when_they_are_durable(tmp_path: Path) -> None:
    recorder, io, files = held(tmp_path)
    syncs = files.calls["sync"]
    recorder.group.propose([noop("a"), noop("b")])
    assert recorder.group.in_flight
    assert files.calls["sync"] == syncs
    deliver = io.run()
    assert files.calls["sync"] == syncs + 1  # one for both
    assert recorder.commits == []
    assert recorder.group.in_flight
    deliver()
    assert not recorder.group.in_flight
    assert [entry.context for entry in recorder.commits[0]] == ["a", "b"]
    assert (recorder.group.last_index, recorder.group.commit_index) == (2, 2)


def test_indexes_and_terms_are_given_in_order(tmp_path: Path) -> None:
    recorder, io, _ = held(tmp_path)
    for turn in range(3):
        recorder.group.propose([noop(turn, [b"a", b"b"]), noop(turn, b"c")])
        io.run_all()
    entries = [entry for commit in recorder.commits for entry in commit]
    assert [entry.frame.index for entry in entries] == [1, 2, 3, 4, 5, 6]
    assert {entry.frame.term for entry in entries} == {1}
    assert [entry.frame.body for entry in entries] == [b"ab", b"c"] * 3
    assert [entry.frame.write for entry in entries] == [1, 1, 3, 3, 5, 5]
    assert [entry.at.index for entry in entries] == [1, 2, 3, 4, 5, 6]


def test_a_second_proposal_while_a_write_is_under_way_is_a_mistake(tmp_path: Path) -> None:
    recorder, io, _ = held(tmp_path)
    recorder.group.propose([noop(1)])
    with pytest.raises(AssertionError, match="under way"):
        recorder.group.propose([noop(2)])
    io.run_all()
    recorder.group.propose([])
    assert not recorder.group.in_flight


def test_a_failed_write_is_told_once_and_nothing_of_it_is_committed(tmp_path: Path) -> None:
    recorder, io, files = held(tmp_path)
    files.fail = "sync"
    recorder.group.propose([noop(1)])
    io.run_all()
    assert recorder.commits == []
    assert isinstance(recorder.failures[0], LogFrozen)
    assert recorder.group.failed is recorder.failures[0]
    assert not recorder.group.in_flight
    files.fail = ""
    with pytest.raises(LogFrozen):
        recorder.group.propose([noop(2)])
    recorder.group.sync()
    assert io.waiting == []
    assert len(recorder.failures) == 1


def test_a_due_segment_is_sealed_by_the_write_that_follows(tmp_path: Path) -> None:
    recorder, io, _ = held(tmp_path, seal_bytes=500)
    recorder.group.propose([noop(1, b"x" * 600)])
    io.run_all()
    assert recorder.store.sealed() == []
    recorder.group.propose([noop(2)])
    io.run_all()
    assert [sealed.last_index for sealed in recorder.store.sealed()] == [1]
    assert [entry.frame.index for entry in recorder.commits[1]] == [2]


def test_nothing_is_sealed_before_it_is_applied(tmp_path: Path) -> None:
    recorder, io, _ = held(tmp_path, seal_bytes=500)
    recorder.commit = lambda entries: None  # type: ignore[method-assign]
    recorder.group.propose([noop(1, b"x" * 600)])
    io.run_all()
    recorder.group.propose([noop(2)])
    io.run_all()
    assert recorder.store.sealed() == []


def test_a_seal_by_age_holds_writes_back_and_then_wakes_the_proposer(tmp_path: Path) -> None:
    recorder, io, _ = held(tmp_path, seal_bytes=500)
    recorder.group.propose([noop(1, b"x" * 600)])
    io.run_all()
    recorder.store.seal_if_old()
    assert recorder.group.in_flight
    recorder.store.seal_if_old()
    assert len(io.waiting) == 1
    io.run_all()
    assert not recorder.group.in_flight
    assert recorder.commits[-1] == []
    assert len(recorder.store.sealed()) == 1


def test_a_group_goes_on_where_the_log_ended(tmp_path: Path) -> None:
    recorder, io, _ = held(tmp_path)
    recorder.group.propose([noop(1), noop(2)])
    io.run_all()
    recorder.store.log.close()
    again, io, _ = held(tmp_path)
    assert (again.group.last_index, again.group.commit_index, again.group.term) == (2, 2, 1)
    again.group.propose([noop(3)])
    io.run_all()
    assert again.commits[0][0].frame.index == 3


def test_in_memory_entries_are_committed_at_once() -> None:
    recorder = Recorder(MemoryStore(), InlineIo())
    recorder.group.propose([noop("a"), noop("b", [b"x", b"y"])])
    assert [[entry.context for entry in commit] for commit in recorder.commits] == [["a", "b"]]
    assert recorder.commits[0][1].frame.body == b"xy"
    assert not recorder.group.in_flight


def test_in_memory_a_proposal_made_while_applying_follows_without_recursion() -> None:
    recorder = Recorder(MemoryStore(), InlineIo())
    order: list[object] = []

    def commit(entries: list[Committed]) -> None:
        (entry,) = entries
        number = entry.context
        assert isinstance(number, int)
        if number < 5000:  # far deeper than Python's stack
            recorder.group.propose([noop(number + 1)])
        order.append(number)

    recorder.commit = commit  # type: ignore[method-assign]
    recorder.group.propose([noop(1)])
    assert order == list(range(1, 5001))
    assert recorder.group.last_index == 5000


def test_in_memory_a_closed_log_fails_the_group() -> None:
    recorder = Recorder(MemoryStore(), InlineIo())
    recorder.store.close()
    with pytest.raises(Exception, match="closed"):
        recorder.group.propose([noop(1)])
    assert len(recorder.failures) == 1


async def test_writes_happen_in_a_thread_and_commits_in_the_event_loop(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    threads: list[str] = []

    class ThreadIo(Io):
        def submit(self, work, done, brief=False) -> None:  # type: ignore[no-untyped-def]
            def run() -> None:
                result = work()
                threads.append(threading.current_thread().name)
                loop.call_soon_threadsafe(done, result, None)

            threading.Thread(target=run, name="io").start()

    store = open_store(str(tmp_path), ThreadIo())
    committed = loop.create_future()

    def on_commit(entries: list[Committed]) -> None:
        assert threading.current_thread() is threading.main_thread()
        committed.set_result([entry.context for entry in entries])

    group = SoloGroup(store.log, ThreadIo(), Callbacks(on_commit, committed.set_exception))
    group.propose([noop("x")])
    assert await asyncio.wait_for(committed, 10) == ["x"]
    assert threads == ["io"]
    store.log.close()


# ---------------------------------------------------------------- the interface of a group with several members
def test_a_group_of_one_leads_from_its_start_and_is_its_own_membership(tmp_path: Path) -> None:
    store = open_store(str(tmp_path), InlineIo(), files=FaultyFiles())
    opened.append(store)
    roles: list[tuple[bool, str, int]] = []
    member = SoloGroups("A").member("S-1", str(tmp_path), Membership(("A", "B")))
    assert (member.membership, member.recovering) == (Membership(("A",)), False)
    group = member.join(
        store.log, InlineIo(), Callbacks(lambda entries: None, lambda error: None, lambda *role: roles.append(role))
    )
    assert roles == []
    group.start()
    assert roles == [(True, "A", 1)]
    group.propose([noop(1), noop(2)])
    assert (group.is_leader, group.leader, group.replicated) == (True, "A", False)
    assert group.progress() == [MemberProgress("A", 2, False, True, 0)]
    assert group.snapshot() == Install(1, 2, 1, Membership(("A",)))
    assert not group.transfer("B")
    indexes: list[int] = []
    group.read_index(indexes.append)
    assert indexes == [2]


def test_a_stopping_group_of_one_waits_for_its_last_write_without_commits(tmp_path: Path) -> None:
    recorder, io, _ = held(tmp_path)
    ended: list[bool] = []
    recorder.group.propose([noop(1)])
    recorder.group.stop(lambda: ended.append(True))
    assert not recorder.group.at_rest
    assert ended == []
    io.run_all()
    assert ended == [True]
    assert recorder.group.at_rest
    assert recorder.commits == []


def test_a_damaged_log_of_a_group_of_one_is_never_cut(tmp_path: Path) -> None:
    member = SoloGroups("A").member("S-1", str(tmp_path), Membership(()))
    with pytest.raises(LogError, match="no other node has a copy"):
        member.damaged()


def test_a_stream_in_memory_has_files_only_where_other_members_read_them(tmp_path: Path) -> None:
    alone = open_store(str(tmp_path / "alone"), InlineIo(), uid="u", memory=True, durable_through=None)
    assert isinstance(alone, MemoryStore)
    assert not (tmp_path / "alone").exists()
    replica = open_store(str(tmp_path / "replica"), InlineIo(), uid="u", memory=True, files=FaultyFiles())
    opened.append(replica)
    assert replica.directory == str(tmp_path / "replica")
    assert isinstance(replica.log.files, UnsyncedFiles)  # type: ignore[attr-defined]
