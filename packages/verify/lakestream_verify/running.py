"""Verification of this node's replicas while the server runs.

Belongs here: collecting the files of a replica, verifying them in a thread at a bounded rate, and the calls by which
the leader of the stream asks for that (verification.py). The files are links in `verifying-<n>` of the stream's
directory, so that the server goes on; they are verified like those of a stopped server (streams.py).

    verify.open      collect the files as of now; answered with the entry
    verify.run       verify them, and make the digests as of an entry
    verify.poll      answered with what was found so far
    verify.rows      answered with the digests of the messages in a range
    verify.close     remove the links, report what was found
    verify.refill    set this replica's files aside, and let the others send everything again
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from lakestream.log.format.errors import CorruptLog, LogError
from lakestream.log.store.export import FilesMoved
from lakestream.log.store.segment_store import SegmentStore
from lakestream.meta.node import MetaNode
from lakestream.meta.replica import Replica
from lakestream.meta.stores import VERIFYING
from lakestream.ports import Io, Timer
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream_verify.digests import Digests, RangeDigest, RowDigest
from lakestream_verify.log.findings import Finding, FindingKind
from lakestream_verify.log.overlay import Overlay
from lakestream_verify.recovered import RecoveredStream, recover
from lakestream_verify.streams import FilesInUse, StreamCheck

MAX_FINDINGS = 500
"""Maximum number of findings of one replica; the rest is counted."""
RANGES_AT_ONCE = 4096
"""Maximum number of digests in an answer to a poll."""
IDLE_NS = 60_000_000_000
"""A verification that its leader has not asked for so long (60 s) is ended."""
COLLECT_AGAIN_NS = 5_000_000
COLLECT_TRIES = 200
SHARE = 4
"""A verification takes a quarter of a thread's time."""
TURN_NS = 5_000_000
"""Time of work between two pauses (5 ms), or more if a step takes longer."""

OPEN, RUN, POLL, ROWS, CLOSE, REFILL = (f"verify.{each}" for each in ("open", "run", "poll", "rows", "close", "refill"))
BUSY = "busy"


class VerifyCall(msgspec.Struct, array_like=True, frozen=True):
    """The body of all calls: the run, the stream's uid, and for `verify.rows` the number of a range."""

    run: str
    uid: str = ""
    number: int = 0


class VerifyOpened(msgspec.Struct, array_like=True, frozen=True):
    """The answer to `verify.open`. `index`: the entry as of which the files are; `floor`: the first one as of which
    they can be recovered; `local_floor`: the lowest sequence in the log. `wrong` BUSY: too many run here."""

    wrong: str = ""
    index: int = 0
    floor: int = 0
    local_floor: int = 0
    bytes: int = 0


class VerifyRun(msgspec.Struct, array_like=True, frozen=True):
    """The body of `verify.run`: recover as of entry `through`; see `StreamCheck` and `Digests` for the rest."""

    run: str
    through: int
    local_floor: int
    lake: bool
    every_row: bool


class Poll(msgspec.Struct, array_like=True, frozen=True):
    """The body of `verify.poll`. `ranges`: the number of digests that the leader has."""

    run: str
    ranges: int


class Polled(msgspec.Struct, array_like=True, frozen=True):
    """The answer to `verify.poll`. Findings are complete when it is done. `wrong`: it could not be verified;
    `uncompared`: it cannot be compared with others."""

    wrong: str = ""
    bytes: int = 0
    done: bool = False
    uncompared: str = ""
    findings: list[Finding] = []
    more: int = 0
    ranges: list[RangeDigest] = []
    state: dict[str, str] = {}


class Close(msgspec.Struct, array_like=True, frozen=True):
    """The body of `verify.close`. `findings`: about this replica, by its leader."""

    run: str
    findings: list[Finding] = []


class Refill(msgspec.Struct, array_like=True, frozen=True):
    """The body of `verify.refill`. `agreeing`: the voters that the replica differs from."""

    uid: str
    agreeing: list[str]
    what: str


class Stopped(Exception):
    """Raised in the thread of a verification that is not wanted any more."""


