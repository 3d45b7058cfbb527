"""Steps of a store with a journal, each of whose file operations fails once.

Belongs here: the steps of several streams that share syncs, and what must be true after a failure. Stores, logs and
journal are the real ones, on a simulated disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from random import Random

from lakestream.log.format.errors import LogError
from lakestream.log.format.files import InlineIo
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.store.segment_log import LogOptions, SegmentLog
from lakestream.log.store.segment_store import SegmentStore
from lakestream.meta.stores import FileStores
from tests.faults.files import FAULTS, Fault, FaultyFiles, Operation
from tests.faults.store_steps import Case
from tests.sim.disk import Disk, PowerCut, SimFiles

ROOT = "/store"
READS = (Fault.FLIP, Fault.SHORT, Fault.VANISHED)
"""A journal that is read wrongly is reported like a damaged one."""
Content = tuple[bytes, ...]


class Life:
    """A process with a store.

    Attributes:
        acked: content of each stream, as clients were told.
        asked: what else it may be after a failure; () for a stream that may be gone.
    """

    def __init__(self, files: FaultyFiles, acked: dict[str, Content], asked: dict[str, set[Content]]) -> None:
        self.files, self.acked, self.asked = files, acked, asked
        self.opened: dict[str, SegmentStore] = {}
        self.stores = FileStores(ROOT, LogOptions(), 1 << 20, InlineIo(), files, now=lambda: 1)

    def found(self) -> dict[str, Content]:
        """Open all streams; return their content."""
        content = {}
        for account, name in self.stores.found(lambda line: None):
            store = self.stores.open(account, name)
            assert isinstance(store, SegmentStore)
            self.opened[name] = store
            content[name] = tuple(frame.body for frame, _ in store.replay())
        return content

    def _ask(self, name: str, content: Content, work: Callable[[], object]) -> None:
        self.asked.setdefault(name, set()).add(content)
        try:
            work()
        except (LogError, OSError):
            return  # the outcome is unknown
        self.acked[name] = content
        del self.asked[name]

    def create(self, name: str, body: bytes = b"new") -> None:
        """Create a stream."""

        def work() -> None:
            store = self.stores.create("A", name, "uid", body, memory=False)
            assert isinstance(store, SegmentStore)
            self.opened[name] = store

        self._ask(name, (body,), work)

    def delete(self, name: str) -> None:
        """Delete a stream."""
        if name in self.opened:
            self._ask(name, (), self.opened.pop(name).destroy)

    def append(self, name: str, body: bytes) -> None:
        """Append to one stream."""
        if name in self.opened:
            log = self.opened[name].log
            entry = Frame(Kind.OPERATION, 1, log.last_index + 1, 0, body)
            self._ask(name, (*self.acked[name], body), lambda: log.append([entry]))

    def together(self, body: bytes, *names: str) -> None:
        """Append to several streams at once."""
        logs = {name: self.opened[name].log for name in names if name in self.opened}
        content = {name: (*self.acked[name], body) for name in logs}
        for name in logs:
            self.asked.setdefault(name, set()).add(content[name])
        writes = [(log, [Frame(Kind.OPERATION, 1, log.last_index + 1, 0, body)]) for log in logs.values()]
        for name, found in zip(logs, SegmentLog.append_together(writes) if writes else (), strict=True):
            if not isinstance(found, Exception):
                self.acked[name] = content[name]
                del self.asked[name]

    def seal(self, name: str) -> None:
        """Seal the open segment of a stream."""
        store = self.opened[name]
        with contextlib.suppress(LogError):  # it may be frozen
            store.log.seal(store.sealing_state())

    def stop(self) -> None:
        """Stop cleanly."""
        for store in self.opened.values():
            with contextlib.suppress(LogError, OSError):
                store.close()
        self.stores.close()


def _begin(life: Life) -> None:
    for name in "STU":
        life.create(name)
    life.append("S", bytes(5000))
    life.append("T", bytes(5000))
    life.stores.mark()


def _write(life: Life) -> None:
    life.together(b"1", "S", "T")
    life.together(b"2", "S", "T", "U")
    life.append("S", b"alone")
    life.together(b"3", "S", "T", "U")


def _settle(life: Life) -> None:
    _write(life)
    life.stores.mark()
    _write(life)
    life.stores.mark()
    life.together(b"4", "S", "T", "U")


def _new(life: Life) -> None:
    life.create("V")
    life.append("V", b"one")
    life.together(b"1", "S", "V")
    life.stores.mark()
    life.together(b"2", "S", "V")
    life.create("W")
    life.together(b"1", "V", "W")
    life.stores.mark()


def _delete(life: Life) -> None:
    life.create("V")
    life.together(b"1", "S", "T", "V")
    life.delete("S")
    life.delete("V")
    life.create("S", b"again")
    life.together(b"2", "S", "T")
    life.stores.mark()
    life.delete("T")


def _seal(life: Life) -> None:
    life.together(b"1", "S", "T")
    life.seal("S")
    life.together(b"2", "S", "T")
    life.stores._root.journal.outdate()
    life.stores.mark()
    life.together(b"3", "S", "T")
    life.stores.mark()


def _stop(life: Life) -> None:
    life.together(b"1", "S", "T", "U")
    life.stop()


STEPS: dict[str, Callable[[Life], None]] = {
    "write": _write,
    "settle": _settle,
    "new streams": _new,
    "delete": _delete,
    "seal": _seal,
    "stop": _stop,
    "start": lambda life: None,
}


class Bench:
    """Simulated disk with a store, prepared for a step."""

    def __init__(self, step: str) -> None:
        self.disk, self.step, self._lives = Disk(Random(step)), step, 0
        self.acked, self.asked = dict[str, Content](), dict[str, set[Content]]()
        self.life = self.live()
        _begin(self.life)
        if step == "start":
            _settle(self.life)

    def _new_files(self) -> FaultyFiles:
        self._lives += 1
        self.files = FaultyFiles(SimFiles(self.disk, Random(self._lives)))
        return self.files

    def live(self) -> Life:
        """Start a process."""
        return Life(self._new_files(), self.acked, self.asked)

    def run(self, at: int, fault: Fault | None, power: bool = False) -> list[Operation]:
        """Do the step, and let its operation `at` fail; return its operations."""
        if self.step == "start":
            if power:
                self.disk.cut_power()
            self._new_files()
        self.files.fail_at(at, fault)
        try:
            if self.step == "start":
                Life(self.files, self.acked, self.asked).found()
            else:
                STEPS[self.step](self.life)
        except (PowerCut, LogError, OSError) as error:
            if not self.files.crashed and self.step != "start":
                raise AssertionError(f"a step ends with {error!r}") from error
        operations = list(self.files.operations)
        self.files.fail_at(-1, None)
        return operations


def cases(step: str) -> Iterator[Case]:
    """Yield every failure of every operation of a step."""
    for power in (False, True):
        for at, operation in enumerate(Bench(step).run(-1, None, power)):
            for fault in FAULTS[operation.name]:
                if fault not in READS:
                    yield Case(step, at, operation, fault, power)


def check(case: Case) -> str:
    """Let a case happen; return the broken promise, "" if none is."""
    bench = Bench(case.step)
    try:
        operations = bench.run(case.at, case.fault, case.power)
        assert operations[case.at] == case.operation, f"another operation: {operations[case.at]}"
        if case.power:
            bench.disk.cut_power()
        for again in range(2):
            found = bench.live().found()
            for name in {*bench.acked, *bench.asked, *found}:
                possible = {bench.acked.get(name, ()), *bench.asked.get(name, ())}
                if found.get(name, ()) not in possible:
                    return f"start {again}: stream {name} has {found.get(name, ())}, not one of {possible}"
            if case.fault is not Fault.TORN or case.power:  # else the page cache may differ from the disk
                bench.disk.cut_power()
    except Exception as raised:
        return f"{type(raised).__name__}: {raised}"
    return ""
