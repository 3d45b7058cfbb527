"""Mirrors and sources over a leaf connection that is cut, reset, slow or lacks permissions, and changed origins."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.links import Network
from tests.cluster.nodes import free_ports
from tests.conformance.leaf_world import create, hub_of, linked, messages, reaches, until
from tests.conftest import StartServer
from tests.servers import Kind, Server
from tests.wire import Wire, pub

pytestmark = pytest.mark.conformance

FROM_HUB, FROM_LEAF = {"api": "$JS.hub.API"}, {"api": "$JS.leaf.API"}
SOON_S = 60.0
"""Timeout; nats-server waits up to 12 s between two attempts of a source."""
NO_FLOW_CONTROL = """
accounts {
  A { jetstream: enabled, users: [
    { user: leaf, password: p, permissions: { publish: { deny: "$JS.FC.>" } } }
    { user: owner, password: p } ] }
}
"""
IMPATIENT = "ping_interval: '1s'\nping_max: 2\nwrite_deadline: '1s'\n"


class World:
    """A hub and a leaf node, connected over a link that can be cut, reset and slowed down.

    Args:
        hub: more of the hub's configuration.
        login: user and password of the leaf node with an `@` behind, or "".
    """

    def __init__(self, start: StartServer, network: Network, kind: Kind, hub: str = "", login: str = "") -> None:
        lake = "lake { enabled: false }\n" if kind is Kind.OURS else ""
        self.network = network
        self.hub: Server = hub_of(start, more=f"jetstream {{ domain: hub }}\n{lake}{hub}", of=kind)
        # Little waits on the way, so that what is sent behind it does so at the sender.
        self.directions = network.direction(), network.direction(held=1)
        (port,) = free_ports(1)
        network.connect(port, ("127.0.0.1", self.hub.leaf_port), *self.directions, window=1 << 14)
        remote = f"{{ url: 'nats-leaf://{login}127.0.0.1:{port}' }}"
        text = f"http: '127.0.0.1:-1'\nleafnodes {{ reconnect: '200ms', remotes: [{remote}] }}\n"
        self.leaf: Server = start(of=kind, config=f"jetstream {{ domain: leaf }}\n{lake}{text}", name="leaf")
        self.wait()

    def wait(self) -> None:
        """Wait until both are connected."""
        linked(self.hub, self.leaf)

    def reset(self) -> None:
        """Reset the connection."""
        for direction in self.directions:
            self.network.reset(direction)

    def cut(self) -> None:
        """Reset the connection, and let no other come to be."""
        for direction in self.directions:
            self.network.cut(direction)
        self.reset()

    def restore(self) -> None:
        """Let connections come to be."""
        for direction in self.directions:
            self.network.restore(direction)


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.close()


def _publish(wire: Wire, subject: str, numbers: range) -> None:
    wire.send(b"".join(pub(subject, b"%d" % number) for number in numbers))
    wire.ping()


def _has(wire: Wire, name: str, numbers: list[int]) -> None:
    """Wait until a stream has as many messages as there are numbers; these are their payloads, in order."""
    state: Any = {}

    def whole() -> bool:
        state.update(wire.api(f"STREAM.INFO.{name}")["state"])
        return bool(state["messages"] >= len(numbers))

    until(whole, f"{name} has {len(numbers)} messages", SOON_S)
    assert [int(message.data) for message in messages(wire, name)] == numbers


def test_a_source_repeats_nothing_after_a_leaf_reconnects(
    start_server: StartServer, network: Network, kind: Kind
) -> None:
    world = World(start_server, network, kind)
    with Wire(world.hub.address) as there, Wire(world.leaf.address) as here:
        create(there, "O", subjects=["o"])
        create(here, "S", sources=[{"name": "O", "external": FROM_HUB}])
        _publish(there, "o", range(100))
        _has(here, "S", list(range(100)))
        for first in (100, 300):
            _publish(there, "o", range(first, first + 200))
            world.reset()
            world.wait()
        _has(here, "S", list(range(500)))


def test_a_leaf_gets_what_came_while_it_was_away(start_server: StartServer, network: Network, kind: Kind) -> None:
    world = World(start_server, network, kind)
    with Wire(world.hub.address) as there, Wire(world.leaf.address) as here:
        create(there, "O", subjects=["o"])
        create(here, "P", subjects=["p"])
        create(here, "S", sources=[{"name": "O", "external": FROM_HUB}])
        create(here, "M", mirror={"name": "O", "external": FROM_HUB})
        create(there, "U", mirror={"name": "P", "external": FROM_LEAF})
        _publish(there, "o", range(10))
        _publish(here, "p", range(10))
        for wire, name in ((here, "S"), (here, "M"), (there, "U")):
            _has(wire, name, list(range(10)))
        world.cut()
        _publish(there, "o", range(10, 50))
        _publish(here, "p", range(10, 50))
        world.restore()
        for wire, name in ((here, "S"), (here, "M"), (there, "U")):
            _has(wire, name, list(range(50)))
    world.leaf.kill()
    with Wire(world.hub.address) as there:
        _publish(there, "o", range(50, 80))
        world.leaf.start()
        with Wire(world.leaf.address) as here:
            for name in ("S", "M"):
                _has(here, name, list(range(80)))


@pytest.mark.heavy
@pytest.mark.parametrize("count", [3, 30])
def test_a_source_notices_that_its_origin_was_made_anew_while_its_leaf_was_away(
    start_server: StartServer, network: Network, kind: Kind, count: int
) -> None:
    world = World(start_server, network, kind)
    with Wire(world.hub.address) as there, Wire(world.leaf.address) as here:
        create(there, "O", subjects=["o"])
        create(here, "S", sources=[{"name": "O", "external": FROM_HUB}])
        _publish(there, "o", range(10))
        _has(here, "S", list(range(10)))
        world.cut()
        assert there.api("STREAM.DELETE.O")["success"]
        create(there, "O", subjects=["o"])
        _publish(there, "o", range(1000, 1000 + count))
        world.restore()
        _has(here, "S", [*range(10), *range(1000, 1000 + count)])


@pytest.mark.heavy
def test_a_saturated_leaf_stays_connected(start_server: StartServer, network: Network, kind: Kind) -> None:
    world = World(start_server, network, kind, hub=IMPATIENT)
    with Wire(world.hub.address) as there, Wire(world.leaf.address) as here:
        sid = here.subscribe("core")
        reaches(there, here, "fence")
        world.network.slow(world.directions[1], bytes_per_s=1e6)
        # PINGs wait behind this for longer than unanswered ones, or the write, may take.
        there.send(b"".join(pub("core", random.randbytes(10_000)) for _ in range(500)))
        for _ in range(500):
            here.delivered(sid, SOON_S)
        world.restore()
        with Wire(world.hub.address) as again:
            reaches(again, here, "fence.after")
    assert world.hub.log(2000).count("Leafnode connection created") == 1


@pytest.mark.heavy
def test_a_source_tells_that_flow_control_is_not_permitted(
    start_server: StartServer, network: Network, kind: Kind
) -> None:
    world = World(start_server, network, kind, hub=NO_FLOW_CONTROL, login="leaf:p@")
    with Wire(world.hub.address, {"user": "owner", "pass": "p"}) as there, Wire(world.leaf.address) as here:
        create(there, "O", subjects=["o"])
        there.send(pub("o", b"x" * 2000) * 3000)
        there.ping()
        create(here, "S", sources=[{"name": "O", "external": FROM_HUB}])

        def told() -> Any:
            return here.api("STREAM.INFO.S")["sources"][0].get("error")

        error = until(told, "an error", SOON_S)
        assert error["err_code"] == 10228
        assert error["description"] == "stream source consumer stalled on flow control"
    if kind is Kind.OURS:
        [line] = [line for line in world.leaf.log(2000).split("\n") if "stalled" in line]
        assert "stream S" in line
        assert "$JS.FC.O.>" in line
