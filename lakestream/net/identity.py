"""Identity of this server.

Belongs here: the server's id, its addresses and the INFO frame. Clients derive features from `version` and `api_lvl`,
so INFO names the nats-server release whose behaviour this server has; our own version stands beside it.
"""

from __future__ import annotations

import platform
import secrets
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lakestream import __version__
from lakestream.config.options import Options, RouteUrl
from lakestream.protocol import frames
from lakestream.protocol.accounts import GLOBAL_ACCOUNT
from lakestream.protocol.api.request import API_LEVEL, NATS_VERSION

GIT_COMMIT = f"lakestream-{__version__}"
GO_VERSION = f"python{platform.python_version()}"
"""Values of `git_commit` and `go` in INFO and /varz. Some clients do not connect without `go`. None parses it: it is
the version of the language that this server runs in."""

_BASE32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


def new_server_id() -> str:
    """Return a new id in the form of a public server nkey: `N` and 55 base32 characters."""
    return "N" + "".join(secrets.choice(_BASE32) for _ in range(55))


def advertised(text: str, port: int) -> tuple[str, int] | None:
    """Return host and port of client_advertise (`host`, `host:port`, an IPv6 host in brackets); None when it is empty.

    Args:
        text: as configured.
        port: of the listener, for a text without one.

    Raises:
        ValueError: neither; with nats-server's text.
    """
    if not text:
        return None
    host, colon, own = text.rpartition(":")
    if not colon or text.endswith("]"):
        return text.strip("[]"), port
    if ":" in host and not host.endswith("]"):
        raise ValueError(f"address {text}: too many colons in address")
    if not own.isdecimal():
        raise ValueError(f'strconv.Atoi: parsing "{own}": invalid syntax')
    return host.strip("[]"), int(own)


_WILDCARDS = ("", "0.0.0.0", "::")


def addresses(host: str) -> list[str]:
    """Return the hosts under which a listener on `host` is reached: `host`, or for a wildcard those of this machine."""
    if host not in _WILDCARDS:
        return [host]
    found = ["127.0.0.1"]
    # The address of outgoing connections; connecting a datagram socket sends nothing.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            found.append(probe.getsockname()[0])
        except OSError:
            return found  # no network: only local clients
    return list(dict.fromkeys(found))


def ipv6_addresses(host: str) -> list[str]:
    """Return the IPv6 addresses of this machine if a listener on `host` is reached at all of them, else none."""
    if host not in _WILDCARDS or not socket.has_dualstack_ipv6():
        return []
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as interfaces:
            found = [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line.split()[0])) for line in interfaces]
    except OSError:  # not Linux, or IPv6 is turned off
        return []
    return sorted(found, key=lambda address: address != "::1")


def urls_of(host: str, port: int, advertise: tuple[str, int] | None) -> tuple[str, ...]:
    """Return `host:port` of a listener for clients: as configured, else its addresses; 127.0.0.1 only when there is no
    other."""
    if advertise is not None:
        return (RouteUrl(*advertise).address,)
    found = addresses(host)
    outer = [name for name in found if not name.startswith("127.")] or found
    return tuple(RouteUrl(name, port).address for name in outer)


def tls_fields(options: Options, first: bool = False) -> dict[str, bool]:
    """Return the fields of INFO and /varz about TLS of clients; those that are false are left out.

    Args:
        first: TLS began before INFO.
    """
    tls = options.tls
    if tls is None:
        return {}
    fields = {
        "tls_required": first or not options.allow_non_tls,
        "tls_verify": tls.needs_certificates,
        "tls_available": options.allow_non_tls,
    }
    return {name: value for name, value in fields.items() if value}


class Identity(msgspec.Struct, frozen=True):
    """Id, name and addresses as INFO and monitoring show them.

    `advertise`: host and port for clients instead of the listener's (client_advertise). `headers`: clients may use
    headers.
    """

    server_id: str
    server_name: str
    host: str
    port: int
    max_payload: int
    jetstream: bool
    domain: str
    auth_required: bool
    advertise: tuple[str, int] | None = None
    headers: bool = True

    @property
    def shown_address(self) -> tuple[str, int]:
        """Return host and port of the server as others see it."""
        return self.advertise or (self.host, self.port)

    def info(
        self,
        client_id: int,
        client_ip: str,
        *,
        second: bool,
        lame_duck: bool,
        auth_required: bool | None = None,
        tls: Mapping[str, bool] | None = None,
        nonce: str = "",
        xkey: str = "",
        account: str = GLOBAL_ACCOUNT,
        is_system: bool = False,
        max_payload: int | None = None,
        cluster: str = "",
        connect_urls: Sequence[str] = (),
        listener: tuple[str, int] | None = None,
    ) -> bytes:
        """Return the INFO frame for one client.

        Args:
            client_id: the connection's number.
            client_ip: its address; "": not known yet.
            second: this INFO follows the first PONG (docs/internals/protocol.md#info).
            lame_duck: the server is about to stop.
            auth_required: the client must authenticate; None: as configured.
            tls: the fields about TLS.
            nonce: what the client is to sign; "": nothing.
            xkey: the curve key to which clients may encrypt; "": not shown.
            account: the client's account, shown in the second INFO.
            is_system: that is the system account.
            max_payload: of this client, bytes; None: the server's.
            cluster: the cluster's name; "" without one.
            connect_urls: `host:port` of every server that clients may connect to.
            listener: host and port where it connected; None: the listener for NATS, or what it advertises.
        """
        host, port = listener or self.shown_address
        fields: dict[str, Any] = {
            "server_id": self.server_id,
            "server_name": self.server_name,
            "version": NATS_VERSION,
            "proto": 1,
            "git_commit": GIT_COMMIT,
            "go": GO_VERSION,
            "host": host,
            "port": port,
            "headers": self.headers,
        }
        if self.auth_required if auth_required is None else auth_required:
            fields["auth_required"] = True
        fields |= tls or {}
        fields["max_payload"] = self.max_payload if max_payload is None else max_payload
        if self.jetstream:
            fields["jetstream"] = True
        fields["client_id"] = client_id
        if client_ip:
            fields["client_ip"] = client_ip
        if nonce:
            fields["nonce"] = nonce
        if cluster:
            fields["cluster"] = cluster
        if self.domain:
            fields["domain"] = self.domain
        if connect_urls:
            fields["connect_urls"] = connect_urls
        if lame_duck:
            fields["ldm"] = True
        if second:
            fields |= {"connect_info": True, "remote_account": account}
            if is_system:
                fields["acc_is_sys"] = True
        fields["api_lvl"] = API_LEVEL
        if xkey:
            fields["xkey"] = xkey
        return frames.INFO % msgspec.json.encode(fields)
