"""Tests of the simulated disk: it guarantees what POSIX does, and nothing else."""

from __future__ import annotations

import errno
from contextlib import suppress
from random import Random

import pytest

from lakestream.log.format.files import InlineIo
from lakestream.log.store.segment_log import LogOptions
from tests.sim.disk import SECTOR, Disk, PowerCut, SimFiles
from tests.unit.logkit import MiniStream, Model, close_all, message

pytestmark = pytest.mark.unit


def machine(seed: int = 1) -> tuple[Disk, SimFiles]:
    disk = Disk(Random(seed))
    return disk, SimFiles(disk, Random(seed))


def put(files: SimFiles, path: str, content: bytes, *, sync: bool) -> None:
    fd = files.create(path)
    files.write(fd, [content], 0)
    if sync:
        files.sync(fd)
        files.sync_directory("/d")
    files.close(fd)


def test_what_was_synced_survives_a_power_cut() -> None:
    for seed in range(50):
        disk, files = machine(seed)
        files.make_directory("/d")
        put(files, "/d/f", b"x" * 5000, sync=True)
        disk.cut_power()
        assert SimFiles(disk, Random(0)).read("/d/f") == b"x" * 5000


def test_what_was_not_synced_survives_a_killed_process_but_not_every_power_cut() -> None:
    whole, torn, holes, none = 0, 0, 0, 0
    for seed in range(200):
        disk, files = machine(seed)
        files.make_directory("/d")
        put(files, "/d/f", b"", sync=True)
        fd = files.open("/d/f", write=True)
        files.write(fd, [b"x" * 3 * SECTOR], 0)
        disk.kill()
        assert files.read("/d/f") == b"x" * 3 * SECTOR
        disk.cut_power()
        left = SimFiles(disk, Random(0)).read("/d/f")
        whole += left == b"x" * 3 * SECTOR
        none += left == b""
        torn += 0 < len(left) < 3 * SECTOR
        holes += b"\0" in left
    assert min(whole, torn, holes, none) > 10, (whole, torn, holes, none)


def test_a_name_is_durable_once_its_directory_is_synced() -> None:
    lost = 0
    for seed in range(50):
        disk, files = machine(seed)
        files.make_directory("/d")
        put(files, "/d/old", b"1", sync=True)
        fd = files.create("/d/new")
        files.write(fd, [b"2"], 0)
        files.sync(fd)
        files.replace("/d/new", "/d/old")
        disk.cut_power()
        fresh = SimFiles(disk, Random(0))
        assert fresh.names("/d") in (["old"], ["new", "old"])
        assert fresh.read("/d/old") in (b"1", b"2")
        lost += fresh.read("/d/old") == b"1"
    assert 10 < lost < 50


def test_after_a_failed_sync_the_bytes_count_as_clean_and_may_be_gone() -> None:
    gone = 0
    for seed in range(50):
        disk, files = machine(seed)
        files.make_directory("/d")
        put(files, "/d/f", b"", sync=True)
        fd = files.open("/d/f", write=True)
        files.write(fd, [b"y"], 0)
        files.fail = "sync"
        with pytest.raises(OSError) as error:  # noqa: PT011 - the code is checked below
            files.sync(fd)
        assert error.value.errno == errno.EIO
        files.sync(fd)  # reports success
        assert files.read("/d/f") == b"y"
        disk.cut_power()
        gone += SimFiles(disk, Random(0)).read("/d/f") == b""
    assert 10 < gone < 40


def test_the_power_can_go_in_the_middle_of_a_write() -> None:
    disk, files = machine()
    files.make_directory("/d")
    put(files, "/d/f", b"", sync=True)
    fd = files.open("/d/f", write=True)
    files.cut_after = 0
    with pytest.raises(PowerCut):
        files.write(fd, [b"z" * 100], 0)
    with pytest.raises(PowerCut):
        files.read("/d/f")
    assert len(SimFiles(disk, Random(0)).read("/d/f")) <= 100


@pytest.mark.parametrize("alone", [False, True], ids=["", "marked"])
@pytest.mark.parametrize("seed", range(40))
def test_a_log_on_it_keeps_every_acknowledged_message_through_kills_and_power_cuts(seed: int, alone: bool) -> None:
    """A log keeps every acknowledged message, and its synced mark never covers anything that a crash may take."""
    random = Random(f"log {seed}")
    disk, model, number = Disk(random), Model(), 0
    options = LogOptions(seal_bytes=700, seal_age_ns=1 << 60, retain_bytes=0)
    for _ in range(8):
        files = SimFiles(disk, random)
        try:
            stream = MiniStream("/d", options, files, InlineIo(), alone=alone)
            assert not [note for note in stream.store.notes if "cannot be read" in note]
            if stream.store.last_seq == model.last_seq + 1:
                model.publish(message(number))  # written when the power was cut, not acknowledged, but there
            model.check(stream.store)
            files.cut_after = random.randrange(40)
            while not files.dead:
                number += 1
                stream.publish(message(number))
                if not files.dead:
                    model.publish(message(number))
                if not files.dead and random.random() < 0.1:
                    stream.store.checkpoint(b"")
                if not files.dead and random.random() < 0.2:
                    stream.store.log.mark()
        except PowerCut:
            assert files.dead
        stream.store.log.marks = None  # type: ignore[union-attr]  # a process that is gone notes nothing
        with suppress(PowerCut):  # nor does it cut its files
            stream.store.log.close()
        close_all()
        if random.random() < 0.7:
            disk.cut_power()
        else:
            disk.kill()
