"""Interest and messages between nodes: what reaches whom, how often, in which order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lakestream.jetstream.ports import ClientInfo
from lakestream.protocol.subjects import matches
from lakestream.server.api_relay import ApiRelay
from lakestream.server.interest import Subscription
from lakestream.server.peer_wire import NodeInfo
from lakestream.server.remote_node import HIGH_WATER, MARK_EVERY, MAX_MARKS, MAX_WEIGHT
from lakestream.server.route_interest import CHANGES_IN_A_BUFFER
from lakestream.server.route_wire import (
    Batch,
    Hold,
    Interest,
    Mark,
    Record,
    Routed,
    Took,
    Unheard,
    Within,
    decode,
    encode,
)
from tests.unit.route_world import Client, Cluster

pytestmark = pytest.mark.unit

A, B, C = "a", "b", "c"


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(A, B, C)


def records(cluster: Cluster, sender: str, receiver: str) -> list[Record]:
    """What a node has sent to another so far."""
    return [record for to, payload in cluster[sender].sent if to == receiver for record in decode(payload)]


# ---------------------------------------------------------------------- messages
def test_a_message_reaches_a_subscriber_on_another_node_unchanged(cluster: Cluster) -> None:
    there = cluster.client(B)
    there.subscribe(b"orders.*", sid=b"9")
    cluster.settle()
    assert cluster.client(A).publish(b"orders.1", b"\x00payload", b"reply.to", b"NATS/1.0\r\nA: b\r\n\r\n")
    cluster.settle()
    assert there.got == [(b"9", (b"orders.1", b"reply.to", b"NATS/1.0\r\nA: b\r\n\r\n", b"\x00payload"))]
    assert there.from_nodes == [A]


def test_nobody_anywhere_is_told_to_the_publisher(cluster: Cluster) -> None:
    here, there = cluster.client(A), cluster.client(B)
    assert not here.publish(b"x")
    sub = there.subscribe(b"x")
    cluster.settle()
    assert here.publish(b"x")
    there.unsubscribe(sub)
    cluster.settle()
    assert not here.publish(b"x")


def test_a_node_gets_one_copy_however_many_subscribers_and_filters_it_has(cluster: Cluster) -> None:
    clients = [cluster.client(B) for _ in range(5)]
    for client, filter_ in zip(clients, [b"a.b", b"a.*", b"a.>", b">", b"a.b"], strict=True):
        client.subscribe(filter_)
    clients[0].subscribe(b"a.b", b"workers")
    cluster.settle()
    cluster.client(A).publish(b"a.b", b"once")
    cluster.settle()
    assert sum(type(record) is Routed for record in records(cluster, A, B)) == 1
    assert [len(client.got) for client in clients] == [2, 1, 1, 1, 1]


def test_what_came_from_a_node_is_not_sent_on(cluster: Cluster) -> None:
    for name in (A, B, C):
        cluster.client(name).subscribe(b"x")
    cluster.settle()
    cluster.client(A).publish(b"x")
    cluster.settle()
    assert not [record for record in records(cluster, B, C) if type(record) is not Interest]
    assert not [record for record in records(cluster, C, B) if type(record) is not Interest]


def test_messages_to_a_node_keep_their_order_whatever_way_they_take(cluster: Cluster) -> None:
    there = cluster.client(B)
    there.subscribe(b"to")
    cluster.settle()
    hub = cluster[A].hub
    here = cluster.client(A)
    here.publish(b"to", b"1")
    hub.deliver(b"to", [(b"s", b"", b"", b"2"), (b"s", b"", b"", b"3")])
    hub.publish(b"to", b"", b"", b"4")
    hub.reply_many([(b"to", b"5"), (b"to", b"6")])
    hub.deliver(b"to", [(b"s", b"", b"", b"7")])
    cluster.settle()
    assert there.payloads == [b"1", b"2", b"3", b"4", b"5", b"6", b"7"]


def test_a_request_is_answered_across_nodes_before_anything_settles(cluster: Cluster) -> None:
    """The inbox is made in the same turn as the request, and the answer needs it at once."""
    service = cluster.client(B)
    service.subscribe(b"service")
    cluster.settle()
    asking = cluster.client(A)
    asking.subscribe(b"_INBOX.1.*")
    asking.publish(b"service", b"?", b"_INBOX.1.x")
    cluster[A].turn()
    cluster.arrive(A, B)
    assert service.publish(service.got[0][1][1], b"!")
    cluster[B].turn()
    cluster.arrive(B, A)
    assert asking.payloads == [b"!"]


def test_changes_of_interest_can_be_told_before_the_turn_ends(cluster: Cluster) -> None:
    cluster.client(A).subscribe(b"_INBOX.1")
    cluster[A].routes.tell_changes()
    cluster.arrive(A, B)
    assert cluster[B].hub.interest(b"_INBOX.1")


def test_a_batch_is_shown_under_its_own_subjects_and_may_be_reused_by_its_owner(cluster: Cluster) -> None:
    there = cluster.client(B)
    there.subscribe(b"_INBOX.x.*")
    cluster.settle()
    batch = [(b"s.1", b"$JS.ACK.1", b"", b"1"), (b"s.2", b"$JS.ACK.2", b"H", b"2")]
    assert cluster[A].hub.deliver(b"_INBOX.x.5", batch)
    batch.clear()
    cluster.settle()
    assert [message for _, message in there.got] == [
        (b"s.1", b"$JS.ACK.1", b"", b"1"),
        (b"s.2", b"$JS.ACK.2", b"H", b"2"),
    ]


def test_a_large_batch_travels_in_several_buffers(cluster: Cluster) -> None:
    there = cluster.client(B)
    there.subscribe(b"to")
    cluster.settle()
    before = len(cluster[A].sent)
    payload = b"x" * (HIGH_WATER // 4)
    cluster[A].hub.deliver(b"to", [(b"s", b"", b"", payload)] * 20)
    cluster.settle()
    assert len(there.got) == 20
    assert len(cluster[A].sent) - before == 4


def test_more_than_the_limit_leaves_before_the_turn_ends(cluster: Cluster) -> None:
    cluster.client(B).subscribe(b"x")
    cluster.settle()
    before = len(cluster[A].sent)
    here = cluster.client(A)
    for _ in range(3):
        here.publish(b"x", b"x" * (HIGH_WATER // 2))
    assert len(cluster[A].sent) == before + 1


def test_a_handler_is_called_for_messages_from_other_nodes_and_its_failure_stays_with_it(cluster: Cluster) -> None:
    seen: list[tuple[bytes, str]] = []

    def handler(subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        seen.append((payload, client.kind))
        raise ValueError(payload)

    cluster[B].hub.subscribe(b"stream.>", handler)
    cluster.settle()
    for payload in (b"1", b"2"):
        cluster.client(A).publish(b"stream.x", payload)
    cluster.settle()
    assert seen == [(b"1", "Router"), (b"2", "Router")]


# ---------------------------------------------------------------------- echo, limits, local
def test_a_client_without_echo_hears_nothing_of_itself_but_others_do(cluster: Cluster) -> None:
    quiet, other = cluster.client(A, echo=False), cluster.client(B)
    quiet.subscribe(b"x")
    assert not quiet.publish(b"x")
    other.subscribe(b"x")
    cluster.settle()
    assert quiet.publish(b"x")
    cluster.settle()
    assert (len(quiet.got), len(other.got)) == (0, 1)


def test_a_client_without_echo_in_a_queue_group_leaves_its_messages_to_members_elsewhere(cluster: Cluster) -> None:
    quiet, other = cluster.client(A, echo=False), cluster.client(B)
    quiet.subscribe(b"x", b"g")
    other.subscribe(b"x", b"g")
    cluster.settle()
    for _ in range(20):
        assert quiet.publish(b"x")
    cluster.settle()
    assert (len(quiet.got), len(other.got)) == (0, 20)


def test_a_subscription_with_a_maximum_ends_on_all_nodes(cluster: Cluster) -> None:
    there, here = cluster.client(B), cluster.client(A)
    there.subscribe(b"x", maximum=2)
    cluster.settle()
    assert [here.publish(b"x") for _ in range(5)] == [True] * 5
    cluster.settle()
    assert len(there.got) == 2
    assert not here.publish(b"x")


def test_local_subscriptions_are_not_told(cluster: Cluster) -> None:
    seen: list[bytes] = []

    def handler(subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        seen.append(payload)

    handle = cluster[A].hub.subscribe(b"$JS.API.>", handler, local=True)
    cluster.settle()
    assert not cluster.client(B).publish(b"$JS.API.INFO", b"b")
    assert cluster.client(A).publish(b"$JS.API.INFO", b"a")
    handle.cancel()
    cluster.settle()
    assert seen == [b"a"]


def test_local_subscribers_get_no_message_of_another_node_that_somebody_else_here_listens_to(cluster: Cluster) -> None:
    """A client that watches all API requests must not make every node answer them."""
    answered: list[str] = []
    for name in (A, B):

        def handler(
            subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo, name: str = name
        ) -> None:
            answered.append(name)

        cluster[name].hub.subscribe(b"$JS.API.>", handler, local=True)
    watching = cluster.client(B)
    watching.subscribe(b"$JS.API.>")
    cluster.settle()
    cluster.client(A).publish(b"$JS.API.INFO", b"?", b"_INBOX.1")
    cluster.settle()
    assert answered == [A]
    assert watching.payloads == [b"?"]


class Directory:
    """Of the nodes that one node is connected to (`Nodes` of api_relay.py)."""

    def __init__(self) -> None:
        self.known: dict[str, NodeInfo] = {}
        self.told: list[Callable[[], None]] = []

    def nodes(self) -> dict[str, NodeInfo]:
        return self.known

    def watch_links(self, callback: Callable[[NodeInfo, bool], None]) -> None:
        self.told.append(lambda: callback(NodeInfo(name="", server_id=""), True))

    def watch_nodes(self, callback: Callable[[NodeInfo], None]) -> None:
        pass

    def become(self, *names: str, **fields: Any) -> None:
        self.known = {name: NodeInfo(name=name, server_id=name, jetstream=True, **fields) for name in names}
        for tell in self.told:
            tell()


def test_a_node_without_jetstream_hands_api_requests_to_one_that_has_it(cluster: Cluster) -> None:
    answered: list[str] = []
    for name in (B, C):

        def handler(
            subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo, name: str = name
        ) -> None:
            answered.append(name)
            cluster[name].hub.publish(reply, b"", b"", payload)

        cluster[name].hub.subscribe(b"$JS.API.INFO", handler, local=True)
        cluster[name].hub.subscribe(b"$JS.hub.API.INFO", handler, local=True)
    directory, asking = Directory(), cluster.client(A)
    ApiRelay(cluster[A].accounts, cluster[A].routes, directory)
    asking.subscribe(b"_INBOX.*")
    assert not asking.publish(b"$JS.API.INFO", b"?", b"_INBOX.1")
    directory.become(B, C, domain="hub")
    for number in range(30):
        assert asking.publish((b"$JS.API.INFO", b"$JS.hub.API.INFO")[number % 2], b"%d" % number, b"_INBOX.1")
        cluster.settle()
    assert asking.payloads == [b"%d" % number for number in range(30)]
    assert set(answered) == {B, C}
    directory.become()
    assert not asking.publish(b"$JS.API.INFO", b"?", b"_INBOX.1")


# ---------------------------------------------------------------------- queue groups
def test_one_member_in_the_whole_cluster_gets_a_message(cluster: Cluster) -> None:
    members = [cluster.client(name) for name in (A, A, B, B, B, C)]
    for member in members:
        member.subscribe(b"work", b"g")
    cluster.settle()
    publishers = [cluster.client(name) for name in (A, B, C)]
    for number in range(300):
        publishers[number % 3].publish(b"work", b"%d" % number)
    cluster.settle()
    assert sorted(payload for member in members for payload in member.payloads) == sorted(
        b"%d" % number for number in range(300)
    )


@pytest.mark.parametrize("origin", [A, B, C])
def test_every_member_has_the_same_chance_on_whatever_node_it_is(cluster: Cluster, origin: str) -> None:
    members = [cluster.client(name) for name in (A, B, B, B, C)]
    for member in members:
        member.subscribe(b"work", b"g")
    cluster.settle()
    publisher = cluster.client(origin)
    for _ in range(2000):
        publisher.publish(b"work")
    cluster.settle()
    counts = [len(member.got) for member in members]
    assert sum(counts) == 2000
    assert all(300 < count < 500 for count in counts), counts


def test_members_of_one_group_through_different_filters_are_one_group(cluster: Cluster) -> None:
    members = [cluster.client(A), cluster.client(B), cluster.client(C)]
    for member, filter_ in zip(members, [b"a.b", b"a.*", b">"], strict=True):
        member.subscribe(filter_, b"g")
    cluster.settle()
    for _ in range(100):
        cluster.client(A).publish(b"a.b")
    cluster.settle()
    assert sum(len(member.got) for member in members) == 100


def test_two_groups_and_plain_subscribers_of_one_node_share_a_copy(cluster: Cluster) -> None:
    there = cluster.client(B)
    for queue, sid in ((b"", b"1"), (b"g", b"2"), (b"h", b"3")):
        there.subscribe(b"x", queue, sid)
    cluster.settle()
    cluster.client(A).publish(b"x")
    cluster.client(A).publish(b"x")
    cluster.settle()
    assert Counter(sid for sid, _ in there.got) == {b"1": 2, b"2": 2, b"3": 2}
    assert sum(type(record) is Routed for record in records(cluster, A, B)) == 2


def test_a_batch_for_a_group_is_spread_over_its_members(cluster: Cluster) -> None:
    members = [cluster.client(name) for name in (A, B, C)]
    for member in members:
        member.subscribe(b"to", b"g")
    cluster.settle()
    cluster[A].hub.deliver(b"to", [(b"s", b"", b"", b"%d" % number) for number in range(90)])
    cluster.settle()
    assert sorted(int(payload) for member in members for payload in member.payloads) == list(range(90))
    assert all(member.got for member in members)


def test_a_message_for_a_group_whose_last_member_here_has_left_moves_to_another_node(cluster: Cluster) -> None:
    leaving, staying = cluster.client(B), cluster.client(C)
    sub = leaving.subscribe(b"work", b"g")
    cluster.settle()
    cluster.client(A).publish(b"work", b"single")
    cluster[A].hub.deliver(b"work", [(b"s", b"", b"", b"batch")])
    cluster[A].turn()
    staying.subscribe(b"work", b"g")
    cluster[C].turn()
    cluster.arrive(C, B)
    leaving.unsubscribe(sub)
    cluster.settle()
    assert (leaving.payloads, staying.payloads) == ([], [b"single", b"batch"])


@pytest.mark.parametrize("queue", [b"", b"g"])
def test_a_requester_hears_that_the_last_service_has_just_left(cluster: Cluster, queue: bytes) -> None:
    service, asking = cluster.client(B), cluster.client(A)
    sub = service.subscribe(b"service", queue)
    cluster.settle()
    asking.subscribe(b"_INBOX.*")
    service.unsubscribe(sub)
    assert asking.publish(b"service", b"?", b"_INBOX.1")
    cluster.settle()
    assert asking.alone == [(b"service", b"_INBOX.1")]


def test_a_requester_hears_nothing_when_a_service_elsewhere_has_come_or_no_answer_is_wanted(cluster: Cluster) -> None:
    service, other, asking = cluster.client(B), cluster.client(C), cluster.client(A)
    sub = service.subscribe(b"service")
    cluster.settle()
    asking.subscribe(b"_INBOX.*")
    service.unsubscribe(sub)
    asking.publish(b"service", b"?", b"_INBOX.1")
    asking.publish(b"service", b"no answer wanted")
    other.subscribe(b"service")
    cluster[C].turn()
    cluster.arrive(C, A)
    cluster.settle()
    assert asking.alone == []


def test_a_message_moves_once_at_most(cluster: Cluster) -> None:
    """Two nodes that each believe in the other's last member must not play ball."""
    clients = {name: cluster.client(name) for name in (B, C)}
    subs = {name: client.subscribe(b"work", b"g") for name, client in clients.items()}
    cluster.settle()
    for name, client in clients.items():
        client.unsubscribe(subs[name])
    cluster[A].hub.publish(b"work", b"", b"", b"lost")
    cluster[A].turn()
    cluster.arrive(A, B)
    cluster.arrive(A, C)
    cluster.settle()
    moved = [record for pair in ((B, C), (C, B)) for record in records(cluster, *pair) if type(record) is Routed]
    assert len(moved) == 1
    assert moved[0].moved


