"""Code blocks of Markdown pages.

Belongs here: finding the fenced blocks of a page with their languages and marks. A block that cannot run has a comment
right above it: `<!-- not run: reason -->`. Running them is in page.py.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

DIFF = "diff"
LANGUAGES = frozenset({"sh", "python", "sql", "conf", "json", "yaml", "properties", "text", DIFF})
"""Languages of blocks; `text` is output or a sketch, which nothing runs, and `diff` a change of this repository
(test_contributing.py)."""

COMMANDS = re.compile(
    r"^\s*(\$ |(lakestream (?!is up)|nats|curl|make|python|pip|uv|spark-\w+|nsc|docker) )", re.MULTILINE
)
"""Beginning of a command line, which a block of `text` may not contain."""

_FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,})(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=indent)(?P=fence)[ ]*$", re.M | re.S
)
_MARK = re.compile(r"<!-- not run: (?P<reason>.*?) -->", re.S)


class Block(NamedTuple):
    """A fenced block: page and line of its text, language, and the reason why it is not run; "": it is."""

    page: str
    line: int
    language: str
    text: str
    reason: str

    @property
    def place(self) -> str:
        """Return its page and line."""
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Return README and the pages of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(path: Path) -> str:
    """Return a page's path in the repository, or its whole path if it lies elsewhere."""
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def blocks(path: Path) -> list[Block]:
    """Return the fenced blocks of a page in their order."""
    text = path.read_text()
    shown = name_of(path)
    found = []
    for fence in _FENCE.finditer(text):
        before = text[: fence.start()].rstrip()
        mark = _MARK.fullmatch(before, max(before.rfind("<!--"), 0))
        reason = mark["reason"] if mark else ""
        line = text.count("\n", 0, fence.start("text")) + 1
        inside = textwrap.dedent(fence["text"])
        found.append(Block(shown, line, fence["language"].strip(), inside, " ".join(reason.split())))
    return found


def indented(path: Path) -> list[str]:
    """Return the lines that Markdown takes for code because of their indentation, outside of lists and fences."""
    text = _FENCE.sub("", path.read_text())
    found: list[str] = []
    in_list = False
    previous = ""
    for line in text.splitlines():
        if re.match(r" *([-*+]|\d+\.) ", line):
            in_list = True
        elif line.strip() and not line.startswith(" "):
            in_list = False
        if not in_list and re.match(r"(    |\t)\S", line) and not previous.strip():
            found.append(line)
        previous = line
    return found
