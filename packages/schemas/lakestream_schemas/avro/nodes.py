"""Plan of an Avro schema, for reading batches straight into columns.

Belongs here: the nodes of types.
"""

from __future__ import annotations

from typing import Any

from lakestream.schemas import scalars
from lakestream.schemas.columns import JSON, STRING
from lakestream_schemas.avro.model import TICKS_US, AvroType, column, record
from lakestream_schemas.plan import ColumnNode

_TICKS = {name: int(tick) if tick >= 1 else -round(1 / tick) for name, tick in TICKS_US.items()}
_SIZES = {"float": 4, "double": 8}


def root_of(node: AvroType) -> ColumnNode | None:
    """Return the node of a payload; None if a value is JSON text, or a union of one type, which nobody writes."""
    found = _node(node)
    if found is not None:
        found.type = record(node, root=True)
    return found


def _node(node: AvroType) -> ColumnNode | None:
    of, _ = column(node)
    if of == JSON:
        return None
    if node.kind == "union":
        found = None
        if len(node.parts) == 2:
            null = next(at for at, branch in enumerate(node.parts) if branch.kind == "null")
            found = _node(node.parts[1 - null])
        if found is not None:
            found.nullable, found.number = True, null
        return found
    children = [_node(part) for part in node.parts]
    if node.kind == "map":
        children.insert(0, ColumnNode(type=STRING))
    found = ColumnNode(type=of, children=tuple(each for each in children if each is not None), **_scalar(node))
    return found if found.count == len(children) else None


def _scalar(node: AvroType) -> dict[str, Any]:
    """Return the attributes of a type without parts."""
    if node.logical == "date":
        return {"low": scalars.FIRST_DAY, "high": scalars.LAST_DAY}
    if node.logical in _TICKS:
        return {"low": scalars.FIRST_US, "high": scalars.LAST_US, "wire": _TICKS[node.logical]}
    if node.kind == "enum":
        return {"symbols": tuple(name.encode() for name in node.names)}
    if node.kind == "int":
        return {"low": -(2**31), "high": 2**31 - 1}
    return {"wire": node.size if node.kind == "fixed" else _SIZES.get(node.kind, -1)}
