"""Tests that the JAR in the repository is compiled from the sources beside it."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from lakestream_spark import jars

pytestmark = [pytest.mark.lake, pytest.mark.smoke]


def builder() -> ModuleType:
    """Return jvm/build.py, a program outside any package, as a module."""
    spec = importlib.util.spec_from_file_location("jvm_build", Path(__file__).parents[2] / "jvm" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def classes(jar: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(jar) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name.endswith(".class")}


def test_the_jar_is_built_from_these_sources(tmp_path: Path) -> None:
    build = builder()
    kept = Path(jars.own())
    sources, compiler = build.built_from(kept)
    assert sources == build.digest(), "the sources in jvm/ have changed: run `make jar`"
    program = build.javac()
    if program is None:
        # Only a Java runtime: compare the hash only.
        return
    again = tmp_path / "again.jar"
    build.build(again, program)
    assert classes(again).keys() == classes(kept).keys()
    if build.compiler_version(program) == compiler:
        assert again.read_bytes() == kept.read_bytes()
    else:
        # Another compiler may write the same classes in other bytes; one compiler always writes the same.
        once_more = tmp_path / "once_more.jar"
        build.build(once_more, program)
        assert again.read_bytes() == once_more.read_bytes()


def test_the_classes_run_on_the_oldest_java_that_spark_takes() -> None:
    # Bytes 6 and 7 of a class are the version of its format; Java 17 reads 61.
    assert {int.from_bytes(content[6:8]) for content in classes(Path(jars.own())).values()} == {61}
