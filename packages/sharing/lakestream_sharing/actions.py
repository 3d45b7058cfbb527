"""Lines of responses, in the formats parquet and delta.

Belongs here: which format an answer has, and actions of a table's log as the protocol's JSON. Files get their URLs from
the caller. Recipients see no properties of a table but those that readers need.

Source: Delta Sharing protocol, "API Response Format in Parquet", "API Response Format in Delta"; Delta protocol, "Table
Features", "Actions".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from lakestream.lake.table.actions import (
    AddCdc,
    AddFile,
    DeletionVector,
    MetaData,
    RemoveFile,
    TableProtocol,
    vector_file,
)
from lakestream.lake.table.encryption import ENCRYPTED
from lakestream_sharing.errors import Unsupported
from lakestream_sharing.requests import DELTA, PARQUET, Capabilities

VECTORS = "deletionVectors"
COLUMN_MAPPING = "columnMapping"
_OF_THE_LOG = frozenset(("v2Checkpoint", "vacuumProtocolCheck", "inCommitTimestamp"))
"""Features that concern readers of the log only, which recipients do not see."""
_PASSED = ("delta.enableDeletionVectors", "delta.columnMapping.mode", "delta.columnMapping.maxColumnId")
CHANGE_FEED = "delta.enableChangeDataFeed"

FileAction = AddFile | RemoveFile | AddCdc


class Change(msgspec.Struct, frozen=True):
    """A file of one commit, in an answer with changes. `time_ms`: of the commit."""

    action: FileAction
    version: int
    time_ms: int


def features(protocol: TableProtocol) -> frozenset[str]:
    """Return the features that a recipient must know to read a table."""
    if protocol.min_reader_version == 2:
        return frozenset((COLUMN_MAPPING,))
    return frozenset(protocol.reader_features or ()) - _OF_THE_LOG


def is_enabled(metadata: MetaData, name: str) -> bool:
    """Return True if a property of a table is `true`."""
    return metadata.configuration.get(name, "").lower() == "true"


def choose_format(
    asked: Capabilities, protocol: TableProtocol, metadata: MetaData, files: Iterable[FileAction] = ()
) -> str:
    """Return the format of an answer: parquet if it can show the rows and the client does not ask for delta alone.

    Without files, delta is preferred where deleted rows may come later, so that a client stays with one format.

    Raises:
        Unsupported: the client would read wrong rows.
    """
    if is_enabled(metadata, ENCRYPTED):
        raise Unsupported("the table is encrypted: its files are of no use without a key, which is not shared")
    needed = features(protocol)
    if metadata.configuration.get("delta.columnMapping.mode", "none") != "none":
        needed |= {COLUMN_MAPPING}
    unknown = sorted(each for each in needed if each.lower() not in asked.features)
    if DELTA in asked.formats and (not unknown or PARQUET not in asked.formats):
        if unknown:
            raise Unsupported(f"the table needs a client with readerfeatures={','.join(unknown).lower()}")
        return DELTA if needed or PARQUET not in asked.formats else PARQUET
    if beyond := sorted(needed - {VECTORS}):
        raise Unsupported(f"the table uses {', '.join(beyond)}: it needs a client with responseformat=delta")
    if any(_vector(each) is not None for each in files):
        raise Unsupported(
            "rows of the table are deleted by deletion vectors, which the parquet format would show: use a client with "
            "responseformat=delta;readerfeatures=deletionvectors"
        )
    return PARQUET


def paths_of(actions: Iterable[FileAction], table: str, locate: Callable[[str, str], str]) -> list[str]:
    """Return the paths of data files and deletion vectors, without repetitions."""
    found: dict[str, None] = {}
    for action in actions:
        found[locate(table, action.path)] = None
        vector = _vector(action)
        if vector is not None and (path := vector_file(table, vector)) is not None:
            found[path] = None
    return list(found)


class Lines:
    """Lines of one answer.

    Args:
        form: parquet or delta.
        table: the table's path, which paths of actions are relative to.
        locate: returns the path of a file that an action names.
        urls: URLs by path.
        expires_ms: when they end.
    """

    def __init__(
        self, form: str, table: str, locate: Callable[[str, str], str], urls: Mapping[str, str], expires_ms: int
    ) -> None:
        self._form, self._table, self._locate, self._urls, self._expires = form, table, locate, urls, expires_ms

    def protocol(self, protocol: TableProtocol, metadata: MetaData) -> dict[str, Any]:
        """Return the first line."""
        if self._form == PARQUET:
            return {"protocol": {"minReaderVersion": 1}}
        return {"protocol": {"deltaProtocol": _delta_protocol(protocol, is_enabled(metadata, CHANGE_FEED))}}

    def metadata(
        self, metadata: MetaData, files: Iterable[AddFile] | None = None, version: int | None = None
    ) -> dict[str, Any]:
        """Return the line of a table's metadata. `files`: of the version, for their number and size."""
        shared: dict[str, Any] = {
            "id": metadata.id,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": metadata.schema_string,
            "partitionColumns": metadata.partition_columns,
            "configuration": {},
        }
        more: dict[str, Any] = {} if version is None else {"version": version}
        if files is not None:
            sizes = [each.size for each in files]
            more |= {"size": sum(sizes), "numFiles": len(sizes)}
        if self._form == PARQUET:
            if is_enabled(metadata, CHANGE_FEED):
                shared["configuration"] = {"enableChangeDataFeed": "true"}
            return {"metaData": shared | more}
        names = (*_PASSED, CHANGE_FEED)
        shared["configuration"] = {
            name: metadata.configuration[name] for name in names if name in metadata.configuration
        }
        return {"metaData": {"deltaMetadata": shared, **more}}

    def file(self, add: AddFile, version: int | None = None, time_ms: int | None = None) -> dict[str, Any]:
        """Return the line of a file of a version. Version and time are given where a request names a point."""
        if self._form == PARQUET:
            return {"file": self._plain(add, version, time_ms)}
        return {"file": self._wrapped(add, version, time_ms)}

    def change(self, change: Change) -> dict[str, Any]:
        """Return the line of a file that a commit added, removed, or wrote for the change data feed."""
        action = change.action
        if self._form == PARQUET:
            kind = "add" if isinstance(action, AddFile) else "cdf" if isinstance(action, AddCdc) else "remove"
            return {kind: self._plain(action, change.version, change.time_ms)}
        return {"file": self._wrapped(action, change.version, change.time_ms)}

    # ------------------------------------------------------------------ parts
    def _plain(self, action: FileAction, version: int | None, time_ms: int | None) -> dict[str, Any]:
        path = self._locate(self._table, action.path)
        values = action.partition_values or {}
        found: dict[str, Any] = {
            "url": self._urls[path],
            "id": _id(action.path),
            # The protocol spells a null as the empty string.
            "partitionValues": {name: value or "" for name, value in values.items()},
            "size": action.size or 0,
            "expirationTimestamp": self._expires,
        }
        if isinstance(action, AddFile) and action.stats:
            found["stats"] = action.stats
        return found | _at(version, time_ms)

    def _wrapped(self, action: FileAction, version: int | None, time_ms: int | None) -> dict[str, Any]:
        path = self._locate(self._table, action.path)
        inner: dict[str, Any] = {
            "path": self._urls[path],
            "partitionValues": action.partition_values or {},
            "size": action.size or 0,
        }
        found: dict[str, Any] = {
            "id": _id(action.path),
            "size": action.size or 0,
            "expirationTimestamp": self._expires,
            **_at(version, time_ms),
        }
        if (vector := _vector(action)) is not None:
            inner["deletionVector"], file_id = self._shown_vector(vector)
            if file_id:
                found["deletionVectorFileId"] = file_id
        if isinstance(action, AddFile):
            kind = "add"
            inner |= {"modificationTime": action.modification_time, "dataChange": action.data_change}
            if action.stats:
                inner["stats"] = action.stats
        elif isinstance(action, RemoveFile):
            kind = "remove"
            inner |= {"deletionTimestamp": action.deletion_timestamp or time_ms or 0, "dataChange": action.data_change}
            inner["extendedFileMetadata"] = True
        else:
            kind = "cdc"
            inner["dataChange"] = False
        return {**found, "deltaSingleAction": {kind: inner}}

    def _shown_vector(self, vector: DeletionVector) -> tuple[dict[str, Any], str]:
        """Return a vector's descriptor with a URL instead of a path, and the id of its file ("": it is inline)."""
        path = vector_file(self._table, vector)
        if path is not None:
            shown = msgspec.structs.replace(vector, storage_type="p", path_or_inline_dv=self._urls[path])
            return msgspec.to_builtins(shown), _id(vector.key)
        return msgspec.to_builtins(vector), ""


