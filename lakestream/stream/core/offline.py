"""Streams that need a newer server.

Belongs here: telling from a stored configuration, of a stream or a consumer, that this release would not do what it
says: it asks for a higher API level, or has fields that are not known here. Such a stream is loaded offline: nothing of
it is lost, it takes no messages and no changes, and it can be deleted (docs/internals/api.md#api-level).
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from lakestream.log.format.errors import LogError
from lakestream.protocol.api.json_syntax import JsonError
from lakestream.protocol.api.jsonio import parse
from lakestream.protocol.api.request import API_LEVEL
from lakestream.stream.consumer.config import ConsumerConfig
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.rules import REQUIRED_LEVEL

C = TypeVar("C", StreamConfig, ConsumerConfig)


class Unsupported(LogError):
    """A stream cannot be served by this release; the message says why, in nats-server's words."""

    def __init__(self, why: str) -> None:
        super().__init__(why, why)


def stream_config(stored: bytes) -> StreamConfig:
    """A stream's configuration as its log has it. Raises Unsupported."""
    try:
        return _read(stored, StreamConfig)
    except JsonError as error:
        raise Unsupported(str(error)) from None


def consumer_config(name: str, stored: bytes) -> ConsumerConfig:
    """A consumer's configuration as the log has it. Raises Unsupported: its stream stops for it."""
    try:
        return _read(stored, ConsumerConfig)
    except JsonError:
        raise Unsupported(f'stopped - unsupported consumer "{name}"') from None


def refusal(stored: bytes) -> str:
    """Why this release cannot serve a stream with this configuration; "" when it can."""
    try:
        stream_config(stored)
    except Unsupported as error:
        return str(error)
    return ""


def _read(stored: bytes, kind: type[C]) -> C:
    config = msgspec.json.decode(stored, type=kind)  # what it does not know it leaves out
    level = config.metadata.get(REQUIRED_LEVEL, "")
    if level and not (level.isdigit() and int(level[:20]) <= API_LEVEL):
        raise JsonError(f"unsupported - required API level: {level}, current API level: {API_LEVEL}")
    try:
        parse(stored, kind)
    except JsonError as error:
        raise JsonError(f"decoding error: {error}") from None
    return config
