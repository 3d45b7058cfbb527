"""The page of the console and its files.

Belongs here: reading `static/` once, and answering requests for its files by name. Only names that were found there are
known, so no path of a request reaches the file system.

The page is served at `/console` without a slash at its end: it refers to its files as `console/static/…`, which also
holds below an `http_base_path`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from lakestream.http.exchange import TEXT, Headers, HttpAnswer, HttpRequest

PAGE = "index.html"
ROOT = Path(__file__).parent / "static"

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": TEXT,
    ".woff2": "font/woff2",
}


class _File(NamedTuple):
    content_type: str
    content: bytes
    tag: str


class ConsoleFiles:
    """The files of one folder, in memory.

    Args:
        root: the folder.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self._files = {path.relative_to(root).as_posix(): _read(path) for path in root.rglob("*") if path.is_file()}

    def answer(self, name: str, request: HttpRequest, headers: Headers) -> HttpAnswer:
        """Return a file; 304 for the version that the browser has."""
        file = self._files.get(name)
        if file is None:
            return HttpAnswer(404, TEXT, b"404 page not found\n", headers)
        # The browser asks each time whether its copy is current: after an upgrade no file of another version is used.
        headers += (("ETag", file.tag), ("Cache-Control", "no-cache"))
        if file.tag in request.headers.get("if-none-match", ""):
            return HttpAnswer(304, file.content_type, b"", headers)
        return HttpAnswer(200, file.content_type, file.content, headers)


def _read(path: Path) -> _File:
    content = path.read_bytes()
    return _File(
        _TYPES.get(path.suffix, "application/octet-stream"), content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    )
