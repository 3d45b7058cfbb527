"""Clones of tables for mirrors, requested from the compactor.

Belongs here: deciding whether a mirror's origin is worth a clone, the request and the wait for its answer
(lake/staging/clone_request.py), giving up without a compactor, and reading back the result. All file work happens in
threads: short work in those of the log, reading a table in one of its own.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from lakestream import extras
from lakestream.lake.errors import HistoryUnavailable
from lakestream.lake.flush import FLUSH
from lakestream.lake.staging import clone_request, staging
from lakestream.lake.staging.clone_request import CloneAnswer, CloneRequest, SubjectSelection
from lakestream.lake.staging.staging import StreamIdentity
from lakestream.lake.storage import paths
from lakestream.lake.storage.locks import COMPACTOR_LOCK, is_held
from lakestream.lake.table import policy
from lakestream.lake.table.policy import StreamPolicy
from lakestream.lake.table.state import TableFollower
from lakestream.log.format.errors import CorruptLog
from lakestream.log.format.files import Files
from lakestream.log.store.base import Base, BaseOrigin, NoBase, read_base, remove_base
from lakestream.log.store.segment_log import SegmentLog
from lakestream.logging import Logger
from lakestream.ports import ClientInfo, Single, Subscribed, singly
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.runtime import LoopClock, ThreadIo
from lakestream.stream.core.config import StreamConfig, StreamSource
from lakestream.stream.core.stream import StreamCore
from lakestream.stream.mirroring.clone import Cloned, NotCloned, why_not
from lakestream.stream.mirroring.origin import selected

CLONE_MSGS = 100_000
"""Minimum number of messages in the origin's table; fewer are read one by one as quickly."""
LOOK_NS = 250_000_000
"""Interval between looks for the answer (250 ms)."""
SELDOM_NS = 2_000_000_000
"""The same (2 s) after LATE_NS."""
COMPACTOR_WAIT_NS = 5_000_000_000
"""Time without a compactor (5 s) after which the mirror reads its origin itself."""
LONGEST_NS = 60_000_000_000
"""The same with a compactor (60 s)."""
LATE_NS = 10_000_000_000
"""Time (10 s) after which INFO of a mirror that can only wait shows the reason."""
FLUSH_NS = 30_000_000_000
"""Timeout for the origin's flush (30 s)."""
ABSENT_NS = 5_000_000_000
"""Timeout for the origin to exist (5 s)."""
READ_AGAIN_NS = 2_000_000_000
"""Pause before another attempt to read a table (2 s)."""

NO_COMPACTOR = "no compactor is running on the lake to make the copy"
NOT_COME = "the moment has not come"
NOT_YET = "the copy waits for the table of its origin to reach that moment"

Result = TypeVar("Result")
_STREAM_CONFIG = msgspec.json.Decoder(StreamConfig)


class _Found(msgspec.Struct, frozen=True):
    """Result of a look: the answer if there is one, the reason why there will be no request, whether there is one, and
    whether a compactor is running."""

    answer: CloneAnswer | None = None
    never: str | None = None
    asked: bool = True
    attended: bool = True


class _Flushed(msgspec.Struct, frozen=True):
    """The part of the answer to the origin's flush that matters: the stream's uid, and the last staged log index."""

    uid: str = ""
    last_index: int = 0
    error: dict[str, object] | None = None


_flushed = msgspec.json.Decoder(_Flushed)


