"""ARCHITECTURE.md and the folders' docstrings say what is there."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grimp
import pytest

from lakestream.config.options import JetStreamOptions, Options
from lakestream.logging import Logger
from lakestream.server.node import Node
from tests.calls import Calls, recorded
from tests.docs import architecture, folders
from tests.docs.architecture import COMPACTION, DELIVERY, PUBLISH, READ
from tests.docs.blocks import ROOT
from tests.wire import Wire, pub

pytestmark = pytest.mark.unit

MAX_BYTES = 12_288
PACKAGE = ROOT / "lakestream"
PACKAGES = {path.name: path for path in ROOT.glob("packages/*/lakestream_*") if path.is_dir()}


def located(name: str) -> Path:
    """Return the path of a module: below `lakestream/`, or in a package of its own."""
    return PACKAGES.get(name.partition("/")[0], PACKAGE / "lakestream").parent / name


@cache
def defined(module: Path) -> frozenset[str]:
    """Return the functions, classes and methods that a module defines, as qualified names."""

    def names(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + node.name
                if isinstance(node, ast.ClassDef):
                    yield from names(node.body, f"{prefix}{node.name}.")

    return frozenset(names(ast.parse(module.read_text(encoding="utf-8")).body))


def test_the_page_is_short() -> None:
    assert len(architecture.TEXT.encode()) <= MAX_BYTES


def test_each_flow_has_ten_steps() -> None:
    assert [len(architecture.flow(title)) for title in (PUBLISH, DELIVERY, COMPACTION, READ)] == [10] * 4


def test_each_step_names_a_function_or_class_of_its_module() -> None:
    steps = [step for title in (PUBLISH, DELIVERY, COMPACTION, READ) for step in architecture.flow(title)]
    assert [(module, name) for module, name in steps if name not in defined(located(module))] == []


def test_each_name_of_the_page_exists() -> None:
    """Paths are below `lakestream/` or the repository; other names are classes, their methods, or functions."""
    text = re.sub(r"^```.*?^```", "", architecture.TEXT, flags=re.DOTALL | re.MULTILINE)
    names = set(re.findall(r"`([^`]+)`", text))
    python = frozenset[str]().union(
        *(defined(path) for root in (PACKAGE, *PACKAGES.values()) for path in root.rglob("*.py"))
    )
    java = {path.stem for path in (ROOT / "jvm").rglob("*.java")}
    other = {"max_ack_pending", "add", "make lint", "WHERE subject = …", "drop-when-typed", "__init__.py"}
    assert other <= names
    unknown = {
        name for name in names - other - python - java if not located(name).exists() and not (ROOT / name).exists()
    }
    assert unknown == set()


def test_the_table_has_each_folder_once() -> None:
    folders = [folder for part in architecture.parts().values() for folder in part]
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert len(architecture.parts()) == 8
    assert sorted(folders) == sorted({*packages, "jobs", "jvm", "packages"})


def test_a_part_imports_only_parts_above_it() -> None:
    graph = grimp.build_graph("lakestream", cache_dir=None)
    rank = {folder: at for at, part in enumerate(architecture.parts().values()) for folder in part}
    found = {
        (one, two)
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
        if (one := f"{module}..".split(".")[1]) in rank and (two := f"{imported}..".split(".")[1]) in rank
        if rank[one] < rank[two]
    }
    assert found == set()


def test_each_folder_lists_its_modules() -> None:
    assert folders.stale() == [], "python -m tests.docs.folders"


def test_each_folder_states_a_rule_before_its_list() -> None:
    silent = [
        str(init.relative_to(ROOT))
        for init in folders.folders()
        if "Belongs here: " not in init.read_text("utf-8").partition(folders.HEAD)[0]
    ]
    assert silent == []


def test_a_list_keeps_its_order_and_gets_new_modules_at_its_end() -> None:
    members = {"a.py": "One.", "b.py": "Two.", "c/": "Three."}
    assert folders.listing(members, ["c/", "gone.py", "b.py"]).splitlines() == [
        "- `c/`: Three.",
        "- `b.py`: Two.",
        "- `a.py`: One.",
    ]


async def test_a_publish_and_its_delivery_take_the_steps_of_the_page(tmp_path: Path) -> None:
    store = JetStreamOptions(store_dir=str(tmp_path), max_memory=1 << 30, max_file=1 << 30)
    with recorded() as calls:
        node = Node(Options(host="127.0.0.1", port=-1, jetstream=store), Logger())
        await node.start()
        try:
            await asyncio.to_thread(_publish_and_fetch, node.identity.port, calls)
        finally:
            await node.stop()
    for title in (PUBLISH, DELIVERY):
        steps = architecture.flow(title)
        assert calls.missing(steps) == []
        assert calls.ordered(steps) == steps


def _publish_and_fetch(port: int, calls: Calls) -> None:
    """Let a pull request wait, publish messages in one packet, and acknowledge one that was delivered."""
    with Wire(("127.0.0.1", port)) as wire:
        wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.*"]})
        chosen = {"durable_name": "C", "filter_subject": "s.a", "ack_policy": "explicit"}
        wire.api("CONSUMER.DURABLE.CREATE.S.C", {"stream_name": "S", "config": chosen})
        sid = wire.subscribe("deliveries")
        wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", b'{"batch":9,"expires":60000000000}', "deliveries")
        wire.ping()
        wire.ping()  # the first one's answer leaves before the end of the turn
        calls.first.clear()
        wire.send(b"".join(pub("s.a", b"%d" % number, f"{wire.inbox}.{number}") for number in range(9)))
        delivered = wire.delivered(sid)
        wire.publish(delivered.reply, b"+ACK")
        wire.ping()
