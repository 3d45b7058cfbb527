"""Tests of power losses during the deletion of a stream's directory."""

from __future__ import annotations

from random import Random

from lakestream.log.store.root import GONE, NOTE, OWING
from tests.power.conftest import Record
from tests.power.disk import ONE_DISK, Loss, PowerDisk


def test_a_directory_that_is_owed_to_somebody_has_its_note_after_any_power_loss(record: Record) -> None:
    journal, _ = record(
        """
from lakestream.log.format.files import Files
from lakestream.log.store.root import clear, leave
files = Files()
files.make_directory(os.path.abspath("streams/S/log"))
for name in ("1.seg", "2.seg"):
    files.write_whole(os.path.abspath("streams/S/log/" + name), [b"content"])
gone = leave(files, os.path.abspath("streams/S"), b"the note")
clear(files, gone)
"""
    )
    disk = PowerDisk(journal)
    owing = 0
    for operation in journal.operations():
        disk.apply(operation)
        for loss, seed in [(loss, 0) for loss in ONE_DISK] + [(Loss.TORN, seed) for seed in range(20)]:
            image = disk.lose(loss, Random(seed))
            for folder in image.folders:
                if GONE in folder and folder.endswith(OWING):
                    owing += 1
                    assert image.files.get(f"{folder}/{NOTE}", b"").endswith(b"the note"), operation
    assert owing, "no crash was in between"
