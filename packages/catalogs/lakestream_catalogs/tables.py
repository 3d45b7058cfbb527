"""The tables of a lake that are registered in catalogs.

Belongs here: finding them, of all accounts, and reading their columns, comments and properties from their logs. A table
is read again when a commit to it is announced, or at a full read; only commits since the last read are looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from lakestream.lake.catalogs.address import ICEBERG
from lakestream.lake.errors import LakeError, NotALake
from lakestream.lake.staging.scan import Scanner
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import identify, is_lake, open_storage, read_id
from lakestream.lake.table.log import TableLog, has_log
from lakestream.lake.table.schema import MISFITS_PROPERTY, STREAM_PROPERTY, TABLE_PROPERTY, UID_PROPERTY
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream_catalogs.entries import (
    ACCOUNT_PROPERTY,
    SEQUENCE_PROPERTY,
    TIME_NS_PROPERTY,
    TIME_PROPERTY,
    Column,
    Table,
)

HINT = "version-hint.text"
"""File with the version of an Iceberg table."""
MAX_TABLES = 10_000
"""Maximum number of tables of a lake that are registered; further ones, by path, are not."""

_COMMENTS = {
    "subject": "subject of the message",
    "seq": "stream sequence",
    "time": "time at which the stream stored the message, in µs, UTC",
    "time_ns": "the same in ns since the epoch",
    "headers": "headers of the message; NULL: none",
    "data": "payload",
    "header_block": "headers as bytes, where `headers` does not give them back",
    "subject_bytes": "subject as bytes, where it is not UTF-8",
    "bucket": "number of the range of subjects",
    "removed_time_ns": "time at which the message left the stream, in ns since the epoch; NULL: it has not",
    "schema": "version of the schema that the typed columns follow; NULL: they are NULL",
    "data_format": "spelling of a payload that is not in `data`",
}
_MISFIT_COMMENTS = {
    "seq": "stream sequence",
    "time": "time at which the stream stored the message",
    "subject": "subject of the message",
    "schema": "version of the schema that the message should fit; NULL: unknown",
    "field": "field of the payload that does not fit",
    "rule": "rule that it breaks",
    "reason": "the misfit, as text",
}
"""Comments of lakestream's own columns."""


class Tables(msgspec.Struct, frozen=True):
    """Result of a read: the lake's id, its tables by path, and errors by the path of a table.

    `unread` has the keys of tables that are there and not among `tables`: their entries stay as they are.
    """

    lake: str
    tables: tuple[Table, ...]
    troubles: dict[str, str] = {}
    unread: frozenset[str] = frozenset()

    def of(self, form: str) -> Tables:
        """Return the tables that a catalog for tables of a format has: those of Iceberg, or all without these."""
        if form == ICEBERG:
            wanted = tuple(table for table in self.tables if table.pointer)
        else:
            wanted = tuple(msgspec.structs.replace(table, pointer="") for table in self.tables)
        return msgspec.structs.replace(self, tables=wanted)


class _Field(msgspec.Struct, frozen=True):
    """Field of a Delta schema."""

    name: str
    type: Any
    nullable: bool = True
    metadata: dict[str, Any] = {}


class _Schema(msgspec.Struct, frozen=True):
    fields: list[_Field] = []


class _MetaData(msgspec.Struct, frozen=True, rename="camel"):
    """Parts of a metaData action that entries show."""

    schema_string: str = "{}"
    description: str | None = None
    partition_columns: list[str] = []
    configuration: dict[str, str] = {}


class _Known(msgspec.Struct):
    """State of a table's log at the last read."""

    version: int
    tag: str | None
    metadata: _MetaData
    fields: list[_Field]


_SCHEMA = msgspec.json.Decoder(_Schema)


