"""The steps of an upgrade and back, what is tried at each of them, and the audit.

Belongs here: the streams, the order of the steps, the promises. Each step changes one of the programs, and kills one
with SIGKILL: the one that is replaced, or the other, which starts again as it was. Between them the steps have each
change of a program beside each release of the other.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import erasures
from tests.chaos.audit import SECOND, read_all
from tests.lake import tables
from tests.lake.iceberg import by_pyiceberg
from tests.lake.test_erasure import holders
from tests.releases import NOW, Release, files_of
from tests.servers import Kind, Server, StartFailed, program
from tests.stored.facts import asked, messages
from tests.upgrades.clients import SUBJECTS, Acks, Publisher, Reader, SqlReader, TableReader
from tests.upgrades.programs import Broken, Programs, until
from tests.wire import Wire

Pair = tuple[bool, bool]
"""True if the server is of this release, and if the compactor is."""
OLD, NEW = (False, False), (True, True)
STEPS: tuple[Pair, ...] = (
    *(OLD, (True, False), NEW, (False, True), OLD),  # the server first, both ways
    *((False, True), NEW, (True, False), OLD),  # the compactor first
)
FEW_STEPS = 4
"""Steps after which both programs are as at the beginning again."""
MESSAGES = 20
"""Number of messages of each stream that a step waits for."""
LIMIT = 300
STREAMS: dict[str, dict[str, Any]] = {
    "EVENTS": {"subjects": ["events.*"], "max_msgs": LIMIT},
    "MANY": {"subjects": ["many.*"], "metadata": {"lakestream.partition": "bucket:2"}},
    "ORIGIN": {"subjects": ["origin.*"], "allow_direct": False},  # its mirrors would answer direct gets for it
    "ARCHIVE": {"subjects": ["archive.*"], "max_msgs": 40, "metadata": {"lakestream.retention": "archive"}},
    "PAST": {"subjects": ["past.*"], "max_msgs_per_subject": 1, "metadata": {"lakestream.time_travel": "5200w"}},
    "KEPT": {"subjects": ["kept.*"], "metadata": {"lakestream.on_delete": "keep"}},
    "DROPPED": {"subjects": ["dropped.*"]},
}
NEWER: dict[str, dict[str, Any]] = {
    "UPSERT": {"subjects": ["upsert.*"], "metadata": {"lakestream.table": "latest"}},
    "BY_TIME": {"subjects": ["by_time.*"], "metadata": {"lakestream.partition": "day(time)"}},
}
"""Streams that each older compactor refuses."""
LATER: dict[str, dict[str, Any]] = {
    "TYPED": {"subjects": ["typed.*"], "metadata": {"lakestream.schema": "orders@latest"}},
    "ICE": {"subjects": ["ice.*"], "metadata": {"lakestream.iceberg": "v3"}},
}
"""Streams that the compactor of 0.1.0 refuses."""
SCHEMA = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
COUNT = "SELECT count(*) AS a, count(DISTINCT seq) AS b, max(seq) AS c FROM delta.`streams/MANY`"
SQL_TRIES = 5
WITHOUT_SQL = ("0.1.0",)
"""Releases whose SQL needs packages that the present one does not have."""
EVERYTHING = (*STREAMS, *NEWER, *LATER)
CHANGES: dict[str, tuple[int, dict[str, Any]]] = {
    "EVENTS": (-10, {"no_erase": True}),
    "MANY": (10, {}),
    "ORIGIN": (10, {"no_erase": True}),
    "ARCHIVE": (-10, {"no_erase": True}),
}
"""Deletes in each step, by stream: place among the messages, and options. That of MANY is a secure one."""


class Result(msgspec.Struct):
    """Result of a walk.

    Attributes:
        kills: SIGKILLs of servers and of compactors.
        reads: reads of tables and by SQL that were compared with the acks.
        refused: streams that the older compactor refused, each time that it began.
        repeated: starts of an older compactor that had ended by itself.
        broken: promise that was broken.
    """

    older: str
    steps: int = 0
    kills: int = 0
    messages: int = 0
    reads: int = 0
    refused: int = 0
    repeated: int = 0
    seconds: float = 0
    broken: str = ""

    def __str__(self) -> str:
        said = (
            f"{self.older}: {self.steps} steps, {self.kills} kills, {self.messages:,} messages, {self.reads:,} reads, "
            f"{self.refused} refusals, older compactors started again {self.repeated} times, {self.seconds:.0f} s"
        )
        return f"{said}: BROKEN: {self.broken}" if self.broken else said


class Walk:
    """One walk through all steps.

    Args:
        older: the other release.
        place: directory for store and lake.
        seed: of the moments of kills.
        streams: those that are used; EVENTS and MANY always are.
        steps: number of steps: 8, or the first 4, with which both programs are as at the beginning again.
    """

    def __init__(
        self,
        older: Release,
        place: Path,
        seed: int = 1,
        streams: Sequence[str] = EVERYTHING,
        steps: int = len(STEPS) - 1,
    ) -> None:
        self.result = Result(older.name)
        self._steps = STEPS[: steps + 1]
        self._chosen = {"EVENTS", "MANY", *streams}
        self._older, self._dice = older, random.Random(seed)
        self._programs, self._acks = Programs(place), Acks()
        self._publisher = Publisher(self._programs.server, self._acks)
        chosen = (("EVENTS", 0), ("MANY", 1))
        self._readers: list[Reader] = [of(self._programs.lake, self._acks, chosen) for of in (TableReader, SqlReader)]
        self._live = list[str]()
        """Streams that the compactor of either release compacts."""
        self._newer: dict[str, str] = {}
        """Streams that the older compactor refuses, and the key for which it does."""
        self._clones = list[str]()
        self._held: dict[str, Any] = {}
        """Rows of their tables when the older compactor began."""

    def run(self) -> Result:
        """Walk; a broken promise is in the result, with the newest lines of the programs."""
        began = time.monotonic()
        try:
            self._begin()
            for number, (before, after) in enumerate(pairwise(self._steps)):
                self._change(number, before, after)
                self._do(number)
                self._look(after)
                self.result.steps += 1
                print(f"{self.result.older}: {_named(after)}, {time.monotonic() - began:.0f} s", flush=True)
            self._end()
        except AssertionError as error:
            self.result.broken = f"{error}\n{self._programs.log()}"
        finally:
            self._programs.close()
            for worker in (self._publisher, *self._readers):
                worker.stopped.set()
        self.result.reads = sum(reader.reads for reader in self._readers)
        self.result.messages = sum(map(len, self._acks.acked.values()))
        self.result.repeated = self._programs.repeated
        self.result.seconds = time.monotonic() - began
        return self.result

    def _release(self, new: bool) -> Release:
        return NOW if new else self._older

    # ---- the steps

    def _begin(self) -> None:
        self._programs.serve(self._older, kill=False)
        self._live += self._create(STREAMS)
        if self._older.name != "0.1.0":
            self._live += self._create_later()
        self._programs.compact(self._older)
        self._publisher.start()
        until(lambda: self._have_acks(dict.fromkeys(self._live, MESSAGES)), "acks")
        self._programs.follow(self._live)
        for reader in self._readers:
            reader.start()

    def _create(self, streams: dict[str, dict[str, Any]]) -> list[str]:
        """Create those of these streams that are used; return their names."""
        names = [name for name in streams if name in self._chosen]
        for name in names:
            whole = {"name": name, "allow_direct": True, "duplicate_window": 3600 * SECOND, **streams[name]}
            self._programs.ask(f"STREAM.CREATE.{name}", whole)
            self._publisher.take(name)
        return names

    def _create_later(self) -> list[str]:
        with Wire(self._programs.server.address, timeout=60) as wire:
            body = json.dumps({"format": "json", "text": SCHEMA}).encode()
            answer = wire.request("$LAKE.API.SCHEMA.ADD.orders", body).json()
        if answer.get("version") != 1:
            raise Broken(f"the schema was not registered: {answer}")
        return self._create(LATER)

    def _change(self, number: int, before: Pair, after: Pair) -> None:
        """Change one program. In turns, SIGKILL ends it, or it ends by itself and the other one is killed."""
        kill, (server, compactor) = number % 2 == 0, map(self._release, after)
        time.sleep(self._dice.uniform(0, 2))
        if before[0] != after[0]:
            self._programs.serve(server, kill)
            if not kill:
                self._programs.end_compactor(kill=True)
                self._programs.compact(compactor)
        else:
            self._programs.end_compactor(kill)
            self._held = self._rows()
            self._programs.compact(compactor)
            if not kill:
                self._programs.serve(server, kill=True)
        self.result.kills += 1

    def _do(self, number: int) -> None:
        """Do what one release asks of the other: create, clone and delete streams."""
        if number == 0:  # asked of this server, done by the older compactor
            created = [*self._create(NEWER), *(self._create_later() if self._older.name == "0.1.0" else ())]
            self._newer = {name: next(iter((NEWER | LATER)[name]["metadata"])) for name in created}
            self._clone("CLONE")
            self._delete("KEPT")
        if number == 2:  # and the reverse
            self._clone("AGAIN")
            self._delete("DROPPED")

    def _clone(self, name: str) -> None:
        """Create a mirror whose table begins as a clone."""
        config = {"name": name, "mirror": {"name": "ORIGIN"}, "metadata": {"lakestream.clone": "always"}}
        if "ORIGIN" in self._chosen:
            self._programs.ask(f"STREAM.CREATE.{name}", config)
            self._clones.append(name)

    def _delete(self, name: str) -> None:
        """Delete a stream with segments that are not compacted yet."""
        if name in self._live:
            self._publisher.leave(name)
            self._live.remove(name)
            self._programs.ask(f"STREAM.DELETE.{name}")

    def _look(self, after: Pair) -> None:
        """Check that everything works, and that readers find what they should."""
        goal = {name: len(self._acks.acked[name]) + MESSAGES for name in self._live}
        reads = [reader.reads for reader in self._readers]
        until(lambda: self._have_acks(goal), "acks")
        self._remove()
        self._follow(after)
        for stream, first in (("EVENTS", 0), ("MANY", 1)):
            with Wire(self._programs.server.address, timeout=60) as wire:
                rows = [(each.seq, each.data) for each in read_all(wire, stream)]
            self._acks.compare(stream, rows, "the server", first)
            if back := {seq for seq, _ in rows} & self._acks.removed[stream]:
                raise Broken(f"{stream} has deleted messages: {sorted(back)}")
        if self._older.name not in WITHOUT_SQL:
            self._count()
        if not after[1] and self._newer:
            self._refused()
        for reader, before in zip(self._readers, reads, strict=True):
            until(partial(self._has_read, reader, before), f"a read of {reader.where}")

    def _have_acks(self, goal: dict[str, int]) -> bool:
        self._publisher.check()
        return all(len(self._acks.acked[name]) >= count for name, count in goal.items())

    def _has_read(self, reader: Reader, before: int) -> bool:
        reader.check()
        if not reader.is_alive():
            raise Broken(f"the reader of {reader.where} has ended")
        return reader.reads > before + 2

    def _follow(self, pair: Pair) -> None:
        self._programs.follow([*self._live, *(name for name in self._newer if pair[1])])

    def _remove(self) -> None:
        """Delete messages: of MANY securely, others in streams with limits and in the clones' origin."""
        for stream, (place, body) in CHANGES.items():
            if stream not in self._live:
                continue
            gone = self._acks.removed.setdefault(stream, set())
            seq = [seq for seq in sorted(self._acks.acked[stream]) if seq not in gone][place]
            gone.add(seq)
            self._programs.ask(f"STREAM.MSG.DELETE.{stream}", {"seq": seq, **body})
            if not body:
                self._acks.erased.append(self._acks.acked[stream][seq])

    def _count(self) -> None:
        """Ask the SQL of the older release for the number of messages."""
        release = self._older
        command = [*program(Kind.OURS)[:-1], "sql", "--lake", str(self._programs.lake), "-f", "csv", "-q", COUNT]
        for left in reversed(range(SQL_TRIES)):
            done = subprocess.run(
                command, env={**os.environ, **release.environment}, capture_output=True, text=True, timeout=300
            )
            if not done.returncode:
                break
            if not left:
                raise Broken(f"the SQL of {release.name} failed: {done.stderr[-2000:]}")
            time.sleep(1)
        rows, different, last = map(int, done.stdout.split()[-1].split(","))
        removed = sum(seq <= last for seq in self._acks.removed["MANY"])
        if not rows == different == last - removed:
            raise Broken(f"the SQL of {release.name} finds {rows} messages, {different} different ones, up to {last}")

    def _rows(self) -> dict[str, Any]:
        """Return the rows of the tables of all streams that an older compactor refuses."""
        found = [path for name in self._newer for path in (self._programs.lake / "streams").glob(f"{name}*")]
        return {path.name: tables.rows(str(path)) for path in sorted(found)}

    def _refused(self) -> None:
        """Check that the older compactor has refused these streams with a line each, and left their tables alone."""
        for name, key in self._newer.items():

            def said(name: str = name) -> set[str]:
                self._programs.tend()
                return {line for line in self._programs.said if f"/segments/{name}/" in line}

            until(said, f"a line about {name} of the compactor of {self.result.older}")
            if len(said()) > 1 or key not in min(said()):
                raise Broken(f"refusal of {name}: {said()}")
        if (now := self._rows()) != self._held:
            changed = [name for name in now if now[name] != self._held.get(name)]
            raise Broken(f"tables of streams that were refused changed: {changed}")
        self.result.refused += len(self._newer)

    # ---- the end

    def _end(self) -> None:
        """Audit what the older programs have; then upgrade both for good, and audit everything."""
        for worker in (self._publisher, *self._readers):
            worker.stop()
        self._programs.follow(self._live)
        for name in self._live:
            self._audit(name)
        self._programs.serve(NOW, kill=False)
        self._programs.end_compactor(kill=False)
        self._programs.compact(NOW)
        for name in self._clones:
            until(partial(self._is_copied, name), f"{name} is a whole copy")
        lake = self._programs.lake
        self._follow(NEW)
        until(lambda: self._is_settled(), "everything in the tables")
        for name in (*self._live, *self._clones, *self._newer):
            self._audit(name)
        if "KEPT" in self._chosen:
            _same("the table that was to be kept", self._table("KEPT"), sorted(self._acks.acked["KEPT"].items()))
        if Path(paths.table(str(lake), "DROPPED")).exists():
            raise Broken("the table of a deleted stream is there")
        self._audit_erasures()
        if left := [str(path) for path in (lake / "segments").rglob("*.seg")]:
            raise Broken(f"staged segments are left: {left}")

    def _is_copied(self, name: str) -> bool:
        return self._programs.last(name) == self._programs.last("ORIGIN")

    def _is_settled(self) -> bool:
        self._programs.tend()
        storage = open_storage(str(self._programs.lake))
        table = paths.table(str(self._programs.lake), "MANY")
        return not list((self._programs.lake / "segments").rglob("*.seg")) and not erasures.notes(storage, table)

    def _audit(self, name: str) -> None:
        """Compare stream, table and acks."""
        with Wire(self._programs.server.address, timeout=60) as wire:
            info = asked(wire, f"STREAM.INFO.{name}", {"deleted_details": True})
            there = [(each[0], each[4].encode()) for each in messages(wire, name, info)]
        origin = "ORIGIN" if name in self._clones else name
        removed = self._acks.removed.get(origin, set())
        if name in self._clones:  # a mirror keeps what its origin deletes later
            removed = removed.difference(seq for seq, _ in there)
        every = [(seq, data) for seq, data in sorted(self._acks.acked[origin].items()) if seq not in removed]
        whole = _last_of_each_subject(every) if name == "PAST" else every[-STREAMS.get(name, {}).get("max_msgs", 0) :]
        _same(f"stream {name}", there, whole)
        held = self._table(name)
        _same(f"the table of {name}", held, every if name == "ARCHIVE" else whole)
        if name == "UPSERT":
            _same("the table of its subjects", sorted(self._table("UPSERT_latest")), _last_of_each_subject(every))
        if name == "ICE":
            path = paths.table(str(self._programs.lake), name)
            until(lambda: [(row["seq"], row["data"]) for row in by_pyiceberg(path)] == whole, "the Iceberg table")

    def _table(self, name: str) -> list[tuple[int, bytes]]:
        rows = tables.rows(paths.table(str(self._programs.lake), name))
        return [(row["seq"], row["data"]) for row in rows]

    def _audit_erasures(self) -> None:
        table = paths.table(str(self._programs.lake), "MANY")
        if left := {data: found for data in self._acks.erased if (found := holders(table, data))}:
            raise Broken(f"erased messages are in files: {left}")


