"""The Iceberg table of one Delta table.

Belongs here: bringing it to the newest Delta version, in one Iceberg commit whatever the number of Delta commits; and
making it anew where it cannot be read, or belongs to another table. It holds no state that the Delta log lacks, so a
crash anywhere costs nothing but that.

A Delta commit is visible only once its files are on disk, and the Iceberg commit follows it: so the same holds for
every file that a snapshot names.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import msgspec

from lakestream.lake.storage.lake import read_id
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table.actions import AddFile
from lakestream.lake.table.log import TableLog, has_log
from lakestream.lake.table.policy import tombstones_ns
from lakestream.lake.table.progress import TableProgress
from lakestream.lake.table.schema import (
    LAKE_PROPERTY,
    LATEST_PROPERTY,
    STREAM_PROPERTY,
    TABLE_PROPERTY,
    UID_PROPERTY,
)
from lakestream.schemas.naming import OFF
from lakestream_iceberg.changes import FILE, Change, Unclear, between, counted, since
from lakestream_iceberg.library import IcebergLibrary, is_damage
from lakestream_iceberg.metadata import FORMATS, format_of
from lakestream_iceberg.schema import iceberg_schema, partition_fields
from lakestream_spark.write import iceberg_files
from lakestream_spark.write.iceberg_files import DIRECTORY, VERSION
from lakestream_spark.write.maintainer import retention
from lakestream_spark.write.maintenance_plan import Policy

MAX_SNAPSHOTS = 25
"""Number of snapshots that are kept besides those of hours: each commit writes the list of all. With 100 that list was
half of the time of a commit."""
SWEEP_SECONDS = 600.0
"""Interval of deleting files of expired snapshots, and age that they must have; and of expiry without new commits."""
LOG_INDEX = "lakestream.log-index"
LAST_SEQ = "lakestream.last-seq"
MESSAGE_TIME = "lakestream.message-time-ns"
"""Property with the time of the newest message, in ns since the epoch."""
_NS = 1_000_000_000
_HOUR_NS = 3600 * _NS


class _State(msgspec.Struct, frozen=True):
    """State of an Iceberg table, as `IcebergTable.state` tells it. `oldest`: time of the first other snapshot, ms."""

    uuid: str = ""
    format: int = 0
    location: str = ""
    partition: list[str] = []
    oldest: int | None = None
    properties: dict[str, str] = {}

    @property
    def version(self) -> int:
        """Return the Delta version that it holds; -1 if it does not tell."""
        return int(self.properties.get(VERSION, "-1"))

    def hours(self, now_ms: int) -> int:
        """Return how many snapshots of hours there are at most."""
        return 0 if self.oldest is None else (now_ms - self.oldest) // 3_600_000


_STATE = msgspec.json.Decoder(_State)


class TableExport:
    """Keeps the Iceberg table of one Delta table. Not for use by two threads at once.

    Args:
        library: Iceberg's, for the lake of the table.
        storage: where the table is.
        table: its path.
        default: format of tables that state none: `v2`, `v3` or `off`.
    """

    def __init__(self, library: IcebergLibrary, storage: Storage, table: str, default: str = OFF) -> None:
        self._library, self._storage, self.table, self._default = library, storage, table, default
        self._log: TableLog | None = None
        self._metadata: dict[str, Any] = {}
        self._read_at = (-1, "")  # version and tag that it is of
        self._done: tuple[int, str] | None = None  # version and its tag that the Iceberg table is known to hold
        self._lake = ""
        self._swept = time.monotonic()
        self._expired = -SWEEP_SECONDS  # monotonic time of the last look for snapshots that are too old

    def run(self) -> bool:
        """Bring the Iceberg table to the newest Delta version; return True if it has changed.

        Raises:
            NotInIceberg: the table has no equivalent there.
        """
        if not has_log(self._storage, self.table):
            return self._clear()
        log = self._log = TableLog(self._storage, self.table) if self._log is None else self._log.renewed()
        if not log.versions:
            return False
        newest = log.latest
        tag = log.tag(newest) or ""
        if self._done == (newest, tag) and time.monotonic() - self._expired < SWEEP_SECONDS:
            return False
        self._read(log, newest, tag)
        form = format_of(self._metadata.get("configuration", {}), self._default)
        if form == OFF:
            changed = self._clear()
        else:
            changed = self._commit(log, newest, FORMATS[form])
            if not has_log(self._storage, self.table):  # removed meanwhile, and the directory made again
                self._clear()
        self._done = newest, tag
        return changed

    def _read(self, log: TableLog, newest: int, tag: str) -> None:
        """Read the table's metadata at its newest version."""
        version, known = self._read_at
        try:
            if not 0 <= version <= newest or log.tag(version) != known:
                raise FileNotFoundError
            found = log.metadata_between(version, newest)
        except FileNotFoundError:  # first read, another table, or commits have been cleaned up
            found = log.metadata_of(newest)
        self._metadata = self._metadata if found is None else found
        self._read_at = newest, tag

    def _clear(self) -> bool:
        """Delete the Iceberg table, if there is one that was written here."""
        found = iceberg_files.newest(self._storage, self.table)
        if found is None or not iceberg_files.is_ours(found):
            return False
        self._storage.delete_tree(f"{self.table}/{DIRECTORY}")
        return True

    def _commit(self, log: TableLog, newest: int, form: int) -> bool:
        schema = iceberg_schema(self.table, self._metadata)
        settings: dict[str, str] = self._metadata.get("configuration", {})
        iceberg = self._library.table(self.table)
        state = self._usable(iceberg, newest, form)
        self._library.holds(self.table, MAX_SNAPSHOTS + state.hours(time.time_ns() // 1_000_000))
        retain_ms = min(retention(settings, Policy()), tombstones_ns(settings)) // 1_000_000
        expiring, now_ms, asked_ms = False, time.time_ns() // 1_000_000, 0
        if time.monotonic() - self._expired >= SWEEP_SECONDS:
            self._expired = time.monotonic()
            asked_ms = iceberg_files.asked_to_expire(self._storage, self.table)
            retain_ms = min(retain_ms, now_ms - asked_ms)
            expiring = state.oldest is not None and state.oldest < now_ms - retain_ms
        if state.version == newest and not expiring:
            if asked_ms:
                iceberg_files.has_expired(self._storage, self.table)
            return False
        changes = [] if state.version == newest else self._changes(iceberg, log, state.version, newest)
        progress = log.progress(newest)
        stated = {VERSION: str(newest), **_stated(progress)}
        if LATEST_PROPERTY in settings:
            stated.pop(LOG_INDEX, None)  # an upsert table follows its stream by sequence
        own = {name: settings[name] for name in (UID_PROPERTY, STREAM_PROPERTY, LATEST_PROPERTY) if name in settings}
        self._lake = self._lake or read_id(self._storage)
        own |= {LAKE_PROPERTY: self._lake, TABLE_PROPERTY: self.table.removeprefix(f"{self._storage.root}/")}
        described = {
            "uuid": self._metadata["id"],
            "format": form,
            "schema": schema,
            "spec": partition_fields(self._metadata.get("partitionColumns", [])),
            "properties": own | stated,
            "summary": stated,
            "retain_ms": retain_ms,
            "snapshots": MAX_SNAPSHOTS,
            "tag": _hour_behind(state, progress),
        }
        lines = b"\n".join(map(msgspec.json.encode, counted(self._storage, changes)))
        iceberg.commit(msgspec.json.encode(described).decode(), lines.decode())
        if asked_ms and changes:
            self._expired = -SWEEP_SECONDS  # the snapshot before this commit stays with it, and is looked at next
        elif asked_ms:
            iceberg_files.has_expired(self._storage, self.table)
        if expiring or time.monotonic() - self._swept > SWEEP_SECONDS:
            self._swept = time.monotonic()
            iceberg.sweep(int((time.time() - SWEEP_SECONDS) * 1000))
        return True

    def _usable(self, iceberg: Any, newest: int, form: int) -> _State:
        """Return the state of the Iceberg table; without one that can be continued, delete it and return an empty
        one. A store that does not answer now says nothing about the table: then nothing is deleted."""
        from py4j.protocol import Py4JJavaError

        try:
            text = iceberg.state()
            state = _STATE.decode(text) if text else _State()
            if not text and DIRECTORY not in self._storage.directories(self.table):
                return state
            whole = text and (self._done is not None or iceberg.isWhole())
        except Py4JJavaError as error:
            if not is_damage(error.java_exception):
                raise
            whole = False
        same = whole and state.uuid == self._metadata["id"] and state.location == self.table
        # Another layout has other files, and may lack the columns of the partitions before.
        same = same and state.partition == self._metadata.get("partitionColumns", [])
        if same and state.format == form and 0 <= state.version <= newest:
            if self._done is None:
                iceberg.mendHint()
            return state
        iceberg.remove()
        self._done = None
        return _State()

    def _changes(self, iceberg: Any, log: TableLog, version: int, newest: int) -> list[Change]:
        if version >= 0:
            try:
                return list(since(log, version, newest))
            except Unclear:
                pass
        lines = iceberg.files().splitlines() if version >= 0 else []
        there = (FILE.decode(line) for line in lines)
        now: list[AddFile] = list(log.state(newest).files.values())
        return list(between(self.table, there, now))


def _stated(progress: TableProgress | None) -> dict[str, str]:
    if progress is None:
        return {}
    found = {LOG_INDEX: progress.last_index, LAST_SEQ: progress.last_seq, MESSAGE_TIME: progress.last_time_ns}
    return {name: str(value) for name, value in found.items()}


def _hour_behind(state: _State, progress: TableProgress | None) -> str | None:
    """Return the name of the hour of message time that the present snapshot ends, if a new hour begins."""
    before = int(state.properties.get(MESSAGE_TIME, "0"))
    if progress is None or not before or progress.last_time_ns // _HOUR_NS <= before // _HOUR_NS:
        return None
    return f"{datetime.fromtimestamp(before // _NS, UTC):%Y-%m-%dT%H}"
