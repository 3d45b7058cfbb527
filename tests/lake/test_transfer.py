"""Tests of `lakestream import` and `lakestream export` against a running server, by their command lines."""

from __future__ import annotations

import base64
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from typer.testing import CliRunner, Result

from lakestream.cli.app import app
from lakestream.cli.link import ClientLink, TransferFailed
from lakestream.log.format.record import Record
from lakestream_transfer.sending import StreamSender
from tests.servers import Kind, Server
from tests.terminal import Terminal
from tests.wire import Wire

pytestmark = pytest.mark.lake

BASE_NS = 1_700_000_000_123_456_789
PROGRAM = [sys.executable, "-m", "lakestream.cli.main"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(Kind.OURS, tmp_path / "store")
    server.start()
    yield server
    server.kill()


def run(server: Server, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--server", server.url], catch_exceptions=False)


def done(server: Server, *arguments: str) -> str:
    result = run(server, *arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def refused(server: Server, *arguments: str) -> str:
    result = run(server, *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("lakestream: ")
    return result.stderr


def messages(server: Server, stream: str) -> list[Record]:
    """Return all messages of a stream, each by an API request of its own."""
    found = []
    with Wire(server.address) as wire:
        state = wire.api(f"STREAM.INFO.{stream}")["state"]
        for seq in range(state["first_seq"], state["last_seq"] + 1):
            answer = wire.api(f"STREAM.MSG.GET.{stream}", {"seq": seq})
            if "message" in answer:
                found.append(_record(answer["message"]))
    return found


def wait_for_messages(server: Server, stream: str, count: int) -> None:
    """Wait until the stream has `count` messages: those before a refused row may still be in flight."""
    deadline = time.monotonic() + 20
    with Wire(server.address) as wire:
        while wire.api(f"STREAM.INFO.{stream}")["state"]["messages"] != count:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def _record(message: dict[str, Any]) -> Record:
    header, data = (base64.b64decode(message.get(name, "")) for name in ("hdrs", "data"))
    return Record(message["seq"], _ns(message["time"]), message["subject"].encode(), header, data)


def _ns(text: str) -> int:
    moment, _, fraction = text.rstrip("Z").partition(".")
    seconds = int(time.mktime(time.strptime(moment, "%Y-%m-%dT%H:%M:%S"))) - time.timezone
    return seconds * 1_000_000_000 + int(fraction.ljust(9, "0") or 0)


def orders(count: int, first: int = 0, **more: Any) -> pa.Table:
    ids = list(range(first, first + count))
    columns = {
        "id": ids,
        "country": [("de", "fr", "us")[each % 3] for each in ids],
        "price": [each / 4 for each in ids],
        "at": pa.array([BASE_NS + each * 1001 for each in ids], pa.timestamp("ns", "UTC")),
    }
    return pa.table(columns | more)


ORDERS = ("--stream", "ORDERS", "--subject", "orders.{country}.{id}", "--time", "at")


def test_a_parquet_file_becomes_a_stream_in_the_order_of_its_times(server: Server, tmp_path: Path) -> None:
    table = orders(500)
    file = tmp_path / "orders.parquet"
    pq.write_table(table.take(list(reversed(range(500)))), file)
    said = done(server, "import", str(file), *ORDERS, "--header", "Id=id", "--create")
    assert "500 messages imported" in said
    found = messages(server, "ORDERS")
    assert [message.seq for message in found] == list(range(1, 501))
    for each, message in enumerate(found):
        country = ("de", "fr", "us")[each % 3]
        assert message.subject == f"orders.{country}.{each}".encode()
        assert message.time_ns == BASE_NS + each * 1001
        assert message.header == b"NATS/1.0\r\nId: %d\r\n\r\n" % each
        assert json.loads(message.data) == {"price": each / 4}
    server.stop()
    server.start()
    assert messages(server, "ORDERS") == found
    again = done(server, "import", str(file), *ORDERS, "--header", "Id=id", "--create")
    assert "0 messages imported" in again


def test_a_delta_table_is_read_at_a_version(server: Server, tmp_path: Path) -> None:
    table = tmp_path / "table of #1"
    write_deltalake(str(table), orders(30), partition_by=["country"])
    write_deltalake(str(table), orders(30, 30), mode="append")
    DeltaTable(str(table)).delete("id >= 10 AND id < 20")
    done(server, "import", str(table), *ORDERS, "--create")
    kept = [*range(10), *range(20, 60)]
    assert [message.subject.rpartition(b".")[2] for message in messages(server, "ORDERS")] == [b"%d" % n for n in kept]
    name = ("--stream", "OLD", "--subject", "old.{id}", "--order-by", "id", "--create", "--version", "0")
    done(server, "import", str(table), *name)
    assert [message.subject for message in messages(server, "OLD")] == [b"old.%d" % n for n in range(30)]


def test_rows_under_deletion_vectors_stay_away(server: Server, tmp_path: Path, spark: Any) -> None:
    table = tmp_path / "vectors"
    pq.write_table(orders(100).drop_columns(["at"]), tmp_path / "in.parquet")
    frame = spark.read.parquet(str(tmp_path / "in.parquet")).coalesce(1)
    frame.write.format("delta").option("delta.enableDeletionVectors", "true").save(str(table))
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id % 10 = 3")
    assert list(table.glob("deletion_vector_*"))
    done(server, "import", str(table), "--stream", "V", "--subject", "v.{id}", "--order-by", "id", "--create")
    found = [int(message.subject[2:]) for message in messages(server, "V")]
    assert found == [each for each in range(100) if each % 10 != 3]


def test_directories_csv_and_json_lines_can_be_sources(server: Server, tmp_path: Path) -> None:
    pq.write_to_dataset(orders(40), tmp_path / "hive", partition_cols=["country"])
    done(server, "import", str(tmp_path / "hive"), *ORDERS, "--create")
    assert len(messages(server, "ORDERS")) == 40
    (tmp_path / "a.csv").write_text("id,name\n1,x\n2,y z\n")
    said = run(server, "import", str(tmp_path / "*.csv"), "--stream", "C", "--subject", "c.{name}", "--create")
    assert "row 2, column name" in said.stderr
    mended = ("--subject", "c.{name}", "--replace", "_", "--create", "--append")
    done(server, "import", str(tmp_path / "*.csv"), "--stream", "C", *mended)
    assert [message.subject for message in messages(server, "C")] == [b"c.x", b"c.y_z"]
    (tmp_path / "a.json").write_text('{"s": "j.1", "v": {"a": [1]}}\n{"s": "j.2", "v": null}\n')
    source = (str(tmp_path / "a.json"), "--stream", "J", "--subject", "s", "--data", "v")
    done(server, "import", *source, "--create", "--subjects", "j.*")
    assert [(message.subject, message.data) for message in messages(server, "J")] == [
        (b"j.1", b'{"a": [1]}'),
        (b"j.2", b""),
    ]


def test_bad_rows_are_named_or_counted(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "bad.parquet"
    pq.write_table(pa.table({"s": ["a", "b c", None, "d"], "n": [1, 2, 3, 4]}), file)
    source = ("import", str(file), "--stream", "BAD", "--subject", "bad.{s}", "--create")
    assert "row 2, column s: 'b c' cannot be a subject token" in refused(server, *source)
    result = run(server, *source, "--skip-bad")
    assert result.exit_code == 0
    assert "2 rows left out" in result.stderr
    assert "row 3, column s: NULL" in result.stderr
    assert [message.subject for message in messages(server, "BAD")] == [b"bad.a", b"bad.d"]


def test_what_cannot_be_is_refused_in_one_line(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "o.parquet"
    pq.write_table(orders(5), file)
    assert "there is nothing at" in refused(server, "import", str(tmp_path / "no"), "--stream", "X", "--subject", "x")
    assert "--create makes it" in refused(server, "import", str(file), *ORDERS)
    assert "--subject is missing" in refused(server, "import", str(file), "--stream", "X")
    assert "no column 'nix'" in refused(server, "import", str(file), "--stream", "X", "--subject", "{nix}")
    assert "only those have versions" in refused(server, "import", str(file), *ORDERS, "--version", "1")
    future = tmp_path / "future.parquet"
    pq.write_table(pa.table({"n": [1], "at": [1 << 62]}), future)
    late = ("--stream", "X", "--subject", "x.{n}", "--time", "at", "--create")
    assert "row 1: the server refuses it: its time" in refused(server, "import", str(future), *late)
    with Wire(server.address) as wire:
        wire.api("STREAM.CREATE.HAS", {"name": "HAS", "subjects": ["has.>"]})
        wire.request("has.one")
    has = ("import", str(file), "--stream", "HAS", "--subject", "has.{id}")
    assert "--append" in refused(server, *has)
    done(server, *has, "--append")
    assert [message.subject for message in messages(server, "HAS")][:2] == [b"has.one", b"has.0"]
    server.kill()
    assert "cannot connect" in refused(server, *has)


def test_newer_rows_with_times_of_their_own_go_behind_what_a_stream_has(server: Server, tmp_path: Path) -> None:
    first, second = tmp_path / "first.parquet", tmp_path / "second.parquet"
    pq.write_table(orders(5), first)
    pq.write_table(orders(5, 5), second)
    with Wire(server.address) as wire:
        wire.api("STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"]})
    done(server, "import", str(first), *ORDERS)
    done(server, "import", str(second), *ORDERS, "--append")
    assert [message.time_ns for message in messages(server, "ORDERS")] == [BASE_NS + n * 1001 for n in range(10)]
    assert "0 messages imported" in done(server, "import", str(first), *ORDERS, "--append"), "its rows are there"
    older = refused(server, "import", str(first), *ORDERS, "--again")
    assert "earlier than the message before it" in older


def test_an_import_that_created_the_stream_and_failed_can_be_tried_again(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "o.parquet"
    pq.write_table(orders(5), file)
    assert "is not one of the stream's" in refused(
        server, "import", str(file), *ORDERS, "--create", "--subjects", "other.>"
    )
    done(server, "import", str(file), *ORDERS, "--create", "--subjects", "orders.>")
    assert [message.time_ns for message in messages(server, "ORDERS")] == [BASE_NS + n * 1001 for n in range(5)]


def test_an_import_that_failed_halfway_can_be_tried_again_with_other_subjects(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "o.parquet"
    pq.write_table(orders(5), file)
    source = ("import", str(file), *ORDERS, "--create")
    two = ("--subjects", "orders.de.*", "--subjects", "orders.fr.*")
    assert "row 3: the server refuses it" in refused(server, *source, *two)
    wait_for_messages(server, "ORDERS", 2)
    with Wire(server.address) as wire:
        edited = wire.api("STREAM.INFO.ORDERS")["config"] | {"max_msgs": 100}
        wire.api("STREAM.UPDATE.ORDERS", edited)
    assert "3 messages imported" in done(server, *source, "--subjects", "orders.>")
    assert len(messages(server, "ORDERS")) == 5
    with Wire(server.address) as wire:
        assert wire.api("STREAM.INFO.ORDERS")["config"]["max_msgs"] == 100, "nobody asked for another limit"


def test_an_import_that_failed_halfway_goes_on_where_the_mended_source_makes_the_same_messages(
    server: Server, tmp_path: Path
) -> None:
    file = tmp_path / "o.parquet"
    table = orders(50)
    late = pa.array([*table.column("at")[:49].to_pylist(), datetime(2200, 1, 1, tzinfo=UTC)], pa.timestamp("ns", "UTC"))
    pq.write_table(table.set_column(3, "at", late), file)
    source = ("import", str(file), *ORDERS, "--create")
    assert "row 50: the server refuses it" in refused(server, *source)
    wait_for_messages(server, "ORDERS", 49)
    pq.write_table(orders(50), file)
    assert "--append" in refused(server, *source, "--data", "id")
    result = run(server, *source)
    assert "1 messages imported" in result.stdout
    assert "49 messages are there already" in result.stderr
    assert [message.time_ns for message in messages(server, "ORDERS")] == [BASE_NS + n * 1001 for n in range(50)]
    assert "0 messages imported" in done(server, *source)


def test_the_configuration_that_is_asked_for_is_compared_with_the_stream_that_is_there(
    server: Server, tmp_path: Path
) -> None:
    file, config = tmp_path / "o.parquet", tmp_path / "config.json"
    pq.write_table(orders(5), file)
    with Wire(server.address) as wire:
        asked = {"name": "ORDERS", "subjects": ["orders.>"], "max_msgs": 100, "metadata": {"a": "b"}}
        wire.api("STREAM.CREATE.ORDERS", asked)
    other = refused(server, "import", str(file), *ORDERS, "--subjects", "x.>")
    assert "has the subjects orders.>, and --subjects says x.>" in other
    assert "has the subjects" in refused(server, "import", str(file), *ORDERS, "--create", "--subjects", "x.>")
    config.write_text('{"max_msgs": 50}')
    assert "is not as --config" in refused(server, "import", str(file), *ORDERS, "--config", str(config))
    assert messages(server, "ORDERS") == []
    config.write_text('{"max_msgs": 100}')
    done(server, "import", str(file), *ORDERS, "--config", str(config), "--subjects", "orders.>")
    assert len(messages(server, "ORDERS")) == 5


def test_an_import_that_was_killed_goes_on_where_it_was(server: Server, tmp_path: Path) -> None:
    count = 60_000
    file = tmp_path / "many.parquet"
    pq.write_table(orders(count, note=["n" * 100] * count), file)
    command = [*PROGRAM, "import", str(file), *ORDERS, "--create", "--server", server.url]
    with Wire(server.address) as wire, subprocess.Popen(command) as process:
        while process.poll() is None:
            answer = wire.api("STREAM.INFO.ORDERS")
            if "error" not in answer and answer["state"]["messages"] > 0:
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.01)
    with ClientLink(server.url) as link:
        stopped = (link.stream("ORDERS") or {})["state"]["messages"]
        assert 0 < stopped <= count
        done(server, *command[len(PROGRAM) : -2])
        found = [record for block in link.messages("ORDERS", 1, count + 1) for record in block]
    assert [int(record.subject.rpartition(b".")[2]) for record in found] == list(range(count))
    assert [record.time_ns for record in found] == [BASE_NS + each * 1001 for each in range(count)]


def interrupted(command: list[str], until: Callable[[], bool]) -> subprocess.CompletedProcess[str]:
    """Run a command and send SIGINT, as Ctrl-C does, once `until` returns True; it must still be running then."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not until():
            assert process.poll() is None, process.communicate()
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def test_ctrl_c_ends_an_import_that_goes_on_when_it_is_repeated(server: Server, tmp_path: Path) -> None:
    count = 60_000
    file = tmp_path / "many.parquet"
    pq.write_table(orders(count, note=["n" * 100] * count), file)
    command = [*PROGRAM, "import", str(file), *ORDERS, "--create", "--server", server.url]
    with Wire(server.address) as wire:

        def begun() -> bool:
            answer = wire.api("STREAM.INFO.ORDERS")
            return "error" not in answer and answer["state"]["messages"] > 0

        ended = interrupted(command, begun)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr == "lakestream: stopped; the same command goes on from here\n"
    with ClientLink(server.url) as link:
        assert 0 < (link.stream("ORDERS") or {})["state"]["messages"] < count
        said = json.loads(done(server, *command[len(PROGRAM) : -2], "--json"))
        assert 0 < said["messages"] < count
        found = [record for block in link.messages("ORDERS", 1, count + 1) for record in block]
    assert [int(record.subject.rpartition(b".")[2]) for record in found] == list(range(count))
    assert [record.time_ns for record in found] == [BASE_NS + each * 1001 for each in range(count)]


def test_a_transfer_has_a_bar_with_rate_and_remaining_time_in_a_terminal_only(server: Server, tmp_path: Path) -> None:
    count = 60_000
    pq.write_table(orders(count, note=["n" * 100] * count), tmp_path / "many.parquet")
    command = [*PROGRAM, "import", str(tmp_path / "many.parquet"), *ORDERS, "--create", "--server", server.url]
    with Terminal(command) as terminal:
        assert terminal.wait(60) == 0
        assert re.search(r"import +[━╸╺]+ +\d+/60000 +[\d,]+/s +[\d:]+", terminal.text), terminal.text
        assert "60,000 messages imported" in terminal.text
    export = [*PROGRAM, "export", "ORDERS", "--server", server.url, "--to"]
    with Terminal([*export, str(tmp_path / "a.parquet")], {"NO_COLOR": "1"}) as terminal:
        assert terminal.wait(60) == 0
        assert "\x1b" not in terminal.shown
    piped = subprocess.run(
        [*export, str(tmp_path / "b.parquet")], capture_output=True, text=True, check=False, timeout=60
    )
    assert (piped.returncode, piped.stderr) == (0, "")


@pytest.mark.parametrize("format", ["delta", "parquet", "csv"])
def test_ctrl_c_ends_an_export_without_a_trace(server: Server, tmp_path: Path, format: str) -> None:
    count = 60_000
    pq.write_table(orders(count, note=["n" * 200] * count), tmp_path / "many.parquet")
    done(server, "import", str(tmp_path / "many.parquet"), *ORDERS, "--create")
    place = tmp_path / "place"
    target = place / "out"
    command = ["export", "ORDERS", "--to", str(target), "--format", format]
    # The directory appears as soon as something is written.
    ended = interrupted([*PROGRAM, *command, "--server", server.url], place.exists)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr == "lakestream: stopped; nothing was written\n"
    assert list(place.iterdir()) == []
    said = json.loads(done(server, *command, "--json"))
    assert (said["messages"], said["left_out"]) == (count, 0)
    if format == "delta":
        rows = DeltaTable(target).to_pyarrow_table()
    else:
        rows = pq.read_table(target) if format == "parquet" else pa.csv.read_csv(target)
    assert rows.sort_by("seq")["seq"].to_pylist() == list(range(1, count + 1))


def test_a_server_that_is_killed_takes_every_message_once(server: Server) -> None:
    with Wire(server.address) as wire:
        wire.api("STREAM.CREATE.K", {"name": "K", "subjects": ["k.>"]})
    sent = [Record(row, BASE_NS + row, b"k.%d" % row, b"", b"x" * 200) for row in range(1, 40_001)]
    with ClientLink(server.url) as link:
        sender = StreamSender(link, "K", 0)
        sender.put(sent[:15_000])
        server.wanted_port = server.port
        server.kill()
        server.start()
        sender.put(sent[15_000:])
        sender.finish()
        assert [record for block in link.messages("K", 1, 1 << 40) for record in block] == sent


def test_another_publisher_is_noticed(server: Server) -> None:
    with Wire(server.address) as wire, ClientLink(server.url) as link:
        wire.api("STREAM.CREATE.K", {"name": "K", "subjects": ["k.>"]})
        sender = StreamSender(link, "K", 0)
        wire.request("k.foreign", b"x")
        sender.put([Record(1, 0, b"k.1", b"", b"")])
        with pytest.raises(TransferFailed, match="somebody else publishes"):
            sender.finish()


def filled(server: Server) -> list[Record]:
    """Fill a stream with gaps, repeated headers, malformed header blocks, and sizes up to the limit."""
    largest = 1024 * 1024 - 40
    with Wire(server.address) as wire:
        config = {"name": "FULL", "subjects": ["full.>"], "allow_msg_ttl": True, "allow_rollup_hdrs": True}
        wire.api("STREAM.CREATE.FULL", config)
        for number in range(60):
            wire.request(f"full.{number % 7}.é", b"%d" % number)
        for header in (
            {"A": "1", "Nats-Msg-Id": "once", "Nats-Expected-Stream": "FULL"},
            b"NATS/1.0\r\nA: 1\r\nB:2\r\nA:  3 \r\n\r\n",
            b"NATS/1.0\r\nNats-TTL: 1h\r\n\r\n",
            b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n",
        ):
            assert "error" not in wire.request("full.headers", b"\x00\xff", header).json()
        assert "error" not in wire.request("full.large", b"x" * largest, b"NATS/1.0\r\nA: 1\r\n\r\n").json()
        wire.api("STREAM.MSG.DELETE.FULL", {"seq": 5})
        wire.api("STREAM.PURGE.FULL", {"filter": "full.3.é"})
        wire.request("full.last", b"")
    return messages(server, "FULL")


@pytest.mark.parametrize("target", ["copy", "copy.parquet", "copy.csv", "copy.jsonl"])
def test_an_export_imported_is_the_same_stream(server: Server, tmp_path: Path, target: str) -> None:
    before = filled(server)
    assert before[0].seq == 1
    assert len(before) < before[-1].seq
    done(server, "export", "FULL", "--to", str(tmp_path / target))
    with Wire(server.address) as wire:
        wire.api("STREAM.DELETE.FULL")
    config = tmp_path / "config.json"
    config.write_text('{"subjects": ["full.>"], "allow_msg_ttl": true, "allow_rollup_hdrs": true}')
    done(server, "import", str(tmp_path / target), "--stream", "FULL", "--create", "--config", str(config))
    after = messages(server, "FULL")
    assert [_timed(each) for each in after] == [_timed(each) for each in before]
    assert [message.seq for message in after] == list(range(1, len(before) + 1))


def _timed(record: Record) -> tuple[int, bytes, bytes, bytes]:
    return record.time_ns, record.subject, record.header, record.data


def test_an_export_has_the_columns_asked_for(server: Server, tmp_path: Path) -> None:
    pq.write_table(orders(100), tmp_path / "in.parquet")
    done(server, "import", str(tmp_path / "in.parquet"), *ORDERS, "--create")
    out = tmp_path / "out"
    shape = ("--json-schema", "price DECIMAL(10,2)", "--token", "country=2", "--token", "id=3")
    done(server, "export", "ORDERS", "--to", str(out), *shape, "--columns", "seq,time_ns")
    rows = QueryBuilder().register("t", DeltaTable(str(out))).execute("SELECT * FROM t ORDER BY seq").read_all()
    found = pa.table(rows).to_pylist()
    assert len(found) == 100
    assert {name: str(value) for name, value in found[7].items()} == {
        "seq": "8",
        "time_ns": str(BASE_NS + 7 * 1001),
        "country": "fr",
        "id": "7",
        "price": "1.75",
    }
    assert "is there already" in refused(server, "export", "ORDERS", "--to", str(out), *shape)
    done(server, "export", "ORDERS", "--to", str(out), "--overwrite", "--from-seq", "11", "--to-seq", "20")
    assert DeltaTable(str(out)).to_pyarrow_table(columns=["seq"]).num_rows == 10


def test_an_export_as_csv_and_json_lines(server: Server, tmp_path: Path) -> None:
    with Wire(server.address) as wire:
        wire.api("STREAM.CREATE.T", {"name": "T", "subjects": ["t.>"]})
        wire.request("t.1", b'{"a": 1}', {"K": "v"})
        wire.request("t.2", b"\xff")
    csv, lines = tmp_path / "t.csv", tmp_path / "t.jsonl"
    done(server, "export", "T", "--to", str(csv), "--columns", "seq,headers,data")
    assert csv.read_text() == 'seq,headers,data\n1,"{""K"":[""v""]}","{""a"": 1}"\n2,,base64:/w==\n'
    bad = refused(server, "export", "T", "--to", str(lines), "--columns", "seq", "--json-schema", "a INT")
    assert "message 2: its payload is not JSON" in bad
    assert not lines.exists()
    shape = ("--columns", "seq", "--json-schema", "a INT", "--skip-bad")
    assert run(server, "export", "T", "--to", str(lines), *shape).exit_code == 0
    assert lines.read_text() == '{"seq":1,"a":1}\n'
    assert "no stream NONE" in refused(server, "export", "NONE", "--to", str(lines))


def test_a_format_that_is_unknown_is_refused(server: Server, tmp_path: Path) -> None:
    with Wire(server.address) as wire:
        wire.api("STREAM.CREATE.T", {"name": "T", "subjects": ["t.>"]})
        wire.request("t.1", b"x")
    said = refused(server, "export", "T", "--to", str(tmp_path / "o.xlsx"))
    assert ".xlsx is not a format of an export; there are .parquet, .csv, .json, .jsonl, .ndjson, .delta" in said
    assert list(tmp_path.glob("o.*")) == []
    done(server, "export", "T", "--to", str(tmp_path / "o.txt"), "--format", "csv")
    shown = run(server, "import", str(tmp_path / "o.txt"), "--format", "csv", "--stream", "U", "--dry-run")
    assert shown.stdout.startswith("t.1 ")
    assert "files of one kind are needed" in refused(server, "import", str(tmp_path / "o.txt"), "--stream", "U")


def test_text_has_types_on_request_only(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    file.write_text("zip;price;flag\n01234;1.50;true\n99999;n/a;false\n")
    source = ("import", str(file), "--stream", "P", "--subject", "p.{zip}", "--create")
    told = "column price (double): 1 field does not fit, the first in row 2 ('n/a' is not a number)"
    misfit = run(server, *source, "--types", "price:double")
    assert misfit.exit_code == 1
    assert misfit.stderr.splitlines()[0] == f"{file}: the fields are separated by ';'"
    assert misfit.stderr.splitlines()[1].startswith(f"lakestream: {told}. Nothing of this command is stored.")
    with Wire(server.address) as wire:
        assert "error" in wire.api("STREAM.INFO.P")
    inferred = run(server, *source, "--infer")
    assert inferred.stderr.splitlines()[1:] == ["inferred: --types 'flag:boolean'"]
    assert [(message.subject, message.data) for message in messages(server, "P")] == [
        (b"p.01234", b'{"price":"1.50","flag":true}'),
        (b"p.99999", b'{"price":"n/a","flag":false}'),
    ]
    some = run(server, *source, "--types", "price:double", "--skip-bad", "--again")
    assert told in some.stderr
    assert messages(server, "P")[-1].data == b'{"price":1.50,"flag":"true"}'


def test_rows_up_to_max_payload_are_stored_and_a_failed_import_is_repeated(server: Server, tmp_path: Path) -> None:
    limit = 1 << 20
    rows = [f'{{"t": "{"x" * (size - 9)}"}}' for size in (limit, 10, limit - 20)]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join([*rows, f'{{"t": "{"x" * limit}"}}']))
    source = ("import", str(file), "--stream", "R", "--subject", "=r.x", "--create")
    said = refused(server, *source)
    assert "row 4: the server refuses it: it is 10486" in said
    assert "3 messages of this import are stored in R, the last as sequence 3." in said
    file.write_text("\n".join([*rows, "{}"]))
    assert "1 messages imported" in done(server, *source)
    assert [message.data.decode() for message in messages(server, "R")] == [*rows, "{}"]
    assert "0 messages imported" in done(server, *source)


def test_an_export_of_a_stretch_of_time(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "in.parquet"
    days = pa.array(["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"])
    pq.write_table(pa.table({"n": [1, 2, 3], "day": days}), file)
    done(server, "import", str(file), "--stream", "D", "--subject", "d.{n}", "--time", "day", "--create")
    window = ("--since", "2026-01-02", "--until", "2026-01-03T00:00:00+00:00", "--columns", "subject")
    done(server, "export", "D", "--to", str(tmp_path / "day.csv"), *window)
    assert (tmp_path / "day.csv").read_text() == "subject\nd.2\n"
