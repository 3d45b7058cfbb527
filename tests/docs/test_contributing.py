"""The differences in docs/contributing apply to this release, and their tests pass."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import DIFF, ROOT, blocks

pytestmark = pytest.mark.unit

PAGES = sorted(path for path in (ROOT / "docs" / "contributing").glob("*.md") if path.name != "README.md")
MOST_FILES = 6


def difference(page: Path) -> str:
    """Return the difference of a page."""
    [block] = [block for block in blocks(page) if block.language == DIFF]
    return block.text


def apply(page: Path, folder: Path, *options: str) -> None:
    """Apply the difference of a page to a copy of the repository."""
    done = subprocess.run(
        ["git", "apply", "-v", *options],
        cwd=folder,
        input=difference(page),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_the_difference_applies_and_is_small(page: Path) -> None:
    apply(page, ROOT, "--check")
    assert len(re.findall(r"^\+\+\+ b/", difference(page), re.MULTILINE)) <= MOST_FILES


@pytest.mark.heavy
@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_its_test_passes_with_the_difference_and_fails_without(page: Path, tmp_path: Path) -> None:
    for name in ("lakestream", "tests", "docs", "packages"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    apply(page, tmp_path)
    [test] = re.findall(r"^\+\+\+ b/(tests/.*)$", difference(page), re.MULTILINE)
    for passes in (True, False):
        if not passes:
            apply(page, tmp_path, "--reverse", f"--exclude={test}")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": ":".join(map(str, (tmp_path / "packages").glob("*/")))},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode == 0) is passes, done.stdout
