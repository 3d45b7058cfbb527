"""Tests of another NATS server as a domain: mirrors and sources of its streams, and clients of its JetStream.

The remote is nats-server, or another lakestream.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conformance.remotes import (
    BOTH,
    EXTERNAL,
    config,
    create,
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
from tests.wire import Frame, Wire

pytestmark = pytest.mark.conformance


class Two(NamedTuple):
    """Server and its remote, with a connection to each; `hub` uses the remote's API from here."""

    here: Wire
    there: Wire
    hub: Wire
    server: Server
    remote: Server


@pytest.fixture(scope="module", params=BOTH, ids=lambda kind: kind.value)
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Server]]:
    directory: Path = tmp_path_factory.mktemp("remote")
    remote = Server(request.param, directory / "there", name="there")
    server = Server(Kind.OURS, directory / "here", name="here")
    try:
        remote.start()
        server.config = config(remote.address)
        server.start()
        wait_link(server)
        yield server, remote
    finally:
        server.kill()
        remote.kill()


@pytest.fixture
def two(servers: tuple[Server, Server]) -> Iterator[Two]:
    server, remote = servers
    with Wire(server.address) as here, Wire(remote.address) as there, Wire(server.address) as hub:
        hub.api_prefix = "$JS.hub.API"
        yield Two(here, there, hub, server, remote)
        for wire in (here, there):
            for name in wire.api("STREAM.NAMES").get("streams") or ():
                wire.api(f"STREAM.DELETE.{name}")


def consumer(wire: Wire, stream: str, name: str, **fields: Any) -> dict[str, Any]:
    body = {"stream_name": stream, "config": {"name": name, "durable_name": name, **fields}}
    answer: dict[str, Any] = wire.api(f"CONSUMER.CREATE.{stream}.{name}", body)
    assert "error" not in answer, answer
    return answer


def pull(wire: Wire, stream: str, name: str, batch: int) -> list[Frame]:
    """Return messages of a pull consumer, received at an inbox of their own."""
    inbox = wire.new_reply() + ".pull"
    sid = wire.subscribe(inbox)
    wire.publish(
        f"{wire.api_prefix}.CONSUMER.MSG.NEXT.{stream}.{name}", b'{"batch":%d,"expires":9000000000}' % batch, inbox
    )
    found = [wire.delivered(sid) for _ in range(batch)]
    wire.unsubscribe(sid)
    return found


# ---------------------------------------------------------------------- mirrors and sources


def test_a_mirror_has_the_origins_sequences_times_headers_and_gaps(two: Two) -> None:
    create(two.there, "O", subjects=["o.>"])
    publish(two.there, "o.a", b"1", b"", b"\x00\xff\r\n")
    publish(two.there, "o.b", b"4", headers={"A": "b", "Nats-Msg-Id": "m4", "Nats-Expected-Last-Sequence": "3"})
    publish(two.there, "o.c", b"5", b"6")
    two.there.api("STREAM.MSG.DELETE.O", {"seq": 5})
    origin = messages(two.there, "O")
    mirror(two.here, "M", "O")
    wait_last(two.here, "M", 6)
    copied = messages(two.here, "M")
    assert [one for one in copied if one[0] != 4] == [one for one in origin if one[0] != 4]
    assert copied[3][:3] == origin[3][:3]
    assert copied[3][3] == b"NATS/1.0\r\nA: b\r\nNats-Msg-Id: m4\r\n\r\n"
    publish(two.there, "o.d", b"7")
    wait_last(two.here, "M", 7)
    assert messages(two.here, "M")[-1] == messages(two.there, "O")[-1]
    told = upstream(two.here, "M")
    assert told["lag"] == 0
    assert 0 <= told["active"] < 60_000_000_000
    assert "error" not in told


