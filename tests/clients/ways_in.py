"""Ways in: each kind of login with the configuration of a server that takes it, and each transport.

Belongs here: one list of the kinds and one of the transports, which the tests of every client library share, the
servers for them, and the service that auth callouts ask. A kind needs a server for each `Tls`, with a listener for
WebSocket.
"""

from __future__ import annotations

import enum
import threading

import bcrypt
import msgspec

from tests.certificates import PLACE, client_context
from tests.keys import NO_LIMITS, Operator, account_key, callout_response, claims_of, creds, user_jwt, user_key
from tests.servers import Server
from tests.wire import Closed, Secure, Wire, WireTimeout

PASSWORD = "the password of a test"
HASH = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
NKEY = user_key("ways in")
OPERATOR = Operator()
ISSUER = account_key("ways in")


class Login(msgspec.Struct, frozen=True):
    """Credentials of a client; "": it does without.

    `creds` is the text of a creds file, `certificate` the name of one of `tests.certificates`.
    """

    user: str = ""
    password: str = ""
    token: str = ""
    seed: str = ""
    creds: str = ""
    certificate: str = ""


class Kind(msgspec.Struct, frozen=True):
    """A kind of login.

    Attributes:
        config: settings of the server.
        login: credentials that it accepts.
        wrong: a login that the same server refuses.
        tls: what is added to the server's `tls` blocks; a kind that needs it exists over TLS only.
        asks: the server asks `answer_callouts`.
    """

    config: str
    login: Login
    wrong: Login
    tls: str = ""
    asks: bool = False


def _user(config: str, *, asks: bool = False) -> Kind:
    right, wrong = Login(user="ann", password=PASSWORD), Login(user="ann", password="another")
    return Kind(config, right, wrong, asks=asks)


def _creds(signer: str) -> str:
    """Return the creds file of a user whom another account has signed."""
    return creds(user_jwt(OPERATOR.user, "U", account_key(signer)), OPERATOR.user)


KINDS = {
    "token": Kind(f'authorization {{ token: "{PASSWORD}" }}', Login(token=PASSWORD), Login(token="another")),
    "user": _user(f'authorization {{ users: [{{ user: ann, password: "{PASSWORD}" }}] }}'),
    "bcrypt": _user(f'authorization {{ users: [{{ user: ann, password: "{HASH}" }}] }}'),
    "nkey": Kind(
        f"authorization {{ users: [{{ nkey: {NKEY.public} }}] }}",
        Login(seed=NKEY.seed),
        Login(seed=user_key("another").seed),
    ),
    "jwt": Kind(OPERATOR.config, Login(creds=OPERATOR.credentials), Login(creds=_creds("stranger"))),
    "callout": _user(
        f"authorization {{ auth_callout {{ issuer: {ISSUER.public}, auth_users: [auth], account: AUTH }} }}\n"
        "accounts { AUTH { users: [{ user: auth, password: p }] }, APP { jetstream: enabled } }",
        asks=True,
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


class Tls(enum.Enum):
    """TLS of a server.

    `handshake_first: auto` would do for both kinds with TLS, but a client that sends nothing within 50 ms, on a machine
    with other work, gets INFO first.
    """

    NONE = "plain"
    AFTER_INFO = "tls"
    FIRST = "tls_first"


def tls_of(transport: str) -> Tls:
    """Return the TLS of the server for a transport."""
    if transport == "tls_first":
        return Tls.FIRST
    return Tls.AFTER_INFO if is_secure(transport) else Tls.NONE


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


def configuration(kind: str, security: Tls) -> str:
    """Return the configuration of a server for this kind of login."""
    chosen = KINDS[kind]
    websocket = 'websocket {{ listen: "127.0.0.1:-1", {} }}'
    if security is Tls.NONE:
        return f"{chosen.config}\n{websocket.format('no_tls: true')}\n"
    files = f"{_FILES}, {chosen.tls}" if chosen.tls else _FILES
    tls = f"tls {{ {files}, handshake_first: {'true' if security is Tls.FIRST else 'false'} }}"
    return f"{chosen.config}\n{tls}\n{websocket.format(f'tls {{ {files} }}')}\n"


def answer_callouts(server: Server, security: Tls) -> None:
    """Answer the auth callouts of a server until it ends: the user and password of `KINDS` are right."""
    first = security is Tls.FIRST
    secure = Secure(client_context(server.certificates), first) if security is not Tls.NONE else None
    wire = Wire(server.address, connect={"user": "auth", "pass": "p"}, secure=secure, timeout=600)
    wire.subscribe("$SYS.REQ.USER.AUTH")
    wire.ping()
    threading.Thread(target=_answer, args=(wire,), daemon=True).start()


def _answer(wire: Wire) -> None:
    try:
        while True:
            asked = wire.message("$SYS.REQ.USER.AUTH")
            request = claims_of(asked.data.decode())["nats"]
            user, said = request["user_nkey"], request["connect_opts"]
            if (said.get("user"), said.get("pass")) == ("ann", PASSWORD):
                fields = {"type": "user", "pub": {}, "sub": {}, **NO_LIMITS}
                answer = {"jwt": ISSUER.signed(user, "ann", fields, aud="APP")}
            else:
                answer = {"error": "unknown user or password"}
            wire.publish(asked.reply, callout_response(user, request["server_id"]["id"], ISSUER, **answer).encode())
    except (Closed, WireTimeout, OSError):
        wire.close()
