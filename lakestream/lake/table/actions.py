"""Actions of a Delta transaction log, as the log's reader decodes them.

Belongs here: the records of one log line, file statistics, a data file as states keep it, and the paths that actions
name. Fields keep the protocol's
names in snake case; kinds and fields that lakestream does not use decode to nothing.

Source: Delta protocol, "Actions", "Add CDC File", "Per-file Statistics", "Deletion Vectors".
"""

from __future__ import annotations

import base64
import uuid
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from lakestream.lake.errors import BadDeletionVector
from lakestream.lake.storage.clouds import urls
from lakestream.lake.table.ends import End, stated
from lakestream.lake.table.schema import END, LAST_TEXT
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder

_UUID_LENGTH = 20
# Z85 (ZeroMQ) has the digits of base64.b85decode in another order.
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_FROM_Z85 = bytes.maketrans(_Z85, _B85)
_TO_Z85 = bytes.maketrans(_B85, _Z85)

Key = tuple[str, str]
"""Key of a file within a table version: the path as the log spells it, and the deletion vector's key."""


class DeletionVector(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, rename="camel"):
    """Descriptor of a deletion vector: where the positions of a file's deleted rows are."""

    storage_type: str
    path_or_inline_dv: str
    size_in_bytes: int
    cardinality: int
    offset: int | None = None

    @property
    def key(self) -> str:
        """Return the protocol's unique id of the vector, which tells it from other vectors of the same file."""
        return f"{self.storage_type}{self.path_or_inline_dv}@{self.offset}"


class AddFile(msgspec.Struct, frozen=True, rename="camel"):
    """A data file of the table. `path` is spelled as in the log; see `locate`."""

    path: str
    partition_values: dict[str, str | None] = {}
    size: int = 0
    modification_time: int = 0
    stats: str | None = None
    deletion_vector: DeletionVector | None = None
    tags: dict[str, str | None] | None = None
    data_change: bool = True


class RemoveFile(msgspec.Struct, frozen=True, rename="camel"):
    """A data file that left the table; in a checkpoint, a tombstone."""

    path: str
    partition_values: dict[str, str | None] | None = None
    size: int | None = None
    deletion_timestamp: int | None = None
    deletion_vector: DeletionVector | None = None
    stats: str | None = None
    data_change: bool = True


class AddCdc(msgspec.Struct, frozen=True, rename="camel"):
    """A file of the change data feed: the changed rows of one commit, with `_change_type`."""

    path: str
    partition_values: dict[str, str | None] = {}
    size: int = 0


class MetaData(msgspec.Struct, frozen=True, rename="camel"):
    """The table's identity, schema, partition columns and properties."""

    id: str = ""
    schema_string: str = "{}"
    partition_columns: list[str] = []
    configuration: dict[str, str] = {}


class TableProtocol(msgspec.Struct, frozen=True, rename="camel"):
    """The reader version and features that the table demands."""

    min_reader_version: int = 1
    reader_features: list[str] | None = None


class Transaction(msgspec.Struct, frozen=True, rename="camel"):
    """Progress of one application, in its own numbering."""

    app_id: str
    version: int


class CommitInfo(msgspec.Struct, frozen=True, rename="camel"):
    """Provenance of a commit. Times are ms since the epoch."""

    operation: str = ""
    timestamp: int | None = None
    in_commit_timestamp: int | None = None
    user_metadata: str | None = None
    operation_metrics: dict[str, Any] = {}


class Action(msgspec.Struct, frozen=True, rename="camel"):
    """One line of a commit, or one row of a checkpoint: at most one field is set."""

    add: AddFile | None = None
    remove: RemoveFile | None = None
    cdc: AddCdc | None = None
    meta_data: MetaData | None = None
    protocol: TableProtocol | None = None
    txn: Transaction | None = None
    commit_info: CommitInfo | None = None


class ColumnBounds(msgspec.Struct, frozen=True, gc=False):
    """Bounds of the columns by which messages are found, as far as a file's statistics have them."""

    seq: int | None = None
    time_ns: int | None = None
    subject: str | None = None


class NullCounts(msgspec.Struct, frozen=True, gc=False):
    """Rows without a value in columns that many streams leave empty."""

    headers: int = 0
    header_block: int = 0
    subject_bytes: int = 0


