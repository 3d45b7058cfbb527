"""Resolvers on servers of their own: directory contents, restarts, limits, and tokens from a URL."""

from __future__ import annotations

import contextlib
import http.server
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import certificates
from tests.conformance.conftest import CompareScripts
from tests.conformance.harness import Script
from tests.conformance.logins import attempt, with_token
from tests.conformance.scenarios.resolver import (
    KEPT,
    KEPT_TOKEN,
    OPERATOR,
    SYSTEM,
    SYSTEM_TOKEN,
    TRUSTED,
    U,
    ask,
    deletion,
    directory,
    system_of,
)
from tests.conftest import StartServer
from tests.keys import ISSUED_AT, JETSTREAM, account_jwt, account_key, login, user_jwt
from tests.pairs import Setup
from tests.servers import Server, StartFailed
from tests.wire import Closed, Wire

pytestmark = pytest.mark.conformance

FIRST, SECOND, THIRD = (account_key(f"resolver own {number}") for number in range(3))


def _files(t: Script) -> None:
    t.note("files", sorted(path.name for path in t.server.tokens.iterdir()))


def _listed(t: Script, system: Wire) -> None:
    answer = system.request("$SYS.REQ.CLAIMS.LIST").json()
    t.note("CLAIMS.LIST", {"keys": sorted(answer), "data": sorted(answer["data"])})


def _restarted(t: Script) -> Wire:
    t.server.stop()
    t.address = t.server.start().address
    return system_of(t)


def test_tokens_are_there_after_a_restart(compare_scripts: CompareScripts) -> None:
    def script(t: Script) -> None:
        system = system_of(t)
        _files(t)
        _listed(t, system)
        ask(t, system, "CLAIMS.UPDATE", account_jwt(FIRST, "FIRST", OPERATOR))
        newer = account_jwt(KEPT, "KEPT", OPERATOR, claims={"iat": ISSUED_AT + 1}, tags=["newer"])
        ask(t, system, "CLAIMS.UPDATE", newer)
        system = _restarted(t)
        _files(t)
        _listed(t, system)
        attempt(t, "login", with_token(U, user_jwt(U, "u", FIRST)))
        found = system.request(f"$SYS.REQ.ACCOUNT.{KEPT.public}.CLAIMS.LOOKUP").data
        t.note("preloaded or newer", found == newer.encode())

    compare_scripts(directory(), script)


def _streaming(t: Script) -> None:
    """Make two streams in an account: one that publishes to itself every second, one that copies it."""
    with login(t.address, U, user_jwt(U, "u", FIRST)) as wire:
        config = {"name": "S", "subjects": ["s.>"], "storage": "file", "allow_msg_schedules": True}
        assert "error" not in wire.api("STREAM.CREATE.S", config)
        assert "error" not in wire.api("STREAM.CREATE.C", {"name": "C", "storage": "file", "sources": [{"name": "S"}]})
        plan = {"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": "s.now"}
        assert "error" not in wire.request("s.plan", b"x", plan).json()


def _stored(t: Script, account: str = FIRST.public) -> dict[str, int]:
    """Return the messages of each stream that is open, as monitoring has them."""
    accounts = t.server.page("/jsz?accounts=true&streams=true").get("account_details") or []
    streams = [stream for one in accounts if one["id"] == account for stream in one.get("stream_detail") or []]
    return {stream["name"]: stream["state"]["messages"] for stream in streams}


def _growing(t: Script, name: str, more: int) -> None:
    """Wait until both streams have so many more messages, while no client is connected."""
    deadline, began = time.monotonic() + 15, _stored(t)
    while not (len(now := _stored(t)) == 2 and all(now[each] >= began.get(each, 0) + more for each in now)):
        assert time.monotonic() < deadline, (began, now, t.server.log())
        time.sleep(0.05)
    t.note(name, sorted(now))


