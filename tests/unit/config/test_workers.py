"""Tests of the number of workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakestream.config.values import MAX_WORKERS, quota_cores, workers_of

pytestmark = pytest.mark.unit


def group(root: Path, path: str, quota: str) -> None:
    place = root / "sys/fs/cgroup" / path
    place.mkdir(parents=True, exist_ok=True)
    (place / "cpu.max").write_text(quota)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("1:cpu:/\n0::/system.slice/nats.service\n")
    return tmp_path


def test_the_smallest_quota_of_the_groups_above_counts(root: Path) -> None:
    group(root, "system.slice/nats.service", "max 100000\n")
    assert quota_cores(str(root)) == MAX_WORKERS
    group(root, "system.slice", "250000 100000\n")
    assert quota_cores(str(root)) == 2.5
    group(root, "system.slice/nats.service", "50000 100000\n")
    assert quota_cores(str(root)) == 0.5


def test_in_a_container_the_root_of_the_groups_has_the_quota(root: Path) -> None:
    (root / "proc/self/cgroup").write_text("0::/\n")
    group(root, "", "150000 100000\n")
    assert quota_cores(str(root)) == 1.5


def test_without_groups_there_is_no_quota(tmp_path: Path, root: Path) -> None:
    assert quota_cores(str(tmp_path / "nowhere")) == MAX_WORKERS
    assert quota_cores(str(root)) == MAX_WORKERS


def test_auto_is_what_a_quota_allows_entirely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    for quota, workers in ((0.5, 1), (1.5, 1), (3.9, 3), (64, 8)):
        monkeypatch.setattr("lakestream.config.values.quota_cores", lambda quota=quota: quota)
        assert workers_of("auto") == workers
