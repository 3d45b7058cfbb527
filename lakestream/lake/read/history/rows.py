"""Rows of a stream's table as messages.

Belongs here: the columns of a message, reading them from one small Parquet file (without deleted and archived rows),
and converting Arrow rows to records. scan.py chooses the files, and reads large ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakestream.lake.errors import DamagedFile
from lakestream.lake.files.storage import Storage
from lakestream.lake.read.history.index import Wanted
from lakestream.lake.table import deletion_vectors
from lakestream.lake.table.actions import locate
from lakestream.lake.table.payloads import Payloads
from lakestream.lake.table.schema import REMOVED_COLUMN, join_headers, table_schema
from lakestream.lake.table.state import TableFile
from lakestream.log.format.record import Record

COLUMNS = ("seq", "time_ns", "subject", "subject_bytes", "headers", "header_block", "data")
"""Columns of a record."""
_CHECKED = frozenset((*COLUMNS, REMOVED_COLUMN))
LIGHT = ("seq", "time_ns", "subject", "subject_bytes")
"""Columns that locate a message."""


DECODED_MOST = 128 * 1024 * 1024
"""Maximum decoded size of a file that is read whole."""


class TooLarge(Exception):
    """Raised for a file that compresses so well that reading it whole would take too much memory."""


class Pick:
    """Wanted rows of a file: a range of sequences, or exactly `seqs`; and subjects, when given."""

    def __init__(self, first: int, last: int, wanted: Wanted | None = None, seqs: Sequence[int] | None = None) -> None:
        self.first, self.last, self.wanted, self.seqs = first, last, wanted, seqs


def read_file(
    storage: Storage,
    table: str,
    file: TableFile,
    pick: Pick,
    columns: Sequence[str],
    archive: bool,
    payloads: Payloads | None = None,
) -> Any | None:
    """Return the wanted rows of one file as a pyarrow Table of `columns`; None when there are none. `payloads`: None if
    all rows of the table keep theirs.

    Raises:
        PayloadUnknown: the schema of a row is missing.
        FileNotFoundError: the file has gone.
        TooLarge: it has to be read in parts.
        DamagedFile: it is not as it was written: each page has a checksum, and the footer one in the table's log.
    """
    path = locate(table, file.path)
    content = None if storage.local else storage.read(path)
    if file.end is not None:
        file.end.check(path, storage.read_end(path, file.end.size)[0] if content is None else memoryview(content))
    try:
        source = path if content is None else pa.BufferReader(content)
        with pq.ParquetFile(source, page_checksum_verification=True) as parquet:
            data = parquet.metadata
            if sum(data.row_group(at).total_byte_size for at in range(data.num_row_groups)) > DECODED_MOST:
                raise TooLarge(path)
            names = [*columns, REMOVED_COLUMN] if archive else list(columns)
            names += payloads.needed(columns) if payloads is not None else []
            found = parquet.read(columns=names, use_threads=False)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DamagedFile(path, str(error)) from error
    _check(path, file, found)
    keep = None
    if file.min_seq < pick.first or file.max_seq > pick.last or pick.seqs is not None:
        seqs = found.column("seq").to_numpy()
        keep = (seqs >= pick.first) & (seqs <= pick.last)
        if pick.seqs is not None:
            keep &= np.isin(seqs, np.asarray(pick.seqs, np.int64))
    if file.deleted is not None:
        alive = np.ones(found.num_rows, bool)
        alive[deletion_vectors.load(file.deleted, table, storage.read)] = False
        keep = _both(keep, alive)
    if archive and REMOVED_COLUMN in found.column_names:
        keep = _both(keep, found.column(REMOVED_COLUMN).is_null().to_numpy())
    if pick.wanted is not None and file.subject is None:
        keep = _both(keep, _of_subjects(found.column("subject"), pick.wanted))
    if keep is not None and not keep.all():
        found = found.filter(pa.array(keep))
    if not found.num_rows:
        return None
    return _shaped(found if payloads is None else payloads.complete(found), file, columns)


def _check(path: str, file: TableFile, found: Any) -> None:
    """Raise DamagedFile unless rows have the types that a table has: a damaged footer may tell of others."""
    if file.rows and found.num_rows != file.rows:
        raise DamagedFile(path, f"it has {found.num_rows} rows instead of {file.rows}")
    for field in table_schema(name for name in found.column_names if name in _CHECKED):
        column = found.column(field.name)
        if not _is_stored_as(column.type, field.type):
            raise DamagedFile(path, f"its column {field.name} is {column.type} instead of {field.type}")
        if field.name in ("seq", "time_ns") and column.null_count:
            raise DamagedFile(path, f"its column {field.name} lacks values")


def _is_stored_as(found: Any, wanted: Any) -> bool:
    """Return True if a file may have a column of type `wanted` so. Other writers than ours may use other text types."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_map(wanted):
        return bool(pa.types.is_map(found))
    if wanted == pa.string():
        return _is_text(found)
    if wanted == pa.binary():
        return bool(pa.types.is_binary(found) or pa.types.is_large_binary(found) or pa.types.is_binary_view(found))
    return bool(found == wanted)


