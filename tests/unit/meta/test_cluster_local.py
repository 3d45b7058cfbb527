"""Tests of the actions of a stream's leader on assignments of the meta group."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from lakestream.meta.assignments import AssignStream, ChangeStream, MetaState, RestoredStream
from lakestream.meta.local import LocalStreams
from lakestream.raft.core.messages import Membership
from lakestream.stream.core.config import StreamConfig

pytestmark = pytest.mark.unit


class Leader:
    """Replica of stream S on its leader, node a, which records its calls."""

    def __init__(self, config: StreamConfig) -> None:
        self.uid, self.account, self.leading, self.membership = "u", "$G", True, Membership(("a",))
        self.group = None
        self.stream = SimpleNamespace(propose=self._propose, hidden=False)
        self.proposed: list[StreamConfig] = []
        self.configure(config)

    def configure(self, config: StreamConfig) -> None:
        self.stream.config, self.stream.stored = config, msgspec.json.encode(config)

    def _propose(self, operation: Any) -> None:
        self.proposed.append(msgspec.json.decode(operation.config, type=StreamConfig))


class World:
    """Node a, which leads S with the newer of two configurations."""

    def __init__(self) -> None:
        self.old, self.new = StreamConfig(name="S", max_msgs=10), StreamConfig(name="S", max_msgs=1000)
        self.meta = SimpleNamespace(state=MetaState(), me="a", caught_up=True, lost_through=0)
        self.engine, unused = SimpleNamespace(), cast(Any, None)
        accounts = SimpleNamespace(of=lambda account: self.engine)
        self.local = LocalStreams(unused, cast(Any, accounts), cast(Any, self.meta), unused, unused, unused)
        self.replica = Leader(self.new)
        held = SimpleNamespace(by_uid={"u": self.replica}, hold=lambda *args, **kwargs: self.replica)
        self.local.replicas = cast(Any, held)
        self.apply(AssignStream("u", "$G", "S", msgspec.json.encode(self.old), ("a",), 1), 1)

    def apply(self, op: AssignStream | ChangeStream, index: int) -> None:
        self.meta.state.apply(op, index)

    def assign(self, config: StreamConfig) -> None:
        self.apply(ChangeStream("u", msgspec.json.encode(config), ("a",)), 2)


def test_a_leader_that_lags_behind_the_meta_group_takes_no_configuration_back() -> None:
    # It was down while S was updated, leads S again, and knows only the old limit, which would remove messages.
    world = World()
    world.meta.caught_up = False
    world.local.reconcile()
    assert world.replica.proposed == []
    world.assign(world.new)
    world.meta.caught_up = True
    world.local.reconcile()
    assert world.replica.proposed == []


def test_a_leader_that_has_caught_up_brings_what_is_assigned() -> None:
    world = World()
    world.replica.configure(world.old)
    world.meta.caught_up = False
    world.assign(world.new)
    world.local.reconcile()
    assert world.replica.proposed == []
    world.meta.caught_up = True
    world.local.reconcile()
    assert world.replica.proposed == [world.new]


def test_an_update_whose_answer_was_lost_reaches_the_stream_all_the_same() -> None:
    # The meta group has logged it, but its leader died before it could report that.
    world = World()
    world.replica.configure(world.old)
    world.local.updating.add("u")
    world.assign(world.new)
    world.local.reconcile()
    assert world.replica.proposed == []
    world.local.not_updated("u")
    assert world.replica.proposed == [world.new]


def test_a_stream_that_is_being_restored_is_shown_once_the_meta_group_says_that_it_is_whole() -> None:
    world, shown = World(), list[str]()
    world.meta.state = MetaState()  # this node was started and knows no assignment yet
    stream = SimpleNamespace(
        uid="u",
        account="$G",
        name="S",
        config=world.new,
        stored=msgspec.json.encode(world.new),
        hidden=True,
        applier=SimpleNamespace(restoring=True, created=True),
        propose=None,
        reveal=None,
    )
    stream.reveal = lambda: shown.append("revealed")
    world.replica.stream = stream
    engine: Any = world.engine
    engine.attach = lambda attached: shown.append("attached")
    world.local.opened(cast(Any, world.replica))
    assert shown == []
    world.apply(AssignStream("u", "$G", "S", msgspec.json.encode(world.new), ("a",), 1, "b"), 1)
    world.local.reconcile()
    world.local.opened(cast(Any, world.replica))
    assert shown == []
    assert stream.hidden
    world.meta.state.apply(RestoredStream("u"), 2)
    world.local.reconcile()
    assert shown == ["attached", "revealed"]


def test_a_stream_whose_log_says_nothing_of_a_restore_is_shown_before_its_assignment_is_known() -> None:
    world, shown = World(), list[str]()
    world.meta.state = MetaState()
    world.replica.stream = SimpleNamespace(uid="u", account="$G", name="S", hidden=False)
    world.replica.stream.applier = SimpleNamespace(restoring=False, created=True)
    engine: Any = world.engine
    engine.attach = lambda attached: shown.append("attached")
    world.local.opened(cast(Any, world.replica))
    assert shown == ["attached"]
