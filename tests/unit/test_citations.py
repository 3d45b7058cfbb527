"""Tests that citations in code, tests and documentation resolve: pages, anchors, invariants, tests, error codes."""

from __future__ import annotations

import importlib
import importlib.util
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from lakestream.protocol.api.errors import ERRORS

pytestmark = pytest.mark.unit

ROOT = next(parent for parent in Path(__file__).parents if (parent / "pyproject.toml").exists())
INTERNALS = ROOT / "docs" / "internals"
CODE = sorted(
    path
    for top in ("lakestream", "jobs", "packages", "tests", "jvm")
    for end in ("py", "java")
    for path in (ROOT / top).rglob(f"*.{end}")
)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_PAGE = re.compile(r"(?<![\w/.$}\x22-])((?:[\w-]+/)*[\w-]+\.md)(#[\w-]+)?")
_LINK = re.compile(r"\]\(([^)\s#]*)(#[^)\s]+)?\)")
_INVARIANT = re.compile(r"\b[Ii]nvariants? (\d+)(?:(?:,| and) (\d+))*|_invariant_(\d+)(?:_and_(\d+))?_")
_SECTION = re.compile(r"(?<!Raft )(?<!thesis )(?<!, )§")
_OUTSIDE = re.compile(r"\b(?:DESIGN|FACTS)\b|\bcontract[:/ ]\s*(?:\w+\.md|\d)")
_ABOUT_RAFT = re.compile(r"raft|tests/sim")
_IMPORT = re.compile(r"^\s*from (lakestream[\w.]*) import ([\w, ]+)", re.MULTILINE)
_DOTTED = re.compile(r"`(lakestream\.(?:lake|spark)\.[\w.]+)[`(]")
_RUN = re.compile(r"python -m ((?:lakestream|tests)[\w.]*)")
_MODULE = re.compile(r"(?<![\w./<{*$:-])((?:[\w-]+/)*[\w-]+\.py)\b")
_PATH = re.compile(r"(?<![\w./~-])((?:docker|jobs|jvm|spark_conf|tests)/[\w/.-]*[\w/])(?![\w*{<])")


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, in GitHub's spelling."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    slugs: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slugs.append(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    repeated = [f"-{slugs[:at].count(slug)}" if slug in slugs[:at] else "" for at, slug in enumerate(slugs)]
    return frozenset(f"#{slug}{end}" for slug, end in zip(slugs, repeated, strict=True))


def resolves(page: Path, anchor: str) -> bool:
    """Return True if the page exists and has the anchor, if one is named."""
    return page.exists() and (not anchor or page.suffix != ".md" or anchor in anchors(page))


@cache
def lines(path: Path) -> list[tuple[str, str]]:
    """Return each line with its place, without those of differences in pages: they name files that do not exist yet."""
    place, text = path.relative_to(ROOT), path.read_text()
    if path.suffix == ".md":
        text = re.sub(
            r"^```diff\n.*?^```$", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE
        )
    return [(f"{place}:{number}", line) for number, line in enumerate(text.splitlines(), 1)]


def sources() -> Iterator[Path]:
    """Yield all files with code except this one."""
    return (path for path in CODE if path != Path(__file__))


def test_pages_that_code_and_tests_name_exist() -> None:
    broken = [
        f"{place}: {page}{anchor}"
        for path in sources()
        for place, line in lines(path)
        for page, anchor in _PAGE.findall(line)
        if not resolves(ROOT / page, anchor)
    ]
    assert broken == []


def test_links_between_pages_resolve() -> None:
    broken = [
        f"{place}: {target}{anchor}"
        for path in PAGES
        for place, line in lines(path)
        for target, anchor in _LINK.findall(line)
        if "://" not in target and not resolves((path.parent / target) if target else path, anchor)
    ]
    assert broken == []


def exists(name: str) -> bool:
    """Return True for the dotted name of a module, or of a name in one."""
    module, _, last = name.rpartition(".")
    try:
        if module and hasattr(importlib.import_module(module), last):
            return True
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def test_python_names_in_pages_exist() -> None:
    broken = []
    for path in PAGES:
        text = path.read_text()
        names = {f"{module}.{name.strip()}" for module, found in _IMPORT.findall(text) for name in found.split(",")}
        names |= {name for name in _DOTTED.findall(text) if not name.startswith("lakestream.spark.Lakestream")}
        broken += [f"{path.name}: {name}" for name in sorted(names | set(_RUN.findall(text))) if not exists(name)]
    assert broken == []


