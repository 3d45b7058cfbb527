"""Tests of interest between nodes that join, leave and fall behind, compared with a model."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lakestream.net.interest.subscription import Subscription
from lakestream.net.peers.remote_node import MARK_EVERY, MAX_BACKLOG_BYTES, MAX_MARKS
from lakestream.net.peers.routes import CHANGES_IN_A_BUFFER, FEW
from lakestream.net.turn import SLICE_NS
from lakestream.ports import ListedMessages, Single
from lakestream.protocol.route_wire import (
    FlowMark,
    Hold,
    NoResponders,
    Record,
    RouteBatch,
    Routed,
    RouteInterest,
    Took,
    Within,
    decode,
    encode,
)
from lakestream.protocol.subjects import matches
from tests.unit.route_world import ONE, A, B, C, Client, Cluster, records

pytestmark = pytest.mark.unit


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(A, B, C)


# ---------------------------------------------------------------------- interest that JetStream watches
def test_push_consumers_see_clients_on_other_nodes(cluster: Cluster) -> None:
    seen: list[bool] = []
    bus = cluster[A].hub
    bus.watch_interest(b"deliver", b"", seen.append)
    there = cluster.client(B)
    wild, exact = there.subscribe(b"*"), there.subscribe(b"deliver")
    cluster.settle()
    assert bus.bound(b"deliver")
    assert bus.interest(b"deliver")
    assert not bus.interest(b"deliver", b"g")
    there.unsubscribe(exact)
    cluster.settle()
    assert not bus.bound(b"deliver")
    assert bus.interest(b"deliver")
    there.unsubscribe(wild)
    cluster.settle()
    assert not bus.interest(b"deliver")
    assert seen == [True, False]


def test_deliveries_wait_while_the_connection_to_the_receivers_node_is_congested(cluster: Cluster) -> None:
    cluster.client(B).subscribe(b"to")
    cluster.settle()
    bus, called = cluster[A].hub, list[int]()
    assert bus.writable(b"to")
    cluster[A].full.add(B)
    assert not bus.writable(b"to")
    bus.when_writable(b"to", lambda: called.append(1))
    cluster.settle()
    assert not called
    cluster[A].drain(B)
    cluster.settle()
    assert called == [1]


def test_deliveries_wait_while_the_receiver_itself_is_congested_on_its_node(cluster: Cluster) -> None:
    slow, fast = cluster.client(B), cluster.client(B)
    slow.subscribe(b"to")
    fast.subscribe(b"other")
    cluster.settle()
    bus, called = cluster[A].hub, list[int]()
    slow.congested = True
    bus.send(ListedMessages([Single(b"s", payload=b"1")], to=b"to"))
    bus.send(ListedMessages([Single(b"s", payload=b"2")], to=b"to"))
    cluster.settle()
    assert not bus.writable(b"to")
    assert bus.writable(b"other")
    assert [record for record in records(cluster, B, A) if type(record) is Hold] == [Hold(b"to", True)]
    bus.when_writable(b"to", lambda: called.append(1))
    cluster.settle()
    assert not called
    slow.drain()
    cluster.settle()
    assert called == [1]
    assert bus.writable(b"to")


@pytest.mark.parametrize("what", ["hold", "congestion", "marks"])
def test_a_wait_for_a_node_that_goes_ends(cluster: Cluster, what: str) -> None:
    slow = cluster.client(B)
    slow.subscribe(b"to")
    cluster.settle()
    bus, called = cluster[A].hub, list[int]()
    if what == "hold":
        slow.congested = True
        bus.send(ListedMessages([Single(b"s", payload=b"1")], to=b"to"))
        cluster.settle()
    elif what == "congestion":
        cluster[A].full.add(B)
    else:
        for _ in range(MAX_MARKS):
            bus.send(ListedMessages([Single(b"s", payload=b"x" * MARK_EVERY)], to=b"to"))
            cluster[A].turn()
    assert not bus.writable(b"to")
    bus.when_writable(b"to", lambda: called.append(1))
    cluster.disconnect(A, B)
    cluster[A].drain(B)
    cluster.settle()
    assert called == [1]


def test_a_publisher_to_a_congested_node_waits(cluster: Cluster) -> None:
    cluster.client(B).subscribe(b"x")
    cluster.client(C).subscribe(b"y")
    cluster.settle()
    here, hub = cluster.client(A), cluster[A].hub
    cluster[A].full.add(B)
    here.publish(b"x")
    assert hub.turn.overrun is None, "it was not known to be congested"
    cluster.settle()
    here.publish(b"y")
    assert hub.turn.overrun is None
    here.publish(b"x")
    assert hub.turn.overrun is cluster[A].routes.nodes[B].default
    hub.turn.overrun = None
    cluster[A].drain(B)
    here.publish(b"x")
    assert hub.turn.overrun is None


def test_what_is_under_way_to_a_node_is_bounded_though_its_connection_takes_all(cluster: Cluster) -> None:
    there = cluster.client(B)
    there.subscribe(b"to")
    cluster.settle()
    bus, called, sent = cluster[A].hub, list[int](), 0
    batch = [Single(b"s", payload=b"x" * 1000)] * 100
    while bus.writable(b"to"):
        bus.send(ListedMessages(batch, to=b"to"))
        cluster[A].turn()
        sent += 100
    assert MAX_MARKS * MARK_EVERY <= 1000 * sent < (MAX_MARKS + 1) * MARK_EVERY
    cluster.client(A).publish(b"to", b"x")
    assert bus.turn.overrun is cluster[A].routes.nodes[B].default, "publishers wait, too"
    bus.when_writable(b"to", lambda: called.append(1))
    cluster[A].turn()
    assert not called
    cluster.settle()
    assert called == [1]
    assert bus.writable(b"to")
    assert len(there.got) == sent + 1


def test_a_slow_receiver_gets_no_more_than_is_under_way(cluster: Cluster) -> None:
    slow = cluster.client(B)
    slow.subscribe(b"to")
    cluster.settle()
    slow.congested = True
    bus, sent = cluster[A].hub, 0
    for _ in range(1000):
        if bus.writable(b"to"):
            bus.send(ListedMessages([Single(b"s", payload=b"x" * 100_000)], to=b"to"))
            sent += 100_000
        cluster[A].turn()
        if sent > 3 * MARK_EVERY:  # the receiver's node reacts slowly
            cluster.arrive(A, B, most=1)
            cluster[B].turn()
            cluster.arrive(B, A, most=1)
    assert sent <= (MAX_MARKS + 1) * MARK_EVERY
    assert not bus.writable(b"to")
    slow.drain()
    cluster.settle()
    assert bus.writable(b"to")


# ---------------------------------------------------------------------- connections
def test_a_node_that_comes_learns_all_interest_and_a_node_that_goes_takes_its_interest_along() -> None:
    cluster = Cluster(A, B, connected=False)
    here, there = cluster.client(A), cluster.client(B)
    there.subscribe(b"x")
    there.subscribe(b"x", b"g", b"2")
    cluster.settle()
    assert not here.publish(b"x")
    cluster.connect(A, B)
    cluster.settle()
    assert here.publish(b"x")
    cluster.settle()
    assert len(there.got) == 2
    cluster.disconnect(A, B)
    assert not here.publish(b"x")
    assert len(cluster[A].hub.interest_graph) == 0
    cluster.connect(A, B)
    cluster.settle()
    assert here.publish(b"x")


def test_a_node_with_very_many_subscribers_comes_and_goes_over_several_turns() -> None:
    cluster = Cluster(A, B, connected=False)
    there, here = cluster.client(B), cluster.client(A)
    subs = [there.subscribe(b"_INBOX.%d.*" % number) for number in range(3 * CHANGES_IN_A_BUFFER + 10)]
    there.subscribe(b"work", b"g")
    cluster.connect(A, B)
    cluster.arrive(B, A)
    assert len(cluster[A].hub.interest_graph) == CHANGES_IN_A_BUFFER, "not all in one turn"
    there.unsubscribe(subs[-1])
    there.publish(b"nobody.yet")
    cluster.settle()
    assert len(cluster[A].hub.interest_graph) == len(subs)
    assert not here.publish(subs[-1].subject.replace(b"*", b"x"))
    assert all(here.publish(sub.subject.replace(b"*", b"x")) for sub in subs[:-1])
    cluster.settle()
    assert len(there.got) == len(subs) - 1
    cluster[A].look_ns = SLICE_NS // 100
    cluster.disconnect(A, B)
    assert len(cluster[A].hub.interest_graph) == len(subs) - 101, "as many as the slice of one turn has time for"
    assert not here.publish(b"work"), "queue groups go first"
    cluster.settle()
    assert len(cluster[A].hub.interest_graph) == 0


def test_messages_wait_behind_interest_that_is_still_taken_in() -> None:
    cluster = Cluster(A, B, connected=False)
    there, here = cluster.client(B), cluster.client(A)
    for number in range(2 * CHANGES_IN_A_BUFFER):
        there.subscribe(b"_INBOX.%d.*" % number)
    here.subscribe(b"x")
    cluster.connect(A, B)
    cluster.arrive(A, B)
    there.publish(b"x", b"1")
    cluster[B].turn()
    cluster.arrive(B, A, most=3)
    assert here.payloads == []
    there.publish(b"x", b"2")
    cluster.settle()
    assert here.payloads == [b"1", b"2"]


def test_a_node_that_sends_more_than_its_time_goes_on_in_later_turns() -> None:
    cluster = Cluster(A, B, accounts=[ONE])
    here, other = cluster.client(A), cluster.client(A, account=ONE)
    here.subscribe(b"x")
    other.subscribe(b"x")
    cluster.settle()
    cluster[A].look_ns = SLICE_NS // 4
    sent = [Routed(b"x", b"", b"", b"%d" % number, [b""]) for number in range(20 * FEW)]
    cluster[A].arrived(B, encode(sent))
    cluster[A].arrived(B, encode([Within(ONE), Routed(b"x", b"", b"", b"1", [b""])]))
    cluster[A].arrived(B, encode([Routed(b"x", b"", b"", b"last", [b""])]))
    assert 0 < len(here.payloads) < 10 * FEW, "others have their turn"
    assert not other.payloads, "in order"
    cluster.settle()
    assert here.payloads == [*(b"%d" % number for number in range(20 * FEW)), b"last"]
    assert other.payloads == [b"1"]


def test_calls_do_not_overtake_what_their_node_has_sent_before() -> None:
    cluster, called = Cluster(A, B), list[bytes]()
    here = cluster[A].routes
    here.behind(B, b"1", lambda name, payload: called.append(payload))
    assert called == [b"1"], "nothing waits"
    interest = [RouteInterest([(b"_INBOX.%d" % number, b"", 1)]) for number in range(CHANGES_IN_A_BUFFER + 1)]
    cluster[A].arrived(B, encode(interest))
    here.behind(B, b"2", lambda name, payload: called.append(payload))
    cluster[A].arrived(B, encode([RouteInterest([(b"late", b"", 1)])]))
    assert called == [b"1"]
    cluster.settle()
    assert called == [b"1", b"2"]
    assert cluster[A].hub.interest(b"late")


def test_a_node_of_which_too_much_waits_is_not_read_from_until_all_is_handled() -> None:
    cluster = Cluster(A, B)
    here = cluster.client(A)
    here.subscribe(b"x")
    cluster.settle()
    cluster[A].look_ns = 2 * SLICE_NS
    large = encode([Routed(b"x", b"", b"", bytes(MAX_BACKLOG_BYTES // FEW), [b""])] * (2 * FEW))
    cluster[A].arrived(B, large)
    assert not cluster[A].held
    cluster[A].arrived(B, large)
    assert cluster[A].held == {B}
    cluster.settle()
    assert len(here.payloads) == 4 * FEW
    assert not cluster[A].held


def test_interest_that_changes_during_a_handshake_is_sent_in_its_final_state(cluster: Cluster) -> None:
    there = cluster.client(B)
    stays, goes = there.subscribe(b"stays"), there.subscribe(b"goes")
    cluster.disconnect(A, B)
    there.unsubscribe(goes)
    there.subscribe(b"comes")
    cluster.connect(A, B)
    there.unsubscribe(stays)
    there.subscribe(b"stays")
    cluster.settle()
    interest = cluster[A].hub.interest
    assert (interest(b"stays"), interest(b"goes"), interest(b"comes")) == (True, False, True)


@pytest.mark.parametrize("what", ["interest", "message"])
def test_a_connection_that_breaks_while_it_is_written_to_takes_only_its_own_with_it(
    cluster: Cluster, what: str
) -> None:
    for name in (B, C):
        cluster.client(name).subscribe(b"x")
    cluster.settle()
    here = cluster.client(A)
    cluster[A].breaking.add(B)
    if what == "interest":
        here.subscribe(b"new")
    here.publish(b"x")
    cluster.settle()
    assert set(cluster[A].routes.nodes) == {C}
    assert cluster[C].hub.interest(b"new") == (what == "interest")
    assert sum(type(record) is Routed for record in records(cluster, A, C)) == 1


def test_buffers_of_a_node_that_is_not_connected_or_makes_no_sense_change_nothing(cluster: Cluster) -> None:
    cluster[A].arrived("stranger", encode([RouteInterest([(b"x", b"", 1)])]))
    for nonsense in (b"\xc1nonsense", b"\x91\x92\xa1w\xa1\xff", b"\x91" * 5000):
        with pytest.raises(msgspec.DecodeError):
            cluster[A].arrived(B, nonsense)
    assert not cluster[A].hub.interest(b"x")
    cluster.client(B).subscribe(b"x")
    cluster.settle()
    assert cluster[A].hub.interest(b"x")


def test_interest_added_and_removed_in_a_turn_is_sent_as_one_state(cluster: Cluster) -> None:
    client = cluster.client(A)
    before = len(cluster[A].sent)
    for _ in range(100):
        client.unsubscribe(client.subscribe(b"_INBOX.once"))
    kept = [client.subscribe(b"kept", b"g", b"%d" % number) for number in range(10)]
    cluster.settle()
    sent = [record for to, payload in cluster[A].sent[before:] if to == B for record in decode(payload)]
    assert len(sent) == 1
    assert isinstance(sent[0], RouteInterest)
    assert sorted(sent[0].changes) == [(b"_INBOX.once", b"", 0), (b"kept", b"g", 10)]
    assert kept


@given(
    st.lists(
        st.one_of(
            st.builds(Routed, st.binary(), st.binary(), st.binary(), st.binary(), st.none() | st.lists(st.binary())),
            st.builds(Hold, st.binary(), st.booleans()),
            st.builds(FlowMark),
            st.builds(Took),
            st.builds(Within, st.text()),
            st.builds(NoResponders, st.binary(), st.binary()),
            st.builds(RouteInterest, st.lists(st.tuples(st.binary(), st.binary(), st.integers(0, 1 << 32)))),
            st.builds(
                RouteBatch,
                st.binary(),
                st.binary(),
                st.lists(st.builds(Single, st.binary(), st.binary(), st.binary(), st.binary())),
            ),
        )
    )
)
def test_records_survive_the_wire(sent: list[Record]) -> None:
    assert decode(encode(sent)) == sent


# ---------------------------------------------------------------------- against a model
SUBJECTS = [b"a", b"a.b", b"a.c", b"b.c"]
FILTERS = [*SUBJECTS, b"*", b"a.*", b">", b"*.c"]


class Model(RuleBasedStateMachine):
    """Random test: clients on three nodes come, go and publish, connections break.

    Once interest has propagated, every plain subscriber in reach gets each message once, and of each queue group
    exactly one member.
    """

    @initialize()
    def begin(self) -> None:
        self.cluster = Cluster(A, B, C)
        self.up = {(A, B), (A, C), (B, C)}
        self.subs: list[tuple[Client, Subscription]] = []
        self.number = 0

    @rule(node=st.sampled_from([A, B, C]), filter_=st.sampled_from(FILTERS), queue=st.sampled_from([b"", b"g", b"h"]))
    def subscribe(self, node: str, filter_: bytes, queue: bytes) -> None:
        self.number += 1
        client = self.cluster.client(node)
        self.subs.append((client, client.subscribe(filter_, queue, b"%d" % self.number)))

    @rule(pick=st.randoms(use_true_random=False))
    def unsubscribe(self, pick: random.Random) -> None:
        if self.subs:
            client, sub = self.subs.pop(pick.randrange(len(self.subs)))
            client.unsubscribe(sub)

    @rule(node=st.sampled_from([A, B, C]))
    def turn(self, node: str) -> None:
        self.cluster[node].turn()

    @rule(pair=st.sampled_from([(A, B), (A, C), (B, C)]))
    def break_or_mend(self, pair: tuple[str, str]) -> None:
        if pair in self.up:
            self.up.remove(pair)
            self.cluster.disconnect(*pair)
        else:
            self.up.add(pair)
            self.cluster.connect(*pair)

    @rule(node=st.sampled_from([A, B, C]), subject=st.sampled_from(SUBJECTS), batch=st.booleans())
    def publish(self, node: str, subject: bytes, batch: bool) -> None:
        self.cluster.settle()
        for client, _ in self.subs:
            client.got.clear()
        hub = self.cluster[node].hub
        if batch:
            found = hub.send(
                ListedMessages([Single(b"shown", b"r", b"h", b"%d" % number) for number in range(3)], to=subject)
            )
        else:
            found = hub.send(Single(subject, b"r", b"h", b"0"))
        self.cluster.settle()
        shown = b"shown" if batch else subject
        expected = [(shown, b"r", b"h", b"%d" % number) for number in range(3 if batch else 1)]
        groups: dict[bytes, list[bytes]] = {}
        reached = False
        for client, sub in self.subs:
            near = client.node.name == node or tuple(sorted((client.node.name, node))) in self.up
            got = [message for _, message in client.got]
            if not (near and matches(sub.subject, subject)):
                assert got == []
                continue
            reached = True
            if sub.queue:
                groups.setdefault(sub.queue, []).extend(message[3] for message in got)
            else:
                assert got == expected
        assert found == reached
        for got_by_group in groups.values():
            assert sorted(got_by_group) == [message[3] for message in expected]

    @invariant()
    def remote_interest_is_what_is_connected(self) -> None:
        for node in self.cluster.nodes.values():
            names = {other for pair in self.up if node.name in pair for other in pair if other != node.name}
            assert set(node.routes.nodes) == names


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
