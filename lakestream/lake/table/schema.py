"""Columns of a stream's table, and their translation from and to messages.

Belongs here: column names and types, header block to map and back, raw subject to text, and partitioning. The readable
columns (`subject`, `time`, `headers`) are text and may lose information; in that case the raw bytes stand beside them
(`subject_bytes`, `header_block`), so that a row always gives back its message byte for byte.

    subject        string                      partition column while the stream has few subjects
    seq            long                        stream sequence
    time           timestamp (µs, UTC)         store time, for people and SQL
    time_ns        long                        store time, exact: ns since the epoch
    headers        map<string, array<string>>  null: no header block
    data           binary                      payload
    header_block   binary                      the raw block, only where `headers` does not reproduce it
    subject_bytes  binary                      the raw subject, only where it is not UTF-8
    bucket         int                         range of subjects, only in bucketed tables; partition column
    token1 …       string                      a token of the subject, only in tables by tokens; partition columns
    by_day         date                        the day of `time`, UTC, only in tables by time; partition column
    by_hour        int                         the hour of that day, only in tables by the hour; partition column
    by_field1 …    string                      a field of the payload, only in tables by fields; partition columns
    removed_time_ns long                       only in archives: time of removal from the stream; null: not removed
    schema         string                      only with schemas: the version that the typed columns follow
    data_format    string                      only with schemas: spelling of a payload that is not in `data`
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.protocol.decoding import JsonDecoder

if TYPE_CHECKING:
    import pyarrow as pa

SUBJECT_LIMIT = 50
"""Maximum number of distinct subjects with which `auto` partitions by subject."""

SUBJECT_MOST = 1_000
"""Maximum number of partitions by subject or by tokens; a table with more is partitioned by bucket."""

MAX_PARTITION_NAME = 240
"""Maximum length of a partition directory's name, in bytes after escaping; a subject that needs more means buckets."""

UID_PROPERTY = "lakestream.uid"
STREAM_PROPERTY = "lakestream.stream"
CREATED_PROPERTY = "lakestream.created_ns"
LAKE_PROPERTY = "lakestream.lake_id"
"""Id of the lake that an Iceberg table, or an entry in a catalog, belongs to. Entries without it are never changed."""
TABLE_PROPERTY = "lakestream.table"
"""Path of the table below the lake's root: the identity of an entry, also when the lake moves."""
JSON_SCHEMA_PROPERTY = "lakestream.json_schema"
"""Table property with the stream's `lakestream.json_schema`."""
MASK_KEY = "lakestream.mask"
CLEAR_KEY = "lakestream.mask_clear"
"""Metadata of streams, and properties of their tables: masked fields, and the roles that see them (masks.py)."""
MISFITS_PROPERTY = "lakestream.misfits_of"
"""Property of a table of misfits: the uid of its stream."""
LATEST_PROPERTY = "lakestream.latest_of"
"""Property of an upsert table: the uid of its stream."""
FIELD_METADATA = "lakestream.field"
"""Metadata of the columns `by_field1` …: the typed column whose value they have, as in a term of `Layout`."""
BY_DAY, BY_HOUR, BY_FIELD = "by_day", "by_hour", "by_field"
BOUNDS_METADATA = "lakestream.bounds"
"""Metadata of the column `bucket`: the bounds of the buckets. As part of the schema, they change with the data."""

REMOVED_COLUMN = "removed_time_ns"
SCHEMA_COLUMN = "schema"
"""Column with the reference (`orders@3`) of the version that a row's typed columns follow; NULL: they are NULL."""
FORMAT_COLUMN = "data_format"
"""Column with the spelling of a payload that is not kept; NULL: `data` has it."""

TABLE_DDL = (
    "subject string, seq bigint, time timestamp, time_ns bigint, headers map<string, array<string>>, data binary, "
    "header_block binary, subject_bytes binary"
)
TABLE_COLUMNS = tuple(
    column.split()[0] for column in TABLE_DDL.replace("map<string, array<string>>", "map").split(", ")
)
"""Columns that every table has, in order."""
REMOVED_DDL = f", {REMOVED_COLUMN} bigint"
"""Additional column of archives."""
_OWN = frozenset((*TABLE_COLUMNS, REMOVED_COLUMN, SCHEMA_COLUMN, FORMAT_COLUMN))

END = (1 << 63) - 1
"""Above every sequence."""
LAST_TEXT = "\U0010ffff"
"""Above every subject."""

HEADER_LINE = b"NATS/1.0\r\n"
Headers = list[tuple[str, list[str]]]

# Characters that Hive-style partition directories escape (Spark ExternalCatalogUtils), besides control characters.
_ESCAPED = frozenset(b"\"#%'*/:=?\\{[]^ <>|") | frozenset(range(0x20)) | {0x7F}
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


