"""Blocks of messages.

Belongs here: the forms in which messages go from a sender through a hub to its subscribers (`Messages`): one message,
columns over a read buffer or over records of the log, pub acks, and plain lists. Each has `to`, `message(at)` and
`messages(begin, end)`, for receivers that look at single ones, and `stop(begin, end)`. Columns make their own frames
for clients, so that nothing is made for a message that nobody looks at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Self

import msgspec
from msgspec.structs import replace

from lakestream.protocol.commands import Single
from lakestream.protocol.frames import HMSG, MSG, MSG_REPLY
from lakestream.protocol.publishes import PubAcks, Publishes

Delivery = tuple[bytes, bytes, bytes, bytes]
"""One message for a subscriber: (subject shown, reply, header, payload); `b""` for absent parts."""


class MessageBlock(msgspec.Struct, gc=False, kw_only=True):
    """Messages that are kept together. Columns make tuples only for receivers that take other forms than frames.

    Attributes:
        to: the subject whose subscribers get all of them, each shown under its own; b"": those of its own get each. The
            sender may send the block again, to others: receivers keep no reference to it.
        made: the messages of columns, once something asked for them.
    """

    to: bytes = b""
    made: Sequence[Delivery] | None = None
    heads: ClassVar[bool] = True
    """Messages may have header blocks."""

    @property
    def deliveries(self) -> Sequence[Delivery]:
        """The messages."""
        made = self.made
        if made is None:
            made = self.made = self.make()
        return made

    def make(self) -> list[Delivery]:
        """Make the messages of columns."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.deliveries)

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self.deliveries)

    def __getitem__(self, part: slice) -> MessageBlock:
        return ListedMessages(self.deliveries[part], to=self.to)

    def message(self, at: int) -> Single:
        """Return one of the messages."""
        return Single(*self.deliveries[at])

    def messages(self, begin: int, end: int) -> Iterator[Single]:
        """Yield the messages from `begin` to before `end`."""
        return map(self.message, range(begin, end))

    def stop(self, begin: int, end: int) -> int:
        """Return the message behind those from `begin` to before `end` that the same subscriptions get."""
        return end

    def addressed(self, to: bytes) -> Self:
        """Return the same messages for the subscribers of another subject."""
        return replace(self, to=to)

    def shown(self, subject: bytes) -> MessageBlock:
        """Return the same messages for the subscribers of `subject`; those shown under `to` are shown under it, too."""
        to = self.to
        if all(message[0] != to for message in self.deliveries):
            return self.addressed(subject)
        return ListedMessages([(subject, *each[1:]) if each[0] == to else each for each in self.deliveries], to=subject)

    def sizes(self) -> list[int]:
        """Return the bytes of subject, reply, header block and payload of each message: those that count in max_bytes,
        flow control, rate limits and status headers."""
        return [sum(map(len, message)) for message in self.deliveries]

    def replies(self, begin: int, end: int) -> list[bytes]:
        """Return the reply subjects of some messages; b"" for those without."""
        return [message[1] for message in self.deliveries[begin:end]]

    def frames(self, sid: bytes, begin: int, end: int) -> tuple[bytes, int, int, int]:
        """Return the frames of some messages for a subscription, their number, the bytes of their header blocks and
        payloads, and the message behind them."""
        frames: list[bytes] = []
        append, size = frames.append, 0
        for subject, reply, header, payload in self.deliveries[begin:end]:
            length = len(payload)
            size += length
            if header:
                n = len(header)
                size += n
                append(HMSG % (subject, sid, reply + b" " if reply else b"", n, n + length, header, payload))
            elif reply:
                append(MSG_REPLY % (subject, sid, reply, length, payload))
            else:
                append(MSG % (subject, sid, length, payload))
        return b"".join(frames), end - begin, size, end


class ListedMessages(MessageBlock, gc=False):
    """A block that is a list."""

    deliveries: Sequence[Delivery]


Several = Publishes | PubAcks | MessageBlock
Messages = Single | Several
"""Messages from a sender to the subscribers."""
