"""The leaf nodes of a server.

Belongs here: the listener, which leaf nodes are let into which account, duplicates, reload and the end, and what
monitoring shows of all leaf connections, accepted and dialled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec

from lakestream.config.account_options import Permissions, SubjectRule
from lakestream.config.errors import StartError
from lakestream.config.options import (
    LEAFNODE,
    SECOND,
    WEBSOCKET,
    LeafOptions,
    LeafRemote,
    Options,
    RouteUrl,
    TlsOptions,
)
from lakestream.logging import Logger
from lakestream.net.accounts.accounts import Account, Accounts
from lakestream.net.accounts.auth import Authenticator, Login
from lakestream.net.identity import GIT_COMMIT, GO_VERSION, Identity, advertised, urls_of
from lakestream.net.leaf.accepted import AcceptedLeaf
from lakestream.net.leaf.account import LeafAccount
from lakestream.net.leaf.dialled import DialledLeaf
from lakestream.net.leaf.exchange import DOMAIN_SUBJECTS, USER_INFO, Exchange, LeafEnded
from lakestream.net.leaf.rights import denied, of_user
from lakestream.net.listener import Listener, ListenError, RateLimit, TlsEntry, bind
from lakestream.net.statistics import Traffic
from lakestream.net.tls import ServerContext
from lakestream.net.turn import Turn
from lakestream.net.unsent import Unsent
from lakestream.net.websocket.upgrade import Upgrade
from lakestream.ports import ClientInfo, Clock
from lakestream.protocol import frames
from lakestream.protocol.accounts import GLOBAL_ACCOUNT
from lakestream.protocol.api.request import API_LEVEL, NATS_VERSION
from lakestream.protocol.durations import format_duration

PROTOCOL = 3
"""Version of the leaf node protocol in INFO."""

DUPLICATE = "Duplicate Remote LeafNode Connection"
FULL = "maximum account active connections exceeded"


class Surroundings(Protocol):
    """The server, as its leaf nodes use it."""

    options: Options
    accounts: Accounts
    log: Logger
    identity: Identity
    unsent: Unsent

    @property
    def clock(self) -> Clock:
        """Return the clock."""

    def authenticator_for(self, kind: str) -> Authenticator:
        """Return the check of credentials of connections of this kind."""

    def leaf_urls(self, kind: str = LEAFNODE) -> tuple[str, ...]:
        """Return `host:port` of every node of the cluster for leaf nodes, over WebSocket if that is the `kind`; empty:
        none are known."""

    @property
    def cluster_name(self) -> str:
        """Return the cluster's name; "" without one."""

    def next_id(self) -> int:
        """Return the number of a new connection."""

    def leaf_joined(self, leaf: AcceptedLeaf) -> None:
        """Announce a leaf node that is in its account."""

    def leaf_left(self, leaf: AcceptedLeaf) -> None:
        """Announce that a leaf node that was in its account is gone."""


