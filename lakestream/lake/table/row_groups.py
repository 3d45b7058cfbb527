"""Row groups of data files: which of them a message may be in, by the bounds in the files' footers.

Belongs here: reading and checking a footer, the bounds of its row groups as few arrays, the sequences in a row group,
and what is kept of files, within a limit of bytes. scan.py reads the rows.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from lakestream.lake.errors import DamagedFile
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table.actions import TableFile
from lakestream.lake.table.conditions import SubjectRange
from lakestream.lake.table.encryption import metadata, reading
from lakestream.lake.table.schema import END, LAST_TEXT

T = TypeVar("T")

FOOTER_BYTES = 32 * 1024 * 1024
"""Default limit of the footers, sequences, places of pages and deletion vectors that a server keeps, of all tables, in
bytes."""
SPARE_SHARE = 0.25
"""Part of that which is left for what is decoded of single files: one read needs it several times."""
_GUESS = 64 * 1024  # bytes of a file's end, read at once: enough for most footers
_DECODED = 12  # bytes of a decoded footer for each byte in the file, as measured
_GROUP_BYTES = 400  # of the bounds of one row group


class RowGroup(msgspec.Struct, frozen=True, gc=False):
    """One row group of a file: its number, bounds of sequences, rows, and decoded bytes."""

    file: TableFile
    number: int
    min_seq: int
    max_seq: int
    rows: int
    size: int


class FileFooter(msgspec.Struct, frozen=True):
    """Footer of a data file.

    `starts` is the position in the file of each row group's first row, and one more: the number of rows. Bounds are as
    those of a TableFile: 0, END and LAST_TEXT where the footer has none. `keys`: with which an encrypted file is read.
    `raw`: the file's last bytes, of which `data` decodes ten times as many.
    """

    raw: bytes
    length: int
    starts: Any
    sizes: Any
    mins: Any
    maxs: Any
    latest: Any
    subjects: list[tuple[str, str]]
    keys: Any = None

    @property
    def cost(self) -> int:
        """Return the bytes of memory, roughly."""
        return len(self.raw) + _GROUP_BYTES * len(self.sizes)

    def data(self, path: str) -> Any:
        """Return pyarrow's metadata of the file, whose path this is."""
        return metadata(path, self.raw)

    @staticmethod
    def cost_of(data: Any) -> int:
        """Return the bytes of memory that such metadata takes, roughly."""
        return _DECODED * int(data.serialized_size)

    def holding(self, first: int, last: int, wanted: SubjectRange | None = None, since_ns: int = 0) -> list[int]:
        """Return the numbers of the row groups that may have a message with first ≤ seq ≤ last, of one of the wanted
        subjects, and stored at `since_ns` or later."""
        there = (self.mins <= last) & (self.maxs >= first) & (self.latest >= since_ns)
        found: list[int] = np.flatnonzero(there).tolist()
        if wanted is None or wanted.everything or not self.subjects:
            return found
        return [number for number in found if wanted.overlaps(*self.subjects[number])]

    def groups(self, file: TableFile, numbers: Iterable[int]) -> list[RowGroup]:
        """Return row groups of the file, whose footer this is."""
        return [
            RowGroup(
                file,
                number,
                int(self.mins[number]),
                int(self.maxs[number]),
                int(self.starts[number + 1] - self.starts[number]),
                int(self.sizes[number]),
            )
            for number in numbers
        ]


def read_footer(storage: Storage, path: str, file: TableFile) -> tuple[FileFooter, Any]:
    """Read and check a file's footer; return it and its `data`.

    Raises:
        DamagedFile: the file does not end as the table's log says, or it is no Parquet file.
        TableSealed: it is encrypted, and there is no key.
        FileNotFoundError: it has gone.
    """
    content, length = storage.read_end(path, max(_GUESS, file.end.size if file.end is not None else 0))
    if file.end is not None:
        file.end.check(path, memoryview(content))
    size = int.from_bytes(content[-8:-4], "little") + 8
    if size > len(content):
        content, length = storage.read_end(path, size)
    try:
        raw = bytes(content[-size:])
        data = metadata(path, raw)
        return _footer(path, file, data, raw, length, reading(path, content)), data
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DamagedFile(path, str(error)) from error


