"""This server's part in the lake's identity.

Belongs here: the id of the lake, as the store remembers it, and the file in the lake by which readers find this
server. Both wait for a lake that is away: a server starts without it. A store that knows its lake's id never begins
another lake in the place of a directory that is not mounted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os

import msgspec

from lakestream.lake.errors import LakeAway, LakeError
from lakestream.lake.flush import ServerFile, name_server, unname_server
from lakestream.lake.storage.lake import identify, open_storage
from lakestream.log.format.files import Files
from lakestream.logging import Logger
from lakestream.ports import Clock
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder
from lakestream.runtime import ThreadIo
from lakestream.server.lake.presence import Presence

KNOWN_FILE = "lake.id"
"""File in the store directory with the address and the id of the lake."""
START_WAIT_S = 5.0
"""Maximum time for which a start waits for the lake (5 s)."""
AGAIN_NS = 10_000_000_000
"""Pause (10 s) before another attempt to write into a lake that answers."""


class KnownLake(msgspec.Struct, frozen=True):
    """Content of KNOWN_FILE: the lake's root and its id."""

    root: str
    id: str


_KNOWN = JsonDecoder(KnownLake)


class LakeAddress:
    """The server's file in the lake.

    Args:
        root: the lake's root.
        store_dir: directory of the server's store.
        presence: gets the lake's id.
        files: of the store.
        io: threads for the lake.
    """

    def __init__(
        self, root: str, store_dir: str, files: Files, presence: Presence, clock: Clock, io: ThreadIo, log: Logger
    ) -> None:
        self._root, self._store_dir, self._files = root, store_dir, files
        self._presence, self._clock, self._io, self._log = presence, clock, io, log
        self._file: ServerFile | None = None
        self._written = self._under_way = False
        self._first: asyncio.Future[None] | None = None
        presence.on_return.append(self._write)
        known = self._known()
        if known is not None and known.root == root:
            presence.probe.expect(known.id, self._otherwise)

    @property
    def _path(self) -> str:
        return os.path.join(self._store_dir, KNOWN_FILE)

    @property
    def _otherwise(self) -> str:
        return f"if a new lake shall begin there, stop the server and remove {self._path}"

    def _known(self) -> KnownLake | None:
        try:
            return _KNOWN.decode(self._files.read(self._path))
        except (OSError, *DECODE_ERRORS):
            return None

    async def announce(self, file: ServerFile) -> None:
        """Write the file, now or once the lake is there; return once it is written, or after START_WAIT_S."""
        self._file = file
        self._first = asyncio.get_running_loop().create_future()
        self._write()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._first, START_WAIT_S)

    def withdraw(self) -> None:
        """Remove the file. Blocks, unless the lake is away."""
        if self._file is None or not self._written or self._presence.away is not None:
            return
        try:
            unname_server(open_storage(self._root, brief=True), self._file)
        except (LakeError, OSError) as error:
            self._log.error(f"the lake at {self._root} still has the address of this server: {error}")

    def _write(self) -> None:
        file = self._file
        if file is None or self._written or self._under_way:
            return
        self._under_way = True
        self._io.submit(lambda: self._put(file), self._put_done)

    def _put(self, file: ServerFile) -> str:
        """Write the file and return the lake's id. Blocks."""
        self._presence.probe.check()
        storage, known = open_storage(self._root, brief=True), self._known()
        # A lake that is known is only looked for: it may have gone since the probe.
        found = known.id if known is not None and known.root == self._root else identify(storage)
        name_server(storage, file)
        if known != KnownLake(self._root, found):
            self._files.write_whole(self._path, [msgspec.json.encode(KnownLake(self._root, found))])
        return found

    def _put_done(self, found: str | None, error: BaseException | None) -> None:
        self._under_way = False
        if found is not None:
            self._written = True
            self._presence.probe.expect(
                found, f"if a new lake shall begin there, stop the server and remove {self._path}"
            )
        elif self._presence.away is None:
            if not isinstance(error, LakeAway):
                self._log.error(f"readers of the lake at {self._root} cannot find this server yet: {error}")
            self._presence.suspect()
            self._clock.call_later(AGAIN_NS, self._write)
        if self._first is not None and not self._first.done():
            self._first.set_result(None)
