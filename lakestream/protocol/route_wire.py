"""What nodes say to each other about interest and messages, as records.

Belongs here: the records on `Channel.ROUTE` and their encoding as buffers. Who is told what is routes.py's.

A buffer is a list of records, to be taken in order. Interest is told in absolute numbers, so that a record that is
told twice changes nothing.

Interest, messages, and whatever else speaks of a subject belong to an account. A buffer begins in the default one, and
`Within` changes it for the rest of the buffer: no message carries its account, and the buffers of a cluster in which
nobody uses another account are those of a version that knew of none.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Within(msgspec.Struct, array_like=True, tag="w", frozen=True):
    """What follows in this buffer is of this account, until the next such record."""

    account: str


class Interest(msgspec.Struct, array_like=True, tag="i", frozen=True):
    """How many subscriptions the sender's clients and streams now have, by (subject, queue group); 0: none any more.

    Without a queue group (b"") any number above 0 says the same.
    """

    changes: list[tuple[bytes, bytes, int]]


class Routed(msgspec.Struct, array_like=True, tag="m", gc=False):
    """One message for subscribers of the receiver, never to be sent on to a third node as a whole.

    Attributes:
        groups: the queue groups one of whose members gets it, b"" for all subscribers in no group; None: only those.
        moved: another node was to hand it to these groups and had no member any more. It does not move twice.
        relayed: for those subscribers of the receiver of whom other nodes do not hear, and for nobody else.
    """

    subject: bytes
    reply: bytes
    header: bytes
    payload: bytes
    groups: list[bytes] | None = None
    moved: bool = False
    relayed: bool = False


class Batch(msgspec.Struct, array_like=True, tag="b", gc=False):
    """Messages for the subscribers of one subject, each shown under its own: (subject shown, reply, header, payload).

    `queue`: for the members of that group (each message for one of them); b"" for all subscribers in no group.
    """

    to: bytes
    queue: bytes
    messages: Sequence[tuple[bytes, bytes, bytes, bytes]]
    moved: bool = False


class Hold(msgspec.Struct, array_like=True, tag="h", frozen=True):
    """A receiver of `to` at the sender is too slow (`on`), or no longer: whoever delivers batches to it waits."""

    to: bytes
    on: bool


class Mark(msgspec.Struct, array_like=True, tag="k", frozen=True):
    """Comes after so many bytes of messages; the receiver answers with Took once it has handed them on."""


class Took(msgspec.Struct, array_like=True, tag="t", frozen=True):
    """Answers the oldest Mark without an answer."""


class Unheard(msgspec.Struct, array_like=True, tag="u", frozen=True):
    """A request found no subscriber any more at the sender, which the receiver did not know when it sent it there."""

    subject: bytes
    reply: bytes


Record = Within | Interest | Routed | Batch | Hold | Mark | Took | Unheard

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[list[Record]] = msgspec.msgpack.Decoder(list[Record])


def encode(records: Sequence[Record]) -> bytes:
    """Records as a buffer."""
    return _encoder.encode(records)


def decode(buffer: bytes) -> list[Record]:
    """The records of a buffer. Raises `msgspec.DecodeError` on anything else."""
    return _decoder.decode(buffer)
