"""The monitoring pages of a session.

Belongs here: the part of each page that an account may see. The system account, and every client of a server without
configured accounts, sees the pages as they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from lakestream import __version__
from lakestream.net.accounts.accounts import Account
from lakestream.ops.monitoring.accounts import account_traffic, accountz
from lakestream.ops.monitoring.connections import connz
from lakestream.ops.monitoring.jetstream import totals
from lakestream.ops.monitoring.monitored import Monitored
from lakestream.ops.monitoring.pages import Pages, lake_of, unhealthy
from lakestream.ops.monitoring.query import BadQuery, Query
from lakestream.ops.monitoring.workers import MERGED
from lakestream.protocol.accounts import GLOBAL_ACCOUNT
from lakestream.protocol.api.request import NATS_VERSION
from lakestream.protocol.durations import uptime_text
from lakestream.protocol.gotime import format_time
from lakestream.protocol.subjects import finished
from lakestream_console.client import ConsoleError

NAMES = ("varz", "jsz", "connz", "routez", "raftz", "lakez", "healthz", "accountz")

Found = tuple[int, dict[str, Any]]
"""The status and the JSON of a page."""


class AccountPages:
    """The monitoring pages of one server as accounts see them."""

    def __init__(self, node: Monitored, pages: Pages) -> None:
        self._node, self._pages = node, pages
        self._own: dict[str, Callable[[Account, Query], dict[str, Any]]] = {
            "varz": self._varz,
            "jsz": self._jsz,
            "connz": lambda account, query: connz(node, query.but(acc=account.name)),
            "raftz": lambda account, query: pages.jetstream.raftz(account.name, query.text("group")),
            "accountz": lambda account, query: accountz(node, query.but(acc=account.name)),
        }

    def sees_all(self, account: Account) -> bool:
        """Return True if an account sees the pages as they are."""
        return account.is_system or self._node.accounts.alone

    async def page(self, name: str, account: Account, query: Query) -> Found:
        """Return a page. Raises ConsoleError for one that the account may not see, or a wrong query."""
        try:
            if name == "lakez":
                return 200, await self._lakez(account, query)
            together = self._pages.together
            if name == "healthz":
                return await self._healthz(account, query)
            if self.sees_all(account) and together is not None and name in MERGED:
                return 200, await together.page(name, query)
            if self.sees_all(account):
                return 200, self._pages.pages[name](query)
            own = self._own.get(name)
        except BadQuery as error:
            raise ConsoleError(400, str(error)) from None
        if own is None:
            raise ConsoleError(403, f"{name} is a page of the system account ({self._node.accounts.system.name})")
        try:
            return 200, own(account, query)
        except BadQuery as error:
            raise ConsoleError(400, str(error)) from None

    async def _lakez(self, account: Account, query: Query) -> dict[str, Any]:
        together = self._pages.together
        if not self.sees_all(account):
            query = query.but(acc=account.name)
        page = await (self._pages.lakez(query) if together is None else together.page("lakez", query))
        if self.sees_all(account):
            return page
        page.pop("url", None)  # a path of the machine
        return page

    async def _healthz(self, account: Account, query: Query) -> Found:
        if not self.sees_all(account):
            jetstream = self._node.jetstream
            served = jetstream is not None and account.name in jetstream.served
            query = query.but(account=account.name) if served else Query(**{"js-server-only": "1"})
        health = self._pages.health(query)
        if self._pages.together is not None:
            health = await self._pages.together.health(query, health)
        return health.status, {"status": "ok"} if health.status == 200 else unhealthy(health, query.flag("details"))

    def _varz(self, account: Account, query: Query) -> dict[str, Any]:
        """Return /varz with the figures of the account in the place of the server's."""
        node, now, traffic = self._node, time.time_ns(), account_traffic(self._node, account)
        page: dict[str, Any] = {
            "server_id": node.identity.server_id,
            "server_name": node.identity.server_name,
            "version": NATS_VERSION,
            "lakestream": __version__,
            "max_payload": node.options.max_payload,
            "start": format_time(node.started_ns),
            "now": format_time(now),
            "uptime": uptime_text(max(1, now - node.started_ns)),
            "connections": traffic["conns"],
            "leafnodes": traffic["leafnodes"],
            "in_msgs": traffic["received"]["msgs"],
            "in_bytes": traffic["received"]["bytes"],
            "out_msgs": traffic["sent"]["msgs"],
            "out_bytes": traffic["sent"]["bytes"],
            "slow_consumers": traffic["slow_consumers"],
            "subscriptions": traffic["num_subscriptions"],
        }
        if node.cluster.name:
            page["cluster"] = {"name": node.cluster.name}
        keeper = node.jetstream.keeper if node.jetstream is not None else None
        if keeper is not None:
            page["lake"] = self._lake(account, lake_of(keeper))
        return page

    def _lake(self, account: Account, page: dict[str, Any]) -> dict[str, Any]:
        """Return the `lake` object with the account's streams alone, under their own names."""
        prefix = "" if account.name == GLOBAL_ACCOUNT else f"{account.name}/"

        def own(values: dict[str, Any]) -> dict[str, Any]:
            found = {name[len(prefix) :]: value for name, value in values.items() if name.startswith(prefix)}
            return {name: value for name, value in found.items() if "/" not in name}  # no stream's name has a slash

        return {"compactor": page["compactor"]} | {
            name: own(page[name]) for name in ("lag", "lag_seconds", "last_commit", "misfits", "errors")
        }

    def _jsz(self, account: Account, query: Query) -> dict[str, Any]:
        """Return /jsz with the account's streams alone; its totals are the account's."""
        node, jetstream = self._node, self._node.jetstream
        page: dict[str, Any] = {"server_id": node.identity.server_id, "now": format_time(time.time_ns())}
        if jetstream is None or account.name not in jetstream.served:
            return page | {"disabled": True, "streams": 0, "consumers": 0, "messages": 0, "bytes": 0}
        serving = jetstream.served[account.name]
        detail = finished(self._pages.jetstream.account(account.name, serving, query))
        streams = serving.engine.shown()
        page |= {name: detail[name] for name in ("memory", "storage", "reserved_memory", "reserved_storage")}
        page |= {
            "accounts": 1,
            "api": detail["api"],
        } | totals(streams)
        if query.text("acc") or any(query.flag(name) for name in ("accounts", "streams", "consumers")):
            page["account_details"] = [detail]
        return page
