"""Random tests of a stream compared with a model after each step.

Publishes with all kinds of headers, counters, atomic batches, deletes, purges, updates and passing time, with restarts,
kills during writes, checkpoints, and messages that are released from the log to the lake. LAKESTREAM_MODEL_STEPS sets
the number of steps (10,000), LAKESTREAM_MODEL_SEED repeats the choices of a run that failed; the failure's message
contains both.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lakestream.log.format.files import Files
from lakestream.log.format.record import Record
from lakestream.log.store.segment_log import LogOptions
from lakestream.stream.core import limits
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.operations import DeleteMessage, UpdateStream
from lakestream.stream.core.operations import Purge as PurgeOperation
from tests.chance import SECOND, SUBJECTS, Chance, Delete, Publish, Purge, Step, Update
from tests.stream_model import Answer, StreamModel
from tests.unit.api_world import Lake
from tests.unit.stream_world import ManualClock, World

pytestmark = pytest.mark.unit

LIVES = 20
STEPS = int(os.environ.get("LAKESTREAM_MODEL_STEPS", "10000")) // LIVES
SEED = int(os.environ.get("LAKESTREAM_MODEL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
TICK = 1_000_000
"""Time between two steps in ns, so that no two messages have the same time."""
LATE = 200_000_000
"""Tolerated delay of expiry in ns."""
SMALL = LogOptions(seal_bytes=4096, retain_bytes=0, retain_segments=0)


class Unsynced(Files):
    """Files without fsync, since only the process is killed, not the machine."""

    def sync(self, fd: int) -> None:
        pass


class Clock(ManualClock):
    """Clock under which coroutines run to their end at once: their awaits never block here."""

    def spawn(self, awaitable: Any) -> None:
        run(awaitable)


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that only yields to others."""
    while True:
        try:
            coroutine.send(None)
        except StopIteration as ended:
            return ended.value


