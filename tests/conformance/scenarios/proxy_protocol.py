"""PROXY protocol before a client's first command, versions 1 and 2: who is shown as connected, and what is refused."""

from __future__ import annotations

import re
import struct
import time
from ipaddress import ip_address

from tests.conformance.harness import Script, configured, scenario, table
from tests.pairs import Setup

PROXIED = Setup('http: "127.0.0.1:-1"\nproxy_protocol: true\n', users=())

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"


def _second(
    source: str = "192.0.2.1", target: str = "192.0.2.2", *, command: int = 0x21, family: int = 0x11, more: bytes = b""
) -> bytes:
    """Return a header of version 2 with these addresses, ports 1111 and 2222, and bytes after them."""
    addresses = ip_address(source).packed + ip_address(target).packed + struct.pack(">HH", 1111, 2222) + more
    return _raw(command, family, addresses)


def _raw(command: int, family: int, body: bytes) -> bytes:
    return SIGNATURE + bytes([command, family]) + len(body).to_bytes(2) + body


@table(
    [
        ("v1_tcp4", b"PROXY TCP4 192.0.2.1 192.0.2.2 1111 2222\r\n"),
        ("v1_tcp6", b"PROXY TCP6 2001:db8::1 2001:db8::2 1111 2222\r\n"),
        ("v1_tcp6_of_tcp4", b"PROXY TCP6 ::ffff:192.0.2.1 ::ffff:192.0.2.2 1111 2222\r\n"),
        ("v1_unknown", b"PROXY UNKNOWN\r\n"),
        ("v1_unknown_with_addresses", b"PROXY UNKNOWN 192.0.2.1 192.0.2.2 1111 2222\r\n"),
        ("v1_runs_of_blanks", b"PROXY  TCP4  192.0.2.1   192.0.2.2 1111 2222\r\n"),
        ("v1_port_0", b"PROXY TCP4 192.0.2.1 192.0.2.2 0 65535\r\n"),
        ("v2_tcp4", _second()),
        ("v2_tcp6", _second("2001:db8::1", "2001:db8::2", family=0x21)),
        ("v2_with_more", _second(more=b"\x04\x00\x01x")),
        ("v2_local", _raw(0x20, 0x00, b"")),
        ("v2_local_with_addresses", _second(command=0x20)),
        ("v2_unspecified", _raw(0x21, 0x01, b"")),
        ("none", b""),
    ],
    PROXIED,
)
def taken(t: Script, header: bytes) -> None:
    opened = t.dial()
    opened.sendall(header)
    name = f"proxied {time.monotonic_ns()}"
    wire = t.connect(opened=opened, protocol=1, name=name)
    told = wire.told()
    t.note("client_ip of each INFO", [info.get("client_ip") for info in told])
    [shown] = [each for each in t.server.page("/connz")["connections"] if each.get("name") == name]
    own = shown["port"] == opened.getsockname()[1]
    t.note("connz", [shown["ip"], "its own port" if own else shown["port"]])


@table(
    [
        ("v1_too_few", b"PROXY TCP4 192.0.2.1\r\n"),
        ("v1_too_many", b"PROXY TCP4 192.0.2.1 192.0.2.2 1111 2222 3333\r\n"),
        ("v1_nothing", b"PROXY \r\n"),
        ("v1_no_address", b"PROXY TCP4 192.0.2.256 192.0.2.2 1111 2222\r\n"),
        ("v1_no_port", b"PROXY TCP4 192.0.2.1 192.0.2.2 x 2222\r\n"),
        ("v1_port_too_large", b"PROXY TCP4 192.0.2.1 192.0.2.2 65536 2222\r\n"),
        ("v1_target_port_too_large", b"PROXY TCP4 192.0.2.1 192.0.2.2 1111 65536\r\n"),
        ("v1_tcp4_with_tcp6", b"PROXY TCP4 2001:db8::1 2001:db8::2 1111 2222\r\n"),
        ("v1_tcp6_with_tcp4", b"PROXY TCP6 192.0.2.1 192.0.2.2 1111 2222\r\n"),
        ("v1_another_protocol", b"PROXY UDP4 192.0.2.1 192.0.2.2 1111 2222\r\n"),
        ("v1_longer_than_107_bytes", b"PROXY TCP4 " + b"1" * 120 + b"\r\n"),
        ("v1_line_feed_alone", b"PROXY TCP4 192.0.2.1 192.0.2.2 1111 2222\n" + b" " * 100),
        ("v2_signature", _second().replace(b"QUIT", b"QUIX")),
        ("v2_version_3", _second(command=0x31)),
        ("v2_another_command", _second(command=0x22)),
        ("v2_udp", _second(family=0x12)),
        ("v2_unspecified_protocol", _raw(0x21, 0x00, b"")),
        ("v2_unix", _raw(0x21, 0x31, b"x" * 216)),
        ("v2_tcp4_too_short", _raw(0x21, 0x11, b"1234")),
        ("v2_tcp6_too_short", _raw(0x21, 0x21, b"x" * 12)),
    ],
    PROXIED,
)
def refused(t: Script, header: bytes) -> None:
    before = t.server.log().count("Error reading PROXY")
    wire = t.connect_bare()
    t.note("client_ip of INFO", wire.info.get("client_ip"))
    wire.send(header)
    t.frames("until closed", wire.until_closed())
    deadline = time.monotonic() + t.timeout
    while t.server.log().count("Error reading PROXY") == before and time.monotonic() < deadline:
        time.sleep(0.01)
    said = [line for line in t.server.log().splitlines() if "Error reading PROXY" in line][-1]
    t.note("log", re.sub(r"^.*\[WRN\]|127\.0\.0\.1:\d+", "", said))


@configured(PROXIED)
def lower_case_is_a_command_of_a_client(t: Script) -> None:
    wire = t.connect_bare()
    wire.send(b"proxy TCP4 192.0.2.1 192.0.2.2 1111 2222\r\n")
    t.frames("until closed", wire.until_closed())


@scenario
def where_it_is_not_configured(t: Script) -> None:
    wire = t.connect_bare()
    wire.send(b"PROXY TCP4 192.0.2.1 192.0.2.2 1111 2222\r\n")
    t.frames("until closed", wire.until_closed())
