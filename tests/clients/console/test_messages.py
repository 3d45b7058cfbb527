"""Tests of the console's messages through the real socket: requests, publishes, permissions, live views."""

from __future__ import annotations

import json
import socket
import threading
from base64 import b64decode, b64encode
from typing import Any

import pytest

from tests.clients.console.world import data, logged_in, until
from tests.console import Browser
from tests.servers import Server
from tests.wire import Wire

pytestmark = pytest.mark.conformance


# ---------------------------------------------------------------------- messages


def test_streams_are_made_filled_and_read(page: Browser) -> None:
    created = page.request("$JS.API.STREAM.CREATE.READ", {"name": "READ", "subjects": ["read.>"], "allow_direct": True})
    assert created["config"]["name"] == "READ"
    assert page.post("publish", {"subject": "read.a", "data": "one", "headers": {"X": ["1", "2"], "Y": "ü"}}).json == {
        "ack": {"stream": "READ", "seq": 1}
    }
    binary = bytes(range(256))
    assert (
        page.post("publish", {"subject": "read.b", "data_base64": b64encode(binary).decode()}).json["ack"]["seq"] == 2
    )
    asked = {"subject": "$JS.API.DIRECT.GET.READ", "data": json.dumps({"seq": 1, "batch": 10}), "replies": "eob"}
    reply = page.post("request", asked)
    first, second, last = reply.json["replies"]
    assert b64decode(first["data_base64"]) == b"one"
    assert first["headers"].items() >= {"X": ["1", "2"], "Y": ["ü"], "Nats-Subject": ["read.a"]}.items()
    assert (b64decode(second["data_base64"]), second["size"]) == (binary, 256)
    assert (last["status"], last["description"]) == (204, "EOB")
    none = page.post("request", asked | {"data": json.dumps({"seq": 9, "batch": 10})})
    assert [each["status"] for each in none.json["replies"]] == [404]


def test_a_publish_that_no_stream_takes(plain: Server, page: Browser) -> None:
    assert page.post("publish", {"subject": "nobody.listens", "data": "x"}).json == {}
    wire = Wire(plain.address)
    wire.subscribe("heard")
    wire.ping()
    assert page.post("publish", {"subject": "heard", "data": "x", "headers": {"A": "b"}}).json == {}
    frame = wire.next()
    assert (frame.data, frame.headers) == (b"x", {"A": "b"})
    wire.close()


def test_a_publish_that_a_stream_refuses(page: Browser) -> None:
    page.request("$JS.API.STREAM.CREATE.FULL", {"name": "FULL", "subjects": ["full"], "max_msg_size": 3})
    reply = page.post("publish", {"subject": "full", "data": "12345"})
    assert reply.status == 400
    assert "size" in reply.json["error"]


def test_requests_without_an_answer(plain: Server, page: Browser) -> None:
    reply = page.post("request", {"subject": "nobody.answers"})
    assert (reply.status, reply.json["replies"]) == (503, [])
    wire = Wire(plain.address)
    wire.subscribe("silent")
    wire.ping()
    late = page.post("request", {"subject": "silent", "timeout_ms": 100})
    assert (late.status, late.json["timed_out"]) == (504, True)
    wire.close()


def test_several_replies(plain: Server, page: Browser) -> None:
    wire = Wire(plain.address)
    wire.subscribe("many")
    wire.ping()

    def answer() -> None:
        for count in (3, 2):
            frame = wire.next()
            for number in range(count):
                wire.publish(frame.reply, str(number).encode())

    answering = threading.Thread(target=answer)
    answering.start()
    reply = page.post("request", {"subject": "many", "replies": 3})
    assert [data(reply, index) for index in range(3)] == [b"0", b"1", b"2"]
    fewer = page.post("request", {"subject": "many", "replies": 3, "timeout_ms": 1500})
    assert (fewer.status, len(fewer.json["replies"]), fewer.json["timed_out"]) == (200, 2, True)
    answering.join()
    wire.close()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"subject": 3}, 400),
        ({"subject": ""}, 400),
        ({"subject": "a b"}, 400),
        ({"subject": "a.*"}, 400),
        ({"subject": "a\r\nPUB x 0\r\n\r\n"}, 400),
        ({"subject": "a" * 5000}, 400),
        ({"subject": "a", "headers": {"A": "b\r\nC: d"}}, 400),
        ({"subject": "a", "headers": {"A\r\nB": "c"}}, 400),
        ({"subject": "a", "headers": {"A:": "c"}}, 400),
        ({"subject": "a", "headers": {"": "c"}}, 400),
        ({"subject": "a", "data_base64": "!"}, 400),
        ({"subject": "a", "replies": 0}, 400),
        ({"subject": "a", "replies": 10_001}, 400),
        ({"subject": "a", "replies": "all"}, 400),
        ({"subject": "a", "data": "x" * ((1 << 20) + 1)}, 413),
        (b"[", 400),
        (b"\xff", 400),
        (b"x" * ((12 << 20) + 1), 413),
    ],
)
def test_wrong_requests_are_refused_and_the_session_lives_on(page: Browser, body: Any, status: int) -> None:
    assert page.post("request", body).status == status
    assert page.request("$JS.API.INFO")["type"].endswith("account_info_response")


