"""Tests of recordings of nats-server: one for every scenario, unchanged by a round trip, and reported when stale."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import harness as cluster
from tests.cluster import scenarios as cluster_scenarios
from tests.cluster.test_accounts_conformance import PLAYED
from tests.conformance import harness, scenarios
from tests.conformance.harness import compare
from tests.recordings import NotRecorded, Recordings, Referee, Transcript, parse, text

pytestmark = pytest.mark.unit

TESTS = Path(__file__).parents[1]
LARGE = {"config": {"name": "S", "subjects": [f"s.{number}" for number in range(20)]}, "state": {"messages": 0}}


def _of_conformance() -> set[str]:
    scenarios.load()
    return {scenario.id for scenario in harness.SCENARIOS}


def _of_clusters() -> set[str]:
    cluster_scenarios.load()
    of_accounts = {f"in_an_account.{scenario.id}" for scenario in PLAYED}
    return {scenario.id for scenario in cluster.SCENARIOS} | of_accounts


@pytest.mark.parametrize(("directory", "registered"), [("conformance", _of_conformance), ("cluster", _of_clusters)])
def test_every_scenario_is_recorded_and_nothing_else(directory: str, registered: Callable[[], set[str]]) -> None:
    found = Recordings(TESTS / directory / "recordings", Referee.RECORDED).ids()
    of_tests = {id for id in found if id.startswith("test_")}
    assert found - of_tests == registered()
    for module, _, name in (id.partition(".") for id in of_tests):
        assert hasattr(importlib.import_module(f"tests.{directory}.{module}"), name.partition("[")[0])


def test_a_file_gives_back_what_was_written_and_says_long_values_once() -> None:
    transcripts: dict[str, Transcript] = {
        "a.one": [("created", LARGE), ("short", [1, None, "é\u2028\ud800"])],
        "a.two": [("created", LARGE), ("again", {"inside": LARGE["config"]})],
    }
    written = text(transcripts)
    assert parse(written) == transcripts
    assert text(parse(written)) == written
    assert written.count('"s.19"') == 1


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    recordings = Recordings(tmp_path / "recordings", Referee.RECORD)
    for id in ("a.one", "a.two", "b.one"):
        assert not recordings.stale(id, [("said", 1)], compare)
    recordings.save()
    return tmp_path / "recordings"


def test_what_nats_server_answers_otherwise_now_is_stale(recorded: Path) -> None:
    recordings = Recordings(recorded, Referee.LIVE)
    assert not recordings.stale("a.one", [("said", 1)], compare)
    difference = recordings.stale("a.one", [("said", 2)], compare)
    assert "the recording is stale" in difference
    assert difference.endswith("-1\n+2")
    recordings.save()
    assert Recordings(recorded, Referee.RECORDED).get("a.one") == [("said", 1)]


def test_what_is_not_recorded_is_an_error(recorded: Path) -> None:
    recordings = Recordings(recorded, Referee.LIVE)
    assert "not recorded" in recordings.stale("c.one", [("said", 1)], compare)
    with pytest.raises(NotRecorded, match="--record"):
        recordings.get("c.one")


def test_recording_writes_what_is_new_or_differs_at_the_last_try_and_keeps_the_rest(recorded: Path) -> None:
    workers = [Recordings(recorded, Referee.RECORD) for _ in range(2)]
    assert workers[0].stale("a.one", [("said", 2)], compare, last=False)
    assert not workers[0].stale("a.one", [("said", 3)], compare)
    assert not workers[1].stale("a.three", [("said", 4)], compare)
    for worker in workers:
        worker.save()
    after = Recordings(recorded, Referee.RECORDED)
    assert after.ids() == {"a.one", "a.two", "a.three", "b.one"}
    assert [after.get(f"a.{name}") for name in ("one", "two", "three")] == [[("said", n)] for n in (3, 1, 4)]


def test_lakestream_is_compared_with_the_newest_release_and_nats_server_with_its_own(recorded: Path) -> None:
    newer = Recordings(recorded, Referee.RECORD, "2.15.10")
    assert not newer.stale("a.one", [("said", 2)], compare)
    assert not newer.stale("a.two", [("said", 1)], compare)  # as before
    newer.save()
    assert [path.name for path in (recorded / "2.15.10").iterdir()] == ["a.jsonl"]
    assert Recordings(recorded, Referee.RECORDED).get("a.one") == [("said", 2)]
    assert Recordings(recorded, Referee.RECORDED).get("a.two") == [("said", 1)]
    for release, said, other in (("2.15.1", 1, 2), ("2.15.9", 1, 2), ("2.15.10", 2, 1)):
        live = Recordings(recorded, Referee.LIVE, release)
        assert not live.stale("a.one", [("said", said)], compare)
        assert live.stale("a.one", [("said", other)], compare)
        assert live.expected("a.one", [("said", said)]) == [("said", 2)]
        assert live.expected("a.two", [("said", 1)]) == [("said", 1)]


@pytest.mark.parametrize(
    ("release", "asked"), [("2.15.1", {"a.one", "a.new"}), ("2.15.10", {"a.one", "a.late", "a.new"})]
)
def test_a_release_is_not_asked_for_what_only_later_ones_have_played(
    recorded: Path, release: str, asked: set[str]
) -> None:
    newer = Recordings(recorded, Referee.RECORD, "2.15.10")
    assert not newer.stale("a.late", [("said", 1)], compare)
    newer.save()
    ids = ("a.one", "a.late", "a.new")
    assert {id for id in ids if Recordings(recorded, Referee.LIVE, release).asks(id)} == asked
    assert not any(Recordings(recorded, Referee.RECORDED, release).asks(id) for id in ids)
