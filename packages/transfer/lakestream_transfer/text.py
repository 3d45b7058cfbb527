"""Text sources: CSV and JSON lines, read so that every value keeps its spelling.

Belongs here: files as rows, the separator of a CSV file, and binary values within text. A row is a list of fields
(CSV) or a line (JSON lines); text_mapping.py makes messages of them.

A text file has no types. A reader that guesses them changes values: `007` becomes 7, `12345678901234567890` a rounded
number, and a late value of another kind ends the import. So nothing is guessed, and a row is read without a look at
others.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import io
import itertools
import json
from collections.abc import Iterator
from typing import Any

import msgspec

from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream_transfer.finding import BadSource, SourceFiles

CHUNK_ROWS = 16_384
CHUNK_BYTES = 4 << 20
"""Size of the rows that are mapped at once; a larger row is alone."""
LINE_LIMIT = 128 << 20
"""Maximum size of a JSON line and of a CSV field: more than the largest message that a server takes, in base64."""
SEPARATORS = ",;\t|"
"""Separators of CSV files that are detected."""
SAMPLE_ROWS = 100
SAMPLE_CHARACTERS = 64 << 10
"""Beginning of a file in which the separator is detected."""

_BOM = b"\xef\xbb\xbf"
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_BASE64 = "base64:"


class Chunk(msgspec.Struct):
    """Some rows of one file. `parts`: values that the names of its directories add to each row (JSON lines)."""

    rows: list[Any]
    parts: dict[str, str]


class TextSource:
    """CSV or JSON lines to read.

    Args:
        separator: of CSV fields; "": detected.

    Raises:
        BadSource: a file cannot be read, or the CSV files have different columns.
    """

    def __init__(self, files: SourceFiles, separator: str = "") -> None:
        self.path, self.kind = files.path, files.kind
        self._files = files
        self.rows: int | None = None
        self._separators: dict[str, str] = {}
        csv.field_size_limit(LINE_LIMIT)
        try:
            self.names = self._json_names() if self.kind == "json" else self._csv_names(separator)
            """Columns of a CSV file; fields of the first JSON lines."""
        except OSError as error:
            raise BadSource(f"{self.path} cannot be read: {error}") from None

    @property
    def identity(self) -> str:
        """Return an id that is the same for the same rows in the same order."""
        return f"{self._files.identity} {self.separator}"

    @property
    def separator(self) -> str:
        """Return the separator of the first CSV file."""
        return next(iter(self._separators.values()), "")

    def numbered(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the fields of each row of CSV with its number from 1; rows without the columns are left out."""
        number = 0
        for chunk in self.batches():
            for row in chunk.rows:
                number += 1
                if isinstance(row, list):
                    yield number, row

    def batches(self, columns: list[str] | None = None) -> Iterator[Chunk]:
        """Yield all rows, in the same order each time; `columns` changes nothing, as fields are found by reading a row.

        Raises:
            BadSource: a file is damaged or gone.
        """
        for file in self._files.names:
            parts = self._files.parts(file)
            rows = self._lines(file) if self.kind == "json" else self._fields(file, parts)
            chunk, size = Chunk([], parts), 0
            try:
                for length, row in rows:
                    chunk.rows.append(row)
                    size += length
                    if size >= CHUNK_BYTES or len(chunk.rows) == CHUNK_ROWS:
                        yield chunk
                        chunk, size = Chunk([], parts), 0
            except OSError as error:
                raise BadSource(f"{file} cannot be read: {error}") from None
            if chunk.rows:
                yield chunk

    # ------------------------------------------------------------------ JSON lines
    def _json_names(self) -> list[str]:
        """Return the fields of the lines at the beginning."""
        found: dict[str, None] = {}
        for line in next(self.batches(), Chunk([], {})).rows:
            found.update(dict.fromkeys(_names_of(line)))
        return [*found, *self._files.parts(self._files.names[0])] if found else []

    def _lines(self, path: str) -> Iterator[tuple[int, bytes]]:
        with open(path, "rb") as file:
            number = 0
            while line := file.readline(LINE_LIMIT + 1):
                number += 1
                if len(line) > LINE_LIMIT:
                    raise BadSource(f"{path}: line {number} has more than {LINE_LIMIT >> 20} MiB; are these lines?")
                if number == 1:
                    line = line.removeprefix(_BOM)
                line = line.removesuffix(b"\n").removesuffix(b"\r")
                if line and not line.isspace():
                    yield len(line), line

    # ------------------------------------------------------------------ CSV
    def _csv_names(self, separator: str) -> list[str]:
        names: list[str] = []
        for file in self._files.names:
            self._separators[file] = separator or _separator(file)
            own = [*self._header(file), *self._files.parts(file)]
            if repeated := [name for name in own if own.count(name) > 1]:
                raise BadSource(f"{file}: two columns are named {repeated[0]!r}")
            names = names or own
            if set(own) != set(names):
                raise BadSource(f"{file} has the columns {', '.join(own)}, and a file before it {', '.join(names)}")
        return names

    def _records(self, path: str) -> Iterator[list[str]]:
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            reader = csv.reader(file, delimiter=self._separators[path], strict=True)
            try:
                yield from (record for record in reader if record)
            except csv.Error as error:
                raise BadSource(f"{path}: line {reader.line_num} is not CSV: {error}") from None

    def _header(self, path: str) -> list[str]:
        header = next(self._records(path), None)
        if header is None:
            raise BadSource(f"{path} is empty: the first line of a CSV file names the columns")
        return header

    def _fields(self, path: str, parts: dict[str, str]) -> Iterator[tuple[int, list[str] | str]]:
        """Yield rows in the order of `names`, or a text that says why a row has no such fields."""
        records = self._records(path)
        header = next(records)
        added = list(parts.values())
        own = [*header, *parts]
        order = None if own == self.names else [own.index(name) for name in self.names]
        for record in records:
            size = sum(map(len, record))
            if len(record) != len(header):
                yield size, f"it has {len(record)} fields, and the header {len(header)}"
                continue
            record += added
            yield size, record if order is None else [record[at] for at in order]


