"""The inputs in the repository: chosen so that few small ones reach every line that a campaign reached.

Belongs here: which of a campaign's inputs are kept. A kept input adds a line of lakestream to those that the earlier
ones reach.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from tests.fuzz.target import CORPORA, TESTS, Target, corpus
from tests.fuzz.targets import load

MAX_BYTES = 64 << 10
"""Maximum size of the kept inputs of one target in bytes."""
_SOURCE = str(TESTS.parent / "lakestream")
Line = tuple[str, int, int]


def lines(target: Target, data: bytes) -> set[Line]:
    """Return the pairs of consecutive lines of lakestream that an input reaches."""
    reached: set[Line] = set()

    def local(before: list[int], frame: FrameType, event: str, _: Any) -> Any:
        reached.add((frame.f_code.co_filename, before[0], frame.f_lineno))
        before[0] = frame.f_lineno
        return lambda frame, event, _: local(before, frame, event, _)

    def called(frame: FrameType, event: str, _: Any) -> Any:
        before = [0]
        inside = frame.f_code.co_filename.startswith(_SOURCE)
        return (lambda frame, event, _: local(before, frame, event, _)) if inside else None

    sys.settrace(called)
    try:
        target.run(data)
    except Exception:  # the campaign has reported it
        pass
    finally:
        sys.settrace(None)
    return reached


def keep(name: str, folder: Path) -> int:
    """Add the inputs of a folder that reach new lines to a target's corpus; return their number."""
    target = load(name)
    kept = corpus(name)
    reached: set[Line] = set()
    for data in (*target.seeds(), *kept.values()):
        reached |= lines(target, data)
    room = MAX_BYTES - sum(map(len, kept.values()))
    added = 0
    for data in sorted((path.read_bytes() for path in folder.glob("*")), key=lambda data: (len(data), data)):
        if len(data) > room or not (new := lines(target, data) - reached):
            continue
        reached |= new
        room -= len(data)
        added += 1
        (CORPORA / name).mkdir(parents=True, exist_ok=True)
        (CORPORA / name / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    return added
