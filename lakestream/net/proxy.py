"""PROXY protocol, versions 1 and 2: the address of a client behind a load balancer.

Belongs here: the header's rules, with the errors of nats-server. No I/O: `listener.py` reads the bytes.
"""

from __future__ import annotations

import ipaddress

FIRST_BYTES = 6
"""Bytes that tell a header from a client's commands."""
TEXT_START = b"PROXY "
BINARY_START = b"\r\n\r\n\x00\r"
BINARY_HEAD = 16
"""Bytes of a header of version 2 before the addresses."""
MAX_TEXT = 107
"""Bytes of the longest header of version 1, with its end of line."""

Source = tuple[str, int] | None
"""Host and port of the client; None: the connection is the proxy's own, or it does not tell."""

_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
_LOCAL, _PROXIED = 0, 1
_STREAM = 1
_UNSPECIFIED, _IPV4, _IPV6 = 0x00, 0x10, 0x20
_INVALID = "invalid PROXY protocol header"
_UNSUPPORTED = "unsupported PROXY protocol feature"


class ProxyError(Exception):
    """Raised for an invalid header; the text is nats-server's."""


def source_of_text(line: bytes) -> Source:
    """Return the client of a header of version 1, given without its first word and its end of line.

    Raises:
        ProxyError: the header is invalid.
    """
    words = line.decode("latin-1").split()
    if words[:1] == ["UNKNOWN"]:
        return None
    if len(words) != 5:
        raise ProxyError(f"{_INVALID}: invalid v1 format")
    protocol, *texts = words
    source, _ = (_address(text) for text in texts[:2])
    port, _ = (_port(which, text) for which, text in zip(("source", "dest"), texts[2:], strict=True))
    if protocol not in ("TCP4", "TCP6"):
        raise ProxyError(f"{_INVALID}: invalid protocol {protocol}")
    for text in texts[:2]:
        if (":" in text) != (protocol == "TCP6"):
            raise ProxyError(f"{_INVALID}: {protocol} with IPv{6 if ':' in text else 4} address")
    return source, port


def _address(text: str) -> str:
    try:
        if "%" not in text:
            return shown(ipaddress.ip_address(text))
    except ValueError:
        pass
    raise ProxyError(f"{_INVALID}: invalid address")


def _port(which: str, text: str) -> int:
    digits = text.isascii() and text.isdecimal()
    number = int(text[:20]) if digits else 0
    if not digits or number > 65535:
        why = "value out of range" if digits else "invalid syntax"
        raise ProxyError(f'invalid {which} port: strconv.ParseUint: parsing "{text}": {why}')
    return number


def addresses_length(head: bytes) -> int:
    """Return the number of bytes that follow the first `BINARY_HEAD` of a header of version 2.

    Raises:
        ProxyError: these are not the first bytes of such a header.
    """
    if head[:12] != _SIGNATURE:
        raise ProxyError(f"{_INVALID}: invalid signature")
    if head[12] & 0xF0 != 0x20:
        raise ProxyError(f"{_INVALID}: invalid version 0x{head[12] & 0xF0:02x}")
    return int.from_bytes(head[14:16])


def source_of_binary(head: bytes, addresses: bytes) -> Source:
    """Return the client of a header of version 2, from its first `BINARY_HEAD` bytes and those that follow.

    Raises:
        ProxyError: the header is invalid.
    """
    command, family, transport = head[12] & 0x0F, head[13] & 0xF0, head[13] & 0x0F
    if command == _LOCAL:
        return None
    if command != _PROXIED:
        raise ProxyError(f"unknown PROXY protocol command: 0x{command:02x}")
    if transport != _STREAM:
        raise ProxyError(f"{_UNSUPPORTED}: only STREAM protocol supported")
    if family == _UNSPECIFIED:
        return None
    if family not in (_IPV4, _IPV6):
        raise ProxyError(f"{_UNSUPPORTED}: unsupported address family 0x{family:02x}")
    size = 4 if family == _IPV4 else 16
    if len(addresses) < 2 * size + 4:
        raise ProxyError(f"{'IPv4' if family == _IPV4 else 'IPv6'} address data too short: {len(addresses)} bytes")
    port = int.from_bytes(addresses[2 * size : 2 * size + 2])
    return shown(ipaddress.ip_address(addresses[:size])), port


def shown(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Return an address as text; an IPv4 address in IPv6 form as IPv4."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
