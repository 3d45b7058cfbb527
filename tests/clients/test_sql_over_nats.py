"""Tests of SQL over NATS through the real socket: answers, flow control, limits, accounts, attacks."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyarrow as pa
import pytest

from lakestream_client import QueryFailed, connect
from tests.servers import Kind, Server
from tests.sql_escapes import SOME_FIRST
from tests.store_server import StoreServer
from tests.wire import Frame, Wire, WireTimeout

pytestmark = pytest.mark.conformance

CONFIG = """
accounts {
  A { jetstream: enabled, users: [
    { user: ann, password: pw }
    { user: none, password: pw, permissions { publish: { deny: "$LAKE.API.SQL" } } }
    { user: one, password: pw, permissions {
      publish: ["$LAKE.API.SQL.ORDERS", "$LAKE.API.SQL.FLOW.>", "$LAKE.API.SQL.CANCEL.*"] } } ] }
  B { jetstream: enabled, users: [{ user: bob, password: pw }] }
  C { jetstream: enabled, users: [{ user: cid, password: pw }] }
}
lake { seal_age: "1h" }
sql {
  max_time: 20s, max_rows: 200000, max_bytes: 3MB, max_concurrent: 3, max_account_concurrent: 2
  memory: 200MB, batch_bytes: 64KB, window: 2, ack_wait: 3s
}
"""
ENDLESS = "SELECT count(*) FROM range(10000000000) a, range(1000000) b"
WAIT_S = 90.0
CLOUDS = ["s3_server", "gcs_server", pytest.param("azure_server", marks=pytest.mark.heavy)]


class Result(NamedTuple):
    """The responses to a query: the first one, the batches, and the headers of the last one."""

    head: dict[str, Any]
    batches: list[bytes]
    end: dict[str, str]

    @property
    def code(self) -> int:
        """Return the code of the error; 0 for none."""
        return int(self.end.get("Nats-Service-Error-Code", "0"))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of lines of JSON."""
        return [json.loads(line) for line in b"".join(self.batches).splitlines()]


def part(frame: Frame) -> str:
    """Return the part of a result that a message is."""
    return frame.headers.get("Lake-Sql-Part", "")


class Session:
    """A client that asks queries."""

    def __init__(self, server: Server, user: str = "ann") -> None:
        self.wire = Wire(server.address, {"user": user, "pass": "pw"}, WAIT_S)

    def begin(self, query: str | dict[str, Any], subject: str = "$LAKE.API.SQL") -> str:
        """Send a query; return the id of the subscription to its responses."""
        inbox = self.wire.new_reply()
        sid = self.wire.subscribe(inbox)
        body = query if isinstance(query, str) else json.dumps(query)
        self.wire.publish(subject, body.encode(), inbox)
        return sid

    def ask(self, query: str | dict[str, Any], subject: str = "$LAKE.API.SQL") -> Result:
        """Ask a query, acknowledge its batches, and return the result."""
        return self.rest(self.begin(query, subject))

    def rest(self, sid: str, *, acknowledge: bool = True) -> Result:
        """Return the responses to a query."""
        head: dict[str, Any] = {}
        batches = []
        while part(frame := self.wire.delivered(sid)) != "end":
            if part(frame) == "columns":
                head = frame.json()
                continue
            batches.append(frame.data)
            if acknowledge:
                self.wire.publish(frame.reply)
        self.wire.unsubscribe(sid)
        return Result(head, batches, frame.headers)

    def fill(self, stream: str, count: int) -> None:
        """Create a stream with messages."""
        self.wire.api(f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [f"{stream.lower()}.>"]})
        for number in range(count):
            assert b'"seq"' in self.wire.request(f"{stream.lower()}.{number}", b'{"n": %d}' % number).data

    def stats(self) -> dict[str, Any]:
        """Return the figures of the endpoint for all streams."""
        found: dict[str, Any] = self.wire.request("$SRV.STATS.lakestream-sql").json()["endpoints"][0]
        return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server with streams of two accounts, of which nothing is compacted."""
    server = Server(Kind.OURS, tmp_path_factory.mktemp("sql") / "store", config=CONFIG, args=["-m", "-1"])
    server.start()
    Session(server).fill("ORDERS", 3)
    Session(server).fill("OTHER", 1)
    Session(server, "bob").fill("SECRET", 2)
    yield server
    server.kill()


@pytest.fixture
def ann(server: Server) -> Iterator[Session]:
    session = Session(server)
    yield session
    session.wire.close()


def until(condition: Callable[[], bool]) -> None:
    """Wait for what happens in the server."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_query_reads_what_was_just_acknowledged(ann: Session) -> None:
    assert ann.wire.request("orders.new", b'{"n": 3}').json()["seq"] == 4
    query = "SELECT seq, json->>'n' AS n FROM ORDERS ORDER BY seq"
    found = ann.ask(query)
    assert found.code == 0, found.end
    assert found.head["columns"] == [{"name": "seq", "type": "BIGINT"}, {"name": "n", "type": "VARCHAR"}]
    assert (found.head["account"], found.head["format"], found.head["window"]) == ("A", "json", 2)
    assert found.rows == [{"seq": seq + 1, "n": str(seq)} for seq in range(4)]
    assert (found.end["Lake-Sql-Rows"], found.end["Lake-Sql-Batches"]) == ("4", "1")
    assert int(found.end["Lake-Sql-Bytes"]) == sum(map(len, found.batches))
    assert ann.ask("SELECT seq FROM delta.`streams/ORDERS` WHERE seq > 100").batches == []
    assert ann.ask("SELECT 1 FROM delta.`streams/OTHER`").rows == [{"1": 1}]
    assert {row["table"] for row in ann.ask("SHOW TABLES").rows} == {"delta.`streams/ORDERS`", "delta.`streams/OTHER`"}