class Layout(msgspec.Struct, frozen=True):
    """Partitioning of a table: by subject, by some of its tokens, by bucket, or by time and typed columns (`fields`).

    `terms`: of the kind `fields`, in order: `day` or `hour`, and typed columns after a `$` (`split_term`).

    A bucket is a range of subjects: `bounds` has the first subject of each bucket except the first, ascending by their
    UTF-8 bytes. So each file holds a narrow range, and `WHERE subject = …` skips most files in any engine.
    """

    kind: str = "subject"
    tokens: tuple[int, ...] = ()
    bounds: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """Return the partition columns."""
        if self.kind == "fields":
            found, number = list[str](), 0
            for term in self.terms:
                number += term.startswith("$")
                times = [BY_DAY] if term == "day" else [BY_DAY, BY_HOUR]
                found += [f"{BY_FIELD}{number}"] if term.startswith("$") else times
            return found
        if self.kind == "subject":
            return ["subject"]
        return ["bucket"] if self.kind == "bucket" else [f"token{token}" for token in self.tokens]

    @property
    def ddl(self) -> str:
        """Return the DDL of the columns that the table has in addition to TABLE_DDL, with a leading comma, or ""."""
        if self.kind == "bucket":
            return ", bucket int"
        if self.kind == "fields":
            types = {BY_DAY: "date", BY_HOUR: "int"}
            return "".join(f", {column} {types.get(column, 'string')}" for column in self.columns)
        return "".join(f", {column} string" for column in self.columns if column != "subject")

    def field(self, column: str) -> str:
        """Return the term that `by_field1` … has the value of, without its `$`."""
        fields = [term[1:] for term in self.terms if term.startswith("$")]
        return fields[int(column.removeprefix(BY_FIELD)) - 1]

    def metadata(self, column: str) -> dict[str, Any]:
        """Return the metadata of a column that the layout adds. As part of the schema, it changes with the data."""
        if column == "bucket":
            return {BOUNDS_METADATA: list(self.bounds)}
        return {FIELD_METADATA: self.field(column)} if column.startswith(BY_FIELD) else {}

    def expressions(self) -> list[str]:
        """Return those columns as Spark SQL over `subject`; lakestream_client.lake.partitions has those of fields."""
        if self.kind == "bucket":
            cases = [f"WHEN subject < {quoted(bound)} THEN {number}" for number, bound in enumerate(self.bounds)]
            last = len(self.bounds)
            return [f"CAST(CASE {' '.join(cases)} ELSE {last} END AS INT) AS bucket" if cases else "0 AS bucket"]
        if self.kind == "tokens":
            # Beyond the subject's end there is no token, and get() gives NULL; an empty one becomes NULL in Delta.
            return [f"nullif(get(split(subject, '[.]'), {token - 1}), '') AS token{token}" for token in self.tokens]
        return []

    def values(self, subject: str) -> tuple[str | int | None, ...]:
        """Return the values of the partition columns for a subject.

        The same as `expressions`: an empty token is NULL, as is one beyond the subject's end.
        """
        if self.kind == "subject":
            return (subject,)
        if self.kind == "bucket":
            return (bucket_of(subject, self.bounds),)
        tokens = subject.split(".")
        return tuple((tokens[at - 1] or None) if at <= len(tokens) else None for at in self.tokens)


SUBJECT = Layout()


def split_term(term: str) -> tuple[str, list[str]]:
    """Return the function ("", month, day or hour) and the path of a term: `$a`, `$a.b` or `$day(a.b)`."""
    function, opened, path = term.removeprefix("$").rstrip(")").rpartition("(")
    return (function if opened else ""), path.split(".")


def layout_of(columns: Sequence[str], schema: str) -> Layout | None:
    """Return the layout of an existing table; None when it is none of lakestream's.

    Args:
        columns: its partition columns.
        schema: the JSON of its columns, as in the log.
    """
    if list(columns) == ["subject"]:
        return SUBJECT
    if list(columns) == ["bucket"]:
        bounds = next((each.metadata.get(BOUNDS_METADATA) for each in fields_of(schema) if each.name == "bucket"), None)
        return None if bounds is None else Layout("bucket", bounds=tuple(bounds))
    if columns and all(map(_of_fields, columns)):
        found = {each.name: each.metadata.get(FIELD_METADATA) for each in fields_of(schema)}
        by_time = "hour" if BY_HOUR in columns else "day"
        named = [name for name in columns if name != BY_HOUR]
        terms = [f"${found.get(name)}" if name.startswith(BY_FIELD) else by_time for name in named]
        layout = Layout("fields", terms=tuple(terms))
        return layout if layout.columns == list(columns) and "$None" not in terms else None
    if columns and all(column.startswith("token") and column[5:].isdecimal() for column in columns):
        return Layout("tokens", tokens=tuple(int(column[5:]) for column in columns))
    return None


class SchemaField(msgspec.Struct, frozen=True):
    """A column of a table: its name, and its metadata for writers."""

    name: str
    metadata: dict[str, Any] = {}


class _Schema(msgspec.Struct, frozen=True):
    fields: list[SchemaField] = []


