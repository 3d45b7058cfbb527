"""Tests of replicas that read the base of a mirror before they apply the entry that names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lakestream.log.format.files import Files
from lakestream.log.store.base import Base, BaseOrigin
from lakestream.stream.core.batch import Run
from tests.faults.replica_steps import ORIGIN, Bench, Table

pytestmark = pytest.mark.unit

Read = Callable[[Base | None, BaseException | None], None]


class SlowTable(Table):
    """A table that the followers read when the test says so."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.reads: list[Callable[[], None]] = []
        self.slow = False

    def read_base(self, files: Files, directory: str, account: str, name: str, origin: BaseOrigin, done: Read) -> None:
        now = super().read_base
        if not self.slow:
            now(files, directory, account, name, origin, done)
            return
        self.reads.append(lambda: now(files, directory, account, name, origin, done))


def copied(bench: Bench, first: int, count: int) -> None:
    """Store messages of the origin on the mirror's leader."""
    seqs = list(range(first, first + count))
    run = Run(seqs, [seq * 1_000 for seq in seqs], [b"s.1"] * count, [b""] * count, [b"x" * 400] * count, [0] * count)
    assert bench.world.leader().stream.proposer.copy(run) == (count, None)
    bench.world.run(1.0)


def test_what_is_sealed_while_a_base_is_read_has_its_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.faults.replica_steps.Table", SlowTable)
    bench = Bench("clone at a follower", tmp_path)
    table = bench.table
    assert isinstance(table, SlowTable)
    table.slow = True
    assert bench.fork(ORIGIN)
    bench.world.run(1.0)
    assert len(table.reads) == 2
    for part in range(8):
        copied(bench, ORIGIN.through + 1 + 10 * part, 10)
    table.slow = False
    for read in table.reads:
        read()
    bench.world.run(2.0)
    leader = bench.world.leader().stream.store
    sealed = [(each.last_index, each.footer.count) for each in leader.log.segments if each.footer is not None]
    assert sum(count for _, count in sealed) >= 40
    for node in bench.world.nodes.values():
        store, segments = node.stream.store, node.stream.store.log.segments
        found = [(each.last_index, each.footer.count) for each in segments if each.footer is not None]
        assert (found, store.last_seq) == (sealed, ORIGIN.through + 80), node.name
