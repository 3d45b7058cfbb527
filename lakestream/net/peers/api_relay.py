"""JetStream API requests of clients on a node without JetStream.

Belongs here: forwarding such a request to a node with JetStream, in the account of the client. All other messages of
JetStream clients (publishes, acks, pull requests, deliveries) are routed by interest.

Interest does not route API requests: every node with JetStream serves its own clients and announces nothing.
"""

from __future__ import annotations

import random
from functools import partial

from lakestream.net.accounts.accounts import Account, Accounts
from lakestream.net.peers.peers import RoutePeers
from lakestream.net.peers.remote_node import RemoteNode
from lakestream.net.peers.routes import Routes
from lakestream.ports import ClientInfo, Subscribed, singly
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

    def __init__(self, accounts: Accounts, routes: Routes, nodes: RoutePeers) -> None:
        self._accounts, self._routes, self._nodes = accounts, routes, nodes
        self._served: set[bytes] = set()
        self._subscriptions: dict[Account, list[Subscribed]] = {}
        self._random = random.Random()
        accounts.watch(self._serve)
        nodes.watch_links(lambda node, up: self._look())
        nodes.watch_nodes(lambda node: self._look())

    def _serve(self, account: Account) -> None:
        """Subscribe to requests of an account's clients on the subjects that are served now, and no others."""
        for subscription in self._subscriptions.get(account, ()):
            subscription.cancel()
        asked = partial(self._asked, account)
        subjects = sorted(self._served)
        self._subscriptions[account] = [
            account.hub.subscribe(subject, singly(asked), local=True) for subject in subjects
        ]

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
        for account in list(self._subscriptions):
            self._serve(account)

    def _choose(self, account: Account) -> RemoteNode | None:
        """Choose a node at random; None: none is available, or the account's own API is off."""
        stores = account.is_system or self._accounts.stores(account)
        if not stores or self._accounts.replaces_api(account):
            return None
        nodes = [self._routes.nodes[info.name] for info in self._able() if info.name in self._routes.nodes]
        able = [node for node in nodes if node.accounts or account.name == GLOBAL_ACCOUNT]
        return self._random.choice(able) if able else None

    def _asked(
        self, account: Account, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo
    ) -> None:
        node = self._choose(account)
        if node is not None:
            node.of(account.name).relay(subject, reply, header, payload)
        elif reply:
            account.hub.declined(subject, reply)
