"""Tests of lakestream.spark without running Spark, and of the command that prints stock Spark's options."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lakestream.lake.errors import JarsMissing
from lakestream.spark import LakeNotFound, default_lake, session
from lakestream_spark import jars, pins
from lakestream_spark.session import DELTA

pytestmark = pytest.mark.unit


def test_importing_it_imports_nothing_of_spark() -> None:
    code = "import sys, lakestream.spark; print([m for m in sys.modules if m.startswith(('pyspark', 'delta', 'py4j'))])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_default_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAKESTREAM_LAKE", raising=False)
    monkeypatch.chdir(tmp_path)
    assert default_lake() == "."
    (tmp_path / "data" / "lake").mkdir(parents=True)
    assert default_lake() == "data/lake"
    (tmp_path / "segments").mkdir()
    assert default_lake() == "."
    monkeypatch.setenv("LAKESTREAM_LAKE", "s3://bucket/lake")
    assert default_lake() == "s3://bucket/lake"


def test_a_missing_lake_is_reported_before_java_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LakeNotFound, match="start `lakestream up`, or name the lake's directory"):
        session(tmp_path / "none")


def test_the_jar_has_the_classes_that_the_settings_name() -> None:
    with zipfile.ZipFile(jars.own()) as archive:
        inside = {name.removesuffix(".class").replace("/", ".") for name in archive.namelist()}
    named = ",".join(DELTA.values()).split(",")
    assert {name for name in named if name.startswith("io.lakestream.")} <= inside
    assert sum(name.startswith("io.lakestream.") for name in named) == 7


def test_what_stock_spark_is_started_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAKESTREAM_CACHE", str(tmp_path))
    (tmp_path / "jars").mkdir()
    delta = [str(tmp_path / "jars" / name) for name in pins.DELTA.files]
    for path in delta:
        Path(path).write_bytes(b"jar")
    assert jars.main([]) == 0
    assert capsys.readouterr().out == ",".join([*delta, jars.own()]) + "\n"
    assert jars.main(["--class-path"]) == 0
    assert capsys.readouterr().out == os.pathsep.join([*delta, jars.own()]) + "\n"
    assert jars.main(["--conf"]) == 0
    assert Path(capsys.readouterr().out.strip()).parts[-3:] == ("spark_conf", "local", "spark-defaults.conf")


def test_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jars, "own", lambda: str(tmp_path / jars.OWN))
    assert jars.main([]) == 1
    assert "reinstall lakestream, or build it in a checkout with `make jar`" in capsys.readouterr().err
    with pytest.raises(JarsMissing, match=r"spark_conf/nowhere/spark-defaults\.conf is not there"):
        jars.configuration("nowhere")