def test_the_members_of_one_node_count_up_to_a_limit() -> None:
    cluster = Cluster(A, B)
    many = cluster.client(B)
    for number in range(MAX_WEIGHT + 10):
        many.subscribe(b"work", b"g", b"%d" % number)
    cluster.settle()
    (group,) = cluster[A].hub.interest_graph.match(b"work").queues
    assert len(group) == MAX_WEIGHT


def test_a_change_of_weight_is_not_seen_as_a_change_of_interest(cluster: Cluster) -> None:
    seen: list[bool] = []
    cluster[A].hub.watch_interest(b"to", b"g", seen.append)
    one, two = cluster.client(B), cluster.client(B)
    first = one.subscribe(b"to", b"g")
    cluster.settle()
    second = two.subscribe(b"to", b"g")
    cluster.settle()
    one.unsubscribe(first)
    cluster.settle()
    assert seen == [True]
    two.unsubscribe(second)
    cluster.settle()
    assert seen == [True, False]


# ---------------------------------------------------------------------- what JetStream asks
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
    bus.deliver(b"to", [(b"s", b"", b"", b"1")])
    bus.deliver(b"to", [(b"s", b"", b"", b"2")])
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
        bus.deliver(b"to", [(b"s", b"", b"", b"1")])
        cluster.settle()
    elif what == "congestion":
        cluster[A].full.add(B)
    else:
        for _ in range(MAX_MARKS):
            bus.deliver(b"to", [(b"s", b"", b"", b"x" * MARK_EVERY)])
            cluster[A].turn()
    assert not bus.writable(b"to")
    bus.when_writable(b"to", lambda: called.append(1))
    cluster.disconnect(A, B)
    cluster[A].drain(B)
    cluster.settle()
    assert called == [1]


