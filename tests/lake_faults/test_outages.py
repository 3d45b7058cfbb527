"""Tests of outages with a real server and a compactor without Spark; `python -m tests.lake_faults` has all cases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lake_faults.cases import Site
from tests.lake_faults.outages import away_at_the_start, without_its_mount


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path, compactor="small") as site:
        site.outage_s, site.history = 0.0, 60
        yield site


def test_a_lake_without_its_mount_is_away_and_no_new_lake_begins(site: Site) -> None:
    without_its_mount(site)
    site.end_case()


def test_a_server_starts_without_its_lake_and_follows_it_once_it_is_back(site: Site) -> None:
    away_at_the_start(site)
    site.end_case()
