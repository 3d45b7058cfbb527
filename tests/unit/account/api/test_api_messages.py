"""Tests of single messages through the API: STREAM.MSG.GET and STREAM.MSG.DELETE."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.protocol.frames import PUB
from lakestream.protocol.publishes import NOTHING_APART, run_of
from tests.unit.api_world import ApiWorld, timeless
from tests.unit.stream_world import CLIENT

pytestmark = pytest.mark.unit

DELETE = b"$JS.API.STREAM.MSG.DELETE.A"


@pytest.fixture
def world() -> ApiWorld:
    return ApiWorld()


# ---------------------------------------------------------------------------------------------------- single messages
def test_message_deletes_of_what_is_not_there(world: ApiWorld) -> None:
    """The errors are worded as those of nats-server's file store."""
    world.fill()
    for seq in (4, 1, 10):
        assert world.ask("STREAM.MSG.DELETE.A", {"seq": seq})["success"]
    assert world.error("STREAM.MSG.DELETE.A", {"seq": 4}) == (400, 10043, "sequence 4 not found")
    assert world.error("STREAM.MSG.DELETE.A", {"seq": 10}) == (400, 10043, "sequence 10 not found")
    assert world.error("STREAM.MSG.DELETE.A", {"seq": 1}) == (500, 10057, "no message found")
    assert world.error("STREAM.MSG.DELETE.A", {"seq": 0}) == (500, 10057, "no message found")
    assert world.error("STREAM.MSG.DELETE.A", b"null") == (500, 10057, "no message found")
    assert world.error("STREAM.MSG.DELETE.A", {"seq": 99}) == (500, 10057, "stream store EOF")


def test_message_deletes_in_memory_have_one_error(world: ApiWorld) -> None:
    world.fill(storage="memory")
    for seq in (0, 99):
        assert world.error("STREAM.MSG.DELETE.A", {"seq": seq}) == (400, 10043, f"sequence {seq} not found")


def test_message_delete_can_be_denied(world: ApiWorld) -> None:
    world.fill(deny_delete=True)
    assert world.error("STREAM.MSG.DELETE.A", {"seq": 99}) == (500, 10057, "message delete not permitted")


def test_two_deletes_of_one_message_in_one_turn(world: ApiWorld) -> None:
    world.fill()
    replies = [world.send("$JS.API.STREAM.MSG.DELETE.A", {"seq": 5}) for _ in range(2)]
    world.settle()
    answers = [json.loads(world.answers(reply)[0][1]) for reply in replies]
    assert answers[0]["success"]
    assert answers[1]["error"]["err_code"] == 10043


BODIES = [
    *[b'{"seq":%d,"no_erase":true}' % seq for seq in range(1, 13)],
    *[b'{"seq": %d}' % seq for seq in (2, 3, 10, 99, -1)],
    *(b"", b"{}", b"null", b"[]", b'{"seq":"1"}', b'{"SEQ":4}{"seq":5}', b'{"seq":1,"x":1}', b'{"seq":6.0}'),
]
REQUEST = st.tuples(st.sampled_from("AAAAAB"), st.sampled_from(BODIES), st.booleans())


@given(st.lists(REQUEST, min_size=1, max_size=40), st.sampled_from(["file", "memory"]), st.booleans())
def test_deletes_that_come_together_do_what_each_by_itself_does(
    requests: list[tuple[str, bytes, bool]], storage: str, audited: bool
) -> None:
    found = []
    for together in (False, True):
        world = ApiWorld()
        world.fill(storage=storage)
        if audited:
            world.hub.subscribe(b"$JS.EVENT.ADVISORY.API", lambda messages, begin, end, client: end)
        subjects = [b"$JS.API.STREAM.MSG.DELETE.%s" % name.encode() for name, _, _ in requests]
        replies = [b"_INBOX.me.%d" % (at + 100) if wanted else b"" for at, (_, _, wanted) in enumerate(requests)]
        rows = list(zip(subjects, replies, [body for _, body, _ in requests], strict=True))
        run = run_of(
            b"".join(PUB % (one, to + b" " if to else b"", len(body), body) for one, to, body in rows), NOTHING_APART
        )
        if together:
            assert not list(world.hub.route_run(None, CLIENT, run, 0, len(run)))
        else:
            for message in run.messages():
                assert world.hub.route(None, CLIENT, message)
        world.settle()
        answers = [world.answers(reply) for reply in replies if reply]
        found.append((answers, world.state("A", deleted_details=True), world.api.total, world.api.errors))
    assert found[0] == found[1]
    assert all(len(each) == 1 for each in found[0][0])


def test_requests_beyond_the_limit_of_a_turn_are_dropped_also_when_they_come_together() -> None:
    world = ApiWorld(request_queue_limit=3)
    world.fill()
    bodies = [b'{"seq":%d}' % seq for seq in range(1, 6)]
    run = run_of(
        b"".join(PUB % (DELETE, b"_INBOX.me.%d " % at, len(body), body) for at, body in enumerate(bodies, 100)),
        NOTHING_APART,
    )
    list(world.hub.route_run(None, CLIENT, run, 0, len(run)))
    world.settle()
    assert [len(world.answers(b"_INBOX.me.%d" % at)) for at in range(100, 105)] == [1, 1, 1, 0, 0]
    assert world.stream("A").store.msgs == 7


