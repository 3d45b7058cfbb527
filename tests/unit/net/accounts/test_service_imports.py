"""Tests of requests into another account: their subjects and headers, reply paths, and missing responders."""

from __future__ import annotations

import json
import time

import pytest
from msgspec.structs import replace

from lakestream.config.account_options import AccountOptions, ServiceExport, ServiceImport
from lakestream.net.accounts.responses import Responses
from lakestream.net.accounts.service_imports import MAX_HOPS
from lakestream.ports import ListedMessages, Single, singly
from lakestream.protocol import headers, jwt
from tests.keys import account_key, activation_jwt
from tests.unit.imports_world import Client, World

pytestmark = pytest.mark.unit

SECOND = 1_000_000_000


def world(*imports: ServiceImport, **export: object) -> World:
    """Return a world in which B imports services of A, and C those of B, including one that B imports."""
    return World(
        AccountOptions(name="A", exports=(ServiceExport(subject=">", **export),)),  # type: ignore[arg-type]
        AccountOptions(name="B", imports=imports, exports=(ServiceExport(subject=">"),)),
        AccountOptions(name="C", imports=(ServiceImport(account="B", subject="one", to="c.one"),)),
    )


def asking(here: World, account: str = "B") -> Client:
    client = here.client(account)
    client.subscribe(b"inbox.*")
    return client


def asked(header: bytes) -> dict[str, object]:
    """Return the requester's data in a request's header."""
    value = headers.get(header, b"Nats-Request-Info")
    assert value is not None
    found: dict[str, object] = json.loads(value)
    return found


# ------------------------------------------------------------------------------------------------ requests
def test_a_request_comes_under_the_exporters_subject_and_its_answer_goes_back() -> None:
    here = world(ServiceImport(account="A", subject="svc.one", to="one"))
    server, client = here.client("A"), asking(here)
    server.subscribe(b"svc.*")
    assert client.publish(b"one", b"q", b"inbox.1")
    [(subject, reply, header, payload)] = server.taken()
    assert (subject, payload) == (b"svc.one", b"q")
    assert header == b'NATS/1.0\r\nNats-Request-Info: {"acc":"B","rtt":1000}\r\n\r\n'
    prefix, who, which = reply.split(b".")
    assert (prefix, len(who), len(which)) == (b"_R_", 6, 6)
    assert server.publish(reply, b"a", header=b"NATS/1.0\r\nX: 1\r\n\r\n")
    assert client.taken() == [(b"inbox.1", b"", b"NATS/1.0\r\nX: 1\r\n\r\n", b"a")]


def test_a_request_without_a_reply_has_none_there() -> None:
    here = world(ServiceImport(account="A", subject="one"))
    server, client = here.client("A"), asking(here)
    server.subscribe(b"one")
    client.publish(b"one", b"q")
    assert [reply for _, reply, _, _ in server.taken()] == [b""]
    assert here.ways("A") == 0


def test_a_client_cannot_forge_its_request_info() -> None:
    here = world(ServiceImport(account="A", subject="one"))
    server, client = here.client("A"), asking(here)
    server.subscribe(b"one")
    client.publish(b"one", header=b"NATS/1.0\r\nNats-Request-Info: spoof\r\nA: 1\r\n\r\n")
    [(_, _, header, _)] = server.taken()
    assert header == b'NATS/1.0\r\nA: 1\r\nNats-Request-Info: {"acc":"B","rtt":1000}\r\n\r\n'


def test_a_shared_import_sends_more_request_info() -> None:
    here = world(ServiceImport(account="A", subject="one", share=True))
    server, client = here.client("A"), asking(here)
    server.subscribe(b"one")
    client.info = replace(client.info, start_ns=SECOND)
    client.publish(b"one")
    assert list(asked(server.taken()[0][2]).items()) == [
        ("start", "1970-01-01T00:00:01Z"),
        ("host", "127.0.0.1"),
        ("id", 2),
        ("acc", "B"),
        ("user", "u"),
        ("name", "n"),
        ("lang", "go"),
        ("ver", "1"),
        ("rtt", 1000),
        ("server", "server-1"),
        ("cluster", "C"),
        ("kind", "Client"),
        ("client_type", "nats"),
    ]


def test_the_servers_own_listener_knows_the_account_and_the_service() -> None:
    here = world(ServiceImport(account="A", subject="one"))
    seen: list[tuple[str, str, int, str]] = []
    here.hub("A").subscribe(
        b"one", singly(lambda s, r, h, p, client: seen.append((client.account, client.service, client.id, client.kind)))
    )
    asking(here).publish(b"one")
    assert seen == [("B", "A", 0, "")]


