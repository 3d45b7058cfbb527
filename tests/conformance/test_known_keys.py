"""The list of keys that nats-server knows, compared with nats-server itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conf_keys import LATER, LEVELS
from tests.recordings import FIRST
from tests.servers import Kind, release, run_to_end

pytestmark = [pytest.mark.conformance, pytest.mark.live]

SILENT = ("latency", "resolver")
"""Blocks in which nats-server takes any key."""


@pytest.mark.parametrize("level", LEVELS)
def test_the_keys_are_known_to_nats_server(tmp_path: Path, level: str) -> None:
    path = tmp_path / "nats.conf"

    def is_unknown(key: str) -> bool:
        answers = []
        for value in ("[{zz: 1}]", "zz"):
            path.write_text(LEVELS[level].text % f"{key}: {value}" + "\n")
            answers.append(run_to_end(Kind.REAL, "-t", "-c", str(path)).stderr.lower())
        return all(f'unknown field "{key}"' in answer or f'unknown field name "{key}"' in answer for answer in answers)

    unknown = {key for key in LEVELS[level].keys if is_unknown(key)}
    assert unknown == (LATER.get(level, set()) if release() == FIRST else set())
    assert is_unknown("shoe_size") is (level not in SILENT)