def test_message_get_shows_headers_and_data_in_base64(world: ApiWorld) -> None:
    world.fill()
    prefix = b'{"type":"io.nats.jetstream.api.v1.stream_msg_get_response","message":{"subject":'
    assert timeless(world.raw("STREAM.MSG.GET.A", {"seq": 4})) == prefix + b'"a.1","seq":4,"data":"bTQ=","time":"T"}}'
    assert timeless(world.raw("STREAM.MSG.GET.A", {"seq": 3})) == (
        prefix + b'"a.0","seq":3,"hdrs":"TkFUUy8xLjANCks6IDMNCg0K","data":"bTM=","time":"T"}}'
    )
    assert "hdrs" not in world.ask("STREAM.MSG.GET.A", {"seq": 3, "no_hdr": True})["message"]
    world.publish("a.7")
    assert timeless(world.raw("STREAM.MSG.GET.A", {"seq": 11})) == prefix + b'"a.7","seq":11,"time":"T"}}'


@pytest.mark.parametrize(
    ("body", "seq"),
    [
        ({"seq": 3}, 3),
        ({"last_by_subj": "a.1"}, 10),
        ({"last_by_subj": "a.>"}, 10),
        ({"last_by_subj": "*.2"}, 8),
        ({"next_by_subj": "a.1"}, 1),
        ({"next_by_subj": "a.1", "seq": 1}, 1),
        ({"next_by_subj": "a.1", "seq": 2}, 4),
        ({"next_by_subj": "a.>", "seq": 5}, 6),
        ({"next_by_subj": ">"}, 1),
        ({"start_time": "2000-01-01T00:00:00Z"}, 1),
        ({"start_time": "2000-01-01T00:00:00Z", "next_by_subj": "a.2"}, 2),
        ({"batch": 0, "seq": 3}, 3),
        ({"seq": 3, "up_to_seq": 2}, 3),
        ({"start_time": None, "seq": 3}, 3),
    ],
)
def test_message_get_forms(world: ApiWorld, body: Any, seq: int) -> None:
    world.fill()
    world.ask("STREAM.MSG.DELETE.A", {"seq": 5})
    assert world.ask("STREAM.MSG.GET.A", body)["message"]["seq"] == seq


def test_message_get_at_a_message_s_own_time_includes_it(world: ApiWorld) -> None:
    world.fill()
    time = world.ask("STREAM.MSG.GET.A", {"seq": 4})["message"]["time"]
    assert world.ask("STREAM.MSG.GET.A", {"start_time": time})["message"]["seq"] == 4


@pytest.mark.parametrize(
    "body",
    [
        {"seq": 5},
        {"seq": 99},
        {"last_by_subj": "zz"},
        {"last_by_subj": "a..b"},
        {"next_by_subj": "zz"},
        {"next_by_subj": "a.1", "seq": 99},
        {"start_time": "2100-01-01T00:00:00Z"},
    ],
)
def test_message_get_of_nothing(world: ApiWorld, body: Any) -> None:
    world.fill()
    world.ask("STREAM.MSG.DELETE.A", {"seq": 5})
    assert world.error("STREAM.MSG.GET.A", body) == (404, 10037, "no message found")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"null",
        {"seq": 0},
        {"last_by_subj": ""},
        {"no_hdr": True},
        {"seq": 3, "last_by_subj": "a.1"},
        {"next_by_subj": "a.1", "last_by_subj": "a.1"},
        {"start_time": "2000-01-01T00:00:00Z", "seq": 3},
        {"start_time": "2000-01-01T00:00:00Z", "last_by_subj": "a.1"},
        {"seq": 3, "batch": 1},
        {"seq": 3, "max_bytes": 5},
        {"multi_last": ["a.1"]},
        {"up_to_seq": 3},
    ],
)
def test_message_get_refuses_what_names_no_single_message(world: ApiWorld, body: Any) -> None:
    world.fill()
    assert world.error("STREAM.MSG.GET.A", body) == (400, 10003, "bad request")


# ---------------------------------------------------------------------------------------------------- the lake
async def test_message_get_from_the_lake(world: ApiWorld) -> None:
    world.fill()
    world.to_lake("A", 6)
    for body, seq in (({"seq": 3}, 3), ({"next_by_subj": "a.0"}, 3), ({"start_time": "2000-01-01T00:00:00Z"}, 1)):
        reply = world.send("$JS.API.STREAM.MSG.GET.A", body)
        assert world.answers(reply) == []  # never in the event loop's own turn
        await world.awaited()
        assert json.loads(world.answers(reply)[0][1])["message"]["seq"] == seq


async def test_message_get_tells_when_the_lake_does_not_answer(world: ApiWorld) -> None:
    world.fill()
    world.to_lake("A", 6)
    world.stream("A").reader.history = None
    reply = world.send("$JS.API.STREAM.MSG.GET.A", {"seq": 3})
    await world.awaited()
    error = json.loads(world.answers(reply)[0][1])["error"]
    assert (error["code"], error["err_code"]) == (500, 10051)
    assert "lake" in error["description"]
