"""Tests of the choice of connections in every order of events between two nodes, of authorization, and of dialling."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.config.options import RouteUrl
from lakestream.net.peers.dialler import FIRST_DELAY_S, FORGET_AFTER, MAX_DELAY_S, REPORT_EVERY, DialTarget
from lakestream.net.peers.handshake import LinkTable
from lakestream.protocol import peer_wire as wire
from lakestream.protocol.peer_wire import Hello, NodeInfo, PeerReady, PeerRefused

pytestmark = pytest.mark.unit


@dataclass(eq=False)
class End:
    """One side's view of a connection."""

    node: Machine
    attempt: str = ""
    dialled: bool = False
    remote: NodeInfo | None = None
    alive: bool = True
    open: bool = True
    inbox: deque[Any] = field(default_factory=deque)
    other: End | None = None


class Machine:
    """Node with its table; queues replace the sockets of peers.py."""

    def __init__(self, name: str, start: int = 0) -> None:
        self.info = NodeInfo(name=name, server_id=f"{name}{start}", cluster="C")
        self.table: LinkTable[End] = LinkTable(lambda: self.info, lambda: False)
        self.violations: list[str] = []

    def hello(self, attempt: str) -> Hello:
        return Hello(wire.PROTOCOL, self.info, attempt, gone=self.table.gone())

    def dial(self, other: Machine, attempt: str) -> tuple[End, End]:
        mine, theirs = End(self, attempt, dialled=True), End(other)
        mine.other, theirs.other = theirs, mine
        theirs.inbox.append(self.hello(attempt))
        return mine, theirs

    def close(self, end: End, *, tell: bool = True) -> None:
        if end.open:
            end.open = False
            self.table.ended(end)
            if tell and end.other is not None:
                end.other.inbox.append(None)

    def take(self, end: End) -> None:
        """Handle the next event of a connection."""
        record = end.inbox.popleft()
        if not end.open:
            return
        if record is None or isinstance(record, PeerRefused):
            self.close(end)
        elif isinstance(record, PeerReady):
            if not self.table.ready(end):
                self.violations.append("READY on a connection that was given up")
        else:
            self._greeted(end, record)

    def _greeted(self, end: End, hello: Hello) -> None:
        assert end.other is not None
        end.remote, end.attempt = hello.node, hello.attempt
        verdict = self.table.accept(end, hello) if end.dialled else self.table.admit(end, hello, True)
        if verdict.refused is not None:
            if not end.dialled:
                end.other.inbox.append(verdict.refused)
            self.close(end)
            return
        for old in verdict.replaced:
            if self.table.up.get(hello.node.name) is old and old.attempt not in hello.gone:
                self.violations.append("a connection that was up was given up")
            self.close(old)
        end.other.inbox.append(PeerReady() if end.dialled else self.hello(end.attempt))


class World:
    """Two nodes and their connections."""

    def __init__(self) -> None:
        self.nodes = [Machine("a"), Machine("b")]
        self.ends: list[End] = []

    def dial(self, who: int) -> None:
        node, other = self.nodes[who], self.nodes[1 - who]
        self.ends += node.dial(other, f"{node.info.name}-{len(self.ends)}")

    def waiting(self) -> list[End]:
        return [end for end in self.ends if end.inbox]

    def settle(self) -> None:
        while ends := self.waiting():
            ends[0].node.take(ends[0])

    def up(self) -> list[str | None]:
        return [
            end.attempt if (end := node.table.up.get(other.info.name)) is not None else None
            for node, other in (self.nodes, self.nodes[::-1])
        ]

    def check(self) -> None:
        assert [node.violations for node in self.nodes] == [[], []]
        first, second = self.up()
        assert first == second


orders = st.lists(st.integers(0, 1 << 16), max_size=60)


