"""The live view: a stream as it is now, from its table and its uncompacted segments.

Belongs here: planning a view. A view is pinned to one version of the table and to the staged segments beyond that
version's position. Staged segments never change, and their footers tell which messages were removed. So nothing is
missing and nothing is duplicated, whatever the compactor does meanwhile. With `flush` the server first stages what it
has, and the view holds every message that was acked before it was opened.

Needs neither a JVM nor an event loop. live_rows.py reads the rows of a view.
"""

from __future__ import annotations

import time

import msgspec

from lakestream.lake.errors import LakeError, SegmentGap, VersionGone
from lakestream.lake.files import paths, quarantine, staging
from lakestream.lake.files.lake import open_storage
from lakestream.lake.files.storage import Storage
from lakestream.lake.read.flush import (
    DEFAULT_TIMEOUT_S,
    NOT_FOUND,
    Credentials,
    Flushed,
    Flusher,
    FlushFailed,
    StreamNotFound,
    lake_flusher,
    other_account,
)
from lakestream.lake.read.live_rows import LiveView, UncompactedPart
from lakestream.lake.table import batches
from lakestream.lake.table import departures as departure_files
from lakestream.lake.table.departures import Dead
from lakestream.lake.table.log import Log
from lakestream.lake.table.policy import ON_DELETE_PROPERTY, RETENTION_PROPERTY, of_config
from lakestream.lake.table.progress import Progress, application
from lakestream.lake.table.scan import Scan
from lakestream.lake.table.schema import REMOVED_COLUMN, SCHEMA_COLUMN, TABLE_COLUMNS, UID_PROPERTY, Layout, layout_of
from lakestream.log.format.departures import Departures

ATTEMPTS = 5
"""Maximum number of attempts when files disappear during planning."""
PAUSE_S = 0.05
_NO_LIMIT = 1 << 62


def open_view(
    lake: str,
    stream: str,
    account: str = paths.DEFAULT_ACCOUNT,
    *,
    server: str | None = None,
    flush: bool = True,
    timeout: float = DEFAULT_TIMEOUT_S,
    credentials: Credentials | None = None,
    flusher: Flusher | None = None,
    answer: Flushed | None = None,
) -> LiveView:
    """Return a stream of a lake as it is now.

    Args:
        lake: the lake's root.
        server: the server's URL; by default the servers that the lake names.
        flush: have the server stage what it has. When no server that the lake names answers, the view ends at what is
            staged, and says so (`LiveView.flushed`).
        timeout: seconds for the flush.
        credentials: for logging in to the server.
        flusher: a connection to `server` to use and leave open.
        answer: a server's answer to a flush that the caller has made; no other is made then.

    Raises:
        StreamNotFound: neither lake nor server know the stream.
        FlushFailed: `server` was given and did not answer, or the stream is not in a lake.
        SegmentGap, QuarantinedSegment, BadSegment: the staging area is damaged.
    """
    storage = open_storage(lake)
    note, made = "flushing was not asked for", answer is not None
    if flush and answer is None:
        answer, note = _flush(storage, stream, account, server, timeout, credentials, flusher)
    failure: Exception | None = None
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_S * attempt)
        try:
            view = _plan(storage, stream, account, answer)
        except (SegmentGap, VersionGone, FileNotFoundError) as error:
            failure = error
            continue
        if answer is None or view.last_index >= answer.last_index:
            return msgspec.structs.replace(view, flushed=answer is not None, note="" if answer else note)
        failure = FlushFailed(
            f"the server has stream {stream} through log index {answer.last_index} in its lake at {answer.lake}; the "
            f"lake at {storage.root} ends at {view.last_index}, so it is another one"
        )
        if server is None and flusher is None and not made and attempt == ATTEMPTS - 1:
            return msgspec.structs.replace(view, flushed=False, note=str(failure))
    assert failure is not None
    raise failure