class AddStatistics(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Statistics of a data file. `rows`, `min_seq` and `max_seq` are 0 where the statistics lack them."""

    num_records: int | None = None
    null_count: NullCounts = NullCounts()
    min_values: ColumnBounds = ColumnBounds()
    max_values: ColumnBounds = ColumnBounds()

    @property
    def rows(self) -> int:
        """Return the number of rows, deleted ones included."""
        return self.num_records or 0

    @property
    def min_seq(self) -> int:
        """Return the lowest sequence."""
        return self.min_values.seq or 0

    @property
    def max_seq(self) -> int:
        """Return the highest sequence."""
        return self.max_values.seq or 0


_STATISTICS = JsonDecoder(AddStatistics)


def statistics(add: AddFile | RemoveFile) -> AddStatistics:
    """Decode the statistics of a data file; empty ones where they are missing or of another table's kind."""
    try:
        return _STATISTICS.decode(add.stats) if add.stats else AddStatistics()
    except DECODE_ERRORS:
        return AddStatistics()


class TableFile(msgspec.Struct, frozen=True, gc=False):
    """A data file of a state.

    `path` is spelled as in the log; see `actions.locate`. `added` is the version that brought the file, or its present
    deletion vector; of files that were there when the table was loaded it may be a later one. `subject` is the value of
    a table's partition column of that name, which is then not in the file. Bounds are 0, `END` or `LAST_TEXT`, and
    `rows` is 0, where the statistics lack them. The bounds of subjects have at most 32 characters, yet are true bounds.
    `empty` are columns of `NullCounts` without any value.
    """

    path: str
    added: int
    min_seq: int
    max_seq: int
    min_time: int
    max_time: int
    rows: int
    size: int
    min_subject: str
    max_subject: str
    subject: str | None
    deleted: DeletionVector | None
    end: End | None = None
    empty: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """Return True if the statistics have rows, and bounds of sequences and times."""
        return bool(self.rows and self.min_seq and self.min_time) and self.max_seq < END and self.max_time < END


_EMPTY: dict[tuple[str, ...], tuple[str, ...]] = {}
"""The values of `TableFile.empty`, of which there are few."""


def table_file(add: AddFile, added: int = 0, texts: dict[str, str] | None = None) -> TableFile:
    """Return the file of an action. `texts` has one object for each subject that bounds several files; None: the file
    comes without bounds of times and subjects."""
    stats = statistics(add)
    low, high = stats.min_values, stats.max_values
    min_time, max_time, first, last, subject = 0, END, "", LAST_TEXT, None
    if texts is not None:
        min_time, max_time = low.time_ns or 0, END if high.time_ns is None else high.time_ns
        subject = add.partition_values.get("subject")
        first = (low.subject or "") if subject is None else subject
        last = (LAST_TEXT if high.subject is None else high.subject) if subject is None else subject
        first, last = texts.setdefault(first, first), texts.setdefault(last, last)
        subject = None if subject is None else first
    counts = msgspec.structs.asdict(stats.null_count).items()
    empty = tuple(name for name, count in counts if stats.rows and count == stats.rows)
    return TableFile(
        add.path,
        added,
        low.seq or 0,
        END if high.seq is None else high.seq,
        min_time,
        max_time,
        stats.rows,
        add.size,
        first,
        last,
        subject,
        add.deletion_vector,
        stated(add.tags),
        _EMPTY.setdefault(empty, empty),
    )


def key_of(action: AddFile | RemoveFile) -> Key:
    """Return the key of a file within a table version."""
    vector = action.deletion_vector
    return action.path, "" if vector is None else vector.key


def locate(table: str, path: str) -> str:
    """Return the path of a file that the log calls `path`: relative, absolute or a URI, percent-encoded."""
    scheme, colon, rest = path.partition(":")
    if colon and scheme == "file":
        return unquote(urlsplit(path).path)
    if rest.startswith("//") and scheme in urls.SPELLINGS:
        return urls.canonical(f"{scheme}:{unquote(rest)}")
    return unquote(path) if path.startswith("/") else f"{table}/{unquote(path)}"


def vector_file(table: str, vector: DeletionVector) -> str | None:
    """Return the path of a deletion vector's file; None for an inline vector.

    Raises:
        BadDeletionVector: the descriptor is of an unknown kind, or does not decode.
    """
    if vector.storage_type == "p":
        return locate(table, vector.path_or_inline_dv)
    if vector.storage_type == "i":
        return None
    if vector.storage_type != "u":
        raise BadDeletionVector(f"{table}: a deletion vector of unknown kind {vector.storage_type!r}")
    prefix, encoded = vector.path_or_inline_dv[:-_UUID_LENGTH], vector.path_or_inline_dv[-_UUID_LENGTH:]
    name = f"deletion_vector_{uuid.UUID(bytes=from_z85(encoded))}.bin"
    return f"{table}/{prefix}/{name}" if prefix else f"{table}/{name}"


def located(table: str, action: AddFile | RemoveFile) -> list[str]:
    """Return the paths of the files of an action: the data file and its deletion vector's."""
    found = [locate(table, action.path)]
    if action.deletion_vector is not None and (path := vector_file(table, action.deletion_vector)) is not None:
        found.append(path)
    return found


def from_z85(text: str) -> bytes:
    """Decode Z85, in which descriptors spell UUIDs and inline vectors. Raises BadDeletionVector."""
    try:
        return base64.b85decode(text.encode().translate(_FROM_Z85))
    except ValueError as error:
        raise BadDeletionVector(f"a deletion vector is not spelled in Z85: {error}") from None


def to_z85(raw: bytes) -> str:
    """Encode bytes (a multiple of four) in Z85."""
    return base64.b85encode(raw).translate(_TO_Z85).decode()
