"""Tests that run the code blocks of README and of each page, as they are printed.

They need `unshare` and `ip`, and a system that lets this user make namespaces; `go` builds the `nats` command once.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import DIFF, ROOT, blocks, pages
from tests.docs.page import run_in_namespaces

pytestmark = [pytest.mark.conformance, pytest.mark.heavy, pytest.mark.timeout(1800)]

RUN = [
    path for path in pages() if any(block.language not in ("text", DIFF) and not block.reason for block in blocks(path))
]


@pytest.mark.parametrize("path", RUN, ids=[str(path.relative_to(ROOT)) for path in RUN])
def test_the_blocks_of_the_page_run(path: Path, programs: Path, tmp_path: Path) -> None:
    done = run_in_namespaces(path, programs, tmp_path)
    assert done.returncode == 0, done.stdout


def test_a_block_that_fails_is_found(programs: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    folder = tmp_path / "folder"
    folder.mkdir()
    page.write_text("# Page\n\n```sh\ntrue\nfalse\n```\n")
    done = run_in_namespaces(page, programs, folder)
    assert (done.returncode, "exit code 1 of:\nfalse" in done.stdout) == (1, True), done.stdout
