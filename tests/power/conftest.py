"""Fixtures that run short programs under the recorder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.power.disk import PowerDisk
from tests.power.journal import Journal, build

Record = Callable[[str], tuple[Journal, PowerDisk]]


@pytest.fixture
def record(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Run a Python program in an empty directory; returns its journal and the disk behind it."""

    def run(program: str) -> tuple[Journal, PowerDisk]:
        path = os.pathsep.join(filter(None, [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")]))
        library = build(tmp_path_factory.getbasetemp())
        journal = Journal.begin(library, tmp_path / "journal", tmp_path / "root")
        subprocess.run(
            [sys.executable, "-c", "import os, shutil, tempfile\n" + program],
            cwd=tmp_path / "root",
            env={**os.environ, **journal.environment(library), "PYTHONPATH": path},
            check=True,
        )
        disk = PowerDisk(journal)
        for operation in journal.operations():
            disk.apply(operation)
        return journal, disk

    return run
