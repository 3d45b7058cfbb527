"""Checks of the simulated lake.

Belongs here: the content of tables as any reader finds it, when a segment may leave a log, and the comparison of each
table with its stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

from lakestream.lake.read.history.rows import records
from lakestream.lake.storage import paths
from lakestream.lake.table.actions import locate
from lakestream.lake.table.log import TableLog, TableVersion, log_directory
from lakestream.lake.table.progress import application
from lakestream.log.format.segment import SealedSegment
from lakestream.log.store.segment_store import SegmentStore
from tests.sim.checks import Violation
from tests.sim.whole.checks import Content, difference, full_content, streams_of
from tests.sim.whole.lake import ROOT, Lake, Observer
from tests.sim.whole.table import read_rows

if TYPE_CHECKING:
    from lakestream.stream.core.stream import StreamCore
    from tests.sim.whole.world import World


def state_of(lake: Lake, name: str) -> TableVersion | None:
    """Return a stream's table as it is now; None: there is none. Its log is read anew once it has changed."""
    table = paths.table(ROOT, name)
    log = lake.below(log_directory(table))
    newest = (len(log), lake.objects[log[-1]].tag if log else "")
    before, state = lake.states.get(name, ((-1, ""), None))
    if before != newest:
        try:
            state = TableLog(Observer(lake), table).state()
        except FileNotFoundError:
            state = None
        lake.states[name] = newest, state
    return state


def position_of(lake: Lake, name: str, uid: str) -> int:
    """Return the log index through which a table with all of its files holds a stream.

    Raises:
        Violation: a file is missing.
    """
    state = state_of(lake, name)
    if state is None:
        return 0
    for add in state.files.values():
        path = locate(paths.table(ROOT, name), add.path)
        if path not in lake.objects or len(lake.objects[path].data) != add.size:
            raise Violation(f"the table of {name} lacks {path}")
    return state.transactions.get(application(uid), 0)


def table_content(lake: Lake, name: str) -> Content:
    """Return the messages of a table. Raise Violation for one that is there twice."""
    state = state_of(lake, name)
    found: Content = {}
    table = paths.table(ROOT, name)
    for add in state.files.values() if state is not None else ():
        path = locate(table, add.path)
        tag, rows = lake.contents.get(path, ("", {}))
        if tag != lake.entry(path).tag:  # a file is read once, for all checks
            rows = {
                record.seq: (record.subject, record.data, record.header, record.time_ns)
                for record in records(read_rows(Observer(lake), table, add))
            }
            lake.contents[path] = lake.entry(path).tag, rows
        for seq in rows:
            if seq in found:
                raise Violation(f"{name}: {seq} is in the table twice")
        found |= rows
    return found


def led_streams(world: World) -> dict[str, StreamCore]:
    """Return the leader's replica of each stream of the workload."""
    led = {name: each for host in world.hosts.values() for name, each in streams_of(host).items() if each.leading}
    return {name: led[name] for name in world.workload.streams if name in led}


def behind(world: World) -> list[str]:
    """Return the tables that do not hold their streams yet, and those of deleted streams that are still there."""
    found = []
    for name, stream in led_streams(world).items():
        position = position_of(world.lake, name, stream.uid)
        sealed = stream.store.sealed_through[0]
        if position < sealed or stream.store.has_unsealed:
            found.append(f"the table of {name} is at {position}, sealed through {sealed} of {stream.store.applied}")
    names = set(world.workload.streams)
    for kind in (paths.STREAMS, paths.SEGMENTS):
        for name in Observer(world.lake).directories(f"{ROOT}/{kind}"):
            if name not in names:
                found.append(f"there is {kind}/{name} of a deleted stream")
    return found


def check_tables(world: World) -> None:
    """Compare each table with its stream. Raise Violation."""
    for name, stream in led_streams(world).items():
        table = table_content(world.lake, name)
        wanted = full_content(stream, table)
        if table != wanted:
            raise Violation(f"the table of {name} differs from the stream: {difference(table, wanted)}")


@contextmanager
def checked_drops(lake: Lake, violated: Callable[[str], None]) -> Iterator[None]:
    """Check that segments that leave a log are in the table, for the duration of the block."""
    real = SegmentStore.drop_through

    def drop_through(self: SegmentStore, index: int) -> list[SealedSegment]:
        dropped = real(self, index)
        lake.dropped += len(dropped)
        if dropped:
            try:
                position = position_of(lake, self.stream, self.uid)
            except Violation as error:
                violated(f"segments of {self.stream} left the log: {error}")
            else:
                if position < dropped[-1].last_index:
                    violated(f"{self.stream}: {dropped[-1].last_index} left the log, the table is at {position}")
        return dropped

    with patch.object(SegmentStore, "drop_through", drop_through):
        yield
