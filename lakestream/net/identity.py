"""Who this server says it is.

Belongs here: the server's id and the INFO frame. Clients decide by `version` and `api_lvl` which features they may
use, so INFO names the nats-server release whose behaviour this server keeps; our own version stands beside it.
"""

from __future__ import annotations

import platform
import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from lakestream import __version__

NATS_VERSION = "2.15.1"
"""The nats-server release that the wire contract is taken from."""

GIT_COMMIT = f"lakestream-{__version__}"
GO_VERSION = f"python{platform.python_version()}"
"""What INFO has in the places of nats-server's commit and version of Go: there are clients that cannot connect without
these fields. They are shown, never parsed."""

API_LEVEL = 5
"""JetStream API level of that release."""

_BASE32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


def new_server_id() -> str:
    """A fresh id in the form of a public server nkey: `N` and 55 base32 characters."""
    return "N" + "".join(secrets.choice(_BASE32) for _ in range(55))


def advertised(text: str, port: int) -> tuple[str, int] | None:
    """Host and port of client_advertise (`host`, `host:port`, an IPv6 host in brackets); None when it is empty.

    Args:
        text: as configured.
        port: of the listener, for a text without one.
    """
    if not text:
        return None
    host, colon, own = text.rpartition(":")
    if colon and own.isdecimal() and (":" not in host or host.endswith("]")):
        return host.strip("[]"), int(own)
    return text.strip("[]"), port


class Identity(msgspec.Struct, frozen=True):
    """Id, name and addresses as INFO and monitoring show them.

    `advertise`: what clients are told instead of host and port (client_advertise).
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

    def info(
        self,
        client_id: int,
        client_ip: str,
        *,
        second: bool,
        lame_duck: bool,
        auth_required: bool | None = None,
        account: str = "$G",
        is_system: bool = False,
        max_payload: int = 0,
        cluster: str = "",
        connect_urls: Sequence[str] = (),
    ) -> bytes:
        """The INFO frame for one client.

        Args:
            client_id: the connection's number.
            client_ip: its address.
            second: this INFO follows the first PONG (docs/internals/protocol.md#info).
            lame_duck: the server is about to go.
            auth_required: a client has to say who it is; None: as configured.
            account: the client's, told in the second.
            is_system: that is the system account.
            max_payload: of the account, bytes; 0: the server's.
            cluster: name of the cluster, "" without one.
            connect_urls: `host:port` of every server that clients may connect to.
        """
        host, port = self.advertise or (self.host, self.port)
        fields: dict[str, Any] = {
            "server_id": self.server_id,
            "server_name": self.server_name,
            "version": NATS_VERSION,
            "lakestream": __version__,
            "proto": 1,
            "git_commit": GIT_COMMIT,
            "go": GO_VERSION,
            "host": host,
            "port": port,
            "headers": True,
        }
        if self.auth_required if auth_required is None else auth_required:
            fields["auth_required"] = True
        fields["max_payload"] = max_payload or self.max_payload
        if self.jetstream:
            fields["jetstream"] = True
        fields["client_id"] = client_id
        fields["client_ip"] = client_ip
        if cluster:
            fields["cluster"] = cluster
        if connect_urls:
            fields["connect_urls"] = connect_urls
        if second:
            fields |= {"connect_info": True, "remote_account": account}
            if is_system:
                fields["acc_is_sys"] = True
        if lame_duck:
            fields["ldm"] = True
        if self.domain:
            fields["domain"] = self.domain
        fields["api_lvl"] = API_LEVEL
        return b"INFO %b \r\n" % msgspec.json.encode(fields)
