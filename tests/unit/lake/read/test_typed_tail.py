"""Typed columns of messages that are not in the table yet: by the schemas that were in force when they were stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lakestream.lake.staging import staging
from lakestream.lake.staging.staging import StreamIdentity
from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import schema_files as schemas
from lakestream.log.store.segment_log import LogOptions
from lakestream.schemas.schema import Schema
from lakestream.stream.core.operations import UpdateStream
from lakestream_client.lake.view import open_view
from tests.unit.stream_world import World

pytestmark = pytest.mark.unit


class Staged:
    """A stream whose messages are staged and never compacted, and its schema `evo` with the versions 2 (n is a number)
    and 3 (n is a text)."""

    def __init__(self, root: Path) -> None:
        self.lake = root / "lake"
        lakes.require(str(self.lake), create=True)
        for version, kind in ((2, "integer"), (3, "string")):
            text = json.dumps({"type": "object", "properties": {"n": {"type": kind}}, "required": ["n"]})
            schemas.write_schema(
                open_storage(self.lake), "$G", Schema("evo", version, "json", text, created_ns=version)
            )
        self.world = World(str(root / "store"), options=LogOptions(seal_age_ns=1))

    def configure(self, **metadata: str) -> None:
        config = msgspec.structs.replace(self.world.stream.config, metadata=metadata)
        self.world.stream.propose(UpdateStream(msgspec.json.encode(config)))
        self.world.settle()

    def publish(self, *values: Any) -> None:
        for value in values:
            self.world.acked("s.a", json.dumps({"n": value}).encode())

    def rows(self) -> list[tuple[int, str | None]]:
        """Seal and stage everything; return sequence and schema of each message."""
        world, stream = self.world, self.world.stream
        world.clock.advance(10)
        stream.store.seal_if_old()
        world.settle()
        config = msgspec.Raw(msgspec.json.encode(stream.config))
        identity = StreamIdentity(name="S", account="$G", uid=stream.uid, created_ns=stream.created_ns, config=config)
        for each in stream.store.sealed():
            staging.stage(each.path, each.first_index, each.last_index, identity, str(self.lake))
        found = open_view(str(self.lake), "S", flush=False).tail()
        if "schema" not in found.column_names:
            return [(seq, None) for seq in found.column("seq").to_pylist()]
        return list(zip(found.column("seq").to_pylist(), found.column("schema").to_pylist(), strict=True))


def test_moving_a_pinned_schema_does_not_judge_stored_messages_again(tmp_path: Path) -> None:
    staged = Staged(tmp_path)
    staged.configure(**{"lakestream.schema": "evo@2"})
    staged.publish(1, 2, 3)
    staged.configure(**{"lakestream.schema": "evo@3"})
    staged.publish("x")
    wanted = [(1, "evo@2"), (2, "evo@2"), (3, "evo@2"), (4, "evo@3")]
    assert staged.rows() == wanted
    staged.configure(**{"lakestream.schema": "evo@2"})
    staged.publish(5)
    assert staged.rows() == [*wanted, (5, "evo@2")], "also in a segment that comes after the change"


def test_messages_without_a_schema_do_not_get_one_later(tmp_path: Path) -> None:
    staged = Staged(tmp_path)
    staged.publish(1)
    staged.configure(**{"lakestream.schema": "evo@2"})
    staged.publish(2)
    staged.configure()
    staged.publish(3)
    assert staged.rows() == [(1, None), (2, "evo@2"), (3, None)]
