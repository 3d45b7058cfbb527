"""Tests of the design rules that a program can check."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import grimp
import pytest

from packages import parts

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    [*ROOT.glob("lakestream/**/*.py"), *ROOT.glob("jobs/*.py"), *ROOT.glob("packages/*/lakestream_*/**/*.py")]
)
CLAUSE = re.compile(r"\s*(What|Whether|Who|Whoever|Whom|Whose|Nobody|Somebody|It|They|How|When|Where|Why)\b")

RIDDLE = re.compile(rf'"""{CLAUSE.pattern}')
"""Such a docstring, or another string that looks like one: a file without it need not be parsed."""


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


class _Facts(NamedTuple):
    """Facts about a module that the rules ask for. The trees of all modules would take 300 MB of each test process."""

    documented: bool
    riddles: list[int]
    globals: list[int]
    texts: list[tuple[int, str]]
    """Line and text of the strings that mention a transaction log."""
    called: frozenset[str]
    """Names of the classes and functions that it calls, and of methods (`.name`)."""
    imported: list[tuple[int, str]]
    """Line and module of the imports `from module`."""
    classes: list[str]
    """Public classes, inner ones included."""


@functools.cache
def _facts(path: Path) -> _Facts:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = _Facts(not tree.body or bool(ast.get_docstring(tree)), _riddles(tree), [], [], frozenset(), [], [])
    called = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called.add(f".{node.func.attr}" if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""))
        elif isinstance(node, ast.Global):
            found.globals.append(node.lineno)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "_delta_log" in node.value:
            found.texts.append((node.lineno, node.value))
        elif isinstance(node, ast.ImportFrom):
            found.imported.append((node.lineno, node.module or ""))
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            found.classes.append(node.name)
    return found._replace(called=frozenset(called))


def test_there_are_modules() -> None:
    assert len(MODULES) > 20


def test_every_module_says_what_belongs_in_it() -> None:
    assert [_name(path) for path in MODULES if not _facts(path).documented] == []


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Iterate over (line, text) of the docstrings of a module, its classes, functions and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def _riddles(tree: ast.Module) -> list[int]:
    """Return the lines of docstrings that open with a clause instead of a verb or a noun."""
    return [line for line, text in _docstrings(tree) if CLAUSE.match(text)]


def test_no_docstring_opens_with_a_clause() -> None:
    """The subject of a docstring is a verb or a noun (PEP 257), see CONTRIBUTING.md."""
    suspects = [path for path in ROOT.glob("tests/**/*.py") if RIDDLE.search(path.read_text(encoding="utf-8"))]
    found = {_name(path): _facts(path).riddles for path in [*MODULES, *suspects]}
    assert {name: lines for name, lines in found.items() if lines} == {}


DECODED_BY_TYPE = re.compile(r"(?:json|msgpack)\.decode\([^\n]*type=(?!(?:list|tuple|dict)\[)\w+")


def test_records_have_decoders_that_their_modules_make() -> None:
    """msgspec builds what it knows of a record at the first use, without a lock: threads that decode a record for the
    first time at the same moment crash the process. A module-level Decoder builds it during the import."""
    assert [_name(path) for path in MODULES if DECODED_BY_TYPE.search(path.read_text(encoding="utf-8"))] == []
    assert DECODED_BY_TYPE.search("state = msgspec.msgpack.decode(body(a), type=State)")


def test_a_docstring_that_opens_with_a_clause_is_found() -> None:
    parts = (
        '"""Whether."""',
        'def f():\n    """It\'s one."""',
        'class A:\n    """Items."""\n    a: int\n    """When."""',
    )
    assert [_riddles(ast.parse(part)) for part in parts] == [[1], [2], [4]]


def test_no_module_keeps_global_state_that_changes() -> None:
    """No module has a `global` statement, with which module-level state is changed."""
    assert [f"{_name(path)}:{line}" for path in MODULES for line in _facts(path).globals] == []


