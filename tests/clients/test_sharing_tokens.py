"""Tests of `lakestream sharing` by its command lines: tokens in a server's bucket, permissions, and the process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import nats
import pytest

from lakestream_sharing import grants, issuing
from lakestream_sharing.grants import Grant
from lakestream_sharing.issuing import IssueFailed, Issuer
from tests import certificates
from tests.clients.test_commands import run
from tests.delta_tables import HandmadeTable
from tests.servers import Kind, Server
from tests.wire import Wire

pytestmark = pytest.mark.conformance

CONFIG = """
accounts {
  A { jetstream: enabled, users: [
    { user: ann, password: pw }
    { user: orders, password: pw, permissions { publish: [
      "$SYS.REQ.USER.INFO", "$KV.lakestream_sharing.ORDERS.*"
      "$JS.API.STREAM.INFO.ORDERS", "$JS.API.STREAM.INFO.EVENTS"
    ] } }
    { user: untold, password: pw, permissions { publish: "$KV.lakestream_sharing.ORDERS.*" } }
    { user: share, password: pw, permissions { publish: [
      "$SYS.REQ.USER.INFO", "$JS.API.DIRECT.GET.KV_lakestream_sharing", "$JS.API.STREAM.INFO.KV_lakestream_sharing"
    ] } } ] }
  B { jetstream: enabled, users: [{ user: bob, password: pw }] }
}
"""
WAIT_S = 60.0


class Serving:
    """A process of `lakestream sharing serve`."""

    def __init__(self, server: Server, lake: Path, *options: str, user: str = "share") -> None:
        command = [sys.executable, "-m", "lakestream", "sharing", "serve", "--lake", str(lake), "--server", server.url]
        self._process = subprocess.Popen(
            [*command, "--user", user, "--password", "pw", "--listen", "127.0.0.1:0", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        found = re.search(r"on (\S+)", self._process.stdout.readline())
        if found is None:
            raise AssertionError(self._process.communicate()[1])
        self.url = found[1]

    def ask(self, path: str, token: str, context: ssl.SSLContext | None = None) -> tuple[int, Any]:
        """Return status and JSON of an answer."""
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {token}"})
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S, context=context) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def tables(self, token: str, share: str = "lakestream") -> list[str]:
        """Return the tables of a share."""
        status, found = self.ask(f"/shares/{share}/all-tables", token)
        assert status == 200, found
        return [each["name"] for each in found["items"]]

    def stop(self) -> str:
        """End the process; return its log."""
        self._process.terminate()
        log = self._process.communicate(timeout=WAIT_S)[1]
        assert self._process.returncode == 0, log
        return log


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake with tables in two accounts."""
    lake = tmp_path_factory.mktemp("sharing") / "lake"
    for account, stream in (("A", "ORDERS"), ("A", "EVENTS"), ("B", "SECRET")):
        HandmadeTable(lake / "accounts" / account / "streams" / stream).append([("s", 1)])
    (lake / "_lake.json").write_text('{"id": "x"}')
    return lake


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(Kind.OURS, tmp_path_factory.mktemp("sharing") / "store", config=CONFIG)
    server.start()
    for user, streams in (("ann", ("ORDERS", "EVENTS")), ("bob", ("SECRET",))):
        with wire(server, user) as client:
            for stream in streams:
                client.api(f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [f"{stream.lower()}.>"]})
    yield server
    server.kill()


@pytest.fixture(scope="module")
def serving(server: Server, lake: Path) -> Iterator[Serving]:
    serving = Serving(server, lake)
    yield serving
    log = serving.stop()
    assert "ERROR" not in log


@contextlib.contextmanager
def wire(server: Server, user: str) -> Iterator[Wire]:
    with Wire(server.address, {"user": user, "pass": "pw"}, 20) as client:
        yield client


