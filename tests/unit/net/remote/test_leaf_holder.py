"""Tests of the choice of the cluster's node that holds a leaf connection."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakestream.logging import Logger
from lakestream.net.hub import Hub
from lakestream.net.interest.subscription import Subscription
from lakestream.net.remote.leaf_link import Holder
from lakestream.net.turn import Turn
from lakestream.ports import Clock

pytestmark = pytest.mark.unit


class Looks:
    """Clock whose callbacks the test calls; implements the part of one that `Holder` uses."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.now_ns = 0

    def now(self) -> int:
        return self.now_ns

    def steady(self) -> int:
        return self.now()

    def call_later(self, delay_ns: int, callback: Callable[[], None]) -> Looks:
        self.waiting.append(callback)
        return self

    def cancel(self) -> None:
        self.waiting.clear()


class Cluster:
    """Nodes that see each other's subscriptions at once while they are connected."""

    def __init__(self, *names: str) -> None:
        self.hub = Hub(Turn(lambda call: call()), Logger())
        self.up = set[str]()
        self.holders: dict[str, Holder] = {}
        self.clocks: dict[str, Looks] = {}
        self.said: dict[str, list[bool]] = {}
        self.cut_off = set[str]()
        for name in names:
            self.start(name)

    def start(self, name: str) -> None:
        clock: Looks = Looks()
        self.clocks[name], self.said[name] = clock, []
        self.up.add(name)

        def others() -> list[str]:
            return sorted(self.up - {name}) if name in self.up else []

        as_clock: Clock = clock  # type: ignore[assignment]
        said = self.said[name].append
        self.holders[name] = Holder(self.hub, "$G hub", name, others, as_clock, said, lambda: name not in self.cut_off)
        self.holders[name].start()

    def kill(self, name: str) -> None:
        self.up.discard(name)
        self.holders.pop(name).stop()

    def look(self, after_s: float = 0.0) -> list[str]:
        """Call the timers of all nodes `after_s` later; return the holders then."""
        for name in sorted(self.holders, reverse=True):
            self.clocks[name].now_ns += int(after_s * 1e9)
            waiting, self.clocks[name].waiting = self.clocks[name].waiting, []
            for callback in waiting:
                callback()
        return [name for name, holder in self.holders.items() if holder.holds]


def test_one_node_holds_it_and_keeps_it() -> None:
    cluster = Cluster("b", "c")
    assert cluster.look() == ["b"]
    assert [holder.is_elsewhere for holder in cluster.holders.values()] == [False, True]
    cluster.start("a")  # a node with a lower name does not take over
    assert cluster.look() == ["b"]
    assert cluster.look() == ["b"]
    cluster.kill("b")
    assert not any(holder.is_elsewhere for holder in cluster.holders.values())
    assert cluster.look() == ["a"]
    assert cluster.said == {"a": [True], "b": [True], "c": []}


def test_of_two_that_hold_it_one_gives_it_up() -> None:
    cluster = Cluster("a", "b")
    cluster.up.discard("b")  # the nodes are disconnected from each other
    assert cluster.look() == ["a", "b"]
    cluster.up.add("b")
    assert cluster.look() == ["a"]
    assert cluster.said["b"] == [True, False]


def test_a_client_subscribed_to_everything_counts_as_no_node() -> None:
    cluster = Cluster("a", "b")
    sink = next(iter(cluster.hub.interest_graph.subscriptions())).sink
    cluster.hub.join(Subscription(sink, b">", b"", b"1"))
    assert cluster.look() == ["a"]


def test_without_a_cluster_there_is_nothing_to_wait_for() -> None:
    clock, said = Looks(), list[bool]()
    as_clock: Clock = clock  # type: ignore[assignment]
    hub = Hub(Turn(lambda call: call()), Logger())
    holder = Holder(hub, "$G hub", "a", None, as_clock, said.append, lambda: False)
    holder.start()
    assert (said, clock.waiting, holder.holds) == ([True], [], True)
    holder.stop()
    assert not len(hub.interest_graph)


def test_a_node_that_can_not_connect_lets_others_try() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.cut_off = {"a"}
    assert cluster.look() == ["a"]
    assert cluster.look(after_s=9) == ["a"]
    assert cluster.look(after_s=1) == []
    assert cluster.look() == ["b"]
    for _ in range(10):  # a connected node keeps it, even when the others can connect again
        assert cluster.look(after_s=9) == ["b"]
    cluster.kill("b")
    assert cluster.look() == ["a"]
    # No node can connect: each tries in its turn.
    cluster.cut_off = {"a", "c"}
    seen = {tuple(cluster.look(after_s=5)) for _ in range(30)}
    assert {("a",), ("c",)} <= seen
    cluster.kill("c")
    cluster.look(after_s=31)
    assert cluster.look() == cluster.look(after_s=31) == ["a"]  # a single node keeps trying
