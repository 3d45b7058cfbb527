"""Tests of the presence of a lake: one probe at a time, errors at once, and what happens once it is back."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from lakestream.lake.errors import LakeAway
from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage.lake import open_storage
from lakestream.logging import Logger
from lakestream.protocol.api.errors import for_clients
from lakestream.server.lake.presence import AWAY_PROBE_NS, LIMIT_NS, LOCAL_PROBE_NS, Presence
from tests.unit.consumer_world import VirtualClock
from tests.unit.logkit import HeldIo

pytestmark = pytest.mark.unit


class Place:
    """A lake whose probes wait until the test runs them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "lake"
        lakes.require(str(self.directory), create=True)
        self.clock, self.io = VirtualClock(), HeldIo()
        self.presence = Presence(str(self.directory), self.clock, self.io, Logger())  # type: ignore[arg-type]
        self.presence.probe.expect(lakes.read_id(open_storage(str(self.directory))), "remove the file")
        self.returned = 0
        self.presence.on_return.append(self._back)

    def _back(self) -> None:
        self.returned += 1

    def probed(self) -> None:
        """Let the probe that is due happen."""
        self.clock.advance(LOCAL_PROBE_NS)
        self.presence.poll()
        self.io.run_all()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_directory_without_the_lakes_id_is_away_until_it_has_it_again(place: Place) -> None:
    aside = place.directory.with_name("aside")
    place.directory.rename(aside)
    place.directory.mkdir()
    place.probed()
    with pytest.raises(LakeAway, match=r"there is no .*_lake\.json \(remove the file\).* mount it") as told:
        place.presence.require()
    assert for_clients(told.value) == "the lake cannot be reached; try again in 5 s"
    assert str(place.directory) not in for_clients(told.value)
    place.directory.rmdir()
    aside.rename(place.directory)
    place.clock.advance(AWAY_PROBE_NS)
    place.probed()
    place.presence.require()
    assert place.returned == 1


def test_another_lake_in_its_place_is_not_the_lake(place: Place) -> None:
    os.unlink(place.directory / "_lake.json")
    lakes.identify(open_storage(str(place.directory)))
    place.probed()
    with pytest.raises(LakeAway, match="another lake is there"):
        place.presence.require()


def test_a_probe_without_an_answer_is_an_outage_and_no_second_one_begins(place: Place) -> None:
    place.presence.poll()
    place.clock.advance(LIMIT_NS - 1)
    place.presence.require()
    place.clock.advance(1)
    with pytest.raises(LakeAway, match="no answer within 5 s"):
        place.presence.require()
    since = place.presence.since_ns
    place.clock.advance(10 * LIMIT_NS)
    place.presence.poll()
    assert len(place.io.waiting) == 1
    assert place.presence.since_ns == since
    place.io.run_all()
    place.presence.require()
    assert place.returned == 1


async def test_reads_under_way_fail_when_the_lake_goes_away(place: Place) -> None:
    work: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    read = asyncio.ensure_future(place.presence.answer(work))
    await asyncio.sleep(0)
    place.presence.poll()
    place.clock.advance(LIMIT_NS)
    with pytest.raises(LakeAway):
        await read
    work.set_exception(OSError("late"))  # is no error that nobody has taken
    await asyncio.sleep(0)


async def test_an_error_of_a_lake_that_answers_is_its_own(place: Place) -> None:
    judged = asyncio.ensure_future(place.presence.judge())
    await asyncio.sleep(0)
    place.io.run_all()
    await judged
    (place.directory / "_lake.json").rename(place.directory / "away")
    judged = asyncio.ensure_future(place.presence.judge())
    await asyncio.sleep(0)
    place.io.run_all()
    with pytest.raises(LakeAway):
        await judged