def test_the_importers_own_subscribers_get_it_too() -> None:
    here = world(ServiceImport(account="A", subject="one"))
    server, client, other = here.client("A"), asking(here), here.client("B")
    server.subscribe(b"one")
    other.subscribe(b"one")
    client.publish(b"one", b"q", b"inbox.1")
    assert other.taken() == [(b"one", b"inbox.1", b"", b"q")]
    assert server.subjects == [b"one"]


def test_a_queue_group_of_servers_shares_the_requests() -> None:
    here = world(ServiceImport(account="A", subject="one"))
    client, servers = asking(here), [here.client("A"), here.client("A")]
    for server in servers:
        server.subscribe(b"one", b"workers")
    for _ in range(40):
        client.publish(b"one", b"", b"inbox.1")
    counts = [len(server.taken()) for server in servers]
    assert sum(counts) == 40
    assert all(counts)


def test_an_exporters_own_request_stays_in_its_account() -> None:
    here = world(ServiceImport(account="A", subject="one"))
    server, client = here.client("A"), asking(here)
    client.subscribe(b"one")
    server.publish(b"one")
    server.publish(b"inbox.1", b"not for you")
    assert client.taken() == []


# ------------------------------------------------------------------------------------------------ answers
@pytest.mark.parametrize(
    ("response", "came"),
    [
        ("singleton", [b"1"]),
        ("stream", [b"1", b"2", b"3", b""]),
        ("chunked", [b"1", b"2", b"3", b""]),
    ],
)
def test_how_many_answers_there_are(response: str, came: list[bytes]) -> None:
    """An empty message without headers ends a stream of answers, in parts or not (as measured with nats-server)."""
    here = world(ServiceImport(account="A", subject="one"), response=response)
    server, client = here.client("A"), asking(here)
    server.subscribe(b"one")
    client.publish(b"one", b"q", b"inbox.1")
    reply = server.taken()[0][1]
    for payload in (b"1", b"2", b"3", b"", b"late"):
        server.publish(reply, payload)
    assert [payload for _, _, _, payload in client.taken()] == came
    assert here.ways("A") == 0


def test_a_status_does_not_end_a_stream_of_answers() -> None:
    here = world(ServiceImport(account="A", subject="one"), response="stream")
    server, client = here.client("A"), asking(here)
    server.subscribe(b"one")
    client.publish(b"one", b"q", b"inbox.1")
    reply = server.taken()[0][1]
    server.publish(reply, b"", header=b"NATS/1.0 100 Idle Heartbeat\r\n\r\n")
    server.publish(reply, b"2")
    assert len(client.taken()) == 2


def test_an_answer_may_ask_back() -> None:
    here = world(ServiceImport(account="A", subject="one"))
    server, client = here.client("A"), asking(here)
    server.subscribe(b"one")
    server.subscribe(b"more.*")
    client.publish(b"one", b"q", b"inbox.1")
    server.publish(server.taken()[0][1], b"a", b"more.1")
    [(subject, reply, _, payload)] = client.taken()
    assert (subject, payload) == (b"inbox.1", b"a")
    assert reply.startswith(b"_R_.")
    client.publish(reply, b"b")
    assert server.taken() == [(b"more.1", b"", b"", b"b")]
    client.publish(reply, b"once more")
    assert server.taken() == []


@pytest.mark.parametrize("kept", [b"$JS.ACK.S.c.1.1.1.1.1", b"$JS.FC.S.c.1"])
def test_an_acknowledgement_keeps_its_subject(kept: bytes) -> None:
    here = world(ServiceImport(account="A", subject="one"), response="stream")
    server, client = here.client("A"), asking(here)
    server.subscribe(b"one")
    client.publish(b"one", b"q", b"inbox.1")
    reply = server.taken()[0][1]
    here.hub("A").send(Single(reply, kept, payload=b"x"))
    here.hub("A").send(ListedMessages([Single(b"s.1", kept, b"", b"y")], to=reply))
    assert [(subject, reply) for subject, reply, _, _ in client.taken()] == [(b"inbox.1", kept), (b"s.1", kept)]


def test_a_batch_of_answers_comes_under_the_requesters_subject() -> None:
    """A batch of answers arrives under the requester's subject, as for batched direct gets.

    Deliveries of a consumer have subjects of their own.
    """
    here = world(ServiceImport(account="A", subject="one"), response="stream")
    server, client = here.client("A"), asking(here)
    server.subscribe(b"one")
    client.publish(b"one", b"q", b"inbox.1")
    reply = server.taken()[0][1]
    assert here.hub("A").send(
        ListedMessages([Single(reply, payload=b"1"), Single(b"stored", payload=b"2"), Single(reply)], to=reply)
    )
    assert client.subjects == [b"inbox.1", b"stored", b"inbox.1"]
    assert here.ways("A") == 1


