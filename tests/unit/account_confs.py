"""Texts of nats.conf with accounts, and nats-server's answer to each.

Belongs here: parsing the table account_confs.txt, with which both lakestream and nats-server are compared.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple


class Case(NamedTuple):
    """One file. `place`: line and column, "" if they may be anything; `error`: "" if the file is accepted."""

    name: str
    text: str
    place: str
    error: str


def cases() -> list[Case]:
    """Return all cases of the table."""
    templates: dict[str, str] = {}
    found = []
    for line in Path(__file__).with_suffix(".txt").read_text().splitlines():
        if line.startswith("@"):
            kind, _, template = line[1:].partition(" ")
            templates[kind] = template
        elif line and not line.startswith("#"):
            kind, text, answer = line.split(" | ")
            place, error = _answer(answer)
            found.append(Case(f"{kind} {text}", templates[kind].replace("%s", text.replace("\\n", "\n")), place, error))
    return found


def _answer(answer: str) -> tuple[str, str]:
    if answer == "OK":
        return "", ""
    parts = re.fullmatch(r"(\*|\d+:\d+): (.*)", answer)
    assert parts is not None, answer
    return "" if parts[1] == "*" else parts[1], parts[2]
