"""Files beside a compactor's checkpoint: its state for people, and requests of servers to it.

Belongs here: the records and their files. The compactor writes the progress of its query and the state of its
maintenance, which `status`, the console and metrics show. A server writes a request to maintain one table now, or to
decode its misfits again, and the compactor removes it.
"""

from __future__ import annotations

import hashlib
from typing import Generic, TypeVar

import msgspec

from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder

REQUESTS = "maintain"
MAX_REQUESTS = 1_000
"""Requests that may wait (1,000); further ones are rejected."""

R = TypeVar("R")


class QueryProgress(msgspec.Struct, frozen=True):
    """Spark's progress of a batch (StreamingQueryProgress).

    `batch`: its number; `began`: when, RFC 3339; `segments`: input rows; `seconds`: its duration.
    """

    batch: int = -1
    began: str = ""
    segments: int = 0
    input_per_second: float = 0.0
    processed_per_second: float = 0.0
    seconds: float = 0.0


class UpkeepState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of the maintenance. `next_ns`: when all tables are due, ns since the epoch; `running`: the stream whose
    table is being maintained; `last`: the last result in one line, and when it came."""

    next_ns: int = 0
    running: str = ""
    last: str = ""
    last_ns: int = 0


class CompactorFile(Generic[R]):
    """A file with one record."""

    def __init__(self, name: str, record: type[R]) -> None:
        self._name, self._decoder = name, JsonDecoder(record)

    def write(self, lake: str, record: R) -> None:
        """Write the record of a lake's compactor."""
        storage = open_storage(lake)
        storage.write(f"{paths.checkpoint(storage.root)}/{self._name}", msgspec.json.encode(record))

    def read(self, lake: str) -> R | None:
        """Return the record of a lake's compactor; None if there is none."""
        storage = open_storage(lake)
        try:
            return self._decoder.decode(storage.read(f"{paths.checkpoint(storage.root)}/{self._name}"))
        except (FileNotFoundError, NotADirectoryError, *DECODE_ERRORS):
            return None


PROGRESS = CompactorFile("progress.json", QueryProgress)
UPKEEP = CompactorFile("maintenance.json", UpkeepState)


class UpkeepRequest(msgspec.Struct, frozen=True):
    """A request to maintain a table, by its path; with `replay`, to decode the misfits of its stream again instead."""

    table: str
    replay: bool = False


_REQUEST = JsonDecoder(UpkeepRequest)
_MAINTAIN, _REPLAY = ".json", ".replay"
"""Ends of the files' names. Compactors that know no replay leave its requests to the next one."""


def ask(lake: str, request: UpkeepRequest) -> bool:
    """Ask the compactor for something now; return False if too many requests wait. Asking again adds nothing."""
    storage = open_storage(lake)
    directory = f"{paths.checkpoint(storage.root)}/{REQUESTS}"
    storage.make_directory(directory)
    if len(list(storage.names(directory))) >= MAX_REQUESTS:
        return False
    body = msgspec.json.encode(request)
    suffix = _REPLAY if request.replay else _MAINTAIN
    storage.write(f"{directory}/{hashlib.sha256(body).hexdigest()[:32]}{suffix}", body)
    return True


def take(lake: str) -> list[UpkeepRequest]:
    """Return what servers have asked for, and remove the requests."""
    storage = open_storage(lake)
    directory = f"{paths.checkpoint(storage.root)}/{REQUESTS}"
    found = []
    for name in list(storage.names(directory)):
        if not name.endswith((_MAINTAIN, _REPLAY)):
            continue  # being written
        path = f"{directory}/{name}"
        try:
            found.append(_REQUEST.decode(storage.read(path)))
        except (FileNotFoundError, *DECODE_ERRORS):
            pass
        storage.delete(path)
    return found
