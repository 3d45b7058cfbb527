"""Tests of entries that wait for the messages with which a mirror begins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lakestream.log.format.files import Files
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.store.base import Base, BaseOrigin
from lakestream.log.store.log import Appended
from lakestream.raft.group.group import Committed
from lakestream.stream.mirroring import clone
from lakestream.stream.mirroring.clone import Holding
from tests.unit.stream_world import World

Read = Callable[[Base | None, BaseException | None], None]


class Slow:
    """`Bases` that answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[Read] = []

    def make_base(self, files: Files, directory: str, account: str, name: str, origin: BaseOrigin) -> Base:
        raise AssertionError("only at recovery")

    def read_base(self, files: Files, directory: str, account: str, name: str, origin: BaseOrigin, done: Read) -> None:
        self.asked.append(done)


def entry(index: int, size: int) -> Committed:
    return Committed(Frame(Kind.NOOP, 1, index, 0, b"x" * size), Appended(None, 0, index), None)


def test_what_comes_behind_too_much_is_not_applied_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clone, "HELD_BYTES", 100)
    bases, done = Slow(), list[list[Committed]]()
    holding = Holding(World(str(tmp_path / "S")).stream, bases, BaseOrigin(1, 1), lambda text: None, done.append)
    assert holding.add([entry(1, 60)])
    holding.begin()
    assert not holding.add([entry(2, 60)]), "the replica is to be opened anew"
    assert holding.add([entry(3, 1)]), "which is asked for once"
    bases.asked[0](None, OSError("later"))
    bases.asked[0](object(), None)  # type: ignore[arg-type]
    assert done == [], "nothing of it is applied: the log has it all"
