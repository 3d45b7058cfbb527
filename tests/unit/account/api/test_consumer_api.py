"""Tests of the consumer API: requests, refusals and replies."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.consumer_world import SECOND, World

pytestmark = pytest.mark.unit


@pytest.fixture
def world() -> World:
    world = World()
    world.stream()
    return world


def create(world: World, name: str = "c", stream: str = "S", **config: Any) -> dict[str, Any]:
    return world.ask(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": {"name": name, **config}})


def test_a_reply_shows_the_whole_consumer_in_order(world: World) -> None:
    world.store("s.a")
    body = {
        "stream_name": "S",
        "config": {"durable_name": "c", "ack_policy": "explicit", "metadata": {"b": "1", "a": "<"}},
    }
    text = world.request("$JS.API.CONSUMER.CREATE.S.c", __import__("json").dumps(body).encode()).data
    assert text == (
        b'{"type":"io.nats.jetstream.api.v1.consumer_create_response","stream_name":"S","name":"c",'
        b'"created":"2023-11-14T22:13:20Z","config":{"durable_name":"c","name":"c","deliver_policy":"all",'
        b'"ack_policy":"explicit","ack_wait":30000000000,"max_deliver":-1,"replay_policy":"instant","max_waiting":512,'
        b'"max_ack_pending":1000,"num_replicas":0,"metadata":{"_nats.level":"5","_nats.req.level":"0",'
        b'"_nats.ver":"2.15.1","a":"\\u003c","b":"1"}},"delivered":{"consumer_seq":0,"stream_seq":0},'
        b'"ack_floor":{"consumer_seq":0,"stream_seq":0},"num_ack_pending":0,"num_redelivered":0,"num_waiting":0,'
        b'"num_pending":1,"ts":"2023-11-14T22:13:20Z"}'
    )


@pytest.mark.parametrize(
    ("subject", "body", "code"),
    [
        ("CREATE.S", {"stream_name": "X", "config": {}}, 10056),
        ("CREATE.S", {"stream_name": "S", "config": {"durable_name": "d"}}, 10020),
        ("CREATE.S", {"stream_name": "S", "config": {"name": "a.b"}}, 10052),
        ("CREATE.S", {"stream_name": "S", "config": {"name": "a/b"}}, 10127),
        ("CREATE.S", {"stream_name": "S", "config": {"name": "x" * 256}}, 10012),
        ("CREATE.S.q", {"stream_name": "S", "config": {"durable_name": "r"}}, 10017),
        ("CREATE.S.q.s.a", {"stream_name": "S", "config": {"name": "q"}}, 10131),
        ("CREATE.S.q.s.a", {"stream_name": "S", "config": {"filter_subjects": ["s.a"]}}, 10137),
        ("CREATE.S.q", {"stream_name": "S", "action": "update", "config": {"name": "q"}}, 10149),
        ("CREATE.S.q", {"stream_name": "S", "action": "x", "config": {"name": "q"}}, 10025),
        ("CREATE.N.q", {"stream_name": "N", "config": {"name": "q"}}, 10059),
        ("DURABLE.CREATE.S.d", {"stream_name": "S", "config": {}}, 10018),
        ("DURABLE.CREATE.S.d", {"stream_name": "S", "config": {"durable_name": "e"}}, 10017),
        ("INFO.S.none", None, 10014),
        ("INFO.N.c", None, 10059),
        ("INFO.S.c", {"a": 1}, 10038),
        ("DELETE.S.none", None, 10014),
        ("PAUSE.S.none", {}, 10014),
        ("UNPIN.S.none", {"group": "a"}, 10014),
        ("LEADER.STEPDOWN.S.c", None, 10010),
        ("NAMES.N", None, 10059),
    ],
)
def test_refusals_of_requests(world: World, subject: str, body: Any, code: int) -> None:
    assert world.ask(f"CONSUMER.{subject}", body)["error"]["err_code"] == code


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"deliver_policy": "by_start_sequence"}, 10094),
        ({"deliver_policy": "by_start_time"}, 10094),
        ({"deliver_policy": "new", "opt_start_seq": 1}, 10094),
        ({"deliver_policy": "last_per_subject"}, 10094),
        ({"ack_wait": -1}, 10183),
        ({"backoff": [-1]}, 10184),
        ({"backoff": [1, 1], "max_deliver": 1}, 10116),
        ({"filter_subject": "a..b"}, 10052),
        ({"filter_subject": "s.a", "filter_subjects": ["s.b"]}, 10136),
        ({"filter_subjects": ["s.a", "s.*"]}, 10138),
        ({"filter_subjects": ["s.a", ""]}, 10139),
        ({"rate_limit_bps": 5}, 10086),
        ({"sample_freq": "x"}, 10095),
        ({"deliver_subject": "x", "max_waiting": 5}, 10080),
        ({"deliver_subject": "x", "max_ack_pending": 5}, 10082),
        ({"deliver_subject": "x", "idle_heartbeat": 1}, 10083),
        ({"deliver_subject": "x.*"}, 10079),
        ({"deliver_subject": "x..y"}, 10112),
        ({"deliver_subject": "s.a"}, 10081),
        ({"deliver_subject": "x", "flow_control": True}, 10108),
        ({"flow_control": True}, 10089),
        ({"idle_heartbeat": 1}, 10088),
        ({"max_expires": 5}, 10115),
        ({"num_replicas": 3}, 10074),
        ({"num_replicas": -1}, 10133),
        ({"direct": True}, 10090),
        ({"metadata": {"a": "x" * (128 << 10)}}, 10135),
        ({"description": "x" * 4097}, 10107),
        ({"priority_policy": "overflow"}, 10159),
        ({"priority_groups": ["a"]}, 10196),
        ({"priority_timeout": 5}, 10197),
        ({"deliver_subject": "x", "priority_policy": "overflow", "priority_groups": ["a"]}, 10178),
        ({"ack_policy": "flow_control"}, 10218),
        ({"ack_policy": "maybe"}, 10025),
    ],
)
def test_refusals_of_configurations(world: World, config: dict[str, Any], code: int) -> None:
    assert create(world, **config)["error"]["err_code"] == code
    assert world.engine.streams["S"].consumers == {}


def test_limits_of_the_server(world: World) -> None:
    world = World(max_ack_pending=50, max_request_batch=10, default_max_consumers=1)
    world.stream()
    assert create(world, ack_policy="explicit", max_ack_pending=51)["error"]["err_code"] == 10121
    assert create(world, max_batch=11)["error"]["err_code"] == 10125
    shown = create(world, ack_policy="explicit")["config"]
    assert (shown["max_ack_pending"], shown["max_batch"]) == (50, 10)
    assert create(world, "d")["error"]["err_code"] == 10026


def test_limits_of_the_stream(world: World) -> None:
    world.stream("L", max_consumers=1, consumer_limits={"inactive_threshold": SECOND, "max_ack_pending": 7})
    assert create(world, stream="L", inactive_threshold=2 * SECOND)["error"]["description"] == (
        "consumer inactive threshold exceeds system limit of 1s"
    )
    assert create(world, stream="L", ack_policy="explicit", max_ack_pending=8)["error"]["err_code"] == 10121
    shown = create(world, stream="L", ack_policy="explicit")["config"]
    assert (shown["max_ack_pending"], shown["inactive_threshold"]) == (7, SECOND)
    assert create(world, "d", stream="L")["error"]["err_code"] == 10026


def test_unnamed_consumers_get_names_of_eight_characters(world: World) -> None:
    answers = [world.ask("CONSUMER.CREATE.S", {"stream_name": "S", "config": {}}) for _ in range(3)]
    names = [answer["name"] for answer in answers]
    assert {len(name) for name in names} == {8}
    assert len(set(names)) == 3
    assert "name" not in answers[0]["config"]
    assert world.ask("CONSUMER.NAMES.S")["consumers"] == sorted(names)


def test_actions(world: World) -> None:
    def act(action: str, **config: Any) -> dict[str, Any]:
        body = {"stream_name": "S", "action": action, "config": {"durable_name": "c", **config}}
        return world.ask("CONSUMER.CREATE.S.c", body)

    assert act("update")["error"]["err_code"] == 10149
    created = act("create")["created"]
    assert act("create")["created"] == created
    assert act("create", description="x")["error"]["err_code"] == 10148
    assert act("update", description="x")["config"]["description"] == "x"
    assert act("")["config"].get("description") is None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"deliver_policy": "new"}, "deliver policy can not be updated"),
        ({"ack_policy": "all"}, "ack policy can not be updated"),
        ({"replay_policy": "original"}, "replay policy can not be updated"),
        ({"max_waiting": 7}, "max waiting can not be updated"),
        ({"mem_storage": True}, "storage type can not be updated"),
        ({"deliver_subject": "x"}, "can not update pull consumer to push based"),
    ],
)
def test_what_can_not_be_updated(world: World, change: dict[str, Any], text: str) -> None:
    world.consumer()
    fields = {"durable_name": "c", "ack_policy": "explicit", **change}
    assert create(world, **fields)["error"] == {"code": 500, "err_code": 10012, "description": text}


def test_a_changed_filter_counts_again_from_the_same_position(world: World) -> None:
    world.store("s.a", "s.b", "s.a", "s.b")
    world.consumer()
    world.pull(1)
    world.consumer(filter_subject="s.b")
    assert world.numbers() == ((1, 1), (0, 0), 1, 0, 2)
    assert [message.seq for message in world.pull(5)] == [2, 4]


def test_a_changed_cap_lets_deliveries_go_on(world: World) -> None:
    world.store("s.a", "s.b")
    world.consumer(max_ack_pending=1)
    assert len(world.pull(2)) == 1
    world.consumer(max_ack_pending=5)
    assert [message.seq for message in world.client.taken()] == [2]


@pytest.mark.parametrize(
    ("config", "first", "pending"),
    [
        ({}, 3, 6),
        ({"deliver_policy": "last"}, 8, 1),
        ({"deliver_policy": "last", "filter_subject": "s.a"}, 7, 1),
        ({"deliver_policy": "new"}, 9, 0),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 5}, 5, 4),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 1}, 3, 6),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 20}, 20, 0),
        ({"deliver_policy": "by_start_time", "opt_start_time": "2040-01-01T00:00:00Z"}, 9, 0),
        ({"deliver_policy": "by_start_time", "opt_start_time": "2020-01-01T00:00:00Z"}, 3, 6),
        ({"deliver_policy": "last_per_subject", "filter_subject": "s.*"}, 7, 2),
    ],
)
def test_where_a_consumer_begins(world: World, config: dict[str, Any], first: int, pending: int) -> None:
    world.store(*["s.a", "s.b"] * 4)
    world.ask("STREAM.PURGE.S", {"seq": 3})
    world.consumer(**config)
    assert world.numbers() == ((0, first - 1), (0, first - 1), 0, 0, pending)
    got = [message.seq for message in world.pull(50)]
    assert len(got) == pending
    assert got[:1] == ([first] if pending else [])
    if first <= 9:
        world.store("s.a")
        assert [message.seq for message in world.client.taken()] == [9]


def test_pages(world: World) -> None:
    for name in ("b", "a", "c"):
        world.consumer(name)
    answer = world.ask("CONSUMER.NAMES.S", {"offset": 1})
    assert (answer["total"], answer["offset"], answer["limit"], answer["consumers"]) == (3, 1, 1024, ["b", "c"])
    answer = world.ask("CONSUMER.LIST.S", {"offset": 99})
    assert (answer["total"], answer["offset"], answer["limit"], answer["consumers"]) == (3, 3, 256, [])
    listed = world.ask("CONSUMER.LIST.S")["consumers"][0]
    assert listed["config"]["metadata"] == {"_nats.req.level": "0"}


def test_reset(world: World) -> None:
    world.store(*["s.a"] * 6)
    world.consumer()
    world.ack(world.pull(4)[0])
    answer = world.ask("CONSUMER.RESET.S.c", {"seq": 3})
    assert answer["reset_seq"] == 3
    assert world.numbers() == ((0, 2), (0, 2), 0, 0, 4)
    assert [message.numbers[:3] for message in world.pull(2)] == [(1, 3, 1), (1, 4, 2)]
    assert world.ask("CONSUMER.RESET.S.c")["reset_seq"] == 3
    world.clock.advance(60 * SECOND)
    assert [message.seq for message in world.pull(9)] == [3, 4, 5, 6]
    world.consumer("new", deliver_policy="new")
    assert world.ask("CONSUMER.RESET.S.new", {"seq": 1})["error"]["description"] == "invalid reset: not allowed"
    world.consumer("by", deliver_policy="by_start_sequence", opt_start_seq=4)
    assert world.ask("CONSUMER.RESET.S.by", {"seq": 3})["error"]["description"] == "invalid reset: below start seq"


def test_pause_answers_and_levels(world: World) -> None:
    world.consumer()
    answer = world.ask("CONSUMER.PAUSE.S.c", {"pause_until": "2040-01-01T00:00:00Z"})
    assert (answer["paused"], answer["pause_until"]) == (True, "2040-01-01T00:00:00Z")
    assert world.info()["config"]["metadata"]["_nats.req.level"] == "1"
    world.store("s.a")
    assert world.pull(1, expires=SECOND) == []
    world.clock.advance(SECOND)
    assert [message.status for message in world.client.taken()] == ["408 Request Timeout"]
    world.consumer(description="changed")
    assert world.info()["paused"] is True
    answer = world.ask("CONSUMER.PAUSE.S.c")
    assert (answer["paused"], answer["pause_until"]) == (False, "0001-01-01T00:00:00Z")
    assert [message.seq for message in world.pull(1)] == [1]


def test_requests_of_one_turn_see_each_other(world: World) -> None:
    body = b'{"stream_name":"S","action":"create","config":{"durable_name":"c"}}'
    replies = [world.inbox() for _ in range(4)]
    world.publish("$JS.API.CONSUMER.CREATE.S.c", body, replies[0])
    world.publish("$JS.API.CONSUMER.DELETE.S.c", b"", replies[1])
    world.publish("$JS.API.CONSUMER.DELETE.S.c", b"", replies[2])
    world.publish("$JS.API.CONSUMER.CREATE.S.c", body, replies[3])
    got = {message.subject: message.data for message in world.client.taken()}
    assert b'"name":"c"' in got[replies[0]]
    assert b'"success":true' in got[replies[1]]
    assert b"10014" in got[replies[2]]
    assert b'"name":"c"' in got[replies[3]]


def test_work_queues_take_one_consumer_for_a_message(world: World) -> None:
    world.stream("Q", retention="workqueue")
    assert create(world, stream="Q")["error"]["err_code"] == 10084
    assert create(world, stream="Q", deliver_subject="x")["error"]["err_code"] == 10098
    assert create(world, stream="Q", ack_policy="explicit", deliver_policy="new")["error"]["err_code"] == 10101
    assert "error" not in create(world, stream="Q", ack_policy="explicit", filter_subject="q.a")
    assert create(world, "d", stream="Q", ack_policy="explicit")["error"]["err_code"] == 10099
    assert create(world, "d", stream="Q", ack_policy="explicit", filter_subject="q.*")["error"]["err_code"] == 10100
    assert "error" not in create(world, "d", stream="Q", ack_policy="explicit", filter_subject="q.b")
