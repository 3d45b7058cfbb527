"""Codec of JSON payloads that have a JSON Schema.

Belongs here: reading the schema within its limits, checking and decoding payloads, one or a batch. A payload fits when
it is one JSON text (RFC 8259, UTF-8), the schema allows it, and each column can hold its value. Of duplicate names the
last one counts. Fields that the schema does not name are ignored if it allows them, and checked for syntax only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import msgspec

from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.schemas import scalars as limits
from lakestream.schemas.columns import RecordType
from lakestream.schemas.errors import BadSchema, Unfit, within
from lakestream_schemas.json_schema.bounds import MAX_SCHEMA_DEPTH, Node, Visits
from lakestream_schemas.json_schema.shapes import PATTERNS, Shapes
from lakestream_schemas.json_schema.values import convert
from lakestream_schemas.payloads import PayloadCodec
from lakestream_schemas.records import check_size

if TYPE_CHECKING:
    import pyarrow as pa

    from lakestream_schemas.plan import ColumnNode

MAX_WORK = 20_000_000
"""Maximum product of a payload's bytes and the schemas that one value is checked against. It bounds the time of one
check to seconds; a larger payload does not fit such a schema."""
_ANY = msgspec.json.Decoder()
_DRAFTS: dict[str, Any] = {
    "https://json-schema.org/draft/2020-12/schema": jsonschema_rs.Draft202012Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema_rs.Draft201909Validator,
    "http://json-schema.org/draft-07/schema": jsonschema_rs.Draft7Validator,
}


def parse_schema(text: str) -> Node:
    """Return a JSON Schema as Python values, after the checks that need no validator.

    Raises:
        BadSchema: it is no JSON object, of another draft, or nests too deep.
    """
    raw = text.encode(errors="surrogatepass")
    # A level of schemas is two of JSON: `properties` and the name.
    if limits.is_deeper(raw, 2 * MAX_SCHEMA_DEPTH):
        raise BadSchema(f"its JSON nests deeper than {2 * MAX_SCHEMA_DEPTH}", remedy="use $ref to $defs")
    try:
        node = _ANY.decode(raw)
    except DECODE_ERRORS as error:
        raise BadSchema(f"it is not JSON: {error}") from None
    if not isinstance(node, dict):
        raise BadSchema("it is not a JSON object", remedy='begin with {"type": "object", "properties": {…}}')
    _draft(node)
    return node


def check_schema(text: str) -> None:
    """Check that a text is a JSON Schema, of objects or of anything else.

    Raises:
        BadSchema: it is none.
    """
    schema = parse_schema(text)
    try:
        jsonschema_rs.meta.validate(schema)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        raise BadSchema(str(getattr(error, "message", error))[:300]) from None


def _draft(node: Node) -> Any:
    name = node.get("$schema", next(iter(_DRAFTS)))
    found = _DRAFTS.get(name.removesuffix("#")) if isinstance(name, str) else None
    if found is None:
        raise BadSchema(f"$schema {str(name)[:80]!r} is not supported", "$schema", f"use one of {', '.join(_DRAFTS)}")
    return found


def _raw(value: Any) -> str | None:
    text = "null" if value is None else str(bytes(value), "utf-8")
    return None if text == "null" else text


def _decimal(value: Any) -> Decimal | None:
    return None if value is None else Decimal(value)


class JsonCodec(PayloadCodec):
    """Checks and decodes JSON payloads of one schema.

    Attributes: `largest`: maximum size of a payload in bytes, None without a
    limit of the schema's own.
    """

    form = "json"
    unpack = staticmethod(msgspec.structs.astuple)
    scalars = MappingProxyType({"json": _raw, "decimal": _decimal})

    def __init__(self, text: str) -> None:
        """Read a schema.

        Raises:
            BadSchema: it is invalid, or would cost too much time.
        """
        schema = parse_schema(text)
        if schema.get("type", "object") != "object":
            raise BadSchema("the root is not an object", "type", 'its fields become columns: use "type": "object"')
        visits = Visits(schema)
        self.deepest = visits.depth()
        try:
            self._validator = _draft(schema)(
                schema, validate_formats=False, pattern_options=PATTERNS, offline=True, ignore_unknown_formats=True
            )
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
            text = getattr(error, "message", str(error))
            where = "/".join(map(str, getattr(error, "instance_path", ())))
            raise BadSchema(text[:300], where) from None
        try:
            shapes = Shapes(schema)
        except (TypeError, ValueError, AttributeError) as error:
            if isinstance(error, BadSchema):
                raise
            raise BadSchema(str(error)[:300]) from None
        self._root = shapes.root
        if not isinstance(self._root.type, RecordType):
            raise BadSchema(
                "its members are not all objects, or describe a property in two ways",
                "allOf",
                "describe it in one member",
            )
        self.record: RecordType = self._root.type
        check_size(self.record)
        self._whole = shapes.whole
        self.plan_decides = not shapes.whole
        self._decoder = msgspec.json.Decoder(self._root.python)
        self._check = self._root.check
        self.largest = MAX_WORK // visits.most if shapes.whole else None

    def root(self) -> ColumnNode | None:
        from lakestream_schemas.json_schema.nodes import root_of

        return root_of(self._root)

    def doubted(self, payloads: pa.BinaryArray, odd: list[int]) -> list[int]:
        if not self._whole:
            return odd
        seen = set(odd)
        return [row for row, text in enumerate(payloads.to_pylist()) if row in seen or not self._is_valid(text)]

    def _is_valid(self, payload: bytes) -> bool:
        """Return True if jsonschema-rs allows a payload."""
        try:
            return self._is_small(payload) and self._validator.is_valid(_ANY.decode(payload))
        except DECODE_ERRORS:  # a number that no column has
            return False

    def value(self, payload: bytes | None) -> Any:
        """Return a payload as a struct, whose fields are those of the record, in order. Raise Unfit."""
        if payload is None:
            raise Unfit("", "json", "there is no payload")
        if payload.count(b"[") + payload.count(b"{") > self.deepest and limits.json_depth(payload) > self.deepest:
            raise Unfit("", "depth", f"it nests deeper than {self.deepest}")
        try:
            payload.decode()
            value = self._decoder.decode(payload)
            if (self._check is None or self._check(value)) and (not self._whole or self._is_valid(payload)):
                return value
        except DECODE_ERRORS:
            pass
        return self._exactly(payload)

    def _is_small(self, payload: bytes) -> bool:
        return self.largest is None or len(payload) <= self.largest

    def _exactly(self, payload: bytes) -> Any:
        """Return the value of a payload that the fast way refused, or name the field and the rule."""
        if not self._is_small(payload):
            raise Unfit("", "size", f"its schema checks at most {self.largest} bytes within the time that is allowed")
        try:
            payload.decode()
            found = _ANY.decode(payload)
        except UnicodeDecodeError as error:
            raise Unfit("", "utf-8", str(error)) from None
        except DECODE_ERRORS as error:
            if "out of range" not in str(error):
                raise Unfit("", "json", str(error)) from None
            # Only where a column is a DOUBLE does the size of a number matter.
            try:
                found = json.loads(payload, parse_float=_finite, parse_int=_integer)
            except (ValueError, RecursionError) as wrong:  # behind the number
                raise Unfit("", "json", str(wrong)) from None
        for broken in self._validator.iter_errors(found):
            path = ""
            for part in broken.instance_path:
                path = within(path, part)
            rule = broken.kind.name
            if rule == "required":
                path = within(path, str(broken.kind.property))
            raise Unfit(path, rule, broken.message)
        return convert(payload.strip(b" \t\r\n"), self._root)

    def formats(self, columns: pa.RecordBatch, payloads: Sequence[bytes | None] | pa.Array) -> pa.DictionaryArray:
        from lakestream_schemas.arrow import binary
        from lakestream_schemas.json_schema.spelling import skeletons

        return skeletons(self.record, columns, binary(payloads))

    def encode(self, columns: pa.RecordBatch, formats: pa.Array) -> pa.BinaryArray:
        from lakestream_schemas.json_schema.spelling import spell

        return spell(self.record, columns, formats)


def _finite(text: str) -> float:
    value = float(text)
    return math.copysign(1.7976931348623157e308, value) if math.isinf(value) else value


def _integer(text: str) -> int | float:
    return int(text) if len(text) < 300 else _finite(text)
