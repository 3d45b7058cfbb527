"""Commands and actions of Flight SQL.

Belongs here: the few fields of its Protocol Buffers messages (FlightSql.proto of Apache Arrow) that a server of queries
reads and writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

TYPE_URL = "type.googleapis.com/arrow.flight.protocol.sql."
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5


class BadFlightMessage(ValueError):
    """Raised for bytes that are no such message."""


def fields(body: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield number and value of each field: bytes, or an integer. Raises BadFlightMessage."""
    at = 0
    while at < len(body):
        key, at = _varint(body, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(body, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(body, at)
        elif kind in (_EIGHT, _FOUR):
            size = 8 if kind == _EIGHT else 4
        else:
            raise BadFlightMessage(f"a field has the wire type {kind}")
        if at + size > len(body):
            raise BadFlightMessage("a field is cut off")
        yield number, body[at : at + size]
        at += size


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(body) and shift < 64:
        byte = body[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
    raise BadFlightMessage("a number is cut off")


def texts(body: bytes, number: int) -> list[str]:
    """Return the values of a field of texts. Raises BadFlightMessage."""
    return [_text(value) for found, value in fields(body) if found == number and isinstance(value, bytes)]


def text(body: bytes, number: int) -> str | None:
    """Return a text; None where it is not set. Raises BadFlightMessage."""
    found = texts(body, number)
    return found[-1] if found else None


def flag(body: bytes, number: int) -> bool:
    """Return a boolean. Raises BadFlightMessage."""
    return any(found == number and value == 1 for found, value in fields(body))


def numbers(body: bytes, number: int) -> list[int]:
    """Return the values of a field of integers, packed or not. Raises BadFlightMessage."""
    found: list[int] = []
    for name, value in fields(body):
        if name != number:
            continue
        if isinstance(value, int):
            found.append(value)
            continue
        at = 0
        while at < len(value):
            each, at = _varint(value, at)
            found.append(each)
    return found


def unpack(body: bytes) -> tuple[str, bytes]:
    """Return name and value of a message in an Any. Raises BadFlightMessage."""
    url, value = "", b""
    for number, each in fields(body):
        if number == 1 and isinstance(each, bytes):
            url = _text(each)
        elif number == 2 and isinstance(each, bytes):
            value = each
    if not url.startswith(TYPE_URL):
        raise BadFlightMessage("this is not a Flight SQL command")
    return url.removeprefix(TYPE_URL), value


def pack(name: str, values: Mapping[int, bytes]) -> bytes:
    """Return an Any with a message of these fields."""
    return message({1: (TYPE_URL + name).encode(), 2: message(values)})


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise BadFlightMessage(str(error)) from None


def message(values: Mapping[int, bytes]) -> bytes:
    """Return a message of these fields."""
    return b"".join(_size(number << 3 | _BYTES) + _size(len(value)) + value for number, value in values.items())


def _size(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
