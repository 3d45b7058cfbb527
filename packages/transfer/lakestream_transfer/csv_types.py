"""Types of CSV fields, which have them only on request (`--types`, `--infer`).

Belongs here: the types, the fields that fit each, how such a field is written in JSON, and finding the types of a file.
A type never changes a value: a field whose number it cannot hold does not fit. Nothing is read here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Context, Decimal

import msgspec

from lakestream.lake.errors import LakeError
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream_transfer.mapping import BadMapping

Convert = Callable[[str], bytes]
"""Writes a field that is not empty as JSON; raises ValueError for one that does not fit."""

NULL = b"null"
STRING = "string"
TYPES = "string, boolean, int, bigint, double, decimal, decimal(p,s), json"
MOST_MISFITS = 100
"""Fields of a column that do not fit a type, up to which inferring remembers the type as a near miss."""

_BITS = {"int": 32, "integer": 32, "bigint": 64, "long": 64}
_NUMBER = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{1,9}))?")
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,9})?")
_JSON_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_INTEGER = re.compile(r"[+-]?[0-9]{1,100}")
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_PAIR = re.compile(r"\s*((?:[^,(]|\([^)]*\))+)\s*(?:,|$)")
_encode = msgspec.json.Encoder().encode
_check_json = msgspec.json.Decoder(msgspec.Raw).decode
_EXACT_DIGITS = 15
"""Digits that a double of a usual size always holds."""


class Misfits(msgspec.Struct):
    """Fields of a column that do not fit a type: their number, and the first one's row and reason."""

    count: int = 0
    row: int = 0
    reason: str = ""

    def add(self, row: int, reason: str) -> None:
        """Count one more."""
        if not self.count:
            self.row, self.reason = row, reason
        self.count += 1


class BadTypes(LakeError):
    """Raised when fields do not fit the types that were asked for; nothing was stored."""

    def __init__(self, types: Mapping[str, str], found: Mapping[str, Misfits]) -> None:
        super().__init__(
            f"{'; '.join(told(types, found))}. Nothing of this command is stored. Name another type ({STRING} keeps "
            "every field as it is spelled), or leave such rows out with --skip-bad"
        )


def _told(misfits: Misfits) -> str:
    noun = "field does" if misfits.count == 1 else "fields do"
    return f"{misfits.count:,} {noun} not fit, the first in row {misfits.row:,} ({misfits.reason})"


def parse(text: str) -> dict[str, str]:
    """Parse `zip:string,price:decimal(10,2)` into types by column.

    Raises:
        BadMapping: it does not parse, or names an unknown type.
    """
    types = {}
    for pair in _PAIR.findall(text) if text else ():
        column, colon, kind = pair.rpartition(":")
        if not (colon and column and kind):
            raise BadMapping(f"--types {pair}: write --types zip:string,price:double")
        types[column] = kind.strip().lower()
        converter(types[column])
    return types


def spelled(types: Mapping[str, str]) -> str:
    """Return types as `parse` takes them; columns of text are left out."""
    return ",".join(f"{name}:{kind}" for name, kind in types.items() if kind != STRING)


def converter(kind: str) -> Convert:
    """Return the conversion of a type. Raises BadMapping for an unknown one."""
    if kind == STRING:
        return _encode
    if kind in _BITS:
        return lambda text: _integer(text, _BITS[kind])
    if (match := _DECIMAL.fullmatch(kind)) is not None:
        precision, scale = int(match[1]), int(match[2] or 0)
        return lambda text: _decimal(text, precision, scale)
    simple: dict[str, Convert] = {"boolean": _boolean, "double": _double, "decimal": _number, "json": _json}
    if kind not in simple:
        raise BadMapping(f"--types: there is no type {kind!r}; there are {TYPES}")
    return simple[kind]


def misfits(
    types: Mapping[str, str], names: Sequence[str], rows: Iterable[tuple[int, Sequence[str]]]
) -> dict[str, Misfits]:
    """Return the fields of all rows that do not fit their types, by column."""
    found: dict[str, Misfits] = {}
    checks = [(names.index(name), name, converter(kind)) for name, kind in types.items() if kind != STRING]
    for row, values in rows:
        for at, name, convert in checks:
            if values[at]:
                try:
                    convert(values[at])
                except ValueError as error:
                    found.setdefault(name, Misfits()).add(row, str(error))
    return found


def told(types: Mapping[str, str], found: Mapping[str, Misfits]) -> list[str]:
    """Return a line for each column with misfits."""
    return [f"column {name} ({types[name]}): {_told(each)}" for name, each in found.items()]


