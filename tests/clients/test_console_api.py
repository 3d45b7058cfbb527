"""Tests of the console's requests through the real socket: sessions, NATS, live messages, pages, SQL, and refusals."""

from __future__ import annotations

import json
import socket
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.certificates import PLACE, client_context
from tests.conformance.remotes import wait
from tests.console import Browser, Reply
from tests.keys import Operator, user_key
from tests.servers import Kind, Server, run_to_end
from tests.wire import Wire

pytestmark = pytest.mark.conformance

USERS = """
accounts {
  A { jetstream: enabled, users: [
    { user: ann, password: secret-of-ann }
    { user: reader, password: secret-of-reader,
      permissions { publish: ["$JS.API.>"], subscribe: ["_INBOX.>", "seen.>"] } }
    { user: own, password: secret-of-own, permissions { subscribe: ["_INBOX_own.>"] } }
    { nkey: %s } ] }
  B { jetstream: enabled, users: [{ user: bob, password: secret-of-bob }] }
  SYS { users: [{ user: sys, password: secret-of-sys }] }
}
system_account: SYS
"""
OWNER = user_key("console")


Start = Callable[..., Server]


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Return a function that starts a server with a monitoring port."""
    started: list[Server] = []

    def start(config: str | None = None, *args: str, monitor: str = "-m", **options: Any) -> Server:
        store = tmp_path_factory.mktemp("console") / "store"
        server = Server(Kind.OURS, store, config=config, args=[monitor, "-1", *args], **options)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.kill()


@pytest.fixture(scope="module")
def plain(starts: Start) -> Server:
    """Return a server whose clients need no login."""
    return starts()


@pytest.fixture(scope="module")
def users(starts: Start) -> Server:
    """Return a server with accounts and users."""
    return starts(USERS % OWNER.public)


@pytest.fixture
def page(plain: Server) -> Iterator[Browser]:
    """Yield a browser with a session on the server without logins."""
    browser = Browser(plain)
    assert browser.begin().status == 200
    yield browser
    browser.post("logout")


def logged_in(server: Server, **credentials: str) -> Browser:
    """Return a browser that has logged in."""
    browser = Browser(server)
    reply = browser.log_in(**credentials)
    assert reply.status == 200, reply
    return browser


def data(reply: Reply, index: int = 0) -> bytes:
    """Return the payload of one of the replies of a request."""
    return b64decode(reply.json["replies"][index]["data_base64"])


# ---------------------------------------------------------------------- the page and its files


def test_the_page_is_served_with_headers_that_confine_it(plain: Server) -> None:
    reply = Browser(plain).ask("GET", "/console")
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'self'" in reply.headers["content-security-policy"]
    assert "unsafe" not in reply.headers["content-security-policy"]
    assert reply.headers["x-frame-options"] == "DENY"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in reply.headers
    again = Browser(plain).ask("GET", "/console", headers={"If-None-Match": reply.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    assert Browser(plain).ask("HEAD", "/console").body == b""


@pytest.mark.parametrize(
    "path",
    [
        "/console/static/../console.py",
        "/console/static/..%2fconsole.py",
        "/console/static/%2e%2e/console.py",
        "/console/static//etc/passwd",
        "/console/static/",
        "/console/static",
        "/console/index.html",
        "/console/../varz",
        "/console/static/..\\console.py",
        "/console/static/index.html%00.js",
    ],
)
def test_only_files_of_the_console_are_served(plain: Server, path: str) -> None:
    assert Browser(plain).ask("GET", path).status == 404


def test_the_page_is_read_and_not_written(plain: Server) -> None:
    reply = Browser(plain).ask("POST", "/console", b"")
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")


def test_it_can_be_turned_off(starts: Start) -> None:
    server = starts(None, "--no_console")
    assert Browser(server).ask("GET", "/console").status == 404
    assert Browser(server).get("session").status == 404
    assert server.page("/healthz") == {"status": "ok"}
    server.kill()


def test_a_wrong_setting_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wrong.conf").write_text("console { sessions: 3 }")
    done = run_to_end(Kind.OURS, "-c", str(tmp_path / "wrong.conf"), "-t")
    assert done.returncode == 1
    assert "sessions" in done.stdout + done.stderr


def test_it_follows_the_base_path(starts: Start) -> None:
    server = starts("http_base_path: /nats")
    browser = Browser(server)
    assert browser.ask("GET", "/nats/console").status == 200
    reply = browser.ask("GET", "/nats/console/api/session")
    assert reply.status == 200
    assert "Path=/nats/console;" in reply.headers["set-cookie"]
    assert browser.ask("GET", "/console").status == 404
    server.kill()


# ---------------------------------------------------------------------- sessions


def test_a_session_begins_by_itself_where_clients_need_no_login(plain: Server) -> None:
    browser = Browser(plain)
    first = browser.begin()
    assert first.status == 200
    assert first.json.items() >= {
        "user": "", "account": "$G", "auth_required": False, "server": "under-test", "jetstream": True, "lake": True,
    }.items()  # fmt: skip
    cookie = first.headers["set-cookie"]
    assert cookie.startswith(f"lakestream_console_{plain.http_port}=")
    assert {"HttpOnly", "SameSite=Strict", "Path=/console"} <= {part.strip() for part in cookie.split(";")}
    assert "Secure" not in cookie
    assert len(browser.cookie.partition("=")[2]) == 43  # 256 bits in base64
    again = browser.begin()
    assert "set-cookie" not in again.headers
    assert again.json == first.json


def test_a_session_is_a_client_connection(plain: Server, page: Browser) -> None:
    mine = [one for one in plain.page("/connz?subs=1")["connections"] if one.get("name") == "lakestream console"]
    assert mine
    assert {(one["kind"], one["type"], one["ip"]) for one in mine} == {("Client", "nats", "127.0.0.1")}
    count = len(mine)
    other = Browser(plain)
    other.begin()
    assert plain.page("/connz")["num_connections"] >= count + 1
    assert other.post("logout").status == 200
    assert other.post("request", {"subject": "x"}).status == 401
    names = [one.get("name") for one in plain.page("/connz")["connections"]]
    assert names.count("lakestream console") == count


def test_without_a_session_there_is_nothing(plain: Server) -> None:
    for browser in (Browser(plain), Browser(plain)):
        browser.csrf = "x"
        for name in ("request", "publish", "sql", "logout"):
            reply = browser.post(name, {"subject": "x"})
            assert (reply.status, reply.json["auth_required"]) == (401, True)
        for name in ("varz", "jsz", "connz", "routez", "raftz", "lakez", "healthz", "accountz", "live?subject=a"):
            assert browser.get(name).status == 401
        browser.cookie = f"lakestream_console_{plain.http_port}=" + "A" * 43


@pytest.mark.parametrize(
    ("headers", "status", "words"),
    [
        ({"X-Lakestream-Csrf": None}, 403, "X-Lakestream-Csrf"),
        ({"X-Lakestream-Csrf": "A" * 43}, 403, "X-Lakestream-Csrf"),
        ({"Content-Type": "text/plain"}, 415, "application/json"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "application/json"),
        ({"Origin": "http://evil.example"}, 403, "other origins"),
        ({"Origin": "null"}, 403, "other origins"),
        ({"Origin": "http://127.0.0.1:1"}, 403, "other origins"),
        ({"Sec-Fetch-Site": "cross-site"}, 403, "other origins"),
        ({"Sec-Fetch-Site": "same-site"}, 403, "other origins"),
    ],
)
def test_requests_of_other_pages_are_refused(
    page: Browser, headers: dict[str, str | None], status: int, words: str
) -> None:
    reply = page.ask("POST", "/console/api/request", {"subject": "$JS.API.INFO"}, headers)
    assert reply.status == status
    assert words in reply.json["error"]
    assert page.request("$JS.API.INFO")["type"].endswith("account_info_response")


def test_a_request_of_the_page_itself_is_taken(plain: Server, page: Browser) -> None:
    own = {"Origin": f"http://127.0.0.1:{plain.http_port}", "Sec-Fetch-Site": "same-origin"}
    assert page.ask("POST", "/console/api/request", {"subject": "$JS.API.INFO"}, own).status == 200


def test_pages_of_other_origins_begin_no_session(plain: Server) -> None:
    before = plain.page("/varz")["total_connections"]
    assert Browser(plain).get("session", **{"Sec-Fetch-Site": "cross-site"}).status == 403
    assert Browser(plain).get("session", Origin="http://evil.example").status == 403
    assert plain.page("/varz")["total_connections"] == before


def test_without_a_login_only_names_of_this_machine_are_served(starts: Start, plain: Server) -> None:
    for host in ("evil.example", f"evil.example:{plain.http_port}", "127.0.0.1.evil.example", ""):
        reply = Browser(plain).get("session", Host=host)
        assert (reply.status, "allowed_hosts" in reply.json["error"]) == (403, True)
    for host in ("localhost", "127.0.0.1:80", "[::1]:8222"):
        assert Browser(plain).get("session", Host=host).status == 200
    server = starts('console { allowed_hosts: ["nats.example"] }')
    assert Browser(server).get("session", Host="NATS.example:8222").status == 200
    assert Browser(server).get("session", Host="evil.example").status == 403
    server.kill()


def test_sessions_without_a_login_make_room_for_others(starts: Start) -> None:
    server = starts()
    first = Browser(server)
    first.begin()
    for _ in range(64):
        assert Browser(server).begin().status == 200
    assert first.post("request", {"subject": "x"}).status == 401
    names = [one.get("name") for one in server.page("/connz")["connections"]]
    assert names.count("lakestream console") == 64
    server.kill()


# ---------------------------------------------------------------------- logins


def test_users_log_in(users: Server) -> None:
    browser = Browser(users)
    refused = browser.begin()
    assert refused.status == 401
    assert refused.json == {"error": "log in", "auth_required": True, "kinds": ["user", "nkey"]}
    assert "set-cookie" not in refused.headers
    reply = browser.log_in(user="ann", password="secret-of-ann")
    assert reply.status == 200
    assert (reply.json["user"], reply.json["account"]) == ("ann", "A")
    assert browser.begin().json["user"] == "ann"
    other = logged_in(users, user="reader", password="secret-of-reader").begin().json
    assert other["permissions"]["publish"] == {"allow": ["$JS.API.>"]}
    by_key = logged_in(users, nkey=OWNER.seed).begin().json
    assert (by_key["user"], by_key["account"]) == (OWNER.public, "A")


def test_wrong_credentials_are_refused_in_the_words_of_nats(starts: Start) -> None:
    server = starts(USERS % OWNER.public)
    for wrong in (
        {"user": "ann", "password": "wrong"},
        {"user": "nobody", "password": "wrong"},
        {"token": "wrong"},
        {"nkey": user_key("stranger").seed},
    ):
        reply = Browser(server).log_in(**wrong)
        assert reply.status == 401
        assert reply.json["error"] == "Authorization Violation"
        assert "set-cookie" not in reply.headers
    for wrong in ({}, {"nkey": "SUWRONG"}, {"creds": "no creds"}):
        assert Browser(server).log_in(**wrong).status == 400
    assert Browser(server).post("login", b"{").status == 400
    assert Browser(server).post("login", {"user": 3}).status == 400
    assert Browser(server).post("login", b"x" * 70_000).status == 413
    server.kill()


def test_failed_logins_are_limited(starts: Start) -> None:
    server = starts(USERS % OWNER.public)
    for _ in range(10):
        assert Browser(server).log_in(user="ann", password="wrong").status == 401
    wait("the log lines", lambda: len(server.logged("authentication error")) == 10)
    reply = Browser(server).log_in(user="ann", password="secret-of-ann")
    assert (reply.status, reply.headers["retry-after"]) == (429, "60")
    server.stop()
    assert len(server.logged("authentication error")) == 10


def test_a_token(starts: Start) -> None:
    server = starts('authorization { token: "secret-token" }')
    assert Browser(server).begin().json["kinds"] == ["token"]
    assert Browser(server).log_in(token="secret").status == 401
    browser = logged_in(server, token="secret-token")
    assert browser.begin().json["user"] == ""
    assert browser.request("$JS.API.INFO")["streams"] == 0
    server.kill()


def test_credentials_of_an_operators_user(starts: Start) -> None:
    operator = Operator()
    server = starts(operator.config)
    assert Browser(server).begin().json["kinds"] == ["creds"]
    browser = logged_in(server, creds=operator.credentials)
    assert browser.begin().json["account_name"] == "A"
    assert browser.request("$JS.API.INFO")["streams"] == 0
    assert Browser(server).log_in(creds=Operator().credentials).status == 401
    server.kill()


def test_another_login_replaces_the_session(users: Server) -> None:
    browser = logged_in(users, user="ann", password="secret-of-ann")
    before = browser.cookie
    assert browser.log_in(user="bob", password="secret-of-bob").json["account"] == "B"
    assert browser.cookie != before
    browser.cookie = before
    assert browser.begin().status == 401


def test_a_reload_that_removes_the_user_ends_the_session(starts: Start) -> None:
    server = starts(USERS % OWNER.public)
    browser, other = (logged_in(server, user=name, password=f"secret-of-{name}") for name in ("ann", "bob"))
    events = iter(browser.live("x"))
    server.reload((USERS % OWNER.public).replace("secret-of-ann", "another"))
    assert [name for name, _ in events] == ["end"]
    reply = browser.post("request", {"subject": "$JS.API.INFO"})
    assert (reply.status, reply.json["auth_required"]) == (401, True)
    assert other.request("$JS.API.INFO")["streams"] == 0
    server.kill()


def test_secrets_are_neither_logged_nor_shown(starts: Start) -> None:
    server = starts(USERS % OWNER.public, "-DV")
    browser = logged_in(server, user="ann", password="secret-of-ann")
    key = logged_in(server, nkey=OWNER.seed)
    Browser(server).log_in(user="ann", password="secret-of-nobody")
    browser.request("$JS.API.INFO")
    shown = server.log() + json.dumps([server.page(path) for path in ("/varz", "/connz?auth=1&state=any&subs=1")])
    assert "lakestream console" in shown
    for secret in ("secret-of", OWNER.seed, *(each.cookie.partition("=")[2] for each in (browser, key)), browser.csrf):
        assert secret not in shown
    server.kill()


# ---------------------------------------------------------------------- https


def test_over_https_the_cookie_is_secure(starts: Start) -> None:
    server = starts(f'tls {{ cert_file: "{PLACE}/server.pem", key_file: "{PLACE}/server.key" }}', monitor="-ms")
    context = client_context(server.certificates)
    browser = Browser(server, secure=context)
    reply = browser.begin()
    assert reply.status == 200
    assert "Secure" in reply.headers["set-cookie"]
    assert browser.request("$JS.API.INFO")["streams"] == 0
    server.kill()


def test_where_clients_show_certificates_the_console_asks_to_be_allowed(starts: Start) -> None:
    tls = f'cert_file: "{PLACE}/server.pem", key_file: "{PLACE}/server.key", ca_file: "{PLACE}/ca.pem", verify: true'
    refused = Browser(server := starts(f"tls {{ {tls} }}")).begin()
    assert (refused.status, "without_certificate" in refused.json["error"]) == (403, True)
    server.kill()


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
            wire.ping()

    answering = threading.Thread(target=answer)
    answering.start()
    reply = page.post("request", {"subject": "many", "replies": 3})
    assert [data(reply, index) for index in range(3)] == [b"0", b"1", b"2"]
    fewer = page.post("request", {"subject": "many", "replies": 3, "timeout_ms": 300})
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
    assert bob.get("latencies").status == 403
    assert bob.get("healthz").json == {"status": "ok"}
    assert bob.get("jsz").json["streams"] == 0
    detail = ann.get("jsz?streams=1").json
    assert (detail["streams"], detail["account_details"][0]["stream_detail"][0]["name"]) == (1, "OF_ANN")
    assert [each["name"] for each in ann.get("lakez").json["streams"]] == ["OF_ANN"]
    assert "OF_ANN" in ann.get("varz").json["lake"]["lag"]
    sys = logged_in(users, user="sys", password="secret-of-sys")
    assert sys.get("jsz?accounts=1").json["streams"] >= 1
    assert sys.get("routez").json["num_routes"] == 0
    assert sys.get("latencies").status == 200
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


def until(condition: Callable[[], bool]) -> None:
    """Wait for what happens in the server."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


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


