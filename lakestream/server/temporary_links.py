"""Temporary links to remote servers, for `lakestream move`.

Belongs here: who may have one, its lease, and three requests of an account's clients on this node. A link is that of a
`remote` block (net/remote/), but ends with its lease.

    $LAKE.API.REMOTE.INFO    Answered with {allowed, reason, key, domains}: whether the client may open links, a key to
                             encrypt to, and the domains of the account's remotes.
    $LAKE.API.REMOTE.OPEN    body: {"from", "box"}: a public curve key, and a LinkRequest as JSON, encrypted from it to
                             the server's (base64): other subscribers of the account must not read the login. Opens the
                             link, or renews its lease. Answered with {connected, error?, lease} (ns).
    $LAKE.API.REMOTE.CLOSE   body: {"domain"}. Closes the link.

A link lets its users reach another host from this one. So it is opened only for a client of the same machine on a
server without users, and for users whose permissions name the subject (docs/security.md#temporary-links).
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.config.options import LEAF, STANDARD, RemoteOptions, RemoteTls
from lakestream.logging import Logger
from lakestream.ports import Bus, ClientInfo, Clock, Single, Subscribed, Timer, singly
from lakestream.protocol.api.errors import ApiError
from lakestream.protocol.api.jsonio import dumps
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.protocol.nkeys import BadKeyError, CurveKey, key_pair, new_curve_key

if TYPE_CHECKING:
    from lakestream.net.connection import Connection
    from lakestream.net.remote.remotes import Remotes

PREFIX = "$LAKE.API.REMOTE."
LEASE_NS = 60_000_000_000
"""Time after which a link ends whose lease is not renewed (60 s)."""
MAX_LINKS = 4
"""Temporary links of one server; further ones are refused."""
MAX_BODY = 64 << 10
"""Maximum size of a request (64 KiB)."""
MAX_URLS = 16
"""Maximum number of addresses of a link."""

ENDED = "the temporary link has ended; run lakestream move again, or configure a remote with this domain"
"""The error of a link whose lease has ended."""

_RESERVED = ("API", "ACK", "FC", "SNAPSHOT", "EVENT")


class LinkTls(msgspec.Struct, frozen=True):
    """TLS of a link; PEM texts."""

    ca: str = ""
    cert: str = ""
    key: str = ""
    insecure: bool = False
    first: bool = False
    server_name: str = ""


class LinkRequest(msgspec.Struct, frozen=True):
    """The encrypted body of OPEN. `nkey` is a seed, `jwt` the token of its user."""

    domain: str
    urls: list[str]
    user: str = ""
    password: str = ""
    token: str = ""
    nkey: str = ""
    jwt: str = ""
    tls: LinkTls | None = None


class _Sealed(msgspec.Struct, frozen=True, rename={"sender": "from"}):
    sender: str
    box: str


class _Close(msgspec.Struct, frozen=True):
    domain: str


_LINK_REQUEST = msgspec.json.Decoder(LinkRequest)
_SEALED = msgspec.json.Decoder(_Sealed)
_CLOSE = msgspec.json.Decoder(_Close)


class TemporaryLinks:
    """The temporary links of a server.

    Args:
        remotes: returns the server's remotes, None while it has none; `use_remotes`: makes them.
        connection: returns the connection of a client on this node.
        domain: of this server's JetStream.
    """

    def __init__(
        self,
        remotes: Callable[[], Remotes | None],
        use_remotes: Callable[[], Remotes],
        connection: Callable[[int], Connection | None],
        domain: str,
        clock: Clock,
        log: Logger,
    ) -> None:
        self._remotes, self._use_remotes, self._connection = remotes, use_remotes, connection
        self._domain, self._clock, self._log = domain, clock, log
        self._leases: dict[RemoteOptions, Timer] = {}
        self._ended: dict[RemoteOptions, None] = {}
        """Links without a lease, which only say so; at most `MAX_LINKS`, the latest."""
        self._key: CurveKey | None = None

    def serve(self, account: str, bus: Bus) -> Subscribed:
        """Serve the requests of an account until cancelled."""

        def asked(subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
            try:
                answer = self._answer(account, subject[len(PREFIX) :], body, client)
            except ApiError as error:
                answer = {"error": error.as_dict()}
            if reply:
                bus.send(Single(reply, payload=dumps(answer)))

        # Only clients of this node: their connections say who they are.
        return bus.subscribe(f"{PREFIX}*".encode(), singly(asked), local=True)

    def _answer(self, account: str, verb: bytes, body: bytes, client: ClientInfo) -> dict[str, Any]:
        reason = self._refusal(account, client)
        if verb == b"INFO":
            remotes = self._remotes()
            domains = remotes.domains(account) if remotes is not None else []
            return {"allowed": not reason, "reason": reason, "key": self._own_key.public, "domains": domains}
        if verb not in (b"OPEN", b"CLOSE"):
            raise ApiError(404, 0, f"unknown request; {PREFIX} has INFO, OPEN and CLOSE")
        if reason:
            raise ApiError(403, 0, reason)
        if len(body) > MAX_BODY:
            raise ApiError(400, 0, f"the request is larger than {MAX_BODY} bytes")
        try:
            return self._open(account, body, client) if verb == b"OPEN" else self._close(account, body)
        except (*DECODE_ERRORS, BadKeyError, binascii.Error, ValueError) as error:
            raise ApiError(400, 0, f"invalid request: {error}") from None

    @property
    def _own_key(self) -> CurveKey:
        if self._key is None:
            self._key = new_curve_key()  # loads a library that few servers need
        return self._key

    # ------------------------------------------------------------------ rights
    def _refusal(self, account: str, client: ClientInfo) -> str:
        """Return why a client may not open links; "": it may."""
        connection = self._connection(client.id) if client.kind == "Client" else None
        if connection is None or connection.client.account != account or connection.kind != STANDARD:
            return "temporary links are for clients that are connected to this server over TCP, in the same account"
        user = connection.login.user
        if user is None:
            if _loopback(connection.host):
                return ""
            return "without users, this server opens temporary links only for clients on the same machine"
        permissions = connection.account.permissions(user)
        allowed = permissions.publish.allow if permissions is not None and permissions.publish is not None else None
        if any(subject.startswith(PREFIX) for subject in allowed or ()):
            return ""
        return f"the user's permissions do not name {PREFIX}> (publish: allow)"

    # ------------------------------------------------------------------ links
    def _open(self, account: str, body: bytes, client: ClientInfo) -> dict[str, Any]:
        sealed = _SEALED.decode(body)
        opened = self._own_key.open(base64.b64decode(sealed.box, validate=True), sealed.sender)
        options = _options(_LINK_REQUEST.decode(opened), account)
        if options.domain == self._domain:
            raise ApiError(400, 0, f"domain {options.domain} is this server's own")
        remotes = self._use_remotes()
        other = remotes.domain(account, options.domain)
        if other is not None and other != options and other in self._ended:
            self._forget(other)
            other = None
        if other is not None and (other != options or (options not in self._leases and options not in self._ended)):
            raise ApiError(400, 0, f"domain {options.domain} is that of another remote ({other.urls[0].shown})")
        if options not in self._leases:
            if len(self._leases) >= MAX_LINKS:
                raise ApiError(503, 0, f"this server has {MAX_LINKS} temporary links already")
            shown = f"user {client.user!r}" if client.user else "a client without user"
            self._log.info(f"Temporary link to remote {options.domain} ({options.urls[0].shown}) for {shown}")
        self._ended.pop(options, None)
        served = remotes.open(options)
        self._renew(options)
        error = served.link.error
        return {"connected": served.link.up, "lease": LEASE_NS} | ({"error_text": error} if error else {})

    def _renew(self, options: RemoteOptions) -> None:
        timer = self._leases.get(options)
        if timer is not None:
            timer.cancel()
        self._leases[options] = self._clock.call_later(LEASE_NS, lambda: self._expire(options))

    def _expire(self, options: RemoteOptions) -> None:
        """End a link whose lease was not renewed. Its domain stays, to say why mirrors wait."""
        del self._leases[options]
        self._log.info(f"Temporary link to remote {options.domain} closed: its lease was not renewed")
        self._ended[options] = None
        remotes = self._remotes()
        if remotes is not None:
            remotes.pause(options, ENDED)
        while len(self._ended) > MAX_LINKS:
            self._forget(next(iter(self._ended)))

    def _forget(self, options: RemoteOptions) -> None:
        """Remove a link."""
        self._ended.pop(options, None)
        timer = self._leases.pop(options, None)
        if timer is not None:
            timer.cancel()
        remotes = self._remotes()
        if remotes is not None:
            remotes.close(options)

    def _close(self, account: str, body: bytes) -> dict[str, Any]:
        domain = _CLOSE.decode(body).domain
        found = [one for one in (*self._leases, *self._ended) if (one.account, one.domain) == (account, domain)]
        for one in found:
            self._log.info(f"Temporary link to remote {domain} closed: as requested")
            self._forget(one)
        return {"closed": bool(found)}


def _options(asked: LinkRequest, account: str) -> RemoteOptions:
    """Return the remote of a request. Raises ValueError, BadKeyError."""
    from lakestream.config.remote import remote_url  # with the configuration's parser

    domain = asked.domain
    if not domain or domain in _RESERVED or any(char.isspace() or char in ".*>@" for char in domain):
        raise ValueError(f"domain {domain!r} must be one subject token")
    urls = tuple(remote_url(url) for url in asked.urls[:MAX_URLS])
    if not urls or any(url.scheme == LEAF for url in urls):
        raise ValueError(f"a link needs URLs of clients (nats://, tls://), not {LEAF}://")
    if asked.nkey:
        key_pair(asked.nkey)
    tls = None if asked.tls is None else RemoteTls(**msgspec.structs.asdict(asked.tls))
    return RemoteOptions(
        urls=urls,
        domain=domain,
        account=account,
        user=asked.user,
        password=asked.password,
        token=asked.token,
        nkey=asked.nkey,
        jwt=asked.jwt,
        tls=tls,
    )


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
