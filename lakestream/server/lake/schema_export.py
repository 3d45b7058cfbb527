"""Export of registered schemas to the lake.

Belongs here: writing each version into the lake (lake/table/schema_files.py), where compactor and readers find it, in
order and until it succeeds. A registration does not fail because of the lake, and waits for it for a short time only.
Segments of streams with schemas are staged after it (`owed`): else the compactor could find messages of a version that
the lake does not have yet. A node with a stream that validates also exports the versions that it checks by, whichever
node registered them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from lakestream.lake.errors import LakeError
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import schema_files as schemas
from lakestream.lake.table.schema_files import SchemaConflict
from lakestream.log.format.files import Io
from lakestream.logging import Logger
from lakestream.ports import Clock
from lakestream.schemas.errors import BadSchema
from lakestream.schemas.schema import Schema
from lakestream.server.lake.presence import Presence

AGAIN_NS = 2_000_000_000
"""Pause after a failed attempt (2 s)."""


class _Waiting(msgspec.Struct, frozen=True):
    account: str
    schema: Schema
    done: Callable[[], None]


class SchemaExport:
    """Writes schemas into one lake.

    Args:
        root: the lake's root.
        presence: knows whether the lake can be written to.
        io: threads for the lake.
    """

    def __init__(self, root: str, presence: Presence, clock: Clock, io: Io, log: Logger) -> None:
        self._root, self._presence = root, presence
        self._clock, self._io, self._log = clock, io, log
        self._waiting: deque[_Waiting] = deque()
        self._running = False
        self._failure = ""

    def owed(self, account: str) -> str | None:
        """Return why the lake lacks versions of an account, "" if they are being written; None if it has all."""
        return self._failure if any(each.account == account for each in self._waiting) else None

    def put(self, account: str, schema: Schema, done: Callable[[], None] = lambda: None) -> None:
        """Write a version; call `done` once it is there, or cannot be because the lake has another in its place."""
        self._waiting.append(_Waiting(account, schema, done))
        if not self._running:
            self._next()

    def _next(self) -> None:
        self._running = bool(self._waiting)
        if not self._waiting:
            return
        if not self._presence.probe.lake_id or self._presence.away is not None:
            self._clock.call_later(AGAIN_NS, self._next)
            return
        first = self._waiting[0]
        self._io.submit(lambda: self._write(first), self._written)

    def _write(self, first: _Waiting) -> bool:
        """Write a version. Blocks. Raise LakeError, OSError."""
        self._presence.probe.check()  # a directory that is not mounted is not the lake
        return schemas.write_schema(open_storage(self._root), first.account, first.schema)

    def _written(self, _: bool | None, error: BaseException | None) -> None:
        first = self._waiting[0]
        if error is not None and not isinstance(error, SchemaConflict | BadSchema):
            text = f"schema {first.schema.reference} of account {first.account} cannot be written to the lake: {error}"
            self._failure = text
            self._log.warn_again(f"{text}; retrying", first.schema.reference)
            if not isinstance(error, OSError | LakeError):
                self._log.error(f"{text} ({type(error).__name__})")
            self._clock.call_later(AGAIN_NS, self._next)
            return
        if error is not None:
            self._log.error(f"schema {first.schema.reference} of account {first.account} is not in the lake: {error}")
        self._failure = ""
        self._waiting.popleft()
        first.done()
        self._next()
