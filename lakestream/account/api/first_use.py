"""Requests whose handlers are loaded with the first of them.

Belongs here: the subjects about streams, messages and consumers, and for each the method that serves it. Their modules,
and those of streams and consumers behind them, are half of what JetStream imports; a server listens before it has them.
A node with peers loads them at once: other nodes call them, too.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from lakestream.protocol.api.request import HandlerRegistry, Where
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
        self._register_streams(routes)
        self._register_consumers(routes)

    def _register_streams(self, routes: HandlerRegistry) -> None:
        route, meta, stream = routes.route, Where.META, Where.STREAM
        route("STREAM.CREATE.*", "stream_create_response", lambda asked: self.streams.create(asked), where=meta)
        route("STREAM.UPDATE.*", "stream_update_response", lambda asked: self.streams.update(asked), where=stream)
        route(
            "STREAM.INFO.*",
            "stream_info_response",
            lambda asked: self.streams.info(asked),
            empty=_PAGE,
            where=Where.REPLICA,
        )
        route(
            "STREAM.NAMES",
            "stream_names_response",
            lambda asked: self.streams.names(asked),
            empty={**_PAGE, "streams": None},
            where=meta,
        )
        route(
            "STREAM.LIST",
            "stream_list_response",
            lambda asked: self.streams.list_streams(asked),
            empty={**_PAGE, "streams": []},
            where=meta,
        )
        route("STREAM.DELETE.*", "stream_delete_response", lambda asked: self.streams.delete(asked), where=meta)
        route("STREAM.SNAPSHOT.*", "stream_snapshot_response", lambda asked: self.streams.snapshot(asked), where=stream)
        route(
            "STREAM.RESTORE.*",
            "stream_restore_response",
            lambda asked: self.streams.restore(asked),
            empty={"deliver_subject": ""},
        )
        route(
            "STREAM.PURGE.*",
            "stream_purge_response",
            lambda asked: self.messages.purge(asked),
            empty={"purged": 0},
            where=stream,
        )
        route("STREAM.MSG.GET.*", "stream_msg_get_response", lambda asked: self.messages.get(asked), where=stream)
        route(
            "STREAM.MSG.DELETE.*", "stream_msg_delete_response", lambda asked: self.messages.delete(asked), where=stream
        )

    def _register_consumers(self, routes: HandlerRegistry) -> None:
        route, stream = routes.route, Where.STREAM
        created, page = "consumer_create_response", {**_PAGE, "consumers": []}
        route("CONSUMER.CREATE.*", created, lambda asked: self.consumers.create_legacy(asked), where=stream)
        route("CONSUMER.CREATE.*.*", created, lambda asked: self.consumers.create_named(asked), where=stream)
        route("CONSUMER.CREATE.*.*.>", created, lambda asked: self.consumers.create_named(asked), where=stream)
        route("CONSUMER.DURABLE.CREATE.*.*", created, lambda asked: self.consumers.create_durable(asked), where=stream)
        route(
            "CONSUMER.NAMES.*",
            "consumer_names_response",
            lambda asked: self.consumers.names(asked),
            empty=page,
            where=stream,
        )
        route(
            "CONSUMER.LIST.*",
            "consumer_list_response",
            lambda asked: self.consumers.list_consumers(asked),
            empty=page,
            where=stream,
        )
        route("CONSUMER.INFO.*.*", "consumer_info_response", lambda asked: self.consumers.info(asked), where=stream)
        route(
            "CONSUMER.DELETE.*.*", "consumer_delete_response", lambda asked: self.consumers.delete(asked), where=stream
        )
        route(
            "CONSUMER.PAUSE.*.*",
            "consumer_pause_response",
            lambda asked: self.consumers.pause(asked),
            empty={"paused": False, "pause_until": ZERO},
            where=stream,
        )
        route(
            "CONSUMER.RESET.*.*",
            "consumer_reset_response",
            lambda asked: self.consumers.reset(asked),
            empty={"reset_seq": 0},
            level=False,
            where=stream,
        )
        route("CONSUMER.UNPIN.*.*", "consumer_unpin_response", lambda asked: self.consumers.unpin(asked), where=stream)
