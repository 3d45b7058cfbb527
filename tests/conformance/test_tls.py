"""TLS for clients with every setting: who speaks first, timeouts, limits, several certificates, reloads, flags."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import shutil
import socket
import ssl
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import PLACE, client_context, fingerprint
from tests.conformance.remotes import wait
from tests.conftest import Agree, StartServer
from tests.servers import Kind, Server
from tests.wire import Closed, Frame, Secure, Wire, WireTimeout

pytestmark = pytest.mark.conformance

FILES = f'cert_file: "{PLACE}/server.pem", key_file: "{PLACE}/server.key"'
VERIFY = f'verify: true, ca_file: "{PLACE}/ca.pem"'
IF_GIVEN = f'verify: optional, ca_file: "{PLACE}/ca.pem"'
PAGES = 'server_name: under-test\nhttp: "127.0.0.1:-1"\n'


def _config(inside: str = "", more: str = "", files: str = FILES) -> str:
    return f"{PAGES}{more}\ntls {{\n{files}\n{inside}\n}}\n"


def _secure(server: Server, certificate: str = "", **options: Any) -> Secure:
    return Secure(client_context(server.certificates, certificate), **options)


def _tls_of(page: dict[str, Any]) -> dict[str, Any]:
    """Return the fields about TLS, without the date until when the certificate is valid."""
    return {name: value for name, value in page.items() if name.startswith("tls_") and not name.endswith("not_after")}


def _outcome(attempt: Callable[[], Any]) -> Any:
    """Return the result of an attempt, or how it fails."""
    try:
        return attempt()
    except (Closed, OSError):
        return "refused"
    except WireTimeout:
        return "silence"


def _errors(frames: list[Frame]) -> list[str]:
    return [frame.text for frame in frames if frame.verb == "-ERR"]


def _login(server: Server, secure: Secure | None = None, **connect: Any) -> Any:
    """Return the fields of INFO about TLS, once a client got its PONG; or how it fails."""

    def attempt() -> Any:
        with Wire(server.address, connect, secure=secure) as wire:
            wire.ping()
            return _tls_of(wire.info)

    return _outcome(attempt)


def _said_to(server: Server, sent: bytes) -> Any:
    """Return the first word of each line that a client without TLS is told until the connection ends."""
    with socket.create_connection(server.address, timeout=5) as client:
        client.sendall(sent)
        got = b""
        try:
            while data := client.recv(65536):
                got += data
        except ConnectionError:
            pass
        except TimeoutError:
            return "not closed"
    words = got.split(b"\r\n")
    return [word.split(b" ")[0].decode() for word in words if word]


def _closed(server: Server, count: int) -> list[dict[str, Any]]:
    """Return the closed connections if they are at least `count`, or nothing."""
    found: list[dict[str, Any]] = server.page("/connz?state=closed")["connections"]
    return found if len(found) >= count else []


def _wait_reasons(server: Server, count: int) -> list[str]:
    """Return the reasons of closed connections, oldest first, once there are `count`."""
    found = wait("closed connections", lambda: _closed(server, count))
    return [each["reason"] for each in sorted(found, key=lambda each: each["cid"])]


# ---------------------------------------------------------------------- who speaks first
@pytest.mark.parametrize(
    "inside",
    [
        "handshake_first: true",
        "handshake_first: false",
        "handshake_first: auto",
        'handshake_first: "300ms"',
        'handshake_first: "0s"',
        'handshake_first: "off"',
        "immediate: true",
    ],
)
@pytest.mark.parametrize("more", ["", "allow_non_tls: true"], ids=["required", "optional"])
def test_handshake_first(agree: Agree, inside: str, more: str) -> None:
    def see(server: Server) -> Any:
        shown = [
            _said_to(server, b"") if not more else None,
            _said_to(server, b"PING\r\n") if not more else _login(server),
            _login(server, _secure(server)),
            _login(server, _secure(server, first=True)),
        ]
        with contextlib.suppress(OSError, Closed), Wire(server.address, {}, secure=_secure(server, first=True)) as wire:
            wire.ping()
            shown.append([each.get("tls_first") for each in server.page("/connz")["connections"]])
        return [*shown, server.logged("Handshake First"), _tls_of(server.page("/varz"))]

    agree(see, config=_config(f"{inside}, timeout: 0.5", more), jetstream=False)


def test_info_comes_after_the_delay_of_handshake_first(agree: Agree) -> None:
    def see(server: Server) -> Any:
        began = time.monotonic()
        with socket.create_connection(server.address, timeout=5) as client:
            first = client.recv(5)
        return [first.decode(), 0.3 <= time.monotonic() - began < 1.5]

    agree(see, config=_config('handshake_first: "300ms"'), jetstream=False)


@pytest.mark.parametrize("inside", ["handshake_first: auto", "handshake_first: true", "handshake_first: false"])
def test_a_client_without_the_proxy_header_that_may_come(agree: Agree, inside: str) -> None:
    def login(server: Server, first: bool) -> Any:
        # The server waits for a header for 5 s, longer than a client waits by default.
        with Wire(server.address, {}, secure=_secure(server, first=first), timeout=15.0) as wire:
            wire.ping()
            return _tls_of(wire.info)

    def see(server: Server) -> Any:
        return [_outcome(functools.partial(login, server, first)) for first in (False, True)]

    agree(see, config=_config(inside, "proxy_protocol: true"), jetstream=False)


def test_log_lines_and_ports_file_with_tls(agree: Agree, tmp_path: Path) -> None:
    def see(server: Server) -> Any:
        ports = server.wait_ports(tmp_path)
        return [ports == {"nats": [f"tls://127.0.0.1:{server.port}"]}, server.logged("TLS")]

    config = f"server_name: under-test\ntls {{ {FILES} }}\n"
    agree(see, config=config, args=["--ports_file_dir", str(tmp_path)], jetstream=False)


# ---------------------------------------------------------------------- timeouts and limits
@pytest.mark.parametrize("value", ["0.5", '"300ms"', "1"])
def test_a_handshake_that_does_not_come_in_time(agree: Agree, value: str) -> None:
    def see(server: Server) -> Any:
        silent, half = (socket.create_connection(server.address, timeout=5) for _ in range(2))
        half.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        for client in (silent, half):
            with client, contextlib.suppress(ConnectionError):
                while client.recv(65536):
                    pass
        varz = server.page("/varz")
        return [_wait_reasons(server, 2), _login(server, _secure(server)), varz["tls_timeout"], varz["auth_timeout"]]

    agree(see, config=_config(f"timeout: {value}"), jetstream=False)


@pytest.mark.parametrize("value", ["0", "2", "5", '"1500ms"', '"1m"'])
def test_timeouts_on_the_page(agree: Agree, value: str) -> None:
    def see(server: Server) -> Any:
        return [server.page("/varz")[name] for name in ("tls_timeout", "auth_timeout")]

    agree(see, config=_config(f"timeout: {value}"), jetstream=False)


def test_a_login_that_does_not_come_after_the_handshake(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with Wire(server.address, None, secure=_secure(server)) as wire:
            return [_errors(wire.until_closed()), _wait_reasons(server, 1)]

    agree(see, config=_config(more="authorization { user: u, password: p, timeout: 0.5 }"), jetstream=False)


def test_connection_rate_limit(agree: Agree) -> None:
    def see(server: Server) -> Any:
        secure = _secure(server)
        with contextlib.ExitStack() as stack:
            inside = [stack.enter_context(Wire(server.address, {}, secure=secure)) for _ in range(3)]
            shown: list[Any] = [_outcome(wire.ping) for wire in inside]
            with Wire(server.address, None) as over:
                shown.append(_errors(over.until_closed()))
            shown.append(_wait_reasons(server, 1))
        shown.append(wait("a line about the limit", lambda: server.logged("rate limiting")))
        wait("the end of the limit", lambda: _login(server, secure) != "refused")
        return shown

    agree(see, config=_config("connection_rate_limit: 3"), jetstream=False)


# ---------------------------------------------------------------------- certificates
@pytest.mark.parametrize("case", [str.lower, str.upper], ids=["lower", "upper"])
@pytest.mark.parametrize("pinned", ["ann", "dns", "server"])
def test_pinned_certificates(agree: Agree, tmp_path: Path, pinned: str, case: Callable[[str], str]) -> None:
    certificates = Server(Kind.REAL, tmp_path / "store").certificates
    pin = case(fingerprint(certificates, pinned))

    def see(server: Server) -> Any:
        shown = [_login(server, _secure(server, name)) for name in ("ann", "dns")]
        refused = [reason for reason in _wait_reasons(server, 2) if reason != "Client Closed"]
        wait("lines about pins", lambda: len(server.logged("not pinned")) >= len(refused))
        return [shown, refused, [line.split("error: ")[1] for line in server.logged("not pinned")]]

    agree(see, config=_config(f'{VERIFY}, pinned_certs: ["{pin}"]'), jetstream=False)


def test_no_pinned_certificate_and_none_that_is_shown(agree: Agree) -> None:
    def see(server: Server) -> Any:
        return [_login(server, _secure(server, name)) for name in ("ann", "")]

    agree(see, config=_config(f'pinned_certs: ["{"0" * 64}"]'), jetstream=False)


def test_several_certificates_by_name(agree: Agree) -> None:
    def see(server: Server) -> Any:
        context = client_context(server.certificates)
        context.check_hostname = False
        shown = []
        for name in ("localhost", "a.example", "x.inner.example", "x.y.inner.example", "nobody.example", None):
            with Wire(server.address, {}, secure=Secure(context, name=name)) as wire:  # type: ignore[arg-type]
                wire.ping()
                assert isinstance(wire.socket, ssl.SSLSocket)
                subject = dict(part[0] for part in wire.socket.getpeercert()["subject"])
                shown.append([name, subject["commonName"]])
        return shown

    pairs = ", ".join(f'{{cert_file: "{PLACE}/{n}.pem", key_file: "{PLACE}/{n}.key"}}' for n in ("server", "inner"))
    agree(see, config=_config(f"certs: [{pairs}]", files=""), jetstream=False)


def test_a_certificate_by_name_with_another_curve_than_the_first(agree: Agree) -> None:
    """The name and the curve are chosen independently of each other."""

    def see(server: Server) -> Any:
        context = client_context(server.certificates)
        context.check_hostname = False
        context.set_ecdh_curve("secp384r1")
        with Wire(server.address, {}, secure=Secure(context, name="a.example")) as wire:
            wire.ping()
            assert isinstance(wire.socket, ssl.SSLSocket)
            return dict(part[0] for part in wire.socket.getpeercert()["subject"])

    pairs = ", ".join(f'{{cert_file: "{PLACE}/{n}.pem", key_file: "{PLACE}/{n}.key"}}' for n in ("server", "inner"))
    inside = f'certs: [{pairs}], curve_preferences: ["X25519", "CurveP384"]'
    agree(see, config=_config(inside, files=""), jetstream=False)


def test_curves_that_openssl_does_not_have(start_server: StartServer) -> None:
    """Leaving them out is logged."""
    config = _config('curve_preferences: ["SecP384r1MLKEM1024", "X25519"]')
    server = start_server(config=config, jetstream=False)
    assert _login(server, _secure(server)) == {"tls_required": True}
    try:
        ssl.create_default_context().set_ecdh_curve("SecP384r1MLKEM1024")
        left_out = []
    except ValueError:
        left_out = ["curve_preferences: OpenSSL here does not have SecP384r1MLKEM1024"]
    assert server.logged("does not have") == left_out


def test_a_first_record_that_comes_in_pieces(start_server: StartServer) -> None:
    """The server waits for the whole record before it chooses by the curves that the client offers."""
    server = start_server(config=_config('curve_preferences: ["X25519", "CurveP384"]'), jetstream=False)
    context = client_context(server.certificates)
    context.set_ecdh_curve("secp384r1")
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(received, sent, server_hostname="localhost")
    with socket.create_connection(server.address, timeout=5) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        assert client.recv(4096).startswith(b"INFO ")
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                for byte in sent.read():
                    client.sendall(bytes([byte]))
                received.write(client.recv(65536))
        client.sendall(sent.read())
        tls.write(b"CONNECT {}\r\nPING\r\n")
        client.sendall(sent.read())
        received.write(client.recv(65536))
        assert b"+OK" in (answer := tls.read()) or b"PONG" in answer


@pytest.mark.parametrize("inside", ["", "certs: []"], ids=["empty", "no_certs"])
def test_a_block_without_a_certificate(agree: Agree, inside: str) -> None:
    def see(server: Server) -> Any:
        return [_login(server), _login(server, _secure(server)), _tls_of(server.page("/varz"))]

    agree(see, config=_config(inside, files=""), jetstream=False)


@pytest.mark.parametrize("certificate", ["ann", "impostor", ""])
def test_an_authority_alone_asks_for_no_certificate(agree: Agree, certificate: str) -> None:
    config = _config(f'ca_file: "{PLACE}/ca.pem"')
    agree(lambda server: _login(server, _secure(server, certificate)), config=config, jetstream=False)


def test_verify_without_an_authority_believes_those_of_the_system(agree: Agree) -> None:
    agree(lambda server: _login(server, _secure(server, "ann")), config=_config("verify: true"), jetstream=False)


@pytest.mark.parametrize("files", ["expired", "only_server", "bundle"])
def test_certificates_that_a_server_may_have(agree: Agree, files: str) -> None:
    def see(server: Server) -> Any:
        secure = Secure(client_context(server.certificates, trust=""))
        return _login(server, secure)

    key = "server" if files == "bundle" else files
    config = _config(files=f'cert_file: "{PLACE}/{files}.pem", key_file: "{PLACE}/{key}.key"')
    agree(see, config=config, jetstream=False)


# ---------------------------------------------------------------------- versions and ciphers
V12, V13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize(
    ("inside", "most", "ciphers", "curve"),
    [
        ('min_version: "1.2"', V12, "", ""),
        ('min_version: "1.3"', V12, "", ""),
        ('min_version: "1.3"', V13, "", ""),
        ('cipher_suites: ["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"]', V12, "", ""),
        ('cipher_suites: ["TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"]', V12, "", ""),
        ('cipher_suites: ["TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"]', V12, "", ""),
        ('cipher_suites: ["TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"]', V13, "", ""),
        ('cipher_suites: ["TLS_AES_256_GCM_SHA384"]', V13, "", ""),
        ("", V12, "ECDHE-RSA-AES128-GCM-SHA256", ""),
        ("", V12, "ECDHE-ECDSA-CHACHA20-POLY1305", ""),
        ('curve_preferences: ["CurveP384"]', V13, "", "prime256v1"),
        ('curve_preferences: ["CurveP384"]', V13, "", "secp384r1"),
        ('curve_preferences: ["CurveP256", "CurveP384"]', V13, "", "prime256v1"),
        ('curve_preferences: ["X25519"]', V13, "", "secp384r1"),
        ('curve_preferences: ["CurveP256", "CurveP384"]', V13, "", "secp384r1"),
        ('curve_preferences: ["X25519", "CurveP256"]', V12, "", "prime256v1"),
        ('curve_preferences: ["X25519", "CurveP256"]', V13, "", "secp384r1"),
        ('curve_preferences: ["X25519MLKEM768", "X25519"]', V13, "", "X25519"),
    ],
)
def test_versions_and_ciphers(agree: Agree, inside: str, most: ssl.TLSVersion, ciphers: str, curve: str) -> None:
    def see(server: Server) -> Any:
        secure = _secure(server)
        secure.context.maximum_version = most
        if ciphers:
            secure.context.set_ciphers(ciphers)
        if curve:
            secure.context.set_ecdh_curve(curve)

        def attempt() -> Any:
            with Wire(server.address, {}, secure=secure) as wire:
                wire.ping()
                [shown] = server.page("/connz")["connections"]
                suite = shown["tls_cipher_suite"] if most is V12 else "of TLS 1.3"
                return [shown["tls_version"], suite]

        return _outcome(attempt)

    agree(see, config=_config(inside), jetstream=False)


# ---------------------------------------------------------------------- alerts
_OLD = {"most": ssl.TLSVersion.TLSv1_1, "ciphers": "ALL:@SECLEVEL=0"}
_ALERTS: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("", {}),
    "none, TLS 1.2": ("", {"most": ssl.TLSVersion.TLSv1_2}),
    "expired": ("late", {}),
    "expired, TLS 1.2": ("late", {"most": ssl.TLSVersion.TLSv1_2}),
    "of an unknown authority": ("impostor", {}),
    "of an unknown authority, TLS 1.2": ("impostor", {"most": ssl.TLSVersion.TLSv1_2}),
    "TLS 1.1": ("ann", _OLD),
    "no common cipher suite": ("ann", {"most": ssl.TLSVersion.TLSv1_2, "ciphers": "AES256-SHA256"}),
}
"""Clients whose handshake fails: certificate, newest version and cipher suites."""


def _alert(server: Server, port: int, certificate: str, most: ssl.TLSVersion | None = None, ciphers: str = "") -> str:
    """Return OpenSSL's name of the alert that a client gets, or what it gets instead."""
    context = client_context(server.certificates, certificate)
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        context.minimum_version = min(context.minimum_version, most or context.minimum_version)
        context.maximum_version = most or context.maximum_version
    if ciphers:
        context.set_ciphers(ciphers)
    with socket.create_connection((server.host, port), timeout=5) as plain:
        if port in (server.port, server.leaf_port):
            plain.recv(65536)  # INFO
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as opened:
                opened.sendall(b"GET /varz HTTP/1.0\r\n\r\n")  # with TLS 1.3 the server looks at certificates later
                return f"received {opened.recv(5)!r}"
        except ssl.SSLError as error:
            return error.reason or str(error)


