"""Effects: what a stored message does beyond being stored.

Belongs here: the record of one message's effect, and reading it from a header block. Which headers have an effect is
up to the features: each declares the headers that it reads (`Feature.effects`) and keeps what it found under a key of
its own.

Invariant: an effect depends on the record and on the configuration at its place in the log, on nothing else, so that
the leader, its followers and recovery find the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar, cast

import msgspec

from lakestream.protocol import headers
from lakestream.protocol.subjects import is_literal, matches
from lakestream.stream.core.config import StreamConfig

T = TypeVar("T")

Given = dict[bytes, bytes]
"""Values of the `Nats-…` headers of a message by name, as `headers.given` returns them: empty ones are left out."""

STREAM_SOURCE = b"Nats-Stream-Source"
"""Header of a message that was copied from another stream."""

MARK = b"\r\nNats-"
"""Contained in every header block that can have an effect, or that a publish rule can refuse."""


class Effect(msgspec.Struct, gc=False):
    """Effect of one message."""

    seq: int
    time_ns: int = 0
    """Time at which the message was stored."""
    subject: bytes = b""
    rollup: bytes = b""
    """Earlier messages that this one replaces: `b"sub"` those that its subject matches, which may have wildcards,
    `b"all"` all of them, `b""` none."""
    acts: bool = False
    """True if something is to be done when the message is applied."""
    removes: bool = False
    """True if applying the message may remove others."""
    values: dict[str, Any] = {}
    """Values of the features, by name of their `EffectKey`."""

    def replace(self, scope: bytes) -> None:
        """Let the message replace earlier ones: `b"sub"` or `b"all"`."""
        self.rollup, self.acts, self.removes = scope, True, True

    @property
    def wide(self) -> bool:
        """Return True if it replaces messages of other subjects too."""
        return self.rollup == b"all" or (self.rollup == b"sub" and not is_literal(self.subject))

    def replaces(self, subject: bytes) -> bool:
        """Return True if it replaces the earlier messages of `subject`."""
        return self.rollup == b"all" or (self.rollup == b"sub" and matches(self.subject, subject))


class EffectKey(Generic[T]):
    """Place of one feature's value in an `Effect`.

    Args:
        name: unique among the features.
        acts: False if there is nothing left to do when the message is applied by the node that proposed it.
        removes: True if applying the message may remove others.
    """

    def __init__(self, name: str, acts: bool = True, removes: bool = False) -> None:
        self.name, self.acts, self.removes = name, acts, removes

    def of(self, effect: Effect) -> T | None:
        """Return the value, None if the message has none."""
        return cast("T | None", effect.values.get(self.name))

    def put(self, effect: Effect, value: T) -> None:
        """Set the value."""
        effect.values[self.name] = value
        effect.acts = effect.acts or self.acts
        effect.removes = effect.removes or self.removes


EffectReader = Callable[[Effect, bytes, Given, StreamConfig], None]
"""Reads a feature's header: (effect, header block, its values, configuration). Puts into `effect` what it means."""


class Effects:
    """Readers of all features by the name of the header that they read."""

    def __init__(self, declared: Iterable[tuple[bytes, EffectReader]]) -> None:
        self._readers: dict[bytes, list[EffectReader]] = {}
        for name, reader in declared:
            self._readers.setdefault(name, []).append(reader)

    def of(self, header: bytes, config: StreamConfig, seq: int = 0, time_ns: int = 0, subject: bytes = b"") -> Effect:
        """Return the effect of a message with this header block."""
        given = headers.given(header) if MARK in header else {}
        return self.read(given, header, config, seq, time_ns, subject)

    def read(
        self, given: Given, header: bytes, config: StreamConfig, seq: int = 0, time_ns: int = 0, subject: bytes = b""
    ) -> Effect:
        """Return the effect of a header block whose values are `given`."""
        effect = Effect(seq, time_ns, subject)
        for name in given:
            for reader in self._readers.get(name, ()):
                reader(effect, header, given, config)
        return effect
