"""Encrypted tables (`lake { encryption: parquet }`): the key of each, and its Parquet files.

Belongs here: everything that knows of Parquet modular encryption. A table with a file TABLE_KEY is encrypted: footer
and all columns of each of its data files, with AES-GCM and one key, which is derived from the key in that file; that
one is wrapped by a master key (log/sealing/keys.py). `TableKeys` in jvm/ does the same for Spark.

One key for a table, not one for a file: a reader needs no more than the file's path, and a user who has the key reads
the table with any program that takes one. AES-GCM allows 2³² pieces with one key; a file of 100 MB has a few thousand.

Statistics in the log would show subjects and payloads, so there are none of these columns, and the table has no
partitions. What stays readable: names of columns, sequences and times, numbers and sizes.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable
from typing import Any

from lakestream.lake.errors import LakeError
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.paths import TABLE_KEY
from lakestream.log.format.errors import LogError
from lakestream.log.sealing.keys import VARIABLE, from_environment

BOUNDED = ("seq", "time", "time_ns", "removed_time_ns")
"""Columns whose bounds and numbers of NULLs the log of an encrypted table may show."""
ENCRYPTED = "lakestream.encrypted"
"""Property that says so, for programs that see only the log."""
END = b"PARE"
"""The last bytes of a file whose footer is encrypted."""
_DEPTH = 3
"""Directories above a data file, of which one is the table's."""


class TableSealed(LakeError):
    """Raised when a table is encrypted and there is no key for it, or when this reader cannot read such tables."""

    def __init__(self, path: str, reason: str = "") -> None:
        super().__init__(f"{path} is encrypted: {reason or f'set {VARIABLE} to the key of jetstream {{ key }}'}")


def properties(columns: Iterable[str]) -> dict[str, str]:
    """Return the properties of an encrypted table with these columns.

    By the second one Spark, too, states bounds of no others. It has to name columns that are there.
    """
    bounded = sorted({"seq", "time", "time_ns"}.intersection(columns))
    return {ENCRYPTED: "true", "delta.dataSkippingStatsColumns": ",".join(bounded)}


def begin(table: str) -> None:
    """Make the key of a table, unless it has one. Raises TableSealed."""
    keys, storage = from_environment(), open_storage(table)
    if keys is None:
        raise TableSealed(table)
    if not storage.exists(f"{table}/{TABLE_KEY}"):
        storage.create(f"{table}/{TABLE_KEY}", keys.wrap(keys.new()))  # never in the place of another one


def is_encrypted(table: str) -> bool:
    """Return True if a table has a key. In object stores none has: there it costs no request."""
    storage = open_storage(table)
    return storage.local and storage.exists(f"{table}/{TABLE_KEY}")


def key_of(table: str) -> bytes:
    """Return the key of the files of a table. Raises TableSealed, FileNotFoundError."""
    content, keys = open_storage(table).read(f"{table}/{TABLE_KEY}"), from_environment()
    if keys is None:
        raise TableSealed(table)
    try:
        secret = keys.unwrap(f"{table}/{TABLE_KEY}", content).key.secret
    except LogError as error:
        raise TableSealed(table, str(error)) from None
    return hmac.digest(secret, b"lakestream parquet\1", "sha256")


def writing(table: str) -> Any | None:
    """Return pyarrow's properties with which the files of a table are written; None for a plain one."""
    if not is_encrypted(table):
        return None
    from pyarrow.parquet.encryption import create_encryption_properties

    return create_encryption_properties(key_of(table))


def null_counts(rows: Any, keys: Any | None) -> dict[str, int]:
    """Return the numbers of NULLs in the rows of a file, of columns in BOUNDED if `keys` encrypt it."""
    return {name: rows.column(name).null_count for name in rows.column_names if keys is None or name in BOUNDED}


def reading(path: str, end: bytes) -> Any | None:
    """Return pyarrow's properties with which a data file is read; None for a plain one.

    Args:
        path: of the file; a clone's may be in another table.
        end: its last bytes.

    Raises:
        TableSealed: there is no key for it.
    """
    if not end.endswith(END):
        return None
    from pyarrow.parquet.encryption import create_decryption_properties

    table = os.path.dirname(path)
    for _ in range(_DEPTH):
        if is_encrypted(table):
            return create_decryption_properties(key_of(table))
        table = os.path.dirname(table)
    raise TableSealed(path, f"no directory above it has a {TABLE_KEY}; bring it back from a copy of the lake")


def metadata(path: str, end: bytes) -> Any:
    """Return pyarrow's metadata of a data file, from the bytes that its footer is in.

    Raises:
        TableSealed: there is no key for it. pyarrow.ArrowException: they are not the end of a Parquet file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pq.read_metadata(pa.BufferReader(end), decryption_properties=reading(path, end))


def open_file(path: str, local: str, **options: Any) -> Any:
    """Open a data file with pyarrow, encrypted or not.

    Args:
        path: of the file in the lake; `local`: of its content on this machine.
        options: of pyarrow's ParquetFile.

    Raises:
        TableSealed: there is no key for it.
    """
    import pyarrow.parquet as pq

    with open(local, "rb") as file:
        file.seek(-min(8, os.path.getsize(local)), os.SEEK_END)
        end = file.read()
    return pq.ParquetFile(local, decryption_properties=reading(path, end), **options)
