"""Command line of the campaign."""

from __future__ import annotations

import argparse
import sys
import time

from tests.overload import results
from tests.overload.floods import FAILED
from tests.overload.rounds import RATIO, Measured, run
from tests.overload.scenarios import MIB, Scenario, scenarios
from tests.servers import Kind


def broken(scenario: Scenario, measured: Measured) -> list[str]:
    """Return the promises that were not kept."""
    wrong = []
    if measured.died:
        wrong.append("the server died")
    if measured.growth > scenario.bound:
        wrong.append(f"memory grew by {measured.growth // MIB} MiB, bound {scenario.bound // MIB} MiB")
    if not measured.ratio <= RATIO:
        wrong.append(f"p99 {measured.ratio:.1f} times")
    wanted = scenario.told if measured.kind == Kind.OURS.value else scenario.told_there
    if wanted and not any(text in told for text in wanted for told in measured.told):
        wrong.append(f"nobody was told {' or '.join(wanted)}")
    wrong += [text for text in measured.told if text.startswith(FAILED)]
    if measured.split:
        wrong.append(measured.split)
    if measured.recovered_s < 0:
        wrong.append(f"{measured.left // MIB} MiB and {measured.sockets} sockets left")
    return wrong


def main() -> int:
    """Run the scenarios that are named, or all."""
    every = {each.name: each for each in scenarios()}
    parser = argparse.ArgumentParser(prog="python -m tests.overload")
    parser.add_argument("scenario", nargs="*", choices=[*every, []], help="default: all")
    parser.add_argument("--quick", action="store_true", help="a few seconds for each")
    parser.add_argument("--save", action="store_true", help="replace the results in docs/reliability")
    parser.add_argument("--kind", choices=["lakestream", "nats"], default="lakestream", help="server to flood")
    options = parser.parse_args()
    kind = Kind.REAL if options.kind == "nats" else Kind.OURS
    begun = time.monotonic()
    failed = 0
    for name in options.scenario or every:
        scenario = every[name]
        measured = run(scenario, kind, options.quick)
        wrong = broken(scenario, measured)
        failed += bool(wrong)
        show(scenario, measured, wrong)
        if options.save:
            results.add(measured)
    if options.save:
        results.save({name: (each, broken) for name, each in every.items()}, round(time.monotonic() - begun))
    return 1 if failed else 0


def show(scenario: Scenario, measured: Measured, wrong: list[str]) -> None:
    """Print one result."""
    print(f"{scenario.name}: {'; '.join(wrong) or 'kept'}")
    for phase, times in measured.p99.items():
        print(f"    {phase:7} " + "  ".join(f"{kind} {ms:9.2f} ms" for kind, ms in times.items()))
    print(
        f"    memory {measured.base_rss // MIB} + {measured.growth // MIB} MiB (bound {scenario.bound // MIB}), "
        f"{measured.left // MIB} left; sockets {measured.sockets}; recovered after {measured.recovered_s} s; "
        f"load {measured.load}"
    )
    told = sorted(measured.told.items(), key=lambda each: -each[1])[:6]
    print("    told " + (", ".join(f"{number} {text}" for text, number in told) or "nothing"), flush=True)


if __name__ == "__main__":
    sys.exit(main())
