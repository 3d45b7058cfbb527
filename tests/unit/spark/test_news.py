"""Tests of waits for news in the staging area."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakestream.lake.staging import staging
from lakestream.lake.storage import lake as lakes
from lakestream_spark.write import news
from tests.s3_server import S3Server
from tests.unit.lake.staging.test_lake_scan import identity, segment

__all__ = ["segment"]
pytestmark = pytest.mark.unit


def test_staging_ends_a_wait_for_news_and_nothing_else_does(tmp_path: Path, segment: Path) -> None:
    lake = str(tmp_path / "lake")
    lakes.require(lake, create=True)
    staging.stage(segment, 1, 5, identity(1), lake)
    looks, asked = news.News(lake), 0
    assert looks.wait(0)  # nothing was seen before
    assert not looks.wait(0)

    def stage_at_the_third(seconds: float) -> bool:
        nonlocal asked
        assert 0 < seconds <= news.LOOK_SECONDS
        asked += 1
        if asked == 3:
            staging.stage(segment, 6, 9, identity(1), lake)
        return False

    assert looks.wait(60, stage_at_the_third)
    assert asked == 3
    staging.stage(segment, 1, 5, identity(2), lake)  # during the scan
    assert looks.wait(60)
    assert not looks.wait(60, lambda seconds: True)


def test_in_an_object_store_a_wait_for_news_takes_its_time(
    tmp_path: Path, segment: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_server.enter(monkeypatch)
    lake = s3_server.url(tmp_path.name)
    looks = news.News(lake)
    assert looks.wait(0)
    staging.stage(segment, 1, 5, identity(1), lake)
    assert not looks.wait(0)
