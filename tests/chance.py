"""Random operations on a stream, drawn from a seed.

Belongs here: the choice of the next operation of a randomized test. The choices depend on the seed and on earlier
choices, never on an answer, so that two servers, or a server and a model, receive the same operations. Numbers are
drawn from small ranges on purpose: the rules of a stream interact where there are few subjects, few message ids and
limits that a handful of messages reach.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

SUBJECTS = ("a.1", "a.2", "a.3", "a.x.1", "a.x.2")
FILTERS = ("a.1", "a.2", "a.*", "a.x.*", "a.>", ">", "b.1")
IDS = ("i1", "i2", "i3", "i4")
SECOND = 1_000_000_000


class Publish(NamedTuple):
    """Publish of one message."""

    subject: str
    headers: dict[str, str]
    data: bytes


class Delete(NamedTuple):
    """Request to STREAM.MSG.DELETE."""

    seq: int


class Purge(NamedTuple):
    """Request to STREAM.PURGE; at most one of `seq` and `keep` is not 0."""

    filter: str
    seq: int
    keep: int


class Update(NamedTuple):
    """Request to STREAM.UPDATE: the configuration fields to change."""

    fields: dict[str, Any]


Step = Publish | Delete | Purge | Update


class Chance:
    """Draws a stream configuration, then operations on that stream.

    Args:
        rng: random number generator.
        ttl: give messages TTLs (long ones; they expire only if the caller advances the clock).
        age: allow the stream to have a max_age.
        counter: make it a stream of counters.
        name: name of the stream.
    """

    def __init__(
        self, rng: random.Random, *, ttl: bool = False, age: bool = False, counter: bool = False, name: str = "S"
    ) -> None:
        self._rng, self._name = rng, name
        self._ttl, self._age, self._counter = ttl and not counter, age, counter
        self.config = self._limits() | {
            "allow_rollup_hdrs": rng.random() < 0.8,
            "deny_delete": rng.random() < 0.1,
            "allow_msg_ttl": self._ttl,
        }
        if counter:
            self.config["allow_msg_counter"] = True
        self._published = 0

    def _limits(self) -> dict[str, Any]:
        rng = self._rng
        fields: dict[str, Any] = {
            "max_msgs": rng.choice([-1, -1, 1, 2, 5, 12]),
            "max_bytes": rng.choice([-1, -1, -1, 120, 300, 801]),
            "max_msgs_per_subject": rng.choice([-1, -1, 1, 2, 3]),
            "max_msg_size": rng.choice([-1, -1, -1, 60, 100]),
            "discard": rng.choice(["old", "old", "new"]),
            "duplicate_window": 100 * SECOND,
        }
        if self._counter:
            fields |= {"max_msg_size": -1, "discard": "old"}
        fields["discard_new_per_subject"] = (
            fields["discard"] == "new" and fields["max_msgs_per_subject"] > 0 and rng.random() < 0.5
        )
        if self._age:
            fields["max_age"] = rng.choice([0, 0, 200 * SECOND, 1000 * SECOND])
        return fields

    def step(self) -> Step:
        """Draw the next operation."""
        drawn = self._rng.random()
        if drawn < 0.85:
            return self.publish()
        if drawn < 0.93:
            return Delete(self._rng.randint(max(1, self._published - 15), self._published + 2))
        if drawn < 0.97:
            return self._purge()
        fields = self._limits()
        self.config = self.config | fields
        return Update(fields)

    def _purge(self) -> Purge:
        rng = self._rng
        kind = rng.random()
        seq = rng.randint(1, self._published + 3) if kind < 0.4 else 0
        keep = rng.randint(1, 4) if kind > 0.7 else 0
        return Purge(rng.choice(("", *FILTERS)), seq, keep)

    def publish(self) -> Publish:
        """Draw a message, with headers three times out of five."""
        rng = self._rng
        self._published += 1
        subject = rng.choice(SUBJECTS)
        if self._counter:
            return self._increment(subject)
        headers: dict[str, str] = {}
        if rng.random() < 0.6:
            for _ in range(rng.choice((1, 1, 1, 2))):
                headers |= self._header()
        data = b"%d:" % self._published + b"x" * rng.choice((0, 0, 1, 7, 30, 90))
        return Publish(subject, headers, data)

    def first(self) -> Publish:
        """Return a message that every stream drawn here accepts."""
        return Publish("a.1", {"Nats-Incr": "5"}, b"") if self._counter else Publish("a.1", {}, b"first")

    def _increment(self, subject: str) -> Publish:
        """Draw a message for a counter, mostly a valid one."""
        rng = self._rng
        headers = {"Nats-Incr": rng.choice(("+1", "2", "-3", "0", "12345678901234567890123"))}
        wrong = rng.random()
        if wrong < 0.03:
            return Publish(subject, headers, b"not empty")
        if wrong < 0.06:
            return Publish(subject, rng.choice(({}, {"Nats-Incr": "x"}, headers | {"Nats-Rollup": "sub"})), b"")
        if rng.random() < 0.3:
            headers["Nats-Msg-Id"] = rng.choice((*IDS, f"n{self._published}"))
        return Publish(subject, headers, b"")

    def _header(self) -> dict[str, str]:
        rng = self._rng
        near = str(max(0, self._published - rng.choice((0, 1, 1, 1, 2, 3, 5))))
        draws: list[tuple[str, list[str]]] = [
            ("Nats-Msg-Id", list(IDS)),
            ("Nats-Msg-Id", [f"n{self._published}"]),
            ("Nats-Expected-Last-Sequence", [near, "0", "x"]),
            ("Nats-Expected-Last-Subject-Sequence", [near, near, "0"]),
            ("Nats-Expected-Last-Msg-Id", [*IDS, f"n{self._published - 1}"]),
            ("Nats-Expected-Stream", [self._name, self._name, self._name, "T"]),
            ("Nats-Rollup", ["sub", "sub", "all", "SUB", "none"]),
            ("Kind", ["of blue"]),
        ]
        if self._ttl:
            draws += [("Nats-TTL", ["100s", "200", "never", "never", "1h"])] * 2
        name, values = rng.choice(draws)
        made = {name: rng.choice(values)}
        if name == "Nats-Expected-Last-Subject-Sequence" and rng.random() < 0.3:
            made["Nats-Expected-Last-Subject-Sequence-Subject"] = rng.choice(FILTERS[:-2])
        return made
