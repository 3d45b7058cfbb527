"""State of a stream's Delta table, followed commit by commit.

Belongs here: the position and progress of the stream in its table, the table's files with their statistics, following
its log, and the places where a stream's table may be. `TableFollower.position` reads no more than the newest commits,
so that the compactor, and a server with a thousand tables at its start, can afford it for each of them.
`TableFollower.advance` also loads the files: once from the newest checkpoint, then from each new commit, which is read
once for all that follow the table. No data file is opened.

A state never changes, so readers need no lock.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable
from operator import attrgetter
from urllib.parse import unquote

import msgspec

from lakestream.lake.errors import DamagedLog, HistoryUnavailable, VersionGone
from lakestream.lake.staging.staging import StreamIdentity
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table.actions import Action, MetaData, TableFile, TableProtocol, table_file
from lakestream.lake.table.foreign_commits import ForeignCommit, foreign, since_progress
from lakestream.lake.table.log import LogCommit, TableLog, log_directory
from lakestream.lake.table.progress import TableProgress, application, progress_of

VACUUM = "VACUUM"
"""Beginning of the names of the operations of another program's VACUUM. Those of maintenance make no commits."""
TEXTS_PER_FILE = 4
"""Once there are more than this many different bounds of subjects for each file, and `SPARE_TEXTS`, those of files that
have left the table are dropped. A file has two bounds."""
SPARE_TEXTS = 64
MOST_FOREIGN = 1_000
"""Maximum number of commits by other programs that a state has, the newest ones."""
_KINDS = ("add", "metaData", "protocol")
_HEAD_LINES = (b'{"txn"', b'{"commitInfo"', b'{"metaData"')
"""Beginnings of the commit lines that a head follows from. There may be thousands of others."""
_min_seq = attrgetter("min_seq")
_max_seq = attrgetter("max_seq")


class Head(msgspec.Struct, frozen=True):
    """Newest version of a table (-1: there is none), and the stream's position in it.

    `position` is the log index through which the table holds the stream, None when it holds nothing of it. `progress`
    is stated by the commit that set the position (None when that commit is gone), `moved` is its version (-1: unknown),
    `rows` the number of messages that it added, and `committed_ms` its time (ms since the epoch; 0: unknown). `epoch`
    counts how often the table was read from scratch, because it is new or its log was cut.
    """

    epoch: int = 0
    version: int = -1
    position: int | None = None
    progress: TableProgress | None = None
    moved: int = -1
    rows: int = 0
    committed_ms: int = 0


class TableState(msgspec.Struct, frozen=True):
    """One version of a table.

    `files` are sorted by `min_seq`; `mins` and `maxs` are their ranges of sequences as arrays of 64 bits. `foreign` are
    commits by other programs: those after `head.moved` when the table was loaded, and all since. `vacuum` is the
    version of the last commit of a VACUUM by another program since (-1: none), which began one if `is_vacuuming`.
    """

    head: Head
    metadata: MetaData = MetaData()
    protocol: TableProtocol = TableProtocol()
    files: list[TableFile] = []
    mins: array[int] = array("q")
    maxs: array[int] = array("q")
    foreign: tuple[ForeignCommit, ...] = ()
    vacuum: int = -1
    is_vacuuming: bool = False

    @property
    def version(self) -> int:
        return self.head.version

    def added_after(self, version: int) -> list[TableFile]:
        """Return the files that came with later versions than that."""
        return [file for file in self.files if file.added > version]


