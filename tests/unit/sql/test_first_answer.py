"""Probes: a lake that hangs is named in time."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from lakestream.lake.errors import StorageFailed
from lakestream.lake.storage.storage import Storage
from lakestream_sql import first_answer
from lakestream_sql.first_answer import LakeSilent, require_answer

pytestmark = pytest.mark.unit


def test_a_lake_that_does_not_answer_is_named_with_the_place_of_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, said = threading.Event(), list[str]()

    def hang(storage: Storage) -> str:
        answered.wait()
        return ""

    monkeypatch.setattr(first_answer, "read_id", hang)
    path = f"{tmp_path}/_lake.json"
    with pytest.raises(LakeSilent, match=f"reading {path} took more than 0.01 s"):
        require_answer(str(tmp_path), said.append, 0.01, 0.005)
    assert said == [f"waiting for the lake: reading {path}, at most 0.01 s"]
    answered.set()


def test_any_answer_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(storage: Storage) -> str:
        raise StorageFailed("read", "_lake.json", "AccessDenied")

    said = list[str]()
    require_answer(str(tmp_path), said.append)
    require_answer(str(tmp_path / "none"), said.append)
    monkeypatch.setattr(first_answer, "read_id", deny)
    require_answer(str(tmp_path), said.append)
    assert said == []