# ---------------------------------------------------------------------- monitoring


def test_the_pages_of_the_server(plain: Server, page: Browser) -> None:
    page.request("$JS.API.STREAM.CREATE.SHOWN", {"name": "SHOWN", "subjects": ["shown"]})
    page.post("publish", {"subject": "shown", "data": "x"})
    assert page.get("varz").json["server_name"] == "under-test"
    assert page.get("connz?limit=1").json["limit"] == 1
    assert page.get("connz?limit=x").status == 400
    assert page.get("jsz?streams=1").json["account_details"][0]["name"] == "$G"
    assert page.get("healthz").json == {"status": "ok"}
    assert page.get("raftz").json == {}
    latencies = page.get("latencies").json
    assert set(latencies) == {"lakestream_publish_ack_duration_seconds", "lakestream_log_sync_duration_seconds"}
    for name, histogram in latencies.items():
        assert 1 <= histogram["counts"][-1][1] <= histogram["count"], name
        assert f"\n{name}_count ".encode() in Browser(plain).ask("GET", "/metrics").body
    found = next(each for each in page.get("lakez?stream=SHOWN").json["streams"])
    assert found == {
        "account": "$G", "name": "SHOWN", "lag_msgs": 1, "lag_seconds": found["lag_seconds"], "position": 0,
    }  # fmt: skip


