"""TLS for clients: the upgrade after INFO, client certificates and the users that they stand for."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import ssl
import time
import warnings
from typing import Any

from tests.certificates import PLACE
from tests.conformance.harness import Script, configured, table
from tests.pairs import Setup
from tests.wire import Closed, Secure, WireTimeout


def _setup(inside: str = "", more: str = "") -> Setup:
    files = f'cert_file: "{PLACE}/server.pem", key_file: "{PLACE}/server.key"'
    return Setup(f'http: "127.0.0.1:-1"\n{more}\ntls {{ {files}, {inside} }}\n', users=())


PLAIN = _setup()
VERIFIED = _setup(f'verify: true, ca_file: "{PLACE}/ca.pem"')
IF_GIVEN = _setup(f'verify: optional, ca_file: "{PLACE}/ca.pem"')
OPTIONAL = _setup("", "allow_non_tls: true")
OPTIONAL_VERIFIED = _setup(f'verify: true, ca_file: "{PLACE}/ca.pem"', "allow_non_tls: true")


def _tls_of(info: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in info.items() if name.startswith(("tls_", "auth_"))}


def _connected(t: Script, secure: Secure | None = None, **connect: Any) -> None:
    """Record if a client gets to its PONG, and what INFO says of TLS; or how the attempt ends."""
    try:
        wire = t.connect_bare(secure=secure)
    except (OSError, Closed) as error:
        t.note("connected", "no handshake" if isinstance(error, OSError) else "closed before INFO")
        return
    t.note("INFO", _tls_of(wire.info))
    name = f"secured {time.monotonic_ns()}"
    fields = ",".join(f'"{key}":"{value}"' for key, value in {"name": name, **connect}.items())
    try:
        wire.send(f'CONNECT {{"verbose":true,"protocol":1,{fields}}}\r\n'.encode())
        answer = wire.next()
        t.note("connected", t.show(answer))
        if answer.verb == "-ERR":
            t.frames("until closed", wire.until_closed())
            return
    except (OSError, Closed):
        t.note("connected", "closed after CONNECT")
        return
    t.note("INFO after the first PONG", [_tls_of(info) for info in wire.told()[1:]])
    [shown] = [each for each in t.server.page("/connz?auth=1")["connections"] if each.get("name") == name]
    for each in shown.get("tls_peer_certs", ()):
        each |= {key: len(each[key]) for key in ("spki_sha256", "cert_sha256")}
    # Which suite of TLS 1.3 is taken is up to both libraries; nats-server names it as IANA does.
    shown["tls_cipher_suite"] = re.sub(
        r"^TLS_(AES|CHACHA20)_[0-9A-Z_]+$", "<of TLS 1.3>", shown.get("tls_cipher_suite", "")
    )
    keys = ("tls_version", "tls_cipher_suite", "tls_first", "tls_peer_certs", "authorized_user", "account", "name_tag")
    t.note("connz", {key: shown[key] for key in keys if key in shown})


@configured(PLAIN)
def upgrade(t: Script) -> None:
    _connected(t, t.secure())
    t.note("varz", sorted(key for key in t.server.page("/varz") if key.startswith("tls_")))


@configured(PLAIN)
def upgrade_with_tls_1_2(t: Script) -> None:
    secure = t.secure()
    secure.context.maximum_version = ssl.TLSVersion.TLSv1_2
    _connected(t, secure)


@configured(PLAIN)
def upgrade_with_tls_1_1(t: Script) -> None:
    secure = t.secure()
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        secure.context.minimum_version = secure.context.maximum_version = ssl.TLSVersion.TLSv1_1
    secure.context.set_ciphers("ALL:@SECLEVEL=0")
    _connected(t, secure)


@configured(PLAIN)
def handshake_before_info(t: Script) -> None:
    _connected(t, t.secure(first=True))


@configured(PLAIN)
def no_handshake(t: Script) -> None:
    _connected(t)


# Each row: bytes instead of a handshake; the server closes the connection without a word.
@table(
    [
        ("ping", b"PING\r\n"),
        ("connect", b"CONNECT {}\r\nPING\r\n"),
        ("connect_with_tls_required", b'CONNECT {"tls_required":true}\r\n'),
        ("http", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("zeros", b"\x00" * 64),
        ("alert", b"\x15\x03\x01\x00\x02\x02\x28"),
        ("record_too_large", b"\x16\x03\x01\xff\xff" + b"\x01" * 64),
    ],
    PLAIN,
)
def garbage_instead_of_a_handshake(t: Script, sent: bytes) -> None:
    wire = t.connect_bare()
    wire.send(sent)
    try:
        t.note("commands until closed", [frame.verb for frame in wire.until_closed() if frame.verb in ("PONG", "+OK")])
    except WireTimeout:
        t.note("commands until closed", "not closed")


@configured(PLAIN)
def garbage_after_a_handshake(t: Script) -> None:
    wire = t.connect(secure=t.secure())
    t.frames("first", wire.ping())
    assert isinstance(wire.socket, ssl.SSLSocket)
    with socket.socket(fileno=wire.socket.detach()) as beneath:
        beneath.settimeout(t.timeout)
        beneath.sendall(b"PING\r\n" * 100)
        with contextlib.suppress(ConnectionError):
            while beneath.recv(65536):
                pass
    t.note("closed", True)


@table([("ann", "ann"), ("nobody", ""), ("only_of_a_server", "only_server")], PLAIN)
def certificates_are_not_asked_for(t: Script, certificate: str) -> None:
    _connected(t, t.secure(certificate))


CERTIFICATES = [
    ("ann", "ann"),
    ("nameless", "nameless"),
    ("none", ""),
    ("of_an_unknown_authority", "impostor"),
    ("expired", "late"),
    ("not_yet_valid", "early"),
    ("only_for_servers", "only_server"),
]


@table(CERTIFICATES, VERIFIED)
def certificates_are_verified(t: Script, certificate: str) -> None:
    _connected(t, t.secure(certificate))


@table(CERTIFICATES, IF_GIVEN)
def certificates_are_verified_if_given(t: Script, certificate: str) -> None:
    _connected(t, t.secure(certificate))


@table(
    [
        ("plain", None),
        ("upgrade", {}),
        ("handshake_before_info", {"first": True}),
    ],
    OPTIONAL,
)
def with_or_without(t: Script, how: dict[str, Any] | None) -> None:
    _connected(t, None if how is None else t.secure(**how))


@table([("plain", None), ("upgrade", "ann"), ("upgrade_without", "")], OPTIONAL_VERIFIED)
def verified_with_or_without(t: Script, certificate: str | None) -> None:
    _connected(t, None if certificate is None else t.secure(certificate))


# ---------------------------------------------------------------------- users of certificates
def _users(*users: str) -> str:
    return ", ".join(f"{{user: {json.dumps(user)}}}" for user in users)


def _mapped(*users: str) -> Setup:
    return _setup(f'verify_and_map: true, ca_file: "{PLACE}/ca.pem"', f"authorization {{ users: [{_users(*users)}] }}")


# What of a certificate is a user: the first email address that is one, host name, URI, then the subject in any order.
BY_ALTERNATIVES = _mapped(
    "ann@example.com", "second@example.com", "other.example.com", "spiffe://example.com/service", "every.example.com",
    "spiffe://example.com/every", "CN=everything,O=Example", "OU=First,O=Example,CN=subject,C=DE",
    "CN=components,OU=Users,DC=example,DC=com", "CN=several", "CN=dns",
    "CN=long, SERIALNUMBER=5, OU=b, OU=a, O=Example, L=Munich, ST=Bavaria, C=DE",
)  # fmt: skip
BY_REVERSED = _mapped(
    "every@example.com", "every.example.com", "CN=everything,O=Example", "second@example.com", "first@example.com",
    "other.example.com", "host.example.com", "C=DE, O=Example, OU=First, CN=subject",
    "DC=com,DC=example,OU=Users,CN=components", "CN=several+UID=7",
    "SERIALNUMBER=5,CN=long,OU=a+OU=b,O=Example,L=Munich,ST=Bavaria,C=DE",
)  # fmt: skip
BY_PARTS = _mapped(
    "O=Example,CN=everything", "cn=subject,ou=First,o=Example,c=DE", "CN=components,OU=Users", "CN=ann",
    "CN=long,OU=b,OU=a,O=Example,L=Munich,ST=Bavaria,C=DE", "uri", "CN=uri",
)  # fmt: skip
BY_LESS = _mapped("CN=subject", "subject", "O=Example", "CN=components,OU=Users,DC=com,DC=example", "CN=everything")

EVERYBODY = (
    "ann", "two_emails", "dns", "uri", "subject", "everything", "components", "several", "long", "nameless", "stranger",
)  # fmt: skip


@table([(name, name) for name in EVERYBODY], BY_ALTERNATIVES)
def user_by_alternatives(t: Script, certificate: str) -> None:
    _connected(t, t.secure(certificate))


@table([(name, name) for name in EVERYBODY], BY_REVERSED)
def user_in_another_order(t: Script, certificate: str) -> None:
    _connected(t, t.secure(certificate))


@table([(name, name) for name in EVERYBODY], BY_PARTS)
def user_by_parts(t: Script, certificate: str) -> None:
    _connected(t, t.secure(certificate))


@table([(name, name) for name in EVERYBODY], BY_LESS)
def user_by_less_than_the_subject(t: Script, certificate: str) -> None:
    _connected(t, t.secure(certificate))


ODD = _mapped('CN=\\ odd#\\;\\<\\>\\\\\\ ,O=Smith\\, \\"J\\" \\+ Sons')


@configured(ODD)
def user_with_escaped_characters(t: Script) -> None:
    _connected(t, t.secure("odd"))


PASSWORDS = _setup(
    f'verify_and_map: true, ca_file: "{PLACE}/ca.pem"',
    """accounts {
      A { users: [{user: "ann@example.com"}] }
      B { users: [{user: "host.example.com", password: p}, {user: bob, password: p}] }
    }""",
)


@table(
    [
        ("account", "ann", {}),
        ("own_name_in_connect", "ann", {"user": "ann@example.com"}),
        ("another_name_in_connect", "ann", {"user": "bob", "pass": "p"}),
        ("password_in_connect", "ann", {"pass": "p"}),
        ("token_in_connect", "ann", {"auth_token": "t"}),
        ("user_with_a_password", "dns", {}),
        ("user_with_its_password", "dns", {"user": "host.example.com", "pass": "p"}),
        ("nobody", "stranger", {}),
        ("nobody_with_a_password", "stranger", {"user": "bob", "pass": "p"}),
        ("none", "", {}),
    ],
    PASSWORDS,
)
def user_and_connect(t: Script, certificate: str, connect: dict[str, str]) -> None:
    _connected(t, t.secure(certificate), **connect)


NOBODY_ELSE = _setup(
    f'verify_and_map: true, ca_file: "{PLACE}/ca.pem"',
    'no_auth_user: bob\nauthorization { users: [{user: "ann@example.com"}, {user: bob, password: p}] }',
)


@table([("known", "ann"), ("unknown", "dns")], NOBODY_ELSE)
def user_beside_no_auth_user(t: Script, certificate: str) -> None:
    _connected(t, t.secure(certificate))


WITHOUT_USERS = _setup(f'verify_and_map: true, ca_file: "{PLACE}/ca.pem"')


@table([("known", "ann"), ("nameless", "nameless"), ("none", "")], WITHOUT_USERS)
def mapped_without_users(t: Script, certificate: str) -> None:
    _connected(t, t.secure(certificate))
