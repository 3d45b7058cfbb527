"""Tests of rows by permission through each way in: SQL shows a user the messages that it could receive."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.test_sql_over_nats import Result, Session
from tests.servers import Kind, Server
from tests.sql_escapes import ROWS, TELLING
from tests.wire import Wire

pytestmark = pytest.mark.conformance

CONFIG = """
accounts {
  A { jetstream: enabled, users: [
      { user: ann, password: pw }
      { user: eu, password: pw, permissions {
        subscribe { allow: ["orders.eu.>", "$KV.conf.eu.>", "$JS.API.>", "_INBOX.>"], deny: "orders.*.secret" } } }
      { user: mute, password: pw, permissions { subscribe: "_INBOX.>" } }
      { user: worker, password: pw, permissions { subscribe: ["_INBOX.>", "orders.us.> workers"] } } ]
    exports: [{ service: "$LAKE.API.SQL", response: stream }, { stream: "orders.>" }] }
  B { jetstream: enabled, users: [{ user: bob, password: pw }] }
  C { users: [
      { user: cid, password: pw }
      { user: part, password: pw, permissions { subscribe: ["theirs.us.>", "orders.>", "_INBOX.>"] } } ]
    imports: [{ service: { account: A, subject: "$LAKE.API.SQL" }, to: "ask.a" }
              { stream: { account: A, subject: "orders.>" }, to: "theirs.>" }] }
}
lake { seal_age: "1h" }
sql { ROWS max_concurrent: 4, max_account_concurrent: 4 }
"""
MESSAGES = [
    ("orders.eu.1", b"1"),
    ("orders.eu.2", b'{"a": 2}'),
    ("orders.us.3", b"SECRET-3"),
    ("orders.us.4", b"SECRET-4"),
    ("orders.eu.1", b"5"),
    ("orders.eu.secret", b"SECRET-6"),
]
LOGIN = {"user": "ann", "pass": "pw"}
SEEN = {"ann": [1, 2, 3, 4, 5, 6], "eu": [1, 2, 5], "mute": [], "worker": [3, 4]}


def fill(server: Server, user: str, seqs: list[int]) -> None:
    """Store the messages in a stream ORDERS of the user's account, and delete those of other sequences."""
    wire = Session(server, user).wire
    wire.api("STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"], "storage": "file"})
    for subject, data in MESSAGES:
        wire.request(subject, data)
    for seq in {*range(1, len(MESSAGES) + 1)} - {*seqs}:
        wire.api("STREAM.MSG.DELETE.ORDERS", {"seq": seq})
    wire.close()


