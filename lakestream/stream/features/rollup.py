"""Rollups: messages that replace earlier ones, of their subject or of the whole stream.

Belongs here: the rule of `Nats-Rollup` and its effect. core/limits.py removes the messages.
"""

from __future__ import annotations

from lakestream.protocol import headers
from lakestream.protocol.api.errors import api_error
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.effect import STREAM_SOURCE, Effect, Given
from lakestream.stream.core.feature import Feature
from lakestream.stream.core.publish import ANY, IncomingMessage, PublishRule, View

HEADER = b"Nats-Rollup"
SCOPES = (b"sub", b"all")


def _allowed(config: StreamConfig) -> bool:
    return config.allow_rollup_hdrs and not config.deny_purge


def _check(view: View, message: IncomingMessage, given: Given) -> None:
    value = given.get(HEADER)
    if not value:
        return
    if not _allowed(view.config):
        raise api_error(10111, err="rollup not permitted")
    if value.lower() not in SCOPES:
        shown = value.decode("utf-8", "replace").lower()
        raise api_error(10111, err=f'rollup value invalid: "{shown}"')


def _check_rewritten(view: View, message: IncomingMessage, given: Given) -> None:
    """Check the header as other rules left it: they may have made the message a rollup."""
    _check(view, message, headers.given(message.header) if HEADER in message.header else given)


def _read(effect: Effect, header: bytes, given: Given, config: StreamConfig) -> None:
    if (STREAM_SOURCE in given or config.mirror is not None) and not _allowed(config):
        return  # it was allowed where the message comes from
    scope = given[HEADER].lower()
    if scope in SCOPES:
        effect.replace(scope)


class Rollup(Feature):
    """The rollups of one stream."""

    rules = (
        PublishRule(_check, frozenset({HEADER}), single=100),
        PublishRule(_check_rewritten, ANY, replicated=110),
    )
    effects = ((HEADER, _read),)
