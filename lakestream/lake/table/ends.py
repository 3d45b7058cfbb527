"""Checksum of the end of a data file: its page indexes and its Parquet footer.

Belongs here: the tag of an `add` action that states the checksum, and checking it. lakestream_spark/write/file_ends.py
computes it. Parquet has a checksum for each page, but none for the footer, which says where the columns are and of
which type. A flipped bit there can give other values without an error.

    lakestream.end    bytes from the end of the last page to the end of the file, "-", CRC-32 of these bytes in hex

Compactor and maintainer write the tag; other readers and writers ignore it. A file without it (of Delta's own OPTIMIZE,
UPDATE or a change of the layout, or of an earlier release) is read as it is.

Source: Parquet format, "File format"; Delta protocol, "Add File and Remove File".
"""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

import msgspec

from lakestream.lake.errors import DamagedFile
from lakestream.lake.storage.storage import Storage

TAG = "lakestream.end"


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
