"""The table of campaigns in docs/campaigns.md, made from docs/reliability/fuzzing.json.

Belongs here: the results of the latest campaign of each target, and their table.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.target import CORPORA, TESTS
from tests.fuzz.targets import MODULES, load

PAGE = TESTS.parent / "docs" / "campaigns.md"
RESULTS = TESTS.parent / "docs" / "reliability" / "fuzzing.json"
BEGIN, END = "<!-- fuzzing: made by `python -m tests.fuzz --save` -->\n", "<!-- end of fuzzing -->\n"


class Result(NamedTuple):
    """One campaign: inputs, seconds, edges of seeds and kept inputs, edges of all inputs, broken promises."""

    target: str
    inputs: int
    seconds: int
    seeded: int
    covered: int
    findings: int
    seed: int = 0
    day: str = ""


def saved() -> list[Result]:
    """Return the results in the repository."""
    return [Result(**each) for each in json.loads(RESULTS.read_text())] if RESULTS.exists() else []


def save(results: Iterable[Result], seed: int) -> None:
    """Replace the results of these targets, and the table in the documentation."""
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    found = {each.target: each for each in saved()}
    found |= {each.target: each._replace(seed=seed, day=day) for each in results}
    ordered = [found[name] for name in MODULES if name in found]
    RESULTS.write_text("[\n" + ",\n".join(json.dumps(each._asdict()) for each in ordered) + "\n]\n")
    PAGE.write_text(page(PAGE.read_text(), ordered))


def page(text: str, results: Sequence[Result]) -> str:
    """Return the page with the table of these results."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table(results, CORPORA)}{END}{after}"


def table(results: Sequence[Result], corpora: Path) -> str:
    """Return results as a Markdown table."""
    rows = [
        "| target | reads | inputs | seconds | edges: before ▶ after | broken promises | kept inputs | seed |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for each in results:
        kept = len(list((corpora / each.target).glob("*")))
        edges = f"{each.seeded:,} ▶ {each.covered:,}"
        cells = (f"`{each.target}`", load(each.target).reads, f"{each.inputs:,}", f"{each.seconds:,}", edges)
        rows.append("| " + " | ".join((*cells, str(each.findings), str(kept), str(each.seed))) + " |")
    return "\n".join(rows) + "\n"
