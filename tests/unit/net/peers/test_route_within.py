"""Tests of accounts between nodes: messages on one connection arrive in the account in which they were published."""

from __future__ import annotations

import pytest

from lakestream.config.account_options import AccountOptions, ServiceExport, ServiceImport
from lakestream.net.outbox import HIGH_WATER
from lakestream.net.peers.api_relay import ApiRelay
from lakestream.net.peers.remote_node import MARK_EVERY, MAX_MARKS
from lakestream.net.peers.routes import CHANGES_IN_A_BUFFER, buffers
from lakestream.net.turn import SLICE_NS
from lakestream.ports import ClientInfo, ListedMessages, Single, singly
from lakestream.protocol.accounts import UNLIMITED
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
from tests.unit.net.peers.test_routes import Directory
from tests.unit.route_world import ACCOUNTS, DEFAULT, ONE, TWO, A, B, C, Cluster

pytestmark = pytest.mark.unit

STORING = [ONE, TWO, "$SYS"]
"""Accounts with a JetStream API: if there are other accounts, `$G` has none."""

GOLDEN = bytes.fromhex(
    "9b98a16dc403612e62c4085f494e424f582e31c400c40178c0c2c298a16dc40161c400c40c4e4154532f312e300d0a0d0ac40092c400c4016"
    "7c2c298a16dc4016dc400c400c40091c40167c3c298a16dc40c244a532e4150492e494e464fc40172c400c400c0c2c395a162c402746fc400"
    "9194c40173c40172c40168c40170c295a162c402746fc4016790c393a168c402746fc391a16b91a17493a175c40173c4017292a1699293c40"
    "3612e2ac4000193c40162c4016700"
)
"""Bytes that a version without accounts sent for `SAID`."""

SAID: list[Record] = [
    Routed(b"a.b", b"_INBOX.1", b"", b"x"),
    Routed(b"a", b"", b"NATS/1.0\r\n\r\n", b"", [b"", b"g"]),
    Routed(b"m", b"", b"", b"", [b"g"], True),
    Routed(b"$JS.API.INFO", b"r", b"", b"", None, False, True),
    RouteBatch(b"to", b"", [Single(b"s", b"r", b"h", b"p")]),
    RouteBatch(b"to", b"g", [], True),
    Hold(b"to", True),
    FlowMark(),
    Took(),
    NoResponders(b"s", b"r"),
    RouteInterest([(b"a.*", b"", 1), (b"b", b"g", 0)]),
]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(A, B, C, accounts=[ONE, TWO])


def sent(cluster: Cluster, sender: str, receiver: str, since: int = 0) -> list[list[Record]]:
    """Return the buffers that a node has sent to another, after the first `since` to any node."""
    return [decode(payload) for to, payload in cluster[sender].sent[since:] if to == receiver]


# ---------------------------------------------------------------------- the wire
def test_the_wire_of_the_default_account_is_that_of_versions_without_accounts() -> None:
    assert encode(SAID) == GOLDEN
    assert decode(GOLDEN) == SAID


def test_a_cluster_that_uses_the_default_account_alone_says_nothing_of_accounts(cluster: Cluster) -> None:
    there, here = cluster.client(B), cluster.client(A)
    there.subscribe(b"x")
    there.subscribe(b"x", b"g")
    here.subscribe(b"_INBOX.*")
    cluster.settle()
    here.publish(b"x", b"1", b"_INBOX.1")
    cluster[A].hub.send(ListedMessages([Single(b"s", payload=b"2")], to=b"x"))
    there.publish(b"_INBOX.1", b"!")
    cluster.settle()
    assert not [
        record
        for sender, receiver in ((A, B), (B, A))
        for buffer in sent(cluster, sender, receiver)
        for record in buffer
        if type(record) is Within
    ]


def test_the_account_is_said_where_it_changes_and_in_each_buffer_anew(cluster: Cluster) -> None:
    for account in ACCOUNTS:
        cluster.client(B, account=account).subscribe(b"x")
    cluster.settle()
    before = len(cluster[A].sent)
    for account in [ONE, ONE, DEFAULT, TWO, TWO]:
        cluster.client(A, account=account).publish(b"x")
    cluster.settle()
    cluster.client(A, account=TWO).publish(b"x")
    cluster.settle()
    message = Routed(b"x", b"", b"", b"")
    assert sent(cluster, A, B, before) == [
        [Within(ONE), message, message, Within(DEFAULT), message, Within(TWO), message, message],
        [Within(TWO), message],
    ]


