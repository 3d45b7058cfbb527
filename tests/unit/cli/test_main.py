"""Tests of what the entry point does before a command is loaded."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lakestream.cli import app, main

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        (["sql", "-q", "SELECT 1"], ["pandas"]),
        (["sql", "--engine", "spark"], []),
        (["sql", "--engine=spark", "-q", "SELECT 1"], []),
        (["status"], []),
    ],
)
def test_pandas_is_left_out_of_sql_unless_spark_answers(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], left: list[str]
) -> None:
    """Spark's rows come by way of pandas."""
    found: list[str] = []
    monkeypatch.setattr(main, "leave_out", found.append)
    monkeypatch.setattr(app, "app", lambda **_: None)
    monkeypatch.setattr(sys, "argv", ["lakestream", *arguments])
    main.main()
    assert found == left


@pytest.mark.parametrize("arguments", ["--version", "--help", "up --help", "serve --help"])
def test_a_reader_that_closes_the_output_is_no_error(arguments: str) -> None:
    """As `lakestream up --help | head -1` does."""
    gone, output = os.pipe()
    os.close(gone)
    program = [sys.executable, "-m", "lakestream", *arguments.split()]
    done = subprocess.run(program, stdout=output, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(output)
    assert done.stderr == b""
