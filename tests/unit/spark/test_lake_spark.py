"""Tests of Spark's settings, Java and JARs, without running Spark."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lakestream.lake.errors import JarsMissing, JavaMissing
from lakestream.lake.storage.clouds import azure, gcs, s3
from lakestream_spark import jars, pins
from lakestream_spark import session as spark

pytestmark = pytest.mark.unit

CONFIGURATIONS = Path(__file__).parents[3] / "spark_conf"


def settings(name: str) -> dict[str, str]:
    lines = (CONFIGURATIONS / name / "spark-defaults.conf").read_text().splitlines()
    pairs = [line.split(None, 1) for line in lines if line.strip() and not line.startswith("#")]
    return {key: value.strip() for key, value in pairs}


def test_the_local_configuration_is_what_a_session_has() -> None:
    assert settings("local") == {**spark.DELTA, **spark.LOCAL}


def test_the_cluster_configuration_knows_delta() -> None:
    assert spark.DELTA.items() <= settings("cluster").items()
    for cloud in (s3, gcs, azure):
        assert cloud.SETTINGS.items() <= settings("cluster").items()


def fake_java(directory: Path, banner: str, code: int = 0) -> Path:
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{banner}' >&2\nexit {code}\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("banner", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ("The operation could not be completed. Unable to locate a Java Runtime.", None),
    ],
)
def test_versions_are_read_from_the_banner(tmp_path: Path, banner: str, version: int | None) -> None:
    assert jars.java_version(str(fake_java(tmp_path, banner))) == version


def test_java_home_comes_first_but_an_old_one_is_passed_over(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", 'java version "1.8.0_402"')
    good = fake_java(tmp_path / "good", 'openjdk version "17.0.1"')
    better = fake_java(tmp_path / "better", 'openjdk version "21.0.1"')
    both = {"JAVA_HOME": str(tmp_path / "better"), "PATH": str(good.parent)}
    assert jars.find_java(both).program == str(better)
    assert jars.find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(good.parent)}).home == str(tmp_path / "good")
    with pytest.raises(JavaMissing, match=r"is Java 8.*install"):
        jars.find_java({"PATH": str(old.parent)})
    with pytest.raises(JavaMissing, match="found none"):
        jars.find_java({"PATH": str(tmp_path)})


def test_kept_jars_are_used_without_asking_anybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKESTREAM_CACHE", str(tmp_path))
    (tmp_path / "jars").mkdir()
    for name in pins.DELTA.files:
        (tmp_path / "jars" / name).write_bytes(b"jar")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert jars.ensure() == [*(str(tmp_path / "jars" / name) for name in pins.DELTA.files), jars.own()]


def test_fetching_without_java_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAKESTREAM_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert jars.main([]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "needs Java 17 or newer" in said


def test_a_failed_resolution_says_why_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submit = tmp_path / "spark-submit"
    submit.write_text("#!/bin/sh\necho 'unresolved dependency: io.delta#delta-spark: not found' >&2\nexit 1\n")
    submit.chmod(0o755)
    home = fake_java(tmp_path / "java", 'openjdk version "17.0.1"').parents[1]
    monkeypatch.setenv("LAKESTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setattr(jars, "_submit", lambda: [str(submit)])
    with pytest.raises(JarsMissing, match=r"unresolved dependency.*LAKESTREAM_IVY_SETTINGS.*the wheel lakestream-jars"):
        jars.ensure()
    assert os.listdir(tmp_path / "cache" / "jars") == [".lock"], "nothing half-fetched is kept"
    for name in pins.DELTA.files:
        (tmp_path / "cache" / "jars" / name).touch()
    with pytest.raises(JarsMissing, match="hadoop-aws") as missing:
        jars.ensure("s3")
    assert "lakestream-jars" not in str(missing.value), "the wheel has no JARs for S3"
