"""Tests of the sections of `make bench` that need one server: each measures all of its figures."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from tests.bench import growth, sections
from tests.bench.figures import FIGURES, KINDS, OURS, A, Section
from tests.bench.run import SECTIONS, measured
from tests.bench.sections import Plan, Work

PLAN = Plan(quick=True, rounds=1, seconds=0.05, stored=2_000, say=lambda text: None)


def figures(name: str) -> set[str]:
    return {figure.key for figure in FIGURES if figure.section == name}


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("publish", sections.in_flight),
        ("sync", sections.waiting),
        ("bucket", sections.bucket),
        ("consume", sections.consume),
        ("core", sections.core),
    ],
)
def test_a_section_measures_its_figures(name: str, work: Work) -> None:
    found = Section()
    sections.single((OURS,), work)(PLAN, found)
    assert found.errors == []
    assert {key for key in found.figures if not key.endswith("_cpu_us")} == figures(name)
    assert all(value > 0 for key in figures(name) for value in found.figures[key][OURS])


def test_every_figure_has_a_section() -> None:
    assert {figure.section for figure in FIGURES} <= SECTIONS.keys()


def test_a_curve_has_all_points_of_both_servers() -> None:
    found = Section()
    growth.curves(partial(growth.consumers, steps=(1, 3)))(PLAN, found)
    assert found.errors == []
    assert {kind for curves in found.curves.values() for kind in curves} == {OURS, A}
    assert {tuple(x for x, _ in points) for curves in found.curves.values() for points in curves.values()} == {(1, 3)}


def test_a_turn_that_fails_costs_only_itself() -> None:
    def work(kind: str) -> dict[str, float]:
        if kind == OURS:
            raise OSError("gone")
        return {"x": 1.0}

    found = Section()
    sections.alternating(PLAN, found, KINDS, work)
    assert found.errors == ["ours: OSError: gone"]
    assert found.figures == {"x": {"A": [1.0], "B": [1.0]}}


def test_a_turn_that_hangs_ends() -> None:
    def work(kind: str) -> dict[str, float]:
        threading.Event().wait()
        return {}

    found = Section()
    sections.alternating(PLAN, found, (OURS,), work, limit_s=1)
    assert found.errors == ["ours: TooLong: not done within 1 s"]


def test_a_section_that_fails_is_reported() -> None:
    def failing(plan: Plan, found: Section) -> None:
        raise RuntimeError("no disk")

    assert measured(failing, PLAN).errors == ["RuntimeError: no disk"]
