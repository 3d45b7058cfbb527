"""Faults of the campaign: kinds of files, and each way in which calls on them fail."""

from __future__ import annotations

import errno
from random import Random

from tests.faults.plan import Action, Call, Rule

STREAM = "*/streams/{stream}"
LOG = f"{STREAM}/log/*.seg"
FILES = {
    "segments": (LOG,),
    "directory of the log": (f"{STREAM}/log",),
    "checkpoint": (f"{STREAM}/checkpoint*",),
    "synced mark": (f"{STREAM}/synced*",),
    "staged files": ("lake/segments/{stream}/*",),
}
"""Patterns of each kind of file of a stream."""

EIO, FULL = errno.EIO, errno.ENOSPC
WAYS: dict[str, tuple[tuple[Call, Action, int], ...]] = {
    "EIO on write": ((Call.WRITE, Action.FAIL, EIO), (Call.WRITE, Action.PART, EIO), (Call.TRUNCATE, Action.FAIL, EIO)),
    "ENOSPC": ((Call.WRITE, Action.FAIL, FULL), (Call.WRITE, Action.PART, FULL), (Call.CREATE, Action.FAIL, FULL)),
    "short write": ((Call.WRITE, Action.SHORT, 0),),
    "EIO on fsync": ((Call.SYNC, Action.FAIL, EIO),),
    "EIO on read": ((Call.READ, Action.FAIL, EIO), (Call.OPEN, Action.FAIL, EIO), (Call.LIST, Action.FAIL, EIO)),
    "bit flip or short read": ((Call.READ, Action.FLIP, 0), (Call.READ, Action.SHORT, 0)),
    "vanished file": ((Call.OPEN, Action.FAIL, errno.ENOENT),),
    "names": (
        (Call.CREATE, Action.FAIL, EIO),
        (Call.RENAME, Action.FAIL, EIO),
        (Call.LINK, Action.FAIL, EIO),
        (Call.UNLINK, Action.FAIL, EIO),
        (Call.MKDIR, Action.FAIL, EIO),
    ),
    "slow sync": ((Call.SYNC, Action.DELAY, 0),),
    "torn write, then a kill": ((Call.WRITE, Action.KILL, 0), (Call.SYNC, Action.KILL, 0)),
}
"""Ways in which calls fail."""
DELAY_US = 30_000


def lives() -> list[Rule]:
    """Return rules for the files and names of a stream that is created and deleted while they hold."""
    calls = (Call.MKDIR, Call.CREATE, Call.WRITE, Call.SYNC, Call.RENAME, Call.UNLINK, Call.LIST, Call.OPEN)
    found = []
    for call in calls:
        for error, times in ((EIO, 1), (FULL, 1 << 62)):
            found.append(Rule(call, "*/streams/{stream}X*", Action.FAIL, error, times=times))
    return [*found, *(Rule(Call.SYNC, "*/streams", skip=skip, times=1) for skip in range(4))]


def rules(way: str, random: Random) -> list[Rule]:
    """Return the rules of one way: for each kind of file, once and from then on, after some calls."""
    found = []
    for patterns in FILES.values():
        for pattern in patterns:
            for calls, action, error in WAYS[way]:
                for times in (1,) if action is Action.KILL else (1, 1 << 62):
                    found.append(Rule(calls, pattern, action, error, random.randrange(4), times, DELAY_US))
    return found


def at_the_stop(way: str, random: Random) -> list[Rule]:
    """Return rules for files that are written when a server stops."""
    wanted = (*FILES["checkpoint"], *FILES["synced mark"])
    found = [rule for rule in rules(way, random) if rule.pattern in wanted and rule.action is not Action.KILL]
    return random.sample(found, min(2, len(found)))


def drawn(random: Random) -> Rule:
    """Return a rule of chance, mostly about segments, which have most of the calls."""
    found = rules(random.choice(list(WAYS)), random)
    found += 4 * [rule for rule in found if rule.pattern == LOG]
    return random.choice(found)._replace(skip=random.randrange(12))