def test_streams_of_signed_accounts_run_without_clients(compare_scripts: CompareScripts) -> None:
    def script(t: Script) -> None:
        system = system_of(t)
        ask(t, system, "CLAIMS.UPDATE", account_jwt(FIRST, "FIRST", OPERATOR, limits=JETSTREAM))
        _streaming(t)
        system.close()
        _growing(t, "before", 1)
        t.server.stop()
        t.address = t.server.start().address
        _growing(t, "after", 2)

    compare_scripts(directory(), script)


@pytest.mark.parametrize("by", ["push", "login"])
def test_streams_wait_for_the_token_of_their_account(start_server: StartServer, by: str) -> None:
    server = start_server(config=directory().config)
    t = Script(server, 5.0)
    token = account_jwt(FIRST, "FIRST", OPERATOR, limits=JETSTREAM)
    system = system_of(t)
    ask(t, system, "CLAIMS.UPDATE", token)
    _streaming(t)
    server.stop()
    path = server.tokens / f"{FIRST.public}.jwt"
    path.unlink()
    t.address = server.start().address
    assert _stored(t) == {}
    system = system_of(t)
    deadline = time.monotonic() + 10
    while not server.logged("has streams here that are closed until its token can be used"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    if by == "push":
        ask(t, system, "CLAIMS.UPDATE", token)
    else:
        path.write_text(token)
        while True:  # a login that came during a look for the token is refused with it
            with contextlib.suppress(Closed, OSError), login(t.address, U, user_jwt(U, "u", FIRST)) as wire:
                wire.ping()
                break
            assert time.monotonic() < deadline
    _growing(t, "after", 1)


def test_a_token_survives_a_kill_once_its_push_is_answered(compare_scripts: CompareScripts) -> None:
    def script(t: Script) -> None:
        system = system_of(t)
        token = account_jwt(FIRST, "FIRST", OPERATOR)
        ask(t, system, "CLAIMS.UPDATE", token)
        t.server.kill()
        t.address = t.server.start().address
        found = system_of(t).request(f"$SYS.REQ.ACCOUNT.{FIRST.public}.CLAIMS.LOOKUP").data
        t.note("found", found == token.encode())

    compare_scripts(directory(), script)


@pytest.mark.parametrize("options", ["allow_delete: true", "allow_delete: true, hard_delete: true"])
def test_deleted_tokens_stay_away(compare_scripts: CompareScripts, options: str) -> None:
    def script(t: Script) -> None:
        system = system_of(t)
        for key in (FIRST, SECOND):
            ask(t, system, "CLAIMS.UPDATE", account_jwt(key, "X", OPERATOR))
        ask(t, system, "CLAIMS.DELETE", deletion(FIRST.public, SECOND.public), "two")
        _files(t)
        _listed(t, system)
        ask(t, system, "CLAIMS.DELETE", deletion(KEPT.public, SYSTEM.public), "one, and the system account")
        _files(t)
        system = _restarted(t)
        _files(t)
        _listed(t, system)

    compare_scripts(directory(f", {options}"), script)


def test_a_directory_has_its_limit(compare_scripts: CompareScripts) -> None:
    def script(t: Script) -> None:
        system = system_of(t)
        for name, key in (("first", FIRST), ("second", SECOND), ("first again", FIRST)):
            ask(t, system, "CLAIMS.UPDATE", account_jwt(key, name, OPERATOR), name)
        _listed(t, system)

    compare_scripts(directory(", limit: 3"), script)


def test_foreign_files_in_the_directory(compare_scripts: CompareScripts) -> None:
    def script(t: Script) -> None:
        system = system_of(t)
        for name, content in (
            (f"{FIRST.public}.jwt", account_jwt(FIRST, "FIRST", OPERATOR)),
            (f"{SECOND.public}.jwt", "garbage"),
            (f"{THIRD.public}.jwt", account_jwt(FIRST, "FIRST", OPERATOR)),
            ("README", "x"),
        ):
            (t.server.tokens / name).write_text(content)
        for key in (FIRST, SECOND, THIRD):
            attempt(t, f"login {key.public}", with_token(U, user_jwt(U, "u", key)))
        system = _restarted(t)
        _listed(t, system)
        for key in (FIRST, SECOND, THIRD):
            attempt(t, f"login again {key.public}", with_token(U, user_jwt(U, "u", key)))

    compare_scripts(directory(), script)


def test_a_changed_file_is_not_seen_until_it_is_read(compare_scripts: CompareScripts) -> None:
    def script(t: Script) -> None:
        system = system_of(t)
        login = with_token(U, user_jwt(U, "u", FIRST))
        ask(t, system, "CLAIMS.UPDATE", account_jwt(FIRST, "FIRST", OPERATOR))
        attempt(t, "before", login)
        revoked = account_jwt(FIRST, "FIRST", OPERATOR, revocations={"*": ISSUED_AT})
        (t.server.tokens / f"{FIRST.public}.jwt").write_text(revoked)
        attempt(t, "after", login)
        found = system.request(f"$SYS.REQ.ACCOUNT.{FIRST.public}.CLAIMS.LOOKUP").data
        t.note("found", found == revoked.encode())

    compare_scripts(directory(), script)


def test_a_cache_takes_what_is_preloaded_and_asks_for_the_rest(compare_scripts: CompareScripts) -> None:
    def script(t: Script) -> None:
        system = system_of(t)
        _files(t)
        attempt(t, "preloaded", with_token(U, user_jwt(U, "u", KEPT)))
        for subject in ("CLAIMS.LIST", "CLAIMS.PACK", "CLAIMS.DELETE", "CLAIMS.UPDATE"):
            ask(t, system, subject)
        ask(t, system, f"ACCOUNT.{FIRST.public}.CLAIMS.UPDATE", account_jwt(FIRST, "FIRST", OPERATOR))
        ask(t, system, f"ACCOUNT.{KEPT.public}.CLAIMS.LOOKUP")
        # A full resolver, which this client stands for, is asked for a token.
        sid = system.subscribe("$SYS.REQ.ACCOUNT.*.CLAIMS.LOOKUP")
        system.ping()
        wire = t.connect_bare()
        wire.connect(with_token(U, user_jwt(U, "u", SECOND))(wire.info["nonce"]), b"PING\r\n")
        asked = system.delivered(sid)
        t.note("asked", [asked.subject, asked.data])
        system.publish(asked.reply, account_jwt(SECOND, "SECOND", OPERATOR).encode())
        t.frames("login", wire.until("PONG"))
        _files(t)

    compare_scripts(directory(", limit: 10, ttl: '1h'", "cache"), script)


class _Tokens(http.server.ThreadingHTTPServer):
    """Serve tokens by the key at the end of the path, and 404 for others."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.tokens = {SYSTEM.public: SYSTEM_TOKEN, KEPT.public: KEPT_TOKEN}
        self.asked: list[str] = []
        self.silent = ""
        """Account about which nothing is said until `go_on` is set."""
        self.go_on = threading.Event()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Tokens

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.server.silent and self.path.endswith(self.server.silent):
            self.server.go_on.wait()
            return
        token = self.server.tokens.get(self.path.rpartition("/")[2])
        if self.path == "/jwt/v1/accounts/":
            token = "ready"
        self.send_response(200 if token else 404)
        self.end_headers()
        self.wfile.write((token or "no such account").encode())

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def tokens() -> Iterator[_Tokens]:
    server = _Tokens()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_tokens_come_from_a_url(compare_scripts: CompareScripts, tokens: _Tokens) -> None:
    def script(t: Script) -> None:
        tokens.tokens = {SYSTEM.public: SYSTEM_TOKEN, KEPT.public: KEPT_TOKEN, SECOND.public: "garbage"}
        tokens.tokens[THIRD.public] = KEPT_TOKEN
        system = system_of(t)
        t.note("asked at the start", list(dict.fromkeys(tokens.asked)))  # nats-server asks for the last one twice
        tokens.asked = []
        login = with_token(U, user_jwt(U, "u", KEPT))
        for label in ("first", "second"):
            attempt(t, label, login)
        for label, key in (("unknown", FIRST), ("garbage", SECOND), ("of another", THIRD)):
            attempt(t, label, with_token(U, user_jwt(U, "u", key)))
        attempt(t, "unknown again", with_token(U, user_jwt(U, "u", FIRST)))
        t.note("asked", tokens.asked)
        tokens.tokens[FIRST.public] = account_jwt(FIRST, "FIRST", OPERATOR)
        attempt(t, "there now", with_token(U, user_jwt(U, "u", FIRST)))
        for subject in ("CLAIMS.LIST", "CLAIMS.UPDATE", f"ACCOUNT.{KEPT.public}.CLAIMS.LOOKUP"):
            ask(t, system, subject)
        revoked = account_jwt(KEPT, "KEPT", OPERATOR, revocations={"*": ISSUED_AT})
        ask(t, system, f"ACCOUNT.{KEPT.public}.CLAIMS.UPDATE", revoked, "pushed")
        attempt(t, "after a push", login)
        tokens.asked = []

    port = tokens.server_address[1]
    compare_scripts(
        Setup(f"operator: {TRUSTED}\nresolver: URL(http://127.0.0.1:{port}/jwt/v1/accounts/)\n", ()), script
    )


def test_a_url_that_does_not_answer_refuses_logins_late(compare_scripts: CompareScripts, tokens: _Tokens) -> None:
    def script(t: Script) -> None:
        system = system_of(t)
        original, tokens.tokens = tokens.tokens, {}
        began = time.monotonic()
        attempt(t, "gone", with_token(U, user_jwt(U, "u", KEPT)))
        t.note("at once", time.monotonic() - began < 1)
        tokens.tokens = original
        attempt(t, "there again", with_token(U, user_jwt(U, "u", KEPT)))
        system.ping()

    port = tokens.server_address[1]
    compare_scripts(Setup(f"operator: {TRUSTED}\nresolver: URL(http://127.0.0.1:{port}/jwt/v1/accounts)\n", ()), script)


@pytest.mark.parametrize(
    ("trusted", "certificate", "starts"),
    [("ca", "", True), ("other", "", False), ("ca", "ann", True), ("ca", "", False)],
    ids=["known authority", "another authority", "client certificate", "client certificate missing"],
)
def test_tokens_come_over_tls(
    start_server: Callable[..., Server],
    tokens: _Tokens,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    trusted: str,
    certificate: str,
    starts: bool,
) -> None:
    """Runs against either program."""
    files = tmp_path / "tls"
    certificates.write(files)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files / "server.pem", files / "server.key")
    if "client certificate" in request.node.callspec.id:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(files / "ca.pem")
    tokens.socket = context.wrap_socket(tokens.socket, server_side=True)
    own = f'cert_file: "{files}/{certificate}.pem", key_file: "{files}/{certificate}.key"' if certificate else ""
    config = (
        f"operator: {TRUSTED}\nresolver: URL(https://localhost:{tokens.server_address[1]}/jwt/v1/accounts/)\n"
        f'resolver_tls {{ ca_file: "{files}/{trusted}.pem", {own} }}\n'
    )
    if not starts:
        with pytest.raises(StartFailed):
            start_server(config=config, jetstream=False)
        return
    server = start_server(config=config, jetstream=False)
    with login(server.address, U, user_jwt(U, "u", KEPT)) as wire:
        wire.ping()


def test_a_url_that_says_nothing_holds_up_one_login_alone(start_server: Callable[..., Server], tokens: _Tokens) -> None:
    """Runs against either program."""
    url = f"http://127.0.0.1:{tokens.server_address[1]}/jwt/v1/accounts/"
    server = start_server(config=f"operator: {TRUSTED}\nresolver: URL({url})\n", jetstream=False)
    tokens.silent = FIRST.public
    try:
        waiting = Wire(server.address, None)
        waiting.connect(with_token(U, user_jwt(U, "u", FIRST))(waiting.info["nonce"]), b"PING\r\n")
        with login(server.address, U, user_jwt(U, "u", KEPT)) as wire:
            wire.ping()
        assert [frame.text for frame in waiting.until_closed()] == ["'Authorization Violation'"]
    finally:
        tokens.go_on.set()
