"""Tests of the commands of a NATS client (`pub`, `stream`, `kv` …), by their command lines, over real connections."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lakestream.cli.app import app
from lakestream_commands.nats import completion
from tests.servers import Kind, Server
from tests.wire import Wire

pytestmark = pytest.mark.conformance

PROGRAM = [sys.executable, "-m", "lakestream.cli.main"]
ACCOUNTS = """
accounts {
  SYS { users: [{user: sys, password: s}] }
  A { jetstream: enabled, users: [{user: a, password: a}] }
}
system_account: SYS
"""

Run = Callable[..., str]


@pytest.fixture(scope="module")
def address(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = Server(kind, tmp_path_factory.mktemp("commands") / "store")
    server.start()
    yield f"nats://{server.address[0]}:{server.address[1]}"
    server.kill()


@pytest.fixture
def run(address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Run]:
    """Yield a function that runs a command and returns its output; `code` and `stdin` as keywords."""
    monkeypatch.setenv("NATS_URL", address)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "400")  # errors of options are not wrapped

    def invoke(*arguments: str, code: int = 0, stdin: str | None = None) -> str:
        result = CliRunner().invoke(app, list(arguments), input=stdin)
        assert result.exit_code == code, (arguments, result.output, result.exception)
        return str(result.output)

    yield invoke
    for name in json.loads(invoke("stream", "ls", "--all", "--names", "--json", "-s", address)):
        invoke("stream", "rm", name, "-f", "-s", address)


def ask(run: Run, *arguments: str) -> Any:
    return json.loads(run(*arguments, "--json"))


def test_a_message_is_published_into_a_stream_that_is_made_for_it(run: Run) -> None:
    said = run(
        "pub", "orders.de", '{"price": {{Count}}}', "--create", "ORDERS", "--count", "2", "-H", "Nats-Msg-Id: {{ID}}"
    )
    assert "Stream ORDERS was created for orders.>" in said
    assert 'Published 12 bytes to "orders.de"' in said
    assert "Stored in Stream: ORDERS Sequence: 1" in said
    assert ask(run, "stream", "info", "ORDERS")["state"]["messages"] == 1, "templates leave headers alone"
    again = run("pub", "orders.at", "x", "--create", "ORDERS")
    assert "was created" not in again
    assert "Stored in Stream: ORDERS Sequence: 2" in again
    shown = run("stream", "get", "ORDERS", "1")
    assert "Item: ORDERS#1 received" in shown
    assert "on Subject orders.de\n\nNats-Msg-Id: {{ID}}\n\n" in shown
    assert shown.endswith('{"price": 1}\n\n')


def test_payloads_come_from_stdin_whole_or_by_lines(run: Run) -> None:
    run("pub", "orders.de", "--create", "ORDERS", "-q", stdin="one\ntwo\n")
    run("pub", "orders.de", "-J", "-q", "--send-on", "newline", stdin="three\nfour\n")
    assert run("stream", "view", "ORDERS", "--raw").splitlines() == ["one", "two", "three", "four"]
    assert run("stream", "view", "ORDERS", "1", "--id", "2", "--raw") == "three\n"


def test_a_publish_that_no_stream_takes_is_an_error_of_one_line(run: Run) -> None:
    assert "lakestream: " in run("pub", "-J", "nowhere", "x", code=1)
    assert "no responders are available" in run("request", "nowhere", "x", code=1)
    assert "is not NAME:VALUE" in run("pub", "a", "b", "-H", "nothing", code=2)


def test_an_error_names_the_stream_or_the_consumer(run: Run) -> None:
    assert "lakestream: NOPE: stream not found (10059)\n" in run("stream", "info", "NOPE", code=1)
    run("stream", "add", "S", "--subjects", "s", "--defaults")
    assert "lakestream: S > nope: consumer not found (10014)\n" in run("consumer", "info", "S", "nope", code=1)
    assert "lakestream: S: no message found (10037)\n" in run("stream", "get", "S", "9", code=1)


def test_streams_are_created_listed_changed_purged_and_deleted(run: Run) -> None:
    made = ask(
        run, *("stream", "add", "S", "--subjects", "s.>,t", "--subjects", "u", "--max-age", "7d", "--max-bytes", "1GB"),
        *("--retention", "work", "--discard", "new", "--max-msgs-per-subject", "3", "--dupe-window", "90s"),
        *("--metadata", "owner=me", "--no-ack", "--allow-rollup", "--defaults"),
    )["config"]  # fmt: skip
    assert made["subjects"] == ["s.>", "t", "u"]
    assert (made["max_age"], made["max_bytes"], made["duplicate_window"]) == (7 * 86_400 * 10**9, 1 << 30, 90 * 10**9)
    assert (made["retention"], made["discard"], made["max_msgs_per_subject"]) == ("workqueue", "new", 3)
    assert (made["no_ack"], made["allow_rollup_hdrs"], made["metadata"]["owner"]) == (True, True, "me")
    changed = run("stream", "edit", "S", "--max-age", "1h", "--metadata", "team=us")
    assert f"max_age: {7 * 86_400 * 10**9} -> {3600 * 10**9}" in changed
    config = ask(run, "stream", "info", "S")["config"]
    assert (config["max_age"], config["metadata"]["owner"], config["metadata"]["team"]) == (3600 * 10**9, "me", "us")
    assert "nothing to change" in run("stream", "edit", "S", "--max-age", "1h", code=1)
    run("stream", "edit", "S", "--max-age", "2h", "--dry-run")
    assert ask(run, "stream", "info", "S")["config"]["max_age"] == 3600 * 10**9
    for subject in ("s.1", "s.2", "t"):
        run("pub", subject, "x", "-q")
    assert "Purged 1 messages from S" in run("stream", "purge", "S", "--subject", "t", "-f")
    assert "S" in run("stream", "ls")
    assert run("stream", "ls", "-n") == "S\n"
    assert "Really delete" not in run("stream", "rm", "S", "-f")
    assert "stream not found" in run("stream", "info", "S", code=1)
    assert "no terminal to ask at" in run("stream", "rm", "S", code=2, stdin="")


def test_a_configuration_comes_from_a_file(run: Run, tmp_path: Path) -> None:
    run("stream", "add", "S", "--subjects", "s.>", "--max-msgs", "5")
    file = tmp_path / "s.json"
    file.write_text(run("stream", "info", "S", "--json"))
    run("stream", "rm", "S", "-f")
    assert ask(run, "stream", "add", "S", "--config", str(file), "--max-age", "1h")["config"]["max_msgs"] == 5
    assert "has no JSON object" in run("stream", "add", "T", "--config", str(_written(tmp_path, "[]")), code=2)


def _written(directory: Path, text: str) -> Path:
    (directory / "text").write_text(text)
    return directory / "text"


def test_a_consumer_hands_out_and_acknowledges(run: Run) -> None:
    for number in range(5):
        run("pub", f"s.{number}", f"m{number}", "--create", "S", "-q")
    made = ask(
        run, "consumer", "add", "S", "c", "--filter", "s.1", "--filter", "s.3", "--max-deliver", "2", "--wait", "9s"
    )
    assert made["config"]["filter_subjects"] == ["s.1", "s.3"]
    assert (made["config"]["ack_wait"], made["config"]["max_deliver"], made["num_pending"]) == (9 * 10**9, 2, 2)
    got = run("consumer", "next", "S", "c")
    assert "subj: s.1 / tries: 1 / cons seq: 1 / str seq: 2 / pending: 1" in got
    assert got.endswith("m1\n\nAcknowledged message\n\n")
    assert run("consumer", "next", "S", "c", "--raw", "--no-ack") == "m3\n"
    assert "no message within 100ms" in run("consumer", "next", "S", "c", "--wait", "100ms", code=1)
    assert ask(run, "consumer", "info", "S", "c")["num_ack_pending"] == 1
    assert "Paused S > c until" in run("consumer", "pause", "S", "c", "1h", "-f")
    assert "is not paused" in run("consumer", "resume", "S", "c")
    assert run("consumer", "ls", "S", "-n") == "c\n"
    run("consumer", "rm", "S", "c", "-f")
    assert "there is no pull consumer c" in run("consumer", "next", "S", "c", code=1)


@pytest.mark.parametrize(
    ("start", "first"),
    [(["--deliver", "all"], 1), (["--deliver", "last"], 4), (["--deliver", "3"], 3), (["--deliver", "1h"], 1)],
)
def test_a_consumer_begins_where_it_is_told(run: Run, start: list[str], first: int) -> None:
    for number in range(4):
        run("pub", "s", f"{number + 1}", "--create", "S", "-q")
    run("consumer", "add", "S", "c", *start)
    assert run("consumer", "next", "S", "c", "--raw") == f"{first}\n"


def test_a_subscription_shows_what_a_stream_has_and_what_comes(run: Run, address: str) -> None:
    for number in range(3):
        run("pub", f"s.{number}", f"m{number}", "--create", "S", "-q", "-H", "K: V")
    assert run("sub", "s.>", "--all", "-T", "--raw").splitlines() == ["m0", "m1", "m2"]
    assert run("sub", "--stream", "S", "--start-sequence", "3", "-T", "--raw") == "m2\n"
    assert '[#1] Received Stream: S seq 1 on "s.0"\nK: V\n\nm0\n' in run("sub", "s.0", "--all", "-T")
    command = [*PROGRAM, "sub", "live.>", "--count", "2", "--queue", "q", "-s", address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        assert "Subscribing on live.>" in child.stderr.readline()
        run("pub", "live.a", "one")
        run("pub", "live.b", "two", "-H", "A: B")
        out, _ = child.communicate(timeout=60)
    assert out == '[#1] Received on "live.a"\none\n\n[#2] Received on "live.b"\nA: B\n\ntwo\n\n'


def test_a_request_gets_its_answers(run: Run) -> None:
    info = json.loads(run("request", "$JS.API.INFO", "", "--raw"))
    assert info["type"].endswith("account_info_response")


def test_keys_are_put_read_listed_and_deleted(run: Run) -> None:
    run("kv", "add", "B", "--history", "5", "--ttl", "1d")
    assert run("kv", "put", "B", "a", "1") == "1\n"
    assert run("kv", "put", "B", "a", stdin="two") == "2\n"
    assert run("kv", "get", "B", "a", "--raw") == "two"
    assert run("kv", "get", "B", "a", "--raw", "--revision", "1") == "1"
    assert "B > a revision: 2 created @ " in run("kv", "get", "B", "a")
    assert "has a value already" in run("kv", "create", "B", "a", "x", code=1)
    assert run("kv", "update", "B", "a", "3", "--revision", "2") == "3\n"
    assert "has another revision" in run("kv", "update", "B", "a", "4", "--revision", "2", code=1)
    assert run("kv", "create", "B", "b.c", "x") == "4\n"
    assert run("kv", "ls", "B").splitlines() == ["a", "b.c"]
    assert run("kv", "ls", "B", "b.>").splitlines() == ["b.c"]
    assert run("kv", "ls", "-n") == "B\n"
    run("kv", "rm", "B", "a", "-f")
    assert "key not found" in run("kv", "get", "B", "a", code=1)
    assert run("kv", "ls", "B").splitlines() == ["b.c"]
    operations = [(each["revision"], each["op"]) for each in ask(run, "kv", "history", "B", "a")]
    assert operations == [(1, "PUT"), (2, "PUT"), (3, "PUT"), (5, "DEL")]
    assert "there is no bucket NONE" in run("kv", "get", "NONE", "a", code=1)
    run("kv", "rm", "B", "-f")
    assert "No buckets" in run("kv", "ls")


def test_a_watch_shows_values_and_changes(run: Run, address: str) -> None:
    run("kv", "add", "B")
    run("kv", "put", "B", "a", "1")
    command = [*PROGRAM, "kv", "watch", "B", "-s", address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert "PUT B > a: 1" in child.stdout.readline()
        run("kv", "rm", "B", "a", "-f")
        assert "DEL B > a" in child.stdout.readline()
        child.terminate()


def test_objects_are_put_and_come_back_byte_for_byte(run: Run, tmp_path: Path) -> None:
    source, target = tmp_path / "in.bin", tmp_path / "out.bin"
    source.write_bytes(bytes(range(256)) * 2000)
    run("object", "add", "O")
    assert "Size: 500 KiB" in run("object", "put", "O", str(source), "--name", "data")
    assert "no terminal to ask at" in run("object", "put", "O", str(source), "--name", "data", code=2, stdin="")
    assert ask(run, "object", "ls", "O") == ["data"]
    run("object", "get", "O", "data", "-O", str(target))
    assert target.read_bytes() == source.read_bytes()
    assert "object not found" in run("object", "get", "O", "none", "-O", str(tmp_path / "none"), code=1)
    assert not (tmp_path / "none").exists()
    run("object", "rm", "O", "data", "-f")
    assert "is empty" in run("object", "ls", "O")


def test_a_context_of_the_nats_command_names_server_and_login(
    kind: Kind, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(kind, tmp_path / "store", config=ACCOUNTS)
    server.start()
    monkeypatch.delenv("NATS_URL")
    contexts = tmp_path / "nats" / "context"
    contexts.mkdir(parents=True)
    url = f"nats://{server.address[0]}:{server.address[1]}"
    (contexts / "there.json").write_text(json.dumps({"url": url, "user": "a", "password": "a"}))
    try:
        assert "Stored in Stream: S" in run("pub", "s", "x", "--create", "S", "--context", "there")
        assert "contexts of the nats command are: there" in run("pub", "s", "x", "--context", "here", code=2)
        (tmp_path / "nats" / "context.txt").write_text("there")
        assert run("stream", "ls", "-n") == "S\n"
        assert "Authorization Violation" in run("stream", "ls", "-s", url, code=1)
    finally:
        server.kill()
        (tmp_path / "nats" / "context.txt").unlink(missing_ok=True)


def test_status_over_nats_shows_the_server_or_what_concerns_the_account(tmp_path: Path) -> None:
    server = Server(Kind.OURS, tmp_path / "store", config=ACCOUNTS)
    server.start()
    url = f"nats://{server.address[0]}:{server.address[1]}"
    try:
        with Wire(server.address, {"user": "a", "pass": "a"}) as wire:
            assert "error" not in wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        for user, password, whole in (("sys", "s", True), ("a", "a", False)):
            arguments = ["status", "-s", url, "--user", user, "--password", password, "--json"]
            deadline = time.monotonic() + 20
            while True:  # a stream is on the page of the system account a moment after its creation
                result = CliRunner().invoke(app, arguments)
                assert result.exit_code == 0, result.output
                told = json.loads(result.output)
                if told["streams"] or time.monotonic() > deadline:
                    break
            assert [each["name"] for each in told["streams"]] == ["S"]
            assert ("uptime" in told["server"]) is whole
            assert told["healthy"] is True
    finally:
        server.kill()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("stream info O", ["ORDERS", "OTHER"]),
        ("stream info KV_", ["KV_prices"]),
        ("consumer info ORDERS ", ["slow"]),
        ("kv get ", ["prices"]),
        ("object ls ", ["files"]),
        ("stream info --server nats://127.0.0.1:1 O", []),
    ],
)
def test_a_shell_completes_names(
    address: str, run: Run, monkeypatch: pytest.MonkeyPatch, line: str, expected: list[str]
) -> None:
    for name in ("ORDERS", "OTHER"):
        run("stream", "add", name, "--subjects", f"{name}.>", "--defaults")
    run("consumer", "add", "ORDERS", "slow", "--pull", "--defaults")
    run("kv", "add", "prices")
    run("object", "add", "files")
    monkeypatch.setattr(completion, "ANSWER_S", 60.0)  # a shell does not wait for a busy machine
    words = f"lakestream {line}"
    variables = {"_LAKESTREAM_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    found = CliRunner().invoke(app, [], env=variables, prog_name="lakestream")
    assert (found.stdout.split(), found.stderr) == (expected, "")