def test_a_client_is_told_why_its_handshake_fails(agree: Agree) -> None:
    """Monitoring asks for no certificate. The names are of OpenSSL on the client's side."""

    def see(server: Server) -> Any:
        [routes] = wait("routes", lambda: re.findall(r"Listening for route connections on \S+:(\d+)", server.log()))
        listeners = {
            "clients": server.port,
            "websocket": server.websocket_port,
            "leaf nodes": server.leaf_port,
            "routes": int(routes),
            "monitoring": server.http_port,
        }
        return {
            listener: {label: _alert(server, port, certificate, **how) for label, (certificate, how) in _ALERTS.items()}
            for listener, port in listeners.items()
        }

    tls = f"tls {{ {FILES}, {VERIFY} }}"
    listeners = "\n".join(
        f'{block} {{ {name} listen: "127.0.0.1:-1", {tls} }}'
        for block, name in (("websocket", ""), ("leafnodes", ""), ("cluster", "name: alerts,"))
    )
    agree(see, config=f'server_name: under-test\nhttps: "127.0.0.1:-1"\n{tls}\n{listeners}\n', jetstream=False)


# ---------------------------------------------------------------------- reload
def _subject(server: Server) -> str:
    with Wire(server.address, {}, secure=_secure(server)) as wire:
        wire.ping()
        assert isinstance(wire.socket, ssl.SSLSocket)
        return str(dict(part[0] for part in wire.socket.getpeercert()["subject"])["commonName"])


