"""Proposal of a JSON Schema from a sample of payloads.

Belongs here: what the values of each field have in common, the reason of each choice, and the payloads that the
proposal would not allow. The same sample gives the same text.

Data drifts: a field comes, goes, or changes its type at some message. The sample is in the stream's order, so each type
of a field has a first and a last message. Where one type ends before another begins, the later one is proposed, since
messages are decoded by the version in force when they were stored; a mixture in time order stays free-form.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import Any

import msgspec

from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.schemas import scalars
from lakestream.schemas.errors import Misfit, RowMisfit
from lakestream_schemas.json_schema.bounds import MAX_DEPTH
from lakestream_schemas.json_schema.codec import JsonCodec
from lakestream_schemas.json_schema.shapes import UNNAMEABLE
from lakestream_schemas.records import MAX_FIELD_NAME, MAX_FIELDS

MAX_SAMPLE = 100_000
"""Maximum number of payloads that are looked at."""
MAX_SAMPLE_BYTES = 256 << 20
"""Maximum size of them, together."""
MAX_INFERRED_DEPTH = 12
"""Nesting of objects and lists above which values are free-form."""
MAX_ENUM = 10
"""Maximum number of values of a proposed enum."""
ENUM_REPEATS = 10
"""Minimum number of occurrences of a value of an enum, on average."""
MAX_ENUM_LENGTH = 40
"""Maximum length of a value of an enum, in characters."""
MAX_ENUM_DIGITS = 3
"""Maximum number of digits of such a value: dates, times and ids of a sample may be few, and tomorrow's are others."""
MAP_NAMES = 30
"""Number of names above which an object whose names are mostly missing is a map."""
MAP_PRESENCE = 0.2
"""Average share of objects that have a name of a map, at most."""
OUTLIERS = 0.01
"""Maximum share of values of another type that are set aside instead of making the field free-form."""
DRIFT_LEAST = 20
"""Minimum number of values of a type, or of objects with or without a field, that count as a change of the data."""
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_AS_INSTANT, _AS_DATE = msgspec.json.Decoder(datetime), msgspec.json.Decoder(date)


class Choice(msgspec.Struct, frozen=True):
    """A choice of the proposal for a field, and the reason. `row`: place in the sample at which the data changed."""

    field: str
    choice: str
    reason: str
    row: int | None = None


class InferredSchema(msgspec.Struct, frozen=True):
    """A proposed schema. `schema`: its text; `payloads`: number of payloads that were looked at; `misfits`: those that
    do not fit it, by their place in the sample; `choices`: the reasons, in the order of the fields."""

    schema: str
    payloads: int
    misfits: list[RowMisfit]
    choices: list[Choice]


def infer(payloads: Iterable[bytes]) -> InferredSchema:
    """Return a schema for a sample of JSON payloads."""
    root = _Seen()
    sample: list[bytes] = []
    size = 0
    for payload in payloads:
        size += len(payload)
        if len(sample) == MAX_SAMPLE or size > MAX_SAMPLE_BYTES:
            break
        sample.append(payload)
        if not scalars.is_deeper(payload, MAX_DEPTH):
            try:
                value = msgspec.json.decode(payload)
            except DECODE_ERRORS:
                continue
            if isinstance(value, dict):
                root.add(value, 0, len(sample) - 1)
    maker = _Maker()
    schema = {"type": "object"} | maker.of(root, "") if root.count else {"type": "object"}
    if "properties" not in schema:
        schema = {"type": "object", "properties": {}}
    text = msgspec.json.format(msgspec.json.encode(schema), indent=2).decode()
    fits = JsonCodec(text).fits
    found = [(row, fits(payload)) for row, payload in enumerate(sample)]
    misfits = [RowMisfit(row, misfit) for row, misfit in found if isinstance(misfit, Misfit)]
    return InferredSchema(text, len(sample), misfits, maker.choices)


class _Kind:
    """Values of one type: their number, and the first and last place in the sample."""

    __slots__ = ("count", "first", "last")

    def __init__(self, row: int) -> None:
        self.count, self.first, self.last = 0, row, row


