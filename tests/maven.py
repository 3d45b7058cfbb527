"""Artifacts of Maven's repository that only tests need.

Belongs here: fetching one, once for all tests of this user.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from lakestream_spark import jars

FETCH_SECONDS = 1200.0


def fetch(artifact: str) -> Path:
    """Return the JAR `group:name:version`, fetched unless an earlier test has done so."""
    _, name, version = artifact.split(":")
    kept = Path(jars.directory()) / "tests"
    found = kept / f"{name}-{version}.jar"
    if not found.exists():
        copy_to(kept, artifact)
    return found


def copy_to(directory: Path, artifact: str) -> None:
    """Copy an artifact, as Maven spells it, into a directory."""
    command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={directory}"]
    subprocess.run(command, check=True, timeout=FETCH_SECONDS, capture_output=True)
