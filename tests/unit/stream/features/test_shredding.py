"""Tests of the removal of deleted messages' bytes from the stream's files, unless the client requested less."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakestream.stream.core.operations import DeleteMessage
from lakestream.stream.features.secure_delete import DELAY_NS
from tests.unit.stream_world import World

pytestmark = pytest.mark.unit


def on_disk(directory: Path, text: bytes) -> bool:
    return any(text in path.read_bytes() for path in (directory / "log").iterdir())


def pass_time(world: World) -> None:
    for _ in range(3):  # the segment is sealed, rewritten, and nothing is left to do
        world.clock.advance(DELAY_NS)
        world.settle()


@pytest.mark.parametrize("restarted", [False, True])
def test_the_bytes_go_after_a_while(tmp_path: Path, restarted: bool) -> None:
    directory = tmp_path / "S"
    world = World(str(directory))
    for text in (b"first secret", b"second secret", b"third secret"):
        world.acked("s.a", text, Nats_Msg_Id=text[:5].decode())
    world.stream.propose(DeleteMessage(1, erase=False))
    world.stream.propose(DeleteMessage(2))
    world.settle()
    if restarted:
        world.stream.stop()
        world.stream.store.close(world.stream.dump())
        world = World(str(directory), clock=world.clock)
    assert on_disk(directory, b"second secret")
    pass_time(world)
    assert not any(timer.due <= world.clock.now() + DELAY_NS for timer in world.clock.timers if not timer.cancelled)
    assert not on_disk(directory, b"second secret")
    assert [on_disk(directory, b"%b secret" % word) for word in (b"first", b"third")] == [True, True]
    assert world.content() == [(3, b"s.a", b"third secret")]
    assert world.acked("s.a", b"", Nats_Msg_Id="secon")["duplicate"], "what the header says still counts"
