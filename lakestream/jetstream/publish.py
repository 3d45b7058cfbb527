"""The rules a message must pass before it is proposed.

Belongs here: publish headers and stream limits as checks, in the order of nats-server 2.15.1 (streams.md §6). They
look at the stream as it will be once everything already proposed is stored, so that two publishes of one turn see
each other.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from lakestream.jetstream.batch import After, Effect
from lakestream.jetstream.durations import parse_duration
from lakestream.jetstream.errors import ApiError, api_error
from lakestream.jetstream.ports import ClientInfo
from lakestream.jetstream.stream_config import StreamConfig
from lakestream.protocol import headers

MAX_HEADER_BYTES = 65535
"""A header block larger than this is refused with 10097."""

MAX_RECORD_BYTES = 32 << 20
"""A message larger than this (subject, headers and payload) is refused with 10054."""

_SECOND = 1_000_000_000
MAX_TTL_DIGITS = 9
"""A TTL of a billion seconds or more (31 years) is invalid: its nanoseconds must stay far below 2^63."""


class View(Protocol):
    """The stream as a publish sees it: committed state plus everything in flight."""

    @property
    def config(self) -> StreamConfig:
        """The stream's configuration."""

    def last_seq(self) -> int:
        """The last sequence given."""

    def last_of(self, subject: bytes) -> int:
        """The last sequence of a subject (or of all that match, with wildcards); 0 when there is none."""

    def last_msg_id(self) -> bytes:
        """The last message id stored."""

    def seen(self, msg_id: bytes) -> int:
        """The sequence that a message id in the duplicate window has; 0 when there is none."""

    def room(self, subject: bytes, length: int, rollup: bool) -> ApiError | None:
        """Why discard policy `new` refuses a message of this accounted length, or None. `rollup`: it makes room."""


class Publish(msgspec.Struct):
    """A message that is being judged. The rules may rewrite its header and payload; what they leave is stored."""

    subject: bytes
    reply: bytes
    header: bytes
    payload: bytes
    client: ClientInfo | None = None
    """Who sent it; None for the server itself."""
    tail: bytes = b""
    """What follows the sequence in its pub ack: `,"val":"3"`."""
    after: After | None = None
    """Called once it is committed and applied, unless leadership or the stream ends before."""

    @property
    def size(self) -> int:
        """Its bytes while it waits."""
        return len(self.subject) + len(self.header) + len(self.payload)


class NotHere(Exception):
    """A rule needs the message with this sequence, which only the lake has: fetch it and judge again."""

    def __init__(self, seq: int) -> None:
        super().__init__(f"sequence {seq} is only in the lake")
        self.seq = seq


class Duplicate(msgspec.Struct, frozen=True):
    """The message id was stored before, under `seq`."""

    seq: int


def check(view: View, message: Publish) -> Effect | Duplicate:
    """Apply every publish rule. Raises ApiError with the code of the first that fails, NotHere."""
    config, subject, header, payload = view.config, message.subject, message.header, message.payload
    if config.sealed:
        raise api_error(10109)
    size = len(header) + len(payload)
    if 0 < config.max_msg_size < size or len(subject) + size > MAX_RECORD_BYTES:
        raise api_error(10054)
    if len(header) > MAX_HEADER_BYTES:
        raise api_error(10097)
    if b"\r\nNats-" not in header:
        return Effect(seq=0)
    _check_features(config, header)
    _check_expected(view, subject, header)
    if _value(header, b"Nats-Schedule") is not None:
        raise api_error(10188)
    for name in (b"Nats-Scheduler", b"Nats-Schedule-Next"):
        if _value(header, name) is not None:
            raise api_error(10212)
    if _value(header, b"Nats-Stream-Source") is not None:
        raise api_error(10227)
    effect = effect_of(header, config)
    if effect.msg_id:
        seq = view.seen(effect.msg_id)
        if seq:
            return Duplicate(seq)
    expected_id = _value(header, b"Nats-Expected-Last-Msg-Id")
    if expected_id is not None and expected_id != view.last_msg_id():
        raise api_error(10070, id=view.last_msg_id().decode("utf-8", "replace"))
    _check_rollup(config, header, effect)
    return effect