def test_lakez_over_nats(users: Server) -> None:
    ann = logged_in(users, user="ann", password="secret-of-ann")
    ann.request("$JS.API.STREAM.CREATE.LAKEZ", {"name": "LAKEZ", "subjects": ["lakez"]})
    sys = logged_in(users, user="sys", password="secret-of-sys")
    answer = sys.request("$SYS.REQ.SERVER.PING.LAKEZ", {"stream": "LAKEZ", "account": "A"})
    assert [each["name"] for each in answer["data"]["streams"]] == ["LAKEZ"]
    assert sys.request("$SYS.REQ.SERVER.PING.LAKEZ", {"stream": "LAKEZ", "account": "B"})["data"]["streams"] == []
    assert sys.request("$SYS.REQ.SERVER.PING.LAKEZ", [])["error"]["code"] == 400
    assert ann.post("request", {"subject": "$SYS.REQ.SERVER.PING.LAKEZ"}).status == 503


def test_lakez_and_raftz_on_the_monitoring_port(plain: Server, page: Browser) -> None:
    page.request("$JS.API.STREAM.CREATE.LAKEZ", {"name": "LAKEZ", "subjects": ["lakez"]})
    shown = plain.page("/lakez?stream=LAKEZ&commits=3")
    assert [each["name"] for each in shown["streams"]] == ["LAKEZ"]
    assert (shown["total"], shown["compactor"], shown["url"]) == (1, {"alive": False}, str(plain.store / "lake"))
    assert plain.page("/lakez?acc=NOBODY")["streams"] == []
    asked = Browser(plain).ask("GET", "/lakez?limit=x")
    assert asked.status == 400
    assert Browser(plain).ask("GET", "/raftz").body == b"No Raft nodes registered"