# ------------------------------------------------------------------ the flush
def _flush(
    storage: Storage,
    stream: str,
    account: str,
    server: str | None,
    timeout: float,
    credentials: Credentials | None,
    flusher: Flusher | None,
) -> tuple[Flushed | None, str]:
    """Return (the server's answer or None, the reason for None)."""
    if server is not None or flusher is not None:
        connection = flusher or Flusher([(server or "").split(",")], credentials)
        try:
            answer = connection.flush(stream, timeout)
        finally:
            if connection is not flusher:
                connection.close()
        if other := other_account(account, answer):
            raise FlushFailed(other)
        if answer.error is not None:
            raise _refusal(storage, stream, answer)
        return answer, ""
    named = lake_flusher(storage, account, credentials)
    if named is None:
        return None, f"no server has said in {paths.servers(storage.root)} that it is running"
    try:
        with named:
            answer = named.flush(stream, timeout)
    except FlushFailed as error:
        return None, str(error)
    if answer.error is not None:
        raise _refusal(storage, stream, answer)
    return answer, ""


def _refusal(storage: Storage, stream: str, answer: Flushed) -> LakeError:
    assert answer.error is not None
    if answer.error.err_code == NOT_FOUND:
        return StreamNotFound(stream, f"the server of the lake at {storage.root}")
    return FlushFailed(answer.error.description)


# ------------------------------------------------------------------ the plan
class _Table(msgspec.Struct, frozen=True):
    """The state of a stream's table."""

    version: int
    uid: str
    position: int
    progress: Progress | None
    last_seq: int
    columns: tuple[str, ...]
    layout: Layout | None
    archive: bool
    kept: bool
    uncleared: Progress | None
    typed: str = ""


def _plan(storage: Storage, stream: str, account: str, answer: Flushed | None) -> LiveView:
    """Plan a view once. The staging area is read first: segments that have left it by then are in the table read next.

    Raises:
        SegmentGap, VersionGone, FileNotFoundError: files changed meanwhile; another attempt may succeed.
    """
    root = storage.root
    identity = _identity(storage, stream, account)
    uid = answer.uid if answer is not None else identity.uid if identity is not None else ""
    directory = paths.staging(root, stream, uid, account) if uid else ""
    files = storage.list(directory) if uid else []
    path = paths.table(root, stream, account)
    table = _look(storage, path, uid)
    if not uid:
        if table is None or (_was_deleted(storage, stream, account) and not table.kept):
            raise StreamNotFound(stream, f"the lake at {root}")
        uid = table.uid
    position, before = (table.position, table.progress) if table is not None else (0, None)
    if any(entry.name.endswith(quarantine.WHY) for entry in files):
        quarantined = quarantine.find(directory, position)
        if quarantined is not None:
            raise quarantined
    chosen = batches.choose(path, position, staging.staged_segments(files), _NO_LIMIT)
    footers = [staging.footer(part.path) for part in chosen]
    batch = batches.gather(uid, chosen, footers, before) if chosen else None
    archive = table is not None and table.archive
    drops_ended = archive and batch is not None and not batch.policy.archive
    if batch is not None:
        archive = batch.policy.archive
    elif table is None and identity is not None:
        archive = of_config(bytes(identity.config)).archive
    table_columns = table.columns if table is not None else TABLE_COLUMNS
    columns = table_columns
    if archive and REMOVED_COLUMN not in columns:
        columns = (*columns, REMOVED_COLUMN)
    at = before.last_seq if before is not None else table.last_seq if table is not None else 0
    dead = batch.dead if batch is not None else Dead()
    uncleared = Dead()
    if table is not None and table.uncleared is not None:
        uncleared = departure_files.gone(departure_files.read(storage, path, table.uncleared.last_index))
    return LiveView(
        lake=root,
        stream=stream,
        account=account,
        uid=uid,
        table=path,
        version=table.version if table is not None else None,
        position=position,
        table_last_seq=at,
        last_index=batch.progress.last_index if batch is not None else position,
        last_seq=max(at, batch.progress.last_seq if batch is not None else 0),
        floor=batch.progress.floor if batch is not None else before.floor if before is not None else 0,
        columns=columns,
        table_columns=table_columns,
        layout=table.layout if table is not None else None,
        archive=archive,
        drops_ended=drops_ended,
        hidden=departure_files.both(dead, uncleared),
        before=before,
        endings=tuple(batch.endings or ()) if batch is not None and archive else () if archive else None,
        parts=tuple(
            UncompactedPart(part.path, part.after, part.size, footer.first_seq, footer.last_seq)
            for part, footer in zip(chosen, footers, strict=True)
            if footer.count
        ),
        flushed=False,
        uncleared=uncleared,
        departures=_departures(batch, before),
        shredded=tuple(batch.shredded) if batch is not None else (),
        typed=table.typed if table is not None else "",
        schemas=batch.schemas if batch is not None else (),
    )


