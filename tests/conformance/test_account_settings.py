"""Tests of the table of account configurations: nats-server's answer to each is the one in the table.

tests/unit/config/test_accounts_settings.py compares lakestream with the table.
"""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.servers import Kind, program
from tests.unit.account_confs import Case, cases

pytestmark = [pytest.mark.conformance, pytest.mark.live]

ATTEMPTS = 20
"""Number of tries: with several errors in a configuration, nats-server reports a random one."""


def _says(case: Case, path: Path) -> str:
    """Return nats-server's error for the file; "" if it accepts the file."""
    ended = subprocess.run(
        [*program(Kind.REAL), "-t", "-c", str(path)], capture_output=True, text=True, timeout=30, check=False
    )
    if ended.returncode == 0:
        return ""
    said = (ended.stderr + ended.stdout).strip().splitlines()[0]
    return said.removeprefix("nats-server: ").removeprefix(f"{path}:")


def _as_in_the_table(case: Case, said: str) -> bool:
    if not case.error:
        return not said
    return said == f"{case.place}: {case.error}" if case.place else said.endswith(case.error)


def _judge(case: Case, path: Path) -> str:
    path.write_text(case.text)
    said = ""
    for _ in range(ATTEMPTS):
        said = _says(case, path)
        if _as_in_the_table(case, said):
            return ""
    return f"{case.name}\n  table: {case.place} {case.error}\n  said:  {said}"


def test_nats_server_says_what_the_table_says(tmp_path: Path) -> None:
    every = cases()
    with ThreadPoolExecutor(2) as pool:
        wrong = list(pool.map(_judge, every, [tmp_path / f"{at}.conf" for at in range(len(every))]))
    assert not any(wrong), "\n".join(filter(None, wrong))