class TableFollower:
    """The table at a path or URL, and the stream with a uid in it. Safe for use by several threads.

    A look when nothing changed costs two `stat` calls, or two HEAD requests to an object store.

    Args:
        table: the table's path.
        uid: the stream's; "": its position and commits by other programs are not looked for.
        storage: where the table is; by default that of its path.
    """

    def __init__(self, table: str, uid: str = "", storage: Storage | None = None) -> None:
        self.table = table
        self.head = Head()
        """The newest known version."""
        self.state: TableState | None = None
        """The newest known version with its files, once they were loaded."""
        self._storage = storage or open_storage(table)
        self._app = application(uid) if uid else ""
        self._log = TableLog(self._storage, table)
        self._tag: str | None = None
        self._claims: dict[int, int] = {}
        self._is_stale = False  # a commit after `state` was not applied
        self._by_path: dict[str, TableFile] = {}
        self._texts: dict[str, str] | None = None  # until bounds are wanted
        self._metadata: MetaData | None = None  # until it is wanted
        self._lock = threading.Lock()

    def newest(self) -> Head:
        """Return the newest version, without loading its files. Raises DamagedLog if a commit does not decode."""
        with self._lock:
            self._follow()
            return self.head

    def position(self) -> int | None:
        """Return `newest().position`: the log index through which the table holds the stream, or None."""
        return self.newest().position

    def metadata(self) -> MetaData | None:
        """Return the metadata of the newest version, without loading its files; None where there is no table.

        Raises:
            DamagedLog: a commit or checkpoint does not decode.
            HistoryUnavailable: the log is of an unsupported kind.
        """
        with self._lock:
            self._follow()
            if self._metadata is None and self.head.version >= 0:
                try:
                    found = TableLog(self._storage, self.table).metadata_of(self.head.version)
                except FileNotFoundError as error:
                    raise self._unread() from error
                self._metadata = msgspec.convert(found, MetaData)
            return self._metadata

    def advance(self, bounds: bool = False, anew: bool = False) -> TableState:
        """Return the newest version with its files.

        Args:
            bounds: with those of times and subjects, which only history needs; their memory counts from then on.
            anew: by reading the whole log.

        Raises:
            FileNotFoundError: there is no table.
            DamagedLog: a commit or checkpoint does not decode.
            HistoryUnavailable: the log is of an unsupported kind.
        """
        with self._lock:
            self._follow()
            if bounds and self._texts is None:
                self._texts, anew = {}, True
            if self.state is None or self._is_stale or anew:
                self.state, self._is_stale = self._load(self.state), False
            return self.state

    def glance(self) -> TableState | None:
        """Return the last state with bounds while a look goes on, without waiting for it; else None.

        A look at a slow lake may take a minute, and a reader whose messages the last state has needs none of it.
        """
        return self.state if self._lock.locked() and self._texts is not None else None

    # ------------------------------------------------------------------ the head
    def _follow(self) -> None:
        """Take the commits that have come since."""
        if self.head.version < 0 or self._log.tag(self.head.version) != self._tag:
            self._start()
            return
        while (tag := self._log.tag(self.head.version + 1)) is not None:
            try:
                commit = self._read(self.head.version + 1)
            except FileNotFoundError:  # log clean-up, or the table was removed
                self._start()
                return
            head = self._stated(commit, self.head)
            self._compare(head)
            self._metadata = next((each.meta_data for each in commit.actions if each.meta_data), self._metadata)
            if self.state is not None and not self._is_stale:
                self.state = self._applied(self.state, commit.actions, head, commit)
            self.head, self._tag = head, tag

    def _read(self, version: int) -> LogCommit:
        """Read a commit, or only its position where the files are not loaded, or it is damaged elsewhere: then they are
        loaded again, which says so."""
        if self.state is not None and not self._is_stale:
            try:
                return self._log.commit(version)
            except DamagedLog:
                self._is_stale = True
        return self._log.commit(version, _HEAD_LINES)

    def _start(self) -> None:
        """Read from the newest commit backwards: the table is new, or was removed and created again."""
        head = self.head = Head(self.head.epoch + 1)
        self.state, self._is_stale, self._tag, self._claims, self._metadata = None, False, None, {}, None
        log = TableLog(self._storage, self.table)
        if not (versions := log.commits):
            return
        for version in reversed(versions) if self._app else ():
            try:
                head = self._stated(log.commit(version, _HEAD_LINES), head)
            except FileNotFoundError:
                continue
            if head.moved >= 0:
                break
        else:
            if self._app and versions[0] > 0:  # the log lacks both version 0 and a commit with the position
                _, parts = log.newest_checkpoint()
                head = msgspec.structs.replace(head, position=self._set_by(log.read_parts(parts, ("txn",))))
        self._compare(head)
        self.head = msgspec.structs.replace(head, version=versions[-1])
        self._tag = log.tag(versions[-1])

    def _stated(self, commit: LogCommit, head: Head) -> Head:
        """Return the head at a commit, as it follows from what the commit states.

        Raises:
            DamagedLog: it contradicts itself.
        """
        position, info = self._set_by(commit.actions), commit.info
        progress = progress_of(info)
        is_own = progress is not None and self._app == application(progress.uid)
        if position is None:
            if progress is not None and is_own:
                self._claims[commit.version] = progress.last_index
            return msgspec.structs.replace(head, version=commit.version)
        if progress is not None and is_own and progress.last_index != position:
            what = f"it names two log indexes as the table's position, {position} and {progress.last_index}"
            raise DamagedLog(self._log.path(commit.version), what)
        rows = info.operation_metrics.get("numOutputRows", 0)
        rows = int(rows) if str(rows).isdecimal() else 0
        made_ms = info.in_commit_timestamp or info.timestamp or 0
        return Head(head.epoch, commit.version, position, progress, commit.version, rows, made_ms)

    def _compare(self, head: Head) -> None:
        """Compare the position with the commits that state it without setting it: a change of the layout repeats it.

        Raises:
            DamagedLog: such a commit states another one, so what set it there is overwritten.
        """
        for version, claimed in self._claims.items():
            if claimed != head.position:
                what = f"it states the log index {claimed} as the table's position, but does not set it"
                raise DamagedLog(self._log.path(version), what)
        self._claims = {}

    def _set_by(self, actions: Iterable[Action]) -> int | None:
        found = (action.txn for action in actions if action.txn is not None)
        return next((txn.version for txn in found if txn.app_id == self._app), None)

    # ------------------------------------------------------------------ the files
    def _load(self, known: TableState | None) -> TableState:
        """Read the newest checkpoint and the commits after it, through the head. `known` is an earlier state."""
        self._is_stale = True
        log = TableLog(self._storage, self.table)
        base, parts = log.newest_checkpoint()
        if base > self.head.version:
            self._follow()
        head = self.head
        if head.version < max(base, 0):
            raise FileNotFoundError(f"{self.table}: no Delta table is there")
        state = TableState(head)
        if known is not None:
            state = TableState(head, foreign=known.foreign, vacuum=known.vacuum, is_vacuuming=known.is_vacuuming)
        elif self._app:
            others = since_progress(log, self._app, head.moved)
            state = TableState(head, foreign=tuple(each for each in others if each.version <= head.version))
        self._by_path, self._texts = {}, None if self._texts is None else {}
        at = msgspec.structs.replace(head, version=base)
        state = self._applied(state, log.read_parts(parts, _KINDS), at)
        for version in range(base + 1, head.version + 1):
            try:
                commit = log.commit(version)
            except FileNotFoundError as error:
                raise self._unread() from error
            is_new = known is not None and version > known.version
            at = msgspec.structs.replace(head, version=version)
            state = self._applied(state, commit.actions, at, commit if is_new else None)
        return msgspec.structs.replace(state, head=head)

    def _unread(self) -> HistoryUnavailable:
        return HistoryUnavailable(
            f"{self.table} has no checkpoint of the classic kind; set its property delta.checkpointPolicy to "
            "classic and let `lakestream maintain` write one"
        )

    def _applied(
        self, state: TableState, actions: Iterable[Action], head: Head, commit: LogCommit | None = None
    ) -> TableState:
        """Return the state after one commit. Removals come first: a file with a new deletion vector is in both.

        Args:
            head: of the new state.
            commit: the commit, if it has come since the table was loaded.
        """
        gone: set[str] = set()
        fresh: dict[str, TableFile] = {}
        metadata, protocol = state.metadata, state.protocol
        for action in actions:
            if action.remove is not None:
                gone.add(unquote(action.remove.path))
            elif action.add is not None:
                path = unquote(action.add.path)  # writers differ in what they escape
                fresh[path] = table_file(action.add, head.version, self._texts)
                gone.add(path)
            elif action.meta_data is not None:
                metadata = action.meta_data
            elif action.protocol is not None:
                protocol = action.protocol
        files, mins, maxs = state.files, state.mins, state.maxs
        dropped = {id(file) for path in gone if (file := self._by_path.pop(path, None)) is not None}
        if dropped:
            files = [file for file in files if id(file) not in dropped]
        if fresh:
            self._by_path.update(fresh)
            added = sorted(fresh.values(), key=_min_seq)
            is_appended = not dropped and (not files or files[-1].min_seq <= added[0].min_seq)
            files = [*files, *added]
            if is_appended:  # most commits only append
                mins, maxs = mins + array("q", map(_min_seq, added)), maxs + array("q", map(_max_seq, added))
            else:
                files.sort(key=_min_seq)  # two runs that are in order cost one pass
        if dropped or (fresh and not is_appended):
            mins, maxs = array("q", map(_min_seq, files)), array("q", map(_max_seq, files))
        if self._texts is not None and len(self._texts) > TEXTS_PER_FILE * len(files) + SPARE_TEXTS:
            bounds = (text for file in files for text in (file.min_subject, file.max_subject))
            self._texts = {text: text for text in bounds}
        others, vacuum, is_vacuuming = state.foreign, state.vacuum, state.is_vacuuming
        if commit is not None:
            if self._app and (other := foreign(commit)) is not None:
                others = (*others, other)[-MOST_FOREIGN:]
            if commit.info.operation.startswith(VACUUM):
                vacuum, is_vacuuming = commit.version, commit.info.operation == f"{VACUUM} START"
        return TableState(head, metadata, protocol, files, mins, maxs, others, vacuum, is_vacuuming)


