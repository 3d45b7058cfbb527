"""Damage of single bytes in the files of a small store, and its outcome.

Belongs here: a store with every kind of file, one damage at a time, verification of it, a start of a server on it, and
the judgement of both. A store is built once; each case works on a copy.
"""

from __future__ import annotations

import os
import shutil
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec

from lakestream.account.engines import MARK_NS
from lakestream.lake.files import paths
from lakestream.log.format.errors import CorruptLog, LogError
from lakestream.log.store.segment_log import LogOptions
from lakestream.log.verify.findings import Finding
from lakestream.stream.assembly import Stream
from lakestream.verify.recovered import LOCAL_FIELDS
from lakestream.verify.stores import StoreCheck, root_of
from tests.unit.account.test_engines import World

SMALL = LogOptions(seal_bytes=1200, seal_age_ns=1 << 60, retain_bytes=1500)
STREAMS: dict[str, dict[str, Any]] = {
    "S": {"subjects": ["s.>"], "allow_direct": True, "allow_msg_ttl": True},
    "Q": {"subjects": ["q.>"], "retention": "workqueue"},
    "Z": {"subjects": ["z.>"], "compression": "s2", "max_msgs_per_subject": 4},
}
SCHEDULE = [("s", 30), ("q", 12), ("z", 24)]


class Case(NamedTuple):
    """One damage: XOR of the byte at `offset` of `file` with `mask`; 0 cuts the file there."""

    file: str
    offset: int
    mask: int


class Outcome(NamedTuple):
    """Result of a case: `kind` is detected, repaired, harmless, or why the case failed."""

    case: Case
    kind: str
    why: str = ""


GOOD = ("detected", "repaired", "harmless")


def build(directory: Path, *, killed: bool) -> None:
    """Create the store; `killed`: its server ends without a clean stop."""
    world = World(directory, "A", lake=True)
    world.stores._options = SMALL
    for name, config in STREAMS.items():
        world.create("A", name, **config)
    for name in ("S", "Q"):
        consumer = {"durable_name": "c", "ack_policy": "explicit", "max_deliver": 5}
        world.ask("A", f"$JS.API.CONSUMER.CREATE.{name}.c", {"stream_name": name, "config": consumer})
    for letter, count in SCHEDULE:
        for number in range(count):
            world.publish("A", f"{letter}.{number % 5}", b"%d" % number * 20)
    world.ask("A", "$JS.API.STREAM.MSG.DELETE.S", {"seq": 11})
    world.ask("A", "$JS.API.STREAM.PURGE.S", {"filter": "s.3", "keep": 1})
    streams = world.engines.of("A").streams
    for stream in streams.values():
        stream.checkpoint()
    world.settle()
    for stream in streams.values():
        world.keeper.when_staged(stream, lambda wrong: None)
        world.settle()
    _compacted(world, directory, streams["S"])
    for number in range(4):
        world.publish("A", f"s.{number}", b"late %d" % number)
    world.engines.start()
    world.clock.advance(MARK_NS)
    world.settle()
    assert all(each.store.log.marks.index for each in streams.values())  # type: ignore[attr-defined]
    if killed:
        world.publish("A", "s.9", b"after the mark")
        for each in world.engines.streams():
            each.store.log.marks = None  # type: ignore[attr-defined]
            each.store.abandon()
        world.stores.close()
    else:
        world.stop()


def _compacted(world: World, directory: Path, stream: Stream) -> None:
    """Let the first segments of a stream leave the log, as if the table had them."""
    table = Path(paths.table(str(directory / "lake"), stream.name, "A"), "_delta_log")
    table.mkdir(parents=True)
    txn = {"txn": {"appId": f"lakestream:{stream.uid}", "version": stream.store.checkpoint_index}}
    lines = [txn, {"metaData": {"id": "t"}}]
    (table / f"{0:020d}.json").write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    world.keeper.when_staged(stream, lambda wrong: None)
    world.settle()


def files_of(store: Path) -> dict[str, int]:
    """Return the files of a store with their sizes, without those that no content depends on."""
    found = {}
    for path in sorted((store / "jetstream").rglob("*")):
        if path.is_file() and path.name != "LOCK":
            found[str(path.relative_to(store))] = path.stat().st_size
    return found


def every_case(store: Path, seed: int) -> list[Case]:
    """Return all cases: each byte with one bit and with all bits flipped, and a cut before each byte."""
    random = Random(seed)
    cases = []
    for file, size in files_of(store).items():
        for offset in range(size):
            cases += [Case(file, offset, 1 << random.randrange(8)), Case(file, offset, 0xFF), Case(file, offset, 0)]
    return cases


def apply(store: Path, case: Case) -> None:
    """Damage a store."""
    path = store / case.file
    if not case.mask:
        os.truncate(path, case.offset)
        return
    content = bytearray(path.read_bytes())
    content[case.offset] ^= case.mask
    path.write_bytes(bytes(content))


def content_of(stream: Stream) -> dict[str, Any]:
    """Return everything that clients see of a stream. Raise CorruptLog."""
    store = stream.store
    subjects = {subject: store.subjects.seqs(subject) for subject, _ in store.subjects.items()}
    dump = msgspec.msgpack.decode(stream.dump())
    return {
        "config": (store.uid, store.config),
        "state": (store.msgs, store.bytes, store.first_seq, store.last_seq, store.last_time),
        "messages": [store.read(seq) for seq in store.live.members(1, 1 << 20)],
        "subjects": {subject: list(seqs) for subject, seqs in subjects.items()},
        "outlined": [(store.subject_of(seq), store.size_of(seq)) for seq in store.live.members(1, 1 << 20)],
        "dump": {name: value for name, value in dump.items() if name not in LOCAL_FIELDS},
    }