def test_a_public_class_name_stands_for_one_thing() -> None:
    """A reader who meets a name knows which class it is, without looking at the imports."""
    places: dict[str, list[str]] = {}
    for path in MODULES:
        if path.is_relative_to(ROOT / "lakestream"):
            for name in _facts(path).classes:
                places.setdefault(name, []).append(_name(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_every_folder_with_tests_is_run_by_make_test() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    folders = {path.relative_to(ROOT).parts[1] for path in ROOT.glob("tests/*/**/test_*.py")}
    assert [folder for folder in sorted(folders) if f"tests/{folder}" not in makefile] == []


def test_transaction_logs_have_one_reader() -> None:
    """Only lake/table/log.py contains paths within `_delta_log`; all other code calls it."""
    path_in_log = re.compile(r"(^|/)_delta_log(/|$)")
    found = [
        f"{_name(path)}:{line}" for path in MODULES for line, text in _facts(path).texts if path_in_log.search(text)
    ]
    assert {place.partition(":")[0] for place in found} == {"lakestream/lake/table/log.py"}, found


def _called_in(*names: str) -> set[str]:
    """Return the modules that call one of these classes or functions, or one of these methods (`.name`)."""
    return {_name(path) for path in MODULES if not _facts(path).called.isdisjoint(names)}


def test_rows_of_tables_have_one_reader() -> None:
    """Only lake/table/scan.py opens tables with deltalake."""
    assert _called_in("DeltaTable", "QueryBuilder") == {"lakestream/lake/table/scan.py"}
    assert _called_in("given_back", "Payloads") == {"lakestream/lake/table/scan.py"}, "payloads of typed columns"


def test_tables_are_changed_by_one_class() -> None:
    """Only packages/spark/lakestream_spark/write/commit.py calls Delta's transaction."""
    of_delta = (".expectPosition", ".invalidateCache", ".readTimestamp", ".readVersion")
    assert _called_in(*of_delta) == {"packages/spark/lakestream_spark/write/commit.py"}


def test_a_server_follows_a_table_once() -> None:
    """All that a server does with a stream's table shares the follower of its StreamSync; clones.py reads the table of
    another stream, which may be on another server."""
    server = {each for each in _called_in("TableFollower") if each.startswith("lakestream/server/")}
    assert server == {"lakestream/server/lake/stream_sync.py", "lakestream/server/lake/clones.py"}
    assert _called_in(".commits_after") == {"lakestream/lake/table/foreign_commits.py"}
    assert _called_in(".newest_checkpoint") == {"lakestream/lake/table/state.py"}


def test_spark_programs_use_the_lake_and_never_the_server() -> None:
    """Programs in jobs/ import the lake, its Spark and the layers below only; import-linter does not check them, since
    jobs/ is no package."""
    below = ("extras", "log", "metrics", "protocol", "spans")
    allowed = ("lakestream.lake", "lakestream_spark", *(f"lakestream.{each}" for each in below))
    found = [
        f"{_name(path)}:{line}"
        for path in MODULES
        if path.parent.name == "jobs"
        for line, module in _facts(path).imported
        if module.startswith("lakestream") and not module.startswith(allowed)
    ]
    assert found == []


def _import_graph() -> dict[str, set[str]]:
    """Return the modules that each module imports, annotations (`TYPE_CHECKING`) included."""
    graph = grimp.build_graph("lakestream", *(part.module for part in parts.parts().values()), cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def _cycle(graph: dict[str, set[str]]) -> list[str]:
    """Return one cycle of a graph as a path, or an empty list."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_in_a_cycle() -> None:
    assert _cycle(_import_graph()) == []


def test_no_folders_import_each_other_in_a_cycle() -> None:
    """No folders import each other in a cycle.

    A folder and its subfolders are different, and imports between them are ignored.
    """
    modules = _import_graph()
    folder = {name: name if (ROOT / name.replace(".", "/")).is_dir() else name.rpartition(".")[0] for name in modules}
    folders: dict[str, set[str]] = {}
    for module, imported in modules.items():
        for other in imported:
            one, two = folder[module], folder[other]
            if one != two and not f"{one}.".startswith(f"{two}.") and not f"{two}.".startswith(f"{one}."):
                folders.setdefault(one, set()).add(two)
    assert _cycle(folders) == []


def test_a_cycle_is_found() -> None:
    assert _cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
    assert _cycle({"a": {"b"}, "b": {"c"}, "c": set()}) == []


def test_errors_of_decoding_are_caught_together() -> None:
    """msgspec also raises UnicodeDecodeError and RecursionError; protocol/decoding.py names all three."""
    alone = re.compile(r"except \(?msgspec\.(DecodeError|MsgspecError)\b(?!.*RecursionError)")
    named = {"lakestream/raft/group/groups.py"}  # messages.py turns the others into this one
    found = {_name(path) for path in MODULES if alone.search(path.read_text(encoding="utf-8"))}
    assert found - named == set()


def test_unit_tests_stand_in_the_folders_of_what_they_test() -> None:
    """A unit test's folder is that of the module that it tests in lakestream/, or of the package in packages/."""
    unit = ROOT / "tests" / "unit"
    folders = {path.parent.relative_to(unit) for path in unit.rglob("test_*.py")}
    tops = [ROOT / "lakestream", ROOT / "packages"]
    assert [str(folder) for folder in sorted(folders) if not any((top / folder).is_dir() for top in tops)] == []
