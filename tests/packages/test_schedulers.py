"""Tests of the schedulers: each runs its file once, on a lake with segments to compact."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from lakestream.lake.storage import paths
from lakestream.lake.table.at import latest_progress
from tests.packages.environments import INSTALL_SECONDS, ROOT, environ, make_venv, run
from tests.servers import Kind, Server
from tests.wire import Wire

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(2400)]

SCHEDULERS = ROOT / "deploy" / "schedulers"
MESSAGES = 30


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Return a lake with staged segments of one stream, and no table yet."""
    server = Server(Kind.OURS, tmp_path / "store")
    server.start()
    try:
        with Wire(server.address, timeout=30) as wire:
            assert "error" not in wire.api("STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders"]})
            for number in range(MESSAGES):
                reply = wire.new_reply()
                wire.publish("orders", b"%d" % number * 100, reply)
                assert json.loads(wire.message(reply, 30.0).data)["seq"] == number + 1
            assert "error" not in json.loads(wire.request("$LAKE.API.FLUSH.ORDERS", timeout=30).data)
    finally:
        server.stop()
    return tmp_path / "store" / "lake"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Return a program `lakestream` for processes of other environments: this checkout, in this environment."""
    path = tmp_path / "lakestream"
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m lakestream.cli.main "$@"\n')
    path.chmod(0o755)
    return path


def variables(home: Path, lake: Path, program: Path) -> dict[str, str]:
    """Return the environment of a scheduler."""
    cache = os.environ.get("LAKESTREAM_CACHE") or str(Path.home() / ".cache" / "lakestream")
    return environ(home, LAKESTREAM_LAKE=str(lake), LAKESTREAM=str(program), LAKESTREAM_CACHE=cache)


def compacted(lake: Path) -> int:
    """Return the last sequence in the table."""
    progress = latest_progress(paths.table(str(lake), "ORDERS"))
    return 0 if progress is None else progress.last_seq


def test_cron(lake: Path, program: Path, tmp_path: Path) -> None:
    lines = [line for line in (SCHEDULERS / "crontab").read_text().splitlines() if "--once" in line]
    assert compacted(lake) == 0
    for line in lines:
        command = line.split(None, 6)[6].replace("/opt/lakestream/bin/lakestream", str(program))
        run(["sh", "-c", command.replace("/run/lock/", f"{tmp_path}/")], variables(tmp_path / "home", lake, program))
    assert compacted(lake) == MESSAGES


def test_systemd(lake: Path, program: Path, tmp_path: Path) -> None:
    for job in ("compact", "maintain"):
        unit = (ROOT / "deploy" / "systemd" / f"lakestream-{job}.service").read_text()
        [command] = re.findall(r"^ExecStart=(.+)$", unit, re.MULTILINE)
        words = command.replace("/opt/lakestream/bin/lakestream", str(program)).split()
        run(words, variables(tmp_path / "home", lake, program))
    assert compacted(lake) == MESSAGES


def test_airflow(lake: Path, program: Path, tmp_path: Path) -> None:
    home = tmp_path / "airflow"
    (home / "dags").mkdir(parents=True)
    shutil.copy(SCHEDULERS / "airflow_dag.py", home / "dags")
    env = variables(tmp_path / "home", lake, program)
    programs = make_venv(tmp_path / "venv", env, "apache-airflow==3.3.2")
    env |= {"AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "PATH": f"{programs}:{env['PATH']}"}
    airflow = programs / "airflow"
    run([airflow, "db", "migrate"], env, INSTALL_SECONDS)
    run([airflow, "dags", "reserialize"], env)
    assert "No data found" in run([airflow, "dags", "list-import-errors"], env)
    listed = {job: run([airflow, "tasks", "list", f"lakestream_{job}"], env) for job in ("compact", "maintain")}
    assert all(job in tasks.split() for job, tasks in listed.items()), listed
    for job in ("compact", "maintain"):
        run([airflow, "dags", "test", f"lakestream_{job}"], env, 600)
    assert compacted(lake) == MESSAGES


def test_dagster(lake: Path, program: Path, tmp_path: Path) -> None:
    env = variables(tmp_path / "home", lake, program)
    programs = make_venv(tmp_path / "venv", env, "dagster==1.13.28")
    (tmp_path / "dagster").mkdir()
    env |= {"DAGSTER_HOME": str(tmp_path / "dagster"), "PATH": f"{programs}:{env['PATH']}"}
    file = SCHEDULERS / "dagster_assets.py"
    run([programs / "dagster", "definitions", "validate", "-f", file], env)
    for job in ("compact", "maintain"):
        run([programs / "dagster", "job", "execute", "-f", file, "-j", f"lakestream_{job}"], env, 600)
    assert compacted(lake) == MESSAGES
