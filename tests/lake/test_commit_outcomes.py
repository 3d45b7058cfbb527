"""Tests of commits that raise an error: the log tells their outcome, and nothing is deleted that a version may name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakestream.lake.write import transactions
from lakestream.lake.write.maintainer import Maintainer
from tests.lake.model import StreamModel
from tests.lake.tables import version
from tests.lake.test_maintenance import KEEP, NOW, check, files, grow, maintain, on_disk

pytestmark = pytest.mark.lake


class Lost(Exception):
    """The answer to a commit is lost: the JVM was killed, a sync failed, a connection broke."""


def failing(monkeypatch: pytest.MonkeyPatch, outcome: Callable[[Callable[[], None]], None]) -> None:
    """Let the next commit of a transaction do what `outcome` makes of it, and raise `Lost`."""
    commit = transactions.commit

    def once(*arguments: Any) -> None:
        monkeypatch.setattr(transactions, "commit", commit)
        outcome(lambda: commit(*arguments))
        raise Lost

    monkeypatch.setattr(transactions, "commit", once)


@pytest.mark.smoke
def test_invariant_13_files_of_an_optimize_stay_when_the_answer_to_its_commit_is_lost(
    spark: Any, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = StreamModel(tmp_path / "log")
    grow(spark, lake, model, 2)
    table = model.table(lake)
    before = version(table)
    failing(monkeypatch, lambda commit: commit())
    (done,) = Maintainer(spark, str(lake), KEEP).once()
    assert done.failure == "Lost"
    assert version(table) == before + 1
    check(lake, model)
    maintain(spark, lake, NOW)
    assert on_disk(table) == files(table) == 4
    check(lake, model)


def test_files_of_a_commit_that_may_still_arrive_stay_until_vacuum(
    spark: Any, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = StreamModel(tmp_path / "log")
    grow(spark, lake, model, 2)
    table = model.table(lake)
    held = on_disk(table)
    late: list[Callable[[], None]] = []
    failing(monkeypatch, late.append)
    (done,) = Maintainer(spark, str(lake), KEEP).once()
    assert done.failure == "Lost"
    assert on_disk(table) == held + 4
    late[0]()
    check(lake, model)
    assert files(table) == 4
