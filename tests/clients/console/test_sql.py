"""Tests of the console's SQL through the real socket: answers, confinement, limits."""

from __future__ import annotations

import threading
import time
from base64 import b64decode

import psutil
import pytest

from tests.clients.console.world import OWNER, USERS, Start, logged_in, until
from tests.console import Browser, Reply
from tests.servers import Server
from tests.sql_escapes import SOME_FIRST

pytestmark = pytest.mark.conformance


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
    reply = sql(analyst, "SELECT seq, json->>'n' AS n FROM ORDERS ORDER BY seq")
    assert reply.status == 200, reply
    assert reply.json["columns"] == [{"name": "seq", "type": "BIGINT"}, {"name": "n", "type": "VARCHAR"}]
    assert reply.json["rows"] == [[1, "0"], [2, "1"], [3, "2"], [4, "3"]]
    assert reply.json["truncated"] is False
    assert reply.json["elapsed_ms"] >= 0
    assert sql(analyst, "SELECT count(*) FROM as_of('ORDERS', now())").json["rows"] == [[4]]
    assert sql(analyst, "SHOW TABLES").json["rows"][0][0] == "delta.`streams/ORDERS`"


def test_values_are_exact(analyst: Browser) -> None:
    time_of = "TIMESTAMPTZ '2026-01-02 03:04:05Z'"
    reply = sql(analyst, f"SELECT 9007199254740993 a, 0.1 b, 'x'::BLOB c, MAP {{'k': [1]}} d, {time_of} e")
    row = reply.json["rows"][0]
    assert (row[0], row[1], row[3], row[4]) == ("9007199254740993", "0.1", {"k": [1]}, "2026-01-02T03:04:05+00:00")
    assert b64decode(row[2]) == b"x"


@pytest.mark.parametrize(
    "query",
    [
        *SOME_FIRST,
        "SELECT * FROM csv.`/etc/passwd`",
        "SELECT * FROM (WITH `/etc/passwd` AS (SELECT 1) SELECT * FROM `/etc/passwd`) a, `/etc/passwd`",
        "SELECT * FROM sqlite_master",
        "DROP TABLE x",
        "UPDATE delta.`streams/ORDERS` SET seq = 1",
        "SELECT",
    ],
)
def test_queries_of_anything_else_are_refused(shop: Server, analyst: Browser, query: str) -> None:
    reply = sql(analyst, query.replace("{lake}", str(shop.store / "lake")))
    assert reply.status == 400, reply
    assert not any(word in reply.json["error"] for word in (f"{shop.store}/jetstream", "root:"))
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
    assert "a row has more than 8,388,608 bytes" in sql(analyst, "SELECT repeat('x', 9000000)").json["error"]
    empty = sql(analyst, "SELECT 1 AS a, 'x' AS a WHERE false").json
    assert (empty["rows"], [each["name"] for each in empty["columns"]]) == ([], ["a", "a"])
    assert sql(analyst, "SELECT 1 AS a, 'a\nb' AS a").json["rows"] == [[1, "a\nb"]]
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
    return [child.pid for child in own.children() if "lakestream_sql.child" in child.cmdline()]


@pytest.mark.heavy
def test_processes_are_shared_limited_and_end_with_their_queries(starts: Start) -> None:
    server = starts()
    browsers = [Browser(server) for _ in range(6)]
    for browser in browsers:
        browser.begin()
        assert sql(browser, "SELECT 1").status == 200
    assert len(children(server)) == 1  # of the account, for one session after the other
    endless = "SELECT count(*) FROM range(10000000000) a, range(1000000) b"
    replies: list[Reply] = []
    running = [
        threading.Thread(target=lambda one: replies.append(sql(one, endless)), args=(browser,))
        for browser in browsers[2:]
    ]
    for each in running:
        each.start()
    until(lambda: len(children(server)) == 4)
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


@pytest.mark.heavy
def test_a_query_is_cancelled(shop: Server, analyst: Browser) -> None:
    assert analyst.post("cancel").json == {"cancelled": False}
    replies: list[Reply] = []
    endless = "SELECT count(*) FROM range(10000000000) a, range(1000000) b"
    other = Browser(shop)
    other.cookie, other.csrf = analyst.cookie, analyst.csrf
    running = threading.Thread(target=lambda: replies.append(sql(other, endless)))
    running.start()
    until(lambda: analyst.post("cancel").json == {"cancelled": True})
    running.join()
    assert (replies[0].status, replies[0].json["error"]) == (409, "the query was cancelled")
    assert sql(analyst, "SELECT 1").json["rows"] == [[1]]
