"""Tests of power losses while a segment is sealed."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.power.conftest import Record
from tests.power.disk import ONE_DISK, Loss, PowerDisk
from tests.unit.logkit import MiniStream, closing  # noqa: F401

BATCH = 300
BATCHES = 3
TORN = [(Loss.TORN, seed) for seed in range(1, 13)]


@pytest.mark.smoke
@pytest.mark.usefixtures("closing")
@pytest.mark.parametrize("synced", [True, False])
def test_a_segment_that_was_being_sealed_is_read_after_any_power_loss(
    record: Record, tmp_path: Path, synced: bool
) -> None:
    """The end of a footer may be there without its tables, or without the frames if those were not synced yet."""
    journal, _ = record(
        f"""
from lakestream.log.format.files import Files
from lakestream.log.store.segment_log import LogOptions
from tests.unit.logkit import MiniStream, message
stream = MiniStream(os.path.abspath("S"), LogOptions(seal_bytes=20_000, sync_always={synced}), Files())
for batch in range({BATCHES}):
    stream.publish(*(message(number) for number in range({BATCH})))
"""
    )
    disk = PowerDisk(journal)
    seen = longest = 0
    for operation in journal.operations():
        disk.apply(operation)
        for loss, seed in [(loss, 0) for loss in ONE_DISK] + TORN:
            image = disk.lose(loss, Random(seed))
            if "S/log" not in image.folders:
                continue
            image.write(place := tmp_path / f"{operation.at} {loss.value} {seed}")
            stream = MiniStream(str(place / "S"))
            read = [each.seq for each in stream.all()]
            assert read == list(range(1, stream.store.msgs + 1)), operation
            seen += bool(stream.store.notes)
            longest = max(longest, len(read))
            stream.store.abandon()
    assert longest == BATCH * BATCHES
    assert seen, "no crash has torn anything"
