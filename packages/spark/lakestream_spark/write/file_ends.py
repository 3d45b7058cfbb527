"""Checksum of the end of a data file, as the writer of the file computes it.

Belongs here: the checksum of `lakestream/lake/table/ends.py`, of a file that is being written and of a complete one.
"""

from __future__ import annotations

import io
from typing import BinaryIO
from zlib import crc32

from lakestream.lake.storage.storage import Storage
from lakestream.lake.table import encryption
from lakestream.lake.table.ends import End

_GUESS = 64 * 1024  # of a file, read at once: enough for most ends


def of_file(storage: Storage, path: str) -> End:
    """Return the end of a complete file. Raises pyarrow.ArrowException if it is no Parquet file."""
    content, size = storage.read_end(path, _GUESS)
    length = int.from_bytes(content[-8:-4], "little") + 8
    if length > len(content):
        content, size = storage.read_end(path, min(length, size))
    data = encryption.metadata(path, content[-length:])
    starts = 4
    for group in range(data.num_row_groups):
        for at in range(data.num_columns):
            column = data.row_group(group).column(at)
            first = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
            starts = max(starts, first + column.total_compressed_size)
    if size - starts > len(content):
        content, size = storage.read_end(path, size - starts)
    content = content[-(size - starts) :]
    return End(len(content), crc32(content))


class EndWriter(io.RawIOBase):
    """File that passes on what is written to another one, and has the checksum of what came after `begin_end`.

    Args:
        content: the other file, which stays open.
    """

    def __init__(self, content: BinaryIO) -> None:
        self._content = content
        self._size: int | None = None
        self._crc = 0

    def begin_end(self) -> None:
        """Begin the end: all pages are written."""
        self._size = self._crc = 0

    @property
    def end(self) -> End:
        """Return the end. All of it is written."""
        assert self._size is not None
        return End(self._size, self._crc)

    def writable(self) -> bool:
        """Return True: the file is written to."""
        return True

    def write(self, data: object, /) -> int:
        """Write bytes and return their number."""
        view = memoryview(data)  # type: ignore[arg-type]
        self._content.write(view)
        if self._size is not None:
            self._size += view.nbytes
            self._crc = crc32(view, self._crc)
        return view.nbytes

    def tell(self) -> int:
        """Return the place in the other file."""
        return self._content.tell()