class InferredTypes(msgspec.Struct, frozen=True):
    """Types found in a file; `notes`: a line for each column that is text because few of its fields fit no type."""

    types: dict[str, str]
    notes: list[str]


def infer(names: Sequence[str], rows: Iterable[tuple[int, Sequence[str]]]) -> InferredTypes:
    """Return the narrowest type of each column that holds every field of it, and gives back its spelling as a JSON
    value: `007`, `1e400` and `12:00` stay text. Dates are text, as JSON has none."""
    columns = [_Column(name) for name in names]
    count = 0
    for row, values in rows:
        count += 1
        for column, value in zip(columns, values, strict=True):
            if value and column.open:
                column.take(row, value)
    types, notes = {}, []
    for column in columns:
        if (kind := column.kind) is not None:
            types[column.name] = kind
        elif (near := column.near(count)) is not None:
            notes.append(f"column {column.name} stays text ({near[0]} was near): {_told(near[1])}")
    return InferredTypes(types, notes)


class _Column:
    """Types that a column may still have, and the fields that did not fit them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.open = {"boolean": Misfits(), "bigint": Misfits(), "double": Misfits()}
        self._seen = 0

    def take(self, row: int, value: str) -> None:
        """Check one field."""
        self._seen += 1
        for kind in [kind for kind in self.open if not _inferable(kind, value)]:
            self.open[kind].add(row, repr(value[:40]))
            if self.open[kind].count > MOST_MISFITS:
                del self.open[kind]

    @property
    def kind(self) -> str | None:
        """Return the type of all fields; None when there is none, or no field."""
        if not self._seen:
            return None
        return next((kind for kind, misfits in self.open.items() if not misfits.count), None)

    def near(self, rows: int) -> tuple[str, Misfits] | None:
        """Return the type that most fields fit, and those that do not; None when there is none."""
        fits = [(kind, misfits) for kind, misfits in self.open.items() if misfits.count * 2 < self._seen]
        return min(fits, key=lambda each: each[1].count, default=None)


def _inferable(kind: str, value: str) -> bool:
    if kind == "boolean":
        return value in ("true", "false")
    if kind == "bigint":
        return _JSON_INTEGER.fullmatch(value) is not None and -(2**63) <= int(value) < 2**63
    return _JSON_NUMBER.fullmatch(value) is not None and _fits_double(value)


# ---------------------------------------------------------------------- conversions


def _integer(text: str, bits: int) -> bytes:
    if _INTEGER.fullmatch(text) is None:
        raise ValueError(f"{text[:40]!r} is not a whole number")
    value = int(text)
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise ValueError(f"{text} is not within {bits} bits")
    return b"%d" % value


def _number(text: str) -> bytes:
    """Return a number in its spelling, or in JSON's where that has another: `.5` is 0.5, `+7` is 7."""
    if _JSON_NUMBER.fullmatch(text) is not None:
        return text.encode()
    match = _NUMBER.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        raise ValueError(f"{text[:40]!r} is not a number")
    sign, whole, fraction, exponent = match.groups()
    spelled = ("-" if sign == "-" else "") + (whole.lstrip("0") or "0")
    return (spelled + (f".{fraction}" if fraction else "") + (f"e{exponent}" if exponent else "")).encode()


def _double(text: str) -> bytes:
    spelled = _number(text)
    if not _fits_double(text):
        raise ValueError(f"{text[:40]} has more digits than a double holds: decimal keeps them")
    return spelled


def _fits_double(text: str) -> bool:
    """Return True if a double, written with as many digits as the number has, is this number."""
    exact, value = Decimal(text), float(text)
    if math.isinf(value):
        return False
    digits = len(exact.as_tuple().digits)
    if digits <= _EXACT_DIGITS and (abs(value) > 1e-290 or exact == 0):
        return True
    return Context(prec=digits).create_decimal(Decimal(value)) == exact


def _decimal(text: str, precision: int, scale: int) -> bytes:
    spelled = _number(text)
    _, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int)  # `_number` has refused NaN and infinity
    number = "".join(map(str, digits)).rstrip("0")
    exponent += len(digits) - len(number)
    if number.strip("0") and (-exponent > scale or len(number.lstrip("0")) + exponent > precision - scale):
        raise ValueError(f"{text[:40]} is not within decimal({precision},{scale})")
    return spelled


def _boolean(text: str) -> bytes:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError(f"{text[:40]!r} is neither true nor false")
    return lowered.encode()


def _json(text: str) -> bytes:
    encoded = text.encode()
    try:
        _check_json(encoded)
    except DECODE_ERRORS as error:
        raise ValueError(f"{text[:40]!r} is not JSON: {error}") from None
    return encoded
