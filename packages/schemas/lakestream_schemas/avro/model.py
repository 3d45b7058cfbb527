"""Avro schemas as a tree of types.

Belongs here: parsing within limits, names, logical types, and the mapping to columns. fastavro resolves the names.

    boolean BOOLEAN   int long BIGINT   float double DOUBLE   string enum uuid STRING   bytes fixed duration BINARY
    decimal DECIMAL(p, s); of more than 38 digits BINARY      date DATE   time-* BIGINT
    timestamp-* TIMESTAMP (µs, UTC)                           local-timestamp-* BIGINT
    record STRUCT   array ARRAY   map MAP<STRING, …>          ["null", X] X
    other unions and recursive records: STRING, in Avro's JSON encoding
"""

from __future__ import annotations

import re
from typing import Any

import fastavro
import msgspec
from fastavro.schema import SchemaParseException, UnknownType

from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.schemas import columns, scalars
from lakestream.schemas.columns import JSON, List, Map, RecordType, Scalar, Type
from lakestream.schemas.errors import BadSchema
from lakestream_schemas.records import MAX_FIELDS, MAX_NESTING, check_size, record_of

MAX_SCHEMA_DEPTH = 120
"""Maximum nesting depth of a schema's JSON."""
_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCALARS = {
    "boolean": columns.BOOLEAN,
    "int": columns.INTEGER,
    "long": columns.INTEGER,
    "float": columns.NUMBER,
    "double": columns.NUMBER,
    "bytes": columns.BYTES,
    "fixed": columns.BYTES,
    "string": columns.STRING,
    "enum": columns.STRING,
}
TICKS_US = {"timestamp-millis": 1_000.0, "timestamp-micros": 1.0, "timestamp-nanos": 0.001}
"""Length of a tick of the instants, in µs."""


class AvroType(msgspec.Struct, gc=True):
    """A type. `kind`: Avro's name; `name`: full name; `logical`: the logical type if it is one that is mapped.

    `parts`: fields of a record, elements of an array or a map, branches of a union. `names`: of the fields, or the
    symbols of an enum. `defaults`: of the fields that have one. `recursive`: a record that contains itself.
    """

    kind: str
    name: str = ""
    logical: str = ""
    precision: int = 0
    scale: int = 0
    size: int = 0
    names: tuple[str, ...] = ()
    parts: list[AvroType] = []
    defaults: dict[str, Any] = {}
    aliases: tuple[str, ...] = ()
    field_aliases: dict[str, tuple[str, ...]] = {}
    comments: dict[str, str] = {}
    default: Any = None
    recursive: bool = False

    @property
    def label(self) -> str:
        """Return the name of the type as a branch of a union."""
        return self.name or self.kind


def parse(text: str, any_root: bool = False) -> AvroType:
    """Return the tree of a schema.

    Args:
        text: its JSON.
        any_root: accept schemas other than records, which have no columns.

    Raises:
        BadSchema: it is no schema, no record, or exceeds a limit.
    """
    raw = text.encode(errors="surrogatepass")
    if scalars.is_deeper(raw, MAX_SCHEMA_DEPTH):
        raise BadSchema(f"its JSON nests deeper than {MAX_SCHEMA_DEPTH}", remedy="give inner records a name")
    try:
        found = msgspec.json.decode(raw)
    except DECODE_ERRORS as error:
        raise BadSchema(f"it is not JSON: {error}") from None
    if not any_root and (not isinstance(found, dict) or found.get("type") != "record"):
        raise BadSchema("the root is not a record", remedy='begin with {"type": "record", "name": …, "fields": […]}')
    try:
        # Without the mark of parsed schemas, a text that has it would not be checked.
        parsed = fastavro.parse_schema(_unmarked(found))
        return _Reader().node(parsed, "")
    except (SchemaParseException, UnknownType) as error:
        raise BadSchema(str(error)[:300] or type(error).__name__) from None
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        if isinstance(error, BadSchema):
            raise
        raise BadSchema(f"it is not an Avro schema: {type(error).__name__}: {str(error)[:200]}") from None


def _unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        if value.get("type") in ("record", "error") and not isinstance(value.get("fields"), list):
            raise BadSchema("a record has no fields", str(value.get("name"))[:80])
        return {key: _unmarked(part) for key, part in value.items() if not key.startswith("__")}
    return [_unmarked(part) for part in value] if isinstance(value, list) else value