def test_whoever_publishes_to_a_node_that_is_congested_is_to_wait(cluster: Cluster) -> None:
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
    batch = [(b"s", b"", b"", b"x" * 1000)] * 100
    while bus.writable(b"to"):
        bus.deliver(b"to", batch)
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
            bus.deliver(b"to", [(b"s", b"", b"", b"x" * 100_000)])
            sent += 100_000
        cluster[A].turn()
        if sent > 3 * MARK_EVERY:  # the receiver's node is slow to react
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
    cluster.disconnect(A, B)
    assert len(cluster[A].hub.interest_graph) == len(subs) - CHANGES_IN_A_BUFFER
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


def test_interest_that_changes_while_a_connection_begins_is_told_in_the_end_as_it_is(cluster: Cluster) -> None:
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
    cluster[A].arrived("stranger", encode([Interest([(b"x", b"", 1)])]))
    with pytest.raises(msgspec.DecodeError):
        cluster[A].arrived(B, b"\xc1nonsense")
    assert not cluster[A].hub.interest(b"x")
    cluster.client(B).subscribe(b"x")
    cluster.settle()
    assert cluster[A].hub.interest(b"x")


def test_what_a_turn_adds_and_takes_away_is_told_as_one_state(cluster: Cluster) -> None:
    client = cluster.client(A)
    before = len(cluster[A].sent)
    for _ in range(100):
        client.unsubscribe(client.subscribe(b"_INBOX.once"))
    kept = [client.subscribe(b"kept", b"g", b"%d" % number) for number in range(10)]
    cluster.settle()
    sent = [record for to, payload in cluster[A].sent[before:] if to == B for record in decode(payload)]
    assert len(sent) == 1
    assert isinstance(sent[0], Interest)
    assert sorted(sent[0].changes) == [(b"_INBOX.once", b"", 0), (b"kept", b"g", 10)]
    assert kept


@given(
    st.lists(
        st.one_of(
            st.builds(Routed, st.binary(), st.binary(), st.binary(), st.binary(), st.none() | st.lists(st.binary())),
            st.builds(Hold, st.binary(), st.booleans()),
            st.builds(Mark),
            st.builds(Took),
            st.builds(Within, st.text()),
            st.builds(Unheard, st.binary(), st.binary()),
            st.builds(Interest, st.lists(st.tuples(st.binary(), st.binary(), st.integers(0, 1 << 32)))),
            st.builds(
                Batch,
                st.binary(),
                st.binary(),
                st.lists(st.tuples(st.binary(), st.binary(), st.binary(), st.binary())),
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
    """Clients on three nodes come, go and publish, connections break; once all is told, every plain subscriber in reach
    gets each message once, and of each queue group exactly one member."""

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
            found = hub.deliver(subject, [(b"shown", b"r", b"h", b"%d" % number) for number in range(3)])
        else:
            found = hub.publish(subject, b"r", b"h", b"0")
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
