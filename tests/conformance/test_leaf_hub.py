"""nats-server as a leaf node of the server under test: messages, accounts, TLS and streams across the link."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from lakestream.net.tls import certificate_of
from tests.cluster.peer_world import Authority
from tests.conformance.leaf_world import (
    both_ways,
    copied,
    create,
    hub_of,
    leaf_of,
    linked,
    page,
    reaches,
    until,
    wanted,
)
from tests.conftest import StartServer
from tests.keys import (
    account_jwt,
    account_key,
    creds,
    operator_config,
    operator_jwt,
    operator_key,
    user_jwt,
    user_key,
)
from tests.servers import Kind
from tests.wire import Wire

pytestmark = pytest.mark.conformance

SOON_S = 20.0
KEY, NKEY = user_key("leaf hub"), user_key("leaf hub nkey")
OPERATOR, SYSTEM, TENANT = operator_key("leaf hub"), account_key("leaf hub SYS"), account_key("leaf hub TENANT")


@pytest.mark.parametrize("compression", ["off", "s2_fast", "s2_better", "s2_best", "s2_auto", "accept"])
def test_messages_pass_both_ways(start_server: StartServer, compression: str) -> None:
    hub = hub_of(start_server, f"compression: {compression}")
    leaf = leaf_of(start_server, hub)
    link = linked(hub, leaf)
    assert link["name"] == "leaf"
    assert link["account"] == "$G"
    assert link["is_spoke"] is False
    with Wire(hub.address) as here, Wire(leaf.address) as there:
        both_ways(here, there)
        data = b"large " * 100_000
        sid = here.subscribe("large")
        here.ping()
        wanted(there, "large")
        there.publish("large", data)
        until(lambda: here.delivered(sid).data == data, "the large one", SOON_S)


def test_many_messages_keep_their_order(start_server: StartServer) -> None:
    hub = hub_of(start_server)
    leaf = leaf_of(start_server, hub)
    linked(hub, leaf)
    with Wire(hub.address) as here, Wire(leaf.address) as there:
        reaches(there, here, "first")
        sid = here.subscribe("n")
        here.ping()
        wanted(there, "n")
        for number in range(5000):
            there.publish("n", b"%d" % number)
        got = 0
        while got < 5000:
            data = here.delivered(sid).data
            if data:
                assert int(data) == got
                got += 1


@pytest.mark.parametrize("first", [False, True], ids=["after INFO", "first"])
def test_a_link_with_tls(start_server: StartServer, tmp_path: Path, first: bool) -> None:
    of = Authority(tmp_path, "ca").options("127.0.0.1")
    files = f"cert_file: '{of.cert_file}', key_file: '{of.key_file}', ca_file: '{of.ca_file}'"
    handshake = ", handshake_first: true" if first else ""
    hub = hub_of(start_server, f"tls {{ {files}, verify: true{handshake} }}")
    leaf = leaf_of(start_server, hub, f"tls {{ {files}{handshake} }}", scheme="tls")
    link = linked(hub, leaf)
    assert link["compression"] == "s2_uncompressed"
    with Wire(hub.address) as here, Wire(leaf.address) as there:
        both_ways(here, there)


@pytest.mark.parametrize("scheme", ["tls", "wss"])
@pytest.mark.parametrize("right", [True, False], ids=["right", "wrong"])
def test_a_leaf_node_pins_the_certificate_of_its_hub(
    start_server: StartServer, tmp_path: Path, scheme: str, right: bool
) -> None:
    made = Authority(tmp_path, "ca").options("127.0.0.1")
    files = f"cert_file: '{made.cert_file}', key_file: '{made.key_file}', ca_file: '{made.ca_file}'"
    text = f"http: '127.0.0.1:-1'\nleafnodes {{ listen: '127.0.0.1:-1', tls {{ {files} }} }}\n"
    hub = start_server(
        of=Kind.REAL, config=f"{text}websocket {{ listen: '127.0.0.1:-1', tls {{ {files} }} }}\n", name="hub"
    )
    key = certificate_of(ssl.PEM_cert_to_DER_cert(Path(made.cert_file).read_text())).key_sha256
    pin, port = key if right else "ab" * 32, hub.leaf_port if scheme == "tls" else hub.websocket_port
    remote = f"url: '{scheme}://127.0.0.1:{port}', tls {{ ca_file: '{made.ca_file}', pinned_certs: ['{pin}'] }}"
    text = f"http: '127.0.0.1:-1'\nleafnodes {{ reconnect: '200ms', remotes: [{{ {remote} }}] }}\n"
    leaf = start_server(of=Kind.OURS, config=text, name="leaf")  # nats-server ignores the pins of a remote
    if right:
        linked(hub, leaf)
    else:
        until(lambda: "certificate not pinned" in leaf.log(), "the log says why", SOON_S)
        assert not page(hub, "/leafz")["leafs"]


def test_a_certificate_of_nobody_is_refused(start_server: StartServer, tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path, "ca").options("127.0.0.1"), Authority(tmp_path, "other").options("127.0.0.1")
    files = f"cert_file: '{ours.cert_file}', key_file: '{ours.key_file}', ca_file: '{ours.ca_file}'"
    hub = hub_of(start_server, f"tls {{ {files}, verify: true }}")
    leaf = leaf_of(
        start_server,
        hub,
        f"tls {{ cert_file: '{theirs.cert_file}', key_file: '{theirs.key_file}', ca_file: '{ours.ca_file}' }}",
        scheme="tls",
    )
    until(lambda: "TLS leafnode handshake error" in hub.log(), "the hub refuses", SOON_S)
    assert not page(hub, "/leafz")["leafs"]
    leaf.kill()


@pytest.mark.parametrize(("curve", "joins"), [("CurveP384", True), ("X25519", False)])
def test_a_leaf_node_offers_the_curves_that_are_configured(
    start_server: StartServer, tmp_path: Path, kind: Kind, curve: str, joins: bool
) -> None:
    of = Authority(tmp_path, "ca").options("127.0.0.1")
    files = f"cert_file: '{of.cert_file}', key_file: '{of.key_file}', ca_file: '{of.ca_file}'"
    hub = hub_of(start_server, f"tls {{ {files}, curve_preferences: [CurveP384] }}")
    leaf = leaf_of(start_server, hub, f"tls {{ {files}, curve_preferences: [{curve}] }}", scheme="tls", of=kind)
    if joins:
        linked(hub, leaf)
    else:
        until(lambda: "TLS leafnode handshake error" in hub.log(), "the hub refuses", SOON_S)
        assert not page(hub, "/leafz")["leafs"]


USERS = f"""
accounts {{
  A {{ users: [{{user: a, password: p}}, {{nkey: {NKEY.public}}}], jetstream: enabled }}
  B {{ users: [{{user: b, password: p}}] }}
}}
"""


def test_leaf_nodes_are_in_the_accounts_of_their_users(start_server: StartServer) -> None:
    hub = hub_of(
        start_server,
        "authorization { users: [{user: la, password: p, account: A}, {user: lb, password: p, account: B}] }",
        USERS,
    )
    first, second = leaf_of(start_server, hub, login="la:p@"), leaf_of(start_server, hub, login="lb:p@")
    linked(hub, first)
    linked(hub, second)
    with (
        Wire(hub.address, {"user": "a", "pass": "p"}) as a,
        Wire(hub.address, {"user": "b", "pass": "p"}) as b,
        Wire(first.address) as there_a,
        Wire(second.address) as there_b,
    ):
        both_ways(a, there_a)
        both_ways(b, there_b)
        there_b.subscribe("only.a")
        there_b.ping()
        reaches(a, there_a, "only.a")
        assert not [frame for frame in there_b.ping() if frame.subject == "only.a"]


def test_one_leaf_node_has_links_for_several_accounts(start_server: StartServer) -> None:
    hub = hub_of(start_server, more=USERS)
    port = hub.leaf_port
    remotes = ", ".join(
        f"{{ url: 'nats-leaf://{user}:p@127.0.0.1:{port}', account: {account} }}"
        for user, account in (("a", "X"), ("b", "Y"))
    )
    leaf = start_server(
        of=Kind.REAL,
        name="leaf",
        config=f"""http: '127.0.0.1:-1'
        accounts {{ X {{ users: [{{user: x, password: p}}] }}, Y {{ users: [{{user: y, password: p}}] }} }}
        leafnodes {{ remotes: [{remotes}] }}""",
    )
    until(lambda: len(page(leaf, "/leafz")["leafs"]) == 2, "both links", SOON_S)
    until(lambda: len(page(hub, "/leafz")["leafs"]) == 2, "both links at the hub", SOON_S)
    for user, there in (("a", "x"), ("b", "y")):
        with (
            Wire(hub.address, {"user": user, "pass": "p"}) as here,
            Wire(leaf.address, {"user": there, "pass": "p"}) as far,
        ):
            both_ways(here, far)


@pytest.fixture
def credentials(tmp_path: Path) -> str:
    file = tmp_path / "leaf.creds"
    file.write_text(creds(user_jwt(KEY, "leaf", TENANT), KEY))
    return f"credentials: '{file}'"


def test_a_leaf_node_with_credentials(start_server: StartServer, credentials: str) -> None:
    tokens = {
        SYSTEM.public: account_jwt(SYSTEM, "SYS", OPERATOR),
        TENANT.public: account_jwt(TENANT, "TENANT", OPERATOR),
    }
    trusted = operator_jwt(OPERATOR, system_account=SYSTEM.public)
    hub = hub_of(start_server, more=operator_config(trusted, tokens, SYSTEM.public))
    leaf = leaf_of(start_server, hub, credentials)
    assert linked(hub, leaf)["account"] == TENANT.public
    token = user_jwt(KEY, "client", TENANT, bearer_token=True)
    with Wire(hub.address, {"jwt": token}) as here, Wire(leaf.address) as there:
        both_ways(here, there)


def test_a_leaf_node_with_a_key(start_server: StartServer) -> None:
    hub = hub_of(start_server, more=USERS)
    leaf = leaf_of(start_server, hub, f"nkey: {NKEY.seed}")
    assert linked(hub, leaf)["account"] == "A"


def test_a_wrong_password_is_tried_again_until_it_is_right(start_server: StartServer) -> None:
    hub = hub_of(start_server, "authorization { user: u, password: p }")
    leaf = leaf_of(start_server, hub, login="u:x@")
    until(lambda: "Leafnode Error 'Authorization Violation'" in leaf.log(), "it is refused", SOON_S)
    assert not page(hub, "/leafz")["leafs"]


def test_what_a_leaf_node_denies_does_not_pass(start_server: StartServer) -> None:
    hub = hub_of(start_server)
    leaf = leaf_of(start_server, hub, "deny_imports: ['in.>'], deny_exports: ['out.>']")
    linked(hub, leaf)
    with Wire(hub.address) as here, Wire(leaf.address) as there:
        here.subscribe("out.x")
        there.subscribe("in.x")
        for wire in (here, there):
            wire.ping()
        both_ways(here, there)
        there.publish("out.x", b"m")
        here.publish("in.x", b"m")
        reaches(here, there, "fence.there")
        reaches(there, here, "fence.here")
        assert not [frame for frame in here.ping() if frame.subject == "out.x"]
        assert not [frame for frame in there.ping() if frame.subject == "in.x"]


def test_queues_span_the_link(start_server: StartServer) -> None:
    """A message goes to one member; those on the publisher's side come first."""
    hub = hub_of(start_server)
    leaf = leaf_of(start_server, hub)
    linked(hub, leaf)
    with Wire(hub.address) as here, Wire(leaf.address) as there:
        both_ways(here, there)
        far = there.subscribe("q", "g")
        there.ping()
        wanted(here, "q")
        near = here.subscribe("q", "g")
        here.ping()
        there.ping()
        for _ in range(50):
            here.publish("q", b"m")
        assert len([frame for frame in here.ping() if frame.sid == near]) == 50
        assert not [frame for frame in there.ping() if frame.sid == far]


