"""Tests of accounts in a cluster of real processes: messages reach every node in their account and no other account.

`--against real` tries these tests on three nats-servers.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import ConsumerConfig

from tests.cluster.conftest import StartCluster
from tests.cluster.nodes import SYSTEM_USER, Cluster, Node, until
from tests.cluster.test_routing import connect_urls, drained, got, request_status, told, untold
from tests.conformance.scenarios.callouts import ISSUER, accepted
from tests.keys import claims_of
from tests.servers import Kind
from tests.wire import Closed, Wire, WireTimeout

pytestmark = pytest.mark.cluster

_numbers = itertools.count(1)

ACCOUNTS = """\
  A {
    users: [{user: a, password: p}], jetstream: enabled
    exports: [
      {stream: "ev.>"}, {service: "svc.>"}, {service: "many.>", response_type: stream}
      {service: "$JS.API.>", response_type: stream}, {service: "$JS.ACK.>"}, {stream: "dlv.>"}
    ]
  }
  B {
    users: [{user: b, password: p}], jetstream: enabled
    imports: [
      {stream: {account: A, subject: "ev.>"}, prefix: "from.a"}
      {service: {account: A, subject: "svc.>"}, to: "a.svc.>"}, {service: {account: A, subject: "many.>"}}
      {service: {account: A, subject: "$JS.API.>"}, to: "$JS.far.API.>"}, {service: {account: A, subject: "$JS.ACK.>"}}
      {stream: {account: A, subject: "dlv.>"}}
    ]
  }
  NOJS { users: [{user: n, password: p}] }
"""
"""Accounts shared by the tests: two with JetStream, the second importing from the first, and one without."""

USER = ("a", "A")


@pytest.fixture(scope="module")
def routes(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield three connected nodes without JetStream."""
    cluster = Cluster(kind, tmp_path_factory.mktemp("accounts"), 3, accounts=ACCOUNTS, user=USER)
    for node in cluster.nodes:
        node.jetstream = False
        node.start()
    until(lambda: all(len(connect_urls(cluster, node)) == 3 for node in cluster.nodes), "three connected nodes")
    yield cluster
    cluster.kill()


