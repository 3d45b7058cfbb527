"""Tests of PROXY headers: the addresses that they tell, every error, and random headers."""

from __future__ import annotations

import random
import socket
import struct

import pytest

from lakestream.net.proxy import (
    BINARY_HEAD,
    BINARY_START,
    FIRST_BYTES,
    MAX_TEXT,
    TEXT_START,
    ProxyError,
    Source,
    addresses_length,
    source_of_binary,
    source_of_text,
)
from tests.fuzzing import ROUNDS, SEED, mutated

pytestmark = pytest.mark.unit

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"


def binary(addresses: bytes, command: int = 0x21, family: int = 0x11) -> bytes:
    """Return a header of version 2."""
    return SIGNATURE + struct.pack(">BBH", command, family, len(addresses)) + addresses


def addresses(source: str, port: int, family: socket.AddressFamily = socket.AF_INET) -> bytes:
    packed = socket.inet_pton(family, source)
    return packed + bytes(len(packed)) + struct.pack(">HH", port, 4222)


def parsed(header: bytes) -> Source:
    """Return the source of a header as the listener reads it."""
    if header.startswith(TEXT_START):
        line, end, _ = header[len(TEXT_START) : MAX_TEXT].partition(b"\r\n")
        if not end:
            raise ProxyError("too long")
        return source_of_text(line)
    head = header[:BINARY_HEAD]
    size = addresses_length(head)
    assert 0 <= size < 65536
    return source_of_binary(head, header[BINARY_HEAD : BINARY_HEAD + size])


def test_the_first_bytes_tell_a_header_from_commands() -> None:
    assert (len(TEXT_START), len(BINARY_START)) == (FIRST_BYTES, FIRST_BYTES)
    assert SIGNATURE.startswith(BINARY_START)


@pytest.mark.parametrize(
    ("line", "source"),
    [
        ("TCP4 192.0.2.1 192.0.2.2 56324 4222", ("192.0.2.1", 56324)),
        ("TCP6 2001:db8::1 2001:db8::2 1 65535", ("2001:db8::1", 1)),
        ("TCP6 ::ffff:192.0.2.1 ::1 1 2", ("192.0.2.1", 1)),
        ("TCP4  192.0.2.1  192.0.2.2 0 0", ("192.0.2.1", 0)),
        ("UNKNOWN", None),
        ("UNKNOWN ffff::1 ffff::2 1 2", None),
    ],
)
def test_text_headers(line: str, source: Source) -> None:
    assert source_of_text(line.encode()) == source


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("", "invalid PROXY protocol header: invalid v1 format"),
        ("TCP4 192.0.2.1 192.0.2.2 1", "invalid PROXY protocol header: invalid v1 format"),
        ("TCP4 host 192.0.2.2 1 2", "invalid PROXY protocol header: invalid address"),
        ("TCP6 fe80::1%eth0 ::1 1 2", "invalid PROXY protocol header: invalid address"),
        ("UDP4 192.0.2.1 192.0.2.2 1 2", "invalid PROXY protocol header: invalid protocol UDP4"),
        ("TCP4 ::1 ::2 1 2", "invalid PROXY protocol header: TCP4 with IPv6 address"),
        ("TCP6 192.0.2.1 ::2 1 2", "invalid PROXY protocol header: TCP6 with IPv4 address"),
        ("TCP4 192.0.2.1 192.0.2.2 x 2", 'invalid source port: strconv.ParseUint: parsing "x": invalid syntax'),
        ("TCP4 192.0.2.1 192.0.2.2 1 -2", 'invalid dest port: strconv.ParseUint: parsing "-2": invalid syntax'),
        (
            "TCP4 192.0.2.1 192.0.2.2 65536 2",
            'invalid source port: strconv.ParseUint: parsing "65536": value out of range',
        ),
    ],
)
def test_invalid_text_headers(line: str, text: str) -> None:
    with pytest.raises(ProxyError) as caught:
        source_of_text(line.encode())
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("header", "source"),
    [
        (binary(addresses("192.0.2.1", 56324)), ("192.0.2.1", 56324)),
        (binary(addresses("192.0.2.1", 7) + b"\x04\x00\x01x"), ("192.0.2.1", 7)),
        (binary(addresses("2001:db8::1", 7, socket.AF_INET6), family=0x21), ("2001:db8::1", 7)),
        (binary(addresses("::ffff:192.0.2.1", 7, socket.AF_INET6), family=0x21), ("192.0.2.1", 7)),
        (binary(b"", command=0x20, family=0), None),
        (binary(b"", family=0x01), None),
    ],
)
def test_binary_headers(header: bytes, source: Source) -> None:
    assert parsed(header) == source


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (SIGNATURE[:-1] + b"x" + bytes(4), "invalid PROXY protocol header: invalid signature"),
        (binary(b"", command=0x11), "invalid PROXY protocol header: invalid version 0x10"),
        (binary(b"", command=0x22), "unknown PROXY protocol command: 0x02"),
        (binary(b"", family=0x12), "unsupported PROXY protocol feature: only STREAM protocol supported"),
        (binary(b"", family=0x31), "unsupported PROXY protocol feature: unsupported address family 0x30"),
        (binary(bytes(11)), "IPv4 address data too short: 11 bytes"),
        (binary(bytes(35), family=0x21), "IPv6 address data too short: 35 bytes"),
    ],
)
def test_invalid_binary_headers(header: bytes, text: str) -> None:
    with pytest.raises(ProxyError) as caught:
        parsed(header)
    assert str(caught.value) == text


def test_random_headers_have_a_source_or_an_error() -> None:
    good = [
        b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 4222\r\n",
        b"PROXY TCP6 2001:db8::1 2001:db8::2 1 65535\r\n",
        b"PROXY UNKNOWN\r\n",
        binary(addresses("192.0.2.1", 56324)),
        binary(addresses("2001:db8::1", 7, socket.AF_INET6), family=0x21),
    ]
    rng, valid = random.Random(SEED), 0
    for _ in range(ROUNDS):
        header = bytearray(mutated(rng, rng.choice(good), good))
        for _ in range(rng.randrange(3) if header else 0):
            header[rng.randrange(len(header))] ^= 1 << rng.randrange(8)
        try:
            source = parsed(bytes(header).ljust(BINARY_HEAD, b"\0"))
        except ProxyError as error:
            assert str(error)  # noqa: PT017 - both ways out are fine
            continue
        valid += 1
        assert source is None or (source[0] and 0 <= source[1] < 65536)
    assert ROUNDS / 20 < valid < ROUNDS
