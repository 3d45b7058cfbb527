"""Proposal of a JSON Schema from a sample of payloads.

Belongs here: what the values of each field have in common, and the payloads that the proposal would not allow. The
same sample gives the same text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from datetime import date, datetime
from typing import Any

import msgspec

from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.schemas import scalars
from lakestream.schemas.columns import MAX_FIELDS
from lakestream.schemas.errors import Misfit, RowMisfit
from lakestream_schemas.json_schema.bounds import MAX_DEPTH
from lakestream_schemas.json_schema.codec import JsonCodec

MAX_SAMPLE = 10_000
"""Maximum number of payloads that are looked at."""
MAX_SAMPLE_BYTES = 64 << 20
"""Maximum size of them, together."""
MAX_INFERRED_DEPTH = 12
"""Nesting of objects and lists above which values are free-form."""
MAX_ENUM = 10
"""Maximum number of values of a proposed enum."""
ENUM_REPEATS = 10
"""Minimum number of occurrences of a value of an enum, on average."""
MAX_ENUM_LENGTH = 40
"""Maximum length of a value of an enum, in characters."""
MAP_NAMES = 30
"""Number of names above which an object whose names are mostly missing is a map."""
MAP_PRESENCE = 0.2
"""Average share of objects that have a name of a map, at most."""
OUTLIERS = 0.01
"""Maximum share of values of another type that are set aside instead of making the field free-form."""
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_AS_INSTANT, _AS_DATE = msgspec.json.Decoder(datetime), msgspec.json.Decoder(date)


class InferredSchema(msgspec.Struct, frozen=True):
    """A proposed schema. `schema`: its text; `payloads`: number of payloads that were looked at; `misfits`: those that
    do not fit it, by their place in the sample."""

    schema: str
    payloads: int
    misfits: list[RowMisfit]


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
                root.add(value, 0)
    schema = {"type": "object"} | _Maker().of(root) if root.count else {"type": "object"}
    if "properties" not in schema:
        schema = {"type": "object", "properties": {}}
    text = msgspec.json.format(msgspec.json.encode(schema), indent=2).decode()
    fits = JsonCodec(text).fits
    found = [(row, fits(payload)) for row, payload in enumerate(sample)]
    return InferredSchema(
        text, len(sample), [RowMisfit(row, misfit) for row, misfit in found if isinstance(misfit, Misfit)]
    )


class _Seen:
    """Values of one field."""

    def __init__(self) -> None:
        self.count = 0
        self.kinds: Counter[str] = Counter()
        self.texts: Counter[str] | None = Counter()
        self.formats = {"uuid", "date-time", "date"}
        self.names: dict[str, _Seen] = {}
        self.elements: _Seen | None = None
        self.low = self.high = 0

    def add(self, value: Any, depth: int) -> None:
        """Add one value."""
        self.count += 1
        kind = _kind(value)
        self.kinds[kind] += 1
        if kind == "string":
            self._add_text(value)
        elif kind == "integer":
            self.low, self.high = min(self.low, value), max(self.high, value)
        elif depth >= MAX_INFERRED_DEPTH:
            return
        elif kind == "object":
            for name, part in value.items():
                seen = self.names.get(name)
                if seen is None:
                    if len(self.names) >= 4 * MAX_FIELDS:
                        continue
                    seen = self.names[name] = _Seen()
                seen.add(part, depth + 1)
        elif kind == "array":
            if self.elements is None:
                self.elements = _Seen()
            for part in value:
                self.elements.add(part, depth + 1)

    def _add_text(self, text: str) -> None:
        if self.texts is not None:
            self.texts[text] += 1
            if len(self.texts) > MAX_ENUM or len(text) > MAX_ENUM_LENGTH:
                self.texts = None
        if self.formats:
            self.formats = {name for name in self.formats if _has_format(text, name)}

    def merge(self, other: _Seen) -> None:
        """Add the values of another field."""
        self.count += other.count
        self.kinds += other.kinds
        self.formats &= other.formats
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.texts = None
        for name, seen in other.names.items():
            self.names.setdefault(name, _Seen()).merge(seen)
        if other.elements is not None:
            self.elements = self.elements or _Seen()
            self.elements.merge(other.elements)


def _kind(value: Any) -> str:
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "object"


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
    """Maker of schemas; it stops describing parts when there are too many fields."""

    def __init__(self) -> None:
        self._fields = 0

    def of(self, seen: _Seen, is_root: bool = True) -> dict[str, Any]:
        """Return the schema of a field."""
        self._fields += 1
        kinds = Counter(seen.kinds)
        nulls = kinds.pop("null", 0)
        if "number" in kinds and "integer" in kinds:
            kinds["number"] += kinds.pop("integer")
        total = sum(kinds.values())
        if not total or self._fields > MAX_FIELDS // 2:
            return {}
        kind, most = min(kinds.items(), key=lambda item: (-item[1], item[0]))
        if total - most > OUTLIERS * total:
            return {}
        found: dict[str, Any] = {"type": [kind, "null"] if nulls else kind}
        if kind == "string":
            found |= self._string(seen, total, bool(nulls))
        elif kind == "integer":
            is_mixed = seen.low < 0 and seen.high > scalars.INT64_MAX
            if is_mixed or seen.high > scalars.UINT64_MAX or seen.low < scalars.INT64_MIN:
                found["type"] = ["number", "null"] if nulls else "number"
            elif seen.high > scalars.INT64_MAX:
                found["format"] = "uint64"
        elif kind == "array" and seen.elements is not None and seen.elements.count:
            found["items"] = self.of(seen.elements, False)
        elif kind == "object":
            found |= self._object(seen, most, is_root)
        return found

    @staticmethod
    def _string(seen: _Seen, total: int, is_nullable: bool) -> dict[str, Any]:
        for name in ("date-time", "date", "uuid"):
            if name in seen.formats:
                return {"format": name}
        if seen.texts and total >= ENUM_REPEATS * len(seen.texts):
            values: list[Any] = sorted(seen.texts)
            return {"enum": [*values, None] if is_nullable else values}
        return {}

    def _object(self, seen: _Seen, total: int, is_root: bool) -> dict[str, Any]:
        if not seen.names:
            return {}
        present = sum(part.count for part in seen.names.values()) / len(seen.names)
        if not is_root and len(seen.names) > MAP_NAMES and present < MAP_PRESENCE * total:
            merged = _Seen()
            for part in seen.names.values():
                merged.merge(part)
            return {"additionalProperties": self.of(merged, False)}
        names = {name: part for name, part in seen.names.items() if self._fields + len(seen.names) < MAX_FIELDS // 2}
        names = names or dict(list(seen.names.items())[: max(0, MAX_FIELDS // 2 - self._fields)])
        properties = {name: self.of(part, False) for name, part in names.items()}
        required = [name for name, part in names.items() if part.count == total]
        return {"properties": properties} | ({"required": required} if required else {})
