"""Single pages of a row group, as a Parquet file of their own.

Belongs here: finding the pages of a column, and making a small Parquet file of those that some rows are in, so that
pyarrow, which decodes row groups as a whole, decodes these alone: a quarter or less of a row group for one message.

Pages are found by their headers, one after the other, not by a page index: not each writer has one, and the header has
what is needed. Only columns without nesting are read so.

Source: Parquet format, parquet.thrift; Thrift compact protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

MAGIC = b"PAR1"
_CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "GZIP": 2, "BROTLI": 4, "ZSTD": 6, "LZ4": 7}
_TYPES = {"INT64": 2, "BYTE_ARRAY": 6}
_HEADER_BYTES = 256  # of a page without statistics, read at once
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_INT32, _INT64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12

Read = Callable[[int, int], bytes]
"""Function that returns the bytes of a file from an offset on, as many as are asked for if there are."""


class ColumnPages(NamedTuple):
    """Pages of a column in a row group.

    `firsts` has the row in the group with which each begins, and the number of rows; `offsets` their places in the
    file, and the end of the last. `dictionary` is the place of the dictionary page (0: none), which ends where they
    begin.
    """

    firsts: Any
    offsets: Any
    dictionary: int

    @property
    def cost(self) -> int:
        """Return the bytes of memory, roughly."""
        return 400 + int(self.firsts.nbytes + self.offsets.nbytes)

    def holding(self, rows: Any) -> Any:
        """Return the numbers of the pages that these rows, ascending, are in."""
        return np.unique(np.searchsorted(self.firsts, rows, "right") - 1)


def is_flat(column: Any) -> bool:
    """Return True if pages of a column (pyarrow's metadata of a column in a row group) can be read alone."""
    return column.compression in _CODECS and column.physical_type in _TYPES and "." not in column.path_in_schema


def find_pages(column: Any, read: Read) -> ColumnPages:
    """Find the pages of a column in a row group.

    Raises:
        ValueError: what is there are no pages of that many rows.
    """
    at = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
    end = at + column.total_compressed_size
    firsts, offsets, dictionary = [0], list[int](), 0
    while at < end:
        head, length = _header(at, end, read)
        size, rows = head.get(3), _rows_of(head)
        if not isinstance(size, int) or size < 0 or not isinstance(rows, int) or rows < 0:
            raise ValueError(f"no page of rows begins at {at}")
        if head[1] == _DICTIONARY:
            dictionary = at
        else:
            offsets.append(at)
            firsts.append(firsts[-1] + rows)
        at += length + size
    if at != end or firsts[-1] != column.num_values:
        raise ValueError(f"the pages of {column.path_in_schema} have {firsts[-1]} rows instead of {column.num_values}")
    return ColumnPages(np.array(firsts, np.int64), np.array([*offsets, end], np.int64), dictionary)


def _rows_of(head: dict[int, Any]) -> object:
    """Return the number of rows of the page with this header; 0 for a dictionary, None for what is no page of rows."""
    kind = head.get(1)
    if kind == _DICTIONARY:
        return 0
    details = head.get({_DATA: 5, _DATA_V2: 8}.get(kind, -1)) if isinstance(kind, int) else None
    return details.get(1) if isinstance(details, dict) else None


def small_file(columns: Sequence[tuple[Any, ColumnPages, bool]], numbers: Iterable[int], read: Read) -> bytes:
    """Return a Parquet file of some pages.

    Args:
        columns: metadata of each column in the row group, its pages, and True if it may lack values. Their pages begin
            at the same rows.
        numbers: of the pages, ascending.
    """
    numbers = list(numbers)
    parts, at = [MAGIC], len(MAGIC)
    rows = int(sum(columns[0][1].firsts[number + 1] - columns[0][1].firsts[number] for number in numbers))
    chunks, elements = [], [_struct({4: b"rows", 5: len(columns)})]
    for column, pages, is_optional in columns:
        begin, spans = at, []
        if pages.dictionary:
            spans.append((pages.dictionary, int(pages.offsets[0])))
        spans += [(int(pages.offsets[number]), int(pages.offsets[number + 1])) for number in numbers]
        for start, stop in spans:
            parts.append(read(start, stop - start))
            at += stop - start
        kind, name = _TYPES[column.physical_type], column.path_in_schema.encode()
        element: dict[int, Any] = {1: kind, 3: int(is_optional), 4: name}
        elements.append(_struct(element | ({6: 0} if name == b"subject" else {})))
        first = begin + (spans[0][1] - spans[0][0] if pages.dictionary else 0)
        sizes = {5: _Long(rows), 6: _Long(at - begin), 7: _Long(at - begin), 9: _Long(first)}
        described = {1: kind, 2: [_number(0)], 3: [_text(name)], 4: _CODECS[column.compression], **sizes}
        if pages.dictionary:
            described[11] = _Long(begin)
        chunks.append(_struct({2: _Long(begin), 3: _Nested(_struct(described))}))
    group = _struct({1: _Structs(chunks), 2: _Long(at), 3: _Long(rows)})
    footer = _struct({1: 1, 2: _Structs(elements), 3: _Long(rows), 4: _Structs([group])})
    return b"".join([*parts, footer, len(footer).to_bytes(4, "little"), MAGIC])


# ---------------------------------------------------------------------- Thrift
class _Long(int):
    """A number of 64 bits."""


class _Nested(bytes):
    """An encoded struct."""


class _Structs(list[bytes]):
    """A list of encoded structs."""


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _number(number: int) -> bytes:
    return _varint(number << 1)


def _text(text: bytes) -> bytes:
    return _varint(len(text)) + text


def _struct(fields: dict[int, Any]) -> bytes:
    """Encode a struct of ascending fields, none of which is negative: numbers of 32 bits, texts, and lists."""
    found, last = [], 0
    for field, value in fields.items():
        if isinstance(value, _Long):
            kind, encoded = _INT64, _number(value)
        elif isinstance(value, int):
            kind, encoded = _INT32, _number(value)
        elif isinstance(value, _Nested):
            kind, encoded = _STRUCT, bytes(value)
        elif isinstance(value, bytes):
            kind, encoded = _BINARY, _text(value)
        else:  # of numbers in field 2 of a column, of texts in field 3
            item = _STRUCT if isinstance(value, _Structs) else _INT32 if field == 2 else _BINARY
            count = len(value)
            head = bytes([count << 4 | item]) if count < 15 else bytes([0xF0 | item]) + _varint(count)
            kind, encoded = _LIST, head + b"".join(value)
        found += [bytes([(field - last) << 4 | kind]), encoded]
        last = field
    return b"".join([*found, b"\0"])


def _header(at: int, end: int, read: Read) -> tuple[dict[int, Any], int]:
    """Return the fields of the page header at a place, and its length."""
    most = _HEADER_BYTES
    while True:
        content = read(at, min(most, end - at))
        try:
            return _fields(content, 0)
        except IndexError:
            if len(content) < most or most >= end - at:
                raise ValueError(f"the page header at {at} is cut short") from None
            most *= 16


def _fields(content: bytes, at: int) -> tuple[dict[int, Any], int]:
    """Decode a struct; return its fields and the place behind it. Raise IndexError if it is cut short."""
    found: dict[int, Any] = {}
    field = 0
    while head := content[at]:
        at += 1
        kind = head & 15
        if head >> 4:
            field += head >> 4
        else:
            field, at = _signed(content, at)
        if kind in (1, 2):
            found[field] = kind == 1
        elif kind == 3:
            at += 1
        elif kind in (4, _INT32, _INT64):
            found[field], at = _signed(content, at)
        elif kind == 7:
            at += 8
        elif kind == _BINARY:
            length, at = _unsigned(content, at)
            at += length
        elif kind == _STRUCT:
            found[field], at = _fields(content, at)
        else:
            raise ValueError(f"a field of kind {kind}")
    return found, at + 1


def _unsigned(content: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = content[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7


def _signed(content: bytes, at: int) -> tuple[int, int]:
    number, at = _unsigned(content, at)
    return number >> 1 ^ -(number & 1), at
