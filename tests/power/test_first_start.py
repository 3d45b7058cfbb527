"""Tests of power losses around the first start of a store."""

from __future__ import annotations

from random import Random

import pytest

from tests.power.conftest import Record
from tests.power.disk import Loss

pytestmark = pytest.mark.smoke

STREAM = """
from lakestream.log.format.files import Files
from lakestream.log.store.root import StoreRoot
files = Files()
store = StoreRoot.open(os.path.abspath("store/jetstream"))
files.make_directory(store.stream_directory("$G", "S"))
files.write_whole(os.path.join(store.stream_directory("$G", "S"), "replica"), [b"content"])
"""
FILE = "store/jetstream/$G/streams/S/replica"


def test_a_store_that_a_first_start_made_outlives_a_power_loss(record: Record) -> None:
    """The check of the store directory, which comes first, makes it durably."""
    _, disk = record(
        "os.mkdir('store'); os.fsync(os.open('.', os.O_RDONLY))\n"
        "from lakestream.cli.serve import check_directory\ncheck_directory('store')\n" + STREAM
    )
    assert disk.lose(Loss.SYNCED, Random(1)).files[FILE] == b"content"


def test_directories_that_a_killed_process_had_not_synced_are_synced_by_the_next_start(record: Record) -> None:
    _, disk = record("os.makedirs('store/jetstream/$G/streams'); os.fsync(os.open('.', os.O_RDONLY))\n" + STREAM)
    assert disk.lose(Loss.SYNCED, Random(1)).files[FILE] == b"content"
