"""WebSocket for clients: the handshake, frames right and wrong, compression, origins, and who logs in with cookies."""

from __future__ import annotations

import json
import re
import time
import zlib
from collections.abc import Mapping
from typing import Any

from tests.conformance.harness import Script, configured, table
from tests.keys import user_key
from tests.pairs import Setup
from tests.websocket import DEFLATE, MASK, USUAL, Framed, WebSocket, frame, request, shake
from tests.wire import Closed, WireTimeout

Fields = Mapping[str, str | None]

KEY = user_key("no_auth_user")
TOP = 'http: "127.0.0.1:-1"\n'


def _setup(inside: str, more: str = "") -> Setup:
    return Setup(f'{TOP}{more}\nwebsocket {{ listen: "127.0.0.1:-1", no_tls: true, {inside} }}\n', users=())


OPEN = _setup("compression: true", "max_payload: 1000")
QUIET = b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n'
GREETING = frame(2, QUIET + b"PING\r\n")
AGREED = {"Sec-WebSocket-Extensions": DEFLATE}


# ---------------------------------------------------------------------- the handshake
def _shaken(t: Script, sent: bytes, *, exact: bool) -> None:
    """Record the answer to a request; of one that is no request of HTTP/1.1, the code alone."""
    logged = t.server.log().count("websocket handshake error")
    try:
        answer = shake(t.dial(websocket=True), sent, t.timeout)
    except Closed:
        t.note("answer", "closed")
        return
    if not exact:
        t.note("answer", answer.status.split(" ")[1])
        return
    t.note("answer", [answer.status, sorted([name, value] for name, value in answer.fields if name != "Date")])
    if answer.accepted:
        return
    t.note("body", answer.rest)
    deadline = time.monotonic() + t.timeout
    while t.server.log().count("websocket handshake error") == logged and time.monotonic() < deadline:
        time.sleep(0.01)
    t.note("log", [line.split(" - ", 1)[1] for line in t.server.log().splitlines() if "handshake error" in line][-1:])


# Each row: changes of the usual header fields, and the first line of the request.
@table(
    [
        ("good", {}),
        ("lower_case_names", dict.fromkeys(USUAL) | {name.lower(): value for name, value in USUAL.items()}),
        ("values_in_any_case", {"Upgrade": "WebSocket", "Connection": "UPGRADE"}),
        ("any_path", {}, "GET /any/path?x=1 HTTP/1.1"),
        ("http_1_0", {}, "GET / HTTP/1.0"),
        ("post", {}, "POST / HTTP/1.1"),
        ("put", {}, "PUT / HTTP/1.1"),
        ("options", {}, "OPTIONS / HTTP/1.1"),
        ("path_of_mqtt", {}, "GET /mqtt HTTP/1.1"),
        ("empty_host", {"Host": ""}),
        ("no_upgrade", {"Upgrade": None}),
        ("another_upgrade", {"Upgrade": "h2c"}),
        ("upgrade_among_others", {"Upgrade": "h2c, websocket"}),
        ("no_connection", {"Connection": None}),
        ("connection_close", {"Connection": "close"}),
        ("connection_among_others", {"Connection": "keep-alive, Upgrade"}),
        ("no_key", {"Sec-WebSocket-Key": None}),
        ("empty_key", {"Sec-WebSocket-Key": ""}),
        ("key_of_15_bytes", {"Sec-WebSocket-Key": "MTIzNDU2Nzg5MDEyMzQ1"}),
        ("key_of_17_bytes", {"Sec-WebSocket-Key": "MTIzNDU2Nzg5MDEyMzQ1Njc="}),
        ("key_not_base64", {"Sec-WebSocket-Key": "!!!!!!!!!!!!!!!!!!!!!!=="}),
        ("no_version", {"Sec-WebSocket-Version": None}),
        ("version_8", {"Sec-WebSocket-Version": "8"}),
        ("version_13_among_others", {"Sec-WebSocket-Version": "8, 13"}),
        ("a_protocol_is_not_confirmed", {"Sec-WebSocket-Protocol": "nats"}),
        ("an_origin_where_none_is_checked", {"Origin": "http://evil.example"}),
        ("no_masking", {"Nats-No-Masking": "true"}),
        ("no_masking_false", {"Nats-No-Masking": "false"}),
        ("no_masking_upper_case", {"Nats-No-Masking": "TRUE"}),
        *(
            (f"extension_{name}", {"Sec-WebSocket-Extensions": value})
            for name, value in {
                "deflate": "permessage-deflate",
                "deflate_as_answered": DEFLATE,
                "deflate_with_windows": "permessage-deflate; client_max_window_bits=10; server_max_window_bits=10",
                "deflate_of_chromium": "permessage-deflate; client_max_window_bits",
                "deflate_second": "x-webkit-deflate-frame, permessage-deflate",
                "deflate_upper_case": "PERMESSAGE-DEFLATE",
                "deflate_unknown_parameter": "permessage-deflate; shoe_size=44",
                "unknown": "x-webkit-deflate-frame",
                "garbage": ";;,",
            }.items()
        ),
    ],
    OPEN,
)
def handshake(t: Script, fields: Fields, line: str = "GET / HTTP/1.1") -> None:
    _shaken(t, request(fields, host="127.0.0.1", line=line), exact=True)


