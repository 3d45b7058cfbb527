"""Tests of power losses of all nodes of a cluster at once: everything that clients were told stays true.

LAKESTREAM_POWER_POINTS (10): moments of one recording at which all nodes lose power and are started again; ten times as
many images are only examined. LAKESTREAM_POWER_SEED repeats the choices.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from random import Random

import pytest

from tests.power.cluster import STEPS, broken_promises, promises, recorded_cluster, steps
from tests.power.disk import Loss
from tests.power.journal import Kind
from tests.power.replay import Crash, Replay

pytestmark = pytest.mark.cluster

POINTS = int(os.environ.get("LAKESTREAM_POWER_POINTS", "10"))
IMAGES = 10 * POINTS


@pytest.mark.timeout(600 + 40 * POINTS)
def test_nothing_is_lost_when_all_nodes_lose_power(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    seed = int(os.environ.get("LAKESTREAM_POWER_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"LAKESTREAM_POWER_SEED={seed}")
    choice = Random(seed)
    with recorded_cluster(tmp_path / "life", seed, False, tmp_path_factory.getbasetemp()) as (recording, _):
        replay = Replay(recording)
    assert replay.differences() == [], "the journal is not what has happened"
    found = steps(replay.operations)
    assert all(found[step] for step in STEPS), found
    assert broken_promises(promises(replay.operations)) == []
    findings = replay.screen(replay.crashes(IMAGES, choice))
    findings += replay.run(replay.crashes(POINTS, choice))
    assert not findings, "\n".join(finding.describe(recording.directory) for finding in findings)
    _would_be_found(replay)


def _would_be_found(replay: Replay) -> None:
    """Check that images show it when nodes do not sync the log of a stream, or do not keep their votes."""
    log = {each.inode for each in replay.operations if "/LIMITED/log/" in each.path}
    kept = replay.operations
    replay.operations = [each for each in kept if each.kind is not Kind.SYNC or each.inode not in log]
    assert replay.screen([Crash(len(replay.operations), Loss.SYNCED, 1)]), "a log that was not synced"
    assert broken_promises(reversed([*promises(kept)])), "terms that go back"
