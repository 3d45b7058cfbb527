"""Tests of damaged files with a real server and a compactor without Spark."""

from __future__ import annotations

from pathlib import Path

from tests.lake_faults.cases import Site
from tests.lake_faults.files import destroyed


def test_the_health_of_a_stream_and_the_strict_one_of_the_server_name_a_destroyed_table(tmp_path: Path) -> None:
    with Site(tmp_path, compactor="small") as site:
        site.history = 60
        destroyed(site)