@table(
    [
        ("no_host", request({"Host": None}, host="")),
        ("two_hosts", request(host="a").replace(b"Host: a\r\n", b"Host: a\r\nHost: b\r\n")),
        ("a_line_without_a_colon", request(host="a").replace(b"Host: a\r\n", b"Host: a\r\nnope\r\n")),
        ("no_version", b"GET /\r\nHost: a\r\n\r\n"),
        ("http_2", request(host="a", line="GET / HTTP/2.0")),
        ("nats", b"CONNECT {}\r\nPING\r\n\r\n"),
        ("tls", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"),
        ("frames_before_the_answer", request(host="a") + GREETING),
        ("a_body", request({"Content-Length": "5"}, host="a") + b"hello"),
        ("path_of_leaf_nodes", request(host="a", line="GET /leafnode HTTP/1.1")),
    ],
    OPEN,
)
def no_handshake(t: Script, sent: bytes) -> None:
    _shaken(t, sent, exact=False)


@configured(OPEN)
def info_and_connz(t: Script) -> None:
    wire = t.connect(opened=t.websocket(), name="browser", protocol=1)
    info = dict(wire.info)
    t.note("INFO has the port of WebSocket clients", info.pop("port") == t.server.websocket_port)
    t.note("INFO", info)
    t.note("INFO after the first PONG", [{**each, "port": 0} for each in wire.told()[1:]])
    [shown] = [each for each in t.server.page("/connz")["connections"] if each.get("name") == "browser"]
    t.note("connz", {name: shown[name] for name in ("kind", "type", "ip", "lang", "version", "subscriptions")})
    t.note("connz has", sorted(set(shown) - {"rtt"}))
    t.note("varz", {**t.server.page("/varz")["websocket"], "port": 0})


@configured(OPEN)
def whom_a_proxy_speaks_for(t: Script) -> None:
    for value in ("192.0.2.1", "192.0.2.1, 192.0.2.2", "2001:db8::1", "nonsense", ""):
        wire = t.connect(opened=t.websocket({"X-Forwarded-For": value}), protocol=1, name=f"for {value}")
        wire.ping()
        shown = [each["ip"] for each in t.server.page("/connz")["connections"] if each.get("name") == f"for {value}"]
        t.note(f"{value}: INFO, connz", [wire.info["client_ip"], shown])


# ---------------------------------------------------------------------- frames
def _add(found: list[Any], got: Framed) -> None:
    """Add a frame, to the one before if both are whole: which commands share a frame is by chance."""
    text = re.sub(rb"INFO \{.*?\} ?\r\n", b"INFO\r\n", got.data, flags=re.DOTALL)[:200]
    if found and found[-1][0] == got.kind == "BINARY" and got.final and found[-1][2]:
        found[-1][1] += text
    else:
        found.append([got.kind, text, got.final])


def _reason(t: Script, name: str) -> str:
    """Return why a connection was closed, once the monitoring port says so."""
    deadline = time.monotonic() + t.timeout
    while time.monotonic() < deadline:
        for each in t.server.page("/connz?state=closed&sort=stop&limit=5")["connections"]:
            if each.get("name", "") == name:
                return str(each["reason"])
        time.sleep(0.01)
    return "not shown as closed"


def _frames(t: Script, opened: WebSocket) -> None:
    """Record frames up to the one with PONG, or until the connection is closed.

    A close frame about a wrong frame (1002) is left out: in nats-server it is by chance whether it comes.
    """
    found: list[Any] = []
    try:
        while True:
            got = opened.next()
            if got.kind != "CLOSE" or not got.data.startswith(b"1002 "):
                _add(found, got)
            if got.kind in ("BINARY", "CONTINUATION") and got.final and got.data.endswith(b"PONG\r\n"):
                break
    except Closed:
        found.append("closed")
    except WireTimeout:
        found.append("nothing more")
    t.note("frames", found)


def _greeted(t: Script, fields: Fields | None = None, *, masked: bool = True) -> WebSocket:
    """Return a connection that is logged in, its name a part of the log."""
    opened = t.websocket(fields)
    connect = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"protocol":0,"name":"framed"}\r\n'
    assert opened.next().data.startswith(b"INFO ")
    opened.send_raw(frame(2, connect + b"PING\r\n", masked=masked))
    assert opened.next().data.endswith(b"PONG\r\n")
    return opened