def _told(lines: list[str]) -> list[str]:
    """Return the lines of a reload's log that are about TLS."""
    words = ("tls", "TLS", "pinned", "Failed", "authorization timeout")
    said = [line.partition(": old=")[0] for line in lines if any(word in line for word in words)]
    return [re.sub(r"/\S+/", "", re.sub(r"\S+\.conf", "FILE", line)) for line in said]


def _put_live(directory: Path, title: str) -> None:
    for kind in ("pem", "key"):
        shutil.copy(directory / f"{title}.{kind}", directory / f"live.{kind}")


def test_a_reload_takes_new_certificates_and_keeps_who_is_connected(agree: Agree, tmp_path: Path) -> None:
    _put_live(Server(Kind.REAL, tmp_path / "store").certificates, "server")

    def see(server: Server) -> Any:
        directory = server.certificates
        old = Wire(server.address, {}, secure=_secure(server))
        shown: list[Any] = [old.ping(), _subject(server)]
        _put_live(directory, "second")
        shown += [_subject(server), _told(server.reload()), _subject(server), old.ping(), len(old.infos)]
        (directory / "live.pem").write_text("garbage")
        shown += [_told(server.reload()), _subject(server), old.ping()]
        old.close()
        _put_live(directory, "server")
        return shown

    config = _config(files=f'cert_file: "{PLACE}/live.pem", key_file: "{PLACE}/live.key"')
    agree(see, config=config, jetstream=False)


