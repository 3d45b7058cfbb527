"""Tests of nats-py: every kind of login over every transport, with messages, JetStream and a bucket."""

from __future__ import annotations

from typing import Any

import nats
import nats.errors
import pytest
from nats.aio.client import RawCredentials

from tests.certificates import client_context
from tests.clients.conftest import ServerFor
from tests.clients.ways_in import KINDS, MATRIX, Login, is_secure, url_of
from tests.servers import Server

pytestmark = pytest.mark.conformance

ways = pytest.mark.parametrize(("way", "transport"), MATRIX, ids=["-".join(each) for each in MATRIX])


def _options(server: Server, transport: str, login: Login) -> dict[str, Any]:
    """Return the arguments of `nats.connect`."""
    given = {
        "user": login.user,
        "password": login.password,
        "token": login.token,
        "nkeys_seed_str": login.seed,
    }
    options: dict[str, Any] = {name: value for name, value in given.items() if value}
    if login.creds:
        options["user_credentials"] = RawCredentials(login.creds)
    if is_secure(transport):
        options["tls"] = client_context(server.certificates, login.certificate)
    if transport == "tls_first":
        options["tls_handshake_first"] = True
    once = {"allow_reconnect": False, "max_reconnect_attempts": 0, "reconnect_time_wait": 0.1}
    return {"servers": url_of(server, transport), "connect_timeout": 5, **once, **options}


@ways
async def test_a_client_logs_in_and_works(server_for: ServerFor, way: str, transport: str) -> None:
    server = server_for(way, transport)
    client = await nats.connect(**_options(server, transport, KINDS[way].login))
    try:
        js = client.jetstream(timeout=5)
        subscription = await client.subscribe("core")
        await client.publish("core", b"x" * 100_000)
        assert len((await subscription.next_msg(5)).data) == 100_000
        await js.add_stream(name=transport, subjects=[f"{transport}.>"])
        assert (await js.publish(f"{transport}.a", b"one")).seq == 1
        bucket = await js.create_key_value(bucket=f"B{transport}")
        await bucket.put("key", b"value")
        assert (await bucket.get("key")).value == b"value"
    finally:
        await client.close()


async def _ignore(error: Exception) -> None:
    """Ignore an error that the client reports besides raising it."""


@ways
async def test_a_wrong_login_is_refused(server_for: ServerFor, way: str, transport: str) -> None:
    server = server_for(way, transport)
    with pytest.raises(nats.errors.Error, match=r"(?i)authorization violation"):
        await nats.connect(**_options(server, transport, KINDS[way].wrong), error_cb=_ignore)