def test_unknown_requests_and_methods(page: Browser) -> None:
    assert page.get("nothing").status == 404
    assert page.get("request").status == 405
    assert page.ask("PUT", "/console/api/varz").status == 405
    for name in ("live?subject=a", "session", "varz"):
        reply = page.ask("HEAD", f"/console/api/{name}")
        assert (reply.status, reply.headers["allow"]) == (405, "GET")
    assert page.ask("OPTIONS", "/console/api/request", headers={"Origin": "http://evil.example"}).status == 403


def test_the_next_message_of_a_consumer_is_asked_for_and_acked(page: Browser) -> None:
    page.request("$JS.API.STREAM.CREATE.NEXT", {"name": "NEXT", "subjects": ["next.*"]})
    config = {"name": "c", "durable_name": "c", "ack_policy": "explicit"}
    page.request("$JS.API.CONSUMER.CREATE.NEXT.c", {"stream_name": "NEXT", "config": config, "action": "create"})
    asked = {"subject": "$JS.API.CONSUMER.MSG.NEXT.NEXT.c", "data": '{"batch": 1, "no_wait": true}'}
    assert page.post("request", asked).json["replies"][0]["status"] == 404
    page.post("publish", {"subject": "next.one", "data": "x", "headers": {"Colour": "blue"}})
    found = page.post("request", asked).json["replies"][0]
    assert (found["subject"], found["headers"]["Colour"]) == ("next.one", ["blue"])
    assert found["reply"].startswith("$JS.ACK.NEXT.c.1.1.1.")
    assert page.post("request", {"subject": found["reply"], "data": "+ACK"}).status == 200
    state = page.request("$JS.API.CONSUMER.INFO.NEXT.c")
    assert (state["ack_floor"]["stream_seq"], state["num_ack_pending"], state["num_waiting"]) == (1, 0, 0)


def test_replies_are_limited(plain: Server, page: Browser) -> None:
    page.request("$JS.API.STREAM.CREATE.LARGE", {"name": "LARGE", "subjects": ["large"], "allow_direct": True})
    for _ in range(9):
        page.post("publish", {"subject": "large", "data": "x" * 1_000_000})
    asked = {"subject": "$JS.API.DIRECT.GET.LARGE", "replies": "eob", "data": json.dumps({"seq": 1, "batch": 9})}
    reply = page.post("request", asked)
    assert (reply.status, "8388608" in reply.json["error"]) == (413, True)
    page.request("$JS.API.STREAM.DELETE.LARGE")


def test_permissions_are_those_of_the_user(users: Server) -> None:
    reader = logged_in(users, user="reader", password="secret-of-reader")
    reply = reader.post("request", {"subject": "not.allowed"})
    assert (reply.status, reply.json["error"]) == (403, 'Permissions Violation for Publish to "not.allowed"')
    assert reader.post("publish", {"subject": "not.allowed", "data": "x"}).status == 403
    assert reader.get("live?subject=not.allowed").json["error"] == (
        'Permissions Violation for Subscription to "not.allowed"'
    )
    assert reader.request("$JS.API.INFO")["streams"] == 0
    own = Browser(users)
    assert own.log_in(user="own", password="secret-of-own").status == 200
    assert own.post("request", {"subject": "x"}).status == 403
    assert own.log_in(user="own", password="secret-of-own", inbox="_INBOX_own").status == 200
    assert own.post("request", {"subject": "x"}).status == 503
    assert own.log_in(user="own", password="secret-of-own", inbox="a b").status == 400


def test_accounts_are_apart(users: Server) -> None:
    ann, bob = (logged_in(users, user=name, password=f"secret-of-{name}") for name in ("ann", "bob"))
    ann.request("$JS.API.STREAM.CREATE.OF_ANN", {"name": "OF_ANN", "subjects": ["of.ann"]})
    assert ann.post("publish", {"subject": "of.ann", "data": "x"}).json["ack"]["stream"] == "OF_ANN"
    assert bob.post("publish", {"subject": "of.ann", "data": "x"}).json == {}
    assert bob.request("$JS.API.STREAM.NAMES")["total"] == 0
    for name in ("varz", "jsz?streams=1&acc=A", "connz?acc=A&auth=1", "raftz?acc=A", "lakez?acc=A", "accountz?acc=A"):
        reply = bob.get(name)
        assert reply.status == 200, reply
        assert b"OF_ANN" not in reply.body
        assert b"ann" not in reply.body
        assert b'"A"' not in reply.body
    assert bob.get("routez").status == 403
    assert bob.get("healthz").json == {"status": "ok"}
    assert bob.get("jsz").json["streams"] == 0
    detail = ann.get("jsz?streams=1").json
    assert (detail["streams"], detail["account_details"][0]["stream_detail"][0]["name"]) == (1, "OF_ANN")
    assert [each["name"] for each in ann.get("lakez").json["streams"]] == ["OF_ANN"]
    assert "OF_ANN" in ann.get("varz").json["lake"]["lag"]
    sys = logged_in(users, user="sys", password="secret-of-sys")
    assert sys.get("jsz?accounts=1").json["streams"] >= 1
    assert sys.get("routez").json["num_routes"] == 0
    assert {each["account"] for each in sys.get("lakez").json["streams"]} == {"A"}


