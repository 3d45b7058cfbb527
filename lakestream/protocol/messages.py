"""Blocks of messages.

Belongs here: the forms in which messages go from a sender through a hub to its subscribers (`Messages`). All have `to`,
`message(at)` and `messages(begin, end)`, for receivers that look at single ones, and `stop(begin, end)`. Columns make
their own frames for clients, so that nothing is made for a message that nobody looks at.

| form              | made by            | columns over       | reason to be                                      |
|-------------------|--------------------|--------------------|---------------------------------------------------|
| `Single`          | parser, any sender | -                  | an outbox takes 36 % longer for a run of one      |
| `Publishes`       | parser, `run_of`   | a read buffer      | native calls route, encode and frame a run        |
| `PubAcks`         | `StreamCore`       | replies of a run   | no ack of a run is ever made                      |
| `FirstDeliveries` | `Deliverer`        | records of the log | a payload is copied once, from a piece of the log |
| `GetAnswers`      | direct gets        | records of the log | the same, with other headers                      |
| `ListedMessages`  | everything else    | -                  | several `Single`, one write for each connection   |

Other shapes of messages are none of these, as they mean something else: `IncomingMessage` is judged, and rules rewrite
it (stream/core/publish.py); a `Batch` has sequences and waits for the log; a `Run` has those of an origin (both in
stream/core/batch.py); `Record` and `Records` are stored (log/format). Wire forms are read where they arrive and become
blocks there: route_wire.py, leaf_wire.py, delivered.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Self

import msgspec
from msgspec.structs import replace

from lakestream.protocol.commands import Single
from lakestream.protocol.frames import HMSG, MSG, MSG_REPLY
from lakestream.protocol.publishes import PubAcks, Publishes


class MessageBlock(msgspec.Struct, gc=False, kw_only=True):
    """Messages that are kept together. Columns make single ones only for receivers that take other forms than frames.

    Attributes:
        to: the subject whose subscribers get all of them, each shown under its own; b"": those of its own get each. The
            sender may send the block again, to others: receivers keep no reference to it.
        made: the messages of columns, once something asked for them.
    """

    to: bytes = b""
    made: Sequence[Single] | None = None
    heads: ClassVar[bool] = True
    """Messages may have header blocks."""

    @property
    def listed(self) -> Sequence[Single]:
        """The messages."""
        made = self.made
        if made is None:
            made = self.made = self.make()
        return made

    def make(self) -> list[Single]:
        """Make the messages of columns."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.listed)

    def __iter__(self) -> Iterator[Single]:
        return iter(self.listed)

    def __getitem__(self, part: slice) -> MessageBlock:
        return ListedMessages(self.listed[part], to=self.to)

    def message(self, at: int) -> Single:
        return self.listed[at]

    def messages(self, begin: int, end: int) -> Sequence[Single]:
        """Return the messages from `begin` to before `end`."""
        return self.listed[begin:end]

    def stop(self, begin: int, end: int) -> int:
        """Return the message behind those from `begin` to before `end` that the same subscriptions get."""
        return end

    def addressed(self, to: bytes) -> Self:
        """Return the same messages for the subscribers of another subject."""
        return replace(self, to=to)

    def shown(self, subject: bytes) -> MessageBlock:
        """Return the same messages for the subscribers of `subject`; those shown under `to` are shown under it, too."""
        to = self.to
        if all(each.subject != to for each in self.listed):
            return self.addressed(subject)
        return ListedMessages([each.under(subject) if each.subject == to else each for each in self.listed], to=subject)

    def sizes(self) -> list[int]:
        """Return the bytes of subject, reply, header block and payload of each message: those that count in max_bytes,
        flow control, rate limits and status headers."""
        return [len(each.subject) + len(each.reply) + each.content_bytes for each in self.listed]

    def replies(self, begin: int, end: int) -> list[bytes]:
        """Return the reply subjects of some messages; b"" for those without."""
        return [each.reply for each in self.listed[begin:end]]

    def frames(self, sid: bytes, begin: int, end: int) -> tuple[bytes, int, int, int]:
        """Return the frames of some messages for a subscription, their number, the bytes of their header blocks and
        payloads, and the message behind them."""
        frames: list[bytes] = []
        append, size = frames.append, 0
        for each in self.listed[begin:end]:
            subject, reply, header, payload = each.subject, each.reply, each.header, each.payload
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

    listed: Sequence[Single]


Several = Publishes | PubAcks | MessageBlock
Messages = Single | Several
"""Messages from a sender to the subscribers."""
