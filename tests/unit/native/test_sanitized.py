"""Test of the compiled module with the sanitizers of addresses and of undefined behaviour.

It is built once more, with them, outside the checkout, and runs all tests of test_native.py and test_batches.py. Python
allocates with `malloc` there, so that a byte read or written beside an object is seen.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzzing import ROUNDS

pytestmark = [pytest.mark.unit, pytest.mark.heavy, pytest.mark.timeout(1200)]

ROOT = Path(__file__).resolve().parents[3]
FLAGS = "-fsanitize=address,undefined"
FUZZ_ROUNDS = 50_000


def library(name: str) -> str:
    found = subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout
    return found.strip()


def build(source: Path) -> Path:
    """Build the module with the sanitizers in a copy of its sources; return its file."""
    shutil.copytree(
        ROOT / "lakestream" / "native", source / "lakestream" / "native", ignore=lambda _, names: built(names)
    )
    shutil.copy(ROOT / "setup.py", source)
    env = {**os.environ, "CC": "gcc", "CFLAGS": f"{FLAGS} -fno-sanitize-recover=all -O1 -g", "LDFLAGS": FLAGS}
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=source, env=env, check=False, capture_output=True, text=True)
    found = list(source.glob("lakestream/native/_fast.*.so"))
    assert len(found) == 1, done.stdout + done.stderr
    return found[0]


def built(names: list[str]) -> list[str]:
    return [name for name in names if name.endswith((".so", ".pyd")) or name == "__pycache__"]


def test_no_test_reads_or_writes_beside_its_objects(tmp_path: Path) -> None:
    env = {
        **os.environ,
        "LD_PRELOAD": f"{library('libasan.so')} {library('libubsan.so')}",
        # Python itself frees little of what it has at its end.
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
        "LAKESTREAM_TEST_NATIVE": str(build(tmp_path)),
        "LAKESTREAM_FUZZ_ROUNDS": str(max(ROUNDS, FUZZ_ROUNDS)),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not heavy", "-p", "no:cacheprovider", "-p", "no:xdist"]
    tests = [str(ROOT / "tests/unit" / name) for name in ("native/test_native.py", "schemas/test_batches.py")]
    done = subprocess.run([*command, *tests], cwd=ROOT, env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
