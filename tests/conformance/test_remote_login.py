"""Who this server is at its remote, and over what: users, tokens, keys, credentials, TLS, accounts of this side."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.cluster.peer_world import Authority
from tests.conformance.remotes import config, create, links, mirror, publish, upstream, wait, wait_last, wait_link
from tests.conftest import StartServer
from tests.servers import Kind, Server, run_to_end
from tests.wire import Wire

pytestmark = pytest.mark.conformance

# What nkeys begin with, as base32 letters.
SEED, USER, ACCOUNT, OPERATOR = 18 << 3, 20 << 3, 0, 14 << 3


class Key:
    """A key of a user, an account or an operator, as NATS writes them."""

    def __init__(self, kind: int) -> None:
        self._key = Ed25519PrivateKey.generate()
        self.public = _text(bytes([kind]) + self._key.public_key().public_bytes_raw())
        self.seed = _text(bytes([SEED | kind >> 5, (kind & 31) << 3]) + self._key.private_bytes_raw())

    def signed(self, subject: str, name: str, nats: dict[str, Any]) -> str:
        """A token that says something of `subject`, signed with this key."""
        claims = {
            "iat": 1_700_000_000,
            "iss": self.public,
            "name": name,
            "sub": subject,
            "nats": {**nats, "version": 2},
        }
        claims["jti"] = base64.b32encode(hashlib.sha256(json.dumps(claims).encode()).digest()).decode().rstrip("=")
        head = _part({"typ": "JWT", "alg": "ed25519-nkey"})
        body = f"{head}.{_part(claims)}"
        return f"{body}.{base64.urlsafe_b64encode(self._key.sign(body.encode())).decode().rstrip('=')}"


def _text(raw: bytes) -> str:
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")


def _part(claims: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")


def credentials(account: Key, user: Key, token: str) -> str:
    """A file with credentials, as the tools of NATS write it."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\nNKEY Seed printed below is sensitive.\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
    )


def follows(server: Server, there: Wire) -> None:
    """A stream of the remote has a mirror on this side."""
    wait_link(server)
    create(there, "O", subjects=["o"])
    publish(there, "o", b"1")
    with Wire(server.address) as here:
        mirror(here, "M", "O")
        wait_last(here, "M", 1)


KEY = Key(USER)


@pytest.mark.parametrize(
    ("authorization", "remote", "login"),
    [
        ("user: u, password: p", "user: u, password: p", {"user": "u", "pass": "p"}),
        ("token: secret", "token: secret", {"auth_token": "secret"}),
        (f"users: [{{nkey: {KEY.public}}}, {{user: u, password: p}}]", f"nkey: {KEY.seed}", {"user": "u", "pass": "p"}),
    ],
    ids=["user", "token", "nkey"],
)
def test_the_remote_is_told_who_this_is(
    start_server: StartServer, authorization: str, remote: str, login: dict[str, str]
) -> None:
    there = start_server(of=Kind.REAL, config=f"authorization {{ {authorization} }}")
    server = start_server(of=Kind.OURS, config=config(there.address, more=remote))
    with Wire(there.address, login) as wire:
        follows(server, wire)


def test_a_user_in_the_url_goes_before_the_block(start_server: StartServer) -> None:
    there = start_server(of=Kind.REAL, config="authorization { user: u, password: 'p@/' }")
    host, port = there.address
    text = config(there.address, more="user: nobody, password: x").replace(f"{host}:{port}", f"u:p%40%2F@{host}:{port}")
    server = start_server(of=Kind.OURS, config=text)
    assert wait_link(server)["url"] == f"nats://{host}:{port}"


def test_a_wrong_password_is_told_and_a_new_file_is_read(start_server: StartServer, tmp_path: Path) -> None:
    key = Key(USER)
    file = tmp_path / "seed.nk"
    there = start_server(of=Kind.REAL, config=f"authorization {{ users: [{{nkey: {key.public}}}] }}")
    server = start_server(of=Kind.OURS, config=config(there.address, more=f"nkey_file: '{file}'"))
    wait("an error", lambda: "No such file" in links(server)[0].get("error", ""))
    file.write_text(Key(USER).seed)
    wait("a refusal", lambda: links(server)[0].get("error") == "Authorization Violation")
    file.write_text(f"# of the user\n{key.seed}\n")
    wait_link(server)


