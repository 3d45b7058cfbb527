"""The rules of the house that a program can check."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
MODULES = sorted([*ROOT.glob("lakestream/**/*.py"), *ROOT.glob("jobs/*.py")])


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in MODULES:
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def test_there_are_modules() -> None:
    assert len(MODULES) > 20


def test_imports_point_one_way() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_module_says_what_belongs_in_it() -> None:
    silent = [_name(path) for path, tree in _trees() if tree.body and not ast.get_docstring(tree)]
    assert silent == []


def test_no_module_keeps_global_state_that_changes() -> None:
    """`global` statements are how module-level state is changed."""
    found = [
        f"{_name(path)}:{node.lineno}"
        for path, tree in _trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Global)
    ]
    assert found == []


def test_every_folder_with_tests_is_run_by_make_test() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    folders = {path.relative_to(ROOT).parts[1] for path in ROOT.glob("tests/*/**/test_*.py")}
    assert [folder for folder in sorted(folders) if f"tests/{folder}" not in makefile] == []


def test_transaction_logs_have_one_reader() -> None:
    """Only lake/delta/log.py spells paths within `_delta_log`; everything else asks it."""
    path_in_log = re.compile(r"(^|/)_delta_log(/|$)")
    found = [
        f"{_name(path)}:{node.lineno}"
        for path, tree in _trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and path_in_log.search(node.value)
    ]
    assert {place.partition(":")[0] for place in found} == {"lakestream/lake/delta/log.py"}, found


def test_spark_programs_use_the_lake_and_never_the_server() -> None:
    """jobs/ is no package, so that import-linter does not see it."""
    allowed = ("lakestream.lake", "lakestream.log", "lakestream.protocol")
    found = [
        f"{_name(path)}:{node.lineno}"
        for path, tree in _trees()
        if path.parent.name == "jobs"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lakestream")
        if not (node.module or "").startswith(allowed)
    ]
    assert found == []
