"""Blocks of messages.

Belongs here: the forms in which messages go from a sender through a hub to its subscribers (`Messages`): one message,
columns over a read buffer or over records of the log, pub acks, and plain lists. Each has `to`, `messages(begin, end)`,
for receivers that look at single ones, and `stop(begin, end)`; all but single messages and lists make their own frames
for clients, so that nothing is made for a message that nobody looks at.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Self, overload

from lakestream.protocol.commands import Single
from lakestream.protocol.publishes import PubAcks, Publishes

Delivery = tuple[bytes, bytes, bytes, bytes]
"""One message for a subscriber: (subject shown, reply, header, payload); `b""` for absent parts."""


class MessageBlock(Sequence[Delivery], ABC):
    """Messages that are kept together.

    Attributes:
        to: the subject whose subscribers get all of them, each shown under its own; b"": those of its own get each.
    """

    __slots__ = ("to",)

    def __init__(self, to: bytes = b"") -> None:
        self.to = to

    def messages(self, begin: int, end: int) -> Iterator[Single]:
        """Yield the messages from `begin` to before `end`."""
        for at in range(begin, end):
            yield Single(*self[at])

    def stop(self, begin: int, end: int) -> int:
        """Return the message behind those from `begin` to before `end` that the same subscriptions get."""
        return end

    @abstractmethod
    def addressed(self, to: bytes) -> Self:
        """Return the same messages for the subscribers of another subject."""


class ListedMessages(MessageBlock):
    """Messages as a list."""

    __slots__ = ("deliveries",)

    def __init__(self, deliveries: Sequence[Delivery], to: bytes = b"") -> None:
        super().__init__(to)
        self.deliveries = deliveries

    def __len__(self) -> int:
        return len(self.deliveries)

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self.deliveries)

    @overload
    def __getitem__(self, at: int) -> Delivery: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Delivery]: ...
    def __getitem__(self, at: int | slice) -> Delivery | Sequence[Delivery]:
        return self.deliveries[at]

    def addressed(self, to: bytes) -> ListedMessages:
        return ListedMessages(self.deliveries, to)


class Framed(MessageBlock):
    """A batch of messages that makes its own frames for clients. The messages themselves are made when one is asked
    for: for receivers that take one by one, or other forms than frames."""

    __slots__ = ("_made",)

    def __init__(self, to: bytes = b"") -> None:
        super().__init__(to)
        self._made: list[Delivery] | None = None

    @abstractmethod
    def frames(self, sid: bytes) -> tuple[bytes, int]:
        """Return the MSG and HMSG frames for a subscription, and the bytes of header blocks and payloads together."""

    @abstractmethod
    def make(self) -> list[Delivery]:
        """Make the messages."""

    def addressed(self, to: bytes) -> Self:
        again = copy(self)
        again.to = to
        return again

    def sizes(self) -> list[int]:
        """Return the bytes of subject, reply, header block and payload of each message."""
        return [sum(map(len, message)) for message in self]

    def __iter__(self) -> Iterator[Delivery]:
        if self._made is None:
            self._made = self.make()
        return iter(self._made)

    @overload
    def __getitem__(self, at: int) -> Delivery: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Delivery]: ...
    def __getitem__(self, at: int | slice) -> Delivery | Sequence[Delivery]:
        if self._made is None:
            self._made = self.make()
        return self._made[at]


Messages = Single | Publishes | PubAcks | ListedMessages | Framed
"""A block of messages, from a sender to the subscribers. A run of publishes is taken in parts, any other as a whole."""
