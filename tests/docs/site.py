"""Hooks of mkdocs.yml: pages from outside docs/ become part of the site, and links between both keep working.

Belongs here: the files outside of docs/ that the site shows, and rewriting of links. In the repository a
link is relative to its file, as Git hosts need it; a link to a source file is shown without a link on the site.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

SHOWN = {
    "ARCHITECTURE.md": "docs/internals/ARCHITECTURE.md",
    "CONTRIBUTING.md": "docs/internals/CONTRIBUTING.md",
    "CHANGELOG.md": "docs/internals/CHANGELOG.md",
    "examples/README.md": "docs/examples/README.md",
    **{
        f"examples/{name}/README.md": f"docs/examples/{name}.md"
        for name in ("orders", "iot", "audit", "features", "cdc", "notebook", "dbt")
    },
    "README.md": "docs/index.md",
    "docs/": "docs/index.md",
}
"""Places on the site of files and folders of the repository; a link to README leads to the front page."""

_CONSOLE = "packages/console/lakestream_console/static"
LOOK = {
    "assets/mark.svg": f"{_CONSOLE}/favicon.svg",
    **{
        f"assets/{name}.woff2": f"{_CONSOLE}/vendor/{name}.woff2"
        for name in (
            "ibm-plex-sans-latin-400-normal",
            "ibm-plex-sans-latin-600-normal",
            "ibm-plex-mono-latin-400-normal",
        )
    },
}
"""Places on the site of the console's mark and fonts, and their files."""

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages from outside of docs/, and the console's look."""
    for place, source in LOOK.items():
        files.append(File.generated(config, place, abs_src_path=posixpath.join(_root(config), source)))
    for source, place in SHOWN.items():
        path = place.removeprefix("docs/")
        if source.endswith(".md") and files.get_file_from_path(path) is None:
            files.append(File.generated(config, path, abs_src_path=posixpath.join(_root(config), source)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: MkDocsConfig, **_: object) -> str:
    """Return the page with links as they are on the site."""
    place = f"docs/{page.file.src_uri}"
    if page.is_homepage:
        page.meta["hide"] = ["navigation", "toc"]
    added = [file for file, shown in SHOWN.items() if shown == place and file.endswith(".md") and file != "README.md"]
    return rewritten(markdown, added[0] if added else place, place)


def rewritten(markdown: str, source: str, place: str) -> str:
    """Return the text of the repository's file `source` with links as they are at `place` of the site."""

    def link(found: re.Match[str]) -> str:
        text, target = found.groups()
        if re.match(r"[a-z]+:|#", target):
            return found.group()
        path, hash, anchor = target.partition("#")
        whole = posixpath.normpath(posixpath.join(posixpath.dirname(source), path)) + ("/" if path[-1:] == "/" else "")
        whole = SHOWN.get(whole, whole)
        if not whole.startswith("docs/"):
            return text
        return f"[{text}]({posixpath.relpath(whole, posixpath.dirname(place))}{hash}{anchor})"

    return _LINK.sub(link, markdown)


def _root(config: MkDocsConfig) -> str:
    return posixpath.dirname(config.config_file_path)