class LeafNodes:
    """All leaf connections of a server.

    Args:
        server: the server.
        call: runs a function in a thread; awaited.
        others: returns the names of the connected nodes of the cluster; None: no cluster.

    Attributes:
        leaves: accepted connections by number.
        port: of the listener; 0: none.
        urls: `host:port` of this node for leaf nodes.
    """

    def __init__(
        self,
        server: Surroundings,
        call: Callable[[Callable[[], Any]], Any],
        others: Callable[[], Iterable[str]] | None,
    ) -> None:
        self._server, self._call, self._others = server, call, others
        self.leaves: dict[int, AcceptedLeaf] = {}
        self.port = 0
        self.urls: tuple[str, ...] = ()
        self._accounts: dict[str, LeafAccount] = {}
        self._ended = Traffic()
        self._dialled: dict[LeafRemote, DialledLeaf] = {}
        self._dialling = False
        self._listener: Listener | None = None
        self._rate: RateLimit | None = None

    # ------------------------------------------------------------------ the server
    @property
    def options(self) -> Options:
        """Return the settings of the server."""
        return self._server.options

    @property
    def clock(self) -> Clock:
        return self._server.clock

    @property
    def log(self) -> Logger:
        return self._server.log

    @property
    def unsent(self) -> Unsent:
        return self._server.unsent

    @property
    def turn(self) -> Turn:
        return self._server.accounts.system.hub.turn

    @property
    def authenticator(self) -> Authenticator:
        return self._server.authenticator_for(AcceptedLeaf.kind)

    @property
    def _settings(self) -> LeafOptions:
        return self.options.leafnodes

    def account(self, account: Account) -> LeafAccount:
        """Return what leaf connections of an account share."""
        found = self._accounts.get(account.name)
        if found is None:
            domain = self._server.identity.domain
            found = self._accounts[account.name] = LeafAccount(account.hub, domain, is_system=account.is_system)
        return found

    # ------------------------------------------------------------------ the listener
    async def open(self) -> None:
        """Listen. Raises StartError."""
        settings = self._settings
        try:
            listening = bind(settings.host, settings.port)
        except ListenError as error:
            raise StartError(f"Error listening on leafnode port: {settings.port} - {error}") from error
        self.port = listening.getsockname()[1]
        try:
            self.urls = urls_of(settings.host, self.port, advertised(settings.advertise, self.port))
        except ValueError as error:
            listening.close()
            raise StartError(
                f"Error setting leafnode INFO with LeafNode.Advertise value of {settings.advertise}, err={error}"
            ) from error
        if settings.tls is not None:
            self._rate = RateLimit(settings.tls.rate_limit, self.clock, self.log)
        self._listener = Listener(
            listening, lambda: AcceptedLeaf(self, self._server.next_id()), self.clock, tls=self._entry(settings.tls)
        )
        await self._listener.start()
        self.log.info(f"Listening for leafnode connections on {RouteUrl(settings.host, self.port).address}")
        if settings.tls is not None:
            self.log.info("TLS required for leafnode connections")

    def _entry(self, tls: TlsOptions | None) -> TlsEntry | None:
        if tls is None or self._rate is None:
            return None
        return TlsEntry(server=ServerContext(tls), admits=self._rate.admits)

    def accepted(self, upgrade: Upgrade) -> AcceptedLeaf | None:
        """Return the connection of a leaf node that came over WebSocket; None while there is no listener for leaf
        nodes."""
        return AcceptedLeaf(self, self._server.next_id(), upgrade) if self.port else None

    def close(self) -> None:
        """Accept no more; connections stay. Idempotent."""
        if self._listener is not None:
            self._listener.close()

    def connect(self) -> None:
        """Dial the servers to join, as they are configured. Unchanged ones are not interrupted."""
        self._dialling = True
        wanted = [remote for remote in self._settings.remotes if not remote.disabled]
        for gone in [remote for remote in self._dialled if remote not in wanted]:
            self.clock.spawn(self._dialled.pop(gone).stop())
        for remote in wanted:
            if remote not in self._dialled:
                made = self._dialled[remote] = self._made(remote)
                made.start()

    def _made(self, remote: LeafRemote) -> DialledLeaf:
        server = self._server
        account = server.accounts.of(remote.dial.account)
        return DialledLeaf(
            remote,
            self.account(account),
            server.identity,
            server.cluster_name,
            self.clock,
            self.log,
            self._call,
            server.next_id,
            lambda: self.always(account),
            self.own(account),
            self._settings,
            self._others,
            self._ended.add,
        )

    async def stop(self) -> None:
        """Dial no more, and close all connections."""
        self.close()
        for dialled in self._dialled.values():
            await dialled.stop()
        for leaf in list(self.leaves.values()):
            leaf.close("Server Shutdown")

    def reload(self, before: LeafOptions, authenticator: Authenticator) -> None:
        """Apply new settings; connections whose user changed are closed.

        Args:
            authenticator: the check of credentials before.
        """
        settings = self._settings
        if self._listener is not None and settings.tls is not None:
            self._listener.secure(self._entry(settings.tls))
        now = self.authenticator
        for leaf in list(self.leaves.values()):
            user = leaf.login.user
            if user is not None and now.login_of(user.name) != authenticator.login_of(user.name):
                leaf.fail("Authorization Violation", "Authentication Failure")
            else:
                leaf.limit()
                leaf.permit()
        if self._dialling and (settings.remotes or before.remotes):
            self.connect()

    # ------------------------------------------------------------------ LeafOwner
    def announce(self) -> None:
        """Tell the leaf nodes the addresses of the cluster, which have changed."""
        for leaf in list(self.leaves.values()):
            if leaf.exchange is not None and not leaf.close_reason:
                leaf.write(self.info(leaf, second=True, later=True))

    def info(self, leaf: AcceptedLeaf, *, second: bool = False, later: bool = False) -> bytes:
        """Return the INFO frame. `second`: the one after the login; `later`: one after that."""
        identity, settings = self._server.identity, self._settings
        host, port = advertised(settings.advertise, self.port) or (settings.host, self.port)
        fields: dict[str, Any] = {
            "server_id": identity.server_id,
            "server_name": identity.server_name,
            "version": NATS_VERSION,
            "proto": PROTOCOL,
            "git_commit": GIT_COMMIT,
            "go": GO_VERSION,
            "host": host,
            "port": port,
            "headers": True,
            "auth_required": True,
        }
        if settings.tls is not None:
            fields["tls_required"] = True
            if settings.tls.needs_certificates:
                fields["tls_verify"] = True
        fields["max_payload"] = identity.max_payload
        if identity.jetstream:
            fields["jetstream"] = True
        fields |= {"ip": f"{host}:{port}", "client_id": leaf.id}
        if not second:
            fields["nonce"] = leaf.nonce
            if leaf.upgrade is None:
                fields["compression"] = settings.compression
        if self._server.cluster_name:
            fields["cluster"] = self._server.cluster_name
        if identity.domain:
            fields["domain"] = identity.domain
        fields |= {"api_lvl": API_LEVEL, "info_on_connect": True}
        if not settings.no_advertise:
            fields["leafnode_urls"] = list(dict.fromkeys((*self.urls, *self._server.leaf_urls())))
            if over_websocket := self._server.leaf_urls(WEBSOCKET):
                fields["ws_connect_urls"] = over_websocket
        if second and leaf.account is not None:
            fields |= {} if later else {"connect_info": True}
            fields["remote_account"] = leaf.account.name
            if leaf.account.is_system:
                fields["acc_is_sys"] = True
            fields |= _permissions(leaf)
        # With a blank before the end of the line, as nats-server has it.
        return frames.INFO % (msgspec.json.encode(fields) + b" ")

    def opened(self, leaf: AcceptedLeaf) -> None:
        """Register a connection."""
        self.leaves[leaf.id] = leaf

    def enter(self, leaf: AcceptedLeaf, login: Login) -> Exchange:
        """Put a leaf node into the account of its login. Raises Ended."""
        server, peer = self._server, leaf.peer
        assert peer is not None, "only a leaf node that sent CONNECT logs in"
        name = login.account
        if login.user is None or self._settings.single_login:
            name = self._settings.account or name
        account = server.accounts.of(name)
        most = account.options.limits.max_leafnodes
        if 0 <= most <= len(account.leaves):
            leaf.account = account
            raise LeafEnded(FULL, "Maximum Account Connections Exceeded", FULL)
        if peer.cluster and peer.cluster == server.cluster_name:
            text = "remote leafnode has same cluster name"
            raise LeafEnded(text, "Cluster Names Identical", text)
        key = peer.name, peer.remote_account
        for other in list(self.leaves.values()):
            known = other.peer if other.exchange is not None and other.account is account else None
            if peer.name and known is not None and key == (known.name, known.remote_account):
                other.fail(DUPLICATE, DUPLICATE)
        leaf.account, leaf.login, leaf.permissions = account, login, account.permissions(login.user)
        account.leaves[leaf.id] = leaf
        sees = account.sees(login.user)
        client = ClientInfo(leaf.id, leaf.host, account.name, name=peer.name, kind="Leafnode", sees=sees)
        return Exchange(
            leaf,
            self.account(account),
            of_user(
                account.rules(login.user), denied(peer.deny_pub, peer.remote_account, account.name), self.own(account)
            ),
            client,
            self.clock,
            cluster=peer.cluster,
            headers=peer.headers,
            isolated=peer.isolate or self._settings.isolate,
        )

    def own(self, account: Account) -> tuple[bytes, ...]:
        """Return prefixes of the JetStream requests that this server answers itself."""
        identity = self._server.identity
        if not identity.jetstream or account.is_system:
            return ()
        domain = (b"$JS.%b.API." % identity.domain.encode(),) if identity.domain else ()
        return (b"$JS.API.", *domain)

    def always(self, account: Account, *, to_leaf: bool = False) -> list[bytes]:
        """Return the subjects that are announced beside subscriptions. `to_leaf`: the other side is the leaf node."""
        identity, subjects = self._server.identity, [self.account(account).loop_subject]
        if not account.is_system:
            subjects.append(USER_INFO)
            if identity.jetstream and to_leaf:
                subjects.append(b"$JS.API.>")
            if identity.jetstream and identity.domain:
                subjects += [f"$JS.{identity.domain}.API.{one}".encode() for one in DOMAIN_SUBJECTS]
        if account.hub.mappings is not None:
            # No side takes requests to its own JetStream from the other one: asking for them ends the connection.
            sources = account.hub.mappings.shown()
            subjects += [source.encode() for source in sources if not source.startswith(("$JS.API.", "$KV.", "$OBJ."))]
        return subjects

    def entered(self, leaf: AcceptedLeaf, exchange: Exchange) -> None:
        """Announce the account's interest to a leaf node that was told that it is in."""
        peer, account = leaf.peer, leaf.account
        assert peer is not None, "it has entered"
        assert account is not None, "it has entered"
        ours = self._server.identity
        if ours.domain != peer.domain:
            self.log.info(f'{leaf.label} - JetStream using domains: local "{ours.domain}", remote "{peer.domain}"')
        exchange.open(self.always(account, to_leaf=not peer.is_hub))
        self._server.leaf_joined(leaf)

    def closed(self, leaf: AcceptedLeaf) -> None:
        """Unregister a connection."""
        self.leaves.pop(leaf.id, None)
        if leaf.account is not None:
            leaf.account.leaves.pop(leaf.id, None)
        if leaf.exchange is not None:
            self._ended.add(leaf.exchange)
            self._server.leaf_left(leaf)

    # ------------------------------------------------------------------ monitoring
    def unconnected(self) -> list[str]:
        """Return a text for each server to join, disabled ones excepted, to which there is no connection."""
        lacking = []
        for remote in self._settings.remotes:
            dialled = self._dialled.get(remote)
            if not remote.disabled and not (dialled is not None and dialled.is_connected):
                urls = " ".join(f'"{address.shown}"' for address in remote.dial.urls)
                lacking.append(f'leafnode remote for account "{remote.dial.account}" (urls=[{urls}]) is not connected')
        return sorted(lacking)

    def in_account(self, account: Account) -> list[AcceptedLeaf]:
        return [leaf for leaf in self.leaves.values() if leaf.exchange is not None and leaf.account is account]

    def traffic(self) -> Traffic:
        """Return the traffic of all leaf connections since the start."""
        total = Traffic()
        total.add(self._ended)
        for exchange in (leaf.exchange for leaf in self.leaves.values()):
            if exchange is not None:
                total.add(exchange)
        for dialled in self._dialled.values():
            if (made := dialled.leafz()) is not None:
                total.add(made[1])
        return total

    def leafz(self, subs: bool) -> list[dict[str, Any]]:
        """Return the connections as /leafz shows them; `subs`: with the other side's interest."""
        pages = []
        for leaf in self.leaves.values():
            if leaf.exchange is not None and leaf.account is not None:
                shown = {
                    "id": leaf.id,
                    "name": leaf.name,
                    "is_spoke": False,
                    "is_isolated": leaf.exchange.isolated,
                    "account": leaf.account.name,
                    "ip": leaf.host,
                    "port": leaf.port,
                    "rtt": format_duration(leaf.rtt_ns),
                }
                over_websocket = leaf.upgrade is not None
                pages.append(leaf_page(shown, leaf.exchange, leaf.compression, over_websocket, subs))
        for dialled in self._dialled.values():
            if (made := dialled.leafz()) is not None:
                pages.append(leaf_page(*made, subs))
        return pages

    def varz(self) -> dict[str, Any]:
        """Return the `leaf` object of /varz."""
        settings = self._settings
        page: dict[str, Any] = {}
        if settings.port:
            page = {"host": settings.host, "port": self.port, "auth_timeout": settings.auth_timeout_ns / SECOND}
            tls = settings.tls
            page["tls_timeout"] = (tls or TlsOptions()).timeout_ns / SECOND
            if tls is not None:
                page |= {"tls_required": True, "tls_verify": tls.needs_certificates}
        if settings.remotes:
            page["remotes"] = [_remote(remote) for remote in settings.remotes]
        return page