def test_the_link_comes_back_after_the_hub_did(start_server: StartServer) -> None:
    hub = hub_of(start_server)
    leaf = leaf_of(start_server, hub)
    linked(hub, leaf)
    port = hub.leaf_port
    hub.stop()
    assert hub.config
    hub.config = hub.config.replace("listen: '127.0.0.1:-1'", f"listen: '127.0.0.1:{port}'")
    hub.start()
    linked(hub, leaf)
    with Wire(hub.address) as here, Wire(leaf.address) as there:
        both_ways(here, there)


def test_streams_are_reached_by_their_domain(start_server: StartServer) -> None:
    hub = hub_of(start_server, more="jetstream { domain: hub }")
    leaf = leaf_of(start_server, hub, more="jetstream { domain: leaf }")
    linked(hub, leaf)
    with Wire(hub.address) as here, Wire(leaf.address) as there:
        both_ways(here, there)
        for wire, own, other in ((here, "hub", "leaf"), (there, "leaf", "hub")):
            assert wire.request("$JS.API.INFO").json()["domain"] == own
            until(
                lambda wire=wire, other=other: wire.request(f"$JS.{other}.API.INFO").json()["domain"] == other,
                "the other domain answers",
                SOON_S,
            )


@pytest.mark.parametrize("direction", ["hub mirrors leaf", "leaf mirrors hub"])
def test_mirrors_cross_the_link(start_server: StartServer, direction: str) -> None:
    hub = hub_of(start_server, more="jetstream { domain: hub }")
    leaf = leaf_of(start_server, hub, more="jetstream { domain: leaf }")
    linked(hub, leaf)
    with Wire(hub.address) as here, Wire(leaf.address) as there:
        both_ways(here, there)
        origin, copy, domain = (there, here, "leaf") if direction.startswith("hub") else (here, there, "hub")
        create(origin, "O", subjects=["o.>"])
        for number in range(20):
            assert origin.request(f"o.{number}", b"m%d" % number).json()["seq"] == number + 1
        create(copy, "M", mirror={"name": "O", "external": {"api": f"$JS.{domain}.API"}})
        copied(copy, "M", 20, SOON_S)
        origin.request("o.more", b"m")
        copied(copy, "M", 21, SOON_S)