class _Seen:
    """Values of one field. `before`, `through`: number of objects that might have had it, before the first and through
    the last that has."""

    def __init__(self, before: int = 0) -> None:
        self.count = 0
        self.kinds: dict[str, _Kind] = {}
        self.texts: Counter[str] | None = Counter()
        self.formats = {"uuid", "date-time", "date"}
        self.names: dict[str, _Seen] = {}
        self.elements: _Seen | None = None
        self.low = self.high = 0
        self.before = self.through = before

    def add(self, value: Any, depth: int, row: int) -> None:
        """Add one value."""
        self.count += 1
        name = _KINDS[type(value)]
        kind = self.kinds.get(name)
        if kind is None:
            kind = self.kinds[name] = _Kind(row)
        kind.count += 1
        kind.last = row
        if name == "string":
            self._add_text(value)
        elif name == "integer":
            if value > self.high:
                self.high = value
            elif value < self.low:
                self.low = value
        elif depth >= MAX_INFERRED_DEPTH:
            return
        elif name == "object":
            for field, part in value.items():
                seen = self.names.get(field)
                if seen is None:
                    if len(self.names) >= 4 * MAX_FIELDS:
                        continue
                    seen = self.names[field] = _Seen(kind.count - 1)
                seen.through = kind.count
                seen.add(part, depth + 1, row)
        elif name == "array":
            if self.elements is None:
                self.elements = _Seen()
            for part in value:
                self.elements.add(part, depth + 1, row)

    def _add_text(self, text: str) -> None:
        if self.texts is not None:
            if text not in self.texts and not (len(self.texts) < MAX_ENUM and _may_be_listed(text)):
                self.texts = None
            else:
                self.texts[text] += 1
        if self.formats:
            self.formats = {name for name in self.formats if _has_format(text, name)}

    def merge(self, other: _Seen) -> None:
        """Add the values of another field."""
        self.count += other.count
        for name, kind in other.kinds.items():
            own = self.kinds.setdefault(name, _Kind(kind.first))
            own.count += kind.count
            own.first, own.last = min(own.first, kind.first), max(own.last, kind.last)
        self.formats &= other.formats
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.texts = None
        for name, seen in other.names.items():
            self.names.setdefault(name, _Seen()).merge(seen)
        if other.elements is not None:
            self.elements = self.elements or _Seen()
            self.elements.merge(other.elements)


_KINDS = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}
"""Types of JSON by those of decoded values."""


def _has_format(text: str, name: str) -> bool:
    if name == "uuid":
        return _UUID.fullmatch(text) is not None
    pattern, decoder = (_INSTANT, _AS_INSTANT) if name == "date-time" else (_DATE, _AS_DATE)
    if pattern.fullmatch(text) is None:
        return False
    try:
        decoder.decode(f'"{text}"')
    except DECODE_ERRORS:
        return False
    return True


