"""Clients and leaf nodes that must come through a trusted proxy: leaf nodes, tokens of users, and reloads."""

from __future__ import annotations

import pytest

from tests.conformance.leaf_peer import LeafPeer
from tests.conformance.leaf_world import page, until
from tests.conftest import StartServer
from tests.keys import (
    Key,
    account_jwt,
    account_key,
    operator_config,
    operator_jwt,
    operator_key,
    user_jwt,
    user_key,
)
from tests.servers import Kind
from tests.wire import Closed, Wire

pytestmark = pytest.mark.conformance

PROXY, OTHER = user_key("proxy"), user_key("another proxy")
TRUSTED = f"proxies {{ trusted: [ {{ key: {PROXY.public} }} ] }}"
KINDS = pytest.mark.parametrize("kind", [Kind.OURS, Kind.REAL], ids=["OURS", "REAL"])


@KINDS
@pytest.mark.parametrize(
    "logins",
    ["user: u, password: p, proxy_required: true", "users: [{user: u, password: p}], proxy_required: true"],
    ids=["one login", "users"],
)
@pytest.mark.parametrize(("by", "is_in"), [(PROXY, True), (OTHER, False), (None, False)], ids=["it", "another", "none"])
def test_leaf_nodes(start_server: StartServer, kind: Kind, logins: str, by: Key | None, is_in: bool) -> None:
    text = f"{TRUSTED}\nhttp: '127.0.0.1:-1'\nleafnodes {{ listen: '127.0.0.1:-1', authorization {{ {logins} }} }}\n"
    hub = start_server(of=kind, config=text, name="hub")
    signed = {"user": "u", "pass": "p"}
    peer = LeafPeer(
        ("127.0.0.1", hub.leaf_port),
        lambda info: signed | ({"proxy_sig": by.sign(info["nonce"])} if by is not None else {}),
    )
    if is_in:
        until(lambda: page(hub, "/leafz")["leafs"], "it is in", 10)
    else:
        assert [frame.text for frame in peer.until_closed()][:1] == ["'Authorization Violation'"]
        reason = "Proxy Not Trusted" if by is not None else "Proxy Required"
        until(lambda: f"Leafnode connection closed: {reason}" in hub.log(), "the log says why", 10)
    peer.close()


def _pinged_twice(wire: Wire) -> None:
    wire.ping()  # its answer may be that the connection ends
    wire.ping()


@KINDS
@pytest.mark.parametrize("by", [PROXY, None], ids=["through it", "without"])
def test_a_user_of_an_account_that_an_operator_signed(start_server: StartServer, kind: Kind, by: Key | None) -> None:
    operator, system, account, user = operator_key("proxied"), account_key("pS"), account_key("pA"), user_key("pU")
    tokens = {each.public: account_jwt(each, name, operator) for each, name in ((system, "SYS"), (account, "A"))}
    text = operator_config(operator_jwt(operator, system_account=system.public), tokens, system.public, TRUSTED)
    server = start_server(of=kind, config=text)
    with Wire(server.address, None) as wire:
        nonce = wire.info["nonce"]
        fields = {"jwt": user_jwt(user, "u", account, proxy_required=True), "sig": user.sign(nonce)}
        wire.connect(fields | ({"proxy_sig": by.sign(nonce)} if by is not None else {}))
        if by is not None:
            wire.ping()
        else:
            with pytest.raises(Closed):
                _pinged_twice(wire)


def test_a_reload_closes_those_who_need_a_proxy_now(start_server: StartServer) -> None:
    config = f"{TRUSTED}\naccounts {{ A {{ users: [{{user: u, password: p}}] }} }}\n"
    server = start_server(of=Kind.OURS, config=config)
    with Wire(server.address, None) as proxied, Wire(server.address, {"user": "u", "pass": "p"}) as direct:
        proxied.connect({"user": "u", "pass": "p", "proxy_sig": PROXY.sign(proxied.info["nonce"])})
        proxied.ping()
        direct.ping()
        server.reload(config.replace("password: p", "password: p, proxy_required: true"))
        proxied.ping()
        with pytest.raises(Closed):
            _pinged_twice(direct)