def sharing(server: Server, user: str, *arguments: str, code: int = 0) -> str:
    """Run a command; return stdout, or stderr where it fails."""
    done = run("sharing", arguments[0], "--server", server.url, "--user", user, "--password", "pw", *arguments[1:])
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def created(server: Server, user: str, recipient: str, *streams: str, history: bool = False) -> str:
    """Issue a token without the command, which takes a second to start."""

    async def issue() -> str:
        connection = await nats.connect(server.url, user=user, password="pw")
        try:
            issuer = Issuer(connection)
            profile = await issuer.issue(recipient, "lakestream", streams, 1, history=history, endpoint="http://x")
            return profile.bearer_token
        finally:
            await connection.close()

    return asyncio.run(issue())


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.heavy
def test_tokens_are_issued_listed_and_revoked(server: Server, serving: Serving, tmp_path: Path) -> None:
    file = tmp_path / "acme.share"
    more = ["--days", "2", "--endpoint", f"{serving.url}/", "--out", str(file)]
    assert sharing(server, "ann", "create", "acme", "--stream", "ORDERS", "--share", "sales", *more) == ""
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "exists" in sharing(server, "ann", "create", "acme", "--stream", "ORDERS", "--out", str(file), code=1)
    profile = json.loads(file.read_text())
    assert (profile["shareCredentialsVersion"], profile["endpoint"]) == (1, serving.url)
    token = profile["bearerToken"]
    assert serving.tables(token, "sales") == ["ORDERS"]
    every = created(server, "ann", "other", "*", history=True)
    assert serving.tables(every) == ["EVENTS", "ORDERS"]
    listed = {each["recipient"]: each for each in json.loads(sharing(server, "ann", "ls", "--json"))}
    assert listed["acme"]["expires"] == profile["expirationTime"]
    assert (listed["acme"]["streams"], listed["acme"]["history"]) == (["ORDERS"], False)
    assert (listed["other"]["streams"], listed["other"]["history"]) == (["*"], True)
    shown = sharing(server, "ann", "ls")
    assert "other" in shown
    assert token not in shown + json.dumps(listed)
    unused = created(server, "ann", "gone", "ORDERS", "EVENTS")
    assert sharing(server, "ann", "revoke", "gone") == "1 token of gone revoked\n"
    assert serving.ask("/shares", unused)[0] == 401
    [gone] = json.loads(sharing(server, "ann", "revoke", listed["acme"]["id"], "--json"))
    assert gone == listed["acme"]
    assert [each["recipient"] for each in json.loads(sharing(server, "ann", "ls", "--json"))] == ["other"]
    assert "there is no token" in sharing(server, "ann", "revoke", "acme", code=1)


@pytest.mark.heavy
def test_what_cannot_be_issued(server: Server) -> None:
    assert "no stream NONE" in sharing(server, "ann", "create", "acme", "--stream", "NONE", code=1)
    assert "--stream" in sharing(server, "ann", "create", "acme", code=1)
    assert "letters" in sharing(server, "ann", "create", "a c", "--stream", "ORDERS", code=1)