def state_at(storage: Storage, table: str, head: Head, bounds: bool = False) -> TableState:
    """Return the version of a head with its files, read from the log. Raises VersionGone if it does not reach back.

    Args:
        bounds: with those of times and subjects.
    """
    try:
        found = TableLog(storage, table).state(head.version)
    except FileNotFoundError as error:
        raise VersionGone(table, head.version, str(error)) from error
    texts = dict[str, str]() if bounds else None
    files = sorted((table_file(add, 0, texts) for add in found.files.values()), key=_min_seq)
    mins, maxs = array("q", map(_min_seq, files)), array("q", map(_max_seq, files))
    return TableState(head, found.metadata, found.protocol, files, mins, maxs)


def position_of(table: str, uid: str) -> int | None:
    """Return the log index through which a table holds a stream; None when it holds nothing of it."""
    return TableFollower(table, uid).position()


def table_of(storage: Storage, stream: StreamIdentity) -> str:
    """Return the path of a live stream's table."""
    return paths.table(storage.root, stream.name, stream.account)


def kept_table(storage: Storage, stream: StreamIdentity) -> str:
    """Return the path of a retained table whose name a new stream has taken."""
    return paths.kept(storage.root, stream.name, stream.uid, stream.account)


def has_kept_table(storage: Storage, stream: StreamIdentity) -> bool:
    """Return True if there is a table at that path, complete or not."""
    return bool(storage.names(log_directory(kept_table(storage, stream))))


def reached(storage: Storage, stream: StreamIdentity) -> int:
    """Return the log index through which a table holds the stream, at either path; 0 when none does."""
    return max(
        position_of(place, stream.uid) or 0 for place in (table_of(storage, stream), kept_table(storage, stream))
    )
