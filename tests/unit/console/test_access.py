"""Tests of the console's access rules: cookies, origins, and hosts of requests."""

from __future__ import annotations

import socket

import pytest

from lakestream.config.options import ConsoleOptions, Options, TlsOptions
from lakestream.http.exchange import HttpRequest
from lakestream_console import access

pytestmark = pytest.mark.unit


def asked(secure: bool = False, **headers: str) -> HttpRequest:
    return HttpRequest(
        "GET", "/console", headers={name.replace("_", "-"): value for name, value in headers.items()}, secure=secure
    )


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost:8222", "lakestream_console_8222"),
        ("localhost", "lakestream_console"),
        ("[::1]:8222", "lakestream_console_8222"),
        ("nats.example:x", "lakestream_console"),
        ("nats.example:123456", "lakestream_console"),
        ("", "lakestream_console"),
    ],
)
def test_the_cookie_belongs_to_the_port_that_the_browser_uses(host: str, name: str) -> None:
    assert access.cookie_name(asked(host=host)) == name


def test_the_session_is_found_among_other_cookies() -> None:
    request = asked(host="a:1", cookie="x=1; lakestream_console_2=no; lakestream_console_1=abc; y=2")
    assert access.session_id(request) == "abc"
    assert access.session_id(asked(host="a:3", cookie="lakestream_console_1=abc")) == ""
    assert access.session_id(asked(host="a:3")) == ""


def test_the_cookie_is_kept_from_scripts_and_other_sites() -> None:
    name, value = access.set_cookie(asked(host="a:1"), "abc", "/console")
    assert name == "Set-Cookie"
    assert value == "lakestream_console_1=abc; Path=/console; HttpOnly; SameSite=Strict"
    assert access.set_cookie(asked(host="a:1", secure=True), "abc", "/console")[1].endswith("; Secure")
    assert access.set_cookie(asked(host="a:1", origin="https://a:1"), "abc", "/console")[1].endswith("; Secure")
    assert access.set_cookie(asked(host="a:1"), "", "/console")[1].endswith("; Max-Age=0")


@pytest.mark.parametrize(
    ("headers", "cross"),
    [
        ({"host": "a:1"}, False),
        ({"host": "a:1", "origin": "http://a:1"}, False),
        ({"host": "a:1", "origin": "https://a:1"}, False),
        ({"host": "a", "origin": "http://a"}, False),
        ({"host": "a", "origin": "http://a:80"}, False),
        ({"host": "a", "origin": "https://a"}, False),
        ({"host": "A:1", "origin": "http://a:1"}, False),
        ({"host": "[::1]:1", "origin": "http://[::1]:1"}, False),
        ({"host": "a:1", "origin": "http://a:2"}, True),
        ({"host": "a", "origin": "http://a:8222"}, True),
        ({"host": "a:1", "origin": "http://b:1"}, True),
        ({"host": "a:1", "origin": "http://a:1.b"}, True),
        ({"host": "a:1", "origin": "null"}, True),
        ({"host": "a:1", "origin": ""}, True),
        ({"host": "", "origin": "null"}, True),
        ({"host": "", "origin": ""}, True),
        ({"host": "a:x", "origin": "http://a:x"}, True),
        ({"host": "[", "origin": "http://["}, True),
        ({"host": "a:1", "sec_fetch_site": "same-origin"}, False),
        ({"host": "a:1", "sec_fetch_site": "none"}, False),
        ({"host": "a:1", "sec_fetch_site": "same-site"}, True),
        ({"host": "a:1", "sec_fetch_site": "cross-site", "origin": "http://a:1"}, True),
    ],
)
def test_requests_of_other_origins(headers: dict[str, str], cross: bool) -> None:
    assert access.is_cross_origin(asked(**headers)) is cross


@pytest.mark.parametrize(
    "host", ["127.0.0.1:1", "10.1.2.3", "[fe80::1]:8222", "localhost", "LOCALHOST:1", "nats.example"]
)
def test_own_hosts(host: str) -> None:
    assert access.is_own_host(asked(host=host), ["NATS.example"])


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "", "[", "1.2.3"])
def test_foreign_hosts(host: str) -> None:
    assert not access.is_own_host(asked(host=host), ["nats.example"])


def test_the_name_of_the_machine_is_its_own() -> None:
    assert access.is_own_host(asked(host=f"{socket.gethostname()}:8222"), [])


@pytest.mark.parametrize(("host", "local"), [("127.0.0.1", True), ("::1", True), ("10.0.0.1", False), ("", False)])
def test_loopback(host: str, local: bool) -> None:
    assert access.is_loopback(host) is local


TLS, VERIFIED = TlsOptions(cert_file="c"), TlsOptions(cert_file="c", verify=True)


@pytest.mark.parametrize(
    ("options", "host", "secure", "words"),
    [
        (Options(), "10.0.0.1", False, ""),
        (Options(tls=TLS), "10.0.0.1", False, "https"),
        (Options(tls=TLS), "10.0.0.1", True, ""),
        (Options(tls=TLS), "127.0.0.1", False, ""),
        (Options(tls=TLS, allow_non_tls=True), "10.0.0.1", False, ""),
        (Options(tls=VERIFIED), "127.0.0.1", True, "certificate"),
        (Options(tls=TlsOptions(cert_file="c", verify_and_map=True)), "127.0.0.1", True, "certificate"),
        (Options(tls=VERIFIED, console=ConsoleOptions(without_certificate=True)), "10.0.0.1", True, ""),
        (Options(tls=VERIFIED, console=ConsoleOptions(without_certificate=True)), "10.0.0.1", False, "https"),
    ],
)
def test_logins_need_the_tls_of_clients(options: Options, host: str, secure: bool, words: str) -> None:
    refusal = access.tls_refusal(HttpRequest("POST", "/console/api/login", host=host, secure=secure), options)
    assert words in refusal
    assert bool(refusal) is bool(words)


def test_the_page_runs_no_code_but_its_own() -> None:
    policy = dict(access.SECURITY)["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert not {"unsafe-inline", "unsafe-eval", "*", "http:", "https:"} & set(policy.replace(";", " ").split())
