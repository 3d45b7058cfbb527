"""Tests of the test harness: links follow their rules, and the audit finds violations."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from itertools import combinations, islice

import pytest

from tests.chaos.audit import Stored
from tests.cluster.links import Direction, Network
from tests.cluster.load import Ack, Publisher, compare, payload
from tests.cluster.nemesis import APART, CLASSES, FAULTS, possible, together
from tests.cluster.nodes import free_ports
from tests.servers import Kind

pytestmark = [pytest.mark.cluster, pytest.mark.smoke]

WAIT_S = 5.0
NOTHING_S = 0.2


class Pair:
    """Two sockets connected by a link."""

    def __init__(self) -> None:
        self.network = Network()
        self.there, self.back = self.network.direction(), self.network.direction()
        self._listener = socket.create_server(("127.0.0.1", 0))
        (port,) = free_ports(1)
        self.network.connect(port, self._listener.getsockname(), self.there, self.back)
        self.near = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self.far, _ = self._listener.accept()
        self.far.settimeout(WAIT_S)

    def close(self) -> None:
        self.network.close()
        for each in (self.near, self.far, self._listener):
            each.close()


def test_no_port_is_given_away_twice() -> None:
    """No port is handed out twice, even while its node is not listening yet."""
    ports = [port for _ in range(2_000) for port in free_ports(1)]
    assert len(set(ports)) == len(ports)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def test_all_faults_are_drawn_together_and_none_beside_one_that_it_has_to_be_apart_from() -> None:
    of = {fault: name for name, faults in CLASSES.items() for fault in faults}
    names = possible(Kind.OURS, 5, lake=True, power=True, encrypted=True)
    assert set(names) == set(FAULTS) == set(of)
    drawn = [[step.fault for step in steps] for steps in islice(together(7, names, 5, most=4), 300)]
    assert {fault for faults in drawn for fault in faults} == set(names)
    assert {len(faults) for faults in drawn} == {2, 3, 4}
    for faults in drawn:
        for one, other in combinations(faults, 2):
            pairs = {
                frozenset(pair) for pair in ((one, other), (one, of[other]), (of[one], other), (of[one], of[other]))
            }
            assert not pairs & set(APART), faults
            assert of[one] != of[other], faults


def silent(receiver: socket.socket) -> bool:
    """Return True if nothing arrives for a while."""
    receiver.settimeout(NOTHING_S)
    try:
        receiver.recv(1)
    except TimeoutError:
        return True
    finally:
        receiver.settimeout(WAIT_S)
    return False


def test_a_link_carries_both_ways(pair: Pair) -> None:
    pair.near.sendall(b"there")
    assert pair.far.recv(100) == b"there"
    pair.far.sendall(b"back")
    assert pair.near.recv(100) == b"back"


def test_what_is_sent_over_a_cut_link_arrives_after_the_healing(pair: Pair) -> None:
    pair.network.cut(pair.there)
    pair.near.sendall(b"held")
    assert silent(pair.far)
    pair.far.sendall(b"the other direction")
    assert pair.near.recv(100) == b"the other direction"
    pair.network.restore(pair.there)
    assert pair.far.recv(100) == b"held"


def test_the_end_of_a_connection_is_not_seen_over_a_cut_link(pair: Pair) -> None:
    pair.network.cut(pair.there)
    pair.near.close()
    assert silent(pair.far)
    pair.network.restore(pair.there)
    assert pair.far.recv(1) == b""


def test_a_slow_link_is_late_and_keeps_order(pair: Pair) -> None:
    pair.network.slow(pair.there, delay_s=0.2)
    began = time.monotonic()
    pair.near.sendall(b"1")
    threading.Event().wait(0.02)
    pair.near.sendall(b"2")
    assert pair.far.recv(1) + pair.far.recv(1) == b"12"
    assert 0.2 <= time.monotonic() - began < WAIT_S


@pytest.mark.parametrize("which", ["there", "back"])
def test_a_reset_ends_both_ends(pair: Pair, which: str) -> None:
    direction: Direction = getattr(pair, which)
    pair.near.sendall(b"whole")
    assert pair.far.recv(100) == b"whole"
    pair.network.reset(direction)
    for end in (pair.near, pair.far):
        try:
            assert end.recv(1) == b""
        except ConnectionError:
            continue


def _world() -> tuple[Publisher, list[Stored]]:
    """Return a publisher with three acks, and a stream that agrees with them."""
    publisher = Publisher("p", True, 1.0)
    publisher.acks = [Ack(number, number, 0.0, 0.0, 1) for number in (1, 2, 3)]
    return publisher, [Stored(number, "load.p", f"p-{number}", payload("p", number)) for number in (1, 2, 3)]


def test_the_audit_is_content_with_what_was_promised() -> None:
    publisher, stored = _world()
    compare([publisher], stored, "here")
    compare([publisher], [*stored, Stored(4, "load.p", "p-4", payload("p", 4))], "here")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda s: s[:2], "lost"),
        (lambda s: [s[0], s[2]], "holes"),
        (lambda s: [*s, s[0]._replace(seq=4)], "twice"),
        (lambda s: [s[0], s[1]._replace(data=b"x"), s[2]], "changed"),
        (lambda s: [s[1]._replace(seq=1), s[0]._replace(seq=2), s[2]], "another sequence"),
    ],
)
def test_the_audit_finds(wrong: object, said: str) -> None:
    publisher, stored = _world()
    assert callable(wrong)
    with pytest.raises(AssertionError, match=said):
        compare([publisher], wrong(stored), "here")


def test_the_audit_finds_what_is_out_of_order() -> None:
    publisher, stored = _world()
    publisher.acks = []
    with pytest.raises(AssertionError, match="out of order"):
        compare([publisher], [stored[1]._replace(seq=1), stored[0]._replace(seq=2)], "here")
