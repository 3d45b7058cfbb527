"""Tests of a nats-server that reads the streams of a lakestream connected to it as a leaf node."""

from __future__ import annotations

import itertools
import json
import random
import re
import signal
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from lakestream.protocol.nkeys import key_pair
from tests.cluster.links import Network
from tests.cluster.nodes import free_ports
from tests.cluster.peer_world import Authority
from tests.conformance.leaf_peer import LeafPeer, lmsg
from tests.conformance.leaf_world import (
    SOON_S,
    connected,
    copied,
    create,
    hub_config,
    lake_config,
    messages,
    start_both,
    until,
)
from tests.conftest import StartServer
from tests.docs.blocks import ROOT, blocks
from tests.keys import Operator
from tests.servers import Kind, Server, StartFailed
from tests.unit.protocol.test_nkeys import seed_of
from tests.wire import Wire, pub

pytestmark = pytest.mark.conformance

LAKE = {"api": "$JS.lake.API"}
SECOND = 1_000_000_000
_ids = itertools.count()


def publish(wire: Wire, count: int, subject: str = "orders", size: int = 20) -> None:
    """Publish messages with headers of several kinds, and without."""
    for n in range(count):
        expects = {"A": "b", "Nats-Expected-Stream": subject.upper()}
        headers = ({"Nats-Msg-Id": f"{next(_ids)}"}, expects, None)[n % 3]
        answer = wire.request(f"{subject}.{n % 5}", b"%d" % n * (1 + n % size), headers)
        assert "error" not in answer.json(), answer


