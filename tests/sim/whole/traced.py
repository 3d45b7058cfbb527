"""Runs of servers with a lake as steps of the model in tests/spec/Release.tla.

Belongs here: recording what happens to segments and tables; tests/spec/release_trace.py has the relation that it must
obey.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from lakestream.lake.table.actions import locate
from lakestream.lake.table.progress import application
from lakestream.log.format.segment import SealedSegment
from lakestream.log.store.segment_store import SegmentStore
from lakestream.server.lake.stream_sync import StreamSync
from lakestream_spark.write.stream_compaction import CommitPlan, StreamCompaction
from tests.sim.whole.lake import ROOT, Lake
from tests.sim.whole.world import Plan, run_seed
from tests.spec.release_trace import (
    Begin,
    Gone,
    Made,
    OfTable,
    Planned,
    Released,
    ReleaseRelation,
    Stage,
    Unstage,
    Verified,
)

_STAGED = re.compile(rf"{re.escape(ROOT)}/segments/([^/]+)/([^/]+)/(\d{{20}})-(\d{{20}})\.seg")
_COMMIT = re.compile(rf"({re.escape(ROOT)}/streams/([^/]+))/_delta_log/\d{{20}}\.json")
_FILE = re.compile(rf"{re.escape(ROOT)}/streams/([^/]+)/(?!_).*\.parquet")


class ReleaseRecorder:
    """The events of a run, noted where objects of the lake change, and where servers decide."""

    def __init__(self) -> None:
        self.events: list[OfTable] = []
        self._uids: dict[str, str] = {}  # of the stream whose table it is, by the table's name
        self._lake: Lake

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Note the events, for the duration of the block."""
        put, delete, drop = Lake.put, Lake.delete, SegmentStore.drop_through
        released, commit = StreamSync._may_release, StreamCompaction.commit

        def putting(lake: Lake, path: str, data: bytes) -> str:
            self._lake = lake
            tag = put(lake, path, data)
            self._put(path, data)
            return tag

        def deleting(lake: Lake, path: str) -> None:
            there = path in lake.objects
            delete(lake, path)
            if there:
                self._deleted(path)

        def dropping(store: SegmentStore, index: int) -> list[SealedSegment]:
            dropped = drop(store, index)
            if dropped and hasattr(self, "_lake"):
                self._note(Released, store.stream, store.uid, dropped[-1].last_index)
            return dropped

        def may_release(sync: StreamSync, sealed: Sequence[SealedSegment], held: int, due: Sequence[str]) -> bool:
            may = released(sync, sealed, held, due)
            if may:
                self._note(Verified, sync.identity.name, sync.identity.uid, held)
            return may

        def committing(compaction: StreamCompaction, plan: CommitPlan, output: Any) -> Any:
            identity = compaction._identity
            self._note(Planned, identity.name, identity.uid, plan.position, plan.batch.progress.last_index)
            return commit(compaction, plan, output)

        with ExitStack() as stack:
            stack.enter_context(patch.object(Lake, "put", putting))
            stack.enter_context(patch.object(Lake, "delete", deleting))
            stack.enter_context(patch.object(SegmentStore, "drop_through", dropping))
            stack.enter_context(patch.object(StreamSync, "_may_release", may_release))
            stack.enter_context(patch.object(StreamCompaction, "commit", committing))
            yield

    def _note(self, kind: Callable[..., OfTable], name: str, uid: str, *facts: Any) -> None:
        self.events.append(kind(self._lake.current.machine.address, f"{name}/{uid}", *facts))

    def _put(self, path: str, data: bytes) -> None:
        if found := _STAGED.fullmatch(path):
            self._note(Stage, found[1], found[2], int(found[3]), int(found[4]))
        elif found := _FILE.fullmatch(path):
            self._note(Begin, found[1], self._uids.get(found[1], ""), path)
        elif found := _COMMIT.fullmatch(path):
            self._committed(found[1], found[2], [msgspec.json.decode(line) for line in data.splitlines()])

    def _committed(self, table: str, name: str, actions: list[dict[str, Any]]) -> None:
        for action in actions:
            if metadata := action.get("metaData"):
                self._uids[name] = metadata["configuration"]["lakestream.uid"]
        uid = self._uids[name]
        moved = [
            action["txn"]["version"] for action in actions if action.get("txn", {}).get("appId") == application(uid)
        ]
        added = tuple(locate(table, action["add"]["path"]) for action in actions if "add" in action)
        removed = tuple(locate(table, action["remove"]["path"]) for action in actions if "remove" in action)
        self._note(Made, name, uid, added, removed, moved[-1] if moved else None)

    def _deleted(self, path: str) -> None:
        if found := _STAGED.fullmatch(path):
            self._note(Unstage, found[1], found[2], int(found[4]))
        elif found := _FILE.fullmatch(path):
            self._note(Gone, found[1], self._uids.get(found[1], ""), path)
        elif found := _COMMIT.fullmatch(path):
            self._note(Gone, found[2], self._uids.get(found[2], ""), "")


class LakeTrace(msgspec.Struct):
    """A recorded run: its events, and its failure; "": none."""

    events: list[OfTable]
    failure: str

    def check(self) -> ReleaseRelation:
        """Check that each step is one of the model; return the relation, which has counted them."""
        relation = ReleaseRelation()
        relation.run(self.events)
        return relation


def traced(plan: Plan) -> LakeTrace:
    """Run a plan with a lake."""
    recorder = ReleaseRecorder()
    with recorder.recording():
        outcome = run_seed(plan.seed, plan=plan)
    return LakeTrace(recorder.events, outcome.failure)
