"""JSON payloads back from columns, byte for byte.

Belongs here: the choice of a skeleton for each row of a batch, and the columns' values as texts, by column. Each row is
tested when its skeleton is chosen; a row that no skeleton gives back keeps its payload.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestream.schemas.columns import RecordType
from lakestream_schemas.json_schema.skeleton import (
    Literal,
    Object,
    Part,
    Repeated,
    ScalarPlace,
    Writer,
    number,
    quote,
    read,
)

MAX_SKELETONS = 64
"""Maximum number of different skeletons of a batch; rows that need more keep their payloads."""
MAX_TRIALS = 4
"""Maximum number of times that a batch is spelled as a whole in search of skeletons, on average over its rows."""
MAX_STRANGE = 64
"""Maximum number of rows of a batch without a skeleton of which one is sought by itself."""
_REGEX = {"s": r'["\\\x00-\x1f]', "a": r'["\\\x00-\x1f]|[^\x00-\x7f]', "h": '["\\\\\\x00-\\x1f<>&\u2028\u2029]'}


def skeletons(record: RecordType, columns: pa.RecordBatch, payloads: pa.BinaryArray) -> pa.DictionaryArray:
    """Return the skeleton of each row, NULL if its payload has to be kept.

    Args:
        record: the schema's columns.
        columns: the decoded rows.
        payloads: their payloads; rows with NULL have no skeleton.
    """
    writer = Writer(record)
    found: list[str] = []
    chosen = np.full(len(payloads), -1, np.int32)
    rest = np.flatnonzero(pc.is_valid(payloads).to_numpy(zero_copy_only=False))
    known = _known(columns)
    budget = MAX_TRIALS * len(payloads) + MAX_SKELETONS
    strange = 0
    while len(rest) and budget > 0 and len(found) < MAX_SKELETONS and strange < MAX_STRANGE:
        skeleton = writer.skeleton(payloads[int(rest[0])].as_py())
        if skeleton is None:
            strange += 1
            rest = rest[1:]
            continue
        style, numbers, parts = read(skeleton, record)
        names = {part[0] for part in parts.parts if isinstance(part, tuple)}
        others = [at for at in range(len(known)) if at not in names]
        # Rows with a value that the skeleton lacks cannot be its.
        candidates = rest[~np.logical_or.reduce([known[at][rest] for at in others])] if others else rest
        budget -= len(candidates)
        part = candidates if len(candidates) < len(payloads) else None
        wanted = payloads if part is None else payloads.take(pa.array(candidates))
        rows = columns if part is None else columns.take(pa.array(candidates))
        text = _Speller(style, numbers).text(parts, list(rows.columns), len(rows))
        same = pc.fill_null(pc.equal(text.cast(pa.binary()), wanted.cast(pa.binary())), False)
        matches = candidates[same.to_numpy(zero_copy_only=False)]
        if not len(matches) or matches[0] != rest[0]:
            strange += 1
            rest = rest[1:]
        if len(matches):
            chosen[matches] = len(found)
            found.append(skeleton)
            rest = rest[chosen[rest] < 0]
    return pa.DictionaryArray.from_arrays(pa.array(chosen, mask=chosen < 0), pa.array(found, pa.string()))


def _known(columns: pa.RecordBatch) -> list[Any]:
    return [pc.is_valid(column).to_numpy(zero_copy_only=False) for column in columns.columns]


def spell(record: RecordType, columns: pa.RecordBatch, formats: pa.Array) -> pa.BinaryArray:
    """Return the payloads of rows by their skeletons, NULL where there is none.

    Raises:
        ValueError: a text is no skeleton of this schema.
    """
    if not pa.types.is_dictionary(formats.type):
        formats = formats.dictionary_encode()
    indices = pc.fill_null(formats.indices, -1).to_numpy(zero_copy_only=False)
    pieces, order = [], []
    for at, skeleton in enumerate(formats.dictionary.to_pylist()):
        rows = np.flatnonzero(indices == at)
        if len(rows) and skeleton is not None:
            style, numbers, parts = read(skeleton, record)
            batch = columns if len(rows) == len(columns) else columns.take(pa.array(rows))
            pieces.append(_Speller(style, numbers).text(parts, list(batch.columns), len(batch)).cast(pa.binary()))
            order.append(rows)
    if not pieces:
        return pa.nulls(len(columns), pa.binary())
    if len(pieces) == 1 and len(order[0]) == len(columns):
        return pieces[0]
    places = np.full(len(columns), -1, np.int64)
    places[np.concatenate(order)] = np.arange(sum(map(len, order)))
    return pa.concat_arrays(pieces).take(pa.array(places, mask=places < 0))


class _Speller:
    """Texts of values in one style."""

    def __init__(self, strings: str, numbers: str) -> None:
        self._strings, self._numbers = strings, numbers

    def text(self, parts: Object, columns: list[pa.Array], rows: int) -> pa.StringArray:
        """Return the text of each row of a record; NULL where a value is missing that has to be there."""
        pieces: list[Any] = []
        for part in parts.parts:
            if isinstance(part, str):
                pieces.append(part)
            else:
                pieces += self._pieces(part[1], columns[part[0]])
        return _joined(pieces, rows)

    def _pieces(self, part: Part, values: pa.Array) -> list[Any]:
        """Return texts, and arrays of texts, that follow each other."""
        if isinstance(part, Literal):
            return [part.text]
        if isinstance(part, ScalarPlace) and part.type.kind == "string" and not values.null_count:
            return ['"', self._quoted(values), '"']
        return [self._array(part, values)]

    def _array(self, part: Part, values: pa.Array) -> pa.StringArray:
        """Return the text of each value; that of NULL is null."""
        if isinstance(part, Literal):
            return pa.repeat(pa.scalar(part.text), len(values))
        if isinstance(part, ScalarPlace):
            text = self._scalar(part, values)
        elif isinstance(part, Object):
            text = self.text(part, values.flatten() if values.type.num_fields else [], len(values))
            if values.null_count:
                text = pc.if_else(pc.is_valid(values), text, "null")
            return text
        else:
            text = self._repeated(part, values)
        return pc.fill_null(text, "null") if values.null_count else text

    def _repeated(self, part: Repeated, values: pa.Array) -> pa.StringArray:
        offsets = values.offsets
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        offsets = pc.subtract(offsets, first)
        colon, inner = part.element
        assert isinstance(colon, str)
        assert not isinstance(inner, str)
        if part.is_map:
            names = self._quoted(values.keys.slice(first, last - first))
            items = self._array(inner, values.items.slice(first, last - first))
            elements = pc.binary_join_element_wise('"', names, '"' + colon, items, "")
        else:
            elements = self._array(inner, values.values.slice(first, last - first))
        lists = pa.ListArray.from_arrays(offsets, elements)
        joined = pc.binary_join(lists, part.separator)
        empty = part.lead[0] + part.tail[-1]
        text = pc.binary_join_element_wise(part.lead, joined, part.tail, "")
        if part.lead != empty[0] or part.tail != empty[1]:
            text = pc.if_else(pc.equal(pc.list_value_length(lists), 0), empty, text)
        return pc.if_else(pc.is_valid(values), text, None) if values.null_count else text

    def _quoted(self, values: pa.Array) -> pa.StringArray:
        """Return strings with the escapes of the style, without quotes."""
        strange = pc.match_substring_regex(values, _REGEX[self._strings])
        if not pc.any(strange).as_py():
            return values
        strange = pc.fill_null(strange, False)
        texts = [quote(value, self._strings) for value in values.filter(strange).to_pylist()]
        return pc.replace_with_mask(values, strange, pa.array(texts, pa.string()))

    def _scalar(self, part: ScalarPlace, values: pa.Array) -> pa.StringArray:
        kind = part.type.kind
        if kind == "string":
            return pc.binary_join_element_wise('"', self._quoted(values), '"', "")
        if kind == "json":
            return values
        if kind == "number":
            # Python's spelling is the shortest that gives the number back, and stays the same in all versions.
            texts = [None if value is None else number(value, self._numbers) for value in values.to_pylist()]
            return pa.array(texts, pa.string())
        if kind == "boolean":
            return pc.if_else(values, "true", "false")
        if kind == "date":
            return pc.binary_join_element_wise('"', values.cast(pa.string()), '"', "")
        if kind == "instant":
            return _instants(values, part.digits, part.zone)
        text = values.cast(pa.string())
        return pc.binary_join_element_wise('"', text, '"', "") if part.zone else text


def _instants(values: pa.Array, digits: int, zone: str) -> pa.StringArray:
    text = values.cast(pa.timestamp("us")).cast(pa.string())
    text = pc.utf8_slice_codeunits(text, 0, 20 + digits if digits else 19)
    text = pc.binary_replace_slice(text.cast(pa.binary()), 10, 11, b"T").cast(pa.string())
    return pc.binary_join_element_wise('"', text, zone + '"', "")


def _joined(pieces: list[Any], rows: int) -> pa.StringArray:
    """Return the pieces of each row as one text."""
    merged: list[Any] = []
    for piece in pieces:
        if isinstance(piece, str) and merged and isinstance(merged[-1], str):
            merged[-1] += piece
        else:
            merged.append(piece)
    if all(isinstance(piece, str) for piece in merged):
        return pa.repeat(pa.scalar("".join(merged)), rows)
    return pc.binary_join_element_wise(*merged, "")