def _check_features(config: StreamConfig, header: bytes) -> None:
    """Headers of features that this stream has off, Expected-Stream and TTL."""
    if _value(header, b"Nats-Batch-Id") is not None:
        raise api_error(10174)
    if _value(header, b"Nats-Incr") is not None:
        raise api_error(10168)
    stream = _value(header, b"Nats-Expected-Stream")
    if stream is not None and stream != config.name.encode():
        raise api_error(10060)
    ttl = _value(header, b"Nats-TTL")
    if ttl:
        if not config.allow_msg_ttl:
            raise api_error(10166)
        if parse_ttl(ttl) == 0:
            raise api_error(10165)


def _check_expected(view: View, subject: bytes, header: bytes) -> None:
    """Optimistic concurrency: Expected-Last-Subject-Sequence, then Expected-Last-Sequence (ADR-8)."""
    expected = _value(header, b"Nats-Expected-Last-Subject-Sequence")
    other = _value(header, b"Nats-Expected-Last-Subject-Sequence-Subject")
    if expected is not None:
        last = view.last_of(other or subject)
        if not _is(expected, last):
            raise api_error(10071, seq=last)
    elif other is not None:
        raise api_error(10193)
    expected = _value(header, b"Nats-Expected-Last-Sequence")
    if expected is not None:
        last = view.last_seq()
        if not _is(expected, last):
            raise api_error(10071, seq=last)


MAX_DIGITS = 20
"""Digits of the largest u64: a longer number in a header is none that a stream could mean."""


def _is(value: bytes, expected: int) -> bool:
    return value.isdigit() and len(value) <= MAX_DIGITS and int(value) == expected


def _check_rollup(config: StreamConfig, header: bytes, effect: Effect) -> None:
    value = _value(header, b"Nats-Rollup")
    if not value:
        return
    if not config.allow_rollup_hdrs or config.deny_purge:
        raise api_error(10111, err="rollup not permitted")
    if not effect.rollup:
        shown = value.decode("utf-8", "replace").lower()
        raise api_error(10111, err=f'rollup value invalid: "{shown}"')


def _value(header: bytes, name: bytes) -> bytes | None:
    """The value of a publish header; None when there is none or an empty one, which counts as none."""
    return headers.get(header, name) or None


def effect_of(header: bytes, config: StreamConfig, seq: int = 0, time_ns: int = 0, subject: bytes = b"") -> Effect:
    """What a message with this header block does once stored; the same at publish and at recovery.

    Invariant: it depends on the record and the configuration at its place in the log, on nothing else.
    """
    if b"\r\nNats-" not in header:
        return Effect(seq, time_ns, subject)
    rollup = (_value(header, b"Nats-Rollup") or b"").lower()
    ttl = _value(header, b"Nats-TTL")
    return Effect(
        seq=seq,
        time_ns=time_ns,
        subject=subject,
        msg_id=_value(header, b"Nats-Msg-Id") or b"",
        rollup=rollup if rollup in (b"sub", b"all") else b"",
        ttl_ns=parse_ttl(ttl) if ttl else 0,
    )


def parse_ttl(value: bytes) -> int:
    """Nats-TTL in ns (ADR-43): whole seconds or a Go duration ≥ 1 s cut to seconds; -1 for `never`; 0 when invalid."""
    text = value.decode("utf-8", "replace").strip()
    if text.lower() == "never":
        return -1
    if text.isdigit() and text.isascii():
        return int(text) * _SECOND if len(text) <= MAX_TTL_DIGITS else 0
    try:
        duration = parse_duration(text)
    except ValueError:
        return 0
    return duration // _SECOND * _SECOND if duration >= _SECOND else 0
