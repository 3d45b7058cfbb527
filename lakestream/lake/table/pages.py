"""Single cells of a row group, decoded from the pages that they are in.

Belongs here: finding the pages of a column, and decoding the cells of few rows from them, without pyarrow: it decodes
row groups as a whole, and to ask it takes longer than to decode a page.

Pages are found by their headers, one after the other, not by a page index: not each writer has one, and the header has
what is needed. Decoded are numbers and texts without a dictionary, and columns that are NULL throughout: those of each
message in our own files. Of everything else `cells` returns None, and scan.py asks pyarrow for the column.

Source: Parquet format, parquet.thrift, and its encodings PLAIN and RLE.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from lakestream import native

_CODECS = {name: pa.Codec(name.lower()) for name in ("SNAPPY", "GZIP", "ZSTD")}
_NUMBERS, _TEXTS = "INT64", "BYTE_ARRAY"
_HEADER_BYTES = 256  # of a page without statistics, read at once
_DICTIONARY = 2
_PLAIN, _RLE = 0, 3

Read = Callable[[int, int], bytes]
"""Function that returns the bytes of a file from an offset on, as many as are asked for if there are."""


class PageHeader(NamedTuple):
    """Header of a page: its own length, the kind of page, sizes of its content, decompressed and in the file, CRC-32,
    number of values, and encodings of these and of their levels of definition and repetition; -1 for what it lacks."""

    length: int
    kind: int
    whole: int
    size: int
    crc: int
    values: int
    encoding: int
    definition: int
    repetition: int


class Page(NamedTuple):
    """A data page: place and size of its content in the file, size when it is decompressed, CRC-32 (-1: it has none),
    and encoding of its values (-1: its form is not decoded here)."""

    at: int
    size: int
    whole: int
    crc: int
    encoding: int


class ColumnPages(NamedTuple):
    """Pages of a column in a row group.

    `firsts` has the row in the group with which each begins, and the number of rows. `kind` is the physical type,
    `codec` the compression; `deepest` and `repeated` are the highest levels of definition and repetition.
    """

    firsts: list[int]
    pages: list[Page]
    kind: str
    codec: str
    deepest: int
    repeated: int

    @property
    def cost(self) -> int:
        """Return the bytes of memory, roughly."""
        return 400 + 300 * len(self.pages)


def find_pages(column: Any, described: Any, rows: int, read: Read) -> ColumnPages:
    """Find the pages of a column in a row group of so many rows, by pyarrow's metadata of both.

    Raises:
        ValueError: what is there are no pages of that many rows.
    """
    at = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
    end = at + column.total_compressed_size
    firsts, pages = [0], list[Page]()
    while at < end:
        head = _header(at, end, read)
        if min(head.size, head.whole, head.values) < 0:
            raise ValueError(f"no page of rows begins at {at}")
        at += head.length
        if head.kind != _DICTIONARY:
            # Of values in lists and of levels in another encoding no cell is decoded here.
            is_known = head.definition == head.repetition == _RLE and column.num_values == rows
            pages.append(Page(at, head.size, head.whole, head.crc, head.encoding if is_known else -1))
            firsts.append(firsts[-1] + head.values)
        at += head.size
    if at != end or firsts[-1] != column.num_values:
        raise ValueError(f"the pages of {column.path_in_schema} have {firsts[-1]} rows instead of {column.num_values}")
    levels = described.max_definition_level, described.max_repetition_level
    return ColumnPages(firsts, pages, column.physical_type, column.compression, *levels)


def cells(column: ColumnPages, rows: Sequence[int], read: Read) -> list[Any] | None:
    """Return the values of some rows, ascending, of a row group; None if they are not decoded here.

    Raises:
        ValueError: a page is damaged.
    """
    found: list[Any] = []
    at = 0
    while at < len(rows):
        number = bisect_right(column.firsts, rows[at]) - 1
        first = column.firsts[number]
        stop = bisect_left(rows, column.firsts[number + 1], at)
        values = _plain(column, number, read)
        if values is None:
            return None
        content, start = values
        places = [row - first for row in rows[at:stop]]
        if start < 0:
            found += [None] * len(places)
        elif column.kind == _NUMBERS:
            found += _numbers(column, number, content, start)[places].tolist()
        else:
            found += native.text_cells(content, start, places)
        at = stop
    return found


def numbers(column: ColumnPages, read: Read) -> Any | None:
    """Return all values of a column of numbers as an array; None if they are not decoded here.

    Raises:
        ValueError: a page is damaged.
    """
    found = []
    for number in range(len(column.pages)) if column.kind == _NUMBERS else ():
        values = _plain(column, number, read)
        if values is None or values[1] < 0:
            return None
        found.append(_numbers(column, number, *values))
    return np.concatenate(found) if found else None


def _numbers(column: ColumnPages, number: int, content: bytes, start: int) -> Any:
    return np.frombuffer(content, "<i8", column.firsts[number + 1] - column.firsts[number], start)


def _plain(column: ColumnPages, number: int, read: Read) -> tuple[bytes, int] | None:
    """Return (content of a page, place of its values; -1 if all are NULL); None if it is not decoded here."""
    page, rows = column.pages[number], column.firsts[number + 1] - column.firsts[number]
    if page.encoding < 0 or (column.codec not in _CODECS and column.codec != "UNCOMPRESSED"):
        return None
    content = read(page.at, page.size)
    if len(content) != page.size or page.crc not in (-1, native.crc32(content)):
        raise ValueError(f"the page at {page.at} has another checksum")
    if column.codec != "UNCOMPRESSED":
        content = _CODECS[column.codec].decompress(content, page.whole, asbytes=True)
    at, level = 0, 0
    for deepest in (column.repeated, column.deepest):
        if not deepest:
            continue
        size = int.from_bytes(content[at : at + 4], "little")
        level = _only(content[at + 4 : at + 4 + size], rows)
        at += 4 + size
        if level < 0:
            return None
    if level == 0 and column.deepest:
        return content, -1
    # A value of a list is no cell.
    is_flat = level == column.deepest and not column.repeated and column.kind in (_NUMBERS, _TEXTS)
    return (content, at) if is_flat and page.encoding == _PLAIN else None


def _only(levels: bytes, count: int) -> int:
    """Return the level that all of `count` values have, of levels that are one run; else -1."""
    head = at = 0
    while at < len(levels):
        head |= (levels[at] & 0x7F) << 7 * at
        at += 1
        if levels[at - 1] < 0x80:
            break
    return levels[at] if at < len(levels) and head & 1 == 0 and head >> 1 >= count else -1


def _header(at: int, end: int, read: Read) -> PageHeader:
    """Return the page header at a place. Raise ValueError."""
    most = _HEADER_BYTES
    while True:
        content = read(at, min(most, end - at))
        try:
            return PageHeader(*native.page_header(content))
        except IndexError:
            if len(content) < most or most >= end - at:
                raise ValueError(f"the page header at {at} is cut short") from None
            most *= 16
