"""Plan of a JSON Schema, for reading batches straight into columns.

Belongs here: the nodes of shapes. Bounds are those of the types by which msgspec checks, so that both readers allow the
same values.
"""

from __future__ import annotations

from typing import Any

import msgspec

from lakestream.schemas import scalars
from lakestream.schemas.columns import List, Map, RecordType, Scalar
from lakestream_schemas.json_schema.shapes import Shape
from lakestream_schemas.plan import ColumnNode


def root_of(shape: Shape) -> ColumnNode | None:
    """Return the node of a payload; None if a value has a pattern, which only jsonschema-rs checks."""
    node = _node(shape, msgspec.inspect.type_info(shape.python))
    return node if node is not None and node.children else None


def _node(shape: Shape, info: Any) -> ColumnNode | None:
    of, nullable = shape.type, False
    if isinstance(info, msgspec.inspect.UnionType):
        (info,) = (each for each in info.types if not isinstance(each, msgspec.inspect.NoneType))
        nullable = True
    if isinstance(of, Scalar):
        if of.kind == "string" and shape.check is not None:
            return None
        return _scalar(of, nullable, shape, info)
    if isinstance(of, RecordType):
        children = []
        for field, inner, part in zip(of.fields, shape.fields, info.fields, strict=True):
            child = _node(inner, part.type)
            if child is None:
                return None
            child.name, child.required = field.name.encode(), part.required
            children.append(child)
        return ColumnNode(type=of, children=tuple(children), nullable=nullable, closed=info.forbid_unknown_fields)
    items = _node(shape.fields[0], info.item_type if isinstance(of, List) else info.value_type)
    if items is None:
        return None
    if isinstance(of, Map):
        return ColumnNode(type=of, children=(ColumnNode(type=of.key), items), nullable=nullable)
    return ColumnNode(type=of, children=(items,), nullable=nullable, **_lengths(info))


def _scalar(of: Scalar, nullable: bool, shape: Shape, info: Any) -> ColumnNode:
    node = ColumnNode(type=of, nullable=nullable or of.kind == "json", closed=shape.of_numbers)
    if isinstance(info, msgspec.inspect.LiteralType):
        node.symbols = tuple(str(each).encode() for each in info.values if each is not None)
        node.nullable |= None in info.values
    elif of.kind == "string":
        node = msgspec.structs.replace(node, **_lengths(info))
    elif of.kind == "integer":
        node.low, node.high = info.ge, info.le
    elif of.kind == "number":
        node.above, node.below = info.gt is not None, info.lt is not None
        low, high = info.gt if node.above else info.ge, info.lt if node.below else info.le
        node.least, node.most = node.least if low is None else low, node.most if high is None else high
    return node


def _lengths(info: Any) -> dict[str, Any]:
    """Return bounds of a length."""
    found = {"low": info.min_length, "high": info.max_length}
    return {name: min(bound, scalars.INT64_MAX) for name, bound in found.items() if bound is not None}