def test_a_mirror_follows_many_messages(two: Two) -> None:
    create(two.there, "O", subjects=["o"])
    flood(two.there, "o", 20_000)
    mirror(two.here, "M", "O")
    flood(two.there, "o", 20_000)
    wait_last(two.here, "M", 40_000)
    assert state(two.here, "M")["messages"] == 40_000
    assert state(two.here, "M")["bytes"] == state(two.there, "O")["bytes"]
    for seq in (1, 17, 20_001, 40_000):
        assert (
            two.here.api("STREAM.MSG.GET.M", {"seq": seq})["message"]
            == two.there.api("STREAM.MSG.GET.O", {"seq": seq})["message"]
        )


def test_a_source_renames_and_tells_where_its_messages_are_from(two: Two) -> None:
    create(two.there, "O", subjects=["o.>"])
    publish(two.there, "o.a", b"1", b"2")
    publish(two.there, "o.b", b"3")
    create(two.here, "S", subjects=["s"], sources=[
        {"name": "O", "external": EXTERNAL, "subject_transforms": [{"src": "o.a", "dest": "from.a"}]},
    ])  # fmt: skip
    publish(two.here, "s", b"own")
    wait("two messages of the origin", lambda: state(two.here, "S").get("messages") == 3)
    sourced = [one for one in messages(two.here, "S") if one[1] == "from.a"]
    assert [one[4] for one in sourced] == [b"1", b"2"]
    assert b"Nats-Stream-Source: O:" in sourced[0][3]
    assert b" 1 o.a from.a o.a " in sourced[0][3]
    assert upstream(two.here, "S")["seq"] == 2


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_what_is_stored_here_is_acked_there(two: Two, retention: str) -> None:
    create(two.there, "W", subjects=["w"], retention=retention)
    mirror(two.here, "M", "W")
    wait("a consumer", lambda: upstream(two.here, "M")["active"] >= 0)
    flood(two.there, "w", 3000)
    wait_last(two.here, "M", 3000)
    wait("the acks of all", lambda: state(two.there, "W").get("messages") == 0)
    assert state(two.here, "M")["messages"] == 3000


def test_a_prepared_consumer_is_read_from(two: Two) -> None:
    create(two.there, "O", subjects=["o.>"])
    publish(two.there, "o.a", b"1", b"2")
    publish(two.there, "o.b", b"3")
    fields = {"deliver_subject": "push.here", "ack_policy": "flow_control", "flow_control": True}
    fields |= {"idle_heartbeat": 1_000_000_000, "filter_subject": "o.a", "max_ack_pending": 100}
    consumer(two.there, "O", "ready", **fields)
    mirror(two.here, "M", "O", consumer={"name": "ready", "deliver_subject": "push.here"})
    wait_last(two.here, "M", 2)
    publish(two.there, "o.a", b"4")
    wait_last(two.here, "M", 4)
    assert [one[4] for one in messages(two.here, "M")] == [b"1", b"2", b"4"]


def test_a_removed_mirror_leaves_no_consumer_there(two: Two) -> None:
    create(two.there, "W", subjects=["w"], retention="interest")
    mirror(two.here, "M", "W")
    wait("a consumer", lambda: state(two.there, "W")["consumer_count"] == 1)
    two.here.api("STREAM.DELETE.M")
    wait("its removal", lambda: state(two.there, "W")["consumer_count"] == 0)


def test_a_mirror_is_promoted_and_goes_on_by_itself(two: Two) -> None:
    create(two.there, "O", subjects=["o"])
    publish(two.there, "o", b"1", b"2")
    mirror(two.here, "O", "O")
    wait_last(two.here, "O", 2)
    answer = two.here.api("STREAM.UPDATE.O", {"name": "O", "subjects": ["o"]})
    assert "error" not in answer, answer
    publish(two.here, "o", b"3")
    publish(two.there, "o", b"never")
    assert [one[4] for one in messages(two.here, "O")] == [b"1", b"2", b"3"]


# ---------------------------------------------------------------------- clients