def _close(code: int, reason: bytes = b"") -> bytes:
    return frame(8, code.to_bytes(2) + reason)


def _length(size: int, form: int) -> bytes:
    """A masked binary frame's head with this length in a form of 2 or 8 bytes, and a PING of NATS as its data."""
    data = bytes(byte ^ key for byte, key in zip(b"PING\r\n", MASK * 2, strict=False))
    return bytes([0x82, 0x80 | (126 if form == 2 else 127)]) + size.to_bytes(form) + MASK + data


PING = frame(2, b"PING\r\n")


# Each row: bytes sent on a connection that is logged in. They end with a PING, or make the server close.
@table(
    [
        ("binary", PING),
        ("text", frame(1, b"PING\r\n")),
        ("text_that_is_not_utf8", frame(1, b"PUB a 2\r\n\xff\xfe\r\nPING\r\n")),
        ("empty", frame(2, b"") + PING),
        ("several_commands", frame(2, b"SUB a 1\r\nPUB a 1\r\nx\r\nPUB a 1\r\ny\r\nPING\r\n")),
        ("several_frames_at_once", frame(2, b"SUB a 1\r\n") + frame(2, b"PUB a 1\r\nx\r\n") + PING),
        (
            "a_command_over_several",
            frame(2, b"SUB a 1\r\nPUB a 5\r\nhe") + frame(2, b"llo\r\nPI") + frame(2, b"NG\r\n"),
        ),
        (
            "fragments",
            frame(2, b"SUB a 1\r\nPUB a 5", final=False)
            + frame(0, b"\r\nhello\r\nP", final=False)
            + frame(0, b"ING\r\n"),
        ),
        ("a_ping_among_fragments", frame(2, b"PI", final=False) + frame(9, b"hi") + frame(0, b"NG\r\n")),
        ("a_pong_among_fragments", frame(2, b"PI", final=False) + frame(10, b"hi") + frame(0, b"NG\r\n")),
        ("empty_fragments", frame(2, b"", final=False) + frame(0, b"", final=False) + frame(0, b"PING\r\n")),
        ("length_in_2_bytes_that_fits_in_7_bits", _length(6, 2)),
        ("length_in_8_bytes_that_fits_in_7_bits", _length(6, 8)),
        ("more_than_65535_bytes", frame(2, b"PONG\r\n" * 11000 + b"PING\r\n")),
        ("eight_times_the_maximum_payload", frame(2, b"SUB a 1\r\n" + b"PONG\r\n" * 1400 + b"PING\r\n")),
        ("ping", frame(9, b"") + PING),
        ("ping_with_125_bytes", frame(9, b"x" * 125) + PING),
        ("pong", frame(10, b"x") + PING),
        ("largest_payload", frame(2, b"PUB a 1000\r\n" + b"x" * 1000 + b"\r\nPING\r\n")),
        ("ping_with_126_bytes", frame(9, b"x" * 126)),
        ("ping_in_fragments", frame(9, b"x", final=False)),
        ("unmasked", frame(2, b"PING\r\n", masked=False)),
        ("unmasked_ping", frame(9, b"", masked=False)),
        ("unmasked_close", frame(8, b"\x03\xe8", masked=False)),
        *((f"opcode_{code}", frame(code, b"x")) for code in (3, 7, 11, 15)),
        ("first_reserved_bit", frame(2, b"PING\r\n", reserved=4)),
        ("second_reserved_bit", frame(2, b"PING\r\n", reserved=2)),
        ("third_reserved_bit", frame(2, b"PING\r\n", reserved=1)),
        ("reserved_bit_of_a_ping", frame(9, b"", reserved=4)),
        ("a_continuation_of_nothing", frame(0, b"PING\r\n")),
        ("a_message_inside_of_another", frame(2, b"PI", final=False) + frame(2, b"PING\r\n")),
        ("length_with_the_highest_bit", _length(1 << 63, 8)),
        *((f"close_{code}", _close(code, b"bye")) for code in (1000, 1001, 1002, 1003, 1007, 1008, 1011, 3000, 4999)),
        *((f"close_{code}", _close(code)) for code in (0, 999, 1004, 1005, 1006, 1015, 2999, 5000)),
        ("close_without_a_code", frame(8, b"")),
        ("close_with_half_a_code", frame(8, b"\x03")),
        ("close_with_the_longest_reason", _close(1000, b"r" * 123)),
        ("close_with_a_longer_reason", _close(1000, b"r" * 124)),
        ("close_with_a_reason_that_is_not_utf8", _close(1000, b"\xff")),
        ("close_in_fragments", frame(8, b"\x03\xe8", final=False)),
        ("data_after_close", _close(1000) + PING),
        ("payload_too_large", frame(2, b"PUB a 1001\r\n")),
        ("control_line_too_long", frame(2, b"SUB " + b"a" * 5000)),
        ("error_of_a_client", frame(2, b"-ERR 'x'\r\n")),
        ("connect_with_another_protocol", frame(2, b'CONNECT {"protocol":2}\r\n')),
    ],
    OPEN,
)
def frames(t: Script, sent: bytes) -> None:
    opened = _greeted(t)
    opened.send_raw(sent)
    _frames(t, opened)


