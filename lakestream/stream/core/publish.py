"""The rules a message must pass before it is proposed.

Belongs here: publish headers and stream limits as checks, in the order of nats-server 2.15.1
(docs/internals/streams.md#publish-headers). They look at the stream as it will be once everything already proposed is
stored, so that two publishes of one turn see each other.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from lakestream.log.format.record import Record
from lakestream.ports import ClientInfo
from lakestream.protocol import headers
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.stream.core.batch import After, Effect
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.features import counters, schedule_rules, traces
from lakestream.stream.features.ttl import parse_ttl, raised
from lakestream.stream.mirroring.source_state import HEADER as SOURCE

MAX_HEADER_BYTES = 65535
"""A header block larger than this is refused with 10097."""

MAX_RECORD_BYTES = 32 << 20
"""A message larger than this (subject, headers and payload) is refused with 10054."""


Given = dict[bytes, bytes]
"""The publish headers of a message, see `headers.given`: one that is empty counts as none."""


class View(Protocol):
    """The stream as a publish sees it: committed state plus everything in flight."""

    @property
    def config(self) -> StreamConfig:
        """The stream's configuration."""

    @property
    def max_msg_size(self) -> int:
        """The stream's, also where `config` has none because messages were judged by it before."""

    def last_seq(self) -> int:
        """The last sequence given."""

    def last_of(self, subject: bytes) -> int:
        """The last sequence of a subject (or of all that match, with wildcards); 0 when there is none."""

    def record(self, seq: int) -> Record | None:
        """A message that exists, or is on its way; None when it has gone. Raises NotHere."""

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
        if config.allow_msg_counter:
            raise api_error(10169)
        return Effect(seq=0)
    given = headers.given(header)
    check_increment(config, message, given)
    check_stream(config, given)
    rules = _check_replicated if config.num_replicas > 1 else _check_single
    duplicate = rules(view, message, given)
    if duplicate is not None:
        return duplicate
    message.header = raised(message.header, config)
    return _effect(_given_now(message, header, given), message.header, config, 0, 0, subject)


def _given_now(message: Publish, header: bytes, given: Given) -> Given:
    """What the message's header block says; `given` is that of `header`, which rules may have rewritten since."""
    return given if message.header is header else headers.given(message.header)


def _check_single(view: View, message: Publish, given: Given) -> Duplicate | None:
    """The rest of the rules in the order that nats-server keeps where a stream has one replica."""
    config = view.config
    ttl = given.get(b"Nats-TTL")
    if ttl and not config.allow_msg_ttl and parse_ttl(ttl):
        raise api_error(10166)
    _check_expected_of_subject(view, message, given)
    _check_expected_last(view, given)
    schedule_rules.check(view, message)
    _check_source(given)
    duplicate = _known(view, given)
    if duplicate is not None:
        return duplicate
    _check_expected_id(view, given)
    _check_rollup(config, given)
    _count(view, message)
    check_ttl(given)
    return None


def _check_replicated(view: View, message: Publish, given: Given) -> Duplicate | None:
    """The rest of the rules in the order that nats-server keeps where a stream has several replicas."""
    config, header = view.config, message.header
    if b"Nats-TTL" in given and not config.allow_msg_ttl:
        raise api_error(10166)
    check_ttl(given)
    duplicate = _known(view, given)
    if duplicate is not None:
        return duplicate
    _check_source(given)
    _count(view, message)
    _check_expected_last(view, given)
    _check_expected_of_subject(view, message, given)
    schedule_rules.check(view, message)
    _check_rollup(config, _given_now(message, header, given))
    _check_expected_id(view, given)
    return None


def check_increment(config: StreamConfig, message: Publish, given: Given) -> None:
    """Nats-Incr by itself. What the server stores of its own accord was counted before. Raises ApiError."""
    if counters.INCREMENT in given and message.client is not None:
        counters.check_increment(config, message.header, message.payload)


def check_stream(config: StreamConfig, given: Given) -> None:
    """Nats-Expected-Stream. Raises ApiError."""
    stream = given.get(b"Nats-Expected-Stream")
    if stream is not None and stream != config.name.encode():
        raise api_error(10060)


