"""Tests of the files for deployment that need no tool: they parse, name what exists, and agree with each other."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.packages.images import read, suites

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILES = [ROOT / "docker" / "Dockerfile", ROOT / "docker" / "Dockerfile.compactor"]
COMPOSE = sorted((ROOT / "docker").glob("compose*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
TIMERS = sorted((DEPLOY / "systemd").glob("*.timer"))
CHART = DEPLOY / "helm" / "lakestream"
SCHEDULES = {
    "cron": DEPLOY / "schedulers" / "crontab",
    "airflow": DEPLOY / "schedulers" / "airflow_dag.py",
    "systemd compact": DEPLOY / "systemd" / "lakestream-compact.service",
    "systemd maintain": DEPLOY / "systemd" / "lakestream-maintain.service",
}


# ---------------------------------------------------------------------------- images


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: str(path.name))
def test_a_dockerfile_is_pinned_unprivileged_and_checked(path: Path) -> None:
    steps = read(path)
    assert len(list(suites(steps))) == 1
    words = [step.word for step in steps]
    user = [step.text for step in steps if step.word == "USER"]
    assert user == ["10001:10001"]
    assert not {"RUN", "COPY", "ADD"} & set(words[words.index("USER") :])
    assert {"HEALTHCHECK", "ENTRYPOINT", "CMD", "VOLUME"} <= set(words)
    assert ("openjdk" in path.read_text()) == (path.suffix == ".compactor")


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: str(path.name))
def test_a_dockerfile_copies_what_the_context_has(path: Path) -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for step in read(path):
        if step.word == "COPY":
            for source in step.text.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert source.split("/")[0] in let_in, source


def test_the_entry_point_is_a_script() -> None:
    subprocess.run(["sh", "-n", str(ROOT / "docker" / "spark.sh")], check=True)


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: str(path.name))
def test_a_compose_file_pins_its_images_and_mounts_what_exists(path: Path) -> None:
    services = yaml.safe_load(path.read_text())["services"]
    for name, service in services.items():
        if "build" in service:
            dockerfile = path.parent / service["build"]["context"] / service["build"]["dockerfile"]
            assert dockerfile.resolve() in DOCKERFILES, name
            assert service["read_only"] is True, name
            assert service["cap_drop"] == ["ALL"], name
        else:
            assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), name
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            if source.startswith("./") or source == "../deploy/grafana/provisioning":
                assert (path.parent / source).exists(), mount


def test_prometheus_scrapes_the_services_of_the_compose_file() -> None:
    services = yaml.safe_load((ROOT / "docker" / "compose.cluster.yaml").read_text())["services"]
    jobs = yaml.safe_load((ROOT / "docker" / "cluster" / "prometheus.yml").read_text())["scrape_configs"]
    targets = {target for job in jobs for config in job["static_configs"] for target in config["targets"]}
    assert targets == {"a:8222", "b:8222", "c:8222", "compactor:9464"}
    assert {target.partition(":")[0] for target in targets} <= set(services)
    assert services["compactor"]["command"][-2:] == ["--metrics", "0.0.0.0:9464"]


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("provisioning/*/*.yml")), ids=lambda path: str(path.name))
def test_provisioning_of_grafana_parses(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["apiVersion"] == 1


@pytest.mark.parametrize(
    "path",
    [ROOT / "docker" / "cluster" / "nats.conf", DEPLOY / "systemd" / "nats.conf"],
    ids=lambda path: str(path.parent),
)
def test_a_configuration_is_valid(path: Path) -> None:
    command = [sys.executable, "-m", "lakestream.cli.main", "serve", "-t", "-c", str(path)]
    environ = {**os.environ, "NODE": "a", "CLUSTER_PASSWORD": "secret"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------------------- systemd


def unit(path: Path) -> dict[str, dict[str, str]]:
    """Return the sections of a unit. A repeated key keeps its last value."""
    parser = RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(path)
    return {name: dict(parser[name]) for name in parser.sections()}


@pytest.mark.parametrize("path", UNITS, ids=lambda path: str(path.name))
def test_a_service_is_hardened(path: Path) -> None:
    service = unit(path)["Service"]
    assert service["User"] == "lakestream"
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    assert {service[name] for name in ("NoNewPrivileges", "PrivateTmp", "PrivateDevices", "RestrictNamespaces")} == {
        "yes"
    }


@pytest.mark.parametrize("path", TIMERS, ids=lambda path: str(path.name))
def test_a_timer_has_a_service_that_runs_once(path: Path) -> None:
    assert unit(path)["Timer"]["OnCalendar"]
    assert unit(path.with_suffix(".service"))["Service"]["Type"] == "oneshot"


# ---------------------------------------------------------------------------- schedulers


def commands() -> Iterator[tuple[str, str]]:
    """Yield every command of lakestream in the files of schedulers, with the file's name."""
    pattern = re.compile(r"(?:\bbin/lakestream|\{PROGRAM\}) (\w+(?: --[\w-]+)*)")
    for name, path in SCHEDULES.items():
        found = pattern.findall(path.read_text())
        assert found, path
        yield from ((name, command) for command in found)


def test_every_scheduler_runs_the_same_job_with_the_same_flags() -> None:
    assert {command for _, command in commands()} == {"compact --once", "maintain --once"}
    dagster = (DEPLOY / "schedulers" / "dagster_assets.py").read_text()
    assert '"lakestream"), command, "--once"]' in dagster
    assert set(re.findall(r'run\(context, "(\w+)"\)', dagster)) == {"compact", "maintain"}
    arguments = [job["spec"]["template"]["arguments"] for job in spark_jobs()]
    assert arguments == [["--lake", "s3://my-bucket/lake", "--once"]] * 2


def spark_jobs() -> list[dict[str, Any]]:
    """Return the jobs of Spark's operator."""
    objects = yaml.safe_load_all((DEPLOY / "schedulers" / "spark-operator.yaml").read_text())
    return [each for each in objects if each and each["kind"] == "ScheduledSparkApplication"]


def test_the_jobs_of_sparks_operator_are_programs_of_this_repository() -> None:
    files = [Path(job["spec"]["template"]["mainApplicationFile"]).name for job in spark_jobs()]
    assert sorted(files) == ["compact.py", "maintain.py"]
    assert all((ROOT / "jobs" / name).is_file() for name in files)


def test_the_chart_has_the_settings_of_a_spark_cluster() -> None:
    lines = (ROOT / "spark_conf" / "cluster" / "spark-defaults.conf").read_text().splitlines()
    settings = dict(line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
    values = yaml.safe_load((CHART / "values.yaml").read_text())["compactor"]["scheduled"]
    elsewhere = {
        "spark.driver.memory": values["driver"]["memory"],
        "spark.executor.memory": values["executor"]["memory"],
        "spark.executor.cores": str(values["executor"]["cores"]),
    }
    assert {**values["sparkConf"], **elsewhere} == {name: value.strip() for name, value in settings.items()}


def test_the_lines_of_cron_are_schedules() -> None:
    lines = [line for line in SCHEDULES["cron"].read_text().splitlines() if re.match(r"[*\d]", line)]
    assert len(lines) == 2
    for line in lines:
        fields = line.split(None, 6)
        assert all(re.fullmatch(r"\*(/\d+)?|\d+", field) for field in fields[:5]), line
        assert fields[5] == "lakestream", "the user"
        assert shlex.split(fields[6])
