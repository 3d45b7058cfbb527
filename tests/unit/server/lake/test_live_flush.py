"""Tests of flushes with simulated disk and turns: order, joined requests, and failures."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakestream.config.options import LakeOptions
from lakestream.lake.staging import compactor_files, staging
from lakestream.lake.staging.compactor_files import UpkeepRequest, UpkeepState
from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage import paths
from lakestream.logging import Logger
from lakestream.meta.deleted_streams import creation
from lakestream.ports import Single
from lakestream.server.lake.api import WATCH_NS, FlushApi
from lakestream.server.lake.keeper import LakeKeeper
from tests.faults.files import FaultyFiles
from tests.unit.logkit import QuickFiles
from tests.unit.stream_world import CLIENT, World


class FlushWorld(World):
    """Stream, its keeper and the flush request."""

    def __init__(self, directory: Path, files: Any = None) -> None:
        super().__init__(str(directory / "store"), files or QuickFiles())
        self.lake = str(directory / "lake")
        lakes.require(self.lake, create=True)
        keeper: Any = LakeKeeper(self.lake, LakeOptions(), self.clock, self.io, Logger())  # type: ignore[arg-type]
        self.keeper = keeper
        keeper.attached(self.stream)
        streams = {"S": self.stream}
        engine: Any = SimpleNamespace(
            bus=self.hub,
            clock=self.clock,
            server_id="N1",
            account="$G",
            node=SimpleNamespace(asked_here=lambda account, name: streams[name]),
            when_open=lambda handler: handler,
        )
        self.api = FlushApi(engine, keeper)
        self.settle()

    def ask(self, request: bytes = b"FLUSH") -> bytes:
        """Make a request about the stream; return the reply subject."""
        self._number += 1
        reply = b"_INBOX.me.%d" % self._number
        self.hub.route(None, CLIENT, Single(b"$LAKE.API.%b.S" % request, reply, b"", b""))
        return reply

    def staged(self) -> list[tuple[int, int]]:
        """Return (first, last) index of each staged segment."""
        directory = paths.staging(self.lake, "S", self.stream.uid)
        return [(each.first_index, each.last_index) for each in staging.segments(directory)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FlushWorld]:
    made = FlushWorld(tmp_path)
    yield made
    made.stream.store.close()


def test_invariant_a_flush_has_what_was_acked_before_and_waits_for_the_write_under_way(world: FlushWorld) -> None:
    world.acked("s.a", b"1")
    written = world.publish("s.a", b"2")
    world.clock.turn()
    asked = world.ask()
    world.clock.turn()
    assert (world.answer(asked), world.staged()) == (None, [])
    world.io.work()
    world.clock.turn()
    assert world.answer(written) is not None
    assert world.answer(asked) is None, "the seal comes behind the write"
    world.settle()
    answer = world.answer(asked)
    assert answer is not None
    assert answer["last_seq"] == 2
    assert world.staged() == [(1, answer["last_index"])]


def test_a_publish_behind_the_flush_goes_into_the_next_segment(world: FlushWorld) -> None:
    world.acked("s.a", b"1")
    world.publish("s.a", b"2")
    world.clock.turn()
    first = world.ask()
    late = world.publish("s.a", b"3")
    second = world.ask()
    world.settle()
    answers = [world.answer(reply) for reply in (first, second)]
    assert world.answer(late) is not None
    assert None not in answers
    assert [answer["last_seq"] for answer in answers if answer] == [2, 3]
    assert len(world.staged()) == 2
    third = world.ask()
    world.settle()
    assert world.answer(third) == answers[1], "nothing has come since"
    assert len(world.staged()) == 2


def test_requests_that_come_meanwhile_share_the_next_flush(world: FlushWorld) -> None:
    world.acked("s.a", b"1")
    replies = [world.ask() for _ in range(50)]
    world.settle()
    assert {json.dumps(world.answer(reply)) for reply in replies} == {json.dumps(world.answer(replies[0]))}
    assert len(world.staged()) == 1


def test_a_stream_that_fails_meanwhile_answers_with_its_error(tmp_path: Path) -> None:
    files = FaultyFiles()
    world = FlushWorld(tmp_path, files)
    world.acked("s.a", b"1")
    files.fail, files.code = "write", errno.ENOSPC
    asked = world.ask()
    world.settle()
    world.clock.advance(WATCH_NS)
    answer = world.answer(asked)
    assert answer is not None
    assert answer["error"]["err_code"] == 10077
    again = world.ask()
    assert "error" in (world.answer(again) or {})
    world.stream.store.close()


def test_a_staging_area_that_refuses_is_an_error_and_the_next_flush_may_succeed(
    world: FlushWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.acked("s.a", b"1")
    with monkeypatch.context() as patched:

        def full(*_: object) -> str:
            raise OSError(errno.ENOSPC, "No space left on device")

        patched.setattr(staging, "stage", full)
        asked = world.ask()
        world.settle()
        error = (world.answer(asked) or {})["error"]
        assert (error["code"], "No space left" in error["description"]) == (503, True)
    asked = world.ask()
    world.settle()
    assert (world.answer(asked) or {})["last_seq"] == 1


def test_a_deletion_reaches_an_unavailable_lake_when_it_is_back(
    world: FlushWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It was tried only once: the table stayed for good, and SQL kept showing a deleted stream.
    world.acked("s.a", b"1")
    keeper: Any = world.keeper
    real, tries = staging.mark_deleted, 0

    def away(lake: str, stream: staging.StreamIdentity, keep: bool) -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise OSError("away")
        real(lake, stream, keep)

    monkeypatch.setattr("lakestream.lake.staging.staging.mark_deleted", away)
    done: list[None] = []
    keeper.deleted(creation(world.stream), "", lambda: done.append(None))
    for _ in range(5):
        world.settle()
        world.clock.advance(LakeOptions().poll_ns)
    world.settle()
    assert tries == 3
    assert done == [None]
    assert os.path.exists(f"{paths.staging(world.lake, 'S', world.stream.uid)}/{paths.DELETED_FILE}")


def test_maintenance_is_asked_of_the_compactor_if_one_works_here(world: FlushWorld) -> None:
    asked = world.ask(b"MAINTAIN")
    world.settle()
    error = (world.answer(asked) or {})["error"]
    assert (error["code"], "no compactor is running" in error["description"]) == (503, True)
    world.keeper.attended = True
    asked = world.ask(b"MAINTAIN")
    world.settle()
    assert "maintain_every: 0" in (world.answer(asked) or {})["error"]["description"]
    world.keeper.upkeep = UpkeepState()
    asked = world.ask(b"MAINTAIN")
    world.settle()
    assert (world.answer(asked) or {})["success"] is True
    assert compactor_files.take(world.lake) == [UpkeepRequest(paths.table(world.lake, "S"))]
