"""A stream that is being restored on a server which is alone.

Belongs here: what `restores.Target` asks, over this server's own engine. The stream's log says that it is being
restored; until it says that it is whole, nobody sees the stream, and a server that is started anew removes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lakestream.account.backup.restores import Part
from lakestream.log.format.frame import Kind
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.stream.assembly import Stream
from lakestream.stream.awaiting import told
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.operations import Restored

if TYPE_CHECKING:
    from lakestream.account.engine import Engine


class LocalTarget:
    """See `restores.Target`.

    Args:
        check: raises ApiError when there is no room for the stream beside the others.
        show: its StreamInfo.
    """

    def __init__(
        self,
        engine: Engine,
        config: StreamConfig,
        check: Callable[[StreamConfig], None],
        show: Callable[[Stream], dict[str, Any]],
    ) -> None:
        self._engine, self._config, self._check, self._show = engine, config, check, show
        self._stream: Stream | None = None

    async def begin(self) -> None:
        """See `Target.begin`."""
        if self._config.num_replicas > 1:
            raise api_error(10074)
        self._check(self._config)
        engine, config = self._engine, self._config

        def ask(done: Callable[[Stream | ApiError], None]) -> None:
            engine.create_stream(config, done, restoring=True)

        outcome = await told(ask)
        if isinstance(outcome, ApiError):
            raise outcome
        self._stream = outcome

    async def put(self, part: Part) -> None:
        """See `Target.put`."""
        stream = self._stream
        assert stream is not None, "begin comes first"

        def ask(done: Callable[[ApiError | None], None]) -> None:
            stream.propose_foreign(Kind(part.kind), part.body, part.count, done)

        error = await told(ask)
        if error is not None:
            raise error

    async def finish(self) -> dict[str, Any]:
        """See `Target.finish`."""
        stream = self._stream
        assert stream is not None, "begin comes first"

        def ask(done: Callable[[object], None]) -> None:
            stream.propose(Restored(), done)

        outcome = await told(ask)
        if isinstance(outcome, ApiError):
            raise outcome
        self._engine.restored(stream)
        return self._show(stream)

    async def abandon(self) -> None:
        """See `Target.abandon`."""
        stream = self._stream
        if stream is None or stream.name in self._engine.streams:
            return

        def ask(done: Callable[[None], None]) -> None:
            self._engine.abandon_restore(stream, lambda: done(None))

        await told(ask)