def _last_of_each_subject(rows: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Return the last message of each subject, which follows from the number in the payload."""
    return sorted({int(data.split()[-1]) % SUBJECTS: (seq, data) for seq, data in rows}.values())


def _same(what: str, found: list[tuple[int, bytes]], wanted: list[tuple[int, bytes]]) -> None:
    """Raise Broken if the messages found are not those wanted, each once and in order."""
    if found != wanted:
        missing, more = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
        raise Broken(
            f"{what} has {len(found)} messages, not {len(wanted)}: lacks {missing[:5]}, has {more[:5]} besides"
        )


def _named(pair: Pair) -> str:
    server, compactor = ("this release" if new else "older" for new in pair)
    return f"server {server}, compactor {compactor}"


def refuses_encrypted(older: Release, place: Path) -> None:
    """Have a server of a release without encryption start on an encrypted store.

    Raises:
        Broken: it does not refuse it with one line, changes a file, or this release does not open the store afterwards.
    """
    server = Server(Kind.OURS, place / "store", config="jetstream { key: secret }\nlake: false\n")
    try:
        server.start()
        with Wire(server.address) as wire:
            asked(wire, "STREAM.CREATE.A", {"name": "A", "subjects": ["a"]})
            wire.request("a", b"kept")
        server.kill()
        before = files_of(server.store)
        try:
            Server(Kind.OURS, server.store, environment=older.environment).start().kill()
            raise Broken(f"{older.name} starts on an encrypted store")
        except StartFailed as error:
            lines = [line for line in str(error).splitlines() if "a newer lakestream" in line]
        if len(lines) != 1 or files_of(server.store) != before:
            raise Broken(f"{older.name} does not refuse an encrypted store with one line, or has changed it: {lines}")
        server.start()
        with Wire(server.address) as wire:
            if asked(wire, "STREAM.INFO.A")["state"]["messages"] != 1:
                raise Broken("the store lost its message")
    finally:
        server.kill()
