"""A remote that is connected to as a leaf node: there, this server's streams can be mirrored.

Belongs here: the life of the link from dialling to dialling again, the greeting, and what the log and monitoring say of
it. One connection is leaf_connection.py's, its bytes leaf_wire.py's, what goes over leaf_interest.py's.

The nats-server at the other end sees a leaf node with a JetStream domain of its own, which is ours: its mirrors,
sources and clients reach our streams by `$JS.<domain>.API`, and it keeps everything that has to be remembered: a
mirror there asks for what comes after its last message. So nothing is stored here, and it makes no difference who of
the two stops when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from lakestream.config.remote_options import Address, RemoteOptions
from lakestream.logging import Logger
from lakestream.net.hub import Hub
from lakestream.net.identity import NATS_VERSION
from lakestream.net.remote import dial as remote_dial
from lakestream.net.remote import login as remote_login
from lakestream.net.remote.leaf_connection import LeafConnection
from lakestream.net.remote.leaf_holder import Holder
from lakestream.ports import Clock
from lakestream.protocol.durations import format_duration
from lakestream.protocol.gotime import format_time
from lakestream.protocol.leaf_wire import Names
from lakestream.stream.mirroring.origin import short_hash

GREETING_TIMEOUT_S = 5.0
"""How long the other side may take to say INFO, and again to answer the greeting (5 s)."""

WRONG_PORT = "; that port is not one for leaf nodes, which is in the `leafnodes` block there (7422 by default)"


class LeafLink:
    """Keeps one leaf connection.

    Args:
        options: the remote.
        hub: of the account that is connected.
        domain: of this server's JetStream: what it is called there.
        name: of this server.
        others: the names of the nodes of the cluster that are connected now; None: there is no cluster.
        cluster: its name; "" without one.
    """

    def __init__(
        self,
        options: RemoteOptions,
        hub: Hub,
        domain: str,
        clock: Clock,
        log: Logger,
        name: str = "",
        others: Callable[[], Iterable[str]] | None = None,
        cluster: str = "",
    ) -> None:
        self.options = options
        self._hub, self._domain, self._clock, self._log = hub, domain, clock, log
        self._who = name or domain
        self._names = Names(domain, short_hash(hub.account))
        self._redial = remote_dial.Redial(options, self._attempt, log)
        what = f"{options.account} {options.name}"
        # While two nodes of a cluster hold the connection, each message comes through one of them. Others that are
        # connected there have groups of their own.
        self._group = f"lakestream-{short_hash(' '.join((cluster or self._who, domain, what)))}".encode()
        self._holder = Holder(hub, what, self._who, others, clock, self._turn, lambda: self.up)
        self._label = f"leaf node remote {options.name}"
        self._connection: LeafConnection | None = None
        self._address: Address | None = None
        self._connects = self._since_ns = 0

    def start(self) -> None:
        """Begin to dial, or to wait for this node's turn."""
        self._holder.start()

    async def stop(self) -> None:
        """End the connection, and dial no more."""
        self._holder.stop()
        await self._redial.stop()

    def _turn(self, mine: bool) -> None:
        """This node is to hold the connection, or not any more."""
        if mine:
            self._redial.start()
        else:
            self._log.info(f"{self._label}: another node of the cluster holds the connection")
            self._clock.spawn(self._redial.stop())

    @property
    def up(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    def shown(self) -> dict[str, Any]:
        """As monitoring shows it."""
        of = self._connection
        page: dict[str, Any] = {
            "type": "leaf",
            "domain": self._domain,
            "account": self.options.account,
            "url": (self._address or self.options.urls[0]).shown,
            "connected": of is not None,
            "holds": self._holder.holds,
            "since": format_time(self._since_ns),
            "connects": self._connects,
        }
        if of is not None:
            page |= {key: of.info.get(key, "") for key in ("server_name", "server_id", "version", "remote_account")}
            page |= {"remote_domain": of.info.get("domain", ""), "rtt": of.rtt_ns}
        elif self._redial.error:
            page["error"] = self._redial.error
        return page | {
            "in_msgs": of.in_msgs if of is not None else 0,
            "out_msgs": of.out_msgs if of is not None else 0,
            "in_bytes": of.in_bytes if of is not None else 0,
            "out_bytes": of.out_bytes if of is not None else 0,
            "subscriptions": len(of.listeners) if of is not None and of.listeners is not None else 0,
        }

    def leafz(self, subs: bool) -> dict[str, Any] | None:
        """As /leafz shows it; None without a connection. `subs`: with what is listened to there."""
        of, address = self._connection, self._address
        if of is None or address is None or of.listeners is None:
            return None
        return {
            "id": self._connects,
            "name": of.info.get("server_name", ""),
            "is_spoke": True,
            "account": self.options.account,
            "ip": address.host,
            "port": address.port,
            "rtt": format_duration(of.rtt_ns),
            "in_msgs": of.in_msgs,
            "out_msgs": of.out_msgs,
            "in_bytes": of.in_bytes,
            "out_bytes": of.out_bytes,
            "subscriptions": len(of.listeners),
            **({"subscriptions_list": of.listeners.subjects()} if subs else {}),
        }

    # ------------------------------------------------------------------ one connection
    async def _attempt(self, address: Address) -> str:
        """See `Redial`."""
        made = LeafConnection(self._hub, self._names, self._clock, self._log, self._label)
        try:
            transport, connection = await remote_dial.dial(self.options, address, lambda: made)
            why = await self._greeted(connection, transport, address)
            if why:
                return why
            self._came_up(connection, address)
            why = await connection.over
            self._redial.lost(why)
            self._log.warn(f"{self._label}: connection to {address.shown} ended: {why}")
            return ""
        finally:
            if self._connection is not None:
                self._connection, self._since_ns = None, self._clock.now()
            made.end("it is given up here")

    async def _greeted(self, connection: LeafConnection, transport: asyncio.Transport, address: Address) -> str:
        """Say who this is; returns why that came to nothing, "" when the connection is up."""
        async with asyncio.timeout(GREETING_TIMEOUT_S):
            if not await connection.said_info:
                return await connection.over
        info, tls = connection.info, self.options.tls
        if (info.get("tls_required") or tls is not None) and not (tls is not None and tls.first):
            connection.secured(await remote_dial.secure(transport, connection, self.options, address))
        if info.get("domain") == self._domain:
            return f"its JetStream has the domain {self._domain} itself: choose another jetstream.domain here"
        keys = await asyncio.get_running_loop().run_in_executor(None, remote_login.read, self.options)
        fields = {
            "name": self._who,
            "server_id": f"{self._who}-{self._domain}",
            "version": NATS_VERSION,
            "headers": True,
            "protocol": 1,
        }
        fields |= remote_login.login(self.options, address, keys, str(info.get("nonce", "")))
        published = [subject.encode() for subject in self.options.subjects]
        connection.greet(
            fields, (b"$JS.%b.API.>" % self._domain.encode(), *self._names.subjects, *published), self._group
        )
        async with asyncio.timeout(GREETING_TIMEOUT_S):
            why = "" if await connection.up else await connection.over
        return why + WRONG_PORT if why.startswith("Unknown Protocol") else why

    def _came_up(self, connection: LeafConnection, address: Address) -> None:
        self._connection = connection
        self._address, self._since_ns = address, self._clock.now()
        self._connects += 1
        self._redial.reached()
        urls = connection.info.get("leafnode_urls")
        if isinstance(urls, list):
            self._redial.discovered([url for url in urls if isinstance(url, str)])
        who = connection.info.get("server_name") or connection.info.get("server_id") or "?"
        self._log.info(
            f"{self._label}: connected to {who} at {address.shown}; streams of account {self._hub.account} are "
            f"there in domain {self._domain}"
        )
