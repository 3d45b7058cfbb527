"""Tests of a lost link: answers while it is down, and copying that resumes without loss or duplicates.

The remote is nats-server, or another lakestream.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator

import pytest

from tests.cluster.links import Network
from tests.cluster.nodes import free_ports
from tests.conformance.remotes import (
    BOTH,
    EXTERNAL,
    SOON_S,
    config,
    create,
    fixed_port,
    flood,
    links,
    messages,
    mirror,
    publish,
    state,
    upstream,
    wait,
    wait_last,
    wait_link,
)
from tests.conftest import StartServer
from tests.servers import Kind, Server
from tests.wire import Closed, Wire, WireTimeout

pytestmark = pytest.mark.conformance


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.close()


class Publisher(threading.Thread):
    """Publishes numbered messages to a server that may fail, until it is stopped; keeps the acked ones."""

    def __init__(self, server: Server, subject: str) -> None:
        super().__init__(daemon=True)
        self._server, self._subject = server, subject
        self.acked: dict[int, bytes] = {}
        self.enough = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.enough.is_set():
            try:
                with Wire(self._server.address, timeout=2) as wire:
                    while not self.enough.is_set():
                        number += 1
                        payload = b"%d" % number
                        answer = wire.request(self._subject, payload)
                        if answer.data and "seq" in (told := answer.json()):
                            self.acked[told["seq"]] = payload
            except (Closed, WireTimeout, OSError):
                self.enough.wait(0.05)

    def finish(self) -> None:
        """Stop once no request is in flight."""
        self.enough.set()
        self.join(SOON_S)
        assert not self.is_alive()


def test_a_mirror_tells_that_its_remote_is_not_there_and_begins_when_it_is(start_server: StartServer) -> None:
    (port,) = free_ports(1)
    server = start_server(of=Kind.OURS, config=config(("127.0.0.1", port)))
    with Wire(server.address) as here:
        mirror(here, "M", "O")
        error = wait("an error", lambda: upstream(here, "M").get("error"))
        assert (error["code"], error["err_code"]) == (503, 10008)
        assert error["description"] == "remote hub is not connected: Connection refused"
        here.api_prefix = "$JS.hub.API"
        assert here.api("STREAM.NAMES")["error"] == error
        assert here.request("$JS.hub.API.CONSUMER.MSG.NEXT.O.c").status == 503
        here.api_prefix = "$JS.API"
        assert links(server)[0]["error"] == "Connection refused"
        remote = start_server(of=Kind.REAL, port=port)
        with Wire(remote.address) as there:
            create(there, "O", subjects=["o"])
            publish(there, "o", b"1")
        wait_last(here, "M", 1)
        assert "error" not in upstream(here, "M")
    assert f"Error trying to connect to remote hub (nats://127.0.0.1:{port}, attempt 1): Connection" in server.log()
    assert f"Connected to remote hub (nats://127.0.0.1:{port}" in server.log()


@pytest.mark.parametrize("kind", BOTH, ids=lambda kind: kind.value)
@pytest.mark.parametrize("victim", ["here", "there"])
def test_a_copy_is_whole_after_a_side_was_killed(start_server: StartServer, kind: Kind, victim: str) -> None:
    options = "jetstream { sync_interval: always }" if kind is Kind.REAL else "lake: false"
    remote = fixed_port(start_server(of=kind, config=options))
    server = fixed_port(start_server(of=Kind.OURS, config=config(remote.address)))
    with Wire(remote.address) as there:
        create(there, "O", subjects=["o"])
        create(there, "W", subjects=["w"], retention="workqueue")
    with Wire(server.address) as here:
        mirror(here, "M", "O")
        create(here, "S", sources=[{"name": "O", "external": EXTERNAL}])
        mirror(here, "MW", "W")
        wait("a copy", lambda: upstream(here, "M")["active"] >= 0)
    publishers = [Publisher(remote, "o"), Publisher(remote, "w")]
    for publisher in publishers:
        publisher.start()
    before = [len(publisher.acked) for publisher in publishers]
    wait(
        "messages",
        lambda before=before: all(len(p.acked) > n + 50 for p, n in zip(publishers, before, strict=True)),
    )
    dying = server if victim == "here" else remote
    dying.kill()
    dying.start()
    before = [len(publisher.acked) for publisher in publishers]
    wait("more", lambda: all(len(p.acked) > n + 50 for p, n in zip(publishers, before, strict=True)))
    for publisher in publishers:
        publisher.finish()
    with Wire(server.address) as here, Wire(remote.address) as there:
        last = state(there, "O")["last_seq"]
        wait_last(here, "M", last)
        origin = messages(there, "O")
        assert messages(here, "M") == origin
        assert {seq: data for seq, _, _, _, data in origin}.items() >= publishers[0].acked.items()
        wait("the source", lambda: upstream(here, "S").get("seq") == last)
        assert [one[4] for one in messages(here, "S")] == [one[4] for one in origin]
        wait("the work queue", lambda: state(there, "W")["messages"] == 0)
        copied = {seq: data for seq, _, _, _, data in messages(here, "MW")}
        assert copied.items() >= publishers[1].acked.items()


@pytest.mark.parametrize("kind", BOTH, ids=lambda kind: kind.value)
@pytest.mark.parametrize("copy", ["mirror", "source"])
def test_a_copy_stores_what_its_origin_counts_as_sent_before_the_answer(
    start_server: StartServer, network: Network, kind: Kind, copy: str
) -> None:
    """A message that the origin counts as delivered in its answer is stored, and only then removed from the queue.

    nats-server sends to the copy before it fills in the answer in about one of 400 renewals of a consumer; the answer
    is rewritten here to what it says then.
    """
    remote = start_server(of=kind, config="lake: false" if kind is Kind.OURS else None)
    (port,) = free_ports(1)
    there_way, back_way = network.direction(), network.direction()
    network.connect(port, remote.address, there_way, back_way)
    server = start_server(of=Kind.OURS, config=config(("127.0.0.1", port)))
    wait_link(server)
    counts = b'"delivered":{"consumer_seq":%d,"stream_seq":%d'
    network.rewrite(back_way, counts % (0, 0), counts % (3, 3))
    with Wire(remote.address) as there, Wire(server.address) as here:
        create(there, "W", subjects=["w"], retention="workqueue")
        publish(there, "w", b"1", b"2", b"3")
        origin = {"name": "W", "external": EXTERNAL}
        create(here, "C", **({"mirror": origin} if copy == "mirror" else {"sources": [origin]}))
        wait("the work queue", lambda: state(there, "W")["messages"] == 0)
        assert back_way.rewritten is None
        assert [one[4] for one in messages(here, "C")] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("kind", BOTH, ids=lambda kind: kind.value)
def test_a_link_that_dies_in_the_middle_of_messages_loses_none(
    start_server: StartServer, kind: Kind, network: Network
) -> None:
    remote = start_server(of=kind, config="lake: false" if kind is Kind.OURS else None)
    (port,) = free_ports(1)
    there_way, back_way = network.direction(), network.direction()
    network.connect(port, remote.address, there_way, back_way)
    server = start_server(of=Kind.OURS, config=config(("127.0.0.1", port)))
    wait_link(server)
    with Wire(remote.address) as there, Wire(server.address) as here:
        create(there, "O", subjects=["o"])
        mirror(here, "M", "O")
        for number in range(1, 4):
            flood(there, "o", 20_000, 200)
            wait("a part", lambda number=number: state(here, "M")["last_seq"] > (number - 1) * 20_000 + 1000)
            network.reset(back_way)
            wait("another connection", lambda number=number: links(server)[0]["connects"] > number)
        wait_last(here, "M", 60_000)
        whole = state(here, "M")
        assert (whole["messages"], whole["bytes"]) == (60_000, state(there, "O")["bytes"])


@pytest.mark.heavy
def test_a_link_on_which_nothing_comes_any_more_is_made_again(start_server: StartServer, network: Network) -> None:
    remote = start_server(of=Kind.REAL)
    (port,) = free_ports(1)
    there_way, back_way = network.direction(), network.direction()
    network.connect(port, remote.address, there_way, back_way)
    server = start_server(of=Kind.OURS, config=config(("127.0.0.1", port)))
    wait_link(server)
    with Wire(remote.address) as there, Wire(server.address) as here:
        create(there, "O", subjects=["o"])
        publish(there, "o", b"1")
        mirror(here, "M", "O")
        wait_last(here, "M", 1)
        network.cut(back_way)
        publish(there, "o", b"2")
        wait_link(server, up=False)
        assert "Stale Connection" in server.log()
        network.restore(back_way)
        wait_last(here, "M", 2)


def test_a_push_consumer_goes_on_when_this_server_is_back(start_server: StartServer) -> None:
    remote = start_server(of=Kind.REAL)
    server = fixed_port(start_server(of=Kind.OURS, config=config(remote.address)))
    wait_link(server)
    with Wire(remote.address) as there, Wire(server.address) as here:
        create(there, "O", subjects=["o"])
        here.api_prefix = "$JS.hub.API"
        body = {"durable_name": "p", "deliver_subject": "deliver.p", "ack_policy": "explicit"}
        assert "error" not in here.api("CONSUMER.DURABLE.CREATE.O.p", {"stream_name": "O", "config": body})
        server.kill()
        publish(there, "o", b"1")
    server.start()
    wait_link(server)
    with Wire(server.address) as here:
        here.api_prefix = "$JS.hub.API"
        sid = here.subscribe("deliver.p")
        assert here.api("CONSUMER.INFO.O.p")["config"]["deliver_subject"] == "deliver.p"
        first = here.delivered(sid)
        assert first.data == b"1"
        assert here.request(first.reply, b"+ACK").data == b""


def test_what_was_pulled_before_a_restart_reaches_nobody_else(start_server: StartServer) -> None:
    remote = start_server(of=Kind.REAL)
    server = fixed_port(start_server(of=Kind.OURS, config=config(remote.address)))
    wait_link(server)
    with Wire(remote.address) as there:
        for name in "AB":
            create(there, name, subjects=[name.lower()])
            body = {"stream_name": name, "config": {"durable_name": "d", "ack_policy": "explicit"}}
            assert "error" not in there.api(f"CONSUMER.DURABLE.CREATE.{name}.d", body)

        def pull(wire: Wire, name: str) -> str:
            inbox = wire.new_reply() + ".pull"
            sid = wire.subscribe(inbox)
            wire.publish(f"$JS.hub.API.CONSUMER.MSG.NEXT.{name}.d", b'{"batch":1,"expires":60000000000}', inbox)
            wait("a pull", lambda: there.api(f"CONSUMER.INFO.{name}.d")["num_waiting"] == 1)
            return sid

        with Wire(server.address) as before:
            pull(before, "A")
            server.kill()
        server.start()
        wait_link(server)
        with Wire(server.address) as after:
            sid = pull(after, "B")
            publish(there, "a", b"of A")
            publish(there, "b", b"of B")
            assert after.delivered(sid).data == b"of B"


def test_a_remote_of_a_remote_is_used_by_its_domain(start_server: StartServer) -> None:
    last = start_server(of=Kind.REAL)
    middle = start_server(of=Kind.OURS, config=config(last.address))
    server = start_server(of=Kind.OURS, config=config(middle.address, more="remote_domain: hub"))
    wait_link(middle)
    wait_link(server)
    with Wire(last.address) as there, Wire(server.address) as here:
        create(there, "O", subjects=["o"])
        create(there, "W", subjects=["w"], retention="workqueue")
        flood(there, "o", 20_000, 1000)
        mirror(here, "M", "O")
        mirror(here, "MW", "W")
        wait("a consumer", lambda: upstream(here, "MW")["active"] >= 0)
        flood(there, "w", 3000)
        wait_last(here, "M", 20_000)
        wait("the acks", lambda: state(there, "W")["messages"] == 0)
        body = {"stream_name": "O", "config": {"durable_name": "c", "ack_policy": "explicit"}}
        assert "error" not in here.request("$JS.hub.API.CONSUMER.DURABLE.CREATE.O.c", json.dumps(body).encode()).json()
        inbox = here.new_reply() + ".pull"
        sid = here.subscribe(inbox)
        here.publish("$JS.hub.API.CONSUMER.MSG.NEXT.O.c", b'{"batch":1,"expires":20000000000}', inbox)
        assert here.request(here.delivered(sid).reply, b"+ACK").data == b""
        assert there.api("CONSUMER.INFO.O.c")["ack_floor"]["stream_seq"] == 1


def test_domains_that_lead_back_to_each_other_end_a_request(start_server: StartServer) -> None:
    ports = free_ports(2)
    names = ("one", "two")
    servers = []
    for number in range(2):
        other = 1 - number
        theirs = f"url: 'nats://127.0.0.1:{ports[other]}', domain: {names[number]}, remote_domain: {names[other]}"
        text = f"lake: false\nhttp: 127.0.0.1:-1\nremote {{ {theirs} }}\n"
        servers.append(start_server(of=Kind.OURS, port=ports[number], config=text))
    for server in servers:
        wait_link(server)
    with Wire(servers[0].address) as wire:
        wire.publish("$JS.one.API.INFO")
        wire.api_prefix = "$JS.one.API"
        assert "request crossed more than 5 remotes" in wire.api("INFO")["error"]["description"]
    assert sum(links(server)[0]["out_msgs"] for server in servers) < 50


@pytest.mark.heavy
def test_who_sends_more_than_the_link_carries_is_slowed_down(start_server: StartServer, network: Network) -> None:
    remote = start_server(of=Kind.REAL)
    (port,) = free_ports(1)
    there_way, back_way = network.direction(), network.direction()
    network.connect(port, remote.address, there_way, back_way)
    server = start_server(of=Kind.OURS, config=config(("127.0.0.1", port)))
    wait_link(server)
    with Wire(remote.address) as there, Wire(server.address, timeout=SOON_S) as here:
        create(there, "KV_B", subjects=["$KV.B.>"], max_msgs_per_subject=1)
        network.slow(there_way, bytes_per_s=16e6)
        for _ in range(90):  # MiB: more than may be unsent
            here.publish("$JS.hub.API.$KV.B.k", b"x" * 1_000_000)
        assert here.request("$JS.hub.API.$KV.B.k", b"last").json()["seq"] == 91
        assert links(server)[0]["connects"] == 1


@pytest.mark.heavy
def test_a_full_line_is_no_dead_one(start_server: StartServer, network: Network) -> None:
    remote = start_server(of=Kind.REAL)
    (port,) = free_ports(1)
    there_way, back_way = network.direction(held=1), network.direction()
    network.connect(port, remote.address, there_way, back_way, window=1 << 14)
    server = start_server(of=Kind.OURS, config=config(("127.0.0.1", port)))
    wait_link(server)
    with Wire(remote.address) as there, Wire(server.address, timeout=SOON_S) as here:
        create(there, "KV_B", subjects=["$KV.B.>"])
        network.slow(there_way, bytes_per_s=300e3)
        for _ in range(7):  # a PING queues behind that for longer than two unanswered PINGs are allowed
            here.publish("$JS.hub.API.$KV.B.k", b"x" * 1_000_000)
        assert here.request("$JS.hub.API.$KV.B.k", b"last").json()["seq"] == 8
        assert links(server)[0]["connects"] == 1


def test_another_member_of_the_remote_cluster_takes_over(start_server: StartServer) -> None:
    routes = free_ports(2)
    members = [
        start_server(
            of=Kind.REAL,
            jetstream=False,
            name=f"r{number}",
            config=f"cluster {{ name: R, listen: '127.0.0.1:{routes[number]}', "
            f"routes: ['nats-route://127.0.0.1:{routes[1 - number]}'] }}",
        )
        for number in range(2)
    ]
    with Wire(members[0].address) as first:
        wait("the other member", lambda: any(str(members[1].port) in str(info) for info in first.told()))
    server = start_server(of=Kind.OURS, config=config(members[0].address))
    assert wait_link(server)["server_name"] == "r0"
    members[0].kill()
    wait("the other member", lambda: links(server)[0].get("server_name") == "r1")


def test_remotes_come_and_go_with_a_reload(start_server: StartServer) -> None:
    remote = start_server(of=Kind.REAL)
    server = start_server(of=Kind.OURS, config="lake: false\nhttp: 127.0.0.1:-1\n")
    with Wire(remote.address) as there, Wire(server.address) as here:
        create(there, "O", subjects=["o"])
        publish(there, "o", b"1")
        mirror(here, "M", "O")
        server.write_config(config(remote.address))
        server.process.send_signal(signal.SIGHUP)
        wait_last(here, "M", 1)
        server.write_config("lake: false\nhttp: 127.0.0.1:-1\n")
        server.process.send_signal(signal.SIGHUP)
        wait("the end of the link", lambda: links(server) == [])
        publish(there, "o", b"2")
        wait("silence", lambda: upstream(here, "M")["active"] > 4_000_000_000)
        assert state(here, "M")["last_seq"] == 1