# ---------------------------------------------------------------------- SQL


@pytest.fixture(scope="module")
def shop(starts: Start) -> Server:
    """Return a server with streams of two accounts, of which nothing is compacted."""
    server = starts(USERS % OWNER.public)
    for name, user in (("ORDERS", "ann"), ("SECRET", "bob")):
        browser = logged_in(server, user=user, password=f"secret-of-{user}")
        browser.request(f"$JS.API.STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name.lower()}.>"]})
        for number in range(3):
            browser.post("publish", {"subject": f"{name.lower()}.{number}", "data": f'{{"n": {number}}}'})
    return server


@pytest.fixture(scope="module")
def analyst(shop: Server) -> Browser:
    """Return a browser of a user of the first account."""
    return logged_in(shop, user="ann", password="secret-of-ann")


def sql(browser: Browser, query: str, **limits: int) -> Reply:
    """Run a query."""
    return browser.post("sql", {"query": query, **limits})


def test_sql_reads_what_was_just_acknowledged(analyst: Browser) -> None:
    assert analyst.post("publish", {"subject": "orders.new", "data": '{"n": 3}'}).json["ack"]["seq"] == 4
    reply = sql(analyst, "SELECT seq, get_json_object(data, '$.n') AS n FROM delta.`streams/ORDERS` ORDER BY seq")
    assert reply.status == 200, reply
    assert reply.json["columns"] == [{"name": "seq", "type": "BIGINT"}, {"name": "n", "type": "VARCHAR"}]
    assert reply.json["rows"] == [[1, "0"], [2, "1"], [3, "2"], [4, "3"]]
    assert reply.json["truncated"] is False
    assert reply.json["elapsed_ms"] >= 0
    assert sql(analyst, "SELECT count(*) FROM as_of('ORDERS', now())").json["rows"] == [[4]]
    assert sql(analyst, "SHOW TABLES").json["rows"][0][0] == "delta.`streams/ORDERS`"


