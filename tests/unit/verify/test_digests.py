"""Tests of the comparison of replicas: digests, majorities, and replicas in the directories of several nodes."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakestream.cli.app import app
from lakestream.log.store.segment_log import LogOptions
from lakestream_verify.copies import compare_stores
from lakestream_verify.digests import RANGE, UNREADABLE, Comparison, Digests, RowDigest, Verdict, judge
from lakestream_verify.log.findings import Finding, Repair
from lakestream_verify.stores import StoreCheck, root_of
from tests.corruption.members import NODES, STREAM, build_replicas, files_of_replica
from tests.unit.account.test_engines import World
from tests.unit.logkit import alter

pytestmark = pytest.mark.unit


def test_a_majority_is_one_of_all_voters() -> None:
    assert judge({"a": 1, "b": 1, "c": 1}, 3) is None
    assert judge({"a": 1, "b": 2, "c": 1}, 3) == Verdict(("b",), (("a", "c"), ("b",)))
    assert judge({"a": 1, "b": 2, "c": 3}, 3) == Verdict((), (("a",), ("b",), ("c",)))
    assert judge({"a": 1, "b": 2}, 3) == Verdict((), (("a",), ("b",)))
    assert judge({"a": 1, "b": 2, "c": 1}, 5) == Verdict((), (("a", "c"), ("b",)))


def row(content: bytes, seq: int = 7) -> dict[int, RowDigest]:
    return {seq: RowDigest(seq, b"known", content)}


def test_a_message_that_one_replica_lacks_counts_only_as_of_one_entry() -> None:
    sides: dict[str, dict[int, RowDigest]] = {"a": row(b"1"), "b": {}, "c": row(b"1")}
    (finding,) = Comparison({}, 3, exact=True).ranges(sides)
    assert (finding.node, finding.sequence, finding.repair) == ("b", 7, Repair.REFILL)
    assert list(Comparison({}, 3, exact=False).ranges(sides)) == []


def test_a_message_that_cannot_be_read_is_no_difference() -> None:
    sides = {"a": row(b"1"), "b": row(UNREADABLE), "c": row(b"1")}
    assert list(Comparison({}, 3, exact=True).ranges(sides)) == []


def test_no_majority_is_said_and_blames_nobody() -> None:
    comparison = Comparison({}, 3, exact=True)
    (finding,) = comparison.ranges({"a": row(b"1"), "b": row(b"2"), "c": row(b"3")})
    assert (finding.node, finding.repair, comparison.unclear) == ("", Repair.NONE, True)
    assert "no majority" in finding.what


def test_digests_depend_on_messages_and_not_on_segments(tmp_path: Path) -> None:
    """The log is compressed and sealed anew by a server with another configuration; the digests stay."""
    world = World(tmp_path, "A")
    world.stores._options = LogOptions(seal_bytes=4000, seal_age_ns=1 << 60)
    world.create("A", subjects=["s.>"])
    for number in range(80):
        world.publish("A", f"s.{number % 3}", b"%d" % number * 40)
    stream = world.engines.of("A").streams["S"]
    before = list(Digests(stream, 1).ranges())
    assert [each.number for each in before] == [0]
    world.stop()
    again = World(tmp_path, "A")
    stream = again.engines.of("A").streams["S"]
    assert list(Digests(stream, 1).ranges()) == before
    assert next(Digests(stream, 50).ranges()).known == before[0].known
    again.ask("A", "$JS.API.STREAM.MSG.DELETE.S", {"seq": 9})
    assert list(Digests(stream, 1).ranges()) != before
    assert 9 not in [each.seq for each in Digests(stream, 1).rows(0)]
    assert RANGE > 80
    again.stop()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directories of three stopped nodes."""
    place = tmp_path_factory.mktemp("nodes")
    build_replicas(place)
    return place


def compared(nodes: Path) -> list[Finding]:
    with contextlib.ExitStack() as closing:
        checks = {}
        for name in NODES:
            check = StoreCheck(root_of(str(nodes / name)), lambda account, stream: True)
            checks[name] = closing.enter_context(contextlib.closing(check))
        return list(compare_stores(checks, lambda count: None))


def test_replicas_in_the_directories_of_several_nodes_are_compared(nodes: Path) -> None:
    assert [each for each in compared(nodes) if not each.harmless] == []
    victim = files_of_replica(nodes, leads=False)[0].partition("/")[0]
    alter(nodes / victim / STREAM / "log", 3)
    (finding,) = [each for each in compared(nodes) if not each.harmless]
    assert (finding.node, finding.sequence, finding.stream) == (victim, 3, "S")
    stores = [str(nodes / name) for name in NODES]
    result = CliRunner().invoke(app, ["verify", *stores, "--no-lake", "--json"])
    assert result.exit_code == 1, result.output
    (shown,) = [each for each in json.loads(result.stdout)["findings"] if not each["harmless"]]
    assert (shown["kind"], shown["node"], shown["sequence"]) == ("replica", stores[NODES.index(victim)], 3)