# ---------------------------------------------------------------------- live messages


def test_live_messages(plain: Server, page: Browser) -> None:
    events = page.live("tail.*", "other")
    assert events.answer.headers["content-type"] == "text/event-stream"
    wire = Wire(plain.address)
    wire.publish("tail.a", b"\xff\x00", reply="answer.here", headers={"A": "b"})
    wire.publish("elsewhere", b"no")
    wire.publish("other", b"two")
    found = iter(events)
    name, first = next(found)
    assert (name, first["subject"], first["reply"], first["headers"]) == (
        "message",
        "tail.a",
        "answer.here",
        {"A": ["b"]},
    )
    assert (b64decode(first["data_base64"]), first["size"]) == (b"\xff\x00", 2)
    assert first["time"].endswith("Z")
    assert next(found)[1]["subject"] == "other"
    wire.close()
    events.close()


def subjects_of(server: Server) -> list[str]:
    """Return the subjects to which the console subscribes."""
    connections = server.page("/connz?subs=1")["connections"]
    mine = [one for one in connections if one.get("name") == "lakestream console"]
    return [subject for one in mine for subject in one.get("subscriptions_list", ())]


def test_a_client_that_goes_away_is_unsubscribed(plain: Server, page: Browser) -> None:
    events = page.live("gone.away")
    assert "gone.away" in subjects_of(plain)
    events.close()
    until(lambda: "gone.away" not in subjects_of(plain))


def test_more_messages_than_a_page_shows_are_counted(plain: Server, page: Browser) -> None:
    events = page.live("flood")
    wire = Wire(plain.address)
    for _ in range(2_000):
        wire.publish("flood", b"x")
    wire.ping()
    shown = dropped = 0
    for name, event in events:
        shown += name == "message"
        dropped += event["count"] if name == "dropped" else 0
        if shown + dropped == 2_000:
            break
    assert 500 <= shown < 2_000
    wire.close()
    events.close()


def test_a_large_message_is_shown_in_part(plain: Server, page: Browser) -> None:
    events = page.live("large.live")
    wire = Wire(plain.address)
    wire.publish("large.live", b"x" * 1_000_000)
    _, event = next(iter(events))
    assert (len(b64decode(event["data_base64"])), event["size"]) == (65_536, 1_000_000)
    wire.close()
    events.close()


def test_a_client_that_does_not_read_holds_up_nobody(plain: Server, page: Browser) -> None:
    stuck = socket.create_connection((plain.host, plain.http_port))
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stuck.sendall(
        b"GET /console/api/live?subject=stuck HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nCookie: %b\r\n\r\n"
        % (plain.http_port, page.cookie.encode())
    )
    until(lambda: "stuck" in subjects_of(plain))
    wire = Wire(plain.address)
    before = plain.page("/varz")["mem"]
    for _ in range(1_000):
        wire.publish("stuck", b"x" * 60_000)
    wire.ping()
    assert plain.page("/varz")["slow_consumers"] == 0
    assert plain.page("/varz")["mem"] - before < 30 << 20
    assert page.request("$JS.API.INFO")["type"].endswith("account_info_response")
    stuck.close()
    until(lambda: "stuck" not in subjects_of(plain))
    wire.close()


def test_live_views_are_limited(page: Browser) -> None:
    held = [page.live("limit") for _ in range(4)]
    assert [each.answer.status for each in held] == [200] * 4
    assert page.get("live?subject=limit").status == 429
    held.pop().close()
    until(lambda: (again := page.live("limit")).answer.status == 200 and not again.close())
    for each in held:
        each.close()
    for query in ("live", "live?subject=", "live?subject=a%20b", "live?" + "&".join(["subject=a"] * 17)):
        assert page.get(query).status == 400
    assert page.get("live?" + "&".join(["subject=a"] * 16)).status == 429


def test_live_views_end_with_the_session(plain: Server) -> None:
    browser = Browser(plain)
    browser.begin()
    events = iter(browser.live("ends"))
    browser.post("logout")
    assert [name for name, _ in events] == ["end"]
