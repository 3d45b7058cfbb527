"""Formats of COPY TO STDOUT: text, CSV and binary.

Belongs here: how a row is written, of values that are encoded already. No I/O.

Source: PostgreSQL's documentation, "COPY", "File Formats".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from lakestream_postgres.errors import PgError

_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)


class Format:
    """A format with its options.

    Args:
        options: of the statement.
        names: of the columns.

    Raises:
        PgError: an option is not valid.
    """

    def __init__(self, options: dict[str, str], names: Sequence[str]) -> None:
        self._kind = options.get("format", "text").lower()
        if self._kind not in ("text", "csv", "binary"):
            raise PgError("22023", f'COPY format "{self._kind}" not recognized')
        is_csv = self._kind == "csv"
        self.is_binary = self._kind == "binary"
        self._delimiter = options.get("delimiter", "," if is_csv else "\t").replace("\\t", "\t").encode()
        self._null = options.get("null", "" if is_csv else "\\N").encode()
        self._quote = options.get("quote", '"').encode()
        self._escape = options.get("escape", self._quote.decode()).encode()
        self._all = "force_quote" in options
        if len(self._delimiter) != 1 or len(self._quote) != 1 or len(self._escape) != 1:
            raise PgError("22023", "a delimiter, quote or escape of COPY is a single byte")
        self._header = options.get("header", "false").lower() in ("true", "on", "1", "match")
        self._names, self._count = [name.encode() for name in names], struct.pack(">h", len(names))

    def head(self) -> bytes:
        """Return what stands before the rows."""
        if self.is_binary:
            return _SIGNATURE
        return self.row(self._names) if self._header else b""

    def row(self, values: Sequence[bytes | None]) -> bytes:
        """Return a row."""
        if self.is_binary:
            sized = (b"\xff" * 4 if each is None else struct.pack(">i", len(each)) + each for each in values)
            return self._count + b"".join(sized)
        show = self._quoted if self._kind == "csv" else self._escaped
        return self._delimiter.join([self._null if each is None else show(each) for each in values]) + b"\n"

    def end(self) -> bytes:
        """Return what stands behind the rows."""
        return b"\xff\xff" if self.is_binary else b""

    def _escaped(self, value: bytes) -> bytes:
        value = value.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r").replace(b"\t", b"\\t")
        return value if self._delimiter == b"\t" else value.replace(self._delimiter, b"\\" + self._delimiter)

    def _quoted(self, value: bytes) -> bytes:
        special = (self._delimiter, self._quote, b"\n", b"\r")
        if not self._all and value != self._null and not any(each in value for each in special) and value != b"\\.":
            return value
        if self._escape != self._quote:
            value = value.replace(self._escape, self._escape * 2)
        return self._quote + value.replace(self._quote, self._escape + self._quote) + self._quote
