"""Tests of the npm packages: every kind of login over every transport.

Over TCP these are `nats` and `@nats-io/transport-node`, over WebSocket `nats.ws` and `@nats-io/nats-core`. WebSocket of
Node.js has no client certificates.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.clients import npm
from tests.clients.conftest import ServerFor
from tests.clients.ways_in import KINDS, MATRIX, Login, is_secure, url_of
from tests.servers import Server

pytestmark = [pytest.mark.conformance, pytest.mark.heavy]

WAYS = [(way, transport) for way, transport in MATRIX if (way, transport) != ("certificate", "wss")]
ways = pytest.mark.parametrize(("way", "transport"), WAYS, ids=["-".join(each) for each in WAYS])
libraries = pytest.mark.parametrize("library", ["nats", "nats-io"])


@pytest.fixture(scope="module", autouse=True)
def packages() -> None:
    npm.install()


def _passes(library: str, server: Server, transport: str, login: Login, **more: Any) -> None:
    authority = str(server.certificates / "ca.pem")
    tls: dict[str, Any] = {"caFile": authority, "handshakeFirst": transport == "tls_first"}
    if login.certificate:
        tls["certFile"] = str(server.certificates / f"{login.certificate}.pem")
        tls["keyFile"] = str(server.certificates / f"{login.certificate}.key")
    given = {"user": login.user, "pass": login.password, "token": login.token, "seed": login.seed, "creds": login.creds}
    options: dict[str, Any] = {name: value for name, value in given.items() if value}
    if is_secure(transport):
        options["tls"] = tls
    options |= {"url": url_of(server, transport), **more}
    npm.passes("ways_in.mjs", library, json.dumps(options), environment={"NODE_EXTRA_CA_CERTS": authority})


@libraries
@ways
def test_a_client_logs_in_and_works(server_for: ServerFor, library: str, way: str, transport: str) -> None:
    _passes(library, server_for(way, transport), transport, KINDS[way].login, name=f"{library}-{transport}")


@libraries
@ways
def test_a_wrong_login_is_refused(server_for: ServerFor, library: str, way: str, transport: str) -> None:
    _passes(library, server_for(way, transport), transport, KINDS[way].wrong, refused=True)