def _names_of(line: bytes) -> list[str]:
    """Return the fields of a JSON line; none if it has none, which is reported as the row that it is."""
    with contextlib.suppress(*DECODE_ERRORS):
        return list(_fields(line))
    with contextlib.suppress(ValueError, RecursionError):  # half a surrogate pair is JSON, too
        value = json.loads(line, parse_int=str)
        return list(value) if isinstance(value, dict) else []
    return []


def _separator(path: str) -> str:
    """Return the separator with which the header has several fields and the rows as many; a comma if there is none.

    Raises:
        BadSource: several do.
    """
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        sample = file.read(SAMPLE_CHARACTERS)
        cut = len(sample) == SAMPLE_CHARACTERS
    fitting = [each for each in SEPARATORS if _fits(sample, each, cut)]
    if len(fitting) > 1:
        shown = " and ".join(map(repr, fitting))
        raise BadSource(f"{path}: {shown} could separate its fields; name the one that does with --separator")
    return fitting[0] if fitting else ","


def _fits(sample: str, separator: str, cut: bool) -> bool:
    widths: list[int] = []
    try:
        rows = csv.reader(io.StringIO(sample, newline=""), delimiter=separator, strict=not cut)
        widths += [len(row) for row in itertools.islice(rows, SAMPLE_ROWS) if row]
    except csv.Error:
        return False
    if cut and 1 < len(widths) < SAMPLE_ROWS:
        widths.pop()  # the rest of the last row is missing
    return bool(widths) and widths[0] > 1 and set(widths) == {widths[0]}


# ---------------------------------------------------------------------- binary in CSV


def spell_binary(value: bytes) -> str:
    """Return bytes as text: as it is where it is UTF-8, else `base64:` and base64.

    Text that begins like that itself is base64, too, and so is text with a zero byte, which many programs cannot read.
    """
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = _BASE64
    if text.startswith(_BASE64) or "\0" in text:
        return _BASE64 + base64.b64encode(value).decode()
    return text


def read_binary(text: str) -> bytes:
    """Return the bytes of a text of `spell_binary`. Raises ValueError for invalid base64."""
    if text.startswith(_BASE64):
        return base64.b64decode(text.removeprefix(_BASE64), validate=True)
    return text.encode("utf-8", "surrogateescape")