def test_values_are_exact(analyst: Browser) -> None:
    time_of = "TIMESTAMP '2026-01-02 03:04:05'"
    reply = sql(analyst, f"SELECT 9007199254740993 a, 0.1 b, CAST('x' AS BINARY) c, map('k', array(1)) d, {time_of} e")
    row = reply.json["rows"][0]
    assert (row[0], row[1], row[3], row[4]) == ("9007199254740993", "0.1", {"k": [1]}, "2026-01-02T03:04:05+00:00")
    assert b64decode(row[2]) == b"x"


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM delta.`streams/SECRET`",
        "SELECT * FROM delta.`accounts/B/streams/SECRET`",
        "SELECT * FROM delta.`streams/../../B/streams/SECRET`",
        "SELECT * FROM as_of('B/SECRET', now())",
        "DESCRIBE HISTORY delta.`accounts/B/streams/SECRET`",
        "SELECT * FROM delta.`/etc`",
        "SELECT * FROM delta.`s3://bucket/x`",
        "SELECT * FROM read_parquet('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_csv('https://example.com/x.csv')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM csv.`/etc/passwd`",
        "SELECT * FROM (WITH `/etc/passwd` AS (SELECT 1) SELECT * FROM `/etc/passwd`) a, `/etc/passwd`",
        "SELECT * FROM glob('/**')",
        "SELECT * FROM query('SELECT 1')",
        "SELECT * FROM query_table('x')",
        "SELECT * FROM delta_scan('/etc')",
        "SELECT * FROM duckdb_settings()",
        "SELECT * FROM as_of('ORDERS', (SELECT max(size) FROM read_text('/etc/passwd')))",
        "SELECT getenv('HOME')",
        "SELECT * FROM sqlite_master",
        "COPY (SELECT 1) TO '/tmp/x.csv'",
        "ATTACH '/tmp/x.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "PRAGMA database_list",
        "SET enable_external_access = true",
        "CREATE TABLE x AS SELECT 1",
        "DROP TABLE x",
        "INSERT INTO delta.`streams/ORDERS` VALUES (1)",
        "DELETE FROM delta.`streams/ORDERS`",
        "UPDATE delta.`streams/ORDERS` SET seq = 1",
        "CALL x()",
        "EXPORT DATABASE '/tmp/x'",
        "SELECT 1; SELECT 2",
        "SELECT",
        "",
        "(" * 5_000,
    ],
)
def test_queries_of_anything_else_are_refused(shop: Server, analyst: Browser, query: str) -> None:
    reply = sql(analyst, query)
    assert reply.status == 400, reply
    assert str(shop.store) not in reply.json["error"]
    assert "root:" not in reply.json["error"]
    assert sql(analyst, "SELECT 1").json["rows"] == [[1]]