@pytest.mark.parametrize("fixture", CLOUDS)
def test_a_lake_in_an_object_store_is_answered(
    fixture: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: StoreServer = request.getfixturevalue(fixture)
    store.enter(monkeypatch)
    config = CONFIG.replace("lake {", f'lake {{ url: "{store.url(tmp_path.name)}",')
    server = Server(Kind.OURS, tmp_path / "store", config=config, args=["-m", "-1"])
    server.start()
    try:
        ann = Session(server)
        ann.fill("ORDERS", 300)
        Session(server, "bob").fill("SECRET", 2)
        count = "SELECT count(*) AS n, max(seq) AS last FROM delta.`streams/ORDERS`"
        assert ann.ask(count).rows == [{"n": 300, "last": 300}]
        ann.wire.request("orders.new", b"{}")
        assert ann.ask(count).rows == [{"n": 301, "last": 301}], "every acknowledged message is there"
        for text, code in (
            ("SELECT * FROM delta.`streams/SECRET`", 404),
            ("SELECT * FROM delta.`accounts/B/streams/SECRET`", 404),
            ("SELECT * FROM read_text('lake://x')", 403),
            ("SELECT * FROM duckdb_secrets()", 403),
            ("SELECT getenv('AWS_SECRET_ACCESS_KEY')", 400),
            ("ATTACH 'lake://x'", 400),
        ):
            found = ann.ask(text)
            assert found.code == code, (text, found.end)
            assert not [secret for secret in store.secrets if secret in str(found)]
        assert not [secret for secret in store.secrets if secret in server.log()]
    finally:
        server.kill()


def test_values_of_a_bucket_have_the_types_of_its_schema(server: Server) -> None:
    session = Session(server, "cid")
    text = json.dumps({"type": "object", "properties": {"price": {"type": "number"}}})
    body = json.dumps({"format": "json", "text": text}).encode()
    assert "error" not in session.wire.request("$LAKE.API.SCHEMA.ADD.prices", body).json()
    metadata = {"lakestream.schema": "prices"}
    config = {"name": "KV_prices", "subjects": ["$KV.prices.>"], "max_msgs_per_subject": 2, "metadata": metadata}
    session.wire.api("STREAM.CREATE.KV_prices", config)
    for key, payload in (("a", b'{"price": 1.5}'), ("b", b"{}"), ("c", b"no price")):
        session.wire.request(f"$KV.prices.{key}", payload)
    found = session.ask("SELECT key, value, schema FROM kv.prices ORDER BY key")
    assert found.code == 0, found.end
    assert found.head["columns"][1] == {"name": "value", "type": "STRUCT(price DOUBLE)"}
    assert found.rows == [
        {"key": "a", "value": {"price": 1.5}, "schema": "prices@1"},
        {"key": "b", "value": {"price": None}, "schema": "prices@1"},
        {"key": "c", "value": None, "schema": None},
    ]
    positional = {"sql": "SELECT key FROM kv.prices VERSION AS OF 2 WHERE value.price > ?", "parameters": [1]}
    assert session.ask(positional).rows == [{"key": "a"}]
    session.wire.close()


def test_last_messages_come_from_the_index_as_of_the_newest_message(server: Server) -> None:
    """Everything acknowledged or deleted before is in the answer: of a stream, of a bucket, and of a single key."""
    session = Session(server, "cid")
    session.fill("TICKS", 300)
    config = {"name": "KV_conf", "subjects": ["$KV.conf.>"], "max_msgs_per_subject": 1, "allow_rollup_hdrs": True}
    session.wire.api("STREAM.CREATE.KV_conf", config)
    for turn in range(3):
        session.wire.request("ticks.7", b'{"n": %d}' % turn)
        session.wire.request("$KV.conf.a.b", b"%d" % turn)
        session.wire.request(f"$KV.conf.{turn}", b"new")
        query = "SELECT count(*) AS n, max(seq) AS last FROM last(TICKS)"
        assert session.ask(query).rows == [{"n": 300, "last": 301 + turn}]
        query = "SELECT json->>'n' AS n FROM last(TICKS) WHERE subject = 'ticks.7'"
        assert session.ask(query).rows == [{"n": str(turn)}]
        query = "SELECT text(value) AS value FROM kv.conf WHERE key = 'a.b'"
        assert session.ask(query).rows == [{"value": str(turn)}]
        assert session.ask("SELECT count(*) AS n FROM kv.conf").rows == [{"n": turn + 2}]
    session.wire.api("STREAM.MSG.DELETE.TICKS", {"seq": 303})
    query = "SELECT seq FROM last(TICKS, 'ticks.*') WHERE subject IN ('ticks.7', 'ticks.8') ORDER BY seq"
    assert session.ask(query).rows == [{"seq": 9}, {"seq": 302}]
    assert session.ask("SELECT count(*) AS n FROM TICKS").rows == [{"n": 302}]
    session.wire.close()


def test_requests_have_parameters_a_time_and_a_number_of_rows(ann: Session) -> None:
    found = ann.ask({"sql": "SELECT :text AS a, :number + 1 AS b, :none AS c", "parameters": {
        "text": "it's; SELECT 1", "number": 1, "none": None}})  # fmt: skip
    assert found.rows == [{"a": "it's; SELECT 1", "b": 2, "c": None}]
    assert ann.ask({"sql": "SELECT 1", "parameters": {"x": 1}}).code == 400
    assert ann.ask("SELECT :x").code == 400
    count = "SELECT count(*) AS n FROM delta.`streams/OTHER`"
    assert ann.ask({"sql": count, "as_of": "2020-01-01"}).rows == [{"n": 0}]
    assert ann.ask({"sql": count, "as_of": time.time_ns()}).rows == [{"n": 1}]
    few = ann.ask({"sql": "SELECT * FROM range(10)", "max_rows": 2})
    assert (len(few.rows), few.end["Lake-Sql-Truncated"]) == (2, "true")
    all_of_them = ann.ask({"sql": "SELECT * FROM range(10)", "max_rows": 10})
    assert (len(all_of_them.rows), "Lake-Sql-Truncated" in all_of_them.end) == (10, False)
    assert ann.ask({"sql": "SELECT 1", "other": 1}).code == 400
    assert ann.ask({"query": "SELECT 1"}).code == 400
    assert ann.ask("SELECT 1 AS " + "x" * 70_000).code == 413


def test_batches_of_arrow_are_one_stream(ann: Session) -> None:
    query = "SELECT range AS a, 'x'::BLOB AS b, MAP {'k': 1} AS c FROM range(20000)"
    found = ann.ask({"sql": query, "format": "arrow"})
    table = pa.ipc.open_stream(b"".join(found.batches)).read_all()
    assert (table.num_rows, len(found.batches) > 3) == (20_000, True)
    assert table.column("a").to_pylist() == list(range(20_000))
    assert table.schema.field("c").type == pa.map_(pa.string(), pa.int32())
    empty = ann.ask({"sql": "SELECT 1 AS a WHERE false", "format": "arrow"})
    assert pa.ipc.open_stream(b"".join(empty.batches)).read_all().column_names == ["a"]


def test_batches_wait_for_acknowledgements(ann: Session) -> None:
    sid = ann.begin("SELECT * FROM range(30000)")
    head = ann.wire.delivered(sid).json()
    for wrong in ("0", "99", "x", "9" * 30, "0" * 17 + "99"):
        ann.wire.publish(f"$LAKE.API.SQL.FLOW.{head['id']}.{wrong}")
    found = ann.rest(sid, acknowledge=False)
    assert (found.code, len(found.batches)) == (408, 2), found.end
    assert "batch 1 was not acknowledged" in found.end["Nats-Service-Error"]
    sid = ann.begin("SELECT * FROM range(30000)")
    head, _, _ = (ann.wire.delivered(sid) for _ in range(3))
    for number in (2, 1, 2):  # the second one is for both, and counts once
        ann.wire.publish(f"$LAKE.API.SQL.FLOW.{head.json()['id']}.{number}")
    found = ann.rest(sid, acknowledge=False)
    assert (found.code, len(found.batches)) == (408, 2), "of four"
    assert "batch 3 was not acknowledged" in found.end["Nats-Service-Error"]
    assert len(ann.ask("SELECT * FROM range(30000)").rows) == 30_000


def test_a_query_is_cancelled_by_a_message(ann: Session) -> None:
    sid = ann.begin(ENDLESS)
    head = ann.wire.delivered(sid).json()
    assert ann.wire.request(head["cancel"]).status == 0
    assert ann.rest(sid).code == 499
    assert ann.wire.request(head["cancel"]).status == 503


def test_a_process_goes_on_after_queries_that_are_not_read_to_their_end(server: Server, ann: Session) -> None:
    """Starting one takes longer than most queries. BI tools describe each query first, and cancel what they have."""
    assert server.process is not None

    def processes() -> set[int]:
        children = psutil.Process(server.process.pid).children()  # type: ignore[union-attr]
        return {each.pid for each in children if "lakestream_sql.child" in " ".join(each.cmdline())}

    ann.ask("SELECT 1")
    before = processes()
    for _ in range(3):
        sid = ann.begin({"sql": "SELECT 1", "describe": True})
        ann.wire.publish(ann.wire.delivered(sid).json()["cancel"])
        assert ann.rest(sid).code == 0
        sid = ann.begin("SELECT repeat('x', 100) FROM range(100000)")
        head, *_ = [ann.wire.delivered(sid) for _ in range(3)]  # the columns, and a window of two batches
        ann.wire.publish(head.json()["cancel"])
        assert ann.rest(sid).code == 499
    assert ann.ask("SELECT 1 AS a").rows == [{"a": 1}]
    assert before <= processes()


def test_a_query_ends_with_its_client(server: Server, ann: Session) -> None:
    other = Session(server)
    assert part(other.wire.delivered(other.begin(ENDLESS))) == "columns"
    before = children(server)
    other.wire.close()
    until(lambda: len(children(server)) < len(before))
    assert ann.ask("SELECT 1 AS a").rows == [{"a": 1}]


def children(server: Server) -> list[int]:
    """Return the processes of queries."""
    assert server.process is not None
    found = []
    for child in psutil.Process(server.process.pid).children():
        with contextlib.suppress(psutil.ZombieProcess, psutil.NoSuchProcess):
            found += [child.pid] * ("lakestream_sql.child" in child.cmdline())
    return found


def test_queries_at_the_same_time_are_limited(server: Server, ann: Session) -> None:
    bob = Session(server, "bob")
    running = [ann.begin(ENDLESS), ann.begin(ENDLESS), bob.begin(ENDLESS)]
    heads = [wire.delivered(sid).json() for wire, sid in zip((ann.wire, ann.wire, bob.wire), running, strict=True)]
    refused, also = ann.ask("SELECT 1"), bob.ask("SELECT 1")
    assert (refused.code, also.code) == (429, 429)
    assert "of this account" in refused.end["Nats-Service-Error"]
    assert "on this server" in also.end["Nats-Service-Error"]
    for wire, head in zip((ann.wire, ann.wire, bob.wire), heads, strict=True):
        wire.publish(head["cancel"])
    assert [ann.rest(running[0]).code, ann.rest(running[1]).code, bob.rest(running[2]).code] == [499] * 3
    assert bob.ask("SELECT 1 AS a").rows == [{"a": 1}]


def test_results_are_limited(ann: Session) -> None:
    rows = ann.ask("SELECT 1 AS a FROM range(200001)")
    assert (rows.code, len(rows.rows)) == (413, 200_000)
    size = ann.ask("SELECT repeat('x', 10000) AS a FROM range(1000)")
    assert (size.code, sum(map(len, size.batches)) <= 3 << 20) == (413, True)
    large = ann.ask("SELECT repeat('x', 2000000) AS a")
    assert (large.code, large.batches) == (413, [])
    assert ann.ask({"sql": "SELECT repeat('x', 2000000) AS a", "format": "arrow"}).code == 413


@pytest.mark.parametrize("query", SOME_FIRST)
def test_queries_of_anything_else_are_refused(server: Server, ann: Session, query: str) -> None:
    found = ann.ask(query.replace("{lake}", str(server.store / "lake")))
    assert found.code in (400, 403, 404), found.end
    assert found.batches == []
    assert str(server.store) not in found.end["Nats-Service-Error"]
    assert "root:" not in found.end["Lake-Sql-Error"]


@pytest.mark.parametrize(
    "query",
    [
        ENDLESS,
        "SELECT list(range) FROM range(500000000)",
        "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) SELECT max(n) FROM t",
        "SELECT count(*) FROM range(100000000) WHERE regexp_matches(repeat('a', 10000), '(a*)*(a|aa)*b')",
        "SELECT repeat('x', 1000000000) || repeat('y', 1000000000)",
        "SELECT a.* FROM range(100000) a, range(100000) b, range(100000) c ORDER BY 1 DESC",
    ],
)
@pytest.mark.heavy
def test_queries_that_need_too_much_end(server: Server, ann: Session, query: str) -> None:
    """Time, memory or the result is limited, and the server goes on."""
    found = ann.ask(query)
    assert found.code in (400, 408, 413, 500) or "regexp" in query, found.end
    assert server.page("/healthz") == {"status": "ok"}
    found = ann.ask("SELECT 1 AS a")
    assert found.rows == [{"a": 1}], found.end


def test_permissions_are_those_for_the_subjects(server: Server) -> None:
    bob = Session(server, "bob")
    found = bob.ask("SELECT count(*) AS n FROM delta.`streams/SECRET`")
    assert found.rows == [{"n": 2}], found.end
    assert [row["table"] for row in bob.ask("SHOW TABLES").rows] == ["delta.`streams/SECRET`"]
    none, one = Session(server, "none"), Session(server, "one")
    sid = none.begin("SELECT 1")
    assert "Permissions Violation" in none.wire.next(lambda frame: frame.verb == "-ERR").text
    with pytest.raises(WireTimeout):
        none.wire.delivered(sid, timeout=0.2)
    count = "SELECT count(*) AS n FROM delta.`streams/%s`"
    assert one.ask(count % "ORDERS", "$LAKE.API.SQL.ORDERS").rows[0]["n"] >= 3
    assert one.ask("SELECT count(*) AS n FROM last(ORDERS)", "$LAKE.API.SQL.ORDERS").rows[0]["n"] >= 3
    for query in (count % "OTHER", "SHOW TABLES", "SELECT 1 FROM as_of('OTHER', now())", "SELECT 1 FROM last(OTHER)"):
        assert one.ask(query, "$LAKE.API.SQL.ORDERS").code == 403
    assert one.ask("SELECT 1 AS a", "$LAKE.API.SQL.ORDERS").rows == [{"a": 1}]


def test_the_service_is_found_by_discovery(server: Server, ann: Session) -> None:
    assert ann.ask("SELECT 1").code == 0
    ping = ann.wire.request("$SRV.PING").json()
    assert (ping["type"], ping["name"]) == ("io.nats.micro.v1.ping_response", "lakestream-sql")
    info = ann.wire.request(f"$SRV.INFO.lakestream-sql.{ping['id']}").json()
    assert info["type"] == "io.nats.micro.v1.info_response"
    subjects = [(each["subject"], each["queue_group"]) for each in info["endpoints"]]
    assert subjects == [("$LAKE.API.SQL", "sql"), ("$LAKE.API.SQL.*", "sql")]
    before = ann.stats()
    ann.ask("SELECT")
    until(lambda: ann.stats()["num_errors"] == before["num_errors"] + 1)
    assert ann.stats()["num_requests"] == before["num_requests"] + 1


async def test_the_python_client_asks_queries(server: Server) -> None:
    async with await connect(server.url, user="ann", password="pw") as client:
        answer = await client.sql("SELECT range AS a FROM range(:n)", parameters={"n": 20_000})
        assert (answer.columns, answer.types) == (("a",), ("BIGINT",))
        assert (await answer.to_arrow()).column("a").to_pylist() == list(range(20_000))
        with pytest.raises(QueryFailed, match="streams/NONE") as failed:
            await client.sql("SELECT * FROM delta.`streams/NONE`")
        assert failed.value.code == 404
        half = await client.sql("SELECT range AS a FROM range(200000)")
        async for batch in half.batches():
            assert batch.num_rows > 0
            break
        await half.cancel()


async def test_the_python_client_says_that_a_user_may_not_ask(server: Server) -> None:
    async with await connect(server.url, user="none", password="pw") as client:
        with pytest.raises(QueryFailed, match="ermissions Violation") as failed:
            await client.sql("SELECT 1")
        assert failed.value.code == 403


def run(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `lakestream sql` in an empty directory."""
    login = ["--server", server.url, "--user", "ann", "--password", "pw"]
    command = [sys.executable, "-m", "lakestream", "sql", *login, *arguments]
    empty = server.store.parent
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, cwd=empty, check=False)


def test_the_command_needs_no_files_of_the_lake(server: Server) -> None:
    query = "SELECT seq, data, headers, MAP {'a': 1} AS m, interval 1 day AS i FROM OTHER"
    found = run(server, query, "--format", "json")
    assert (found.returncode, found.stderr) == (0, "")
    assert json.loads(found.stdout) == [{"seq": 1, "data": '{"n": 0}', "headers": None, "m": {"a": 1}, "i": 86400.0}]
    times = "SELECT 'infinity'::TIMESTAMP AS a, TIMESTAMPTZ '2026-01-02 03:04:05Z' AS b, 1::HUGEINT AS c"
    values = ["9999-12-31T23:59:59.999999", "2026-01-02T03:04:05Z", 1]
    assert list(json.loads(run(server, times, "--format", "json").stdout)[0].values()) == values
    failed = run(server, "-q", "SELECT 1 AS a; SELECT nothing", "--format", "csv")
    assert (failed.returncode, failed.stdout) == (1, "a\n1\n")
    assert "line 1, column 8" in failed.stderr


@pytest.mark.heavy
def test_the_server_ends_its_processes(tmp_path: Path) -> None:
    server = Server(Kind.OURS, tmp_path / "store", config="sql: true\n")
    server.start()
    wire = Wire(server.address, timeout=WAIT_S)
    sid = wire.subscribe("in")
    wire.publish("$LAKE.API.SQL", ENDLESS.encode(), "in")
    assert part(wire.delivered(sid)) == "columns"
    left = children(server)
    assert len(left) == 1
    assert server.stop() == 0
    until(lambda: not any(psutil.pid_exists(pid) for pid in left))


def test_without_configuration_there_is_no_service(tmp_path: Path) -> None:
    server = Server(Kind.OURS, tmp_path / "store")
    server.start()
    with Wire(server.address) as wire:
        assert wire.request("$LAKE.API.SQL", b"SELECT 1").status == 503
        assert wire.request("$SRV.PING").status == 503
    server.kill()
