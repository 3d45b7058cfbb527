"""A store with its lake.

It has tables, messages that only tables hold, staged segments, a clone, and deleted streams whose last changes are not
in the tables yet.
"""

from __future__ import annotations

import contextlib
import hashlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lakestream.lake.staging import scan, staging
from lakestream.lake.storage import paths
from lakestream_sql.session import Session
from tests.lake import tables
from tests.lake.conftest import job
from tests.servers import Server
from tests.stored.facts import asked, known, names
from tests.stored.standalone import Filler, wait_copied
from tests.wire import Wire

CONFIG = 'lake { seal_bytes: 4k, seal_age: "200ms", retain_bytes: 0, poll: "100ms", staged_grace: 0 }'
UNSEALED = 'lake { seal_bytes: 4k, seal_age: "1h", retain_bytes: 0, poll: "100ms", staged_grace: 0 }'
"""Like CONFIG, but segments are sealed by size only, so the newest one stays open."""
SOON_S = 300.0
KEEP = {"lakestream.on_delete": "keep"}
STREAMS: dict[str, dict[str, Any]] = {
    # Its mirror would answer direct gets for it.
    "ORDERS": {"subjects": ["orders.*"], "allow_direct": False},
    "MANY": {"subjects": ["many.*"], "compression": "s2", "metadata": {"lakestream.partition": "bucket:2"}},
    "ARCHIVE": {"subjects": ["archive.*"], "max_msgs": 40, "metadata": {"lakestream.retention": "archive"}},
    "PAST": {"subjects": ["past.*"], "max_msgs_per_subject": 1, "metadata": {"lakestream.time_travel": "5200w"}},
    "PRICES": {"subjects": ["prices"], "metadata": {"lakestream.json_schema": "price DOUBLE, tags ARRAY<STRING>"}},
    "ODD": {"subjects": ["odd.>"], "allow_direct": False},  # headers of direct gets are read as Latin-1
    "KEPT": {"subjects": ["kept.*"], "metadata": KEEP},
    "OWED": {"subjects": ["owed.*"], "metadata": KEEP},
}
COPIES: dict[str, dict[str, Any]] = {
    "CLONE": {"mirror": {"name": "ORDERS"}, "metadata": {"lakestream.clone": "always"}},
    "PART": {"mirror": {"name": "ORDERS", "subject_transforms": [{"src": "orders.1", "dest": "part.1"}]},
             "metadata": {"lakestream.clone": "always"}},
}  # fmt: skip
TABLES = ("ORDERS", "MANY", "ARCHIVE", "PAST", "PRICES", "ODD", "CLONE", "PART")
POINT = 20
"""Sequence of stream PAST at which its past state is recorded."""


