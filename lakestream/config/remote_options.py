"""A remote server as configured, as records.

Belongs here: what a `remote` block may say, with units and defaults, and what must hold between it and the rest of the
configuration. How the text is written is in remote.py, what is done with it in remote/link.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from lakestream.config.errors import StartError
from lakestream.protocol.accounts import GLOBAL_ACCOUNT

SECOND = 1_000_000_000
LEAF = "nats-leaf"
PORTS = {"nats": 4222, "tls": 4222, LEAF: 7422}
"""The schemes of a remote's URL, and the port of one without."""


class Address(NamedTuple):
    """Where a remote is, and who this server is there; `user` "": what the block says."""

    scheme: str
    host: str
    port: int
    user: str = ""
    password: str = ""

    @property
    def shown(self) -> str:
        """The URL without what nobody shall read in a log."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


class RemoteTls(msgspec.Struct, frozen=True, kw_only=True):
    """TLS with a remote. PEM files; `ca_file` "": the system's authorities, `cert_file` "": no certificate is shown.

    `insecure` takes any certificate (encrypted, but not protected from somebody in the middle). `first`: the handshake
    comes before anything else is said. `server_name`: what the certificate has to carry, "": the host of the URL.
    """

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    insecure: bool = False
    first: bool = False
    server_name: str = ""
    timeout_ns: int = 5 * SECOND


class RemoteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One other NATS server that this one connects to.

    Attributes:
        urls: members of its cluster, tried in turn.
        domain: what its JetStream is called here.
        remote_domain: what it is called there, "": the one that answers `$JS.API`.
        account: in which account it is known here.
        user, password, token, nkey, nkey_file, credentials: who this server is there. `nkey` is a seed; the other two
            name files, which are read for every connection.
        tls: None where nothing is said: then as the URL or the remote wants it.
        subjects: what is published there on these comes here, too; of a leaf node.
        ignore_discovered: other members of its cluster than those in `urls` are not dialled.
    """

    urls: tuple[Address, ...]
    domain: str = ""
    remote_domain: str = ""
    account: str = GLOBAL_ACCOUNT
    user: str = ""
    password: str = ""
    token: str = ""
    nkey: str = ""
    nkey_file: str = ""
    credentials: str = ""
    tls: RemoteTls | None = None
    subjects: tuple[str, ...] = ()
    ignore_discovered: bool = False

    @property
    def leaf(self) -> bool:
        """It is connected to as a leaf node."""
        return self.urls[0].scheme == LEAF

    @property
    def name(self) -> str:
        """What the log and monitoring call it."""
        return self.domain or self.urls[0].shown


def check(remotes: Iterable[RemoteOptions], accounts: Iterable[str], domain: str) -> None:
    """What must hold between the remotes and the rest. Raises StartError.

    Args:
        accounts: those that are configured.
        domain: of this server's own JetStream.
    """
    known, seen = {GLOBAL_ACCOUNT, *accounts}, set[tuple[str, str]]()
    for remote in remotes:
        if remote.account not in known:
            raise StartError(f"remote {remote.name!r}: there is no account {remote.account!r}")
        if remote.leaf:
            if not domain:
                raise StartError(
                    f"remote {remote.name}: set jetstream.domain, by which its mirrors address this server"
                )
            continue
        if remote.domain == domain:
            raise StartError(f"remote {remote.name!r}: this server's own JetStream has that domain; choose another")
        if (remote.account, remote.domain) in seen:
            raise StartError(f"remote {remote.name!r}: account {remote.account} has another remote of that domain")
        seen.add((remote.account, remote.domain))
