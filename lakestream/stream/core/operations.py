"""Stream operations as log entries.

Belongs here: every change of a stream's state that is not a message, as a record that all replicas apply alike. They
are encoded as MessagePack in OPERATION frames of the stream's own log, between the messages that they follow. Applying
one never reads a clock: whatever depends on time is decided before it is proposed. Operations that can remove messages
have the time of their proposal, `at_ns` (0 in logs of older releases).
"""

from __future__ import annotations

import msgspec

from lakestream.protocol.decoding import JsonDecoder, PackDecoder


class CreateStream(msgspec.Struct, frozen=True, tag="create_stream"):
    """The first entry of every stream's log. `config` is the stored StreamConfig as JSON bytes."""

    uid: str
    account: str
    config: bytes
    created_ns: int
    restoring: bool = False
    """True if the entries up to `Restored` are those of an archive; until then the stream is hidden."""


class _Named(msgspec.Struct):
    """The field that the configurations of all releases have."""

    name: str


_NAMED = JsonDecoder(_Named)


def stream_name(create: CreateStream) -> str:
    """Return the name of a stream, whose configuration may be a newer release's."""
    return _NAMED.decode(create.config).name


class UpdateStream(msgspec.Struct, frozen=True, tag="update_stream"):
    """A new configuration, already validated, as JSON bytes."""

    config: bytes
    at_ns: int = 0


class DeleteMessage(msgspec.Struct, frozen=True, tag="delete_message"):
    """MSG.DELETE of one message. `erase`: its bytes have to be removed from all files too (see log/store/shred.py)."""

    seq: int
    erase: bool = True
    at_ns: int = 0


class Purge(msgspec.Struct, frozen=True, tag="purge"):
    """STREAM.PURGE: `filter` is `b""` for all subjects; `seq` > 0 drops below it; `keep` > 0 keeps the newest."""

    filter: bytes = b""
    seq: int = 0
    keep: int = 0
    at_ns: int = 0


class Expire(msgspec.Struct, frozen=True, tag="expire"):
    """Remove everything through `through`: max_age has run out, or the last consumer is gone."""

    through: int
    at_ns: int = 0


class Remove(msgspec.Struct, frozen=True, tag="remove"):
    """Remove messages: interest or work-queue retention needs them no more, or their TTL has run out."""

    seqs: list[int]
    at_ns: int = 0


class Skip(msgspec.Struct, frozen=True, tag="skip"):
    """Sequences through `through` were given to messages that an archive does not have any more. `time_ns`: the time
    of the last of them when there is no message at all; 0 is not known."""

    through: int
    time_ns: int = 0


class Restored(msgspec.Struct, frozen=True, tag="restored"):
    """The stream holds all of the archive that it was made of, and exists from now on."""


class Near(msgspec.Struct, frozen=True, tag="near"):
    """A mirror has come close to its origin: its replicas may answer direct gets for that one from now on."""


class Fork(msgspec.Struct, frozen=True, tag="fork"):
    """A mirror began as a copy of its origin's table: its messages through `through` are those of `version` of its own
    table. See log/store/base.py."""

    version: int
    through: int


class CreateConsumer(msgspec.Struct, frozen=True, tag="create_consumer"):
    """A new consumer. `start` is the first stream sequence it may deliver;

    `pending` lists what deliver policy last_per_subject picked, in order; the consumer goes on from `start` after it.
    """

    name: str
    config: bytes
    created_ns: int
    start: int
    pending: list[int] | None = None


class UpdateConsumer(msgspec.Struct, frozen=True, tag="update_consumer"):
    """A changed consumer configuration (also pause and resume), as JSON bytes. `reset` > 0: deliver next from there, as
    by `ResetConsumer`."""

    name: str
    config: bytes
    reset: int = 0


class ResetConsumer(msgspec.Struct, frozen=True, tag="reset_consumer"):
    """CONSUMER.RESET: deliver next from `seq`."""

    name: str
    seq: int


class DeleteConsumer(msgspec.Struct, frozen=True, tag="delete_consumer"):
    """The consumer is gone."""

    name: str


Operation = (
    CreateStream
    | UpdateStream
    | DeleteMessage
    | Purge
    | Expire
    | Remove
    | Skip
    | Restored
    | Near
    | Fork
    | CreateConsumer
    | UpdateConsumer
    | ResetConsumer
    | DeleteConsumer
)


Removing = UpdateStream | DeleteMessage | Purge | Expire | Remove
"""Operations that can remove messages."""


class ConsumerProgress(msgspec.Struct, frozen=True, gc=False):
    """Changes of one consumer since its last entry. In PROGRESS frames, many consumers to a frame.

    `state` is the consumer's own encoding; only `stream/consumer/ledger.py` reads it. Without a name: the places of
    open fast batches (`stream/features/fast.py`); `.schemas`: versions of schemas (`stream/features/validation.py`).
    """

    name: str
    state: bytes


_encoder = msgspec.msgpack.Encoder()
_operation: PackDecoder[Operation] = PackDecoder(Operation)
_progress: PackDecoder[list[ConsumerProgress]] = PackDecoder(list[ConsumerProgress])


def encode(entry: Operation | list[ConsumerProgress]) -> bytes:
    """Encode the body of an OPERATION or PROGRESS frame."""
    return _encoder.encode(entry)


def decode_operation(body: bytes) -> Operation:
    """Decode the body of an OPERATION frame. Raises `msgspec.DecodeError`."""
    return _operation.decode(body)


def decode_progress(body: bytes) -> list[ConsumerProgress]:
    """Decode the body of a PROGRESS frame. Raises `msgspec.DecodeError`."""
    return _progress.decode(body)
