"""Steps of a store, each of whose file operations fails once.

Belongs here: the steps, and what must be true after a failure. Store, log and group are the real ones; the disk is a
simulated one, which knows what a failed sync and a power loss leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from random import Random
from typing import NamedTuple

from lakestream.log.format.errors import LogError
from lakestream.log.format.files import Files
from lakestream.log.sealing.files import SealedFiles
from lakestream.log.sealing.keys import Keyring
from lakestream.log.store.segment_log import LogOptions
from lakestream.raft.group.group import Committed
from tests.faults.files import FAULTS, Fault, FaultyFiles, Operation
from tests.sim.disk import Disk, PowerCut, SimFiles
from tests.unit import logkit
from tests.unit.logkit import Message, MiniStream, Model, message

DIRECTORY = "/store/S"
KEYS = Keyring(["secret"])
OPTIONS = LogOptions(seal_bytes=600, seal_age_ns=1 << 60, retain_bytes=0)


class Life(MiniStream):
    """Stream that counts its commits, and the history that was requested of it."""

    def __init__(self, files: Files, history: list[Model]) -> None:
        self.history = history
        """Models of the stream: as it was opened, and after each request."""
        self.committed = 0
        """Number of requests since then that are committed."""
        super().__init__(DIRECTORY, OPTIONS, files, alone=True)

    def _committed(self, entries: list[Committed]) -> None:
        super()._committed(entries)
        self.committed += len(entries)

    def _requested(self) -> Model:
        self.history.append(deepcopy(self.history[-1]))
        return self.history[-1]

    def publish(self, *messages: Message) -> None:
        self._requested().publish(*messages)
        super().publish(*messages)

    def operate(self, name: str, seq: int) -> None:
        self._requested().operate(name, seq)
        super().operate(name, seq)

    def fill(self, first: int, count: int) -> None:
        """Publish messages one by one."""
        for number in range(first, first + count):
            self.publish(message(number))


Prepare = Callable[[Life], None]
Step = Callable[[Life], None]


def _some(life: Life) -> None:
    life.fill(1, 3)
    life.store.log.mark()


def _long(life: Life) -> None:
    """Leave sealed segments, a checkpoint, removals, an open segment."""
    life.fill(1, 25)
    life.operate("remove", 3)
    life.operate("remove_through", 5)
    life.store.checkpoint(b"extra")
    life.fill(26, 8)
    life.store.log.mark()


def _outlined(life: Life) -> None:
    _long(life)
    life.store.checkpoint(b"extra")
    life.store.drop_through(1 << 60)


def _write(life: Life) -> None:
    life.publish(message(100))
    life.publish(message(101), message(102))


def _roll(life: Life) -> None:
    life.fill(100, 12)


def _remove(life: Life) -> None:
    life.operate("remove", life.store.first_seq + 1)
    life.operate("remove_through", life.store.first_seq + 3)
    life.operate("set_first", life.store.first_seq + 2)


def _drop(life: Life) -> None:
    life.store.checkpoint(b"later")
    life.store.drop_through(1 << 60)


def _compressed(life: Life) -> None:
    life.store.log.packing = True  # type: ignore[union-attr]
    life.fill(1, 3)
    life.store.log.mark()


def _shred(life: Life) -> None:
    """Delete two messages of sealed segments securely."""
    life.store.shredding = True
    life.operate("remove", 9)
    life.operate("remove", 15)
    life.store.shredding = False
    life.store.shred()


def _read(life: Life) -> None:
    held = life.history[-1].live
    for seq in held:
        assert life.store.read(seq) == held[seq]
        assert life.store.time_of(seq) == held[seq].time_ns
    assert life.all() == list(held.values())


def _mark(life: Life) -> None:
    life.publish(message(100))
    life.store.log.mark()
    life.publish(message(101))
    life.store.log.mark()


def _stop(life: Life) -> None:
    life.publish(message(100))
    life.store.close(b"last")


def _open(life: Life) -> None:
    life.publish(message(100))


STEPS: dict[str, tuple[Prepare, Step]] = {
    "write": (_some, _write),
    "roll": (_some, _roll),
    "roll with compression": (_compressed, lambda life: life.fill(100, 25)),
    "secure delete": (_long, _shred),
    "remove": (_long, _remove),
    "checkpoint": (_long, lambda life: life.store.checkpoint(b"later")),
    "drop": (_long, _drop),
    "drop again": (_outlined, _drop),
    "read": (_long, _read),
    "synced mark": (_some, _mark),
    "stop": (_long, _stop),
    "open": (_long, _open),
    "open with outlines": (_outlined, _open),
}
"""Each step, with the preparation before it. Before those named "open …" the process is killed, and they open the store
again."""


class Case(NamedTuple):
    """One operation of a step that fails, and how its process ends: killed, or with a power loss. `sealed`: the files
    are."""

    step: str
    at: int
    operation: Operation
    fault: Fault
    power: bool
    sealed: bool = False

    def __str__(self) -> str:
        end = "power loss" if self.power else "kill"
        return (
            f"{self.step}, operation {self.at}: {self.operation.name} {self.operation.path}: {self.fault.value}; {end}"
        )


class Bench:
    """Simulated disk with one stream, prepared for a step, in plain or sealed files."""

    def __init__(self, step: str, sealed: bool = False) -> None:
        self.disk, self._sealed = Disk(Random(step)), sealed
        prepare, self._step = STEPS[step]
        self.life: Life | None = self._start()
        prepare(self.life)
        self.history = self.life.history
        self._before = len(self.history) - 1
        if step.startswith("open"):
            self.life, self.history, self._before = None, self.history[-1:], 0

    def _open(self) -> Files:
        """Return the files of a new process."""
        self.files = FaultyFiles(SimFiles(self.disk, Random(1)))
        return SealedFiles(self.files, DIRECTORY, KEYS) if self._sealed else self.files

    def _start(self) -> Life:
        return Life(self._open(), [Model()])

    def run(self, at: int, fault: Fault | None) -> tuple[list[Operation], BaseException | None]:
        """Do the step, and let its operation `at` fail; return its operations and what it raised."""
        error: BaseException | None = None
        files = self._open() if self.life is None else None
        self.files.fail_at(at, fault)
        try:
            if files is not None:
                self.life = Life(files, self.history)
            assert self.life is not None
            self._step(self.life)
        except (PowerCut, LogError, OSError) as raised:
            error = raised
        operations = list(self.files.operations)
        self.files.fail_at(-1, None)
        return operations, error

    @property
    def possible(self) -> list[Model]:
        """The states that the stream may have: everything committed, and perhaps what was requested behind it."""
        committed = self.life.committed if self.life is not None else self._before
        return self.history[committed:]

    def restart(self, power: bool) -> Life:
        """End the process, and start the next one on a disk without faults."""
        if power:
            self.disk.cut_power()
        return self._start()


def cases(step: str, sealed: bool = False) -> Iterator[Case]:
    """Yield every failure of every operation of a step."""
    operations, error = Bench(step, sealed).run(-1, None)
    assert error is None, error
    for at, operation in enumerate(operations):
        for fault in FAULTS[operation.name]:
            for power in (False, True):
                yield Case(step, at, operation, fault, power, sealed)


def check(case: Case) -> str:
    """Let a case happen; return the broken promise, "" if none is."""
    bench = Bench(case.step, case.sealed)
    try:
        operations, error = bench.run(case.at, case.fault)
        life = bench.life
        assert operations[case.at] == case.operation, f"another operation: {operations[case.at]}"
        for each in [error, *(life.failures if life is not None else [])]:
            if not bench.files.crashed and (problem := _unnamed(each)):
                return problem
        running = life is not None and not bench.files.crashed and not life.store.closed
        problem = _working(life, case) if running and life is not None else ""
        return problem or _restarted(bench, case)
    except Exception as raised:
        return f"{type(raised).__name__}: {raised}"
    finally:
        logkit.forget_all()


def _unnamed(error: BaseException | None) -> str:
    """Return a problem if an error is not one that names a file."""
    if error is None:
        return ""
    if not isinstance(error, LogError | OSError):
        return f"the error is {error!r}"
    return "" if DIRECTORY in str(error) else f"the error names no file: {error!r}"


def _working(life: Life, case: Case) -> str:
    """Look at the stream in the process in which the operation failed."""
    try:
        if problem := _differs(life, life.history[life.committed]):
            return problem
    except (LogError, OSError) as error:
        if case.fault is not Fault.VANISHED:
            return f"acked messages cannot be read: {error}"
    refused = bool(life.failures)
    before = life.committed
    try:
        life.publish(message(200))
    except LogError as error:
        return "" if refused else f"a stream without a failure refuses messages: {error}"
    if refused:
        return "a message was accepted after a failed write"
    return "" if life.committed == before + 1 else f"a message was neither accepted nor refused: {life.failures}"


def _differs(life: Life, model: Model) -> str:
    """Return how the stream differs from a model. Messages that have left the log are in the lake."""
    try:
        model.check(life.store, local=False)
    except AssertionError as error:
        return f"its state differs: {error}"
    here = [record for record in model.live.values() if record.seq >= life.store.local_floor]
    if [life.store.read(record.seq) for record in here] != here:
        return "messages have other content"
    return ""


def _restarted(bench: Bench, case: Case) -> str:
    """Look at the stream in the next process."""
    try:
        again = bench.restart(case.power)
    except (LogError, OSError) as error:
        if case.fault is Fault.VANISHED:
            return _unnamed(error)
        return f"the next process cannot open the stream: {error!r}"
    problems = [_differs(again, model) for model in bench.possible]
    if all(problems):
        return "after a restart: " + problems[0]
    again.publish(message(300))
    return "" if again.committed == 1 else f"the next process takes no messages: {again.failures}"