def test_files_that_pages_name_exist() -> None:
    broken = [
        f"{place}: {name}"
        for path in PAGES
        if path.name != "CHANGELOG.md"
        for place, line in lines(path)
        for name in _PATH.findall(line)
        if not (ROOT / name).exists() and f"+++ b/{name}" not in path.read_text()
    ]
    assert broken == []


def modules_named(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each module that comments and docstrings of a source file name, with its place."""
    if not _MODULE.search(path.read_text(encoding="utf-8")):
        return
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT or token.string.startswith('"""'):
                place = f"{path.relative_to(ROOT)}:{token.start[0]}"
                yield from ((place, name) for name in _MODULE.findall(token.string))


def test_modules_that_sources_name_exist() -> None:
    """A name is relative to the folder of the file that names it, or to one above that; between packages it begins with
    the package, or with a folder of lakestream."""
    tops = [ROOT / "lakestream", *(path.parent for path in ROOT.glob("packages/*/lakestream_*"))]
    broken = [
        f"{place}: {name}"
        for path in CODE
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in ("lakestream", "packages")
        for place, name in modules_named(path)
        if not any((folder / name).exists() for folder in [*path.parents, *tops] if folder.is_relative_to(ROOT))
    ]
    assert broken == []


def test_modules_that_pages_name_exist() -> None:
    """Tables name modules without the folder that stands above or before them."""
    there = {"/" + str(path.relative_to(ROOT)) for path in CODE}
    broken = [
        f"{place}: {name}"
        for path in [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *INTERNALS.glob("*.md")]
        for place, line in lines(path)
        for quoted in re.findall(r"`([^`]+)`", line)
        for name in _MODULE.findall(quoted)
        if not any(module.endswith(f"/{name}") for module in there)
    ]
    assert broken == []


def test_nothing_outside_of_the_repository_is_cited() -> None:
    """Sections (§) are those of the Raft paper and thesis."""
    found = [
        f"{place}: {line.strip()}"
        for path in [*sources(), *PAGES]
        for place, line in lines(path)
        if _OUTSIDE.search(line) or (_SECTION.search(line) and not _ABOUT_RAFT.search(place))
    ]
    assert found == []


@cache
def invariants() -> dict[int, str]:
    """Return the text of each invariant by its number."""
    parts = re.split(r"^## (\d+)\. ", (INTERNALS / "invariants.md").read_text(), flags=re.MULTILINE)[1:]
    return {int(number): text for number, text in zip(parts[::2], parts[1::2], strict=True)}


def test_invariants_that_are_cited_exist() -> None:
    broken = [
        f"{place}: {line.strip()}"
        for path in [*sources(), *PAGES]
        for place, line in lines(path)
        for numbers in _INVARIANT.findall(line)
        if not {int(number) for number in numbers if number} <= invariants().keys()
    ]
    assert broken == []


def test_every_invariant_names_tests_that_exist() -> None:
    tests = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)\(", path.read_text())
    }
    named = {number: set(re.findall(r"`(test_\w+)`", text)) for number, text in invariants().items()}
    assert list(named) == list(range(1, len(named) + 1))
    assert all(named.values())
    assert {number: names - tests for number, names in named.items() if names - tests} == {}


def test_error_codes_in_the_pages_are_those_of_the_table() -> None:
    text = (INTERNALS / "errors.md").read_text()
    rows = re.findall(r"^\| (\d{5}) \| (\d{3}) \| (.*?) \|", text, re.MULTILINE)
    assert {int(code): (int(kind), said) for code, kind, said in rows} == {
        int(code): (ERRORS[int(code)].code, ERRORS[int(code)].description) for code, _, _ in rows
    }
    mentioned = {
        int(code) for page in INTERNALS.glob("*.md") for code in re.findall(r"\b10[012]\d\d\b", page.read_text())
    }
    assert mentioned <= ERRORS.keys()
    raised = {
        int(code)
        for path in CODE
        if path.is_relative_to(ROOT / "lakestream") and path.name != "errors.py"
        for code in re.findall(r"\b(?:api_error|error)\((10[012]\d\d)\b", path.read_text())
    }
    assert raised <= {int(code) for code, _, _ in rows}
    assert len(raised) > 100
