"""Deliveries in columns.

Belongs here: stored messages that a consumer delivers for the first time, as the bytes of their records with what their
ack subjects have in common. `lakestream.native` frames them for clients; other nodes get the columns (`Stored` in
route_wire.py). A message becomes an object only for a receiver that looks at single ones.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate

from lakestream import native
from lakestream.protocol.commands import Single
from lakestream.protocol.messages import MessageBlock


class FirstDeliveries(MessageBlock, gc=False):
    """Messages that are delivered for the first time, with their ack subjects.

    Attributes:
        buf: bytes that contain their records, which were checked.
        offsets, lengths: place of each record in `buf`.
        begin, end: which of the records.
        head: the ack subject up to the stream sequence.
        consumer: the consumer sequence of the first message.
        left: number of messages that are left after the first one.
    """

    buf: bytes
    offsets: array[int]
    lengths: array[int]
    begin: int
    end: int
    head: bytes
    consumer: int
    left: int

    def __len__(self) -> int:
        return self.end - self.begin

    def frames(self, sid: bytes, begin: int, end: int) -> tuple[bytes, int, int, int]:
        places = self.offsets, self.lengths, self.begin + begin, self.begin + end
        ids = sid, self.head, self.consumer + begin, self.left - begin
        frames, size = native.frame_deliveries(self.buf, *places, *ids)
        return frames, end - begin, size, end

    def sizes(self) -> list[int]:
        places = self.offsets, self.lengths, self.begin, self.end
        return native.delivery_sizes(self.buf, *places, self.head, self.consumer, self.left)

    def __getitem__(self, part: slice) -> FirstDeliveries:
        begin, end, step = part.indices(len(self))
        assert step == 1, "parts of a batch have no gaps"
        places = self.offsets, self.lengths, self.begin + begin, self.begin + end
        return FirstDeliveries(self.buf, *places, self.head, self.consumer + begin, self.left - begin, to=self.to)

    def make(self) -> list[Single]:
        head, consumer, left = self.head, self.consumer, self.left
        return [
            Single(subject, b"%b%d.%d.%d.%d" % (head, seq, consumer + at, time_ns, left - at), header, data)
            for at, (seq, time_ns, subject, header, data) in enumerate(self.fields(0, len(self)))
        ]

    def fields(self, begin: int, end: int) -> list[tuple[int, int, bytes, bytes, bytes]]:
        """Return sequence, time, subject, header block and payload of some of the messages."""
        which = slice(self.begin + begin, self.begin + end)
        return native.decode_spans(_fields, self.buf, self.offsets[which], self.lengths[which])

    # ------------------------------------------------------------------ between nodes
    def columns(self) -> tuple[bytes, list[int], bytes, int, int]:
        """Return the records back to back, their lengths, the ack subjects' head, and the two numbers of the first
        message; see `of_columns`."""
        buf, offsets, lengths = (
            self.buf,
            self.offsets[self.begin : self.end],
            self.lengths[self.begin : self.end],
        )
        size = sum(lengths)
        if offsets[-1] + lengths[-1] - offsets[0] == size:
            records = buf[offsets[0] : offsets[0] + size]
        else:
            records = b"".join([buf[at : at + length] for at, length in zip(offsets, lengths, strict=True)])
        return records, lengths.tolist(), self.head, self.consumer, self.left

    @classmethod
    def of_columns(
        cls, records: bytes, lengths: Sequence[int], head: bytes, consumer: int, left: int, to: bytes = b""
    ) -> FirstDeliveries:
        """Return the messages of what `columns` returned. Raise OverflowError or TypeError for other numbers."""
        offsets = array("I", accumulate(lengths[:-1], initial=0))
        return cls(records, offsets, array("I", lengths), 0, len(lengths), head, consumer, left, to=to)

    def content(self) -> int:
        """Return the bytes of all header blocks and payloads."""
        places = self.offsets, self.lengths
        all_bytes = native.delivery_sizes(self.buf, *places, self.begin, self.end, b"", 0, 0)
        which = slice(self.begin, self.end)
        subjects = native.record_subjects(self.buf, self.offsets[which], self.lengths[which])
        return sum(all_bytes) - sum(map(len, subjects))

    def parts(self, most: int) -> Iterator[FirstDeliveries]:
        """Yield the batch in parts whose records have at most `most` bytes and one record more."""
        if self and sum(self.lengths[self.begin : self.end]) <= most:
            yield self
            return
        begin = size = 0
        for at, length in enumerate(self.lengths[self.begin : self.end], 1):
            size += length
            if size > most or at == len(self):
                yield self[begin:at]
                begin, size = at, 0


def _fields(seq: int, time_ns: int, subject: bytes, header: bytes, data: bytes) -> tuple[int, int, bytes, bytes, bytes]:
    return seq, time_ns, subject, header, data
