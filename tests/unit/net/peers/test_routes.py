"""Tests of interest and messages between nodes: receivers, number of copies, order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest

from lakestream.net.interest.subscription import MAX_PLACES, Subscription
from lakestream.net.outbox import HIGH_WATER
from lakestream.net.peers.api_relay import ApiRelay
from lakestream.ports import ClientInfo, ListedMessages, Single, singly
from lakestream.protocol.peer_wire import NodeInfo
from lakestream.protocol.route_wire import Routed, RouteInterest
from tests.unit.route_world import A, B, C, Cluster, records

pytestmark = pytest.mark.unit


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(A, B, C)


# ---------------------------------------------------------------------- messages
def test_a_message_reaches_a_subscriber_on_another_node_unchanged(cluster: Cluster) -> None:
    there = cluster.client(B)
    there.subscribe(b"orders.*", sid=b"9")
    cluster.settle()
    assert cluster.client(A).publish(b"orders.1", b"\x00payload", b"reply.to", b"NATS/1.0\r\nA: b\r\n\r\n")
    cluster.settle()
    assert there.got == [(b"9", (b"orders.1", b"reply.to", b"NATS/1.0\r\nA: b\r\n\r\n", b"\x00payload"))]
    assert there.from_nodes == [A]


def test_no_responders_on_any_node_is_reported_to_the_publisher(cluster: Cluster) -> None:
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
    assert not [record for record in records(cluster, B, C) if type(record) is not RouteInterest]
    assert not [record for record in records(cluster, C, B) if type(record) is not RouteInterest]


def test_messages_to_a_node_keep_their_order_whatever_way_they_take(cluster: Cluster) -> None:
    there = cluster.client(B)
    there.subscribe(b"to")
    cluster.settle()
    hub = cluster[A].hub
    here = cluster.client(A)
    here.publish(b"to", b"1")
    hub.send(ListedMessages([Single(b"s", payload=b"2"), Single(b"s", payload=b"3")], to=b"to"))
    hub.send(Single(b"to", payload=b"4"))
    hub.send(ListedMessages([Single(b"to", payload=b"5"), Single(b"to", payload=b"6")]))
    hub.send(ListedMessages([Single(b"s", payload=b"7")], to=b"to"))
    cluster.settle()
    assert there.payloads == [b"1", b"2", b"3", b"4", b"5", b"6", b"7"]


def test_a_request_is_answered_across_nodes_before_anything_settles(cluster: Cluster) -> None:
    """A request is answered across nodes at once, although its inbox is subscribed to in the same turn."""
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


def test_changes_of_interest_can_be_sent_before_the_turn_ends(cluster: Cluster) -> None:
    cluster.client(A).subscribe(b"_INBOX.1")
    cluster[A].routes.announce_changes()
    cluster.arrive(A, B)
    assert cluster[B].hub.interest(b"_INBOX.1")


def test_a_batch_is_shown_under_its_own_subjects_and_may_be_reused_by_its_owner(cluster: Cluster) -> None:
    there = cluster.client(B)
    there.subscribe(b"_INBOX.x.*")
    cluster.settle()
    batch = [Single(b"s.1", b"$JS.ACK.1", b"", b"1"), Single(b"s.2", b"$JS.ACK.2", b"H", b"2")]
    assert cluster[A].hub.send(ListedMessages(batch, to=b"_INBOX.x.5"))
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
    cluster[A].hub.send(ListedMessages([Single(b"s", payload=payload)] * 20, to=b"to"))
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

    cluster[B].hub.subscribe(b"stream.>", singly(handler))
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


def test_local_subscriptions_are_not_sent(cluster: Cluster) -> None:
    seen: list[bytes] = []

    def handler(subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        seen.append(payload)

    handle = cluster[A].hub.subscribe(b"$JS.API.>", singly(handler), local=True)
    cluster.settle()
    assert not cluster.client(B).publish(b"$JS.API.INFO", b"b")
    assert cluster.client(A).publish(b"$JS.API.INFO", b"a")
    handle.cancel()
    cluster.settle()
    assert seen == [b"a"]


def test_local_subscribers_get_no_message_that_another_node_sends_for_others(cluster: Cluster) -> None:
    """A subscriber limited to local messages gets none from another node, even if others on its node do.

    A client that subscribes to all API requests must not make every node answer them.
    """
    answered: list[str] = []
    for name in (A, B):

        def handler(
            subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo, name: str = name
        ) -> None:
            answered.append(name)

        cluster[name].hub.subscribe(b"$JS.API.>", singly(handler), local=True)
    watching = cluster.client(B)
    watching.subscribe(b"$JS.API.>")
    cluster.settle()
    cluster.client(A).publish(b"$JS.API.INFO", b"?", b"_INBOX.1")
    cluster.settle()
    assert answered == [A]
    assert watching.payloads == [b"?"]


class Directory:
    """Nodes to which one node is connected (`Nodes` of api_relay.py)."""

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
            cluster[name].hub.send(Single(reply, payload=payload))

        cluster[name].hub.subscribe(b"$JS.API.INFO", singly(handler), local=True)
        cluster[name].hub.subscribe(b"$JS.hub.API.INFO", singly(handler), local=True)
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
    cluster[A].hub.send(ListedMessages([Single(b"s", payload=b"%d" % number) for number in range(90)], to=b"to"))
    cluster.settle()
    assert sorted(int(payload) for member in members for payload in member.payloads) == list(range(90))
    assert all(member.got for member in members)


def test_a_message_for_a_group_whose_last_member_here_has_left_moves_to_another_node(cluster: Cluster) -> None:
    leaving, staying = cluster.client(B), cluster.client(C)
    sub = leaving.subscribe(b"work", b"g")
    cluster.settle()
    cluster.client(A).publish(b"work", b"single")
    cluster[A].hub.send(ListedMessages([Single(b"s", payload=b"batch")], to=b"work"))
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
    """A queue message is forwarded at most once, so that two nodes cannot send it back and forth."""
    clients = {name: cluster.client(name) for name in (B, C)}
    subs = {name: client.subscribe(b"work", b"g") for name, client in clients.items()}
    cluster.settle()
    for name, client in clients.items():
        client.unsubscribe(subs[name])
    cluster[A].hub.send(Single(b"work", payload=b"lost"))
    cluster[A].turn()
    cluster.arrive(A, B)
    cluster.arrive(A, C)
    cluster.settle()
    moved = [record for pair in ((B, C), (C, B)) for record in records(cluster, *pair) if type(record) is Routed]
    assert len(moved) == 1
    assert moved[0].moved


def test_of_very_many_members_each_node_has_its_share() -> None:
    cluster = Cluster(A, B, C)
    for node, members in ((B, 2 * MAX_PLACES), (C, MAX_PLACES)):
        many = cluster.client(node)
        for number in range(members):
            many.subscribe(b"work", b"g", b"%d" % number)
    cluster.settle()
    (group,) = cluster[A].hub.interest_graph.match(b"work").queues
    assert sorted(Counter(sub.remote.name for sub in group if sub.remote).values()) == [333, 667]


class Behind:
    """Carrier of members of a queue group behind a leaf node."""

    echo = True

    def __init__(self, cluster: Cluster, node: str) -> None:
        self._graph = cluster[node].hub.interest_graph

    def have(self, members: int) -> None:
        """Announce so many members of the group `g`."""
        sub = Subscription(cast(Any, self), b"work", b"g", b"")
        sub.elsewhere, sub.weight = True, members
        self._graph.insert(sub)


def places(cluster: Cluster, node: str) -> list[str]:
    """Return the places of each node in the group `g` as `node` sees it; "" are its own."""
    (group,) = cluster[node].hub.interest_graph.match(b"work").queues
    return sorted(sub.remote.name if sub.remote else "" for sub in group)


def test_members_behind_leaf_nodes_are_chosen_only_where_the_cluster_has_none_and_by_their_number() -> None:
    cluster = Cluster(A, B, C)
    for node, members in ((A, 1), (B, 3), (B, 1)):
        Behind(cluster, node).have(members)
    cluster.settle()
    assert places(cluster, C) == [A, B, B, B, B]
    assert places(cluster, A) == ["", B, B, B, B]
    member = cluster.client(C)
    sid = member.subscribe(b"work", b"g")
    cluster.settle()
    assert [places(cluster, node) for node in (A, B, C)] == [[C], [C], [""]]
    member.unsubscribe(sid)
    cluster.settle()
    near = cluster.client(B)
    near.subscribe(b"work", b"g")
    cluster.settle()
    assert [places(cluster, node) for node in (A, B, C)] == [[B], [""], [B]]


def test_of_members_behind_leaf_nodes_a_message_of_another_node_finds_each_as_often_as_they_are() -> None:
    cluster = Cluster(A, B)
    for members in (3, 1):
        Behind(cluster, B).have(members)
    cluster.settle()
    here = cluster[B].hub.interest_graph.match(b"work").here
    assert here is not None
    assert sorted(Counter(id(sub) for sub in here.queues[0]).values()) == [1, 3]


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
