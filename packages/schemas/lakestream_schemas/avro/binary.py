"""Avro's binary encoding of one value, read and written by functions that are put together from the schema.

Belongs here: bytes to values and back. Counts and lengths are checked against the bytes that are there, before
anything is allocated: fastavro believes them, so ten bytes could ask it for 2^60 elements.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from lakestream.schemas import scalars
from lakestream.schemas.columns import JSON
from lakestream.schemas.errors import Unfit
from lakestream_schemas.avro.model import TICKS_US, AvroType, column

MAX_DEPTH = 60
"""Maximum nesting of the values of recursive records."""
MAX_EMPTY = 1_000
"""Maximum number of elements that take no bytes (null, records without fields) in one block."""
Read = Callable[[bytes, int, int], tuple[Any, int]]
Write = Callable[[bytearray, Any], None]
_DOUBLE, _FLOAT = struct.Struct("<d"), struct.Struct("<f")


def long_at(buf: bytes, at: int) -> tuple[int, int]:
    """Return (number, position after it) of a zigzag varint."""
    byte = buf[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    value, shift = byte & 0x7F, 7
    while True:
        byte = buf[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise Unfit("", "encoding", "a number has more than 64 bits")
    if value > scalars.UINT64_MAX:
        raise Unfit("", "encoding", "a number has more than 64 bits")
    return (value >> 1) ^ -(value & 1), at


def put_long(out: bytearray, value: int) -> None:
    """Append a zigzag varint."""
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def bytes_at(buf: bytes, at: int) -> tuple[bytes, int]:
    """Return (bytes, position after them) with their length in front."""
    size, at = long_at(buf, at)
    end = at + size
    if size < 0 or end > len(buf):
        raise Unfit("", "encoding", f"a length of {size} is beyond the end")
    return buf[at:end], end


class Readers:
    """Functions that read values of the types of one schema.

    Args:
        as_json: values for Avro's JSON encoding; otherwise those that columns take.
    """

    def __init__(self, as_json: bool = False) -> None:
        self._as_json = as_json
        self._records: dict[int, Read] = {}

    def reader(self, node: AvroType) -> Read:
        """Return the function that reads (value, position after it) at a position, at a depth of recursion."""
        if not self._as_json and column(node)[0] == JSON:
            return _as_text(Readers(as_json=True).reader(node))
        if node.kind == "record":
            return self._record(node)
        if node.kind == "union":
            return self._union(node)
        if node.kind in ("array", "map"):
            return self._blocks(node)
        if node.logical and not self._as_json:
            return _logical(node)
        return _plain(node, self._as_json)

    def _record(self, node: AvroType) -> Read:
        if id(node) in self._records:
            return lambda buf, at, depth: self._records[id(node)](buf, at, depth)
        readers: list[Read] = []
        names = node.names
        as_json = self._as_json

        def read(buf: bytes, at: int, depth: int) -> tuple[Any, int]:
            values: list[Any] = []
            if depth > MAX_DEPTH:
                raise Unfit("", "depth", f"it nests deeper than {MAX_DEPTH}")
            try:
                for step in readers:
                    value, at = step(buf, at, depth + 1)
                    values.append(value)
            except Unfit as unfit:
                raise unfit.inside(names[len(values)]) from None
            except (IndexError, struct.error):
                raise Unfit(names[len(values)], "encoding", "the payload ends early") from None
            except UnicodeDecodeError as error:
                raise Unfit(names[len(values)], "utf-8", str(error)) from None
            return (dict(zip(names, values, strict=True)) if as_json else tuple(values)), at

        self._records[id(node)] = read
        readers += [self.reader(part) for part in node.parts]
        return read

    def _union(self, node: AvroType) -> Read:
        readers = [self.reader(branch) for branch in node.parts]
        labels = [None if branch.kind == "null" else branch.label for branch in node.parts]
        as_json = self._as_json

        def read(buf: bytes, at: int, depth: int) -> tuple[Any, int]:
            branch, at = long_at(buf, at)
            if not 0 <= branch < len(readers):
                raise Unfit("", "union", f"there is no branch {branch}")
            if labels[branch] is None:
                return None, at
            value, at = readers[branch](buf, at, depth)
            return ({labels[branch]: value} if as_json else value), at

        return read

    def _blocks(self, node: AvroType) -> Read:
        step = self.reader(node.parts[0])
        least = _least(node.parts[0], 0)
        is_map = node.kind == "map"

        def read(buf: bytes, at: int, depth: int) -> tuple[Any, int]:
            found: Any = {} if is_map else []
            while True:
                count, at = long_at(buf, at)
                if not count:
                    return found, at
                if count < 0:
                    count = -count
                    _, at = long_at(buf, at)
                if count > (len(buf) - at if least or is_map else MAX_EMPTY):
                    raise Unfit("", "encoding", f"{count} elements are more than the payload has")
                for _ in range(count):
                    try:
                        if is_map:
                            key, at = bytes_at(buf, at)
                            found[key.decode()], at = step(buf, at, depth)
                        else:
                            value, at = step(buf, at, depth)
                            found.append(value)
                    except Unfit as unfit:
                        raise unfit.inside(len(found)) from None

        return read


def _as_text(read: Read) -> Read:
    import json

    def text(buf: bytes, at: int, depth: int) -> tuple[Any, int]:
        value, at = read(buf, at, depth)
        return (None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))), at

    return text


def _least(node: AvroType, depth: int) -> int:
    """Return 0 if a value may take no bytes, else 1."""
    if node.kind == "null" or (node.kind == "fixed" and not node.size):
        return 0
    if node.kind != "record":
        return 1
    return max((_least(part, depth + 1) for part in node.parts), default=0) if depth < MAX_DEPTH else 1


def _plain(node: AvroType, as_json: bool) -> Read:
    kind = node.kind
    if kind == "null":
        return lambda buf, at, depth: (None, at)
    if kind == "boolean":
        return _boolean
    if kind == "int":
        return _int
    if kind == "long":
        return lambda buf, at, depth: long_at(buf, at)
    if kind in ("float", "double"):
        form = _FLOAT if kind == "float" else _DOUBLE
        size = form.size
        unpack = form.unpack_from
        if as_json:
            return lambda buf, at, depth: (_json_number(unpack(buf, at)[0]), at + size)
        return lambda buf, at, depth: (unpack(buf, at)[0], at + size)
    if kind == "string":
        return _string
    if kind == "enum":
        return _enum(node.names)
    if kind == "fixed":
        return _fixed(node.size, as_json)
    if as_json:

        def latin(buf: bytes, at: int, depth: int) -> tuple[Any, int]:
            value, at = bytes_at(buf, at)
            return value.decode("latin-1"), at

        return latin
    return lambda buf, at, depth: bytes_at(buf, at)


def _json_number(value: float) -> float | str:
    return value if abs(value) <= 1.7976931348623157e308 else str(value)


def _boolean(buf: bytes, at: int, depth: int) -> tuple[Any, int]:
    if buf[at] > 1:
        raise Unfit("", "encoding", f"{buf[at]} is not a boolean")
    return buf[at] == 1, at + 1


def _int(buf: bytes, at: int, depth: int) -> tuple[Any, int]:
    value, at = long_at(buf, at)
    if not -(2**31) <= value < 2**31:
        raise Unfit("", "range", f"{value} has more than 32 bits")
    return value, at


def _string(buf: bytes, at: int, depth: int) -> tuple[Any, int]:
    value, at = bytes_at(buf, at)
    return value.decode(), at


def _enum(symbols: tuple[str, ...]) -> Read:
    def read(buf: bytes, at: int, depth: int) -> tuple[Any, int]:
        index, at = long_at(buf, at)
        if not 0 <= index < len(symbols):
            raise Unfit("", "enum", f"there is no symbol {index}")
        return symbols[index], at

    return read


def _fixed(size: int, as_json: bool) -> Read:
    def read(buf: bytes, at: int, depth: int) -> tuple[Any, int]:
        if at + size > len(buf):
            raise Unfit("", "encoding", f"{size} bytes are beyond the end")
        value = buf[at : at + size]
        return (value.decode("latin-1") if as_json else value), at + size

    return read


def _logical(node: AvroType) -> Read:
    if node.logical == "decimal":
        step = _fixed(node.size, False) if node.kind == "fixed" else (lambda buf, at, depth: bytes_at(buf, at))
        limit, scale = 10**node.precision, node.scale

        def decimal(buf: bytes, at: int, depth: int) -> tuple[Any, int]:
            raw, at = step(buf, at, depth)
            value = int.from_bytes(raw, "big", signed=True) if len(raw) <= 64 else limit
            if abs(value) >= limit:
                raise Unfit("", "range", f"the number has more than {node.precision} digits")
            return Decimal(value).scaleb(-scale, scalars.EXACT), at

        return decimal
    low, high = (scalars.FIRST_DAY, scalars.LAST_DAY) if node.logical == "date" else (scalars.FIRST_US, scalars.LAST_US)
    times, per = {"timestamp-millis": (1000, 1), "timestamp-nanos": (1, 1000)}.get(node.logical, (1, 1))

    def ticks(buf: bytes, at: int, depth: int) -> tuple[Any, int]:
        value, at = long_at(buf, at)
        value = value * times // per
        if not low <= value <= high:
            raise Unfit("", "range", "it is outside of the years 1 to 9999")
        return value, at

    return ticks


# Writing
def writer(node: AvroType) -> Write | None:
    """Return the function that appends a value, as columns have it, to a buffer; None for types that are JSON text.

    Records are sequences of their fields, maps pairs of key and value, instants µs, dates days.
    """
    if column(node)[0] == JSON:
        return None
    if node.kind == "record":
        return _write_record(node)
    if node.kind == "union":
        return _write_union(node)
    if node.kind in ("array", "map"):
        return _write_blocks(node)
    if node.logical == "decimal":
        return _write_decimal(node)
    return _write_plain(node)


def _write_record(node: AvroType) -> Write | None:
    steps = [writer(part) for part in node.parts]
    if None in steps:
        return None

    def write(out: bytearray, value: Any) -> None:
        for step, part in zip(steps, value.values() if isinstance(value, dict) else value, strict=True):
            step(out, part)  # type: ignore[misc]

    return write


def _write_union(node: AvroType) -> Write | None:
    null = next((at for at, branch in enumerate(node.parts) if branch.kind == "null"), -1)
    other, branch = next((at, branch) for at, branch in enumerate(node.parts) if branch.kind != "null")
    step = writer(branch)
    if step is None:
        return None

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            put_long(out, null)
        else:
            put_long(out, other)
            step(out, value)

    return write


def _write_blocks(node: AvroType) -> Write | None:
    step = writer(node.parts[0])
    if step is None:
        return None
    is_map = node.kind == "map"

    def write(out: bytearray, value: Any) -> None:
        if value:
            put_long(out, len(value))
            for part in value:
                if is_map:
                    key = part[0].encode()
                    put_long(out, len(key))
                    out.extend(key)
                    part = part[1]
                step(out, part)
        out.append(0)

    return write


def _write_decimal(node: AvroType) -> Write:
    def write(out: bytearray, value: Any) -> None:
        number = int(value.scaleb(node.scale, scalars.EXACT))
        size = node.size if node.kind == "fixed" else (number + (number < 0)).bit_length() // 8 + 1
        raw = number.to_bytes(size, "big", signed=True)
        if node.kind != "fixed":
            put_long(out, len(raw))
        out.extend(raw)

    return write


def _write_plain(node: AvroType) -> Write:
    kind = node.kind
    if kind == "boolean":
        return lambda out, value: out.append(1 if value else 0)
    if kind in ("int", "long"):
        tick = TICKS_US.get(node.logical, 1.0)
        if tick == 1.0:
            return put_long
        if tick > 1:
            return lambda out, value: put_long(out, value // 1_000)
        return lambda out, value: put_long(out, value * 1_000)
    if kind in ("float", "double"):
        pack = (_FLOAT if kind == "float" else _DOUBLE).pack
        return lambda out, value: out.extend(pack(value))
    if kind == "enum":
        places = {symbol: at for at, symbol in enumerate(node.names)}
        return lambda out, value: put_long(out, places[value])
    if kind == "fixed":
        return lambda out, value: out.extend(value)

    def write(out: bytearray, value: Any) -> None:
        raw = value.encode() if kind == "string" else value
        put_long(out, len(raw))
        out.extend(raw)

    return write