_SCHEMA = JsonDecoder(_Schema)


def fields_of(schema: str) -> list[SchemaField]:
    """Return the columns of a table, without the fields of structs. `schema`: the JSON of its schema, as in the log."""
    return _SCHEMA.decode(schema).fields


def column_names(schema: str) -> list[str]:
    """Return the names of `fields_of`."""
    return [field.name for field in fields_of(schema)]


def _of_fields(column: str) -> bool:
    number = column.removeprefix(BY_FIELD)
    return column in (BY_DAY, BY_HOUR) or (number != column and number.isascii() and number.isdecimal())


def is_partition_value(column: str) -> bool:
    """Return True for a column that only a layout adds: `bucket`, `token1`, `by_day` …"""
    by_token = column.startswith("token") and column[5:].isascii() and column[5:].isdecimal()
    return column == "bucket" or by_token or _of_fields(column)


def is_own(column: str) -> bool:
    """Return True for a column that every table has or that follows from its layout."""
    return column in _OWN or is_partition_value(column)


def bucket_of(subject: str, bounds: Sequence[str]) -> int:
    """Return the bucket of a subject: the number of bounds at or below it, by UTF-8 bytes (as Spark compares)."""
    # Code points order as their UTF-8 does.
    return bisect_right(bounds, subject)


def quoted(text: str) -> str:
    """Return a string as a Spark SQL literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def ticked(name: str) -> str:
    """Return a name in Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Return a string as a literal of standard SQL, as DuckDB and DataFusion take it."""
    return "'" + text.replace("'", "''") + "'"


def doubled(name: str) -> str:
    """Return a name in standard SQL."""
    return '"' + name.replace('"', '""') + '"'


def fits_partition(value: str) -> bool:
    """Return True if a subject, or a token of one, can be a partition value.

    Its directory name has to be short enough and not Hive's word for NULL, and cannot contain a zero byte.
    """
    raw = value.encode()
    escaped = len("subject=") + len(raw) + 2 * sum(byte in _ESCAPED for byte in raw)
    return escaped <= MAX_PARTITION_NAME and value != NULL_PARTITION and "\0" not in value


def escaped(value: str | None) -> str:
    """Return a partition value as Hive-style directories spell it."""
    if value is None:
        return NULL_PARTITION
    return "".join(f"%{ord(char):02X}" if ord(char) in _ESCAPED else char for char in value)


def table_schema(columns: Iterable[str]) -> pa.Schema:
    """Return the Arrow types of a table's columns."""
    import pyarrow as pa

    types: dict[str, Any] = {
        "seq": pa.int64(),
        "time": pa.timestamp("us", "UTC"),
        "time_ns": pa.int64(),
        "headers": headers_type(),
        "data": pa.binary(),
        "header_block": pa.binary(),
        "subject_bytes": pa.binary(),
        "bucket": pa.int32(),
        BY_DAY: pa.date32(),
        BY_HOUR: pa.int32(),
        REMOVED_COLUMN: pa.int64(),
    }
    return pa.schema([(name, types.get(name, pa.string())) for name in columns])


def message_schema(archive: bool = False) -> pa.Schema:
    """Return the Arrow schema of decoded segments (archives: with REMOVED_COLUMN); the compactor adds `time` and
    `bucket`."""
    columns = [column for column in TABLE_COLUMNS if column != "time"]
    return table_schema([*columns, REMOVED_COLUMN] if archive else columns)


def headers_type() -> pa.DataType:
    """Return the Arrow type of the `headers` column."""
    import pyarrow as pa

    return pa.map_(pa.string(), pa.list_(pa.string()))


def subject_text(subject: bytes) -> tuple[str, bytes | None]:
    """Return a raw subject as (text of the `subject` column, `subject_bytes`: None when the text is exact).

    NATS does not require UTF-8; an invalid byte is shown as `\\xNN`.
    """
    try:
        return subject.decode(), None
    except UnicodeDecodeError:
        return subject.decode(errors="backslashreplace"), subject


@lru_cache(maxsize=1024)
def split_headers(block: bytes) -> tuple[Headers, bytes | None]:
    """Return a raw header block as (names and values, `header_block`).

    Names are in the order of their first line and case-sensitive (ADR-4). The second part is None when `join_headers`
    reproduces the block, else the block itself. A block that is no header block at all has no names.
    """
    values: dict[str, list[str]] = {}
    for line in block.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon and name:
            values.setdefault(_text(name), []).append(_text(value.removeprefix(b" ")))
    headers = list(values.items())
    return headers, None if join_headers(headers) == block else block


def join_headers(headers: Sequence[tuple[str, Sequence[str]]]) -> bytes:
    """Return the header block in its usual spelling: `Name: value`, lines in order, values of one name together."""
    lines = [f"{name}: {value}\r\n" for name, values in headers for value in values]
    return HEADER_LINE + "".join(lines).encode() + b"\r\n"


def _text(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")
