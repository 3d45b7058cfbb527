"""How many clients an account has on the other nodes, where the configuration limits their number.

Belongs here: hearing the numbers, which the nodes tell each other as events of the system account, asking for them, and
what they come to. A number is as old as the event: of several clients that come at the same time on several nodes more
may get in (as with nats-server).
"""

from __future__ import annotations

from functools import partial

import msgspec

from lakestream.net.accounts.accounts import Account, Accounts
from lakestream.net.peers.cluster import Cluster
from lakestream.ports import ClientInfo, Subscribed


class _Server(msgspec.Struct):
    id: str


class _Conns(msgspec.Struct):
    """What is read of an event."""

    server: _Server
    acc: str
    conns: int


class ClientCounts:
    """See the module. Nodes that are not connected do not count."""

    def __init__(self, accounts: Accounts, cluster: Cluster) -> None:
        self._accounts, self._cluster = accounts, cluster
        self._counts: dict[str, dict[str, int]] = {}
        """By account and id of a server."""
        self._heard: dict[str, Subscribed] = {}

    def configured(self) -> None:
        """The accounts have the limits now that they have."""
        limited = {account.name for account in self._accounts if account.options.limits.max_connections >= 0}
        for name in self._heard.keys() - limited:
            self._heard.pop(name).cancel()
            self._counts.pop(name, None)
        for name in limited - self._heard.keys():
            self._heard[name] = self._accounts.system.hub.subscribe(_told(name), self._hear)
            self._accounts.of(name).others = partial(self.of, name)
            self._ask(name)

    def joined(self, account: Account) -> None:
        """A client has come; with the first one the other nodes are asked about theirs."""
        if len(account.connections) == 1 and account.name in self._heard:
            self._ask(account.name)

    def of(self, account: str) -> int:
        """Clients of that account on the other nodes."""
        counts = self._counts.get(account)
        if not counts:
            return 0
        up = {link.remote.server_id for link in self._cluster.peers.links() if link.remote is not None}
        return sum(number for server, number in counts.items() if server in up)

    def _ask(self, account: str) -> None:
        self._accounts.system.hub.publish(f"$SYS.REQ.ACCOUNT.{account}.CONNS".encode(), _told(account), b"", b"")

    def _hear(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        try:
            event = msgspec.json.decode(payload, type=_Conns)
        except msgspec.DecodeError:
            return  # whatever a user of the system account has made up
        self._counts.setdefault(event.acc, {})[event.server.id] = event.conns


def _told(account: str) -> bytes:
    return f"$SYS.ACCOUNT.{account}.SERVER.CONNS".encode()
