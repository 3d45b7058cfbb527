"""default_js_domain: clients of a leaf node use the JetStream of its hub without naming the domain."""

from __future__ import annotations

import pytest

from tests.conformance.leaf_world import linked, wanted
from tests.conftest import StartServer
from tests.servers import Kind
from tests.wire import Wire

pytestmark = pytest.mark.conformance

USER = {"user": "a", "pass": "p"}
HUB = """
jetstream { domain: hub }
http: '127.0.0.1:-1'
leafnodes { listen: '127.0.0.1:-1' }
accounts { A { jetstream: enabled, users: [{user: a, password: p}] } }
"""
LEAF = """
http: '127.0.0.1:-1'
leafnodes { reconnect: '200ms', remotes: [{ url: 'nats-leaf://a:p@127.0.0.1:%d', account: A }] }
accounts { A { users: [{user: a, password: p}] } }
default_js_domain { A: hub }
"""
REQUESTS: list[tuple[str, bytes]] = [
    ("$JS.API.INFO", b""),
    ("$JS.API.STREAM.CREATE.S", b'{"name":"S","subjects":["s"],"allow_direct":true}'),
    ("$JS.API.STREAM.CREATE.KV_b", b'{"name":"KV_b","subjects":["$KV.b.>"],"max_msgs_per_subject":1}'),
    ("s", b"hi"),
    ("$KV.b.key", b"value"),
    ("$JS.API.STREAM.NAMES", b""),
    ("$JS.API.DIRECT.GET.S", b'{"seq":1}'),
    ("$JS.API.CONSUMER.CREATE.S.C", b'{"stream_name":"S","config":{"durable_name":"C","ack_policy":"explicit"}}'),
    ("$JS.API.STREAM.PURGE.S", b""),
]


@pytest.mark.parametrize(
    ("hub_is", "leaf_is"), [(Kind.REAL, Kind.REAL), (Kind.REAL, Kind.OURS), (Kind.OURS, Kind.OURS)]
)
@pytest.mark.parametrize("jetstream", [False, True], ids=["without JetStream", "with JetStream"])
def test_the_api_without_a_domain_is_the_hub_s(
    start_server: StartServer, hub_is: Kind, leaf_is: Kind, jetstream: bool
) -> None:
    hub = start_server(of=hub_is, config=HUB, name="hub")
    leaf = start_server(of=leaf_is, config=LEAF % hub.leaf_port, name="leaf", jetstream=jetstream)
    linked(hub, leaf)
    with Wire(leaf.address, USER) as there, Wire(hub.address, USER) as here:
        wanted(there, "$JS.hub.API.INFO")
        for subject, body in REQUESTS:
            answer = there.request(subject, body, timeout=5.0)
            assert answer.status == 0, subject
            assert b'"error"' not in answer.data, subject
        assert here.api("STREAM.INFO.KV_b")["state"]["messages"] == 1
        assert here.api("CONSUMER.NAMES.S")["consumers"] == ["C"]
