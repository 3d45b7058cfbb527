"""A store that was stopped, whose messages are in the lake's tables alone, or in the log.

The log keeps outlines of the first, with an index of their rows and packed names; the streams are at rest: the next
start need not open them.
"""

from __future__ import annotations

import json
from pathlib import Path

from lakestream.log.format.files import Files
from lakestream.log.format.outline import OutlineInfo, read_outline_info
from tests.servers import Server
from tests.stored import lake
from tests.stored.facts import asked
from tests.wire import Wire

CONFIG = 'lake { seal_bytes: 16k, seal_age: "200ms", retain_bytes: 0, poll: "100ms", staged_grace: 0 }\n'
OLD, NAMES = 600, 150
"""Messages of the stream in the lake, and their subjects, of which each 64th has a place in the index."""
LEFT = 300
"""At least so many have left the log: the newest segment stays."""
GONE = (7, 200)


def subject(seq: int) -> str:
    """Return the subject of a message."""
    return f"old.{'name ' * 5}{seq % NAMES}".replace(" ", "-")


def fill(server: Server, directory: Path) -> None:
    """Store messages until the log has outlines alone of one stream, and delete some."""
    with Wire(server.address, timeout=60) as wire, lake.compacting(directory):
        asked(wire, "STREAM.CREATE.OLD", {"name": "OLD", "subjects": ["old.*"], "allow_direct": True})
        asked(wire, "STREAM.CREATE.LOG", {"name": "LOG", "subjects": ["log.*"], "allow_direct": True})
        asked(wire, "CONSUMER.CREATE.LOG.c", {"stream_name": "LOG", "config": {"durable_name": "c"}})
        for seq in range(1, OLD + 1):
            answer = wire.request(subject(seq), b"%d " % seq * 20, {"Number": str(seq)} if seq % 3 else None)
            assert json.loads(answer.data)["seq"] == seq
        lake.until(lambda: outlined(directory.parent) >= LEFT, "messages in the table alone")
        for seq in GONE:
            asked(wire, "STREAM.MSG.DELETE.OLD", {"seq": seq, "no_erase": True})
        wire.request("log.1", b"the only one")


def outlines(store: Path) -> list[OutlineInfo]:
    """Return what the outlines of the stream in the lake say of themselves."""
    found = sorted((store / "jetstream" / "$G" / "streams" / "OLD" / "log").glob("*.outline"))
    return [read_outline_info(Files(), str(path)) for path in found]


def outlined(store: Path) -> int:
    """Return the number of messages in outlines."""
    return sum(each.rows for each in outlines(store))
