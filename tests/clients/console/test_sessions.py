"""Tests of the console's sessions and logins through the real socket."""

from __future__ import annotations

import json

import pytest

from tests.certificates import PLACE, client_context
from tests.clients.console.world import OWNER, USERS, Start, logged_in
from tests.conformance.remotes import wait
from tests.console import Browser
from tests.keys import Operator, user_key
from tests.servers import Server

pytestmark = pytest.mark.conformance


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
