"""Tests of the ports file and the PID file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lakestream.config.errors import StartError
from lakestream.ops.ports_file import remove, urls, write_pid_file, write_ports_file

pytestmark = pytest.mark.unit


def test_the_ports_file_is_named_by_pid_and_holds_the_urls(tmp_path: Path) -> None:
    path = write_ports_file(str(tmp_path), {"nats": urls("nats", "127.0.0.1", 4333), "monitoring": ["http://h:1"]})
    assert path == str(tmp_path / f"nats-server_{os.getpid()}.ports")
    assert json.loads(Path(path).read_text()) == {"nats": ["nats://127.0.0.1:4333"], "monitoring": ["http://h:1"]}
    assert os.listdir(tmp_path) == [os.path.basename(path)]
    remove(path)
    remove(path)
    assert os.listdir(tmp_path) == []


def test_urls() -> None:
    assert urls("nats", "::1", 4222) == ["nats://[::1]:4222"]
    everywhere = urls("http", "0.0.0.0", 8222)
    assert everywhere[0] == "http://127.0.0.1:8222"
    assert len(everywhere) == len(set(everywhere))


def test_the_pid_file(tmp_path: Path) -> None:
    write_pid_file(str(tmp_path / "x.pid"))
    assert (tmp_path / "x.pid").read_text() == str(os.getpid())


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"Error writing ports file \(.*\.ports\): open .*: no such file or directory"):
        write_ports_file(str(tmp_path / "none"), {})
    with pytest.raises(StartError, match=r"Could not write pidfile: open .*x\.pid: no such file or directory"):
        write_pid_file(str(tmp_path / "none" / "x.pid"))
