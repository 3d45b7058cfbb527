"""Requests whose handlers are loaded with the first of them.

Belongs here: the subjects about streams, messages and consumers, and for each the method that serves it. Their modules,
and those of streams and consumers behind them, are half of what JetStream imports; a server listens before it has them.
A node with peers loads them at once: other nodes call them, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from lakestream.protocol.api.request import HandlerRegistry, Request, Where
from lakestream.protocol.gotime import ZERO

if TYPE_CHECKING:
    from lakestream.account.api.consumers import ConsumerApi
    from lakestream.account.api.messages import MessageApi
    from lakestream.account.api.streams import StreamApi
    from lakestream.account.engine import Engine

_PAGE = {"total": 0, "offset": 0, "limit": 0}


class FirstUse:
    """The groups of handlers of one account, each made with its first request."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        if engine.node.clustered:
            assert self.streams  # Invariant: other nodes reach it through `calls`, which its constructor serves.

    @cached_property
    def streams(self) -> StreamApi:
        """Return the requests about streams."""
        from lakestream.account.api.streams import StreamApi

        return StreamApi(self._engine)

    @cached_property
    def messages(self) -> MessageApi:
        """Return the requests about messages of streams."""
        from lakestream.account.api.messages import MessageApi

        return MessageApi(self._engine)

    @cached_property
    def consumers(self) -> ConsumerApi:
        """Return the requests about consumers."""
        from lakestream.account.api.consumers import ConsumerApi

        return ConsumerApi(self._engine)

    def register(self, routes: HandlerRegistry) -> None:
        """Register every route; see `ApiPart`."""
        for pattern, kind, serve, where, empty in _ROUTES:
            level, handler = pattern != "CONSUMER.RESET.*.*", partial(serve, self)
            together = (lambda *run: self.messages.delete_run(*run)) if pattern == "STREAM.MSG.DELETE.*" else None
            routes.route(pattern, f"{kind}_response", handler, empty=empty, level=level, where=where, together=together)


_META, _STREAM, _HERE = Where.META, Where.STREAM, Where.HERE
_CREATE, _CONSUMERS, _PAUSED = "consumer_create", {**_PAGE, "consumers": []}, {"paused": False, "pause_until": ZERO}

_ROUTES: tuple[tuple[str, str, Callable[[FirstUse, Request], None], Where, Mapping[str, Any]], ...] = (
    ("STREAM.CREATE.*", "stream_create", lambda use, asked: use.streams.create(asked), _META, {}),
    ("STREAM.UPDATE.*", "stream_update", lambda use, asked: use.streams.update(asked), _STREAM, {}),
    ("STREAM.INFO.*", "stream_info", lambda use, asked: use.streams.info(asked), Where.REPLICA, _PAGE),
    ("STREAM.NAMES", "stream_names", lambda use, asked: use.streams.names(asked), _META, {**_PAGE, "streams": None}),
    ("STREAM.LIST", "stream_list", lambda use, asked: use.streams.list_streams(asked), _META, {**_PAGE, "streams": []}),
    ("STREAM.DELETE.*", "stream_delete", lambda use, asked: use.streams.delete(asked), _META, {}),
    ("STREAM.SNAPSHOT.*", "stream_snapshot", lambda use, asked: use.streams.snapshot(asked), _STREAM, {}),
    (
        "STREAM.RESTORE.*",
        "stream_restore",
        lambda use, asked: use.streams.restore(asked),
        _HERE,
        {"deliver_subject": ""},
    ),
    ("STREAM.PURGE.*", "stream_purge", lambda use, asked: use.messages.purge(asked), _STREAM, {"purged": 0}),
    ("STREAM.MSG.GET.*", "stream_msg_get", lambda use, asked: use.messages.get(asked), _STREAM, {}),
    ("STREAM.MSG.DELETE.*", "stream_msg_delete", lambda use, asked: use.messages.delete(asked), _STREAM, {}),
    ("CONSUMER.CREATE.*", _CREATE, lambda use, asked: use.consumers.create_legacy(asked), _STREAM, {}),
    ("CONSUMER.CREATE.*.*", _CREATE, lambda use, asked: use.consumers.create_named(asked), _STREAM, {}),
    ("CONSUMER.CREATE.*.*.>", _CREATE, lambda use, asked: use.consumers.create_named(asked), _STREAM, {}),
    ("CONSUMER.DURABLE.CREATE.*.*", _CREATE, lambda use, asked: use.consumers.create_durable(asked), _STREAM, {}),
    ("CONSUMER.NAMES.*", "consumer_names", lambda use, asked: use.consumers.names(asked), _STREAM, _CONSUMERS),
    ("CONSUMER.LIST.*", "consumer_list", lambda use, asked: use.consumers.list_consumers(asked), _STREAM, _CONSUMERS),
    ("CONSUMER.INFO.*.*", "consumer_info", lambda use, asked: use.consumers.info(asked), _STREAM, {}),
    ("CONSUMER.DELETE.*.*", "consumer_delete", lambda use, asked: use.consumers.delete(asked), _STREAM, {}),
    ("CONSUMER.PAUSE.*.*", "consumer_pause", lambda use, asked: use.consumers.pause(asked), _STREAM, _PAUSED),
    ("CONSUMER.RESET.*.*", "consumer_reset", lambda use, asked: use.consumers.reset(asked), _STREAM, {"reset_seq": 0}),
    ("CONSUMER.UNPIN.*.*", "consumer_unpin", lambda use, asked: use.consumers.unpin(asked), _STREAM, {}),
)
"""Subject, kind of response, handler, node that answers, and fields that an error response has, of each request."""
