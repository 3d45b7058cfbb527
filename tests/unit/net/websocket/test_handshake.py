"""Tests of handshakes. What nats-server answers to each request is in tests/conformance/scenarios/websocket.py."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.config.options import TlsOptions, WebSocketOptions
from lakestream.net.websocket.handshake import MAX_HEADER, Handshake, Rejected
from lakestream.net.websocket.upgrade import Upgrade
from tests.websocket import DEFLATE, request

pytestmark = pytest.mark.unit

ALL = {"Sec-WebSocket-Extensions": DEFLATE, "Cookie": "a=1; b=2", "X-Forwarded-For": "192.0.2.9"}


def shaken(sent: bytes, cuts: list[int] | None = None, **options: object) -> Upgrade | Rejected | None:
    """Return the outcome of a request that comes in pieces."""
    handshake, outcome = Handshake(WebSocketOptions(**options)), None  # type: ignore[arg-type]
    points = sorted({0, len(sent), *(cut % len(sent) for cut in cuts or [])})
    for start, end in itertools.pairwise(points):
        assert outcome is None
        try:
            outcome = handshake.feed(sent[start:end])
        except Rejected as rejected:
            return rejected
    return outcome


@given(st.lists(st.integers(0, 1000), max_size=20))
def test_any_split_of_a_request_gives_the_same_answer(cuts: list[int]) -> None:
    sent = request(ALL, host="h")
    whole = shaken(sent, compression=True, user_cookie="a", pass_cookie="b")
    assert isinstance(whole, Upgrade)
    assert shaken(sent, cuts, compression=True, user_cookie="a", pass_cookie="b") == whole
    assert (whole.login, whole.forwarded_for, whole.compressed) == ({"user": "1", "pass": "2"}, "192.0.2.9", True)
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in whole.answer


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_garbage_is_refused_or_waited_for(sent: bytes, cuts: list[int]) -> None:
    outcome = shaken(sent + b"\r\n\r\n")
    assert outcome is None or isinstance(outcome, Rejected)


def test_a_header_without_an_end() -> None:
    handshake = Handshake(WebSocketOptions())
    assert handshake.feed(b"GET / HTTP/1.1\r\nX: " + b"x" * (MAX_HEADER - 100)) is None
    with pytest.raises(Rejected) as rejected:
        handshake.feed(b"x" * 200)
    assert rejected.value.answer.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    ("origin", "options", "reason"),
    [
        ("http://h:80", {"same_origin": True}, ""),
        ("http://H", {"same_origin": True}, ""),
        ("http://h:81", {"same_origin": True}, "not same origin"),
        ("https://h", {"same_origin": True}, "not same origin"),
        ("https://h", {"same_origin": True, "tls": TlsOptions()}, ""),
        ("null", {"same_origin": True}, 'parse "null": invalid URI for request'),
        ("https://a.example", {"allowed_origins": ("https://a.example",)}, ""),
        ("https://a.example:443", {"allowed_origins": ("https://a.example",)}, ""),
        ("https://a.example.evil", {"allowed_origins": ("https://a.example",)}, "not in the allowed list"),
        ("https://a.example", {"allowed_origins": ("https://a.example",), "same_origin": True}, "not same origin"),
    ],
)
def test_origins(origin: str, options: dict[str, object], reason: str) -> None:
    outcome = shaken(request({"Origin": origin}, host="h"), **options)
    if reason:
        assert isinstance(outcome, Rejected)
        assert outcome.logged == f"origin not allowed: {reason}"
        assert outcome.answer.startswith(b"HTTP/1.1 403 Forbidden\r\n")
    else:
        assert isinstance(outcome, Upgrade)


def test_cookies_that_no_setting_names_are_not_kept() -> None:
    outcome = shaken(request({"Cookie": 'session=secret; t="q"; t=last; '}, host="h"), token_cookie="t")
    assert isinstance(outcome, Upgrade)
    assert outcome.login == {"auth_token": "last"}


@pytest.mark.parametrize("address", ["192.0.2.1, 192.0.2.2", "localhost", "1.2.3", "x\ty"])
def test_only_one_address_is_believed(address: str) -> None:
    outcome = shaken(request({"X-Forwarded-For": address}, host="h"))
    assert isinstance(outcome, Upgrade)
    assert outcome.forwarded_for == ""