def here_page(server: Server, page: str) -> Any:
    """Return a page of the monitoring port."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/{page}", timeout=10) as answer:
        return json.load(answer)


def stripped(found: list[Any]) -> list[Any]:
    """Return the messages as mirrors keep them, without the Nats-Expected headers."""
    return [one._replace(header=one.header.replace(b"Nats-Expected-Stream: ORDERS\r\n", b"")) for one in found]


def test_leaf_nodes_that_join_byte_by_byte_are_served_in_order(start_server: StartServer) -> None:
    hub = start_server(config="leafnodes { listen: '127.0.0.1:-1' }")
    peers = [LeafPeer((hub.host, hub.leaf_port), None) for _ in range(12)]
    with Wire(hub.address) as wire:
        sids = {number: wire.subscribe(f"of.{number}") for number in range(len(peers))}
        wire.ping()
        said = [
            peer.hello(name=f"{number}", server_id=f"{number}", cluster=f"{number}")
            + b"".join(lmsg(f"of.{number}", b"%d" % count) for count in range(300))
            for number, peer in enumerate(peers)
        ]
        for each in range(300):
            for peer, text in zip(peers, said, strict=True):
                peer.send(text[each : each + 1])
        for peer, text in zip(peers, said, strict=True):
            peer.send(text[300:])
        for sid in sids.values():
            assert [wire.delivered(sid).data for _ in range(300)] == [b"%d" % count for count in range(300)]
    for peer in peers:
        peer.close()


@pytest.mark.heavy
def test_a_mirror_of_nats_server_equals_the_stream_whatever_is_killed(start_server: StartServer) -> None:
    [port] = free_ports(1)
    here, there = start_both(start_server, port)
    with Wire(here.address) as ours, Wire(there.address) as theirs:
        create(ours, "ORDERS", subjects=["orders.>"])
        publish(ours, 198)
        assert ours.request("orders." + "x" * 3900, b"").json()["seq"] == 199
        publish(ours, 1)
        assert ours.api("STREAM.PURGE.ORDERS", {"filter": "orders.3", "keep": 5})["success"]
        for seq in (60, 61, 77, 200):
            assert ours.api("STREAM.MSG.DELETE.ORDERS", {"seq": seq})["success"]
        create(theirs, "ORDERS", mirror={"name": "ORDERS", "external": LAKE})
        publish(ours, 30)
        info = copied(theirs, "ORDERS", 230)
        assert info["mirror"]["lag"] == 0
        assert "error" not in info["mirror"]
        assert messages(theirs, "ORDERS") == stripped(messages(ours, "ORDERS"))
    here.kill()
    here.start()
    with Wire(here.address) as ours, Wire(there.address) as theirs:
        publish(ours, 40)
        assert ours.api("STREAM.MSG.DELETE.ORDERS", {"seq": 240})["success"]
        copied(theirs, "ORDERS", 270)
    there.kill()
    with Wire(here.address) as ours:
        publish(ours, 50)
    there.start()
    with Wire(here.address) as ours, Wire(there.address) as theirs:
        publish(ours, 10)
        copied(theirs, "ORDERS", 330)
        same, seen = stripped(messages(ours, "ORDERS")), messages(theirs, "ORDERS")
        assert [one for one in seen if one.seq != 240] == same
        # Promotion: clients move to the other server, where the sequences are the same.
        updated = theirs.api("STREAM.UPDATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"]})
        assert "error" not in updated, updated
        assert theirs.request("orders.1", b"there").json()["seq"] == 331
        assert ours.request("orders.1", b"here").json()["seq"] == 331
        assert theirs.api("STREAM.MSG.GET.ORDERS", {"seq": 331})["message"]["subject"] == "orders.1"


def test_sources_there_take_from_streams_of_every_retention(start_server: StartServer) -> None:
    [port] = free_ports(1)
    here, there = start_both(start_server, port)
    with Wire(here.address) as ours, Wire(there.address) as theirs:
        create(ours, "ORDERS", subjects=["orders.>"])
        create(ours, "JOBS", subjects=["jobs.>"], retention="workqueue")
        create(
            theirs,
            "ALL",
            sources=[
                {"name": "ORDERS", "external": LAKE, "filter_subject": "orders.1"},
                {
                    "name": "JOBS",
                    "external": LAKE,
                    "subject_transforms": [{"src": "jobs.*", "dest": "done.{{wildcard(1)}}"}],
                },
            ],
        )
        publish(ours, 50)
        publish(ours, 1500, "jobs")
        until(lambda: theirs.api("STREAM.INFO.ALL")["state"]["messages"] == 10 + 1500, "all messages come")
        [leaf] = here_page(here, "leafz?subs=1")["leafs"]
        assert (leaf["name"], leaf["account"], leaf["is_spoke"]) == ("hub", "$G", True)
        assert leaf["out_msgs"] >= 1510
        assert leaf["subscriptions"] == len(leaf["subscriptions_list"]) >= 2
        [shown] = here_page(here, "varz")["remote_servers"]
        assert (shown["type"], shown["domain"], shown["remote_domain"]) == ("leaf", "lake", "hub")
        assert (shown["connected"], shown["holds"], shown["connects"]) == (True, True, 1)
        # Replies to flow control ack the copied messages, which the work queue then removes.
        until(lambda: ours.api("STREAM.INFO.JOBS")["state"]["messages"] == 0, "the queue is empty")
        taken = messages(theirs, "ALL")
        assert [one.data for one in taken if one.subject == "orders.1"] == [
            one.data for one in messages(ours, "ORDERS") if one.subject == "orders.1"
        ]
        assert sum(one.subject.startswith("done.") for one in taken) == 1500


def test_a_large_stream_comes_with_flow_control(start_server: StartServer) -> None:
    [port] = free_ports(1)
    here, there = start_both(start_server, port)
    with Wire(here.address) as ours, Wire(there.address) as theirs:
        create(ours, "ORDERS", subjects=["orders.>"])
        for _ in range(20):
            ours.send(pub("orders.1", b"x" * 500) * 2000)
            ours.ping(SOON_S)
        last = 40_000
        copied(ours, "ORDERS", last)
        create(theirs, "ORDERS", mirror={"name": "ORDERS", "external": LAKE})
        info = copied(theirs, "ORDERS", last)
        assert info["state"]["messages"] == last
        assert "error" not in info["mirror"]


def test_clients_there_use_streams_and_buckets_here(start_server: StartServer) -> None:
    [port] = free_ports(1)
    here, there = start_both(start_server, port)
    with Wire(here.address) as ours, Wire(there.address) as theirs:
        create(ours, "ORDERS", subjects=["orders.>"], allow_direct=True)
        create(ours, "KV_B", subjects=["$KV.B.>"], allow_direct=True, max_msgs_per_subject=5)
        create(theirs, "ORDERS", subjects=["orders.>"])  # of the same name: the acks must not be confused
        publish(ours, 20)
        theirs.api_prefix = "$JS.lake.API"
        assert theirs.api("STREAM.NAMES")["streams"] == ["KV_B", "ORDERS"]
        config = {"durable_name": "C", "ack_policy": "explicit", "ack_wait": 3600 * SECOND}
        theirs.api("CONSUMER.CREATE.ORDERS.C", {"stream_name": "ORDERS", "config": config})
        reply = theirs.new_reply()
        theirs.publish("$JS.lake.API.CONSUMER.MSG.NEXT.ORDERS.C", b'{"batch":20,"expires":30000000000}', reply)
        for n in range(20):
            frame = theirs.next(lambda frame: frame.verb in ("MSG", "HMSG"))
            assert frame.subject == f"orders.{n % 5}"
            assert frame.reply.startswith("$JS.ACK.lake.")
            assert not theirs.request(frame.reply, b"+ACK").data
        info = theirs.api("CONSUMER.INFO.ORDERS.C")
        assert (info["num_ack_pending"], info["ack_floor"]["stream_seq"]) == (0, 20)
        put = theirs.request("$JS.lake.API.$KV.B.key", b"value")
        assert put.json() == {"stream": "KV_B", "domain": "lake", "seq": 1}
        got = theirs.request("$JS.lake.API.DIRECT.GET.KV_B.$KV.B.key")
        assert (got.data, got.headers["Nats-Sequence"]) == (b"value", "1")
        inbox = "_INBOX.pushed.to"
        sid = theirs.subscribe(inbox)
        theirs.ping()
        pushed = {"deliver_subject": inbox, "ack_policy": "none", "idle_heartbeat": SECOND, "flow_control": True}
        theirs.api("CONSUMER.CREATE.ORDERS", {"stream_name": "ORDERS", "config": pushed})
        assert [theirs.delivered(sid).subject for _ in range(20)] == [f"orders.{n % 5}" for n in range(20)]
        assert theirs.request("$JS.lake.API.NONSENSE.X").status == 503


def test_a_backup_is_made_and_restored_from_there(start_server: StartServer) -> None:
    [port] = free_ports(1)
    here, there = start_both(start_server, port)
    with Wire(here.address) as ours, Wire(there.address) as theirs:
        create(ours, "ORDERS", subjects=["orders.>"])
        noise = random.Random(7)
        for _ in range(60):
            ours.request("orders.1", noise.randbytes(10_000))
        before = messages(ours, "ORDERS")
        theirs.api_prefix = "$JS.lake.API"
        sid = theirs.subscribe("_INBOX.chunks")
        theirs.ping()
        made = theirs.api("STREAM.SNAPSHOT.ORDERS", {"deliver_subject": "_INBOX.chunks", "chunk_size": 32_768})
        chunks = []
        while (chunk := theirs.delivered(sid)).data:
            chunks.append(chunk.data)
            if chunk.reply:
                theirs.publish(chunk.reply)
        assert len(chunks) > 10
        ours.api("STREAM.DELETE.ORDERS")
        begun = theirs.api("STREAM.RESTORE.ORDERS", {"config": made["config"], "state": made["state"]})
        assert begun["deliver_subject"].startswith("$JS.lake.SNAPSHOT.RESTORE."), begun
        for data in [*chunks, b""]:
            assert "error" not in (theirs.request(begun["deliver_subject"], data).data or b"{}").decode()
        assert messages(ours, "ORDERS") == before


def test_publishers_there_may_stay_when_their_stream_has_moved(start_server: StartServer) -> None:
    [port] = free_ports(1)
    there = start_server(of=Kind.REAL, config=hub_config(port), name="hub")
    here = start_server(of=Kind.OURS, config=lake_config(port, settings="subjects: ['orders.>', jobs]"), name="lake1")
    connected(here, port)
    with Wire(here.address) as ours, Wire(there.address) as theirs:
        create(ours, "ORDERS", subjects=["orders.>"])
        publish(theirs, 30)
        assert (
            theirs.request("orders.1", b"x", {"Nats-Expected-Last-Sequence": "7"}).json()["error"]["err_code"] == 10071
        )
        assert ours.api("STREAM.INFO.ORDERS")["state"]["messages"] == 30
        sid = ours.subscribe("jobs")
        ours.ping()
        theirs.publish("jobs", b"1")
        assert ours.delivered(sid).data == b"1"


@pytest.mark.parametrize("together", [True, False])
def test_of_the_connections_of_a_cluster_each_message_takes_one(start_server: StartServer, together: bool) -> None:
    [port] = free_ports(1)
    there = start_server(of=Kind.REAL, config=hub_config(port), name="hub")
    config = lake_config(port, settings="subjects: [jobs]")
    # Two nodes that are not connected, or belong to different clusters.
    routes = [f"cluster {{ name: {name}, listen: '127.0.0.1:-1' }}\n" for name in ("one", "one" if together else "two")]
    nodes = [
        start_server(of=Kind.OURS, config=config + route, name=name) for route, name in zip(routes, "ab", strict=True)
    ]
    for node in nodes:
        connected(node, port)
    with Wire(there.address) as theirs, Wire(nodes[0].address) as first, Wire(nodes[1].address) as second:
        sids = [wire.subscribe("jobs") for wire in (first, second)]
        first.ping()
        second.ping()
        for n in range(50):
            theirs.publish("jobs", b"%d" % n)
        count = 50 if together else 100
        heard = set[tuple[int, bytes]]()

        def arrived() -> bool:
            for at, (wire, sid) in enumerate(zip((first, second), sids, strict=True)):
                heard.update((at, frame.data) for frame in wire.ping() if frame.sid == sid)
            return len(heard) >= count

        until(arrived, "all messages come")
        assert len(heard) == count
        assert len({data for _, data in heard}) == 50


def test_who_is_answered_there_hears_nothing_from_here(start_server: StartServer) -> None:
    [port] = free_ports(1)
    there = start_server(of=Kind.REAL, config=hub_config(port), name="hub")
    here = start_server(of=Kind.OURS, config=lake_config(port, settings="subjects: ['orders.>']"), name="lake1")
    connected(here, port)
    with Wire(there.address) as asks, Wire(there.address) as answers:
        sid = answers.subscribe("orders.check")
        answers.ping()
        for _ in range(20):
            reply = asks.new_reply()
            asks.publish("orders.check", b"?", reply)
            answers.publish(answers.delivered(sid).reply, b"!")
            assert asks.message(reply).data == b"!"
        # A reply from this side comes after everything sent before.
        assert asks.request("$JS.lake.API.INFO").json()["streams"] == 0
        assert not asks.waiting


def test_nothing_else_goes_over(start_server: StartServer) -> None:
    [port] = free_ports(1)
    here, there = start_both(start_server, port)
    with Wire(here.address) as ours, Wire(there.address) as theirs:
        create(ours, "ORDERS", subjects=["orders.>"])
        create(theirs, "ORDERS", subjects=["orders.>"])
        create(theirs, "EVERYTHING", subjects=["x.>"])
        heard = [ours.subscribe("x.>"), theirs.subscribe("y.>")]
        publish(ours, 10)
        theirs.request("orders.1", b"")
        theirs.publish("x.1", b"", theirs.new_reply())
        ours.publish("y.1")
        for wire in (ours, theirs):
            wire.ping()
            # A request to the other side and back comes after everything sent before.
            wire.api_prefix = "$JS.lake.API"
            assert wire.api("INFO")["streams"] == 1
            assert not [frame for frame in wire.waiting if frame.sid in heard and frame.subject[0] in "xy"]
        theirs.api_prefix = "$JS.API"
        assert theirs.api("STREAM.INFO.ORDERS")["state"]["last_seq"] == 1
        assert ours.api("STREAM.INFO.ORDERS")["state"]["last_seq"] == 10


def test_a_lost_connection_comes_back_and_the_mirror_goes_on(start_server: StartServer) -> None:
    port, through = free_ports(2)
    network = Network()
    try:
        there_way, back_way = network.direction(), network.direction()
        network.connect(through, ("127.0.0.1", port), there_way, back_way)
        there = start_server(of=Kind.REAL, config=hub_config(port), name="hub")
        here = start_server(of=Kind.OURS, config=lake_config(through), name="lake1")
        connected(here, through)
        with Wire(here.address) as ours, Wire(there.address) as theirs:
            create(ours, "ORDERS", subjects=["orders.>"])
            create(theirs, "M", mirror={"name": "ORDERS", "external": LAKE})
            publish(ours, 20)
            copied(theirs, "M", 20)
            for round_ in range(2, 5):
                publish(ours, 20)
                network.reset(there_way)
                publish(ours, 20)
                connected(here, through, round_)
            copied(theirs, "M", 140)
            assert messages(theirs, "M") == stripped(messages(ours, "ORDERS"))
            assert "ended: " in here.log()
    finally:
        network.close()


def test_the_link_logs_in_and_says_why_it_can_not(start_server: StartServer) -> None:
    [port] = free_ports(1)
    accounts = "accounts { A { jetstream: enabled, users: [{ user: a, password: a }] } }"
    ours_in_b = "accounts { B { jetstream: enabled, users: [{ user: b, password: b }] } }"
    listener = "\n authorization { users: [{ user: leaf, password: secret, account: A }] }\n"
    there = start_server(of=Kind.REAL, config=hub_config(port, accounts, listener), name="hub")
    here = start_server(of=Kind.OURS, config=lake_config(port, ours_in_b, user="leaf:wrong"), name="lake1")
    until(lambda: "Authorization Violation" in here.log(), "it is refused")
    assert "wrong" not in here.log()
    assert here.process is not None
    here.config = lake_config(port, ours_in_b, settings="user: leaf\npassword: secret\naccount: B")
    here.command()  # writes the configuration file
    here.process.send_signal(signal.SIGHUP)
    connected(here, port)
    in_a, in_b = ({"user": name, "pass": name} for name in "ab")
    with Wire(here.address, in_b) as ours, Wire(there.address, in_a) as theirs:
        create(ours, "ORDERS", subjects=["orders.>"])
        create(theirs, "M", mirror={"name": "ORDERS", "external": LAKE})
        publish(ours, 20)
        copied(theirs, "M", 20)


def test_the_link_shows_a_key(start_server: StartServer) -> None:
    [port] = free_ports(1)
    seed = seed_of(random.Random(7).randbytes(32))
    users = f"[{{ nkey: {key_pair(seed).public} }}, {{ user: a, password: a }}]"
    accounts = f"accounts {{ A {{ jetstream: enabled, users: {users} }} }}"
    there = start_server(of=Kind.REAL, config=hub_config(port, accounts), name="hub")
    here = start_server(of=Kind.OURS, config=lake_config(port, settings=f"nkey: {seed}"), name="lake1")
    connected(here, port)
    with Wire(here.address) as ours, Wire(there.address, {"user": "a", "pass": "a"}) as theirs:
        create(ours, "ORDERS", subjects=["orders.>"])
        create(theirs, "M", mirror={"name": "ORDERS", "external": LAKE})
        publish(ours, 20)
        copied(theirs, "M", 20)


def test_the_link_shows_credentials(start_server: StartServer, tmp_path: Path) -> None:
    [port] = free_ports(1)
    operator = Operator()
    file = tmp_path / "u.creds"
    file.write_text(operator.credentials)
    there = start_server(of=Kind.REAL, config=hub_config(port, operator.config), name="hub")
    here = start_server(of=Kind.OURS, config=lake_config(port, settings=f"credentials: '{file}'"), name="lake1")
    connected(here, port)
    with Wire(here.address) as ours, operator.client(there.address) as theirs:
        create(ours, "ORDERS", subjects=["orders.>"])
        create(theirs, "M", mirror={"name": "ORDERS", "external": LAKE})
        publish(ours, 20)
        copied(theirs, "M", 20)


def test_the_link_goes_over_tls(start_server: StartServer, tmp_path: Path) -> None:
    [port] = free_ports(1)
    tls = Authority(tmp_path, "ca").options("127.0.0.1")
    listener = f"\ntls {{ cert_file: '{tls.cert_file}', key_file: '{tls.key_file}' }}\n"
    there = start_server(of=Kind.REAL, config=hub_config(port, listener=listener), name="hub")
    here = start_server(of=Kind.OURS, config=lake_config(port), name="lake1")
    until(lambda: "certificate verify failed" in here.log(), "it is not trusted")
    here.stop()
    here.config = lake_config(port, settings=f"tls {{ ca_file: '{tls.ca_file}' }}")
    here.start()
    connected(here, port)
    with Wire(here.address) as ours, Wire(there.address) as theirs:
        create(ours, "ORDERS", subjects=["orders.>"])
        create(theirs, "M", mirror={"name": "ORDERS", "external": LAKE})
        publish(ours, 20)
        copied(theirs, "M", 20)


def test_a_port_for_clients_is_told_from_one_for_leaf_nodes(start_server: StartServer) -> None:
    there = start_server(of=Kind.REAL)
    here = start_server(of=Kind.OURS, config=lake_config(there.port))
    until(lambda: "the port does not accept leaf nodes" in here.log(), "it says so")


def test_a_domain_that_is_the_other_sides_own_is_refused(start_server: StartServer) -> None:
    [port] = free_ports(1)
    start_server(of=Kind.REAL, config=hub_config(port))
    here = start_server(of=Kind.OURS, config=lake_config(port).replace("domain: lake", "domain: hub"))
    until(lambda: "JetStream uses domain hub too" in here.log(), "it is refused")


def test_what_was_not_asked_for_goes_to_nobody(start_server: StartServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        settings = "subjects: ['a.*.c', 'b.>', d]"
        here = start_server(of=Kind.OURS, config=lake_config(port, settings=settings), args=["-m", "-1"])
        connection, _ = listener.accept()
        with connection, Wire(here.address) as ours:
            create(ours, "ORDERS", subjects=["orders.>"])
            sid = ours.subscribe(">")
            ours.ping()
            connection.sendall(b'INFO {"max_payload":1000,"headers":true}\r\n')
            said = b""
            while not said.endswith(b"PING\r\n"):
                said += connection.recv(65536)
            assert said.count(b"LS+ ") == 4 + 3
            unasked = (
                b"orders.new",
                b"$JS.API.STREAM.DELETE.ORDERS",
                b"$JS.ACK.ORDERS.C.1.1.1.1.0",
                b"a.b",
                b"b",
                b"d.e",
            )
            asked = (b"a.x.c", b"b.x", b"d", b"$JS.ACK.lake.szMpdrwD.ORDERS.C.1.1.1.1.0")
            frames = [b"LMSG %b 2\r\nhi\r\n" % subject for subject in (*unasked, *asked)]
            connection.sendall(b"PONG\r\n" + b"".join(frames))
            heard = [ours.delivered(sid).subject for _ in asked]
            assert heard == ["a.x.c", "b.x", "d", "$JS.ACK.ORDERS.C.1.1.1.1.0"]
            state = ours.api("STREAM.INFO.ORDERS")["state"]
            assert state["messages"] == 0
            until(lambda: "a message without a matching subscription, on 'orders.new'" in here.log(), "it is told")


def test_a_leaf_needs_a_domain_of_its_own(start_server: StartServer) -> None:
    with pytest.raises(StartFailed, match=r"jetstream.*domain"):
        start_server(of=Kind.OURS, config="remote { url: 'nats-leaf://127.0.0.1:1' }")


def test_streams_go_both_ways_at_once(start_server: StartServer) -> None:
    port, clients = free_ports(2)
    there = start_server(of=Kind.REAL, config=hub_config(port), name="hub", port=clients)
    plain = f"{{ domain: hub, url: 'nats://127.0.0.1:{clients}' }}"
    config = lake_config(port).replace("remote {", "remotes [ {").replace("\n}\n", f"\n}}\n{plain} ]\n")
    here = start_server(of=Kind.OURS, config=config, name="lake1")
    connected(here, port)
    until(lambda: "Connected to remote hub" in here.log(), "the other link comes up")
    hub = {"api": "$JS.hub.API"}
    with Wire(here.address) as ours, Wire(there.address) as theirs:
        create(ours, "ORDERS", subjects=["orders.>"])
        create(theirs, "JOBS", subjects=["jobs.>"])
        publish(ours, 50)
        publish(theirs, 50, "jobs")
        create(theirs, "ORDERS", mirror={"name": "ORDERS", "external": LAKE})
        create(ours, "JOBS", mirror={"name": "JOBS", "external": hub})
        create(theirs, "JOBS_BACK", mirror={"name": "JOBS", "external": LAKE})
        create(ours, "ORDERS_BACK", mirror={"name": "ORDERS", "external": hub})
        publish(ours, 50)
        publish(theirs, 50, "jobs")
        for wire, name in ((theirs, "ORDERS"), (ours, "JOBS"), (theirs, "JOBS_BACK"), (ours, "ORDERS_BACK")):
            assert copied(wire, name, 100)["state"]["messages"] == 100
        assert messages(ours, "ORDERS_BACK") == messages(theirs, "ORDERS") == stripped(messages(ours, "ORDERS"))
        assert messages(theirs, "JOBS_BACK") == messages(ours, "JOBS")


def test_the_steps_of_the_documentation_lead_there_and_back(start_server: StartServer) -> None:
    page = ROOT / "docs" / "moving.md"
    half = page.read_text().partition("## From lakestream to nats-server")[0].count("\n")
    found = [block.text for block in blocks(page) if block.line > half]
    [port] = free_ports(1)
    listener, remote = found[0].replace("7422", str(port)), found[1].replace("nats.example:7422", f"127.0.0.1:{port}")
    requests = [re.findall(r"'([^']*)'", block) for block in found[2:]]
    there = start_server(of=Kind.REAL, config=listener, name="hub")
    here = start_server(of=Kind.OURS, config=remote + "lake { enabled: false }\n", name="lake1")
    connected(here, port)
    with Wire(here.address) as ours, Wire(there.address) as theirs:
        create(ours, "ORDERS", subjects=["orders.>"])
        publish(ours, 20)
        for (subject, body), last in zip(requests, (20, 21), strict=True):
            answer = theirs.request(subject, body.encode()).json()
            assert "error" not in answer, answer
            if last == 20:
                copied(theirs, "ORDERS", last)
            else:
                assert theirs.request("orders.1", b"x").json()["seq"] == last
