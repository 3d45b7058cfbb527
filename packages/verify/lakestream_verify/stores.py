"""Verification of a store directory.

Belongs here: locking a store that no server uses, and walking over everything in it, the meta group of a node of a
cluster included. Memory is bounded by the indexes of one stream and its longest segment.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator

import msgspec

from lakestream.lake.staging.sealed import store_files
from lakestream.log.format.errors import LogError
from lakestream.log.format.files import Files, InlineIo
from lakestream.log.format.frame import Kind as FrameKind
from lakestream.log.format.segment import LOG_DIRECTORY
from lakestream.log.store.root import StoreRoot, require_own
from lakestream.log.store.segment_store import open_store
from lakestream.meta.assignments import MetaState, decode_op
from lakestream.meta.meta import DIRECTORY, GROUP
from lakestream.meta.meta_group import LOST
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.raft.group.hard_state import NAME as RAFT
from lakestream_verify.log.findings import Finding, FindingKind, Repair, of_error
from lakestream_verify.log.overlay import Overlay
from lakestream_verify.log.parts import check_checkpoint, check_log
from lakestream_verify.repair import Fix, StreamRepair
from lakestream_verify.streams import StreamCheck, read_state

JETSTREAM = "jetstream"
"""Directory of the streams in a server's store directory."""


class NoStore(Exception):
    """Raised when a directory is no store."""


def root_of(directory: str) -> str:
    """Return the directory of the streams for a server's store directory, or for itself.

    Raises:
        NoStore: it is no store.
        ForeignStore: it is a store of nats-server.
    """
    for path in (os.path.join(directory, JETSTREAM), directory):
        if os.path.isfile(os.path.join(path, "VERSION")):
            return path
        require_own(path, Files())
    raise NoStore(f"{directory} is not a store: it has no {JETSTREAM}/VERSION; name the server's store_dir")


class StoreCheck:
    """Verification of a store that no server uses.

    Args:
        root: as `root_of` returned it.
        wanted: returns True for (account, stream) of the streams to verify.
        lake: root of the lake to compare with; "" without.
        every_row: see `LakeCheck`.
        alone: lock the store for changes.

    Raises:
        StoreLocked, StoreVersionError, OSError: the store cannot be used.
    """

    def __init__(
        self,
        root: str,
        wanted: Callable[[str, str], bool],
        lake: str = "",
        every_row: bool = False,
        alone: bool = False,
    ) -> None:
        self.files = files = store_files(root)
        self.root = StoreRoot.inspect(root, files, alone=alone)
        if alone:  # as a start does: what is repaired is what a start finds
            self.root.journal.recover(time.time_ns())
        self._wanted, self._lake, self._every_row = wanted, lake, every_row
        self._left: list[tuple[str, str, str]] = []
        self.streams = self.bytes = 0
        """Streams and bytes of logs that were verified."""

    def close(self) -> None:
        """Release the lock. Idempotent."""
        self.root.close()

    def streams_in(self) -> tuple[list[tuple[str, str]], list[Finding]]:
        """Return (account, stream) of the wanted streams, and the findings about what else lies in the store. Note the
        deleted streams whose files the lake still needs."""
        said: list[str] = []
        with tempfile.TemporaryDirectory(prefix="lakestream-verify-") as scratch:
            survey = self.root.survey(Overlay(scratch), said.append)
        found = [
            Finding(kind=FindingKind.UNKNOWN, file=self.root.path, what=line, harmless=True, repair=Repair.NONE)
            for line in said
        ]
        self._left = [each for each in survey.left if self._wanted(*each[:2])]
        return [each for each in survey.streams if self._wanted(*each)], found

    def total(self) -> int:
        """Return the bytes of the logs that are verified."""
        streams, _ = self.streams_in()
        directories = [self.root.stream_directory(*each) for each in streams] + [path for _, _, path in self._left]
        return sum(_bytes_in(os.path.join(each, LOG_DIRECTORY)) for each in directories)

    def findings(self, advance: Callable[[int], None]) -> Iterator[Finding]:
        """Yield everything that is wrong in the store. Block. `advance` is called with numbers of bytes."""

        def done(count: int) -> None:
            self.bytes += count
            advance(count)

        streams, found = self.streams_in()
        yield from found
        yield from check_meta(self.files, self.root.path, done)
        for account, name in streams:
            self.streams += 1
            directory = self.root.stream_directory(account, name)
            check = StreamCheck(
                self.files, directory, account, name, done, self._lake, self._every_row, redo=self.root.journal.redo
            )
            yield from check.findings()
        for account, name, directory in self._left:
            check = StreamCheck(self.files, directory, account, name, done, self._lake, self._every_row)
            for finding in check.findings():
                # Every node keeps its own files of a deleted stream, and sends none.
                alone = finding.repair is Repair.REPLICAS
                yield msgspec.structs.replace(finding, repair=Repair.NONE) if alone else finding

    def fix(self, finding: Finding) -> Fix | None:
        """Return the repair of a finding, or None."""
        if finding.repair is not Repair.REPAIR:
            return None
        left = (path for _, _, path in self._left if finding.file.startswith(f"{path}/"))
        directory = next(left, self.root.stream_directory(finding.account, finding.stream))
        return StreamRepair(self.files, directory, finding.account, finding.stream, self._lake).fix(finding)