@table(
    [
        ("unmasked", {"Nats-No-Masking": "true"}, frame(2, b"PING\r\n", masked=False)),
        (
            "unmasked_control",
            {"Nats-No-Masking": "true"},
            frame(9, b"hi", masked=False) + frame(2, b"PING\r\n", masked=False),
        ),
    ],
    OPEN,
)
def frames_without_masks(t: Script, fields: Fields, sent: bytes) -> None:
    opened = _greeted(t, fields, masked=False)
    opened.send_raw(sent)
    _frames(t, opened)


# Each row: how the server names the reason of a connection that these bytes end.
@table(
    [
        ("close", _close(1000)),
        ("close_of_one_that_leaves", _close(1001)),
        ("bad_close", _close(999)),
        ("unmasked", frame(2, b"PING\r\n", masked=False)),
        ("unknown_opcode", frame(3, b"x")),
        ("payload_too_large", frame(2, b"PUB a 1001\r\n")),
        ("control_line_too_long", frame(2, b"SUB " + b"a" * 5000)),
        ("error_of_a_client", frame(2, b"-ERR 'x'\r\n")),
    ],
    OPEN,
)
def reasons(t: Script, sent: bytes) -> None:
    name = f"ended {time.monotonic_ns()}"
    wire = t.connect(opened=(opened := t.websocket()), name=name)
    wire.ping()
    opened.send_raw(sent)
    wire.until_closed()
    t.note("reason", _reason(t, name))


