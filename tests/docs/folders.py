"""The lists of modules in the docstrings of folders (`__init__.py`), made from the docstrings of the modules.

    python -m tests.docs.folders            writes them
    python -m tests.docs.folders --check    tells which ones are not current, exit code 1

Belongs here: the lists. A folder's docstring states its rule, then lists its folders and modules in reading order. The
order is kept as it is written; a new module comes at the end, and whoever adds it moves it to its place.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from tests.docs.blocks import ROOT

HEAD = "In reading order:\n\n"
WIDTH = 120
_DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)
"""The docstring of a module, which opens the file: parsing all of them takes ten seconds."""
_ITEM = re.compile(r"^- `([\w-]+(?:\.py|/))`: ", re.MULTILINE)


def folders() -> Iterator[Path]:
    """Yield the `__init__.py` of each folder with more than one module, or with folders."""
    for init in sorted([*ROOT.glob("lakestream/**/__init__.py"), *ROOT.glob("packages/*/lakestream_*/**/__init__.py")]):
        if len(members(init.parent)) > 1:
            yield init


def members(folder: Path) -> dict[str, str]:
    """Return the summary of each folder (`name/`) and module (`name.py`) of a folder."""
    found = {f"{init.parent.name}/": init for init in sorted(folder.glob("*/__init__.py"))}
    found |= {path.name: path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"}
    return {name: summary(path) for name, path in found.items()}


def summary(module: Path) -> str:
    """Return the first sentence of a module's docstring, on one line."""
    text = _DOCSTRING.match(module.read_text(encoding="utf-8"))
    return " ".join(text[1].partition("\n\n")[0].split()) if text else ""


def listing(members: dict[str, str], order: list[str]) -> str:
    """Return the list of a folder: the names in `order` first, then the others."""
    names = [name for name in order if name in members] + [name for name in members if name not in order]
    items = (f"- `{name}`: {members[name]}" for name in names)
    return "\n".join(textwrap.fill(item, WIDTH, subsequent_indent="  ", break_long_words=False) for item in items)


def current(init: Path) -> str:
    """Return the text of an `__init__.py` with the list that it should have."""
    text = init.read_text(encoding="utf-8")
    docstring = ast.parse(text).body[0]
    assert isinstance(docstring, ast.Expr), init
    lines = text.splitlines(keepends=True)
    before, after = "".join(lines[: docstring.end_lineno]).rstrip(), "".join(lines[docstring.end_lineno :])
    head, listed, rest = before.removesuffix('"""').rstrip().partition(HEAD)
    made = listing(members(init.parent), _ITEM.findall(listed + rest))
    return f'{head.rstrip()}\n\n{HEAD}{made}\n"""\n{after}'


def stale() -> list[str]:
    """Return the folders whose list is not current."""
    return [str(init.parent.relative_to(ROOT)) for init in folders() if init.read_text("utf-8") != current(init)]


def main() -> int:
    """Write the lists, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only tell which lists are not current")
    if parser.parse_args().check:
        print("\n".join(stale()))
        return bool(stale())
    for init in folders():
        if init.read_text("utf-8") != (text := current(init)):
            init.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
