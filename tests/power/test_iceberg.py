"""Test of power losses while an Iceberg table follows its Delta table: readers find a whole version of what is left."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from pyiceberg.table import StaticTable

from lakestream.lake.storage.lake import open_storage
from lakestream_spark.write import iceberg_files
from tests.lake.iceberg import HINT, by_pyiceberg
from tests.power.conftest import Record
from tests.power.disk import ONE_DISK, Image, PowerDisk
from tests.power.journal import Journal, Kind, Operation
from tests.power.test_maintenance import CHANGES, TABLE, mark

pytestmark = pytest.mark.lake

Rows = list[tuple[int, bytes]]
"""Sequences and payloads."""
PROGRAM = """
import json
from pathlib import Path
from lakestream_iceberg.export import TableExport
from lakestream_iceberg.library import IcebergLibrary
from lakestream_spark import session as sessions
from tests.lake.conftest import SMALL
from tests.lake.steps import NOW, Stage
spark = sessions.session("lakestream power tests", extra=SMALL, iceberg=True)
stage = Stage(spark, os.path.abspath("lake"), Path("logs").resolve())
os.makedirs("lake")
model = stage.model(metadata={"lakestream.iceberg": "FORM"})
export = TableExport(IcebergLibrary(spark, stage.lake), stage.storage, model.table(stage.lake))
states = []
for number in range(3):
    model.publish([(b"s.%d" % (n % 2), b"", b"payload %d" % n) for n in range(6)])
    model.remove([number * 6])  # of an earlier commit, so with a deletion vector
    model.stage(stage.lake)
    states.append([(one.seq, one.data.decode()) for one in model.expected()])
    Path("../states").write_text(json.dumps(states))
    stage.compact(model)
    if not number:
        os.mkdir("began")
    export.run()
stage.maintain(NOW)
export.run()
os.mkdir("ended")
spark.stop()
"""
"""Between the marks: three commits, each with its Iceberg commit, and OPTIMIZE."""


class IcebergImages:
    """Images of a recording, as readers of Iceberg find them. Those with the same metadata are read once."""

    def __init__(self, journal: Journal, states: list[Rows]) -> None:
        self.journal, self.states = journal, states
        self.table = str(journal.root / TABLE)
        self.found: list[Rows] = []
        self.disk = PowerDisk(journal)

    def run(self, operations: Sequence[Operation]) -> str:
        """Return the first loss of power after which readers find no whole version; "" if there is none."""
        began, seen = False, set[frozenset[tuple[str, bytes]]]()
        self.disk = PowerDisk(self.journal)
        for operation in operations:
            began = (began and not mark(operation, "ended")) or mark(operation, "began")
            for loss in ONE_DISK if began and operation.kind in CHANGES else ():
                image = self.disk.lose(loss, Random(operation.at))
                files = {path: content for path, content in image.files.items() if path.startswith(f"{TABLE}/")}
                known = frozenset(each for each in files.items() if "/metadata/" in each[0])
                if known in seen or f"{TABLE}/metadata/{HINT}" not in files:
                    continue
                seen.add(known)
                self.place(Image([path for path in image.folders if f"{path}/".startswith("lake/")], files))
                try:
                    self.found.append([(row["seq"], row["data"]) for row in by_pyiceberg(self.table)])
                except Exception as error:
                    return f"{operation}, {loss}: {error!r}"
                if self.found[-1] not in [[], *self.states]:
                    return f"{operation}, {loss}: {self.found[-1]}"
            self.disk.apply(operation)
        return ""

    def place(self, image: Image) -> None:
        """Write an image to the recorded path, which metadata name."""
        shutil.rmtree(self.journal.root)
        image.write(self.journal.root)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("form", ["v3", "v2"])
def test_a_power_loss_at_any_step_of_an_iceberg_commit_leaves_a_whole_version(
    record: Record, tmp_path: Path, form: str
) -> None:
    journal, _ = record(PROGRAM.replace("FORM", form))
    states = [[(seq, data.encode()) for seq, data in state] for state in json.loads((tmp_path / "states").read_text())]
    replay, operations = IcebergImages(journal, states), journal.operations()
    assert replay.run(operations) == ""
    assert all(state in replay.found for state in states)
    for loss in ONE_DISK:
        replay.place(replay.disk.lose(loss, Random(0)))
        newest = iceberg_files.newest(open_storage(replay.table), replay.table)
        assert newest is not None
        rows = StaticTable.from_metadata(newest.location).scan().to_arrow().sort_by("seq").to_pylist()
        assert [(row["seq"], row["data"]) for row in rows] == states[-1], "what has ended is durable"
    written = {each.inode for each in operations if "/metadata/" in each.path}
    unsynced = [each for each in operations if each.kind is not Kind.SYNC or each.inode not in written]
    assert replay.run(unsynced), "a commit that did not sync would be noticed"
