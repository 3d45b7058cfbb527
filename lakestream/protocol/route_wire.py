"""Interest and messages between nodes, as records.

Belongs here: the records on `Channel.ROUTE` and their encoding as buffers. Sending is in net/peers.

A buffer is a list of records, handled in order. Interest is announced in absolute numbers, so that a record may be
repeated.

Every record belongs to an account. A buffer begins in the default one, and `Within` changes it for the rest of the
buffer: no message carries its account, and without other accounts the buffers are those of versions without accounts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from lakestream.protocol.commands import Single


class Within(msgspec.Struct, array_like=True, tag="w", frozen=True):
    """The account of the following records in this buffer."""

    account: str


class RouteInterest(msgspec.Struct, array_like=True, tag="i", frozen=True):
    """The number of subscriptions of the sender's clients and streams, by (subject, queue group); 0: none any more.

    Without a queue group (b"") all numbers above 0 are equivalent.
    """

    changes: list[tuple[bytes, bytes, int]]


class Routed(msgspec.Struct, array_like=True, tag="m", gc=False):
    """One message for subscribers of the receiver, which does not forward it as a whole.

    Attributes:
        groups: the queue groups one of whose members receives it, b"" for all subscribers in no group; None: only
            those.
        moved: another node had no member of these groups any more. It is not moved twice.
        relayed: for local subscribers of the receiver, which are not announced, and for no others.
    """

    subject: bytes
    reply: bytes
    header: bytes
    payload: bytes
    groups: list[bytes] | None = None
    moved: bool = False
    relayed: bool = False


class RoutedRun(msgspec.Struct, array_like=True, tag="r", gc=False):
    """Consecutive plain publishes for subscribers of the receiver, each of them as in a `Routed`.

    Attributes:
        commands: the PUB commands, without the `$` subjects and replies that no run has (protocol/publishes.py).
        groups: see `Routed`.
    """

    commands: bytes
    groups: list[bytes] | None = None


class RouteBatch(msgspec.Struct, array_like=True, tag="b", gc=False):
    """Messages for the subscribers of one subject, each shown under its own.

    `queue`: for members of that group (each message for one of them); b"": for all subscribers in no group.
    """

    to: bytes
    queue: bytes
    messages: Sequence[Single]
    moved: bool = False


class StoredBatch(msgspec.Struct, array_like=True, tag="s", gc=False):
    """Stored messages for the subscribers of one subject, each shown under its own with its ack subject: a `RouteBatch`
    as columns (protocol/deliveries.py).

    Attributes:
        to, queue: see `RouteBatch`.
        size: bytes of all header blocks and payloads.
        records: the records, back to back; `lengths`: of each in bytes.
        head: the ack subjects up to the stream sequence.
        consumer, left: the consumer sequence of the first message, and the number of messages left after it.
    """

    to: bytes
    queue: bytes
    size: int
    records: bytes
    lengths: list[int]
    head: bytes
    consumer: int
    left: int


class Hold(msgspec.Struct, array_like=True, tag="h", frozen=True):
    """A receiver of `to` at the sender is congested (`on`), or no longer: batches to it wait."""

    to: bytes
    on: bool


class FlowMark(msgspec.Struct, array_like=True, tag="k", frozen=True):
    """Sent after some number of bytes; the receiver answers with Took once it has handed them on."""


class Took(msgspec.Struct, array_like=True, tag="t", frozen=True):
    """Acknowledges the oldest Mark."""


class NoResponders(msgspec.Struct, array_like=True, tag="u", frozen=True):
    """A request had no subscriber at the sender any more."""

    subject: bytes
    reply: bytes


Record = Within | RouteInterest | Routed | RoutedRun | RouteBatch | StoredBatch | Hold | FlowMark | Took | NoResponders

encode: Callable[[Sequence[Record]], bytes] = msgspec.msgpack.Encoder().encode
"""Encode records as a buffer."""

_decode: Callable[[bytes], list[Record]] = msgspec.msgpack.Decoder(list[Record]).decode


def decode(buffer: bytes) -> list[Record]:
    """Return the records of a buffer. Raise `msgspec.DecodeError`."""
    try:
        return _decode(buffer)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
