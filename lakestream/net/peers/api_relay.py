"""JetStream API requests of clients on a node without JetStream.

Belongs here: forwarding such a request to a node with JetStream, in the account of the client. All other messages of
JetStream clients (publishes, acks, pull requests, deliveries) are routed by interest.

Interest does not route API requests: every node with JetStream serves its own clients and announces nothing.
"""

from __future__ import annotations

import random

from lakestream.net.accounts.accounts import Account, Accounts
from lakestream.net.accounts.service_imports import replaces_api
from lakestream.net.peers.peers import Peers
from lakestream.net.peers.remote_node import RemoteNode
from lakestream.net.peers.routes import Routes
from lakestream.ports import ClientInfo, Subscribed
from lakestream.protocol.accounts import GLOBAL_ACCOUNT
from lakestream.protocol.peer_wire import NodeInfo


class ApiRelay:
    """Serves API requests while a node with JetStream is connected; otherwise they have no responders (503). So do
    requests in an account without JetStream (where a node with JetStream answers 10039).

    Args:
        accounts: of this node, which has no JetStream.
        routes: to the other nodes; they must watch the links already.
        nodes: the other nodes.
    """

    def __init__(self, accounts: Accounts, routes: Routes, nodes: Peers) -> None:
        self._accounts, self._routes, self._nodes = accounts, routes, nodes
        self._served: set[bytes] = set()
        self._relays: list[_Relay] = []
        self._random = random.Random()
        accounts.watch(self._account)
        nodes.watch_links(lambda node, up: self._look())
        nodes.watch_nodes(lambda node: self._look())

    def _account(self, account: Account) -> None:
        relay = _Relay(account, self)
        relay.serve(self._served)
        self._relays.append(relay)

    def _able(self) -> list[NodeInfo]:
        """Return the nodes to choose from; nodes in lame duck mode only when there is no other."""
        able = [info for info in self._nodes.nodes().values() if info.jetstream]
        return [info for info in able if not info.lame_duck] or able

    def _look(self) -> None:
        able = self._able()
        wanted = {b"$JS.API.>"} if able else set()
        wanted |= {b"$JS.%b.API.>" % info.domain.encode() for info in able if info.domain}
        if wanted == self._served:
            return
        self._served = wanted
        for relay in self._relays:
            relay.serve(wanted)

    def choose(self, account: Account) -> RemoteNode | None:
        """Choose a node at random; None: none is available."""
        if not account.is_system and not self._accounts.stores(account):
            return None
        nodes = [self._routes.nodes[info.name] for info in self._able() if info.name in self._routes.nodes]
        able = [node for node in nodes if node.accounts or account.name == GLOBAL_ACCOUNT]
        return self._random.choice(able) if able else None


class _Relay:
    """The relay of one account."""

    def __init__(self, account: Account, relays: ApiRelay) -> None:
        self._account, self._relays = account, relays
        self._subscriptions: list[Subscribed] = []

    def serve(self, subjects: set[bytes]) -> None:
        """Subscribe to requests on these subjects, and no others."""
        for subscription in self._subscriptions:
            subscription.cancel()
        hub = self._account.hub
        self._subscriptions = [hub.subscribe(subject, self._asked, local=True) for subject in sorted(subjects)]

    def _asked(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        if replaces_api(self._account.options):
            return
        node = self._relays.choose(self._account)
        if node is not None:
            node.of(self._account.name).relay(subject, reply, header, payload)
        elif reply:
            self._account.hub.no_responders(subject, reply)
