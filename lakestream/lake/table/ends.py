"""Checksum of the end of a data file: its page indexes and its Parquet footer.

Belongs here: the tag of an `add` action that states the checksum, computing it for a file, and checking it. Parquet has
a checksum for each page, but none for the footer, which says where the columns are and of which type. A flipped bit
there can give other values without an error.

    lakestream.end    bytes from the end of the last page to the end of the file, "-", CRC-32 of these bytes in hex

Compactor and maintainer write the tag; other readers and writers ignore it. A file without it (of Delta's own OPTIMIZE,
UPDATE or a change of the layout, or of an earlier release) is read as it is.

Source: Parquet format, "File format"; Delta protocol, "Add File and Remove File".
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import BinaryIO
from zlib import crc32

import msgspec

from lakestream.lake.errors import DamagedFile
from lakestream.lake.storage.storage import Storage

TAG = "lakestream.end"
_GUESS = 64 * 1024  # of a file, read at once: enough for most ends


class End(msgspec.Struct, frozen=True, gc=False):
    """End of a file: its size in bytes, and its CRC-32."""

    size: int
    crc: int

    def tags(self) -> dict[str, str]:
        """Return the tags of the `add` action that state this end."""
        return {TAG: f"{self.size}-{self.crc:08x}"}

    def check(self, path: str, content: bytes | memoryview) -> None:
        """Raise DamagedFile if `content`, which are the last bytes of a file or all of them, do not have this end."""
        if crc32(content[-self.size :]) != self.crc:
            raise DamagedFile(path, f"the crc of its last {self.size} bytes (Parquet footer) does not match")

    def check_in(self, storage: Storage, path: str) -> None:
        """Raise DamagedFile if a file does not have this end."""
        self.check(path, storage.read_end(path, self.size)[0])


def stated(tags: Mapping[str, str | None] | None) -> End | None:
    """Return the end that the tags of an `add` action state; None without one that makes sense."""
    size, dash, crc = ((tags or {}).get(TAG) or "").partition("-")
    try:
        return End(int(size), int(crc, 16)) if dash and int(size) > 0 else None
    except ValueError:
        return None


def of_file(storage: Storage, path: str) -> End:
    """Return the end of a complete file. Raises pyarrow.ArrowException if it is no Parquet file."""
    from lakestream.lake.table import encryption  # not at a server's start

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