class LakeClones:
    """Implementation of `Clones` over a lake.

    Args:
        root: the lake's root.
        identity: returns a stream's identity in the lake; None when the lake does not have it.
    """

    def __init__(
        self,
        root: str,
        clock: LoopClock,
        io: ThreadIo,
        log: Logger,
        identity: Callable[[StreamCore], StreamIdentity | None],
    ) -> None:
        self.root, self.clock, self.io, self.log = root, clock, io, log
        self.identity = identity
        self._readers: ThreadPoolExecutor | None = None

    # ------------------------------------------------------------------ Clones
    def copy(
        self,
        stream: StreamCore,
        source: StreamSource,
        done: Callable[[Cloned | NotCloned], None],
        waits: Callable[[str], None],
    ) -> _Task:
        task = _Task(self, stream, source, done, waits)
        task.begin()
        return task

    def give_up(self, stream: StreamCore, then: Callable[[bool], None]) -> None:
        self._until_done(stream, self._withdraw, then)

    def discard(self, stream: StreamCore) -> None:
        self._until_done(stream, lambda mirror: clone_request.discard(self.root, mirror), lambda _: None)

    def _withdraw(self, mirror: StreamIdentity) -> bool:
        """Withdraw a request; return True if it was answered before. Blocks."""
        if not clone_request.has_request(self.root, mirror):
            return False
        said = clone_request.withdraw(self.root, mirror)
        if said.state == clone_request.REFUSED:  # nothing was made, so nothing has to be removed
            clone_request.settle(self.root, mirror)
        return said.state == clone_request.MADE

    def _until_done(
        self, stream: StreamCore, work: Callable[[StreamIdentity], bool | None], then: Callable[[bool], None]
    ) -> None:
        """Retry until the lake answers, while this server decides."""
        identity = self.identity(stream)
        if identity is None:
            then(False)
            return

        def done(made: bool | None, error: BaseException | None) -> None:
            if error is None:
                then(bool(made))
                return
            self.log.warn(f"stream {stream.name}: clone paused: lake {self.root}: {error}; retrying")
            self.clock.call_later(READ_AGAIN_NS, again)

        def again() -> None:
            if stream.leading and not stream.closed and not stream.store.based:
                self._until_done(stream, work, then)

        self.io.submit(lambda: work(identity), done)

    def settled(self, stream: StreamCore) -> None:
        """Remove the request. Until then no mirror of this one begins with a clone."""
        identity = self.identity(stream)
        if identity is None or stream.closed:
            return

        def done(_: object, error: BaseException | None) -> None:
            if error is not None:
                self.log.warn(f"stream {stream.name}: the lake at {self.root}: {error}")
                self.clock.call_later(READ_AGAIN_NS, lambda: self.settled(stream))

        self.io.submit(lambda: self._settle(identity), done)

    def _settle(self, identity: StreamIdentity) -> None:
        if clone_request.has_request(self.root, identity):
            clone_request.settle(self.root, identity)

    def read(self, work: Callable[[], Result], done: Callable[[Result | None, BaseException | None], None]) -> None:
        """Run long work, one after the other."""
        if self._readers is None:
            self._readers = ThreadPoolExecutor(1, thread_name_prefix="lakestream-clones")
        readers = self._readers

        async def run() -> None:
            try:
                result = await asyncio.get_running_loop().run_in_executor(readers, work)
            except Exception as error:  # deltalake raises errors of any kind
                done(None, error)
            else:
                done(result, None)

        self.clock.spawn(run())

    # ------------------------------------------------------------------ blocking
    def known(self, mirror: StreamIdentity, source: StreamSource) -> _Found:
        """Return whether the request was made already, or never will be. Blocks."""
        said = clone_request.answer(self.root, mirror)
        asked = said is not None or clone_request.has_request(self.root, mirror)
        wanted = policy.of_config(bytes(mirror.config))
        never = wanted.clone == "never"
        if wanted.clone == "auto" and wanted.clone_as_of is None and not asked:
            never = self._messages(paths.table(self.root, source.name, mirror.account)) < CLONE_MSGS
        return _Found(said, "" if never and not asked else None, asked)

    def ask(self, mirror: StreamIdentity, source: StreamSource, flushed: _Flushed) -> _Found:
        """Make the request, unless there should be none. Blocks."""
        wanted = policy.of_config(bytes(mirror.config))
        directory = paths.staging(paths.root(self.root), source.name, flushed.uid, mirror.account)
        origin = staging.read_identity(directory)
        expected = (source.name, mirror.account, flushed.uid)  # the answer on the bus must not choose another table
        if origin is None or (origin.name, origin.account, origin.uid) != expected:
            return _Found(never=f"nothing of {source.name} is in the lake")
        config = _STREAM_CONFIG.decode(origin.config)
        why = why_not(config, _STREAM_CONFIG.decode(mirror.config))
        if why:
            return _Found(never=f"{source.name}: {why}")
        try:
            extras.require("tables", "a mirror that begins as a clone")
        except extras.ExtraMissing as error:
            return _Found(never=str(error))
        clone_request.request(self.root, mirror, _request(source, origin, wanted, flushed.last_index))
        return _Found()

    def look(self, mirror: StreamIdentity) -> _Found:
        """Look for an answer. Blocks."""
        said = clone_request.answer(self.root, mirror)
        path = f"{self.root}/{COMPACTOR_LOCK}"  # in an object store a compactor may always be running
        return _Found(said, attended=said is not None or not paths.is_local(path) or is_held(path))

    def _messages(self, table: str) -> int:
        """Return the approximate number of rows of a table."""
        try:
            return sum(file.rows for file in TableFollower(table).advance().files)
        except (FileNotFoundError, HistoryUnavailable):
            return 0

    def build(
        self, files: Files, directory: str, table: str, origin: BaseOrigin, stopped: Callable[[], bool] = lambda: False
    ) -> Base:
        """Return the base of a stream that begins with this table, building it if it is missing. Blocks for seconds."""
        from lakestream.lake.read import base_rows

        try:
            base = read_base(files, directory)
        except CorruptLog as error:
            self.log.warn(f"{error.file}: {error.what}; it will be rebuilt from the stream's table")
            base = None
        if base is not None and base.origin == origin:
            return base
        base_rows.build(files, directory, table, origin, stopped)
        base = read_base(files, directory)
        if base is None:  # somebody has removed it meanwhile
            raise NoBase(directory)
        return base


