"""Schemas reach the lake before the messages that were checked by them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakestream.config.options import LakeOptions
from lakestream.lake.storage import lake as lakes
from lakestream.lake.table import schema_files as schemas
from lakestream.logging import Logger
from lakestream.schemas.schema import Schema
from lakestream.server.lake.keeper import LakeKeeper
from lakestream.server.lake.schema_export import AGAIN_NS, SchemaExport
from lakestream.stream.core.config import StreamConfig
from tests.unit.stream_world import ManualClock, ManualIo

pytestmark = pytest.mark.unit

PRESENT: Any = SimpleNamespace(probe=SimpleNamespace(lake_id="x", check=lambda: None), away=None)


def export(root: Path) -> tuple[SchemaExport, ManualClock, ManualIo]:
    clock, io = ManualClock(), ManualIo()
    lakes.require(str(root), create=True)
    return SchemaExport(str(root), PRESENT, clock, io, Logger()), clock, io


def test_a_version_is_owed_until_the_lake_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> bool:
        raise OSError("the disk is full")

    made, clock, io = export(tmp_path)
    assert made.owed("$G") is None
    made.put("$G", Schema("evo", 1, "json", "{}"))
    assert (made.owed("$G"), made.owed("OTHER")) == ("", None)
    with monkeypatch.context() as broken:
        broken.setattr(schemas, "write_schema", fail)
        io.work()
    assert "schema evo@1 of account $G cannot be written to the lake: the disk is full" in (made.owed("$G") or "")
    clock.advance(AGAIN_NS)
    io.work()
    assert made.owed("$G") is None


def test_segments_are_staged_after_the_versions_of_their_messages(tmp_path: Path) -> None:
    class Sync:
        """`StreamSync` that counts the looks that begin."""

        trouble, asking = "", False

        def __init__(self, metadata: dict[str, str]) -> None:
            store = SimpleNamespace(
                seal_if_old=lambda: None, left_through=0, sealed_through=(0, 0), sealed=self.looked, based=False
            )
            config = StreamConfig(name="S", metadata=metadata)
            self.stream = SimpleNamespace(store=store, config=config, closed=False, account="$G", name="S")
            self.looks = 0

        def is_idle(self, left: int, sealed: int) -> bool:
            return False

        def looked(self) -> None:
            self.looks += 1
            raise _Begun

    class _Begun(Exception):
        """Raised instead of a look."""

    kept = LakeKeeper(str(tmp_path), LakeOptions(), cast(Any, ManualClock()), cast(Any, ManualIo()), Logger())
    typed, plain = Sync({"lakestream.schema": "evo"}), Sync({})
    owed: str | None
    for owed, looks in (("", 0), ("it cannot be written", 0), (None, 1)):
        kept.owed = lambda account, owed=owed: owed  # type: ignore[misc]
        for sync in (typed, plain):
            try:
                kept._look(cast(Any, sync))
            except _Begun:
                continue
        assert typed.looks == looks
        assert typed.trouble == (owed or typed.trouble)
    assert plain.looks == 3, "streams without schemas do not wait"
