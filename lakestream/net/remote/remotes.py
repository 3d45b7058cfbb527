"""The remote servers of this server.

Belongs here: one link or leaf connection for each `remote` of the configuration, their start, stop and reload, and
their monitoring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from lakestream.config.options import RemoteOptions
from lakestream.logging import Logger
from lakestream.net.accounts.accounts import Accounts
from lakestream.net.remote.domain import RemoteDomain
from lakestream.net.remote.link import RemoteLink
from lakestream.ports import Clock


class Remotes:
    """All remotes of a server.

    Args:
        server_name: of this server.
        domain: of this server's JetStream.
        call: runs a function in a thread; awaited.
        others: returns the names of the connected nodes; None: no cluster.
        cluster: its name; "" without one.
    """

    def __init__(
        self,
        options: Iterable[RemoteOptions],
        accounts: Accounts,
        server_name: str,
        domain: str,
        clock: Clock,
        log: Logger,
        call: Callable[[Callable[[], Any]], Any],
        others: Callable[[], Iterable[str]] | None = None,
        cluster: str = "",
    ) -> None:
        self._accounts, self._server_name, self._domain = accounts, server_name, domain
        self._clock, self._log, self._call, self._others = clock, log, call, others
        self._cluster = cluster
        self._served: dict[RemoteOptions, Any] = {one: self._made(one) for one in options}
        self._temporary: dict[RemoteOptions, RemoteDomain] = {}
        self._started = False

    def _made(self, options: RemoteOptions) -> Any:
        hub = self._accounts.of(options.account).hub
        if options.leaf:
            from lakestream.net.remote.leaf_link import LeafLink  # most servers are not leaf nodes

            return LeafLink(
                options, hub, self._domain, self._clock, self._log, self._server_name, self._others, self._cluster
            )
        return RemoteDomain(
            RemoteLink(options, hub, self._server_name, self._clock, self._log, self._call), self._clock
        )

    # ------------------------------------------------------------------ temporary links
    def domain(self, account: str, domain: str) -> RemoteOptions | None:
        """Return the remote with that domain in an account; None: there is none."""
        every = (*self._served, *self._temporary)
        return next((one for one in every if one.account == account and one.domain == domain), None)

    def domains(self, account: str) -> list[str]:
        return sorted(one.domain for one in (*self._served, *self._temporary) if one.account == account and one.domain)

    def open(self, options: RemoteOptions) -> RemoteDomain:
        """Connect to a remote that is not configured, until `close`; return the link if it is open already."""
        found = self._temporary.get(options)
        if found is None:
            found = self._temporary[options] = self._made(options)
            found.start()
        elif not found.link.started:
            found.link.start()
        return found

    def pause(self, options: RemoteOptions, reason: str) -> None:
        """Disconnect from a remote that is not configured; requests to its domain are answered with the reason."""
        served = self._temporary.get(options)
        if served is not None:
            self._clock.spawn(served.link.stop(reason))

    def close(self, options: RemoteOptions) -> None:
        """Disconnect from a remote that is not configured. Idempotent."""
        served = self._temporary.pop(options, None)
        if served is not None:
            self._clock.spawn(served.stop())

    # ------------------------------------------------------------------ all of them
    def start(self) -> None:
        """Connect to all of them."""
        self._started = True
        for served in self._served.values():
            served.start()

    async def stop(self) -> None:
        """Disconnect from all of them."""
        self._started = False
        for served in (*self._served.values(), *self._temporary.values()):
            await served.stop()
        self._temporary.clear()

    def reload(self, options: Iterable[RemoteOptions]) -> None:
        """Replace the remotes. Unchanged ones are not interrupted."""
        wanted = list(options)
        for gone in [one for one in self._served if one not in wanted]:
            self._clock.spawn(self._served.pop(gone).stop())
        for new in wanted:
            if new not in self._served:
                for one in [one for one in self._temporary if (one.account, one.domain) == (new.account, new.domain)]:
                    self.close(one)
                self._served[new] = self._made(new)
                if self._started:
                    self._served[new].start()

    def shown(self) -> list[dict[str, Any]]:
        """Return all of them as /varz shows them."""
        pages = [served.shown() for served in self._served.values()]
        return pages + [served.shown() | {"temporary": True} for served in self._temporary.values()]

    def leafs(self, subs: bool = False) -> list[dict[str, Any]]:
        """Return the leaf connections as /leafz shows them; `subs`: with the other side's interest."""
        leafs = [served for options, served in self._served.items() if options.leaf]
        return [page for leaf in leafs if (page := leaf.leafz(subs)) is not None]
