"""Departures: which messages of a batch left their stream, and when, in a file beside the table.

Belongs here: the departures file of a commit, written for streams with time travel, and the set of messages that had
left by a point. The version that the commit makes holds every message of the batch, also those removed within it, and
every older one that the stream held when the batch began. With this file it is the stream at any point of the batch.

    <table>/_departures/<last index of the batch>.parquet: first, last, removed_seq, removed_ns
    (log/format/departures.py)

Delta and its readers ignore names that begin with `_`. The file is written before its commit, and deleted when log
clean-up has deleted the commit.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from lakestream.lake.errors import LakeError
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table import erasures
from lakestream.lake.table.at import TableAsOf, open_log
from lakestream.log.format.departures import Departures, Point
from lakestream.log.format.segment import Footer

DIRECTORY = "_departures"
COLUMNS = ("first", "last", "removed_seq", "removed_ns")


class DeletedMessages(msgspec.Struct, frozen=True):
    """Messages to leave out: all below `floor`, `removed` (ascending sequences), and `runs` of them (first, last)."""

    floor: int = 0
    removed: Sequence[int] = ()
    runs: Sequence[tuple[int, int]] = ()


class DeparturesGone(LakeError):
    """Raised when the departures file of an existing commit is missing."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is missing: what the stream held within that commit is unknown without it")


class DeparturesDamaged(LakeError):
    """Raised when a departures file does not decode."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} is damaged: {reason}; bring it back from a copy of the lake")


def of_footers(footers: Iterable[Footer]) -> Departures | None:
    """Return the departures of consecutive segments; None if one of them did not record any."""
    found = Departures()
    for footer in footers:
        if footer.departures is None:
            return None
        found.extend(Departures.unpack(footer.departures))
    return found


def write(storage: Storage, table: str, last_index: int, departures: Departures) -> None:
    """Write the departures file of the commit that takes the table through log index `last_index`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = (departures.firsts, departures.lasts, departures.removed_seqs, departures.removed_ns)
    sink = pa.BufferOutputStream()
    rows = pa.table({name: pa.array(column, pa.int64()) for name, column in zip(COLUMNS, columns, strict=True)})
    encodings = dict.fromkeys(COLUMNS, "DELTA_BINARY_PACKED")  # one byte or two for most
    pq.write_table(
        rows, sink, compression="zstd", use_dictionary=False, column_encoding=encodings, write_page_checksum=True
    )
    storage.write(_path(table, last_index), sink.getvalue().to_pybytes())


def read(storage: Storage, table: str, last_index: int) -> Departures:
    """Return the departures of the commit that took the table through log index `last_index`. Raises DeparturesGone,
    DeparturesDamaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = _path(table, last_index)
    try:
        rows = pq.read_table(pa.BufferReader(storage.read(path)), page_checksum_verification=True)
        columns = [array("q", rows.column(name).cast(pa.int64()).to_numpy().tobytes()) for name in COLUMNS]
    except FileNotFoundError:
        raise DeparturesGone(path) from None
    except (pa.ArrowException, OSError, LookupError, ValueError) as error:  # pyarrow's own are among them
        raise DeparturesDamaged(path, str(error)) from error
    return Departures(True, columns)


def sweep(storage: Storage, table: str) -> int:
    """Delete the files of commits that log clean-up has deleted; return their number."""
    log = open_log(table)
    oldest = log.progress(log.versions[0])
    if oldest is None:
        return 0
    last_index = oldest.last_index
    old = [
        entry.path
        for entry in storage.list(f"{table}/{DIRECTORY}")
        if entry.name.endswith(".parquet") and entry.name < _name(last_index)
    ]
    storage.delete_all(old)
    return len(old)


def gone(departures: Departures, point: Point | None = None) -> DeletedMessages:
    """Return the messages that had left by a point; without one, all departures."""
    import numpy as np

    stop = len(departures) if point is None else departures.split(point)
    firsts = np.frombuffer(departures.firsts, np.int64)[:stop]
    lasts = np.frombuffer(departures.lasts, np.int64)[:stop]
    # No sequence leaves twice: sorted, the runs are apart.
    order = np.argsort(firsts, kind="stable")
    return DeletedMessages(runs=_joined(firsts[order], lasts[order]))


def gone_as_of(storage: Storage, table: str, found: TableAsOf) -> DeletedMessages:
    """Return the messages to hide from the version that `as_of` found: those that had left, and those to be erased."""
    dead = erased(storage, table)
    if found.progress is None or found.progress.departed <= 0:
        return dead
    return both(gone(read(storage, table, found.progress.last_index), found.point), dead)


def erased(storage: Storage, table: str, more: Sequence[tuple[int, int]] = ()) -> DeletedMessages:
    """Return the messages to be erased (secure delete) as far as versions may still hold them, and `more` runs of
    such."""
    return DeletedMessages(runs=erasures.joined([*erasures.merged(erasures.notes(storage, table)), *more]))


def sequences(dead: DeletedMessages) -> Any:
    """Return the sequences of the runs, one by one, as a numpy array."""
    import numpy as np

    return np.concatenate([np.zeros(0, np.int64), *(np.arange(first, last + 1) for first, last in dead.runs)])


def both(one: DeletedMessages, other: DeletedMessages) -> DeletedMessages:
    """Return the union; of `other` only its runs count."""
    if not other.runs:
        return one
    return DeletedMessages(one.floor, one.removed, erasures.joined([*one.runs, *other.runs]))


def _joined(firsts: Any, lasts: Any) -> list[tuple[int, int]]:
    """Return the runs in ascending order with adjacent ones merged."""
    import numpy as np

    if not len(firsts):
        return []
    begins = np.concatenate(([True], firsts[1:] > lasts[:-1] + 1))
    starts = firsts[begins]
    ends = lasts[np.concatenate((begins[1:], [True]))]
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def _name(last_index: int) -> str:
    return f"{last_index:020d}.parquet"


def _path(table: str, last_index: int) -> str:
    return f"{table}/{DIRECTORY}/{_name(last_index)}"
