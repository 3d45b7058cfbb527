"""Accounts of one server that import from each other, without sockets.

Belongs here: the real accounts, hubs and imports, with a clock that a test advances, and clients as sinks that keep
what they receive. A client's requests and answers are the bytes that a connection would have.
"""

from __future__ import annotations

from collections.abc import Callable

from lakestream.config.account_options import AccountOptions
from lakestream.config.options import Options
from lakestream.logging import Logger
from lakestream.net.accounts.accounts import Accounts
from lakestream.net.accounts.imports import AccountImports
from lakestream.net.accounts.service_imports import ServerNames
from lakestream.net.hub import Hub
from lakestream.net.interest.subscription import SingleSink, Subscription
from lakestream.net.turn import Turn
from lakestream.ports import ClientInfo, Single
from tests.unit.stream_world import ManualClock

Got = tuple[bytes, bytes, bytes, bytes]


class Client(SingleSink):
    """Client: received messages as (subject, reply, header, payload), and its requests without responders."""

    echo = True

    def __init__(self, hub: Hub, info: ClientInfo) -> None:
        self.hub, self.info = hub, info
        self.congested = False
        self.got: list[Got] = []
        self.alone: list[tuple[bytes, bytes]] = []
        self._drained: list[Callable[[], None]] = []

    # ------------------------------------------------------------------ sink
    def receive(self, sub: Subscription, message: Single, client: ClientInfo) -> None:
        self.got.append((message.subject, message.reply, message.header, message.payload))
        sub.delivered += 1
        if sub.maximum and sub.delivered >= sub.maximum:
            self.hub.leave(sub)

    def on_drain(self, callback: Callable[[], None]) -> None:
        self._drained.append(callback)

    def no_responders(self, sub: Subscription, subject: bytes, reply: bytes) -> None:
        self.alone.append((subject, reply))

    # ------------------------------------------------------------------ called by tests
    def drain(self) -> None:
        """End the congestion."""
        self.congested = False
        drained, self._drained = self._drained, []
        for callback in drained:
            callback()

    def subscribe(self, subject: bytes, queue: bytes = b"", maximum: int = 0) -> Subscription:
        sub = Subscription(self, subject, queue, b"1")
        sub.maximum = maximum
        self.hub.join(sub)
        return sub

    def publish(self, subject: bytes, payload: bytes = b"", reply: bytes = b"", header: bytes = b"") -> bool:
        return self.hub.route(self, self.info, Single(subject, reply, header, payload))

    def taken(self) -> list[Got]:
        """Return the messages since the last call."""
        got, self.got = self.got, []
        return got

    @property
    def subjects(self) -> list[bytes]:
        """Return the subjects of the messages since the last call."""
        return [message[0] for message in self.taken()]


class World:
    """Server with these accounts."""

    def __init__(self, *accounts: AccountOptions) -> None:
        self.clock = ManualClock()
        self.turn = Turn(self.clock.call_soon)
        log = Logger()
        self.accounts = Accounts(Options(accounts=accounts), self.turn, log)
        self.links = AccountImports(self.accounts, self.clock, log, lambda: ServerNames("server-1", "C"))
        self.accounts.follow(self.links.changed)
        self.links.changed(list(self.accounts))
        self._clients = 0

    def configure(self, *accounts: AccountOptions) -> None:
        """Reload the configuration with these accounts."""
        self.accounts.configure(Options(accounts=accounts))

    def hub(self, account: str) -> Hub:
        return self.accounts.of(account).hub

    def client(self, account: str, user: str = "u") -> Client:
        self._clients += 1
        info = ClientInfo(
            id=self._clients,
            host="127.0.0.1",
            account=account,
            user=user,
            name="n",
            lang="go",
            version="1",
            rtt_ns=1000,
        )
        return Client(self.hub(account), info)

    def ways(self, account: str) -> int:
        """Return the number of open reply paths out of an account."""
        return len(self.links.responses[account])

    def subscriptions(self, account: str) -> int:
        return len(self.hub(account).interest_graph)
