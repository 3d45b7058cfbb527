"""Tests of replicas' log files, repeated with compressed segments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakestream.log.format.files import Files
from lakestream.log.format.packed import is_packed_file
from tests.unit import logkit
from tests.unit.meta import test_replica_damage, test_replica_lake, test_replica_members
from tests.unit.replica_world import World

pytestmark = pytest.mark.unit

IN_A_BLOCK = 100
"""Offset that is inside a compressed block of any of these short files."""
REPAIRED = test_replica_damage.test_a_damaged_replica_is_repaired_by_the_others
TESTS: dict[str, Callable[[Path], None]] = {
    "a new replica": test_replica_members.test_a_new_replica_gets_the_state_and_then_the_rest,
    "a damaged block that is not": test_replica_damage.test_damage_of_unread_parts_is_found_after_a_start,
    "another leader stages": test_replica_lake.test_a_new_leader_stages_what_is_staged_already_without_harm,
    "a damaged segment": functools.partial(REPAIRED, where="sealed segment"),
    "a damaged footer": functools.partial(REPAIRED, where="footer"),
    "a missing segment": functools.partial(REPAIRED, where="gone"),
}


@pytest.mark.parametrize("name", TESTS)
def test_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    plain = World.stream

    def stream(world: World, members: str = "", **config: Any) -> None:
        plain(world, members, **{"compression": "s2", **config})

    monkeypatch.setattr(World, "stream", stream)
    if "block" in name:
        monkeypatch.setattr(test_replica_damage, "flip", lambda path, at: logkit.flip(path, IN_A_BLOCK))
    TESTS[name](tmp_path)
    assert any(is_packed_file(Files(), str(path)) for path in tmp_path.rglob("*.seg"))
