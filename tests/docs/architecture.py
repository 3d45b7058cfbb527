"""ARCHITECTURE.md as tests read it.

Belongs here: its flows and its table of parts. tests/docs/test_architecture.py checks its names and follows a publish
and a delivery; tests/lake/test_flows.py follows a compaction and a read.
"""

from __future__ import annotations

import re

from tests.docs.blocks import ROOT

TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")

PUBLISH, DELIVERY, COMPACTION, READ = (
    "A publish, from socket to ack",
    "A delivery, from log to client",
    "A compaction, from segment to Delta commit",
    "A read of old messages, and SQL",
)
_STEP = re.compile(r"^(\d+)\. `([\w/]+\.py)` `([\w.]+)`: ", re.MULTILINE)
_PART = re.compile(r"^\| (\w+) \| ((?:`\w+`(?:, )?)+) \|", re.MULTILINE)


def section(title: str) -> str:
    """Return the text below a heading."""
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def flow(title: str) -> list[tuple[str, str]]:
    """Return the steps of a flow: module and name of a function."""
    return [(module, name) for _, module, name in _STEP.findall(section(title))]


def parts() -> dict[str, list[str]]:
    """Return the folders of each part, in the order of the table."""
    return {name: re.findall(r"`(\w+)`", folders) for name, folders in _PART.findall(section("Eight parts"))}
