"""Construction of the system account's services.

Belongs here: which of them there are, and when they start. Requests are in requests.py and system_account.py, events in
events.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakestream.net.accounts.accounts import Account
from lakestream.net.tracing import Tracing
from lakestream.ops.monitoring.monitored import Monitored
from lakestream.ops.system.events import SystemEvents
from lakestream.ops.system.messages import SystemMessages
from lakestream.ops.system.requests import AccountRequests
from lakestream.ports import Clock

if TYPE_CHECKING:
    from lakestream.ops.monitoring.pages import Pages
    from lakestream.ops.monitoring.workers import Together
    from lakestream.ops.system.system_account import SystemAccount


class System:
    """The system account's services.

    Attributes:
        messages: makes the server's messages.
        events: takes clients that connect and disconnect.
    """

    def __init__(self, node: Monitored, clock: Clock) -> None:
        self._node, self._clock = node, clock
        self._pages: Pages | None = None
        self.messages = SystemMessages(node, clock)
        self.events = SystemEvents(node, node.accounts, clock, lambda: self.pages, self.messages)
        self._account: SystemAccount | None = None

    @property
    def pages(self) -> Pages:
        """Return the monitoring pages, also for requests over NATS; they are loaded when they are first needed."""
        if self._pages is None:
            from lakestream.ops.monitoring.pages import Pages

            self._pages = Pages(self._node)
        return self._pages

    def start(self) -> None:
        """Start serving; before any client connects."""
        self._node.accounts.watch(self._serve)
        self.configured()

    def _serve(self, account: Account) -> None:
        domain = self._node.identity.domain
        account.hub.tracing = Tracing(
            account.hub, self._clock, self.messages.server, domain, lambda: account.options.trace
        )
        AccountRequests(account, self._node, self.messages, self._clock, self._together)

    def _together(self) -> Together | None:
        return self._pages.together if self._pages is not None else None  # a worker has set it at the start

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
            from lakestream.ops.system.system_account import SystemAccount

            self._account = SystemAccount(self._node, self.pages, self.messages, self._clock)
            self._serve_claims()
            self.events.start()
        self.events.configured()
