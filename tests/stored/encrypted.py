"""A store and its lake, both encrypted, of which a part is compacted.

Messages are in an encrypted table alone, some of them deleted there, in staged segments, and in the log.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from lakestream.lake.staging import scan, staging
from lakestream.log.sealing.keys import VARIABLE
from lakestream_sql.session import Session
from tests.servers import Server
from tests.stored import lake
from tests.stored.facts import asked
from tests.wire import Wire

KEY = "key of the tests"
"""The key of both; tests/lake/conftest.py gives it to its Spark."""
CONFIG = (
    f'jetstream {{ key: "{KEY}" }}\nlake {{ encryption: parquet, seal_bytes: 4k, seal_age: "200ms", retain_bytes: 0, '
    'poll: "100ms", staged_grace: 0 }\n'
)
COMPACTED, ALL = 120, 150
GONE = (2, 40)


def payload(seq: int) -> bytes:
    """Return the payload of a message."""
    return b'{"secret": "text %d"}' % seq


def fill(server: Server, directory: Path) -> None:
    """Store and delete messages; the last ones are not compacted."""
    os.environ[VARIABLE] = KEY
    with Wire(server.address, timeout=60) as wire:
        with lake.compacting(directory):
            asked(wire, "STREAM.CREATE.S", {"name": "S", "subjects": ["secret.*"], "allow_direct": True})
            store(wire, 1, COMPACTED)
            lake.until(lambda: lake.released(server, "S"), "messages in the table alone")
            for seq in GONE:
                asked(wire, "STREAM.MSG.DELETE.S", {"seq": seq, "no_erase": True})
            store(wire, COMPACTED + 1, COMPACTED + 1)
            lake.until(lambda: not staged(directory), "everything in the table")
        store(wire, COMPACTED + 2, ALL)
        lake.until(lambda: staged(directory), "a staged segment")


def staged(directory: Path) -> bool:
    """Return True if segments wait for the compactor."""
    return any(staging.segments(place.directory) for place in scan.Scanner(str(directory)).scan())


def store(wire: Wire, first: int, last: int) -> None:
    """Store messages with these sequences."""
    for seq in range(first, last + 1):
        assert json.loads(wire.request(f"secret.{seq % 4}", payload(seq)).data)["seq"] == seq


def rows(directory: Path) -> dict[int, bytes]:
    """Return the payloads in the table and in staged segments."""
    with contextlib.closing(Session(str(directory))) as session:
        return dict(session.query("SELECT seq, data FROM S").fetchall())


def found(server: Server) -> dict[int, bytes]:
    """Return the payloads of all messages by direct gets."""
    with Wire(server.address, timeout=60) as wire:
        answers = {seq: wire.request("$JS.API.DIRECT.GET.S", b'{"seq": %d}' % seq) for seq in range(1, ALL + 1)}
    return {seq: answer.data for seq, answer in answers.items() if b" 404 " not in answer.header}


def expected() -> dict[int, Any]:
    """Return the payloads that the stream has."""
    return {seq: payload(seq) for seq in range(1, ALL + 1) if seq not in GONE}