@pytest.mark.heavy
def test_each_account_has_its_own_tables(shop: Server) -> None:
    bob = logged_in(shop, user="bob", password="secret-of-bob")
    assert sql(bob, "SELECT count(*) FROM delta.`streams/SECRET`").json["rows"] == [[3]]
    assert sql(bob, "SELECT count(*) FROM delta.`accounts/B/streams/SECRET`").json["rows"] == [[3]]
    assert sql(bob, "SELECT count(*) FROM delta.`streams/ORDERS`").status == 400
    assert [row[0] for row in sql(bob, "SHOW TABLES").json["rows"]] == ["delta.`streams/SECRET`"]


@pytest.mark.heavy
def test_a_user_reads_by_sql_what_it_may_read_over_nats(shop: Server) -> None:
    own = logged_in(shop, user="own", password="secret-of-own", inbox="_INBOX_own")
    assert sql(own, "SELECT count(*) FROM delta.`streams/ORDERS`").status == 200
    server_config = shop.config or ""
    denied = server_config.replace('subscribe: ["_INBOX_own.>"]', 'publish: { deny: "$JS.API.>" }')
    shop.reload(denied)
    try:
        denied_one = logged_in(shop, user="own", password="secret-of-own")
        reply = sql(denied_one, "SELECT count(*) FROM delta.`streams/ORDERS`")
        assert (reply.status, "$JS.API.STREAM.MSG.GET.ORDERS" in reply.json["error"]) == (403, True)
        assert sql(denied_one, "SHOW TABLES").status == 403
        assert sql(denied_one, "SELECT 1").status == 200
    finally:
        shop.reload(server_config)


