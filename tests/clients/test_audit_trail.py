"""Tests of the audit trail: what is noted, its chain and signatures, and what `lakestream verify --audit` finds."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lakestream_verify.audit_check import AuditMessage, check
from tests.clients.test_sql_over_nats import Session
from tests.console import Browser
from tests.docs.blocks import ROOT
from tests.servers import Kind, Server, encrypting

pytestmark = pytest.mark.conformance

CONFIG = """
accounts { A { jetstream: enabled, users: [{ user: ann, password: pw }, { user: bob, password: pw }] } }
lake { seal_age: "1h" }
sql: true
audit { max_bytes: 10MB }
"""
LOGIN = ["--user", "ann", "--password", "pw"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(Kind.OURS, tmp_path / "store", config=CONFIG, args=["-m", "-1"])
    server.start()
    yield server
    server.kill()


def messages(server: Server, least: int = 0) -> list[AuditMessage]:
    """Return the entries, once there are so many."""
    wire = Session(server).wire
    deadline = time.monotonic() + 30
    while True:
        info = wire.api("STREAM.INFO.LAKE_AUDIT")
        last = info["state"]["last_seq"] if "state" in info else 0
        if last >= least:
            break
        assert time.monotonic() < deadline, [(e["kind"], e["what"]) for e in entries(messages(server))]
        time.sleep(0.05)
    found = []
    for seq in range(1, last + 1):
        message = wire.api("STREAM.MSG.GET.LAKE_AUDIT", {"seq": seq})["message"]
        fields = dict(
            line.split(": ", 1) for line in base64.b64decode(message["hdrs"]).decode().split("\r\n") if ": " in line
        )
        body = base64.b64decode(message["data"])
        found.append(AuditMessage(seq, body, fields["Lake-Audit-Key"], fields["Lake-Audit-Signature"]))
    wire.close()
    return found


def some(server: Server) -> list[AuditMessage]:
    """Do what makes five entries; return them."""
    asked = Session(server, "bob")
    for number in range(5):
        asked.ask(f"SELECT {number}")
    return messages(server, 5)


def entries(found: list[AuditMessage]) -> list[dict[str, Any]]:
    return [json.loads(each.body) for each in found]


def without_outcomes(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in found if each["what"].get("event") != "sql"]


def test_who_asked_and_changed_what_is_noted(server: Server) -> None:
    ann, bob = Session(server), Session(server, "bob")
    ann.fill("ORDERS", 2)
    bob.ask("SELECT count(*) FROM ORDERS")
    bob.wire.api("STREAM.MSG.GET.ORDERS", {"seq": 1})
    bob.wire.api("STREAM.INFO.ORDERS")
    assert bob.wire.request("$JS.API.DIRECT.GET.NONE", b'{"last_by_subj": "x"}').status == 503
    bob.wire.api("STREAM.DELETE.NONE")
    bob.wire.publish("$LAKE.EVENT.sharing", b'{"table": "ORDERS"}')
    ann.wire.publish(
        "$JS.EVENT.ADVISORY.API", b'{"subject": "$JS.API.STREAM.DELETE.ORDERS", "client": {"user": "bob"}}'
    )
    found = without_outcomes(entries(messages(server, 6)))[:5]
    told = [(each["kind"], each["who"]["user"], each["what"]) for each in found]
    assert [each[:2] for each in told] == [
        ("api", "ann"),
        ("sql", "bob"),
        ("read", "bob"),
        ("api", "bob"),
        ("event", "bob"),
    ]
    assert told[0][2]["request"] == "$JS.API.STREAM.CREATE.ORDERS"
    assert told[1][2]["sql"] == "SELECT count(*) FROM ORDERS"
    assert told[2][2] == {"request": "$JS.API.STREAM.MSG.GET.ORDERS", "body": '{"seq": 1}'}
    assert told[3][2]["failed"]
    assert told[4][2] == {"event": "sharing", "told": {"table": "ORDERS"}}
    assert "DELETE.ORDERS" not in str(entries(messages(server)))


def test_the_outcome_of_a_query_is_noted(server: Server) -> None:
    """By the reply subject of its request; of an error the code alone, since its text may have values of rows."""
    asked = Session(server, "bob")
    asked.ask("SELECT * FROM range(3)")
    asked.ask("SELECT CAST('SECRET' AS INT)")
    asked.ask({"sql": "SELECT 1", "max_rows": -1})
    found = entries(messages(server, 6))
    replies = [each["what"]["reply"] for each in found if each["kind"] == "sql"]
    assert all(each["who"]["user"] == "bob" for each in found if each["kind"] == "sql")
    outcomes = {e["what"]["told"].pop("reply"): (e["who"], e["what"]["told"]) for e in found if e["kind"] == "event"}
    server_itself = {"server": "under-test"}
    assert outcomes[replies[0]][0] == server_itself
    assert outcomes[replies[0]][1].pop("bytes") > 0
    assert [outcomes[reply] for reply in replies] == [
        (server_itself, {"rows": 3}),
        (server_itself, {"error": 400}),
        (server_itself, {"error": 400}),
    ]


def test_the_query_of_the_page_shows_who_asked(server: Server) -> None:
    (query,) = re.findall(r"```sql\n(.*?FROM LAKE_AUDIT.*?)```", (ROOT / "docs/security.md").read_text(), re.DOTALL)
    Session(server, "bob").ask("SELECT 1 AS mine")
    messages(server, 2)
    rows = Session(server).ask(query).rows
    assert [(row["who"], row["query"]) for row in rows][-1] == ("bob", "SELECT 1 AS mine"), rows
    assert rows[-1]["time"].startswith("20")


def test_queries_of_the_console_and_their_outcome_are_noted(server: Server) -> None:
    browser = Browser(server)
    browser.log_in(user="bob", password="pw")
    for query in ("SELECT 1", "SELECT CAST('SECRET' AS INT)"):
        browser.post("sql", {"query": query})
    told = [each["what"]["told"] for each in entries(messages(server, 4)) if each["kind"] == "event"]
    first, then, second, last = told
    assert [each["sql"] for each in (first, second)] == ["SELECT 1", "SELECT CAST('SECRET' AS INT)"]
    assert first["user"] == second["user"] == "bob"
    assert (then["id"], last) == (first["id"], {"id": second["id"], "error": 400})
    assert then["bytes"] > 0


def test_a_key_of_the_trail_outlives_the_beginning_of_encryption(server: Server) -> None:
    some(server)
    server.stop()
    server.config = encrypting(CONFIG, "a key")
    server.start()
    Session(server).ask("SELECT 1 AS encrypted")
    found = messages(server, 1)
    deadline = time.monotonic() + 30
    while not any(b"encrypted" in each.body for each in found):
        assert time.monotonic() < deadline, server.log(20)
        found = messages(server, len(found) + 1)
    seen = check(found)
    assert (seen.wrong, len(seen.keys)) == ([], 1)


def test_the_trail_is_a_chain_over_restarts(server: Server) -> None:
    before = some(server)
    server.stop()
    server.start()
    Session(server).ask("SELECT 1 AS after_restart")
    found = check(messages(server, len(before) + 1))
    assert found.wrong == []
    assert (len(found.ends), len(found.keys)) == (2, 1)
    seed = next(Path(server.store).rglob("audit.seed"))
    assert seed.stat().st_mode & 0o777 == 0o600


def test_what_was_changed_left_out_or_forged_is_found(server: Server) -> None:
    found = some(server)
    assert check(found).ok
    for at in range(1, len(found) - 1):
        assert not check([*found[:at], *found[at + 1 :]]).ok
    changed = msgspec.structs.replace(found[2], body=found[2].body.replace(b"bob", b"ann"))
    assert "not what the server has signed" in check([*found[:2], changed, *found[3:]]).wrong[0]
    unsigned = msgspec.structs.replace(found[2], key="", signature="")
    assert "no server's signature" in check([*found, unsigned]).wrong[0]
    assert not check([*found, found[2]]).ok
    assert not check([found[1], found[0], *found[2:]]).ok
    ends = check(found).ends.values()
    assert check(found, check(found).keys, ends).ok
    assert not check(found, ["NAAA"]).ok
    assert "is not there" in check(found[:-1], expected=ends).wrong[0]


def test_the_stream_is_not_purged(server: Server) -> None:
    some(server)
    wire = Session(server).wire
    assert "error" in wire.api("STREAM.PURGE.LAKE_AUDIT")
    assert "error" in wire.api("STREAM.MSG.DELETE.LAKE_AUDIT", {"seq": 1})


def test_the_command_verifies_it(server: Server) -> None:
    def run(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "lakestream", "verify", server.url, "--audit", *LOGIN, *more]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    some(server)
    found = run("--json")
    assert found.returncode == 0, found.stderr
    shown = json.loads(found.stdout)
    assert shown["ok"]
    assert shown["entries"] >= 5
    assert "signed by N" in run("--key", shown["keys"][0]).stdout
    Session(server).wire.request("$LAKE.AUDIT.sql", b'{"chain": "x"}')
    found = run()
    assert found.returncode == 1
    assert "no server's signature" in found.stderr


def test_a_deleted_stream_is_made_again_and_its_deletion_is_in_it(server: Server) -> None:
    some(server)
    Session(server).wire.api("STREAM.DELETE.LAKE_AUDIT")
    found, deadline = messages(server, 1), time.monotonic() + 30
    while "$JS.API.STREAM.DELETE.LAKE_AUDIT" not in [each["what"].get("request") for each in entries(found)]:
        assert time.monotonic() < deadline, entries(found)
        found = messages(server, len(found) + 1)
    assert "whose beginning is missing" in check(found).wrong[0]
