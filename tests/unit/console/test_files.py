"""Tests of the console's files: the ones that are packaged, and names that reach no other."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from lakestream.http.exchange import HttpRequest
from lakestream_console.files import PAGE, ROOT, ConsoleFiles

pytestmark = pytest.mark.unit

GET = HttpRequest("GET", "/console")


def test_files_are_served_by_their_names_below_the_folder(tmp_path: Path) -> None:
    (tmp_path / "static" / "vendor").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "static" / "app.js").write_text("1")
    (tmp_path / "static" / "vendor" / "x.svg").write_text("<svg/>")
    files = ConsoleFiles(tmp_path / "static")
    found = files.answer("app.js", GET, (("X", "y"),))
    assert (found.status, found.content_type, found.body) == (200, "text/javascript; charset=utf-8", b"1")
    assert dict(found.headers).keys() == {"X", "ETag", "Cache-Control"}
    assert files.answer("vendor/x.svg", GET, ()).content_type == "image/svg+xml"
    for name in ("../secret.txt", "vendor/../app.js", "/app.js", "vendor", "", ".", "vendor//x.svg", "./app.js"):
        assert files.answer(name, GET, ()).status == 404


def test_a_browser_that_has_the_file_gets_it_once(tmp_path: Path) -> None:
    (tmp_path / "app.js").write_text("1")
    tag = dict(ConsoleFiles(tmp_path).answer("app.js", GET, ()).headers)["ETag"]
    again = GET._replace(headers={"if-none-match": f'"other", {tag}'})
    assert ConsoleFiles(tmp_path).answer("app.js", again, ()).status == 304
    (tmp_path / "app.js").write_text("2")
    assert ConsoleFiles(tmp_path).answer("app.js", again, ()).status == 200


def test_every_file_is_part_of_the_package() -> None:
    data = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    patterns = data["lakestream_console"]
    files = [path for path in ROOT.rglob("*") if path.is_file()]
    assert ROOT / PAGE in files
    packaged = {path for pattern in patterns for path in ROOT.parent.glob(pattern)}
    assert set(files) <= packaged
