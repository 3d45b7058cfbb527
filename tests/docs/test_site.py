"""Tests of the site: it builds without a warning, and needs no other host."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT
from tests.docs.site import rewritten

pytestmark = [pytest.mark.unit, pytest.mark.heavy]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the built site."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "WARNING" in done.stderr) == (0, False), done.stderr
    return folder


def test_the_site_has_all_pages_and_a_search_index(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    for page in (ROOT / "docs").rglob("*.md"):
        name = str(page.relative_to(ROOT / "docs").with_suffix(".html")).replace("README", "index")
        assert (site / name).exists(), name
        assert name in found, name
    assert (site / "internals" / "ARCHITECTURE.html").exists()


def test_the_front_page_leads_to_every_page_for_users(site: Path) -> None:
    page = (site / "index.html").read_text()
    text = page.partition("<article")[2].partition("</article>")[0]
    linked = set(re.findall(r'href="([\w/-]+\.html)', text))
    wanted = {path.with_suffix(".html").name for path in (ROOT / "docs").glob("*.md")} - {"index.html"}
    assert wanted - linked == set()
    assert {
        "examples/index.html",
        "tutorials/index.html",
        "reference/configuration.html",
        "reference/cli.html",
    } <= linked
    for name in (path.parent.name for path in (ROOT / "examples").glob("*/README.md")):
        assert (site / "examples" / f"{name}.html").exists(), name


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    loaded = set()
    for page in site.rglob("*.html"):
        loaded |= set(re.findall(r'<(?:script|img|iframe)[^>]* src="(https?:[^"]+)"', page.read_text()))
        loaded |= set(re.findall(r'<link rel="stylesheet"[^>]* href="(https?:[^"]+)"', page.read_text()))
    assert loaded == set()


MD = ".md"
ON_SITE = f"docs/internals/ARCHITECTURE{MD}"


@pytest.mark.parametrize(
    ("source", "place", "link", "wanted"),
    [
        (f"docs/sql{MD}", f"docs/sql{MD}", f"[a](lake{MD}#x)", f"[a](lake{MD}#x)"),
        (f"docs/sql{MD}", f"docs/sql{MD}", f"[a](../ARCHITECTURE{MD})", f"[a](internals/ARCHITECTURE{MD})"),
        (f"ARCHITECTURE{MD}", ON_SITE, f"[a](docs/lake{MD}#x)", f"[a](../lake{MD}#x)"),
        (f"ARCHITECTURE{MD}", ON_SITE, "[a](jobs/compact.py)", "a"),
        (f"docs/index{MD}", f"docs/index{MD}", f"[a](../examples/README{MD})", f"[a](examples/README{MD})"),
        (f"examples/README{MD}", f"docs/examples/README{MD}", f"[a](iot/README{MD})", f"[a](iot{MD})"),
        (f"ARCHITECTURE{MD}", ON_SITE, "[a](#b) [c](https://d.e)", "[a](#b) [c](https://d.e)"),
    ],
)
def test_links_between_the_repository_and_the_site(source: str, place: str, link: str, wanted: str) -> None:
    assert rewritten(link, source, place) == wanted