def end_of_stream(expires_ms: int, refresh_token: str = "") -> dict[str, Any]:
    """Return the line by which a client knows that nothing is missing."""
    found: dict[str, Any] = {"minUrlExpirationTimestamp": expires_ms}
    if refresh_token:
        found["refreshToken"] = refresh_token
    return {"endStreamAction": found}


def limited(files: Iterable[AddFile], rows: Callable[[AddFile], int | None], limit: int | None) -> list[AddFile]:
    """Return the first files that have `limit` rows together; all of them if statistics do not tell."""
    if limit is None:
        return list(files)
    found: list[AddFile] = []
    for add in files:
        if limit <= 0:
            break
        found.append(add)
        limit -= rows(add) or 0
    return found


def _vector(action: FileAction) -> DeletionVector | None:
    return None if isinstance(action, AddCdc) else action.deletion_vector


def _delta_protocol(protocol: TableProtocol, has_feed: bool) -> dict[str, Any]:
    """Return a protocol that asks of readers what the table does, and of writers no more than belongs to it."""
    if protocol.min_reader_version == 2:
        return {"minReaderVersion": 2, "minWriterVersion": 5}
    names = sorted(features(protocol))
    if not names:
        return {"minReaderVersion": 1, "minWriterVersion": 4 if has_feed else 2}
    writers = [*names, "changeDataFeed"] if has_feed else names
    return {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": names, "writerFeatures": writers}


def _at(version: int | None, time_ms: int | None) -> dict[str, Any]:
    return {} if version is None else {"version": version, "timestamp": time_ms}


def _id(path: str) -> str:
    """Return the id of a file, which stays the same over all answers."""
    return hashlib.sha256(path.encode()).hexdigest()[:32]
