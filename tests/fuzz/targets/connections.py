"""Targets: the first bytes of a connection, before it is known who sends them.

The PROXY header of a load balancer means the same in both of its forms, and what a TLS client offers does not depend on
what follows its first record.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Sequence

from lakestream.net import client_hello, proxy
from tests.fuzz.target import Target

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
X25519, P256, HYBRID = 0x001D, 0x0017, 0x11EC
GREASE = 0x0A0A

# ---------------------------------------------------------------------- PROXY headers


def binary(host: str, port: int, command: int = 1, transport: int = 1) -> bytes:
    """Return a header of version 2."""
    address = ipaddress.ip_address(host)
    family = 1 if address.version == 4 else 2
    addresses = address.packed * 2 + struct.pack(">HH", port, 4222)
    return SIGNATURE + bytes([0x20 | command, family << 4 | transport]) + struct.pack(">H", len(addresses)) + addresses


def source_of(header: bytes) -> proxy.Source:
    """Return the client of a header in either form; the listener reads no more of one."""
    if header.startswith(proxy.TEXT_START):
        line, end, _ = header[: proxy.MAX_TEXT].partition(b"\r\n")
        if not end:
            raise proxy.ProxyError("too long")
        return proxy.source_of_text(line[len(proxy.TEXT_START) :])
    head = header[: proxy.BINARY_HEAD]
    if not head.startswith(proxy.BINARY_START) or len(head) < proxy.BINARY_HEAD:
        raise proxy.ProxyError("no header")
    length = proxy.addresses_length(head)
    return proxy.source_of_binary(head, header[proxy.BINARY_HEAD : proxy.BINARY_HEAD + length])


def _proxy(data: bytes) -> None:
    source = source_of(data)
    if source is None:
        return
    host, port = source
    assert 0 <= port <= 0xFFFF
    family = 4 if ipaddress.ip_address(host).version == 4 else 6
    text = f"PROXY TCP{family} {host} {host} {port} 4222\r\n".encode()
    assert source_of(text) == source_of(binary(host, port)) == source, (data, source)


def _proxy_seeds() -> Sequence[bytes]:
    return [
        b"PROXY TCP4 192.0.2.1 198.51.100.1 56324 4222\r\nCONNECT {}\r\n",
        b"PROXY TCP6 2001:db8::1 2001:db8::2 1 65535\r\n",
        b"PROXY TCP6 ::ffff:192.0.2.1 ::1 80 4222\r\n",
        b"PROXY UNKNOWN\r\n",
        b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n",
        binary("192.0.2.1", 56324) + b"CONNECT {}\r\n",
        binary("2001:db8::1", 1),
        binary("::ffff:192.0.2.1", 80),
        binary("192.0.2.1", 80, command=0),
        binary("192.0.2.1", 80, transport=2),
        SIGNATURE + b"\x21\x01\x00\x00",
    ]


# ---------------------------------------------------------------------- TLS


def vector(content: bytes, size: int) -> bytes:
    return len(content).to_bytes(size) + content


def hello(*groups: int, extensions: bytes = b"") -> bytes:
    """Return the first record of a client that offers these curves."""
    if groups:
        extensions += b"\x00\x0a" + vector(vector(struct.pack(f">{len(groups)}H", *groups), 2), 2)
    body = b"\x03\x03" + bytes(range(32)) + vector(bytes(32), 1) + vector(b"\x13\x01\x13\x02", 2) + vector(b"\x00", 1)
    body += vector(extensions, 2)
    return b"\x16\x03\x01" + vector(b"\x01" + vector(body, 3), 2)


def _hello(data: bytes) -> None:
    if len(data) < client_hello.RECORD_HEAD + 1:
        return
    *record, at = data
    whole = bytes(record)
    size = client_hello.record_size(whole)
    assert client_hello.RECORD_HEAD <= size <= client_hello.RECORD_HEAD + 0xFFFF
    groups = client_hello.offered_groups(whole[:size])
    assert all(0 <= each <= 0xFFFF for each in groups)
    cut = client_hello.offered_groups(whole[: size * at // 255])
    assert cut in (frozenset(), groups), (data, groups, cut)


def _hello_seeds() -> Sequence[bytes]:
    name = b"\x00\x00" + vector(vector(b"\x00" + vector(b"nats.example", 2), 2), 2)
    return [
        hello(X25519, P256) + b"\xff",
        hello(GREASE, HYBRID, X25519, P256, extensions=name) + b"\xc0",
        hello(extensions=name) + b"\xff",
        hello() + b"\x80",
        hello(X25519)[:60] + b"\xff",
        b"CONNECT {}\r\n\xff",
    ]


TARGETS = (
    Target(
        "proxy",
        "PROXY headers of load balancers, versions 1 and 2",
        _proxy,
        (proxy.ProxyError,),
        _proxy_seeds,
        (
            b"PROXY ",
            b"TCP4 ",
            b"TCP6 ",
            b"UNKNOWN",
            SIGNATURE,
            b"\x21\x11\x00\x0c",
            b"\x21\x21\x00\x24",
            b"::ffff:",
            b"\r\n",
        ),
        512,
    ),
    Target(
        "hello",
        "first records of TLS clients",
        _hello,
        (),
        _hello_seeds,
        (b"\x16\x03\x01", b"\x00\x0a\x00\x04\x00\x02", b"\x00\x1d", b"\x11\xec", b"\x00\x00"),
        2048,
    ),
)
