"""Leaf connections between servers of both kinds, in both directions: streams, buckets, acks, and restarts."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from lakestream.protocol.subjects import short_hash
from tests.cluster.nodes import free_ports
from tests.conformance.leaf_peer import LeafPeer
from tests.conformance.leaf_world import (
    LINK_S,
    both_ways,
    copied,
    create,
    hub_of,
    leaf_of,
    linked,
    messages,
    page,
    reaches,
    until,
)
from tests.conformance.test_monitoring_port import ask
from tests.conftest import Agree, Recorded, StartServer
from tests.servers import Kind, Server, run_to_end
from tests.wire import Wire

pytestmark = pytest.mark.conformance

PAIRS = [(Kind.OURS, Kind.REAL), (Kind.OURS, Kind.OURS), (Kind.REAL, Kind.OURS)]
"""The hub and the leaf node."""
pairs = pytest.mark.parametrize("kinds", PAIRS, ids=[f"{hub.value}-{leaf.value}" for hub, leaf in PAIRS])
HUB, LEAF = "jetstream { domain: hub }\n", "jetstream { domain: leaf }\n"
LAKE = "lake { enabled: false }\n"


def _both(start_server: StartServer, kinds: tuple[Kind, Kind], remote: str = "") -> tuple[Server, Server]:
    hub_kind, leaf_kind = kinds
    hub = hub_of(start_server, more=HUB + (LAKE if hub_kind is Kind.OURS else ""), of=hub_kind)
    leaf = leaf_of(start_server, hub, remote, LEAF + (LAKE if leaf_kind is Kind.OURS else ""), of=leaf_kind)
    linked(hub, leaf)
    return hub, leaf


def _asked(wire: Wire, subject: str, body: Any) -> Any:
    data = b"" if body is None else json.dumps(body).encode()
    return wire.request(subject, data, timeout=10).json()


@pairs
def test_messages_and_requests_pass_both_ways(start_server: StartServer, kinds: tuple[Kind, Kind]) -> None:
    hub, leaf = _both(start_server, kinds)
    with Wire(hub.address) as here, Wire(leaf.address) as there:
        both_ways(here, there)
        near, far = here.subscribe("q", "g"), there.subscribe("q", "g")
        here.ping()
        there.ping()
        reaches(here, there, "fence")
        for _ in range(20):
            here.publish("q", b"m")
        assert len([frame for frame in here.ping() if frame.sid == near]) == 20
        assert not [frame for frame in there.ping() if frame.sid == far]
    [shown] = page(leaf, "/leafz")["leafs"]
    assert (shown["name"], shown["is_spoke"]) == ("hub", True)
    assert page(leaf, "/varz")["leafnodes"] == 1


def _crossed(sender: Wire, receiver: Wire, *subjects: str) -> set[str]:
    """Publish to subjects; return those that a subscriber to everything hears on the other side."""
    receiver.ping()
    for subject in (*subjects, "fence"):
        sender.publish(subject, b"m")
    heard: list[str] = []
    while "fence" not in heard:
        heard.append(receiver.next().subject)
    return {*heard} & {*subjects}


@pairs
def test_denied_subjects_do_not_pass(start_server: StartServer, kinds: tuple[Kind, Kind]) -> None:
    hub, leaf = _both(start_server, kinds, "deny_imports: ['in.>'], deny_exports: ['out.>']")
    with Wire(hub.address) as here, Wire(leaf.address) as there:
        here.subscribe("out.x")
        here.subscribe(">")
        there.subscribe("in.x")
        there.subscribe(">")
        both_ways(here, there)
        assert "out.x" not in _crossed(there, here, "out.x")
        assert "in.x" not in _crossed(here, there, "in.x")


HUBS = "accounts { THERE { users: [{user: u, password: p}] } }\nno_auth_user: u\n"
DENIED = "deny_imports: ['in.{{account-hash()}}'], deny_exports: ['out.{{account-hash-leaf-remote()}}']"


@pytest.mark.parametrize("hub_kind", [Kind.OURS, Kind.REAL], ids=lambda kind: kind.value)
def test_denied_subjects_may_name_the_accounts_by_their_hashes(start_server: StartServer, hub_kind: Kind) -> None:
    hub = hub_of(start_server, more=HUBS + (LAKE if hub_kind is Kind.OURS else ""), of=hub_kind)
    leaf = leaf_of(start_server, hub, DENIED, LAKE, "u:p@", of=Kind.OURS)
    linked(hub, leaf)
    with Wire(hub.address) as far, Wire(leaf.address) as near:
        far.subscribe(">")
        near.subscribe(">")
        both_ways(far, near)
        here, there = short_hash("$G"), short_hash("THERE")
        assert _crossed(far, near, f"in.{here}", f"in.{there}") == {f"in.{there}"}
        assert _crossed(near, far, f"out.{here}", f"out.{there}") == {f"out.{here}"}


@pairs
@pytest.mark.parametrize("at_hub", [True, False], ids=["the hub's", "the leaf's"])
def test_consumers_of_the_other_domain_are_acked(
    start_server: StartServer, kinds: tuple[Kind, Kind], at_hub: bool
) -> None:
    hub, leaf = _both(start_server, kinds)
    with Wire(hub.address) as here, Wire(leaf.address) as there:
        both_ways(here, there)
        owner, user, api = (here, there, "$JS.hub.API.") if at_hub else (there, here, "$JS.leaf.API.")
        create(owner, "O", subjects=["o.>"])
        for number in range(5):
            owner.request(f"o.{number}", b"m")
        # The user's server has a stream and a consumer of the same names: their acks must not meet.
        create(user, "O", subjects=["other"])
        for _ in range(5):
            user.request("other", b"x")
        config = {"durable_name": "C", "ack_policy": "explicit"}
        for wire, prefix in ((user, api), (user, "$JS.API.")):
            body = {"stream_name": "O", "config": config}
            answer = _asked(wire, f"{prefix}CONSUMER.DURABLE.CREATE.O.C", body)
            assert "error" not in answer, answer
        for number in range(5):
            inbox = f"inbox.{number}"
            sid = user.subscribe(inbox)
            user.publish(f"{api}CONSUMER.MSG.NEXT.O.C", b"1", inbox)
            message = user.delivered(sid)
            assert message.subject == f"o.{number}"
            assert message.reply
            assert user.request(message.reply, b"+ACK", timeout=10).status != 503
        info = _asked(user, f"{api}CONSUMER.INFO.O.C", None)
        assert info["ack_floor"]["stream_seq"] == 5
        mine = _asked(user, "$JS.API.CONSUMER.INFO.O.C", None)
        assert mine["ack_floor"]["stream_seq"] == 0


@pairs
def test_a_bucket_is_written_and_read_across(start_server: StartServer, kinds: tuple[Kind, Kind]) -> None:
    hub, leaf = _both(start_server, kinds)
    with Wire(hub.address) as here, Wire(leaf.address) as there:
        both_ways(here, there)
        for owner, user, domain in ((here, there, "hub"), (there, here, "leaf")):
            bucket = f"KV_{domain}"
            create(owner, bucket, subjects=[f"$KV.{domain}.>"], max_msgs_per_subject=1, allow_direct=True)
            stored = user.request(f"$JS.{domain}.API.$KV.{domain}.k", b"v", timeout=10).json()
            assert stored["seq"] == 1, stored
            assert stored["domain"] == domain
            read = user.request(f"$JS.{domain}.API.DIRECT.GET.{bucket}.$KV.{domain}.k", timeout=10)
            assert read.data == b"v"
            # A copy on the other side.
            copy = f"KV_copy_{domain}"
            create(user, copy, mirror={"name": bucket, "external": {"api": f"$JS.{domain}.API"}})
            copied(user, copy, 1)


@pytest.mark.heavy  # nats-server's mirrors wait up to 40 s before they try again
@pairs
def test_mirrors_go_on_when_either_side_is_killed(start_server: StartServer, kinds: tuple[Kind, Kind]) -> None:
    hub, leaf = _both(start_server, kinds)
    assert hub.config
    hub.config = hub.config.replace("listen: '127.0.0.1:-1'", f"listen: '127.0.0.1:{hub.leaf_port}'")
    with Wire(hub.address) as here, Wire(leaf.address) as there:
        both_ways(here, there)
        for owner, user, domain in ((here, there, "hub"), (there, here, "leaf")):
            create(owner, "O", subjects=[f"o.{domain}"])
            create(user, "M", mirror={"name": "O", "external": {"api": f"$JS.{domain}.API"}})
    for victim, last in ((hub, 400), (leaf, 800), (None, 1000)):
        with Wire(hub.address) as here, Wire(leaf.address) as there:
            for wire, subject in ((here, "o.hub"), (there, "o.leaf")):
                while wire.request(subject, subject.encode()).json()["seq"] < last:
                    pass
        if victim is not None:  # while copies are under way
            victim.kill()
            victim.start()
    with Wire(hub.address) as here, Wire(leaf.address) as there:
        for origin, mirror in ((here, there), (there, here)):
            copied(mirror, "M", 1000)
            assert messages(mirror, "M") == messages(origin, "O")


@pairs
def test_a_leaf_node_without_jetstream_uses_the_hubs_by_its_domain(
    start_server: StartServer, kinds: tuple[Kind, Kind]
) -> None:
    hub_kind, leaf_kind = kinds
    hub = hub_of(start_server, more=HUB + (LAKE if hub_kind is Kind.OURS else ""), of=hub_kind)
    leaf = leaf_of(start_server, hub, of=leaf_kind, jetstream=False)
    linked(hub, leaf)
    with Wire(hub.address) as here, Wire(leaf.address) as there:
        both_ways(here, there)
        until(lambda: there.request("$JS.hub.API.INFO", timeout=5).status != 503, "the API is known", 20)
        assert there.request("$JS.API.INFO").status == 503
        answer = _asked(there, "$JS.hub.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "allow_direct": True})
        assert "error" not in answer, answer
        until(lambda: there.request("s", b"m", timeout=5).status != 503, "the stream is known", 20)
        assert _asked(there, "$JS.hub.API.STREAM.INFO.S", None)["state"]["messages"] == 1
        until(lambda: there.request("$JS.hub.API.DIRECT.GET.S", b'{"seq": 1}').data == b"m", "direct gets", 20)


def test_a_reload_disconnects_leaf_nodes_whose_user_changed(start_server: StartServer) -> None:
    users = "{user: kept, password: p}", "{user: gone, password: p}"
    hub = hub_of(start_server, f"authorization {{ users: [{', '.join(users)}] }}", LAKE)
    kept, gone = (leaf_of(start_server, hub, login=f"{user}:p@") for user in ("kept", "gone"))
    # Leaf nodes of the same name are one: the hub tells them apart by what they are called.
    gone.stop()
    gone.name = "other"
    gone.start()
    until(lambda: len(page(hub, "/leafz")["leafs"]) == 2, "both are linked", 20)
    [before] = [leaf["id"] for leaf in page(hub, "/leafz")["leafs"] if leaf["name"] == "leaf"]
    assert hub.config
    hub.reload(hub.config.replace(f", {users[1]}", ""))
    until(lambda: [leaf["id"] for leaf in page(hub, "/leafz")["leafs"]] == [before], "one stays", 20)
    with Wire(hub.address) as here, Wire(kept.address) as there:
        both_ways(here, there)
        assert "authentication error" in hub.log()


@pytest.mark.parametrize(
    ("old", "new"), [("publish: old", "publish: new"), ("subscribe: old", "subscribe: new")], ids=["own", "default"]
)
def test_permissions_that_a_reload_changes_hold_for_leaf_nodes(start_server: StartServer, old: str, new: str) -> None:
    users = "{user: leaf, password: p, permissions: {publish: old}}, {user: plain, password: p}"
    account = f"accounts {{ A {{ users: [{users}], default_permissions: {{subscribe: old}} }} }}"
    hub = hub_of(start_server, "", f"{LAKE}{account}", of=Kind.OURS)
    login = {"user": "leaf" if "publish" in old else "plain", "pass": "p"}

    def joined() -> LeafPeer:
        peer = LeafPeer((hub.host, hub.leaf_port), login)
        peer.heard()
        return peer

    def allowed(peer: LeafPeer) -> list[str]:
        return [text for rule in ("export", "import") for text in peer.infos[-1].get(rule, {}).get("allow", ())]

    first = joined()
    assert allowed(first) == ["old"]
    assert hub.config
    hub.reload(hub.config + "\n# nothing else")
    assert not first.heard()
    hub.reload(hub.config.replace(old, new))
    assert [frame.verb for frame in first.until_closed()] == ["-ERR", "CLOSED"]
    assert allowed(joined()) == ["new"]


def test_lame_duck_mode_closes_leaf_connections(start_server: StartServer) -> None:
    hub = hub_of(start_server, more=f"{LAKE}lame_duck_duration: 30s\nlame_duck_grace_period: 1s")
    leaf = leaf_of(start_server, hub)
    linked(hub, leaf)
    assert hub.process
    hub.process.send_signal(signal.SIGUSR2)
    until(lambda: not page(leaf, "/leafz")["leafs"], "the connection ends", 20)


def test_secrets_of_leaf_nodes_are_shown_nowhere(start_server: StartServer) -> None:
    hub = hub_of(start_server, "authorization { user: u, password: s3cret }", f"{LAKE}debug: true\ntrace: true")
    leaf = leaf_of(start_server, hub, more=LAKE, login="u:s3cret@", of=Kind.OURS)
    linked(hub, leaf)
    for server in (hub, leaf):
        for shown in ("/varz", "/leafz?subs=1", "/connz?subs=1&auth=1"):
            assert "s3cret" not in json.dumps(page(server, shown))
        printed = [line for line in server.log(2000).splitlines() if not line.startswith("---")]
        assert not [line for line in printed if "s3cret" in line]


LACKING = """\
http: '127.0.0.1:-1'
accounts { A { users: [{user: a, password: p}] } }
leafnodes { remotes: [
  { url: 'nats-leaf://127.0.0.1:1' }
  { urls: ['nats-leaf://127.0.0.1:2', 'nats-leaf://127.0.0.1:3'], account: A }
  { url: 'nats-leaf://127.0.0.1:4', disabled: true }
] }
"""


def test_health_with_remotes_that_are_not_connected(agree: Agree) -> None:
    asked = ("=1", "=1&details=1", "=1&js-server-only=1", "=0", "=x", "=1&stream=S")
    agree(lambda server: [ask(server, f"/healthz?leaf-remotes-connected{how}") for how in asked], config=LACKING)


def test_health_follows_the_connection_of_a_remote(start_server: StartServer) -> None:
    hub = hub_of(start_server, more=LAKE)
    leaf = leaf_of(start_server, hub, more=LAKE, of=Kind.OURS)
    linked(hub, leaf)
    asked = "/healthz?leaf-remotes-connected=1"
    assert ask(leaf, asked)[0] == 200
    assert ask(hub, asked)[0] == 200
    hub.stop()
    until(lambda: ask(leaf, asked)[0] == 503, "the leaf is unhealthy", LINK_S)
    assert ask(leaf, "/healthz")[0] == 200


def test_a_connection_that_closed_a_loop_is_not_shown(start_server: StartServer) -> None:
    [port] = free_ports(1)
    remote = f"remotes: [{{ url: 'nats-leaf://127.0.0.1:{port}' }}]"
    server = start_server(
        of=Kind.OURS, config=f"http: '127.0.0.1:-1'\nleafnodes {{ listen: '127.0.0.1:{port}'\n{remote} }}", name="self"
    )
    until(lambda: "Loop detected" in server.log(2000), "the loop is found", LINK_S)
    until(lambda: not page(server, "/leafz")["leafs"], "the connection is gone", LINK_S)
    assert ask(server, "/healthz?leaf-remotes-connected=1")[0] == 503


PINGS = "ping_interval: '200ms'\nping_max: 3"


def _until_closed(other: socket.socket) -> list[str]:
    """Return the PINGs and errors that come until the other side closes the connection; PINGs are not answered."""
    got = b""
    other.settimeout(LINK_S)
    with contextlib.suppress(ConnectionError):
        while data := other.recv(65536):
            got += data
    return [line.decode() for line in got.split(b"\r\n") if line.startswith((b"PING", b"-ERR"))]


def test_a_leaf_node_that_answers_no_ping(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with socket.create_connection((server.host, server.leaf_port)) as other:
            other.sendall(LeafPeer.hello())
            return _until_closed(other)

    agree(see, config=f"leafnodes {{ listen: '127.0.0.1:-1'\n{PINGS} }}", jetstream=False)


def test_a_hub_that_answers_no_ping(agree: Agree) -> None:
    told = {"server_id": "HUB", "proto": 1, "headers": True, "max_payload": 1 << 20, "client_id": 1}
    with socket.create_server(("127.0.0.1", 0)) as hub:
        hub.settimeout(LINK_S)

        def see(server: Server) -> Any:
            other, _ = hub.accept()
            with other:
                other.sendall(b"INFO %b\r\n" % json.dumps(told | {"leafnode_urls": []}).encode())
                got = b""
                while b"CONNECT" not in got:
                    got += other.recv(65536) or pytest.fail(f"closed after {got!r}")
                joined = told | {"connect_info": True, "remote_account": "$G"}
                other.sendall(b"INFO %b\r\n" % json.dumps(joined).encode())
                return _until_closed(other).count("PING") >= 3  # the first one is early here

        remote = f"remotes: [{{ url: 'nats-leaf://127.0.0.1:{hub.getsockname()[1]}' }}]"
        agree(see, config=f"leafnodes {{ {remote}\n{PINGS} }}", jetstream=False)


@pytest.mark.parametrize(
    "settings",
    ["ping_interval: '2s'\nping_max: -1", "ping_interval: soon", "ping_max: x", "ping_interval: '-1s'\nping_max: 0"],
)
def test_pings_of_leaf_nodes_as_they_are_configured(tmp_path: Path, recorded: Recorded, settings: str) -> None:
    path = tmp_path / "nats.conf"
    path.write_text(f"leafnodes {{ port: -1\n{settings} }}")

    def see(kind: Kind) -> Any:
        ended = run_to_end(kind, "-t", "-c", str(path))
        said = re.sub(r"^.*?nats.conf", "nats.conf", ended.stderr).strip()
        return [ended.returncode, said if ended.returncode else ""]

    assert see(Kind.OURS) == recorded(lambda: see(Kind.REAL))
