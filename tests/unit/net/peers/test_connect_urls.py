"""Tests of the connect_urls that clients get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from lakestream.net.identity import Identity, advertised
from lakestream.net.peers.cluster import ConnectUrls
from lakestream.protocol.peer_wire import NodeInfo

pytestmark = pytest.mark.unit


def info(name: str, *urls: str, lame_duck: bool = False) -> NodeInfo:
    return NodeInfo(name=name, server_id=name, client_urls=urls, lame_duck=lame_duck)


class Nodes:
    """Cluster as one node knows it."""

    def __init__(self) -> None:
        self.node = info("a", "a:1", "a:2")
        self._nodes: dict[str, NodeInfo] = {}
        self._link: Callable[[NodeInfo, bool], None]
        self._news: Callable[[NodeInfo], None]

    def nodes(self) -> dict[str, NodeInfo]:
        return self._nodes

    def watch_links(self, callback: Callable[[NodeInfo, bool], None]) -> None:
        self._link = callback

    def watch_nodes(self, callback: Callable[[NodeInfo], None]) -> None:
        self._news = callback

    def come(self, node: NodeInfo) -> None:
        self._nodes[node.name] = node
        self._link(node, True)

    def go(self, name: str) -> None:
        self._link(self._nodes.pop(name), False)

    def say(self, node: NodeInfo) -> None:
        self._nodes[node.name] = node
        self._news(node)


class World:
    def __init__(self, advertise: bool = True) -> None:
        self.nodes = Nodes()
        self.told: list[tuple[str, ...]] = []
        self.urls = ConnectUrls(self.nodes, advertise, lambda: self.told.append(self.urls.now()))


def test_a_node_alone_tells_nothing_until_it_has_met_another() -> None:
    world = World()
    assert world.urls.now() == ()
    world.nodes.come(info("b", "b:1"))
    world.nodes.go("b")
    assert world.told == [("a:1", "a:2", "b:1"), ("a:1", "a:2")]


def test_clients_hear_of_every_change_and_of_nothing_else() -> None:
    world = World()
    world.nodes.come(info("c", "c:1"))
    world.nodes.come(info("b", "b:1"))
    world.nodes.say(info("b", "b:1"))
    world.nodes.say(info("b", "b:2"))
    world.nodes.come(info("hidden"))
    assert world.told == [
        ("a:1", "a:2", "c:1"),
        ("a:1", "a:2", "b:1", "c:1"),
        ("a:1", "a:2", "b:2", "c:1"),
    ]


def test_a_node_in_lame_duck_mode_is_left_out_by_itself_too() -> None:
    world = World()
    world.nodes.come(info("b", "b:1"))
    world.nodes.come(info("c", "c:1"))
    world.nodes.say(info("b", "b:1", lame_duck=True))
    assert world.told[-1] == ("a:1", "a:2", "c:1")
    world.nodes.node = info("a", "a:1", "a:2", lame_duck=True)
    assert world.urls.now() == ("c:1",)


def test_without_advertising_clients_hear_nothing() -> None:
    world = World(advertise=False)
    world.nodes.come(info("b", "b:1"))
    assert world.urls.now() == ()
    assert world.told == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("example.org", ("example.org", 4222)),
        ("example.org:99", ("example.org", 99)),
        ("[::1]:99", ("::1", 99)),
        ("[::1]", ("::1", 4222)),
    ],
)
def test_client_advertise_as_host_and_port(text: str, expected: tuple[str, int] | None) -> None:
    assert advertised(text, 4222) == expected


@pytest.mark.parametrize(
    ("text", "wrong"),
    [("::1", "address ::1: too many colons in address"), ("a:x", 'strconv.Atoi: parsing "x": invalid syntax')],
)
def test_a_wrong_client_advertise_is_refused(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        advertised(text, 4222)


def info_fields(**changes: Any) -> dict[str, Any]:
    identity = Identity(
        server_id="N",
        server_name="n",
        host="0.0.0.0",
        port=4222,
        max_payload=1,
        jetstream=False,
        domain="",
        auth_required=False,
        advertise=("example.org", 99),
    )
    frame = identity.info(1, "127.0.0.1", **{"second": False, "lame_duck": False, **changes})
    assert frame.startswith(b"INFO ")
    fields: dict[str, Any] = msgspec.json.decode(frame[5:].strip())
    return fields


def test_info_shows_the_cluster_the_servers_and_the_advertised_address() -> None:
    fields = info_fields(cluster="C1", connect_urls=("a:1", "b:1"))
    assert (fields["cluster"], fields["connect_urls"]) == ("C1", ["a:1", "b:1"])
    assert (fields["host"], fields["port"]) == ("example.org", 99)
    assert not {"cluster", "connect_urls"} & set(info_fields())