@given(orders, st.integers(1, 3), st.integers(0, 3))
@settings(max_examples=400)
def test_two_nodes_that_dial_each_other_end_with_the_same_connection(order: list[int], a: int, b: int) -> None:
    world, dials = World(), [0] * a + [1] * b
    for number in order:
        choices: list[Any] = [*world.waiting(), *dials]
        if not choices:
            break
        chosen = choices[number % len(choices)]
        if isinstance(chosen, End):
            chosen.node.take(chosen)
        else:
            dials.remove(chosen)
            if not world.nodes[chosen].table.engaged("ba"[chosen]):
                world.dial(chosen)
    for who in dials:
        world.dial(who)
    world.settle()
    world.check()
    assert world.up()[0] is not None


@given(orders, st.lists(st.sampled_from(["cut", "half"]), max_size=3))
@settings(max_examples=400)
def test_after_lost_connections_both_sides_agree_again(order: list[int], losses: list[str]) -> None:
    """After lost connections both sides agree again.

    `cut`: both sides notice, each in its time. `half`: one side closes and the other is not notified.
    """
    world, left = World(), list(losses)
    world.dial(0)
    for number in order:
        choices: list[Any] = [*world.waiting(), *left, 0, 1]
        chosen = choices[number % len(choices)]
        if isinstance(chosen, End):
            chosen.node.take(chosen)
        elif isinstance(chosen, str):
            left.remove(chosen)
            end = world.ends[number % len(world.ends)]
            end.node.close(end, tell=chosen == "cut")
            end.inbox.clear()
        elif not world.nodes[chosen].table.engaged("ba"[chosen]) and len(world.ends) < 20:
            world.dial(chosen)
    world.settle()
    # A node without a connection dials again, and one whose connection is silent closes it in the end.
    for _ in range(4):
        for who in (0, 1):
            if not world.nodes[who].table.engaged("ba"[who]):
                world.dial(who)
        world.settle()
        if world.up()[0] == world.up()[1] is not None:
            return
        for end in world.ends:
            if end.other is not None and not end.other.open:
                end.node.close(end)
    raise AssertionError(f"connected by {world.up()}")


def end_of(machine: Machine, name: str, start: int = 0) -> tuple[End, Hello]:
    end = End(machine)
    other = NodeInfo(name=name, server_id=f"{name}{start}", cluster="C")
    end.remote, end.attempt = other, f"{name}{start}-attempt"
    return end, Hello(wire.PROTOCOL, other, end.attempt)


def connected(machine: Machine, name: str) -> End:
    end, hello = end_of(machine, name)
    assert machine.table.admit(end, hello, True).refused is None
    assert machine.table.ready(end)
    return end


def refusal(machine: Machine, hello: Hello, trusted: bool = True) -> str:
    verdict = machine.table.admit(End(machine), hello, trusted)
    return verdict.refused.code if verdict.refused is not None else ""


def test_a_node_of_another_cluster_is_refused_with_both_names() -> None:
    machine = Machine("a")
    _, hello = end_of(machine, "b")
    hello = msgspec.structs.replace(hello, node=msgspec.structs.replace(hello.node, cluster="D"))
    verdict = machine.table.admit(End(machine), hello, True)
    assert verdict.refused == PeerRefused(wire.WRONG_CLUSTER, 'cluster name "D" does not match "C" of a', "a")


def test_another_version_of_the_wire_is_refused() -> None:
    _, hello = end_of(machine := Machine("a"), "b")
    assert refusal(machine, msgspec.structs.replace(hello, protocol=2)) == wire.WRONG_PROTOCOL


def test_a_connection_to_oneself_is_noticed() -> None:
    machine = Machine("a")
    assert refusal(machine, machine.hello("x")) == wire.MYSELF


def test_another_node_with_this_nodes_name_is_refused() -> None:
    machine = Machine("a")
    assert refusal(machine, end_of(machine, "a", start=1)[1]) == wire.DUPLICATE_NAME