def test_streams_are_made_and_read_through_the_domain(two: Two) -> None:
    create(two.hub, "O", subjects=["o.>"], allow_direct=True)
    assert two.there.api("STREAM.NAMES")["streams"] == ["O"]
    publish(two.there, "o.a", b"1", headers={"A": "b"})
    direct = two.hub.request("$JS.hub.API.DIRECT.GET.O.o.a")
    assert direct.data == b"1"
    assert direct.headers["A"] == "b"
    assert two.hub.api("STREAM.MSG.GET.O", {"seq": 1}) == two.there.api("STREAM.MSG.GET.O", {"seq": 1})
    assert two.hub.api("STREAM.INFO.NONE")["error"]["err_code"] == 10059
    assert two.here.api("STREAM.INFO.O")["error"]["err_code"] == 10059


def test_a_pull_consumer_is_read_and_acked_through_the_domain(two: Two) -> None:
    create(two.there, "O", subjects=["o.>"])
    publish(two.there, "o.a", *(b"%d" % number for number in range(6)))
    consumer(two.hub, "O", "c", ack_policy="explicit")
    came = pull(two.hub, "O", "c", 4)
    assert [(one.subject, one.data) for one in came] == [("o.a", b"%d" % number) for number in range(4)]
    assert two.hub.request(came[0].reply, b"+ACK").data == b""
    two.hub.publish(came[1].reply, b"-NAK")
    assert two.hub.request(came[2].reply, b"+TERM").data == b""
    again = pull(two.hub, "O", "c", 1)
    assert again[0].data == b"1"
    two.hub.publish(again[0].reply)
    reply = two.hub.new_reply() + ".next"
    sid = two.hub.subscribe(reply)
    two.hub.publish(came[3].reply, b"+NXT", reply)
    assert two.hub.delivered(sid).data == b"4"
    info = wait(
        "the acks", lambda: (told := two.there.api("CONSUMER.INFO.O.c"))["ack_floor"]["stream_seq"] == 4 and told
    )
    assert info["num_ack_pending"] == 1


def test_an_ack_for_the_remote_is_none_for_a_consumer_of_that_name_here(two: Two) -> None:
    for wire in (two.there, two.here):
        create(wire, "O", subjects=["o"])
        publish(wire, "o", b"1", b"2")
        consumer(wire, "O", "c", ack_policy="explicit")
    assert [one.data for one in pull(two.here, "O", "c", 2)] == [b"1", b"2"]
    came = pull(two.hub, "O", "c", 2)
    for one in came:
        assert two.hub.request(one.reply, b"+ACK").data == b""
    assert two.there.api("CONSUMER.INFO.O.c")["num_ack_pending"] == 0
    assert two.here.api("CONSUMER.INFO.O.c")["num_ack_pending"] == 2


def test_a_push_consumer_delivers_here_while_somebody_listens(two: Two) -> None:
    create(two.there, "O", subjects=["o.>"])
    made = consumer(two.hub, "O", "p", deliver_subject="deliver.here", ack_policy="explicit")
    assert made["config"]["deliver_subject"] == "deliver.here"
    publish(two.there, "o.a", b"1")
    assert not two.there.api("CONSUMER.INFO.O.p").get("push_bound")
    sid = two.hub.subscribe("deliver.here")
    first = two.hub.delivered(sid)
    assert (first.subject, first.data) == ("o.a", b"1")
    assert two.hub.request(first.reply, b"+ACK").data == b""
    two.hub.unsubscribe(sid)
    wait("its rest", lambda: not two.there.api("CONSUMER.INFO.O.p").get("push_bound"))
    publish(two.there, "o.b", b"2")
    sid = two.hub.subscribe("deliver.here")
    assert two.hub.delivered(sid).data == b"2"


def test_a_push_consumer_with_a_queue_group_delivers_each_message_once(two: Two) -> None:
    create(two.there, "O", subjects=["o"])
    sids = [two.hub.subscribe("deliver.group", "workers") for _ in range(2)]
    two.hub.ping()
    consumer(two.hub, "O", "g", deliver_subject="deliver.group", deliver_group="workers", ack_policy="none")
    publish(two.there, "o", *(b"%d" % number for number in range(20)))
    came = [two.hub.next(lambda frame: frame.sid in sids) for _ in range(20)]
    assert sorted(int(one.data) for one in came) == list(range(20))


