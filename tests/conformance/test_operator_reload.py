"""Reloads in operator mode: who stays, and accounts that come, change and go with the configuration."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.conformance.remotes import wait
from tests.conftest import Agree, StartServer
from tests.keys import (
    Key,
    account_jwt,
    account_key,
    login,
    operator_config,
    operator_jwt,
    operator_key,
    user_jwt,
    user_key,
)
from tests.servers import Server
from tests.wire import Closed, Wire, WireTimeout

pytestmark = pytest.mark.conformance

OPERATOR, OTHER = operator_key("O"), operator_key("another")
SYSTEM, A, B = (account_key(name) for name in ("SYS", "A", "B"))
U = user_key("u")
LATER = 4_000_000_000


def _account(key: Key, signer: Key = OPERATOR, **fields: Any) -> tuple[str, str]:
    return key.public, account_jwt(key, "A", signer, **fields)


def _config(*accounts: tuple[str, str], more: str = "", operator: Key = OPERATOR, resolver: str = "MEMORY") -> str:
    text = operator_config(operator_jwt(operator), dict([_account(SYSTEM), *accounts]), SYSTEM.public, more)
    return "server_name: under-test\n" + text.replace("resolver: MEMORY", f"resolver: {resolver}")


BEFORE = _config(_account(A))


def _user(server: Server, account: Key) -> Wire:
    wire = login(server.address, U, user_jwt(U, "u", account))
    wire.ping()
    return wire


def _may_log_in(server: Server, account: Key) -> bool:
    try:
        with _user(server, account):
            return True
    except Closed:
        return False


def _told(wire: Wire) -> list[str]:
    """Return the errors with which a connection was closed, or that it stays."""
    try:
        frames = wire.until_closed(0.5)
    except WireTimeout:
        return ["stays"]
    return [frame.text for frame in frames if frame.verb == "-ERR"]


def _outcome(lines: list[str]) -> list[str]:
    """Return how a reload ended, and what it deleted."""
    found = [
        re.sub(r"[:;(].*", "", line.partition("] ")[2]).strip() for line in lines if "server configuration" in line
    ]
    return found + [line.partition("] ")[2] for line in lines if "deleting" in line]


@pytest.mark.parametrize("more", ["", "max_payload: 1000", "max_control_line: 5000", "ping_max: 5", "debug: true"])
def test_clients_with_tokens_stay(agree: Agree, more: str) -> None:
    def see(server: Server) -> Any:
        with _user(server, A) as client:
            return [_outcome(server.reload(_config(_account(A), more=f"{more}\n"))), _told(client)]

    agree(see, config=BEFORE, jetstream=False)


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(_config(_account(A), _account(B)), id="another_account"),
        pytest.param(_config(), id="account_gone"),
        pytest.param(_config(_account(A, revocations={U.public: LATER})), id="user_revoked"),
        pytest.param(_config(_account(A, limits={"conn": 0})), id="no_connections"),
        pytest.param(_config(_account(A, claims={"exp": 1})), id="account_expired"),
        pytest.param(_config(_account(A, OTHER)), id="account_of_another_operator"),
        pytest.param(_config(_account(A), more=f"resolver_pinned_accounts: [{B.public}]\n"), id="others_pinned"),
        pytest.param(_config(_account(A), more=f"resolver_pinned_accounts: [{A.public}]\n"), id="pinned"),
        pytest.param(_config(_account(A), operator=OTHER), id="another_operator"),
    ],
)
def test_accounts_of_the_configuration(agree: Agree, after: str) -> None:
    def see(server: Server) -> Any:
        with _user(server, A) as client:
            assert not _may_log_in(server, B)
            outcome = _outcome(server.reload(after))
            return [outcome, _told(client), _may_log_in(server, A), _may_log_in(server, B)]

    agree(see, config=BEFORE, jetstream=False)


def test_an_account_that_went_comes_back_with_the_same_token(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with _user(server, A) as client:
            server.reload(_config())
            shown: list[Any] = [_told(client), _may_log_in(server, A)]
        server.reload(BEFORE)
        return [*shown, _may_log_in(server, A)]

    agree(see, config=BEFORE, jetstream=False)


def test_a_sentinel_that_a_reload_brings(agree: Agree) -> None:
    sentinel = user_jwt(U, "u", A, bearer_token=True)

    def without_token(server: Server) -> bool:
        try:
            with Wire(server.address) as wire:
                wire.ping()
                return True
        except Closed:
            return False

    def see(server: Server) -> Any:
        shown = [without_token(server)]
        server.reload(_config(_account(A), more=f'default_sentinel: "{sentinel}"\n'))
        return [*shown, without_token(server)]

    agree(see, config=BEFORE, jetstream=False)


def test_a_service_of_an_account_that_comes_later(start_server: StartServer) -> None:
    """The importer is in use, and the exporter is not until the reload."""
    wanted = {"name": "s", "subject": "ask", "account": B.public, "type": "service"}
    exported = _account(B, exports=[{"name": "s", "subject": "ask", "type": "service"}])
    importer = _account(A, imports=[wanted])
    server = start_server(config=_config(importer), jetstream=False)
    with _user(server, A) as asking:
        server.reload(_config(importer, exported))
        with _user(server, B) as service:
            service.subscribe("ask")
            service.ping()
            reply = asking.new_reply()
            asking.publish("ask", b"?", reply)
            service.publish(service.message("ask").reply, b"!")
            assert asking.message(reply).data == b"!"


def test_an_import_that_comes_later_from_an_account_that_is_not_in_use(agree: Agree) -> None:
    exported = _account(B, exports=[{"name": "s", "subject": "news.>", "type": "stream"}])
    wanted = {"name": "s", "subject": "news.>", "account": B.public, "type": "stream"}

    def see(server: Server) -> Any:
        with _user(server, A) as reader:
            reader.subscribe("news.a")
            reader.ping()
            server.reload(_config(_account(A, imports=[wanted]), exported))
            with _user(server, B) as writer:
                writer.publish("news.a", b"x")
                writer.ping()
                return reader.message("news.a").data.decode()

    agree(see, config=_config(_account(A), exported), jetstream=False)


def test_a_directory_takes_newer_tokens_of_the_configuration(start_server: StartServer) -> None:
    """Also for clients that are connected: nats-server closes revoked ones after its next start only."""
    full = "{ type: full, dir: $TOKENS }"
    server = start_server(config=_config(_account(A), resolver=full), jetstream=False)
    revoked = _account(A, revocations={U.public: LATER}, claims={"iat": 1_800_000_000})
    with _user(server, A) as client:
        server.reload(_config(revoked, _account(B), resolver=full))
        assert _told(client) == ["'User Authentication Revoked'"]
    wait("the second account", lambda: _may_log_in(server, B))
    assert sorted(path.name for path in server.tokens.iterdir()) == sorted(
        f"{each.public}.jwt" for each in (SYSTEM, A, B)
    )


def test_the_system_account_keeps_its_token(start_server: StartServer) -> None:
    server = start_server(config=BEFORE, jetstream=False)
    with _user(server, SYSTEM) as system:
        server.reload(BEFORE.replace(dict([_account(SYSTEM)])[SYSTEM.public], _account(SYSTEM, OTHER)[1]))
        assert _told(system) == ["stays"]
        assert server.logged(f'the system account "{SYSTEM.public}" keeps its token')
