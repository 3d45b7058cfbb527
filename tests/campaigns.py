"""Results of campaigns: the table of every fault in docs/campaigns.md, and the summary in docs/reliability.md.

    python -m tests.campaigns          writes both tables again

Belongs here: the record of one campaign (docs/reliability/NAME.json, written with the option `--save` of a campaign's
command), and the tables. Each campaign measures in its own package; its section of the page is written by hand.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "campaigns.md"
SUMMARY = ROOT / "docs" / "reliability.md"
RESULTS = ROOT / "docs" / "reliability"
NAMES = {
    "power": ("Power is cut at any file operation", "power-losses"),
    "faults": ("A file operation fails: I/O error, full disk, short read, vanished file", "failing-files"),
    "corruption": ("A byte of a stopped or running server's files is damaged", "corruption"),
    "cluster-corruption": ("A byte of one replica's files is damaged, three servers", "corruption"),
    "damage": ("Files of all replicas are damaged at once, three servers", "damage-of-all-replicas"),
    "histories": ("Kills, pauses, partitions, slow or full disks, clocks, membership changes, under load", "histories"),
    "simulation": ("The same kinds of fault in a simulated cluster, reproducible by seed", "simulation"),
    "overload": ("Clients flood the server", "overload"),
    "lake": ("The lake is away, or other programs change it", "lake-outages-and-strangers"),
    "upgrades": ("Server and compactor are upgraded and brought back, under load and with kills", "upgrades"),
    "long-run": ("A steady load runs for an hour", "long-run"),
}
"""Campaigns in the order of the pages: a line for people, and the section that describes it."""
BEGIN, END = "<!-- campaigns: made by `python -m tests.campaigns` -->\n", "<!-- end of campaigns -->\n"
KEPT = "kept"
"""Beginning of a row's result if the promise was kept."""


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
    write()


def write() -> None:
    """Write both tables from the results in the repository."""
    for path, text in pages().items():
        path.write_text(text)


def saved() -> list[Campaign]:
    """Return the results in the repository, in the order of the pages."""
    paths = [RESULTS / f"{name}.json" for name in NAMES]
    return [msgspec.json.decode(path.read_bytes(), type=Campaign) for path in paths if path.exists()]


def pages() -> dict[Path, str]:
    """Return the pages with the tables of the results in the repository."""
    tables = {PAGE: table(saved()), SUMMARY: summary(saved())}
    return {path: _page(path.read_text(), made) for path, made in tables.items()}


def _page(text: str, made: str) -> str:
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{made}{END}{after}"


def table(campaigns: Sequence[Campaign]) -> str:
    """Return the results as a Markdown table."""
    rows = ["| fault | promise | test | rounds | result | command |", "|---|---|---|--:|---|---|"]
    for campaign in campaigns:
        for row in campaign.rows:
            cells = (row.fault, row.promise, f"`{row.test}`", f"{row.rounds:,}", row.result, f"`{campaign.command}`")
            rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def summary(campaigns: Sequence[Campaign]) -> str:
    """Return a Markdown table with one line per campaign: its rows, and how many of them kept their promise."""
    rows = ["| what happens | checks | promises kept | latest run |", "|---|--:|--:|---|"]
    for campaign in campaigns:
        title, section = NAMES[campaign.name]
        kept = sum(row.result.startswith(KEPT) for row in campaign.rows)
        link = f"[{title}]({PAGE.name}#{section})"
        rows.append(f"| {link} | {len(campaign.rows)} | {kept} of {len(campaign.rows)} | {campaign.day} |")
    return "\n".join(rows) + "\n"


def stale() -> bool:
    """Return True if a table in the documentation is not that of the results."""
    return any(path.read_text() != text for path, text in pages().items())


def unknown_tests() -> list[str]:
    """Return the tests of the table that are neither a path nor the name of a function in tests/."""
    names = {row.test for campaign in saved() for row in campaign.rows}
    missing = {name for name in names if not (ROOT / name).exists()}
    if missing:
        source = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
        missing = {name for name in missing if f"def {name}(" not in source}
    return sorted(missing)


if __name__ == "__main__":
    write()
