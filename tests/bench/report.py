"""Render the pages that state figures, and their plots, from the results of one run.

    python -m tests.bench.report [RESULTS] [--out DIRECTORY] [--check]

Without arguments it makes docs/benchmarks.md, docs/comparison.md and the plots in docs/benchmarks/ of
docs/benchmarks/results.json. Belongs here: the tables and plots. The prose is in tests/bench/page.md and
tests/bench/comparison.md, the figures and goals in figures.py.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.bench.draw import bars, lines, save
from tests.bench.figures import FIGURES, KINDS, OURS, RESULTS, ROOT, A, Goal, Results, Row, load, number, row

TEMPLATE = Path(__file__).with_name("page.md")
COMPARISON = Path(__file__).with_name("comparison.md")
NAME = "benchmarks.md"
PLOTS = "benchmarks"
"""Directory of the plots, beside the page."""
NAMES = {OURS: "lakestream", A: "nats-server"}
AXES = {
    "messages": "messages in the stream",
    "subjects": "subjects in the stream",
    "consumers": "push consumers of the stream",
    "payloads": "bytes of the payload",
}
_LINK = re.compile(r"docs/([\w/-]+\.md)(#[\w-]+)?")
_FIGURE = re.compile(r"\{\{(\w+)(?:(/| of )(\w+))?\}\}")
"""A figure in prose: `{{key}}` is our median, `{{key of A}}` that of another server, `{{key/A}}` the ratio of both."""
MARK = "Figures: "
"""Beginning of the line of a script's docstring that names the place of its figures."""


def render(results: Results) -> dict[str, str]:
    """Return the contents of the pages and plots, by path below docs/."""
    plots = dict(_plots(results))
    page = TEMPLATE.read_text()
    for name, text in (
        ("run", _run(results)),
        ("table", _table(results)),
        ("ratios", _pictures(plots, "ratios")),
        ("fresh", _pictures(plots, "fresh")),
        ("sql", _pictures(plots, "sql")),
        *((axis, _pictures(plots, axis)) for axis in AXES),
        ("scripts", _scripts()),
    ):
        page = page.replace("{{" + name + "}}", text)
    comparison = _FIGURE.sub(lambda place: _in_prose(place, results), COMPARISON.read_text())
    return {NAME: page, COMPARISON.name: comparison} | {f"{PLOTS}/{name}.svg": svg for name, (_, svg) in plots.items()}


def _in_prose(place: re.Match[str], results: Results) -> str:
    """Return the text of a figure in prose; "not measured" if the run has none.

    Raises:
        KeyError: there is no figure of this key.
    """
    seen = row({figure.key: figure for figure in FIGURES}[place[1]], results)
    if place[2] == "/":
        return f"{seen.ratios[place[3]][0]:.2f}" if place[3] in seen.ratios else "not measured"
    kind = place[3] or OURS
    return number(seen.medians[kind]) if kind in seen.medians else "not measured"


def write(results: Results, folder: Path) -> Path:
    """Write the page and its plots into a directory; return the path of the page."""
    for name, text in render(results).items():
        save(folder / name, text)
    return folder / NAME


def stale(folder: Path = ROOT / "docs", results: Path = RESULTS) -> list[str]:
    """Return the files that are not what the results give, and plots that no page shows."""
    wanted = render(load(results))
    there = {f"{PLOTS}/{path.name}" for path in (folder / PLOTS).glob("*.svg")}
    old = {name for name, text in wanted.items() if not (folder / name).exists() or (folder / name).read_text() != text}
    return sorted(old | (there - wanted.keys()))


def _run(results: Results) -> str:
    machine, versions = results.machine, ", ".join(f"{name} {version}" for name, version in results.versions.items())
    loads = [load for section in results.sections.values() if not section.skipped for load in section.load] or [0.0]
    changed = " with changes" if results.changed else ""
    rounds = "one round" if results.rounds == 1 else f"medians of {results.rounds} rounds"
    parts = [
        f"**This run**: {results.date}, commit `{results.commit}`{changed}, {rounds}; {versions};",
        f"{machine.processor}, {machine.cores} cores, {machine.memory_gib:g} GiB, {machine.kernel};",
        f"a sync of 4 KiB takes {machine.sync_ms:.2f} ms; load average {min(loads):.1f} to {max(loads):.1f}.",
    ]
    if results.quick:
        parts.append("**A quick run: loads of half a second, so the figures only show that everything is measured.**")
    for name, section in results.sections.items():
        if section.commit:
            low, high = sorted(section.load)
            parts.append(f"Measured later: `{name}`, commit `{section.commit}`, load {low:.1f} to {high:.1f}.")
    if results.note:
        parts.append(f"**{results.note}**")
    return "\n".join(parts)