class LakeTables:
    """Reads the tables of one lake. Not for use by two threads at once.

    Args:
        lake: the lake's root.
        iceberg: look for their Iceberg tables, too.
    """

    def __init__(self, lake: str, iceberg: bool = False) -> None:
        self._iceberg = iceberg
        self._storage = open_storage(lake)
        self._root = self._storage.root
        self._scanner = Scanner(lake)
        self._known: dict[str, _Known] = {}

    def read(self, changed: Collection[str] | None = None) -> Tables:
        """Return the tables as they are now.

        A table whose log cannot be read is as it was, and is among the troubles.

        Args:
            changed: paths of tables with commits since the last read; by default any may have some.

        Raises:
            NotALake: the lake is not there.
            OSError, LakeError: it cannot be listed.
        """
        places = list(self._places())
        troubles: dict[str, str] = {}
        unread: set[str] = set()
        for path in places[:]:
            if path in self._known and changed is not None and path not in changed:
                continue
            try:
                if not self._look(path):
                    places.remove(path)
            except (OSError, LakeError, *DECODE_ERRORS) as error:
                troubles[path] = f"{path}: {str(error).partition(chr(10))[0] or type(error).__name__}"
                if path not in self._known:
                    places.remove(path)
                    unread.add(path)
        self._known = {path: self._known[path] for path in places}
        for path in places[MAX_TABLES:]:
            troubles[path] = f"{path} is not registered: a lake registers at most {MAX_TABLES} tables"
            unread.add(path)
        found = self._described(places[:MAX_TABLES])
        # Last: where the lake has vanished meanwhile, its tables only seem to be gone.
        lake = read_id(self._storage)
        if not lake:
            if not is_lake(self._storage):
                raise NotALake(self._root)
            lake = identify(self._storage)
        return Tables(lake, tuple(found), troubles, frozenset(map(self._key, unread)))

    def _places(self) -> Iterator[str]:
        """Yield the directories of tables, sorted by account."""
        accounts = f"{self._root}/{paths.ACCOUNTS}"
        for base in (self._root, *(f"{accounts}/{name}" for name in sorted(self._storage.directories(accounts)))):
            for name in sorted(self._storage.directories(f"{base}/{paths.STREAMS}")):
                yield f"{base}/{paths.STREAMS}/{name}"

    def _look(self, path: str) -> bool:
        """Read what is new in a table's log. Return False if there is no table."""
        known = self._known.get(path)
        if known is None and not has_log(self._storage, path):
            return False
        log = TableLog(self._storage, path)
        newest = max(log.commits[-1:] + log.checkpoints[-1:], default=-1)
        if newest < 0:
            return False
        tag = log.tag(newest)
        if known is not None and known.version <= newest and log.tag(known.version) == known.tag:
            with suppress(FileNotFoundError):  # a commit has been cleaned up
                if (changed := log.metadata_between(known.version, newest)) is None:
                    self._known[path] = msgspec.structs.replace(known, version=newest, tag=tag)
                    return True
                self._know(path, newest, tag, changed)
                return True
        self._know(path, newest, tag, log.metadata_of(newest))
        return True

    def _know(self, path: str, version: int, tag: str | None, found: dict[str, Any]) -> None:
        metadata = msgspec.convert(found, _MetaData)
        self._known[path] = _Known(version, tag, metadata, _SCHEMA.decode(metadata.schema_string).fields)

    def _key(self, path: str) -> str:
        return path.removeprefix(f"{self._root}/")

    def _described(self, places: list[str]) -> Iterator[Table]:
        descriptions = {
            (stream.identity.account, stream.identity.uid): _description(stream.identity.config)
            for stream in self._scanner.scan()
            if not stream.deleted
        }
        names = {
            (paths.stream_of(self._root, path)[0], uid): _stream(path, self._known[path].metadata)
            for path in places
            if (uid := self._known[path].metadata.configuration.get(UID_PROPERTY))
        }
        for path in places:
            metadata = self._known[path].metadata
            account = paths.stream_of(self._root, path)[0]
            key, stream, given = self._key(path), _stream(path, metadata), metadata.configuration
            properties = {TABLE_PROPERTY: key, ACCOUNT_PROPERTY: account}
            if (origin := given.get(MISFITS_PROPERTY)) is not None:
                of = names.get((account, origin), "")
                properties |= {STREAM_PROPERTY: of, UID_PROPERTY: origin, MISFITS_PROPERTY: of}
                comment, comments = f"Messages of stream {of} that do not fit their schema", _MISFIT_COMMENTS
            else:
                uid = given.get(UID_PROPERTY, "")
                properties |= {STREAM_PROPERTY: stream, UID_PROPERTY: uid, TIME_NS_PROPERTY: "time_ns"}
                comment = descriptions.get((account, uid)) or metadata.description or f"Stream {stream}"
                comments = _COMMENTS
            properties |= {TIME_PROPERTY: "time", SEQUENCE_PROPERTY: "seq"}
            columns = tuple(_column(each, comments) for each in self._known[path].fields)
            names_there = {column.name for column in columns}
            hints = (TIME_PROPERTY, TIME_NS_PROPERTY, SEQUENCE_PROPERTY)
            kept = {
                name: value
                for name, value in properties.items()
                if value and (name not in hints or value in names_there)
            }
            partitioned_by, pointer = tuple(metadata.partition_columns), self._pointer(path)
            yield Table(key, path, account, stream, comment, columns, partitioned_by, kept, pointer)

    def _pointer(self, path: str) -> str:
        """Return the newest metadata file of a table's Iceberg table; "" if it has none."""
        if self._iceberg:
            with suppress(FileNotFoundError, ValueError):
                return f"{path}/metadata/v{int(self._storage.read(f'{path}/metadata/{HINT}'))}.metadata.json"
        return ""


def _stream(path: str, metadata: _MetaData) -> str:
    """Return the name of the stream of a table, by its properties if it has them: directories may be cut."""
    return metadata.configuration.get(STREAM_PROPERTY) or paths.name_of(path.rpartition("/")[2])


def _description(config: msgspec.Raw) -> str:
    try:
        found = msgspec.json.decode(config)
    except DECODE_ERRORS:
        return ""
    return str(found.get("description") or "") if isinstance(found, dict) else ""


def _column(field: _Field, comments: dict[str, str]) -> Column:
    comment = str(field.metadata.get("comment") or comments.get(field.name, ""))
    return Column(field.name, field.type, comment, field.nullable)