class Life:
    """One stream with its model, from its creation to the end of the test."""

    def __init__(self, directory: Path, seed: str) -> None:
        self.rng = random.Random(seed)
        ttl, age, counter = (self.rng.random() < share for share in (0.5, 0.5, 0.2))
        self.chance = Chance(self.rng, ttl=ttl, age=age, counter=counter)
        self.directory = str(directory / "S")
        self.clock = Clock()
        self.lake = Lake()
        self.model = StreamModel(self.chance.config)
        self.world = self._open(subjects=["a.>"], allow_atomic=True, **self.chance.config)
        self.batches = 0
        self.last: list[str] = []
        """Last operations, for the failure's message."""

    def _open(self, **config: Any) -> World:
        self.clock.timers, self.clock.soon = [], []
        world = World(self.directory, Unsynced(), self.clock, SMALL, **config)
        world.stream.reader.history = self.lake
        return world

    # ------------------------------------------------------------------ steps
    def step(self) -> None:
        """Do one random operation."""
        self.clock.time += TICK
        drawn = self.rng.random()
        if drawn < 0.03 and self._takes_batches():
            self._note("atomic batch")
            ask, self.model = self._begin_batch()
            self.world.settle()
            assert ask() == ("stored", self.model.last_seq)
        elif drawn < 0.9:
            self._do(self.chance.step())
        elif drawn < 0.93:
            self._advance(self.rng.choice((1, 5, 60, 120, 900)))
        else:
            self.rng.choice((self._restart, self._kill, self._kill, self._checkpoint, self._compact))()
        self._compare(self.model)

    def _note(self, what: object) -> None:
        self.last = [*self.last[-8:], str(what)]

    def _do(self, step: Step) -> None:
        self._note(step)
        expected = self.model.play(step, self.clock.time)
        ask = self._begin(step)
        self.world.settle()
        got = ask()
        assert got == expected, f"answered {got}, expected {expected}"

    def _begin(self, step: Step) -> Callable[[], Answer | None]:
        """Start an operation; return a function that returns its answer, or None while there is none."""
        world, results = self.world, list[Answer]()
        match step:
            case Publish():
                reply = world.publish(
                    step.subject, step.data, **{name.replace("-", "_"): value for name, value in step.headers.items()}
                )
                return lambda: _publish_answer(world.answer(reply))
            case Delete() if self.model.config["deny_delete"] or step.seq not in world.stream.store.live:
                return lambda: ("refused", 10057)  # a rule of the API, which is not part of this world
            case Delete():
                world.stream.propose(DeleteMessage(step.seq), lambda done: results.append(("deleted", int(bool(done)))))
            case Purge():
                operation = PurgeOperation(step.filter.encode(), step.seq, step.keep)
                world.stream.propose(operation, lambda count: results.append(("purged", int(str(count)))))
            case Update():
                fields = msgspec.to_builtins(world.stream.config) | step.fields
                config = msgspec.json.encode(msgspec.convert(fields, StreamConfig))
                world.stream.propose(UpdateStream(config), lambda _: results.append(("updated", 0)))
        return lambda: results[0] if results else None

    def _takes_batches(self) -> bool:
        """Return True if the stream accepts every atomic batch of short messages."""
        config = self.model.config
        return config["discard"] == "old" and config["max_msg_size"] < 0 and "allow_msg_counter" not in config

    def _begin_batch(self) -> tuple[Callable[[], Answer | None], StreamModel]:
        """Publish an atomic batch; return a function that returns its answer, and the model after it."""
        after, size = self.model.copy(), self.rng.randint(1, 6)
        self.batches += 1
        for number in range(1, size + 1):
            headers = {"Nats-Batch-Id": f"b{self.batches}", "Nats-Batch-Sequence": str(number)}
            if number == size:
                headers["Nats-Batch-Commit"] = "1"
            step = Publish(self.rng.choice(SUBJECTS), headers, b"in a batch")
            ask = self._begin(step)
            after.play(step, self.clock.time)
        return ask, after

    def _advance(self, seconds: int) -> None:
        self._note(f"{seconds} s pass")
        for ns in (seconds * SECOND, LATE, LATE):
            self.clock.advance(ns)
            self.world.settle()
        self.model.expire(self.clock.time, set(self._seqs()), LATE)

    def _restart(self) -> None:
        self._note("restart")
        stream = self.world.stream
        stream.stop()
        stream.store.close(stream.dump())
        self.world = self._open()
        self._settle()

    def _settle(self) -> None:
        """Complete the recovery, and remove what has expired meanwhile."""
        self.world.settle()
        self.clock.advance(LATE)
        self.world.settle()
        self.model.expire(self.clock.time, set(self._seqs()), LATE)

    def _kill(self) -> None:
        """Kill the process with publishes and operations in flight."""
        self._note("kill")
        world, after = self.world, [self.model.copy()]
        asked: list[Callable[[], Answer | None]] = []
        for _ in range(self.rng.choice((0, 1, 3, 8))):
            self.clock.time += TICK
            step = self.chance.publish() if self.rng.random() < 0.8 else self.chance.step()
            if isinstance(step, Update | Delete) or (isinstance(step, Purge) and asked):
                continue  # API operations use the committed state, and do not wait for waiting publishes
            self._note(f"on its way: {step}")
            if self.rng.random() < 0.2 and self._takes_batches():
                self._note("on its way: atomic batch")
                ask, self.model = self._begin_batch()
                asked.append(ask)
                after.append(self.model.copy())
                self.clock.time += TICK
            asked.append(self._begin(step))
            self.model.play(step, self.clock.time)
            after.append(self.model.copy())
            if self.rng.random() < 0.3:
                self._turn()
        self._turn()
        if self.rng.random() < 0.5 and world.io.waiting:
            world.io.waiting.pop(0)[0]()  # done, but not reported
        answers = [(number, ask()) for number, ask in enumerate(asked, 1)]
        # A refusal changes nothing and may be sent before earlier messages are stored; so may the answer to a
        # duplicate.
        answered = max((number for number, got in answers if got and got[0] in ("stored", "purged")), default=0)
        known = max((got[1] for _, got in answers if got and got[0] == "duplicate"), default=0)
        world.stream.store.abandon()
        self.world = self._open()
        there = self._content()
        same = [model for model in after[answered:] if model.content() == there and model.last_seq >= known]
        may = "\n".join(f"  {model.last_seq}: {model.content()}" for model in after)
        assert same, f"found {there} after answers {answers}, which may be\n{may}"
        # Steps without effect: the duplicate window of either model is right, the later one's sequences are not.
        self.model = next((model for model in same if model.last_seq == self.world.stream.store.last_seq), same[0])
        self.model.stored_at({record.seq: record.time_ns for record in self._records()}, self.clock.time)
        self._settle()

    def _turn(self) -> None:
        self.world.clock.turn()
        for _ in range(self.rng.randint(0, 2)):
            if self.world.io.waiting:
                self.world.io.work()
                self.world.clock.turn()

    def _checkpoint(self) -> None:
        self._note("checkpoint")
        self.world.stream.checkpoint()
        self.world.settle()

    def _compact(self) -> None:
        """Release sealed segments to the lake, which keeps some removed messages for a while."""
        self._note("compaction")
        store = self.world.stream.store
        known = {record.seq for record in self.lake.records}
        here = store.read_run(store.local_floor, 1 << 30, 1 << 40)
        self.lake.records += [record for record in here if record.seq not in known]
        if self.rng.random() < 0.5:
            self.lake.records = [record for record in self.lake.records if record.seq in store.live]
        store.ask_seal()
        self.world.settle()
        self.world.stream.checkpoint()
        self.world.settle()
        store.drop_through(store.sealed_through[0])
        self.world.settle()

    # ------------------------------------------------------------------ comparison
    def _records(self) -> list[Record]:
        """Return every message, from the log or the lake."""
        reader, found, first = self.world.stream.reader, list[Record](), 1
        while records := run(reader.fetch_run(first, 7, 1 << 30)):
            found += records
            first = records[-1].seq + 1
        return found

    def _content(self) -> list[tuple[int, str, bytes, bytes]]:
        return [(each.seq, each.subject.decode(), each.header, each.data) for each in self._records()]

    def _seqs(self) -> list[int]:
        store = self.world.stream.store
        return list(store.live.members(store.first_seq, store.msgs)) if store.msgs else []

    def _compare(self, model: StreamModel) -> None:
        store = self.world.stream.store
        names = {subject.decode(): store.subjects.count(subject) for subject, _ in store.subjects.items()}
        state = {
            "messages": store.msgs,
            "bytes": store.bytes,
            "first_seq": store.first_seq,
            "last_seq": store.last_seq,
            "deleted": list(store.live.iter_missing(store.first_seq, store.last_seq)) if store.first_seq else [],
            "subjects": names,
        }
        assert state == model.state()
        assert self._content() == model.content()
        times = [(seq, message.time) for seq, message in sorted(model.msgs.items())]
        assert [(record.seq, record.time_ns) for record in self._records()] == times


def _publish_answer(answer: dict[str, Any] | None) -> Answer | None:
    if answer is None:
        return None
    if "error" in answer:
        return "refused", answer["error"]["err_code"]
    return "duplicate" if answer.get("duplicate") else "stored", answer["seq"]


@pytest.mark.parametrize("number", range(LIVES))
def test_a_stream_is_what_the_model_says(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if number % 2:  # operations take many steps
        for limit, small in (("MANY", 3), ("PART_MSGS", 2), ("PART_SUBJECTS", 2), ("ONE_BY_ONE", 2)):
            monkeypatch.setattr(limits, limit, small)
    life = Life(tmp_path, f"{SEED}-{number}")
    for done in range(STEPS):
        try:
            life.step()
        except Exception as error:
            last = "\n  ".join(life.last)
            pytest.fail(
                f"LAKESTREAM_MODEL_SEED={SEED} LAKESTREAM_MODEL_STEPS={STEPS * LIVES}, step {done} of life {number}:\n"
                f"{type(error).__name__}: {error}\n  {life.model.config}\n  {last}",
                pytrace=False,
            )
    life.world.stream.store.abandon()