def test_credentials_are_those_of_the_remotes_operator(start_server: StartServer, tmp_path: Path) -> None:
    operator, system, account, user = Key(OPERATOR), Key(ACCOUNT), Key(ACCOUNT), Key(USER)
    limits = {"subs": -1, "data": -1, "payload": -1}
    wide = {**limits, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
    stores = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
    tokens = {
        "O": operator.signed(operator.public, "O", {"type": "operator", "system_account": system.public}),
        "S": operator.signed(system.public, "S", {"type": "account", "limits": wide}),
        "A": operator.signed(account.public, "A", {"type": "account", "limits": {**wide, **stores}}),
        "U": account.signed(user.public, "U", {"type": "user", **limits, "pub": {}, "sub": {}}),
    }
    there = start_server(
        of=Kind.REAL,
        config=f"operator: {tokens['O']}\nresolver: MEMORY\nsystem_account: {system.public}\n"
        f"resolver_preload: {{ {system.public}: {tokens['S']}, {account.public}: {tokens['A']} }}\n",
    )
    file = tmp_path / "u.creds"
    file.write_text(credentials(account, user, tokens["U"]))
    server = start_server(of=Kind.OURS, config=config(there.address, more=f"credentials: '{file}'"))
    wait_link(server)
    with Wire(server.address) as here:
        here.api_prefix = "$JS.hub.API"
        create(here, "O", subjects=["$KV.o"])
        assert here.request("$JS.hub.API.$KV.o", b"1").json()["seq"] == 1
        here.api_prefix = "$JS.API"
        mirror(here, "M", "O")
        wait_last(here, "M", 1)


def test_permissions_of_the_remote_are_told(start_server: StartServer) -> None:
    user = "{user: u, password: p, permissions: {publish: {deny: '$JS.API.STREAM.>'}}}"
    there = start_server(of=Kind.REAL, config=f"authorization {{ users: [{user}] }}")
    server = start_server(of=Kind.OURS, config=config(there.address, more="user: u, password: p"))
    wait_link(server)
    with Wire(server.address) as here:
        here.publish("$JS.hub.API.STREAM.NAMES", b"", here.new_reply())
        wait("a refusal", lambda: links(server)[0]["refused"] == 1)
        here.api_prefix = "$JS.hub.API"
        assert here.api("INFO")["streams"] == 0  # the link is as it was
    assert 'Permissions Violation for Publish to "$JS.API.STREAM.NAMES"' in server.log()


@pytest.mark.parametrize("first", [False, True], ids=["after INFO", "first"])
def test_a_remote_with_tls(start_server: StartServer, tmp_path: Path, first: bool) -> None:
    of = Authority(tmp_path, "ca").options("127.0.0.1")
    tls = f"cert_file: '{of.cert_file}', key_file: '{of.key_file}', ca_file: '{of.ca_file}'"
    handshake = ", handshake_first: true" if first else ""
    there = start_server(of=Kind.REAL, config=f"tls {{ {tls}, verify: true{handshake} }}")
    server = start_server(of=Kind.OURS, config=config(there.address, more=f"tls {{ {tls}{handshake} }}"))
    wait_link(server)
    with Wire(server.address) as here:
        here.api_prefix = "$JS.hub.API"
        create(here, "O", subjects=["o"])
        here.api_prefix = "$JS.API"
        mirror(here, "M", "O")
        wait("a consumer", lambda: upstream(here, "M")["active"] >= 0)


def test_a_certificate_of_nobody_is_refused(start_server: StartServer, tmp_path: Path) -> None:
    of = Authority(tmp_path, "ca").options("127.0.0.1")
    there = start_server(of=Kind.REAL, config=f"tls {{ cert_file: '{of.cert_file}', key_file: '{of.key_file}' }}")
    server = start_server(of=Kind.OURS, config=config(there.address))
    wait("a refusal", lambda: "certificate verify failed" in links(server)[0].get("error", ""))
    insecure = start_server(of=Kind.OURS, config=config(there.address, more="tls { insecure: true }"))
    wait_link(insecure)
    plain = start_server(of=Kind.REAL)
    wary = start_server(of=Kind.OURS, config=config(plain.address, more="tls { insecure: true }"))
    wait("a refusal", lambda: links(wary)[0].get("error") == "it does not speak TLS")


def test_a_remote_is_known_in_one_account(start_server: StartServer) -> None:
    there = start_server(of=Kind.REAL)
    accounts = (
        "accounts { A { jetstream: enabled, users: [{user: a, password: p}] }\n"
        "B { jetstream: enabled, users: [{user: b, password: p}] } }"
    )
    server = start_server(of=Kind.OURS, config=config(there.address, more="account: A", top=accounts))
    wait_link(server)
    with (
        Wire(there.address) as wire,
        Wire(server.address, {"user": "a", "pass": "p"}) as a,
        Wire(server.address, {"user": "b", "pass": "p"}) as b,
    ):
        create(wire, "O", subjects=["o"])
        publish(wire, "o", b"1")
        mirror(a, "M", "O")
        wait_last(a, "M", 1)
        assert b.request("$JS.hub.API.INFO").status == 503


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("remote { url: 'nats://x' }", "needs a domain"),
        ("remote { domain: hub }", "needs a url"),
        ("remote { domain: 'a.b', url: 'nats://x' }", "must be one subject token"),
        ("remote { domain: API, url: 'nats://x' }", "word of JetStream"),
        ("remote { domain: hub, url: 'http://u:secret@x' }", "http:// is not spoken"),
        ("remote { domain: hub, url: 'nats://us\u2100er:secret@x' }", "is no URL"),
        ("remote { domain: 'a@b', url: 'nats://x' }", "must be one subject token"),
        ("remote { domain: hub, url: 'nats://u:secret@x:99999' }", "'nats://x:99999' has no port from 1 to 65535"),
        ("remote { domain: hub, url: 'nats://x', user: u, token: t }", "cannot be used together"),
        ("remote { domain: hub, url: 'nats://x', nkey: SUABC }", "58 letters"),
        ("remote { domain: hub, url: 'nats://x', account: NONE }", "there is no account 'NONE'"),
        ("jetstream { domain: hub }\nremote { domain: hub, url: 'nats://x' }", "own JetStream has that domain"),
        ("remotes [{ domain: hub, url: x }, { domain: hub, url: y }]", "another remote of that domain"),
        ("remote { domain: hub, url: 'nats://x', frist: 1 }", 'unknown field "frist"'),
    ],
)
def test_a_wrong_block_is_refused_with_its_reason(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "wrong.conf"
    file.write_text(text)
    ended = run_to_end(Kind.OURS, "-c", str(file), "-p", "-1")
    assert ended.returncode == 1
    assert told in ended.stderr + ended.stdout
    assert "secret" not in ended.stderr + ended.stdout