def _table(results: Results) -> str:
    head = "| figure | unit | lakestream | A | B | ours / A | ours / B | CPU ours; A | goal | |"
    text = [head, "|---|---|---|---|---|---|---|---|---|---|"]
    for figure in FIGURES:
        seen = row(figure, results)
        values = [number(seen.medians[kind]) if kind in seen.medians else "" for kind in KINDS]
        ratios = [_ratio(seen, kind, results.rounds) for kind in KINDS[1:]]
        cpu = "; ".join(number(seen.cpu_us[kind]) for kind in (OURS, A) if kind in seen.cpu_us)
        goals = ", ".join(map(_goal, figure.goals))
        cells = [figure.title, figure.unit, *values, *ratios, cpu, goals, seen.verdict.replace("|", "/")]
        text.append("| " + " | ".join(cells) + " |")
    return "\n".join(text)


def _ratio(seen: Row, kind: str, rounds: int) -> str:
    if kind not in seen.ratios:
        return ""
    middle, low, high = seen.ratios[kind]
    return f"**{middle:.2f}**" + (f" ({low:.2f} to {high:.2f})" if rounds > 1 else "")


def _goal(goal: Goal) -> str:
    return f"{goal} where a sync takes {goal.sync_ms:g} ms" if goal.sync_ms else str(goal)


def _plots(results: Results) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield (name, (title, SVG)) of all plots."""
    rates = [
        (figure.title, seen.ratios[A][0], f"goal {goal.bound:g}")
        for figure in FIGURES
        for goal in figure.goals
        if goal.against == A and goal.at_least and A in (seen := row(figure, results)).ratios
    ]
    if rates:
        title = "Messages a second, as a ratio to nats-server without syncs"
        yield "ratios", (title, bars(title, rates, "lakestream / nats-server: longer is better"))
    for axis, label in AXES.items():
        found = results.sections[axis].curves if axis in results.sections else {}
        for at, (quantity, curves) in enumerate(found.items(), 1):
            what, _, unit = quantity.rpartition(", ")
            title = what[:1].upper() + what[1:]
            named = {NAMES[kind]: points for kind, points in curves.items()}
            yield f"{axis}-{at}", (f"{title}, by {label}", lines(title, named, label, unit, logarithmic=True))
    if "fresh" in results.sections and (curves := results.sections["fresh"].curves.get("fresh", {})):
        title = "From pub ack to a commit in the table, defaults"
        yield "fresh", (title, lines(title, curves, "percentile of messages", "seconds"))
    yield from _sql(results)


def _sql(results: Results) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the plots of SQL: of what takes a moment, and of what reads much."""
    curves = results.sections["sql"].curves.get("sql", {}) if "sql" in results.sections else {}
    long = ("group", "last of all", "cold command")
    for at, (title, some) in enumerate(
        (
            ("SQL, answers at once", {name: points for name, points in curves.items() if name not in long}),
            ("SQL, all subjects, and a cold command", {name: curves[name] for name in long if name in curves}),
        ),
        1,
    ):
        if some:
            label = "messages in the stream"
            yield f"sql-{at}", (f"{title}, by {label}", lines(title, some, label, "ms", logarithmic=True))


def _pictures(plots: dict[str, tuple[str, str]], begin: str) -> str:
    chosen = {name: title for name, (title, _) in plots.items() if name.partition("-")[0] == begin}
    if not chosen:
        return "Not measured in this run."
    return "\n".join(f"![{title}]({PLOTS}/{name}.svg)" for name, title in chosen.items())


def scripts() -> Iterator[tuple[str, str, str]]:
    """Yield name, summary, and place of the figures of each script; the place is "" if its docstring has none."""
    for path in sorted(Path(__file__).parent.glob("bench_*.py")):
        text = (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()
        place = next((line.removeprefix(MARK) for line in text if line.startswith(MARK)), "")
        yield path.stem, text[0], place


def _scripts() -> str:
    rows = [
        f"| `{name}` | {summary.replace('|', ', ')} | {_LINK.sub(_linked, place)} |"
        for name, summary, place in scripts()
    ]
    return "\n".join(["| script | measures | figures |", "|---|---|---|", *rows])


def _linked(place: re.Match[str]) -> str:
    page, anchor = place[1], place[2] or ""
    text = (anchor[1:] or page.removesuffix(".md")).replace("-", " ").replace("/", ": ")
    return f"[{text}]({anchor if page == NAME else page})"


def main() -> int:
    """Write or check the page; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="directory (default: docs)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is not current")
    options = parser.parse_args()
    if options.check:
        old = stale(options.out, options.results)
        print("\n".join(f"{options.out / name} is not current: python -m tests.bench.report" for name in old))
        return int(bool(old))
    print(write(load(options.results), options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
