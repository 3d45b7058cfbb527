"""Auth callouts on a server of their own: reloads, limits and secrets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.scenarios.callouts import ISSUER, STRANGER, accepted
from tests.conformance.test_accounts_reload import NAMED, reload, what_became_of
from tests.keys import claims_of
from tests.servers import Server
from tests.wire import Wire

pytestmark = pytest.mark.conformance

StartServer = Callable[..., Server]


ACCOUNTS = "accounts { AUTH { users: [{user: auth, password: p}] }, APP {} }"


def _config(
    issuer: str = ISSUER.public, more: str = "", password: str = "p", accounts: str = "APP {}", permissions: str = ""
) -> str:
    return (
        f"authorization {{ auth_callout {{ issuer: {issuer}, auth_users: [auth], account: AUTH }} }}\n"
        f"accounts {{ AUTH {{ users: [{{user: auth, password: {password}{permissions}}}] }}, {accounts} }}\n{more}\n"
    )


def _client(server: Server, service: Wire) -> Wire:
    """Return a client that the service has let in."""
    wire = Wire(server.address, None)
    wire.connect({"user": "bob", "pass": "hunter2"}, b"PING\r\n")
    frame = service.message("$SYS.REQ.USER.AUTH")
    service.publish(frame.reply, accepted(claims_of(frame.data.decode())).encode())
    wire.until("PONG")
    return wire


def _service(server: Server) -> Wire:
    wire = Wire(server.address, {"user": "auth", "pass": "p"})
    wire.subscribe("$SYS.REQ.USER.AUTH")
    wire.ping()
    return wire


@pytest.mark.parametrize(
    ("after", "client", "service"),
    [
        pytest.param(_config(more="ping_max: 3"), [], [], id="nothing"),
        pytest.param(_config(accounts="OTHER {}"), ["closed"], [], id="account gone"),
        pytest.param(_config(accounts="APP {}, OTHER {}"), [], [], id="another account"),
        pytest.param(_config(accounts="APP { exports: [{stream: x}] }"), [], [], id="an export"),
        pytest.param(
            _config(accounts="APP { limits { max_connections: 0 } }"),
            ["'maximum account active connections exceeded'", "closed"],
            [],
            id="no connections",
        ),
        pytest.param(_config(accounts="APP { limits { max_connections: 1 } }"), [], [], id="one connection"),
        pytest.param(_config(accounts="APP { mappings: { a: b } }"), [], [], id="a mapping"),
        pytest.param(_config(more="server_tags: [new]"), ["closed"], [], id="tags"),
        pytest.param(_config(accounts="APP { users: [{user: ann, password: p}] }"), ["closed"], [], id="a user"),
        pytest.param(
            _config(permissions=", permissions: {publish: {deny: x}}"), [], [], id="permissions of the service"
        ),
        pytest.param(
            _config(password="q"), ["closed"], ["'Authorization Violation'", "closed"], id="password of the service"
        ),
    ],
)
def test_who_stays_after_a_reload(start_server: StartServer, after: str, client: list[str], service: list[str]) -> None:
    """As in nats-server 2.15.3; before, it closed all clients of a callout."""
    server = start_server(config=NAMED + _config(), jetstream=False)
    with _service(server) as asked, _client(server, asked) as bob:
        assert "Reloaded server configuration" in reload(server, after)
        assert (what_became_of(bob), what_became_of(asked)) == (client, service)


@pytest.mark.parametrize(
    ("before", "after"), [(ACCOUNTS, _config()), (_config(), ACCOUNTS), (_config(), _config(STRANGER.public))]
)
def test_a_reload_does_not_change_the_callout(start_server: StartServer, before: str, after: str) -> None:
    server = start_server(config=NAMED + before, jetstream=False)
    assert "config reload not supported for AuthCallout" in reload(server, after)


def test_secrets_are_not_logged(start_server: StartServer) -> None:
    """Not even by a trace of the protocol, though the service receives the password."""
    server = start_server(config=NAMED + _config(more="debug: true\ntrace: true"), jetstream=False)
    with _service(server) as asked:
        frames = []
        for _ in range(2):
            wire = Wire(server.address, None)
            wire.connect({"user": "bob", "pass": "hunter2"}, b"PING\r\n")
            frame = asked.message("$SYS.REQ.USER.AUTH")
            answer = accepted(claims_of(frame.data.decode())) if not frames else "garbage"
            asked.publish(frame.reply, answer.encode())
            frames += [frame.data.decode(), answer]
            wire.until("PONG" if len(frames) == 2 else "-ERR")
            wire.close()
        asked.ping()
    log = server.log()
    assert "$SYS.REQ.USER.AUTH" in log
    for token in frames[:3]:
        assert token[:200] not in log
        assert token[-80:] not in log
    assert "hunter2" not in log
