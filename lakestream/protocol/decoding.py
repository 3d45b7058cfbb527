"""Decoding of bytes that come from outside or from disk.

Belongs here: msgspec's decoders, made when they are first used, and the exceptions with which it refuses bytes. Its own
are not all of them: text that is not UTF-8 and values that are nested too deeply raise Python's.

To make a decoder takes 0.1 ms, because msgspec looks into the types of all fields. A start of the server imports a
hundred modules that have one, and few of them decode anything before the first request.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from types import UnionType
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")

DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Raised by a msgspec decoder for bytes that it does not take."""


class JsonDecoder(Generic[T]):
    """Decoder of JSON to a type; made when `decode` is first used.

    Attributes:
        kind: the type, as for `msgspec.json.Decoder`.
    """

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind

    @cached_property
    def decode(self) -> Callable[[bytes | bytearray | memoryview | str], T]:
        """Return the function that decodes; it raises `DECODE_ERRORS`."""
        decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(self.kind)
        return decoder.decode


class PackDecoder(Generic[T]):
    """Decoder of MessagePack to a type; made when `decode` is first used.

    Attributes:
        kind: the type, as for `msgspec.msgpack.Decoder`.
    """

    def __init__(self, kind: type[T] | UnionType) -> None:
        self.kind = kind

    @cached_property
    def decode(self) -> Callable[[bytes | bytearray | memoryview], T]:
        """Return the function that decodes; it raises `DECODE_ERRORS`."""
        decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(self.kind)
        return decoder.decode
