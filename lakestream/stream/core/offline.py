"""Streams that need a newer server.

Belongs here: recognising a stored configuration, of a stream or a consumer, that this release does not support: it
needs a higher API level, or has unknown fields. Such a stream is loaded offline: nothing of it is lost, it takes no
messages and no changes, and it can be deleted (docs/internals/api.md#api-level).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from lakestream.log.format.errors import LogError
from lakestream.protocol.api.json_syntax import JsonError
from lakestream.protocol.api.jsonio import parse
from lakestream.protocol.api.request import API_LEVEL
from lakestream.protocol.decoding import JsonDecoder
from lakestream.stream.core.config import REQUIRED_LEVEL, StreamConfig

C = TypeVar("C", bound=msgspec.Struct)


class _Metadata(msgspec.Struct):
    """The metadata of a configuration, which names the API level that the configuration needs."""

    metadata: dict[str, str] = {}


_METADATA = JsonDecoder(_Metadata)


class Unsupported(LogError):
    """Raised when this release does not support a stream; the message says why, in nats-server's words."""

    def __init__(self, why: str) -> None:
        super().__init__(why, why)


@lru_cache(maxsize=8)
def stream_config(stored: bytes) -> StreamConfig:
    """Read a stream's configuration from its log. Raise Unsupported.

    The last few are kept: a new stream's is read for its request and for its replica.
    """
    try:
        return read_stored(stored, StreamConfig)
    except JsonError as error:
        raise Unsupported(str(error)) from None


def refusal(stored: bytes) -> str:
    """Return why this release does not support a stream with this configuration, "" if it does."""
    try:
        stream_config(stored)
    except Unsupported as error:
        return str(error)
    return ""


def read_stored(stored: bytes, record: type[C]) -> C:
    """Decode a stored configuration. Raise JsonError if this release does not support all of it."""
    try:
        config = parse(stored, record)
    except JsonError as error:
        _check_level(_METADATA.decode(stored))
        raise JsonError(f"decoding error: {error}") from None
    _check_level(config)
    return config


def _check_level(config: Any) -> None:
    level = config.metadata.get(REQUIRED_LEVEL, "")
    if level and not (level.isdigit() and int(level[:20]) <= API_LEVEL):
        raise JsonError(f"unsupported - required API level: {level}, current API level: {API_LEVEL}")
