"""Results of the campaign in docs/reliability: the latest round of each scenario, its row, and the plots."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from tests import campaigns
from tests.bench import draw
from tests.overload.rounds import RATIO, Measured
from tests.overload.scenarios import MIB, Scenario
from tests.servers import Kind

SAMPLES = campaigns.RESULTS / "overload-samples.json"
BEGIN, END = "<!-- overload: made by `python -m tests.overload --save` -->\n", "<!-- end of overload -->\n"
SHOWN = 7
"""Scenarios in the plot of memory over time: those that take the most."""
EVERY_S = 0.5

Broken = Callable[[Scenario, Measured], list[str]]


def latest() -> dict[str, Measured]:
    """Return the rounds that were kept, by scenario."""
    if not SAMPLES.exists():
        return {}
    return {each.name: each for each in msgspec.json.decode(SAMPLES.read_bytes(), type=list[Measured])}


def add(measured: Measured) -> None:
    """Keep a round in the place of the one before, with a sample every half second."""
    if measured.kind != Kind.OURS.value:
        raise SystemExit("only rounds of lakestream are kept")
    samples, last = [], -1.0
    for each in measured.samples:
        if each.at - last >= EVERY_S:
            samples.append(each)
            last = each.at
    told = dict(sorted(measured.told.items(), key=lambda each: -each[1])[:6])
    rounds = latest() | {measured.name: msgspec.structs.replace(measured, samples=samples, told=told)}
    SAMPLES.write_bytes(msgspec.json.encode(list(rounds.values())) + b"\n")


def save(scenarios: Mapping[str, tuple[Scenario, Broken]], seconds: int) -> None:
    """Write the campaign's results, its table in the page, and the plots."""
    rounds = {name: each for name, each in latest().items() if name in scenarios}
    ordered = [(scenarios[name][0], rounds[name]) for name in scenarios if name in rounds]
    head = "| flood | memory grew, bound (MiB) | p99 of publish, request (ms), before ▶ during | ratio | refused with |"
    rows, table = [], [head, "|---|--:|--:|--:|---|"]
    for scenario, measured in ordered:
        wrong = scenarios[scenario.name][1](scenario, measured)
        promise = "memory below the bound; p99 of others within 5 times; refusals told; recovery without restart"
        result = "; ".join(wrong) or "kept"
        rows.append(campaigns.Row(scenario.title, promise, "tests/overload/scenarios.py", 1, result))
        before, during = measured.p99["before"], measured.p99["during"]
        times = ", ".join(f"{before[kind]:.0f} ▶ {during[kind]:.0f}" for kind in ("publish", "request"))
        told = ", ".join(text for text in measured.told if any(one in text for one in scenario.told))
        memory = f"{measured.growth // MIB}, {scenario.bound // MIB}"
        table.append(f"| {scenario.title} (`{scenario.name}`) | {memory} | {times} | {measured.ratio:.1f} | {told} |")
    campaigns.save(campaigns.Campaign("overload", "python -m tests.overload", seconds, rows))
    text = campaigns.PAGE.read_text()
    head, _, rest = text.partition(BEGIN)
    campaigns.PAGE.write_text(head + BEGIN + "\n".join(table) + "\n" + END + rest.partition(END)[2])
    _plot([measured for _, measured in ordered], {scenario.name: scenario.bound for scenario, _ in ordered})


def _plot(rounds: list[Measured], bounds: Mapping[str, int]) -> None:
    ratios = [(each.name, each.ratio, "") for each in rounds]
    title = f"The quiet client's 99th percentile during the flood (promise: {RATIO:.0f})"
    draw.save(campaigns.RESULTS / "overload-p99.svg", draw.bars(title, ratios, "times that before it"))
    shares = [
        (each.name, 100 * max(each.growth, 0) / bounds[each.name], f"% of {bounds[each.name] // MIB} MiB")
        for each in rounds
    ]
    draw.save(
        campaigns.RESULTS / "overload-bound.svg", draw.bars("Memory during the flood", shares, "percent of the bound")
    )
    largest = sorted(rounds, key=lambda each: -each.growth)[:SHOWN]
    series = {each.name: [(one.at, one.rss / MIB) for one in each.samples] for each in largest}
    picture = draw.lines("Resident memory of the server", series, "seconds; the flood begins after 3", "MiB")
    draw.save(campaigns.RESULTS / "overload-memory.svg", picture)