class VerifyPace:
    """Step of a verification: it waits so that the rate and the share of a thread's time are kept."""

    def __init__(self, rate: int) -> None:
        self._rate, self._stopped = rate, threading.Event()
        self._since = time.monotonic_ns()
        self._owed = 0
        self.bytes = 0

    def stop(self) -> None:
        """Let the next step raise Stopped."""
        self._stopped.set()

    def __call__(self, count: int) -> None:
        self.bytes += count
        self._owed += count
        worked = time.monotonic_ns() - self._since
        if self._stopped.is_set():
            raise Stopped
        if worked < TURN_NS and not count:
            return
        pause = (SHARE - 1) * worked
        if self._rate:
            pause = max(pause, self._owed * 1_000_000_000 // self._rate - worked)
        self._stopped.wait(pause / 1e9)
        self._owed, self._since = 0, time.monotonic_ns()


class _Run:
    """One verification of a replica. The thread adds to it, the event loop reads."""

    def __init__(self, name: str, replica: Replica, directory: str, pace: VerifyPace) -> None:
        self.name, self.replica, self.directory, self.pace = name, replica, directory, pace
        self.index = 0
        self.busy = self.done = self.closed = False
        self.wrong = self.uncompared = ""
        self.findings: list[Finding] = []
        self.more = 0
        self.ranges: list[RangeDigest] = []
        self.state: dict[str, str] = {}
        self.recovered: RecoveredStream | None = None
        self.digests: Digests | None = None
        self.scratch: tempfile.TemporaryDirectory[str] | None = None
        self.timer: Timer | None = None
        self.on_removed: list[Callable[[], None]] = []


class Running:
    """The verifications of this node's replicas.

    Args:
        node: its replicas, and the calls between nodes.
        lake: root of the lake; "" without.
        background: threads that do nothing else.
        rate: bytes of logs in a second, on average; 0: any.
        most: replicas that are verified at the same time.
    """

    def __init__(self, node: MetaNode, lake: str, background: Io, rate: int, most: int) -> None:
        self._node, self._lake, self._io, self._rate, self._most = node, lake, background, rate, most
        self._files, self._root = node.shared.stores.files, os.path.dirname(node.shared.stores.root)
        self._runs: dict[str, _Run] = {}
        self._number = 0
        self.calls: dict[str, Callable[[bytes, Callable[[bytes], None]], None]] = {
            OPEN: self._open,
            RUN: self._begin,
            POLL: self._poll,
            ROWS: self._rows,
            CLOSE: self._close,
            REFILL: self._refill,
        }
        """The calls that are served, by method."""

    def stop(self) -> None:
        """End all verifications; what they leave is removed by the next start."""
        for run in self._runs.values():
            run.pace.stop()

    # ------------------------------------------------------------------ the files
    def _open(self, body: bytes, answer: Callable[[bytes], None]) -> None:
        asked = _ASKED.decode(body)
        replica = self._node.replicas.by_uid.get(asked.uid)
        wrong = _refusal(replica)
        if not wrong and len(self._runs) >= self._most:
            wrong = BUSY
        if wrong or replica is None or replica.stream is None:
            answer(_encode(VerifyOpened(wrong)))
            return
        self._number += 1
        directory = os.path.join(replica.stream.store.directory, f"{VERIFYING}{self._number}")
        run = self._runs[asked.run] = _Run(asked.run, replica, directory, VerifyPace(self._rate))
        self._watch(run)
        self._collect(run, answer, COLLECT_TRIES)

    def _collect(self, run: _Run, answer: Callable[[bytes], None], tries: int) -> None:
        """Link the files; again if they have changed meanwhile."""
        stream, clock = run.replica.stream, self._node.shared.clock
        wrong = _refusal(run.replica)
        if wrong or stream is None or run.closed:
            self._end(run)
            answer(_encode(VerifyOpened(wrong or "it is not wanted any more")))
            return
        if not stream.sealed and tries:
            clock.call_later(COLLECT_AGAIN_NS, lambda: self._collect(run, answer, tries - 1))
            return
        store = stream.store
        assert isinstance(store, SegmentStore), "a stream with files"
        pin, local_floor = store.pin(), store.local_floor

        def write() -> int:
            self._files.remove_tree(run.directory)
            pin.write(run.directory)
            return pin.floor

        def written(floor: int | None, error: BaseException | None) -> None:
            run.busy = False
            if floor is None:
                if isinstance(error, FilesMoved | FileNotFoundError) and tries:
                    clock.call_later(COLLECT_AGAIN_NS, lambda: self._collect(run, answer, tries - 1))
                    return
                self._end(run)
                answer(_encode(VerifyOpened(f"its files cannot be collected: {error}")))
                return
            run.index = pin.index
            answer(_encode(VerifyOpened("", pin.index, floor, local_floor, pin.bytes)))
            if run.closed:
                self._end(run)

        run.busy = True
        self._io.submit(write, written)

    # ------------------------------------------------------------------ the work
    def _begin(self, body: bytes, answer: Callable[[bytes], None]) -> None:
        wanted = _WANTED.decode(body)
        run = self._runs.get(wanted.run)
        if run is None or run.closed or run.busy or run.done:
            answer(b"-")
            return
        self._watch(run)
        run.busy = True
        self._io.submit(lambda: self._verify(run, wanted), lambda _, error: self._verified(run, error))
        answer(b"+")

    def _verify(self, run: _Run, wanted: VerifyRun) -> None:
        replica, stream = run.replica, run.replica.stream
        if stream is None:
            raise LogError("the replica is being removed")
        lake = self._lake if wanted.lake and stream.config.in_lake else ""
        directory = stream.store.directory
        as_of = FilesInUse(
            directory=directory,
            last=run.index,
            through=wanted.through,
            replicated=replica.refillable,
            running=stream.store,
        )
        check = StreamCheck(
            self._files, run.directory, replica.account, replica.name, run.pace, lake, wanted.every_row, as_of
        )
        for finding in check.findings():
            if len(run.findings) < MAX_FINDINGS:
                run.findings.append(msgspec.structs.replace(finding, node=self._node.me))
            else:
                run.more += 1
        run.scratch = tempfile.TemporaryDirectory(prefix="lakestream-verify-")
        overlay = self._files.over(Overlay(run.scratch.name))
        try:
            run.recovered = recover(overlay, run.directory, run.index, wanted.through, run.pace)
        except (LogError, OSError, *DECODE_ERRORS, AssertionError, LookupError, ValueError) as error:
            run.uncompared = self._shown(f"its files cannot be recovered: {error}", run.directory, directory)
            return
        if run.recovered.stream is None:
            run.uncompared = "it has no entry yet"
            return
        run.digests = Digests(run.recovered.stream, wanted.local_floor, run.pace)
        run.state = run.digests.state()
        for each in run.digests.ranges():
            run.ranges.append(each)

    def _verified(self, run: _Run, error: BaseException | None) -> None:
        run.busy, run.done = False, True
        if error is not None:
            run.wrong = str(error) or type(error).__name__
            if not isinstance(error, Stopped | LogError | OSError):
                self._node.shared.log.exception(f"stream {run.replica.name}: verification failed", error)
        if run.closed:
            self._end(run)

    def _poll(self, body: bytes, answer: Callable[[bytes], None]) -> None:
        asked = _POLL.decode(body)
        run = self._runs.get(asked.run)
        if run is None:
            answer(_encode(Polled("it does not run here any more")))
            return
        self._watch(run)
        wrong = run.wrong or _refusal(run.replica)
        ranges = run.ranges[asked.ranges : asked.ranges + RANGES_AT_ONCE]
        done = run.done and asked.ranges + len(ranges) == len(run.ranges)
        findings = [self._public(each) for each in run.findings] if done else []
        more = run.more if done else 0
        polled = Polled(wrong, run.pace.bytes, done, run.uncompared, findings, more, ranges, run.state if done else {})
        answer(_encode(polled))

    def _rows(self, body: bytes, answer: Callable[[bytes], None]) -> None:
        asked = _ASKED.decode(body)
        run = self._runs.get(asked.run)
        if run is None or run.digests is None or run.busy or run.closed:
            answer(b"")
            return
        digests = run.digests
        self._watch(run)

        def made(rows: list[RowDigest] | None, error: BaseException | None) -> None:
            run.busy = False
            answer(_encode(rows) if rows is not None else b"")
            if run.closed:
                self._end(run)

        run.busy = True
        self._io.submit(lambda: list(digests.rows(asked.number)), made)

    # ------------------------------------------------------------------ the end
    def _close(self, body: bytes, answer: Callable[[bytes], None]) -> None:
        asked = _CLOSE.decode(body)
        run = self._runs.get(asked.run)
        if run is not None:
            if run.done:
                self._report(run, [*run.findings, *asked.findings])
            self._end(run, lambda: answer(b""))
        else:
            answer(b"")

    def _watch(self, run: _Run) -> None:
        if run.timer is not None:
            run.timer.cancel()
        run.timer = self._node.shared.clock.call_later(IDLE_NS, lambda: self._end(run))

    def _end(self, run: _Run, done: Callable[[], None] = lambda: None) -> None:
        """Remove what a run has made, once its thread has ended; then call `done`."""
        run.closed = True
        run.on_removed.append(done)
        run.pace.stop()
        if run.timer is not None:
            run.timer.cancel()
        if run.busy:
            return

        def remove() -> None:
            if run.recovered is not None:
                run.recovered.close()
            if run.scratch is not None:
                run.scratch.cleanup()
            self._files.remove_tree(run.directory)

        def removed(_: object, error: BaseException | None) -> None:
            self._runs.pop(run.name, None)
            for callback in run.on_removed:
                callback()
            if error is not None and not run.replica.closed:
                self._node.shared.log.warn(f"{run.directory} cannot be removed before the next start: {error}")

        run.busy = True
        self._io.submit(remove, removed)

    def _report(self, run: _Run, findings: Sequence[Finding]) -> None:
        """Report damage as the scrubber does, and begin the repairs that are safe."""
        replica, repairs = run.replica, self._node.replicas.repairs
        stream = replica.stream
        if stream is None or replica.closed:
            return
        files: set[str] = set()
        for each in findings:
            if each.harmless or each.file in files:
                continue
            files.add(each.file)
            repairs.verified(replica, CorruptLog(each.file, each.offset, each.what))
            if each.kind is FindingKind.CHECKPOINT:
                stream.checkpoint()

    def _refill(self, body: bytes, answer: Callable[[bytes], None]) -> None:
        asked = _REFILL.decode(body)
        replica = self._node.replicas.by_uid.get(asked.uid)
        wrong = _refusal(replica)
        if not wrong and replica is not None:
            voters = replica.membership.voters
            alive = [each for each in asked.agreeing if each in voters and self._node.peers.alive(each)]
            if self._node.me in asked.agreeing or 2 * len(alive) <= len(voters):
                wrong = "no majority of the voters is connected that has the other content"
            else:
                replica.refill(asked.what)
        answer(wrong.encode())

    # ------------------------------------------------------------------ texts
    def _public(self, finding: Finding) -> Finding:
        """Return a finding for clients: with paths below the store directory and the lake."""
        return msgspec.structs.replace(finding, file=self._relative(finding.file), what=self._relative(finding.what))

    def _relative(self, text: str) -> str:
        text = text.replace(f"{self._root}/", "")
        return text.replace(self._lake, "lake") if self._lake else text

    def _shown(self, text: str, pinned: str, directory: str) -> str:
        return self._relative(text.replace(pinned, directory))


def _refusal(replica: Replica | None) -> str:
    """Return the reason why a replica cannot be verified; "" if it can."""
    if replica is None or replica.closed:
        return "it has no replica of this stream"
    stream = replica.stream
    if stream is None:
        return "its replica is not open"
    if replica.memory:
        return "the stream has memory storage"
    return "" if stream.failed is None else "its replica has failed; the server's log says why"


_encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
_ASKED = msgspec.msgpack.Decoder(VerifyCall)
_WANTED = msgspec.msgpack.Decoder(VerifyRun)
_POLL = msgspec.msgpack.Decoder(Poll)
_CLOSE = msgspec.msgpack.Decoder(Close)
_REFILL = msgspec.msgpack.Decoder(Refill)