def check_ttl(given: Given) -> None:
    """Nats-TTL by itself. Raises ApiError."""
    ttl = given.get(b"Nats-TTL")
    if ttl and parse_ttl(ttl) == 0:
        raise api_error(10165)


def _count(view: View, message: Publish) -> None:
    if view.config.allow_msg_counter and message.client is not None:
        counters.count(view, message)


def _check_source(given: Given) -> None:
    if SOURCE in given:
        raise api_error(10227)


def _known(view: View, given: Given) -> Duplicate | None:
    msg_id = given.get(b"Nats-Msg-Id")
    seq = view.seen(msg_id) if msg_id else 0
    return Duplicate(seq) if seq else None


def _check_expected_id(view: View, given: Given) -> None:
    expected_id = given.get(b"Nats-Expected-Last-Msg-Id")
    if expected_id is not None and expected_id != view.last_msg_id():
        wanted, last_id = expected_id.decode("utf-8", "replace"), view.last_msg_id().decode("utf-8", "replace")
        raise api_error(10070, id=last_id).called(f'last msgid mismatch: "{wanted}" vs "{last_id}"')


def _check_expected_of_subject(view: View, message: Publish, given: Given) -> None:
    """Optimistic concurrency by subject (ADR-8)."""
    expected = given.get(b"Nats-Expected-Last-Subject-Sequence")
    other = given.get(b"Nats-Expected-Last-Subject-Sequence-Subject")
    if expected is not None:
        last = view.last_of(other or message.subject)
        if not _is(expected, last):
            raise api_error(10071, seq=last).called(traces.expected(expected, last, "sequence by subject"))
    elif other is not None:
        raise api_error(10193)


def _check_expected_last(view: View, given: Given) -> None:
    """Optimistic concurrency by stream."""
    expected = given.get(b"Nats-Expected-Last-Sequence")
    if expected is not None:
        last = view.last_seq()
        if not _is(expected, last):
            raise api_error(10071, seq=last).called(traces.expected(expected, last, "sequence"))


MAX_DIGITS = 20
"""Digits of the largest u64, without leading zeros: a longer number in a header is none that a stream could mean."""


def _is(value: bytes, expected: int) -> bool:
    digits = value.lstrip(b"0")
    return value.isdigit() and len(digits) <= MAX_DIGITS and int(digits or b"0") == expected


def _check_rollup(config: StreamConfig, given: Given) -> None:
    value = given.get(b"Nats-Rollup")
    if not value:
        return
    if not config.allow_rollup_hdrs or config.deny_purge:
        raise api_error(10111, err="rollup not permitted")
    if value.lower() not in (b"sub", b"all"):
        shown = value.decode("utf-8", "replace").lower()
        raise api_error(10111, err=f'rollup value invalid: "{shown}"')


def effect_of(header: bytes, config: StreamConfig, seq: int = 0, time_ns: int = 0, subject: bytes = b"") -> Effect:
    """What a message with this header block does once stored; the same at publish and at recovery.

    Invariant: it depends on the record and the configuration at its place in the log, on nothing else.
    """
    if b"\r\nNats-" not in header:
        return Effect(seq, time_ns, subject)
    return _effect(headers.given(header), header, config, seq, time_ns, subject)


def _effect(given: Given, header: bytes, config: StreamConfig, seq: int, time_ns: int, subject: bytes) -> Effect:
    """`effect_of` of a block whose values are at hand."""
    rollup, source = given.get(b"Nats-Rollup", b"").lower(), given.get(SOURCE, b"")
    if (source or config.mirror is not None) and (not config.allow_rollup_hdrs or config.deny_purge):
        rollup = b""  # it was allowed where the message comes from
    ttl = given.get(b"Nats-TTL") if config.allow_msg_ttl else None  # elsewhere a copied one is a header like any
    return Effect(
        seq=seq,
        time_ns=time_ns,
        subject=subject,
        msg_id=given.get(b"Nats-Msg-Id", b"") if config.mirror is None else b"",
        rollup=rollup if rollup in (b"sub", b"all") else b"",
        ttl_ns=parse_ttl(ttl) if ttl else 0,
        schedule=header if config.allow_msg_schedules and schedule_rules.MARK in header else b"",
        source=source,
    )