# ------------------------------------------------------------------------------------------------ through several
def test_a_request_may_go_through_several_accounts() -> None:
    here = world(ServiceImport(account="A", subject="svc.one", to="one"))
    server, between, client = here.client("A"), here.client("B"), asking(here, "C")
    server.subscribe(b"svc.one")
    between.subscribe(b"one")
    client.publish(b"c.one", b"q", b"inbox.1")
    assert asked(between.taken()[0][2]) == {"acc": "C", "rtt": 1000}
    [(_, reply, header, _)] = server.taken()
    assert list(asked(header).items()) == [("acc", "C"), ("svc", "B"), ("rtt", 1000)]
    server.publish(reply, b"a")
    assert client.taken() == [(b"inbox.1", b"", b"", b"a")]
    assert (here.ways("A"), here.ways("B")) == (0, 0)


def test_an_account_may_import_from_itself() -> None:
    """A request to an account that imports from itself passes once (as measured with nats-server)."""
    here = World(
        AccountOptions(
            name="A",
            exports=(ServiceExport(subject="x"),),
            imports=(ServiceImport(account="A", subject="x"), ServiceImport(account="A", subject="x", to="y")),
        )
    )
    client, server = asking(here, "A"), here.client("A")
    server.subscribe(b"x")
    server.subscribe(b"y")
    for subject in (b"x", b"y"):
        client.publish(subject, b"q", b"inbox.1")
        seen = sorted((subject, reply[:4]) for subject, reply, _, _ in server.taken())
        assert seen == [(b"x", b"_R_."), (subject, b"inbo")]


def test_a_ring_of_imports_ends() -> None:
    """A request in a cycle of imports ends, although configuration checks refuse cycles."""
    here = World(
        AccountOptions(
            name="A", exports=(ServiceExport(subject=">"),), imports=(ServiceImport(account="B", subject="x"),)
        ),
        AccountOptions(
            name="B", exports=(ServiceExport(subject=">"),), imports=(ServiceImport(account="A", subject="x"),)
        ),
    )
    client, server = asking(here, "A"), here.client("A")
    server.subscribe(b"x")
    client.publish(b"x", b"q", b"inbox.1")
    assert len(server.taken()) == MAX_HOPS + 1


# ------------------------------------------------------------------------------------------------ no responders
def test_no_responders_names_the_requested_subject() -> None:
    here = world(ServiceImport(account="A", subject="svc.one", to="one"))
    client = asking(here)
    client.publish(b"one", b"q", b"inbox.1")
    assert client.alone == [(b"one", b"inbox.1")]
    assert here.ways("A") == 0


def test_no_responders_at_the_end_of_several_accounts() -> None:
    here = world(ServiceImport(account="A", subject="svc.one", to="one"))
    client = asking(here, "C")
    client.publish(b"c.one", b"q", b"inbox.1")
    assert client.alone == [(b"c.one", b"inbox.1")]
    assert (here.ways("A"), here.ways("B")) == (0, 0)


@pytest.mark.parametrize("queue", [b"", b"workers"])
def test_a_subscriber_on_the_way_counts_as_a_responder(queue: bytes) -> None:
    """A subscriber on the way counts as a responder.

    A subscriber in the importer's account, or one in between, gets the request, whether or not it answers (as measured
    with nats-server).
    """
    here = world(ServiceImport(account="A", subject="svc.one", to="one"))
    for account, subject in (("B", b"one"), ("C", b"c.one")):
        client = asking(here, account)
        here.client("B").subscribe(b"one", queue)
        client.publish(subject, b"q", b"inbox.1")
        assert client.alone == []


@pytest.mark.parametrize("order", [("A", "B"), ("B", "A")])
def test_imports_that_overlap_report_no_responders_once_and_only_when_none_has_any(order: tuple[str, str]) -> None:
    several = World(
        *(AccountOptions(name=name, exports=(ServiceExport(subject=">"),)) for name in ("A", "B")),
        AccountOptions(name="C", imports=tuple(ServiceImport(account=name, subject="svc.one") for name in order)),
        AccountOptions(
            name="D", exports=(ServiceExport(subject=">"),), imports=(ServiceImport(account="A", subject=">"),)
        ),
        AccountOptions(
            name="E",
            imports=(ServiceImport(account="B", subject="svc.*"), ServiceImport(account="D", subject="svc.one")),
        ),
    )
    for account in ("C", "E"):
        client = asking(several, account)
        client.publish(b"svc.one", b"q", b"inbox.1")
        assert client.alone == [(b"svc.one", b"inbox.1")]
    served = several.client("A")
    served.subscribe(b"svc.one")
    for account in ("C", "E"):
        client = asking(several, account)
        client.publish(b"svc.one", b"q", b"inbox.1")
        assert (client.alone, len(served.taken())) == ([], 1)


