"""Tests of logins at a remote: users, tokens, nkeys, credentials, TLS, and the local account of the link."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.peer_world import Authority
from tests.conformance.remotes import config, create, links, mirror, publish, upstream, wait, wait_last, wait_link
from tests.conftest import StartServer
from tests.keys import Operator, user_key
from tests.servers import Kind, Server, run_to_end
from tests.wire import Wire

pytestmark = pytest.mark.conformance


def follows(server: Server, there: Wire) -> None:
    """Assert that a mirror of a stream of the remote gets its messages."""
    wait_link(server)
    create(there, "O", subjects=["o"])
    publish(there, "o", b"1")
    with Wire(server.address) as here:
        mirror(here, "M", "O")
        wait_last(here, "M", 1)


KEY = user_key()


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
    key = user_key()
    file = tmp_path / "seed.nk"
    there = start_server(of=Kind.REAL, config=f"authorization {{ users: [{{nkey: {key.public}}}] }}")
    server = start_server(of=Kind.OURS, config=config(there.address, more=f"nkey_file: '{file}'"))
    wait("an error", lambda: "No such file" in links(server)[0].get("error", ""))
    file.write_text(user_key().seed)
    wait("a refusal", lambda: links(server)[0].get("error") == "Authorization Violation")
    file.write_text(f"# of the user\n{key.seed}\n")
    wait_link(server)


def test_credentials_are_those_of_the_remotes_operator(start_server: StartServer, tmp_path: Path) -> None:
    world = Operator()
    there = start_server(of=Kind.REAL, config=world.config)
    file = tmp_path / "u.creds"
    file.write_text(world.credentials)
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
        assert here.api("INFO")["streams"] == 0  # the link is unchanged
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
    wait("a refusal", lambda: links(wary)[0].get("error") == "the remote does not support TLS")


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
        ("remote { domain: API, url: 'nats://x' }", "reserved for JetStream"),
        ("remote { domain: hub, url: 'http://u:secret@x' }", "unsupported scheme http://"),
        ("remote { domain: hub, url: 'nats://us\u2100er:secret@x' }", "invalid URL"),
        ("remote { domain: 'a@b', url: 'nats://x' }", "must be one subject token"),
        (
            "remote { domain: hub, url: 'nats://u:secret@x:99999' }",
            "'nats://x:99999': the port must be from 1 to 65535",
        ),
        ("remote { domain: hub, url: 'nats://x', user: u, token: t }", "cannot be used together"),
        ("remote { domain: hub, url: 'nats://x', nkey: SUABC }", "58 letters"),
        ("remote { domain: hub, url: 'nats://x', account: NONE }", "there is no account 'NONE'"),
        (
            "jetstream { domain: hub }\nremote { domain: hub, url: 'nats://x' }",
            "this server's JetStream uses domain hub",
        ),
        ("remotes [{ domain: hub, url: x }, { domain: hub, url: y }]", "another remote with domain hub"),
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