BEFORE = _config()


@pytest.mark.parametrize(
    "config",
    [
        _config("timeout: 5"),
        _config(VERIFY),
        _config(IF_GIVEN),
        _config("handshake_first: true"),
        _config("handshake_first: auto"),
        _config('min_version: "1.3"'),
        _config(f'pinned_certs: ["{"0" * 64}"]'),
        _config(more="allow_non_tls: true"),
        _config("connection_rate_limit: 2"),
        _config("shoe_size: 44"),
        _config(files=f'cert_file: "{PLACE}/nowhere.pem", key_file: "{PLACE}/server.key"'),
        PAGES,
    ],
    ids=[
        "timeout",
        "verify",
        "verify_if_given",
        "first",
        "auto",
        "min_version",
        "pinned",
        "optional",
        "rate",
        "unknown",
        "nowhere",
        "without",
    ],
)
def test_what_a_reload_changes(agree: Agree, config: str) -> None:
    def see(server: Server) -> Any:
        old = Wire(server.address, {"protocol": 1}, secure=_secure(server))
        infos = len(old.told())
        lines = _told(server.reload(config))
        shown = [
            lines,
            _outcome(lambda: _errors(old.until_closed(0.4))),
            [_tls_of(info) for info in old.infos[infos:]],
            _outcome(lambda: _login(server)),
            _login(server, _secure(server)),
            _login(server, _secure(server, "ann")),
            _login(server, _secure(server, first=True)),
            _tls_of(server.page("/varz")),
        ]
        old.close()
        return shown

    agree(see, config=BEFORE, jetstream=False)


