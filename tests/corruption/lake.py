"""The lake of a server, as far as the server reads it itself.

Belongs here: parts of a recorded lake that Spark has written, and the judgement of a damage: verification of store and
lake, a start of a server that follows its tables for a while, and reads of every message and of a past state. After a
damage in the lake the file is brought back, and then nothing may be missing: no segment may have left log or staging
area because of it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec

from lakestream.lake.errors import LakeError
from lakestream.lake.read.history.history import TableHistory
from lakestream.lake.read.history.past_table import TablePast
from lakestream.lake.read.history.staged import StagedRows
from lakestream.lake.staging import staging
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage, read_id
from lakestream.lake.table.actions import locate
from lakestream.lake.table.check import look_over
from lakestream.lake.table.departures import DIRECTORY as DEPARTURES
from lakestream.lake.table.erasures import DIRECTORY as ERASURES
from lakestream.lake.table.log import LOG_DIRECTORY
from lakestream.lake.table.schema import END
from lakestream.lake.table.state import position_of
from lakestream.log.format.departures import Point
from lakestream.log.format.errors import CorruptLog, LogError
from lakestream.log.format.record import Record, record_length
from lakestream.log.store.root import NOTE, encode_note
from lakestream.protocol.api.errors import PublicError
from lakestream.stream.assembly import Stream
from lakestream_spark.write import file_ends
from lakestream_verify.log.findings import Finding
from lakestream_verify.stores import StoreCheck, root_of
from tests.corruption.cases import Case, Copy, Outcome, damage, outcome_of
from tests.stored.recordings import unpack
from tests.unit.account.test_engines import World

POLL_NS = 2_000_000_000
POINT = Point(20)
"""Point of a stream with time travel at which its past state is read."""
NAMED = "logged with its file: "
UNREAD = (".crc", ".lock")
"""Suffixes of files that the server does not read."""


def build(directory: Path, *names: str) -> None:
    """Unpack these streams of the recorded lake. All of it stays beside them: a clone's commits name files there."""
    root, _ = unpack("lake", directory.with_suffix(".all"))
    store = root / "store"
    kept = ["jetstream/VERSION", "lake/_lake.json"]
    for name in names:
        kept += [f"lake/streams/{name}", f"lake/segments/{name}"]
        kept += [str(each.relative_to(store)) for each in store.glob(f"jetstream/$G/streams/{name}*")]
    for each in kept:
        target = directory / each
        target.parent.mkdir(parents=True, exist_ok=True)
        if (store / each).is_dir():
            shutil.copytree(store / each, target)
        elif (store / each).exists():
            shutil.copy2(store / each, target)
    for path in list(directory.rglob("*")):
        if path.name.endswith(UNREAD):
            path.unlink()
        elif path.name == paths.STREAM_FILE:  # as this release writes it
            identity = staging.read_identity(str(path.parent))
            assert identity is not None
            path.write_bytes(staging.encode_identity(identity))
        elif path.name == NOTE:
            path.write_bytes(encode_note(path.read_bytes()))
        elif path.parent.name == LOG_DIRECTORY and path.suffix == ".json":
            path.write_bytes(tagged(path))


def tagged(commit: Path) -> bytes:
    """Return a commit whose files have the checksums of their ends."""
    table = commit.parent.parent
    storage, lines = open_storage(table.parent.parent), []
    for line in commit.read_bytes().splitlines():
        action = msgspec.json.decode(line)
        if "add" in action and os.path.exists(path := locate(str(table), action["add"]["path"])):
            action["add"]["tags"] = file_ends.of_file(storage, path).tags()
            line = msgspec.json.encode(action)
        lines.append(line + b"\n")
    return b"".join(lines)


def files_of(place: Path, *patterns: str) -> list[str]:
    """Return the files that match a pattern."""
    found = {path for pattern in patterns for path in place.glob(pattern) if path.is_file()}
    return sorted(str(path.relative_to(place)) for path in found)


