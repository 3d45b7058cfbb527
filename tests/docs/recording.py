"""The recording of a terminal in the README: `python -m tests.docs.recording` runs the README's lines and draws it.

Belongs here: the lines, what they print on a new server, and the animated SVG of both. Without animations, and for
people who have asked for less motion, everything is shown at once. Times of day are those of no day, so that the same
commands make the same picture: a test compares it with a run.
"""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import NamedTuple

from tests import nursery
from tests.cluster.nodes import until
from tests.docs.blocks import ROOT
from tests.servers import Kind, Server

FILE = ROOT / "docs" / "pictures" / "first-row.svg"
README = ROOT / "README.md"
TITLE = "A message is published and queried in a terminal"

CHARACTER, LINE, MARGIN, BAR = 7.83, 19.0, 18.0, 34.0
"""Width of a character, height of a line, margin and title bar, in pixels."""
TYPED_S, READ_S = 0.03, 0.9
"""Seconds for a typed character, and until the next command."""
_TIME = re.compile(r"^\d\d:\d\d:\d\d ", re.MULTILINE)
_STYLE = """
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d7dde5 }
text { white-space: pre }
.prompt { fill: #4cc38a }
.typed { fill: #ffffff; animation: type both steps(var(--n)) }
.out { animation: show 1ms both }
@keyframes type { from { clip-path: inset(0 100% 0 0) } to { clip-path: inset(0 0 0 0) } }
@keyframes show { from { opacity: 0 } to { opacity: 1 } }
@media (prefers-reduced-motion: reduce) { * { animation: none !important } }
"""


class Step(NamedTuple):
    """A command line, and what it printed."""

    line: str
    output: str


def lines() -> list[str]:
    """Return the commands of the README's second terminal."""
    block = re.search(r"In a second terminal.*?```sh\n(.*?)```", README.read_text(), re.DOTALL)
    assert block is not None
    return block[1].strip().splitlines()


def record(run: Callable[[str], str]) -> list[Step]:
    """Return the steps of a recording; `run` runs a command line and returns what it prints."""
    return [Step(line, _TIME.sub("12:00:00 ", run(line))) for line in lines()]


def draw(steps: list[Step]) -> str:
    """Return the animated SVG."""
    rows, y, at = list[str](), BAR + LINE, 0.6
    width = max(len(row.rstrip()) + 2 for step in steps for row in (step.line, *step.output.splitlines()))
    for step in steps:
        size, took = len(step.line), len(step.line) * TYPED_S
        rows.append(f'<text class="prompt out" x="{MARGIN:g}" y="{y:g}" style="animation-delay: {at:.2f}s">$</text>')
        rows.append(
            f'<text class="typed" x="{MARGIN + 2 * CHARACTER:.1f}" y="{y:g}" style="--n: {size}; '
            f'animation-delay: {at:.2f}s; animation-duration: {took:.2f}s">{escape(step.line)}</text>'
        )
        at, y = at + took + 0.3, y + LINE
        for row in step.output.rstrip().splitlines():
            if row.strip():
                style = f"animation-delay: {at:.2f}s"
                rows.append(f'<text class="out" x="{MARGIN:g}" y="{y:g}" style="{style}">{escape(row.rstrip())}</text>')
                y += LINE
        at, y = at + READ_S, y + LINE / 2
    wide, high = round(2 * MARGIN + width * CHARACTER), round(y)
    dots = "".join(
        f'<circle cx="{20 + 18 * n}" cy="17" r="5.5" fill="{colour}"/>'
        for n, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}">',
            f"<title>{TITLE}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect width="{wide}" height="{high}" rx="8" fill="#1b1f27"/>{dots}',
            *rows,
            "</svg>",
            "",
        ]
    )


def main() -> int:
    """Record on a new server."""
    with tempfile.TemporaryDirectory() as directory:
        server = Server(Kind.OURS, Path(directory) / "data").start()
        variables = {"NATS_URL": server.url, "COLUMNS": "100"}

        def run(line: str) -> str:
            words = shlex.split(line)[1:]
            if words[0] == "sql":  # the server makes the lake within a second
                until((Path(directory) / "data" / "lake").is_dir, "there is a lake")
            done = nursery.run(words, variables, directory=Path(directory))
            assert done.returncode == 0, done.stderr
            return done.stdout

        try:
            FILE.write_text(draw(record(run)))
        finally:
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