def _departures(batch: batches.Batch | None, before: Progress | None) -> Departures | None:
    """Return the departures beyond the table; None without time travel."""
    if batch is not None:
        return batch.departures
    return Departures() if before is not None and before.departed >= 0 else None


def _identity(storage: Storage, stream: str, account: str) -> staging.StreamIdentity | None:
    """Return the live stream of this name according to the staging area."""
    return staging.live_identity(storage, paths.staging(storage.root, stream, "", account).rstrip("/"))


def _was_deleted(storage: Storage, stream: str, account: str) -> bool:
    parent = paths.staging(storage.root, stream, "", account).rstrip("/")
    return any(storage.exists(f"{parent}/{uid}/{paths.DELETED_FILE}") for uid in storage.directories(parent))


def _look(storage: Storage, path: str, uid: str) -> _Table | None:
    """Return the state of the stream's table; None when there is none, or it belongs to another stream.

    Raises:
        FileNotFoundError, VersionGone: the table changed meanwhile.
    """
    log = Log(storage, path)
    if not log.versions:
        return None
    version = log.latest
    scan = Scan(path, version, storage)
    metadata, names = scan.metadata, set(scan.names)
    properties = metadata.configuration
    owner = properties.get(UID_PROPERTY, "")
    if not owner or (uid and owner != uid):
        return None
    position = scan.position(application(owner)) or 0
    try:
        progress = log.progress(version)
    except FileNotFoundError:  # the log does not reach back so far any more
        progress = None
    if progress is not None and progress.uid != owner:
        progress = None
    last_seq = 0
    if progress is None and position:  # its commits do not state it
        last_seq = int(scan.query("SELECT max(seq) AS seq FROM t").column("seq")[0].as_py() or 0)
    layout = layout_of(metadata.partition_columns, scan.schema.to_json())
    extra = [column for column in (layout.columns if layout else []) if column != "subject"]
    ended = [REMOVED_COLUMN] if REMOVED_COLUMN in names else []
    return _Table(
        version=version,
        uid=owner,
        position=position,
        progress=progress,
        last_seq=last_seq,
        columns=(*TABLE_COLUMNS, *extra, *ended),
        layout=layout,
        archive=properties.get(RETENTION_PROPERTY) == "archive",
        kept=properties.get(ON_DELETE_PROPERTY) == "keep",
        uncleared=log.uncleared(version) if progress is not None else None,
        typed=scan.schema.to_json() if SCHEMA_COLUMN in names else "",
    )


def is_archive(lake: str, stream: str, account: str = paths.DEFAULT_ACCOUNT) -> bool:
    """Return True if a stream's rows have the column `removed_time_ns`, as far as the lake knows the stream."""
    storage = open_storage(lake)
    identity = _identity(storage, stream, account)
    if identity is not None:
        return of_config(bytes(identity.config)).archive
    table = _look(storage, paths.table(storage.root, stream, account), "")
    return table is not None and table.archive