class _Reader:
    """One walk over a schema that fastavro has parsed, in which names are full names."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}
        self._open: set[str] = set()
        self._count = 0

    def node(self, schema: Any, where: str) -> AvroType:
        self._count += 1
        if self._count > 4 * MAX_FIELDS:
            raise BadSchema(f"there are more than {MAX_FIELDS} fields", where[:80])
        if isinstance(schema, list):
            return AvroType("union", parts=[self.node(branch, where) for branch in schema])
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return AvroType(schema)
            if schema in self._open:
                self._named[schema].recursive = True
            return self._named[schema]
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.node(kind, where)
        if kind in ("record", "error"):
            return self._record(schema, where)
        node = AvroType(kind, schema.get("name", ""), aliases=tuple(schema.get("aliases", ())))
        if node.name:
            self._named[node.name] = node
        if kind == "enum":
            node.names, node.default = tuple(schema["symbols"]), schema.get("default")
            if len(set(node.names)) < len(node.names) or not all(isinstance(name, str) for name in node.names):
                raise BadSchema("the symbols of an enum must be different strings", where[:80])
        elif kind == "fixed":
            node.size = int(schema["size"])
        elif kind in ("array", "map"):
            node.parts = [self.node(schema["items" if kind == "array" else "values"], f"{where}[]")]
        elif kind not in _PRIMITIVES:
            return self.node(kind, where)
        _logical(node, schema)
        return node

    def _record(self, schema: Any, where: str) -> AvroType:
        node = AvroType("record", schema["name"], aliases=tuple(schema.get("aliases", ())))
        node.parts, node.defaults, node.field_aliases, node.comments = [], {}, {}, {}
        self._named[node.name] = node
        self._open.add(node.name)
        _check_name(node.name, where)
        names: list[str] = []
        for field in schema["fields"]:
            name = field["name"]
            if name in names:
                raise BadSchema(f"the field {name[:40]!r} comes twice", where[:80])
            _check_name(name, where)
            names.append(name)
            node.parts.append(self.node(field["type"], f"{where}.{name}" if where else name))
            if "default" in field:
                node.defaults[name] = field["default"]
            if field.get("aliases"):
                node.field_aliases[name] = tuple(field["aliases"])
            if isinstance(field.get("doc"), str):
                node.comments[name] = field["doc"][:500]
        node.names = tuple(names)
        self._open.discard(node.name)
        return node


def _check_name(name: str, where: str) -> None:
    if not all(_NAME.fullmatch(part) for part in name.split(".")):
        raise BadSchema(f"{name[:40]!r} is not a name", where[:80], "use letters, digits and '_', no digit in front")


def _logical(node: AvroType, schema: Any) -> None:
    """Set the logical type; one that does not fit its type is ignored, as the specification asks."""
    logical = schema.get("logicalType")
    if logical == "decimal" and node.kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if isinstance(precision, int) and isinstance(scale, int) and 1 <= precision <= 38 and 0 <= scale <= precision:
            node.logical, node.precision, node.scale = logical, precision, scale
    elif (logical == "date" and node.kind == "int") or (logical in TICKS_US and node.kind == "long"):
        node.logical = logical


def column(node: AvroType) -> tuple[Type, bool]:
    """Return (type of the column, may be NULL) of a type."""
    if node.kind == "union":
        others = [branch for branch in node.parts if branch.kind != "null"]
        if len(others) == 1 and others[0].kind != "union":
            of, _ = column(others[0])
            return of, len(node.parts) > 1
        return JSON, True
    if node.kind == "null" or node.recursive:
        return JSON, node.kind == "null"
    if node.kind == "record":
        return (record(node), False) if node.parts else (JSON, False)
    if node.kind == "array":
        return List(column(node.parts[0])[0]), False
    if node.kind == "map":
        return Map(columns.STRING, column(node.parts[0])[0]), False
    if node.logical == "decimal":
        return Scalar("decimal", node.precision, node.scale), False
    if node.logical:
        return columns.DATE if node.logical == "date" else columns.INSTANT, False
    return _SCALARS[node.kind], False


def record(node: AvroType, root: bool = False) -> RecordType:
    """Return the columns of a record."""
    if root and nesting(node) > MAX_NESTING:
        raise BadSchema(f"fields nest deeper than {MAX_NESTING}")
    found = record_of(
        ((name, *column(part), node.comments.get(name, "")) for name, part in zip(node.names, node.parts, strict=True)),
        root,
    )
    if root:
        check_size(found)
    return found


def nesting(node: AvroType) -> int:
    """Return the nesting of a type, up to recursive records."""
    return _nesting(node, 0)


def _nesting(node: AvroType, depth: int) -> int:
    if (depth and node.recursive) or depth > MAX_NESTING + 1:
        return depth
    return max((_nesting(part, depth + (node.kind != "union")) for part in node.parts), default=depth)