def until(ready: Callable[[], Any], what: str) -> Any:
    """Poll until the answer is true; return it."""
    deadline = time.monotonic() + SOON_S
    while not (found := ready()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return found


@contextlib.contextmanager
def compacting(lake: Path) -> Iterator[None]:
    """Run the compactor's job over a lake."""
    command = [sys.executable, str(job()), "--lake", str(lake), "--interval", "0.2", "--maintain-every", "0"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()


def fill(server: Server, lake: Path) -> None:
    """Fill streams, have them compacted, change messages in tables, and leave some changes uncompacted."""
    with Wire(server.address, timeout=60) as wire, compacting(lake):
        filler = Filler(wire)
        for name, config in STREAMS.items():
            filler.stream(name, **{"allow_direct": True, **config})
        store(filler, 120)
        filler.consumer("ORDERS", "reader", ack_policy="explicit")
        until(lambda: settled(server, lake), "everything in the tables")
        until(lambda: released(server, "ORDERS") and released(server, "MANY"), "messages in the tables alone")
        for name, config in COPIES.items():
            filler.stream(name, **{"allow_direct": True, **config})
        wait_copied(wire, *COPIES)
        change(filler, 2)
        asked(wire, "STREAM.MSG.DELETE.PAST", {"seq": 118})
        store(filler, 30)
        wait_copied(wire, *COPIES)
        until(lambda: settled(server, lake), "everything in the tables")


def store(filler: Filler, count: int) -> None:
    """Store messages in every stream."""
    for number in range(count):
        headers = {"Number": str(number)} if number % 3 else None
        filler.put(f"orders.{number % 4}", b"order %d " % number * 12, headers)
        filler.put(f"many.{number % 30}", b"many " * 30, headers)
        filler.put(f"archive.{number % 2}", b"%d" % number)
        filler.put(f"past.{number % 5}", b"%d" % number)
        filler.put("prices", b'{"price": %d.5, "tags": ["a", "%d"]}' % (number, number) if number % 7 else b"no json")
        filler.put(f"odd.{('a/b', 'c:d', 'ü', 'é' * 130)[number % 4]}", b"%d" % number)
        filler.put("kept.1", b"%d" % number * 20)
        filler.put("owed.1", b"%d" % number * 20)


def change(filler: Filler, at: int) -> None:
    """Remove messages that tables hold, and read some through a consumer."""
    for seq in (at, at + 28, at + 29):
        asked(filler.wire, "STREAM.MSG.DELETE.ORDERS", {"seq": seq, "no_erase": True})
    asked(filler.wire, "STREAM.MSG.DELETE.MANY", {"seq": at + 3})  # a secure delete
    asked(filler.wire, "STREAM.PURGE.MANY", {"filter": f"many.{at + 5}"})
    for frame in filler.pull("ORDERS", "reader", 20)[::2]:
        filler.tell(frame)


def leave(wire: Wire, lake: Path) -> None:
    """Store, remove and delete what remains for the compactor; make staging fail for one stream."""
    filler = Filler(wire)
    store(filler, 40)
    asked(wire, "STREAM.MSG.DELETE.ORDERS", {"seq": 40, "no_erase": True})
    wait_copied(wire, *COPIES)
    asked(wire, "STREAM.DELETE.KEPT")
    segments = lake / "segments" / "OWED"
    segments.rename(lake / "OWED-away")
    segments.write_bytes(b"")  # a file in place of the directory: staging fails
    asked(wire, "STREAM.DELETE.OWED")


def leave_owing(lake: Path) -> None:
    """Restore in the lake what `leave` removed, after the server was killed."""
    segments = lake / "segments" / "OWED"
    segments.unlink()
    (lake / "OWED-away").rename(segments)


def settled(server: Server, lake: Path) -> bool:
    """Return True if tables hold the last messages of all streams, and nothing is staged or due to deleted streams."""
    with Wire(server.address, timeout=60) as wire:
        last = {name: asked(wire, f"STREAM.INFO.{name}")["state"]["last_seq"] for name in names(wire)}
    places = scan.Scanner(str(lake)).scan()
    return (
        {place.identity.name for place in places} <= set(last)
        and not any(staging.segments(place.directory) for place in places)
        and all(in_table(lake, name) == seq for name, seq in last.items())
    )


def in_table(lake: Path, stream: str) -> int:
    """Return the last sequence in a stream's table."""
    held = rows(lake, stream) if Path(paths.table(str(lake), stream), "_delta_log").exists() else []
    return int(held[-1][0]) if held else 0


def released(server: Server, stream: str) -> bool:
    """Return True if messages of a stream are in its table alone."""
    return any((server.store / "jetstream" / "$G" / "streams" / stream / "log").glob("*.outline"))


def facts(server: Server, lake: Path) -> dict[str, Any]:
    """Return what clients and readers of the tables read."""
    with Wire(server.address, timeout=60) as wire:
        wait_copied(wire, *COPIES)
        return {"streams": known(wire), "tables": {name: rows(lake, name) for name in TABLES}}


def past(server: Server) -> list[list[Any]]:
    """Return the messages that stream PAST held at POINT."""
    found = []
    with Wire(server.address) as wire:
        reply = wire.new_reply()
        wire.publish("$JS.API.DIRECT.GET.PAST", b'{"multi_last": ["past.*"], "up_to_seq": %d}' % POINT, reply)
        while not (frame := wire.message(reply, 60.0)).status:
            found.append([frame.headers["Nats-Sequence"], frame.headers["Nats-Subject"], frame.data.decode()])
    assert frame.status == 204, frame
    return found


def rows(lake: Path, stream: str) -> list[list[Any]]:
    """Return the rows of a table as messages."""
    return [
        [row.seq, row.time_ns, row.subject.decode(), row.header.decode("latin-1"), hashlib.sha256(row.data).hexdigest()]
        for row in tables.records(paths.table(str(lake), stream))
    ]


def prices(lake: Path) -> list[list[Any]]:
    """Return the rows of the typed views of stream PRICES."""
    with Session(str(lake), committed=True) as session:
        fitting = session.query("SELECT seq, price, tags FROM delta.`streams/PRICES_json` ORDER BY seq")
        found = [list(row) for row in fitting]
        misfits = session.query("SELECT seq FROM delta.`streams/PRICES_json_misfits` ORDER BY seq")
        return [*found, *(list(row) for row in misfits)]
