"""Maintenance of tables, as servers ask for it and people see it.

Belongs here: two kinds of files beside the compactor's checkpoint. A request to maintain one table now is a file that a
server writes and the compactor removes. The state (when the next round is due, what is being maintained, the last
result) is a file that the compactor writes and servers read.
"""

from __future__ import annotations

import hashlib

import msgspec

from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder

STATE_FILE, REQUESTS = "maintenance.json", "maintain"

MAX_REQUESTS = 1_000
"""Requests that may wait (1,000); further ones are rejected."""


class UpkeepState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of the maintenance. `next_ns`: when all tables are due, ns since the epoch; `running`: the stream whose
    table is being maintained; `last`: the last result in one line, and when it came."""

    next_ns: int = 0
    running: str = ""
    last: str = ""
    last_ns: int = 0


class UpkeepRequest(msgspec.Struct, frozen=True):
    """A request to maintain a table, by its path."""

    table: str


_STATE, _REQUEST = JsonDecoder(UpkeepState), JsonDecoder(UpkeepRequest)


def write_state(lake: str, state: UpkeepState) -> None:
    """Write the state of a lake's maintenance."""
    storage = open_storage(lake)
    storage.write(f"{paths.checkpoint(storage.root)}/{STATE_FILE}", msgspec.json.encode(state))


def read_state(lake: str) -> UpkeepState | None:
    """Return the state of a lake's maintenance; None if no compactor has told it."""
    storage = open_storage(lake)
    try:
        return _STATE.decode(storage.read(f"{paths.checkpoint(storage.root)}/{STATE_FILE}"))
    except (FileNotFoundError, NotADirectoryError, *DECODE_ERRORS):
        return None


def ask(lake: str, table: str) -> bool:
    """Ask the compactor to maintain a table now; return False if too many requests wait. Asking again adds nothing."""
    storage = open_storage(lake)
    directory = f"{paths.checkpoint(storage.root)}/{REQUESTS}"
    storage.make_directory(directory)
    if len(list(storage.names(directory))) >= MAX_REQUESTS:
        return False
    name = hashlib.sha256(table.encode()).hexdigest()[:32]
    storage.write(f"{directory}/{name}.json", msgspec.json.encode(UpkeepRequest(table)))
    return True


def take(lake: str) -> list[str]:
    """Return the tables that servers have asked for, and remove the requests."""
    storage = open_storage(lake)
    directory = f"{paths.checkpoint(storage.root)}/{REQUESTS}"
    found = []
    for name in list(storage.names(directory)):
        if not name.endswith(".json"):
            continue  # being written
        path = f"{directory}/{name}"
        try:
            found.append(_REQUEST.decode(storage.read(path)).table)
        except (FileNotFoundError, *DECODE_ERRORS):
            pass
        storage.delete(path)
    return found
