"""The JetStream API as subjects.

Belongs here: which subjects are served, under `$JS.API.` and under the domain's prefix, what happens to a request
before its handler sees it, and what is answered by silence. The handlers are in stream_api.py, account_api.py and
consumer_api.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lakestream.jetstream.account_api import AccountApi
from lakestream.jetstream.api_request import ApiPart, Handler, Request, level_refused, prefixes
from lakestream.jetstream.errors import ApiError, api_error
from lakestream.jetstream.ports import Bus, ClientInfo, Subscribed
from lakestream.jetstream.stream_api import StreamApi

if TYPE_CHECKING:
    from lakestream.jetstream.engine import Engine

SILENT = ("*", "STREAM.>", "CONSUMER.*", "CONSUMER.LEADER.>", "META.>", "ACCOUNT.>", "SERVER.>")
"""Subjects that have a listener whether or not something answers: a request there times out, as with nats-server,
instead of being told that nobody is there. DIRECT.GET and CONSUMER.MSG.NEXT are left out on purpose: without their
stream or consumer they have no responders."""


def standard_parts(engine: Engine) -> list[ApiPart]:
    """Every group of handlers that a server has."""
    from lakestream.jetstream.consumer_api import ConsumerApi

    return [StreamApi(engine), ConsumerApi(engine)]


class Api:
    """Serves the API of one engine. Counts what account info shows."""

    def __init__(self, engine: Engine, parts: Sequence[ApiPart] | None = None) -> None:
        self.total = 0
        """Requests answered."""
        self.errors = 0
        """Those answered with an error."""
        self._bus: Bus = engine.bus
        self._prefixes = prefixes(engine.domain)
        self._subscriptions: list[Subscribed] = []
        for silent in SILENT:
            self._subscribe(silent.encode(), _ignore)
        AccountApi(engine, self).register(self)
        for part in standard_parts(engine) if parts is None else parts:
            part.register(self)
        if engine.domain:
            self._map_stores(self._prefixes[1])

    def close(self) -> None:
        """Stop listening."""
        for subscription in self._subscriptions:
            subscription.cancel()
        self._subscriptions = []

    def route(
        self, pattern: str, kind: str, handler: Handler, *, empty: Mapping[str, Any] | None = None, level: bool = True
    ) -> None:
        """See `Routes.route`."""
        shown = empty or {}
        parts = pattern.split(".")
        wildcards = [at for at, part in enumerate(parts) if part == "*"]
        rest = len(parts) - 1 if parts[-1] == ">" else None

        for prefix in self._prefixes:
            start = len(prefix)

            def called(
                subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo, start: int = start
            ) -> None:
                found = subject[start:].decode("utf-8", "replace").split(".")
                tokens = [found[at] for at in wildcards]
                if rest is not None:
                    tokens.append(".".join(found[rest:]))
                request = Request(self, kind, shown, tokens, reply, header, body, client)
                self._serve(request, handler, level)

            self._subscriptions.append(self._bus.subscribe(prefix + pattern.encode(), called))

    def answered(self, reply: bytes, body: bytes, failed: bool) -> None:
        """See `Answered.answered`."""
        self.total += 1
        if failed:
            self.errors += 1
        if reply:
            self._bus.publish(reply, b"", b"", body)

    def _serve(self, request: Request, handler: Handler, level: bool) -> None:
        try:
            if level and level_refused(request.header):
                raise api_error(10185)
            handler(request)
        except ApiError as error:
            request.fail(error)

    def _subscribe(self, pattern: bytes, handler: Any) -> None:
        for prefix in self._prefixes:
            self._subscriptions.append(self._bus.subscribe(prefix + pattern, handler))

    def _map_stores(self, prefix: bytes) -> None:
        """Key-value and object store subjects behind the domain's prefix reach the streams (api.md §1)."""
        start, bus = len(prefix), self._bus

        def mapped(subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
            bus.publish(subject[start:], reply, header, body)

        for stores in (b"$KV.>", b"$O.>"):
            self._subscriptions.append(bus.subscribe(prefix + stores, mapped))


def _ignore(subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
    return