def test_a_reload_with_tls_keeps_who_is_connected_without(agree: Agree) -> None:
    def see(server: Server) -> Any:
        with Wire(server.address, {"protocol": 1}) as old:
            infos = len(old.told())
            lines = _told(server.reload(_config()))
            return [lines, old.ping(), [_tls_of(info) for info in old.infos[infos:]], _login(server, _secure(server))]

    agree(see, config=PAGES, jetstream=False)


def test_a_reload_without_the_user_of_a_certificate(agree: Agree) -> None:
    inside = f'verify_and_map: true, ca_file: "{PLACE}/ca.pem"'
    users = 'authorization {{ users: [{{user: "{}"}}] }}'

    def see(server: Server) -> Any:
        with Wire(server.address, {}, secure=_secure(server, "ann")) as wire:
            wire.ping()
            server.reload(_config(inside, users.format("somebody@example.com")))
            frames = _errors(wire.until_closed())
            return [frames, _wait_reasons(server, 1)]

    agree(see, config=_config(inside, users.format("ann@example.com")), jetstream=False)


# ---------------------------------------------------------------------- monitoring
@pytest.mark.parametrize("inside", ["", VERIFY, "handshake_first: true"], ids=["plain", "verify", "first"])
def test_monitoring_over_tls(agree: Agree, inside: str) -> None:
    def see(server: Server) -> Any:
        url = f"https://localhost:{server.http_port}/varz"
        shown: list[Any] = []
        for certificate in ("", "ann"):
            context = client_context(server.certificates, certificate)
            with urllib.request.urlopen(url, context=context, timeout=10) as page:
                varz = json.load(page)
            shown.append({name: varz[name] for name in ("http_host", "http_port", "http_base_path", "https_port")})
        with socket.create_connection((server.host, server.http_port), timeout=5) as plain:
            plain.sendall(b"GET /varz HTTP/1.1\r\nHost: x\r\n\r\n")
            got = b""
            with contextlib.suppress(ConnectionError):
                while data := plain.recv(4096):
                    got += data
        return [shown, got.decode(), server.logged("Starting https")]

    config = f'server_name: under-test\nhttps: "127.0.0.1:-1"\ntls {{ {FILES}{", " if inside else ""}{inside} }}\n'
    agree(see, config=config, jetstream=False)