def test_sources_cross_the_link_into_one_stream(start_server: StartServer) -> None:
    hub = hub_of(start_server, more="jetstream { domain: hub }")
    leaf = leaf_of(start_server, hub, more="jetstream { domain: leaf }")
    linked(hub, leaf)
    with Wire(hub.address) as here, Wire(leaf.address) as there:
        both_ways(here, there)
        create(there, "O", subjects=["o.>"])
        create(here, "S", subjects=["s"], sources=[{"name": "O", "external": {"api": "$JS.leaf.API"}}])
        there.request("o.1", b"m")
        here.request("s", b"n")
        copied(here, "S", 2, SOON_S)


def test_a_mirror_goes_on_after_the_link_was_cut(start_server: StartServer) -> None:
    hub = hub_of(start_server, more="jetstream { domain: hub }")
    leaf = leaf_of(start_server, hub, more="jetstream { domain: leaf }")
    linked(hub, leaf)
    with Wire(leaf.address) as there:
        create(there, "O", subjects=["o"])
        with Wire(hub.address) as here:
            both_ways(here, there)
            create(here, "M", mirror={"name": "O", "external": {"api": "$JS.leaf.API"}})
            there.request("o", b"1")
            copied(here, "M", 1, SOON_S)
        port = hub.leaf_port
        hub.stop()
        assert hub.config
        hub.config = hub.config.replace("listen: '127.0.0.1:-1'", f"listen: '127.0.0.1:{port}'")
        there.request("o", b"2")
        hub.start()
        linked(hub, leaf)
        with Wire(hub.address) as here:
            copied(here, "M", 2, 60.0)
