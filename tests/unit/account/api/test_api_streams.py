"""Tests of streams through the API, with the answers of nats-server 2.15.1 to the same requests."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from lakestream.log.format.errors import LogError
from lakestream.meta.keeping import SoloKeeping
from lakestream.meta.recovery import RecoveredLog
from lakestream.stream.core.proposer import BufferLimits
from tests.unit.api_world import ApiWorld, timeless

pytestmark = pytest.mark.unit

CONFIG = (
    b'"subjects":["A"],"retention":"limits","max_consumers":-1,"max_msgs":-1,"max_bytes":-1,"max_age":0,'
    b'"max_msgs_per_subject":-1,"max_msg_size":-1,"discard":"old","storage":"file","num_replicas":1,'
    b'"duplicate_window":120000000000,"compression":"none","allow_direct":false,"mirror_direct":false,"sealed":false,'
    b'"deny_delete":false,"deny_purge":false,"allow_rollup_hdrs":false,"consumer_limits":{},"allow_msg_ttl":false,'
)
ANSWERED = b'"metadata":{"_nats.level":"5","_nats.req.level":"0","_nats.ver":"2.15.1"}}'
LISTED = b'"metadata":{"_nats.req.level":"0"}}'
FRESH = (
    b'"created":"T","state":{"messages":0,"bytes":0,"first_seq":0,"first_ts":"0001-01-01T00:00:00Z","last_seq":0,'
    b'"last_ts":"0001-01-01T00:00:00Z","consumer_count":0}'
)


@pytest.fixture
def world() -> ApiWorld:
    return ApiWorld()


# ---------------------------------------------------------------------------------------------------- whole replies
def test_create_answers_the_stream_as_it_is(world: ApiWorld) -> None:
    expected = (
        b'{"type":"io.nats.jetstream.api.v1.stream_create_response","config":{"name":"A",%b%b,%b,"ts":"T","did_create":true}'
        % (CONFIG, ANSWERED, FRESH)
    )
    assert timeless(world.raw("STREAM.CREATE.A", {"name": "A"})) == expected
    assert timeless(world.raw("STREAM.CREATE.A", {"name": "A"})) == expected  # an identical request is no error


def test_info_shows_page_leader_and_versions(world: ApiWorld) -> None:
    world.create("A")
    assert timeless(world.raw("STREAM.INFO.A")) == (
        b'{"type":"io.nats.jetstream.api.v1.stream_info_response","total":0,"offset":0,"limit":0,"config":{"name":"A",%b%b,'
        b'%b,"cluster":{"leader":"srv"},"ts":"T"}' % (CONFIG, ANSWERED, FRESH)
    )


def test_list_leaves_out_what_servers_add(world: ApiWorld) -> None:
    world.create("A")
    assert timeless(world.raw("STREAM.LIST")) == (
        b'{"type":"io.nats.jetstream.api.v1.stream_list_response","total":1,"offset":0,"limit":256,"streams":['
        b'{"config":{"name":"A",%b%b,%b,"ts":"T"}]}' % (CONFIG, LISTED, FRESH)
    )


def test_update_answers_the_new_configuration(world: ApiWorld) -> None:
    world.create("A")
    updated = CONFIG.replace(b'"max_msgs":-1', b'"max_msgs":5')
    assert timeless(world.raw("STREAM.UPDATE.A", {"name": "A", "max_msgs": 5})) == (
        b'{"type":"io.nats.jetstream.api.v1.stream_update_response","config":{"name":"A",%b%b,%b,"ts":"T"}'
        % (updated, ANSWERED, FRESH)
    )
    assert world.stream("A").config.max_msgs == 5


def test_account_info(world: ApiWorld) -> None:
    text = (
        b'{"type":"io.nats.jetstream.api.v1.account_info_response","memory":0,"storage":%d,"reserved_memory":0,'
        b'"reserved_storage":%d,"streams":%d,"consumers":0,"limits":{"max_memory":-1,"max_storage":-1,"max_streams":-1,'
        b'"max_consumers":-1,"max_ack_pending":-1,"memory_max_stream_bytes":-1,"storage_max_stream_bytes":-1,'
        b'"max_bytes_required":false},"api":{"level":5,"total":%d,"errors":%d}}'
    )
    assert world.raw("INFO") == text % (0, 0, 0, 0, 0)
    assert world.raw("INFO", b"junk") == text % (0, 0, 0, 1, 0)
    world.create("A", max_bytes=1000)
    world.publish("A", b"x")
    world.error("STREAM.INFO.nope")
    assert world.raw("INFO") == text % (world.stream("A").store.bytes, 1000, 1, 4, 1)


def test_domain_is_shown_where_nats_server_shows_it() -> None:
    world = ApiWorld(domain="hub")
    created = world.ask("STREAM.CREATE.A", {"name": "A", "allow_direct": True})
    assert "domain" not in created
    assert world.ask("STREAM.INFO.A")["domain"] == "hub"
    assert world.ask("STREAM.LIST")["streams"][0]["domain"] == "hub"
    assert world.ask("STREAM.UPDATE.A", {"name": "A", "allow_direct": True})["domain"] == "hub"
    assert world.ask("INFO")["domain"] == "hub"


def test_the_domain_prefix_reaches_the_same_api() -> None:
    world = ApiWorld(domain="hub")
    world.create("KV_b", subjects=["$KV.b.>"], allow_direct=True)
    for subject, body in (("$JS.hub.API.STREAM.NAMES", b""), ("$JS.hub.API.$KV.b.k", b"v")):
        reply = world.send(subject, body)
        world.settle()
        assert len(world.answers(reply)) == 1, subject
    reply = world.send("$JS.hub.API.DIRECT.GET.KV_b.$KV.b.k")
    assert world.answers(reply)[0][1] == b"v"
    assert world.answers(world.send("$JS.other.API.INFO")) == [(b"503", b"")]


# ---------------------------------------------------------------------------------------------------- names and lists
def test_names_is_null_and_list_empty_without_streams(world: ApiWorld) -> None:
    page = {"total": 0, "offset": 0}
    assert world.ask("STREAM.NAMES") == {
        "type": "io.nats.jetstream.api.v1.stream_names_response",
        **page,
        "limit": 1024,
        "streams": None,
    }
    assert world.ask("STREAM.LIST") == {
        "type": "io.nats.jetstream.api.v1.stream_list_response",
        **page,
        "limit": 256,
        "streams": [],
    }


@pytest.mark.parametrize(
    ("body", "total", "offset", "names"),
    [
        (b"", 3, 0, ["A", "B", "C"]),
        (b"junk", 3, 0, ["A", "B", "C"]),
        (b"null", 3, 0, ["A", "B", "C"]),
        ({"offset": 1}, 3, 1, ["B", "C"]),
        ({"offset": 5}, 3, 3, None),
        ({"offset": -1}, 3, 0, ["A", "B", "C"]),
        ({"subject": "a.x"}, 1, 0, ["A"]),
        ({"subject": "*.x"}, 2, 0, ["A", "B"]),
        ({"subject": "*.x", "offset": 1}, 2, 1, ["B"]),
        ({"subject": ">"}, 3, 0, ["A", "B", "C"]),
        ({"subject": "zz"}, 0, 0, None),
        ({"subject": ""}, 3, 0, ["A", "B", "C"]),
        ({"subject": "a..b"}, 1, 0, ["A"]),
    ],
)
def test_names_pages_and_filters(world: ApiWorld, body: Any, total: int, offset: int, names: list[str] | None) -> None:
    world.create("C", subjects=["c"])
    world.create("A", subjects=["a.>"])
    world.create("B", subjects=["b.*"])
    answer = world.ask("STREAM.NAMES", body)
    assert (answer["total"], answer["offset"], answer["streams"]) == (total, offset, names)
    listed = world.ask("STREAM.LIST", body)
    assert [stream["config"]["name"] for stream in listed["streams"]] == (names or [])


def test_error_replies_keep_their_zero_fields(world: ApiWorld) -> None:
    error = b'"error":{"code":400,"err_code":10025,"description":"invalid JSON: json: unknown field \\"foo\\""}'
    prefix = b'{"type":"io.nats.jetstream.api.v1.stream_'
    page = b',"total":0,"offset":0,"limit":0'
    body = b' {"foo":1}'
    assert world.raw("STREAM.NAMES", body) == prefix + b'names_response",' + error + page + b',"streams":null}'
    assert world.raw("STREAM.LIST", body) == prefix + b'list_response",' + error + page + b',"streams":[]}'
    assert world.raw("STREAM.INFO.A", body) == prefix + b'info_response",' + error + page + b"}"
    assert world.raw("STREAM.PURGE.A", body) == prefix + b'purge_response",' + error + b',"purged":0}'
    assert world.raw("STREAM.MSG.DELETE.A", body) == prefix + b'msg_delete_response",' + error + b"}"


@pytest.mark.parametrize(
    "subject",
    [
        "FOO",
        "STREAM.FOO",
        "STREAM.INFO",
        "STREAM.INFO.a.b",
        "STREAM.CREATE.a.b",
        "STREAM.TEMPLATE.NAMES",
        "CONSUMER.FOO",
    ],
)
def test_unknown_subjects_are_met_with_silence(world: ApiWorld, subject: str) -> None:
    assert world.raw(subject) is None


@pytest.mark.parametrize("subject", ["DIRECT.GET.nope", "DIRECT.GET.nope.a", "CONSUMER.MSG.NEXT.S.C"])
def test_absent_assets_have_no_responders(world: ApiWorld, subject: str) -> None:
    assert world.answers(world.send("$JS.API." + subject)) == [(b"503", b"")]


@pytest.mark.parametrize(
    ("subject", "fields"),
    [
        ("INFO", {}),
        ("STREAM.NAMES", {"total": 0, "offset": 0, "limit": 0, "streams": None}),
        ("STREAM.INFO.A", {"total": 0, "offset": 0, "limit": 0}),
        ("STREAM.CREATE.A", {}),
        ("STREAM.MSG.GET.A", {}),
    ],
)
def test_too_high_an_api_level_is_refused(world: ApiWorld, subject: str, fields: dict[str, Any]) -> None:
    refused = {"code": 412, "err_code": 10185, "description": "JetStream minimum api level required"}
    for level in (b"6", b"x"):
        answer = world.ask(subject, b"", b"NATS/1.0\r\nNats-Required-Api-Level: %b\r\n\r\n" % level)
        assert answer.pop("error") == refused
        answer.pop("type")
        assert answer == fields
    answer = world.ask("STREAM.NAMES", b"", b"NATS/1.0\r\nNats-Required-Api-Level: 5\r\n\r\n")
    assert "error" not in answer


@pytest.mark.parametrize("verb", ["LEADER.STEPDOWN", "PEER.REMOVE", "PEER.EVACUATE", "CANCEL_MOVE"])
def test_clustered_only_requests_say_so(world: ApiWorld, verb: str) -> None:
    assert world.error(f"STREAM.{verb}.A") == (503, 10010, "JetStream clustering support required")


# ---------------------------------------------------------------------------------------------------- create, update
@pytest.mark.parametrize(
    ("subject", "body", "error"),
    [
        ("STREAM.CREATE.A", b"", (400, 10056)),
        ("STREAM.CREATE.A", {"name": "B"}, (400, 10056)),
        ("STREAM.CREATE.A\\b", {"name": "A\\b"}, (400, 10128)),
        ("STREAM.CREATE.A/b", {"name": "A/b"}, (400, 10128)),
        ("STREAM.CREATE.A", b'{"name":"A"} 5', (400, 10025)),
        ("STREAM.CREATE.A", {"name": "A", "sealed": True}, (500, 10052)),
        ("STREAM.CREATE.A", {"name": "A", "num_replicas": 3}, (500, 10074)),
        ("STREAM.CREATE.A", {"name": "A", "mirror": {"name": "A"}}, (500, 10052)),
        ("STREAM.UPDATE.A", b"", (500, 10052)),
        ("STREAM.UPDATE.A", {"name": "B"}, (400, 10056)),
        ("STREAM.UPDATE.A", {"name": "A"}, (404, 10059)),
        ("STREAM.DELETE.A", b"", (404, 10059)),
        ("STREAM.DELETE.A", b"junk", (400, 10038)),
        ("STREAM.DELETE.A", b" ", (400, 10038)),
        ("STREAM.DELETE.A", b" { } ", (404, 10059)),
        ("STREAM.INFO.A", b"junk", (404, 10059)),
        ("STREAM.PURGE.A", b"", (404, 10059)),
        ("STREAM.PURGE.A", {"seq": 1, "keep": 1}, (400, 10003)),
        ("STREAM.MSG.GET.A", {"seq": 1}, (404, 10059)),
        ("STREAM.MSG.GET.A", {"seq": 0}, (400, 10003)),
        ("STREAM.MSG.DELETE.A", b"", (400, 10003)),
        ("STREAM.MSG.DELETE.A", {"seq": 0}, (404, 10059)),
        ("STREAM.SNAPSHOT.A", b"", (400, 10003)),
        ("STREAM.SNAPSHOT.A", {"deliver_subject": "x"}, (404, 10059)),
        ("STREAM.RESTORE.A", b"", (400, 10003)),
    ],
)
def test_refusals_without_a_stream(world: ApiWorld, subject: str, body: Any, error: tuple[int, int]) -> None:
    assert world.error(subject, body)[:2] == error


def test_create_with_another_configuration_of_a_taken_name(world: ApiWorld) -> None:
    world.create("A")
    world.create("B")
    assert world.error("STREAM.CREATE.A", {"name": "A", "max_msgs": 1})[1] == 10058
    assert world.error("STREAM.CREATE.A", {"name": "A", "subjects": ["B"]})[1] == 10058  # reported before the overlap
    assert world.error("STREAM.CREATE.C", {"name": "C", "subjects": ["x", "B"]})[1] == 10065


def test_creates_of_one_name_in_one_turn_are_one_stream(world: ApiWorld) -> None:
    replies = [world.send("$JS.API.STREAM.CREATE.A", {"name": "A"}) for _ in range(3)]
    other = world.send("$JS.API.STREAM.CREATE.A", {"name": "A", "max_msgs": 1})
    world.settle()
    answers = [json.loads(world.answers(reply)[0][1]) for reply in replies]
    assert all(answer["did_create"] for answer in answers)
    assert json.loads(world.answers(other)[0][1])["error"]["err_code"] == 10058


def test_two_streams_on_their_way_can_not_take_one_subject(world: ApiWorld) -> None:
    world.create("C", subjects=["c"])
    first = world.send("$JS.API.STREAM.CREATE.A", {"name": "A", "subjects": ["x.*"]})
    second = world.send("$JS.API.STREAM.CREATE.B", {"name": "B", "subjects": ["x.1"]})
    third = world.send("$JS.API.STREAM.UPDATE.C", {"name": "C", "subjects": ["x.2"]})
    world.settle()
    codes = [
        json.loads(world.answers(reply)[0][1]).get("error", {}).get("err_code") for reply in (first, second, third)
    ]
    assert codes == [None, 10065, 10065]


def test_updates_in_one_turn_see_each_other(world: ApiWorld) -> None:
    """Updates in one turn see each other: the second must not undo what the first has made permanent."""
    world.create("A")
    first = world.send("$JS.API.STREAM.UPDATE.A", {"name": "A", "deny_delete": True})
    second = world.send("$JS.API.STREAM.UPDATE.A", {"name": "A"})
    world.settle()
    assert "error" not in json.loads(world.answers(first)[0][1])
    assert "can not cancel deny message deletes" in json.loads(world.answers(second)[0][1])["error"]["description"]


def test_delete_while_a_create_is_under_way_waits_for_it(world: ApiWorld) -> None:
    created = world.send("$JS.API.STREAM.CREATE.A", {"name": "A"})
    deleted = world.send("$JS.API.STREAM.DELETE.A")
    world.settle()
    assert json.loads(world.answers(created)[0][1])["did_create"]
    assert json.loads(world.answers(deleted)[0][1])["success"]
    assert world.engine.streams == {}


def test_changed_subjects_take_effect(world: ApiWorld) -> None:
    world.create("A", subjects=["a"])
    world.ask("STREAM.UPDATE.A", {"name": "A", "subjects": ["b"]})
    assert world.answers(world.send("a")) == [(b"503", b"")]
    assert world.publish("b")["seq"] == 1


def test_seal(world: ApiWorld) -> None:
    world.create("A", max_age=1_000_000_000, allow_rollup_hdrs=True)
    world.publish("A", b"x")
    config = world.ask("STREAM.UPDATE.A", {"name": "A", "sealed": True})["config"]
    assert (config["max_age"], config["discard"], config["allow_rollup_hdrs"]) == (0, "new", False)
    assert (config["deny_delete"], config["deny_purge"], config["sealed"]) == (True, True, True)
    assert world.ask("STREAM.PURGE.A")["error"]["err_code"] == 10109
    assert world.ask("STREAM.MSG.DELETE.A", {"seq": 1})["error"]["err_code"] == 10109
    assert world.publish("A")["error"]["err_code"] == 10109
    assert "can not unseal" in world.error("STREAM.UPDATE.A", {"name": "A"})[2]
    assert world.ask("STREAM.DELETE.A") == {
        "type": "io.nats.jetstream.api.v1.stream_delete_response",
        "success": True,
    }


def test_reserved_bytes_must_fit_the_server() -> None:
    world = ApiWorld(max_memory=1000, max_file=5000)
    world.create("A", max_bytes=4000)
    assert world.error("STREAM.CREATE.B", {"name": "B", "max_bytes": 1001})[:2] == (500, 10047)
    assert world.error("STREAM.CREATE.M", {"name": "M", "max_bytes": 1001, "storage": "memory"})[:2] == (500, 10028)
    world.create("B", max_bytes=1000)
    assert world.error("STREAM.UPDATE.B", {"name": "B", "max_bytes": 1001})[:2] == (500, 10047)
    assert world.error("STREAM.UPDATE.A", {"name": "A", "max_bytes": 4001})[:2] == (500, 10047)


def test_a_stream_may_reserve_nothing_and_is_bounded_all_the_same() -> None:
    world = ApiWorld(max_memory=1000, max_file=5000)
    off = {"lakestream.reserve": "off"}
    for name in ("A", "B", "C"):
        world.create(name, max_bytes=4000, metadata=off)
    assert world.ask("INFO")["reserved_storage"] == 0
    world.create("D", max_bytes=4999)
    world.ask("STREAM.UPDATE.A", {"name": "A", "subjects": ["A"], "max_bytes": 5001, "metadata": off})
    assert world.error("STREAM.UPDATE.A", {"name": "A", "subjects": ["A"], "max_bytes": 5001})[:2] == (500, 10047)
    answers = [world.publish(name, bytes(500)) for _ in range(8) for name in ("B", "C")]
    assert {answer["error"]["err_code"] for answer in answers if "error" in answer} == {10023}


def test_offline_streams_are_named_and_refuse(world: ApiWorld) -> None:
    damaged = LogError("its log is damaged", "its log is damaged")
    cast(SoloKeeping, world.engines.node.keeping).take(RecoveredLog("$G", "A", error=damaged))
    expected = (500, 10194, "stream is offline: its log is damaged")
    for subject in ("STREAM.INFO.A", "STREAM.PURGE.A"):
        assert world.error(subject) == expected
    assert world.error("STREAM.CREATE.A", {"name": "A"}) == expected
    listed = world.ask("STREAM.LIST")
    assert (listed["streams"], listed["missing"]) == ([], ["A"])
    assert listed["offline"] == {"A": "its log is damaged"}
    assert world.ask("STREAM.NAMES")["streams"] == ["A"]
    assert world.ask("STREAM.DELETE.A")["success"]
    assert world.ask("STREAM.NAMES")["streams"] is None


# ---------------------------------------------------------------------------------------------------- state
def test_state_with_gaps(world: ApiWorld) -> None:
    world.fill(11)
    for seq in (3, 7, 1, 11):
        assert world.ask("STREAM.MSG.DELETE.A", {"seq": seq})["success"]
    expected = {"messages": 7, "first_seq": 2, "last_seq": 11, "num_subjects": 3, "num_deleted": 3, "consumer_count": 0}
    state = world.state("A")
    state.pop("bytes")
    assert state == expected
    assert list(world.state("A", deleted_details=True, subjects_filter="a.1")) == [
        "messages",
        "bytes",
        "first_seq",
        "last_seq",
        "num_subjects",
        "subjects",
        "num_deleted",
        "deleted",
        "consumer_count",
    ]
    assert world.state("A", deleted_details=True)["deleted"] == [3, 7, 11]


@pytest.mark.parametrize(
    ("body", "page", "subjects"),
    [
        ({"subjects_filter": ">"}, (3, 0, 100_000), {"a.0": 3, "a.1": 4, "a.2": 3}),
        ({"subjects_filter": "a.1"}, (1, 0, 100_000), {"a.1": 4}),
        ({"subjects_filter": "zz"}, (0, 0, 0), None),
        ({"subjects_filter": "a..b"}, (0, 0, 0), None),
        ({"subjects_filter": ">", "offset": 1}, (3, 1, 100_000), {"a.1": 4, "a.2": 3}),
        ({"subjects_filter": ">", "offset": 9}, (3, 9, 100_000), None),
        ({"subjects_filter": ">", "offset": -1}, (3, 0, 100_000), {"a.0": 3, "a.1": 4, "a.2": 3}),
        ({"offset": 5}, (0, 0, 0), None),
        (b"junk", (0, 0, 0), None),
    ],
)
def test_subjects_of_a_stream(
    world: ApiWorld, body: Any, page: tuple[int, int, int], subjects: dict[str, int] | None
) -> None:
    world.fill()
    answer = world.ask("STREAM.INFO.A", body)
    assert (answer["total"], answer["offset"], answer["limit"]) == page
    assert answer["state"].get("subjects") == subjects


def test_emptied_stream_keeps_its_last_time(world: ApiWorld) -> None:
    world.fill()
    last = world.ask("STREAM.INFO.A")["state"]["last_ts"]
    assert world.ask("STREAM.PURGE.A")["purged"] == 10
    state = world.ask("STREAM.INFO.A")["state"]
    assert (state["first_ts"], state["last_ts"]) == ("0001-01-01T00:00:00Z", last)
    assert (state["first_seq"], state["last_seq"]) == (11, 10)
    assert "num_subjects" not in state


# ---------------------------------------------------------------------------------------------------- purge
@pytest.mark.parametrize(
    ("body", "purged", "first", "last", "deleted"),
    [
        (b"", 10, 11, 10, None),
        (b"{}", 10, 11, 10, None),
        (b"null", 10, 11, 10, None),
        (b"junk", 10, 11, 10, None),
        ({"seq": 4}, 3, 4, 10, None),
        ({"seq": 0}, 10, 11, 10, None),
        ({"seq": 1}, 0, 1, 10, None),
        ({"seq": 11}, 10, 11, 10, None),
        ({"seq": 12}, 10, 12, 11, None),
        ({"seq": 20}, 10, 20, 19, None),
        ({"seq": 1 << 62}, 10, 1 << 62, (1 << 62) - 1, None),
        ({"seq": (1 << 62) + 1}, 10, 11, 10, None),
        ({"seq": (1 << 64) - 1}, 10, 11, 10, None),
        ({"filter": "a.1", "seq": (1 << 64) - 1}, 4, 2, 10, [4, 7, 10]),
        ({"seq": None}, 10, 11, 10, None),
        ({"keep": 3}, 7, 8, 10, None),
        ({"keep": 0}, 10, 11, 10, None),
        ({"keep": 99}, 0, 1, 10, None),
        ({"filter": ""}, 10, 11, 10, None),
        ({"filter": ">"}, 10, 11, 10, None),
        ({"filter": ">", "keep": 1}, 9, 10, 10, None),
        ({"filter": ">", "seq": 20}, 10, 20, 19, None),
        ({"filter": "a.1"}, 4, 2, 10, [4, 7, 10]),
        ({"filter": "a.1", "keep": 1}, 3, 2, 10, [4, 7]),
        ({"filter": "a.1", "seq": 5}, 2, 2, 10, [4]),
        ({"filter": "a.1", "seq": 20}, 4, 2, 10, [4, 7, 10]),
        ({"filter": "a.*", "seq": 5}, 4, 5, 10, None),
        ({"filter": "a.*", "keep": 2}, 8, 9, 10, None),
        ({"filter": "zz"}, 0, 1, 10, None),
        ({"filter": "a..b"}, 0, 1, 10, None),
    ],
)
def test_purge(world: ApiWorld, body: Any, purged: int, first: int, last: int, deleted: list[int] | None) -> None:
    world.fill()
    assert world.ask("STREAM.PURGE.A", body) == {
        "type": "io.nats.jetstream.api.v1.stream_purge_response",
        "success": True,
        "purged": purged,
    }
    state = world.state("A", deleted_details=True)
    assert (state["first_seq"], state["last_seq"], state.get("deleted")) == (first, last, deleted)
    assert world.publish("a.9")["seq"] == last + 1


def test_purge_of_a_stream_that_never_held_a_message(world: ApiWorld) -> None:
    world.create("A")
    assert world.ask("STREAM.PURGE.A")["purged"] == 0
    assert (world.state("A")["first_seq"], world.state("A")["last_seq"]) == (1, 0)


def test_purge_can_be_denied(world: ApiWorld) -> None:
    world.create("A", deny_purge=True)
    assert world.error("STREAM.PURGE.A") == (500, 10110, "stream purge not permitted")


def test_first_seq(world: ApiWorld) -> None:
    state = world.create("A", first_seq=7)["state"]
    assert (state["first_seq"], state["last_seq"]) == (7, 6)
    assert world.publish("A")["seq"] == 7


# ---------------------------------------------------------------------------------------------------- overload
@pytest.mark.parametrize(
    ("limits", "why"), [(BufferLimits(max_msgs=3, exact=True), "len"), (BufferLimits(max_bytes=90, exact=True), "size")]
)
def test_publishes_over_what_is_buffered_are_refused_and_logged(limits: BufferLimits, why: str) -> None:
    world = ApiWorld(buffer=limits)
    world.create("A")
    replies = [world.send("A", b"x") for _ in range(10)]
    world.settle()
    bodies = [world.answers(reply)[0][1] for reply in replies]
    assert [b"10167" in body for body in bodies] == [False] * 3 + [True] * 7
    line = f"Dropping messages due to excessive stream ingest rate on '$G' > 'A': IPQ {why} limit reached"
    assert world.log.warnings == [line], "once a second"
    assert world.publish("A")["seq"] == 4


def test_too_many_publishes_are_refused_with_a_status() -> None:
    world = ApiWorld(buffer=BufferLimits(max_msgs=3))
    world.create("A")
    world.send("$JS.API.STREAM.UPDATE.A", {"name": "A", "description": "d"})  # they wait for it
    replies = [world.send("A", b"x") for _ in range(10)]
    world.settle()
    refused = [answers for reply in replies if b"10167" in (answers := world.answers(reply)[0])[1]]
    assert refused
    assert {header for header, _ in refused} == {b"NATS/1.0 429 Too Many Requests\r\n\r\n"}
    assert {header for reply in replies for header, body in world.answers(reply) if b'seq":0' not in body} == {b""}


# ---------------------------------------------------------------------------------------------------- storage
def test_storage_is_counted_over_all_streams_and_freed_with_them() -> None:
    world = ApiWorld(max_memory=1000)
    use = world.engine.use
    for name in "AB":
        world.create(name, storage="memory")
        for _ in range(3):
            world.publish(name, b"x" * 100)
    assert use.used == {"memory": 6 * 117, "file": 0}
    for _ in range(3):
        world.publish("A", b"x" * 100)
    assert world.publish("B")["error"]["err_code"] == 10023
    assert world.publish("B", b"", Nats_Msg_Id="a")["error"]["err_code"] == 10023
    world.ask("STREAM.DELETE.A")
    assert use.used["memory"] == 3 * 117
    assert world.publish("B", b"", Nats_Msg_Id="a")["seq"] == 4
    world.ask("STREAM.DELETE.B")
    assert use.used["memory"] == 0
