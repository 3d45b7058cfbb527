"""Plans by which payloads are read straight into columns.

Belongs here: the nodes of a plan, which every format makes of its types, and a batch read by one. The reader is native
(`lakestream.native.ColumnReader`): it takes the rows that it certainly knows, and leaves the odd ones to the decoder
of single messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.native import ColumnReader
from lakestream.schemas import scalars
from lakestream.schemas.columns import List, Map, RecordType, Scalar, Type, arrow_type

if TYPE_CHECKING:
    import pyarrow as pa

_KINDS = ("boolean", "integer", "number", "decimal", "string", "bytes", "date", "instant", "json")
_RECORD, _LIST, _MAP = len(_KINDS), len(_KINDS) + 1, len(_KINDS) + 2


class ColumnNode(msgspec.Struct, kw_only=True):
    """A column of a plan, at any depth.

    Attributes: `nullable`: null is allowed; `required`: the field must be there; `closed`: a record without other
    fields, or a decimal that is an integer in JSON; `low`, `high`: bounds of an integer, or of the length of a string
    or list; `least`, `most`: bounds of a number, `above`, `below`: exclusive; `name`: of the field; `symbols`: the only
    values of a string; `first`, `count`: place of the children in the plan. Avro: `wire`: bytes of a number or of a
    fixed, -1 if their length is in front; µs of a tick, ticks of a µs if negative; `number`: branch that is null.
    Protobuf: `wire`: type of the field, `number`: its number, `group`: its `oneof`, from 1 on, `wrapped`: type inside
    of a wrapper; `numbers`: of the symbols.
    """

    type: Type
    children: tuple[ColumnNode, ...] = ()
    nullable: bool = False
    required: bool = False
    closed: bool = False
    low: int = scalars.INT64_MIN
    high: int = scalars.INT64_MAX
    least: float = float("-inf")
    most: float = float("inf")
    above: bool = False
    below: bool = False
    name: bytes = b""
    symbols: tuple[bytes, ...] = ()
    wire: int = -1
    number: int = 0
    numbers: tuple[int, ...] = ()
    group: int = 0
    wrapped: int = 0
    first: int = 0

    @property
    def count(self) -> int:
        """Return the number of children."""
        return len(self.children)

    @property
    def kind(self) -> int:
        """Return the number of the kind, as native code has it."""
        of = self.type
        if isinstance(of, Scalar):
            return _KINDS.index(of.kind)
        return _RECORD if isinstance(of, RecordType) else _LIST if isinstance(of, List) else _MAP

    @property
    def precision(self) -> int:
        """Return the digits of a decimal."""
        return self.type.precision if isinstance(self.type, Scalar) else 0

    @property
    def scale(self) -> int:
        """Return the digits of a decimal behind its point."""
        return self.type.scale if isinstance(self.type, Scalar) else 0


class ColumnPlan:
    """A compiled plan.

    Args:
        form: format of the payloads.
        root: of the record. Its nodes belong to this plan.
        deepest: maximum nesting of objects and arrays.
    """

    def __init__(self, form: str, root: ColumnNode, deepest: int) -> None:
        self._nodes = [root]
        for node in self._nodes:
            node.first = len(self._nodes)
            self._nodes += node.children
        self._reader = ColumnReader(form, self._nodes, deepest)
        self.takes = self._reader.takes
        """Return True if a payload certainly fits the plan."""

    @cached_property
    def _types(self) -> list[pa.DataType]:
        return [arrow_type(node.type) for node in self._nodes]

    def read(self, payloads: pa.BinaryArray) -> tuple[pa.RecordBatch | None, list[int]]:
        """Return (the columns, the odd rows, ascending, which have NULLs there); no columns if all rows are odd.

        Args:
            payloads: at least one, without NULLs.
        """
        import pyarrow as pa

        _, ends, data = payloads.buffers()
        ends = memoryview(ends).cast("B").cast("i")[payloads.offset : payloads.offset + len(payloads) + 1]
        columns, odd = self._reader.read(memoryview(data or b"").cast("B"), ends)
        if columns is None or len(odd) == len(payloads):
            return None, odd
        arrays = [self._array(1 + at, columns) for at in range(self._nodes[0].count)]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(list(self._types[0]))), odd

    def _array(self, at: int, columns: Sequence[Any]) -> pa.Array:
        """Return the array of a node."""
        import pyarrow as pa

        node, of = self._nodes[at], self._types[at]
        rows, nulls, valid, values, text = columns[at]
        buffers = [None if valid is None else pa.py_buffer(valid)]
        if not isinstance(node.type, RecordType):
            buffers.append(pa.py_buffer(values))
        if isinstance(node.type, Scalar) and node.type.kind in ("string", "bytes", "json"):
            buffers.append(pa.py_buffer(text))
        children = [self._array(child, columns) for child in range(node.first, node.first + node.count)]
        if isinstance(node.type, Map):
            children = [pa.StructArray.from_arrays(children, fields=[of.key_field, of.item_field])]
        return pa.Array.from_buffers(of, rows, buffers, nulls, children=children)
