"""Tests of imports between nodes: a message crosses to another account once, on whatever node its subscribers are."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from lakestream.config.account_options import (
    AccountOptions,
    ServiceExport,
    ServiceImport,
    StreamExport,
    StreamImport,
)
from lakestream.net.interest.subscription import Subscription
from lakestream.ports import ListedMessages, Single
from lakestream.protocol.route_wire import Routed, decode
from lakestream.protocol.subjects import matches
from tests.unit.route_world import Client, Cluster

pytestmark = pytest.mark.unit

A, B, C = "a", "b", "c"
OWNER, GUEST = "OWNER", "GUEST"

ACCOUNTS = [
    AccountOptions(
        name=OWNER,
        exports=(
            StreamExport(subject="ev.>"),
            ServiceExport(subject="ask"),
            ServiceExport(subject="many", response="stream"),
        ),
    ),
    AccountOptions(
        name=GUEST,
        imports=(
            StreamImport(account=OWNER, subject="ev.>", prefix="far"),
            ServiceImport(account=OWNER, subject="ask", to="far.ask"),
            ServiceImport(account=OWNER, subject="many"),
        ),
    ),
]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(A, B, C, accounts=ACCOUNTS)


def messages(cluster: Cluster, sender: str, receiver: str) -> int:
    """Return the number of messages that a node has sent to another."""
    return sum(
        type(record) is Routed for to, payload in cluster[sender].sent if to == receiver for record in decode(payload)
    )


# ---------------------------------------------------------------------- streams
def test_a_guest_hears_what_is_published_on_another_node_and_one_copy_goes_there(cluster: Cluster) -> None:
    guests = [cluster.client(B, account=GUEST) for _ in range(3)]
    for guest in guests:
        guest.subscribe(b"far.ev.*")
    own = cluster.client(B, account=OWNER)
    own.subscribe(b"ev.x")
    cluster.settle()
    assert cluster.client(A, account=OWNER).publish(b"ev.x", b"1")
    cluster.settle()
    assert [guest.got for guest in guests] == [[(b"1", (b"far.ev.x", b"", b"", b"1"))]] * 3
    assert own.payloads == [b"1"]
    assert messages(cluster, A, B) == 1


def test_a_guest_that_leaves_is_heard_of_no_more(cluster: Cluster) -> None:
    guest = cluster.client(B, account=GUEST)
    sub = guest.subscribe(b"far.>")
    cluster.settle()
    owner = cluster.client(A, account=OWNER)
    assert owner.publish(b"ev.x")
    guest.unsubscribe(sub)
    cluster.settle()
    assert not owner.publish(b"ev.x")


def test_a_guests_interest_is_not_taken_over_by_the_guest_account_of_another_node(cluster: Cluster) -> None:
    """A node does not take over the interest of another node's importing account.

    Each node serves its own clients: otherwise every importer would get everything once for each node.
    """
    guest = cluster.client(B, account=GUEST)
    guest.subscribe(b"far.ev.x")
    cluster.settle()
    for name in (A, B, C):
        cluster[name].imports.changed(list(cluster[name].accounts))  # as after a reload
    cluster.settle()
    for name in (A, B, C):
        cluster.client(name, account=OWNER).publish(b"ev.x", name.encode())
        cluster.settle()
    assert guest.payloads == [b"a", b"b", b"c"]


# ---------------------------------------------------------------------- services
@pytest.mark.parametrize(("service", "called", "answers"), [(b"ask", b"far.ask", 1), (b"many", b"many", 5)])
def test_a_guest_is_answered_from_another_node(cluster: Cluster, service: bytes, called: bytes, answers: int) -> None:
    owner, guest = cluster.client(B, account=OWNER), cluster.client(A, account=GUEST)
    owner.subscribe(service)
    guest.subscribe(b"_INBOX.*")
    cluster.settle()
    assert guest.publish(called, b"?", b"_INBOX.1")
    cluster.settle()
    ((_, (subject, reply, header, payload)),) = owner.got
    assert (subject, payload) == (service, b"?")
    assert b'"acc":"GUEST"' in header
    for number in range(5):
        owner.publish(reply, b"%d" % number)
    cluster.settle()
    assert [message for _, message in guest.got] == [
        (b"_INBOX.1", b"", b"", b"%d" % number) for number in range(answers)
    ]


def test_requests_do_not_change_interest(cluster: Cluster) -> None:
    owner, guest = cluster.client(B, account=OWNER), cluster.client(A, account=GUEST)
    owner.subscribe(b"ask")
    guest.subscribe(b"_INBOX.*")
    cluster.settle()
    before = len(cluster[A].sent)
    for number in range(20):
        guest.publish(b"far.ask", b"?", b"_INBOX.%d" % number)
    cluster.settle()
    assert len(cluster[A].sent) == before + 1, "the requests, and nothing else"


def test_a_guest_hears_that_the_last_service_has_just_left(cluster: Cluster) -> None:
    owner, guest = cluster.client(B, account=OWNER), cluster.client(A, account=GUEST)
    sub = owner.subscribe(b"ask")
    guest.subscribe(b"_INBOX.*")
    cluster.settle()
    owner.unsubscribe(sub)
    guest.publish(b"far.ask", b"?", b"_INBOX.1")
    cluster.settle()
    assert guest.alone == [(b"far.ask", b"_INBOX.1")]


def test_a_service_is_asked_once_though_every_node_imports_it(cluster: Cluster) -> None:
    owners = [cluster.client(name, account=OWNER) for name in (A, B, C)]
    for owner in owners:
        owner.subscribe(b"ask", b"g")
    cluster.settle()
    guest = cluster.client(A, account=GUEST)
    for number in range(60):
        guest.publish(b"far.ask", b"%d" % number)
    cluster.settle()
    assert sorted(int(payload) for owner in owners for payload in owner.payloads) == list(range(60))
    assert all(owner.got for owner in owners)


def test_deliveries_to_a_slow_guest_on_another_node_wait(cluster: Cluster) -> None:
    """Deliveries to a slow importer on another node wait, as for JetStream messages pulled over an import."""
    owner, guest = cluster.client(B, account=OWNER), cluster.client(A, account=GUEST)
    owner.subscribe(b"many")
    guest.subscribe(b"_INBOX.*")
    cluster.settle()
    guest.publish(b"many", b"pull", b"_INBOX.1")
    cluster.settle()
    to = owner.got[0][1][1]
    bus, called = cluster[B].accounts.of(OWNER).hub, list[int]()
    assert bus.interest(to)
    guest.congested = True
    bus.send(ListedMessages([Single(b"s.1", b"$JS.ACK.1", b"", b"1")], to=to))
    cluster.settle()
    assert not bus.writable(to)
    bus.when_writable(to, lambda: called.append(1))
    cluster.settle()
    assert not called
    guest.drain()
    cluster.settle()
    assert called == [1]
    assert bus.writable(to)
    bus.send(ListedMessages([Single(b"s.2", b"$JS.ACK.2", b"", b"2")], to=to))
    cluster.settle()
    assert [message for _, message in guest.got] == [
        (b"s.1", b"$JS.ACK.1", b"", b"1"),
        (b"s.2", b"$JS.ACK.2", b"", b"2"),
    ]


def test_a_node_that_goes_takes_its_ways_back_along(cluster: Cluster) -> None:
    owner, guest = cluster.client(B, account=OWNER), cluster.client(A, account=GUEST)
    owner.subscribe(b"many")
    guest.subscribe(b"_INBOX.*")
    cluster.settle()
    guest.publish(b"many", b"pull", b"_INBOX.1")
    cluster.settle()
    to = owner.got[0][1][1]
    bus = cluster[B].accounts.of(OWNER).hub
    assert bus.interest(to)
    cluster.disconnect(A, B)
    assert not bus.interest(to)


# ---------------------------------------------------------------------- against a model
PUBLISHED = [b"ev.a", b"ev.b.c", b"other"]
OWN = [b"ev.a", b"ev.*", b"ev.>", b">", b"other"]
FAR = [b"far.ev.a", b"far.ev.*", b"far.>", b"*.ev.>", b">", b"ev.a", b"*.*.a"]


class Model(RuleBasedStateMachine):
    """Random test: clients of both accounts come and go on three nodes, connections break, configurations are reloaded.

    Once interest has propagated, every plain subscriber in reach gets each message of the exporter once and of each
    queue group, which may have members in both accounts, exactly one.
    """

    @initialize()
    def begin(self) -> None:
        self.cluster = Cluster(A, B, C, accounts=ACCOUNTS)
        self.up = {(A, B), (A, C), (B, C)}
        self.subs: list[tuple[str, Client, Subscription]] = []
        self.number = 0

    @rule(
        node=st.sampled_from([A, B, C]),
        account=st.sampled_from([OWNER, GUEST]),
        pick=st.randoms(use_true_random=False),
        queue=st.sampled_from([b"", b"", b"g"]),
    )
    def subscribe(self, node: str, account: str, pick: random.Random, queue: bytes) -> None:
        self.number += 1
        client = self.cluster.client(node, account=account)
        filter_ = pick.choice(OWN if account == OWNER else FAR)
        self.subs.append((account, client, client.subscribe(filter_, queue, b"%d" % self.number)))

    @rule(pick=st.randoms(use_true_random=False))
    def unsubscribe(self, pick: random.Random) -> None:
        if self.subs:
            _, client, sub = self.subs.pop(pick.randrange(len(self.subs)))
            client.unsubscribe(sub)

    @rule(node=st.sampled_from([A, B, C]))
    def turn(self, node: str) -> None:
        self.cluster[node].turn()

    @rule(node=st.sampled_from([A, B, C]))
    def reload(self, node: str) -> None:
        self.cluster[node].imports.changed(list(self.cluster[node].accounts))

    @rule(pair=st.sampled_from([(A, B), (A, C), (B, C)]))
    def break_or_mend(self, pair: tuple[str, str]) -> None:
        if pair in self.up:
            self.up.remove(pair)
            self.cluster.disconnect(*pair)
        else:
            self.up.add(pair)
            self.cluster.connect(*pair)

    @rule(
        node=st.sampled_from([A, B, C]),
        account=st.sampled_from([OWNER, OWNER, GUEST]),
        pick=st.randoms(use_true_random=False),
    )
    def publish(self, node: str, account: str, pick: random.Random) -> None:
        self.cluster.settle()
        for _, client, _ in self.subs:
            client.got.clear()
        subject = pick.choice(PUBLISHED if account == OWNER else [*PUBLISHED, b"far.ev.a"])
        found = self.cluster[node].accounts.of(account).hub.send(Single(subject, header=b"h", payload=b"p"))
        self.cluster.settle()
        groups: dict[bytes, int] = {}
        reached = False
        for of, client, sub in self.subs:
            near = client.node.name == node or tuple(sorted((client.node.name, node))) in self.up
            shown = subject
            if of != account:
                shown = b"far." + subject if account == OWNER and subject.startswith(b"ev.") else b""
            got = [message for _, message in client.got]
            if not (near and shown and matches(sub.subject, shown)):
                assert got == []
                continue
            reached = True
            assert set(got) <= {(shown, b"", b"h", b"p")}
            if sub.queue:
                groups[sub.queue] = groups.get(sub.queue, 0) + len(got)
            else:
                assert len(got) == 1
        assert found == reached
        assert all(count == 1 for count in groups.values())


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
