"""Tests of the benchmarks' verdicts, and of counting in data that comes in pieces."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import figures, report
from tests.bench.figures import OURS, A, B, Figure, Goal, Machine, Results, Section, row
from tests.bench.load import Counter, percentile
from tests.bench.run import table

pytestmark = pytest.mark.unit

RATE = Figure("rate", "s", "a rate", "msgs/s", (Goal(A, True, 1.5), Goal(B, True, 15, 0.3)))


def results(section: Section | None, sync_ms: float = 0.5) -> Results:
    """Return the results of a run with one section."""
    machine = Machine("a processor", 2, 8.0, "Linux", sync_ms)
    made = Results("2026-01-01 00:00 UTC", "c0ffee", False, False, 3, machine, {"nats-server": "2.15.1"})
    if section is not None:
        made.sections["s"] = section
    return made


def values(ours: list[float], a: list[float], b: list[float]) -> Section:
    return Section(figures={"rate": {OURS: ours, A: a, B: b}})


def test_a_ratio_is_that_of_the_medians_with_the_range_of_the_rounds() -> None:
    seen = row(RATE, results(values([300, 100, 200], [100, 100, 100], [10, 10, 10])))
    assert seen.ratios[A] == (2.0, 1.0, 3.0)
    assert seen.verdict == "met"


def test_each_goal_has_a_verdict_where_they_differ() -> None:
    assert row(RATE, results(values([100], [100], [5]))).verdict == "A: not met, B: met"


def test_a_goal_for_slow_disks_does_not_hold_on_fast_ones() -> None:
    assert row(RATE, results(values([200], [100], [100]), sync_ms=0.1)).verdicts[1] == "no goal: a sync takes 0.10 ms"


@pytest.mark.parametrize(("bound", "verdict"), [(35.0, "met"), (34.0, "not met")])
def test_a_maximum_without_another_server(bound: float, verdict: str) -> None:
    figure = RATE._replace(goals=(Goal("", False, bound),))
    assert row(figure, results(values([35], [], []))).verdict == verdict


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        (Section(skipped="no such key"), "not measured: no such key"),
        (Section(errors=["ours: OSError: gone"]), "not measured: ours: OSError: gone"),
        (None, "not measured: not part of this run"),
    ],
)
def test_a_missing_figure_has_its_reason(section: Section | None, reason: str) -> None:
    assert row(RATE, results(section)).verdict == reason


def test_a_missing_other_server_leaves_the_goal_open() -> None:
    assert row(RATE, results(values([1], [], [1]))).verdicts[0] == "A not measured"


def test_results_survive_the_file(tmp_path: Path) -> None:
    made = results(Section(curves={"rate, msgs/s": {OURS: [(1, 2.5), (10, 3.5)]}}, load=(1.0, 2.0)))
    made.save(tmp_path / "results.json")
    assert figures.load(tmp_path / "results.json") == made


def test_a_page_without_any_section_says_so_in_each_row() -> None:
    page = report.render(results(None))["benchmarks.md"]
    assert page.count("not measured: not part of this run") == len(figures.FIGURES)
    assert "{{" not in page


def test_the_table_has_the_figures_of_the_sections_that_ran() -> None:
    made = results(None)
    made.sections["core"] = Section(figures={"core_pub": {OURS: [50.0], A: [100.0]}}, errors=["A: late"])
    lines = table(made).splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == [
        "core publish, no subscriber",
        "core publish, one subscriber",
    ]
    assert lines[1].endswith("met")
    assert lines[2].endswith("not measured: A: late")


@pytest.mark.parametrize("size", range(1, 9))
def test_a_mark_counts_once_however_the_data_is_cut(size: int) -> None:
    data = b"..MSG a.MSG aMSMSG a.MS" * 3
    counter = Counter(b"MSG a")
    for at in range(0, len(data), size):
        counter.feed(data[at : at + size])
    assert counter.seen == data.count(b"MSG a") == 9


def test_percentiles_are_of_the_values() -> None:
    assert [percentile([1.0, 2.0, 3.0, 4.0], share) for share in (0.0, 0.5, 0.99)] == [1.0, 3.0, 4.0]
