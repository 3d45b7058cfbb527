"""Verification of the files of one stream.

Belongs here: the order of the checks of a stream's directory, in a group of one or as a member of a larger one. Each
file is verified by itself first, then all of them together by recovering the stream as a start would, with the
checkpoint and without.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator

import msgspec

from lakestream import extras
from lakestream.lake.errors import LakeError
from lakestream.log.format.errors import LogError
from lakestream.log.format.files import Files
from lakestream.log.format.segment import LOG_DIRECTORY, first_index_of, is_segment_name
from lakestream.log.store.base import DIRECTORY as BASE
from lakestream.log.store.base import origin_of, outlines_of
from lakestream.log.store.checkpoint import NAME as CHECKPOINT
from lakestream.log.store.checkpoint import read_checkpoint
from lakestream.log.store.segment_store import SegmentStore
from lakestream.log.store.store import Store
from lakestream.meta.replica_files import decode_identity, names
from lakestream.meta.stores import IDENTITY, PARTS, read_identity
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.raft.group.hard_state import NAME as RAFT
from lakestream.raft.group.hard_state import PersistentState, StateFile, damaged_slots
from lakestream.stream.assembly import Stream
from lakestream_verify.log.findings import Finding, FindingKind, Repair, Step, of_error
from lakestream_verify.log.overlay import Overlay
from lakestream_verify.log.parts import check_checkpoint, check_indexes, check_log, check_mark, check_outline
from lakestream_verify.recovered import RecoveredStream, differences, recover
from lakestream_verify.repair import StreamRepair


class FilesInUse(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about files that a running server uses, as it knows them itself.

    directory: the stream's; the verified one has links to its files.
    last: the last entry in the files, which is durable and applied.
    through: the entry as of which the stream is recovered.
    replicated: other nodes can send what is damaged.
    running: the store that uses the files.
    """

    directory: str
    last: int
    through: int
    replicated: bool
    running: Store