async def test_permissions_decide_who_issues_tokens_for_a_stream(
    server: Server, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(created, server, "ann", "first", "ORDERS")  # makes the bucket
    monkeypatch.setattr(issuing, "TIMEOUT_S", 1.0)
    connection = await nats.connect(server.url, user="orders", password="pw")
    issuer = Issuer(connection)
    profile = await issuer.issue("p", "lakestream", ["ORDERS"], 1, history=False, endpoint=serving.url)
    for stream in ("EVENTS", "*"):
        with pytest.raises(IssueFailed, match=r"may the user publish to \$KV\.lakestream_sharing\."):
            await issuer.issue("p", "lakestream", [stream], 1, history=False, endpoint=serving.url)
    await connection.close()
    assert await asyncio.to_thread(serving.tables, profile.bearer_token) == ["ORDERS"]
    connection = await nats.connect(server.url, user="untold", password="pw")
    with pytest.raises(IssueFailed, match=r"publish to \$SYS\.REQ\.USER\.INFO"):  # it might be a restricted one
        await Issuer(connection).issue("p", "lakestream", ["ORDERS"], 1, history=False, endpoint=serving.url)
    await connection.close()


@pytest.mark.heavy
def test_another_account_has_tokens_of_its_own(server: Server, serving: Serving, lake: Path) -> None:
    token = created(server, "bob", "acme", "*")
    assert serving.ask("/shares", token)[0] == 401
    other = Serving(server, lake, user="bob")
    assert other.tables(token) == ["SECRET"]
    other.stop()


async def test_entries_that_are_over_or_damaged_count_for_nothing(server: Server, serving: Serving) -> None:
    await asyncio.to_thread(created, server, "ann", "first", "ORDERS")
    with wire(server, "ann") as client:

        def put(value: bytes, stream: str = "ORDERS") -> str:
            token = grants.new_token()
            client.request(grants.subject(grants.key(stream, grants.hash_of(token))), value)
            return token

        over = put(msgspec.json.encode(Grant("x", "s", time.time_ns() - 1)))
        damaged = put(b"{}")
        spelled = put(msgspec.json.encode(Grant("x", "../s", time.time_ns() * 2)))
        ages = put(msgspec.json.encode(Grant("x", "s", 2**62)))
    for token in (over, damaged, spelled):
        assert serving.ask("/shares", token)[0] == 401
    assert serving.ask("/shares", ages)[0] == 200
    connection = await nats.connect(server.url, user="ann", password="pw")
    listed = [each for each in await Issuer(connection).tokens() if each.share == "s"]
    await connection.close()
    assert [each.expired for each in listed] == [True, False]
    assert listed[1].expires < "2100", "no token lives longer than a year"


@pytest.mark.heavy
def test_the_process_waits_for_its_server(tmp_path: Path, lake: Path) -> None:
    server = Server(Kind.OURS, tmp_path / "store", config=CONFIG)
    server.start()
    with wire(server, "ann") as client:
        client.api("STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"]})
    serving = Serving(server, lake)
    assert serving.ask("/shares", "unknown")[0] == 401, "there is no bucket yet"
    token = created(server, "ann", "acme", "ORDERS")
    server.wanted_port = server.port
    server.kill()
    eventually(lambda: serving.ask("/shares", token)[0] == 503)
    server.start()
    eventually(lambda: serving.ask("/shares", token)[0] == 200)
    serving.stop()
    server.kill()


@pytest.mark.heavy
def test_tls_and_addresses(server: Server, lake: Path, tmp_path: Path) -> None:
    certificates.write(tmp_path / "tls")
    cert, key = str(tmp_path / "tls" / "server.pem"), str(tmp_path / "tls" / "server.key")
    token = created(server, "ann", "acme", "ORDERS")
    serving = Serving(server, lake, "--https-cert", cert, "--https-key", key)
    assert serving.url.startswith("https://")
    context = certificates.client_context(tmp_path / "tls")
    assert serving.ask("/shares", token, context) == (200, {"items": [{"name": "lakestream"}]})
    serving.stop()
    login = ["--server", server.url, "--user", "share", "--password", "pw"]
    plain = run("sharing", "serve", "--lake", str(lake), *login, "--listen", "0.0.0.0:0")
    assert plain.returncode == 1
    assert "plain text" in plain.stderr
    key_file = tmp_path / "key"
    key_file.write_bytes(b"short")
    key_file.chmod(0o600)
    short = run("sharing", "serve", "--lake", str(lake), *login, "--url-key", str(key_file))
    assert "less than 32 bytes" in short.stderr
    key_file.chmod(0o644)
    assert "chmod 600" in run("sharing", "serve", "--lake", str(lake), *login, "--url-key", str(key_file)).stderr
    assert "no lake" in run("sharing", "serve", "--lake", str(tmp_path / "none"), *login).stderr
    wrong = run("sharing", "serve", "--lake", str(lake), "--server", server.url, "--user", "share", "--password", "no")
    assert wrong.returncode == 1
    assert "cannot connect" in wrong.stderr