class TableJudge:
    """Judge of one stream's part of a lake: everything that the server reads of it is read once.

    Args:
        place: a whole store.
        scratch: an empty directory.
        stream: the stream.
    """

    def __init__(self, place: Path, scratch: Path, stream: str) -> None:
        self._copy = Copy(place, scratch / "store")
        self._stream = stream
        (directory,) = (place / "lake/segments" / stream).iterdir()
        self._uid = directory.name
        self._expected = self._read(past=(place / "lake/streams" / stream / DEPARTURES).exists())
        assert self._expected["damaged"] == []
        assert self._expected["messages"]

    def judge(self, case: Case) -> Outcome:
        """Return the outcome of a case."""
        damage(self._copy.path / case.file, case)
        outcome = outcome_of(case, lambda: self._judged(case))
        self._copy.restore(case.file)
        return outcome

    def _judged(self, case: Case) -> Outcome:
        try:
            seen = self._read(past=any(part in case.file for part in (DEPARTURES, ERASURES)))
        except (LakeError, LogError) as error:
            named = names(str(error), case.file, self._stream)
            return Outcome(case, "detected" if named else "an error without a name", str(error))
        if seen["damaged"]:
            named = all(names(each, case.file, self._stream) for each in seen["damaged"])
            return Outcome(case, "detected" if named else "another file is blamed", str(seen["damaged"]))

        def same(name: str) -> bool:
            return name not in seen or bool(seen[name] == self._expected[name])

        if all(map(same, seen)):
            return Outcome(case, "harmless")
        wanted, found = ({each.seq: each for each in some["messages"]} for some in (self._expected, seen))
        if any(known(wanted[seq]) != known(found[seq]) for seq in wanted.keys() & found):
            return Outcome(case, "detected", "the stream knows another subject or size")
        if any(wanted[seq] != found[seq] for seq in wanted.keys() & found):
            return Outcome(case, "silently different", _difference(self._expected, seen))
        if wanted.keys() - found:  # the stream knows that these messages live, and a read says that they are not there
            return Outcome(case, "detected", f"missing: {sorted(wanted.keys() - found)[:5]}")
        found = {seq: each for seq, each in found.items() if seq in wanted}  # a stream hides what it has removed
        if all(map(same, ("position", "identity", "staged", "past"))):
            return Outcome(case, "harmless", "rows of messages that are removed")
        if found == wanted and seen["position"] != self._expected["position"]:
            return Outcome(case, "another position", _difference(self._expected, seen))
        return Outcome(case, "silently different", _difference(self._expected, seen))

    def _read(self, past: bool) -> dict[str, Any]:
        lake = str(self._copy.path / "lake")
        storage = open_storage(lake)
        table = paths.table(lake, self._stream)
        directory = paths.staging(lake, self._stream, self._uid)
        history, staged = TableHistory(table), StagedRows(directory)
        read_id(storage)  # tells lakes apart, and is not on disk anywhere else
        try:
            messages = history.read(1, END, 1 << 30)
            found = {
                "position": position_of(table, self._uid),
                "damaged": [f"{each.path}: {each.reason}" for each in look_over(storage, table)],
                "messages": messages,
                "some": history.read_many([each.seq for each in messages[::3]]),
                "first": history.first_at(messages[len(messages) // 2].time_ns) if messages else 0,
                "identity": staging.read_identity(directory),
                "staged": staged.read(1, END, 1 << 30),
            }
        finally:
            history.close()
        if past:
            travel = TablePast(table, self._uid)
            was = travel.was([b">"], POINT, 1000)
            found["past"] = (was.position, was.through, was.newest)
            travel.close()
        return found


def known(record: Record) -> tuple[bytes, int]:
    """Return what a stream knows of a message that only the lake holds."""
    return record.subject, record_length(record.subject, record.header, record.data)


class LakeJudge:
    """Judge of a store with tables.

    Args:
        place: the whole store.
        scratch: an empty directory.
    """

    def __init__(self, place: Path, scratch: Path) -> None:
        self._copy = Copy(place, scratch / "store")
        self._expected, said = serve(self._copy.path)
        assert self._expected, "a stream"
        assert not said, said
        assert not any(isinstance(each, str) for each in self._expected.values()), self._expected
        assert verify(self._copy.path) == []

    def judge(self, case: Case) -> Outcome:
        """Return the outcome of a case."""
        self._copy.restore()
        damage(self._copy.path / case.file, case)
        outcome = outcome_of(case, lambda: self._judged(self._copy.path, case))
        if outcome.kind not in ("detected", "repaired", "harmless") or not self._copy.missing():
            return outcome
        self._copy.restore(case.file)
        return outcome_of(case, lambda: self._again(case, outcome))

    def _again(self, case: Case, outcome: Outcome) -> Outcome:
        """Return the outcome, unless something is lost once the damaged file is whole again."""
        gone = self._copy.missing()
        found, said = serve(self._copy.path)
        return outcome if found == self._expected else Outcome(case, "data is lost", f"{gone} {said}")

    def _judged(self, store: Path, case: Case) -> Outcome:
        owner = owner_of(case.file)
        try:
            findings = [str(each.file) for each in verify(store, owner) if not each.harmless]
        except (LogError, LakeError) as error:
            findings = [str(error)]
        try:
            found, said = serve(store)
        except LogError as error:
            return Outcome(case, "detected" if case.file in str(error) else "the start fails", str(error))
        for name, expected in self._expected.items():
            if name != owner and found.get(name) != expected:
                return Outcome(case, "another stream is harmed", f"{name}: {found.get(name)} {said}"[:1500])
        named = [each for each in (*findings, *said) if names(each, case.file, owner)]
        seen = found.get(owner)
        if owner not in self._expected:  # not served, nor is it when it is whole
            return Outcome(case, "detected" if named else "harmless")
        if isinstance(seen, str):
            named = [*named, *([seen] if seen.startswith(NAMED) else [])]
            return Outcome(case, "detected" if named else "a read fails without a name", f"{seen} {findings} {said}")
        if seen is None:
            return Outcome(case, "detected" if named else "offline without a name", str(said))
        if seen == self._expected[owner]:
            return Outcome(case, "detected" if findings else "repaired" if said else "harmless")
        return Outcome(case, "silently different", f"{findings} {said} {_difference(self._expected[owner], seen)}")


def owner_of(file: str) -> str:
    """Return the stream of a file in the store or the lake; "" without."""
    parts = file.split("/")
    if parts[0] == "jetstream":
        return parts[3].partition(".")[0] if len(parts) > 3 else ""
    return parts[2] if len(parts) > 3 else ""


def names(text: str, file: str, owner: str) -> bool:
    """Return True if a text names the damaged file, its stream's table or its staging directory."""
    inside = file.split("/")
    return file in text or "/".join(inside[:3]) in text or f"stream {owner}" in text or inside[-1] in text


def verify(store: Path, stream: str = "") -> list[Finding]:
    """Verify a store with its lake, or only one stream in it."""
    check = StoreCheck(root_of(str(store)), lambda account, name: not stream or name == stream, str(store / "lake"))
    try:
        return list(check.findings(lambda count: None))
    finally:
        check.close()


def serve(store: Path) -> tuple[dict[str, Any], list[str]]:
    """Start a server that follows its tables; return each stream's content, or the error of reading it, and log
    lines."""
    world = World(store, "$G", lake=True)
    found: dict[str, Any] = {}
    try:
        world.keeper.start()
        for _ in range(3):
            world.clock.advance(POLL_NS)
            world.settle()
        for name, stream in world.engines.of("$G").streams.items():
            try:
                found[name] = asyncio.run(_content(stream))
            except (CorruptLog, LakeError, PublicError) as error:
                found[name] = str(error)
        troubles = [f"stream {name}: {trouble}" for name, trouble in world.keeper.troubles().items()]
        return found, [*world.log.errors, *world.log.warnings, *troubles]
    finally:
        world.keeper.stop()
        for each in world.engines.streams():
            if isinstance(each, Stream):
                world.keeper.detached(each)
            each.store.abandon()
        world.stores._cache.sweep()
        world.stores.close()


async def _content(stream: Stream) -> dict[str, Any]:
    store, reader, table = stream.store, stream.reader, f"lake/streams/{stream.name}"
    records: list[Record] = []
    first = 1
    while found := await reader.fetch_run(first, 10_000, 1 << 30):
        records += found
        first = found[-1].seq + 1
    some = store.live.members(1, 1 << 20)[::7]
    content = {
        "config": (store.uid, store.config),
        "state": (store.msgs, store.bytes, store.first_seq, store.last_seq),
        "messages": records,
        "some": await reader.fetch_many(some),
        "first": await reader.first_at(records[len(records) // 2].time_ns) if records else 0,
    }
    if reader.history is not None and "lakestream.time_travel" in stream.config.metadata:
        try:
            was = await reader.history.was([b">"], POINT, 1000, ())
        except Exception as error:  # clients are told that it failed, and the server's log why
            named = names(str(error), table, stream.name) or "the stream's table" in str(error)
            raise PublicError(f"{NAMED if named else ''}{error}") from error
        content["was"] = msgspec.to_builtins(was) if isinstance(was, msgspec.Struct) else was
    return content


def _difference(expected: dict[str, Any], seen: dict[str, Any]) -> str:
    parts = []
    for name, wanted in expected.items():
        if seen.get(name) != wanted:
            if isinstance(wanted, list):
                wrong = [pair for pair in zip(wanted, seen[name], strict=False) if pair[0] != pair[1]][:2]
                parts.append(f"{name}: {len(wanted)} {len(seen[name])} {wrong}")
            else:
                parts.append(f"{name}: {wanted!r} {seen.get(name)!r}"[:400])
    return "; ".join(parts)
