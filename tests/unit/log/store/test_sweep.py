"""Tests of removals of many messages at once: stream and consumers are the same as after single removals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lakestream.log.format.departures import Removals
from lakestream.log.format.runs import joined
from lakestream.log.store.segment_rows import SegmentRows
from lakestream.log.store.segment_store import SegmentStore
from lakestream.log.store.store import Store
from lakestream.stream.core import limits
from tests.unit.consumer_world import World

pytestmark = pytest.mark.unit

SUBJECTS = ("s.a", "s.b", "s.c.x", "s.c.y")
COUNT = 300
NS = 1_000_000_000
CONSUMERS: dict[str, dict[str, Any]] = {
    "all": {},
    "some": {"filter_subject": "s.c.*"},
    "last": {"deliver_policy": "last_per_subject", "filter_subject": "s.>"},
    "ordered": {"ack_policy": "all"},
}


def _update(**change: Any) -> Callable[[World], Any]:
    return lambda world: world.ask("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], **change})


def _purge(**body: Any) -> Callable[[World], Any]:
    return lambda world: world.ask("STREAM.PURGE.S", body)


REMOVALS = {
    "all": _purge(),
    "keep": _purge(keep=20),
    "keep_most": _purge(keep=COUNT - 30),
    "through": _purge(seq=200),
    "beyond": _purge(seq=1000),
    "filter": _purge(filter="s.c.*"),
    "filter_everything": _purge(filter="s.>"),
    "filter_everything_keep": _purge(filter="s.>", keep=7),
    "filter_keep": _purge(filter="s.c.>", keep=20),
    "filter_keep_more_than_there_are": _purge(filter="s.c.>", keep=COUNT),
    "filter_through": _purge(filter="s.c.>", seq=150),
    "literal": _purge(filter="s.b"),
    "lower_count": _update(max_msgs=40),
    "lower_bytes": _update(max_bytes=3000),
    "lower_both": _update(max_msgs=150, max_bytes=3000),
    "lower_per_subject": _update(max_msgs_per_subject=5),
}


def _slow(store: Store, seq: int) -> limits.Removed:
    """Remove message by message, with the result of `limits._remove_through`."""
    named = []
    for each in list(store.live.members(1, store.msgs, seq)):
        gone = store.remove(each)
        assert gone is not None
        named.append((each, gone[0]))
    return limits.Removed(named)


def _seen(world: World) -> list[Any]:
    """Return the state of the stream and its consumers as clients see it, and the removals for the lake."""
    store = world.engine.streams["S"].store
    state = world.ask("STREAM.INFO.S", {"subjects_filter": ">", "deleted_details": True})["state"]
    removals = store.removals() if isinstance(store, SegmentStore) else Removals()
    return [
        state,
        [world.numbers(name) for name in CONSUMERS],
        [seq for seq in removals.removed if seq >= store.first_seq],
        joined(removals.erased),
    ]


def _outcome(directory: Path | None, removal: Callable[[World], Any]) -> list[Any]:
    """Return the state of a stream with gaps and its consumers after a removal, a crash, and further messages."""
    world = World(directory)
    world.stream("S", storage="memory" if directory is None else "file")
    world.store(*(SUBJECTS[number * 7 % 5 % 4] for number in range(COUNT)))
    for seq in (1, 2, 50, 100, 101, 102, 250):
        world.ask("STREAM.MSG.DELETE.S", {"seq": seq})
    for name, config in CONSUMERS.items():
        world.consumer(name, **config)
        world.ack(world.pull(30, name)[1])
    seen = [removal(world).get("purged"), _seen(world)]
    if directory is not None:
        world.clock.advance(NS)  # consumers' progress is in the log
        world = world.crash(directory)
        seen.append(_seen(world))
    world.store("s.c.x", "s.a")
    seen += [[each.seq for each in world.pull(COUNT, name)] for name in CONSUMERS]
    return [*seen, _seen(world)]


@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize("how", REMOVALS)
def test_what_goes_at_once_goes_as_if_one_by_one(
    how: str, storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for many in (0, 1 << 60):
        monkeypatch.setattr(limits, "MANY", many)
        monkeypatch.setattr(limits, "ONE_BY_ONE", many)
        if many:
            monkeypatch.setattr(limits, "_remove_through", _slow)
        directory = tmp_path / str(many)
        directory.mkdir()
        found.append(_outcome(directory if storage == "file" else None, REMOVALS[how]))
    at_once, one_by_one = (_without_times(each) for each in found)
    assert at_once == one_by_one


def _without_times(shown: Any) -> Any:
    if isinstance(shown, dict):
        return {key: _without_times(value) for key, value in shown.items() if not key.endswith("_ts")}
    return [_without_times(each) for each in shown] if isinstance(shown, list | tuple) else shown


@pytest.mark.parametrize("how", [_purge(), _purge(keep=500), _purge(filter="s.a.*"), _update(max_msgs=500)])
def test_removing_many_messages_does_not_read_their_subjects(
    how: Callable[[World], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.stream("S")
    count = limits.MANY + 1000
    world.store(*(f"s.{'ab'[not number % 20]}.{number}" for number in range(count)))
    asked: list[int] = []
    look_up = SegmentRows.subjects

    def counted(rows: SegmentRows, seqs: Sequence[int]) -> list[bytes]:
        asked.append(len(seqs))
        return look_up(rows, seqs)

    monkeypatch.setattr(SegmentRows, "subjects", counted)
    assert "error" not in how(world)
    assert world.engine.streams["S"].store.msgs < 1000
    assert sum(asked) <= 1000
