"""Tests of power losses around the journal: new streams, whose files are made before they are durable, and writes of
several streams that share a sync (log/store/journal.py)."""

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
from lakestream.log.store.segment_log import LogOptions, SegmentLog
from lakestream.meta.stores import FileStores

os.mkdir("store")
os.fsync(os.open(".", os.O_RDONLY))
stores = FileStores(os.path.abspath("store"), LogOptions(), 1 << 20, InlineIo())
opened, contents = {}, {}


def mark(what):
    os.close(os.open(what, os.O_CREAT))


def change(names, after, work):
    changes = "&".join(f"{name}={after(name)}" for name in names)
    number = len(os.listdir("."))  # each mark is a new file
    mark(f"begun-{changes}-{number}")
    work()
    mark(f"done-{changes}-{number}")
    contents.update((name, after(name)) for name in names)


def create(name, content):
    def work():
        opened[name] = stores.create("A", name, "u-" + content, content.encode(), memory=False)

    change([name], lambda name: content, work)


def entry(name, body):
    log = opened[name].log
    return log, [Frame(Kind.OPERATION, 1, log.last_index + 1, 0, bytes(5000) if body == "large" else body.encode())]


def append(name, after):
    log, frames = entry(name, after.rpartition("+")[2])
    change([name], lambda name: after, lambda: log.append(frames))


def together(names, body):
    writes = [entry(name, body) for name in names]
    change(names, lambda name: contents[name] + "+" + body, lambda: SegmentLog.append_together(writes))


def delete(name):
    change([name], lambda name: "", opened[name].destroy)


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
SEVERAL
for name in ("S", "U", "V", "W"):
    opened[name].close()
stores.close()
mark("end")
"""


TOGETHER = """
together("SUW", "a")
together("SVW", "b")
opened["V"].log.seal(opened["V"].sealing_state())
together("UV", "c")
stores.mark()
together("SUV", "d")
append("U", contents["U"] + "+large")
together("UV", "e")
stores._root.journal.turn()
together("SUV", "f")
delete("V")
create("V", "v3")
together("UVW", "g")
delete("W")
stores._root.journal.outdate()
stores.mark()
together("SV", "h")
create("X", "x1")
together("XV", "i")
stores.mark()
"""


def test_created_streams_are_there_and_deleted_ones_are_not_after_any_power_loss(
    record: Record, tmp_path: Path
) -> None:
    now = _lose(record, tmp_path, PROGRAM.replace("SEVERAL", ""))
    assert now == {"S": "s2+more+again", "T": "", "U": "u1+more", "V": "v2", "W": "w1+more"}


def test_what_was_written_together_is_there_after_any_power_loss(record: Record, tmp_path: Path) -> None:
    now = _lose(record, tmp_path, PROGRAM.replace("SEVERAL", TOGETHER).replace('("S", "U", "V", "W")', '"SUVX"'))
    assert now["S"] == "s2+more+again+a+b+d+f+h"
    assert (now["U"], now["V"], now["W"]) == ("u1+more+a+c+d+large+e+f+g", "v3+g+h+i", "")


def _lose(record: Record, tmp_path: Path, program: str) -> dict[str, str]:
    """Start on what any power loss leaves of a program's store; return what the program has left."""
    journal, _ = record(program)
    disk, random = PowerDisk(journal), Random(13)
    now, begun = dict[str, str](), dict[str, str]()
    seen: set[int] = set()
    for operation in journal.operations():
        disk.apply(operation)
        word, _, changes = Path(operation.path).name.rpartition("-")[0].partition("-")
        if changes and word in ("begun", "done"):
            changed = dict(change.split("=") for change in changes.split("&"))
            begun = changed if word == "begun" else {}
            now |= changed if word == "done" else {}
            continue
        for loss in ONE_DISK:
            image = disk.lose(loss, random)
            store = Image(*[_of_store(part) for part in (image.folders, image.files)])  # type: ignore[arg-type]
            key = hash((*begun.items(), *store.folders, *store.files.items()))
            if key in seen:
                continue
            seen.add(key)
            found = _streams(store, tmp_path / f"image-{len(seen)}")
            for name in {*now, *found, *begun}:
                possible = {now.get(name, ""), begun.get(name, now.get(name, ""))}
                assert found.get(name, "") in possible, (loss, operation.describe(str(tmp_path)), found)
    assert len(seen) > 100, "the disk lost something in many ways"
    return now


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