@configured(OPEN)
def bytes_one_by_one(t: Script) -> None:
    opened = _greeted(t)
    for byte in frame(2, b"SUB a 1\r\nPUB a 2\r\nhi\r\nPING\r\n"):
        opened.send_raw(bytes([byte]))
    _frames(t, opened)


# ---------------------------------------------------------------------- compression
def _deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return (packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)).removesuffix(b"\x00\x00\xff\xff")


_PUBLISHED = _deflated(b"SUB a 1\r\nPUB a 5\r\nhello\r\nPING\r\n")


@table(
    [
        ("not_compressed", PING),
        ("compressed", frame(2, _PUBLISHED, reserved=4)),
        ("fragments", frame(2, _PUBLISHED[:9], final=False, reserved=4) + frame(0, _PUBLISHED[9:])),
        ("nothing", frame(2, _deflated(b""), reserved=4) + PING),
        ("one_after_the_other", frame(2, _deflated(b"PONG\r\n"), reserved=4) * 3 + PING),
        ("up_to_the_maximum_payload", frame(2, _deflated(b"PONG\r\n" * 165 + b"PING\r\n"), reserved=4)),
        ("garbage", frame(2, b"\xff\xff\xff\xff", reserved=4)),
        ("empty", frame(2, b"", reserved=4)),
        ("empty_before_another", frame(2, b"", reserved=4) + PING),
        ("bit_of_a_continuation", frame(2, _PUBLISHED[:9], final=False, reserved=4) + frame(0, b"x", reserved=4)),
        ("bit_of_a_ping", frame(9, b"", reserved=4)),
    ],
    OPEN,
)
def compressed(t: Script, sent: bytes) -> None:
    opened = _greeted(t, AGREED)
    opened.send_raw(sent)
    _frames(t, opened)


@configured(OPEN)
def inflated_to_more_than_the_maximum_payload(t: Script) -> None:
    opened = _greeted(t, AGREED)
    opened.send_raw(frame(2, _deflated(b"PONG\r\n" * 10000), reserved=4))
    _frames(t, opened)


# Frames of 64 bytes are the largest that go uncompressed.
@table([(str(size), size) for size in (1, 49, 50, 51, 52, 100, 900)], OPEN)
def which_frames_are_compressed(t: Script, size: int) -> None:
    opened = _greeted(t, AGREED)
    opened.send_raw(frame(2, b"SUB a 1\r\nPUB a %d\r\n%b\r\n" % (size, b"x" * size)))
    got = opened.next()
    t.note("frame", [len(got.data), got.final, opened.compressed[-1]])


BROWSER = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36"
SAFARI = "Mozilla/5.0 (Macintosh) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.0 Safari/605.1.15"
LARGE = _setup("compression: true")


