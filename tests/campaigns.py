"""Results of campaigns, and the table of all of them in docs/reliability.md.

    python -m tests.campaigns          writes the table again

Belongs here: the record of one campaign (docs/reliability/NAME.json, written with the option `--save` of a campaign's
command), and the table. Each campaign measures in its own package; its section of the page is written by hand.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reliability.md"
RESULTS = ROOT / "docs" / "reliability"
NAMES = (
    "power",
    "faults",
    "corruption",
    "cluster-corruption",
    "histories",
    "simulation",
    "overload",
    "lake",
    "long-run",
)
"""Campaigns in the order of the page."""
BEGIN, END = "<!-- campaigns: made by `python -m tests.campaigns` -->\n", "<!-- end of campaigns -->\n"


class Row(msgspec.Struct, frozen=True):
    """One fault of a campaign.

    Attributes:
        fault: fault, or group of faults, in a few words.
        promise: promise that was checked.
        test: name of the test, or path of its module from the root of the repository.
        rounds: number of rounds, cases or crash points that ran.
        result: "kept", or the number and kind of differences that remain, with the place that explains them.
    """

    fault: str
    promise: str
    test: str
    rounds: int
    result: str


class Campaign(msgspec.Struct, frozen=True):
    """The latest run of one campaign.

    Attributes:
        name: one of `NAMES`.
        command: command that repeats it, with seed and rounds.
        seconds: duration.
        seed: seed of its random choices, or 0 if it enumerates.
        day: date of the run (ISO 8601), filled in by `save`.
    """

    name: str
    command: str
    seconds: int
    rows: list[Row]
    seed: int = 0
    day: str = ""


def save(campaign: Campaign) -> None:
    """Replace the results of a campaign, and the table in the documentation."""
    if campaign.name not in NAMES:
        raise ValueError(f"no campaign is named {campaign.name}: add it to tests.campaigns.NAMES")
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    content = msgspec.json.encode(msgspec.structs.replace(campaign, day=day))
    (RESULTS / f"{campaign.name}.json").write_bytes(msgspec.json.format(content, indent=1) + b"\n")
    PAGE.write_text(page(PAGE.read_text(), saved()))


def saved() -> list[Campaign]:
    """Return the results in the repository, in the order of the page."""
    paths = [RESULTS / f"{name}.json" for name in NAMES]
    return [msgspec.json.decode(path.read_bytes(), type=Campaign) for path in paths if path.exists()]


def page(text: str, campaigns: Sequence[Campaign]) -> str:
    """Return the page with the table of these results."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table(campaigns)}{END}{after}"


def table(campaigns: Sequence[Campaign]) -> str:
    """Return the results as a Markdown table."""
    rows = ["| fault | promise | test | rounds | result | command |", "|---|---|---|--:|---|---|"]
    for campaign in campaigns:
        for row in campaign.rows:
            cells = (row.fault, row.promise, f"`{row.test}`", f"{row.rounds:,}", row.result, f"`{campaign.command}`")
            rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def stale() -> bool:
    """Return True if the table in the documentation is not that of the results."""
    return PAGE.read_text() != page(PAGE.read_text(), saved())


def unknown_tests() -> list[str]:
    """Return the tests of the table that are neither a path nor the name of a function in tests/."""
    names = {row.test for campaign in saved() for row in campaign.rows}
    missing = {name for name in names if not (ROOT / name).exists()}
    if missing:
        source = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
        missing = {name for name in missing if f"def {name}(" not in source}
    return sorted(missing)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(), saved()))