def _footer(path: str, file: TableFile, data: Any, raw: bytes, length: int, keys: Any) -> FileFooter:
    if file.rows and data.num_rows != file.rows:
        raise DamagedFile(path, f"it has {data.num_rows} rows instead of {file.rows}")
    count = data.num_row_groups
    groups = [data.row_group(number) for number in range(count)]
    starts = np.zeros(count + 1, np.int64)
    np.cumsum([group.num_rows for group in groups], out=starts[1:])
    sizes = np.array([group.total_byte_size for group in groups], np.int64)
    places = {data.schema.column(at).path: at for at in range(data.num_columns)} if count else {}
    seqs = [_bounds(group, places.get("seq"), 0, END) for group in groups]
    times = [_bounds(group, places.get("time_ns"), 0, END) for group in groups]
    subjects = [_bounds(group, places.get("subject"), "", LAST_TEXT) for group in groups]
    mins, maxs = np.array(seqs, np.int64).reshape(-1, 2).T
    latest = np.array([time for _, time in times], np.int64)
    subjects = subjects if "subject" in places else []
    return FileFooter(raw, length, starts, sizes, mins, maxs, latest, subjects, keys)


def _bounds(group: Any, place: int | None, low: T, high: T) -> tuple[T, T]:
    """Return the bounds of a column in a row group; `low` and `high` where the footer has none of that type."""
    if place is None:
        return low, high
    try:
        found = group.column(place).statistics
        if found is None or not found.has_min_max or not isinstance(found.min, type(low)):
            return low, high
        return found.min, found.max
    except UnicodeDecodeError:  # cut within a character
        return low, high


class GroupSeqs(NamedTuple):
    """Sequences in a row group: the lowest, and the gaps between them in ascending order, mostly of one byte each.

    A message of a table by day and country may be in any of the day's files. The bounds of all of them have it, so only
    the sequences tell where it is.
    """

    low: int
    gaps: Any

    @classmethod
    def of(cls, seqs: Any) -> GroupSeqs:
        """Return the sequences of an array, in any order."""
        ordered = np.sort(seqs)
        gaps = np.diff(ordered, prepend=ordered[:1])
        low = int(ordered[0]) if len(ordered) else END
        return cls(low, gaps.astype(np.min_scalar_type(int(gaps.max(initial=0)))))

    @property
    def cost(self) -> int:
        """Return the bytes of memory, roughly."""
        return 400 + int(self.gaps.nbytes)

    def has_any(self, seqs: Sequence[int]) -> bool:
        """Return True if one of these sequences is there."""
        ordered, asked = np.cumsum(self.gaps, dtype=np.int64) + self.low, np.asarray(seqs, np.int64)
        at = np.searchsorted(ordered, asked)
        inside = at < len(ordered)
        return bool((ordered[at[inside]] == asked[inside]).any())


class Footers:
    """Footers, sequences, places of pages and deletion vectors that were used last. Safe for use by several threads.

    Attributes:
        size: estimated bytes of all that is kept.
    """

    def __init__(self, max_bytes: int = FOOTER_BYTES) -> None:
        self.max_bytes = max_bytes
        self.size = self._spare_size = 0
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], tuple[Any, int]] = OrderedDict()
        self._spare: OrderedDict[tuple[str, str], tuple[Any, int]] = OrderedDict()

    def get(self, key: tuple[str, str], load: Callable[[], T], cost: Callable[[T], int], is_spare: bool = False) -> T:
        """Return what is kept for a file's path and a part of it ("": its footer); load it if nothing is.

        Args:
            is_spare: of one file's rows, while the others are needed to find the file: it is removed first, as long as
                such parts take more than SPARE_SHARE.
        """
        parts = self._spare if is_spare else self._kept
        with self._lock:
            kept = parts.get(key)
            if kept is not None:
                parts.move_to_end(key)
                value: T = kept[0]
                return value
        value = load()
        size = cost(value)
        with self._lock:
            self._remove(parts, key)
            parts[key] = value, size
            self.size += size
            self._spare_size += size if is_spare else 0
            while self.size > self.max_bytes and len(self._kept) + len(self._spare) > 1:
                is_much = self._spare_size > self.max_bytes * SPARE_SHARE
                oldest = (self._spare if is_much else self._kept) or self._spare
                self._remove(oldest, next(iter(oldest)))
        return value

    def drop(self, below: str) -> None:
        """Drop what is kept of the files whose paths begin so."""
        with self._lock:
            for parts in (self._kept, self._spare):
                for key in [key for key in parts if key[0].startswith(below)]:
                    self._remove(parts, key)

    def _remove(self, parts: OrderedDict[tuple[str, str], tuple[Any, int]], key: tuple[str, str]) -> None:
        known = parts.pop(key, None)
        if known is not None:
            self.size -= known[1]
            self._spare_size -= known[1] if parts is self._spare else 0
