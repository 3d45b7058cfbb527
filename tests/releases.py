"""Older programs of this repository, for tests of mixed releases.

Belongs here: the commits that stand for older releases, and unpacking one of them. It runs with the Python packages of
the present one; the tests need the history of the repository.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).resolve().parents[1]
RELEASES = {"0.1.0": "50ceea53", "before issue 40": "8b5ee612"}
"""Commits of the older programs: the release, and the newest one before faults came together (issue 40)."""
_PARTS = (["lakestream", "packages", "jobs"], ["lakestream", "jobs"])
"""Directories that are unpacked; 0.1.0 has no packages."""


class Release(msgspec.Struct, frozen=True):
    """A program: its name, the root of its files, and the environment in which `lakestream` is this one."""

    name: str
    tree: Path
    environment: dict[str, str]

    @property
    def job(self) -> Path:
        """The compactor's program."""
        return self.tree / "jobs" / "compact.py"


NOW = Release("this", ROOT, {})


def unpacked(name: str, directory: Path) -> Release:
    """Unpack one of RELEASES into a new directory."""
    directory.mkdir()
    for parts in _PARTS:
        packed = subprocess.run(["git", "archive", RELEASES[name], *parts], cwd=ROOT, capture_output=True)
        if not packed.returncode:
            break
    else:
        pytest.fail(f"commit {RELEASES[name]} is not here, fetch the whole history: {packed.stderr.decode()}")
    subprocess.run(["tar", "-x", "-C", directory], input=packed.stdout, check=True)
    packages = sorted(str(path) for path in directory.glob("packages/*") if path.is_dir())
    environment = {"PYTHONPATH": os.pathsep.join([str(directory), *packages])}
    where = subprocess.run(
        [sys.executable, "-P", "-c", "import lakestream; print(lakestream.__path__[0])"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.strip() == str(directory / "lakestream")
    return Release(name, directory, environment)


def files_of(place: Path) -> dict[str, bytes]:
    """Return the content of all files below a directory, to show that a program has changed none."""
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}
