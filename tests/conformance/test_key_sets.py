"""INFO and the pages of the monitoring port have every field of nats-server's, with nothing left out."""

from __future__ import annotations

from typing import Any

import pytest

from tests.certificates import PLACE, client_context
from tests.conftest import Agree
from tests.servers import Server
from tests.websocket import WebSocket
from tests.wire import Secure, Wire

pytestmark = pytest.mark.conformance

PAGES = 'server_name: under-test\nhttp: "127.0.0.1:-1"\n'
FILES = f'cert_file: "{PLACE}/server.pem", key_file: "{PLACE}/server.key"'
EVERYTHING = f"""{PAGES}
tls {{ {FILES}, ca_file: "{PLACE}/ca.pem", verify: true }}
websocket {{ listen: "127.0.0.1:-1", no_tls: true, compression: true }}
leafnodes {{ listen: "127.0.0.1:-1" }}
cluster {{ name: C, listen: "127.0.0.1:-1" }}
server_tags: ["a:b"], server_metadata {{ c: d }}
max_connections: 100, max_subscriptions: 100
authorization {{ users: [{{user: ann, password: p}}] }}
"""

SOMETIMES = {"rtt", "lakestream", "lake", "pending_bytes"}
"""Fields that are there only once something was measured, and our own."""


def _names(value: Any) -> Any:
    """Return the names of fields, through all levels; of a list, those of all its elements together."""
    if isinstance(value, dict):
        return {name: _names(inner) for name, inner in sorted(value.items()) if name not in SOMETIMES}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [_names({name: inner for one in value for name, inner in one.items()})]
    return None


def _client(server: Server, **fields: Any) -> Wire:
    """Return a client with a subscription, a message, a stream and a consumer behind it."""
    secure = Secure(client_context(server.certificates, "ann")) if "tls {" in (server.config or "") else None
    wire = Wire(server.address, {"name": "client", **fields}, secure=secure)
    wire.subscribe("a.*", "group")
    wire.publish("a.b", b"x")
    if server.jetstream:
        wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        consumer = {"stream_name": "S", "config": {"durable_name": "D", "ack_policy": "explicit"}}
        wire.api("CONSUMER.CREATE.S.D", consumer)
        wire.request("s", b"x")
    wire.told()
    return wire


TARGETS = [
    "/varz", "/connz", "/connz?subs=detail&auth=1", "/connz?state=closed&auth=1", "/routez", "/gatewayz", "/leafz",
    "/subsz?subs=1", "/accountz", "/accountz?acc=$G", "/accountz?acc=$SYS", "/accstatz?unused=1", "/healthz",
    "/jsz?accounts=1&streams=1&consumers=1&config=1",
]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
def test_pages_with_flags_alone(agree: Agree, target: str) -> None:
    def see(server: Server) -> Any:
        with _client(server):
            return _names(server.page(target))

    agree(see, config=PAGES)


@pytest.mark.parametrize("target", TARGETS[:-1])
def test_pages_with_everything_configured(agree: Agree, target: str) -> None:
    def see(server: Server) -> Any:
        address = (server.host, server.websocket_port)
        login = {"user": "ann", "pass": "p"}
        with _client(server, **login), Wire(address, login, opened=WebSocket(address)) as web:
            web.ping()
            return _names(server.page(target))

    agree(see, config=EVERYTHING, jetstream=False)


@pytest.mark.parametrize(
    ("config", "fields"),
    [(PAGES, {}), (EVERYTHING, {"user": "ann", "pass": "p"})],
    ids=["flags_alone", "everything"],
)
def test_info(agree: Agree, config: str, fields: dict[str, str]) -> None:
    def see(server: Server) -> Any:
        with _client(server, **fields) as wire:
            return [list(info) for info in wire.infos]

    agree(see, config=config, jetstream=config is PAGES)


def test_info_of_a_server_where_keys_log_in(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with Wire(server.address, None) as wire:
            return list(wire.info)

    key = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
    agree(see, config=f"{PAGES}authorization {{ users: [{{nkey: {key}}}] }}\n", jetstream=False)
