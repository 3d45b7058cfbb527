"""Tests of the console's page and of the monitoring pages that it shows, through the real socket."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.console.world import Start, logged_in
from tests.console import Browser
from tests.servers import Kind, Server, run_to_end

pytestmark = pytest.mark.conformance


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


# ---------------------------------------------------------------------- monitoring pages


def test_the_pages_of_the_server(plain: Server, page: Browser) -> None:
    page.request("$JS.API.STREAM.CREATE.SHOWN", {"name": "SHOWN", "subjects": ["shown"]})
    page.post("publish", {"subject": "shown", "data": "x"})
    assert page.get("varz").json["server_name"] == "under-test"
    assert page.get("connz?limit=1").json["limit"] == 1
    assert page.get("connz?limit=x").status == 400
    assert page.get("jsz?streams=1").json["account_details"][0]["name"] == "$G"
    assert page.get("healthz").json == {"status": "ok"}
    assert page.get("raftz").json == {}
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
