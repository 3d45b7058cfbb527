"""The columns of a stream's table, and the two translations that they need.

Belongs here: column names and types, header block ↔ map, raw subject ↔ text, and the partition rule. What a person
reads (`subject`, `time`, `headers`) is text and may say less than the wire did; where it would, the raw bytes are kept
beside it (`subject_bytes`, `header_block`), so that a row always gives back its message byte for byte.

    subject        string                      partition column while the stream has few subjects
    seq            long                        stream sequence
    time           timestamp (µs, UTC)         store time, for people and SQL
    time_ns        long                        store time, exact: ns since the epoch
    headers        map<string, array<string>>  null: no header block
    data           binary                      payload
    header_block   binary                      the raw block, only where `headers` does not reproduce it
    subject_bytes  binary                      the raw subject, only where it is not UTF-8
    bucket         int                         pmod(crc32(subject), 8), only in bucketed tables; partition column
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

SUBJECT_LIMIT = 50
"""A table is partitioned by subject while its stream has at most so many distinct subjects."""

BUCKETS = 8
"""Partitions of a bucketed table."""

MAX_PARTITION_NAME = 240
"""Longest partition directory, in bytes after escaping, that a subject may need; a longer one means buckets."""

UID_PROPERTY = "lakestream.uid"
STREAM_PROPERTY = "lakestream.stream"
CREATED_PROPERTY = "lakestream.created_ns"
"""Delta table properties that say whose table it is."""

MESSAGE_COLUMNS = ("subject", "seq", "time_ns", "headers", "data", "header_block", "subject_bytes")
"""What the decoder yields; `time` and `bucket` are computed from these by the compactor."""

MESSAGE_DDL = (
    "subject string, seq bigint, time_ns bigint, headers map<string, array<string>>, data binary, "
    "header_block binary, subject_bytes binary"
)
TABLE_DDL = (
    "subject string, seq bigint, time timestamp, time_ns bigint, headers map<string, array<string>>, data binary, "
    "header_block binary, subject_bytes binary"
)

HEADER_LINE = b"NATS/1.0\r\n"
Headers = list[tuple[str, list[str]]]

# What Hive-style partition directories escape as %XX (Spark's ExternalCatalogUtils), besides control characters.
_ESCAPED = frozenset(b"\"#%'*/:=?\\{[]^ <>|") | frozenset(range(0x20)) | {0x7F}
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


class Layout(Enum):
    """How a table is partitioned."""

    SUBJECT = "subject"
    BUCKET = "bucket"


def layout_for(subjects: int, limit: int = SUBJECT_LIMIT) -> Layout:
    """The layout for a stream with so many distinct subjects."""
    return Layout.SUBJECT if subjects <= limit else Layout.BUCKET


def fits_partition(subject: str) -> bool:
    """Whether a subject can be a partition value.

    Its directory name has to be short enough and not Hive's word for NULL, and a zero byte cannot be in one at all.
    """
    raw = subject.encode()
    escaped = len("subject=") + len(raw) + 2 * sum(byte in _ESCAPED for byte in raw)
    return escaped <= MAX_PARTITION_NAME and subject != _NULL_PARTITION and "\0" not in subject


def bucket_of(subject: str, buckets: int = BUCKETS) -> int:
    """The bucket of a subject: Spark SQL's pmod(crc32(cast(subject as binary)), buckets)."""
    return zlib.crc32(subject.encode()) % buckets


def message_schema() -> pa.Schema:
    """Arrow schema of decoded segments (MESSAGE_COLUMNS)."""
    import pyarrow as pa

    return pa.schema(
        [
            ("subject", pa.string()),
            ("seq", pa.int64()),
            ("time_ns", pa.int64()),
            ("headers", headers_type()),
            ("data", pa.binary()),
            ("header_block", pa.binary()),
            ("subject_bytes", pa.binary()),
        ]
    )


def headers_type() -> pa.DataType:
    """Arrow type of the `headers` column."""
    import pyarrow as pa

    return pa.map_(pa.string(), pa.list_(pa.string()))


def subject_text(subject: bytes) -> tuple[str, bytes | None]:
    """A raw subject as the `subject` column shows it, and what `subject_bytes` keeps: None when the text is exact.

    NATS does not require UTF-8; a byte that is not part of any is shown as `\\xNN`.
    """
    try:
        return subject.decode(), None
    except UnicodeDecodeError:
        return subject.decode(errors="backslashreplace"), subject


@lru_cache(maxsize=1024)
def split_headers(block: bytes) -> tuple[Headers, bytes | None]:
    """A raw header block as (names and values, what `header_block` keeps).

    Names stand in the order of their first line and are case-sensitive (ADR-4). The second part is None when
    `join_headers` gives back the very block, else the block itself. A block that is no header block at all gives no
    names.
    """
    values: dict[str, list[str]] = {}
    for line in block.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon and name:
            values.setdefault(_text(name), []).append(_text(value.removeprefix(b" ")))
    headers = list(values.items())
    return headers, None if join_headers(headers) == block else block


def join_headers(headers: Sequence[tuple[str, Sequence[str]]]) -> bytes:
    """The header block in its usual spelling: `Name: value`, lines in order, values of one name together."""
    lines = [f"{name}: {value}\r\n" for name, values in headers for value in values]
    return HEADER_LINE + "".join(lines).encode() + b"\r\n"


def _text(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")
