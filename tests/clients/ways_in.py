"""Ways in: each kind of login with the configuration of a server that takes it, and each transport.

Belongs here: one list of the kinds and one of the transports, which the tests of every client library share, and the
servers for them. A kind needs one server without TLS and one with it, each with a listener for WebSocket.
"""

from __future__ import annotations

import bcrypt
import msgspec

from tests.certificates import PLACE
from tests.keys import user_key
from tests.servers import Server

PASSWORD = "the password of a test"
HASH = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
NKEY = user_key("ways in")


class Login(msgspec.Struct, frozen=True):
    """What a client logs in with; "": it does without. `certificate` is the name of one of `tests.certificates`."""

    user: str = ""
    password: str = ""
    token: str = ""
    seed: str = ""
    certificate: str = ""


class Kind(msgspec.Struct, frozen=True):
    """A kind of login.

    Attributes:
        config: what the server's configuration has for it.
        login: what a client gives.
        wrong: a login that the same server refuses.
        tls: what is added to the server's `tls` blocks; a kind that needs it exists over TLS only.
    """

    config: str
    login: Login
    wrong: Login
    tls: str = ""


def _user(config: str) -> Kind:
    return Kind(config, Login(user="ann", password=PASSWORD), Login(user="ann", password="another"))


KINDS = {
    "token": Kind(f'authorization {{ token: "{PASSWORD}" }}', Login(token=PASSWORD), Login(token="another")),
    "user": _user(f'authorization {{ users: [{{ user: ann, password: "{PASSWORD}" }}] }}'),
    "bcrypt": _user(f'authorization {{ users: [{{ user: ann, password: "{HASH}" }}] }}'),
    "nkey": Kind(
        f"authorization {{ users: [{{ nkey: {NKEY.public} }}] }}",
        Login(seed=NKEY.seed),
        Login(seed=user_key("another").seed),
    ),
    "certificate": Kind(
        'authorization { users: [{ user: "ann@example.com" }] }',
        Login(certificate="ann"),
        Login(certificate="stranger"),
        f'ca_file: "{PLACE}/ca.pem", verify_and_map: true',
    ),
}
TRANSPORTS = ("tcp", "tls", "tls_first", "ws", "wss")

_FILES = f'cert_file: "{PLACE}/server.pem", key_file: "{PLACE}/server.key"'


def is_secure(transport: str) -> bool:
    """Return True if the transport is encrypted."""
    return transport in ("tls", "tls_first", "wss")


MATRIX = tuple(
    (kind, transport) for kind in KINDS for transport in TRANSPORTS if is_secure(transport) or not KINDS[kind].tls
)
"""Every kind over every transport that it can use."""


def url_of(server: Server, transport: str) -> str:
    """Return the URL for a client."""
    if transport in ("ws", "wss"):
        return f"{transport}://localhost:{server.websocket_port}"
    return f"{'tls' if is_secure(transport) else 'nats'}://localhost:{server.port}"


def configuration(kind: str, *, secure: bool) -> str:
    """Return the configuration of a server for this kind of login."""
    chosen = KINDS[kind]
    websocket = 'websocket {{ listen: "127.0.0.1:-1", {} }}'
    if not secure:
        return f"{chosen.config}\n{websocket.format('no_tls: true')}\n"
    files = f"{_FILES}, {chosen.tls}" if chosen.tls else _FILES
    tls = f"tls {{ {files}, handshake_first: auto }}"
    return f"{chosen.config}\n{tls}\n{websocket.format(f'tls {{ {files} }}')}\n"
