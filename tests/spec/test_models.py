"""Tests of the TLA+ models: their references to the code hold, TLC finds no violation, and refutes every mutation.

The references are checked in `make test`. TLC runs in `make test-all`; where it cannot be had its tests are skipped,
and the reason says so.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.spec.models import FOLDER, MODELS, Model, Mutation, NoChecker, check, jar

ROOT = FOLDER.parents[1]
MUTATIONS = [(model, mutation) for model in MODELS for mutation in model.mutations]

_INVARIANT = re.compile(r"^\\\* Invariant: .*\n\\\* Code: (.*)\n\\\* (?:Simulator|Tests): (.*)\n(\w+) ==", re.MULTILINE)
_PLACE = re.compile(r"([\w/]+\.py) ([\w.]+)")


@pytest.fixture
def _checker() -> None:
    try:
        jar()
    except NoChecker as error:
        pytest.skip(str(error))


@cache
def names_of(path: Path) -> frozenset[str]:
    """Return the functions, classes, constants and methods of a module, methods with the name of their class."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.Assign):
            found |= {each.id for each in node.targets if isinstance(each, ast.Name)}
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{each.name}"
                for each in node.body
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return frozenset(found)


def missing(places: str) -> list[str]:
    """Return the places `module.py name, …` that do not exist; a module may leave `lakestream/` out."""
    found = _PLACE.findall(places)
    assert ", ".join(f"{module} {name}" for module, name in found) == places, f"cannot be read: {places}"
    wrong = []
    for module, name in found:
        path = next((path for path in (ROOT / module, ROOT / "lakestream" / module) if path.exists()), None)
        if path is None or name not in names_of(path):
            wrong.append(f"{module} {name}")
    return wrong


@pytest.mark.unit
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_each_invariant_names_code_that_keeps_it_and_a_check_of_that_code(model: Model) -> None:
    checked = re.findall(r"^INVARIANTS (.*)$", model.path.with_suffix(".cfg").read_text(), re.MULTILINE)[0].split()
    described = {name: (code, simulator) for code, simulator, name in _INVARIANT.findall(model.path.read_text())}
    assert list(described) == checked
    page = (ROOT / "docs/internals/models.md").read_text()
    assert [name for name in described if f"| {model.name} | `{name}`: " not in page] == []
    wrong = [place for code, simulator in described.values() for place in missing(code) + missing(simulator)]
    assert wrong == []
    assert all(place.startswith("tests/") for _, simulator in described.values() for place in simulator.split(", "))


@pytest.mark.unit
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_each_guard_of_a_model_is_dropped_by_a_mutation(model: Model) -> None:
    config = model.path.with_suffix(".cfg").read_text()
    guards = set(re.findall(r"^\s+(\w+) = TRUE$", config, re.MULTILINE))
    assert guards == {name for mutation in model.mutations for name in mutation.without}
    checked = re.findall(r"^INVARIANTS (.*)$", config, re.MULTILINE)[0].split()
    assert {mutation.breaks for mutation in model.mutations} <= set(checked)


@pytest.mark.heavy
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("_checker")
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_no_invariant_is_violated(model: Model) -> None:
    assert check(model).broken == ""


@pytest.mark.heavy
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("_checker")
@pytest.mark.parametrize(
    ("model", "mutation"), MUTATIONS, ids=[f"{model.name}-{'-'.join(each.without)}" for model, each in MUTATIONS]
)
def test_a_model_without_a_guard_is_refuted(model: Model, mutation: Mutation) -> None:
    assert check(model, mutation).broken == mutation.breaks
