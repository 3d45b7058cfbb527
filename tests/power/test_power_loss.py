"""Tests of power losses at any moment of a server and its compactor: everything that clients were told stays true.

LAKESTREAM_POWER_POINTS (10) moments of one recording, each with every kind of loss; LAKESTREAM_POWER_SEED repeats the
choices. LAKESTREAM_POWER_COMPACTIONS (1): crashes after which the compactor also runs.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from random import Random

import pytest

from tests.power.disk import Loss
from tests.power.journal import Kind
from tests.power.replay import Crash, Replay
from tests.power.workload import ALL, recorded

POINTS = int(os.environ.get("LAKESTREAM_POWER_POINTS", "10"))
COMPACTIONS = int(os.environ.get("LAKESTREAM_POWER_COMPACTIONS", "1"))
LONG = POINTS > 10
STREAMS = ALL if LONG else ("ORDERS", "KV_conf", "MIRROR")
ROUNDS = 4 if LONG else 2


def _seed() -> int:
    seed = int(os.environ.get("LAKESTREAM_POWER_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"LAKESTREAM_POWER_SEED={seed}")
    return seed


def test_a_server_that_did_not_sync_its_log_would_be_found(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The audit finds losses when the syncs of the log are removed from a recording, and none with them."""
    with recorded(tmp_path / "life", 1, ("ORDERS",), 0, tmp_path_factory.getbasetemp()) as (recording, _):
        replay = Replay(recording)
    losses = (Loss.SYNCED, Loss.NAMES, Loss.ZEROS)
    assert replay.run([Crash(len(replay.operations), loss, 1) for loss in losses]) == []
    log = {each.inode for each in replay.operations if "/ORDERS/log/" in each.path}
    replay.operations = [each for each in replay.operations if each.kind is not Kind.SYNC or each.inode not in log]
    crashes = [Crash(len(replay.operations), loss, 1) for loss in losses]
    assert [finding.crash for finding in replay.run(crashes)] == crashes


@pytest.mark.timeout(600 + 10 * POINTS)
def test_nothing_is_lost_whenever_the_power_goes(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    seed = _seed()
    choice = Random(seed)
    with recorded(tmp_path / "life", seed, STREAMS, ROUNDS, tmp_path_factory.getbasetemp()) as (recording, job):
        replay = Replay(recording)
        assert replay.differences() == [], "the journal is not what has happened"
        crashes = replay.crashes(POINTS, choice)
        findings = replay.run(crashes)
        late = [crash for crash in crashes if crash.loss in (Loss.SYNCED, Loss.TORN)][-2 * COMPACTIONS :]
        findings += replay.run_compactions(choice.sample(late, COMPACTIONS), job)
    print(f"{POINTS} points of {len(replay.operations)}, {len(crashes)} crashes, {replay.distinct} different images")
    assert not findings, "\n".join(finding.describe(recording.directory) for finding in findings)
