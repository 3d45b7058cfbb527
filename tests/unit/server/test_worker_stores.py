"""Tests of the directories of the workers' streams: which streams are moved where."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakestream.config.errors import StartError
from lakestream.config.options import JetStreamOptions
from lakestream.log.store.root import StoreRoot
from lakestream.server.workers.stores import distribute

pytestmark = pytest.mark.unit


def make(store: Path, worker: int, *names: str) -> None:
    base = store / "workers" / str(worker) if worker else store
    for name in names:
        log = base / "jetstream" / "$G" / "streams" / name / "log"
        log.mkdir(parents=True)
        (log / "0001").write_text(name)


def options(store: Path) -> JetStreamOptions:
    return JetStreamOptions(store_dir=str(store), max_memory=1, max_file=1)


def held(store: Path, worker: int) -> set[str]:
    base = store / "workers" / str(worker) if worker else store
    return {path.parent.parent.name for path in (base / "jetstream" / "$G" / "streams").glob("*/log/0001")}


def test_streams_are_spread_evenly(tmp_path: Path) -> None:
    make(tmp_path, 0, *(f"S{number}" for number in range(7)))
    distribute(options(tmp_path), 3)
    sizes = sorted(len(held(tmp_path, worker)) for worker in range(3))
    assert sizes == [2, 2, 3]
    assert set[str]().union(*(held(tmp_path, worker) for worker in range(3))) == {f"S{number}" for number in range(7)}


def test_nothing_is_moved_between_workers_with_as_many_streams(tmp_path: Path) -> None:
    make(tmp_path, 0, "A", "B")
    make(tmp_path, 1, "C")
    assert distribute(options(tmp_path), 2) == []


def test_streams_of_workers_that_are_no_more_are_moved_to_the_others(tmp_path: Path) -> None:
    make(tmp_path, 0, "A")
    make(tmp_path, 1, "B")
    make(tmp_path, 2, "C.deleted-1-owing", "D")
    distribute(options(tmp_path), 2)
    assert held(tmp_path, 0) | held(tmp_path, 1) == {"A", "B", "C.deleted-1-owing", "D"}
    assert not (tmp_path / "workers" / "2").exists()
    distribute(options(tmp_path), 1)
    assert held(tmp_path, 0) == {"A", "B", "C.deleted-1-owing", "D"}
    assert not (tmp_path / "workers").exists()


def test_a_directory_of_a_worker_with_unknown_files_stays(tmp_path: Path) -> None:
    make(tmp_path, 1, "B")
    (tmp_path / "workers" / "1" / "notes").write_text("mine")
    distribute(options(tmp_path), 1)
    assert held(tmp_path, 0) == {"B"}
    assert (tmp_path / "workers" / "1" / "notes").exists()


def test_streams_of_the_same_name_are_refused_with_their_places(tmp_path: Path) -> None:
    make(tmp_path, 0, "A")
    make(tmp_path, 1, "A")
    with pytest.raises(StartError, match="streams of the same name: move one of them away"):
        distribute(options(tmp_path), 1)
    assert held(tmp_path, 0) == held(tmp_path, 1) == {"A"}


def test_a_store_in_use_is_refused(tmp_path: Path) -> None:
    make(tmp_path, 0, "A")
    root = StoreRoot.open((tmp_path / "jetstream").as_posix())
    try:
        with pytest.raises(StartError, match="another server uses this store"):
            distribute(options(tmp_path), 2)
    finally:
        root.close()
