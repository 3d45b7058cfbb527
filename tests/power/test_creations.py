"""Tests of power losses around new streams, whose files are made before they are durable (log/store/creations.py)."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from lakestream.log.format.files import InlineIo
from lakestream.log.store.segment_log import LogOptions
from lakestream.meta.stores import FileStores
from tests.power.conftest import Record
from tests.power.disk import ONE_DISK, Image, PowerDisk

pytestmark = pytest.mark.smoke

PROGRAM = """
from lakestream.log.format.files import InlineIo
from lakestream.log.format.frame import Frame, Kind
from lakestream.log.store.segment_log import LogOptions
from lakestream.meta.stores import FileStores

os.mkdir("store")
os.fsync(os.open(".", os.O_RDONLY))
stores = FileStores(os.path.abspath("store"), LogOptions(), 1 << 20, InlineIo())
opened = {}


def mark(what):
    os.close(os.open(what, os.O_CREAT))


def create(name, content):
    mark(f"begun-{name}={content}")
    opened[name] = stores.create("A", name, "u-" + content, content.encode(), memory=False)
    mark(f"done-{name}={content}")


def append(name, after):
    mark(f"begun-{name}={after}")
    log, body = opened[name].log, after.rpartition("+")[2].encode()
    log.append([Frame(Kind.OPERATION, 1, log.last_index + 1, 0, bytes(5000) if body == b"large" else body)])
    mark(f"done-{name}={after}")


def delete(name):
    mark(f"begun-{name}=")
    opened[name].destroy()
    mark(f"done-{name}=")


create("S", "s1")
create("T", "t1")
append("T", "t1+more")
append("T", "t1+more+again")
append("T", "t1+more+again+large")
stores.mark()
create("U", "u1")
append("U", "u1+more")
delete("S")
create("S", "s2")
append("S", "s2+more")
create("V", "v1")
append("V", "v1+more")
delete("V")
create("V", "v2")
delete("T")
stores.mark()
append("S", "s2+more+again")
create("W", "w1")
append("W", "w1+more")
for name in ("S", "U", "V", "W"):
    opened[name].close()
stores.close()
mark("end")
"""


def test_created_streams_are_there_and_deleted_ones_are_not_after_any_power_loss(
    record: Record, tmp_path: Path
) -> None:
    journal, _ = record(PROGRAM)
    disk, random = PowerDisk(journal), Random(13)
    now: dict[str, str] = {}
    begun = ("", "")
    seen: set[int] = set()
    for operation in journal.operations():
        disk.apply(operation)
        word, _, change = Path(operation.path).name.partition("-")
        if change and word in ("begun", "done"):
            name, _, content = change.partition("=")
            begun = (name, content) if word == "begun" else ("", "")
            now = {**now, name: content} if word == "done" else now
            continue
        for loss in ONE_DISK:
            image = disk.lose(loss, random)
            store = Image(*[_of_store(part) for part in (image.folders, image.files)])  # type: ignore[arg-type]
            key = hash((begun, *store.folders, *store.files.items()))
            if key in seen:
                continue
            seen.add(key)
            found = _streams(store, tmp_path / f"image-{len(seen)}")
            for name in {*now, *found, begun[0]} - {""}:
                possible = {now.get(name, "")} | ({begun[1]} if name == begun[0] else set())
                assert found.get(name, "") in possible, (loss, operation.describe(str(tmp_path)), found)
    assert len(seen) > 100, "the disk lost something in many ways"
    assert now == {"S": "s2+more+again", "T": "", "U": "u1+more", "V": "v2", "W": "w1+more"}


def _of_store(names: list[str] | dict[str, bytes]) -> list[str] | dict[str, bytes]:
    if isinstance(names, dict):
        return {name: content for name, content in names.items() if name.startswith("store")}
    return [name for name in names if name.startswith("store")]


def _streams(image: Image, directory: Path) -> dict[str, str]:
    """Return the entries of each stream that a start on the image finds, joined by "+"."""
    image.write(directory)
    stores = FileStores(str(directory / "store"), LogOptions(), 1 << 20, InlineIo())
    found = {}
    for account, name in stores.found(lambda line: None):
        store = stores.open(account, name)
        entries = [frame.body.decode() if any(frame.body) else "large" for frame, _ in store.replay()]
        store.abandon()
        if entries:  # else its creation was not finished: the server removes it
            found[name] = "+".join(entries)
    stores.close()
    return found
