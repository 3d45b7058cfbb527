"""Test of the simulation's own writer of Delta tables: another reader finds in them what was written."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakestream.lake.staging.staging import StreamIdentity
from lakestream.lake.table.batches import SeqRows
from lakestream.lake.table.policy import StreamPolicy
from lakestream.lake.table.progress import TableProgress
from lakestream.lake.table.schema import Layout, message_schema
from lakestream_spark.write.data_files import DataFiles
from tests.sim.events import Events
from tests.sim.whole.fibers import Fibers
from tests.sim.whole.lake import ROOT, Lake, SimStorage, reachable
from tests.sim.whole.surroundings import Current
from tests.sim.whole.table import SimTable

pytestmark = pytest.mark.unit


def test_tables_of_the_simulation_are_delta_tables(tmp_path: Path) -> None:
    lake = Lake(Events(), Current(), Fibers(), Random(1))
    identity = StreamIdentity("S", "$G", "U1", 1)
    with reachable(lake):
        table = SimTable(None, SimStorage(lake, ROOT), identity)
        table.create(Layout(), StreamPolicy())
        plain = dict.fromkeys(message_schema().names)
        for first in (1, 6):
            rows = [
                plain | {"subject": f"S.{seq % 2}", "seq": seq, "time_ns": seq, "data": b"x"}
                for seq in range(first, first + 5)
            ]
            files = DataFiles(table.path, Layout()).write([pa.RecordBatch.from_pylist(rows, message_schema())])
            commit = table.begin("lakestream:U1")
            commit.add(files)
            commit.move(TableProgress(uid="U1", last_index=first, last_seq=first, last_time_ns=first))
            commit.append(Layout().columns, "{}")
        table.delete(SeqRows("", [(0, 2), (5, 5), (7, 7)]))
    for path, content in lake.objects.items():
        place = tmp_path / path.removeprefix(ROOT + "/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.data)
    found = DeltaTable(str(tmp_path / table.path.removeprefix(ROOT + "/"))).to_pyarrow_table(columns=["subject", "seq"])
    assert sorted(found["seq"].to_pylist()) == [3, 4, 6, 8, 9, 10]
    assert all(row["subject"] == f"S.{row['seq'] % 2}" for row in found.to_pylist())
