"""Tests of SQL requests between nodes: the node that answers learns who asks."""

from __future__ import annotations

import pytest

from lakestream.ports import ClientInfo, Single
from lakestream.protocol import headers, sql
from lakestream.protocol.client import Sight
from lakestream.protocol.publishes import NOTHING_APART, run_of
from tests.unit.route_world import DEFAULT, A, B, Client, Cluster, pub

pytestmark = pytest.mark.unit

SEES = (Sight(("orders.eu.>",), ("orders.eu.secret",)),)
ASKS = ClientInfo(id=7, host="h", account=DEFAULT, user="eu", sees=SEES, roles=("eu", "tag:t"))
FORGED = headers.build([(sql.REQUESTER, b"{}"), (b"X", b"1")])
ROUTER = ClientInfo(id=0, host="", account=DEFAULT, name=A, kind="Router")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(A, B)


def asked(client: Client) -> list[tuple[sql.SqlUser | None, bytes | None]]:
    """Return who asked each request, as the service of the node sees it, and another header of it."""
    return [(sql.requester(header, ROUTER), headers.get(header, b"X")) for _, (_, _, header, _) in client.got]


def test_a_request_has_who_asks_in_the_place_of_what_the_client_wrote(cluster: Cluster) -> None:
    service = cluster.client(B)
    service.subscribe(b"$LAKE.API.SQL", b"sql")
    cluster.settle()
    hub = cluster[A].accounts.of(DEFAULT).hub
    for header in (b"", FORGED):
        hub.route(None, ASKS, Single(b"$LAKE.API.SQL", b"_INBOX.1", header, b"SELECT 1"))
    cluster.settle()
    who = sql.SqlUser("eu", SEES, ("eu", "tag:t"))
    assert asked(service) == [(who, None), (who, b"1")]


def test_the_requests_of_a_run_have_it_too(cluster: Cluster) -> None:
    service = cluster.client(B)
    service.subscribe(b"$LAKE.API.SQL.*", b"sql")
    cluster.settle()
    run = run_of(pub(b"$LAKE.API.SQL.ORDERS", b"_INBOX.1", b"SELECT 1") * 3, NOTHING_APART)
    assert not list(cluster[A].accounts.of(DEFAULT).hub.route_run(None, ASKS, run, 0, 3))
    cluster.settle()
    assert asked(service) == [(sql.SqlUser("eu", SEES, ("eu", "tag:t")), None)] * 3


@pytest.mark.parametrize(
    "client",
    [
        ROUTER,
        ClientInfo(id=0, host="", account=DEFAULT, kind="Leafnode"),
        ClientInfo(id=0, host="", account=DEFAULT, kind="System"),
        ClientInfo(id=7, host="", account=DEFAULT, answers=True),
    ],
    ids=["a node that says nothing", "a hub of this leaf node", "a delivery", "an answer"],
)
def test_nobody_asks_without_a_name(client: ClientInfo) -> None:
    assert sql.requester(b"", client) is None
    if client is not ROUTER:
        assert sql.requester(FORGED, client) is None


def test_nobody_asks_another_node_either(cluster: Cluster) -> None:
    """A hub's user asks no node of a cluster that is its leaf node, whichever node has the connection."""
    service = cluster.client(B)
    service.subscribe(b"$LAKE.API.SQL", b"sql")
    cluster.settle()
    of_the_hub = ClientInfo(id=0, host="", account=DEFAULT, kind="Leafnode")
    cluster[A].accounts.of(DEFAULT).hub.route(None, of_the_hub, Single(b"$LAKE.API.SQL", b"_INBOX.1", FORGED, b"x"))
    cluster.settle()
    assert asked(service) == [(None, b"1")]


def test_a_client_of_this_node_is_who_it_is(cluster: Cluster) -> None:
    assert sql.requester(FORGED, ASKS) == sql.SqlUser("eu", SEES, ("eu", "tag:t"))
