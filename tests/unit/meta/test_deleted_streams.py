"""Tests of deleted streams and the lake: kills at every step, an unavailable lake, any order of steps.

A kill is simulated at each single change that the process makes to the file system, from the request to the last file:
the process does nothing after it, and another one starts on what is there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lakestream.config.options import LakeOptions
from lakestream.lake.errors import OlderStore
from lakestream.lake.staging import scan, staging
from lakestream.lake.storage import paths
from lakestream.lake.table import segments
from lakestream.log.format.files import Files
from lakestream.meta.deleted_streams import creation
from lakestream.ports import Single
from lakestream.stream.core.operations import encode
from tests.unit.account.test_engines import World
from tests.unit.stream_world import CLIENT

pytestmark = pytest.mark.unit

CHANGES = ("replace", "link", "unlink", "mkdir", "rmdir", "pwritev", "fsync")
KEEP = {"lakestream.on_delete": "keep"}
STEPS = 400
"""Upper bound of the steps of a deletion."""


class Killed(BaseException):
    """Raised when the process is killed."""


class Killer:
    """Allows a number of changes of the file system, and nothing after them."""

    def __init__(self, after: int) -> None:
        self.left = after
        self.killed = False

    def _step(self) -> None:
        if self.left <= 0:
            self.killed = True
            raise Killed
        self.left -= 1

    @contextmanager
    def at_work(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patched:
            for name in CHANGES:
                patched.setattr(os, name, self._wrapped(getattr(os, name)))
            patched.setattr(Files, "sync", self._wrapped(Files.sync))
            yield

    def _wrapped(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def change(*args: Any, **kwargs: Any) -> Any:
            self._step()
            return real(*args, **kwargs)

        return change


def settle(world: World, killer: Killer | None = None) -> None:
    """Run until nothing is left to do, or the process is killed."""
    world.clock.turn()
    while world.io.waiting and not (killer is not None and killer.killed):
        world.io.work()
        world.clock.turn()


def lake_of(world: World) -> str:
    return str(world.directory / "lake")


def place(world: World, uid: str) -> str:
    return paths.staging(lake_of(world), "S", uid, "A")


def staged(world: World, uid: str) -> list[int]:
    """Return the sequences of all staged messages, in order."""
    found: set[int] = set()
    for segment in staging.segments(place(world, uid)):
        for batch in segments.decode(segment.path):
            found.update(batch.column("seq").to_pylist())
    return sorted(found)


def marked(world: World, uid: str) -> bool:
    return os.path.exists(f"{place(world, uid)}/{paths.DELETED_FILE}")


def lying(world: World) -> list[str]:
    """Return the names of stream directories in the store, including deleted ones."""
    return os.listdir(world.directory / "jetstream" / "A" / "streams")


def filled(directory: Path, metadata: dict[str, str]) -> tuple[World, str]:
    """Create a stream with two staged messages, and three in its open segment; return its uid."""
    world = World(directory, "A", lake=True)
    world.create("A", metadata=metadata)
    stream = world.engines.of("A").streams["S"]
    for _ in range(2):
        assert "seq" in world.publish("A")
    stream.store.ask_seal()
    world.settle()
    world.keeper.when_staged(stream, lambda wrong: None)
    world.settle()
    assert staged(world, stream.uid) == [1, 2]
    for _ in range(3):
        assert "seq" in world.publish("A")
    return world, stream.uid


def delete(world: World, killer: Killer | None = None) -> list[Any]:
    answers: list[Any] = []
    world.engines.of("A").delete_stream("S", answers.append)
    settle(world, killer)
    return answers


def away(*_: Any) -> None:
    raise OSError(errno.EIO, "away")


@pytest.mark.parametrize("metadata", [KEEP, {}], ids=["keep", "drop"])
def test_invariant_a_deletion_that_is_killed_anywhere_is_undecided_or_completed(
    tmp_path: Path, metadata: dict[str, str]
) -> None:
    undecided = completed = 0
    for step in range(STEPS):
        world, uid = filled(tmp_path / str(step), metadata)
        killer = Killer(step)
        with killer.at_work():
            answers = delete(world, killer)
        world.stores.close()
        again = World(tmp_path / str(step), "A", lake=True)
        alive = "S" in again.engines.of("A").streams
        if alive:
            undecided += 1
            assert answers != [None], f"step {step}: it was answered"
            assert again.ask("A", "$JS.API.STREAM.INFO.S")["state"]["messages"] == 5
            assert not marked(again, uid)
            assert delete(again) == [None]
        else:
            completed += 1
            again.settle()
        assert marked(again, uid), f"step {step}: the lake takes the stream for a living one"
        if metadata:  # otherwise the compactor removes it with the staging directory
            assert staged(again, uid) == [1, 2, 3, 4, 5], f"step {step}"
        assert lying(again) == [], f"step {step}"
        again.stop()
        if not killer.killed:
            assert answers == [None]
            break
    else:
        raise AssertionError("it never came to an end")
    assert undecided > 3
    assert completed > 10


def test_a_deletion_is_answered_while_the_lake_is_away_and_the_name_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, uid = filled(tmp_path, KEEP)
    with monkeypatch.context() as patched:
        patched.setattr(staging, "stage", away)
        assert delete(world) == [None]
        assert "away" in world.keeper.troubles()["A/S"], "monitoring shows it"
        assert not marked(world, uid)
        world.create("A")
        assert world.publish("A")["seq"] == 1
        (directory,) = set(lying(world)) - {"S"}
        world.stop()
        world = World(tmp_path, "A", lake=True)
        world.settle()
        assert directory in lying(world), "a start goes on with it, and does not get anywhere either"
        assert not marked(world, uid)
    world.clock.advance(LakeOptions().poll_ns)
    world.settle()
    assert staged(world, uid) == [1, 2, 3, 4, 5]
    assert marked(world, uid)
    assert world.keeper.troubles() == {}
    assert lying(world) == ["S"]
    assert world.engines.of("A").streams["S"].store.msgs == 1
    world.stop()


def test_publishes_on_their_way_do_not_keep_a_stream_from_being_sealed(tmp_path: Path) -> None:
    world, uid = filled(tmp_path, KEEP)
    for _ in range(3):
        world.hub("A").route(None, CLIENT, Single(b"S", b"", b"", b"on its way"))
    world.clock.turn()
    assert len(world.io.waiting) == 1, "a write is under way, which nobody will be told of"
    answers: list[Any] = []
    world.engines.of("A").delete_stream("S", answers.append)
    world.settle()
    assert answers == [None]
    assert staged(world, uid) == [1, 2, 3, 4, 5]
    world.stop()


def test_a_stream_whose_log_takes_no_seal_is_not_deleted_before_its_kept_table_has_it(tmp_path: Path) -> None:
    world, uid = filled(tmp_path, KEEP)
    world.engines.of("A").streams["S"].group.give_up(OSError(errno.EIO, "a bad disk"))
    (error,) = delete(world)
    assert error.err_code == 10050
    assert "cannot be sealed before a restart" in error.description
    assert world.ask("A", "$JS.API.STREAM.INFO.S")["state"]["messages"] == 5, "it is there as before"
    world.stop()
    again = World(tmp_path, "A", lake=True)
    assert delete(again) == [None]
    assert staged(again, uid) == [1, 2, 3, 4, 5]
    again.stop()


def test_an_older_copy_of_a_store_can_be_deleted_as_its_table_has_more_than_it(tmp_path: Path) -> None:
    world, uid = filled(tmp_path, KEEP)
    stream = world.engines.of("A").streams["S"]
    keeper: Any = world.keeper
    keeper._failed(keeper._syncs["A", "S"], OlderStore("a table", 99, stream.store.applied))
    assert stream.failed is not None
    assert delete(world) == [None]
    assert marked(world, uid)
    assert lying(world) == []
    world.stop()


def test_without_a_lake_a_start_removes_what_waited_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, _ = filled(tmp_path, KEEP)
    with monkeypatch.context() as patched:
        patched.setattr(staging, "stage", away)
        assert delete(world) == [None]
        world.stop()
    (directory,) = lying(world)
    assert directory.endswith("-owing")
    again = World(tmp_path, "A")
    again.settle()
    assert lying(again) == []
    again.stop()


@pytest.mark.parametrize("note", [None, b"", b"?", b"another's"])
def test_a_leftover_without_a_good_note_is_set_aside_whole_and_the_other_streams_serve(
    tmp_path: Path, note: bytes | None
) -> None:
    world = World(tmp_path, "A")
    world.create("A")
    world.create("A", "OTHER")
    other = world.engines.of("A").streams["OTHER"]
    if note == b"another's":
        note = encode(creation(other))
    world.stop()
    account = tmp_path / "jetstream" / "A"
    leftover = account / "streams" / "S.deleted-7-owing"
    os.rename(account / "streams" / "S", leftover)
    held = sorted(path.name for path in (leftover / "log").iterdir())
    if note is not None:
        (leftover / "leaving").write_bytes(note)
    again = World(tmp_path, "A", lake=True)
    again.settle()
    assert os.listdir(account / "streams") == ["OTHER"]
    assert again.publish("A", "OTHER")["seq"] == 1
    (aside,) = (account / "aside").iterdir()
    assert aside.name.startswith("S.deleted-7-owing.aside-")
    assert sorted(path.name for path in (aside / "log").iterdir()) == held
    (line,) = again.log.errors
    assert line.startswith("stream S: it was deleted")
    assert str(leftover) in line
    assert str(aside) in line
    again.stop()
    World(tmp_path, "A", lake=True).stop()
    assert aside.exists(), "what was set aside is not looked at again"


def test_a_younger_replica_does_not_take_back_what_another_said(tmp_path: Path) -> None:
    world, uid = filled(tmp_path, KEEP)
    assert delete(world) == [None]
    outdated = staging.StreamIdentity("S", "A", uid, 1)  # from before it was told to keep its table
    staging.mark_deleted(lake_of(world), outdated)
    assert staged(world, uid) == [1, 2, 3, 4, 5]
    found = staging.read_identity(place(world, uid))
    assert found is not None
    assert b"keep" in bytes(found.config)
    world.stop()


def test_what_comes_while_a_place_is_cleared_is_a_deleted_streams_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, uid = filled(tmp_path, KEEP)
    assert delete(world) == [None]
    directory = place(world, uid)
    (first, last) = staging.segments(directory)
    late = tmp_path / "late"
    os.rename(last.path, late)
    identity = staging.read_identity(directory)
    assert identity is not None
    real = os.unlink

    def unlink(path: str, **more: Any) -> None:
        real(path, **more)
        if str(path).endswith(paths.DELETED_FILE):
            os.rename(late, last.path)  # another replica stages it at this moment

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", unlink)
        staging.discard_through(directory, identity, first.last_index)
    assert staging.segments(directory) == [last]
    (found,) = scan.Scanner(lake_of(world)).scan()
    assert (found.identity, found.deleted) == (identity, True)
    staging.discard_through(directory, identity, first.last_index)
    assert staging.segments(directory) == [last], "the table does not hold it"
    staging.discard_through(directory, identity, last.last_index)
    assert not os.path.exists(os.path.dirname(directory))
    world.stop()