def test_a_requester_that_has_gone_is_no_interest() -> None:
    """A requester without its subscription is no interest.

    Its pull requests are dropped, and batches find no receiver.
    """
    here = world(ServiceImport(account="A", subject="one"), response="stream")
    server, client = here.client("A"), here.client("B")
    server.subscribe(b"one")
    sub = client.subscribe(b"inbox.1")
    client.publish(b"one", b"q", b"inbox.1")
    reply = server.taken()[0][1]
    assert here.hub("A").interest(reply)
    here.hub("B").leave(sub)
    assert not here.hub("A").interest(reply)
    assert not here.hub("A").send(ListedMessages([Single(b"s", payload=b"x")], to=reply))
    assert here.ways("A") == 0
    assert not here.hub("A").interest(reply)


def test_an_answer_without_a_subscriber_closes_its_reply_path() -> None:
    here = world(ServiceImport(account="A", subject="one"), response="stream")
    server, client = here.client("A"), here.client("B")
    server.subscribe(b"one")
    client.publish(b"one", b"q", b"nobody.here")
    assert here.ways("A") == 1
    server.publish(server.taken()[0][1], b"a")
    assert here.ways("A") == 0


def test_a_missing_responder_on_another_node_is_reported() -> None:
    """A missing responder on another node is reported to the requester.

    The report arrives at the exporter's hub and concerns the requester in the other account.
    """
    here = world(ServiceImport(account="A", subject="svc.one", to="one"))
    server, client = here.client("A"), asking(here)
    sub = server.subscribe(b"svc.one")
    client.publish(b"one", b"q", b"inbox.1")
    reply = server.taken()[0][1]
    here.hub("A").leave(sub)
    here.hub("A").undelivered(b"svc.one", reply)
    assert client.alone == [(b"one", b"inbox.1")]


def test_a_slow_requester_holds_what_is_delivered_to_it() -> None:
    here = world(ServiceImport(account="A", subject="one"), response="stream")
    server, client, told = here.client("A"), asking(here), list[bool]()
    server.subscribe(b"one")
    client.publish(b"one", b"q", b"inbox.1")
    reply, hub = server.taken()[0][1], here.hub("A")
    assert hub.writable(reply)
    assert hub.slow_receiver(reply) is None
    client.congested = True
    assert not hub.writable(reply)
    assert hub.slow_receiver(reply) is client
    hub.when_writable(reply, lambda: told.append(True))
    client.drain()
    here.clock.turn()
    assert told == [True]


# ------------------------------------------------------------------------------------------------ expiry and limits
@pytest.mark.parametrize("response", ["singleton", "stream", "chunked"])
def test_a_way_that_rests_too_long_is_closed(response: str) -> None:
    here = world(ServiceImport(account="A", subject="one"), response=response, threshold_ns=SECOND)
    server, client = here.client("A"), asking(here)
    server.subscribe(b"one")
    client.publish(b"one", b"q", b"inbox.1")
    reply = server.taken()[0][1]
    here.clock.advance(SECOND - 1)
    assert here.ways("A") == 1
    if response != "singleton":
        server.publish(reply, b"1")
        here.clock.advance(SECOND - 1)
        assert here.ways("A") == 1
        assert len(client.taken()) == 1
    here.clock.advance(1)
    assert here.ways("A") == 0
    server.publish(reply, b"late")
    assert client.taken() == []


def test_ways_with_different_thresholds_close_each_in_its_time() -> None:
    here = World(
        AccountOptions(
            name="A",
            exports=tuple(
                ServiceExport(subject=f"s{seconds}", threshold_ns=seconds * SECOND, response="stream")
                for seconds in (5, 1, 3)
            ),
        ),
        AccountOptions(name="B", imports=tuple(ServiceImport(account="A", subject=f"s{n}") for n in (1, 3, 5))),
    )
    server, client = here.client("A"), asking(here)
    server.subscribe(b"*")
    for subject in (b"s5", b"s1", b"s3"):
        client.publish(subject, b"", b"inbox.1")
    left = []
    for _ in range(6):
        here.clock.advance(SECOND)
        left.append(here.ways("A"))
    assert left == [2, 2, 1, 1, 0, 0]
    assert not [timer for timer in here.clock.timers if not timer.cancelled]


