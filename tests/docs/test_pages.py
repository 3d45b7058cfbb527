"""Tests of the pages of the documentation that need neither a server nor the network."""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import lakestream.config
from tests import campaigns
from tests.bench import report
from tests.docs import pictures, references
from tests.docs.anchors import anchor
from tests.docs.blocks import COMMANDS, DIFF, LANGUAGES, ROOT, blocks, indented, pages
from tests.docs.worlds import WORLDS

pytestmark = pytest.mark.unit

BLOCKS = [block for path in pages() for block in blocks(path)]


def test_the_references_are_current() -> None:
    assert references.stale() == [], "make docs"


def test_the_pictures_are_current() -> None:
    assert pictures.stale() == [], "make docs"


def test_the_benchmarks_are_those_of_the_results() -> None:
    assert report.stale() == [], "python -m tests.bench.report"


def test_the_table_of_campaigns_is_that_of_the_results() -> None:
    assert not campaigns.stale(), "python -m tests.campaigns"


def test_each_campaign_names_tests_that_exist() -> None:
    assert campaigns.unknown_tests() == []


def test_each_benchmark_says_where_its_figures_are() -> None:
    assert [name for name, _, place in report.scripts() if not place] == []


def test_each_block_has_a_language() -> None:
    assert {block.place: block.language for block in BLOCKS if block.language not in LANGUAGES} == {}


def test_code_is_in_fenced_blocks() -> None:
    assert {str(path): lines for path in pages() if (lines := indented(path))} == {}


def test_commands_are_not_hidden_in_blocks_of_text() -> None:
    assert [block.place for block in BLOCKS if block.language == "text" and COMMANDS.search(block.text)] == []


def test_a_block_that_does_not_run_has_a_reason() -> None:
    assert [block.place for block in BLOCKS if block.reason and len(block.reason.split()) < 2] == []
    marks = sum(path.read_text().count("<!-- not run:") for path in pages())
    assert marks == sum(bool(block.reason) for block in BLOCKS), "a mark must be right above its block"


def test_most_blocks_run() -> None:
    runnable = [block for block in BLOCKS if block.language not in ("text", DIFF)]
    assert sum(not block.reason for block in runnable) > 0.7 * len(runnable)


def test_worlds_are_of_pages() -> None:
    assert [page for page in WORLDS if not (ROOT / page).exists()] == []


def test_anchors_are_those_of_git_hosts() -> None:
    assert anchor("`cluster { … }`") == "cluster---"
    assert anchor("Backups: snapshot and restore") == "backups-snapshot-and-restore"


def test_links_lead_to_files_and_headings() -> None:
    broken = []
    for path in pages():
        text = re.sub(r"^( *)```.*?^\1```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, wanted = target.partition("#")
            to = Path(os.path.normpath(path.parent / file)) if file else path
            if not to.exists() or (wanted and wanted not in _anchors(to)):
                broken.append(f"{path.relative_to(ROOT)}: {target}")
    assert broken == []


def _anchors(path: Path) -> set[str]:
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)}


def exists(name: str) -> bool:
    """Return True if a name with dots is that of a module, or of something in one."""
    for at in range(name.count(".") + 1, 0, -1):
        module = ".".join(name.split(".")[:at])
        with contextlib.suppress(ImportError):
            found: object = importlib.import_module(module)
            rest = name.removeprefix(module).split(".")[1:]
            return all((found := getattr(found, each, None)) is not None for each in rest)
    return False


def test_names_of_the_packages_exist() -> None:
    written = {
        name for path in pages() for name in re.findall(r"`(lakestream_\w+(?:\.\w+)+)(?=[`(])", path.read_text())
    }
    assert len(written) > 1
    assert not exists("lakestream_sql.typed.nix")
    assert sorted(name for name in written if not exists(name)) == []


def test_every_page_is_on_the_site() -> None:
    class Loader(yaml.SafeLoader):
        """Takes the names of Python functions in mkdocs.yml for text."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda loader, suffix, node: suffix)
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"]
    listed = set(re.findall(r"[\w./-]+\.md", str(nav)))
    assert {str(path.relative_to(ROOT / "docs")) for path in pages()[1:]} - listed == set()


def _tables(module: ModuleType) -> list[object]:
    text = Path(str(module.__file__)).read_text()
    names = re.findall(r"^(\w+): dict\[str, Rule\] = ", text, re.MULTILINE)
    return [getattr(module, name) for name in names]


def test_every_table_of_keys_is_in_the_reference() -> None:
    modules = [
        importlib.import_module(f"lakestream.config.{each.name}")
        for each in pkgutil.iter_modules(lakestream.config.__path__)
    ]
    listed = [block.rules for block in references.BLOCKS]
    contained = [set(rules.items()) for rules in listed]
    for module in modules:
        for table in _tables(module):
            assert isinstance(table, dict)
            items = set(table.items())
            assert any(items <= each for each in contained), f"{module.__name__}: {list(table)[:3]} …"


def test_each_key_is_described() -> None:
    """The hand-written part of the page, or the page of its part, has the key or one of its other names."""
    described = (ROOT / "docs/reference/configuration.md").read_text().partition(references.BEGIN)[0]
    for page in ("accounts", "security", "leafnodes", "moving", "mirrors", "replication"):
        described += (ROOT / f"docs/{page}.md").read_text()
    described = re.sub(r"```.*?```", "", described, flags=re.DOTALL)
    words = {word for text in re.findall(r"`([^`]+)`", described) for word in re.findall(r"\w+", text)}
    missing = {
        f"{block.path}.{names[0]}"
        for block in references.BLOCKS
        for names, _ in references.grouped(block.rules)
        if not words & set(names)
    }
    assert missing == set()


def test_environment_variables_are_listed() -> None:
    known = " ".join((*references.ENVIRONMENT, *references.ENVIRONMENT.values(), references.cli()))
    read = set()
    for path in (*ROOT.glob("lakestream/**/*.py"), *ROOT.glob("packages/*/**/*.py"), *ROOT.glob("jobs/*.py")):
        read |= set(re.findall(r'"((?:LAKESTREAM|NATS|AWS)_[A-Z_]+)"', path.read_text()))
    assert {name for name in read if name not in known} == set()
