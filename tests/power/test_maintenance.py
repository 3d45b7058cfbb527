"""Tests of power losses while a table is compacted, optimized, erased from and vacuumed, and in other operations."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random

import pytest

from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import check
from lakestream.lake.table.actions import table_file
from lakestream.lake.table.log import TableLog, TableVersion
from lakestream_spark.write import clones
from tests.lake.steps import rows
from tests.power.conftest import Record
from tests.power.disk import ONE_DISK, Image, PowerDisk
from tests.power.journal import Kind, Operation

pytestmark = pytest.mark.lake

PROGRAM = """
import json
from pathlib import Path
from lakestream_spark import session as sessions
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
OPERATION = """
from pathlib import Path
from lakestream_spark import session as sessions
from tests.lake.conftest import SMALL
from tests.lake.steps import OPERATIONS, Stage, identify
spark = sessions.session("lakestream power tests", extra=SMALL)
stage = Stage(spark, os.path.abspath("lake"), Path("logs").resolve())
os.makedirs("lake")
identify(stage.storage)
work, check = OPERATIONS["NAME"].prepare(stage)
os.mkdir("began")
work()
os.mkdir("ended")
check()
spark.stop()
"""
"""One operation between the marks, of which NAME is the name."""
CHANGES = {Kind.SYNC, Kind.RENAME, Kind.LINK, Kind.UNLINK}
"""Operations before and after which the disk may differ in a file that was synced."""


def mark(operation: Operation, name: str) -> bool:
    """Return True if an operation makes the directory of this name."""
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
        began = (began and not mark(operation, "ended")) or mark(operation, "began")
        for loss in ONE_DISK if began and operation.kind in CHANGES else ():
            image = disk.lose(loss, Random(operation.at))
            files = {name: content for name, content in image.files.items() if name.startswith(f"{TABLE}/")}
            if (known := frozenset(files.items())) in seen:
                continue
            seen.add(known)
            Image([name for name in image.folders if f"{name}/".startswith("lake/")], files).write(place)
            state = TableLog(storage, table).state()
            assert check.lacking(storage, table, map(table_file, state.files.values())) == [], (operation, loss)
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


def _tables(lake: Path) -> dict[str, TableVersion]:
    """Return the newest version of each table of a lake by its path."""
    storage = open_storage(str(lake))
    logs = [TableLog(storage, table) for table in clones.tables_below(storage, storage.root)]
    return {log.table: log.state() for log in logs if log.commits}


def _lacking(lake: Path) -> set[str]:
    """Return the files that are missing of which the newest version of any table tells."""
    storage = open_storage(str(lake))
    return {
        damage.path
        for table, state in _tables(lake).items()
        for damage in check.lacking(storage, table, map(table_file, state.files.values()))
    }


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["repair", "clone", "detach", "misfits"])
def test_invariant_13_a_power_loss_at_any_step_of_an_operation_leaves_whole_tables(record: Record, name: str) -> None:
    """No step takes a file from a table: only a repair begins with one that is missing."""
    journal, _ = record(OPERATION.replace("NAME", name))
    operations, disk, seen = journal.operations(), PowerDisk(journal), set[frozenset[tuple[str, bytes]]]()
    lake, before, began, ended = journal.root / "lake", set[str](), False, False
    for operation in operations:  # the images have the paths of the recording, which clones name
        first = mark(operation, "began")
        began, ended = began or first, ended or mark(operation, "ended")
        for loss in ONE_DISK if first or (began and operation.kind in CHANGES) else ():
            image = disk.lose(loss, Random(operation.at))
            files = {path: content for path, content in image.files.items() if path.startswith("lake/")}
            if (known := frozenset(files.items())) in seen:
                continue
            seen.add(known)
            shutil.rmtree(journal.root)
            Image([path for path in image.folders if f"{path}/".startswith("lake/")], files).write(journal.root)
            before |= _lacking(lake) if first else set()
            asked = any(path.endswith("/damaged.json") for path in files)
            assert _lacking(lake) <= (before if asked else set()), (operation, loss)
        disk.apply(operation)
        if ended:
            break
    states = []
    for loss in (None, *ONE_DISK):
        image = disk.lose(loss, Random(0)) if loss is not None else disk.seen()
        shutil.rmtree(journal.root)
        image.write(journal.root)
        states.append({table: (state.version, state.files.keys()) for table, state in _tables(lake).items()})
    assert all(state == states[0] for state in states), "what has ended is durable"
    assert len(seen) > 10