class Judge:
    """Judges cases of one store.

    Args:
        store: the whole store.
        scratch: an empty directory for copies.
    """

    def __init__(self, store: Path, scratch: Path) -> None:
        self._store, self._scratch, self._number = store, scratch, 0
        self._expected, said = self._start(self._copy())
        assert not said, said

    def _copy(self) -> Path:
        self._number += 1
        target = self._scratch / str(self._number)
        shutil.copytree(self._store, target)
        return target

    @staticmethod
    def _start(store: Path) -> tuple[dict[str, Any], list[str]]:
        """Start a server; return the content of each stream, the error of one that is not served, and log lines."""
        world = World(store, "A", lake=True)
        found: dict[str, Any] = {}
        try:
            for name, stream in world.engines.of("A").streams.items():
                try:
                    found[name] = content_of(stream)
                except CorruptLog as error:
                    found[name] = error
            return found, [*world.log.errors, *world.log.warnings]
        finally:
            for each in world.engines.streams():
                each.store.abandon()
            world.stores._cache.sweep()
            world.stores.close()

    def judge(self, case: Case) -> Outcome:
        """Return the outcome of a case."""
        store = self._copy()
        try:
            apply(store, case)
            return self._judged(store, case)
        except Exception:
            return Outcome(case, "traceback", traceback.format_exc(limit=-6))
        finally:
            shutil.rmtree(store, ignore_errors=True)

    def _judged(self, store: Path, case: Case) -> Outcome:
        owner = case.file.split("/")[3] if case.file.count("/") > 3 else ""
        try:
            findings = verify(store, owner)
        except LogError as error:  # of the whole store: VERSION
            findings = []
            refused = str(error)
        else:
            refused = ""
        damage = [each for each in findings if not each.harmless]
        notes = [each for each in findings if each.harmless]
        strange = [each for each in findings if each.file and not _concerns(each, store, case)]
        if strange:
            return Outcome(case, "another file is blamed", str(strange))
        try:
            found, said = self._start(store)
        except LogError as error:
            named = case.file in str(error)
            return Outcome(case, "detected" if named and refused else "the start fails", f"{refused} {error}")
        for name, expected in self._expected.items():
            if name != owner and found.get(name) != expected:
                return Outcome(case, "another stream is harmed", name)
        seen = found.get(owner)
        named = any(str(store / case.file) in line or str((store / case.file).parent) in line for line in said)
        if isinstance(seen, CorruptLog):
            good = bool(damage) and seen.file == str(store / case.file)
            return Outcome(case, "detected" if good else "a read fails that verification did not foresee", str(seen))
        if owner and seen is None:
            good = bool(damage) and named
            return Outcome(case, "detected" if good else "offline without a name", f"{findings} {said}")
        if seen == self._expected.get(owner):
            if damage:
                return Outcome(case, "detected")
            return Outcome(case, "repaired" if notes or said else "harmless")
        if not case.mask and seen is not None and _lacks_only_the_unmarked(self._expected[owner], seen):
            return Outcome(case, "repaired", "cut between two frames behind the synced mark")
        if notes and named and not damage and _is_cut(self._expected[owner], seen):
            return Outcome(case, "repaired", "cut")
        return Outcome(case, "silently different", f"{findings} {said} {_difference(self._expected[owner], seen)}")


def _concerns(finding: Finding, store: Path, case: Case) -> bool:
    """Return True if a finding is in the damaged file, or of a directory that it is in."""
    damaged = store / case.file
    return Path(finding.file) in (damaged, *damaged.parents)


def _is_cut(expected: dict[str, Any], seen: dict[str, Any] | None) -> bool:
    """Return True if what is there is the beginning of what was expected."""
    return seen is not None and seen["messages"] == expected["messages"][: len(seen["messages"])]


def _lacks_only_the_unmarked(expected: dict[str, Any], seen: dict[str, Any]) -> bool:
    """Return True if the message is missing that no synced mark covered when the server was killed: nothing tells that
    it was ever there (docs/durability.md)."""
    *before, last = expected["messages"]
    return bool(last is not None and last.subject == b"s.9" and seen["messages"] == before)


def _difference(expected: dict[str, Any], seen: dict[str, Any] | None) -> str:
    if seen is None:
        return "nothing"
    return "; ".join(
        f"{name}: {expected[name]!r} {seen[name]!r}"[:400] for name in expected if expected[name] != seen[name]
    )


def verify(store: Path, stream: str = "") -> list[Finding]:
    """Verify a store, or only one stream in it."""
    check = StoreCheck(root_of(str(store)), lambda account, name: not stream or name == stream)
    try:
        return list(check.findings(lambda count: None))
    finally:
        check.close()


_JUDGES: dict[tuple[str, int], Judge] = {}


def _judge_some(store: str, scratch: str, cases: list[Case]) -> list[Outcome]:
    key = (store, os.getpid())
    if key not in _JUDGES:
        place = Path(scratch, str(os.getpid()))
        place.mkdir()
        _JUDGES[key] = Judge(Path(store), place)
    return [_JUDGES[key].judge(case) for case in cases]


def judged(store: Path, scratch: Path, cases: list[Case], processes: int, chunk: int = 200) -> Iterator[Outcome]:
    """Yield the outcome of each case, in a pool of processes."""
    with ProcessPoolExecutor(processes) as pool:
        parts = [cases[at : at + chunk] for at in range(0, len(cases), chunk)]
        for outcomes in pool.map(_judge_some, [str(store)] * len(parts), [str(scratch)] * len(parts), parts):
            yield from outcomes
