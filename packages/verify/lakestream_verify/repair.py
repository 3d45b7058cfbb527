"""Repair of a stream's files where that is safe.

Belongs here: which findings of a group of one can be repaired from what else there is, and how. A damaged file is never
changed: it is linked into the account's directory `aside`, whose files no server opens or removes, and then a new file
takes its place in one step. What a crash leaves in between is repaired by the next run.

Repaired are checkpoints (the log has every entry, so the next start replays it), tables in the footer of a sealed
segment (made of its frames; the footer has their CRC), and sealed segments (their staged copies have the same entries).
Other replicas repair a member of a larger group, and the compactor the lake.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from lakestream.lake.errors import LakeError
from lakestream.lake.staging import staging
from lakestream.lake.staging.sealed import reader
from lakestream.lake.staging.staging import StagedSegment
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.log.format.errors import LogError
from lakestream.log.format.files import Files
from lakestream.log.format.outline import SUFFIX as OUTLINE_SUFFIX
from lakestream.log.format.packed import read_plain
from lakestream.log.format.segment import (
    LOG_DIRECTORY,
    Footer,
    first_index_of,
    is_segment_name,
    read_end,
    read_footer,
    segment_name,
)
from lakestream.log.store.base import DIRECTORY as BASE
from lakestream.log.store.checkpoint import NAME as CHECKPOINT
from lakestream.log.store.checkpoint import read_checkpoint
from lakestream.log.store.repair import verify as verify_segment
from lakestream.log.store.root import ASIDE
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream_verify.log.findings import Finding, FindingKind
from lakestream_verify.log.frames import Chain, SegmentCheck
from lakestream_verify.log.overlay import Overlay
from lakestream_verify.recovered import recover

_OF_SEGMENTS = (FindingKind.HEADER, FindingKind.FRAME, FindingKind.RECORD, FindingKind.FOOTER, FindingKind.GAP)
_OF_CHECKPOINTS = (FindingKind.CHECKPOINT, FindingKind.INDEX, FindingKind.REPLAY)


class Fix(msgspec.Struct, frozen=True):
    """A repair. `file`: the file that it replaces, creates or sets aside; `what` it does; `apply` does it and returns
    the path to which the damaged file went, or ""."""

    file: str
    what: str
    apply: Callable[[], str]


class StreamRepair:
    """Repairs of one stream of a group of one.

    Args:
        files: the file layer.
        directory: the stream's.
        name, account: as the directory's place says.
        lake: root of the lake; "" without.
    """

    def __init__(self, files: Files, directory: str, account: str, name: str, lake: str) -> None:
        self._files, self._directory, self._account, self._name = files, directory, account, name
        self._log = os.path.join(directory, LOG_DIRECTORY)
        self._lake = lake

    def fix(self, finding: Finding) -> Fix | None:
        """Return the repair of a finding, or None if there is none that is safe. Block. Nothing is changed."""
        if finding.harmless:
            return None
        if finding.kind in _OF_CHECKPOINTS and finding.file == os.path.join(self._directory, CHECKPOINT):
            return self._checkpoint(finding.file)
        if finding.kind not in _OF_SEGMENTS or os.path.dirname(finding.file) != self._log:
            return None
        if finding.kind is FindingKind.GAP:
            return self._missing(finding.file)
        return self._tables(finding.file) or self._staged(finding.file)

    # ------------------------------------------------------------------ the checkpoint
    def _checkpoint(self, path: str) -> Fix | None:
        """Set the checkpoint aside if the log can be replayed from its first entry."""
        names = self._files.names(self._log)
        segments = [name for name in names if is_segment_name(name)]
        outlined = any(name.endswith(OUTLINE_SUFFIX) for name in names)
        if not segments or first_index_of(segments[0]) != 1 or outlined or self._files.names(self._path(BASE)):
            return None
        with tempfile.TemporaryDirectory(prefix="lakestream-repair-") as scratch:
            overlay = self._files.over(Overlay(scratch))
            overlay.remove(path)
            try:
                recovered = recover(overlay, self._directory, None, None)
            except (LogError, OSError, *DECODE_ERRORS, AssertionError, ValueError, LookupError):
                return None
            whole = recovered.stream is not None
            recovered.close()
        if not whole:
            return None

        def apply() -> str:
            aside = self._aside(path)
            self._files.remove(path)
            self._files.sync_directory(self._directory)
            return aside

        return Fix(path, "set it aside: the next start replays the log, which has every entry", apply)

    # ------------------------------------------------------------------ segments
    def _tables(self, path: str) -> Fix | None:
        """Make the tables of a footer of the frames, if the result has the CRC that the footer says."""
        check = SegmentCheck(self._files, path, Chain(), newest=False)
        found = list(check.findings())
        end, segment = check.end, check.segment
        if (
            end is None
            or segment is None
            or segment.tables is None
            or any(each.kind is not FindingKind.FOOTER for each in found)
        ):
            return None
        tables = segment.tables.offsets.tobytes() + segment.tables.lengths.tobytes()
        content = self._files.read(path)
        made = content[: end.tables_at] + tables + content[end.tables_at + 8 * end.rows :]
        if len(made) != len(content) or made == content or not self._is_whole(made, path):
            return None
        return Fix(path, "rebuild the tables of its footer from its frames", partial(self._put, path, made))

    def _is_whole(self, content: bytes, path: str) -> bool:
        """Return True if a segment of this content has no finding."""
        with tempfile.TemporaryDirectory(prefix="lakestream-repair-") as scratch:
            copy = os.path.join(scratch, os.path.basename(path))
            with open(copy, "wb") as file:
                file.write(content)
            return not list(SegmentCheck(self._files, copy, Chain(), newest=False).findings())

    def _staged(self, path: str) -> Fix | None:
        """Replace a sealed segment by its staged copy, if the two agree in everything that can still be read."""
        first = first_index_of(os.path.basename(path))
        following = [index for index in self._firsts() if index > first]
        if not following:
            return None  # the open segment, or one whose end is not known
        last = following[0] - 1
        for staged in self._copies():
            if (staged.first_index, staged.last_index) == (first, last):
                content = self._good(staged, path)
                if content is not None:
                    what = f"replace it by its staged copy {staged.path}"
                    return Fix(path, what, partial(self._put, path, content))
        return None

    def _missing(self, after: str) -> Fix | None:
        """Put staged copies in the place of segments that are missing before a file."""
        first = first_index_of(os.path.basename(after))
        before = [index for index in self._firsts() if index < first]
        if not before:
            return None
        for staged in self._copies():
            if staged.last_index == first - 1 and staged.first_index > before[-1]:
                content = self._good(staged, "")
                path = os.path.join(self._log, segment_name(staged.first_index))
                if content is not None:
                    return Fix(path, f"copy it from {staged.path}", partial(self._put, path, content))
        return None

    def _firsts(self) -> list[int]:
        return [first_index_of(name) for name in self._files.names(self._log) if is_segment_name(name)]

    def _copies(self) -> Iterable[StagedSegment]:
        uid = self._uid()
        if not uid or not self._lake:
            return []
        try:
            return staging.segments(paths.staging(paths.root(self._lake), self._name, uid, self._account))
        except (LakeError, OSError):
            return []

    def _uid(self) -> str:
        """Return the uid of the stream, from the checkpoint or any footer."""
        with contextlib.suppress(LogError, OSError, *DECODE_ERRORS):
            found = read_checkpoint(self._files, self._path(CHECKPOINT))
            if found is not None and found[0].uid:
                return found[0].uid
        for index in self._firsts():
            with contextlib.suppress(LogError, OSError, *DECODE_ERRORS):
                return read_footer(os.path.join(self._log, segment_name(index)), self._files)[0].uid
        return ""

    def _good(self, staged: StagedSegment, path: str) -> bytes | None:
        """Return the content of a staged segment if it is whole, and agrees with what can be read of the file at
        `path`, if that is given."""
        try:
            with open_storage(staged.path).fetch(staged.path) as local:
                files = reader(local, staged.path)
                _, footer = verify_segment(files, local)
                agrees = not path or self._agrees(footer, local, staged.path, path)
                if footer.last_index != staged.last_index or not agrees:
                    return None
                return files.read(local)
        except (LogError, LakeError, OSError, *DECODE_ERRORS):
            return None

    def _agrees(self, footer: Footer, copy: str, staged: str, path: str) -> bool:
        """Return True if a copy has the footer of the damaged segment, or all records that can be read in it."""
        with self._files.opened(path) as fd:
            end = read_end(self._files, fd)
        if end is not None:
            return msgspec.structs.replace(footer, closed_ns=end.footer.closed_ns) == end.footer
        check = SegmentCheck(self._files, path, Chain(), newest=False)
        list(check.findings())
        if check.segment is None or check.segment.tables is None:
            return True
        files = reader(copy, staged)
        mine, theirs = self._files.read(path), read_plain(files, copy)
        _, tables, _ = read_footer(copy, files)
        rows = zip(check.segment.tables.offsets, check.segment.tables.lengths, strict=True)
        placed = list(zip(tables.offsets, tables.lengths, strict=True))
        return all(
            row < len(placed) and place == placed[row] and mine[place[0] : sum(place)] == theirs[place[0] : sum(place)]
            for row, place in enumerate(rows)
        )

    # ------------------------------------------------------------------ files
    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _put(self, path: str, content: bytes) -> str:
        """Replace a file in one step, after the old one was linked aside."""
        aside = self._aside(path)
        self._files.write_whole(path, [content])
        return aside

    def _aside(self, path: str) -> str:
        """Give a damaged file a second name that stays; return it, "" if there is no such file."""
        if not self._files.exists(path):
            return ""
        directory = os.path.join(os.path.dirname(os.path.dirname(self._directory)), ASIDE)
        self._files.make_directory(directory)
        number = 1
        while os.path.lexists(target := f"{directory}/{self._name}-{os.path.basename(path)}.damaged-{number}"):
            number += 1
        try:
            os.link(path, target)
        except OSError:  # a file system without links
            shutil.copyfile(path, target)
            self._files.sync_file(target)
        self._files.sync_directory(directory)
        return target
