"""Arrow columns from decoded rows.

Belongs here: the vectorised step from rows of Python values to columns, which all formats share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np
import pyarrow as pa

from lakestream.schemas.codec import Decoded
from lakestream.schemas.columns import List, Map, RecordType, Scalar, Type, arrow_schema, arrow_type
from lakestream.schemas.errors import RowMisfit

Unpack = Callable[[Any], tuple[Any, ...]]


Scalars = Mapping[str, Callable[[Any], Any]]
"""Conversions of values that Arrow does not take as they are, by the kind of their type."""


def batch_of(
    record: RecordType, rows: Sequence[Any], unpack: Unpack | None, misfits: list[RowMisfit], scalars: Scalars
) -> Decoded:
    """Return a batch of decoded rows.

    Args:
        record: the root.
        rows: a value for each row, None for a misfit.
        unpack: converts a record's value to a tuple of its fields; None: it is one.
        misfits: reasons of the rows that are None.
        scalars: conversions of values.
    """
    schema = arrow_schema(record)
    arrays = [
        _array(field.type, values, unpack, scalars)
        for field, values in zip(record.fields, _fields(record, rows, unpack), strict=True)
    ]
    if not arrays:
        return Decoded(pa.record_batch(pa.StructArray.from_buffers(pa.struct([]), len(rows), [None])), misfits)
    return Decoded(pa.RecordBatch.from_arrays(arrays, schema=schema), misfits)


def merged(columns: pa.RecordBatch, odd: Sequence[int], rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return columns with the odd rows in their places."""
    at = np.arange(len(columns))
    at[list(odd)] = np.arange(len(columns), len(columns) + len(odd))
    places = pa.array(at)
    arrays = [pa.concat_arrays(both).take(places) for both in zip(columns.columns, rows.columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=columns.schema)


def _fields(record: RecordType, rows: Sequence[Any], unpack: Unpack | None) -> Sequence[Sequence[Any]]:
    """Return the values of each field of a record."""
    if not rows or not record.fields:
        return [() for _ in record.fields]
    try:
        return list(zip(*(map(unpack, rows) if unpack else rows), strict=True))
    except TypeError:  # one of the rows is None
        none = (None,) * len(record.fields)
        step = unpack or (lambda row: row)
        return list(zip(*(none if row is None else step(row) for row in rows), strict=True))


def _array(of: Type, values: Sequence[Any], unpack: Unpack | None, scalars: Scalars) -> pa.Array:
    arrow = arrow_type(of)
    if isinstance(of, Scalar):
        step = scalars.get(of.kind)
        return pa.array(values if step is None else [step(value) for value in values], arrow)
    if isinstance(of, List) and isinstance(of.of, Scalar) and of.of.kind not in scalars:
        return pa.array(values, arrow)
    if isinstance(of, RecordType):
        children = [
            _array(field.type, part, unpack, scalars)
            for field, part in zip(of.fields, _fields(of, values, unpack), strict=True)
        ]
        mask = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(children, fields=list(arrow), mask=mask)
    lengths = [0 if value is None else len(value) for value in values]
    starts = np.fromiter(chain((0,), accumulate(lengths)), np.int32, len(values) + 1)
    # A NULL offset marks a NULL list.
    nulls = np.fromiter((value is None for value in values), np.bool_, len(values))
    offsets = pa.array(starts, pa.int32(), mask=np.append(nulls, False)) if nulls.any() else pa.array(starts)
    if isinstance(of, Map):
        keys = pa.array([key for value in values if value is not None for key in value], arrow.key_type)
        items = [part for value in values if value is not None for part in value.values()]
        return pa.MapArray.from_arrays(offsets, keys, _array(of.of, items, unpack, scalars)).cast(arrow)
    parts = list(chain.from_iterable(value for value in values if value is not None))
    return pa.ListArray.from_arrays(offsets, _array(of.of, parts, unpack, scalars)).cast(arrow)


def binary(payloads: Any) -> pa.BinaryArray:
    """Return payloads (a list, or an array of Arrow) as one array, with offsets of 32 bits."""
    if isinstance(payloads, pa.ChunkedArray):
        payloads = payloads.combine_chunks()
    return payloads.cast(pa.binary()) if isinstance(payloads, pa.Array) else pa.array(payloads, pa.binary())


def listed(payloads: Any) -> list[bytes | None]:
    """Return payloads (a list, or an array of Arrow) as a list."""
    found: list[bytes | None] = payloads if isinstance(payloads, list) else payloads.to_pylist()
    return found


def plain_rows(columns: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Return rows as tuples; instants are µs, dates are days."""
    if not columns.num_columns:
        return [()] * len(columns)
    return list(zip(*(column.cast(_plain(column.type)).to_pylist() for column in columns.columns), strict=True))


def _plain(of: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(of):
        return pa.int64()
    if pa.types.is_date(of):
        return pa.int32()
    if pa.types.is_struct(of):
        return pa.struct([(field.name, _plain(field.type)) for field in of])
    if pa.types.is_map(of):
        return pa.map_(_plain(of.key_type), _plain(of.item_type))
    return pa.list_(_plain(of.value_type)) if pa.types.is_list(of) else of


def same_formats(encoded: list[bytes | None], payloads: Any, name: str) -> pa.DictionaryArray:
    """Return the format `name` for each row whose payload is equal to what was encoded, else NULL."""
    same = np.fromiter(
        (one is not None and one == other for one, other in zip(encoded, listed(payloads), strict=True)),
        np.bool_,
        len(encoded),
    )
    indices = pa.array(np.zeros(len(encoded), np.int32), mask=~same)
    return pa.DictionaryArray.from_arrays(indices, pa.array([name], pa.string()))


def where_format(encoded: list[bytes | None], formats: pa.Array, name: str) -> pa.BinaryArray:
    """Return what was encoded for the rows of this format, NULL for those without.

    Raises:
        ValueError: there is another format.
    """
    kept = formats.to_pylist()
    for other in set(kept) - {name, None}:
        raise ValueError(f"{other[:80]!r} is not a format of this schema")
    return pa.array(
        [None if row is None else part for row, part in zip(kept, encoded, strict=True)],
        pa.binary(),
    )
