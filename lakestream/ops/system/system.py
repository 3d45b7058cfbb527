"""Construction of the system account's services.

Belongs here: which of them there are, and when they start. Requests are in requests.py, events in events.py.
"""

from __future__ import annotations

from lakestream.net.accounts.accounts import Account
from lakestream.net.tracing import Tracing
from lakestream.ops.monitoring.monitored import Monitored
from lakestream.ops.monitoring.pages import Pages
from lakestream.ops.system.events import SystemEvents
from lakestream.ops.system.messages import SystemMessages
from lakestream.ops.system.requests import AccountRequests, SystemAccount
from lakestream.ports import Clock


class System:
    """The system account's services.

    Attributes:
        pages: the monitoring pages, also for requests over NATS.
        messages: makes the server's messages.
        events: takes clients that connect and disconnect.
    """

    def __init__(self, node: Monitored, clock: Clock) -> None:
        self._node, self._clock = node, clock
        self.pages = Pages(node)
        self.messages = SystemMessages(node, clock)
        self.events = SystemEvents(node, node.accounts, clock, self.pages, self.messages)
        self._account: SystemAccount | None = None

    def start(self) -> None:
        """Start serving; before any client connects."""
        self._node.accounts.watch(self._serve)
        self.configured()

    def _serve(self, account: Account) -> None:
        domain = self._node.identity.domain
        account.hub.tracing = Tracing(account.hub, self._clock, self.messages.server, domain)
        AccountRequests(account, self._node, self.messages, self._clock, lambda: self.pages.together)

    def _serve_claims(self) -> None:
        signed, operators = self._node.signed, self._node.options.operators
        if signed is None or operators is None:
            return
        from lakestream.ops.system.claims import Claims  # with keys and tokens, which few servers need

        system = self._node.accounts.system
        Claims(signed, operators.resolver, system.name, system.hub, self.messages, self._node.log)

    def configured(self) -> None:
        """Start serving the system account once accounts are configured, and take changed limits."""
        if self._account is None and not self._node.accounts.alone:
            self._account = SystemAccount(self._node, self.pages, self.messages, self._clock)
            self._serve_claims()
            self.events.start()
        self.events.configured()