def leaf_page(
    shown: dict[str, Any], exchange: Exchange, compression: str, over_websocket: bool, subs: bool
) -> dict[str, Any]:
    """Return a connection as /leafz shows it."""
    page = {name: value for name, value in shown.items() if name != "is_isolated" or value}
    page |= {name: getattr(exchange, name) for name in ("in_msgs", "out_msgs", "in_bytes", "out_bytes")}
    page |= {"subscriptions": len(exchange.subscriptions), "compression": compression}
    if over_websocket:
        page["websocket"] = True
    if subs:
        page["subscriptions_list"] = [subject.decode("utf-8", "replace") for subject, _ in exchange.subscriptions]
    return page


def _remote(remote: LeafRemote) -> dict[str, Any]:
    denied = {"exports": list(remote.deny_exports), "imports": list(remote.deny_imports)}
    page: dict[str, Any] = {
        "local_account": remote.dial.account or GLOBAL_ACCOUNT,
        "urls": [f"{address.host}:{address.port}" for address in remote.dial.urls],
    }
    if any(denied.values()):
        page["deny"] = {name: subjects for name, subjects in denied.items() if subjects}
    return page


def _permissions(leaf: AcceptedLeaf) -> dict[str, Any]:
    """Return the permissions of a leaf node's user as INFO tells it, from the leaf node's point of view."""
    permissions = leaf.permissions or Permissions()
    fields: dict[str, Any] = {}
    if permissions.subscribe is not None:
        fields["import"] = _rule(permissions.subscribe)
    if permissions.publish is not None or permissions.responses is not None:
        fields["export"] = _rule(permissions.publish or SubjectRule())
    return fields


def _rule(rule: SubjectRule) -> dict[str, list[str]]:
    lists = {"allow": list(rule.allow or ()), "deny": list(rule.deny)}
    return {name: subjects for name, subjects in lists.items() if subjects}