def test_beyond_the_cap_the_way_that_has_rested_longest_is_closed() -> None:
    here = world(ServiceImport(account="A", subject="one"), response="stream")
    ways, back = Responses(here.hub("A"), here.clock, max_paths=3), here.links.responses["B"]
    asking(here)
    opened = []
    for n in range(3):
        here.clock.advance(1)
        opened.append(ways.open(back, b"one", b"inbox.%d" % n, "stream", SECOND))
    here.clock.advance(1)
    here.hub("A").send(Single(opened[0], payload=b"used"))
    opened.append(ways.open(back, b"one", b"inbox.3", "stream", SECOND))
    assert [subject in dict(ways) for subject in opened] == [True, False, True, True]


# ------------------------------------------------------------------------------------------------ configuration
def test_a_reload_adds_and_removes_services() -> None:
    here = world()
    server, client = here.client("A"), asking(here)
    server.subscribe(b"one")
    exports = AccountOptions(name="A", exports=(ServiceExport(subject="one", response="stream"),))
    assert not client.publish(b"one", b"", b"inbox.1")
    here.configure(exports, AccountOptions(name="B", imports=(ServiceImport(account="A", subject="one"),)))
    assert client.publish(b"one", b"", b"inbox.1")
    reply = server.taken()[0][1]
    here.configure(exports, AccountOptions(name="B"))
    assert not client.publish(b"one", b"", b"inbox.1")
    server.publish(reply, b"an answer under way")
    assert [payload for _, _, _, payload in client.taken()] == [b"an answer under way"]


def test_the_export_of_just_this_subject_says_how_it_is_answered() -> None:
    here = World(
        AccountOptions(
            name="A",
            exports=(ServiceExport(subject="s.>"), ServiceExport(subject="s.many", response="stream")),
        ),
        AccountOptions(name="B", imports=(ServiceImport(account="A", subject="s.many"),)),
    )
    server, client = here.client("A"), asking(here)
    server.subscribe(b"s.many")
    client.publish(b"s.many", b"", b"inbox.1")
    reply = server.taken()[0][1]
    server.publish(reply, b"1")
    server.publish(reply, b"2")
    assert len(client.taken()) == 2


def test_a_service_import_is_this_nodes_own() -> None:
    """A service import is local to its node.

    The other nodes have the same import and must not send this one their clients' requests.
    """
    here = world(ServiceImport(account="A", subject="one"))
    [sub] = [sub for sub in here.hub("B").interest_graph.subscriptions() if sub.subject == b"one"]
    assert sub.local
    [way] = [sub for sub in here.hub("A").interest_graph.subscriptions() if sub.subject.startswith(b"_R_.")]
    assert not way.local


# ------------------------------------------------------------------------------------------------ activations
def activated(ends_s: int) -> World:
    """Return a world in which B imports a service of A by a token that ends then."""
    exporter = account_key("exporter")
    token = activation_jwt("B", exporter, "svc", "service", claims={"exp": ends_s})
    return World(
        AccountOptions(name="A", exports=(ServiceExport(subject="svc", activated=True),)),
        AccountOptions(
            name="B",
            imports=(ServiceImport(account="A", subject="svc", activation=jwt.decode(token, jwt.Activation)),),
        ),
    )


def served(here: World) -> bool:
    """Return True if a request of B reaches A."""
    server = here.client("A")
    server.subscribe(b"svc")
    asking(here).publish(b"svc", b"q", b"inbox.1")
    return bool(server.taken())


@pytest.mark.parametrize("early_ns", [0, 1, SECOND // 1000])
def test_an_activation_ends_although_its_timer_fires_early_and_accounts_change(early_ns: int) -> None:
    """An end that passed while imports were connected was never seen: the next timer was set past it."""
    ends_s = time.time_ns() // SECOND + 10
    here = activated(ends_s)
    assert served(here)
    slow = here.clock.now

    def now() -> int:
        here.clock.time += SECOND // 4000  # each look at the clock is a little later
        return slow()

    here.clock.now = now  # type: ignore[method-assign]
    here.clock.time = ends_s * SECOND - early_ns
    here.links.changed([here.accounts.of("A")])
    here.clock.advance(0)
    here.clock.advance(SECOND // 100)
    assert not served(here)


def test_timers_of_activations_end_with_the_accounts() -> None:
    ends_s = time.time_ns() // SECOND + 10
    here = activated(ends_s)
    here.configure(AccountOptions(name="A"))
    here.clock.time = ends_s * SECOND
    here.clock.advance(SECOND)
    here.clock.advance(SECOND)
    assert not [timer for timer in here.clock.timers if not timer.cancelled]
