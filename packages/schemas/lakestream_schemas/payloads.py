"""Payloads of one version of a schema.

Belongs here: what a codec does with them, one or a batch, whatever the format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lakestream.schemas.columns import RecordType
from lakestream.schemas.errors import Misfit, RowMisfit, Unfit

if TYPE_CHECKING:
    import pyarrow as pa

    from lakestream.schemas.codec import Decoded
    from lakestream_schemas.plan import ColumnNode, ColumnPlan


class PayloadCodec:
    """Checks, decodes and gives back payloads. Safe for use by several threads.

    Attributes:
        record: the columns.
        form: name of the format: json, avro or protobuf.
        format: the `data_format` of rows that are given back, for formats whose encoding has no variants.
        unpack: converts the value of a record to a tuple of its fields; None: it is one.
        scalars: conversions of values that Arrow does not take as they are, by the kind of their type.
        deepest: maximum nesting of a payload's objects and arrays.
        plan_decides: a row that a plan takes fits; otherwise `doubted` has to look at it too.
    """

    record: RecordType
    form: str
    format = ""
    deepest = 100
    plan_decides = True
    unpack: Callable[[Any], tuple[Any, ...]] | None = None
    scalars: Mapping[str, Callable[[Any], Any]] = {}

    def root(self) -> ColumnNode | None:
        """Return the root of the plan by which batches are read; None if only single messages can be decoded."""
        return None

    @cached_property
    def _plan(self) -> ColumnPlan | None:
        from lakestream_schemas.plan import ColumnPlan

        root = self.root()
        return None if root is None else ColumnPlan(self.form, root, self.deepest)

    def doubted(self, payloads: pa.BinaryArray, odd: list[int]) -> list[int]:
        """Return the rows of a batch that have to be decoded one by one: `odd`, and those that a plan cannot judge."""
        return odd

    def fits(self, payload: bytes) -> Misfit | None:
        """Return the reason why a payload does not fit, None if it does."""
        if self.plan_decides and self._plan is not None and self._plan.takes(payload):
            return None
        try:
            self.value(payload)
        except Unfit as unfit:
            return unfit.misfit
        return None

    def value(self, payload: bytes | None) -> Any:
        """Return a payload as a tuple of the record's fields, or what `unpack` makes one of.

        Raises:
            Unfit: it does not fit.
        """
        raise NotImplementedError

    def decode(self, payloads: Sequence[bytes | None] | pa.Array) -> Decoded:
        """Decode a batch to columns. NULL payloads are misfits."""
        import pyarrow as pa

        from lakestream.schemas.codec import Decoded
        from lakestream_schemas.arrow import batch_of, binary, merged

        payloads = binary(payloads)
        columns, odd = None, list(range(len(payloads)))
        if self._plan is not None and len(payloads) and not payloads.null_count:
            columns, odd = self._plan.read(payloads)
        if columns is not None:
            odd = self.doubted(payloads, odd)
            if not odd:
                return Decoded(columns, [])
        value = self.value
        rows: list[Any] = []
        misfits: list[RowMisfit] = []
        chosen = payloads if columns is None else payloads.take(pa.array(odd))
        for row, payload in zip(odd, chosen.to_pylist(), strict=True):
            try:
                rows.append(value(payload))
            except Unfit as unfit:
                misfits.append(RowMisfit(row, unfit.misfit))
                rows.append(None)
        decoded = batch_of(self.record, rows, self.unpack, misfits, self.scalars)
        return decoded if columns is None else Decoded(merged(columns, odd, decoded.columns), misfits)

    def formats(self, columns: pa.RecordBatch, payloads: Sequence[bytes | None] | pa.Array) -> pa.DictionaryArray:
        """Return the `data_format` of each row, NULL where `encode` would not give its payload back exactly.

        Args:
            columns: the decoded batch.
            payloads: its payloads; NULL for rows that do not fit.
        """
        from lakestream_schemas.arrow import same_formats

        return same_formats(self.encoded(columns), payloads, self.format)

    def encode(self, columns: pa.RecordBatch, formats: pa.Array) -> pa.BinaryArray:
        """Return the payloads of rows by their `data_format`, NULL where that is NULL.

        Raises:
            ValueError: a text is no format of this schema.
        """
        from lakestream_schemas.arrow import where_format

        return where_format(self.encoded(columns), formats, self.format)

    def encoded(self, columns: pa.RecordBatch) -> list[bytes | None]:
        """Return the payload of each row, None where it cannot be given back."""
        raise NotImplementedError
