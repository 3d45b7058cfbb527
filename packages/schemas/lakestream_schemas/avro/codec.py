"""Codec of Avro payloads: one binary value of the schema, without framing.

Belongs here: checking and decoding payloads, one or a batch, and giving them back.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from lakestream.schemas.columns import RecordType
from lakestream.schemas.errors import Unfit
from lakestream_schemas.avro import model
from lakestream_schemas.avro.binary import Readers, writer
from lakestream_schemas.payloads import PayloadCodec

if TYPE_CHECKING:
    import pyarrow as pa

    from lakestream_schemas.plan import ColumnNode

# Errors of writing a misfit's NULLs.
_UNWRITABLE = (TypeError, KeyError, AttributeError, OverflowError, ValueError, struct.error)


class AvroCodec(PayloadCodec):
    """Checks and decodes Avro payloads of one schema."""

    form, format = "avro", "A"
    """The `data_format` of rows that are given back: the encoding has no variants."""

    def __init__(self, text: str) -> None:
        """Read a schema.

        Raises:
            BadSchema: it is invalid or exceeds a limit.
        """
        node = model.parse(text)
        self.record: RecordType = model.record(node, root=True)
        self._node = node
        self._read = Readers().reader(node) if not node.recursive else _columns(node)
        self._write = None if node.recursive else writer(node)

    def value(self, payload: bytes | None) -> Any:
        if payload is None:
            raise Unfit("", "encoding", "there is no payload")
        value, end = self._read(payload, 0, 0)
        if end != len(payload):
            raise Unfit("", "encoding", f"{len(payload) - end} bytes follow the value")
        return value

    def root(self) -> ColumnNode | None:
        from lakestream_schemas.avro.nodes import root_of

        return root_of(self._node)

    def encoded(self, columns: pa.RecordBatch) -> list[bytes | None]:
        from lakestream_schemas.arrow import plain_rows

        write = self._write
        if write is None:
            return [None] * len(columns)
        found: list[bytes | None] = []
        for row in plain_rows(columns):
            out = bytearray()
            try:
                write(out, row)
                found.append(bytes(out))
            except _UNWRITABLE:
                found.append(None)
        return found


def _columns(node: model.AvroType) -> Any:
    """Return the reader of a root that contains itself: its fields are columns, inner ones JSON text."""
    outer = model.AvroType("record", node.name, names=node.names, parts=node.parts)
    return Readers().reader(outer)
