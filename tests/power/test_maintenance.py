"""Tests of power losses while a table is compacted, optimized, erased from and vacuumed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random

import pytest

from lakestream.lake.delta import verify
from lakestream.lake.delta.log import Log
from lakestream.lake.files.lake import open_storage
from tests.lake.steps import rows
from tests.power.conftest import Record
from tests.power.disk import ONE_DISK, Image, PowerDisk
from tests.power.journal import Kind, Operation

pytestmark = pytest.mark.lake

PROGRAM = """
import json
from pathlib import Path
from lakestream.lake.spark import session as sessions
from tests.lake.conftest import SMALL
from tests.lake.steps import KEEP, NOW, Stage
spark = sessions.session("lakestream power tests", extra=SMALL)
stage = Stage(spark, os.path.abspath("lake"), Path("logs").resolve())
os.makedirs("lake")
states = []

def sealed():
    model.stage(stage.lake)
    states.append([(one.seq, one.data.decode()) for one in model.expected()])
    Path("../states").write_text(json.dumps(states))

model = stage.model()
model.publish([(b"s.%d" % (n % 2), b"", b"payload %d" % n) for n in range(12)])
sealed()
stage.compact(model)
os.mkdir("began")
model.publish([(b"s.%d" % (n % 2), b"", b"more %d" % n) for n in range(6)])
sealed()
stage.compact(model)
stage.maintain(KEEP)
model.remove([2, 9], shred=True)
model.publish([(b"s.1", b"", b"last")])
sealed()
stage.compact(model)
stage.maintain(NOW)
stage.maintain(NOW)
os.mkdir("ended")
spark.stop()
"""
"""Three segments; between the marks each step of compaction and maintenance."""
TABLE = "lake/streams/ORDERS"
CHANGES = {Kind.SYNC, Kind.RENAME, Kind.LINK, Kind.UNLINK}
"""Operations before and after which the disk may differ in a file that was synced."""


def _mark(operation: Operation, name: str) -> bool:
    return operation.kind is Kind.MKDIR and Path(operation.path).name == name


@pytest.mark.timeout(1800)
def test_invariant_13_a_power_loss_at_any_step_of_maintenance_leaves_a_whole_table(
    record: Record, tmp_path: Path
) -> None:
    journal, _ = record(PROGRAM)
    states = [[(seq, data.encode()) for seq, data in state] for state in json.loads((tmp_path / "states").read_text())]
    disk, place, began = PowerDisk(journal), tmp_path / "image", False
    table, storage = str(place / TABLE), open_storage(str(place / "lake"))
    versions, seen = set(), set[frozenset[tuple[str, bytes]]]()
    for operation in journal.operations():
        began = (began and not _mark(operation, "ended")) or _mark(operation, "began")
        for loss in ONE_DISK if began and operation.kind in CHANGES else ():
            image = disk.lose(loss, Random(operation.at))
            files = {name: content for name, content in image.files.items() if name.startswith(f"{TABLE}/")}
            if (known := frozenset(files.items())) in seen:
                continue
            seen.add(known)
            Image([name for name in image.folders if f"{name}/".startswith("lake/")], files).write(place)
            state = Log(storage, table).state()
            assert verify.lacking(storage, table, state.files.values()) == [], (operation, loss)
            found = rows(storage, table)
            # Removals come before new rows.
            assert any({seq for seq, _ in found} <= {seq for seq, _ in one} for one in states), (operation, loss)
            assert set(found) <= {row for one in states for row in one}, (operation, loss)
            versions.add(state.version)
            shutil.rmtree(place)
        disk.apply(operation)
    lake = open_storage(str(journal.root / "lake"))
    assert rows(lake, str(journal.root / TABLE)) == states[-1]
    assert len(versions) > 4
    assert len(seen) > 100