def _subject_of_monitoring(server: Server) -> str:
    context = client_context(server.certificates)
    plain = socket.create_connection((server.host, server.http_port), timeout=5)
    with context.wrap_socket(plain, server_hostname="localhost") as opened:
        certificate = opened.getpeercert()
    assert certificate is not None
    return str(certificate["subject"])


def test_a_reload_takes_new_certificates_for_monitoring(start_server: StartServer, tmp_path: Path) -> None:
    """nats-server goes on with the old ones until its next start."""
    directory = Server(Kind.REAL, tmp_path / "store").certificates
    _put_live(directory, "server")
    config = f'cert_file: "{PLACE}/live.pem", key_file: "{PLACE}/live.key"'
    server = start_server(config=f"tls {{ {config} }}\n", args=["-ms", "-1"], jetstream=False)
    assert "localhost" in _subject_of_monitoring(server)
    _put_live(directory, "second")
    server.reload()
    assert "second" in _subject_of_monitoring(server)


# ---------------------------------------------------------------------- flags
CERT = ["--tlscert", f"{PLACE}/server.pem", "--tlskey", f"{PLACE}/server.key"]
OTHER = ["--tlscert", f"{PLACE}/second.pem", "--tlskey", f"{PLACE}/second.key"]
CA = ["--tlscacert", f"{PLACE}/ca.pem"]


@pytest.mark.parametrize(
    ("args", "config"),
    [
        (["--tls", *CERT], None),
        (CERT, None),
        (["--tls", *CERT, *CA], None),
        (["--tlsverify", *CERT, *CA], None),
        (["--tlsverify=optional", *CERT, *CA], None),
        (["--tls=false", *CERT], None),
        (["--tls", *OTHER], f"tls {{ {FILES} }}"),
        (["--tls=false"], f"tls {{ {FILES} }}"),
    ],
    ids=["tls", "files_alone", "authority", "verify", "verify_if_given", "false", "over_a_file", "false_over_a_file"],
)
def test_flags(agree: Agree, args: list[str], config: str | None) -> None:
    def see(server: Server) -> Any:
        return [
            _login(server),
            _login(server, _secure(server)),
            _login(server, _secure(server, "ann")),
            _tls_of(server.page("/varz")),
        ]

    agree(see, args=["-m", "-1", *args], config=config, jetstream=False)
