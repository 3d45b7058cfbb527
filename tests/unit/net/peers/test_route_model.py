"""Tests of routes between nodes with several accounts: any order of accounts and clients, compared with a model."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from lakestream.net.interest.subscription import Subscription
from lakestream.net.outbox import HIGH_WATER
from lakestream.ports import ListedMessages, Single
from lakestream.protocol.subjects import matches
from tests.unit.route_world import ACCOUNTS, ONE, TWO, A, B, C, Client, Cluster

pytestmark = pytest.mark.unit


# ---------------------------------------------------------------------- against a model
said = st.lists(
    st.tuples(
        st.sampled_from(ACCOUNTS),
        st.sampled_from(["publish", "deliver", "queue", "turn", "subscribe", "big"]),
    ),
    max_size=40,
)


@given(said)
@settings(max_examples=100, deadline=None)
def test_any_order_of_accounts_arrives_as_it_was_said(operations: list[tuple[str, str]]) -> None:
    cluster = Cluster(A, B, accounts=[ONE, TWO])
    there = {account: cluster.client(B, account=account) for account in ACCOUNTS}
    for client in there.values():
        client.subscribe(b"x.>")
        client.subscribe(b"q.>", b"g")
    cluster.settle()
    expected: dict[str, list[bytes]] = {account: [] for account in ACCOUNTS}
    for number, (account, operation) in enumerate(operations):
        hub = cluster[A].accounts.of(account).hub
        payload = b"%s %d" % (account.encode(), number)
        if operation == "turn":
            cluster[A].turn()
            continue
        if operation == "subscribe":
            cluster.client(A, account=account).subscribe(b"new.%d" % number)
            continue
        if operation == "big":
            payload += b"x" * (HIGH_WATER + 1)
        if operation == "deliver":
            hub.send(ListedMessages([Single(b"s", payload=payload)], to=b"x.y"))
        else:
            hub.send(Single(b"q.y" if operation == "queue" else b"x.y", payload=payload))
        expected[account].append(payload)
    cluster.settle()
    assert {account: client.payloads for account, client in there.items()} == expected
    for number, (account, operation) in enumerate(operations):
        if operation == "subscribe":
            subject = b"new.%d" % number
            assert [one for one in ACCOUNTS if cluster[B].accounts.of(one).hub.interest(subject)] == [account]


SUBJECTS = [b"a", b"a.b", b"b.c"]
FILTERS = [*SUBJECTS, b"*", b"a.*", b">"]


class Model(RuleBasedStateMachine):
    """Random test: clients of three accounts on three nodes come, go and publish, connections break.

    Once interest has propagated, every plain subscriber in reach and in the account gets each message once, and of each
    queue group exactly one member.
    """

    @initialize()
    def begin(self) -> None:
        self.cluster = Cluster(A, B, C, accounts=[ONE, TWO])
        self.up = {(A, B), (A, C), (B, C)}
        self.subs: list[tuple[str, Client, Subscription]] = []
        self.number = 0

    @rule(
        node=st.sampled_from([A, B, C]),
        account=st.sampled_from(ACCOUNTS),
        filter_=st.sampled_from(FILTERS),
        queue=st.sampled_from([b"", b"g"]),
    )
    def subscribe(self, node: str, account: str, filter_: bytes, queue: bytes) -> None:
        self.number += 1
        client = self.cluster.client(node, account=account)
        self.subs.append((account, client, client.subscribe(filter_, queue, b"%d" % self.number)))

    @rule(pick=st.randoms(use_true_random=False))
    def unsubscribe(self, pick: random.Random) -> None:
        if self.subs:
            _, client, sub = self.subs.pop(pick.randrange(len(self.subs)))
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

    @rule(
        node=st.sampled_from([A, B, C]),
        account=st.sampled_from(ACCOUNTS),
        subject=st.sampled_from(SUBJECTS),
        batch=st.booleans(),
    )
    def publish(self, node: str, account: str, subject: bytes, batch: bool) -> None:
        self.cluster.settle()
        for _, client, _ in self.subs:
            client.got.clear()
        hub = self.cluster[node].accounts.of(account).hub
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
        for of, client, sub in self.subs:
            near = client.node.name == node or tuple(sorted((client.node.name, node))) in self.up
            got = [message for _, message in client.got]
            if not (of == account and near and matches(sub.subject, subject)):
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


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