@contextlib.contextmanager
def serving(store: Path, rows: str = "") -> Iterator[Server]:
    server = Server(Kind.OURS, store, config=CONFIG.replace("ROWS", rows), args=["-m", "-1"])
    server.start()
    try:
        fill(server, "ann", SEEN["ann"])
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server whose accounts A and B have a stream ORDERS: that of B has the rows that `eu` sees."""
    with serving(tmp_path_factory.mktemp("rows") / "store") as server:
        fill(server, "bob", SEEN["eu"])
        yield server


def seqs(found: Result) -> list[Any]:
    assert not found.code, found.end
    return [row["seq"] for row in found.rows]


def _timeless(value: Any) -> Any:
    """Return a value without the times of messages in it: those of two streams differ."""
    if isinstance(value, list):
        return [_timeless(each) for each in value]
    if isinstance(value, dict):
        return {name: None if name in ("time", "time_ns") else _timeless(each) for name, each in value.items()}
    return value


def outcome(found: Result) -> Any:
    """Return what a user learns from an answer, without the times of messages."""
    shown = [_timeless(row) for row in found.rows]
    error = found.end.get("Lake-Sql-Error", "")
    columns = None if found.code else found.head["columns"]  # of an error only if the query takes its time
    return columns, sorted(map(repr, shown)), found.code, error


@pytest.mark.parametrize("user", SEEN)
def test_a_user_sees_the_rows_that_it_may_subscribe_to(server: Server, user: str) -> None:
    asked = Session(server, user)
    assert seqs(asked.ask("SELECT seq FROM ORDERS ORDER BY seq")) == SEEN[user]
    assert asked.ask("SELECT count(*) AS n FROM ORDERS").rows == [{"n": len(SEEN[user])}]
    named = Session(server, user).ask("SELECT seq FROM ORDERS ORDER BY seq", "$LAKE.API.SQL.ORDERS")
    assert seqs(named) == SEEN[user]
    last = [seq for seq in SEEN[user] if seq != 1]
    assert seqs(asked.ask("SELECT seq FROM last(ORDERS) ORDER BY seq")) == last
    assert seqs(asked.ask("SELECT seq FROM as_of(ORDERS, '2100-01-01') ORDER BY seq")) == SEEN[user]


def test_the_users_of_an_importing_account_see_what_it_imports_under_its_own_names(server: Server) -> None:
    query = "SELECT seq FROM ORDERS ORDER BY seq"
    assert seqs(Session(server, "cid").ask(query, "ask.a")) == SEEN["ann"]
    assert seqs(Session(server, "part").ask(query, "ask.a")) == [3, 4]


def test_a_header_does_not_change_who_asks(server: Server) -> None:
    wire = Session(server, "eu").wire
    sid = wire.subscribe(inbox := wire.new_reply())
    query = b"SELECT seq FROM ORDERS ORDER BY seq"
    wire.publish("$LAKE.API.SQL", query, inbox, {"Lake-Sql-Requester": "{}"})
    assert wire.delivered(sid).headers["Lake-Sql-Part"] == "columns"
    assert [json.loads(line)["seq"] for line in wire.delivered(sid).data.splitlines()] == SEEN["eu"]


def test_whole_streams_are_shown_where_the_configuration_says_so(tmp_path: Path) -> None:
    with serving(tmp_path / "store", "row_permissions: false,") as server:
        assert seqs(Session(server, "mute").ask("SELECT seq FROM ORDERS ORDER BY seq")) == SEEN["ann"]


def test_spark_is_refused(server: Server) -> None:
    found = Session(server, "eu").ask({"sql": "SELECT 1", "engine": "spark"})
    assert found.code == 403, found.end
    assert "Spark" in found.end["Nats-Service-Error"]


TOKENS = ("a", "b", "c")
GROUPS = ("q", "other")


def random_permissions(chance: random.Random) -> dict[str, list[str]]:
    """Return rules for subscribing, also for queue groups."""

    def entry(*first: str) -> str:
        tokens = [*first, *(chance.choice([*TOKENS, "*"]) for _ in range(chance.randint(1, 3)))]
        tokens += [">"] if chance.random() < 0.4 else []
        return ".".join(tokens) + (f" {chance.choice(GROUPS)}" if chance.random() < 0.25 else "")

    allow = [entry() for _ in range(chance.randint(0, 3))]
    rules = {
        "allow": allow and [*allow, "_INBOX.>"],
        "deny": [entry(chance.choice(TOKENS)) for _ in range(chance.randint(0, 2))],
    }
    return {name: entries for name, entries in rules.items() if entries}


@pytest.mark.live
@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(4))
def test_sql_shows_what_a_real_server_delivers(tmp_path: Path, seed: int) -> None:
    """Each subject is subscribed to by itself, in no queue group and in each."""
    chance = random.Random(seed)
    users = {f"u{number}": random_permissions(chance) for number in range(8)}
    rules = [
        f"{{ user: {name}, password: pw, permissions {{ subscribe: {json.dumps(rule)} }} }}"
        for name, rule in users.items()
    ]
    config = f"authorization {{ users: [{{ user: ann, password: pw }}, {', '.join(rules)}] }}\n"
    subjects = sorted({".".join(chance.choices(TOKENS, k=chance.randint(1, 4))) for _ in range(30)})
    received: dict[str, set[str]] = {}
    real = Server(Kind.REAL, tmp_path / "real", config=config)
    ours = Server(Kind.OURS, tmp_path / "ours", config=f"{config}lake {{ seal_age: 1h }}\nsql: true\n")
    try:
        real.start()
        ours.start()
        for user in users:
            with Wire(real.address, {"user": user, "pass": "pw"}) as wire, Wire(real.address, LOGIN) as publisher:
                for subject in subjects:
                    for group in ("", *GROUPS):
                        wire.subscribe(subject, group)
                wire.ping()
                for subject in subjects:
                    publisher.publish(subject)
                publisher.ping()
                received[user] = {frame.subject for frame in wire.ping() if frame.verb == "MSG"}
        wire = Session(ours).wire
        wire.api("STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": [f"{token}.>" for token in TOKENS] + [*TOKENS]})
        for subject in subjects:
            wire.request(subject, b"")
        for user in users:
            found = Session(ours, user).ask("SELECT subject FROM ORDERS")
            assert {row["subject"] for row in found.rows} == received[user], users[user]
    finally:
        real.kill()
        ours.kill()


@pytest.mark.parametrize("query", [*ROWS[:: len(ROWS) // 12], *TELLING[:2]])
def test_no_query_tells_of_other_rows_of_staged_messages(server: Server, query: str) -> None:
    found = Session(server, "eu").ask(query)
    if query in TELLING:
        assert found.code == 403
    else:
        assert outcome(found) == outcome(Session(server, "bob").ask(query))


@pytest.mark.heavy
@pytest.mark.parametrize("query", ROWS)
def test_no_query_tells_of_other_rows(server: Server, query: str) -> None:
    if "VERSION AS OF" not in query:  # there is no table yet
        assert outcome(Session(server, "eu").ask(query)) == outcome(Session(server, "bob").ask(query))