def test_unacked_deliveries_keep_the_reply_that_every_client_reads(two: Two) -> None:
    create(two.there, "O", subjects=["o"])
    publish(two.there, "o", b"1")
    sid = two.hub.subscribe("deliver.ordered")
    body = {
        "stream_name": "O",
        "config": {"deliver_subject": "deliver.ordered", "ack_policy": "none", "mem_storage": True},
    }
    assert "error" not in two.hub.api("CONSUMER.CREATE.O", body)
    assert two.hub.delivered(sid).reply.startswith("$JS.ACK.O.")


def test_buckets_are_used_through_the_domain(two: Two) -> None:
    create(two.hub, "KV_B", subjects=["$KV.B.>"], max_msgs_per_subject=5, allow_direct=True, discard="new")
    assert two.hub.request("$JS.hub.API.$KV.B.key", b"value").json()["seq"] == 1
    assert two.hub.request("$JS.hub.API.DIRECT.GET.KV_B.$KV.B.key").data == b"value"
    assert state(two.there, "KV_B")["messages"] == 1


def test_a_backup_is_made_and_restored_through_the_domain(two: Two) -> None:
    create(two.there, "O", subjects=["o"])
    noise = random.Random(7)
    publish(two.there, "o", *(noise.randbytes(10_000) for _ in range(100)))
    sid = two.hub.subscribe("chunks.here")
    made = two.hub.api("STREAM.SNAPSHOT.O", {"deliver_subject": "chunks.here", "chunk_size": 32_768})
    assert "error" not in made, made
    chunks = []
    while (chunk := two.hub.delivered(sid)).data:
        chunks.append(chunk.data)
        if chunk.reply:
            two.hub.publish(chunk.reply)
    assert len(chunks) > 20
    before = messages(two.there, "O")
    two.there.api("STREAM.DELETE.O")
    begun = two.hub.api("STREAM.RESTORE.O", {"config": made["config"], "state": made["state"]})
    assert begun["deliver_subject"].startswith("$JS.hub.SNAPSHOT."), begun
    for data in chunks:
        assert "error" not in (two.hub.request(begun["deliver_subject"], data).data or b"{}").decode()
    restored = two.hub.request(begun["deliver_subject"]).json()
    assert "error" not in restored, restored
    assert messages(two.there, "O") == before


def test_a_request_larger_than_the_remote_takes_is_refused(start_server: StartServer) -> None:
    small = start_server(of=Kind.REAL, config="max_payload: 1000")
    server = start_server(of=Kind.OURS, config=config(small.address))
    wait_link(server)
    with Wire(server.address) as hub:
        assert hub.request("$JS.hub.API.$KV.B.k", b"x" * 1001).json()["error"]["err_code"] == 10054
        hub.api_prefix = "$JS.hub.API"
        assert hub.api("INFO")["streams"] == 0  # the link is unchanged


# ---------------------------------------------------------------------- refused operations


def test_a_request_makes_the_link_listen_to_nothing_else(two: Two) -> None:
    create(two.there, "O", subjects=["o"])
    sid = two.here.subscribe(">")
    body = {"stream_name": "O", "config": {"deliver_subject": "foo 9\nPUB o 2\n", "deliver_group": "g\nPUB o 2\n"}}
    for subject in ("CONSUMER.CREATE.O", "CONSUMER.RESET.O.c", "STREAM.SNAPSHOT.O"):
        for header in ({"Lakestream-Deliver": "secret.>"}, {"Lakestream-Deliver": "foo 9\nPUB o 2\n"}, None):
            two.hub.publish(f"$JS.hub.API.{subject}", json.dumps(body).encode(), two.hub.new_reply(), header)
    for _ in range(2):  # a reset first requests the consumer
        two.hub.api("INFO")
    two.there.publish("secret.plan", b"secret")
    two.there.ping()
    two.hub.api("INFO")  # a fence through the link
    two.here.ping()
    assert not [frame for frame in two.here.waiting if frame.sid == sid and frame.subject.startswith("secret")]
    assert state(two.there, "O")["messages"] == 0
    assert links(two.server)[0]["connects"] == 1