def _bytes_in(directory: str) -> int:
    try:
        return sum(entry.stat().st_size for entry in os.scandir(directory))
    except OSError:
        return 0


def check_meta(files: Files, root: str, done: Callable[[int], None]) -> Iterator[Finding]:
    """Yield the findings of the meta group in a store, if the node has one. Block."""
    directory = os.path.join(root, DIRECTORY)
    if not files.exists(os.path.join(directory, RAFT)):
        return
    state, found = read_state(files, directory)
    for each in found:  # a node whose vote is not known does not start
        yield each if each.harmless else msgspec.structs.replace(each, repair=Repair.NONE)
    durable = state.durable if state is not None else 0
    several = state is None or len(state.membership.voters) > 1
    repair = Repair.REPLICAS if several else Repair.NONE
    lost = os.path.join(directory, LOST)
    if files.exists(lost) and not files.read(lost).strip().isdigit():
        yield Finding(kind=FindingKind.META, file=lost, what="it does not hold a number")
    with tempfile.TemporaryDirectory(prefix="lakestream-verify-") as scratch:
        overlay = files.over(Overlay(scratch))
        broken: Exception | None = None
        try:
            for note in _replay(overlay, directory, durable, state.hard.commit if state is not None else None):
                yield Finding(kind=FindingKind.TORN, file=directory, what=note, harmless=True, repair=Repair.START)
        except (LogError, OSError, *DECODE_ERRORS, AssertionError, ValueError) as error:
            broken = error
        index, wrong_state = check_checkpoint(files, directory)
        for each in wrong_state:
            yield msgspec.structs.replace(each, repair=repair)
        wrong = False
        for each in check_log(overlay if broken is None else files, directory, max(durable, index), done):
            wrong = wrong or not each.harmless
            yield each if each.harmless else msgspec.structs.replace(each, repair=repair)
        if broken is not None and not wrong:
            yield of_error(FindingKind.META, directory, broken, repair)


def _replay(files: Files, directory: str, durable: int, commit: int | None) -> list[str]:
    """Recover the assignments; return the notes of the recovery. Raise LogError, MsgspecError, OSError."""
    store = open_store(directory, InlineIo(), uid=GROUP, files=files, durable_through=durable, whole=False)
    try:
        state = MetaState.load(store.extra) if store.extra else MetaState()
        for frame, _ in store.replay(through=commit):
            if frame.kind == FrameKind.OPERATION:
                state.apply(decode_op(frame.body), frame.index)
            store.applied = frame.index
        return store.notes
    finally:
        store.abandon()


def lake_beside(root: str) -> str:
    """Return the default lake of a store, `<store_dir>/lake`, or "" if there is none."""
    path = os.path.join(os.path.dirname(os.path.abspath(root)), "lake")
    return path if os.path.isdir(path) else ""