def _both(one: np.ndarray[Any, Any] | None, other: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return other if one is None else one & other


def _of_subjects(column: Any, wanted: Wanted) -> np.ndarray[Any, Any]:
    if wanted.everything:
        return np.ones(len(column), bool)
    found: np.ndarray[Any, Any] = pc.is_in(column, pa.array(wanted.texts, column.type)).to_numpy()
    for head in wanted.heads:
        found = found | pc.starts_with(column, head).to_numpy()
    return found


def _shaped(found: Any, file: TableFile, columns: Sequence[str]) -> Any:
    """Return the table with exactly these columns in their usual types; writers and layouts leave out some."""
    types = {field.name: field.type for field in table_schema(columns)}
    have = set(found.column_names)
    arrays = []
    for name in columns:
        if name in have:
            column = found.column(name)
            arrays.append(column if column.type == types[name] or name == "headers" else column.cast(types[name]))
        elif name == "subject" and file.subject is not None:
            value = pa.scalar(file.subject, pa.string())
            arrays.append(pa.chunked_array([pa.repeat(value, found.num_rows)]))
        else:
            arrays.append(pa.chunked_array([pa.nulls(found.num_rows, types[name])]))
    return pa.table(arrays, names=list(columns))


def joined(parts: Sequence[Any], columns: Sequence[str]) -> Any:
    """Concatenate tables of the same columns in sequence order, each sequence once."""
    if not parts:
        return empty(columns)
    whole = (parts[0] if len(parts) == 1 else pa.concat_tables(parts, promote_options="permissive")).combine_chunks()
    whole = _owned(whole)
    seqs = whole.column("seq").to_numpy()
    if len(seqs) > 1:
        steps = np.diff(seqs)
        if not (steps > 0).all():
            _, places = np.unique(seqs, return_index=True)
            whole = whole.take(pa.array(places))
    return whole


def _owned(table: Any) -> Any:
    """Return the rows of a query in buffers of their own.

    DataFusion hands out a batch as one object: every buffer of it, be it a bitmap of nulls that a cast passes on, keeps
    all columns in memory, and columns of view types keep whole pages of the file: several MB for a few rows. So all
    columns are copied, also those that are no views.
    """
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    if not any(field.type in plain for field in table.schema):
        return table
    columns = [column.cast(plain.get(column.type, column.type)) for column in table.columns]
    return pa.table(columns, names=table.column_names).take(pa.array(np.arange(table.num_rows)))


def empty(columns: Sequence[str]) -> Any:
    """Return a table of these columns without rows."""
    return pa.table({name: pa.array([], pa.int64() if name in ("seq", "time_ns") else pa.binary()) for name in columns})


def records(table: Any) -> list[Record]:
    """Convert rows of COLUMNS to records."""
    if table.num_rows == 0:
        return []
    subjects = _shared_values(table.column("subject"))
    raw_subjects = table.column("subject_bytes")
    if raw_subjects.null_count < table.num_rows:
        kept = raw_subjects.to_pylist()
        subjects = [raw if raw is not None else text for raw, text in zip(kept, subjects, strict=True)]
    return list(
        map(
            Record,
            table.column("seq").to_numpy().tolist(),
            table.column("time_ns").to_numpy().tolist(),
            subjects,
            _header_blocks(table.column("headers"), table.column("header_block")),
            _byte_values(table.column("data")),
        )
    )


def content_bytes(table: Any, found: list[Record]) -> int:
    """Return the bytes of subjects, header blocks and payloads of rows of COLUMNS; `found` are their records."""
    plain = ("headers", "header_block", "subject_bytes")
    if any(table.column(name).null_count < table.num_rows for name in plain):
        return sum([len(one.subject) + len(one.header) + len(one.data) for one in found])
    return sum(pc.sum(pc.binary_length(table.column(name))).as_py() or 0 for name in ("subject", "data"))


def _shared_values(column: Any) -> list[bytes]:
    """Return `_byte_values` with one object for all rows that have the same value."""
    values: list[bytes] = []
    for chunk in column.chunks:
        array = chunk.dictionary_encode()
        known = _byte_values(pa.chunked_array([array.dictionary]))
        values.extend(map(known.__getitem__, array.indices.to_numpy().tolist()))
    return values


def _byte_values(column: Any) -> list[bytes]:
    """Return a string or binary column without nulls as bytes objects; much faster than `to_pylist`."""
    values: list[bytes] = []
    for chunk in column.chunks:
        array = chunk.cast(pa.large_string()).cast(pa.large_binary()) if _is_text(chunk.type) else chunk
        array = array.cast(pa.large_binary())
        if array.null_count:
            values.extend(value or b"" for value in array.to_pylist())
            continue
        _, offsets, data = array.buffers()
        if data is None:
            values.extend([b""] * len(array))
            continue
        bounds = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
        content = data.slice(int(bounds[0]), int(bounds[-1] - bounds[0])).to_pybytes()
        values.extend([content[a:b] for a, b in itertools.pairwise((bounds - bounds[0]).tolist())])
    return values


def _is_text(type_: Any) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


def _header_blocks(headers: Any, blocks: Any) -> list[bytes]:
    """Return header blocks as they were sent: the raw one where there is one, else from the map; b"" for none."""
    count = len(headers)
    if headers.null_count == count and blocks.null_count == count:
        return [b""] * count
    found = [b"" if pairs is None else join_headers(pairs) for pairs in headers.to_pylist()]
    if blocks.null_count < count:
        kept = blocks.to_pylist()
        found = [spelled if raw is None else raw for raw, spelled in zip(kept, found, strict=True)]
    return found