def test_asking_for_a_consumer_of_others_takes_nothing_from_it(two: Two) -> None:
    for wire in (two.there, two.here):
        create(wire, "W", subjects=["w"])
        consumer(wire, "W", "workers", deliver_subject="work.deliver", deliver_group="g", ack_policy="explicit")
    sid, ours = two.there.subscribe("work.deliver", "g"), two.here.subscribe("work.deliver", "g")
    two.here.ping()
    assert two.hub.api("CONSUMER.INFO.W.workers")["config"]["deliver_subject"] == "work.deliver"
    publish(two.there, "w", *(b"%d" % number for number in range(20)))
    assert [two.there.delivered(sid).data for _ in range(20)] == [b"%d" % number for number in range(20)]
    two.hub.api("INFO")
    two.here.ping()
    assert not [frame for frame in two.here.waiting if frame.sid == ours]


def test_resetting_a_consumer_of_others_takes_nothing_from_it(two: Two) -> None:
    create(two.there, "W", subjects=["w"])
    consumer(two.there, "W", "workers", deliver_subject="work.reset", deliver_group="g", ack_policy="explicit")
    sid, ours = two.there.subscribe("work.reset", "g"), two.here.subscribe("work.reset", "g")
    two.here.ping()
    assert "error" not in two.hub.api("CONSUMER.RESET.W.workers")
    publish(two.there, "w", *(b"%d" % number for number in range(20)))
    assert [two.there.delivered(sid).data for _ in range(20)] == [b"%d" % number for number in range(20)]
    two.hub.api("INFO")
    two.here.ping()
    assert not [frame for frame in two.here.waiting if frame.sid == ours]


def test_what_is_pulled_for_somebody_who_left_stays_there(two: Two) -> None:
    create(two.there, "O", subjects=["o"])
    consumer(two.hub, "O", "c", ack_policy="explicit")
    before = links(two.server)[0]["subscriptions"]
    with Wire(two.server.address) as leaving:
        reply = leaving.new_reply()  # below a wildcard subscription
        leaving.publish("$JS.hub.API.CONSUMER.MSG.NEXT.O.c", b'{"batch":1,"expires":600000000000}', reply)
        wait("a pull", lambda: two.there.api("CONSUMER.INFO.O.c")["num_waiting"] == 1)
    wait("its end", lambda: links(two.server)[0]["subscriptions"] == before)
    publish(two.there, "o", b"1")
    assert two.there.api("CONSUMER.INFO.O.c")["num_ack_pending"] == 0
    assert pull(two.hub, "O", "c", 1)[0].data == b"1"


def test_long_subjects_do_not_end_the_link(two: Two) -> None:
    create(two.there, "O", subjects=["o"])
    connects = links(two.server)[0]["connects"]
    two.hub.publish("$JS.hub.API.INFO", b"", "r." + "a" * 4050)
    body = {"stream_name": "O", "config": {"deliver_subject": "d." + "a" * 4090, "ack_policy": "none"}}
    assert two.hub.api("CONSUMER.CREATE.O", body)["error"]["err_code"] == 10003
    assert "error" not in two.hub.api("INFO")
    assert links(two.server)[0]["connects"] == connects


def test_monitoring_shows_the_link(two: Two) -> None:
    link = links(two.server)[0]
    assert link["domain"] == "hub"
    assert link["connected"] is True
    assert link["url"] == f"nats://127.0.0.1:{two.remote.port}"
    assert link["server_name"] == "there"
    assert link["version"]
    assert "error" not in link
