"""Campaign of faults of the lake.

python -m tests.lake_faults [CASE...] [--groups outages,strangers] [--save]

Each case lets something happen to the lake of a real server with a real compactor, while clients publish, and checks
the promises. `--list` prints the names.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.campaigns import Campaign, Row, save, saved
from tests.lake_faults.cases import Broken, Case, Site

NAME = "lake"
GROUPS = ("outages", "strangers", "files", "refusals", "commits")


def all_cases(groups: Sequence[str]) -> list[Case]:
    """Return the cases of these groups."""
    names = [f"tests.lake_faults.{group}" for group in groups]
    modules = [importlib.import_module(name) for name in names if importlib.util.find_spec(name) is not None]
    return [case for module in modules for case in module.CASES]


def main() -> int:
    """Run the campaign; return 1 if a promise is broken."""
    parser = argparse.ArgumentParser(prog="tests.lake_faults", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--groups", default=",".join(GROUPS))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    chosen = [each for each in all_cases(options.groups.split(",")) if not options.cases or each.name in options.cases]
    if options.list:
        print("\n".join(f"{each.name:24} {each.fault}" for each in chosen))
        return 0
    rows = run(chosen, keep if options.save else lambda row, seconds: None)
    return int(any(row.result != "kept" for row in rows))


def keep(row: Row, seconds: int) -> None:
    """Save the result of a case that took some seconds, beside those of others, also of earlier runs."""
    before = next((each for each in saved() if each.name == NAME), Campaign(NAME, "", 0, []))
    found = {each.fault: each for each in (*before.rows, row)}
    every = [found[case.fault] for case in all_cases(GROUPS) if case.fault in found]
    save(Campaign(NAME, "python -m tests.lake_faults", before.seconds + seconds, every))


def run(cases: Sequence[Case], done: Callable[[Row, int], None]) -> list[Row]:
    """Run cases, those of one kind of lake on a common site; return a row for each.

    Args:
        cases: the cases.
        done: gets each row, and the seconds that the case took.
    """
    rows = list[Row]()
    shared: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        if not case.own:
            shared.setdefault((case.lake, case.compactor), []).append(case)
    for group in [*shared.values(), *([case] for case in cases if case.own)]:
        place = Path(tempfile.mkdtemp(prefix="lakestream-lake-faults-"))
        try:
            with Site(place, group[0].lake, group[0].compactor, group[0].plan, group[0].grace) as site:
                for case in group:
                    began = time.monotonic()
                    rows.append(_row(case, site))
                    done(rows[-1], int(time.monotonic() - began))
        finally:
            shutil.rmtree(place, ignore_errors=True)
    return rows


def _row(case: Case, site: Site) -> Row:
    began, rounds = time.monotonic(), 1
    try:
        rounds = case.run(site) or 1
        result = "kept"
    except Broken as error:
        result = "broken"
        print(f"  {case.name}: {error}\n{site.logs()}", flush=True)
    except Exception as error:  # another promise: the server answers
        result = "broken"
        print(f"  {case.name}: {type(error).__name__}: {error}\n{site.logs()}", flush=True)
    finally:
        site.end_case()
    print(f"{case.name}: {result} ({time.monotonic() - began:.0f} s)", flush=True)
    return Row(case.fault, case.promise, f"tests/lake_faults/{case.group}.py", rounds, result)


if __name__ == "__main__":
    raise SystemExit(main())
