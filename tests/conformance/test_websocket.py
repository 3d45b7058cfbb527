"""WebSocket with settings that need a server of their own: timeouts, TLS, log lines, how a server ends its clients."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import PLACE, client_context
from tests.conformance.remotes import wait
from tests.conftest import Agree
from tests.keys import Operator
from tests.servers import Kind, Server
from tests.websocket import WebSocket, request, shake
from tests.wire import Closed, Secure, Wire, WireTimeout, dial

pytestmark = pytest.mark.conformance

PAGES = 'server_name: under-test\nhttp: "127.0.0.1:-1"\n'
FILES = f'cert_file: "{PLACE}/server.pem", key_file: "{PLACE}/server.key"'
VERIFY = f'verify: true, ca_file: "{PLACE}/ca.pem"'
QUIET = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"protocol":1}\r\n'


def _config(inside: str = "", more: str = "") -> str:
    comma = ", " if inside else ""
    return f'{PAGES}{more}\nwebsocket {{ listen: "127.0.0.1:-1", no_tls: true{comma}{inside} }}\n'


def _over_tls(inside: str = "", more: str = "", beside: str = "") -> str:
    tls = f"{FILES}, {inside}" if inside else FILES
    return f'{PAGES}{more}\nwebsocket {{ listen: "127.0.0.1:-1", tls {{ {tls} }} {beside} }}\n'


def _address(server: Server) -> tuple[str, int]:
    return server.host, server.websocket_port


def _secure(server: Server, certificate: str = "") -> Secure:
    return Secure(client_context(server.certificates, certificate))


def _until_closed(opened: WebSocket) -> list[Any]:
    """Return all frames until the server closes the connection; of INFO, what tells that the server leaves."""
    shown: list[Any] = []
    for got in opened.until_closed(10):
        data = got.data.decode()
        if data.startswith("INFO "):
            info = json.loads(data[5:])
            data = f"INFO {sorted(set(info) & {'ldm', 'connect_info'})}"
        if data != "PING\r\n":
            shown.append([got.kind, data])
    return shown


def _client(server: Server, secure: Secure | None = None, sent: bytes = QUIET) -> WebSocket:
    """Return a client that is logged in."""
    opened = WebSocket(_address(server), secure=secure)
    assert opened.next().data.startswith(b"INFO ")
    opened.sendall(sent + b"PING\r\n")
    while b"PONG" not in opened.next().data:
        pass
    return opened


# ---------------------------------------------------------------------- timeouts
@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHo"], ids=["nothing", "half"])
def test_a_handshake_that_does_not_come_in_time(agree: Agree, sent: bytes) -> None:
    def see(server: Server) -> Any:
        began = time.monotonic()
        with dial(_address(server), 10) as client:
            client.sendall(sent)
            got = b""
            with contextlib.suppress(ConnectionError):
                while data := client.recv(4096):
                    got += data
        return [got.split(b" ")[1].decode() if sent and got else "", 0.4 < time.monotonic() - began < 3]

    agree(see, config=_config('handshake_timeout: "500ms"'), jetstream=False)


def test_a_handshake_timeout_ends_no_client(agree: Agree) -> None:
    def see(server: Server) -> Any:
        opened = _client(server)
        with contextlib.suppress(WireTimeout):
            while opened.next(0.6).data != b"":
                pass
        opened.sendall(b"PING\r\n")
        return [opened.next().data.decode(), server.page("/varz")["websocket"]["handshake_timeout"]]

    agree(see, config=_config('handshake_timeout: "300ms"'), jetstream=False)


def test_a_login_that_does_not_come_in_time(agree: Agree) -> None:
    def see(server: Server) -> Any:
        return _until_closed(WebSocket(_address(server)))

    agree(see, config=_config(more="authorization { user: u, password: p, timeout: 0.3 }"), jetstream=False)


def test_pings_at_an_interval_of_its_own(agree: Agree) -> None:
    def see(server: Server) -> Any:
        opened = _client(server)
        began = time.monotonic()
        seen: list[str] = []
        with contextlib.suppress(WireTimeout, Closed):
            while len(seen) < 2:
                got = opened.next(3)
                if got.data == b"PING\r\n":
                    seen.append("PING")
                    opened.sendall(b"PONG\r\n")
        return [seen, time.monotonic() - began < 3]

    agree(see, config=_config('ping_interval: "500ms"', more='ping_interval: "1m"'), jetstream=False)


def test_a_client_that_answers_no_ping(agree: Agree) -> None:
    def see(server: Server) -> Any:
        return _until_closed(_client(server, sent=QUIET.replace(b'"protocol":1', b'"protocol":0')))

    agree(see, config=_config('ping_interval: "200ms"', more="ping_max: 1"), jetstream=False)


def test_more_connections_than_are_allowed(agree: Agree) -> None:
    def see(server: Server) -> Any:
        inside = _client(server)
        shown = _until_closed(WebSocket(_address(server)))
        inside.close()
        return shown

    agree(see, config=_config(more="max_connections: 1"), jetstream=False)


# ---------------------------------------------------------------------- ends
def test_a_server_that_stops_says_so(agree: Agree) -> None:
    def see(server: Server) -> Any:
        opened = _client(server, sent=QUIET.replace(b'"protocol":1', b'"protocol":0'))
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        shown = _until_closed(opened)
        server.stop()
        return shown

    agree(see, config=_config(), jetstream=False)


def test_lame_duck_mode(agree: Agree) -> None:
    def see(server: Server) -> Any:
        opened = _client(server)
        assert server.process is not None
        server.process.send_signal(signal.SIGUSR2)
        wait("a log line", lambda: server.logged("lame duck mode"))
        refused: list[bool] = []
        for address in (_address(server), server.address):
            try:
                socket.create_connection(address, timeout=5).close()
                refused.append(False)
            except OSError:
                refused.append(True)
        shown = _until_closed(opened)
        return [refused, [each for each in shown if each != ["BINARY", "INFO ['connect_info']"]], server.stop()]

    config = _config(more='lame_duck_duration: "30s"\nlame_duck_grace_period: "1s"')
    agree(see, config=config, jetstream=False)


# ---------------------------------------------------------------------- what is shown
@pytest.mark.parametrize(("config", "scheme"), [(_config(), "ws"), (_over_tls(), "wss")], ids=["plain", "tls"])
def test_log_lines_and_ports_file(agree: Agree, tmp_path: Path, config: str, scheme: str) -> None:
    def see(server: Server) -> Any:
        ports = server.wait_ports(tmp_path)
        lines = [*server.logged("ebsocket"), *server.logged("Listening for client")]
        return [ports["websocket"] == [f"{scheme}://127.0.0.1:{server.websocket_port}"], sorted(ports), lines]

    agree(see, config=config, args=["--ports_file_dir", str(tmp_path)], jetstream=False)


def test_a_port_alone_listens_everywhere(agree: Agree) -> None:
    def see(server: Server) -> Any:
        shown = [re.sub(r":\d+$", "", line) for line in server.logged("Listening for websocket")]
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, server.websocket_port), timeout=5) as client:
                shown.append(shake(client, request(host="x"), 5).status)
        return [shown, {**server.page("/varz")["websocket"], "port": 0}]

    agree(see, config=f"{PAGES}websocket {{ port: -1, no_tls: true }}\n", jetstream=False)


def test_header_fields_of_the_answer(agree: Agree) -> None:
    def see(server: Server) -> Any:
        answer = WebSocket(_address(server)).response
        return [answer.status, sorted(list(field) for field in answer.fields)]

    agree(see, config=_config('headers { "X-A": "b", "Strict-Transport-Security": "max-age=5; x" }'), jetstream=False)


def test_everything_on_the_page(agree: Agree) -> None:
    def see(server: Server) -> Any:
        shown = server.page("/varz")["websocket"]
        shown.pop("tls_cert_not_after", None)
        return {**shown, "port": 0}

    inside = """compression: true, same_origin: true, allowed_origins: ["https://a.example"], user_cookie: u
      pass_cookie: p, token_cookie: t, advertise: "a.example:443", ping_interval: "30s", headers { "X-A": "b" }
      handshake_timeout: "5s", no_auth_user: ann"""
    users = "authorization { users: [{user: ann, password: p}] }"
    agree(see, config=_config(inside, users), jetstream=False)


# ---------------------------------------------------------------------- TLS
def _login(server: Server, certificate: str = "") -> Any:
    """Return what INFO and the page of connections say of TLS once a client got its PONG; or its error."""
    try:
        opened = WebSocket(_address(server), secure=_secure(server, certificate))
    except (OSError, Closed):
        return "refused"
    with Wire(_address(server), {"name": "web"}, opened=opened) as wire:
        wire.send(b"PING\r\n")
        if (answer := wire.next(lambda frame: frame.verb in ("PONG", "-ERR"))).verb == "-ERR":
            return answer.text
        [shown] = [each for each in server.page("/connz?auth=1")["connections"] if each.get("name") == "web"]
        info = {name: value for name, value in wire.info.items() if name.startswith(("tls_", "auth_"))}
        return [info, {name: shown.get(name) for name in ("type", "tls_version", "tls_first", "authorized_user")}]


@pytest.mark.parametrize("inside", ["", VERIFY, "handshake_first: true", 'min_version: "1.3"'])
def test_clients_over_tls(agree: Agree, inside: str) -> None:
    agree(lambda server: [_login(server), _login(server, "ann")], config=_over_tls(inside), jetstream=False)


def test_users_of_certificates(agree: Agree) -> None:
    inside = f'verify_and_map: true, ca_file: "{PLACE}/ca.pem"'
    config = _over_tls(inside, 'authorization { users: [{user: "ann@example.com"}] }')
    agree(lambda server: [_login(server, name) for name in ("ann", "dns", "")], config=config, jetstream=False)


def test_tls_wins_over_no_tls(agree: Agree) -> None:
    agree(lambda server: _login(server), config=_over_tls(beside=", no_tls: true"), jetstream=False)


def test_clients_without_tls_where_tcp_needs_it(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with Wire(_address(server), {}, opened=WebSocket(_address(server))) as wire:
            return [wire.ping(), {name: value for name, value in wire.info.items() if name.startswith("tls_")}]

    agree(see, config=_config(more=f"tls {{ {FILES} }}"), jetstream=False)


@pytest.mark.parametrize(
    "sent", [request(host="x"), b"nonsense\r\n\r\n", b"CONNECT {}\r\n\r\n"], ids=["http", "nonsense", "nats"]
)
def test_no_tls_where_it_is_needed(agree: Agree, sent: bytes) -> None:
    def see(server: Server) -> Any:
        with dial(_address(server), 5) as client:
            client.sendall(sent)
            got = b""
            with contextlib.suppress(ConnectionError):
                while data := client.recv(4096):
                    got += data
        return got.decode("latin-1") if sent.startswith(b"GET") else b"HTTP" in got

    agree(see, config=_over_tls(), jetstream=False)


def test_log_lines_of_failed_handshakes(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with dial(_address(server), 5) as client:
            client.sendall(request(host="x"))
            with contextlib.suppress(ConnectionError):
                while client.recv(4096):
                    pass
        return wait("a log line", lambda: server.logged("TLS handshake error"))

    agree(see, config=_over_tls(), jetstream=False)


# ---------------------------------------------------------------------- tokens of an operator
OPERATOR = Operator()


@pytest.mark.parametrize(
    ("cookie", "connect"),
    [
        (OPERATOR.user_token(bearer_token=True), {}),
        (OPERATOR.token, {}),
        (OPERATOR.token, {"sig": True}),
        ("garbage", {}),
        ("", {}),
        ("garbage", {"jwt": OPERATOR.token, "sig": True}),
        (OPERATOR.user_token(bearer_token=True), {"jwt": OPERATOR.token}),
        (OPERATOR.user_token(bearer_token=True, allowed_connection_types=["STANDARD"]), {}),
        (OPERATOR.user_token(bearer_token=True, allowed_connection_types=["WEBSOCKET"]), {}),
    ],
    ids=["bearer", "unsigned", "signed", "garbage", "none", "connect", "connect_unsigned", "for_tcp", "for_websocket"],
)
def test_tokens_in_a_cookie(agree: Agree, cookie: str, connect: dict[str, Any]) -> None:
    def see(server: Server) -> Any:
        opened = WebSocket(_address(server), {"Cookie": f"x=1; token={cookie}" if cookie else None})
        info = json.loads(opened.next().data[5:])
        login = dict(connect)
        if login.pop("sig", False):
            login["sig"] = OPERATOR.user.sign(info["nonce"])
        opened.sendall(b"CONNECT " + json.dumps({"verbose": False, "protocol": 0, **login}).encode() + b"\r\nPING\r\n")
        got = opened.next()
        return [info.get("auth_required"), got.data.decode()]

    agree(see, config=_config("jwt_cookie: token", OPERATOR.config), jetstream=False)


# ---------------------------------------------------------------------- reload
@pytest.mark.parametrize(
    "config",
    [
        _config(),
        _config("compression: true"),
        _config("same_origin: true"),
        _config('handshake_timeout: "1s"'),
        _config("headers { a: b }"),
        _config("authorization { user: u, password: p }"),
        _config("shoe_size: 44"),
        _over_tls(),
        PAGES,
    ],
    ids=["same", "compression", "origin", "timeout", "headers", "user", "unknown", "tls", "without"],
)
def test_what_a_reload_changes(agree: Agree, config: str) -> None:
    def see(server: Server) -> Any:
        opened = _client(server)
        said = [line for line in server.reload(config) if "eload" in line and ":" in line]
        opened.sendall(b"PING\r\n")
        while b"PONG" not in opened.next().data:
            pass
        failed = [line.partition(": old=")[0] for line in said if "Failed" in line]
        return [re.sub(r"\S+\.conf", "FILE", line) for line in failed]

    agree(see, config=_config(), jetstream=False)


def _subject(server: Server) -> str:
    opened = WebSocket(_address(server), secure=_secure(server))
    assert isinstance(opened.socket, ssl.SSLSocket)
    return str(dict(part[0] for part in opened.socket.getpeercert()["subject"])["commonName"])


def test_a_reload_takes_new_certificates(agree: Agree, tmp_path: Path) -> None:
    directory = Server(Kind.REAL, tmp_path / "store").certificates

    def put(title: str) -> None:
        for kind in ("pem", "key"):
            shutil.copy(directory / f"{title}.{kind}", directory / f"live.{kind}")

    def see(server: Server) -> Any:
        old = _client(server, _secure(server))
        shown = [_subject(server)]
        put("second")
        server.reload()
        shown.append(_subject(server))
        old.sendall(b"PING\r\n")
        while b"PONG" not in old.next().data:
            pass
        put("server")
        return shown

    put("server")
    files = f'cert_file: "{PLACE}/live.pem", key_file: "{PLACE}/live.key"'
    config = f'{PAGES}websocket {{ listen: "127.0.0.1:-1", tls {{ {files} }} }}\n'
    agree(see, config=config, jetstream=False)