def test_what_leaves_before_the_turn_ends_names_its_account_again(cluster: Cluster) -> None:
    there = cluster.client(B, account=ONE)
    there.subscribe(b"x")
    cluster.settle()
    here = cluster.client(A, account=ONE)
    payloads = [bytes([number]) * (HIGH_WATER // 2) for number in range(7)]
    for payload in payloads:
        here.publish(b"x", payload)
    cluster.settle()
    assert there.payloads == payloads


def test_interest_of_many_accounts_shares_buffers_up_to_what_one_turn_takes_in() -> None:
    told = [(f"A{number}", [(b"s%d" % one, b"", 1) for one in range(300)]) for number in range(8)]
    told.insert(3, (DEFAULT, [(b"g%d" % one, b"", 1) for one in range(CHANGES_IN_A_BUFFER + 1)]))
    found: list[tuple[str, tuple[bytes, bytes, int]]] = []
    made = [decode(buffer) for buffer in buffers(told)]
    for buffer in made:
        within, count = DEFAULT, 0
        for record in buffer:
            if type(record) is Within:
                within = record.account
            else:
                assert type(record) is RouteInterest
                count += len(record.changes)
                found += [(within, change) for change in record.changes]
        assert 0 < count <= CHANGES_IN_A_BUFFER
    assert found == [(account, change) for account, changes in told for change in changes]
    assert len(made) < len(told)


def test_without_interest_no_buffer_is_sent() -> None:
    assert buffers([(ONE, []), (DEFAULT, [])]) == []


# ---------------------------------------------------------------------- isolation
def test_accounts_hear_nothing_of_each_other(cluster: Cluster) -> None:
    listening = {account: cluster.client(B, account=account) for account in ACCOUNTS}
    for client in listening.values():
        client.subscribe(b">")
    cluster.settle()
    for account in ACCOUNTS:
        assert cluster.client(A, account=account).publish(b"x", account.encode())
    cluster.settle()
    assert {account: client.payloads for account, client in listening.items()} == {
        account: [account.encode()] for account in ACCOUNTS
    }


def test_interest_in_one_account_is_none_in_another(cluster: Cluster) -> None:
    there = cluster.client(B, account=ONE)
    sub = there.subscribe(b"x")
    cluster.settle()
    assert not cluster.client(A).publish(b"x")
    assert not cluster.client(A, account=TWO).publish(b"x")
    assert cluster.client(A, account=ONE).publish(b"x")
    there.unsubscribe(sub)
    cluster.settle()
    assert not cluster.client(A, account=ONE).publish(b"x")


def test_the_same_message_in_two_accounts_is_not_taken_for_one_with_two_queue_groups(cluster: Cluster) -> None:
    """The same message in two accounts is not mistaken for one with two queue groups.

    An import passes on the very object of the other account.
    """
    subject, reply, header, payload = b"x" * 20, b"r" * 20, b"h" * 20, b"p" * 20
    members = {(account, queue): cluster.client(B, account=account) for account in (ONE, TWO) for queue in (b"g", b"h")}
    for (_, queue), member in members.items():
        member.subscribe(subject, queue)
    cluster.settle()
    before = len(cluster[A].sent)
    for account in (ONE, TWO):
        cluster[A].accounts.of(account).hub.send(Single(subject, reply, header, payload))
    cluster.settle()
    assert {key: len(member.got) for key, member in members.items()} == dict.fromkeys(members, 1)
    assert sum(type(record) is Routed for buffer in sent(cluster, A, B, before) for record in buffer) == 2


def test_queue_groups_of_one_name_are_apart(cluster: Cluster) -> None:
    members = {account: [cluster.client(name, account=account) for name in (A, B, C)] for account in (ONE, TWO)}
    for clients in members.values():
        for client in clients:
            client.subscribe(b"work", b"g")
    cluster.settle()
    for number in range(90):
        cluster.client(A, account=ONE).publish(b"work", b"%d" % number)
    cluster.settle()
    assert sorted(int(payload) for client in members[ONE] for payload in client.payloads) == list(range(90))
    assert all(client.got for client in members[ONE])
    assert not [client for client in members[TWO] if client.got]


@pytest.mark.parametrize("account", [ONE, DEFAULT])
def test_a_message_for_a_group_that_has_just_lost_its_last_member_moves_within_its_account(
    cluster: Cluster, account: str
) -> None:
    leaving = cluster.client(B, account=account)
    staying = {name: cluster.client(C, account=name) for name in ACCOUNTS}
    sub = leaving.subscribe(b"work", b"g")
    cluster.settle()
    cluster.client(A, account=account).publish(b"work", b"single")
    cluster[A].accounts.of(account).hub.send(ListedMessages([Single(b"s", payload=b"batch")], to=b"work"))
    cluster[A].turn()
    for client in staying.values():
        client.subscribe(b"work", b"g")
    cluster[C].turn()
    cluster.arrive(C, B)
    leaving.unsubscribe(sub)
    cluster.settle()
    assert {name: client.payloads for name, client in staying.items()} == {
        name: [b"single", b"batch"] if name == account else [] for name in ACCOUNTS
    }


def test_a_requester_hears_in_its_account_that_the_last_service_has_just_left(cluster: Cluster) -> None:
    service, asking, other = (cluster.client(name, account=at) for name, at in ((B, ONE), (A, ONE), (A, TWO)))
    sub = service.subscribe(b"service")
    other.subscribe(b"_INBOX.*")
    cluster.settle()
    asking.subscribe(b"_INBOX.*")
    service.unsubscribe(sub)
    assert asking.publish(b"service", b"?", b"_INBOX.1")
    cluster.settle()
    assert asking.alone == [(b"service", b"_INBOX.1")]
    assert other.alone == []


def test_a_message_from_a_node_is_known_to_be_of_its_account(cluster: Cluster) -> None:
    seen: list[ClientInfo] = []

    def handler(subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        seen.append(client)

    cluster[B].accounts.of(ONE).hub.subscribe(b"x", singly(handler))
    cluster.settle()
    cluster.client(A, account=ONE).publish(b"x")
    cluster.settle()
    assert [(client.account, client.name, client.kind) for client in seen] == [(ONE, A, "Router")]


# ---------------------------------------------------------------------- back-pressure
def test_a_slow_receiver_holds_up_its_own_account_only(cluster: Cluster) -> None:
    slow, fast = cluster.client(B, account=ONE), cluster.client(B, account=TWO)
    slow.subscribe(b"to")
    fast.subscribe(b"to")
    cluster.settle()
    held, free = (cluster[A].accounts.of(account).hub for account in (ONE, TWO))
    slow.congested = True
    for hub in (held, free):
        hub.send(ListedMessages([Single(b"s", payload=b"1")], to=b"to"))
    cluster.settle()
    assert (held.writable(b"to"), free.writable(b"to")) == (False, True)
    called: list[int] = []
    held.when_writable(b"to", lambda: called.append(1))
    cluster.settle()
    assert not called
    slow.drain()
    cluster.settle()
    assert called == [1]
    assert held.writable(b"to")


def test_what_is_under_way_to_a_node_is_bounded_for_all_accounts_together(cluster: Cluster) -> None:
    for account in (ONE, TWO):
        cluster.client(B, account=account).subscribe(b"to")
    cluster.settle()
    hubs = [cluster[A].accounts.of(account).hub for account in (ONE, TWO)]
    size = 0
    while hubs[0].writable(b"to"):
        for hub in hubs:
            hub.send(ListedMessages([Single(b"s", payload=b"x" * 50_000)], to=b"to"))
            size += 50_000
        cluster[A].turn()
    assert MAX_MARKS * MARK_EVERY <= size < (MAX_MARKS + 1) * MARK_EVERY
    assert not hubs[1].writable(b"to")
    cluster.client(A, account=TWO).publish(b"to", b"x")
    assert cluster[A].hub.turn.overrun is not None, "publishers wait, too"
    cluster.settle()
    assert all(hub.writable(b"to") for hub in hubs)


# ---------------------------------------------------------------------- connections
def test_a_node_that_comes_learns_the_interest_of_all_accounts_and_takes_it_along_when_it_goes() -> None:
    cluster = Cluster(A, B, connected=False, accounts=[ONE, TWO])
    for account in ACCOUNTS:
        cluster.client(B, account=account).subscribe(b"x." + account.encode())
    cluster.connect(A, B)
    cluster.settle()
    for account in ACCOUNTS:
        reached = [one for one in ACCOUNTS if cluster[A].accounts.of(account).hub.interest(b"x." + one.encode())]
        assert reached == [account]
    assert [(account, sub.subject) for account, sub in cluster[A].routes.nodes[B].subscriptions] == [
        (account, b"x." + account.encode()) for account in ACCOUNTS
    ]
    cluster.disconnect(A, B)
    assert all(len(account.hub.interest_graph) == 0 for account in cluster[A].accounts)


def test_an_account_that_a_node_has_not_heard_of_is_kept_for_when_it_has() -> None:
    cluster = Cluster(A, B)
    there = cluster.client(B, account="LATER")
    there.subscribe(b"x")
    cluster.settle()
    assert cluster[A].accounts.get("LATER") is not None
    assert cluster.client(A, account="LATER").publish(b"x", b"1")
    cluster.settle()
    assert there.payloads == [b"1"]


def test_very_many_subscribers_in_several_accounts_are_taken_in_and_forgotten_over_several_turns() -> None:
    cluster = Cluster(A, B, connected=False, accounts=[ONE, TWO])
    clients = {account: cluster.client(B, account=account) for account in ACCOUNTS}
    for account, client in clients.items():
        for number in range(CHANGES_IN_A_BUFFER + 300):
            client.subscribe(b"%s.%d.*" % (account.encode(), number))
    cluster.connect(A, B)
    here = {account: cluster.client(A, account=account) for account in ACCOUNTS}
    for client in here.values():
        client.subscribe(b"x")
    cluster.settle()
    cluster.disconnect(A, B)
    cluster.settle()
    assert all(len(account.hub.interest_graph) <= 1 for account in cluster[A].accounts)
    cluster.connect(A, B)
    cluster.arrive(A, B)
    for account, client in clients.items():
        client.publish(b"x", b"from " + account.encode())
    cluster[B].turn()
    cluster.arrive(B, A)
    counts = [len(cluster[A].accounts.of(account).hub.interest_graph) for account in ACCOUNTS]
    assert sum(counts) == CHANGES_IN_A_BUFFER + len(ACCOUNTS), "not all in one turn"
    cluster.settle()
    assert {account: client.payloads for account, client in here.items()} == {
        account: [b"from " + account.encode()] for account in ACCOUNTS
    }
    total = len(ACCOUNTS) * (CHANGES_IN_A_BUFFER + 300)
    assert len(cluster[A].routes.nodes[B].subscriptions) == total
    cluster[A].look_ns = SLICE_NS // 100
    cluster.disconnect(A, B)
    left = sum(len(account.hub.interest_graph) for account in cluster[A].accounts)
    assert left == total - 101 + len(ACCOUNTS), "as many as the slice of one turn has time for"


# ---------------------------------------------------------------------- a node of an older version
def test_a_node_that_knows_no_accounts_is_sent_nothing_of_them(capfd: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster(A, B, C, connected=False, accounts=[ONE], old=[B])
    for name in (A, C):
        cluster.client(name, account=ONE).subscribe(b"x")
        cluster.client(name).subscribe(b"x")
    for pair in ((A, B), (A, C), (B, C)):
        cluster.connect(*pair)
    cluster.settle()
    old = cluster.client(B)
    assert old.publish(b"x")
    here = cluster.client(A, account=ONE)
    for number in range(3):
        here.subscribe(b"y.%d" % number)
        cluster.client(A).subscribe(b"y.%d" % number)
        here.publish(b"x", b"%d" % number)
        cluster.client(A).publish(b"x")
        cluster.settle()
    assert cluster[B].hub.interest(b"y.2")
    assert cluster[C].accounts.of(ONE).hub.interest(b"y.2")
    records = [record for buffer in sent(cluster, A, B) for record in buffer]
    assert records
    assert not [record for record in records if type(record) is Within]
    cluster.disconnect(A, B)
    cluster.connect(A, B)
    warnings = [line for line in capfd.readouterr().err.splitlines() if "[WRN]" in line]
    assert len(warnings) == 2, "once for a node, here and on C"
    assert all(f"{B} runs a version" in line and "knows no accounts" in line for line in warnings)


def test_a_node_that_knows_no_accounts_is_no_trouble_where_there_are_none(capfd: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster(A, B, connected=False, old=[B])
    cluster.client(A, account="$SYS").subscribe(b"$SYS.REQ.>")
    there = cluster.client(B)
    there.subscribe(b"x")
    cluster.connect(A, B)
    cluster.settle()
    assert cluster.client(A).publish(b"x")
    cluster.settle()
    assert len(there.got) == 1
    assert not [record for buffer in sent(cluster, A, B) for record in buffer if type(record) is Within]
    assert "[WRN]" not in capfd.readouterr().err


# ---------------------------------------------------------------------- a node without JetStream
def asked(cluster: Cluster) -> list[tuple[str, str, bytes]]:
    """Have nodes B and C take API requests in all accounts; return the list of (node, account, payload)."""
    answered: list[tuple[str, str, bytes]] = []
    for name in (B, C):
        for account in STORING:

            def handler(
                subject: bytes,
                reply: bytes,
                header: bytes,
                payload: bytes,
                client: ClientInfo,
                name: str = name,
                account: str = account,
            ) -> None:
                answered.append((name, account, payload))
                cluster[name].accounts.of(account).hub.send(Single(reply, payload=payload))

            cluster[name].accounts.of(account).hub.subscribe(b"$JS.API.>", singly(handler), local=True)
    return answered


def test_api_requests_of_a_node_without_jetstream_go_on_in_their_account(cluster: Cluster) -> None:
    answered = asked(cluster)
    directory = Directory()
    ApiRelay(cluster[A].accounts, cluster[A].routes, directory)
    clients = {account: cluster.client(A, account=account) for account in STORING}
    for client in clients.values():
        client.subscribe(b"_INBOX.*")
        assert not client.publish(b"$JS.API.INFO", b"?", b"_INBOX.1")
    directory.become(B, C)
    for number in range(30):
        for account, client in clients.items():
            assert client.publish(b"$JS.API.INFO", b"%s %d" % (account.encode(), number), b"_INBOX.1")
        cluster.settle()
    assert {account: client.payloads for account, client in clients.items()} == {
        account: [b"%s %d" % (account.encode(), number) for number in range(30)] for account in STORING
    }
    assert {name for name, _, _ in answered} == {B, C}
    assert all(payload.startswith(account.encode()) for _, account, payload in answered)


def test_api_requests_of_an_account_without_jetstream_have_no_responders(cluster: Cluster) -> None:
    answered = asked(cluster)
    directory = Directory()
    ApiRelay(cluster[A].accounts, cluster[A].routes, directory)
    directory.become(B, C)
    client = cluster.client(A)
    client.subscribe(b"_INBOX.*")
    client.publish(b"$JS.API.INFO", b"?", b"_INBOX.1")
    cluster.settle()
    assert (client.alone, answered) == ([(b"$JS.API.INFO", b"_INBOX.1")], [])


def test_api_requests_that_an_account_makes_of_another_one_are_not_passed_on_as_its_own(cluster: Cluster) -> None:
    answered = asked(cluster)
    directory = Directory()
    ApiRelay(cluster[A].accounts, cluster[A].routes, directory)
    directory.become(B, C)
    account = cluster[A].accounts.of(ONE)
    account.configure(
        AccountOptions(name=ONE, jetstream=UNLIMITED, imports=(ServiceImport(account=TWO, subject="$JS.API.>"),)), None
    )
    for name in (ONE, TWO):
        cluster.client(A, account=name).publish(b"$JS.API.INFO", b"?", b"_INBOX.1")
    cluster.settle()
    assert [(name, payload) for _, name, payload in answered] == [(TWO, b"?")]


def test_an_import_of_one_api_subject_is_the_only_answer_where_an_account_has_no_streams(cluster: Cluster) -> None:
    directory, subject = Directory(), b"$JS.API.CONSUMER.INFO.S.c"
    here = cluster[A].accounts
    ApiRelay(here, cluster[A].routes, directory)
    directory.become(B, C)
    here.put(AccountOptions(name=TWO, exports=(ServiceExport(subject=subject.decode()),)))
    here.put(AccountOptions(name=DEFAULT, imports=(ServiceImport(account=TWO, subject=subject.decode()),)))
    client, exporter = cluster.client(A), cluster.client(A, account=TWO)
    client.subscribe(b"_INBOX.*")
    exporter.subscribe(subject)
    for asked in (subject, b"$JS.API.STREAM.NAMES"):
        client.publish(asked, b"?", b"_INBOX.1")
    cluster.settle()
    assert exporter.payloads == [b"?"]
    assert client.alone == [(b"$JS.API.STREAM.NAMES", b"_INBOX.1")]


def test_api_requests_of_another_account_do_not_go_to_a_node_that_knows_none() -> None:
    cluster = Cluster(A, B, C, accounts=[ONE, TWO], old=[B])
    answered = asked(cluster)
    directory = Directory()
    ApiRelay(cluster[A].accounts, cluster[A].routes, directory)
    directory.become(B, C)
    for number in range(30):
        cluster.client(A, account=ONE).publish(b"$JS.API.INFO", b"%d" % number)
    cluster.settle()
    assert answered == [(C, ONE, b"%d" % number) for number in range(30)]
