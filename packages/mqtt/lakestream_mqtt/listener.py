"""The listener for MQTT, and the sessions behind it.

Belongs here: opening the port, its TLS, the connections of accepted clients, those over WebSocket too, and what
monitoring shows. What is spoken there is in connection.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from lakestream.config.errors import StartError
from lakestream.config.options import SECOND, RouteUrl
from lakestream.net.accounts.accounts import Account
from lakestream.net.listener import Listener, ListenError, TlsEntry, bind
from lakestream.net.websocket.upgrade import Upgrade
from lakestream_mqtt.connection import MqttConnection
from lakestream_mqtt.options import MqttOptions
from lakestream_mqtt.sessions import AccountSessions

if TYPE_CHECKING:
    from lakestream.server.node import Node

MAX_REPLICAS = 3
"""Replicas of the streams in a cluster, without `stream_replicas` (3), as in nats-server."""


class MqttListener:
    """The listener of one server.

    Args:
        node: the server.
        options: its settings.

    Attributes:
        port: the bound port.

    Raises:
        StartError: the address or the certificates cannot be used.
    """

    def __init__(self, node: Node, options: MqttOptions) -> None:
        self.node, self.options = node, options
        self._sessions: dict[str, AccountSessions] = {}
        self._not_after = ""
        tls = self._tls_entry()
        try:
            listening = bind(options.host, options.port)
        except ListenError as error:
            raise StartError(f"Unable to listen for MQTT connections: {error}") from error
        self._listener = Listener(listening, self.connection, node.clock, tls=tls)
        self.port = self._listener.port

    async def open(self) -> None:
        """Begin to accept clients."""
        await self._listener.start()
        scheme = "mqtt" if self.options.tls is None else "tls"
        where = RouteUrl(self.options.host, self.port).address
        self.node.log.info(f"Listening for MQTT clients on {scheme}://{where}")

    def connection(self, upgrade: Upgrade | None = None) -> MqttConnection:
        """Return the connection of an accepted client."""
        return MqttConnection(self, self.node.next_id(), upgrade)

    def sessions(self, account: Account) -> AccountSessions:
        """Return the sessions of an account."""
        found = self._sessions.get(account.name)
        if found is None or found.bus is not account.hub:  # of an account that was removed and is back
            node, options = self.node, self.node.options
            replicas = self.options.stream_replicas or self._replicas()
            name, domain = node.identity.server_name, options.jetstream.domain if options.jetstream is not None else ""
            found = self._sessions[account.name] = AccountSessions(
                account.hub,
                node.clock,
                node.log,
                self.options,
                account.name,
                name,
                domain,
                replicas,
                lambda subject: self._captures(account.name, subject),
            )
        return found

    def _captures(self, account: str, subject: bytes) -> bool:
        """Return True if a stream, on any node, captures a subject and acknowledges its messages."""
        if (jetstream := self.node.jetstream) is None:
            return False
        streams = jetstream.node.inventory.of(account)
        return any(not streams.configs[name].no_ack for name in streams.owners.overlapping(subject))

    def _replicas(self) -> int:
        cluster = self.node.options.cluster
        return max(1, min(MAX_REPLICAS, len(cluster.routes))) if cluster.port else 1

    def renew(self) -> None:
        """Read the certificates again, for later clients. Raises StartError; then nothing has changed."""
        if self.options.tls is not None:
            self._listener.secure(self._tls_entry())

    def close(self) -> None:
        """Accept no more; clients stay."""
        self._listener.close()

    def _tls_entry(self) -> TlsEntry | None:
        """Return how TLS begins: at once, as clients of MQTT speak first."""
        tls = self.options.tls
        if tls is None:
            return None
        from lakestream.net.tls import ServerContext  # with certificates, which a listener in plain text does without

        server = ServerContext(replace(tls, first=True, fallback_ns=0))
        self._not_after = server.not_after
        return TlsEntry(server=server, optional=self.node.options.allow_non_tls)

    def varz(self) -> dict[str, Any]:
        """Return the `mqtt` object of /varz: what is set, without secrets."""
        options = self.options
        timeout = options.auth_timeout_ns / SECOND
        page = {
            "host": options.host,
            "port": self.port,
            "no_auth_user": options.no_auth_user,
            "auth_timeout": int(timeout) if timeout.is_integer() else timeout,
            "tls_map": options.tls is not None and options.tls.verify_and_map,
            "tls_timeout": options.tls.timeout_ns / SECOND if options.tls is not None else 2,
            "js_domain": options.js_domain,
            "ack_wait": options.ack_wait_ns,
            "max_ack_pending": options.max_ack_pending,
            "tls_cert_not_after": self._not_after,
        }
        return {name: value for name, value in page.items() if value}
