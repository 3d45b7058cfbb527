"""Random scenarios of subscriptions, messages and requests of three accounts: who receives each message.

The choices depend on the seed alone, so that both servers get the same. All deliveries are compared after each message;
for a queue group, whose member the server picks at random, only their number.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from tests.conformance.accounts import ACCOUNTS
from tests.conformance.harness import Script, table
from tests.wire import Wire

USERS = ("js", "imp", "mir", "a")
IMPORTERS = ("imp", "mir")
LISTENED = (
    *("ev.1", "ev.*", "ev.>", "dlv.1", "dlv.*", "dlv.>", ">", "*.1", "via.>", "via.ev.*", "via.*.1", "*.ev.1"),
    *("s", "a.1", "a.>", "via.dlv.1.2", "*.*.*"),
)
SENT = ("ev.1", "ev.2", "ev.1.2", "dlv.1", "dlv.1.2", "via.ev.1", "s", "a.1", "a.2", "b.1")
STEPS = 60


class _Listener:
    """Connection with its subscriptions."""

    def __init__(self, t: Script, user: str) -> None:
        self.user = user
        self.wire: Wire = t.connect(user=user)
        self.sids: dict[str, str] = {}
        self._number = 0

    def subscribe(self, subject: str, queue: str) -> None:
        self._number += 1
        self.sids[self.wire.subscribe(subject, queue)] = f"{subject} {queue}".strip()

    def unsubscribe(self, sid: str, most: int) -> None:
        self.wire.unsubscribe(sid, most)
        if not most:
            del self.sids[sid]


@table([(str(seed), seed) for seed in range(12)], ACCOUNTS)
def who_hears_what(t: Script, seed: int) -> None:
    rng = random.Random(f"imports {seed}")
    listeners = [_Listener(t, user) for user in USERS for _ in range(2)]
    senders = {user: t.connect(user=user) for user in USERS}
    for step in range(STEPS):
        drawn = rng.random()
        one = rng.choice(listeners)
        if drawn < 0.35:
            group = rng.choice(("", "", "", "g", "h"))
            # The server picks a member of a group across accounts; here each account has groups of its own.
            one.subscribe(rng.choice(LISTENED), group and f"{group}-{one.user}")
            one.wire.ping()
        elif drawn < 0.45 and one.sids:
            sid, most = rng.choice(sorted(one.sids)), rng.choice((0, 0, 1, 2))
            # The member that reaches its maximum is random; and nats-server counts imported messages separately.
            one.unsubscribe(sid, 0 if " " in one.sids[sid] or one.user in IMPORTERS else most)
            one.wire.ping()
        else:
            user, subject = rng.choice(USERS), rng.choice(SENT)
            headers = rng.choice((None, None, {"Kind": "x"}))
            reply = rng.choice(("", "", "to.me"))
            senders[user].publish(subject, b"%d" % step, reply, headers)
            senders[user].ping()
            t.note(f"{step}: {user} {subject} {reply}", _heard(t, listeners))


def _heard(t: Script, listeners: list[_Listener]) -> Any:
    """Return the messages of each subscription; for a queue group, those in each account."""
    heard: Counter[str] = Counter()
    for n, one in enumerate(listeners):
        for frame in one.wire.ping():
            which = one.sids.get(frame.sid, "ended")
            who = f"{one.user}{n % 2}"
            if " " in which:  # all members of an account's group together, whatever their subjects
                who, which = one.user, which.partition(" ")[2]
            shown = t.show(frame)
            header = shown.get("header") if isinstance(shown, dict) else None
            reply = shown.get("reply", "") if isinstance(shown, dict) else shown
            heard[f"{who} {which}: {frame.subject} {frame.data!r} {reply} {header}"] += 1
    return dict(sorted(heard.items()))
