"""Run the benchmarks and print one table: lakestream beside nats-server without and with a sync before each ack.

    python -m tests.bench.run [SECTION ...] [--rounds 5] [--quick] [--save|--add] [--full] [--out DIRECTORY]
                               [--note TEXT]

Without sections it runs all of them; `--quick` runs one short round of those that do not need Spark (three minutes).
The rounds alternate between the servers. Results, plots and page are written to --out (build/bench); with `--save` they
become those of the repository (docs/benchmarks.md), with `--add` they are added to these. A section that fails is
reported and does not end the run.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import lakestream
from tests.bench import growth, natscli, report, scale, sections, sql
from tests.bench.figures import FIGURES, KINDS, OURS, RESULTS, ROOT, A, Machine, Results, Section, load, number, row
from tests.bench.sections import Plan
from tests.servers import Kind, program

SECTIONS: dict[str, Callable[[Plan, Section], None]] = {
    "publish": sections.single(KINDS, sections.in_flight),
    "sync": sections.single(KINDS, sections.waiting),
    "bucket": sections.single((OURS, A), sections.bucket),
    "consume": sections.single((OURS, A), sections.consume),
    "core": sections.single((OURS, A), sections.core),
    "cluster": sections.cluster,
    "rest": sections.rest,
    "idle": sections.idle,
    "workers": sections.workers,
    "pinned": sections.pinned,
    "messages": growth.curves(growth.messages),
    "subjects": growth.curves(growth.subjects),
    "consumers": growth.curves(growth.consumers),
    "payloads": growth.curves(growth.payloads),
    "fresh": sections.fresh,
    "compaction": sections.compaction,
    "typed": sections.typed,
    "sql": sql.sql,
    "scale": scale.scale,
    "cli": natscli.cli,
}
SPARK = ("fresh", "compaction", "typed", "sql")


def machine() -> Machine:
    """Return the machine of this run."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    kernel = f"{platform.system()} {platform.release()}"
    return Machine(model, os.cpu_count() or 1, round(memory, 1), kernel, round(sections.sync_ms(), 3))


def output(*command: str) -> str:
    """Return what a command prints; "" if it cannot run."""
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def header(options: argparse.Namespace, plan: Plan) -> Results:
    """Return the results of a run that has not begun."""
    return Results(
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        commit=output("git", "rev-parse", "--short=12", "HEAD") or "unknown",
        changed=bool(output("git", "status", "--porcelain", "--", "lakestream", "jobs")),
        quick=plan.quick,
        rounds=plan.rounds,
        machine=machine(),
        versions={
            "lakestream": lakestream.__version__,
            "nats-server": output(*program(Kind.REAL), "--version").rpartition("v")[2],
            "Python": platform.python_version(),
        },
        note=options.note,
    )


def measured(section: Callable[[Plan, Section], None], plan: Plan) -> Section:
    """Run one section; what it raises is one of its errors."""
    found, before, began = Section(), os.getloadavg()[0], time.perf_counter()
    try:
        section(plan, found)
    except Exception as error:  # the other sections run all the same
        found.errors.append(f"{type(error).__name__}: {error}".splitlines()[0][:200])
    found.load = (round(before, 2), round(os.getloadavg()[0], 2))
    found.seconds = round(time.perf_counter() - began, 1)
    return found


def table(results: Results) -> str:
    """Return the table of all figures as text."""
    rows: list[tuple[str, ...]] = [
        ("", "unit", "ours", "A", "B", "ours/A", "ours/B", "µs ours", "µs A", "goal", "result")
    ]
    for figure in FIGURES:
        if figure.section not in results.sections:
            continue
        seen = row(figure, results)
        cells = [number(seen.medians[kind]) if kind in seen.medians else "-" for kind in KINDS]
        cells += [f"{seen.ratios[kind][0]:.2f}" if kind in seen.ratios else "-" for kind in KINDS[1:]]
        cells += [number(seen.cpu_us[kind]) if kind in seen.cpu_us else "-" for kind in (OURS, A)]
        goals = ", ".join(map(str, figure.goals)) or "-"
        rows.append((figure.title.replace("`", ""), figure.unit, *cells, goals, seen.verdict or "-"))
    wide = [max(len(line[at]) for line in rows) for at in range(len(rows[0]))]
    left = (0, 1, 9, 10)
    return "\n".join(
        "  ".join(cell.ljust(wide[at]) if at in left else cell.rjust(wide[at]) for at, cell in enumerate(line)).rstrip()
        for line in rows
    )


def main() -> int:
    """Run the sections of the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)} (default: all)")
    parser.add_argument("--rounds", type=int, help="rounds of each figure (default: 5; --quick: 1)")
    parser.add_argument("--quick", action="store_true", help="one short round, without the sections that need Spark")
    parser.add_argument("--save", action="store_true", help="replace the results, the page and the plots in docs/")
    parser.add_argument("--add", action="store_true", help="add these sections to the results, page and plots in docs/")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", help="directory (default: build/bench)")
    parser.add_argument("--note", default="", help="sentence for the page, such as what else the machine did")
    parser.add_argument("--full", action="store_true", help="sizes of the section scale as they are, not a tenth")
    options = parser.parse_args()
    if unknown := set(options.sections) - set(SECTIONS):
        parser.error(f"no such section: {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    names = options.sections or [name for name in SECTIONS if not (options.quick and name in SPARK)]

    def say(text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')}   {text}", file=sys.stderr, flush=True)

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # servers and compactors end with it
    rounds = options.rounds or (1 if options.quick else 5)
    plan = Plan(
        options.quick, rounds, 0.5 if options.quick else 2.0, 20_000 if options.quick else 100_000, say, options.full
    )
    results = header(options, plan)
    commit, kept = results.commit, options.save or options.add
    if options.add:
        results = load(RESULTS)
    target = RESULTS if kept else options.out / "results.json"
    for at, name in enumerate(names):
        print(f"{time.strftime('%H:%M:%S')} {name} ({at + 1} of {len(names)})", file=sys.stderr, flush=True)
        results.sections[name] = found = measured(SECTIONS[name], plan)
        found.commit = commit if options.add else ""
        for error in found.errors:
            say(f"failed: {error}")
        results.save(target)  # what was measured survives an interruption
    print(table(results))
    changed = ", changed" if results.changed else ""
    version = results.versions["nats-server"]
    print(f"\nA: nats-server {version}; B: the same with sync_interval: always; µs: processor time of the server for a")
    print(f"message; commit {commit}{changed}; results: {target}")
    page = report.write(results, ROOT / "docs" if kept else options.out)
    print(f"page: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
