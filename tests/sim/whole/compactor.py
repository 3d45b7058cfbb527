"""A simulated machine with a compactor.

Belongs here: the process, which does what jobs/compact.py does between two batches, with the compactor's own code. Of
Spark there is nothing: SimTable takes the place of StreamTable, `_serve` asks the streaming source and makes
micro-batches as Spark's engine does, and `Rows` runs the tasks of one.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock, patch

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from lakestream.lake.errors import LakeError
from lakestream_spark.write.compactor import Compactor
from lakestream_spark.write.lake_compaction import BatchReport
from lakestream_spark.write.source import SegmentsReader, offset_of
from tests.sim.events import MS
from tests.sim.whole.lake import ROOT
from tests.sim.whole.loop import SimLoop
from tests.sim.whole.surroundings import Bare
from tests.sim.whole.table import SimTable

if TYPE_CHECKING:
    from tests.sim.whole.world import World

LOOK_S = 0.5
"""Time between two batches."""
TASKS = 2
"""Maximum number of tasks of a batch."""
RESTART_NS = 500 * MS
"""Time after which a compactor that ended by itself is started again."""


class CompactorHost:
    """A machine with a compactor, which starts again whenever it ends.

    Attributes:
        works: it has had the compactor's lock since its start.
    """

    def __init__(self, name: str, address: str, world: World) -> None:
        self.name, self.address, self.world = name, address, world
        self.loop: SimLoop | None = None
        self.steps = 0
        self.works = False

    @property
    def paused(self) -> bool:
        """Return True if the process stands still."""
        return self.loop is not None and self.loop.paused

    def go_on(self) -> None:
        """Let the process go on if it stands still."""
        if self.loop is not None and self.loop.paused:
            self.world.say(f"{self.name} goes on")
            self.loop.go_on()

    def start(self) -> None:
        """Start the compactor, unless it runs."""
        if self.loop is not None:
            return
        world = self.world
        loop = self.loop = SimLoop(world.events, self.address, world.network)
        loop.on_turn = partial(world.current.turn, Bare(self.address))
        loop.on_error = lambda context: world.violated(f"{self.name}: {context.get('exception')!r}")
        world.fibers.start(loop, self._serve, lambda result, error: self._ended(loop, error))

    def end(self, *, power: bool) -> None:
        """Kill the process; the machine has no files."""
        loop, self.loop, self.works = self.loop, None, False
        if loop is not None:
            self.steps += loop.steps
            loop.end()
            self.world.ended(loop)

    def _ended(self, loop: SimLoop, error: BaseException | None) -> None:
        if loop is not self.loop:
            return
        if isinstance(error, LakeError | OSError):
            self.world.failed_compaction(self.name, str(error))
        elif error is not None:
            self.world.failed_process(self.name, error)
        self.end(power=False)
        self.world.events.after(RESTART_NS, self.start)

    def _serve(self) -> None:
        compactor = Compactor(sim_spark(), ROOT, "/nowhere", parallel=1, report=self._report, complain=self._complain)
        while not compactor.acquire():
            self.world.fibers.sleep(1.0)
        self.world.say(f"{self.name} is the compactor")
        self.works = True
        reader = SegmentsReader(ROOT, tasks=TASKS)
        start = reader.initialOffset()
        while True:
            compactor.check()
            compactor.tend()
            end = reader.latestOffset(start, ReadAllAvailable())
            if end != start:
                rows = Rows(reader, reader.partitions(start, end))
                compactor.batch(rows, offset_of(end).offered_since(offset_of(start)))  # type: ignore[arg-type]
                start = end
            self.world.fibers.sleep(LOOK_S)

    def _report(self, report: BatchReport) -> None:
        self.world.counts["commits"] += sum(report.commits.values())
        for stream, error in report.failures.items():
            self.world.failed_compaction(self.name, f"{stream}: {error}")

    def _complain(self, line: str) -> None:
        self.world.failed_compaction(self.name, line)


def sim_spark() -> Any:
    """Return a Spark session that has only what the compactor uses beside its tables (`sim_tables`) and rows."""
    spark = Mock()
    spark.newSession.return_value = spark
    return spark


class Rows:
    """Rows of a micro-batch. The tasks over its partitions run one after the other, in this process."""

    def __init__(self, reader: SegmentsReader, partitions: Sequence[InputPartition]) -> None:
        self._reader, self._partitions = reader, partitions
        self._found: list[SimpleNamespace] = []

    def mapInArrow(self, task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str) -> Rows:
        """Run the task over each partition."""
        self._found = []
        for partition in self._partitions:
            for batch in pickle.loads(pickle.dumps(task))(self._reader.read(partition)):
                self._found += [SimpleNamespace(**row) for row in batch.to_pylist()]
        return self

    def collect(self) -> list[SimpleNamespace]:
        """Return the rows that the tasks have made."""
        return self._found


def sim_tables() -> Any:
    """Return a context in which compactors use SimTable."""
    return patch("lakestream_spark.write.stream_compaction.StreamTable", SimTable)