# The sizes of frames depend on the client: browsers get no frame with more than 4096 bytes.
@table(
    [
        ("library", None, 20000),
        ("browser", BROWSER, 20000),
        ("safari", SAFARI, 20000),
        ("browser_small", BROWSER, 3000),
    ],
    LARGE,
)
def frames_of_a_large_message(t: Script, agent: str | None, size: int) -> None:
    opened = _greeted(t, {"User-Agent": agent})
    opened.send_raw(frame(2, b"SUB a 1\r\nPUB a %d\r\n%b\r\nPING\r\n" % (size, b"x" * size)))
    got = b""
    sizes: list[int] = []
    while not got.endswith(b"PONG\r\n"):
        part = opened.next()
        assert part.kind in ("BINARY", "CONTINUATION")
        sizes.append(len(part.data))
        got += part.data
    t.note("bytes in all", len(got))
    t.note("more than 4096 bytes in a frame", max(sizes) > 4096)


# ---------------------------------------------------------------------- origins
def _accepted(t: Script, origin: str | None, header: str = "Origin") -> None:
    here = f"{t.server.host}:{t.server.websocket_port}"
    fields = {header: None if origin is None else origin.replace("{here}", here)}
    _shaken(t, request(fields, host=here), exact=True)


@table(
    [
        ("none", None),
        ("same", "http://{here}"),
        ("same_in_upper_case", "HTTP://{here}"),
        ("same_with_a_path", "http://{here}/page"),
        ("another_scheme_same_port", "https://{here}"),
        ("another_port", "http://127.0.0.1"),
        ("port_too_large", "http://127.0.0.1:99999"),
        ("another_host", "http://evil.example"),
        ("null", "null"),
        ("no_url", "x"),
        ("empty", ""),
    ],
    _setup("same_origin: true"),
)
def same_origin(t: Script, origin: str | None) -> None:
    _accepted(t, origin)


@table(
    [
        ("none", None),
        ("first", "https://a.example"),
        ("usual_port", "https://a.example:443"),
        ("another_port", "https://a.example:444"),
        ("another_scheme", "http://a.example"),
        ("second", "http://b.example:8080"),
        ("second_without_its_port", "http://b.example"),
        ("upper_case", "HTTPS://A.EXAMPLE"),
        ("below_it", "https://www.a.example"),
        ("port_0", "https://a.example:0"),
        ("port_that_is_none", "https://a.example:x"),
        ("another", "https://c.example"),
        ("null", "null"),
    ],
    _setup('allowed_origins: ["https://a.example", "http://b.example:8080"]'),
)
def allowed_origins(t: Script, origin: str | None) -> None:
    _accepted(t, origin)


@table(
    [
        ("same", "http://{here}"),
        ("allowed", "http://a.example"),
        ("old_header", "http://c.example", "Sec-WebSocket-Origin"),
    ],
    _setup('same_origin: true, allowed_origins: "http://a.example"'),
)
def same_and_allowed_origins(t: Script, origin: str, header: str = "Origin") -> None:
    _accepted(t, origin, header)


# ---------------------------------------------------------------------- who it is
def _login(t: Script, connect: Mapping[str, str], cookie: str | None) -> None:
    opened = t.websocket({"Cookie": cookie})
    name = f"login {time.monotonic_ns()}"
    wire = t.connect_bare(opened=opened)
    t.note("INFO: auth_required", wire.info.get("auth_required"))
    fields = {"verbose": False, "protocol": 0, "name": name, **connect}
    wire.send(b"CONNECT " + json.dumps(fields).encode() + b"\r\nPING\r\n")
    _frames(t, opened)
    deadline = time.monotonic() + t.timeout
    while not (shown := _named(t, name)) and time.monotonic() < deadline:
        time.sleep(0.01)
    t.note("user", [each.get("authorized_user") for each in shown])


def _named(t: Script, name: str) -> list[Any]:
    """Return connections, closed ones too, that gave themselves this name."""
    return [each for each in t.server.page("/connz?auth=1&state=any")["connections"] if each.get("name") == name]


TWO = "authorization { users: [{user: ann, password: p}, {user: bob, password: q}] }"


