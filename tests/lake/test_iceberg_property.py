"""Test of random histories: the rows of Iceberg are those of Delta, which are those of the stream.

Rounds of random publishes, deletes, purges, layouts, OPTIMIZE and VACUUM, after which the Iceberg table follows, or
does not, or loses what a crash may lose: any of its files, or everything since some earlier moment.

LAKESTREAM_ICEBERG_ROUNDS sets the number of rounds (default 10), LAKESTREAM_ICEBERG_SEED the choices (default 1, or
`random`; a failure names it).
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table.log import TableLog
from tests.lake.iceberg import READERS, IcebergStream, record, static
from tests.lake.tables import records
from tests.lake.test_maintenance import NOW, compact, maintain

ROUNDS = int(os.environ.get("LAKESTREAM_ICEBERG_ROUNDS", "10"))
pytestmark = [pytest.mark.lake, pytest.mark.timeout(600 + 60 * ROUNDS)]
SEED = os.environ.get("LAKESTREAM_ICEBERG_SEED", "1")
if SEED == "random":
    SEED = str(random.randrange(1 << 30))


class History:
    """Random changes of a stream, and what may happen to its Iceberg table."""

    def __init__(self, stream: IcebergStream, rng: random.Random, kept: Path) -> None:
        self.stream, self.rng, self.kept = stream, rng, kept
        self.metadata = Path(stream.table, "metadata")

    def change(self) -> None:
        """Change the stream, and compact or maintain its table."""
        rng, model = self.rng, self.stream.model
        if rng.random() < 0.1:
            maintain(self.stream.spark, self.stream.lake, NOW)
            return
        self.stream.publish(rng.randrange(1, 30), rng.choice((1, 3, 12)))
        if rng.random() < 0.6:
            model.remove(rng.sample(sorted(model.live), min(len(model.live), rng.choice((1, 3, 10)))))
        if rng.random() < 0.15:
            model.purge(rng.randrange(model.floor, model.next_seq + 1))
        if rng.random() < 0.15:
            form = rng.choice(("v2", "v3", "v3"))
            model.configure({"lakestream.iceberg": form, "lakestream.partition": rng.choice(("auto", "bucket:2"))})
        model.stage(self.stream.lake)
        compact(self.stream.spark, self.stream.lake, model, subject_limit=rng.choice((4, 50)))

    def lose(self) -> None:
        """Lose what a crash, or a person, may take from the Iceberg table."""
        rng, there = self.rng, sorted(self.metadata.iterdir()) if self.metadata.exists() else []
        choice = rng.randrange(6)
        if choice == 0 and self.kept.exists():  # the names of all later files
            shutil.rmtree(self.metadata, ignore_errors=True)
            shutil.copytree(self.kept, self.metadata)
        elif choice == 1 and there:
            rng.choice(there).unlink()
        elif choice == 2 and there:
            path = rng.choice(there)
            path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)])
        elif choice == 3 and there:
            shutil.rmtree(self.kept, ignore_errors=True)
            shutil.copytree(self.metadata, self.kept)
        if choice < 5:
            self.stream.anew()

    def check(self) -> None:
        """Let the Iceberg table follow, and compare all rows."""
        self.stream.export.run()
        wanted = self.stream.model.expected()
        assert records(self.stream.table) == wanted
        for name, read in READERS.items():
            assert [record(row) for row in read(self.stream.table)] == wanted, name
        log = TableLog(open_storage(self.stream.table), self.stream.table)
        assert int(static(self.stream.table).properties["lakestream.delta-version"]) == log.latest


def test_rows_are_those_of_the_stream_whatever_happens(spark: Any, lake: Path, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    stream = IcebergStream(spark, lake, tmp_path / "log", {"lakestream.iceberg": "v3"})
    history = History(stream, rng, tmp_path / "kept")
    for number in range(ROUNDS):
        try:
            for _ in range(rng.choice((1, 1, 2))):
                history.change()
            if rng.random() < 0.8:
                history.check()
            history.lose()
        except BaseException as error:
            error.add_note(f"LAKESTREAM_ICEBERG_SEED={SEED}, round {number}")
            raise
    history.check()
