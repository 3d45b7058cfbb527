"""Tests of a small store in which every byte is damaged, one at a time.

Each damage is detected with its file, or repaired by the start with a line for the log, or without effect; it never
changes data silently, harms another stream, or ends in a traceback. A sample runs in `make test`, all cases in
`make test-all`. `LAKESTREAM_DAMAGE_SEED` chooses sample and bits.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.unit.verify import corruption

pytestmark = [pytest.mark.unit, pytest.mark.parametrize("killed", [True, False], ids=["killed", "stopped"])]

SAMPLE = 120
SEED = int(os.environ.get("LAKESTREAM_DAMAGE_SEED", "1"))


def check(tmp_path: Path, killed: bool, sample: int | None) -> Counter[str]:
    store, scratch = tmp_path / "store", tmp_path / "scratch"
    scratch.mkdir()
    corruption.build(store, killed=killed)
    assert corruption.verify(store) == []
    cases = corruption.every_case(store, SEED)
    if sample is not None:
        cases = Random(SEED).sample(cases, sample)
    processes = (os.cpu_count() or 1) if sample is None else 1
    outcomes = list(corruption.judged(store, scratch, cases, processes))
    assert len(outcomes) == len(cases)
    wrong = [each for each in outcomes if each.kind not in corruption.GOOD]
    assert not wrong, "\n\n".join(map(str, wrong[:5]))
    return Counter(each.kind for each in outcomes)


def test_a_sample_of_damaged_bytes_is_detected_or_repaired(tmp_path: Path, killed: bool) -> None:
    assert check(tmp_path, killed, SAMPLE)["detected"] > SAMPLE // 2


@pytest.mark.heavy
@pytest.mark.timeout(7200)
def test_every_damaged_byte_is_detected_or_repaired(tmp_path: Path, killed: bool) -> None:
    found = check(tmp_path, killed, None)
    print(f"seed {SEED}: {dict(found)}")
    assert found["detected"] > 50_000