@table(
    [
        ("none", {}, None),
        ("both", {}, "uc=ann; pc=p"),
        ("wrong_password", {}, "uc=ann; pc=x"),
        ("no_password", {}, "uc=ann"),
        ("quoted", {}, 'uc="ann"; pc="p"'),
        ("among_others", {}, "x=1; uc=ann; y=2; pc=p"),
        ("twice", {}, "uc=ann; pc=p; uc=bob"),
        ("connect_goes_first", {"user": "bob", "pass": "q"}, "uc=ann; pc=p"),
        ("connect_that_is_wrong", {"user": "bob", "pass": "x"}, "uc=ann; pc=p"),
        ("password_in_connect", {"pass": "p"}, "uc=ann"),
        ("user_in_connect", {"user": "ann"}, "pc=p"),
        ("names_in_another_case", {}, "UC=ann; PC=p"),
    ],
    _setup("user_cookie: uc, pass_cookie: pc, token_cookie: tc", TWO),
)
def user_cookies(t: Script, connect: Mapping[str, str], cookie: str | None) -> None:
    _login(t, connect, cookie)


@table(
    [
        ("none", {}, None),
        ("right", {}, "tc=secret"),
        ("wrong", {}, "tc=x"),
        ("connect_goes_first", {"auth_token": "secret"}, "tc=x"),
        ("connect_that_is_wrong", {"auth_token": "x"}, "tc=secret"),
    ],
    _setup("token_cookie: tc", "authorization { token: secret }"),
)
def token_cookie(t: Script, connect: Mapping[str, str], cookie: str | None) -> None:
    _login(t, connect, cookie)


@table(
    [("none", {}), ("right", {"user": "web", "pass": "w"}), ("wrong", {"user": "web", "pass": "x"})],
    _setup("authorization { user: web, password: w, timeout: 7 }"),
)
def own_user_where_others_need_none(t: Script, connect: Mapping[str, str]) -> None:
    _login(t, connect, None)
    with_tcp = t.connect_bare()
    t.note("over TCP", with_tcp.info.get("auth_required"))
    t.note("varz", {**t.server.page("/varz")["websocket"], "port": 0})


@table(
    [("none", {}), ("right", {"auth_token": "w"}), ("of_tcp", {"user": "ann", "pass": "p"})],
    _setup("authorization { token: w }", "authorization { user: ann, password: p }"),
)
def own_token(t: Script, connect: Mapping[str, str]) -> None:
    _login(t, connect, None)


@table(
    [("none", {}), ("ann", {"user": "ann", "pass": "p"}), ("wrong", {"user": "ann", "pass": "x"})],
    _setup("no_auth_user: bob", f"no_auth_user: ann\n{TWO}"),
)
def own_no_auth_user(t: Script, connect: Mapping[str, str]) -> None:
    _login(t, connect, None)


@table(
    [
        ("none", {}),
        ("password_alone", {"pass": "p"}),
        ("token", {"auth_token": "x"}),
        ("ann", {"user": "ann", "pass": "p"}),
    ],
    _setup(
        f"no_auth_user: {KEY.public}",
        f"authorization {{ users: [{{user: ann, password: p}}, {{nkey: {KEY.public}}}] }}",
    ),
)
def own_no_auth_user_with_a_key(t: Script, connect: Mapping[str, str]) -> None:
    _login(t, connect, None)


KINDS = """authorization { users: [
  {user: web, password: p, allowed_connection_types: ["WEBSOCKET"]}
  {user: tcp, password: p, allowed_connection_types: ["STANDARD"]}
  {user: any, password: p, allowed_connection_types: ["standard", "websocket"]}
] }"""


@table([(user, user) for user in ("web", "tcp", "any")], _setup("", KINDS))
def connection_types(t: Script, user: str) -> None:
    _login(t, {"user": user, "pass": "p"}, None)
    wire = t.connect(user=user)
    try:
        t.frames("over TCP", wire.ping())
    except Closed:
        t.frames("over TCP", [*wire.waiting])
