"""The store of a server that is no member of a cluster.

Belongs here: a small store with every kind of file, and the judgement of a damage: verification, a start of a server,
and repair. No table is read: the streams have only a position in the lake, and staged segments.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from lakestream.account.engines import MARK_NS
from lakestream.lake.storage import paths
from lakestream.log.format.errors import CorruptLog, LogError
from lakestream.log.store.segment_log import LogOptions
from lakestream.stream.assembly import Stream
from lakestream_verify.log.findings import Finding, FindingKind
from lakestream_verify.recovered import LOCAL_FIELDS
from lakestream_verify.stores import StoreCheck, lake_beside, root_of
from tests.corruption.cases import Case, Copy, Outcome, damage, outcome_of
from tests.unit.account.test_engines import World

SMALL = LogOptions(seal_bytes=1200, seal_age_ns=1 << 60, retain_bytes=1500)
STREAMS: dict[str, dict[str, Any]] = {
    "S": {"subjects": ["s.>"], "allow_direct": True, "allow_msg_ttl": True},
    "Q": {"subjects": ["q.>"], "retention": "workqueue"},
    "Z": {"subjects": ["z.>"], "compression": "s2", "max_msgs_per_subject": 4},
    "B": {"subjects": ["b.>"]},
    "T": {"subjects": ["t.>"], "max_msgs_per_subject": 2, "metadata": {"lakestream.time_travel": "30d"}},
}
REPAIRED = 4
"""Of the damages that are detected, those at each so many bytes are repaired, too."""
COUNTS = {"S": 30, "Q": 12, "Z": 24, "T": 14, "B": 2}
"""Streams, and the number of messages in each."""


def build(directory: Path, *, killed: bool, names: str = "SQZTB") -> None:
    """Create the store with these streams; `killed`: its server ends without a clean stop."""
    world = World(directory, "A", lake=True)
    world.stores._options = SMALL
    for name in names:
        world.create("A", name, **STREAMS[name])
    for name in set("SQ").intersection(names):
        consumer = {"durable_name": "c", "ack_policy": "explicit", "max_deliver": 5}
        world.ask("A", f"$JS.API.CONSUMER.CREATE.{name}.c", {"stream_name": name, "config": consumer})
    for name in names:
        for number in range(COUNTS[name]):
            world.publish("A", f"{name.lower()}.{number % 5}", b"%d" % number * 20)
    if "S" in names:
        world.ask("A", "$JS.API.STREAM.MSG.DELETE.S", {"seq": 11})
        world.ask("A", "$JS.API.STREAM.PURGE.S", {"filter": "s.3", "keep": 1})
    streams = world.engines.of("A").streams
    for stream in streams.values():
        stream.checkpoint()
    world.settle()
    for stream in streams.values():
        world.keeper.when_staged(stream, lambda wrong: None)
        world.settle()
    if "S" in names:
        _compacted(world, directory, streams["S"])
    for number in range(4):
        world.publish("A", f"{names[0].lower()}.{number}", b"late %d" % number)
    world.engines.start()
    world.clock.advance(MARK_NS)
    world.settle()
    assert all(each.store.log.marks.index for each in streams.values())  # type: ignore[attr-defined]
    if killed:
        for name in names:
            world.publish("A", f"{name.lower()}.9", b"after the mark")
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


def content_of(stream: Stream) -> dict[str, Any]:
    """Return everything that clients see of a stream. Raise CorruptLog."""
    store = stream.store
    subjects = {subject: store.subjects.seqs(subject) for subject, _ in store.subjects.items()}
    dump = msgspec.msgpack.decode(b"".join(stream.dump()))
    return {
        "config": (store.uid, store.config),
        "state": (store.msgs, store.bytes, store.first_seq, store.last_seq, store.last_time),
        "messages": [store.read(seq) for seq in store.live.members(1, 1 << 20)],
        "subjects": {subject: list(seqs) for subject, seqs in subjects.items()},
        "outlined": [(store.subject_of(seq), store.size_of(seq)) for seq in store.live.members(1, 1 << 20)],
        "dump": {name: value for name, value in dump.items() if name not in LOCAL_FIELDS},
    }


class StoreJudge:
    """Judge of one store: verification, a start of a server, and repair.

    Args:
        store: the whole store.
        scratch: an empty directory.
        repairs: repair what is detected, too.
    """

    def __init__(self, store: Path, scratch: Path, repairs: bool = True) -> None:
        self._repairs = repairs
        self._copy = Copy(store, scratch / "store")
        self._expected, said = start(self._copy.path)
        assert not said, said

    def judge(self, case: Case) -> Outcome:
        """Return the outcome of a case."""
        self._copy.restore()
        damage(self._copy.path / case.file, case)
        outcome = outcome_of(case, lambda: self._judged(self._copy.path, case))
        if outcome.kind != "detected" or case.file.count("/") < 4 or not self._repairs or case.offset % REPAIRED:
            return outcome
        self._copy.restore()
        damage(self._copy.path / case.file, case)
        return outcome_of(case, lambda: self._repaired(self._copy.path, case, outcome))

    def _repaired(self, store: Path, case: Case, outcome: Outcome) -> Outcome:
        """Return the outcome of a repair, or `outcome` if there is no repair."""
        damaged = (store / case.file).read_bytes()
        fixed, aside, left = repair(store, case.file.split("/")[3])
        if not fixed:
            unchanged = (store / case.file).read_bytes() == damaged
            return outcome if unchanged else Outcome(case, "a repair that is none changes the file")
        if damaged not in [Path(each).read_bytes() for each in aside]:
            return Outcome(case, "a repair destroys the damaged file", str(aside))
        if any(each.kind is not FindingKind.TABLE for each in left):  # the table is nothing but a position
            return Outcome(case, "a repair does not repair", str(left))
        found, said = start(store)
        if found != self._expected or said:
            return Outcome(case, "a repair changes data", str(said))
        return Outcome(case, "repaired", "by the command repair")

    def _judged(self, store: Path, case: Case) -> Outcome:
        """Return the outcome of verification and start."""
        owner = case.file.split("/")[3] if case.file.count("/") > 3 else ""
        try:
            findings = verify(store, owner)
        except LogError as error:  # of the whole store: VERSION
            findings = []
            refused = str(error)
        else:
            refused = ""
        wrong = [each for each in findings if not each.harmless]
        notes = [each for each in findings if each.harmless]
        strange = [each for each in findings if each.file and not _concerns(each, store, case)]
        if strange:
            return Outcome(case, "another file is blamed", str(strange))
        try:
            found, said = start(store)
        except LogError as error:
            named = case.file in str(error)
            return Outcome(case, "detected" if named and refused else "the start fails", f"{refused} {error}")
        for name, expected in self._expected.items():
            if name != owner and found.get(name) != expected:
                return Outcome(case, "another stream is harmed", name)
        seen = found.get(owner)
        named = any(str(store / case.file) in line or str((store / case.file).parent) in line for line in said)
        if isinstance(seen, CorruptLog):
            good = bool(wrong) and seen.file == str(store / case.file)
            return Outcome(case, "detected" if good else "a read fails that verification did not foresee", str(seen))
        if owner and seen is None:
            good = bool(wrong) and named
            return Outcome(case, "detected" if good else "offline without a name", f"{findings} {said}")
        if seen == self._expected.get(owner):
            if wrong:
                return Outcome(case, "detected")
            return Outcome(case, "repaired" if notes or said else "harmless")
        if not case.mask and seen is not None and _lacks_only_the_unmarked(self._expected[owner], seen):
            return Outcome(case, "repaired", "cut between two frames behind the synced mark")
        if notes and named and not wrong and _is_cut(self._expected[owner], seen):
            return Outcome(case, "repaired", "cut")
        return Outcome(case, "silently different", f"{findings} {said} {_difference(self._expected[owner], seen)}")


class RunningStoreJudge(StoreJudge):
    """Judge of a store that is damaged while its server runs: reads at once, and again after a kill or a stop.

    Args:
        place: the whole store.
        scratch: an empty directory.
    """

    def __init__(self, place: Path, scratch: Path) -> None:
        super().__init__(place, scratch, repairs=False)

    def judge(self, case: Case) -> Outcome:
        """Return the outcome of a case. The server is killed for every other eighth byte, and else stopped."""
        self._copy.restore()
        outcome = outcome_of(case, lambda: self._run(case))
        if outcome.kind not in ("detected", "harmless"):
            return outcome
        later = outcome_of(case, lambda: self._judged(self._copy.path, case))
        return outcome if later.kind == "harmless" else later

    def _run(self, case: Case) -> Outcome:
        """Start a server, damage the file, and read everything."""
        owner = case.file.split("/")[3] if case.file.count("/") > 3 else ""
        kill = case.offset // 8 % 2 == 0
        world = World(self._copy.path, "A", lake=True)
        world.stores._options = SMALL
        try:
            streams = dict(world.engines.of("A").streams)
            damage(self._copy.path / case.file, case)
            kind = "harmless"
            for name, stream in streams.items():
                try:
                    seen = content_of(stream)
                except CorruptLog as error:
                    if error.file != str(self._copy.path / case.file):
                        return Outcome(case, "another file is blamed", str(error))
                    kind = "detected"
                    continue
                if seen != self._expected[name]:
                    wrong = "silently different" if name == owner else "another stream is harmed"
                    return Outcome(case, wrong, _difference(self._expected[name], seen))
            if not kill:
                world.stop()
            return Outcome(case, kind)
        finally:
            if kill:
                for each in world.engines.streams():
                    each.store.abandon()
            world.stores._cache.sweep()
            if kill:
                world.stores.close()


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
    return bool(last is not None and last.subject.endswith(b".9") and seen["messages"] == before)


def _difference(expected: dict[str, Any], seen: dict[str, Any] | None) -> str:
    if seen is None:
        return "nothing"
    return "; ".join(
        f"{name}: {expected[name]!r} {seen[name]!r}"[:400] for name in expected if expected[name] != seen[name]
    )


def start(store: Path) -> tuple[dict[str, Any], list[str]]:
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


def repair(store: Path, stream: str) -> tuple[list[Finding], list[str], list[Finding]]:
    """Repair a stream; return the findings that were repaired, the damaged files' new places, and what is left."""
    root = root_of(str(store))
    check = StoreCheck(root, lambda account, name: name == stream, lake_beside(root), alone=True)
    try:
        fixed, aside = [], []
        for finding in list(check.findings(lambda count: None)):
            fix = check.fix(finding)
            if fix is not None:
                fixed.append(finding)
                aside.append(fix.apply())
        return fixed, aside, [each for each in check.findings(lambda count: None) if not each.harmless]
    finally:
        check.close()


def verify(store: Path, stream: str = "") -> list[Finding]:
    """Verify a store, or only one stream in it."""
    check = StoreCheck(root_of(str(store)), lambda account, name: not stream or name == stream)
    try:
        return list(check.findings(lambda count: None))
    finally:
        check.close()
