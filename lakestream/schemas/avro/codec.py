"""Codec of Avro payloads: one binary value of the schema, without framing.

Belongs here: checking and decoding payloads, one or a batch, and giving them back.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lakestream.schemas.avro import model
from lakestream.schemas.avro.binary import Readers, writer
from lakestream.schemas.columns import RecordType
from lakestream.schemas.errors import Misfit, RowMisfit, Unfit

if TYPE_CHECKING:
    import pyarrow as pa

    from lakestream.schemas.arrow import Decoded

# Errors of writing a misfit's NULLs.
_UNWRITABLE = (TypeError, KeyError, AttributeError, OverflowError, ValueError, struct.error)

FORMAT = "A"
"""The `data_format` of rows that are given back: the encoding has no variants."""


class AvroCodec:
    """Checks and decodes Avro payloads of one schema. Safe for use by several threads."""

    def __init__(self, text: str) -> None:
        """Read a schema.

        Raises:
            BadSchema: it is invalid or exceeds a limit.
        """
        node = model.parse(text)
        self.record: RecordType = model.record(node, root=True)
        self._read = Readers().reader(node) if not node.recursive else _columns(node)
        self._write = None if node.recursive else writer(node)

    def fits(self, payload: bytes) -> Misfit | None:
        """Return the reason why a payload does not fit, None if it does."""
        try:
            self.value(payload)
        except Unfit as unfit:
            return unfit.misfit
        return None

    def value(self, payload: bytes | None) -> Any:
        """Return a payload as a tuple of its fields.

        Raises:
            Unfit: it does not fit.
        """
        if payload is None:
            raise Unfit("", "encoding", "there is no payload")
        value, end = self._read(payload, 0, 0)
        if end != len(payload):
            raise Unfit("", "encoding", f"{len(payload) - end} bytes follow the value")
        return value

    def decode(self, payloads: Sequence[bytes | None] | pa.Array) -> Decoded:
        """Decode a batch to columns. NULL payloads are misfits."""
        from lakestream.schemas.arrow import batch_of, listed

        value = self.value
        rows: list[Any] = []
        misfits: list[RowMisfit] = []
        for payload in listed(payloads):
            try:
                rows.append(value(payload))
            except Unfit as unfit:
                misfits.append(RowMisfit(len(rows), unfit.misfit))
                rows.append(None)
        return batch_of(self.record, rows, None, misfits, {})

    def formats(self, columns: pa.RecordBatch, payloads: Sequence[bytes | None] | pa.Array) -> pa.DictionaryArray:
        """Return the `data_format` of each row, NULL where `encode` would not give its payload back exactly."""
        from lakestream.schemas.arrow import same_formats

        return same_formats(self._encoded(columns), payloads, FORMAT)

    def encode(self, columns: pa.RecordBatch, formats: pa.Array) -> pa.BinaryArray:
        """Return the payloads of rows by their `data_format`, NULL where that is NULL.

        Raises:
            ValueError: a text is no format of this schema.
        """
        from lakestream.schemas.arrow import where_format

        return where_format(self._encoded(columns), formats, FORMAT)

    def _encoded(self, columns: pa.RecordBatch) -> list[bytes | None]:
        from lakestream.schemas.arrow import plain_rows

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
