"""Test of streams' tables by catalog names, in a Hive metastore."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lake.conftest import job

pytestmark = pytest.mark.lake


def test_a_hive_metastore_leads_to_the_tables_whatever_happens_to_them(tmp_path: Path) -> None:
    root = str(job().parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "tests.lake.metastore_program", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["made by hand"] == [1, 2, 3, 4, 5]
    [first, second] = seen["registered"][1:3]
    assert seen["registered"][0] == ["ORDERS", "orders"], "the entry that was there is kept"
    assert first == ["a-b", "a_b"]
    assert second[0] == "a_b"
    assert second[1].startswith("a_b_")
    assert seen["registered"][3] == ["größe", "gr__e"]
    assert seen["again"] == seen["registered"]
    assert seen["tables"] == sorted(["orders", "a_b", second[1], "gr__e"])
    assert seen["after a commit"] == seen["after maintenance"] == [1, 4, 5, 6, 7, 8, 9]
    assert seen["earlier"] == [1, 2, 3, 4, 5]
    assert seen["ended"] == [1], "a column that came later is there"
    assert seen["whole"] == seen["by path"] == [1, 4, 5, 6, 7, 8, 9, 10]
    assert seen["dropped"], "dropping the entry takes nothing"
    assert seen["one less"] == [["ORDERS", "orders"], second, ["größe", "gr__e"]]
    assert seen["left"] == sorted(["orders", second[1], "gr__e", "other"])
    assert seen["database"] == [["ORDERS", "orders"], ["a_b", "a_b"], ["größe", "gr__e"]]
    assert seen["there"] == [1, 2]
