"""Tables of one account for recipients: their versions, files and changes.

Belongs here: reading a table's log for an answer, and the rules of history. Calls block; app.py makes them in threads.
No data file is opened.

An earlier version is shared only with a token that covers history, and only while the table keeps it: as long after
another version has taken its place as `delta.deletedFileRetentionDuration` says. So a message that was deleted securely
is as unreachable here as in the lake, and no answer promises files that maintenance may delete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from lakestream.lake.storage import paths
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table.actions import MetaData, locate
from lakestream.lake.table.log import LogCommit, TableLog, TableVersion
from lakestream.lake.table.masks import of_table
from lakestream.lake.table.policy import tombstones_ns
from lakestream_sharing import actions, predicates
from lakestream_sharing.actions import Change, FileAction, Lines
from lakestream_sharing.errors import BadRequest, Forbidden, NotFound, TooLarge
from lakestream_sharing.grants import STREAM
from lakestream_sharing.requests import Capabilities, Query, Window, milliseconds

MAX_VERSIONS = 1_000
"""Versions of one answer with changes."""
_MS = 1_000_000


class Answer(msgspec.Struct, frozen=True):
    """An answer with lines: format, version for the header, lines, and the id of the table."""

    form: str
    version: int
    lines: list[dict[str, object]]
    table_id: str = ""


class Urls(msgspec.Struct, frozen=True):
    """URLs of one answer, by which `of` names a file, until `expires_ms`."""

    of: Callable[[Sequence[str]], list[str]]
    expires_ms: int


class Tables:
    """The tables of one account.

    Args:
        storage: the lake.
        account: the account.
        now_ns: returns the present, ns since the epoch.
        max_files: files of one answer.
    """

    def __init__(self, storage: Storage, account: str, now_ns: Callable[[], int], max_files: int) -> None:
        self._storage, self._account, self._now_ns, self._max_files = storage, account, now_ns, max_files

    def names(self) -> list[str]:
        """Return the streams that have a table, sorted; never the bucket of tokens."""
        directory = paths.table(self._storage.root, "x", self._account).rpartition("/")[0]
        found = (paths.name_of(each) for each in self._storage.directories(directory))
        return sorted(name for name in found if name != STREAM)

    def table(self, stream: str) -> Table:
        """Return the table of a stream. Raises NotFound."""
        return Table(self._storage, paths.table(self._storage.root, stream, self._account), stream, self)

    @property
    def now_ns(self) -> int:
        """Return the present, ns since the epoch."""
        return self._now_ns()

    @property
    def max_files(self) -> int:
        """Return the maximum number of files of one answer."""
        return self._max_files


class Table:
    """One table, as its log is listed now.

    Raises:
        NotFound: there is no table.
        Forbidden: its stream masks fields.
    """

    def __init__(self, storage: Storage, path: str, stream: str, tables: Tables) -> None:
        self._storage, self._path, self._stream, self._tables = storage, path, stream, tables
        self._log = TableLog(storage, path)
        if not self._log.versions:
            raise NotFound(f"table {stream} does not exist")
        if of_table(storage, path).fields:
            raise Forbidden(f"table {stream} is not shared: its stream has lakestream.mask, and files are not masked")

    # ------------------------------------------------------------------ versions
    @property
    def latest(self) -> int:
        """Return the newest version."""
        return self._log.latest

    def version_from(self, time_ms: int, name: str) -> int:
        """Return the first version at or after a time. Raises BadRequest."""
        count = self._log.count_until(time_ms - 1)
        if count == len(self._log.versions):
            raise BadRequest(f"{name} is after the newest version, {self.latest}")
        return self._log.versions[count]

    def version_by(self, time_ms: int, name: str) -> int:
        """Return the last version at or before a time. Raises BadRequest."""
        count = self._log.count_until(time_ms)
        if count == 0:
            raise BadRequest(f"{name} is before the oldest version, {self._log.versions[0]}")
        return self._log.versions[count - 1]

    # ------------------------------------------------------------------ answers
    def metadata(self, asked: Capabilities) -> Answer:
        """Return protocol and metadata of the newest version."""
        state = self._state(self.latest)
        form = actions.choose_format(asked, state.protocol, state.metadata)
        lines = self._lines(form, {}, 0)
        found = [lines.protocol(state.protocol, state.metadata), lines.metadata(state.metadata, state.files.values())]
        return Answer(form, state.version, found, state.metadata.id)

    def query(self, asked: Capabilities, query: Query, urls: Urls, pinned: int | None) -> Answer:
        """Return the files of a version.

        Args:
            pinned: the version of a refresh token; None: the one that the query names, else the newest.
        """
        version = self.latest if pinned is None else pinned
        named = query.version is not None or query.timestamp is not None
        if query.version is not None:
            version = query.version
        elif query.timestamp is not None:
            version = self.version_by(milliseconds(query.timestamp, "timestamp"), "timestamp")
        state = self._state(version)
        self._check_kept(version, self._state(self.latest).metadata if version != self.latest else state.metadata)
        files = sorted(state.files.values(), key=lambda add: add.path)
        if (condition := predicates.parsed(query.json_predicate_hints)) is not None:
            files = predicates.selected(files, condition)
        files = actions.limited(files, predicates.rows_of, query.limit_hint)
        self._check_count(len(files))
        form = actions.choose_format(asked, state.protocol, state.metadata, files)
        lines = self._lines(form, self._urls(files, urls), urls.expires_ms)
        time_ms = self._log.summary(version).time_ms if named else None
        at = version if named else None
        found = [
            lines.protocol(state.protocol, state.metadata),
            lines.metadata(state.metadata, state.files.values(), at),
        ]
        found += [lines.file(add, at, time_ms) for add in files]
        return Answer(form, version, found, state.metadata.id)

    def changes(self, asked: Capabilities, window: Window, urls: Urls) -> Answer:
        """Return the change data feed of some versions."""
        first, last = self._ends(window)
        state = self._state(last)
        if not actions.is_enabled(self._state(first).metadata, actions.CHANGE_FEED):
            raise BadRequest(
                f"table {self._stream} has no change data feed at version {first}: its owner enables it with "
                "lakestream.properties.delta.enableChangeDataFeed, and it begins then"
            )
        return self._answer_changes(asked, state, first, last, urls, window.with_metadata, feed=True)

    def files_since(self, asked: Capabilities, first: int, last: int | None, urls: Urls) -> Answer:
        """Return the files that versions from `first` on added and removed, with their metadata, for streaming."""
        start, end = self._ends(Window(first_version=first, last_version=last))
        return self._answer_changes(asked, self._state(end), start, end, urls, True, feed=False)

    # ------------------------------------------------------------------ parts
    def _ends(self, window: Window) -> tuple[int, int]:
        """Return the first and the last version of a request, both included. Raises BadRequest, Forbidden."""
        first = window.first_version
        if first is None:
            assert window.first_ms is not None  # Invariant: a window has a beginning.
            first = self.version_from(window.first_ms, "startingTimestamp")
        last = self.latest if window.last_version is None else window.last_version
        if window.last_ms is not None:
            last = self.version_by(window.last_ms, "endingTimestamp")
        if first > self.latest:
            raise BadRequest(f"version {first} does not exist: the newest is {self.latest}")
        last = min(last, self.latest)
        if last < first:
            raise BadRequest(f"the end, version {last}, is before the beginning, version {first}")
        if last - first >= MAX_VERSIONS:
            raise TooLarge(f"an answer has the changes of {MAX_VERSIONS:,} versions at most: ask for fewer")
        self._check_kept(first, self._state(self.latest).metadata)
        return first, last

    def _answer_changes(
        self,
        asked: Capabilities,
        state: TableVersion,
        first: int,
        last: int,
        urls: Urls,
        with_metadata: bool,
        *,
        feed: bool,
    ) -> Answer:
        changed: list[Change] = []
        metadata: list[tuple[int, MetaData]] = []
        for version in range(first, last + 1):
            commit = self._commit(version)
            changed += (Change(each, version, commit.time_ms) for each in _changed(commit, feed))
            metadata += ((version, each.meta_data) for each in commit.actions if each.meta_data is not None)
            self._check_count(len(changed))
        files = [each.action for each in changed]
        form = actions.choose_format(asked, state.protocol, state.metadata, files)
        lines = self._lines(form, self._urls(files, urls), urls.expires_ms)
        found = [lines.protocol(state.protocol, state.metadata)]
        if with_metadata or form == "delta":
            # A client makes a log of the answer, which needs metadata at its first version.
            begin = self._state(first).metadata
            found.append(lines.metadata(begin, version=first))
            found += [lines.metadata(each, version=version) for version, each in metadata if version > first]
        else:
            found.append(lines.metadata(state.metadata))
        found += [lines.change(each) for each in changed]
        return Answer(form, first, found, state.metadata.id)

    def _state(self, version: int) -> TableVersion:
        """Return the table at a version. Raises BadRequest when the log does not have it any more, or not yet."""
        if version > self.latest:
            raise BadRequest(f"version {version} does not exist: the newest is {self.latest}")
        try:
            return self._log.state(version)
        except FileNotFoundError:
            self._check_there()
            raise BadRequest(f"version {version} is not kept any more") from None

    def _commit(self, version: int) -> LogCommit:
        try:
            return self._log.commit(version)
        except FileNotFoundError:
            self._check_there()
            raise BadRequest(f"version {version} is not kept any more") from None

    def _check_there(self) -> None:
        """Raise NotFound if the table was deleted meanwhile."""
        if self._log.tag(self.latest) is None:
            raise NotFound(f"table {self._stream} does not exist")

    def _check_kept(self, version: int, metadata: MetaData) -> None:
        """Raise BadRequest for a version that was replaced longer ago than the table keeps it."""
        if version >= self.latest:
            return
        try:
            replaced_ms = self._log.summary(version + 1).time_ms
        except FileNotFoundError:
            raise BadRequest(f"version {version} is not kept any more") from None
        if replaced_ms * _MS < self._tables.now_ns - _retention_ns(metadata):
            raise BadRequest(f"version {version} is not kept any more: it was replaced before the table's retention")

    def _check_count(self, count: int) -> None:
        if count > self._tables.max_files:
            raise TooLarge(
                f"the answer has more than {self._tables.max_files:,} files: ask with limitHint or jsonPredicateHints, "
                "or for fewer versions"
            )

    def _lines(self, form: str, urls: dict[str, str], expires_ms: int) -> Lines:
        return Lines(form, self._path, locate, urls, expires_ms)

    def _urls(self, files: Sequence[FileAction], urls: Urls) -> dict[str, str]:
        """Return the URLs of files and their deletion vectors. Raises Forbidden for files outside of the lake."""
        found = actions.paths_of(files, self._path, locate)
        inside = f"{self._storage.root}/"
        for path in found:
            if not path.startswith(inside) or ".." in path.split("/"):
                raise Forbidden(f"table {self._stream} has files outside of its lake, which are not shared")
        return dict(zip(found, urls.of(found), strict=True))


def _changed(commit: LogCommit, feed: bool) -> Iterator[FileAction]:
    """Yield the files by which a commit changed rows: of the feed those that it wrote for it, if there are any."""
    if feed and (written := [each.cdc for each in commit.actions if each.cdc is not None]):
        yield from written
        return
    for action in commit.actions:
        file = action.add or action.remove
        if file is not None and file.data_change:
            yield file


def _retention_ns(metadata: MetaData) -> int:
    return tombstones_ns(metadata.configuration)