@pytest.fixture(scope="module")
def cluster(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield three nodes with JetStream, used as user `a`."""
    made = Cluster(kind, tmp_path_factory.mktemp("streams"), 3, accounts=ACCOUNTS, user=USER)
    made.start()
    yield made
    made.kill()


def users(cluster: Cluster, user: str) -> tuple[Wire, Wire, Wire]:
    """Return a client of this user on each node."""
    a, b, c = (cluster.wire(node, user=user) for node in cluster.nodes)
    return a, b, c


def unused(name: str = "s") -> str:
    """Return a subject that no other test uses."""
    return f"{name}.{next(_numbers)}"


def close(*wires: Wire) -> None:
    for wire in wires:
        wire.close()


# ---------------------------------------------------------------------- publish, subscribe, request
def test_every_subscriber_of_the_account_hears_a_message_and_nobody_else(routes: Cluster) -> None:
    subject = unused()
    a, b, n = (users(routes, user) for user in "abn")
    sids = [(wire, wire.subscribe(subject)) for wire in (*a, *b, *n)]
    told(*a)
    told(*b)
    told(*n)
    for number in range(50):
        a[0].publish(subject, b"a%d" % number)
        b[1].publish(subject, b"b%d" % number)
    for wires, letter in ((a, b"a"), (b, b"b")):
        for wire, sid in sids:
            if wire in wires:
                assert got(wire, sid, 50) == [b"%s%d" % (letter, number) for number in range(50)]
    for wire, _ in sids:
        assert drained(wire) == []
    close(*a, *b, *n)


def test_queue_groups_of_one_name_in_two_accounts_are_two(routes: Cluster) -> None:
    subject = unused("work")
    a, b = users(routes, "a"), users(routes, "b")
    for wire in (*a, *b):
        wire.subscribe(subject, "g")
    told(*a)
    told(*b)
    for number in range(300):
        a[number % 3].publish(subject, b"a%d" % number)
        b[0].publish(subject, b"b%d" % number)
    for wires, letter in ((a, b"a"), (b, b"b")):
        members = [drained(wire) for wire in wires]
        assert all(members), "each member has the same chance"
        assert sorted(itertools.chain(*members)) == sorted(b"%s%d" % (letter, number) for number in range(300))
    close(*a, *b)


def test_a_request_is_answered_in_its_account_and_unheard_in_another(routes: Cluster) -> None:
    subject = unused("ask")
    (a, other, _), b = users(routes, "a"), users(routes, "b")
    sid = a.subscribe(subject)
    told(a, other)
    inbox = "_INBOX.once"
    other.subscribe(inbox)
    other.publish(subject, b"?", inbox)
    frame = a.delivered(sid)
    a.publish(frame.reply, b"!")
    assert other.message(inbox).data == b"!"
    told(*b)
    assert [request_status(wire, subject) for wire in b] == [503, 503, 503]
    a.unsubscribe(sid)
    untold(other, subject)
    close(a, other, *b)


def test_a_subscription_with_a_maximum_ends_for_its_account_on_all_nodes(routes: Cluster) -> None:
    subject = unused()
    a, b = users(routes, "a"), users(routes, "b")
    sid = a[1].subscribe(subject)
    a[1].unsubscribe(sid, 3)
    b[1].subscribe(subject)
    told(*a)
    told(*b)
    for number in range(5):
        a[0].publish(subject, b"%d" % number)
    untold(a[0], subject)
    assert drained(a[1]) == [b"0", b"1", b"2"]
    assert request_status(b[0], subject) == 0
    close(*a, *b)


# ---------------------------------------------------------------------- imports over a route
def test_an_imported_stream_is_heard_on_every_node_once_wherever_it_was_published(routes: Cluster) -> None:
    subject = unused("ev")
    a, b = users(routes, "a"), users(routes, "b")
    own = [(wire, wire.subscribe(subject)) for wire in a]
    imported = [(wire, wire.subscribe(filter_)) for wire in b for filter_ in (f"from.a.{subject}", "from.a.ev.*")]
    told(*a)
    told(*b)
    until(lambda: all(request_status(wire, subject) == 0 for wire in a), "interest in the exporter's account")
    for wire in a:
        drained(wire)
    for wire in b:
        drained(wire)
    for number in range(30):
        a[number % 3].publish(subject, b"%d" % number)
    for wire, sid in (*own, *imported):
        assert sorted(got(wire, sid, 30), key=int) == [b"%d" % number for number in range(30)]
    for wire in (*a, *b):
        assert drained(wire) == []
    close(*a, *b)


def test_a_queue_group_of_both_accounts_on_several_nodes_gets_each_message_once(routes: Cluster) -> None:
    subject = unused("ev")
    a, b = users(routes, "a"), users(routes, "b")
    for wire in a:
        wire.subscribe(subject, "g")
    for wire in b:
        wire.subscribe(f"from.a.{subject}", "g")
    told(*a)
    told(*b)
    for number in range(300):
        a[0].publish(subject, b"%d" % number)
    members = [drained(wire) for wire in (*a, *b)]
    payloads = sorted(itertools.chain(*members))
    assert payloads == sorted(b"%d" % number for number in range(300))
    assert any(members[3:]), "members in the importing account are members"
    close(*a, *b)


def test_a_service_of_another_account_answers_from_another_node(routes: Cluster) -> None:
    subject = unused("svc")
    (service, _, watching), b = users(routes, "a"), users(routes, "b")
    sid = service.subscribe(subject)
    told(service, watching)
    for asking in b:
        until(lambda asking=asking: request_status(asking, f"a.{subject}") != 503, "the service of another account")
        drained(service)
        asking.publish(f"a.{subject}", b"?", reply := asking.new_reply())
        frame = service.delivered(sid)
        while not frame.data:
            frame = service.delivered(sid)
        assert frame.subject == subject
        assert '"acc":"B"' in frame.headers["Nats-Request-Info"]
        service.publish(frame.reply, b"!")
        assert asking.message(reply).data == b"!"
        service.publish(frame.reply, b"too late")
        with pytest.raises(WireTimeout):
            asking.message(reply, 0.2)
    service.unsubscribe(sid)
    untold(watching, subject)
    assert [request_status(asking, f"a.{subject}") for asking in b] == [503, 503, 503]
    close(service, watching, *b)


def test_a_service_with_many_answers_sends_them_all_over_the_route(routes: Cluster) -> None:
    subject = unused("many")
    (service, other, _), (_, _, asking) = users(routes, "a"), users(routes, "b")
    sid = service.subscribe(subject)
    told(service, other)
    until(lambda: request_status(asking, subject) != 503, "the service of another account")
    drained(service)
    asking.publish(subject, b"?", reply := asking.new_reply())
    frame = service.delivered(sid)
    for number in range(100):
        service.publish(frame.reply, b"%d" % number)
    assert [asking.message(reply).data for _ in range(100)] == [b"%d" % number for number in range(100)]
    close(service, other, asking)


# ---------------------------------------------------------------------- JetStream
def connected(node: Node, user: str) -> Any:
    return nats.connect(f"nats://{node.host}:{node.wanted_port}", user=user, password="p", allow_reconnect=False)


async def clients(cluster: Cluster, user: str) -> list[Client]:
    """Return a client of this user on each running node."""
    return [await connected(node, user) for node in cluster.running]


async def end(*made: Sequence[Client]) -> None:
    for client in itertools.chain(*made):
        await client.close()


async def test_streams_of_one_name_in_two_accounts_are_two(cluster: Cluster) -> None:
    a, b = await clients(cluster, "a"), await clients(cluster, "b")
    for client in (a[0], b[0]):
        made = await client.jetstream(timeout=10).add_stream(name="BOTH", subjects=["both.>"], num_replicas=3)
        assert len(made.cluster.replicas) == 2
    for number in range(30):
        assert (await a[number % 3].jetstream().publish("both.x", b"a%d" % number)).seq == number + 1
    for number in range(10):
        assert (await b[number % 3].jetstream().publish("both.x", b"b%d" % number)).seq == number + 1
    for wires, letter, count in ((a, b"a", 30), (b, b"b", 10)):
        for client in wires:
            js = client.jetstream(timeout=10)
            assert (await js.stream_info("BOTH")).state.messages == count
            sub = await js.pull_subscribe("both.>", stream="BOTH")
            assert [message.data for message in await sub.fetch(count)] == [
                b"%s%d" % (letter, number) for number in range(count)
            ]
            await sub.unsubscribe()
    assert await a[0].jetstream().delete_stream("BOTH")
    assert (await b[0].jetstream().stream_info("BOTH")).state.messages == 10
    assert await b[0].jetstream().delete_stream("BOTH")
    await end(a, b)


def test_an_account_without_jetstream_hears_so_on_every_node(cluster: Cluster) -> None:
    for node in cluster.nodes:
        with cluster.wire(node, user="n") as wire:
            answer = wire.api("INFO", None, 5.0)
            assert answer["error"]["err_code"] == 10039


async def test_a_killed_leader_takes_nothing_of_either_account_with_it(start_cluster: StartCluster) -> None:
    cluster = start_cluster(3, accounts=ACCOUNTS, user=USER)
    a, b = await clients(cluster, "a"), await clients(cluster, "b")
    for client in (a[0], b[0]):
        await client.jetstream(timeout=10).add_stream(name="S", subjects=["s.>"], num_replicas=3)
    leader = cluster.stream_leader("S")
    for number in range(50):
        assert (await a[0].jetstream().publish("s.x", b"a%d" % number)).seq == number + 1
        assert (await b[0].jetstream().publish("s.x", b"b%d" % number)).seq == number + 1
    leader.kill()
    left = [number for number, node in enumerate(cluster.nodes) if node is not leader]
    until(lambda: cluster.stream_leader("S") is not leader, "another leader")

    async def published(client: Client, data: bytes) -> int:
        async with asyncio.timeout(30):
            while True:
                try:
                    # The message id is the same each time, so that a message stored without an ack is not stored again.
                    ack = await client.jetstream(timeout=1).publish("s.x", data, headers={"Nats-Msg-Id": data.decode()})
                except (nats.errors.Error, TimeoutError):
                    continue
                return ack.seq

    assert await published(a[left[0]], b"a50") == 51
    assert await published(b[left[1]], b"b50") == 51
    leader.start()
    cluster.wait_ready()
    back = [await connected(leader, user) for user in "ab"]
    for client, letter in zip(back, (b"a", b"b"), strict=True):
        sub = await client.jetstream(timeout=10).pull_subscribe("s.>", stream="S")
        data: list[bytes] = []
        while len(data) < 51:
            data += [message.data for message in await sub.fetch(51, timeout=10)]
        assert data == [b"%s%d" % (letter, number) for number in range(51)]
    await end(back, (a[left[0]], a[left[1]], b[left[0]], b[left[1]]))


# ---------------------------------------------------------------------- JetStream over an import and a route
class Imported:
    """Stream of account A, the node that leads it, and clients of account B on all nodes."""

    def __init__(self, cluster: Cluster, replicas: int) -> None:
        self.cluster = cluster
        self.name = f"S{next(_numbers)}"
        cluster.stream(self.name, [f"{self.name}.>"], replicas)
        self.leader = cluster.stream_leader(self.name)
        self.nodes = [self.leader, *cluster.others(self.leader)]

    def fill(self, count: int) -> None:
        with self.cluster.wire(self.leader) as wire:
            for number in range(count):
                wire.publish(f"{self.name}.x", b"%d" % number, reply := wire.new_reply())
                assert wire.message(reply).json()["seq"] == number + 1


@pytest.fixture(params=[1, 3], ids=["R1", "R3"])
def imported(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Imported]:
    made = Imported(cluster, request.param)
    yield made
    cluster.api(f"STREAM.DELETE.{made.name}")


def far(wire: Wire, request: str, body: Any = None) -> Any:
    """Send an API request to account A from account B."""
    wire.api_prefix = "$JS.far.API"
    try:
        return wire.api(request, body, 5.0)
    finally:
        wire.api_prefix = "$JS.API"


def test_the_api_of_another_account_answers_on_every_node(imported: Imported) -> None:
    for node in imported.nodes:
        with imported.cluster.wire(node, user="b") as wire:
            assert far(wire, f"STREAM.INFO.{imported.name}")["config"]["name"] == imported.name
            assert far(wire, "STREAM.INFO.nope")["error"]["err_code"] == 10059
            assert imported.name not in (wire.api("STREAM.NAMES", None, 5.0)["streams"] or ())


def test_pulling_and_acknowledging_from_another_account_on_every_node(imported: Imported) -> None:
    imported.fill(60)
    config = {"name": "c", "durable_name": "c", "ack_policy": "explicit", "num_replicas": 1}
    seen: list[int] = []
    for number, node in enumerate(imported.nodes):
        with imported.cluster.wire(node, user="b") as wire:
            if not number:
                answer = far(
                    wire,
                    f"CONSUMER.CREATE.{imported.name}.c",
                    {"stream_name": imported.name, "config": config, "action": "create"},
                )
                assert "error" not in answer
            next_ = f"$JS.far.API.CONSUMER.MSG.NEXT.{imported.name}.c"
            wire.publish(next_, b'{"batch":20,"expires":5000000000}', wire.new_reply())
            for frame in [wire.delivered(wire.inbox_sid) for _ in range(20)]:
                seen.append(int(frame.data))
                wire.publish(frame.reply, b"", answered := wire.new_reply())
                assert wire.message(answered).data == b""
    assert seen == list(range(60))
    info = imported.cluster.api(f"CONSUMER.INFO.{imported.name}.c")
    assert (info["ack_floor"]["stream_seq"], info["num_ack_pending"]) == (60, 0)


def test_a_pull_that_waits_in_another_account_is_served_when_a_message_comes(imported: Imported) -> None:
    config = {"name": "c", "durable_name": "c", "ack_policy": "none", "num_replicas": 1}
    made = {"stream_name": imported.name, "config": config, "action": "create"}
    assert "error" not in imported.cluster.api(f"CONSUMER.CREATE.{imported.name}.c", made)
    for node in imported.nodes:
        with imported.cluster.wire(node, user="b") as wire, imported.cluster.wire(imported.leader) as publisher:
            next_ = f"$JS.far.API.CONSUMER.MSG.NEXT.{imported.name}.c"
            wire.publish(next_, b'{"batch":1,"expires":10000000000}', wire.new_reply())
            wire.ping()
            until(
                lambda: imported.cluster.api(f"CONSUMER.INFO.{imported.name}.c")["num_waiting"] == 1,
                "the request at the consumer",
            )
            publisher.publish(f"{imported.name}.x", node.name.encode())
            assert wire.delivered(wire.inbox_sid).data == node.name.encode()


def test_a_push_consumer_delivers_into_another_account_on_another_node(imported: Imported) -> None:
    imported.fill(200)
    subject = unused("dlv")
    with imported.cluster.wire(imported.nodes[1], user="b") as wire:
        sid = wire.subscribe(subject)
        wire.ping()
        config = {"name": "p", "deliver_subject": subject, "ack_policy": "none"}
        answer = far(
            wire,
            f"CONSUMER.CREATE.{imported.name}.p",
            {"stream_name": imported.name, "config": config, "action": "create"},
        )
        assert "error" not in answer
        frames = [wire.delivered(sid) for _ in range(200)]
        assert [int(frame.data) for frame in frames] == list(range(200))


async def test_a_leader_killed_during_a_pull_from_another_account(start_cluster: StartCluster) -> None:
    cluster = start_cluster(3, accounts=ACCOUNTS, user=USER)
    made = Imported(cluster, 3)
    made.fill(200)
    client = await connected(made.nodes[1], "b")
    js = client.jetstream(prefix="$JS.far.API", timeout=5)
    await js.add_consumer(made.name, ConsumerConfig(name="d", durable_name="d", ack_wait=5))
    sub = await js.pull_subscribe_bind("d", made.name)
    seen: set[int] = set()
    killed = False
    async with asyncio.timeout(60):
        while len(seen) < 200:
            try:
                messages = await sub.fetch(20, timeout=2)
            except (nats.errors.Error, TimeoutError):
                continue
            for message in messages:
                await message.ack()
                seen.add(int(message.data))
            if not killed and len(seen) >= 60:
                made.leader.kill()
                killed = True
    assert seen == set(range(200))
    await client.close()


def test_clients_of_a_node_without_jetstream_use_that_of_their_account(kind: Kind, tmp_path: Path) -> None:
    cluster = Cluster(kind, tmp_path, 3, accounts=ACCOUNTS, user=USER)
    bare = cluster.nodes[0]
    bare.jetstream = False
    for node in cluster.nodes:
        node.start()
    try:
        a, b, n = (cluster.wire(bare, user=user) for user in "abn")
        with a, b, n:
            until(lambda: a.api("INFO", timeout=1.0).get("api"), "an answer")

            def created(wire: Wire, description: str) -> bool:
                config = {"name": "S", "subjects": ["s.>"], "description": description}
                return "error" not in wire.api("STREAM.CREATE.S", config, timeout=1.0)

            for wire, name in ((a, "of A"), (b, "of B")):
                until(lambda wire=wire, name=name: created(wire, name), "a stream")
            for wire, name in ((a, "of A"), (b, "of B")):
                until(lambda wire=wire, name=name: wire.request("s.1", name.encode(), timeout=1.0).data, "an ack")
                assert wire.api("STREAM.INFO.S", timeout=5.0)["config"]["description"] == name
                asked = wire.api("STREAM.MSG.GET.S", {"seq": 1}, timeout=5.0)["message"]
                assert base64.b64decode(asked["data"]) == name.encode()
            assert far(b, "STREAM.INFO.S")["config"]["description"] == "of A"
            assert [request_status(n, f"$JS.API.{request}") for request in ("INFO", "STREAM.INFO.S")] == [503, 503]
    finally:
        cluster.kill()


def test_accounts_come_back_with_a_connection_between_nodes(kind: Kind, tmp_path: Path) -> None:
    cluster = Cluster(kind, tmp_path, 2, accounts=ACCOUNTS, user=USER, links=True)
    for node in cluster.nodes:
        node.jetstream = False
        node.start()
    try:
        until(lambda: all(node.page("routez")["num_routes"] for node in cluster.nodes), "connected nodes")
        wires = {user: [cluster.wire(node, user=user) for node in cluster.nodes] for user in "ab"}
        gone: dict[str, str] = {}
        for user, (here, there) in wires.items():
            told(here, there)
            gone[user] = there.subscribe("goes")
            there.subscribe(f"stays.{user}")
        for here, there in wires.values():
            told(here, there)
        cluster.reset_links(cluster.nodes[1])
        for user, (_, there) in wires.items():
            there.unsubscribe(gone[user])
            there.subscribe(f"comes.{user}")
            there.ping()
        for user, (here, _) in wires.items():
            until(lambda here=here, user=user: request_status(here, f"comes.{user}") == 0, "the new interest")
            assert request_status(here, f"stays.{user}") == 0
            untold(here, "goes")
            other = "b" if user == "a" else "a"
            assert [request_status(here, f"{what}.{other}") for what in ("stays", "comes")] == [503, 503]
        for pair in wires.values():
            close(*pair)
    finally:
        cluster.kill()


def test_an_account_that_a_reload_brings_is_heard_on_all_nodes(kind: Kind, tmp_path: Path) -> None:
    if kind is Kind.REAL:
        pytest.skip("nats-server forgets what it is told of an account that it does not have yet")
    cluster = Cluster(kind, tmp_path, 2, accounts=ACCOUNTS, user=USER)
    for node in cluster.nodes:
        node.jetstream = False
        node.start()
    try:
        one, two = cluster.nodes
        until(lambda: all(node.page("routez")["num_routes"] for node in cluster.nodes), "connected nodes")
        kept = [cluster.wire(node) for node in cluster.nodes]
        told(*kept)
        late = "  LATE { users: [{user: late, password: p}] }\n"
        cluster.configure(one, ACCOUNTS + late)
        with until(lambda: welcome(cluster, one, "late"), "the new account") as here:
            sid = here.subscribe("early.*")
            here.ping()
            # The other node learns of an account that it does not have yet.
            told(*kept)
            cluster.configure(two, ACCOUNTS + late)
            with until(lambda: welcome(cluster, two, "late"), "the new account there") as there:
                until(lambda: request_status(there, "early.ask") == 0, "interest from before the reload")
                there.publish("early.bird", b"heard")
                assert got(here, sid, 1) == [b"heard"]
                there.subscribe("s")
                told(here, there)
                assert request_status(here, "s") == 0
        told(*kept)
        close(*kept)
    finally:
        cluster.kill()


def welcome(cluster: Cluster, node: Node, user: str) -> Wire | None:
    """Connect as that user; return None if the node does not know it."""
    wire = cluster.wire(node, user=user)
    try:
        if not wire.ping():
            return wire
    except Closed:
        pass
    wire.close()
    return None


# ---------------------------------------------------------------------- auth callout
CALLOUT = f"""
authorization {{
  timeout: 5
  auth_callout {{ issuer: {ISSUER.public}, auth_users: [auth, {SYSTEM_USER["user"]}], account: AUTH }}
}}
"""


def test_a_service_decides_about_the_logins_of_every_node(kind: Kind, tmp_path: Path) -> None:
    accounts = "AUTH { users: [{user: auth, password: p}] }\nAPP {}\n"
    cluster = Cluster(kind, tmp_path, 2, accounts=accounts, user=("auth", "AUTH"), config=CALLOUT)
    try:
        for node in cluster.nodes:
            node.jetstream = False
            node.start()
        until(lambda: all(len(connect_urls(cluster, node)) == 2 for node in cluster.nodes), "two connected nodes")
        here, there = (cluster.wire(node) for node in cluster.nodes)
        here.subscribe("$SYS.REQ.USER.AUTH")
        told(here, there)
        for node in cluster.nodes:
            wire = Wire((node.host, node.wanted_port), None)
            wire.connect({"user": "bob"}, b"PING\r\n")
            frame = here.message("$SYS.REQ.USER.AUTH")
            here.publish(frame.reply, accepted(claims_of(frame.data.decode())).encode())
            wire.until("PONG")
            assert wire.told()[-1]["remote_account"] == "APP"
            wire.close()
        close(here, there)
    finally:
        cluster.kill()
