"""Random scenarios of direct gets by seed: any fields, over streams of any state, the same for both servers.

Times are those of stored messages, or a nanosecond beside them, so each server is asked about its own.
"""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from typing import Any

from tests.conformance.harness import Script, table

SUBJECTS = ("a.1", "a.2", "a.3", "a.x.1", "b.1", "b.2")
WANTED = ("a.1", "a.2", "a.*", "a.>", "b.1", "b.*", "c", "a..b", "", "*", "*.1", "a.x.1", ">")
LIMITS = (1, 10, 20, 30, 50, 100, 0, -1)
ROUNDS, REQUESTS = 4, 40

Body = dict[str, Any]


class Chance:
    """Draws a stream's state and requests about it. `times` are the store times of the messages."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.count = 0
        self.times: dict[int, str] = {}

    def stage(self, t: Script, name: str) -> None:
        """Create a stream with messages, some of them removed."""
        rng = self.rng
        self.count = rng.choice((0, 1, 3, 8, 12, 20))
        config: Body = {"storage": rng.choice(("file", "memory"))}
        if rng.random() < 0.3:
            config["max_msgs_per_subject"] = rng.choice((1, 2))
        t.stream(name, ["a.>", "b.>"], allow_direct=True, **config)
        for number in range(1, self.count + 1):
            headers = rng.choice((None, {"A": "b"}, {"Nats-Msg-Id": f"i{number}"}))
            t.fill([rng.choice(SUBJECTS)], b"m%d" % number + b"x" * (number % 5), headers)
        for number in range(1, self.count + 1):
            if rng.random() < 0.2:
                t.wire.api(f"STREAM.MSG.DELETE.{name}", {"seq": number})
        if rng.random() < 0.15:
            t.setup(f"STREAM.PURGE.{name}", rng.choice((None, {"filter": "a.*"}, {"seq": 4}, {"keep": 1})))
        found = {seq: t.wire.api(f"STREAM.MSG.GET.{name}", {"seq": seq}) for seq in range(1, self.count + 1)}
        self.times = {seq: answer["message"]["time"] for seq, answer in found.items() if "message" in answer}

    def request(self) -> Body:
        """Draw a request: of a usual kind three times out of four, otherwise with any fields."""
        kind = self.rng.choice((self._one, self._batch, self._multi, self._any))
        body = kind()
        if self.rng.random() < 0.15:
            body["no_hdr"] = self.rng.random() < 0.5
        return body

    def _seq(self) -> int:
        count = self.count
        near = (0, 1, 2, count // 2, count, count + 1, max(count - 1, 0), self.rng.randint(0, count + 2))
        return self.rng.choice((*near, 2**64 - 1, 2**64, -1, 2**63))

    def _time(self) -> str | None:
        far = ("2001-01-01T00:00:00Z", "2099-01-01T00:00:00Z", "0001-01-01T00:00:00Z", None)
        drawn = self.rng.randint(1, max(self.count, 1))
        beside = self.rng.choice((-1, 0, 0, 1))
        near = _moved(self.times[drawn], beside) if drawn in self.times else far[0]
        return self.rng.choice((near, near, near, *far))

    def _subject(self) -> str:
        return self.rng.choice(WANTED)

    def _one(self) -> Body:
        kind = self.rng.randrange(5)
        if kind == 0:
            return {"seq": self._seq()}
        if kind == 1:
            return {"last_by_subj": self.rng.choice(WANTED[:-1])}  # for `>` see differences.py
        if kind == 2:
            return {"next_by_subj": self._subject(), "seq": self._seq()}
        if kind == 3:
            return {"next_by_subj": self._subject(), "start_time": self._time()}
        return {"start_time": self._time()}

    def _batch(self) -> Body:
        rng = self.rng
        body: Body = {"batch": rng.choice((1, 2, 3, 5, 50, 0, -1))}
        body |= {"seq": self._seq()} if rng.random() < 0.6 else {"start_time": self._time()}
        if rng.random() < 0.5:
            body["next_by_subj"] = self._subject()
        if rng.random() < 0.4:
            body["max_bytes"] = rng.choice(LIMITS)
        if rng.random() < 0.2:
            body["up_to_seq"] = self._seq()
        return body

    def _multi(self) -> Body:
        rng = self.rng
        body: Body = {"multi_last": [self._subject() for _ in range(rng.choice((1, 1, 2, 3)))]}
        if rng.random() < 0.6:
            body |= {"up_to_seq": self._seq()} if rng.random() < 0.5 else {"up_to_time": self._time()}
        if rng.random() < 0.4:
            body["batch"] = rng.choice((1, 2, 3, 0, -1, 2000))
        if rng.random() < 0.4:
            body["max_bytes"] = rng.choice(LIMITS)
        if rng.random() < 0.3:
            body["seq"] = self._seq()
        return body

    def _any(self) -> Body:
        drawn = self._one() | self._batch() | self._multi()
        drawn["last_by_subj"] = self.rng.choice(WANTED[:-1])
        return {name: value for name, value in sorted(drawn.items()) if self.rng.random() < 0.3}


def _moved(text: str, ns: int) -> str:
    """Return an API time moved by `ns`."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    seconds = int(datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp())
    seconds, ns = divmod(seconds * 10**9 + int(fraction.ljust(9, "0")) + ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ns:09d}Z"


def _answers(t: Script, stream: str, body: Body) -> list[Any]:
    """Return all answers.

    A message without a pending count is a single answer, except in a batch without headers.
    """
    wire, reply = t.wire, t.wire.new_reply()
    wire.publish(f"$JS.API.DIRECT.GET.{stream}", json.dumps(body).encode(), reply)
    more = body.get("no_hdr") and body.get("batch")
    frames = [wire.message(reply)]
    while not frames[-1].status and (b"Nats-Num-Pending" in frames[-1].header or (more and not frames[-1].header)):
        frames.append(wire.message(reply))
    return [(frame.header, frame.data) for frame in frames]


@table([(f"seed{seed}", seed) for seed in range(12)])
def requests(t: Script, seed: int) -> None:
    chance = Chance(seed)
    for number in range(ROUNDS):
        name = f"S{number}"
        chance.stage(t, name)
        for asked in range(REQUESTS):
            body = chance.request()
            shown = {key: "<time>" if key.endswith("_time") and value else value for key, value in body.items()}
            t.note(f"{number}.{asked} {json.dumps(shown)}", _answers(t, name, body))
        t.setup(f"STREAM.DELETE.{name}")