def test_wrong_credentials_are_refused_before_any_information_is_sent() -> None:
    machine = Machine("a")
    _, hello = end_of(machine, "b")
    wrong = msgspec.structs.replace(hello, node=msgspec.structs.replace(hello.node, cluster="D"))
    assert refusal(machine, wrong, trusted=False) == wire.WRONG_CREDENTIALS
    assert refusal(machine, hello) == ""


def test_a_second_living_node_of_a_name_is_refused() -> None:
    connected(machine := Machine("a"), "b")
    assert refusal(machine, end_of(machine, "b", start=1)[1]) == wire.DUPLICATE_NAME


def test_a_restarted_node_replaces_its_silent_former_self() -> None:
    old = connected(machine := Machine("a"), "b")
    old.alive = False
    end, hello = end_of(machine, "b", start=1)
    verdict = machine.table.admit(end, hello, True)
    assert (verdict.refused, verdict.replaced) == (None, (old,))


def test_a_connected_node_is_not_connected_twice() -> None:
    connected(machine := Machine("a"), "b")
    _, hello = end_of(machine, "b")
    assert refusal(machine, msgspec.structs.replace(hello, attempt="second")) == wire.ALREADY_CONNECTED


def test_a_node_that_has_seen_the_end_of_its_connection_is_let_in_again() -> None:
    old = connected(machine := Machine("a"), "b")
    end, hello = end_of(machine, "b")
    verdict = machine.table.admit(end, msgspec.structs.replace(hello, attempt="second", gone=(old.attempt,)), True)
    assert (verdict.refused, verdict.replaced) == (None, (old,))


def test_strangers_do_not_fill_the_list_of_ended_connections() -> None:
    machine = Machine("a")
    for number in range(3):
        end, hello = end_of(machine, "b")
        end.attempt = f"stranger {number}"
        wrong = msgspec.structs.replace(hello, node=msgspec.structs.replace(hello.node, cluster="D"))
        assert refusal(machine, wrong) == wire.WRONG_CLUSTER
        machine.close(end)
    assert machine.table.gone() == ()
    assert refusal(machine, msgspec.structs.replace(hello, attempt="x" * 100)) == wire.WRONG_PROTOCOL
    machine.close(connected(machine, "b"), tell=False)
    assert machine.table.gone() == ("b0-attempt",)


# ---------------------------------------------------------------------- dialling


def target(**fields: Any) -> DialTarget:
    return DialTarget(RouteUrl("h", 6222), **({"explicit": True} | fields))


def test_pauses_between_attempts_grow_to_their_limit_and_start_anew() -> None:
    one, random = target(), Random(1)
    pauses = []
    for _ in range(12):
        one.failed("refused")
        pauses.append(one.delay(random))
    assert pauses[0] <= FIRST_DELAY_S < pauses[4] < pauses[-1] <= MAX_DELAY_S
    assert min(pauses[-6:]) >= MAX_DELAY_S * 0.7
    one.reached("b")
    assert one.delay(random) <= FIRST_DELAY_S


def test_the_same_failure_is_reported_once_and_then_rarely() -> None:
    one = target()
    assert [one.failed("refused") for _ in range(5)] == [True, False, False, False, False]
    assert [one.failed("timeout"), one.failed("refused")] == [True, True]
    assert sum(one.failed("refused") for _ in range(REPORT_EVERY)) == 1


def test_a_configured_node_is_dialled_for_ever_and_a_learnt_one_is_forgotten() -> None:
    configured, learnt, impatient = target(), target(explicit=False), target(explicit=False, retries=2)
    for number in range(FORGET_AFTER + 1):
        assert not learnt.finished
        assert impatient.finished == (number > 2)
        for one in (configured, learnt, impatient):
            one.failed("refused")
    assert (configured.finished, learnt.finished) == (False, True)


def test_a_place_that_is_this_node_is_not_dialled_again() -> None:
    one = target()
    one.myself = True
    assert one.finished