class _Task:
    """The progress of one mirror's clone. In the event loop."""

    def __init__(
        self,
        clones: LakeClones,
        stream: StreamCore,
        source: StreamSource,
        done: Callable[[Cloned | NotCloned], None],
        waits: Callable[[str], None],
    ) -> None:
        self._clones, self._stream, self._source = clones, stream, source
        self._done, self._waits = done, waits
        self._cancelled = threading.Event()
        self._began = self._attended = clones.clock.now()
        identity = clones.identity(stream)
        assert identity is not None, "it is kept in the lake"
        self._identity = identity
        as_of = policy.of_config(bytes(identity.config)).clone_as_of
        self._bound = as_of is not None
        """True if the mirror has to begin with the clone."""
        self._moment = as_of.time_ns if as_of is not None else 0
        self._inbox: Subscribed | None = None

    def cancel(self) -> None:
        self._cancelled.set()
        self._deaf()

    def begin(self) -> None:
        """Look how far the clone has come, perhaps under another server."""
        clones = self._clones
        clones.read(lambda: clones.known(self._identity, self._source), self._known)

    def _later(self, delay_ns: int, step: Callable[[], None]) -> None:
        self._clones.clock.call_later(delay_ns, lambda: None if self._cancelled.is_set() else step())

    def _known(self, found: _Found | None, error: BaseException | None) -> None:
        if self._cancelled.is_set():
            return
        if found is not None and not found.asked and found.never is None:
            self._flush()
        else:
            self._asked(found, error)

    # ------------------------------------------------------------------ the origin
    def _flush(self) -> None:
        """Have the origin's server stage what it has; the answer also identifies the stream."""
        wait = self._moment - self._clones.clock.now()
        if wait > 0:
            self._waits(NOT_COME)
            self._later(min(wait, LONGEST_NS), self._flush)
            return
        bus, reply = self._stream.bus, b"$JSC.R." + secrets.token_hex(8).encode()
        self._inbox = bus.subscribe(reply, singly(self._came))
        inbox = self._inbox
        self._later(FLUSH_NS, lambda: self._flushed(_Flushed()) if self._inbox is inbox else None)
        if not bus.send(Single(f"{FLUSH}{self._source.name}".encode(), reply)):
            self._flushed(_Flushed())

    def _came(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        if self._inbox is None:
            return
        try:
            self._flushed(_flushed.decode(payload) if payload else _Flushed())
        except DECODE_ERRORS:
            self._flushed(_Flushed())

    def _flushed(self, flushed: _Flushed) -> None:
        if self._inbox is None:
            return
        self._deaf()
        clones = self._clones
        if not (flushed.error or flushed.uid) and clones.clock.now() - self._began < ABSENT_NS:
            self._later(LOOK_NS, self._flush)  # after a start its own server may not have opened it yet
            return
        if flushed.error is not None or not flushed.uid.isalnum():
            why = (flushed.error or {}).get("description") or "it does not answer"
            self._end(NotCloned(f"{self._source.name}: {why}"))
            return
        clones.io.submit(lambda: clones.ask(self._identity, self._source, flushed), self._asked)

    def _deaf(self) -> None:
        if self._inbox is not None:
            self._inbox.cancel()
            self._inbox = None

    # ------------------------------------------------------------------ the request
    def _asked(self, found: _Found | None, error: BaseException | None) -> None:
        if self._cancelled.is_set():
            return
        if found is None:  # it is unknown whether there is a request, so nothing else may begin
            self._waits(f"the lake can not be asked: {error}")
            self._later(READ_AGAIN_NS, self.begin)
        elif found.never is not None:
            self._end(NotCloned(found.never))
        elif found.answer is not None:
            self._answered(found.answer)
        else:
            self._later(LOOK_NS, self._look)

    def _look(self) -> None:
        clones = self._clones
        clones.io.submit(lambda: clones.look(self._identity), self._looked)

    def _looked(self, found: _Found | None, error: BaseException | None) -> None:
        if self._cancelled.is_set():
            return
        now = self._clones.clock.now()
        if found is not None and found.answer is not None:
            self._answered(found.answer)
            return
        if found is None or found.attended:  # an unreadable lake proves no absence
            self._attended = now
        if self._bound:
            if now - self._attended > COMPACTOR_WAIT_NS:
                self._waits(NO_COMPACTOR)
            elif now - self._began > LATE_NS:
                self._waits(NOT_YET)
        elif now - self._attended > COMPACTOR_WAIT_NS or now - self._began > LONGEST_NS:
            clones = self._clones
            clones.io.submit(lambda: clone_request.withdraw(clones.root, self._identity), self._withdrawn)
            return
        self._later(LOOK_NS if now - self._began < LATE_NS else SELDOM_NS, self._look)

    def _withdrawn(self, said: CloneAnswer | None, error: BaseException | None) -> None:
        if self._cancelled.is_set():
            return
        if said is None:
            self._later(LOOK_NS, self._look)
        else:
            self._answered(said)

    def _answered(self, said: CloneAnswer) -> None:
        clones = self._clones
        match said.state:
            case clone_request.MADE:
                self._read(BaseOrigin(said.version, said.last_seq))
            case clone_request.WITHDRAWN:
                self._end(NotCloned(NO_COMPACTOR))
            case _:
                if self._bound:  # it is requested again, or the mirror discards it
                    clones.settled(self._stream)
                self._end(NotCloned(said.reason))

    def _read(self, origin: BaseOrigin) -> None:
        clones, stream = self._clones, self._stream
        table = paths.table(clones.root, stream.name, stream.account)
        files, directory = _files(stream), stream.store.directory

        def read(base: Base | None, error: BaseException | None) -> None:
            if self._cancelled.is_set():
                return
            if base is not None:
                self._done(Cloned(base))
                return
            clones.log.warn(f"stream {stream.name}: clone of {self._source.name} cannot be read: {error}; retrying")
            self._later(READ_AGAIN_NS, lambda: self._read(origin))

        clones.read(lambda: clones.build(files, directory, table, origin, self._cancelled.is_set), read)

    def _end(self, outcome: NotCloned) -> None:
        files, directory = _files(self._stream), self._stream.store.directory
        self._clones.io.submit(lambda: remove_base(files, directory), lambda _, __: None)
        self._done(outcome)


def _files(stream: StreamCore) -> Files:
    """Return the files of a stream that the lake has."""
    log = stream.store.log
    assert isinstance(log, SegmentLog), "it has a log on disk"
    return log.files


def _request(source: StreamSource, origin: StreamIdentity, wanted: StreamPolicy, index: int) -> CloneRequest:
    as_of = wanted.clone_as_of
    pairs = list(zip(*selected(source), strict=False))
    return CloneRequest(
        origin=origin.name,
        origin_uid=origin.uid,
        origin_account=origin.account,
        # Present removals have to be in the table, which then also has all messages of the time.
        through=index,
        as_of_seq=as_of.seq if as_of is not None else 0,
        as_of_ns=as_of.time_ns if as_of is not None else 0,
        selections=[]
        if pairs == [(">", ">")]
        else [SubjectSelection(src, "" if dest == ">" else dest) for src, dest in pairs],
    )
