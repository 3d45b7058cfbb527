"""Deliveries in columns.

Belongs here: stored messages that a consumer delivers for the first time, as the bytes of their records with what their
ack subjects have in common. `lakestream.native` frames them for clients; other nodes get the columns (`Stored` in
route_wire.py). A message becomes an object only for a receiver that looks at single ones.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import overload

from lakestream import native
from lakestream.protocol.messages import Delivery, Framed


class FirstDeliveries(Framed):
    """Messages that are delivered for the first time, with their ack subjects.

    Args:
        buf: bytes that contain their records, which were checked.
        offsets, lengths: place of each record in `buf`.
        begin, end: which of the records.
        head: the ack subject up to the stream sequence.
        consumer: the consumer sequence of the first message.
        left: number of messages that are left after the first one.
        to: see `MessageBlock`.
    """

    __slots__ = ("_begin", "_buf", "_consumer", "_end", "_head", "_left", "_lengths", "_offsets")

    def __init__(
        self,
        buf: bytes,
        offsets: array[int],
        lengths: array[int],
        begin: int,
        end: int,
        head: bytes,
        consumer: int,
        left: int,
        to: bytes = b"",
    ) -> None:
        super().__init__(to)
        self._buf, self._offsets, self._lengths, self._begin, self._end = buf, offsets, lengths, begin, end
        self._head, self._consumer, self._left = head, consumer, left

    def __len__(self) -> int:
        return self._end - self._begin

    def frames(self, sid: bytes) -> tuple[bytes, int]:
        places = self._offsets, self._lengths, self._begin, self._end
        return native.frame_deliveries(self._buf, *places, sid, self._head, self._consumer, self._left)

    def sizes(self) -> list[int]:
        places = self._offsets, self._lengths, self._begin, self._end
        return native.delivery_sizes(self._buf, *places, self._head, self._consumer, self._left)

    @overload
    def __getitem__(self, at: int) -> Delivery: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Delivery]: ...
    def __getitem__(self, at: int | slice) -> Delivery | Sequence[Delivery]:
        """Return a message, or a part of the batch."""
        if not isinstance(at, slice):
            return super().__getitem__(at)
        begin, end, step = at.indices(len(self))
        assert step == 1, "parts of a batch have no gaps"
        return self._part(begin, end)

    def _part(self, begin: int, end: int) -> FirstDeliveries:
        places = self._offsets, self._lengths, self._begin + begin, self._begin + end
        return FirstDeliveries(self._buf, *places, self._head, self._consumer + begin, self._left - begin, self.to)

    def make(self) -> list[Delivery]:
        head, consumer, left = self._head, self._consumer, self._left
        which = slice(self._begin, self._end)
        fields = native.decode_spans(_fields, self._buf, self._offsets[which], self._lengths[which])
        return [
            (subject, b"%b%d.%d.%d.%d" % (head, seq, consumer + at, time_ns, left - at), header, data)
            for at, (seq, time_ns, subject, header, data) in enumerate(fields)
        ]

    # ------------------------------------------------------------------ between nodes
    def columns(self) -> tuple[bytes, list[int], bytes, int, int]:
        """Return the records back to back, their lengths, the ack subjects' head, and the two numbers of the first
        message; see `of_columns`."""
        buf, offsets, lengths = (
            self._buf,
            self._offsets[self._begin : self._end],
            self._lengths[self._begin : self._end],
        )
        size = sum(lengths)
        if offsets[-1] + lengths[-1] - offsets[0] == size:
            records = buf[offsets[0] : offsets[0] + size]
        else:
            records = b"".join([buf[at : at + length] for at, length in zip(offsets, lengths, strict=True)])
        return records, lengths.tolist(), self._head, self._consumer, self._left

    @classmethod
    def of_columns(
        cls, records: bytes, lengths: Sequence[int], head: bytes, consumer: int, left: int, to: bytes = b""
    ) -> FirstDeliveries:
        """Return the messages of what `columns` returned. Raise OverflowError or TypeError for other numbers."""
        offsets = array("I", accumulate(lengths[:-1], initial=0))
        return cls(records, offsets, array("I", lengths), 0, len(lengths), head, consumer, left, to)

    def content(self) -> int:
        """Return the bytes of all header blocks and payloads."""
        places = self._offsets, self._lengths
        all_bytes = native.delivery_sizes(self._buf, *places, self._begin, self._end, b"", 0, 0)
        which = slice(self._begin, self._end)
        subjects = native.record_subjects(self._buf, self._offsets[which], self._lengths[which])
        return sum(all_bytes) - sum(map(len, subjects))

    def parts(self, most: int) -> Iterator[FirstDeliveries]:
        """Yield the batch in parts whose records have at most `most` bytes and one record more."""
        if self and sum(self._lengths[self._begin : self._end]) <= most:
            yield self
            return
        begin = size = 0
        for at, length in enumerate(self._lengths[self._begin : self._end], 1):
            size += length
            if size > most or at == len(self):
                yield self._part(begin, at)
                begin, size = at, 0


def _fields(seq: int, time_ns: int, subject: bytes, header: bytes, data: bytes) -> tuple[int, int, bytes, bytes, bytes]:
    return seq, time_ns, subject, header, data