class StreamCheck:
    """Verification of one stream's directory.

    Args:
        files: the file layer.
        directory: the stream's.
        account, name: as the directory's place says.
        step: see `Step`.
        lake: root of the lake to compare with; "" without.
        every_row: see `LakeCheck`.
        as_of: the files are those of a running server.
        redo: brings a directory, in other files, to what the journal of its store says; as a start does first.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        account: str,
        name: str,
        step: Step,
        lake: str = "",
        every_row: bool = False,
        as_of: FilesInUse | None = None,
        redo: Callable[[str, Files], object] = lambda directory, files: None,
    ) -> None:
        self._redo = redo
        self._files, self._directory, self._step = files, directory, step
        self._account, self._name = account, name
        self._lake, self._every_row = lake, every_row
        self._durable = self._covered = 0
        self._commit: int | None = None
        self._member = False
        self._replicated = False
        self._as_of = as_of
        self._repairs = StreamRepair(files, directory, account, name, lake)

    def findings(self) -> Iterator[Finding]:
        """Yield everything that is wrong, each finding once. Block."""
        seen: set[tuple[str, int, str]] = set()
        with tempfile.TemporaryDirectory(prefix="lakestream-verify-") as scratch:
            for finding in self._all(scratch):
                place = (finding.file, finding.offset, finding.what)
                if place in seen:
                    continue
                seen.add(place)
                repair = self._repair(finding)
                found = msgspec.structs.replace(finding, stream=self._name, account=self._account, repair=repair)
                yield found if self._as_of is None else self._placed(found, self._as_of.directory)

    def _placed(self, finding: Finding, directory: str) -> Finding:
        """Return a finding with the server's own file instead of the link that was verified."""
        file, what = (text.replace(self._directory, directory) for text in (finding.file, finding.what))
        return msgspec.structs.replace(finding, file=file, what=what)

    def _repair(self, finding: Finding) -> Repair:
        """Return how a finding is repaired, which depends on the other files and replicas that there are."""
        if finding.kind is FindingKind.CHECKPOINT and self._as_of is not None:
            return Repair.CHECKPOINT
        of_lake = finding.kind in (FindingKind.STAGED, FindingKind.TABLE)
        if finding.harmless or of_lake or finding.repair not in (Repair.NONE, Repair.REPAIR):
            return finding.repair
        if self._replicated:
            return Repair.REPLICAS
        return Repair.REPAIR if not self._member and self._repairs.fix(finding) is not None else Repair.NONE

    def _all(self, scratch: str) -> Iterator[Finding]:
        yield from self._names()
        yield from self._state_files()
        index, found = check_checkpoint(self._files, self._directory)
        yield from found
        self._covered = index
        yield from self._base()
        overlay = self._files.over(Overlay(_below(scratch, "with")))
        broken: Exception | None = None
        recovered: RecoveredStream | None = None
        try:
            self._redo(self._directory, overlay)
            recovered = recover(overlay, self._directory, *self._known(), self._step)
        except (LogError, OSError, *DECODE_ERRORS, AssertionError, LookupError, ValueError) as error:
            broken = error
        # A start that succeeds has completed what a killed process left: its result is verified.
        whole = overlay if broken is None else self._files
        logged = list(check_log(whole, self._directory, max(self._durable, self._covered), self._step))
        yield from logged
        if broken is not None:
            refusal = of_error(FindingKind.FRAME, self._directory, broken)
            known = {each.file for each in logged if not each.harmless}
            if refusal.file not in known and not (known and refusal.file == self._directory):
                yield refusal
            return
        wrong = any(not each.harmless for each in logged)
        if recovered is None:
            return
        try:
            if recovered.stream is not None:
                yield from self._together(recovered.stream, wrong, scratch)
                if self._lake and isinstance(recovered.stream.store, SegmentStore):
                    yield from self._in_lake(recovered.stream, overlay, compare=not wrong)
        finally:
            recovered.close()

    def _together(self, stream: Stream, wrong: bool, scratch: str) -> Iterator[Finding]:
        """Yield the findings about a recovered stream. `wrong`: its log is damaged, so that it differs anyway."""
        for note in stream.store.notes:
            yield self._harmless(note)
        yield from self._identity(stream)
        if not wrong:
            yield from check_indexes(stream.store, self._step)
            yield from self._replay(stream, _below(scratch, "without"))

    def _in_lake(self, stream: Stream, files: Files, compare: bool) -> Iterator[Finding]:
        try:
            extras.require("tables", "comparing a stream with the lake")
        except extras.ExtraMissing as error:
            yield self._harmless(str(error), self._lake, FindingKind.TABLE)
            return
        from lakestream_verify.lake import LakeCheck  # with the lake's readers, in the thread that needs them

        try:
            running = self._as_of.running if self._as_of is not None else None
            yield from LakeCheck(self._lake, files, stream, self._every_row, running, self._step).findings(compare)
        except (LakeError, OSError) as error:
            what = f"the lake cannot be read: {error}"
            yield Finding(kind=FindingKind.TABLE, file=self._lake, what=what)

    def _known(self) -> tuple[int | None, int | None]:
        """Return the index through which the log was durable, and through which it is committed."""
        return (self._durable, self._commit) if self._member or self._as_of is not None else (None, None)

    def _names(self) -> Iterator[Finding]:
        for name in self._files.names(self._directory):
            if not name.startswith(PARTS):
                yield self._harmless(
                    "it is not part of a stream", os.path.join(self._directory, name), FindingKind.UNKNOWN
                )

    def _harmless(self, what: str, path: str = "", kind: FindingKind = FindingKind.TORN) -> Finding:
        repair = Repair.START if kind is FindingKind.TORN else Repair.NONE
        return Finding(kind=kind, file=path or self._directory, what=what, harmless=True, repair=repair)

    def _state_files(self) -> Iterator[Finding]:
        if self._as_of is not None:  # the server keeps their content in memory, and writes them all the time
            self._durable, self._commit = self._as_of.last, self._as_of.through
            self._replicated = self._as_of.replicated
            return
        path = os.path.join(self._directory, RAFT)
        identity = os.path.join(self._directory, IDENTITY)
        if not self._files.exists(path):
            self._durable, found = check_mark(self._files, self._directory)
            yield from found
            if self._files.exists(identity):
                yield self._harmless("a replica that was never opened: the meta group decides", identity)
            return
        self._member = True
        state, found = read_state(self._files, self._directory)
        yield from found
        if state is not None:
            self._durable, self._commit = state.durable, state.hard.commit
            self._replicated = len(state.membership.voters) > 1
            if state.recovering:
                what = "the member is recovering: it does not vote before other members have sent what it lacks"
                yield Finding(kind=FindingKind.RAFT, file=path, what=what, harmless=True, repair=Repair.REPLICAS)
        content = read_identity(self._files, self._directory)
        if content is not None and decode_identity(content) is None:
            yield Finding(
                kind=FindingKind.IDENTITY, file=identity, what="it does not name a stream", repair=Repair.START
            )

    def _identity(self, stream: Stream) -> Iterator[Finding]:
        if (stream.name, stream.account) != (self._name, self._account):
            what = f'it holds the log of stream {stream.name} of account "{stream.account}", and is not served'
            yield Finding(kind=FindingKind.IDENTITY, file=self._directory, what=what)
            return
        identity = os.path.join(self._directory, IDENTITY)
        content = read_identity(self._files, self._directory)
        if not self._member or content is None:
            return
        if decode_identity(content) is not None and not names(content, stream.uid, stream.account, stream.name):
            what = f"it names another stream than the log, which is that of {stream.name} ({stream.uid})"
            yield Finding(kind=FindingKind.IDENTITY, file=identity, what=what, repair=Repair.START)

    def _base(self) -> Iterator[Finding]:
        try:
            if origin_of(self._files, self._directory) is None:
                return
            for outline in outlines_of(self._files, self._directory):
                _, found = check_outline(self._files, outline.path)
                yield from found
        except (LogError, OSError, *DECODE_ERRORS) as error:
            yield of_error(FindingKind.BASE, os.path.join(self._directory, BASE), error)

    def _replay(self, stream: Stream, scratch: str) -> Iterator[Finding]:
        """Compare the checkpoint with a replay of the log, if the log has every entry."""
        path = os.path.join(self._directory, CHECKPOINT)
        names = self._files.names(os.path.join(self._directory, LOG_DIRECTORY))
        firsts = [first_index_of(name) for name in names if is_segment_name(name)]
        if stream.store.based or not firsts or firsts[0] != 1 or read_checkpoint(self._files, path) is None:
            return
        overlay = self._files.over(Overlay(scratch))
        overlay.remove(path)
        try:
            self._redo(self._directory, overlay)
            again = recover(overlay, self._directory, *self._known(), self._step)
        except (LogError, OSError, *DECODE_ERRORS, AssertionError, LookupError, ValueError) as error:
            yield of_error(FindingKind.REPLAY, self._directory, error)
            return
        try:
            if again.stream is None:
                yield Finding(kind=FindingKind.REPLAY, file=path, what="the log has no entry")
                return
            for name, said, found in differences(stream, again.stream):
                what = f"{name}: {said} by the checkpoint, {found} by a replay of the log"
                yield Finding(kind=FindingKind.REPLAY, file=path, what=what, repair=Repair.REPAIR)
        finally:
            again.close()


def _below(directory: str, name: str) -> str:
    path = os.path.join(directory, name)
    os.mkdir(path)
    return path


def read_state(files: Files, directory: str) -> tuple[PersistentState | None, list[Finding]]:
    """Return the hard state of a member, None if it is damaged, and the findings. Block."""
    with tempfile.TemporaryDirectory(prefix="lakestream-verify-") as scratch:
        overlay = files.over(Overlay(scratch))
        file = StateFile(overlay, directory)
        try:
            state = file.read()
            what = "this slot is damaged, perhaps by an interrupted write; the other one is used"
            found = [
                Finding(kind=FindingKind.RAFT, file=file.path, offset=at, what=what, harmless=True, repair=Repair.START)
                for at in damaged_slots(overlay, directory)
            ]
            return state, found
        except (LogError, OSError, *DECODE_ERRORS) as error:
            return None, [of_error(FindingKind.RAFT, file.path, error, Repair.REPLICAS)]
        finally:
            file.close()