def test_results_are_limited(analyst: Browser) -> None:
    reply = sql(analyst, "SELECT * FROM range(20000)")
    assert (len(reply.json["rows"]), reply.json["truncated"]) == (10_000, True)
    assert len(sql(analyst, "SELECT * FROM range(5)", max_rows=2).json["rows"]) == 2
    large = sql(analyst, "SELECT repeat('x', 1000000) FROM range(20)")
    assert (len(large.json["rows"]), large.json["truncated"]) == (8, True)
    assert sql(analyst, "SELECT 1 AS " + "x" * 70_000).status == 413


@pytest.mark.heavy
def test_a_query_that_takes_too_long_is_killed(shop: Server, analyst: Browser) -> None:
    endless = "SELECT count(*) FROM range(10000000000) a, range(1000000) b"
    began = time.monotonic()
    reply = sql(analyst, endless, timeout_ms=500)
    assert (reply.status, reply.json["error"]) == (504, "the query was stopped after 0.5 s")
    assert time.monotonic() - began < 10
    assert sql(analyst, "SELECT 1").json["rows"] == [[1]]


@pytest.mark.heavy
def test_a_query_that_needs_too_much_memory_fails(analyst: Browser) -> None:
    assert sql(analyst, "SELECT list(range) FROM range(500000000)").status in (400, 500)
    assert sql(analyst, "SELECT 1").json["rows"] == [[1]]


def children(server: Server) -> list[int]:
    """Return the process ids of the queries' processes."""
    assert server.process is not None
    own = psutil.Process(server.process.pid)
    return [child.pid for child in own.children() if "lakestream.lake.sql.child" in child.cmdline()]


@pytest.mark.heavy
def test_processes_are_limited_and_end_with_their_sessions(starts: Start) -> None:
    server = starts()
    browsers = [Browser(server) for _ in range(6)]
    for browser in browsers:
        browser.begin()
        assert sql(browser, "SELECT 1").status == 200
    processes = [psutil.Process(pid) for pid in children(server)]
    assert len(processes) == 4  # of the last four sessions
    used = {process: process.cpu_times().user for process in processes}
    endless = "SELECT count(*) FROM range(10000000000) a, range(1000000) b"
    replies: list[Reply] = []
    running = [
        threading.Thread(target=lambda one: replies.append(sql(one, endless)), args=(browser,))
        for browser in browsers[2:]
    ]
    for each in running:
        each.start()
    until(lambda: all(process.cpu_times().user > before + 0.1 for process, before in used.items()))
    assert sql(browsers[0], "SELECT 1").status == 503
    assert sql(browsers[2], "SELECT 1").status == 429
    assert server.page("/healthz") == {"status": "ok"}
    for browser in browsers:
        browser.post("logout")
    for each in running:
        each.join()
    assert [reply.status for reply in replies] == [401] * 4
    until(lambda: not children(server))
    last = Browser(server)
    last.begin()
    assert sql(last, "SELECT 1").status == 200
    for pid in children(server):
        psutil.Process(pid).kill()
    until(lambda: sql(last, "SELECT 1").status == 200)
    left = children(server)
    server.kill()
    until(lambda: not any(psutil.pid_exists(pid) for pid in left))


def test_without_a_lake_there_is_no_sql(starts: Start) -> None:
    server = starts(None, "--no-lake")
    browser = Browser(server)
    assert (browser.begin().json["lake"], browser.begin().json["sql"]) == (False, False)
    assert sql(browser, "SELECT 1").status == 503
    assert browser.get("lakez").json["disabled"] is True
    server.kill()
