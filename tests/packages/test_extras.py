"""Tests of the extras: the base installation has what the server imports, and no more; optional packages fit to it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import grimp
import nats
import pytest

from lakestream import __version__, extras
from lakestream.cli.optional import ENTRY_POINTS
from lakestream.cli.optional import EXTRAS as EXTRAS_OF_COMMANDS
from lakestream.schemas.codec import codec_of
from lakestream.schemas.errors import BadSchema
from lakestream.schemas.schema import Schema
from packages import parts
from tests.conftest import StartServer

ROOT = Path(__file__).resolve().parents[2]
MODULE_OF = {
    "backports.zstd": "backports",
    "delta-spark": "delta",
    "googleapis-common-protos": "google",
    "nats-py": "nats",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
    "opentelemetry-sdk": "opentelemetry",
    "protobuf": "google",
    "pynacl": "nacl",
}
"""Modules of distributions that have another name."""
FOR_THE_COMMAND_LINE = {"nats", "nkeys", "rich", "typer"}
OPTIONAL = {*extras.MODULES["otel"], *extras.MODULES["tables"], "compression", "duckdb"}
"""Imported by a server that is configured for them, reads tables, or runs on Python 3.14; duckdb: by a reader of
encrypted tables."""
WITHOUT_IMPORT = {"tzdata"}
"""Data that Python reads by itself."""
ALSO = {"py4j": "pyspark"}
"""Modules that come with another distribution."""
FOR_OTHERS = {
    *("duckdb_extension_aws", "duckdb_extension_delta", "duckdb_extension_httpfs", "pandas", "setuptools"),
    "lakestream_schemas",
}
"""Required without an import: files that DuckDB loads, what Spark uses, a version for another distribution, and what
lakestream rebuilds payloads of rows with."""
FOR_TABLES = {"lakestream_schemas"}
"""Packages that make columns only where the libraries for tables are; a server without them checks payloads alone."""
ALSO_IMPORTED = {"botocore", "py4j", "thrift"}
"""Modules that come with boto3, pyspark and pymetastore."""
BY_ANOTHER_EXTRA = {
    "lakestream_commands": {"lakestream_client"},
    "lakestream_console": {"lakestream_client", "lakestream_sql"},
    "lakestream_iceberg": {"boto3"},
}
"""Modules for one option of a package, which names the extra where they are missing."""


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["project"]


def modules(requirements: list[str]) -> set[str]:
    """Return the top-level modules of distributions; of extras of lakestream itself, none."""
    names = {re.split(r"[\s\[<>=!;~]", requirement, maxsplit=1)[0].lower() for requirement in requirements}
    return {MODULE_OF.get(name, name.replace("-", "_")) for name in names - {extras.DISTRIBUTION}}


LOOKED_FOR = {"lakestream.client", "lakestream.console", "lakestream.spark", "lakestream.verification"}
"""Groups of entry points that `lakestream up` reads once."""
SERVER = ["lakestream-schemas==0.1.0", "lakestream-verify==0.1.0"]
"""Requirements of an installation that has the server alone."""


def installed(extra: str, project: dict[str, Any]) -> set[str]:
    """Return the modules that an extra installs, with those of the extras and packages that it names."""
    found, waiting = set[str](), list(project["optional-dependencies"][extra])
    while waiting:
        requirement = waiting.pop()
        found |= modules([requirement])
        if inner := re.fullmatch(rf"{extras.DISTRIBUTION}\[(\w+)\]", requirement):
            waiting += project["optional-dependencies"][inner[1]]
        elif part := parts.parts().get(requirement):
            waiting += parts.dependencies(part)
    return found


def test_the_base_installation_is_what_serve_imports(project: dict[str, Any]) -> None:
    graph = grimp.build_graph("lakestream", include_external_packages=True, exclude_type_checking_imports=True)
    reached, waiting = set[str](), ["lakestream.cli.serve"]
    while waiting:
        module = waiting.pop()
        reached.add(module)
        waiting += graph.find_modules_directly_imported_by(module) - reached
    imported = {name for name in reached if not name.startswith("lakestream")} - set(sys.stdlib_module_names)
    base = modules(project["dependencies"])
    assert imported - base == OPTIONAL, "imported by the server, but in no base installation"
    assert base - imported == FOR_THE_COMMAND_LINE | WITHOUT_IMPORT, "in the base installation without need"


def test_every_module_of_an_extra_is_installed_by_it(project: dict[str, Any]) -> None:
    assert project["optional-dependencies"]["server"] == SERVER
    for extra, names in extras.MODULES.items():
        assert {ALSO.get(name, name) for name in names} <= installed(extra, project), extra


def test_optional_packages_have_the_name_and_the_version_of_the_main_one(project: dict[str, Any]) -> None:
    """`python packages/parts.py` writes the files that differ."""
    assert [str(path) for path, text in parts.wanted().items() if path.read_text() != text] == []
    assert project["version"] == __version__
    folders = {name: f"packages/{name}" for name in parts.NAMES}
    assert f"\nPARTS := {' '.join(folders.values())}\n" in (ROOT / "Makefile").read_text()
    assert all((ROOT / folder / "README.md").is_file() for folder in folders.values())
    optional = project["optional-dependencies"]
    assert all(part.requirement in optional[part.folder.name] for part in parts.parts().values())


def test_make_run_starts_with_the_packages_that_a_running_server_looks_for() -> None:
    """A running Python does not see packages that are installed from folders later."""
    makefile = (ROOT / "Makefile").read_text()
    first = re.search(r"^FIRST := (.+)$", makefile, re.MULTILINE)
    assert first is not None
    wanted = set[str]()
    for part in parts.parts().values():
        points = parts.project(part.folder).get("entry-points", {})
        if points.keys() & LOOKED_FOR or "pub" in points.get(ENTRY_POINTS, ()):
            own = [part, *(parts.parts()[each] for each in parts.dependencies(part) if each in parts.parts())]
            wanted |= {f"packages/{each.folder.name}" for each in own}
    assert set(first[1].split()) == wanted


def test_commands_of_optional_packages_are_those_that_the_help_lists() -> None:
    brought = {
        command: name
        for name in parts.NAMES
        for command in parts.project(ROOT / "packages" / name).get("entry-points", {}).get(ENTRY_POINTS, ())
    }
    assert brought == EXTRAS_OF_COMMANDS


def has_tables(part: parts.Part) -> bool:
    """Return True if a package requires the libraries for tables, or another package that does."""
    needed, own = parts.dependencies(part), parts.parts()
    return f"{extras.DISTRIBUTION}[tables]" in needed or any(has_tables(own[each]) for each in needed if each in own)


@pytest.mark.parametrize("part", parts.parts().values(), ids=lambda part: str(part.distribution))
def test_an_optional_package_requires_what_it_imports(part: parts.Part, project: dict[str, Any]) -> None:
    graph = grimp.build_graph(part.module, include_external_packages=True, exclude_type_checking_imports=True)
    own = {name for name in graph.modules if name.partition(".")[0] == part.module}
    imported = {other.partition(".")[0] for name in own for other in graph.find_modules_directly_imported_by(name)}
    tables = has_tables(part) or part.module in FOR_TABLES
    base = modules([*project["dependencies"], *(project["optional-dependencies"]["tables"] if tables else [])])
    foreign = imported - set(sys.stdlib_module_names) - base - {part.module, "lakestream"}
    extra = modules(project["optional-dependencies"][part.folder.name]) - {part.module}
    foreign -= BY_ANOTHER_EXTRA.get(part.module, set())
    assert foreign - ALSO_IMPORTED - FOR_OTHERS == modules(parts.dependencies(part)) - FOR_OTHERS | extra


def without(tmp_path: Path, *names: str) -> dict[str, str]:
    """Return an environment whose Python lacks modules."""
    program = f"""
        import sys
        from importlib.machinery import PathFinder
        class Lacking(PathFinder):
            @classmethod
            def find_spec(cls, name, path=None, target=None):
                return None if name.partition('.')[0] in {names!r} else super().find_spec(name, path, target)
            @classmethod
            def find_distributions(cls, *arguments):
                found = super().find_distributions(*arguments)
                return (each for each in found if each.name.replace('-', '_') not in {names!r})
        sys.meta_path = [Lacking if finder is PathFinder else finder for finder in sys.meta_path]
    """
    (tmp_path / "sitecustomize.py").write_text("\n".join(line[8:] for line in program.splitlines()))
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path}


@pytest.mark.parametrize(
    ("command", "module", "extra"),
    [
        (["sql", "-q", "SELECT 1"], "duckdb", "sql"),
        (["compact", "--once"], "pyspark", "spark"),
        (["maintain", "--once"], "lakestream_spark", "spark"),
        (["clone", "ORDERS", "copy"], "pyspark", "spark"),
        (["export", "ORDERS", "--to", "orders.csv"], "lakestream_transfer", "transfer"),
        (["import", "orders.csv", "--stream", "ORDERS"], "lakestream_transfer", "transfer"),
        (["import", "orders.csv", "--stream", "ORDERS"], "duckdb", "sql"),
        (["mcp"], "lakestream_mcp", "mcp"),
        (["mcp"], "mcp", "mcp"),
        (["sharing", "create", "acme", "--all"], "lakestream_sharing", "sharing"),
        (["sharing", "--help"], "lakestream_sharing", "sharing"),
        (["catalog", "ls"], "lakestream_catalogs", "catalogs"),
        (["iceberg", "serve"], "lakestream_iceberg", "iceberg"),
        (["bench", "js"], "lakestream_bench", "bench"),
        (["demo", "--flights", "1"], "lakestream_demo", "demo"),
        (["move", "*", "--from", "nats://127.0.0.1:1"], "lakestream_move", "move"),
    ],
)
def test_a_command_without_its_packages_says_what_to_install(
    tmp_path: Path, command: list[str], module: str, extra: str
) -> None:
    (tmp_path / "streams").mkdir()
    environ = without(tmp_path, module)
    done = subprocess.run(
        [sys.executable, "-m", "lakestream.cli.main", *command],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    line = f"lakestream {command[0]} needs {module}, which is not installed: pip install 'lakestream-server[{extra}]'"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"lakestream: {line}\n")


def test_while_make_run_installs_the_rest_a_command_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/packages/test_first_hour.py is about the whole."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    text = "lakestream sql needs duckdb, which is not installed: "
    for stamp, remedy in ((".installed-server", "make run is still installing it"), (".installed-run", "pip install")):
        (tmp_path / stamp).touch()
        assert str(extras.ExtraMissing("lakestream sql", "duckdb", "sql")).startswith(text + remedy)


def test_without_an_optional_package_its_group_is_in_the_help_and_completes_to_nothing(tmp_path: Path) -> None:
    environ = without(tmp_path, "lakestream_catalogs", "lakestream_sharing")
    program = [sys.executable, "-m", "lakestream"]
    shown = subprocess.run([*program, "--help"], env=environ, capture_output=True, text=True, timeout=60, check=True)
    assert "Share tables with recipients" in shown.stdout
    assert "Register a lake's tables" in shown.stdout
    shell = {**environ, "_LAKESTREAM_COMPLETE": "complete_bash", "COMP_CWORD": "2"}
    for line in ("lakestream sharing ", "lakestream sharing cr", "lakestream catalog "):
        environ = {**shell, "COMP_WORDS": line}
        done = subprocess.run(program, env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", ""), line


def test_a_job_without_spark_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "lake" / "streams").mkdir(parents=True)
    (tmp_path / "lake" / "segments").mkdir()
    job = [sys.executable, str(ROOT / "jobs" / "maintain.py"), "--lake", str(tmp_path / "lake"), "--once"]
    done = subprocess.run(
        job, env=without(tmp_path, "pyspark"), capture_output=True, text=True, timeout=60, check=False
    )
    line = "lakestream: the maintainer needs pyspark, which is not installed: pip install 'lakestream-server[spark]'"
    assert (done.returncode, done.stderr) == (1, f"{line}\n")


def test_a_compactor_without_the_package_of_catalogs_goes_on_and_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "lake" / "streams").mkdir(parents=True)
    (tmp_path / "lake" / "segments").mkdir()
    job = [sys.executable, str(ROOT / "jobs" / "compact.py"), "--lake", str(tmp_path / "lake"), "--once"]
    job += ["--catalog", "unity+http://127.0.0.1:1/main"]
    environ = without(tmp_path, "lakestream_catalogs")
    done = subprocess.run(job, env=environ, capture_output=True, text=True, timeout=60, check=False)
    line = "the catalog unity+http://127.0.0.1:1/main needs lakestream_catalogs, which is not installed"
    install = "pip install 'lakestream-server[catalogs]'. Compaction goes on"
    assert (done.returncode, done.stderr) == (0, f"lakestream: {line}: {install}\n")
    found = subprocess.run(job, env=os.environ, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 0
    assert "catalog unity+http://127.0.0.1:1/main cannot be used" in found.stderr, "the keeper was found"


def test_a_schema_without_its_format_s_package_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(extra: str, purpose: str) -> None:
        raise extras.ExtraMissing(purpose, "lakestream_schemas", extra)

    monkeypatch.setattr(extras, "require", missing)
    with pytest.raises(BadSchema, match=r"the format avro needs lakestream_schemas.*\[schemas\]"):
        codec_of(Schema("S", 1, "avro", '"int"'))


async def test_a_server_without_the_registry_answers_its_requests_with_what_to_install(
    start_server: StartServer, tmp_path: Path
) -> None:
    lacking = without(tmp_path, "lakestream_schemas")
    client = await nats.connect(start_server(environment={"PYTHONPATH": lacking["PYTHONPATH"]}).url)
    for _ in range(2):
        answer = json.loads((await client.request("$LAKE.API.SCHEMA.LIST", timeout=30)).data)
        assert answer["error"]["err_code"] == 20005
        assert "pip install 'lakestream-server[schemas]'" in answer["error"]["description"]
    await client.close()
