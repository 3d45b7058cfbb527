"""Verification of a stream's part of the lake.

Belongs here: staged segments against the log, the table's files against its transaction log, and the table's rows
against the messages that the stream has: byte by byte where log or staged segments have them too, otherwise by subject
and size, which the outlines keep. A row of a message that the stream has removed meanwhile is no finding: removals
reach the table with later segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b

import msgspec

from lakestream.lake.errors import LakeError
from lakestream.lake.read.history.history import TableHistory
from lakestream.lake.read.history.staged import StagedRows
from lakestream.lake.staging import staging
from lakestream.lake.staging.sealed import reader
from lakestream.lake.staging.staging import StagedSegment, StreamIdentity
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.storage.storage import Storage
from lakestream.lake.table import check as table_files
from lakestream.lake.table.state import position_of, table_of
from lakestream.log.format.errors import LogError
from lakestream.log.format.files import Files
from lakestream.log.format.frame import Kind as FrameKind
from lakestream.log.format.packed import read_plain
from lakestream.log.format.record import Record, encode_record, iter_records, record_length
from lakestream.log.format.segment import decode_segment_header, iter_frames, read_footer
from lakestream.log.store.repair import verify as verify_segment
from lakestream.log.store.segment_store import SegmentStore
from lakestream.log.store.store import Store
from lakestream.stream.assembly import Stream
from lakestream_verify.digests import blocks, named
from lakestream_verify.log.findings import Finding, FindingKind, Repair, Step


class LakeCheck:
    """Verification of one stream's staged segments and table.

    Args:
        lake: root of the lake.
        files: the file layer of the log, perhaps an overlay.
        stream: recovered from its files.
        every_row: name each row that differs, instead of ranges of sequences.
        running: the store of the server that uses the files: the lake may be ahead of what was recovered.
        step: called between blocks of work, with 0.
    """

    def __init__(
        self,
        lake: str,
        files: Files,
        stream: Stream,
        every_row: bool,
        running: Store | None = None,
        step: Step = lambda count: None,
    ) -> None:
        assert isinstance(stream.store, SegmentStore), "a stream with files"
        self._files, self._store, self._rows = files, stream.store, every_row
        self._running, self._step = running, step
        config = msgspec.Raw(stream.store.config)
        self._identity = StreamIdentity(stream.name, stream.account, stream.uid, stream.created_ns, config)
        self._storage: Storage = open_storage(lake)
        self._directory = staging.directory_of(lake, self._identity)
        self._table = table_of(self._storage, self._identity)

    def findings(self, compare: bool) -> Iterator[Finding]:
        """Yield everything that is wrong. Block. Raise LakeError, OSError if the lake cannot be read.

        Args:
            compare: compare the rows of the table too: the log is whole.
        """
        staged = staging.segments(self._directory)
        intact = True
        for each in staged:
            self._step(0)
            for finding in self._staged(each):
                intact = False
                yield finding
        position = position_of(self._table, self._identity.uid)
        if position is None:
            return
        last = self._store.log.last_index if self._running is None else self._running.log.last_index
        if position > last:
            what = f"the table holds entries through {position}, the log ends with {last}: an older store was restored"
            yield Finding(kind=FindingKind.TABLE, file=self._table, what=what)
            return
        damaged = table_files.look_over(self._storage, self._table)
        for damage in damaged:
            yield Finding(kind=FindingKind.TABLE, file=damage.path, what=damage.reason, repair=Repair.COMPACTOR)
        if not damaged and compare:
            yield from self._compare(position, intact)

    # ------------------------------------------------------------------ staged segments
    def _staged(self, staged: StagedSegment) -> Iterator[Finding]:
        """Verify a staged segment, and compare it with the log's segment of the same entries."""
        mine = next((each for each in self._store.log.sealed if each.first_index == staged.first_index), None)
        try:
            with self._storage.fetch(staged.path) as local:
                files = reader(local, staged.path)
                verify_segment(files, local)
                found = _messages(files, local)
        except LogError as error:
            offset, what = getattr(error, "offset", 0), getattr(error, "what", str(error))
            repair = Repair.COMPACTOR if mine is not None else Repair.NONE
            yield Finding(kind=FindingKind.STAGED, file=staged.path, offset=offset, what=what, repair=repair)
            return
        except (LakeError, OSError):
            if staged in staging.segments(self._directory):
                raise
            return  # a compactor has removed it: the table has its messages
        if mine is None:
            return
        if mine.last_index != staged.last_index:
            what = f"it ends with entry {staged.last_index}, the log's segment with {mine.last_index}"
            yield Finding(kind=FindingKind.STAGED, file=staged.path, what=what)
            return
        try:
            wanted = _messages(self._files, mine.path)
        except LogError:
            return  # a finding of the log
        if found != wanted:
            seq = _first_difference(found, wanted)
            what = f"its messages differ from those of {mine.path}, message {seq} and perhaps later ones"
            yield Finding(kind=FindingKind.STAGED, file=staged.path, what=what, sequence=seq)

    # ------------------------------------------------------------------ the table
    def _through(self, position: int) -> int:
        """Return the last sequence of the entries through `position`."""
        sealed = [each.last_seq for each in self._store.log.sealed if each.last_index <= position]
        return max(sealed, default=self._store.local_floor - 1)

    def _compare(self, position: int, staged: bool) -> Iterator[Finding]:
        """Compare the table's rows with the live messages of the entries through `position`.

        `staged`: staged segments are intact, and are compared too.
        """
        store, history, spare = self._store, TableHistory(self._table), StagedRows(self._directory)
        through = self._through(position)
        staged_from = (spare.begins() if staged else 0) or 1 << 62
        try:
            for seqs in blocks(store, 0, through):
                self._step(0)
                dense = seqs[-1] - seqs[0] < 2 * len(seqs)
                found = history.read(seqs[0], seqs[-1], 1 << 62) if dense else history.read_many(seqs)
                rows = {each.seq: each for each in found}
                missing = [seq for seq in seqs if seq not in rows and self._is_live(seq)]
                if missing:
                    what = f"it lacks messages of the stream: {named(missing)}"
                    yield Finding(kind=FindingKind.TABLE, file=self._table, what=what, sequence=missing[0])
                there = [seq for seq in seqs if seq in rows]
                other = self._described(there, rows)
                for some in self._split(other):
                    what = f"subject or size of rows differ from the stream: {named(some)}"
                    yield Finding(kind=FindingKind.TABLE, file=self._table, what=what, sequence=some[0])
                there = sorted(set(there).difference(other)) if other else there
                local = [seq for seq in there if store.is_local(seq)]
                yield from self._same(rows, store.read_many(local), "the log")
                others = [seq for seq in there if not store.is_local(seq) and seq >= staged_from]
                yield from self._same(rows, spare.read_many(others), "staged segments")
        except (LakeError, LogError) as error:
            yield Finding(kind=FindingKind.TABLE, file=self._table, what=str(error))
        finally:
            history.close()

    def _is_live(self, seq: int) -> bool:
        """Return False if the running server has removed the message since its files were collected."""
        return self._running is None or seq in self._running.live

    def _described(self, seqs: Sequence[int], rows: dict[int, Record]) -> list[int]:
        """Return the sequences of rows whose subject or size differs from what the stream knows of the message."""
        store = self._store
        facts = zip(store.subjects_of(seqs), store.sizes_of(seqs), strict=True)
        found = ((row.subject, record_length(row.subject, row.header, row.data)) for row in map(rows.__getitem__, seqs))
        return [seq for seq, said, has in zip(seqs, facts, found, strict=True) if said != has]

    def _same(self, rows: dict[int, Record], records: Sequence[Record], other: str) -> Iterator[Finding]:
        """Compare rows with the same messages elsewhere, by a digest of all of them."""
        if digest([rows[each.seq] for each in records]) == digest(records):
            return
        wrong = [each.seq for each in records if rows[each.seq] != each]
        for some in self._split(wrong):
            what = f"rows differ from the messages in {other}: {named(some)}"
            yield Finding(kind=FindingKind.TABLE, file=self._table, what=what, sequence=some[0])

    def _split(self, seqs: Sequence[int]) -> Sequence[Sequence[int]]:
        """Return the sequences of each finding."""
        return [[seq] for seq in seqs] if self._rows else [seqs] if seqs else []


def digest(records: Sequence[Record]) -> bytes:
    """Return the digest of messages with all their fields."""
    found = blake2b(digest_size=16)
    for each in records:
        found.update(encode_record(each.seq, each.time_ns, each.subject, each.header, each.data))
    return found.digest()


def _messages(files: Files, path: str) -> bytes:
    """Return the records in a sealed segment, one behind the other. Block. Raise LogError, OSError."""
    content = read_plain(files, path)
    header = decode_segment_header(content)
    if isinstance(header, str):
        raise LogError(f"{path}: {header}")
    frames = iter_frames(content, path, header, read_footer(path, files)[2])
    return b"".join(frame.body for frame, _ in frames if frame.kind == FrameKind.MESSAGES)


def _first_difference(*segments: bytes) -> int:
    """Return the lowest sequence whose message is not the same in both."""
    one, other = ({each.seq: each for each in iter_records(records)} for records in segments)
    return min(seq for seq in one.keys() | other.keys() if one.get(seq) != other.get(seq))
