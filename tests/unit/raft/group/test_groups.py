"""Tests of many groups on one node: one connection, one timer, and independent failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lakestream.log.format.files import Brief, Files, Io
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.store.recovery import open_log
from lakestream.log.store.segment_log import LogOptions, SegmentLog
from lakestream.raft.core.messages import (
    Append,
    AppendReply,
    Envelope,
    LogEntry,
    Membership,
    Vote,
    VoteReply,
    decode_envelopes,
    encode_envelopes,
)
from lakestream.raft.core.ready import ChangePending, NotLeader, RaftOptions
from lakestream.raft.group.disk import QUICK_JOBS
from lakestream.raft.group.group import Callbacks, Committed, Group, Proposal
from lakestream.raft.group.groups import BUFFER_BYTES, MAX_EARLY, RaftGroups
from lakestream.raft.group.hard_state import StateFile
from lakestream.raft.group.ports import Channel
from tests.faults.files import FaultyFiles
from tests.unit.group_world import GROUP, Make, named
from tests.unit.logkit import Clock, HeldIo, QuickFiles, flip

pytestmark = pytest.mark.unit


class Desk:
    """Clock, peers and threads of one node, which only record their calls."""

    me = "A"

    def __init__(self) -> None:
        self.sent: list[tuple[str, list[Envelope]]] = []
        self.soon: list[Callable[[], None]] = []
        self.timers: list[Callable[[], None]] = []
        self.io = HeldIo()

    def now(self) -> int:
        return 1

    def steady(self) -> int:
        return self.now()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def call_later(self, delay_ns: int, callback: Callable[[], None]) -> Desk:
        self.timers.append(callback)
        return self

    def cancel(self) -> None:
        self.timers.clear()

    def send(self, node: str, channel: Channel, payload: bytes) -> bool:
        assert channel is Channel.RAFT
        self.sent.append((node, decode_envelopes(payload)))
        return True

    def receive(self, channel: Channel, handler: Callable[[str, bytes], None]) -> None:
        self.handler = handler

    def watch(self, callback: Callable[[str, bool], None]) -> None:
        self.watcher = callback

    def groups(self, **more: Any) -> RaftGroups:
        groups = RaftGroups(self, self.io, self, random=Random(1), files=QuickFiles(), **more)  # type: ignore[arg-type]
        groups.start()
        return groups

    def tick(self) -> None:
        timers, self.timers = self.timers, []
        for timer in timers:
            timer()

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()
        self.io.run_all()


_logs: list[SegmentLog] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    for log in _logs:
        log.close()
    _logs.clear()


def begin(desk: Desk, groups: RaftGroups, directory: Path, group: str) -> Group:
    member = groups.member(group, str(directory / group), Membership(("A", "B", "C")))
    _logs.append(open_log(str(directory / group / "log"), QuickFiles(), LogOptions(), Clock()))
    made = member.join(_logs[-1], desk.io, Callbacks(lambda entries: None, lambda error: None))
    made.start()
    return made


def test_what_all_groups_say_to_a_node_in_a_turn_is_one_buffer(tmp_path: Path) -> None:
    desk = Desk()
    groups = desk.groups()
    for number in range(5):
        begin(desk, groups, tmp_path, f"S-{number}")
    desk.turn()
    for _ in range(25):
        desk.tick()
        desk.turn()
    assert {node for node, _ in desk.sent} == {"B", "C"}
    by_turn = [envelopes for node, envelopes in desk.sent if node == "B"]
    assert sum(map(len, by_turn)) >= 5
    assert any(len(envelopes) > 1 for envelopes in by_turn)
    assert {envelope.group for envelopes in by_turn for envelope in envelopes} == {f"S-{n}" for n in range(5)}


def test_entries_of_many_groups_are_written_together_and_one_that_fails_fails_alone(tmp_path: Path) -> None:
    desk = Desk()
    groups = desk.groups()
    made = [begin(desk, groups, tmp_path, f"S-{number}") for number in range(6)]
    empty = Append(1, 0, 0, 0)
    desk.handler("B", encode_envelopes([Envelope(each.group, empty) for each in made]))
    desk.turn()
    _logs[3].close()  # the log of this group fails now
    desk.sent.clear()
    entry = Append(1, 0, 0, 0, [LogEntry(int(Kind.NOOP), 1, 1, 0, b"")])
    desk.handler("B", encode_envelopes([Envelope(each.group, entry) for each in made]))
    assert 1 <= len(desk.io.waiting) <= QUICK_JOBS
    desk.turn()
    assert [each.group for each in made if each.failed is not None] == ["S-3"]
    said = [envelope for node, envelopes in desk.sent if node == "B" for envelope in envelopes]
    acked = {each.group for each in said if isinstance(each.message, AppendReply) and each.message.match == 1}
    assert acked == {each.group for each in made} - {"S-3"}


def leading(desk: Desk, groups: RaftGroups, directory: Path, group: str) -> tuple[Group, SegmentLog]:
    """Return a group that has this node alone, and has elected it, and its log."""
    member = groups.member(group, str(directory / group), Membership(("A",)))
    log = open_log(str(directory / group / "log"), QuickFiles(), LogOptions(), Clock())
    _logs.append(log)
    made = member.join(log, desk.io, Callbacks(lambda entries: None, lambda error: None))
    made.start()
    while not made.is_leader or made.in_flight:
        desk.turn()
    return made, log


def test_old_and_small_segments_are_sealed_one_in_a_tick_and_asked_ones_at_once(tmp_path: Path) -> None:
    desk = Desk()
    groups = desk.groups()
    made = [leading(desk, groups, tmp_path, f"S-{number}") for number in range(5)]
    for _, log in made[:4]:
        log.seal_due = lambda now_ns, log=log: now_ns > 0 and not log.sealed  # type: ignore[misc]  # it is old
    asked = made[4][1]
    asked.seal_due = lambda now_ns: not asked.sealed
    for group, _ in made:
        group.propose([Proposal(Kind.MESSAGES, b"x", 1, None)])
    for _ in range(5):
        desk.turn()
    assert [len(log.sealed) for _, log in made] == [0, 0, 0, 0, 1]
    for sealed in range(1, 5):
        desk.tick()
        for _ in range(5):
            desk.turn()
        assert sum(len(log.sealed) for _, log in made[:4]) == sealed


def test_long_buffers_are_cut(tmp_path: Path) -> None:
    desk = Desk()
    groups = desk.groups()
    big = Append(1, 0, 0, 0, [LogEntry(1, 1, 1, 1, b"x" * (BUFFER_BYTES // 2))])
    for _ in range(5):
        groups._send("S-1", "B", big)
    groups._send("S-1", "C", Append(1, 0, 0, 0))
    groups._flush()
    assert [(node, len(envelopes)) for node, envelopes in desk.sent] == [("B", 2), ("B", 2), ("B", 1), ("C", 1)]


@pytest.mark.parametrize("text", [b"\xff", b"\x91" * 5000], ids=["no UTF-8", "deep"])
def test_a_buffer_with_odd_text_or_nesting_is_counted_as_refused(text: bytes) -> None:
    desk = Desk()
    groups = desk.groups()
    desk.handler("B", b"\x91\x92\xa1" + text)
    assert groups.refused == 1


def test_messages_for_groups_that_are_not_here_are_counted(tmp_path: Path) -> None:
    desk = Desk()
    groups = desk.groups()
    desk.handler("B", encode_envelopes([Envelope("S-9", Append(1, 0, 0, 0))]))
    desk.handler("B", b"\xff nonsense")
    assert (groups.unknown, groups.refused) == (1, 1)
    made = begin(desk, groups, tmp_path, "S-9")
    made.stop()
    desk.handler("B", encode_envelopes([Envelope("S-9", Append(1, 0, 0, 0))]))
    assert groups.unknown == 2


def test_a_vote_asked_for_before_the_group_is_here_is_answered_when_it_is(tmp_path: Path) -> None:
    desk = Desk()
    groups = desk.groups()
    desk.handler("B", encode_envelopes([Envelope("S-1", Vote(1, 0, 0, pre=True))]))
    for number in range(2000):
        desk.handler("C", encode_envelopes([Envelope(f"S-gone-{number}", Vote(1, 0, 0))]))
    desk.handler("B", encode_envelopes([Envelope("S-2", Vote(1, 0, 0, pre=True))]))
    assert len(groups._early) == MAX_EARLY
    begin(desk, groups, tmp_path, "S-2")
    desk.turn()
    desk.turn()
    [(node, [envelope])] = desk.sent
    assert (node, envelope.group) == ("B", "S-2")
    assert isinstance(envelope.message, VoteReply)
    assert envelope.message.granted


def test_the_error_of_one_owner_ends_its_group_and_no_other(make: Make, tmp_path: Path) -> None:
    world = make()
    leader = world.elect()
    name = next(name for name in world.nodes if name != leader.name)
    errors: list[tuple[str, Exception]] = []
    node = world.nodes[name]
    node.groups.on_error = lambda group, error: errors.append((group, error))

    def broken(entries: list[Committed]) -> None:
        raise ValueError("cannot be applied")

    node.callbacks.on_commit = broken
    leader.publish("x")
    leader.publish("y")
    world.ticks(2)
    assert [(group, str(error)) for group, error in errors] == [(GROUP, "cannot be applied")]
    assert node.group.failed is not None
    assert leader.messages == named("x", "y")


def test_nothing_else_is_handed_out_or_read_between_two_steps_of_an_owner(make: Make) -> None:
    world = make()
    leader = world.elect()
    log, taken = leader.callbacks.on_commit, list[str]()

    def steps(entries: list[Committed]) -> Iterator[None]:
        taken.append("first")
        yield
        taken.append("last")
        log(entries)

    leader.callbacks.on_commit = steps
    leader.propose("x")
    while not taken:
        leader.turn()
        world.run(work=False)
        for node in world.nodes.values():
            if node is not leader:
                node.turn()
    assert leader.group.in_flight
    assert leader.messages == []
    reads: list[int] = []
    leader.group.read_index(reads.append)
    world.run(work=False)
    assert (taken, reads) == (["first"], [])
    leader.callbacks.on_commit = log
    world.run()
    assert taken == ["first", "last"]
    assert reads == [leader.store.applied]
    assert not leader.group.in_flight
    assert leader.messages == named("x")


def test_a_leader_that_is_replaced_between_two_steps_serves_again_after_the_last(make: Make) -> None:
    world = make()
    leader = world.elect()
    log, left = leader.callbacks.on_commit, ["first", "second", "third"]

    def steps(entries: list[Committed]) -> Iterator[None]:
        while left:
            left.pop()
            yield
        log(entries)

    leader.callbacks.on_commit = steps
    leader.propose("x")
    while len(left) == 3:
        leader.turn()
        world.run(work=False)
        for node in world.nodes.values():
            if node is not leader:
                node.turn()
    leader.callbacks.on_commit = log
    leader.group.step_down()
    assert not leader.leads
    leader.group.campaign()
    world.run(work=False)
    assert not leader.leads
    world.run()
    world.lead(leader.name)
    assert left == []
    leader.publish("y")
    assert leader.messages == named("x", "y")


def test_a_message_that_a_group_cannot_cope_with_ends_it_and_no_other(make: Make) -> None:
    world = make()
    leader = world.elect()
    name = next(name for name in world.nodes if name != leader.name)
    errors: list[tuple[str, str]] = []
    node = world.nodes[name]
    node.groups.on_error = lambda group, error: errors.append((group, str(error)))

    def broken(sender: str, message: object) -> None:
        raise AssertionError("cannot be")

    node.group._core.step = broken  # type: ignore[method-assign]
    leader.publish("x")
    assert errors[0] == (GROUP, "cannot be")
    assert node.group.failed is not None
    assert leader.messages == named("x")


def test_a_stopped_group_says_when_its_directory_is_free(tmp_path: Path) -> None:
    desk = Desk()
    groups = desk.groups()
    made = begin(desk, groups, tmp_path, "S-1")
    assert desk.io.waiting  # its file is being written
    free: list[bool] = []
    made.stop(lambda: free.append(True))
    assert free == []
    desk.io.run_all()
    assert free == [True]
    made.stop(lambda: free.append(True))
    assert free == [True, True]
    begin(desk, groups, tmp_path, "S-1").stop()


def test_a_damaged_file_is_refused_or_begun_anew_as_lost(make: Make) -> None:
    from lakestream.log.format.errors import CorruptLog

    world = make()
    leader = world.elect()
    leader.publish("x")
    name = next(name for name in world.nodes if name != leader.name)
    directory = world.nodes[name].directory
    world.kill(name)
    for slot in (0, 16 << 10):
        flip(f"{directory}/raft", slot + 22)
    with pytest.raises(CorruptLog, match="slots"):
        world.start(name)
    node = world.start(name, lost=True)
    assert node.replayed == 0  # the commit index of its entries is not known either
    world.ticks(30)
    assert node.messages == named("x")
    assert not node.group._core.recovering


def test_proposals_beyond_the_limit_wait_for_room(make: Make) -> None:
    world = make(options=RaftOptions(max_uncommitted_bytes=1000))
    leader = world.elect()
    world.isolate(leader.name)
    turns = 0
    while not leader.group.in_flight:
        leader.publish(turns, size=400)
        turns += 1
    assert turns < 6
    woken = leader.woken
    world.ticks(2)
    assert leader.woken == woken  # it is not notified to continue
    world.heal()
    world.ticks(2)
    assert leader.contexts == list(range(turns))
    assert not leader.group.in_flight


def test_what_waited_for_room_is_lost_with_the_leadership(make: Make) -> None:
    world = make(options=RaftOptions(max_uncommitted_bytes=1000))
    leader = world.elect()
    world.isolate(leader.name)
    turns = 0
    while not leader.group.in_flight:
        leader.publish(turns, size=400)
        turns += 1
    world.ticks(30)
    assert leader.lost == list(range(turns))
    assert not leader.leads
    with pytest.raises(NotLeader):
        leader.propose("more")


def test_one_change_of_membership_at_a_time(make: Make) -> None:
    world = make()
    leader = world.elect()
    world.isolate(leader.name)
    done: list[bool] = []
    leader.group.propose_membership(Membership(("A", "B", "C"), ("D",)), done.append)
    with pytest.raises(ChangePending):
        leader.group.propose_membership(Membership(("A", "B", "C", "D")), done.append)
    world.heal()
    world.ticks(2)
    with pytest.raises(ValueError, match="voter"):
        leader.group.propose_membership(Membership(("A",)), done.append)
    assert done == [True]


def test_relaxed_logs_count_as_written_without_a_sync(make: Make) -> None:
    world = make(sync_always=False)
    leader = world.elect()
    world.ticks(2)
    before = [node.files.calls["sync"] for node in world.nodes.values()]  # type: ignore[attr-defined]
    for turn in range(10):
        leader.publish(turn)
    assert [node.files.calls["sync"] for node in world.nodes.values()] == before  # type: ignore[attr-defined]
    assert leader.contexts == list(range(10))
    leader.group.sync()
    world.run()
    assert leader.files.calls["sync"] > before[list(world.nodes).index(leader.name)]  # type: ignore[attr-defined]
    kept = StateFile(QuickFiles(), leader.directory).read()
    assert kept is not None
    assert kept.durable == 0  # after a power loss the log may end anywhere


def test_a_log_without_a_store_loses_what_a_snapshot_holds(make: Make) -> None:
    world = make("A", seal_bytes=1000)
    node = world.nodes["A"]
    world.run()
    for turn in range(12):
        node.publish(turn, size=400)
    assert len(node.sealed) >= 4
    done: list[BaseException | None] = []
    node.group.compact_through(node.sealed[2][1], done.append)
    world.run()
    assert done == [None]
    assert node.log.first_index == node.sealed[0][0] > 1
    node.publish("more")
    assert node.contexts[-1] == "more"


def test_the_commit_that_is_kept_lets_a_killed_member_start_where_it_was(make: Make) -> None:
    world = make()
    leader = world.elect()
    for turn in range(10):
        leader.publish(turn)
    world.kill("A")
    node = world.start("A")
    assert node.replayed >= 9


async def test_members_with_real_threads(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    handlers: dict[str, Callable[[str, bytes], None]] = {}

    class Threads(Io):
        def submit(
            self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None], brief: Brief = Brief.NO
        ) -> None:
            def run() -> None:
                try:
                    result = work()
                except BaseException as error:
                    loop.call_soon_threadsafe(done, None, error)
                else:
                    loop.call_soon_threadsafe(done, result, None)

            loop.run_in_executor(None, run)

    class Near:
        """Peers over the event loop, and a clock that runs ten times too fast."""

        def __init__(self, me: str) -> None:
            self.me = me

        def send(self, node: str, channel: Channel, payload: bytes) -> bool:
            loop.call_soon(lambda: handlers[node](self.me, payload) if node in handlers else None)
            return True

        def receive(self, channel: Channel, handler: Callable[[str, bytes], None]) -> None:
            handlers[self.me] = handler

        def watch(self, callback: Callable[[str, bool], None]) -> None: ...

        def call_soon(self, callback: Callable[[], None]) -> None:
            loop.call_soon(callback)

        def call_later(self, delay_ns: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
            return loop.call_later(delay_ns / 1e10, callback)

    applied: dict[str, list[Frame]] = {name: [] for name in "ABC"}
    leaders: asyncio.Queue[str] = asyncio.Queue()
    made: dict[str, Group] = {}
    nodes: list[RaftGroups] = []
    logs = []
    acked = 0
    finished = loop.create_future()

    def start(name: str) -> None:
        near = Near(name)
        groups = RaftGroups(near, Threads(), near, random=Random(name))  # type: ignore[arg-type]
        member = groups.member("S-1", str(tmp_path / name), Membership(("A", "B", "C")))
        options = LogOptions(seal_bytes=20_000)
        log = open_log(str(tmp_path / name / "log"), Files(), options, Clock(), durable_through=member.durable_through)
        logs.append(log)

        def on_commit(entries: list[Committed]) -> None:
            nonlocal acked
            applied[name] += [entry.frame for entry in entries]
            acked += sum(entry.context is not None for entry in entries)
            if acked < 600 and made[name].is_leader and not made[name].in_flight:
                made[name].propose([Proposal(Kind.OPERATION, b"x" * 100, 0, number) for number in range(20)])
            elif acked >= 600 and not finished.done():
                finished.set_result(None)

        told = Callbacks(
            on_commit,
            lambda error: finished.set_exception(error),
            lambda leads, leader, term: leaders.put_nowait(name) if leads else None,
        )
        group = member.join(log, Threads(), told)
        made[name] = group
        nodes.append(groups)
        groups.start()
        group.start()

    for name in "ABC":
        start(name)
    await asyncio.wait_for(leaders.get(), 30)
    await asyncio.wait_for(finished, 30)
    while len({len(frames) for frames in applied.values()}) > 1:
        await asyncio.sleep(0.02)
    for group in made.values():
        free = loop.create_future()
        group.stop(lambda free=free: free.set_result(None))
        await free
    for groups in nodes:
        groups.stop()
    assert len({tuple((f.index, f.term, f.body) for f in frames) for frames in applied.values()}) == 1
    assert [[(s.first_index, s.last_index) for s in log.sealed] for log in logs] == [
        [(s.first_index, s.last_index) for s in logs[0].sealed]
    ] * 3
    assert logs[0].sealed
    for log in logs:
        log.close()


def test_files_that_fail_at_once_leave_nothing_undone(tmp_path: Path) -> None:
    desk = Desk()
    groups = desk.groups()
    files = FaultyFiles()
    groups._files = files
    member = groups.member("S-1", str(tmp_path / "S-1"), Membership(("A", "B", "C")))
    log = open_log(str(tmp_path / "S-1" / "log"), files, LogOptions(), Clock())
    failures: list[Exception] = []
    group = member.join(log, desk.io, Callbacks(lambda entries: None, failures.append))
    files.fail = "create"
    group.start()
    desk.turn()
    assert len(failures) == 1
    assert log.failed is not None
    for _ in range(50):
        desk.tick()
        desk.turn()
    assert desk.sent == []  # a member that cannot store a vote gives none