class _Maker:
    """Maker of schemas; it stops describing parts when there are too many fields. `choices`: the reasons so far."""

    def __init__(self) -> None:
        self._fields = 0
        self.choices: list[Choice] = []

    def of(self, seen: _Seen, where: str) -> dict[str, Any]:
        """Return the schema of a field; `where`: its path, "" for the root."""
        self._fields += 1
        kinds = {name: kind.count for name, kind in seen.kinds.items()}
        nulls = kinds.pop("null", 0)
        if "number" in kinds and "integer" in kinds:
            self._say(where, "number", f"{kinds['integer']:,} integers and {kinds['number']:,} other numbers")
            kinds["number"] += kinds.pop("integer")
        total = sum(kinds.values())
        if not total:
            self._say(where, "any value", "it is always null")
            return {}
        if self._fields > MAX_FIELDS // 2:
            self._say(where, "any value", f"there are more than {MAX_FIELDS // 2} fields")
            return {}
        kind, most = min(kinds.items(), key=lambda item: (-item[1], item[0]))
        if total - most > OUTLIERS * total:
            shown = ", ".join(f"{count:,} {name}" for name, count in sorted(kinds.items()))
            later = _later(seen, kinds)
            if later is None:
                self._say(where, "any value", f"the types are mixed: {shown}")
                return {}
            kind, most = later, kinds[later]
            reason = f"the type changed: {shown}; earlier messages are listed as misfits"
            self._say(where, kind, reason, seen.kinds[kind].first)
        elif total > most:
            self._say(where, kind, f"{total - most:,} of {total:,} values have another type, and are listed as misfits")
        if nulls:
            self._say(where, f"{kind} or null", f"{nulls:,} of {seen.count:,} values are null")
        found: dict[str, Any] = {"type": [kind, "null"] if nulls else kind}
        if kind == "string":
            found |= self._string(seen, total, bool(nulls), where)
        elif kind == "integer":
            is_mixed = seen.low < 0 and seen.high > scalars.INT64_MAX
            if is_mixed or seen.high > scalars.UINT64_MAX or seen.low < scalars.INT64_MIN:
                self._say(where, "number", "there are integers beyond 64 bits")
                found["type"] = ["number", "null"] if nulls else "number"
            elif seen.high > scalars.INT64_MAX:
                self._say(where, "uint64", f"the highest integer is {seen.high:,}")
                found["format"] = "uint64"
        elif kind == "array" and seen.elements is not None and seen.elements.count:
            found["items"] = self.of(seen.elements, f"{where}[]")
        elif kind == "object":
            found |= self._object(seen, most, where)
        return found

    def _say(self, where: str, choice: str, reason: str, row: int | None = None) -> None:
        self.choices.append(Choice(where, choice, reason, row))

    def _string(self, seen: _Seen, total: int, is_nullable: bool, where: str) -> dict[str, Any]:
        for name in ("date-time", "date", "uuid"):
            if name in seen.formats:
                self._say(where, f"format {name}", f"all {seen.kinds['string'].count:,} texts are such")
                return {"format": name}
        if seen.texts and len(seen.texts) > 1 and total >= ENUM_REPEATS * len(seen.texts):
            self._say(where, "enum", f"{total:,} texts have {len(seen.texts)} different values")
            values: list[Any] = sorted(seen.texts)
            return {"enum": [*values, None] if is_nullable else values}
        return {}

    def _object(self, seen: _Seen, total: int, where: str) -> dict[str, Any]:
        if not seen.names:
            self._say(where, "text", "no object has a field")
            return {}
        present = sum(part.count for part in seen.names.values()) / len(seen.names)
        if where and len(seen.names) > MAP_NAMES and present < MAP_PRESENCE * total:
            share = f"each is in {present / total:.1%} of the objects on average"
            self._say(where, "map", f"the objects have {len(seen.names):,} names, and {share}")
            merged = _Seen()
            for part in seen.names.values():
                merged.merge(part)
            return {"additionalProperties": self.of(merged, f"{where}.*")}
        possible = {name: part for name, part in seen.names.items() if _can_be_named(name)}
        for name in (name for name in seen.names if name not in possible):
            reason = f"its name has a quote, a backslash, a control character, or more than {MAX_FIELD_NAME} bytes"
            self._say(f"{where}.{name[:80]}" if where else name[:80], "no column", reason)
        names = possible if self._fields + len(possible) < MAX_FIELDS // 2 else {}
        names = names or dict(list(possible.items())[: max(0, MAX_FIELDS // 2 - self._fields)])
        if left := len(possible) - len(names):
            self._say(where, "no column", f"{left:,} more names; a schema has at most {MAX_FIELDS // 2} fields here")
        prefix = f"{where}." if where else ""
        required = []
        properties = {}
        for name, part in names.items():
            if part.count == total:
                required.append(name)
            else:
                self._say(prefix + name, "optional", *_presence(part, total))
            properties[name] = self.of(part, prefix + name)
        return {"properties": properties} | ({"required": required} if required else {})


def _may_be_listed(text: str) -> bool:
    """Return True if a text may be a value of an enum."""
    return len(text) <= MAX_ENUM_LENGTH and sum(map(str.isdigit, text)) <= MAX_ENUM_DIGITS


def _can_be_named(name: str) -> bool:
    return UNNAMEABLE.search(name) is None and len(name.encode()) <= MAX_FIELD_NAME


def _later(seen: _Seen, kinds: Mapping[str, int]) -> str | None:
    """Return the type that a field has changed to; None if types are mixed in time."""
    by_end = sorted(kinds, key=lambda name: seen.kinds[name].last)
    last = by_end[-1]
    begins = seen.kinds[last].first
    if kinds[last] >= DRIFT_LEAST and all(seen.kinds[name].last < begins for name in by_end[:-1]):
        return last
    return None


def _presence(part: _Seen, total: int) -> tuple[str, int | None]:
    """Return (the reason why a field is optional, the place where it came or went)."""
    since, after = total - part.before, total - part.through
    kinds = part.kinds.values()
    if part.before >= DRIFT_LEAST and part.count == since >= DRIFT_LEAST:
        return f"it came later: in all {since:,} objects since, and in none of {part.before:,} before", min(
            kind.first for kind in kinds
        )
    if after >= DRIFT_LEAST and part.count == part.through - part.before >= DRIFT_LEAST:
        return f"it went: in none of the last {after:,} objects", max(kind.last for kind in kinds)
    return f"it is in {part.count:,} of {total:,} objects", None
