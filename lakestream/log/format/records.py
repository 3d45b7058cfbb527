"""Many stored messages as columns.

Belongs here: `Records`, a piece of a segment and the places of records in it. A message becomes an object only where
one is asked for; frames for clients are made from the bytes (lakestream.native). The layout of a record is record.py's.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import overload

from lakestream import native
from lakestream.log.format.errors import CorruptRecord
from lakestream.log.format.record import Record, decode_spans, time_of


class Records(Sequence[Record]):
    """Stored messages, ascending by sequence. Immutable.

    Attributes:
        buf: bytes that contain their records.
        offsets, lengths: place of each record in `buf`.
        seqs: sequence of each; a `range` where there are no gaps.
    """

    __slots__ = ("_decoded", "buf", "lengths", "offsets", "seqs")

    def __init__(self, buf: bytes, offsets: array[int], lengths: array[int], seqs: Sequence[int]) -> None:
        """Take records that `check` or their writer vouches for."""
        self.buf, self.offsets, self.lengths, self.seqs = buf, offsets, lengths, seqs
        self._decoded: list[Record] | None = None

    def check(self) -> None:
        """Raise CorruptRecord where a crc or a length does not fit, or the first or last record is another message."""
        try:
            native.check_records(self.buf, self.offsets, self.lengths)
        except ValueError as error:
            raise CorruptRecord(*error.args) from None
        for at in (0, -1):
            offset = self.offsets[at]
            seq = int.from_bytes(self.buf[offset + 4 : offset + 12], "little")
            if seq != self.seqs[at]:
                raise CorruptRecord(offset, f"message {seq} lies where {self.seqs[at]} belongs")

    def __len__(self) -> int:
        return len(self.offsets)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and self.decoded() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[Record]:
        return iter(self.decoded())

    @overload
    def __getitem__(self, at: int) -> Record: ...
    @overload
    def __getitem__(self, at: slice) -> Records: ...
    def __getitem__(self, at: int | slice) -> Record | Records:
        if isinstance(at, slice):
            return Records(self.buf, self.offsets[at], self.lengths[at], self.seqs[at])
        return self.decoded()[at]

    def decoded(self) -> list[Record]:
        """Return the messages as objects, which are made once."""
        if self._decoded is None:
            self._decoded = decode_spans(self.buf, self.offsets, self.lengths)
        return self._decoded

    def subjects(self) -> list[bytes]:
        """Return the subject of each message; most repeated ones share one object."""
        return native.record_subjects(self.buf, self.offsets, self.lengths)

    def chosen(self, some: Sequence[int]) -> Records:
        """Return a copy of the messages with these indexes, ascending: those between them may be many."""
        places = native.copy_records(self.buf, self.offsets, self.lengths, some)
        return Records(*places, [self.seqs[at] for at in some])


def seqs_of(records: Sequence[Record]) -> Sequence[int]:
    """Return the sequences of some messages, without decoding those that are columns."""
    return records.seqs if isinstance(records, Records) else [record.seq for record in records]


def chosen(records: Sequence[Record], some: Sequence[int]) -> Sequence[Record]:
    """Return the messages with these indexes, ascending."""
    return records.chosen(some) if isinstance(records, Records) else [records[at] for at in some]


def times_at(records: Sequence[Record], some: Sequence[int]) -> dict[int, int]:
    """Return the times of the messages with these indexes, in ns, without decoding those that are columns."""
    if isinstance(records, Records):
        return {at: time_of(records.buf, records.offsets[at]) for at in some}
    return {at: records[at].time_ns for at in some}


def subjects_of(records: Sequence[Record]) -> list[bytes]:
    """Return the subjects of some messages, without decoding those that are columns."""
    return records.subjects() if isinstance(records, Records) else [record.subject for record in records]


def content_size(records: Sequence[Record]) -> int:
    """Return the bytes of some messages, of those that are columns with what their records have beside the content."""
    if isinstance(records, Records):
        return sum(records.lengths)
    return sum([len(record.header) + len(record.data) for record in records])


NO_RECORDS = Records(b"", array("I"), array("I"), ())


def back_to_back(records: Sequence[bytes], seqs: Sequence[int]) -> Records:
    """Return single records, which are copied, with these sequences."""
    if not records:
        return NO_RECORDS
    lengths = array("I", map(len, records))
    return Records(b"".join(records), array("I", accumulate(lengths[:-1], initial=0)), lengths, seqs)


def joined(pieces: Sequence[Records]) -> Records:
    """Return the messages of all pieces, which ascend."""
    if len(pieces) < 2:
        return pieces[0] if pieces else NO_RECORDS
    # What lies between the records of a piece is not worth a copy.
    pieces = [one if len(one.buf) < 2 * sum(one.lengths) else one.chosen(range(len(one))) for one in pieces]
    offsets, lengths, seqs = array("I"), array("I"), list[int]()
    for piece, shift in zip(pieces, accumulate([len(piece.buf) for piece in pieces], initial=0), strict=False):
        offsets.extend([offset + shift for offset in piece.offsets])
        lengths.extend(piece.lengths)
        seqs.extend(piece.seqs)
    unbroken = seqs[-1] - seqs[0] == len(seqs) - 1
    return Records(
        b"".join([piece.buf for piece in pieces]),
        offsets,
        lengths,
        range(seqs[0], seqs[-1] + 1) if unbroken else seqs,
    )
