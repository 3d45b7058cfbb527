"""Repeated scans of the whole staging area.

Belongs here: finding every stream's staging directory and its content, at a cost that depends on changes and not on the
number of streams. In a directory an idle stream costs two `stat` calls; in an object store the whole area is one LIST
for each thousand objects, and a stream's identity is read again only when its object has changed.
"""

from __future__ import annotations

import os
import time

import msgspec

from lakestream.lake.errors import BadIdentity, NewerIdentity
from lakestream.lake.staging import staging
from lakestream.lake.staging.staging import StagedStream, StreamIdentity
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.storage import FileEntry

SETTLED_NS = 2_000_000_000
"""A directory that changed less than this before it was listed is listed again: its timestamp may be too coarse to show
another change."""


class _Known(msgspec.Struct):
    """Cached state of a directory."""

    modified_ns: int
    children: list[str]
    stream: StagedStream | None


class Scanner:
    """Scans one lake's staging area. Not for use by two threads at once.

    Args:
        lake: the lake's root.
    """

    def __init__(self, lake: str) -> None:
        self._root = paths.root(lake)
        self._storage = open_storage(self._root)
        self._known: dict[str, _Known] = {}
        self._identities: dict[str, tuple[str, StreamIdentity]] = {}
        self.troubles: dict[str, str] = {}
        """Errors of the last scan by directory: an unreadable directory does not affect other streams."""

    def scan(self) -> list[StagedStream]:
        """Return every stream that has a staging directory, of all accounts, oldest first. Directories that cannot be
        read are in `troubles`."""
        self.troubles = {}
        found = self._scan_directories() if self._storage.local else self._scan_objects()
        found.sort(key=lambda stream: (stream.identity.created_ns, stream.identity.uid))
        return found

    def _areas(self) -> list[str]:
        """Return the staging areas of all accounts."""
        accounts = f"{self._root}/{paths.ACCOUNTS}"
        names = self._storage.directories(accounts)
        return [f"{self._root}/{paths.SEGMENTS}", *(f"{accounts}/{name}/{paths.SEGMENTS}" for name in names)]

    # A directory

    def _scan_directories(self) -> list[StagedStream]:
        seen: dict[str, _Known] = {}
        found = []
        for area in self._areas():
            for name in self._storage.directories(area):
                parent = f"{area}/{name}"
                for uid in self._try(parent, seen, False).children:
                    stream = self._try(f"{parent}/{uid}", seen, True).stream
                    if stream is not None:
                        found.append(stream)
        self._known = seen
        return found

    def _try(self, directory: str, seen: dict[str, _Known], has_stream: bool) -> _Known:
        try:
            return self._look(directory, seen, has_stream)
        except (OSError, BadIdentity) as error:
            self._note(directory, error)
            return _Known(0, [], None)

    def _note(self, directory: str, error: Exception) -> None:
        path = f"{directory}/{paths.STREAM_FILE}"
        what = f"{path} is damaged ({error.reason})" if isinstance(error, BadIdentity) else str(error)
        then = f"move {path} away and restart the server, which writes it anew"
        if isinstance(error, NewerIdentity):
            what, then = str(error), "nothing of it is changed"
        self.troubles[directory] = f"{what}: its segments are not compacted; {then}"

    def _identity(self, directory: str) -> StreamIdentity | None:
        """Return the stream of a directory. Raise OSError or BadIdentity when its file cannot be read or names another
        place."""
        identity = staging.read_identity(directory)
        if identity is not None:
            place = paths.staging(self._root, identity.name, identity.uid, identity.account)
            if place != directory:
                raise BadIdentity(f"{directory}/{paths.STREAM_FILE}", f"it is that of {place}")
        return identity

    def _look(self, directory: str, seen: dict[str, _Known], has_stream: bool) -> _Known:
        try:
            modified_ns = os.stat(directory).st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            return _Known(0, [], None)
        known = self._known.get(directory)
        if known is None or known.modified_ns != modified_ns:
            if has_stream:
                known = _Known(modified_ns, [], self._read(directory))
            else:
                known = _Known(modified_ns, self._storage.directories(directory), None)
        if time.time_ns() - modified_ns > SETTLED_NS:
            seen[directory] = known
        return known

    def _read(self, directory: str) -> StagedStream | None:
        identity = self._identity(directory)
        if identity is None:
            return None
        try:
            names = os.listdir(directory)
        except FileNotFoundError:
            return None
        return _staged(directory, identity, names)

    # An object store

    def _scan_objects(self) -> list[StagedStream]:
        files: dict[str, list[FileEntry]] = {}
        for area in self._areas():
            for entry in self._storage.tree(area):
                files.setdefault(entry.path.rpartition("/")[0], []).append(entry)
        identities: dict[str, tuple[str, StreamIdentity]] = {}
        found = []
        for directory, entries in files.items():
            named = {entry.name: entry for entry in entries}
            if (whose := named.get(paths.STREAM_FILE)) is None:
                continue
            known = self._identities.get(directory)
            if known is None or known[0] != whose.tag:
                try:
                    identity = self._identity(directory)
                except BadIdentity as error:
                    self._note(directory, error)
                    continue
                if identity is None:
                    continue
                known = (whose.tag, identity)
            identities[directory] = known
            found.append(_staged(directory, known[1], list(named)))
        self._identities = identities
        return found


def _staged(directory: str, identity: StreamIdentity, names: list[str]) -> StagedStream:
    deleted, asks = paths.DELETED_FILE in names, paths.CLONE_FILE in names
    damaged, refused = paths.DAMAGED_FILE in names, staging.REFUSAL_FILE in names
    return StagedStream(directory, identity, deleted, _last_index(names), asks, damaged, refused)


def _last_index(names: list[str]) -> int:
    return max((indexes[1] for name in names if (indexes := paths.parse_segment_name(name))), default=0)
