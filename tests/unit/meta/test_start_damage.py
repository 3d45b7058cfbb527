"""Tests of starts with damaged files: damage of one stream never stops another one or the server (invariant 11).

Every kind of file and directory that a server reads of one stream is damaged in every way; the other stream serves, and
the log names the damage. Damage of server-wide files may stop the server, with one line that says what to do.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lakestream.account.engines import MARK_NS
from lakestream.lake.storage import paths
from lakestream.log.format.errors import ForeignStore, StoreVersionError
from lakestream.log.format.files import Files
from lakestream.log.store.root import StoreRoot
from lakestream.log.store.segment_log import LogOptions
from tests.unit.account.test_engines import World

pytestmark = pytest.mark.unit

SMALL = LogOptions(seal_bytes=2000, seal_age_ns=1 << 60, retain_bytes=2500)


class Denied(Files):
    """Files in which access to one path, and everything below it, is denied."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def _check(self, path: str) -> None:
        if path == self._path or path.startswith(self._path + "/"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    def open(self, path: str, write: bool = False) -> int:
        self._check(path)
        return super().open(path, write)

    def create(self, path: str) -> int:
        self._check(path)
        return super().create(path)

    def read(self, path: str) -> bytes:
        self._check(path)
        return super().read(path)

    def names(self, path: str) -> list[str]:
        self._check(path)
        return super().names(path)

    def replace(self, source: str, target: str) -> None:
        self._check(source)
        super().replace(source, target)

    def remove(self, path: str) -> None:
        self._check(path)
        super().remove(path)

    def remove_tree(self, path: str) -> None:
        self._check(path)
        super().remove_tree(path)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with everything that a stream may have, as a killed server left it."""
    directory = tmp_path_factory.mktemp("whole")
    world = World(directory, "A", "B", lake=True)
    world.stores._options = SMALL
    for account, name in (("A", "S"), ("A", "OTHER"), ("B", "B")):
        world.create(account, name)
    stream = world.engines.of("A").streams["S"]
    for number in range(1, 61):
        world.publish("A", data=b"%d" % number * 50)
        if number == 30:
            stream.checkpoint()
            world.settle()
    table = Path(paths.table(str(directory / "lake"), "S", "A"), "_delta_log")
    table.mkdir(parents=True)
    txn = {"txn": {"appId": f"lakestream:{stream.uid}", "version": stream.store.checkpoint_index}}
    lines = [txn, {"metaData": {"id": "t"}}]
    (table / f"{0:020d}.json").write_text("\n".join(json.dumps(line, separators=(",", ":")) for line in lines))
    world.keeper.when_staged(stream, lambda wrong: None)
    world.settle()
    log = Path(stream.store.directory, "log")
    assert len(list(log.glob("*.outline"))) == 1
    assert len(list(log.glob("*.seg"))) > 2
    world.publish("B", "B")
    world.engines.start()
    world.clock.advance(MARK_NS)
    world.settle()
    streams = log.parent.parent
    for name in ("GONE.deleted-5", "GONE.deleted-6-owing", "GONE.incoming"):
        shutil.copytree(streams / "OTHER", streams / name)
    for each in world.engines.streams():
        each.store.log.marks = None  # type: ignore[union-attr]
        each.store.abandon()
    world.stores.close()
    return directory


def in_stream(name: str) -> Callable[[Path], Path]:
    return lambda root: root / "jetstream/A/streams/S" / name


def segment(at: int) -> Callable[[Path], Path]:
    return lambda root: sorted((root / "jetstream/A/streams/S/log").glob("*.seg"))[at]


def outline(root: Path) -> Path:
    return next((root / "jetstream/A/streams/S/log").glob("*.outline"))


def left(name: str) -> Callable[[Path], Path]:
    return lambda root: root / "jetstream/A/streams" / name


def staged(pattern: str) -> Callable[[Path], Path]:
    return lambda root: min((root / "lake").glob(f"accounts/A/segments/S/*/{pattern}"))


def commit(root: Path) -> Path:
    return Path(paths.table(str(root / "lake"), "S", "A"), "_delta_log", f"{0:020d}.json")


KINDS: dict[str, Callable[[Path], Path]] = {
    "account": lambda root: root / "jetstream/B",
    "streams": lambda root: root / "jetstream/B/streams",
    "stream": in_stream(""),
    "log": in_stream("log"),
    "first segment": segment(0),
    "sealed segment": segment(1),
    "open segment": segment(-1),
    "outline": outline,
    "checkpoint": in_stream("checkpoint"),
    "mark": in_stream("synced"),
    "discarded stream": left("GONE.deleted-5"),
    "leaving stream": left("GONE.deleted-6-owing"),
    "incoming state": left("GONE.incoming"),
    "staged identity": staged("stream.json"),
    "staged segment": staged("*.seg"),
    "staging": lambda root: root / "lake/accounts/A/segments/S",
    "commit": commit,
    "table": lambda root: commit(root).parent.parent,
}


def empty(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
        path.mkdir()
    else:
        path.write_bytes(b"")


def half(path: Path) -> None:
    if path.is_dir():
        for name in sorted(os.listdir(path))[::2]:
            remove(path / name)
    else:
        os.truncate(path, path.stat().st_size // 2)


def garbage(path: Path) -> None:
    if path.is_dir():
        for name in os.listdir(path):
            garbage(path / name)
    else:
        path.write_bytes(bytes(range(7, 256, 3)) * (path.stat().st_size // 83 + 1))


def other_type(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
        path.write_bytes(b"not a directory")
    else:
        path.unlink()
        (path / "below").mkdir(parents=True)


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def extra(path: Path) -> None:
    """Create something unknown in a directory, or beside a file."""
    place = path if path.is_dir() else path.parent
    (place / "unknown").mkdir()
    (place / "unknown.seg").write_bytes(b"?")
    (place / "00.outline.old").write_bytes(b"")


def denied(path: Path) -> None:
    """Mark a path for `Denied`."""


DAMAGES = (empty, half, garbage, other_type, remove, extra, denied)
ANY = tuple(each.__name__ for each in DAMAGES)
NOTHING_LEFT = "nothing is left that could be missed"
QUIET = {
    "account": (("empty", "half", "remove"), NOTHING_LEFT),
    "streams": (("empty", "half", "remove"), NOTHING_LEFT),
    "stream": (("remove",), NOTHING_LEFT),
    "outline": (("half",), "its head says what it covers; a read that needs the rest tells"),
    "mark": (("half", "remove"), "its other slot is there; earlier releases kept none"),
    "discarded stream": (tuple(each for each in ANY if each != "denied"), "it is removed"),
    "leaving stream": (("remove",), NOTHING_LEFT),
    "incoming state": (tuple(each for each in ANY if each not in ("denied", "other_type")), "it is removed"),
    "staged identity": (("empty", "half", "garbage", "remove", "extra", "denied"), "it is written anew"),
    "staged segment": (("remove", "extra", "denied"), "it is staged anew; what is not a segment is not the server's"),
    "staging": (("empty", "half", "remove", "extra", "denied"), "it is staged anew"),
    "commit": (("extra", "denied"), "the lake is not behind `Files`"),
    "table": (("extra", "denied"), "the lake is not behind `Files`"),
}
"""Damage that is not reported, and the reasons."""


def is_named(root: Path, path: Path, said: list[str]) -> bool:
    """Return True if a line names the damaged path, or the account's, stream's or table's directory it is in."""
    least = 5 if path.is_relative_to(root / "lake") else 2 if path.is_relative_to(root / "jetstream/B") else 4
    places = [str(each) for each in (path, *path.parents) if len(each.parts) >= len(root.parts) + least]
    return any(place in line for place in places for line in said)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_invariant_damage_of_one_stream_stops_no_other(
    store: Path, tmp_path: Path, kind: str, damage: Callable[[Path], None]
) -> None:
    root = tmp_path / "store"
    shutil.copytree(store, root)
    path = KINDS[kind](root)
    damage(path)
    world = World(root, "A", "B", lake=True, files=Denied(path) if damage is denied else None)
    world.settle()
    said = [*world.log.errors, *world.log.warnings]
    quiet, _ = QUIET.get(kind, ((), ""))
    assert damage.__name__ in quiet or is_named(root, path, said), said
    assert world.publish("A", "OTHER")["seq"] == 1
    if kind not in ("account", "streams"):
        assert world.publish("B", "B")["seq"] == 2
    assert ("S" in world.engines.of("A").streams) == ("S" not in world.engines.of("A").offline) or kind == "stream"
    for stream in world.engines.streams():
        stream.store.abandon()
    world.stores.close()


def test_invariant_a_copied_or_renamed_directory_is_never_served(store: Path, tmp_path: Path) -> None:
    """A copied or renamed directory is not served, even under its new name.

    Deleting that stream would remove the table of the original one.
    """
    root = tmp_path / "store"
    shutil.copytree(store, root)
    streams = root / "jetstream/A/streams"
    shutil.copytree(streams / "OTHER", streams / "COPY")
    shutil.copytree(streams / "S", root / "jetstream/B/streams/S")
    world = World(root, "A", "B", lake=True)
    assert sorted(world.engines.of("A").streams) == ["OTHER", "S"]
    assert sorted(world.engines.of("B").streams) == ["B"]
    said = "\n".join(world.log.errors)
    assert 'stream COPY is offline: its directory holds the log of stream OTHER of account "A"' in said
    assert 'stream S is offline: its directory holds the log of stream S of account "A"' in said
    uid = world.engines.of("A").streams["OTHER"].uid
    assert world.ask("A", "$JS.API.STREAM.DELETE.COPY")["success"]
    world.settle()
    assert not (streams / "COPY").exists()
    assert not Path(paths.staging(str(root / "lake"), "OTHER", uid, "A"), paths.DELETED_FILE).exists()
    assert world.publish("A", "OTHER")["seq"] == 1


def test_a_log_without_entries_beside_other_files_is_no_unfinished_creation(tmp_path: Path) -> None:
    world = World(tmp_path, "A")
    world.create("A")
    world.stop()
    directory = tmp_path / "jetstream/A/streams/S"
    for path in (directory / "checkpoint", directory / "synced", *(directory / "log").glob("*.seg")):
        path.unlink(missing_ok=True)
    (directory / "base").mkdir()
    again = World(tmp_path, "A")
    (line,) = again.log.errors
    assert "beside it there is base" in line
    assert (directory / "base").exists()


@pytest.mark.parametrize("damage", [empty, garbage, other_type], ids=lambda each: each.__name__)
def test_a_damaged_version_is_refused_with_what_to_do(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    StoreRoot.open(str(tmp_path)).close()
    path = tmp_path / "VERSION"
    damage(path)
    with pytest.raises(StoreVersionError) as caught:
        StoreRoot.open(str(tmp_path))
    assert str(caught.value).startswith(str(path))
    assert "write 1 into that file" in str(caught.value)


def of_nats_server(path: Path, stream: str) -> Path:
    directory = path / "$G" / "streams" / stream
    (directory / "msgs").mkdir(parents=True)
    (directory / "meta.inf").write_text("{}")
    return directory


def test_a_store_of_nats_server_is_refused_in_one_line_and_nothing_is_written_there(tmp_path: Path) -> None:
    of_nats_server(tmp_path, "ORDERS")
    of_nats_server(tmp_path, "EVENTS")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ForeignStore, match=r"streams of nats-server \(EVENTS and 1 more\).*`lakestream move`"):
        StoreRoot.open(str(tmp_path))
    assert sorted(tmp_path.rglob("*")) == before


def test_streams_of_nats_server_beside_own_ones_are_one_line_and_stay(tmp_path: Path) -> None:
    (tmp_path / "$G" / "streams" / "OWN").mkdir(parents=True)
    root = StoreRoot.open(str(tmp_path))
    for name in ("ORDERS", "EVENTS"):
        of_nats_server(tmp_path, name)
    told: list[str] = []
    assert root.survey(Files(), told.append).streams == [("$G", "OWN")]
    (line,) = told
    assert "(EVENTS and 1 more)" in line
    assert "`lakestream move`" in line
    root.close()
